//! The terminal of a node that is started from a shell.

use std::process::Command;

/// Starts the command in its arguments as a shell of a new terminal does, and copies the first line
/// that it writes.
const TERMINAL: &str = r#"
import os, pty, sys
node, terminal = pty.fork()
if node == 0:
    os.execv(sys.argv[1], sys.argv[1:])
line = b""
while not line.endswith(b"\n"):
    line += os.read(terminal, 1)
os.kill(node, 9)
os.waitpid(node, 0)
sys.stdout.write(line.decode())
"#;

/// A server that reports whether it has a controlling terminal, and whether it can push a line into it.
const SERVER: &str = r#"
import fcntl, os, termios
found = "none"
try:
    terminal = os.open("/dev/tty", os.O_RDWR)
    found = "terminal"
    fcntl.ioctl(terminal, termios.TIOCSTI, b"\n")
    found = "pushes"
except OSError:
    pass
print('{"jsonrpc":"2.0","method":"%s"}' % found, flush=True)
"#;

/// What a server of a node in a terminal reports.
fn report(node: &str) -> String {
    let output = Command::new("python3")
        .args(["-c", TERMINAL, env!("CARGO_BIN_EXE_backends-fixture")])
        .arg(node)
        .args(["python3", "-c", SERVER])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Starts the command in its arguments in a session without a terminal, and prints the autogroup of that session.
const WITHOUT_TERMINAL: &str = r#"
import os, subprocess, sys
os.setsid()
group = open("/proc/self/autogroup").read()
node = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
line = node.stdout.readline()
node.kill()
node.wait()
print(group.split()[0])
print(line.decode())
"#;

/// A server that reports its autogroup.
const GROUPED: &str = r#"
group = open("/proc/self/autogroup").read().split()[0]
print('{"jsonrpc":"2.0","method":"%s"}' % group, flush=True)
"#;

/// In an autogroup of its own a server would have as much of a core as the node, and its priority would say nothing.
#[test]
fn a_server_of_a_node_without_a_terminal_has_the_autogroup_of_the_node() {
    if !std::fs::exists("/proc/self/autogroup").unwrap() {
        // The kernel has no autogroups.
        return;
    }
    for node in ["node", "sandboxed-node"] {
        let output = Command::new("python3")
            .args(["-c", WITHOUT_TERMINAL])
            .arg(env!("CARGO_BIN_EXE_backends-fixture"))
            .args([node, "python3", "-c", GROUPED])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let output = String::from_utf8(output.stdout).unwrap();
        let (group, server) = output.split_once('\n').unwrap();
        assert!(group.starts_with("/autogroup-"), "{output}");
        assert!(server.contains(&format!(r#""method":"{group}""#)), "{node}: {output}");
    }
}

#[test]
fn a_server_has_no_controlling_terminal_and_pushes_no_input_into_that_of_its_node() {
    for node in ["node", "sandboxed-node"] {
        let report = report(node);
        assert!(report.contains(r#""method":"none""#), "{node}: {report:?}");
    }
}
