//! A Redis of one test: one server, or several, as a primary with [Sentinels](sentinels) or as a
//! [Redis Cluster](clustered).

pub mod clustered;
mod reply;
pub mod sentinels;

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::tools;

/// The maximum time for a server to start.
const START: Duration = Duration::from_secs(20);

/// A running Redis. It ends when this value is dropped, and when this process ends for any reason.
#[derive(Debug)]
pub struct Redis {
    process: Child,
    port: u16,
    arguments: Vec<String>,
    server: Pid,
    /// The server has ended, and another process may use its port.
    has_ended: bool,
    /// The folder of the server's data, if it keeps any.
    folder: Option<tempfile::TempDir>,
    /// The server ends when this pipe closes.
    _leash: ChildStdin,
}

impl Redis {
    /// Starts a server that keeps nothing on disk.
    pub fn start() -> Result<Self> {
        let port = crate::nodes::port()?;
        Self::start_at(port, &["--port", &port.to_string()])
    }

    /// Starts a server that accepts TLS only, with these arguments in addition. In its URL, the
    /// caller must replace the scheme with `rediss`.
    pub fn start_with_tls(arguments: &[&str]) -> Result<Self> {
        let port = crate::nodes::port()?;
        let at = port.to_string();
        Self::start_at(port, &[&["--port", "0", "--tls-port", &at], arguments].concat())
    }

    /// Starts a server that keeps its data over a restart.
    pub fn start_durable() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        // The kernel must not assign the port to another process during a restart.
        let port = crate::nodes::port()?;
        let (at, dir) = (port.to_string(), folder.path().display().to_string());
        let mut redis =
            Self::start_at(port, &["--port", &at, "--dir", &dir, "--appendonly", "yes"])?;
        redis.folder = Some(folder);
        Ok(redis)
    }

    /// Starts a server with these arguments in addition, which keeps nothing on disk.
    fn start_with(arguments: &[&str]) -> Result<Self> {
        let port = crate::nodes::port()?;
        Self::start_at(port, &[&["--port", &port.to_string()], arguments].concat())
    }

    /// Starts a server with a configuration file. The server also writes its identity to this
    /// file.
    fn start_by_file(file: &std::path::Path, arguments: &[&str]) -> Result<Self> {
        let (port, file) = (crate::nodes::port()?, file.display().to_string());
        Self::run(port, &[&[&file, "--port", &port.to_string()], arguments].concat())
    }

    /// Kills the server as a crash would; it is not started again.
    pub fn kill(&self) -> Result<()> {
        Ok(kill_process(self.server, Signal::KILL)?)
    }

    /// Kills the server and starts it again at its port.
    pub fn restart(&mut self) -> Result<()> {
        self.end();
        let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        let mut again = Self::run(self.port, &arguments)?;
        again.folder = self.folder.take();
        *self = again;
        Ok(())
    }

    /// Stops the process (SIGSTOP).
    pub fn freeze(&self) -> Result<()> {
        Ok(kill_process(self.server, Signal::STOP)?)
    }

    /// Continues the process (SIGCONT).
    pub fn thaw(&self) -> Result<()> {
        Ok(kill_process(self.server, Signal::CONT)?)
    }

    /// The reply to a command, in the wire format.
    pub fn ask(&self, command: &str) -> Result<String> {
        ask(self.port, command)
    }

    /// The texts in the reply to a command, in order; an error if the reply is an error.
    pub fn told(&self, command: &str) -> Result<Vec<String>> {
        reply::told(self.port, command).with_context(|| command.to_owned())
    }

    /// The reply to a command that is answered with one text.
    pub fn answer(&self, command: &str) -> Result<String> {
        self.told(command)?.into_iter().next().context("no answer")
    }

    /// The value of a name in a section of `INFO`.
    fn info(&self, section: &str, name: &str) -> Result<String> {
        let info = self.answer(&format!("INFO {section}"))?;
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(value.with_context(|| format!("no {name} in {info}"))?.trim_end().to_owned())
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> Result<TcpStream> {
        Ok(TcpStream::connect(("127.0.0.1", self.port))?)
    }

    fn start_at(port: u16, arguments: &[&str]) -> Result<Self> {
        let always = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        Self::run(port, &[&always, arguments].concat())
    }

    fn run(port: u16, arguments: &[&str]) -> Result<Self> {
        let log = tempfile::tempfile()?;
        let mut process = Command::new(tools::root().join("deploy/local/redis-test"))
            .args(["run", "redis-server"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .spawn()
            .context("starting Redis; tests/setup installs it")?;
        let _leash = process.stdin.take().context("no pipe to Redis")?;
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let mut redis = Self {
            process,
            port,
            arguments,
            server: Pid::INIT,
            has_ended: false,
            folder: None,
            _leash,
        };
        let until = Instant::now() + START;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(Instant::now() < until, "Redis did not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        redis.server = server(redis.process.id()).with_context(|| last_lines(log))?;
        Ok(redis)
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// The address on which the server listens.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// The last lines of the log of Redis.
fn last_lines(mut log: File) -> String {
    let mut text = String::new();
    let read = log.rewind().and_then(|()| log.read_to_string(&mut text));
    let lines: Vec<_> = text.lines().rev().take(8).collect();
    lines
        .into_iter()
        .rev()
        .fold(format!("{read:?} bytes of its log:"), |all, line| all + "\n" + line)
}

/// The server process that a guard process started.
fn server(guard: u32) -> Result<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{guard}/task/{guard}/children"))?;
    let server = children.split_whitespace().next();
    let server = server.with_context(|| format!("the guard {guard} of Redis has no child"))?;
    Pid::from_raw(server.parse()?).context("no pid")
}

/// Sends an inline command, and reads until the server closes the connection.
fn ask(port: u16, command: &str) -> Result<String> {
    let mut wire = TcpStream::connect(("127.0.0.1", port))?;
    wire.set_read_timeout(Some(Duration::from_secs(5)))?;
    wire.write_all(format!("{command}\r\nQUIT\r\n").as_bytes())?;
    let mut answer = String::new();
    wire.read_to_string(&mut answer)?;
    Ok(answer.trim_end_matches("+OK\r\n").to_owned())
}

impl Redis {
    fn end(&mut self) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        // The guard process ends the server when it gets SIGTERM.
        let _gone = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let _status = self.process.wait();
        // The kernel may need a moment to end the server after the guard has killed it. Until then
        // no other process can use the port.
        let until = Instant::now() + START;
        while TcpStream::connect(("127.0.0.1", self.port)).is_ok() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits until a condition is true.
async fn until(what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + START;
    // A server that has just ended or has not started yet does not answer.
    while !matches!(is_so(), Ok(true)) {
        if Instant::now() > until {
            let last = is_so();
            anyhow::bail!("timed out: {what}; last result {last:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
