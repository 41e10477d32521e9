//! The calls of an exchange of which the audit log has a `begin` and no `end`.

use std::time::Instant;

use audit::CallId;
use protocol::RequestId;
use telemetry::Outcome;

use crate::unanswered::Unanswered;

/// The calls of one exchange.
#[derive(Debug, Default)]
pub(crate) enum Calls {
    #[default]
    None,
    /// The exchange is this call.
    One(OpenCall),
    /// The members of a batch, each until its response. Those without a record have no call.
    Many(Unanswered<OpenCall>),
}

/// A call with a `begin` and no `end`.
#[derive(Debug)]
pub(crate) struct OpenCall {
    pub(crate) call: CallId,
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
            Self::Many(calls) => calls.ends_nothing(),
        }
    }

    /// The members of the batch. Not for an exchange that is one call.
    pub(crate) fn members(&mut self) -> &mut Unanswered<OpenCall> {
        loop {
            match self {
                Self::Many(members) => return members,
                Self::None | Self::One(_) => *self = Self::Many(Unanswered::default()),
            }
        }
    }

    /// Removes the first call of a batch with this id.
    pub(crate) fn take_first(&mut self, request: &RequestId) -> Option<OpenCall> {
        let Self::Many(calls) = self else { return None };
        calls.take_first(request)
    }

    /// Those without an answer at the end of an exchange with this outcome, and the outcome of each.
    pub(crate) fn at_end(self, of_exchange: Outcome) -> impl Iterator<Item = (OpenCall, Outcome)> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(call) => (Some((call, of_exchange)), None),
            Self::Many(calls) => (None, Some(calls.at_end(of_exchange))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}
