//! How long the messages of clients take, by the names of OpenTelemetry's conventions for MCP.

use std::sync::LazyLock;

use protocol::{Body as Posted, Message, Method};
use telemetry::{
    DurationLabel, DurationNames, DurationObserver, Durations, ExchangeRecord, Outcome,
};

use crate::metrics::OPERATION_SECONDS;

/// The number of [`OTHER_METHOD`] in [`METHODS`].
const OTHER_METHOD: usize = Method::NAMES.len();

/// Every method, and one name for all methods that are not MCP's.
static METHODS: [&str; OTHER_METHOD + 1] = {
    let mut methods = ["_OTHER"; OTHER_METHOD + 1];
    let mut number = 0;
    while number < OTHER_METHOD {
        methods[number] = Method::NAMES[number];
        number += 1;
    }
    methods
};

/// How a message failed: not, by a tool's own error, with one of these codes, or otherwise.
static ERRORS: [&str; 9] =
    ["", "tool_error", "-32700", "-32600", "-32601", "-32602", "-32603", "-32000", "_OTHER"];

/// The number of the name for all other errors.
const OTHER_ERROR: usize = ERRORS.len() - 1;

/// The name of a tool is no label: a client chooses it.
static OPERATIONS: LazyLock<Durations> = LazyLock::new(|| {
    Durations::register(DurationNames {
        name: OPERATION_SECONDS,
        convention: "mcp.server.operation.duration",
        help: "Time from a client's message to the last byte of its result, error or acceptance.",
        labels: [
            DurationLabel {
                name: "mcp_method_name",
                attribute: "mcp.method.name",
                values: &METHODS,
            },
            DurationLabel { name: "error_type", attribute: "error.type", values: &ERRORS },
        ],
    })
});

/// Counts the messages of one worker.
#[derive(Clone, Debug)]
pub(crate) struct Operations(DurationObserver);

impl Operations {
    pub(crate) fn of_worker() -> Self {
        Self(OPERATIONS.observer())
    }

    /// Counts a message with this number at the end of its exchange.
    pub(crate) fn count(&self, method: usize, record: &ExchangeRecord) {
        let error = match (record.outcome, record.code) {
            (Outcome::Result | Outcome::Accepted, _) => 0,
            (Outcome::ToolError, _) => 1,
            (Outcome::Error | Outcome::Refused, code) => error_number(code),
            // The client left first, or the stream goes on elsewhere.
            _ => return,
        };
        self.0.observe([method, error], record.duration);
    }
}

fn error_number(code: Option<i32>) -> usize {
    match code {
        Some(-32700) => 2,
        Some(-32600) => 3,
        Some(-32601) => 4,
        Some(-32602) => 5,
        Some(-32603) => 6,
        Some(-32000) => 7,
        _ => OTHER_ERROR,
    }
}

/// The number of a single request or notification.
pub(crate) fn number_of(body: &Posted) -> Option<usize> {
    let method = match body {
        Posted::One(Message::Request(request)) => &request.method,
        Posted::One(Message::Notification(notification)) => &notification.method,
        Posted::One(Message::Response(_)) | Posted::Batch(_) => return None,
    };
    Some(method.number().unwrap_or(OTHER_METHOD))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_and_each_code_stands_at_its_number() {
        for name in Method::NAMES {
            assert_eq!(METHODS[Method::from(*name).number().unwrap()], *name);
        }
        assert_eq!(Method::from("x/y").number(), None);
        for code in [-32700, -32600, -32601, -32602, -32603, -32000] {
            assert_eq!(ERRORS[error_number(Some(code))], code.to_string());
        }
        assert_eq!(ERRORS[error_number(Some(7))], "_OTHER");
        assert_eq!(ERRORS[error_number(None)], "_OTHER");
    }
}
