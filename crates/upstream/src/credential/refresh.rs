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
    usable_until: Instant,
}

/// What to do for one request.
#[derive(Clone, Debug)]
pub(crate) enum Decision {
    /// Use this token. `fetch`: another one is due, which nothing waits for.
    Use { token: Token, fetch: bool },
    /// The token comes with a fetch; `fetch`: which is to begin now.
    Wait { fetch: bool },
    /// There is none, and it is too early to ask again.
    Fail(CredentialProblem),
    /// The server refuses also a token that was fetched just now.
    Refused,
}

impl Refresh {
    /// Decides for a request; `refused` is the token that the server refused, if it did.
    pub(crate) fn decide(&self, refused: Option<&Token>, now: Instant) -> Decision {
        let paused = self.failed.filter(|(at, problem)| now.duration_since(*at) < pause(*problem));
        let usable = self.kept.as_ref().filter(|kept| now < kept.usable_until);
        let is_refused = |kept: &&Kept| refused.is_some_and(|refused| refused.is(&kept.token));
        match usable {
            Some(_) if self.is_fetching && usable.as_ref().is_some_and(is_refused) => {
                Decision::Wait { fetch: false }
            }
            Some(kept) if is_refused(&kept) => {
                let was_forced = self.forced.is_some_and(|at| now.duration_since(at) < PAUSE);
                if was_forced { Decision::Refused } else { Decision::Wait { fetch: true } }
            }
            Some(kept) => {
                let is_due = now >= kept.renew_at && !self.is_fetching && paused.is_none();
                Decision::Use { token: kept.token.clone(), fetch: is_due }
            }
            None if self.is_fetching => Decision::Wait { fetch: false },
            None => match paused {
                Some((_, problem)) => Decision::Fail(problem),
                None => Decision::Wait { fetch: true },
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
    pub(crate) fn end(&mut self, fetched: Result<Fetched, CredentialProblem>, now: Instant) {
        self.is_fetching = false;
        // The token counts from when it was asked for: its way took time.
        let begun = self.begun.take().unwrap_or(now);
        match fetched {
            Ok(Fetched { token, lifetime, .. }) => {
                let end = begun + lifetime;
                let renew_at = end - RENEW_BEFORE.min(lifetime / 4);
                let usable_until = end - SKEW.min(lifetime / 10);
                self.kept = Some(Kept { token, renew_at, usable_until });
                self.failed = None;
                self.refused = None;
            }
            Err(problem) => {
                self.failed = Some((now, problem));
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

    fn fetched(text: &str) -> Result<Fetched, CredentialProblem> {
        Ok(Fetched { token: Token::parse(text).unwrap(), lifetime: LIFETIME, refresh: None })
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
        assert!(matches!(refresh.decide(None, now), Decision::Wait { fetch: true }));
        refresh.begin(false, now);
        assert!(matches!(refresh.decide(None, now), Decision::Wait { fetch: false }));
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
        assert!(matches!(refresh.decide(None, over), Decision::Wait { fetch: true }));
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
        refresh.end(Ok(short), now);
        assert!(matches!(refresh.decide(None, now), Decision::Use { fetch: false, .. }));
        let later = now + Duration::from_millis(900);
        assert!(matches!(refresh.decide(None, later), Decision::Wait { fetch: true }));
    }

    #[test]
    fn a_failure_is_not_repeated_at_once() {
        let now = Instant::now();
        let mut refresh = Refresh::default();
        refresh.begin(false, now);
        refresh.end(Err(CredentialProblem::Invalid), now);
        let early = now + PAUSE - Duration::from_millis(1);
        assert!(matches!(refresh.decide(None, early), Decision::Fail(CredentialProblem::Invalid)));
        assert!(matches!(refresh.decide(None, now + PAUSE), Decision::Wait { fetch: true }));
    }

    #[test]
    fn a_token_that_was_refused_at_another_node_is_not_used_again() {
        let now = Instant::now();
        let (mut refresh, first) = with_token(now);
        refresh.note_refused("another", now);
        assert!(matches!(refresh.decide(None, now), Decision::Use { .. }));
        refresh.note_refused(first.text(), now);
        assert!(matches!(refresh.decide(None, now), Decision::Wait { fetch: true }));
        refresh.begin(false, now);
        refresh.end(fetched("b"), now);
        // At most one in a while, also if the server refuses all tokens.
        refresh.note_refused("b", now);
        assert!(matches!(refresh.decide(None, now), Decision::Use { .. }));
        refresh.note_refused("b", now + PAUSE);
        assert!(matches!(refresh.decide(None, now + PAUSE), Decision::Wait { fetch: true }));
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
        assert!(matches!(refresh.decide(None, later), Decision::Wait { fetch: true }));
    }

    #[test]
    fn a_refused_token_is_renewed_once() {
        let now = Instant::now();
        let (mut refresh, first) = with_token(now);
        assert!(matches!(refresh.decide(Some(&first), now), Decision::Wait { fetch: true }));
        refresh.begin(true, now);
        // Other requests wait for the new one.
        assert!(matches!(refresh.decide(None, now), Decision::Wait { fetch: false }));
        assert!(matches!(refresh.decide(Some(&first), now), Decision::Wait { fetch: false }));
        refresh.end(fetched("b"), now);
        let Decision::Use { token: second, .. } = refresh.decide(Some(&first), now) else {
            panic!("no token")
        };
        assert!(!second.is(&first));
        assert!(matches!(refresh.decide(Some(&second), now), Decision::Refused));
        // What was refused is still the token for other requests.
        assert!(matches!(refresh.decide(None, now), Decision::Use { .. }));
        let later = now + PAUSE;
        assert!(matches!(refresh.decide(Some(&second), later), Decision::Wait { fetch: true }));
        // If there is no other one, it counts on.
        refresh.begin(true, later);
        refresh.end(Err(CredentialProblem::Invalid), later);
        assert!(matches!(refresh.decide(None, later), Decision::Use { .. }));
        assert!(matches!(refresh.decide(Some(&second), later), Decision::Refused));
    }
}
