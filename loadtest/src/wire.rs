//! An HTTP client with a low cost: one request at a time on a connection that stays open.
//! Answers are parsed as their bytes arrive, with few copies.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// The maximum size of a response head. A larger one fails the request.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// The maximum size of a body or event. A larger one fails the request.
const BODY_BYTES_MAX: usize = 64 << 20;
/// The longest time to connect.
const CONNECT: Duration = Duration::from_secs(10);
/// The longest time without bytes from the server while the client waits. Then the read fails.
const SILENCE: Duration = Duration::from_secs(60);
/// Before a request, the client checks whether a connection that was idle for longer than this
/// is still open.
const ASKED_AFTER: Duration = Duration::from_secs(1);
/// The size of a read. Idle connections keep no buffer.
const READ_BYTES: usize = 16 << 10;

/// One connection to a server.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    unread: BytesMut,
    to: SocketAddr,
    source: Option<IpAddr>,
    /// Whether the server closes the connection after the last response.
    closes: bool,
    /// The time of the last request.
    used: Instant,
}

/// The head of a response.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    /// `Mcp-Session-Id`.
    pub(crate) session: Option<Box<str>>,
    /// Whether the response is an SSE stream.
    pub(crate) is_stream: bool,
    /// Whether the server closes the connection after the response.
    closes: bool,
    rest: Rest,
}

/// The rest of a body that was not read yet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rest {
    Bytes(usize),
    /// Chunks, with the number of unread bytes of the current one.
    Chunks(usize),
    UntilClosed,
    Nothing,
}

/// One event of a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Event {
    pub(crate) id: Option<Box<str>>,
    /// The wait in milliseconds that the server requests before the client resumes.
    pub(crate) retry: Option<u64>,
    pub(crate) data: Bytes,
}

/// A body that is read event by event.
#[derive(Debug)]
pub(crate) struct Events {
    rest: Rest,
    /// Received bytes that are not a complete event yet.
    text: BytesMut,
}

impl Wire {
    /// Connects, from the address `source` if there is one. Each address has 28,000 ports of its
    /// own.
    pub(crate) async fn connect(to: SocketAddr, source: Option<IpAddr>) -> anyhow::Result<Self> {
        let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        if let Some(source) = source {
            socket.set_reuseaddr(true)?;
            socket.bind(SocketAddr::new(source, 0))?;
        }
        let connected = timeout(CONNECT, socket.connect(to)).await.context("timed out after 10 s");
        let stream = connected.and_then(|connected| Ok(connected?));
        let stream = stream.with_context(|| format!("connecting to {to}"))?;
        stream.set_nodelay(true)?;
        let (unread, used) = (BytesMut::new(), Instant::now());
        Ok(Self { stream, unread, to, source, closes: false, used })
    }

    /// Sends a complete request. Opens a new connection if the server closes the current one.
    pub(crate) async fn send(&mut self, request: &[u8]) -> anyhow::Result<()> {
        if self.closes || self.is_gone() {
            *self = Self::connect(self.to, self.source).await?;
        }
        Ok(self.stream.write_all(request).await?)
    }

    /// Whether the server has closed an idle connection. Many servers do so after five seconds
    /// without a request, and every client handles it.
    fn is_gone(&mut self) -> bool {
        let idle = self.used.elapsed();
        self.used = Instant::now();
        idle > ASKED_AFTER && matches!(self.stream.try_read_buf(&mut self.unread), Ok(0))
    }

    /// Reads the head of the next response.
    pub(crate) async fn head(&mut self) -> anyhow::Result<Head> {
        loop {
            if let Some((head, length)) = parse_head(&self.unread)? {
                self.unread.advance(length);
                self.closes = head.closes;
                return Ok(head);
            }
            ensure!(self.unread.len() < HEAD_BYTES_MAX, "the head of a response is too long");
            self.fill().await?;
        }
    }

    /// Reads the complete body of a response.
    pub(crate) async fn body(&mut self, head: &Head) -> anyhow::Result<Bytes> {
        if let Rest::Bytes(length) = head.rest {
            ensure!(length <= BODY_BYTES_MAX, "a body is too large");
            while self.unread.len() < length {
                self.fill().await?;
            }
            return Ok(self.unread.split_to(length).freeze());
        }
        let mut events = Events::of(head);
        while self.more(&mut events).await? {}
        Ok(events.text.freeze())
    }

