//! Sends one command on a connection of its own, and reads the reply.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The maximum time until a reply.
const PATIENCE: Duration = Duration::from_secs(10);

/// The texts in a reply, in order, from all levels of nested arrays.
pub(super) fn told(port: u16, command: &str) -> Result<Vec<String>> {
    let mut wire = BufReader::new(TcpStream::connect(("127.0.0.1", port))?);
    wire.get_ref().set_read_timeout(Some(PATIENCE))?;
    wire.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
    let mut texts = Vec::new();
    read(&mut wire, &mut texts)?;
    Ok(texts)
}

fn read(wire: &mut BufReader<TcpStream>, texts: &mut Vec<String>) -> Result<()> {
    let mut line = String::new();
    wire.read_line(&mut line)?;
    let (kind, rest) = line.trim_end().split_at_checked(1).context("no answer")?;
    match kind {
        "+" | ":" => texts.push(rest.to_owned()),
        "$" => {
            let length: usize = rest.parse()?;
            let mut text = vec![0; length + 2];
            wire.read_exact(&mut text)?;
            texts.push(String::from_utf8_lossy(&text[..length]).into_owned());
        }
        "*" => {
            for _ in 0..rest.parse::<usize>()? {
                read(wire, texts)?;
            }
        }
        _ => bail!("{line}"),
    }
    Ok(())
}
