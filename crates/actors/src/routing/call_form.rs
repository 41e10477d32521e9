//! The encoding of a call to the owner of a session, or to a node that relays it.

use bytes::Bytes;
use ownership::{Incarnation, SessionRequest};
use protocol::TraceContext;

use super::Format;
use super::forwarded_request::ForwardedRequest;
use crate::Caller;

/// How a call is encoded.
#[derive(Clone, Copy)]
pub(super) struct CallForm {
    pub(super) format: Format,
    /// The node to which the receiver relays the call.
    pub(super) owner: Option<Incarnation>,
}

impl CallForm {
    pub(super) fn encode(
        self,
        caller: &Caller,
        trace: Option<&TraceContext>,
        request: Option<&SessionRequest>,
    ) -> Bytes {
        match self.owner {
            Some(owner) => {
                ForwardedRequest::encode_relayed(caller, trace, request, owner, self.format)
            }
            None => ForwardedRequest::encode(caller, trace, request, self.format),
        }
    }
}
