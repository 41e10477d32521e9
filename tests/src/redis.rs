//! A Redis of a test's own: one server, or several that [watch one](sentinels) or
//! [share the keys](clustered).

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

/// How long it may take to start.
const START: Duration = Duration::from_secs(20);

/// A running Redis. It ends with this value, and with this process however that ends.
#[derive(Debug)]
pub struct Redis {
    process: Child,
    port: u16,
    arguments: Vec<String>,
    server: Pid,
    /// It was ended, and its port may be another's.
    has_ended: bool,
    /// What it keeps is here, if anything.
    folder: Option<tempfile::TempDir>,
    /// The server lives until this closes.
    _leash: ChildStdin,
}

impl Redis {
    /// Starts one, which keeps nothing on disk.
    pub fn start() -> Result<Self> {
        let port = crate::nodes::port()?;
        Self::start_at(port, &["--port", &port.to_string()])
    }

    /// Starts one that speaks TLS only, with these arguments in addition. Where it is still
    /// has to be written as `rediss`.
    pub fn start_with_tls(arguments: &[&str]) -> Result<Self> {
        let port = crate::nodes::port()?;
        let at = port.to_string();
        Self::start_at(port, &[&["--port", "0", "--tls-port", &at], arguments].concat())
    }

    /// Starts one that keeps what it was told over a restart.
    pub fn start_durable() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        // Not one that the system may give away meanwhile.
        let port = crate::nodes::port()?;
        let (at, dir) = (port.to_string(), folder.path().display().to_string());
        let mut redis =
            Self::start_at(port, &["--port", &at, "--dir", &dir, "--appendonly", "yes"])?;
        redis.folder = Some(folder);
        Ok(redis)
    }

    /// Starts one with these arguments in addition, which keeps nothing on disk.
    fn start_with(arguments: &[&str]) -> Result<Self> {
        let port = crate::nodes::port()?;
        Self::start_at(port, &[&["--port", &port.to_string()], arguments].concat())
    }

    /// Starts one as a file says: with what it writes there, it knows again who it was.
    fn start_by_file(file: &std::path::Path, arguments: &[&str]) -> Result<Self> {
        let (port, file) = (crate::nodes::port()?, file.display().to_string());
        Self::run(port, &[&[&file, "--port", &port.to_string()], arguments].concat())
    }

    /// Kills it as a crash would; it does not come back.
    pub fn kill(&self) -> Result<()> {
        Ok(kill_process(self.server, Signal::KILL)?)
    }

    /// Kills it and starts it again at its port.
    pub fn restart(&mut self) -> Result<()> {
        self.end();
        let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        let mut again = Self::run(self.port, &arguments)?;
        again.folder = self.folder.take();
        *self = again;
        Ok(())
    }

    /// Stops the process where it is.
    pub fn freeze(&self) -> Result<()> {
        Ok(kill_process(self.server, Signal::STOP)?)
    }

    /// Lets it go on.
    pub fn thaw(&self) -> Result<()> {
        Ok(kill_process(self.server, Signal::CONT)?)
    }

    /// The answer to a command, as it is on the wire.
    pub fn ask(&self, command: &str) -> Result<String> {
        ask(self.port, command)
    }

    /// The texts of the answer to a command, in order; an error if that is what it is.
    pub fn told(&self, command: &str) -> Result<Vec<String>> {
        reply::told(self.port, command).with_context(|| command.to_owned())
    }

    /// The answer to a command that is answered with one text.
    pub fn answer(&self, command: &str) -> Result<String> {
        self.told(command)?.into_iter().next().context("no answer")
    }

    /// What stands for a name in a section of `INFO`.
    fn info(&self, section: &str, name: &str) -> Result<String> {
        let info = self.answer(&format!("INFO {section}"))?;
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(value.with_context(|| format!("no {name} in {info}"))?.trim_end().to_owned())
    }

    /// A connection of one's own.
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

    /// Where it is.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// The end of what Redis wrote to its log.
fn last_lines(mut log: File) -> String {
    let mut text = String::new();
    let read = log.rewind().and_then(|()| log.read_to_string(&mut text));
    let lines: Vec<_> = text.lines().rev().take(8).collect();
    lines
        .into_iter()
        .rev()
        .fold(format!("{read:?} bytes of its log:"), |all, line| all + "\n" + line)
}

/// The server that a guard process started.
fn server(guard: u32) -> Result<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{guard}/task/{guard}/children"))?;
    let server = children.split_whitespace().next();
    let server = server.with_context(|| format!("the guard {guard} of Redis has no child"))?;
    Pid::from_raw(server.parse()?).context("no pid")
}

/// Asks inline, and reads until the server hangs up.
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
        // Its guard ends it when it is asked to end.
        let _gone = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let _status = self.process.wait();
        // The system may take a moment to end what the guard killed; till then nobody else
        // can have the port.
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

/// Waits until something is so.
async fn until(what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + START;
    // Who has just died or not yet come up cannot be asked.
    while !matches!(is_so(), Ok(true)) {
        if Instant::now() > until {
            let last = is_so();
            anyhow::bail!("not in time: {what}; at last {last:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
