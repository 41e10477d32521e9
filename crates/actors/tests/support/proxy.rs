//! A TCP proxy in front of one node that can be cut for one of its callers, and not for the others.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;

use store::Incarnation;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

type Cut = watch::Sender<HashSet<u64>>;

/// Forwards every connection to the node, unless its caller is cut off.
pub(crate) struct Proxy {
    pub(crate) address: String,
    /// The address on which the node is to listen.
    pub(crate) behind: String,
    cut: Arc<Cut>,
}

impl Proxy {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        // The port was free a moment ago, and no other test takes it meanwhile.
        let behind = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let cut = Arc::new(watch::Sender::new(HashSet::new()));
        tokio::spawn(accept(listener, behind, Arc::clone(&cut)));
        Self { address, behind: behind.to_string(), cut }
    }

    /// Closes every connection of a node, and accepts no more from it.
    pub(crate) fn cut(&self, caller: Incarnation) {
        self.cut.send_modify(|cut| {
            cut.insert(caller.0);
        });
    }
}

async fn accept(listener: TcpListener, behind: SocketAddr, cut: Arc<Cut>) {
    loop {
        let (near, _) = listener.accept().await.unwrap();
        // The proxy ends when its node has ended.
        let Ok(far) = TcpStream::connect(behind).await else { return };
        tokio::spawn(carry(near, far, cut.subscribe()));
    }
}

async fn carry(mut near: TcpStream, mut far: TcpStream, mut cut: watch::Receiver<HashSet<u64>>) {
    let mut first = [0; 12];
    if near.read_exact(&mut first).await.is_err() {
        return;
    }
    // The greeting begins with lengths and tags, followed by the sender's incarnation.
    let [_, 0x0A, _, 0x09, incarnation @ ..] = first else { panic!("no greeting: {first:?}") };
    let caller = u64::from_le_bytes(incarnation);
    if cut.borrow_and_update().contains(&caller) {
        return;
    }
    far.write_all(&first).await.unwrap();
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
        _ = cut.wait_for(|cut| cut.contains(&caller)) => {}
    }
}
