//! A wire to a server that can be cut, or hold back what is sent on it.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Forwards connections to a server, as long as it lives.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    /// How often a client wrote.
    writes: AtomicUsize,
    /// The next answer is lost, and its connection.
    cut: AtomicBool,
    /// The next writing is held, and its connection.
    hold: AtomicBool,
    /// What was held may go on.
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

    /// How often clients wrote since this was last asked.
    pub(crate) fn writes(&self) -> usize {
        self.shared.writes.swap(0, SeqCst)
    }

    /// Executes the next command, and cuts the connection instead of answering.
    pub(crate) fn cut_next_answer(&self) {
        self.shared.cut.store(true, SeqCst);
    }

    /// Keeps the next command, and everything after it on its connection.
    pub(crate) fn hold_next(&self) {
        self.shared.hold.store(true, SeqCst);
    }

    /// What was held arrives, however late.
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
