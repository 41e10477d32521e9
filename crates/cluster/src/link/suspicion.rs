//! Is a peer dead whose link broke and which refuses to be called again?
//!
//! Evidence in, a verdict out; nothing here asks anybody or waits. Two things look alike
//! from afar: a process that was killed, and a firewall that is loaded anew between two
//! nodes that live. They differ in this:
//!
//! - The system of a killed process closes its links in order. A firewall cannot, it only
//!   resets them. (The system resets as well where the process left bytes unread.)
//! - A node that lost a link renews its lease at once, and then its lease tells of that
//!   link no more. And every node renews now and then.
//!
//! So a peer is dead when its system closed the link and its lease stood still for a
//! moment, still telling of the link; or, however the link ended, when its lease stood
//! still for longer than it ever does. All that time its address must refuse. Whoever is
//! taken for dead in error, since it lives and cannot renew, stops when it finds the mark:
//! nothing happens twice.

/// So many refusals in a row at least: one alone may be a listener that is late.
const REFUSALS_MIN: u32 = 3;

/// How long the lease of a peer stands still whose system closed the link, in milliseconds.
/// Longer than a living node takes to renew.
const STILL_MS: u64 = 200;

/// By how much the end of a lease seems to move that stands still, in milliseconds: it is
/// told by another clock, and rounded. A renewal moves it by more, unless another came
/// right before; then the next one does.
const JITTER_MS: u64 = 20;

/// How long it may take until it is noticed that a link has ended which ended together with
/// the one that broke, in milliseconds. One that is up for longer is up.
const NOTICE_MS: u64 = 100;

/// How much later than its time something may come, in milliseconds.
const LATE_MS: u64 = 250;

/// What speaks for and against a peer. Times are milliseconds of the node's clock.
pub(crate) struct Suspicion {
    /// When the link broke.
    broke: u64,
    /// Since when it has not been seen to live.
    since: u64,
    refusals: u32,
    /// Before that its lease ends, as far as was seen.
    ends: Option<u64>,
    /// It was seen to live since the link broke.
    lives: bool,
    /// For how long a lease of a living node never stands still.
    overdue: u64,
}

/// A look at a peer's lease.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    pub(crate) asked: u64,
    pub(crate) answered: u64,
    /// How long the lease stands.
    pub(crate) left: u64,
    /// It tells of a link to this node.
    pub(crate) linked: bool,
    /// The peer's system closed such a link in order.
    pub(crate) closed: bool,
}

impl Suspicion {
    /// A link broke. Living nodes renew each `renews` milliseconds, and take `notices` to
    /// notice a broken link: then they do nothing until they have renewed.
    pub(crate) fn new(now: u64, (renews, notices): (u64, u64)) -> Self {
        let overdue = (renews + renews / 4).max(notices) + LATE_MS;
        Self { broke: now, since: now, refusals: 0, ends: None, lives: false, overdue }
    }

    /// The peer's address refused a connection. Is it time to look at its lease?
    pub(crate) fn refused(&mut self) -> bool {
        self.refusals = self.refusals.saturating_add(1);
        // The first look only says what the lease was like.
        self.refusals == 1 || self.refusals >= REFUSALS_MIN
    }

    /// It did not refuse: something is there, or the network is not.
    pub(crate) fn not_refused(&mut self) {
        self.refusals = 0;
    }

    /// It is seen to live, or nobody can say: the store does not answer, to whoever wants to
    /// renew either.
    pub(crate) fn begin_again(&mut self, now: u64) {
        self.since = now;
        self.ends = None;
    }

    /// In the other direction there is a link to it still. Where that has ended with this
    /// one, it will be noticed in a moment.
    pub(crate) fn is_linked(&mut self, now: u64) {
        self.lives |= now.saturating_sub(self.broke) >= NOTICE_MS;
        self.refusals = 0;
        self.begin_again(now);
    }

