//! The client of one request.

use std::sync::Arc;

use protocol::{SessionId, UpstreamTokens};
use tenants::{Principal, Tenant};

/// The client of one request, and the session that the request names.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The tenant whose endpoint was used.
    pub tenant: Arc<Tenant>,
    /// The client's principal; another principal's session is an unknown one.
    pub principal: Principal,
    /// The session that the request names.
    pub session: SessionId,
    /// The tokens with which the request is authorized at upstream servers, if these get one of each user.
    pub tokens: Option<UpstreamTokens>,
}

impl Caller {
    /// The servers of these backends refused the tokens at the node of the session: later requests need others.
    pub(crate) fn note_refused(&self, backends: &[String]) {
        let Some(tokens) = &self.tokens else { return };
        let refused = backends.iter().filter_map(|backend| tokens.of(backend));
        for token in refused {
            token.source.iter().for_each(|source| source.note_refused(&token.text));
        }
    }
}
