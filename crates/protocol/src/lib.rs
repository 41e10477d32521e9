//! What MCP messages are, and what each revision allows. Bytes in, values out.
//!
//! Everything here is a pure function or a plain value: no clock, no socket, no
//! task. Payloads (`params`, `result`, `error`) stay the bytes they came as;
//! only the envelope around them is read.

mod decimal;
pub mod downgrade;
mod error;
pub mod header_params;
mod id;
mod initialize;
mod lines;
mod message;
mod method;
mod mirrored;
pub mod payload;
mod raw;
mod revision;
mod session_id;
pub mod sse;

pub use error::{ErrorCode, Rejection};
pub use header_params::HeaderParams;
pub use id::{ProgressToken, RequestId};
pub use initialize::{
    ClientCapabilities, InitializeParams, InitializeResult, ServerCapabilities,
    kept_initialize_params, with_protocol_version,
};
pub use lines::{Line, LineSplitter};
pub use message::{Body, Limits, Message, Notification, Request, Response, parse};
pub use method::Method;
pub use mirrored::Mirrored;
pub use revision::Revision;
pub use session_id::SessionId;
