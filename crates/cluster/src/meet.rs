//! Connects to a peer and verifies that the process at its address is the expected one.

use peering::{ConnectError, Established, PeerIdentity, Purpose};

use crate::link::PeerLink;
use crate::node::MemberNode;
use store::Incarnation;

/// The reason why no link was established.
pub(crate) enum Failure {
    /// Nothing listens at the address.
    Refused,
    /// Another process of the cluster answers at this very address, and announces the address as
    /// its own. So the expected process is gone, unless its lease is still renewed.
    Superseded(Incarnation),
    /// The peer is there, and the two programs have no common payload version.
    Incompatible(String),
    /// Any other reason, as text.
    Other(String),
}

/// Connects, and verifies that the peer of the link answers.
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

/// Judges an answer of another process than the expected one. A connection may have been redirected
/// to another node or back to this one: that proves nothing about the expected process.
fn another(node: &MemberNode, link: &PeerLink, callee: &PeerIdentity) -> Failure {
    if callee.incarnation == node.local.incarnation {
        return Failure::Other(format!(
            "this node itself answers at {}; check cluster.advertise of both nodes, and what \
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
