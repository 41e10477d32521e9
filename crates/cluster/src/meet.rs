//! Connects to a peer and finds out that it is the one that was meant.

use peering::{ConnectError, Established, PeerIdentity, Purpose};

use crate::link::PeerLink;
use crate::node::MemberNode;
use store::Incarnation;

/// Why there is no link.
pub(crate) enum Failure {
    /// Nothing listens at the address.
    Refused,
    /// Another process of the cluster answers, which is told to be at this very address. So
    /// the one meant is not there any more; unless its lease is still renewed.
    Superseded(Incarnation),
    /// The peer is there, and reads no version of payloads that this node reads.
    Incompatible(String),
    /// Anything else.
    Other(String),
}

/// Connects, and finds out that the peer of the link is there.
pub(crate) async fn meet(
    node: &MemberNode,
    link: &PeerLink,
    purpose: Purpose,
) -> Result<Established, Failure> {
    let established = node.local.connect(&link.address, purpose).await?;
    if established.peer().incarnation != link.incarnation.0 {
        return Err(another(node, link, established.peer()));
    }
    Ok(established)
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Refused => Self::Refused,
            ConnectError::Incompatible { .. } => Self::Incompatible(error.to_string()),
            ConnectError::Other(why) => Self::Other(why),
        }
    }
}

/// What it means that another process answers than the one that was called. A connection may
/// have been led elsewhere, also back to this node: that proves nothing of the one called.
fn another(node: &MemberNode, link: &PeerLink, callee: &PeerIdentity) -> Failure {
    if callee.incarnation == node.local.incarnation {
        return Failure::Other(format!(
            "this node itself answers at {}; see cluster.advertise of both nodes, and what \
             leads there",
            link.address
        ));
    }
    if callee.address != link.address {
        return Failure::Other(format!(
            "the node that is to be reached at {} answers at {}; see what leads there",
            callee.address, link.address
        ));
    }
    Failure::Superseded(Incarnation(callee.incarnation))
}
