//! What an attacker between two nodes reads and changes. The nodes are on loopback, so
//! `encrypt = "always"` stands for addresses beyond it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use store::Memory;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::support::{TestNode, call, free_address, next, settings, wait_until};
use crate::{CallError, Encrypt, Settings};

/// What a call and its reply contain, as a session id and a text would be.
const CONFIDENTIAL: &str = "5f0c1d7e-a-session-and-what-its-client-said";

/// Keeps a copy of all bytes, and changes a byte of the next bytes to the caller when told to.
#[derive(Clone, Default)]
struct Eavesdropper {
    seen: Arc<Mutex<Vec<u8>>>,
    changes: Arc<AtomicBool>,
}

impl Eavesdropper {
    fn has_seen(&self, text: &str) -> bool {
        let seen = self.seen.lock().unwrap();
        seen.windows(text.len()).any(|bytes| bytes == text.as_bytes())
    }

    async fn relay(self, listener: TcpListener, far: SocketAddr) {
        loop {
            let (near, _) = listener.accept().await.unwrap();
            let Ok(far) = TcpStream::connect(far).await else { continue };
            let (near, far) = (near.into_split(), far.into_split());
            let (there, back) = (self.clone(), self.clone());
            tokio::spawn(async move {
                // Both connections close when one direction ends.
                tokio::select! {
                    () = there.copy(near.0, far.1, false) => {}
                    () = back.copy(far.0, near.1, true) => {}
                }
            });
        }
    }

    async fn copy(
        &self,
        mut from: impl AsyncReadExt + Unpin,
        mut to: impl AsyncWriteExt + Unpin,
        may_change: bool,
    ) {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            let bytes = &mut buffer[..read];
            self.seen.lock().unwrap().extend_from_slice(bytes);
            // A pong is shorter than a reply; encrypted, it has less than a hundred bytes.
            if may_change && read > 100 && self.changes.swap(false, Ordering::SeqCst) {
                let text = CONFIDENTIAL.as_bytes();
                let text = bytes.windows(text.len()).position(|bytes| bytes == text);
                bytes[text.unwrap_or(read / 2)] ^= 1;
            }
            if to.write_all(bytes).await.is_err() {
                return;
            }
        }
    }
}

/// Two nodes; an eavesdropper relays the calls of the first to the second.
async fn overheard(encrypt: Encrypt) -> (Arc<Memory>, TestNode, TestNode, Eavesdropper) {
    let store = Arc::new(Memory::default());
    let settings = Settings { encrypt, accept_plain: false, ..settings() };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let advertise = listener.local_addr().unwrap().to_string();
    let free = free_address();
    let other = Settings { listen: free.to_string(), advertise, ..settings.clone() };
    let other = TestNode::start_with(other, store.clone()).await;
    let eavesdropper = Eavesdropper::default();
    tokio::spawn(eavesdropper.clone().relay(listener, free));
    let one = TestNode::start_with(settings, store.clone()).await;
    (store, one, other, eavesdropper)
}

fn long_echo() -> String {
    format!("echo {CONFIDENTIAL}{}", "x".repeat(1_000))
}

#[tokio::test]
async fn an_eavesdropper_reads_calls_on_loopback_and_none_of_encrypted_links() {
    for (encrypt, is_readable) in [(Encrypt::Auto, true), (Encrypt::Always, false)] {
        let (store, one, other, eavesdropper) = overheard(encrypt).await;
        let peer = one.peer(&store, &other).await;
        let text = long_echo();
        assert_eq!(call(&peer, &text).await, [Ok(text[5..].to_owned())]);
        let large = format!("echo {CONFIDENTIAL}{}", "y".repeat(3 << 20));
        assert_eq!(call(&peer, &large).await, [Ok(large[5..].to_owned())]);
        assert_eq!(eavesdropper.has_seen(CONFIDENTIAL), is_readable);
        assert_eq!(eavesdropper.has_seen(other.cluster.address()), is_readable);
    }
}

#[tokio::test]
async fn a_changed_byte_ends_an_encrypted_link_and_reaches_no_caller() {
    let (store, one, other, eavesdropper) = overheard(Encrypt::Always).await;
    let peer = one.peer(&store, &other).await;
    let text = long_echo();
    assert_eq!(call(&peer, &text).await, [Ok(text[5..].to_owned())]);
    eavesdropper.changes.store(true, Ordering::SeqCst);
    assert_eq!(call(&peer, &text).await, [Err(CallError::Lost)]);
    assert!(!eavesdropper.changes.load(Ordering::SeqCst));
    // The nodes connect again.
    wait_until("they are linked again", || one.cluster.node.peers.is_linked(peer.incarnation()))
        .await;
    let mut again = peer.call(Bytes::from(text.clone()));
    assert_eq!(next(&mut again).await, Some(Ok(text[5..].to_owned())));
}

#[tokio::test]
async fn a_changed_byte_of_a_plain_link_reaches_the_caller() {
    let (store, one, other, eavesdropper) = overheard(Encrypt::Auto).await;
    let peer = one.peer(&store, &other).await;
    let text = long_echo();
    assert_eq!(call(&peer, &text).await, [Ok(text[5..].to_owned())]);
    eavesdropper.changes.store(true, Ordering::SeqCst);
    let changed = call(&peer, &text).await;
    assert!(matches!(&changed[..], [Ok(reply)] if *reply != text[5..]), "{changed:?}");
}

#[tokio::test]
async fn nodes_with_encrypted_links_call_each_other_at_once() {
    let store = Arc::new(Memory::default());
    let settings = Settings { encrypt: Encrypt::Always, accept_plain: false, ..settings() };
    let one = TestNode::start_with(settings.clone(), store.clone()).await;
    let other = TestNode::start_with(settings, store.clone()).await;
    let (there, back) = (one.peer(&store, &other).await, other.peer(&store, &one).await);
    for _ in 0..20 {
        let both = tokio::join!(call(&there, "several 5 300000"), call(&back, "count 1000"));
        assert_eq!(both.0.len(), 5);
        let expected: Vec<_> = (0..1_000).map(|n| Ok(n.to_string())).collect();
        assert_eq!(both.1, expected);
    }
}
