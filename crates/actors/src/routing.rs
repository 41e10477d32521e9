//! The way of a request to the owner of its session: on this node, or on another one, to which the
//! request is forwarded.
//!
//! The owner judges a forwarded request as if it had come to its own front. A request is forwarded
//! once and never from there again. Where its owner is lost, or no longer has the session, it goes
//! to the next owner: as it was where it is certain that nothing was done, else marked as one that
//! may have been done already. Where another node is to claim a session, it is asked for that
//! first, and gets the request when it has the session.

mod forwarded_request;
mod legacy;
mod messages;
mod opening;
mod reply_codec;
mod request;
mod serving;

use bytes::Bytes;
use cluster::{Peer, Versions};

pub(crate) use self::opening::create_at_peer;
pub(crate) use self::request::{Owner, RoutedRequest};
pub(crate) use self::serving::PeerService;

/// The versions of calls and replies that this program reads. It sends a peer the newest that both
/// read, and replies in the version of the call.
pub const PAYLOAD_VERSIONS: Versions = Versions { oldest: legacy::VERSION as u32, newest: 3 };

/// How calls and replies are written. The older one comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Format {
    /// Version 2.
    Legacy,
    /// Version 3.
    Protobuf,
}

impl Format {
    #[cfg(test)]
    const ALL: [Self; 2] = [Self::Legacy, Self::Protobuf];

    /// The format of what a peer sent.
    fn of(bytes: &Bytes) -> Self {
        match bytes.first() {
            Some(&legacy::VERSION) => Self::Legacy,
            _ => Self::Protobuf,
        }
    }

    /// The newest format that a peer reads. A peer that this node was never linked to may run the
    /// program before this one.
    fn read_by(peer: &Peer) -> Self {
        match peer.payload_version() {
            Some(version) if version >= PAYLOAD_VERSIONS.newest => Self::Protobuf,
            _ => Self::Legacy,
        }
    }
}
