//! The record of what operators do: one line of the log for each action, and records of the audit log.
//!
//! No line has a token or a session's id. A session is named by its short id.

use std::sync::{Arc, Once};
use std::time::Duration;

use audit::{Entry, Held, Origin, Recorder};

use crate::admin_revocations::{Changed, Wanted};
use crate::audited::perform_records;

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

/// The audit log, as the thread that serves operators uses it.
pub(crate) struct OperatorRecords {
    recorder: Recorder,
    /// Begins to write the records, and to wake what waits for them, on that thread.
    performing: Once,
}

impl OperatorRecords {
    pub(crate) fn new(recorder: Recorder) -> Self {
        Self { recorder, performing: Once::new() }
    }

    /// Records what an operator is about to do. `object` is what it is about: a tenant, or the short id
    /// of a session.
    pub(crate) async fn begin(
        &self,
        operator: &Operator,
        action: &'static str,
        object: &str,
    ) -> Result<(), Held> {
        self.add(operator, action, object, None).await
    }

    /// Records an action of an operator, and its outcome.
    pub(crate) async fn end(
        &self,
        operator: &Operator,
        action: &'static str,
        object: &str,
        outcome: &str,
    ) {
        // An error: it is done, and the log has it.
        let _ = self.read(operator, action, object, outcome).await;
    }

    /// Records what an operator has read, and its outcome, in one record: nothing was changed. The answer may be
    /// sent when this has resolved without an error.
    pub(crate) async fn read(
        &self,
        operator: &Operator,
        action: &'static str,
        object: &str,
        outcome: &str,
    ) -> Result<(), Held> {
        tracing::info!(
            credential = &*operator.credential,
            action,
            object,
            outcome,
            "operator action"
        );
        self.add(operator, action, object, Some(outcome)).await
    }

    /// The longest wait for a record.
    pub(crate) fn hold(&self) -> Duration {
        self.recorder.hold().unwrap_or_default()
    }

    /// Records that an operator revoked a client, or took that back, in one record, which names the client,
    /// and one line, which does not.
    pub(crate) async fn revoked(
        &self,
        operator: &Operator,
        action: &'static str,
        wanted: &Wanted,
        outcome: &str,
        changed: Option<&Changed>,
    ) {
        tracing::info!(
            credential = &*operator.credential,
            action,
            object = wanted.tenant.as_deref(),
            outcome,
            of = changed.map(|changed| &*changed.credentials),
            stored = changed.map(|changed| changed.is_stored),
            told = changed.map(|changed| changed.told),
            untold = changed.map(|changed| changed.untold),
            "operator action"
        );
        if !self.recorder.is_on() {
            return;
        }
        self.perform_records();
        let tenant = wanted.tenant.as_deref().map(Arc::from).unwrap_or_else(|| Arc::from(""));
        let entry = Entry {
            action: Some(action),
            by: Some(&*operator.credential),
            origin: Origin {
                principal: Some(if wanted.client.is_some() { "client" } else { "subject" }),
                subject: wanted.subject.as_deref().or(wanted.client.as_deref()),
                issuer: wanted.issuer.as_deref(),
                ..Origin::default()
            },
            outcome: Some(outcome),
            ..Entry::default()
        };
        // An error: it is done, and the log has it.
        let _ = self.recorder.revoked(&tenant, &entry).await;
    }

    async fn add(
        &self,
        operator: &Operator,
        action: &'static str,
        object: &str,
        outcome: Option<&str>,
    ) -> Result<(), Held> {
        if !self.recorder.is_on() {
            return Ok(());
        }
        self.perform_records();
        let (by, target) = (Some(&*operator.credential), Some(object));
        let entry = Entry { action: Some(action), by, target, outcome, ..Entry::default() };
        self.recorder.admin(None, &entry).await
    }

    fn perform_records(&self) {
        self.performing.call_once(|| perform_records(&self.recorder));
    }

    fn refused(&self, credential: Option<&str>, action: &'static str, reason: &'static str) {
        let (action, reason) = (Some(action), Some(reason));
        let entry = Entry { action, by: credential, reason, ..Entry::default() };
        let of_node = Arc::from("");
        match credential {
            Some(_) => self.recorder.refused(&of_node, &entry),
            None => self.recorder.sign_in_failed(&of_node, &entry),
        }
    }
}

/// Records that a request of an operator was refused. `credential` is its name, if it is known. A node that
/// starts has no records yet.
pub(crate) fn record_refusal(
    records: Option<&OperatorRecords>,
    credential: Option<&str>,
    action: &'static str,
    reason: &'static str,
) {
    if let Some(records) = records {
        records.refused(credential, action, reason);
    }
    let credential = credential.unwrap_or("unknown");
    tracing::warn!(credential, action, reason, "operator request refused");
}
