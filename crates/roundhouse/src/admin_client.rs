//! A client of a node's admin port, for the commands of operators.
//!
//! One request uses one connection, as the admin port has it. The client never prints a token.

use std::fmt::Display;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::cli::Operator;
use crate::files;
use crate::private_environment::{self, ADMIN_TOKEN};

/// How long a connection may take to be established.
const CONNECT: Duration = Duration::from_secs(5);

/// How long the node may send nothing. It ends a connection after 10 s.
const SILENCE: Duration = Duration::from_secs(20);

/// Most bytes of an answer; a longer one is an error.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// A client of one node's admin port.
pub(crate) struct Client {
    address: String,
    token: Option<String>,
}

/// What a node answered to a request that it accepted.
#[derive(Debug)]
pub(crate) struct Answer {
    text: String,
}

impl Answer {
    /// The text of the answer.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The answer as JSON.
    pub(crate) fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.text)
            .context("the answer is no JSON: a node of another version, or no node, listens there")
    }
}

impl Client {
    /// The client that the options of a command describe.
    pub(crate) fn new(options: &Operator) -> anyhow::Result<Self> {
        let token = match &options.token_file {
            Some(file) => {
                Some(files::secret_text("--token-file", file).map_err(anyhow::Error::msg)?)
            }
            None => private_environment::admin_token(),
        };
        let token = token.map(|token| token.trim_end_matches(['\r', '\n']).to_owned());
        // A character that ends a header could add another one.
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            bail!("the token is not one line of visible ASCII characters; write the token alone");
        }
        let address = options.admin.strip_prefix("http://").unwrap_or(&options.admin);
        let address = match address.starts_with("unix:") {
            true => address,
            // `serve` prints the URL of the metrics.
            false => address.split('/').next().unwrap_or_default(),
        };
        Ok(Self { address: address.to_owned(), token })
    }

    /// Reads a resource.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<Answer> {
        self.send("GET", path, None)
    }

    /// Requests an action.
    pub(crate) fn post(&self, path: &str, body: Option<&Value>) -> anyhow::Result<Answer> {
        self.send("POST", path, body)
    }

    /// Ends something, or takes something back.
    pub(crate) fn delete(&self, path: &str) -> anyhow::Result<Answer> {
        self.send("DELETE", path, None)
    }

    fn send(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Answer> {
        let received = match self.address.strip_prefix("unix:") {
            Some(socket) => {
                let stream =
                    UnixStream::connect(socket).map_err(|error| self.unreachable(&error))?;
                stream.set_read_timeout(Some(SILENCE))?;
                self.exchange(stream, "localhost", method, path, body)
            }
            None => {
                let stream = self.connect().map_err(|error| self.unreachable(&error))?;
                stream.set_read_timeout(Some(SILENCE))?;
                self.exchange(stream, &self.address, method, path, body)
            }
        };
        let received = received.with_context(|| format!("{method} at {} failed", self.address))?;
        let (status, text) = parse(&received).with_context(|| {
            format!("{} gave no answer of HTTP; is it the address of `admin.listen`?", self.address)
        })?;
        match status {
            200..=299 => Ok(Answer { text }),
            _ => Err(self.refused(status, &text)),
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in self.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn exchange(
        &self,
        mut stream: impl Read + Write,
        host: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> io::Result<Vec<u8>> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\n",
            body.len()
        );
        if !body.is_empty() {
            request += "Content-Type: application/json\r\n";
        }
        if let Some(token) = &self.token {
            request += &format!("Authorization: Bearer {token}\r\n");
        }
        request += "\r\n";
        stream.write_all(request.as_bytes())?;
        // A node that refuses a request may not read its body.
        let sent = stream.write_all(body.as_bytes());
        let mut received = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut received)?;
        if received.is_empty() {
            sent?;
        }
        Ok(received)
    }

    fn unreachable(&self, error: &io::Error) -> anyhow::Error {
        let address = &self.address;
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "only the user of the node and root can connect to its socket"
            }
            _ => {
                "start the node, or name its `admin.listen` with `--admin ADDRESS` or `--admin unix:/PATH`"
            }
        };
        anyhow::anyhow!("{address} cannot be reached: {error}; {remedy}")
    }

    /// The error for a request that was refused. The node's text names the remedy at the node.
    fn refused(&self, status: u16, text: &str) -> anyhow::Error {
        let told = serde_json::from_str::<Value>(text).ok();
        let told =
            told.as_ref().and_then(|told| told.get("error")?.as_str()).unwrap_or(text.trim());
        let told = printable(told);
        let sent = if self.token.is_some() { "the token was sent" } else { "no token was sent" };
        let text = match status {
            401 => format!(
                "{told} ({status}; {sent}: give one with `--token-file FILE` or the variable \
                 {ADMIN_TOKEN})"
            ),
            _ => format!("{told} ({status})"),
        };
        anyhow::Error::new(RefusedRequest { status, text })
    }
}

/// A request that the node answered with another status than one of success.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct RefusedRequest {
    status: u16,
    text: String,
}

impl RefusedRequest {
    /// Whether the same request will be refused again.
    pub(crate) fn is_final(&self) -> bool {
        (400..500).contains(&self.status)
    }
}

/// A segment of a path, in which only characters stand for themselves that end nothing.
pub(crate) fn segment(text: &str) -> String {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    let one = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

/// A path with a query of the parameters that have a value.
pub(crate) fn with_query(path: &str, parameters: &[(&str, Option<&dyn Display>)]) -> String {
    let mut path = path.to_owned();
    let mut sign = '?';
    for (name, value) in parameters {
        if let Some(value) = value {
            path += &format!("{sign}{name}={}", segment(&value.to_string()));
            sign = '&';
        }
    }
    path
}

/// The text without characters that control a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The status and the body of a whole answer; `None` for one that is cut off or none of HTTP.
fn parse(received: &[u8]) -> Option<(u16, String)> {
    let end = received.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&received[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    let body = &received[end + 4..];
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let body = body.get(..length?)?;
    Some((status, String::from_utf8_lossy(body).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_or_none() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(parse(whole), Some((200, "{}".to_owned())));
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), None, "{length}");
        }
        assert_eq!(parse(b"SSH-2.0-OpenSSH_9.6\r\n\r\n\r\n"), None);
    }

    #[test]
    fn a_hostile_id_stays_one_segment_of_a_path() {
        assert_eq!(segment("0f-a_b.c~"), "0f-a_b.c~");
        assert_eq!(segment("a/../b?c=d#e\r\nX: y%2f"), "a%2F..%2Fb%3Fc%3Dd%23e%0D%0AX%3A%20y%252f");
        let parameters: &[(&str, Option<&dyn Display>)] =
            &[("tenant", Some(&"a&b")), ("after", None), ("limit", Some(&5))];
        assert_eq!(with_query("/v1/sessions", parameters), "/v1/sessions?tenant=a%26b&limit=5");
    }

    #[test]
    fn an_address_may_be_what_a_node_prints() {
        let address = |admin: &str| {
            let options = Operator { admin: admin.to_owned(), token_file: None, json: false };
            Client::new(&options).unwrap().address
        };
        assert_eq!(address("http://127.0.0.1:9090/metrics"), "127.0.0.1:9090");
        assert_eq!(address("[::1]:9090"), "[::1]:9090");
        assert_eq!(address("unix:/run/a.sock"), "unix:/run/a.sock");
    }
}
