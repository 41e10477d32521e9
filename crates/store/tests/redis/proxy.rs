//! A proxy to a server that can close connections and delay commands.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Forwards connections to a server until it is dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    /// The number of writes of clients.
    writes: AtomicUsize,
    /// Whether the next answer is dropped and its connection closed.
    cut: AtomicBool,
    /// Whether the next write is held, with its connection.
    hold: AtomicBool,
    /// Notified when the held write is forwarded.
    go_on: Notify,
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(forward(listener, port, Arc::clone(&shared)));
        Self { port: own, shared, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The number of writes of clients since the last call.
    pub(crate) fn writes(&self) -> usize {
        self.shared.writes.swap(0, SeqCst)
    }

    /// Lets the server execute the next command, and closes the connection instead of answering.
    pub(crate) fn cut_next_answer(&self) {
        self.shared.cut.store(true, SeqCst);
    }

    /// Holds the next command, and everything after it on its connection.
    pub(crate) fn hold_next(&self) {
        self.shared.hold.store(true, SeqCst);
    }

    /// Forwards the held commands.
    pub(crate) fn go_on(&self) {
        self.shared.go_on.notify_one();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(listener: TcpListener, port: u16, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { continue };
        tokio::spawn(connect(client, server, Arc::clone(&shared)));
    }
}

async fn connect(mut client: TcpStream, mut server: TcpStream, shared: Arc<Shared>) {
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(length @ 1..) = read else { return };
                shared.writes.fetch_add(1, SeqCst);
                if shared.hold.swap(false, SeqCst) {
                    shared.go_on.notified().await;
                }
                if server.write_all(&asked[..length]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answered) => {
                let Ok(length @ 1..) = read else { return };
                if shared.cut.swap(false, SeqCst) {
                    return;
                }
                if client.write_all(&answered[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}
