//! When the keys of an issuer are fetched. Pure: the caller fetches, and says how it went.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::key_set::KeySet;

/// The age at which keys are fetched again, which no token waits for.
const EARLY: Duration = Duration::from_secs(240);

/// The age at which keys are fetched again before they count. While the issuer fails they count on.
const REFRESH: Duration = Duration::from_secs(300);

/// How long tokens with known keys wait for that fetch. An issuer that does not answer delays them no longer.
const KNOWN_WAIT: Duration = Duration::from_millis(500);

/// The age at which keys do not count any more, because the issuer could not be asked for so long.
const STALE_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The least time between two fetches because of unknown keys, or after a failure. Clients can
/// provoke both.
const PAUSE: Duration = Duration::from_secs(10);

/// The keys of an issuer, and how old they are.
#[derive(Debug, Default)]
pub(crate) struct Refresh {
    keys: Option<(Arc<KeySet>, Instant)>,
    /// When the last fetch began.
    begun: Option<Instant>,
    is_fetching: bool,
    /// Whether the last fetch failed.
    has_failed: bool,
}

/// What to do for one token.
#[derive(Clone, Debug)]
pub(crate) enum Decision {
    /// These keys are the ones to use. `fetch`: newer ones are due, which nothing waits for.
    Use { keys: Arc<KeySet>, fetch: bool },
    /// The keys come with a fetch; `fetch`: which is to begin now. `until`: then those that are there count.
    Wait { fetch: bool, until: Option<Instant> },
    /// There are no keys, and it is too early to ask for them again.
    Unavailable,
}

impl Refresh {
    /// Decides for a token whose key `knows` finds.
    pub(crate) fn decide(&self, knows: impl Fn(&KeySet) -> bool, now: Instant) -> Decision {
        let may_begin =
            !self.is_fetching && self.begun.is_none_or(|begun| now.duration_since(begun) >= PAUSE);
        let fresh = self.keys.as_ref().filter(|(_, at)| now.duration_since(*at) < STALE_MAX);
        let Some((keys, at)) = fresh else {
            return match (self.is_fetching, may_begin) {
                (true, _) => Decision::Wait { fetch: false, until: None },
                (false, true) => Decision::Wait { fetch: true, until: None },
                (false, false) => Decision::Unavailable,
            };
        };
        let is_known = knows(keys);
        if !is_known && (self.is_fetching || may_begin) {
            return Decision::Wait { fetch: !self.is_fetching, until: None };
        }
        let age = now.duration_since(*at);
        if age >= REFRESH && !self.has_failed && (self.is_fetching || may_begin) {
            let begun = self.begun.filter(|_| self.is_fetching).unwrap_or(now);
            let until = begun + KNOWN_WAIT;
            if now < until {
                return Decision::Wait { fetch: !self.is_fetching, until: Some(until) };
            }
        }
        Decision::Use { keys: Arc::clone(keys), fetch: age >= EARLY && may_begin }
    }

