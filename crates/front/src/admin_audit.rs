//! The record of what operators do: one line for each action.
//!
//! No line has a token or a session's id. A session is named by its short id.

use std::sync::Arc;

/// The operator that sent a request, by the name of the credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operator {
    pub(crate) credential: Arc<str>,
}

impl Operator {
    /// A client of a Unix socket, which needs no credential.
    pub(crate) fn of_socket() -> Self {
        Self { credential: "unix socket".into() }
    }
}

/// Records an action of an operator, and its outcome. `object` is what it was about: a tenant, or the
/// short id of a session.
pub(crate) fn record(operator: &Operator, action: &'static str, object: &str, outcome: &str) {
    tracing::info!(credential = &*operator.credential, action, object, outcome, "operator action");
}

/// Records that a request of an operator was refused. `credential` is its name, if it is known.
pub(crate) fn record_refusal(credential: Option<&str>, action: &'static str, reason: &'static str) {
    let credential = credential.unwrap_or("unknown");
    tracing::warn!(credential, action, reason, "operator request refused");
}
