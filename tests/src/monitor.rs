//! What a Redis is asked, command by command, by everybody.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::redis::Redis;

/// Listens to a Redis. What it was not asked for waits in the server, within the server's
/// own bound of what it keeps for a connection.
#[derive(Debug)]
pub struct Monitor<'r> {
    redis: &'r Redis,
    lines: BufReader<TcpStream>,
}

impl<'r> Monitor<'r> {
    /// Listens from now on.
    pub fn start(redis: &'r Redis) -> Result<Self> {
        let mut wire = redis.connect()?;
        wire.set_read_timeout(Some(Duration::from_secs(10)))?;
        wire.write_all(b"MONITOR\r\n")?;
        let mut lines = BufReader::new(wire);
        let mut answer = String::new();
        lines.read_line(&mut answer)?;
        ensure!(answer.trim_end() == "+OK", "MONITOR is answered {answer}");
        Ok(Self { redis, lines })
    }

    /// The commands that name something, of those since the last time or the start. What
    /// scripts do inside is theirs: a script is one command.
    pub fn heard(&mut self, name: &str) -> Result<Vec<String>> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Redis does one thing after the other, so this comes after all that was asked.
        let end = format!("the-end-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.redis.ask(&format!("ECHO {end}"))?;
        let mut heard = Vec::new();
        loop {
            let mut line = String::new();
            ensure!(self.lines.read_line(&mut line)? > 0, "Redis hung up on its monitor");
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
