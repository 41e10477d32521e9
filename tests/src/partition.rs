//! A network between two nodes that fails: a TCP forwarder that can refuse, reset or
//! swallow everything, or what comes from one side, and be well again.

use std::pin::pin;
use std::sync::Arc;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// One of the two that a connection is between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Who made it.
    Caller,
    /// Who accepted it, behind the gate.
    Callee,
}

/// What becomes of what goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Connections are closed, new ones at once.
    Reset,
    /// Connections stay, and nothing arrives any more.
    Silent,
    /// What comes from one side waits, its end included, and arrives when the gate opens.
    /// What comes from the other goes through.
    Held(Side),
}

/// A running forwarder; dropping it closes all its connections.
#[derive(Debug)]
pub struct Gate {
    /// Where peers come: `127.0.0.1:PORT`.
    pub address: String,
    state: watch::Sender<State>,
    task: JoinHandle<()>,
}

impl Gate {
    /// Forwards to an address.
    pub async fn start(upstream: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let (state, states) = watch::channel(State::Open);
        let task = tokio::spawn(accept(listener, Arc::from(upstream), states));
        Ok(Self { address, state, task })
    }

    /// Lets nothing through: as a firewall that resets, or as one that says nothing.
    pub fn close(&self, reset: bool) {
        self.state.send_replace(if reset { State::Reset } else { State::Silent });
    }

    /// Holds back what comes from one side, as a network does that loses it and in which
    /// it is sent again.
    pub fn hold(&self, side: Side) {
        self.state.send_replace(State::Held(side));
    }

    /// Lets everything through. What was swallowed stays lost with its connection; what was
    /// held arrives.
    pub fn open(&self) {
        self.state.send_replace(State::Open);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, upstream: Arc<str>, states: watch::Receiver<State>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let (upstream, mut states) = (Arc::clone(&upstream), states.clone());
        connections.spawn(async move {
            let now = *states.borrow_and_update();
            if matches!(now, State::Open | State::Held(_))
                && let Ok(server) = TcpStream::connect(&*upstream).await
            {
                forward(client, server, states).await;
            } else if now == State::Silent {
                let _until_it_opens = states.wait_for(|state| *state != State::Silent).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Forwards both ways until either side ends or the gate closes.
async fn forward(client: TcpStream, server: TcpStream, mut states: watch::Receiver<State>) {
    let _whatever = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // They hold the sockets, also while nobody drives them.
    let there = copy(from_client, to_server, Side::Caller, states.clone());
    let back = copy(from_server, to_client, Side::Callee, states.clone());
    let (mut there, mut back) = (pin!(there), pin!(back));
    let is_closed = |state: &State| matches!(state, State::Reset | State::Silent);
    let over = async {
        // What is held arrives even where its sender has gone meanwhile.
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

/// Forwards one way. The end of what comes is held back like the rest of it.
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
