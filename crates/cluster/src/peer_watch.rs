//! A connection to a peer that carries nothing and shows how the peer's process ends.
//!
//! The kernel closes a killed process' connection in order only if the process left no bytes
//! unread, and resets it otherwise. A link under load nearly always has unread bytes when the
//! process at its other end is killed. A reset proves little, since firewalls reset connections as
//! well. No bytes are sent on this connection after the handshake, so its end does not depend on
//! the traffic of the links ([decision
//! 0020](../../../docs/decisions/0020-a-connection-that-carries-nothing.md)).

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use peering::{Established, Purpose};

use crate::link::PeerLink;
use crate::meet::meet;
use crate::node::MemberNode;

/// The wait before the next attempt, after the connection ended or could not be established.
const PAUSE: Duration = Duration::from_secs(1);

/// How long the connection is idle before the kernel sends keep-alive probes. Shorter than the idle
/// timeout of firewalls and NAT between two nodes.
const IDLE: Duration = Duration::from_secs(30);

/// The task that watches a peer. Dropping this value ends it.
pub(crate) struct Watch(AbortHandle);

impl Watch {
    /// Starts to watch the peer of a link, whether the link is established or not.
    pub(crate) fn start(node: &Arc<MemberNode>, link: &Arc<PeerLink>) -> Self {
        Self(node.runtime.spawn(watch(node.clone(), link.clone())).abort_handle())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Keeps a connection to the peer, and records whether the peer's kernel closed it in order.
async fn watch(node: Arc<MemberNode>, link: Arc<PeerLink>) {
    let peer = link.incarnation;
    loop {
        let meeting = timeout(node.settings.connect(), meet(&node, &link, Purpose::Watch));
        if let Ok(Ok(mut established)) = meeting.await {
            // The process is alive: if it closed the last connection, that was not its death.
            node.peers.set_closed(peer, false);
            established.wait_for_end(IDLE).await;
            let closed = established.orderly_end().was_seen();
            tracing::debug!(node = %peer, closed, "watch connection to a peer ended");
            if closed {
                node.peers.set_closed(peer, true);
            }
        }
        sleep(PAUSE).await;
    }
}

/// Holds the connection by which a peer watches this process, until the peer or this node closes
/// it.
pub(crate) async fn hold_watched_connection(node: &MemberNode, mut established: Established) {
    let ended = established.wait_for_end(IDLE);
    let _ = node.closing.run_until_cancelled(ended).await;
}
