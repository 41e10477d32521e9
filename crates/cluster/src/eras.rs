//! Which primaries keep the store's data, and how far a failover of one has settled.
//!
//! A primary that was not there before may have forgotten what was written last. Owners
//! then write their sessions anew, and until they had time to, nobody else claims one.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use protocol::SessionId;
use store::{Primary, PrimaryId};

use crate::metrics;
use crate::tenure::Settling;

/// The id of a store that keeps everything in the node's own process, and so never fails over.
const IN_PROCESS: PrimaryId = PrimaryId(0);

/// The primaries as this node knows them.
pub(crate) struct Eras {
    settle: Duration,
    /// Asked before each turn of each session, written after failovers.
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    /// As many as the store has primaries.
    known: Vec<Known>,
    /// Rises with each primary that was not there before.
    newest: u64,
}

struct Known {
    primary: Primary,
    era: u64,
    /// When it was first seen, in milliseconds of the node's clock.
    since: u64,
}

impl Eras {
    /// Failovers settle in so much time.
    pub(crate) fn new(settle: Duration) -> Self {
        Self { settle, state: RwLock::default() }
    }

    /// Takes who keeps the data now. Answers whether anyone is new.
    pub(crate) fn observe(&self, primaries: Vec<Primary>, now: u64) -> bool {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut state.known);
        let mut any_new = false;
        for primary in primaries {
            let known = before.iter().find(|known| known.primary.id == primary.id);
            let (era, since) = match known {
                Some(known) => (known.era, known.since),
                None => {
                    any_new = true;
                    state.newest += 1;
                    (state.newest, now)
                }
            };
            state.known.push(Known { primary, era, since });
        }
        if any_new && !before.is_empty() {
            metrics::FAILOVERS.inc();
            tracing::warn!("the store has another primary; sessions are written anew");
        }
        any_new
    }

    /// The era of whoever keeps this session, and how far it has settled. The leases must
    /// have settled as well: they say who is gone.
    pub(crate) fn of(&self, session: &SessionId, now: u64) -> (u64, Settling) {
        let state = self.state();
        let Some(keeper) = state.known.iter().find(|known| known.primary.holds(session)) else {
            // A slot on its way from one primary to another is soon found again.
            return (state.newest, Settling::First);
        };
        (keeper.era, self.settled(keeper, now).min(self.leases(&state, now)))
    }

    /// Has everything settled?
    pub(crate) fn is_settled(&self, now: u64) -> bool {
        let state = self.state();
        state.known.iter().all(|known| self.settled(known, now) == Settling::Done)
    }

    /// Does a lease that is not there prove that its node may not act? Not before the one
    /// who keeps the leases has kept them for as long as one lasts: it may have forgotten
    /// the last renewals, or its clock may be ahead of the one before.
    pub(crate) fn lapse_proves(&self, now: u64, lease: Duration) -> bool {
        let lease = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        let state = self.state();
        let keeper = state.known.iter().find(|known| known.primary.holds_leases());
        keeper.is_some_and(|keeper| {
            keeper.primary.id == IN_PROCESS || now.saturating_sub(keeper.since) >= lease
        })
    }

    fn leases(&self, state: &State, now: u64) -> Settling {
        let keeper = state.known.iter().find(|known| known.primary.holds_leases());
        keeper.map_or(Settling::First, |keeper| self.settled(keeper, now))
    }

    fn settled(&self, known: &Known, now: u64) -> Settling {
        let settle = u64::try_from(self.settle.as_millis()).unwrap_or(u64::MAX);
        let since = now.saturating_sub(known.since);
        if known.primary.id == IN_PROCESS || since >= settle {
            Settling::Done
        } else if since >= settle / 2 {
            Settling::Second
        } else {
            Settling::First
        }
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> SessionId {
        SessionId::parse("session").unwrap()
    }

    fn primary(id: u128) -> Vec<Primary> {
        vec![Primary::of_everything(PrimaryId(id))]
    }

    fn eras() -> Eras {
        Eras::new(Duration::from_secs(3))
    }

    #[test]
    fn a_new_primary_settles_in_two_halves() {
        let eras = eras();
        assert!(eras.observe(primary(7), 10_000));
        assert!(!eras.observe(primary(7), 11_000));
        for (now, settled) in [
            (10_000, Settling::First),
            (11_499, Settling::First),
            (11_500, Settling::Second),
            (13_000, Settling::Done),
        ] {
            assert_eq!(eras.of(&session(), now), (1, settled), "at {now}");
        }
        assert!(eras.observe(primary(8), 20_000));
        assert_eq!(eras.of(&session(), 20_000), (2, Settling::First));
        assert!(!eras.is_settled(22_000) && eras.is_settled(23_000));
    }

    #[test]
    fn a_lease_that_is_gone_proves_nothing_before_a_lease_has_passed() {
        let (eras, lease) = (eras(), Duration::from_secs(6));
        assert!(!eras.lapse_proves(99_000, lease));
        eras.observe(primary(7), 10_000);
        assert!(!eras.lapse_proves(15_999, lease) && eras.lapse_proves(16_000, lease));
        eras.observe(primary(8), 20_000);
        assert!(!eras.lapse_proves(25_999, lease) && eras.lapse_proves(26_000, lease));
    }

    #[test]
    fn memory_never_fails_over() {
        let eras = eras();
        eras.observe(primary(0), 0);
        assert_eq!(eras.of(&session(), 0), (1, Settling::Done));
    }

    #[test]
    fn before_anyone_is_known_nothing_has_settled() {
        assert_eq!(eras().of(&session(), 0), (0, Settling::First));
    }
}
