//! When the next operation may be sent.

use conversation::mutant;

/// The wait after a first failure, in milliseconds; it doubles with each further one.
const BACKOFF_MIN: u64 = 50;
/// The longest wait between two attempts, in milliseconds.
const BACKOFF_MAX: u64 = 2_000;
/// The wait before the next check during stabilisation, in milliseconds.
const STABILISATION_MS: u64 = 100;
/// The wait without a lease, in milliseconds. It ends when the node holds one.
const NO_LEASE_MS: u64 = 500;

/// Why no operation is sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// An operation failed.
    Failure,
    /// Other owners have not had time to re-assert their sessions.
    Stabilisation,
    /// The node holds no lease.
    NoLease,
}

/// The consecutive failures, and the wait before the next attempt.
#[derive(Debug)]
pub(super) enum Attempts {
    /// The next operation may be sent now.
    Ready { failures: u32 },
    /// No operation is sent before `until`.
    Paused { until: u64, reason: Reason, failures: u32 },
}

impl Attempts {
    /// No operation has failed yet.
    pub(super) fn new() -> Self {
        Self::Ready { failures: 0 }
    }

    /// Until when no operation is sent, if one has to wait.
    pub(super) fn paused_until(&self) -> Option<u64> {
        match self {
            Self::Ready { .. } => None,
            Self::Paused { until, .. } => Some(*until),
        }
    }

    /// Does the next operation have to wait?
    pub(super) fn is_paused(&self, now: u64) -> bool {
        self.paused_until().is_some_and(|until| now < until)
    }

    /// The node holds a lease: ends a wait for a lease.
    pub(super) fn lease_is_held(&mut self) {
        if let Self::Paused { reason: Reason::NoLease, failures, .. } = *self {
            *self = Self::Ready { failures };
        }
    }

    /// Waits before the next check during stabilisation.
    pub(super) fn await_stabilisation(&mut self, now: u64) {
        self.pause(now + STABILISATION_MS, Reason::Stabilisation);
    }

    /// Waits before the next check of the lease.
    pub(super) fn await_lease(&mut self, now: u64) {
        self.pause(now + NO_LEASE_MS, Reason::NoLease);
    }

    /// Sends no further operation; a fault for tests.
    pub(super) fn stop(&mut self) {
        self.pause(u64::MAX, Reason::Failure);
    }

    fn pause(&mut self, until: u64, reason: Reason) {
        *self = Self::Paused { until, reason, failures: self.failures() };
    }

    fn failures(&self) -> u32 {
        match self {
            Self::Ready { failures } | Self::Paused { failures, .. } => *failures,
        }
    }

    /// An operation succeeded. Returns whether attempts before it failed.
    pub(super) fn succeeded(&mut self) -> bool {
        let has_failed = self.failures() > 0;
        *self = Self::new();
        has_failed
    }

    /// An operation failed and is retried or replaced. `is_known`: the store's answer is
    /// definite; the first such answer is acted on at once.
    pub(super) fn failed(&mut self, now: u64, is_known: bool) {
        let before = self.failures();
        let failures = before.saturating_add(1);
        let wait = (BACKOFF_MIN << before.min(10)).min(BACKOFF_MAX);
        *self = if is_known && before == 0 {
            Self::Ready { failures }
        } else {
            Self::Paused { until: now + wait, reason: Reason::Failure, failures }
        };
        if mutant!("ownership.never_retry") {
            self.stop();
        }
    }

    /// The store failed over: earlier failures do not count any more.
    pub(super) fn reset(&mut self) {
        *self = Self::new();
    }
}
