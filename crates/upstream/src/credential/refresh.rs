//! When a token is fetched. Pure: the caller fetches, and says how it went.

use std::time::Duration;

use tokio::time::Instant;

use super::answer::Fetched;
use super::problem::CredentialProblem;
use super::token::Token;

/// How long before its end a token is renewed at most; a short one in the last quarter of its life. It
/// is used meanwhile.
const RENEW_BEFORE: Duration = Duration::from_secs(60);

/// How long before its end a token is not used any more at most; a short one in the last tenth of its life:
/// a request may take that long to arrive, and clocks differ.
const SKEW: Duration = Duration::from_secs(10);

/// The least time between two fetches after one that failed, and between two fetches because the server
/// refused a token. Clients can provoke both.
const PAUSE: Duration = Duration::from_secs(5);

/// A user may link an account at any moment, and no authorization server is asked before.
const PAUSE_UNLINKED: Duration = Duration::from_millis(200);

fn pause(problem: CredentialProblem) -> Duration {
    match problem {
        CredentialProblem::NotLinked => PAUSE_UNLINKED,
        _ => PAUSE,
    }
}

/// One token, and how old it is.
#[derive(Debug, Default)]
pub(crate) struct Refresh {
    kept: Option<Kept>,
    /// The token that the server refused, while another one is fetched.
    refused: Option<Kept>,
    is_fetching: bool,
    /// When the fetch that runs began.
    begun: Option<Instant>,
    /// When the last fetch failed, and why.
    failed: Option<(Instant, CredentialProblem)>,
    /// When a token was last fetched because the server refused the one before.
    forced: Option<Instant>,
}

#[derive(Debug)]
struct Kept {
    token: Token,
    renew_at: Instant,
    wait_at: Instant,
    usable_until: Instant,
}

/// A token that was fetched, and how long it counts from the begin of the fetch on.
#[derive(Clone, Debug)]
pub(crate) struct Current {
    pub(crate) token: Token,
    /// When another one is fetched, while this one is used.
    pub(crate) renew_after: Duration,
    /// When requests wait for another one, and use this one only if that does not come soon.
    pub(crate) wait_after: Duration,
    /// How long it is used at most.
    pub(crate) usable_for: Duration,
}

impl From<Fetched> for Current {
    fn from(Fetched { token, lifetime, .. }: Fetched) -> Self {
        let renew_after = lifetime - renew_before(lifetime);
        let usable_for = lifetime - skew(lifetime);
        Self { token, renew_after, wait_after: usable_for, usable_for }
    }
}

/// How long before its end a token with this lifetime is renewed.
pub(super) fn renew_before(lifetime: Duration) -> Duration {
    RENEW_BEFORE.min(lifetime / 4)
}

/// How long before its end a token with this lifetime is not used any more.
pub(super) fn skew(lifetime: Duration) -> Duration {
    SKEW.min(lifetime / 10)
}

/// What to do for one request.
#[derive(Clone, Debug)]
pub(crate) enum Decision {
    /// Use this token. `fetch`: another one is due, which nothing waits for.
    Use { token: Token, fetch: bool },
    /// The token comes with a fetch; `fetch`: which is to begin now. `former` may be used if it does not come soon.
    Wait { fetch: bool, former: Option<Token> },
    /// There is none, and it is too early to ask again.
    Fail(CredentialProblem),
    /// The server refuses also a token that was fetched just now.
    Refused,
}

