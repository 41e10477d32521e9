//! The failure detector for one peer: whether a process whose link broke is dead.
//!
//! [`FailureDetector`] takes how each attempt to connect failed and what the store holds about
//! the peer's lease. It answers what to do next: read the lease, pause, have the peer marked
//! dead, or stop. The evidence is weighed in `evidence.rs`. Nothing here connects, reads a
//! store, waits or reads a clock.

use crate::evidence::{Evidence, Look};
use crate::{Incarnation, Presence};

/// How long the store may take to answer a look at a peer's lease, in milliseconds. A look that
/// takes longer counts as failed.
pub const LOOK_MS: u64 = 500;

/// The pause between two attempts to connect, in milliseconds.
const PAUSE_MS: u64 = 50;

/// The pause after [`SHORT_PAUSES`] attempts, in milliseconds.
const LONG_PAUSE_MS: u64 = 250;

/// So many attempts are [`PAUSE_MS`] apart. By then a dead process has long been found dead.
const SHORT_PAUSES: u32 = 40;

/// How fast living nodes renew and notice.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// A living node renews its lease this often, in milliseconds.
    pub renew_ms: u64,
    /// A living node notices within this time that a link broke, in milliseconds, and renews its
    /// lease then.
    pub notice_ms: u64,
}

/// Why an attempt to connect failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Nothing listens at the peer's address.
    Refused,
    /// Another process of the cluster answers there and advertises that address.
    Superseded,
    /// Anything else, a timeout among them. Proves nothing of the peer.
    Unreachable,
}

/// What this node knows of its links to the peer, whichever of the two made them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Links {
    /// One is up.
    pub is_up: bool,
    /// Whether the peer's system closed one in order and none was made since. `None`: there was
    /// never one.
    pub was_closed: Option<bool>,
}

/// What follows from a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Pause, then connect again.
    Retry,
    /// First read the peer's presence, for [`FailureDetector::looked`] or
    /// [`FailureDetector::look_failed`].
    Look,
}

/// What a look at the store found.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// When the store was asked, in milliseconds of this node's clock.
    pub asked_ms: u64,
    /// When the store had answered.
    pub answered_ms: u64,
    /// What the store holds about the peer.
    pub presence: &'a Presence,
}

/// What is known of the peer after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is proved: pause, then connect again.
    Undecided,
    /// It is dead. Have the store mark it; if the store does not, pause and connect again.
    Dead {
        /// The number of the renewal that it was found dead by: a later one is a sign of life.
        renewal: u64,
    },
    /// The store holds no lease of it: it was marked dead, or has left, or its lease is over.
    Gone,
}

/// Watches one peer from when its link broke, or was first wanted, until a link is up.
pub struct FailureDetector {
    evidence: Evidence,
    attempts: u32,
    /// The peer's system closed a link, as of the last failed attempt.
    was_closed: bool,
}

impl FailureDetector {
    /// Begins to watch a peer that there is no link to.
    pub fn new(now_ms: u64, Timing { renew_ms, notice_ms }: Timing) -> Self {
        let evidence = Evidence::new(now_ms, (renew_ms, notice_ms));
        Self { evidence, attempts: 0, was_closed: false }
    }

    /// An attempt to connect has failed.
    pub fn attempt_failed(&mut self, now_ms: u64, attempt: Attempt, links: Links) -> Next {
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
            return Next::Retry;
        }
        if links.is_up {
            self.evidence.is_linked(now_ms);
            return Next::Retry;
        }
        self.was_closed = match links.was_closed {
            Some(was_closed) => was_closed,
            // The process that answers advertises this address.
            None if attempt == Attempt::Superseded => false,
            // Without a link that broke, the address may never have been right.
            None => return Next::Retry,
        };
        Next::Look
    }

    /// The store has answered a look. `own`: this node.
    pub fn looked(&mut self, own: Incarnation, found: Found<'_>) -> Verdict {
        let Found { asked_ms, answered_ms, presence } = found;
        match presence {
            Presence::Live(_) if conversation::mutant!("detector.never_dead") => Verdict::Undecided,
            Presence::Live(lease) if conversation::mutant!("detector.dead_at_once") => {
                Verdict::Dead { renewal: lease.renewal }
            }
            Presence::Live(lease) => {
                let look = Look {
                    asked: asked_ms,
                    answered: answered_ms,
                    renewal: lease.renewal,
                    linked: lease.linked.contains(&own),
                    closed: self.was_closed,
                };
                match self.evidence.weigh(look) {
                    true => Verdict::Dead { renewal: lease.renewal },
                    false => Verdict::Undecided,
                }
            }
            Presence::Dead { .. } | Presence::Gone => Verdict::Gone,
        }
    }

    /// The store did not answer a look within [`LOOK_MS`]. The peer may be unable to renew for
    /// the same reason, so the time until now proves nothing.
    pub fn look_failed(&mut self, now_ms: u64) {
        self.evidence.begin_again(now_ms);
    }

    /// Did the peer's system show that its process ended, by a connection that it closed in order
    /// or by another process at its address? A firewall cannot do either.
    pub fn saw_its_end(&self) -> bool {
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
    const CLOSED: Links = Links { is_up: false, was_closed: Some(true) };
    const RESET: Links = Links { is_up: false, was_closed: Some(false) };
    const NEVER_UP: Links = Links { is_up: false, was_closed: None };

    const DEAD: Verdict = Verdict::Dead { renewal: 1 };

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
    fn verdict(attempt: Attempt, links: Links, presence: &Presence) -> Option<(u64, Verdict)> {
        let broke = 10_000;
        let mut detector = FailureDetector::new(broke, TIMING);
        let mut now = broke;
        while now < broke + 5_000 {
            if detector.attempt_failed(now, attempt, links) == Next::Look {
                let found = Found { asked_ms: now, answered_ms: now + 1, presence };
                match detector.looked(OWN, found) {
                    Verdict::Undecided => {}
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
            assert_eq!(verdict(Attempt::Refused, RESET, &presence), Some((0, Verdict::Gone)));
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
        let is_up = Links { is_up: true, was_closed: Some(true) };
        assert_eq!(verdict(Attempt::Refused, is_up, &live()), None);
    }

    #[test]
    fn looks_that_fail_prove_nothing() {
        let mut detector = FailureDetector::new(0, TIMING);
        for now in (0..10_000).step_by(50) {
            if detector.attempt_failed(now, Attempt::Refused, CLOSED) == Next::Look {
                detector.look_failed(now);
            }
        }
        let presence = live();
        let found = Found { asked_ms: 10_000, answered_ms: 10_001, presence: &presence };
        assert_eq!(detector.looked(OWN, found), Verdict::Undecided);
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
