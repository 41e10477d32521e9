//! Records the commands that a Redis receives from all its clients.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::redis::Redis;

/// Records the commands of a Redis. Unread lines wait in the Redis, within its own bound of output
/// for one connection.
#[derive(Debug)]
pub struct Monitor<'r> {
    redis: &'r Redis,
    lines: BufReader<TcpStream>,
}

impl<'r> Monitor<'r> {
    /// Records from now on.
    pub fn start(redis: &'r Redis) -> Result<Self> {
        let mut wire = redis.connect()?;
        wire.set_read_timeout(Some(Duration::from_secs(10)))?;
        wire.write_all(b"MONITOR\r\n")?;
        let mut lines = BufReader::new(wire);
        let mut answer = String::new();
        lines.read_line(&mut answer)?;
        ensure!(answer.trim_end() == "+OK", "MONITOR got {answer}");
        Ok(Self { redis, lines })
    }

    /// The commands that contain `name`, since the last call or the start. Commands inside a
    /// script are left out: a script is one command.
    pub fn heard(&mut self, name: &str) -> Result<Vec<String>> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Redis runs one command after another, so this one comes after all earlier ones.
        let end = format!("the-end-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.redis.ask(&format!("ECHO {end}"))?;
        let mut heard = Vec::new();
        loop {
            let mut line = String::new();
            ensure!(self.lines.read_line(&mut line)? > 0, "Redis closed the MONITOR connection");
            let (head, command) = line.split_once("] ").context("no command")?;
            if command.contains(&end) {
                return Ok(heard);
            }
            if command.contains(name) && !head.ends_with(" lua") {
                heard.push(command.trim_end().to_owned());
            }
        }
    }
}
