//! A TCP forwarder between two nodes that simulates network faults: it can reset connections,
//! forward nothing, or delay the bytes of one side, and later forward again.

use std::pin::pin;
use std::sync::Arc;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that opened the connection.
    Caller,
    /// The end that accepted the connection, behind the gate.
    Callee,
}

/// How the gate treats connections and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Connections are closed, new ones at once.
    Reset,
    /// Connections stay open, and no bytes arrive.
    Silent,
    /// The bytes of one side wait, including the end of the stream, and arrive when the gate
    /// opens. The bytes of the other side are forwarded.
    Held(Side),
}

/// A running forwarder; dropping it closes all its connections.
#[derive(Debug)]
pub struct Gate {
    /// The address for peers: `127.0.0.1:PORT`.
    pub address: String,
    state: watch::Sender<State>,
    /// The process whose connections carry nothing.
    cut_off: watch::Sender<Option<u32>>,
    task: JoinHandle<()>,
}

impl Gate {
    /// Forwards to an address.
    pub async fn start(upstream: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let (state, states) = watch::channel(State::Open);
        let (cut_off, cut) = watch::channel(None);
        let task = tokio::spawn(accept(listener, Arc::from(upstream), states, cut));
        Ok(Self { address, state, cut_off, task })
    }

    /// Forwards nothing of the connections that this process has opened, as a network that drops its
    /// packets. The connections of others go on.
    pub fn cut_off(&self, process: u32) {
        self.cut_off.send_replace(Some(process));
    }

    /// Forwards nothing: as a firewall that resets connections, or as one that drops packets.
    pub fn close(&self, reset: bool) {
        self.state.send_replace(if reset { State::Reset } else { State::Silent });
    }

    /// Delays the bytes of one side, as a network that loses packets which are sent again later.
    pub fn hold(&self, side: Side) {
        self.state.send_replace(State::Held(side));
    }

    /// Forwards everything. Bytes that were dropped stay lost with their connection; delayed bytes
    /// arrive.
    pub fn open(&self) {
        self.state.send_replace(State::Open);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(
    listener: TcpListener,
    upstream: Arc<str>,
    states: watch::Receiver<State>,
    cut: watch::Receiver<Option<u32>>,
) {
    let mut connections = JoinSet::new();
    while let Ok((client, from)) = listener.accept().await {
        let (upstream, mut states) = (Arc::clone(&upstream), states.clone());
        let mut cut = cut.clone();
        connections.spawn(async move {
            let is_cut_off =
                |cut: &Option<u32>| cut.is_some_and(|process| has_socket(process, from.port()));
            let now = *states.borrow_and_update();
            if matches!(now, State::Open | State::Held(_))
                && let Ok(server) = TcpStream::connect(&*upstream).await
            {
                let mut forwarding = pin!(forward(client, server, states));
                let is_over = tokio::select! {
                    () = &mut forwarding => true,
                    _ = cut.wait_for(is_cut_off) => false,
                };
                if !is_over {
                    // The sockets stay open while this is not polled.
                    let _until_it_is_joined = cut.wait_for(|cut| !is_cut_off(cut)).await;
                }
            } else if now == State::Silent {
                let _until_it_opens = states.wait_for(|state| *state != State::Silent).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Whether a process has the TCP socket with this local port.
fn has_socket(process: u32, port: u16) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let local = format!(":{port:04X}");
    let inode = sockets.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, inode) = (fields.get(1)?, fields.get(9)?);
        address.ends_with(&local).then(|| format!("socket:[{inode}]"))
    });
    let Some(inode) = inode else { return false };
    let files = std::fs::read_dir(format!("/proc/{process}/fd"));
    files
        .into_iter()
        .flatten()
        .flatten()
        .any(|file| std::fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == &*inode))
}

/// Forwards both ways until either side ends or the gate closes.
async fn forward(client: TcpStream, server: TcpStream, mut states: watch::Receiver<State>) {
    let _whatever = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // These futures own the sockets, which stay open while the futures are not polled.
    let there = copy(from_client, to_server, Side::Caller, states.clone());
    let back = copy(from_server, to_client, Side::Callee, states.clone());
    let (mut there, mut back) = (pin!(there), pin!(back));
    let is_closed = |state: &State| matches!(state, State::Reset | State::Silent);
    let over = async {
        // Delayed bytes arrive even if their sender has closed the connection meanwhile.
        tokio::select! {
            () = &mut there => if is_held(&states, Side::Callee) { back.await },
            () = &mut back => if is_held(&states, Side::Caller) { there.await },
        }
    };
    let mut closing = states.clone();
    tokio::select! {
        () = over => return,
        _ = closing.wait_for(is_closed) => {}
    }
    let _until_it_opens = states.wait_for(|state| *state != State::Silent).await;
}

fn is_held(states: &watch::Receiver<State>, side: Side) -> bool {
    *states.borrow() == State::Held(side)
}

/// Forwards one way. The end of the stream is delayed like its bytes.
async fn copy(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    side: Side,
    mut states: watch::Receiver<State>,
) {
    let mut piece = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut piece).await;
        if states.wait_for(|state| *state != State::Held(side)).await.is_err() {
            return;
        }
        let Ok(length @ 1..) = read else { return };
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}