impl Refresh {
    /// Decides for a request; `refused` is the token that the server refused, if it did.
    pub(crate) fn decide(&self, refused: Option<&Token>, now: Instant) -> Decision {
        let paused = self.failed.filter(|(at, problem)| now.duration_since(*at) < pause(*problem));
        let usable = self.usable_kept(now);
        let is_refused = |kept: &&Kept| refused.is_some_and(|refused| refused.is(&kept.token));
        match usable {
            Some(_) if self.is_fetching && usable.as_ref().is_some_and(is_refused) => {
                Decision::Wait { fetch: false, former: None }
            }
            Some(kept) if is_refused(&kept) => {
                let was_forced = self.forced.is_some_and(|at| now.duration_since(at) < PAUSE);
                match was_forced {
                    true => Decision::Refused,
                    false => Decision::Wait { fetch: true, former: None },
                }
            }
            Some(kept) => {
                let (token, may_fetch) =
                    (kept.token.clone(), !self.is_fetching && paused.is_none());
                match now >= kept.wait_at && (self.is_fetching || may_fetch) {
                    true => Decision::Wait { fetch: may_fetch, former: Some(token) },
                    false => Decision::Use { token, fetch: now >= kept.renew_at && may_fetch },
                }
            }
            None if self.is_fetching => Decision::Wait { fetch: false, former: None },
            None => match paused {
                Some((_, problem)) => Decision::Fail(problem),
                None => Decision::Wait { fetch: true, former: None },
            },
        }
    }

    /// The server refused this token in a request that got its error already. The next request waits for
    /// another one.
    pub(crate) fn note_refused(&mut self, token: &str, now: Instant) {
        let was_forced = self.forced.is_some_and(|at| now.duration_since(at) < PAUSE);
        let is_kept = self.kept.as_ref().is_some_and(|kept| kept.token.text() == token);
        if is_kept && !was_forced {
            self.forced = Some(now);
            self.refused = self.kept.take();
        }
    }

    /// The token that the server refused, while another one is fetched.
    pub(crate) fn refused(&self) -> Option<&Token> {
        self.refused.as_ref().map(|kept| &kept.token)
    }

    /// The token that requests may use.
    pub(crate) fn usable(&self, now: Instant) -> Option<&Token> {
        self.usable_kept(now).map(|kept| &kept.token)
    }

    fn usable_kept(&self, now: Instant) -> Option<&Kept> {
        self.kept.as_ref().filter(|kept| now < kept.usable_until)
    }

