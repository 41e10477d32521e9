//! Routes a request to the owner of its session: on this node, or forwarded to another one.
//!
//! The owner judges a forwarded request like one from its own front. A request is forwarded once
//! and never from there again. If its owner is lost, or no longer has the session, the request goes
//! to the next owner: unchanged if it was certainly not started, else marked as possibly done
//! already. If another node is to claim the session, that node is first requested to do so, and
//! gets the request once it has the session.

mod call_form;
mod forwarded_request;
mod legacy;
mod long_call;
mod messages;
mod opening;
mod operator_calls;
mod operator_messages;
mod reply_codec;
mod request;
pub(crate) mod revocation_codec;
mod serving;
mod sharing;

use bytes::Bytes;
use cluster::{Peer, Versions};

pub(crate) use self::opening::create_at_peer;
pub(crate) use self::operator_calls::{
    CallProblem, NodeState, call_end, call_list, call_state, call_tenants,
};
pub(crate) use self::request::{Owner, RoutedRequest};
pub(crate) use self::serving::PeerService;
pub(crate) use self::sharing::share_limits;

/// The first version of Protocol Buffers.
const PROTOBUF: u32 = 3;

/// The first version with calls of operators and about revocations.
const OPERATOR_CALLS: u32 = 4;

/// The first version with which nodes share limits of the cluster. A node of an earlier program knows none.
const LIMITS: u32 = 4;

/// The payload versions that this program reads. It sends to each peer in the newest version that
/// both read, and replies in the version of the call.
pub const PAYLOAD_VERSIONS: Versions = Versions { oldest: legacy::VERSION as u32, newest: 4 };

/// The formats of calls and replies, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Format {
    /// Version 2.
    Legacy,
    /// Since version 3. Version 4 has calls of operators, about revocations and about limits as well.
    Protobuf,
}

impl Format {
    #[cfg(test)]
    const ALL: [Self; 2] = [Self::Legacy, Self::Protobuf];

    /// The format of a payload that a peer sent.
    fn of(bytes: &Bytes) -> Self {
        match bytes.first() {
            Some(&legacy::VERSION) => Self::Legacy,
            _ => Self::Protobuf,
        }
    }

    /// The newest format that a peer reads. A peer without an earlier link may run the previous
    /// program.
    fn read_by(peer: &Peer) -> Self {
        match peer.payload_version() {
            Some(version) if version >= PROTOBUF => Self::Protobuf,
            _ => Self::Legacy,
        }
    }
}
