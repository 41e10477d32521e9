//! A TCP forwarder between a client and a node, or a node and a server, that can cut connections. It
//! records what the client sends.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// When a connection is cut: once, after the event in which `needle` occurs for the `after`th time
/// on one connection.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The text to find in the bytes of the server.
    pub needle: String,
    /// The number of occurrences up to the cut.
    pub after: usize,
}

/// A running forwarder; dropping it closes all its connections.
#[derive(Debug)]
pub struct Proxy {
    /// The URL for clients: `http://127.0.0.1:PORT`.
    pub base: String,
    cuts: Arc<Mutex<Cuts>>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Cuts {
    due: Vec<Cut>,
    done: usize,
    /// The bytes of the clients of all connections.
    sent: Vec<u8>,
}

impl Proxy {
    /// Forwards to `http://host:port`, and makes each of the cuts once, in their order.
    pub async fn start(upstream: &str, cuts: Vec<Cut>) -> Result<Self> {
        let upstream = upstream.strip_prefix("http://").context("not http")?.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let base = format!("http://{}", listener.local_addr()?);
        let cuts = Arc::new(Mutex::new(Cuts { due: cuts, ..Cuts::default() }));
        let task = tokio::spawn(accept(listener, upstream, Arc::clone(&cuts)));
        Ok(Self { base, cuts, task })
    }

    /// The number of cuts so far.
    pub fn cuts(&self) -> usize {
        self.cuts.lock().expect("a forwarder panicked").done
    }

    /// What clients sent so far, of all connections in the order in which it came.
    pub fn sent(&self) -> String {
        String::from_utf8_lossy(&self.cuts.lock().expect("a forwarder panicked").sent).into_owned()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, upstream: String, cuts: Arc<Mutex<Cuts>>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let (upstream, cuts) = (upstream.clone(), Arc::clone(&cuts));
        connections.spawn(async move {
            if let Ok(server) = TcpStream::connect(upstream).await {
                let _ = client.set_nodelay(true);
                let _ = server.set_nodelay(true);
                forward(client, server, &cuts).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Forwards both ways until either end closes or the connection is cut. Then both sockets close.
async fn forward(client: TcpStream, server: TcpStream, cuts: &Mutex<Cuts>) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = forth(from_client, to_server, cuts) => {}
        () = back(from_server, to_client, cuts) => {}
    }
}

/// Forwards and records the bytes of the client.
async fn forth(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, cuts: &Mutex<Cuts>) {
    let mut piece = vec![0; 64 << 10];
    while let Ok(length) = from.read(&mut piece).await {
        if length == 0 {
            return;
        }
        cuts.lock().expect("a forwarder panicked").sent.extend_from_slice(&piece[..length]);
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}

/// Forwards the bytes of the server up to the place of a cut.
async fn back(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, cuts: &Mutex<Cuts>) {
    let mut piece = vec![0; 64 << 10];
    let mut seen = Vec::new();
    while let Ok(length) = from.read(&mut piece).await {
        if length == 0 {
            return;
        }
        let before = seen.len();
        seen.extend_from_slice(&piece[..length]);
        let cut = cuts.lock().expect("a forwarder panicked").place(&seen);
        let end = cut.map_or(length, |cut| cut.saturating_sub(before).min(length));
        if to.write_all(&piece[..end]).await.is_err() {
            return;
        }
        if cut.is_some() {
            cuts.lock().expect("a forwarder panicked").made();
            return;
        }
    }
}

impl Cuts {
    /// The place of the cut in the bytes of a connection so far, if a cut is due.
    fn place(&self, seen: &[u8]) -> Option<usize> {
        let cut = self.due.first()?;
        let needle = cut.needle.as_bytes();
        let mut hits = seen.windows(needle.len()).enumerate().filter(|(_, bytes)| *bytes == needle);
        let (at, _) = hits.nth(cut.after.checked_sub(1)?)?;
        let end = seen[at..].windows(2).position(|pair| pair == b"\n\n")?;
        Some(at + end + 2)
    }

    fn made(&mut self) {
        self.due.remove(0);
        self.done += 1;
    }
}
