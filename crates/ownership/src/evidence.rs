//! The evidence that a peer is dead whose link broke and which refuses connections.
//!
//! Other nodes cannot tell these two apart directly: a process that was killed, and a firewall
//! that is reloaded between two live nodes. They differ in this:
//!
//! - The system of a killed process closes its links in order. A firewall cannot, it only
//!   resets them. (The system also resets a link if the process left bytes unread.)
//! - A node that lost a link renews its lease at once, and the lease then no longer lists that
//!   link. And every live node renews its lease at a known interval.
//!
//! A peer is dead when its system closed the link and its lease was not renewed for a moment and
//! still lists the link. It is also dead, however the link ended, when its lease was not renewed
//! for longer than a live node takes. During all that time its address must refuse connections.
//! Renewals are numbered, so the number in the lease shows them without a clock. A live node that
//! cannot renew may be marked dead in error. It stops when it finds the mark, so nothing is done
//! twice.
//!
//! Another process at the peer's address counts as a refusal, and as a link that was closed in
//! order: the system of a replaced process has closed its links.

/// Fewest consecutive refusals that count: a single one may be a listener that starts late.
const REFUSALS_MIN: u32 = 3;

/// How long a peer whose system closed the link must not have renewed, in milliseconds. Longer
/// than a live node takes to renew.
const STILL_MS: u64 = 200;

/// How long this node may take to detect the end of a link that ended together with the one that
/// broke, in milliseconds. A link that is up for longer counts as up.
const NOTICE_MS: u64 = 100;

/// How late a timer may fire, in milliseconds.
const LATE_MS: u64 = 250;

/// The evidence about a peer. Times are milliseconds of the node's clock.
pub(crate) struct Evidence {
    /// When the link broke.
    broke: u64,
    /// Since when no renewal was seen.
    since: u64,
    refusals: u32,
    /// The number of the renewal that the last read of the lease returned.
    renewal: Option<u64>,
    /// A renewal was seen since the link broke.
    lives: bool,
    /// Another process was last found at its address.
    superseded: bool,
    /// Longer than a live node takes from one renewal to the next.
    overdue: u64,
}

/// One read of a peer's lease.
#[derive(Clone, Copy)]
pub(crate) struct LeaseReading {
    /// When the store was asked for it.
    pub(crate) asked: u64,
    /// When the store answered.
    pub(crate) answered: u64,
    /// The number of its newest renewal.
    pub(crate) renewal: u64,
    /// It lists a link to this node.
    pub(crate) linked: bool,
    /// The peer's system closed such a link in order.
    pub(crate) closed: bool,
}

impl Evidence {
    /// A link broke. Live nodes renew at an interval of `renews` milliseconds, and detect a
    /// broken link within `notices`; then they do nothing until they have renewed.
    pub(crate) fn new(now: u64, (renews, notices): (u64, u64)) -> Self {
        let overdue = (renews + renews / 4).max(notices) + LATE_MS;
        Self {
            broke: now,
            since: now,
            refusals: 0,
            renewal: None,
            lives: false,
            superseded: false,
            overdue,
        }
    }

    /// The peer's address refused a connection. Returns whether to read its lease now.
    pub(crate) fn refused(&mut self) -> bool {
        self.refusals = self.refusals.saturating_add(1);
        self.superseded = false;
        // The first read only gets the number of the renewal.
        self.refusals == 1 || self.refusals >= REFUSALS_MIN
    }

    /// Another process of the cluster is at the peer's address. Returns whether to read the
    /// peer's lease now. It counts as a refusal, and as if the peer's system had closed the link:
    /// a process that was replaced has ended. A live process behind the same address renews its
    /// lease.
    pub(crate) fn superseded(&mut self) -> bool {
        let looks = self.refused();
        self.superseded = true;
        looks
    }

