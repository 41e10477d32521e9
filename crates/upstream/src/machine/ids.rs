//! The ids of exchanges and of requests.

use protocol::{Method, Request, RequestId, UpstreamTokens};

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
    /// The tokens of the client that has sent it.
    pub(super) tokens: Option<UpstreamTokens>,
}

/// The parameters of a cancellation, for another id.
pub(super) fn with_request_id(params: &[u8], id: &RequestId) -> Option<Vec<u8>> {
    let mut params: serde_json::Value = serde_json::from_slice(params).ok()?;
    *params.get_mut("requestId")? = serde_json::to_value(id).ok()?;
    serde_json::to_vec(&params).ok()
}

/// Whether a request is the node's own, and restores what a client has set in an earlier session.
pub(super) fn restores(request: &Request) -> bool {
    let is_own =
        matches!(&request.id, RequestId::String(id) if id.starts_with(RequestId::OWN_PREFIX));
    is_own && matches!(request.method, Method::SetLevel | Method::Subscribe)
}
