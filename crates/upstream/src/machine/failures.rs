//! The errors that clients get for exchanges that failed.

use protocol::{ErrorCode, RequestId, Response};

use crate::Failure;
use crate::exchange::ExchangeEvent;

/// The response to a request whose exchange ended like this.
pub(super) fn failure_response(id: &RequestId, event: ExchangeEvent) -> Response {
    let internal =
        |text: &str| Response::failure(id.clone(), ErrorCode::InternalError.number(), text);
    match event {
        // The server's own error, if it is one of JSON-RPC.
        ExchangeEvent::Refused { error: Some(error), .. } => error.with_id(id.clone()),
        ExchangeEvent::Refused { status, error: None } => internal(&refused(status)),
        // The last two come of reading the response.
        ExchangeEvent::Failed(
            failure @ (Failure::Lost | Failure::Silent | Failure::NoRoom | Failure::TooLarge),
        ) => internal(&format!("{failure}; the request may have been performed")),
        ExchangeEvent::Failed(failure) => internal(&failure.to_string()),
        ExchangeEvent::Accepted => {
            internal("the upstream server accepted the request without an answer")
        }
        _ => internal(
            "the upstream server closed the stream before its response; the request may have been \
             performed",
        ),
    }
}

pub(super) fn refused(status: u16) -> String {
    match status {
        401 | 403 => format!("the upstream server refused the node's credentials (HTTP {status})"),
        404 | 405 => format!("the upstream server has no MCP endpoint at its URL (HTTP {status})"),
        429 => format!("the upstream server gets too many requests (HTTP {status})"),
        500.. => format!("the upstream server failed (HTTP {status})"),
        _ => format!("the upstream server refused the request (HTTP {status})"),
    }
}
