//! The program from the command line: its output, its refusals and its exit codes.

mod certificates;
#[cfg(target_os = "linux")]
mod environment;
mod messages;
#[cfg(target_os = "linux")]
mod protections;
mod streams;
mod tenants;
mod waiting;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process};
use serde_json::{Value, json};

/// A node of a cluster.
const MEMBER: &str =
    "cluster.listen = '127.0.0.1:0'\ncluster.secret = '0123456789abcdef0123456789abcdef'\n";

/// Time limit of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(20);

fn roundhouse(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roundhouse"));
    // Not in the home directory of the developer.
    command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR")).args(args);
    command
}

/// Runs a command that must end by itself.
fn run_to_exit(args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = roundhouse(args).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// A node on free ports that is killed when the test is over.
struct Serving {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl Serving {
    fn start(more: &[&str]) -> Self {
        let args = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let mut command = roundhouse(&args);
        // Neither may be passed to a server; see `COUNT`.
        command.env("NODE_SECRET", "1").env("ROUNDHOUSE__LOG__LEVEL", "info");
        command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self { child, stdout, stderr }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits for a log line that contains the word.
    fn await_log(&mut self, word: &str) -> String {
        let found = self.stderr.by_ref().lines().map(Result::unwrap).find(|l| l.contains(word));
        found.unwrap_or_else(|| panic!("the log ended without {word:?}"))
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn await_exit(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "the node does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn file(toml: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(toml.as_bytes()).unwrap();
    file
}

fn tenant(name: &str) -> String {
    let backend = "kind = 'native'\nname = 'everything'";
    format!("[tenants.{name}]\nauth = 'open'\n[tenants.{name}.backends.main]\n{backend}\n")
}

/// Another process of the node's user reads a file of a process's `/proc` folder. As root, which
/// may read everything, both run as another user.
#[cfg(target_os = "linux")]
mod readable {
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::process::CommandExt as _;
    use std::path::{Path, PathBuf};
    use std::process::Stdio;

    use super::*;

    /// The user `nobody`.
    const NOBODY: u32 = 65_534;

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    /// A copy of the program in a place where every user may start it.
    fn program() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), everybody).unwrap();
        std::fs::copy(env!("CARGO_BIN_EXE_roundhouse"), folder.path().join("roundhouse")).unwrap();
        folder
    }

    fn as_nobody(program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    fn children(of: u32) -> Vec<u32> {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let parent = |pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
        };
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| parent(pid) == Some(of)).collect()
    }

    #[test]
    fn neither_a_node_nor_a_guard_can_be_read_by_another_process_of_its_user() {
        let folder = program();
        let mut node = as_nobody(folder.path().join("roundhouse"));
        node.args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--",
            "sleep",
            "60",
        ]);
        node.current_dir("/").env("ROUNDHOUSE__NODE__DRAIN_SECS", "1");
        node.env("ROUNDHOUSE__CLUSTER__SECRET", "hunter2 hunter2 hunter2");
        let mut child = node.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut node = Serving { child, stdout, stderr };
        let url = node.line();
        let address = url.split('/').nth(2).unwrap();
        // The server starts with the first session. It answers nothing, and the test does not
        // wait for it.
        let mut client = TcpStream::connect(address).unwrap();
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "a", "version": "1" } } })
        .to_string();
        let path = url.rsplit_once(address).unwrap().1;
        write!(
            client,
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let pid = node.child.id();
        let until = Instant::now() + PATIENCE;
        let (guard, init) = loop {
            // The process is `sleep` only after the init has started it.
            let mut guards = children(pid).into_iter();
            let below = guards.find_map(|guard| Some((guard, *children(guard).first()?)));
            if let Some((guard, init)) = below
                && !children(init).is_empty()
            {
                break (guard, init);
            }
            assert!(Instant::now() < until, "no guard with an init that has a child");
            std::thread::sleep(Duration::from_millis(10));
        };
        for process in [pid, guard] {
            let folder = PathBuf::from(format!("/proc/{process}"));
            for secret in ["environ", "mem", "maps", "auxv"] {
                let read = as_nobody("head").args(["-c1"]).arg(folder.join(secret)).output();
                let error = String::from_utf8(read.unwrap().stderr).unwrap();
                assert!(error.contains("Permission denied"), "{process} {secret}: {error:?}");
            }
            let listed = as_nobody("ls").arg(folder.join("fd")).output().unwrap();
            assert!(!listed.status.success() && listed.stdout.is_empty(), "{listed:?}");
            assert_eq!(std::fs::metadata(folder.join("environ")).unwrap().uid(), 0);
        }
        for secret in ["environ", "mem"] {
            let file = format!("/proc/{init}/{secret}");
            let read = as_nobody("head").args(["-c1", &file]).output().unwrap();
            assert!(!read.status.success(), "{secret} of the init: {read:?}");
        }
        // A process in the namespaces of another server cannot read the files of this server. A
        // process of the same user outside of them can.
        let server = children(init)[0];
        let read = as_nobody("cat").arg(format!("/proc/{server}/environ")).output().unwrap();
        assert!(read.status.success(), "{read:?}");
        node.signal(Signal::TERM);
        assert!(node.await_exit().success());
        assert!(!Path::new(&format!("/proc/{server}")).exists(), "the server outlived its node");
    }
}

