//! The record of what operators do: one line of the log for each action, and records of the audit log.
//!
//! No line has a token or a session's id. A session is named by its short id.

use std::sync::{Arc, Once};
use std::time::Duration;

use actors::ShortId;
use audit::{Entry, Held, Origin, OriginSource, Recorder, SessionDigest};

use crate::admin_revocations::{Changed, Wanted};
use crate::audit_reading::who;
use crate::record_performing::perform_records;

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

/// What an action is about.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct About<'a> {
    /// As the operator named it: a tenant, or the short id of a session.
    pub(crate) target: &'a str,
    /// The tenant, once it is known.
    pub(crate) tenant: Option<&'a Arc<str>>,
    /// The session that was found.
    pub(crate) session: Option<ShortId>,
    /// The subject of the user. Only the audit log has it.
    pub(crate) subject: Option<&'a str>,
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

    /// Records what an operator is about to do.
    pub(crate) async fn begin(
        &self,
        operator: &Operator,
        action: &'static str,
        about: About<'_>,
    ) -> Result<(), Held> {
        self.add(operator, action, about, None).await
    }

    /// Records an action of an operator, and its outcome.
    pub(crate) async fn end(
        &self,
        operator: &Operator,
        action: &'static str,
        about: About<'_>,
        outcome: &str,
    ) {
        // An error: it is done, and the log has it.
        let _ = self.read(operator, action, about, outcome).await;
    }

    /// Records what an operator has read, and its outcome, in one record: nothing was changed. The answer may be
    /// sent when this has resolved without an error.
    pub(crate) async fn read(
        &self,
        operator: &Operator,
        action: &'static str,
        about: About<'_>,
        outcome: &str,
    ) -> Result<(), Held> {
        tracing::info!(
            credential = &*operator.credential,
            action,
            object = about.target,
            outcome,
            tenant = about.tenant.map(|tenant| &**tenant),
            "operator action"
        );
        self.add(operator, action, about, Some(outcome)).await
    }

    /// The longest wait for a record.
    pub(crate) fn hold(&self) -> Duration {
        self.recorder.hold().unwrap_or_default()
    }

    /// Records that an operator revoked clients, or took that back: in a record for each of them, which names
    /// it, and in one line, which does not. If nothing was changed, one record says what was wanted.
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
        let tenant: &Arc<str> = &wanted.tenant.as_deref().unwrap_or_default().into();
        let record = |origin| async move {
            let (by, origin, outcome) =
                (Some(&*operator.credential), OriginSource::Parts(origin), Some(outcome));
            let entry = Entry { action: Some(action), by, origin, outcome, ..Entry::default() };
            // An error: it is done, and the log has it.
            let _ = self.recorder.revoked(tenant, &entry).await;
        };
        let changed = changed.map(|changed| &*changed.principals).unwrap_or_default();
        if changed.is_empty() {
            let kind = if wanted.client.is_some() { "client" } else { "subject" };
            let name = wanted.subject.as_deref().or(wanted.client.as_deref());
            let (principal, issuer) = (Some(kind), wanted.issuer.as_deref());
            record(Origin { principal, issuer, subject: name, ..Origin::default() }).await;
        }
        for principal in changed {
            record(who(principal.name())).await;
        }
    }

    async fn add(
        &self,
        operator: &Operator,
        action: &'static str,
        About { target, tenant, session, subject }: About<'_>,
        outcome: Option<&str>,
    ) -> Result<(), Held> {
        if !self.recorder.is_on() {
            return Ok(());
        }
        self.perform_records();
        let (by, target) = (Some(&*operator.credential), Some(target));
        let session = session.map(|session| SessionDigest::of_number(session.number()));
        let principal = subject.map(|_| "subject");
        let origin = Origin { session, principal, subject, ..Origin::default() }.into();
        let entry = Entry { action: Some(action), by, target, outcome, origin, ..Entry::default() };
        self.recorder.admin(tenant, &entry).await
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
