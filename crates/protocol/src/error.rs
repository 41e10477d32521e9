//! JSON-RPC error codes, and the refusal of a message that breaks the envelope's rules.

use crate::RequestId;

/// A JSON-RPC error code (RPC-13), under the name that the specification gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// -32700: the text is not JSON.
    ParseError,
    /// -32600: JSON, but no request, notification or response.
    InvalidRequest,
    /// -32601: the receiver has no such method.
    MethodNotFound,
    /// -32602: the parameters are not what the method takes.
    InvalidParams,
    /// -32603: the receiver failed.
    InternalError,
    /// -32001: a mirrored header is missing, malformed or differs from the body (HDR-05).
    HeaderMismatch,
    /// -32001 with status 404: the session is unknown or over. SDK convention; the
    /// status tells the two apart.
    SessionNotFound,
    /// -32000: refused for a reason of the server's own, which the message names.
    Refused,
}

impl ErrorCode {
    /// The number on the wire.
    pub const fn number(self) -> i32 {
        match self {
            Self::ParseError => -32700,
            Self::InvalidRequest => -32600,
            Self::MethodNotFound => -32601,
            Self::InvalidParams => -32602,
            Self::InternalError => -32603,
            Self::HeaderMismatch | Self::SessionNotFound => -32001,
            Self::Refused => -32000,
        }
    }
}

/// Why a message was not taken, with what is needed to answer it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Rejection {
    /// The code to answer with.
    pub code: ErrorCode,
    /// What is wrong and what to do about it. Never quotes a payload.
    pub message: String,
    /// The id of the rejected request, where it could be read.
    pub id: Option<RequestId>,
}

impl Rejection {
    /// A rejection of a message whose id could not be read.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), id: None }
    }

    /// The same, answering the request `id`.
    pub fn of(mut self, id: Option<RequestId>) -> Self {
        self.id = id;
        self
    }
}
