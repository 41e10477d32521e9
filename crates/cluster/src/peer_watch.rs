//! A connection to a peer that carries nothing and shows how the peer's process ends.
//!
//! The system of a killed process closes a connection in order only where the process left no
//! bytes unread, and resets it otherwise. A link under load nearly always has unread bytes when
//! the process at its other end is killed, and a reset proves little: a firewall resets
//! connections as well. On this connection nothing is sent after the handshake, so that its end
//! does not depend on what the links carried
//! ([decision 0020](../../../docs/decisions/0020-a-connection-that-carries-nothing.md)).

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use peering::{Established, Purpose};

use crate::link::PeerLink;
use crate::meet::meet;
use crate::node::MemberNode;

/// How long to wait before the connection is made anew, where it ended or could not be made.
const PAUSE: Duration = Duration::from_secs(1);

/// How long nothing goes over the connection before the system asks whether its other end is
/// there. Less than what is between two nodes remembers a connection that is idle.
const IDLE: Duration = Duration::from_secs(30);

/// The watch over a peer. It ends with this value.
pub(crate) struct Watch(AbortHandle);

impl Watch {
    /// Begins to watch the peer of a link, whether that is up or not.
    pub(crate) fn start(node: &Arc<MemberNode>, link: &Arc<PeerLink>) -> Self {
        Self(node.runtime.spawn(watch(node.clone(), link.clone())).abort_handle())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Keeps a connection to the peer, and notes whether the peer's system closed it in order.
async fn watch(node: Arc<MemberNode>, link: Arc<PeerLink>) {
    let peer = link.incarnation;
    loop {
        let meeting = timeout(node.settings.connect(), meet(&node, &link, Purpose::Watch));
        if let Ok(Ok(mut established)) = meeting.await {
            // The process lives: if it closed the last connection, that was no death.
            node.peers.set_closed(peer, false);
            established.wait_for_end(IDLE).await;
            let closed = established.orderly_end().was_seen();
            tracing::debug!(node = %peer, closed, "the connection that watches a peer ended");
            if closed {
                node.peers.set_closed(peer, true);
            }
        }
        sleep(PAUSE).await;
    }
}

/// Keeps a connection by which a peer watches this process, until the peer or the node ends it.
pub(crate) async fn hold_watched_connection(node: &MemberNode, mut established: Established) {
    let ended = established.wait_for_end(IDLE);
    let _ = node.closing.run_until_cancelled(ended).await;
}
