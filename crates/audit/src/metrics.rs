//! The metrics of the audit log.

use std::sync::LazyLock;

use prometheus::{IntCounter, IntCounterVec, IntGauge};
use telemetry::{OTHER_TENANTS, register};

use crate::entry::Kind;

/// Why a record was left out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeftOut {
    /// The queue was full.
    Full = 0,
    /// The tenant had as many of this kind in the second as it may.
    Rate = 1,
}

impl LeftOut {
    /// Every reason, at the position that is its number.
    pub(crate) const ALL: [Self; 2] = [Self::Full, Self::Rate];

    /// The name, for records and labels.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Rate => "rate",
        }
    }
}

/// Records that were written, by kind.
pub(crate) static RECORDS: LazyLock<[IntCounter; Kind::ALL.len()]> = LazyLock::new(|| {
    let records = register::counters(
        "roundhouse_audit_records_total",
        "Audit records that were written, by kind.",
        &["kind"],
    );
    Kind::ALL.map(|kind| records.with_label_values(&[kind.as_str()]))
});

static LEFT_OUT: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_audit_left_out_total",
        "Audit records that were left out, by tenant and reason.",
        &["tenant", "reason"],
    )
});

static REFUSED: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_audit_refused_total",
        "Calls that were refused because their audit record could not be written in time.",
        &["tenant"],
    )
});

/// Bytes of records that wait to be written.
pub(crate) static QUEUE_BYTES: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_audit_queue_bytes",
        "Bytes of audit records that wait to be written, when the writer last looked.",
    )
});

/// Writes that failed.
pub(crate) static WRITES_FAILED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_audit_writes_failed_total",
        "Writes of audit records that failed, and were repeated.",
    )
});

/// Records that the collector rejected.
pub(crate) static REJECTED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_audit_rejected_total",
        "Audit records that the collector rejected from a request that it accepted. They are lost.",
    )
});

/// Whether the last write failed.
pub(crate) static FAILING: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge("roundhouse_audit_failing", "1 while audit records cannot be written, else 0.")
});

/// The counters of records of a tenant that were left out, by reason.
pub(crate) fn left_out(label: &str) -> [IntCounter; 2] {
    LeftOut::ALL.map(|reason| LEFT_OUT.with_label_values(&[label, reason.as_str()]))
}

/// The counter of calls of a tenant that were refused.
pub(crate) fn refused(label: &str) -> IntCounter {
    REFUSED.with_label_values(&[label])
}

/// Registers every metric at the start, so that a rate is right from the first event on.
pub fn register_metrics() {
    LazyLock::force(&RECORDS);
    LazyLock::force(&QUEUE_BYTES);
    LazyLock::force(&WRITES_FAILED);
    LazyLock::force(&REJECTED);
    LazyLock::force(&FAILING);
    left_out(OTHER_TENANTS);
    refused(OTHER_TENANTS);
}
