//! JSON-RPC error codes, and the rejection of a malformed message.

use crate::RequestId;

/// A JSON-RPC error code (RPC-13), under the name that the specification gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// -32700: the text is not JSON.
    ParseError,
    /// -32600: the JSON is not a request, notification or response.
    InvalidRequest,
    /// -32601: the receiver has no such method.
    MethodNotFound,
    /// -32602: the parameters do not fit the method.
    InvalidParams,
    /// -32603: the receiver failed.
    InternalError,
    /// -32001: a mirrored header is missing, malformed or differs from the body (HDR-05).
    HeaderMismatch,
    /// -32001 with status 404: the session is unknown or has ended. A convention of the SDKs,
    /// which tell the two meanings of the code apart by the status.
    SessionNotFound,
    /// -32000: refused for a server-specific reason, which the message states.
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

/// The code of a server's error that has the user open a URL first, which the data names (ELI-05).
pub const URL_ELICITATION_REQUIRED: i32 = -32042;

/// Why a message was rejected, with the fields of the response to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Rejection {
    /// The code to answer with.
    pub code: ErrorCode,
    /// The error and how to correct it. Never quotes a payload.
    pub message: String,
    /// The id of the rejected request, if it could be parsed.
    pub id: Option<RequestId>,
    /// The `data` of the error, as JSON text, if it has any.
    pub data: Option<Box<str>>,
}

impl Rejection {
    /// Creates a rejection of a message whose id could not be parsed.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), id: None, data: None }
    }

    /// Sets the id of the rejected request.
    pub fn of(mut self, id: Option<RequestId>) -> Self {
        self.id = id;
        self
    }

    /// Sets the `data` of the error, which is JSON text.
    pub fn with_data(mut self, json: impl Into<Box<str>>) -> Self {
        self.data = Some(json.into());
        self
    }
}
