//! What a session is in, how its messages are sent, and what its exchanges are for.

use bytes::Bytes;
use protocol::RequestId;

use super::ids::{CallId, ExchangeId};
use crate::exchange::{ExchangeEvent, HeaderText};

/// Where a session is in its handshake.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Phase {
    /// `initialize` with this id was sent, if any, and has no response.
    Opening(Option<RequestId>),
    /// `initialize` has its response.
    Answered,
    /// `notifications/initialized` was sent.
    Confirming,
    /// It was accepted.
    Ready,
    /// Another machine confirmed the session. `initialize` is answered with this result, and then these
    /// streams are requested on.
    Carried { result: Bytes, streams: Vec<(CallId, HeaderText)> },
    /// Over.
    Down,
}

/// How messages are sent, and where responses come from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Transport {
    /// Streamable HTTP.
    Streamable,
    /// Streamable HTTP was refused, and HTTP+SSE is tried.
    Falling {
        id: CallId,
        initialize: Bytes,
        /// The first refusal, which the session gets if the server has neither.
        refusal: Box<ExchangeEvent>,
    },
    /// HTTP+SSE. All responses come on the stream.
    Older,
}

/// What an exchange is for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Purpose {
    /// A request that has no response.
    Call(CallId),
    /// A request that has one, or that was cancelled.
    Released(CallId),
    /// `notifications/initialized`.
    Confirm,
    /// Another message without an answer, which is sent behind this exchange.
    Note { behind: Option<ExchangeId> },
    /// Messages that belong to no request.
    Listen,
    /// Whether the session still exists.
    Probe,
    /// A page of the server's tools, requested by this request of the node.
    Tools(RequestId),
    /// The stream of HTTP+SSE.
    OlderStream,
    /// A request over HTTP+SSE, which is only accepted.
    OlderCall(CallId),
}