    /// Was another process last found to be at its address?
    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded
    }

    /// The attempt failed in another way: a process listens there, or the network is broken.
    pub(crate) fn not_refused(&mut self) {
        self.refusals = 0;
        self.superseded = false;
    }

    /// A renewal was seen. Or the store does not answer: the peer may be unable to renew for the
    /// same reason.
    pub(crate) fn begin_again(&mut self, now: u64) {
        self.since = now;
        self.renewal = None;
    }

    /// A link in the other direction is still up. If it ended together with this one, this node
    /// detects that soon.
    pub(crate) fn is_linked(&mut self, now: u64) {
        self.lives |= now.saturating_sub(self.broke) >= NOTICE_MS;
        self.refusals = 0;
        self.begin_again(now);
    }

    /// Weighs one read of the lease. Returns whether the peer is dead.
    pub(crate) fn weigh(&mut self, look: LeaseReading) -> bool {
        // A store that fails over may forget renewals: a lower number is no sign of life.
        let renewed = self.renewal.is_some_and(|before| look.renewal > before)
            && !conversation::mutant!("detector.ignore_renewals");
        if renewed {
            self.lives = true;
            self.begin_again(look.answered);
        }
        if self.renewal.is_none() && !conversation::mutant!("detector.count_from_the_break") {
            // The time without a renewal counts from the first read only. The link may have
            // broken long before, while the address could not be reached.
            self.since = self.since.max(look.asked);
        }
        self.renewal = Some(look.renewal);
        self.lives |= !look.linked;
        if self.refusals < REFUSALS_MIN {
            return false;
        }
        // The answer is not older than the request, but a node that was suspended may have read
        // it much later.
        let still = look.asked.saturating_sub(self.since);
        let at_once = (look.closed || self.superseded)
            && !self.lives
            && still >= STILL_MS
            && !conversation::mutant!("detector.a_closed_link_proves_nothing");
        at_once || still >= self.overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the defaults: a lease is renewed each second.
    const RENEWS: (u64, u64) = (1_000, 900);

    /// Returns when a peer is found dead that refuses a connection each 50 ms until `until` ms
    /// after its link broke. It renewed at these times after the break, and 300 ms before; from
    /// `unlinked` on its lease does not list the link.
    fn found_dead(closed: bool, renewals: &[u64], unlinked: u64, until: u64) -> Option<u64> {
        let broke = 10_000;
        let mut evidence = Evidence::new(broke, RENEWS);
        (0..until).step_by(50).find(|after| {
            let asked = broke + after;
            let renewal = renewals.iter().filter(|renewal| *renewal <= after).count() as u64;
            let (answered, linked) = (asked + 2, *after < unlinked);
            let looks = evidence.refused();
            looks && evidence.weigh(LeaseReading { asked, answered, renewal, linked, closed })
        })
    }

    const NEVER: u64 = u64::MAX;

    #[test]
    fn a_process_whose_system_closed_its_link_is_dead_soon() {
        assert_eq!(found_dead(true, &[], NEVER, 5_000), Some(200));
    }

    #[test]
    fn a_process_whose_link_was_reset_is_dead_when_a_renewal_is_overdue() {
        assert_eq!(found_dead(false, &[], NEVER, 5_000), Some(1_500));
    }

    #[test]
    fn two_nodes_between_which_every_link_is_reset_both_live() {
        // It lost its link as well, so it renews at once, and then at its interval.
        assert_eq!(found_dead(false, &[20, 1_020, 2_020, 3_020, 4_020], 20, 5_000), None);
        assert_eq!(found_dead(true, &[20, 1_020, 2_020, 3_020, 4_020], 20, 5_000), None);
    }

    #[test]
    fn a_node_that_has_not_detected_the_reset_of_its_link_is_not_dead() {
        assert_eq!(found_dead(false, &[700, 1_700, 2_700, 3_700, 4_700], 2_000, 5_000), None);
    }

    #[test]
    fn a_node_that_is_killed_while_a_firewall_is_loaded_is_dead_in_the_end() {
        let dead = found_dead(false, &[20, 1_020], 20, 5_000);
        assert!(dead.is_some_and(|dead| (2_500..2_700).contains(&dead)), "{dead:?}");
    }

    #[test]
    fn a_lease_that_never_listed_the_link_is_no_proof_but_an_overdue_renewal_is() {
        assert_eq!(found_dead(true, &[], 0, 5_000), Some(1_500));
    }

    #[test]
    fn no_peer_is_dead_while_the_store_does_not_answer() {
        let mut evidence = Evidence::new(0, RENEWS);
        for now in (0..10_000).step_by(50) {
            evidence.refused();
            evidence.begin_again(now);
        }
        let look = |asked, renewal| LeaseReading {
            asked,
            answered: asked,
            renewal,
            linked: true,
            closed: true,
        };
        // The address accepts again, and the peer renews soon after.
        assert!(!evidence.weigh(look(10_000, 7)));
        assert!(!evidence.weigh(look(10_150, 8)));
        assert!(!evidence.weigh(look(10_300, 8)));
    }

    #[test]
    fn the_other_link_may_be_noticed_to_have_ended_a_moment_later() {
        let dead = |linked_until: u64| {
            let mut evidence = Evidence::new(0, RENEWS);
            (0..5_000).step_by(5).find(|now| {
                if now % 50 > 0 && *now > linked_until {
                    return false;
                }
                let looks = evidence.refused();
                if *now <= linked_until {
                    evidence.is_linked(*now);
                    return false;
                }
                let look = LeaseReading {
                    asked: *now,
                    answered: *now,
                    renewal: 7,
                    linked: true,
                    closed: true,
                };
                looks && evidence.weigh(look)
            })
        };
        assert_eq!(dead(0), Some(250));
        assert_eq!(dead(15), Some(250));
        assert_eq!(dead(95), Some(300));
        // It was up long after the first had broken.
        assert_eq!(dead(100), Some(1_650));
    }

    #[test]
    fn a_peer_that_was_out_of_reach_and_then_refuses_is_dead_only_when_it_does_not_renew() {
        let dead = |renews: u64| {
            let mut evidence = Evidence::new(0, RENEWS);
            evidence.not_refused();
            (5_000..9_000).step_by(50).find(|now| {
                let looks = evidence.refused();
                let renewal = now / renews;
                let look = LeaseReading {
                    asked: *now,
                    answered: *now,
                    renewal,
                    linked: true,
                    closed: false,
                };
                looks && evidence.weigh(look)
            })
        };
        assert_eq!(dead(1_000), None);
        assert_eq!(dead(u64::MAX), Some(6_500));
    }

    #[test]
    fn a_renewal_that_the_store_forgot_is_no_sign_of_life_and_the_next_one_is() {
        let dead = |renewals: [u64; 3]| {
            let mut evidence = Evidence::new(0, RENEWS);
            (0..5_000).step_by(50).find(|now| {
                let looks = evidence.refused();
                let renewal = renewals[(now / 700).min(2) as usize];
                let look = LeaseReading {
                    asked: *now,
                    answered: *now,
                    renewal,
                    linked: true,
                    closed: false,
                };
                looks && evidence.weigh(look)
            })
        };
        assert_eq!(dead([7, 6, 6]), Some(1_500));
        assert_eq!(dead([7, 6, 7]), Some(2_900));
    }

    #[test]
    fn a_look_whose_answer_is_read_late_proves_nothing_of_the_time_since() {
        let mut evidence = Evidence::new(0, RENEWS);
        let look = |asked, answered| LeaseReading {
            asked,
            answered,
            renewal: 7,
            linked: true,
            closed: true,
        };
        for now in [0, 50, 100] {
            evidence.refused();
            assert!(!evidence.weigh(look(now, now)));
        }
        evidence.refused();
        assert!(!evidence.weigh(look(150, 5_000)));
    }

    #[test]
    fn what_does_not_refuse_is_not_dead() {
        let mut evidence = Evidence::new(0, RENEWS);
        for now in (0..10_000).step_by(50) {
            evidence.refused();
            evidence.not_refused();
            let look =
                LeaseReading { asked: now, answered: now, renewal: 7, linked: true, closed: true };
            assert!(!evidence.weigh(look), "at {now}");
        }
    }

    #[test]
    fn a_process_that_was_replaced_is_dead_in_a_moment_and_one_that_renews_is_not() {
        let dead = |renews: u64| {
            let mut evidence = Evidence::new(0, RENEWS);
            (0..8_000).step_by(50).find(|now| {
                let looks = evidence.superseded();
                let renewal = now / renews;
                let look = LeaseReading {
                    asked: *now,
                    answered: *now,
                    renewal,
                    linked: true,
                    closed: false,
                };
                looks && evidence.weigh(look)
            })
        };
        assert_eq!(dead(u64::MAX), Some(200));
        assert_eq!(dead(100), None);
    }
}