    /// A fetch begins.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.begun = Some(now);
        self.is_fetching = true;
    }

    /// A fetch has ended: with keys, or without.
    pub(crate) fn end(&mut self, keys: Option<KeySet>, now: Instant) {
        self.is_fetching = false;
        self.has_failed = keys.is_none();
        if let Some(keys) = keys {
            self.keys = Some((Arc::new(keys), now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(_: &KeySet) -> bool {
        true
    }

    fn unknown(_: &KeySet) -> bool {
        false
    }

    fn fetched(at: Instant) -> Refresh {
        let mut refresh = Refresh::default();
        refresh.begin(at);
        refresh.end(Some(KeySet::default()), at);
        refresh
    }

    #[test]
    fn the_first_token_fetches_and_the_next_ones_wait_for_the_same_fetch() {
        let now = Instant::now();
        let mut refresh = Refresh::default();
        assert!(matches!(refresh.decide(known, now), Decision::Wait { fetch: true, .. }));
        refresh.begin(now);
        assert!(matches!(refresh.decide(known, now), Decision::Wait { fetch: false, .. }));
        refresh.end(Some(KeySet::default()), now);
        assert!(matches!(refresh.decide(known, now), Decision::Use { fetch: false, .. }));
    }

    #[test]
    fn an_issuer_that_fails_is_asked_again_after_a_pause() {
        let now = Instant::now();
        let mut refresh = Refresh::default();
        refresh.begin(now);
        refresh.end(None, now);
        let early = now + PAUSE - Duration::from_millis(1);
        assert!(matches!(refresh.decide(known, early), Decision::Unavailable));
        assert!(matches!(refresh.decide(known, now + PAUSE), Decision::Wait { fetch: true, .. }));
    }

    #[test]
    fn unknown_keys_cause_one_fetch_a_pause() {
        let now = Instant::now();
        let mut refresh = fetched(now);
        let early = now + PAUSE - Duration::from_millis(1);
        assert!(matches!(refresh.decide(unknown, early), Decision::Use { fetch: false, .. }));
        let late = now + PAUSE;
        assert!(matches!(refresh.decide(unknown, late), Decision::Wait { fetch: true, .. }));
        refresh.begin(late);
        assert!(matches!(refresh.decide(unknown, late), Decision::Wait { fetch: false, .. }));
        // Tokens with known keys do not wait for it.
        assert!(matches!(refresh.decide(known, late), Decision::Use { fetch: false, .. }));
        refresh.end(Some(KeySet::default()), late);
        assert!(matches!(refresh.decide(unknown, late), Decision::Use { fetch: false, .. }));
    }

    #[test]
    fn old_keys_count_while_the_issuer_is_down_and_not_for_ever() {
        let now = Instant::now();
        let mut refresh = fetched(now);
        let due = now + REFRESH;
        assert!(matches!(refresh.decide(known, due), Decision::Wait { fetch: true, .. }));
        refresh.begin(due);
        assert!(matches!(refresh.decide(known, due), Decision::Wait { fetch: false, .. }));
        // An issuer that does not answer delays tokens with known keys for a moment only.
        let late = due + KNOWN_WAIT;
        assert!(matches!(refresh.decide(known, late), Decision::Use { fetch: false, .. }));
        assert!(matches!(
            refresh.decide(unknown, late),
            Decision::Wait { fetch: false, until: None }
        ));
        refresh.end(None, due);
        assert!(matches!(refresh.decide(known, due), Decision::Use { fetch: false, .. }));
        let last = now + STALE_MAX - Duration::from_millis(1);
        assert!(matches!(refresh.decide(known, last), Decision::Use { fetch: true, .. }));
        assert!(matches!(
            refresh.decide(known, now + STALE_MAX),
            Decision::Wait { fetch: true, .. }
        ));
    }

    #[test]
    fn keys_that_are_used_are_fetched_again_before_tokens_wait_for_that() {
        let now = Instant::now();
        let refresh = fetched(now);
        assert!(matches!(refresh.decide(known, now + EARLY), Decision::Use { fetch: true, .. }));
        let before = now + EARLY - Duration::from_millis(1);
        assert!(matches!(refresh.decide(known, before), Decision::Use { fetch: false, .. }));
    }

    #[test]
    fn one_fetch_runs_at_a_time() {
        let now = Instant::now();
        let mut refresh = fetched(now);
        let due = now + REFRESH;
        refresh.begin(due);
        refresh.end(None, due);
        refresh.begin(due + PAUSE);
        let later = due + 3 * PAUSE;
        assert!(matches!(refresh.decide(known, later), Decision::Use { fetch: false, .. }));
        assert!(matches!(refresh.decide(unknown, later), Decision::Wait { fetch: false, .. }));
    }

    #[test]
    fn a_fetch_that_succeeds_makes_up_for_one_that_failed() {
        let now = Instant::now();
        let mut refresh = Refresh::default();
        refresh.begin(now);
        refresh.end(None, now);
        let again = now + PAUSE;
        refresh.begin(again);
        refresh.end(Some(KeySet::default()), again);
        assert!(matches!(
            refresh.decide(known, again + REFRESH),
            Decision::Wait { fetch: true, .. }
        ));
    }
}
