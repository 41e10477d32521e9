//! Something between two nodes that can swallow what they say to each other.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A pipe with a listener at its near end. What was accepted stays open whatever happens.
pub(super) struct Between {
    pub(super) address: String,
    far: watch::Sender<Option<SocketAddr>>,
    swallows: Arc<watch::Sender<bool>>,
}

impl Between {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let far = watch::Sender::new(None);
        let swallows = Arc::new(watch::Sender::new(false));
        tokio::spawn(accept(listener, far.subscribe(), swallows.clone()));
        Self { address, far, swallows }
    }

    pub(super) fn lead_to(&self, far: SocketAddr) {
        self.far.send_replace(Some(far));
    }

    /// From now on nothing comes through any more.
    pub(super) fn swallow(&self) {
        self.swallows.send_replace(true);
    }
}

async fn accept(
    listener: TcpListener,
    mut far: watch::Receiver<Option<SocketAddr>>,
    swallows: Arc<watch::Sender<bool>>,
) {
    loop {
        let (near, _) = listener.accept().await.unwrap();
        let address = far.wait_for(Option::is_some).await.unwrap().unwrap();
        let (near_in, near_out) = split(near);
        let (far_in, far_out) = split(TcpStream::connect(address).await.unwrap());
        tokio::spawn(copy(near_in, far_out, swallows.clone()));
        tokio::spawn(copy(far_in, near_out, swallows.clone()));
    }
}

async fn copy(
    mut from: ReadHalf<TcpStream>,
    mut to: WriteHalf<TcpStream>,
    swallows: Arc<watch::Sender<bool>>,
) {
    let mut swallowed = swallows.subscribe();
    let mut buffer = [0; 4096];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        if *swallows.borrow() {
            break;
        }
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
    // Keeps both ends open, and says nothing.
    let _ = swallowed.wait_for(|swallows| !swallows).await;
}