    /// Reads the next event with data, an id or a retry time; `None` after the last.
    pub(crate) async fn event(&mut self, events: &mut Events) -> anyhow::Result<Option<Event>> {
        loop {
            if let Some(event) = events.take() {
                return Ok(Some(event));
            }
            if !self.more(events).await? {
                return Ok(None);
            }
        }
    }

    /// Moves the received bytes of a body to `events`. `false` at the end of the body.
    async fn more(&mut self, events: &mut Events) -> anyhow::Result<bool> {
        loop {
            match &mut events.rest {
                Rest::Nothing | Rest::Bytes(0) => return Ok(false),
                Rest::Chunks(0) => match chunk_size(&mut self.unread)? {
                    Some(0) => {
                        self.trailer().await?;
                        events.rest = Rest::Nothing;
                    }
                    Some(size) => events.rest = Rest::Chunks(size),
                    None => self.fill().await?,
                },
                Rest::Bytes(left) | Rest::Chunks(left) if !self.unread.is_empty() => {
                    let taken = (*left).min(self.unread.len());
                    events.text.unsplit(self.unread.split_to(taken));
                    *left -= taken;
                    ensure!(events.text.len() <= BODY_BYTES_MAX, "an event is too large");
                    return Ok(true);
                }
                Rest::UntilClosed if !self.unread.is_empty() => {
                    events.text.unsplit(self.unread.split());
                    return Ok(true);
                }
                Rest::UntilClosed => {
                    if self.read().await? == 0 {
                        events.rest = Rest::Nothing;
                    }
                }
                Rest::Bytes(_) | Rest::Chunks(_) => self.fill().await?,
            }
        }
    }

    /// Reads the end of the last chunk. Trailers are an error, since no server sends them.
    async fn trailer(&mut self) -> anyhow::Result<()> {
        while self.unread.len() < 2 {
            self.fill().await?;
        }
        ensure!(self.unread.starts_with(b"\r\n"), "the response has trailers");
        self.unread.advance(2);
        Ok(())
    }

    async fn fill(&mut self) -> anyhow::Result<()> {
        if self.read().await? == 0 {
            bail!("the server closed the connection");
        }
        Ok(())
    }

    async fn read(&mut self) -> anyhow::Result<usize> {
        let reading = async {
            if self.unread.is_empty() {
                // A connection that waits keeps no buffer, since thousands may wait.
                self.unread = BytesMut::new();
                self.stream.readable().await?;
            }
            self.unread.reserve(READ_BYTES);
            self.stream.read_buf(&mut self.unread).await
        };
        Ok(timeout(SILENCE, reading).await.context("the server sent nothing for 60 s")??)
    }
}

impl Events {
    /// The events of the response with this head.
    pub(crate) fn of(head: &Head) -> Self {
        Self { rest: head.rest, text: BytesMut::new() }
    }

    /// The next complete event with data, an id or a retry time, if there is one.
    fn take(&mut self) -> Option<Event> {
        loop {
            let end = block_end(&self.text)?;
            let block = self.text.split_to(end).freeze();
            if self.text.is_empty() {
                self.text = BytesMut::new();
            }
            let event = read_block(&block);
            if !event.data.is_empty() || event.id.is_some() || event.retry.is_some() {
                return Some(event);
            }
        }
    }
}

fn parse_head(bytes: &[u8]) -> anyhow::Result<Option<(Head, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = response.parse(bytes)? else { return Ok(None) };
    let status = response.code.context("a response without a status")?;
    let mut head = Head {
        status,
        session: None,
        is_stream: false,
        closes: false,
        rest: if matches!(status, 204 | 304) { Rest::Nothing } else { Rest::UntilClosed },
    };
    for header in response.headers.iter() {
        let value = || std::str::from_utf8(header.value).unwrap_or_default();
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") && head.rest == Rest::UntilClosed {
            head.rest = Rest::Bytes(value().trim().parse()?);
        } else if is("transfer-encoding") && value().eq_ignore_ascii_case("chunked") {
            head.rest = Rest::Chunks(0);
        } else if is("mcp-session-id") {
            head.session = Some(value().into());
        } else if is("content-type") {
            head.is_stream = value().starts_with("text/event-stream");
        } else if is("connection") {
            head.closes = value().eq_ignore_ascii_case("close");
        }
    }
    Ok(Some((head, length)))
}