    /// The bytes of the token that is kept.
    pub(crate) fn token_bytes(&self) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.token.text().len())
    }

    /// A fetch begins. `is_forced`: because the server refused the token.
    pub(crate) fn begin(&mut self, is_forced: bool, now: Instant) {
        self.is_fetching = true;
        self.begun = Some(now);
        if is_forced {
            self.forced = Some(now);
            self.refused = self.kept.take();
        }
    }

    /// A fetch has ended.
    pub(crate) fn end(&mut self, fetched: Result<Current, CredentialProblem>, now: Instant) {
        self.is_fetching = false;
        // The token counts from when it was asked for: its way took time.
        let begun = self.begun.take().unwrap_or(now);
        match fetched {
            Ok(Current { token, renew_after, wait_after, usable_for }) => {
                let (renew_at, wait_at) = (begun + renew_after, begun + wait_after);
                let usable_until = begun + usable_for;
                self.kept = Some(Kept { token, renew_at, wait_at, usable_until });
                self.failed = None;
                self.refused = None;
            }
            Err(problem) => {
                self.failed = Some((now, problem));
                // The pause begins with the end of a fetch that failed.
                if self.refused.is_some() {
                    self.forced = Some(now);
                }
                let (kept, refused) = (self.kept.take(), self.refused.take());
                self.kept = match problem {
                    // The user has to link the account again.
                    CredentialProblem::NotLinked => None,
                    // It was refused for one request, and may count for others.
                    _ => kept.or(refused),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(3_600);

    fn fetched(text: &str) -> Result<Current, CredentialProblem> {
        let token = Token::parse(text).unwrap();
        Ok(Fetched { token, lifetime: LIFETIME, refresh: None }.into())
    }

    fn with_token(now: Instant) -> (Refresh, Token) {
        let mut refresh = Refresh::default();
        refresh.begin(false, now);
        refresh.end(fetched("a"), now);
        let Decision::Use { token, fetch: false } = refresh.decide(None, now) else {
            panic!("no token")
        };
        (refresh, token)
    }

    #[test]
    fn one_fetch_runs_for_all_requests() {
        let now = Instant::now();
        let mut refresh = Refresh::default();
        assert!(matches!(refresh.decide(None, now), Decision::Wait { fetch: true, .. }));
        refresh.begin(false, now);
        assert!(matches!(refresh.decide(None, now), Decision::Wait { fetch: false, .. }));
        refresh.end(fetched("a"), now);
        assert!(matches!(refresh.decide(None, now), Decision::Use { fetch: false, .. }));
    }

    #[test]
    fn a_token_is_renewed_while_it_counts_and_not_used_at_its_end() {
        let now = Instant::now();
        let (mut refresh, _) = with_token(now);
        let due = now + LIFETIME - RENEW_BEFORE;
        let early = due - Duration::from_millis(1);
        assert!(matches!(refresh.decide(None, early), Decision::Use { fetch: false, .. }));
        assert!(matches!(refresh.decide(None, due), Decision::Use { fetch: true, .. }));
        refresh.begin(false, due);
        assert!(matches!(refresh.decide(None, due), Decision::Use { fetch: false, .. }));
        // The authorization server is down: the token counts on.
        refresh.end(Err(CredentialProblem::Unavailable), due);
        assert!(matches!(refresh.decide(None, due), Decision::Use { fetch: false, .. }));
        assert!(matches!(refresh.decide(None, due + PAUSE), Decision::Use { fetch: true, .. }));
        let over = now + LIFETIME - SKEW;
        assert!(matches!(refresh.decide(None, over), Decision::Wait { fetch: true, .. }));
        refresh.begin(false, over);
        refresh.end(Err(CredentialProblem::Unavailable), over);
        let failed = refresh.decide(None, over);
        assert!(matches!(failed, Decision::Fail(CredentialProblem::Unavailable)));
    }

    #[test]
    fn a_token_of_a_second_is_used() {
        let now = Instant::now();
        let mut refresh = Refresh::default();
        refresh.begin(false, now);
        let (token, lifetime) = (Token::parse("a").unwrap(), Duration::from_secs(1));
        let short = Fetched { token, lifetime, refresh: None };
        refresh.end(Ok(short.into()), now);
        assert!(matches!(refresh.decide(None, now), Decision::Use { fetch: false, .. }));
        let later = now + Duration::from_millis(900);
        assert!(matches!(refresh.decide(None, later), Decision::Wait { fetch: true, .. }));
    }

    #[test]
    fn requests_wait_for_the_next_token_before_the_former_one_has_ended() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let token = Token::parse("a").unwrap();
        let (renew_after, wait_after, usable_for) = (2 * second, 4 * second, 40 * second);
        let mut refresh = Refresh::default();
        refresh.begin(false, now);
        refresh.end(Ok(Current { token, renew_after, wait_after, usable_for }), now);
        let early = refresh.decide(None, now + 3 * second);
        assert!(matches!(early, Decision::Use { fetch: true, .. }));
        let due = now + 4 * second;
        let waits = |fetch, decision| matches!(decision, Decision::Wait { fetch: is, former: Some(_) } if is == fetch);
        assert!(waits(true, refresh.decide(None, due)));
        refresh.begin(false, due);
        assert!(waits(false, refresh.decide(None, due)));
        // It fails: the former token counts on, and none is asked for during the pause.
        let failed = due + 7 * second;
        refresh.end(Err(CredentialProblem::Unavailable), failed);
        let early = failed + PAUSE - Duration::from_millis(1);
        assert!(matches!(refresh.decide(None, early), Decision::Use { fetch: false, .. }));
        assert!(waits(true, refresh.decide(None, failed + PAUSE)));
        // The server has refused it.
        refresh.note_refused("a", failed + PAUSE);
        let refused = refresh.decide(None, failed + PAUSE);
        assert!(matches!(refused, Decision::Wait { fetch: true, former: None }));
        let ended = refresh.decide(None, now + usable_for);
        assert!(matches!(ended, Decision::Wait { fetch: true, former: None }));
    }

    #[test]
    fn after_a_forced_fetch_that_fails_late_none_is_forced_during_the_pause() {
        let now = Instant::now();
        let (mut refresh, first) = with_token(now);
        refresh.begin(true, now);
        let failed = now + 2 * PAUSE;
        refresh.end(Err(CredentialProblem::Unavailable), failed);
        assert!(matches!(refresh.decide(Some(&first), failed), Decision::Refused));
        let later = refresh.decide(Some(&first), failed + PAUSE);
        assert!(matches!(later, Decision::Wait { fetch: true, .. }));
    }

    #[test]
    fn a_failure_is_not_repeated_at_once() {
        let now = Instant::now();
        let mut refresh = Refresh::default();
        refresh.begin(false, now);
        refresh.end(Err(CredentialProblem::Invalid), now);
        let early = now + PAUSE - Duration::from_millis(1);
        assert!(matches!(refresh.decide(None, early), Decision::Fail(CredentialProblem::Invalid)));
        assert!(matches!(refresh.decide(None, now + PAUSE), Decision::Wait { fetch: true, .. }));
    }

    #[test]
    fn a_token_that_was_refused_at_another_node_is_not_used_again() {
        let now = Instant::now();
        let (mut refresh, first) = with_token(now);
        refresh.note_refused("another", now);
        assert!(matches!(refresh.decide(None, now), Decision::Use { .. }));
        refresh.note_refused(first.text(), now);
        assert!(matches!(refresh.decide(None, now), Decision::Wait { fetch: true, .. }));
        refresh.begin(false, now);
        refresh.end(fetched("b"), now);
        // At most one in a while, also if the server refuses all tokens.
        refresh.note_refused("b", now);
        assert!(matches!(refresh.decide(None, now), Decision::Use { .. }));
        refresh.note_refused("b", now + PAUSE);
        assert!(matches!(refresh.decide(None, now + PAUSE), Decision::Wait { fetch: true, .. }));
        // If there is no other one, it counts on.
        refresh.begin(false, now + PAUSE);
        refresh.end(Err(CredentialProblem::Unavailable), now + PAUSE);
        assert!(matches!(refresh.decide(None, now + PAUSE), Decision::Use { .. }));
    }

    #[test]
    fn a_refused_token_does_not_count_once_its_account_is_linked_no_more() {
        let now = Instant::now();
        let (mut refresh, first) = with_token(now);
        refresh.note_refused(first.text(), now);
        refresh.begin(false, now);
        refresh.end(Err(CredentialProblem::NotLinked), now);
        let decision = refresh.decide(None, now);
        assert!(matches!(decision, Decision::Fail(CredentialProblem::NotLinked)));
        let later = now + PAUSE_UNLINKED;
        assert!(matches!(refresh.decide(None, later), Decision::Wait { fetch: true, .. }));
    }

    #[test]
    fn a_refused_token_is_renewed_once() {
        let now = Instant::now();
        let (mut refresh, first) = with_token(now);
        assert!(matches!(refresh.decide(Some(&first), now), Decision::Wait { fetch: true, .. }));
        refresh.begin(true, now);
        // Other requests wait for the new one.
        assert!(matches!(refresh.decide(None, now), Decision::Wait { fetch: false, .. }));
        assert!(matches!(refresh.decide(Some(&first), now), Decision::Wait { fetch: false, .. }));
        refresh.end(fetched("b"), now);
        let Decision::Use { token: second, .. } = refresh.decide(Some(&first), now) else {
            panic!("no token")
        };
        assert!(!second.is(&first));
        assert!(matches!(refresh.decide(Some(&second), now), Decision::Refused));
        // What was refused is still the token for other requests.
        assert!(matches!(refresh.decide(None, now), Decision::Use { .. }));
        let later = now + PAUSE;
        assert!(matches!(refresh.decide(Some(&second), later), Decision::Wait { fetch: true, .. }));
        // If there is no other one, it counts on.
        refresh.begin(true, later);
        refresh.end(Err(CredentialProblem::Invalid), later);
        assert!(matches!(refresh.decide(None, later), Decision::Use { .. }));
        assert!(matches!(refresh.decide(Some(&second), later), Decision::Refused));
    }
}
