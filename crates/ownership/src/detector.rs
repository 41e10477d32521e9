//! The failure detector for one peer: whether a process whose link broke is dead.
//!
//! [`FailureDetector`] receives how each attempt to connect failed and what the store holds about
//! the peer's lease. It returns the next action: read the lease, pause, have the peer marked
//! dead, or stop. `evidence.rs` weighs the evidence. Nothing here connects, reads a store, waits
//! or reads a clock.

use crate::evidence::{Evidence, LeaseReading};
use crate::{Incarnation, Presence};

/// How long the store may take to return a peer's lease, in milliseconds. A later answer counts
/// as a failure.
pub const LEASE_READ_MS: u64 = 500;

/// The pause between two attempts to connect, in milliseconds.
const PAUSE_MS: u64 = 50;

/// The pause after [`SHORT_PAUSES`] attempts, in milliseconds.
const LONG_PAUSE_MS: u64 = 250;

/// After this many attempts the pause is longer. By then a dead process has long been marked
/// dead.
const SHORT_PAUSES: u32 = 40;

/// How fast live nodes renew their leases and detect broken links.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// A live node renews its lease at this interval, in milliseconds.
    pub renew_ms: u64,
    /// A live node detects a broken link within this time, in milliseconds, and then renews its
    /// lease.
    pub notice_ms: u64,
}

/// Why an attempt to connect failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// No process listens at the peer's address.
    Refused,
    /// Another process of the cluster answers there and advertises that address.
    Superseded,
    /// Any other failure, such as a timeout. It proves nothing about the peer.
    Unreachable,
}

/// The links between this node and the peer, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// A link is up.
    pub is_up: bool,
    /// Did the peer's system close the last link in order? `None`: there was no link yet.
    pub was_closed: Option<bool>,
}

/// What follows from a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Pause, then connect again.
    Retry,
    /// First read the peer's presence, for [`FailureDetector::lease_read`] or
    /// [`FailureDetector::lease_read_failed`].
    ReadLease,
}

/// What a look at the store found.
#[derive(Clone, Copy, Debug)]
pub struct LeaseAnswer<'a> {
    /// When the store was asked, in milliseconds of this node's clock.
    pub asked_ms: u64,
    /// When the store had answered.
    pub answered_ms: u64,
    /// What the store holds about the peer.
    pub presence: &'a Presence,
}

/// What is known of the peer after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Not proved: pause, then connect again.
    Undecided,
    /// It is dead. Have the store mark it; if the store does not, pause and connect again.
    Dead {
        /// The number of the renewal at which it was found dead. A later renewal proves that it
        /// is alive.
        renewal: u64,
    },
    /// The store holds no lease of the peer: it was marked dead, has left, or its lease expired.
    Gone,
}

/// Watches one peer from the end of its link, or the first attempt to connect, until a link is
/// up.
pub struct FailureDetector {
    evidence: Evidence,
    attempts: u32,
    /// The peer's system closed a link, as of the last failed attempt.
    was_closed: bool,
}

impl FailureDetector {
    /// Starts to watch a peer without a link.
    pub fn new(now_ms: u64, Timing { renew_ms, notice_ms }: Timing) -> Self {
        let evidence = Evidence::new(now_ms, (renew_ms, notice_ms));
        Self { evidence, attempts: 0, was_closed: false }
    }

    /// An attempt to connect has failed.
    pub fn attempt_failed(&mut self, now_ms: u64, attempt: Attempt, links: LinkStatus) -> NextStep {
        self.attempts = self.attempts.saturating_add(1);
        let is_due = match attempt {
            Attempt::Refused => self.evidence.refused(),
            Attempt::Superseded => self.evidence.superseded(),
            Attempt::Unreachable => {
                self.evidence.not_refused();
                false
            }
        };
        if !is_due {
            return NextStep::Retry;
        }
        if links.is_up {
            self.evidence.is_linked(now_ms);
            return NextStep::Retry;
        }
        self.was_closed = match links.was_closed {
            Some(was_closed) => was_closed,
            // The process that answers advertises this address.
            None if attempt == Attempt::Superseded => false,
            // Without a link that broke, the address may never have been right.
            None => return NextStep::Retry,
        };
        NextStep::ReadLease
    }

    /// The store has returned the peer's presence. `own`: this node.
    pub fn lease_read(&mut self, own: Incarnation, found: LeaseAnswer<'_>) -> Liveness {
        let LeaseAnswer { asked_ms, answered_ms, presence } = found;
        match presence {
            Presence::Live(_) if conversation::mutant!("detector.never_dead") => {
                Liveness::Undecided
            }
            Presence::Live(lease) if conversation::mutant!("detector.dead_at_once") => {
                Liveness::Dead { renewal: lease.renewal }
            }
            Presence::Live(lease) => {
                let look = LeaseReading {
                    asked: asked_ms,
                    answered: answered_ms,
                    renewal: lease.renewal,
                    linked: lease.linked.contains(&own),
                    closed: self.was_closed,
                };
                match self.evidence.weigh(look) {
                    true => Liveness::Dead { renewal: lease.renewal },
                    false => Liveness::Undecided,
                }
            }
            Presence::Dead { .. } | Presence::Gone => Liveness::Gone,
        }
    }

