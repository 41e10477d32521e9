//! A node whose store cannot be reached when it starts.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::{PATIENCE, Serving, Signal, file, roundhouse, tenant};

#[path = "../../../../tests/src/ports.rs"]
mod ports;

fn free_port() -> u16 {
    ports::free_port().expect("a port that no other test process has")
}

/// The status and the body of a path of the listener for operators; `None` if nothing listens.
fn get(port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

fn await_answer(port: u16, path: &str, is_wanted: impl Fn(u16, &str) -> bool) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = get(port, path);
        if let Some((status, body)) = &answer
            && is_wanted(*status, body)
        {
            return body.clone();
        }
        assert!(Instant::now() < until, "{path}: {answer:?}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

struct Redis(Child);

impl Redis {
    fn start(port: u16, folder: &Path) -> Self {
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--save", "", "--bind", "127.0.0.1"]);
        command.args(["--dir", folder.to_str().unwrap()]);
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(settings: &str, admin: u16) -> Serving {
    let file = file(settings);
    let admin = format!("127.0.0.1:{admin}");
    let path = file.path().to_str().unwrap();
    let args = ["serve", "--listen", "127.0.0.1:0", "--admin", &admin, "--config", path];
    let mut child =
        roundhouse(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut node = Serving { child, stdout, stderr };
    // The file has been read.
    node.await_log("annot");
    node
}

#[test]
fn a_node_without_its_store_is_alive_and_not_ready_until_the_store_is_there() {
    let (admin, redis) = (free_port(), free_port());
    let settings = format!(
        "store.url = 'redis://127.0.0.1:{redis}'\n[cluster]\nlisten = '127.0.0.1:0'\n\
         secret = '0123456789abcdef0123456789abcdef'\n{}",
        tenant("a")
    );
    let mut node = start(&settings, admin);
    await_answer(admin, "/healthz", |status, _| status == 200);
    let why = await_answer(admin, "/readyz", |status, _| status == 503);
    assert!(why.contains("waiting for the store"), "{why}");
    let folder = tempfile::tempdir().unwrap();
    let _redis = Redis::start(redis, folder.path());
    await_answer(admin, "/readyz", |status, _| status == 200);
    assert!(node.line().starts_with("tenant a: http://127.0.0.1:"));
    node.signal(Signal::TERM);
    assert!(node.await_exit().success());
    let mut log = String::new();
    node.stderr.read_to_string(&mut log).unwrap();
    let lines = log.lines().filter(|line| line.contains("the store cannot be reached;"));
    assert!(lines.count() <= 1, "{log}");
}

#[test]
fn a_single_node_whose_redis_is_away_is_not_ready() {
    let (admin, redis) = (free_port(), free_port());
    let settings = format!("store.url = 'redis://127.0.0.1:{redis}'\n{}", tenant("a"));
    let _node = start(&settings, admin);
    // It reads who was revoked before its first request.
    let why = await_answer(admin, "/readyz", |status, body| {
        status == 503 && body.contains("waiting for the store: it cannot be reached")
    });
    assert!(why.starts_with("not ready: "), "{why}");
    let folder = tempfile::tempdir().unwrap();
    let _redis = Redis::start(redis, folder.path());
    await_answer(admin, "/readyz", |status, _| status == 200);
}
