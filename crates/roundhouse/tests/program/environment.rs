//! A node with a secret in its environment, for a server that prints it.

use std::path::PathBuf;

use super::*;

const SECRET: &str = "hunter2 hunter2 hunter2";

/// A server that prints the variable `API_KEY`.
const PRINT: &str = "echo key=$API_KEY >&2; exec cat >/dev/null";

fn tenant(more: &str) -> String {
    format!(
        "[tenants.demo]
         auth = 'open'
         [tenants.demo.backends.main]
         kind = 'stdio'
         command = 'sh'
         args = ['-c', '{PRINT}']
         {more}"
    )
}

/// The environment of a process. Only root can read that of a node.
fn environment(pid: u32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The paths of the open descriptors of a process.
fn files(pid: u32) -> Vec<PathBuf> {
    let Ok(folder) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    folder.flatten().filter_map(|file| std::fs::read_link(file.path()).ok()).collect()
}

#[test]
fn a_running_node_has_no_secret_in_its_environment_and_works_with_it() {
    let file = file(&tenant(""));
    let mut command = roundhouse(&["serve", "--listen", "127.0.0.1:0", "--config"]);
    command.arg(file.path()).stdin(Stdio::null());
    for (name, value) in [
        ("ROUNDHOUSE__CLUSTER__SECRET", SECRET),
        ("ROUNDHOUSE__TENANTS__DEMO__BACKENDS__MAIN__ENV__API_KEY", SECRET),
        ("roundhouse__admin__listen", "127.0.0.1:0"),
        ("HARMLESS", "kept"),
    ] {
        command.env(name, value);
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut node = Serving { child, stdout, stderr };
    let _call = initialize(&node.line());
    let line = node.await_log("key=");
    assert!(line.contains(SECRET), "the server has no secret: {line}");
    let pid = node.child.id();
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(name.trim(), "roundhouse", "the name of the process has changed");
    if let Some(environment) = environment(pid) {
        assert!(!environment.contains("hunter2"), "{environment}");
        assert!(!environment.to_uppercase().contains("ROUNDHOUSE__"), "{environment}");
        assert!(environment.contains("HARMLESS=kept"), "{environment}");
        let files = files(pid);
        let memory = files.iter().find(|file| file.to_string_lossy().contains("memfd"));
        assert_eq!(memory, None, "{files:?}");
        assert!(files.iter().any(|file| file.as_os_str() == "/dev/null"), "{files:?}");
    }
    node.signal(Signal::TERM);
    assert!(node.await_exit().success());
}

#[test]
fn standard_input_is_kept_while_settings_leave_the_environment() {
    for lines in ["pipe", "socket", "file"] {
        let mut command = roundhouse(&["stdio", "--tenant", "demo"]);
        command.env("ROUNDHOUSE__LOG__LEVEL", "warn").stdout(Stdio::piped());
        let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": { "name": "t", "version": "0" } });
        let initialize =
            json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
        let text = format!("skipped before\n{initialize}\n");
        let begin = "skipped before\n".len();
        let output = match lines {
            "pipe" => {
                let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
                write!(child.stdin.take().unwrap(), "{}", &text[begin..]).unwrap();
                child.wait_with_output().unwrap()
            }
            "socket" => {
                let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
                let theirs = std::os::fd::OwnedFd::from(theirs);
                let child = command.stdin(Stdio::from(theirs)).spawn().unwrap();
                // The command keeps the other end open.
                drop(command);
                write!(ours, "{}", &text[begin..]).unwrap();
                drop(ours);
                child.wait_with_output().unwrap()
            }
            _ => {
                // The position in the file is kept, too.
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(text.as_bytes()).unwrap();
                std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(begin as u64)).unwrap();
                command.stdin(Stdio::from(file)).output().unwrap()
            }
        };
        let answer = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{lines}");
        assert!(answer.contains(r#""protocolVersion":"2025-06-18""#), "{lines}: {answer}");
        assert!(!answer.contains("error"), "{lines}: {answer}");
    }
}

#[test]
fn more_settings_than_a_pipe_holds_leave_the_environment() {
    let file = file("");
    let mut command = roundhouse(&["check", file.path().to_str().unwrap()]);
    for number in 0..8 {
        let key = format!("ROUNDHOUSE__TENANTS__DEMO__BACKENDS__MAIN__ENV__KEY{number}");
        command.env(key, "x".repeat(100_000));
    }
    command.env("ROUNDHOUSE__TENANTS__DEMO__AUTH", "open");
    command.env("ROUNDHOUSE__TENANTS__DEMO__BACKENDS__MAIN__KIND", "stdio");
    command.env("ROUNDHOUSE__TENANTS__DEMO__BACKENDS__MAIN__COMMAND", "cat");
    let output = command.output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stdout.contains("backend main (stdio: cat)"), "{stdout}{stderr}");
}

#[test]
fn a_setting_that_is_not_text_is_named_and_not_repeated() {
    let value = std::os::unix::ffi::OsStringExt::from_vec(b"hunter2\xff".to_vec());
    let value: std::ffi::OsString = value;
    let output = roundhouse(&[]).env("ROUNDHOUSE__CLUSTER__SECRET", value).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("ROUNDHOUSE__CLUSTER__SECRET is not UTF-8"), "{stderr}");
    assert!(!stderr.contains("hunter2"), "{stderr}");
}

#[test]
fn a_variable_from_a_file_reaches_the_server() {
    let variables = super::file("# for the server\nAPI_KEY=from a file\n");
    let path = variables.path().display();
    let file = file(&tenant(&format!("env_file = '{path}'")));
    let mut node = Serving::start(&["--config", file.path().to_str().unwrap()]);
    let _call = initialize(&node.line());
    assert!(node.await_log("key=").contains("key=from a file"));
}

#[test]
fn a_value_beside_its_file_and_a_file_that_others_may_read_are_refused_by_key() {
    let secret = super::file(SECRET);
    let variables = super::file("API_KEY=hunter2\n");
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(variables.path(), readable).unwrap();
    let file = file(&format!(
        "store.url = 'redis://127.0.0.1'
         [cluster]
         listen = '127.0.0.1:0'
         secret = '{SECRET}'
         secret_file = '{}'
         {}",
        secret.path().display(),
        tenant(&format!("env_file = '{}'", variables.path().display()))
    ));
    let (code, _, stderr) = run_to_exit(&["check", file.path().to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("`cluster.secret` and `cluster.secret_file` are both set"), "{stderr}");
    assert!(stderr.contains("`tenants.demo.backends.main.env_file`: "), "{stderr}");
    assert!(stderr.contains("chmod it to 600") && !stderr.contains("hunter2"), "{stderr}");
}
