//! Whether this node may act as an owner now. [`LeaseValidity`] decides; this file adds the clock,
//! the metrics, the log, and the wait until the incarnation is marked dead.

use std::time::Duration;

use ownership::location::{self, Undecided};
use ownership::validity::{LeaseValidity, Lost, Renewal, Timing};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, millis};
use crate::metrics;

/// This node's lease, as the node knows it without a request to the store.
pub(crate) struct NodeLease {
    clock: Clock,
    lease: LeaseValidity,
    /// Cancelled when the incarnation is marked dead.
    dead: CancellationToken,
}

impl NodeLease {
    pub(crate) fn new(clock: Clock, timing: Timing) -> Self {
        metrics::show(Duration::from_millis(timing.lease_ms.saturating_sub(timing.margin_ms)));
        Self { clock, lease: LeaseValidity::new(timing), dead: CancellationToken::new() }
    }

    /// The lease of a cluster of one, which is always valid.
    pub(crate) fn permanent(clock: Clock, timing: Timing) -> Self {
        Self { clock, lease: LeaseValidity::permanent(timing), dead: CancellationToken::new() }
    }

    pub(crate) fn now(&self) -> u64 {
        millis((self.clock)())
    }

    /// The lease generation while the node may act, else `None`. A caller that acts for a session
    /// compares it with the lease generation in which the session was claimed.
    pub(crate) fn generation_if_valid(&self) -> Option<u64> {
        self.lease.generation_if_valid(self.now())
    }

    pub(crate) fn generation(&self) -> u64 {
        self.lease.generation()
    }

    /// Records that a renewal is sent now. Only one task calls this and [`NodeLease::renewed`].
    pub(crate) fn begin_renewal(&self) -> Renewal {
        self.lease.begin_renewal(self.now())
    }

    /// Records that a renewal succeeded. Returns whether sessions have to check their ownership.
    pub(crate) fn renewed(&self, renewal: Renewal, was_there: bool) -> bool {
        let renewed = self.lease.renewed(self.now(), renewal, was_there);
        if let Some(Lost { lapsed, was_there }) = renewed.lost {
            metrics::LEASES_LOST.inc();
            tracing::warn!(
                lapsed,
                was_there,
                "the lease was lost and is renewed; sessions are claimed again"
            );
        }
        self.show_age();
        renewed.is_news
    }

    /// Checks whether a missing lease proves that its node does not renew it. See
    /// [`location::lapse_proof`].
    pub(crate) fn lapse_proof(&self, outlasts_failover: bool) -> Result<(), Undecided> {
        location::lapse_proof(outlasts_failover, &self.lease, self.now())
    }

    /// Records that a link to a peer was lost. The peer may be about to mark this node dead, so the
    /// node does not act until the store has answered a renewal.
    pub(crate) fn doubt(&self) {
        self.lease.doubt();
    }

    /// Whether a link was lost after the last successful renewal was sent.
    pub(crate) fn is_doubted(&self) -> bool {
        self.lease.is_doubted()
    }

    /// Records that the node gives up its lease.
    pub(crate) fn give_up(&self) {
        self.lease.give_up();
    }

    /// Whether the node has given up its lease.
    pub(crate) fn is_given_up(&self) -> bool {
        self.lease.is_given_up()
    }

    /// Records that the node was marked dead. It never acts again.
    pub(crate) fn end_incarnation(&self) {
        self.lease.end_permission();
        self.dead.cancel();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lease.has_ended()
    }

    pub(crate) async fn incarnation_ended(&self) {
        self.dead.cancelled().await;
    }

    /// Updates the metric of the lease's age.
    pub(crate) fn show_age(&self) {
        if let Some(renewed) = self.lease.renewed_at() {
            metrics::set_lease_age(Duration::from_millis(self.now().saturating_sub(renewed)));
        }
    }
}
