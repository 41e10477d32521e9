//! The calls of an exchange of which the audit log has a `begin` and no `end`.

use std::time::Instant;

use audit::CallId;
use protocol::RequestId;

/// The calls of one exchange.
#[derive(Debug, Default)]
pub(crate) enum Calls {
    #[default]
    None,
    /// The exchange is this call.
    One(OpenCall),
    /// The members of a batch, each until its response.
    Many(Vec<OpenCall>),
}

/// A call with a `begin` and no `end`.
#[derive(Debug)]
pub(crate) struct OpenCall {
    pub(crate) call: CallId,
    /// `None` if it is the only one.
    pub(crate) request: Option<RequestId>,
    /// When it was dispatched, of several calls.
    pub(crate) began: Option<Instant>,
    /// Whether it opens the session: its `begin` could not name that.
    pub(crate) opens_session: bool,
}

impl Calls {
    /// Whether no call is open.
    pub(crate) fn is_none(&self) -> bool {
        match self {
            Self::None => true,
            Self::One(_) => false,
            Self::Many(calls) => calls.is_empty(),
        }
    }

    /// All of them.
    pub(crate) fn into_vec(self) -> Vec<OpenCall> {
        match self {
            Self::None => Vec::new(),
            Self::One(call) => vec![call],
            Self::Many(calls) => calls,
        }
    }
}
