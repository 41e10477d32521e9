//! MCP messages, and the rules of each revision. Bytes in, values out.
//!
//! This crate has pure functions and plain values only: no clock, no socket, no task. Payloads
//! (`params`, `result`, `error`) keep their bytes; only the envelope around them is parsed.

mod about;
mod decimal;
pub mod downgrade;
mod error;
pub mod glance;
pub mod header_params;
mod id;
mod initialize;
mod lines;
mod list_page;
mod lists;
mod message;
mod method;
mod mirrored;
mod named;
pub mod payload;
mod position;
mod raw;
mod revision;
mod session_id;
pub mod sse;
mod uri_forms;

pub use about::{About, member_at};
pub use error::{ErrorCode, Rejection, URL_ELICITATION_REQUIRED};
pub use header_params::HeaderParams;
pub use id::{ProgressToken, RequestId};
pub use initialize::{
    ClientCapabilities, InitializeParams, InitializeResult, ServerCapabilities, initialize_result,
    instructions_of, kept_initialize_params, with_protocol_version,
};
pub use lines::{Line, LineSplitter};
pub use list_page::{ListEntry, ListPage};
pub use lists::{Listed, without_entries};
pub use message::{
    AccountLink, Body, Limits, Message, Notification, OtherNode, Request, Response, TokenSource,
    TraceContext, TraceParent, UpstreamToken, UpstreamTokens, is_trace_state, parse,
};
pub use method::Method;
pub use mirrored::{HeadersTooLong, Mirrored};
pub use named::{Ambiguous, Named, named, named_in_request};
pub use position::Position;
pub use revision::Revision;
pub use session_id::SessionId;
pub use uri_forms::uri_forms;
