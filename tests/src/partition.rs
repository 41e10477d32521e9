//! A network between two nodes that fails: a TCP forwarder that can refuse, reset or
//! swallow everything, and be well again.

use std::pin::pin;
use std::sync::Arc;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What becomes of what goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Connections are closed, new ones at once.
    Reset,
    /// Connections stay, and nothing arrives any more.
    Silent,
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

    /// Lets everything through. What was swallowed stays lost with its connection.
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
            if now == State::Open
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
    let (mut there, mut back) =
        (pin!(copy(from_client, to_server)), pin!(copy(from_server, to_client)));
    tokio::select! {
        () = &mut there => return,
        () = &mut back => return,
        _ = states.wait_for(|state| *state != State::Open) => {}
    }
    let _until_it_opens = states.wait_for(|state| *state != State::Silent).await;
}

async fn copy(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin) {
    let mut piece = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}
