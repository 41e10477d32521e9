//! A TCP proxy between two nodes that can drop their traffic or reset their connections.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the proxy does with traffic.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProxyMode {
    Passes,
    /// No bytes pass, and both ends stay open.
    DropsTraffic,
    /// Every connection is reset at these ends and left open at the others; new connections are
    /// refused at the near end.
    Resets {
        near: bool,
        far: bool,
    },
}

/// A TCP proxy that listens at its near end.
pub(super) struct Proxy {
    pub(super) address: String,
    far: watch::Sender<Option<SocketAddr>>,
    mode: Arc<watch::Sender<ProxyMode>>,
}

impl Proxy {
    pub(super) async fn start() -> Self {
        // It listens there again after it has refused connections.
        let address = super::support::free_address();
        let listener = TcpListener::bind(address).await.unwrap();
        let far = watch::Sender::new(None);
        let mode = Arc::new(watch::Sender::new(ProxyMode::Passes));
        tokio::spawn(accept(listener, address, far.subscribe(), mode.clone()));
        Self { address: address.to_string(), far, mode }
    }

    pub(super) fn route_to(&self, far: SocketAddr) {
        self.far.send_replace(Some(far));
    }

    /// Passes no bytes from now on.
    pub(super) fn drop_traffic(&self) {
        self.mode.send_replace(ProxyMode::DropsTraffic);
    }

    /// Resets every connection at both ends, as a firewall does when it is reloaded, and refuses
    /// new ones.
    pub(super) fn reset_both_ends(&self) {
        self.mode.send_replace(ProxyMode::Resets { near: true, far: true });
    }

    /// Resets every connection at the end of the caller only.
    pub(super) fn reset_near_ends(&self) {
        self.mode.send_replace(ProxyMode::Resets { near: true, far: false });
    }

    /// Resets every connection at the end of the callee only.
    pub(super) fn reset_far_ends(&self) {
        self.mode.send_replace(ProxyMode::Resets { near: false, far: true });
    }

    /// Passes bytes from now on.
    pub(super) fn restore_traffic(&self) {
        self.mode.send_replace(ProxyMode::Passes);
    }
}

async fn accept(
    first: TcpListener,
    address: SocketAddr,
    mut far: watch::Receiver<Option<SocketAddr>>,
    mode: Arc<watch::Sender<ProxyMode>>,
) {
    let mut modes = mode.subscribe();
    let mut listener = Some(first);
    loop {
        let refuses = matches!(*modes.borrow_and_update(), ProxyMode::Resets { .. });
        if refuses {
            listener = None;
            modes.changed().await.unwrap();
            continue;
        }
        if listener.is_none() {
            listener = Some(TcpListener::bind(address).await.unwrap());
        }
        let near = tokio::select! {
            accepted = listener.as_ref().unwrap().accept() => accepted.unwrap().0,
            _ = modes.changed() => continue,
        };
        let address = far.wait_for(Option::is_some).await.unwrap().unwrap();
        let Ok(far) = TcpStream::connect(address).await else { continue };
        tokio::spawn(carry(near, far, mode.subscribe()));
    }
}

async fn carry(mut near: TcpStream, mut far: TcpStream, mut modes: watch::Receiver<ProxyMode>) {
    let mut buffers = [[0; 4096]; 2];
    loop {
        let [there, back] = &mut buffers;
        let mode = *modes.borrow_and_update();
        let passes = mode == ProxyMode::Passes;
        if let ProxyMode::Resets { near: resets_near, far: resets_far } = mode {
            for (end, resets) in [(&near, resets_near), (&far, resets_far)] {
                if resets {
                    end.set_zero_linger().unwrap();
                }
            }
            let _kept = [(near, resets_near), (far, resets_far)]
                .map(|(end, resets)| if resets { None } else { Some(end) });
            return pending().await;
        }
        let whole = tokio::select! {
            read = near.read(there), if passes => pass(read, there, &mut far).await,
            read = far.read(back), if passes => pass(read, back, &mut near).await,
            _ = modes.changed() => true,
        };
        if !whole {
            return;
        }
    }
}

/// Writes the bytes that were read. Returns `false` if the reader or the writer has ended.
async fn pass(read: io::Result<usize>, buffer: &[u8], to: &mut TcpStream) -> bool {
    let read = read.unwrap_or(0);
    read > 0 && to.write_all(&buffer[..read]).await.is_ok()
}
