//! Accepts connections of peers and answers their calls.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use peering::{Answerer, Established, Listener, Purpose};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::linked::Linked;
use crate::node::MemberNode;
use crate::{PeerCallHandler, Replies, peer_watch};
use store::Incarnation;

/// The pause after a failed accept: the process has too many open files.
const PAUSE: Duration = Duration::from_millis(200);

/// Passes calls of peers to the handler until this node gives up its lease.
struct ServiceUnderLease {
    node: Arc<MemberNode>,
    handler: Arc<dyn PeerCallHandler>,
}

impl Answerer for ServiceUnderLease {
    fn takes_calls(&self) -> bool {
        !self.node.lease.is_given_up()
    }

    fn begin_call(&self, call: Bytes) -> Option<Box<dyn Replies>> {
        self.handler.handle_call(call)
    }
}

/// Accepts connections until the node closes its links.
pub(crate) async fn listen(
    node: Arc<MemberNode>,
    sockets: TcpListener,
    handler: Arc<dyn PeerCallHandler>,
) {
    let service = Arc::new(ServiceUnderLease { node: node.clone(), handler });
    let listener = Arc::new(Listener::default());
    let closing = node.closing.clone();
    while let Some(accepted) = closing.run_until_cancelled(sockets.accept()).await {
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accepting a peer connection failed; retrying in 200 ms");
                sleep(PAUSE).await;
                continue;
            }
        };
        let (node, service) = (node.clone(), service.clone());
        let arrival = listener.accept(stream, from);
        tokio::spawn(async move {
            let met = arrival.meet(&node.local, node.settings.connect());
            let Some(Some(established)) = node.closing.run_until_cancelled(met).await else {
                return;
            };
            match established.peer().purpose {
                Purpose::Calls => answer(&node, service, established).await,
                Purpose::Watch => peer_watch::hold_watched_connection(&node, established).await,
            }
        });
    }
}

/// Answers a peer's calls until the link ends.
async fn answer(
    node: &Arc<MemberNode>,
    service: Arc<ServiceUnderLease>,
    mut established: Established,
) {
    let caller = Incarnation(established.peer().incarnation);
    let linked = Linked::new(node, caller, established.orderly_end());
    let limits = node.settings.limits();
    let ended = established.answer(service, limits, &node.closing).await;
    if let Some(why) = ended {
        tracing::debug!(node = %caller, %why, "peer connection ended");
    }
    drop(linked);
}