    /// The store did not answer within [`LEASE_READ_MS`]. The peer may be unable to renew for the same
    /// reason, so the time until now proves nothing.
    pub fn lease_read_failed(&mut self, now_ms: u64) {
        self.evidence.begin_again(now_ms);
    }

    /// Did the peer's system show that its process ended, by a connection that it closed in order
    /// or by another process at its address? A firewall cannot do either.
    pub fn saw_process_end(&self) -> bool {
        (self.was_closed || self.evidence.is_superseded())
            && !conversation::mutant!("detector.never_saw_an_end")
    }

    /// How long to pause before the next attempt to connect, in milliseconds.
    pub fn pause_ms(&self) -> u64 {
        if self.attempts < SHORT_PAUSES { PAUSE_MS } else { LONG_PAUSE_MS }
    }

    /// How many attempts have failed since the detector began.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lease;

    const OWN: Incarnation = Incarnation(1);
    const PEER: Incarnation = Incarnation(2);
    const TIMING: Timing = Timing { renew_ms: 1_000, notice_ms: 900 };
    const CLOSED: LinkStatus = LinkStatus { is_up: false, was_closed: Some(true) };
    const RESET: LinkStatus = LinkStatus { is_up: false, was_closed: Some(false) };
    const NEVER_UP: LinkStatus = LinkStatus { is_up: false, was_closed: None };

    const DEAD: Liveness = Liveness::Dead { renewal: 1 };

    fn live() -> Presence {
        Presence::Live(Lease {
            incarnation: PEER,
            renewal: 1,
            acknowledged: 0,
            name: "".into(),
            address: "here".into(),
            draining: false,
            load: 0,
            linked: vec![OWN],
        })
    }

    /// Runs attempts that fail in this way until a verdict other than `Undecided`; the lease was
    /// last renewed when the link broke, at 10,000. Answers with the time since then.
    fn verdict(
        attempt: Attempt,
        links: LinkStatus,
        presence: &Presence,
    ) -> Option<(u64, Liveness)> {
        let broke = 10_000;
        let mut detector = FailureDetector::new(broke, TIMING);
        let mut now = broke;
        while now < broke + 5_000 {
            if detector.attempt_failed(now, attempt, links) == NextStep::ReadLease {
                let found = LeaseAnswer { asked_ms: now, answered_ms: now + 1, presence };
                match detector.lease_read(OWN, found) {
                    Liveness::Undecided => {}
                    verdict => return Some((now - broke, verdict)),
                }
            }
            now += detector.pause_ms();
        }
        None
    }

    #[test]
    fn a_refusing_peer_is_dead_soon_where_its_system_closed_the_link_and_late_where_not() {
        let live = live();
        assert_eq!(verdict(Attempt::Refused, CLOSED, &live), Some((200, DEAD)));
        assert_eq!(verdict(Attempt::Refused, RESET, &live), Some((1_500, DEAD)));
        assert_eq!(verdict(Attempt::Superseded, RESET, &live), Some((200, DEAD)));
    }

    #[test]
    fn a_peer_that_cannot_be_reached_is_not_dead() {
        assert_eq!(verdict(Attempt::Unreachable, CLOSED, &live()), None);
    }

    #[test]
    fn a_peer_without_a_lease_is_gone_at_the_first_look() {
        let dead = Presence::Dead { by: OWN };
        for presence in [Presence::Gone, dead] {
            assert_eq!(verdict(Attempt::Refused, RESET, &presence), Some((0, Liveness::Gone)));
        }
    }

    #[test]
    fn a_refusal_at_an_address_that_never_had_a_link_proves_nothing_and_another_process_there_does()
    {
        let live = live();
        assert_eq!(verdict(Attempt::Refused, NEVER_UP, &live), None);
        assert_eq!(verdict(Attempt::Superseded, NEVER_UP, &live), Some((200, DEAD)));
    }

    #[test]
    fn a_link_in_the_other_direction_is_a_sign_of_life() {
        let is_up = LinkStatus { is_up: true, was_closed: Some(true) };
        assert_eq!(verdict(Attempt::Refused, is_up, &live()), None);
    }

    #[test]
    fn looks_that_fail_prove_nothing() {
        let mut detector = FailureDetector::new(0, TIMING);
        for now in (0..10_000).step_by(50) {
            if detector.attempt_failed(now, Attempt::Refused, CLOSED) == NextStep::ReadLease {
                detector.lease_read_failed(now);
            }
        }
        let presence = live();
        let found = LeaseAnswer { asked_ms: 10_000, answered_ms: 10_001, presence: &presence };
        assert_eq!(detector.lease_read(OWN, found), Liveness::Undecided);
    }

    #[test]
    fn pauses_grow_after_forty_attempts() {
        let mut detector = FailureDetector::new(0, TIMING);
        let mut pauses = Vec::new();
        for now in 0..41 {
            detector.attempt_failed(now, Attempt::Unreachable, RESET);
            pauses.push(detector.pause_ms());
        }
        assert_eq!(pauses[..39], [50; 39]);
        assert_eq!(pauses[39..], [250; 2]);
    }
}
