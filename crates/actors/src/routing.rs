//! The way of a request to the owner of its session: on this node, or on another one, to which the
//! request is forwarded.
//!
//! The owner judges a forwarded request as if it had come to its own front. A request is forwarded
//! once and never from there again. Where its owner is lost, or no longer has the session, it goes
//! to the next owner: as it was where it is certain that nothing was done, else marked as one that
//! may have been done already. Where another node is to claim a session, it is asked for that
//! first, and gets the request when it has the session.

mod call;
mod opening;
mod reply_codec;
mod request;
mod serving;
mod wire;

pub(crate) use self::opening::create_at_peer;
pub(crate) use self::request::{Owner, RoutedRequest};
pub(crate) use self::serving::PeerService;

/// The first byte of every call and every reply. Nodes of another version do not
/// understand each other, and say so instead of guessing.
const VERSION: u8 = 2;
