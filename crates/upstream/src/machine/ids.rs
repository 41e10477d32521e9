//! The ids of exchanges and of requests.

use protocol::{Method, ProgressToken, Request, RequestId, UpstreamTokens};

/// Identifies an exchange of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExchangeId(pub(super) u64);

/// The id of a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CallId {
    /// At the session.
    pub(super) own: RequestId,
    /// At the server.
    pub(super) wire: RequestId,
    /// The progress token at the session, if the server has the id in its place.
    pub(super) progress: Option<ProgressToken>,
    /// The tokens of the client that has sent it.
    pub(super) tokens: Option<UpstreamTokens>,
}

impl CallId {
    /// The id of a request of the session that the server gets like this.
    pub(super) fn of(request: &Request, wire: &Request) -> Self {
        let has_other_id = request.id != wire.id;
        Self {
            own: request.id.clone(),
            wire: wire.id.clone(),
            progress: if has_other_id { request.progress_token() } else { None },
            tokens: request.tokens.clone(),
        }
    }
}

/// The request with another id, which is its progress token too, if it has one: an earlier run of the same
/// request may go on, and progress with the same token would be taken for its own (PRG-04).
pub(super) fn renamed(request: &Request, id: RequestId) -> Request {
    request.with_progress_token(&id).with_id(id)
}

/// Whether a request is the node's own, and restores what a client has set in an earlier session.
pub(super) fn restores(request: &Request) -> bool {
    let is_own =
        matches!(&request.id, RequestId::String(id) if id.starts_with(RequestId::OWN_PREFIX));
    is_own && matches!(request.method, Method::SetLevel | Method::Subscribe)
}
