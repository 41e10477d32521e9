//! A connection to a peer that carries nothing and shows how the peer's process ends.
//!
//! The system of a killed process closes a connection in order only where the process left no
//! bytes unread, and resets it otherwise. A link under load nearly always has unread bytes when
//! the process at its other end is killed, and a reset proves little: a firewall resets
//! connections as well. On this connection nothing is sent after the handshake, so that its end
//! does not depend on what the links carried
//! ([decision 0020](../../../../docs/decisions/0020-a-connection-that-carries-nothing.md)).

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::dial::{Established, Link, meet};
use super::handshake::Purpose;
use super::inbox::Inbox;
use super::wire::Wire;
use crate::node::Node;

/// How long to wait before the connection is made anew, where it ended or could not be made.
const PAUSE: Duration = Duration::from_secs(1);

/// How long nothing goes over the connection before the system asks whether its other end is
/// there. Less than what is between two nodes remembers a connection that is idle.
const IDLE: Duration = Duration::from_secs(30);

/// The watch over a peer. It ends with this value.
pub(crate) struct Watch(AbortHandle);

impl Watch {
    /// Begins to watch the peer of a link, whether that is up or not.
    pub(crate) fn start(node: &Arc<Node>, link: &Arc<Link>) -> Self {
        Self(node.runtime.spawn(watch(node.clone(), link.clone())).abort_handle())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Keeps a connection to the peer, and notes whether the peer's system closed it in order.
async fn watch(node: Arc<Node>, link: Arc<Link>) {
    let peer = link.incarnation;
    loop {
        let meeting = timeout(node.settings.connect(), meet(&node, &link, Purpose::Watch));
        if let Ok(Ok(Established { mut wire, mut inbox })) = meeting.await {
            // The process lives: if it closed the last connection, that was no death.
            node.peers.set_closed(peer, false);
            let _ = ended(&mut wire, &mut inbox).await;
            let closed = wire.fate().was_closed();
            tracing::debug!(node = %peer, closed, "the connection that watches a peer ended");
            if closed {
                node.peers.set_closed(peer, true);
            }
        }
        sleep(PAUSE).await;
    }
}

/// Keeps a connection by which a peer watches this process, until the peer or the node ends it.
pub(crate) async fn hold(node: &Node, mut wire: Wire, mut inbox: Inbox) {
    let ended = ended(&mut wire, &mut inbox);
    let _ = node.closing.run_until_cancelled(ended).await;
}

/// Waits for the end of a connection. A peer that sends something on it ends it too, and so does
/// the system where the peer's machine is gone.
async fn ended(wire: &mut Wire, inbox: &mut Inbox) -> io::Result<usize> {
    // Where the system cannot do that, the links notice it.
    let _ = wire.keep_alive(IDLE);
    poll_fn(|context| inbox.poll_fill(wire, context)).await
}