    /// Takes what its lease is like. Is it dead?
    pub(crate) fn weigh(&mut self, look: Look) -> bool {
        let (earliest, latest) = (look.asked + look.left, look.answered + look.left);
        let renewed = self.ends.is_some_and(|ends| earliest > ends + JITTER_MS);
        if renewed {
            self.lives = true;
            self.begin_again(look.answered);
        }
        self.ends = Some(self.ends.map_or(latest, |ends| ends.min(latest)));
        self.lives |= !look.linked;
        if self.refusals < REFUSALS_MIN {
            return false;
        }
        let still = look.answered.saturating_sub(self.since);
        let at_once = look.closed && !self.lives && still >= STILL_MS;
        at_once || still >= self.overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the defaults: a lease of 6 s, renewed each second.
    const LEASE: u64 = 6_000;
    const RENEWS: (u64, u64) = (1_000, 900);

    /// When a peer is found dead that was tried each 50 ms for `until` ms after its link
    /// broke. It renewed at these times after the break, and 300 ms before; from `unlinked`
    /// on its lease does not tell of the link.
    fn found_dead(closed: bool, renewals: &[u64], unlinked: u64, until: u64) -> Option<u64> {
        let broke = 10_000;
        let mut suspicion = Suspicion::new(broke, RENEWS);
        (0..until).step_by(50).find(|after| {
            let asked = broke + after;
            let renewed = renewals.iter().rev().find(|renewal| *renewal <= after);
            let ends = renewed.map_or(broke - 300, |renewal| broke + renewal) + LEASE;
            let (answered, linked) = (asked + 2, *after < unlinked);
            // Two clocks never agree to the millisecond.
            let ends = ends + after / 50 % 3;
            let looks = suspicion.refused();
            looks && suspicion.weigh(Look { asked, answered, left: ends - asked, linked, closed })
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
        // It lost its link as well, and so renews at once, and then as always.
        assert_eq!(found_dead(false, &[20, 1_020, 2_020, 3_020, 4_020], 20, 5_000), None);
        assert_eq!(found_dead(true, &[20, 1_020, 2_020, 3_020, 4_020], 20, 5_000), None);
    }

    #[test]
    fn a_node_that_has_not_noticed_that_its_link_was_reset_lives() {
        assert_eq!(found_dead(false, &[700, 1_700, 2_700, 3_700, 4_700], 2_000, 5_000), None);
    }

    #[test]
    fn a_node_that_is_killed_while_a_firewall_is_loaded_is_dead_in_the_end() {
        let dead = found_dead(false, &[20, 1_020], 20, 5_000);
        assert!(dead.is_some_and(|dead| (2_500..2_700).contains(&dead)), "{dead:?}");
    }

    #[test]
    fn a_lease_that_never_told_of_the_link_is_no_proof_but_a_renewal_that_is_overdue_is() {
        assert_eq!(found_dead(true, &[], 0, 5_000), Some(1_500));
    }

    #[test]
    fn nobody_is_dead_while_the_store_does_not_answer() {
        let mut suspicion = Suspicion::new(0, RENEWS);
        for now in (0..10_000).step_by(50) {
            suspicion.refused();
            suspicion.begin_again(now);
        }
        let look = |asked, ends: u64| Look {
            asked,
            answered: asked,
            left: ends - asked,
            linked: true,
            closed: true,
        };
        // It comes back, and the peer renews in a moment.
        assert!(!suspicion.weigh(look(10_000, 11_000)));
        assert!(!suspicion.weigh(look(10_150, 16_100)));
        assert!(!suspicion.weigh(look(10_300, 16_100)));
    }

    #[test]
    fn the_other_link_may_be_noticed_to_have_ended_a_moment_later() {
        let dead = |linked_until: u64| {
            let mut suspicion = Suspicion::new(0, RENEWS);
            (0..5_000).step_by(5).find(|now| {
                if now % 50 > 0 && *now > linked_until {
                    return false;
                }
                let looks = suspicion.refused();
                if *now <= linked_until {
                    suspicion.is_linked(*now);
                    return false;
                }
                let left = LEASE - now;
                let look = Look { asked: *now, answered: *now, left, linked: true, closed: true };
                looks && suspicion.weigh(look)
            })
        };
        assert_eq!(dead(0), Some(200));
        assert_eq!(dead(15), Some(250));
        assert_eq!(dead(95), Some(300));
        // It was up when the first had long broken.
        assert_eq!(dead(100), Some(1_600));
    }

    #[test]
    fn what_does_not_refuse_is_not_dead() {
        let mut suspicion = Suspicion::new(0, RENEWS);
        for now in (0..10_000).step_by(50) {
            suspicion.refused();
            suspicion.not_refused();
            let look = Look { asked: now, answered: now, left: 1, linked: true, closed: true };
            assert!(!suspicion.weigh(look), "at {now}");
        }
    }
}
