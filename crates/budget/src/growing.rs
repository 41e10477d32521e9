//! Amounts that grow until they are handed on, as a body while it is read. Several that together exceed
//! their share grow one after another.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Held, Share};

/// The amounts of one share that grow.
#[derive(Debug, Default)]
pub(crate) struct AllGrowing {
    /// Their sum.
    amount: AtomicUsize,
    line: Mutex<Line>,
}

/// Those that wait until they may grow, and the one that goes on although the share is exceeded. Not more
/// than the amounts.
#[derive(Debug, Default)]
struct Line {
    /// The one with the smallest number waits longest.
    turns: BTreeSet<u64>,
    next: u64,
    /// Whether the first one goes on.
    has_begun: bool,
    /// How many went on, and do so no more.
    ended: u64,
}

/// An amount that grows until it is handed on. Dropping it gives the amount back.
///
/// While the share is exceeded no amount grows, except one: that which waits longest of those that the share would
/// allow without the others. So the share is exceeded by no more than these others, until they may grow, or end.
#[derive(Debug)]
pub struct Growing {
    held: Held,
    /// The place in the line.
    turn: Option<u64>,
}

impl Growing {
    /// Nothing yet.
    pub fn nothing(share: &Share) -> Self {
        Self { held: Held::nothing(share), turn: None }
    }

    /// The amount that is held.
    pub fn amount(&self) -> usize {
        self.held.amount()
    }

    /// Records that `amount` is held now, also if the share does not allow it.
    pub fn set(&mut self, amount: usize) {
        let (growing, former) = (self.held.share().growing(), self.held.amount());
        if amount == former {
            return;
        }
        growing.amount.fetch_add(amount.saturating_sub(former), Ordering::Relaxed);
        growing.amount.fetch_sub(former.saturating_sub(amount), Ordering::Relaxed);
        self.held.set(amount);
    }

    /// Whether the amount may grow now. If not, it waits from then on, and the caller asks again.
    pub fn may_grow(&mut self) -> bool {
        if !self.held.share().is_exceeded() {
            self.leave();
            return true;
        }
        let share = self.held.share();
        let mut line = share.growing().line();
        let turn = self.turn.unwrap_or_else(|| line.join());
        self.turn = Some(turn);
        let others = share.growing().amount.load(Ordering::Relaxed).saturating_sub(self.amount());
        let is_first = line.turns.first() == Some(&turn);
        let goes_on = is_first && share.allows_without(others);
        line.has_begun |= goes_on;
        if is_first && !goes_on {
            // The next one may be smaller.
            line.leave(turn);
            self.turn = Some(line.join());
        }
        goes_on
    }

    /// How many amounts of the share went on while it was exceeded, and do so no more.
    pub fn turns_ended(&self) -> u64 {
        self.held.share().growing().line().ended
    }

    /// Hands so much of the amount on, or all of it if it is less. The rest waits for nothing.
    pub fn hand_on(&mut self, amount: usize) -> Held {
        self.leave();
        let handed = self.held.split(amount);
        self.held.share().growing().amount.fetch_sub(handed.amount(), Ordering::Relaxed);
        handed
    }

    /// Leaves the line.
    pub fn leave(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.held.share().growing().line().leave(turn);
        }
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        self.leave();
        self.set(0);
    }
}

impl AllGrowing {
    fn line(&self) -> MutexGuard<'_, Line> {
        // No code panics under the lock.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    fn join(&mut self) -> u64 {
        let turn = self.next;
        self.next += 1;
        self.turns.insert(turn);
        turn
    }

    fn leave(&mut self, turn: u64) {
        let was_first = self.turns.first() == Some(&turn);
        self.turns.remove(&turn);
        if was_first && std::mem::take(&mut self.has_begun) {
            self.ended += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budget, ShareLimits};

    /// The share of a tenant of two, with this maximum.
    fn share(max: usize) -> (Budget, Share) {
        let limits = |max| ShareLimits { min: 0, max };
        let tenants = [("a".into(), limits(max)), ("b".into(), limits(100))];
        let budget = Budget::notifying(100, tenants, || {});
        let share = budget.share("a").expect("it is named");
        (budget, share)
    }

    fn growing(share: &Share, amount: usize) -> Growing {
        let mut growing = Growing::nothing(share);
        growing.set(amount);
        growing
    }

    #[test]
    fn of_amounts_that_exceed_the_share_together_one_after_another_grows() {
        let (_budget, share) = share(10);
        let mut all: Vec<_> = (0..3).map(|_| growing(&share, 6)).collect();
        let may_grow = |all: &mut Vec<Growing>| -> Vec<bool> {
            all.iter_mut().map(Growing::may_grow).collect()
        };
        assert!(all[1].may_grow(), "it waits longest");
        assert_eq!(may_grow(&mut all), [false, true, false]);
        all[1].set(9);
        assert_eq!(may_grow(&mut all), [false, true, false]);
        drop(all.remove(1));
        assert_eq!((may_grow(&mut all), all[0].turns_ended()), (vec![true, false], 1));
        let handed = all[0].hand_on(6);
        assert_eq!((may_grow(&mut all), all[0].amount()), (vec![false, false], 0));
        drop(handed);
        assert_eq!((may_grow(&mut all), share.used()), (vec![true, true], 6));
        drop(all);
        assert_eq!((share.used(), share.growing().amount.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn an_amount_that_the_share_would_not_allow_alone_does_not_grow() {
        let (_budget, share) = share(10);
        let (mut large, mut other) = (growing(&share, 11), growing(&share, 1));
        assert!(!large.may_grow());
        assert!(!other.may_grow(), "it is the second");
        assert!(!large.may_grow());
        assert!(other.may_grow(), "the large one has left it its place");
        assert!(!large.may_grow());
        let mut kept = Held::nothing(&share);
        kept.set(10);
        assert!(!other.may_grow(), "sessions keep the rest");
        drop(kept);
        assert!(!other.may_grow() && !large.may_grow() && other.may_grow());
    }

    #[test]
    fn the_total_is_exceeded_by_no_more_than_the_other_amounts_of_the_tenant() {
        let (budget, share) = share(80);
        let mut of_other = Held::nothing(&budget.share("b").expect("it is named"));
        of_other.set(50);
        let (mut first, mut second) = (growing(&share, 30), growing(&share, 30));
        assert!(first.may_grow() && !second.may_grow());
        first.set(50);
        assert!(first.may_grow());
        first.set(51);
        assert!(!first.may_grow(), "without the second it would exceed the total");
    }
}