/// The size of the next chunk, if its line is complete.
fn chunk_size(unread: &mut BytesMut) -> anyhow::Result<Option<usize>> {
    // The line end of the previous chunk.
    let skipped = if unread.starts_with(b"\r\n") { 2 } else { 0 };
    let line = &unread[skipped..];
    let Some(end) = memchr::memmem::find(line, b"\r\n") else { return Ok(None) };
    let digits = std::str::from_utf8(&line[..end])?;
    let digits = digits.split(';').next().unwrap_or_default().trim();
    let size = usize::from_str_radix(digits, 16).context("the size of a chunk")?;
    unread.advance(skipped + end + 2);
    Ok(Some(size))
}

/// The end of the first block of a stream, including its empty line.
fn block_end(text: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = memchr::memchr(b'\n', &text[from..]) {
        let next = from + at + 1;
        match text.get(next..)? {
            [b'\n', ..] => return Some(next + 1),
            [b'\r', b'\n', ..] => return Some(next + 2),
            _ => from = next,
        }
    }
    None
}

fn read_block(block: &Bytes) -> Event {
    let mut event = Event::default();
    for line in block.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let value = |name: &[u8]| {
            let value = line.strip_prefix(name)?;
            Some(value.strip_prefix(b" ").unwrap_or(value))
        };
        if let Some(data) = value(b"data:") {
            // Servers write a message as one line. Several lines are joined.
            event.data = if event.data.is_empty() {
                block.slice_ref(data)
            } else {
                [&event.data[..], b"\n", data].concat().into()
            };
        } else if let Some(id) = value(b"id:") {
            event.id = std::str::from_utf8(id).ok().map(Into::into);
        } else if let Some(retry) = value(b"retry:") {
            event.retry = std::str::from_utf8(retry).ok().and_then(|retry| retry.parse().ok());
        }
    }
    event
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A connection to a server that writes `pieces` one by one and closes.
    async fn wire(pieces: &'static [&'static str]) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for piece in pieces {
                stream.write_all(piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        Wire::connect(address, None).await.unwrap()
    }

    #[tokio::test]
    async fn a_body_of_known_length_is_read_wherever_it_is_cut() {
        let mut wire = wire(&[
            "HTTP/1.1 200 OK\r\nContent-Le",
            "ngth: 5\r\nMcp-Session-Id: abc\r\n\r\nhe",
            "llo",
            "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nConnection: close\r\n\r\n",
        ])
        .await;
        let head = wire.head().await.unwrap();
        assert_eq!((head.status, head.session.as_deref()), (200, Some("abc")));
        assert_eq!(wire.body(&head).await.unwrap(), "hello");
        let head = wire.head().await.unwrap();
        assert_eq!((head.status, head.closes), (202, true));
        assert_eq!(wire.body(&head).await.unwrap(), "");
    }

    #[tokio::test]
    async fn events_are_read_from_chunks_and_comments_say_nothing() {
        let mut wire = wire(&[
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
            "1d\r\n: hello\n\nid: 1\nretry: 20\ndata\r\n",
            "3\r\n:\n\n\r\n12\r\ndata: {}\r\n\r\nid: 2\n\r\n",
            "8\r\ndata: x\n\r\n1\r\n\n\r\n0\r\n\r\n",
        ])
        .await;
        let head = wire.head().await.unwrap();
        assert!(head.is_stream);
        let mut events = Events::of(&head);
        let mut read = Vec::new();
        while let Some(event) = wire.event(&mut events).await.unwrap() {
            read.push((event.id.unwrap_or_default(), event.retry, event.data));
        }
        let expected = [("1", Some(20), ""), ("", None, "{}"), ("2", None, "x")];
        assert_eq!(read.len(), expected.len(), "{read:?}");
        for ((id, retry, data), expected) in read.iter().zip(expected) {
            assert_eq!((&**id, *retry, &data[..]), (expected.0, expected.1, expected.2.as_bytes()));
        }
    }

    #[tokio::test]
    async fn a_body_without_length_ends_with_its_connection() {
        let mut wire = wire(&["HTTP/1.1 200 OK\r\n\r\nall", " of it"]).await;
        let head = wire.head().await.unwrap();
        assert_eq!(wire.body(&head).await.unwrap(), "all of it");
    }

    #[tokio::test]
    async fn a_connection_that_ends_in_mid_sentence_is_an_error() {
        let mut wire = wire(&["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nall"]).await;
        let head = wire.head().await.unwrap();
        assert!(wire.body(&head).await.is_err());
    }
}
