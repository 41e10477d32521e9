//! A Redis of a story's own.

use std::net::TcpListener;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::tools;

/// How long it may take to start.
const START: Duration = Duration::from_secs(20);

/// A running Redis. It ends with this value, and with this process however that ends.
#[derive(Debug)]
pub struct Redis {
    process: Child,
    port: u16,
    /// The server lives until this closes.
    _leash: ChildStdin,
}

impl Redis {
    /// Starts one, which keeps nothing on disk.
    pub fn start() -> Result<Self> {
        let port = free_port()?;
        Self::start_at(port, &["--port", &port.to_string()])
    }

    /// Starts one that speaks TLS only, with these arguments in addition. Where it is still
    /// has to be written as `rediss`.
    pub fn start_with_tls(arguments: &[&str]) -> Result<Self> {
        let port = free_port()?;
        let at = port.to_string();
        Self::start_at(port, &[&["--port", "0", "--tls-port", &at], arguments].concat())
    }

    fn start_at(port: u16, arguments: &[&str]) -> Result<Self> {
        let mut process = Command::new(tools::root().join("deploy/local/redis-test"))
            .args(["run", "redis-server", "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("starting Redis; tests/setup installs it")?;
        let _leash = process.stdin.take().context("no pipe to Redis")?;
        let redis = Self { process, port, _leash };
        let until = Instant::now() + START;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(Instant::now() < until, "Redis did not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(redis)
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

/// A port that nobody listened at a moment ago.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Its keeper ends it when it is asked to end.
        let pid = rustix::process::Pid::from_child(&self.process);
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _status = self.process.wait();
    }
}
