//! The error texts of a routed request, and the messages that carry them to the client.

use bytes::Bytes;
use conversation::Frame;
use protocol::{ErrorCode, Message, RequestId, Response};

use crate::ReplyEvent;

/// The error text for a request that a lost node may have carried out.
pub(super) const LOST: &str =
    "the node that worked on this was lost; whether it was done is not known";

/// The error text for a session with its maximum of pending requests.
pub(super) const BUSY: &str = "the session has too much work waiting; try again later";

/// The error text for a message that is larger than two nodes may send to each other.
pub(super) fn too_large(bytes_max: u64) -> String {
    format!(
        "the request or what it returned is larger than two nodes may send to each other: \
         cluster.message_bytes_max is {bytes_max} bytes; return less, or raise it on every node"
    )
}

/// The error text for a request that an owner without a lease has held for so long.
pub(super) fn lease_lost(held_secs: u64) -> String {
    format!(
        "the node that has the session could not act on it for {held_secs} s (sessions.hold_ms): \
         it held no lease, or the store did not confirm that it owns the session; whether this \
         was done is not known; try again"
    )
}

/// The error text for a session that no node had room for within the hold time.
pub(super) fn no_room(secs: u64) -> String {
    format!(
        "the owner of the session is gone, and for {secs} s no node that was asked had room for \
         it (sessions.sessions_max); whether this was done is not known; try again"
    )
}

/// The error text for a session that was not reached within the hold time.
pub(super) fn unreachable(secs: u64) -> String {
    format!(
        "the session could not be reached for {secs} s, and whether this was done is not known; \
         try again"
    )
}

/// An error as the final response to a request.
pub(super) fn error_response(id: RequestId, text: &str) -> Bytes {
    Response::error(Some(id), ErrorCode::Refused.number(), text, None).raw().clone()
}

/// A message of the stream, without an event id.
pub(super) fn message_event(data: Bytes) -> ReplyEvent {
    ReplyEvent::Frame(Frame::Message { id: None, data })
}

/// The request that this message is the final response to.
pub(super) fn response_id(data: &Bytes) -> Option<RequestId> {
    match Message::parse(data.clone()) {
        Ok(Message::Response(response)) => response.id,
        _ => None,
    }
}