#[test]
fn serve_prints_each_endpoint_with_its_real_port_and_nothing_else() {
    let file = file(&(tenant("one") + &tenant("two")));
    let mut node = Serving::start(&["--config", file.path().to_str().unwrap()]);
    let lines = [node.line(), node.line(), node.line()];
    assert!(lines[0].starts_with("tenant one: http://127.0.0.1:"), "{lines:?}");
    assert!(lines[0].ends_with("/one/mcp") && !lines[0].contains(":0/"), "{lines:?}");
    assert!(lines[1].ends_with("/two/mcp"), "{lines:?}");
    assert!(lines[2].starts_with("admin: http://127.0.0.1:"), "{lines:?}");
    node.signal(Signal::TERM);
    assert!(node.await_exit().success());
    let mut rest = String::new();
    node.stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

#[test]
fn an_interrupt_ends_the_node_as_a_request_to_terminate_does() {
    let mut node = Serving::start(&[]);
    assert!(node.line().ends_with("/demo/mcp"));
    node.signal(Signal::INT);
    assert!(node.await_exit().success());
}

/// A server that prints how many of the node's secrets it can read.
const COUNT: &str =
    "echo secrets=$(env | grep -c -e ^NODE_SECRET -e ^ROUNDHOUSE__) >&2; exec cat >/dev/null";

// holds: STD-10
#[test]
fn a_server_of_the_settings_sees_nothing_of_the_nodes_environment() {
    let file = file(&format!(
        "[tenants.demo]
         auth = 'open'
         [tenants.demo.backends.silent]
         kind = 'stdio'
         command = 'sh'
         args = ['-c', '{COUNT}']"
    ));
    let mut node = Serving::start(&["--config", file.path().to_str().unwrap()]);
    let _call = initialize(&node.line());
    assert!(node.await_log("secrets=").contains("secrets=0"));
}

#[test]
fn a_typed_command_sees_what_its_typist_has_but_not_the_nodes_settings() {
    let mut node = Serving::start(&["--", "sh", "-c", COUNT]);
    let _call = initialize(&node.line());
    assert!(node.await_log("secrets=").contains("secrets=1"));
}

#[test]
fn a_second_signal_ends_a_node_that_still_waits_for_a_call() {
    // A server that never answers, so that `initialize` stays in flight.
    let mut node = Serving::start(&["--", "sh", "-c", "echo has-begun >&2; cat >&2"]);
    let _call = initialize(&node.line());
    node.await_log("has-begun");
    // The first few signals count as repetitions of one.
    while node.child.try_wait().unwrap().is_none() {
        node.signal(Signal::INT);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(node.await_exit().code(), Some(130));
}

#[test]
fn a_repeated_signal_still_ends_the_node_in_order() {
    let mut node = Serving::start(&[]);
    let line = node.line();
    assert!(line.ends_with("/demo/mcp"), "{line}");
    node.signal(Signal::TERM);
    node.signal(Signal::INT);
    assert!(node.await_exit().success());
}

#[test]
fn a_call_in_flight_is_answered_before_the_node_ends() {
    let file = file(
        "node.drain_secs = 1
         [tenants.demo]
         auth = 'open'
         [tenants.demo.backends.silent]
         kind = 'stdio'
         command = 'sh'
         args = ['-c', 'echo has-begun >&2; exec cat >&2']",
    );
    let mut node = Serving::start(&["--config", file.path().to_str().unwrap()]);
    let mut call = initialize(&node.line());
    node.await_log("has-begun");
    node.signal(Signal::TERM);
    let mut answer = String::new();
    call.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(r#""error""#), "{answer}");
    assert!(node.await_exit().success());
}

/// Posts an `initialize` to the endpoint of a line that the node printed.
fn initialize(line: &str) -> TcpStream {
    let address = line.split("//").nth(1).and_then(|rest| rest.split('/').next()).unwrap();
    let info = json!({ "name": "test", "version": "0" });
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!("POST /demo/mcp HTTP/1.1\r\nHost: {address}\r\nConnection: close");
    let types = "Content-Type: application/json\r\nAccept: application/json, text/event-stream";
    let length = body.len();
    write!(stream, "{head}\r\n{types}\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    stream
}

#[test]
fn a_taken_port_is_named_with_the_setting_that_moves_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, stdout, stderr) = run_to_exit(&["--listen", &address, "--admin", "127.0.0.1:0"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains(&address) && stderr.contains("front.listen"), "{stderr}");
    let (code, _, stderr) = run_to_exit(&["--listen", "127.0.0.1:0", "--admin", &address]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains(&address) && stderr.contains("admin.listen"), "{stderr}");
}

#[test]
fn check_prints_what_a_file_configures() {
    let file = file(&tenant("acme"));
    let (code, stdout, stderr) = run_to_exit(&["check", file.path().to_str().unwrap()]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.contains("tenant acme: /acme/mcp"), "{stdout}");
}

#[test]
fn check_warns_where_settings_exceed_the_limit_of_descriptors() {
    let file = file(&format!("front.workers = 2\n{}", tenant("acme")));
    let mut shell = Command::new("sh");
    let script = "ulimit -n 300 && exec \"$0\" check \"$1\"";
    shell.args(["-c", script, env!("CARGO_BIN_EXE_roundhouse")]).arg(file.path());
    let output = shell.output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{stdout}");
    assert!(stdout.contains("descriptors: 300"), "{stdout}");
    assert!(stdout.contains("warning: `front.connections_max` is 25000"), "{stdout}");
    assert!(stdout.contains("LimitNOFILE"), "{stdout}");
}

/// The kernel would otherwise double the table under load, while threads that serve clients wait.
#[cfg(target_os = "linux")]
#[test]
fn the_table_of_descriptors_is_large_enough_before_clients_come() {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let text = format!("[front]\nworkers = 2\nconnections_max = 300\n{}", tenant("acme"));
    let mut file = file(&text);
    let mut serving = Serving::start(&["--config", file.path().to_str().unwrap()]);
    serving.line();
    let status = format!("/proc/{}/status", serving.child.id());
    let size = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
        size.unwrap().trim().parse::<u64>().unwrap()
    };
    // 858 descriptors, in a table that has a power of two.
    assert!((limit.min(858)..=1_024).contains(&size()), "{}", size());

    // The first server over standard streams may have 1,000 processes, each with four descriptors.
    let added = "[tenants.best]\nauth = 'open'\n[tenants.best.backends.main]\nkind = 'stdio'\ncommand = 'cat'\n";
    file.write_all(added.as_bytes()).unwrap();
    serving.signal(Signal::HUP);
    let until = Instant::now() + PATIENCE;
    while size() < limit.min(4_858) {
        assert!(Instant::now() < until, "{}", size());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn check_names_every_problem_and_fails() {
    let file = file(
        "store.url = 'postgres://:hunter2@localhost'
         [cluster]
         listen = '127.0.0.1:0'
         secret = 'too short, hunter2'
         [tenants.acme]
         [tenants.acme.backends.one]
         kind = 'native'
         name = 'nothing'
         [tenants.best]
         auth = 'open'
         [tenants.best.backends.one]
         kind = 'stdio'
         command = 'true'
         [tenants.best.backends.two]
         kind = 'stdio'
         command = 'true'
         prefix = 'one'
         [tenants.Case]
         auth = 'open'",
    );
    let (code, stdout, stderr) = run_to_exit(&["check", file.path().to_str().unwrap()]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    for wanted in [
        "`auth = \"open\"` under [tenants.acme]",
        "the handler \"nothing\"",
        "`tenants.best.backends.two` has the prefix \"one\", which the backend \"one\" has too",
        "the name of tenant `Case`",
        "`tenants.Case.backends` has no backend",
        "scheme `postgres`",
        "`cluster.secret` has 18 bytes and must have at least 32",
    ] {
        assert!(stderr.contains(wanted), "no {wanted} in\n{stderr}");
    }
    assert!(!stderr.contains("hunter2"), "{stderr}");
}

#[test]
fn check_reads_where_redis_is_without_going_there_and_repeats_no_password() {
    for (url, fine) in [
        ("redis://:hunter2@127.0.0.1:1", true),
        ("redis+sentinel://:hunter2@127.0.0.1:1/primary", true),
        ("redis://:hunter2@", false),
        ("redis+nothing://:hunter2@127.0.0.1:1", false),
    ] {
        let file = file(&format!("store.url = '{url}'\n{MEMBER}{}", tenant("acme")));
        let (code, stdout, stderr) = run_to_exit(&["check", file.path().to_str().unwrap()]);
        assert_eq!(code, Some(i32::from(!fine)), "{url}: {stderr}");
        assert!(fine || stderr.contains("store.url"), "{stderr}");
        assert!(!(stdout + &stderr).contains("hunter2"));
    }
}

#[test]
fn a_front_that_could_not_start_is_found_by_check_too() {
    let file = file(&format!("front.public_url = 'mcp'\n{}", tenant("acme")));
    let (code, _, stderr) = run_to_exit(&["check", file.path().to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("front.public_url"), "{stderr}");
}

#[test]
fn stdio_serves_a_tenant_with_nothing_but_mcp_on_standard_output() {
    let mut command = roundhouse(&["stdio", "--tenant", "demo"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let info = json!({ "name": "test", "version": "0" });
    let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info });
    let messages = [
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params }),
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" }),
    ];
    let mut stdin = child.stdin.take().unwrap();
    messages.iter().for_each(|message| writeln!(stdin, "{message}").unwrap());
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let messages: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(messages.iter().all(|message| message["jsonrpc"] == "2.0"), "{text}");
    let answers: Vec<&Value> =
        messages.iter().filter(|message| message.get("result").is_some()).collect();
    assert_eq!(answers[0]["result"]["protocolVersion"], "2025-06-18");
    assert!(answers[1]["result"]["tools"][0]["name"].is_string());
}

#[test]
fn stdio_with_an_unknown_tenant_lists_the_known_ones() {
    let (code, stdout, stderr) = run_to_exit(&["stdio", "--tenant", "nope"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("no tenant `nope`; there is: `demo`"), "{stderr}");
}
