//! Gets one token: a single fetch for all requests that wait.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use budget::Held;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::problem::CredentialProblem;
use super::refresh::{Current, Decision, Refresh};
use super::token::Token;

/// How often a request waits for a fetch: for one that was running, and for two of its own. The first of these may
/// show a token that is to be replaced.
const WAITS_MAX: usize = 3;

/// How long a request waits while there is a former token, which it then uses.
const FORMER_AFTER: Duration = Duration::from_secs(2);

/// What a source keeps beside its token.
pub(crate) const SOURCE_BYTES: usize = 512;

/// One token, which is fetched when a request needs it.
#[derive(Debug, Default)]
pub(crate) struct TokenSource(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    refresh: Refresh,
    /// What is charged for it, if it is charged.
    held: Option<Held>,
    /// The fetch that runs.
    fetching: Option<Fetching>,
}

/// What a fetch replaces.
#[derive(Debug, Default)]
pub(crate) struct Replaced {
    /// The token that the server refused, if it did.
    pub(crate) refused: Option<Token>,
    /// The token that requests use meanwhile.
    pub(crate) known: Option<Token>,
}

/// A fetch that runs: gets its token or the problem, and closes when it has ended.
type Fetching = watch::Receiver<Option<Result<Token, CredentialProblem>>>;

impl TokenSource {
    /// A source whose token is charged as well. `held`: what is charged for the source.
    pub(crate) fn charged(held: Held) -> Self {
        Self(Mutex::new(State { held: Some(held), ..State::default() }))
    }

    /// The server refused this token, in a request of another node: the next request fetches another one.
    pub(crate) fn note_refused(&self, token: &str) {
        self.state().refresh.note_refused(token, Instant::now());
    }

    /// The token. `refused` is the one that the server refused, if it did. `fetch` gets another one.
    pub(crate) async fn token<F>(
        self: &Arc<Self>,
        refused: Option<&Token>,
        fetch: impl Fn(Replaced) -> F,
    ) -> Result<Token, CredentialProblem>
    where
        F: Future<Output = Result<Current, CredentialProblem>> + Send + 'static,
    {
        let (mut former_at, mut last) = (None, Err(CredentialProblem::Unavailable));
        for _ in 0..WAITS_MAX {
            let (mut fetching, former) = match self.find(refused, &fetch) {
                Ok(token) => return token,
                Err(wait) => wait,
            };
            let until = *former_at.get_or_insert_with(|| Instant::now() + FORMER_AFTER);
            // An error: the runtime of the fetch has ended.
            let mut fetched =
                pin!(async { fetching.wait_for(Option::is_some).await.ok()?.clone() });
            let soon = match &former {
                Some(_) => timeout_at(until, &mut fetched).await.ok(),
                None => None,
            };
            let fetched = match (soon, former) {
                (Some(fetched), _) => fetched,
                // The fetch goes on.
                (None, Some(former)) if self.counts(&former) => return Ok(former),
                (None, _) => fetched.await,
            };
            last = match fetched {
                Some(Ok(token)) if !refused.is_some_and(|refused| refused.is(&token)) => Ok(token),
                // What was found before does not count any more.
                Some(Err(problem @ CredentialProblem::NotLinked)) => Err(problem),
                Some(Err(problem)) => last.map_err(|_| problem),
                Some(Ok(_)) | None => last,
            };
        }
        // A token that has expired since.
        last
    }

    /// Whether requests may use this token now.
    fn counts(&self, token: &Token) -> bool {
        let state = self.state();
        state.refresh.usable(Instant::now()).is_some_and(|usable| usable.is(token))
    }

    /// The token or the problem; `Err`: it comes with this fetch, and the former one is used if that takes long.
    fn find<F>(
        self: &Arc<Self>,
        refused: Option<&Token>,
        fetch: &impl Fn(Replaced) -> F,
    ) -> Result<Result<Token, CredentialProblem>, (Fetching, Option<Token>)>
    where
        F: Future<Output = Result<Current, CredentialProblem>> + Send + 'static,
    {
        let now = Instant::now();
        let mut state = self.state();
        // The runtime of a fetch may have ended before the fetch.
        if state.fetching.as_ref().is_some_and(|fetch| fetch.has_changed().is_err()) {
            state.fetching = None;
            state.refresh.end(Err(CredentialProblem::Unavailable), now);
        }
        match state.refresh.decide(refused, now) {
            Decision::Use { token, fetch: is_due } => {
                if is_due {
                    self.begin(&mut state, false, fetch);
                }
                Ok(Ok(token))
            }
            Decision::Wait { fetch: true, former } => {
                // A former token is another one than what was refused, and stays.
                let is_forced = refused.is_some() && former.is_none();
                Err((self.begin(&mut state, is_forced, fetch), former))
            }
            Decision::Wait { fetch: false, former } => match &state.fetching {
                Some(fetching) => Err((fetching.clone(), former)),
                None => Ok(Err(CredentialProblem::Unavailable)),
            },
            Decision::Fail(problem) => Ok(Err(problem)),
            Decision::Refused => Ok(Err(CredentialProblem::Rejected)),
        }
    }

    /// Begins a fetch, which goes on if the request that needs it goes away.
    fn begin<F>(
        self: &Arc<Self>,
        state: &mut State,
        is_forced: bool,
        fetch: &impl Fn(Replaced) -> F,
    ) -> Fetching
    where
        F: Future<Output = Result<Current, CredentialProblem>> + Send + 'static,
    {
        let (running, fetching) = watch::channel(None);
        let now = Instant::now();
        state.refresh.begin(is_forced, now);
        let (refused, known) = (state.refresh.refused(), state.refresh.usable(now));
        let fetch = fetch(Replaced { refused: refused.cloned(), known: known.cloned() });
        state.fetching = Some(fetching.clone());
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let fetched = fetch.await;
            let outcome = fetched.as_ref().map(|current| current.token.clone());
            let outcome = outcome.map_err(|problem| *problem);
            let mut state = this.state();
            state.refresh.end(fetched, Instant::now());
            state.fetching = None;
            let bytes = SOURCE_BYTES + state.refresh.token_bytes();
            if let Some(held) = &mut state.held {
                held.set(bytes);
            }
            // Perhaps no request waits.
            let _ = running.send(Some(outcome));
        });
        fetching
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of the state is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::sleep;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn current(text: &str, usable_for: Duration) -> Current {
        let (token, after) = (Token::parse(text).unwrap(), usable_for);
        Current { token, renew_after: after, wait_after: after, usable_for }
    }

    #[tokio::test]
    async fn a_token_counts_for_those_that_waited_for_it_also_if_it_has_expired_since() {
        let source = Arc::new(TokenSource::default());
        let fetch = |_| async { Ok(current("short", Duration::ZERO)) };
        let (one, other) = tokio::join!(source.token(None, fetch), source.token(None, fetch));
        assert_eq!((one.unwrap().text(), other.unwrap().text()), ("short", "short"));
    }

    #[tokio::test]
    async fn a_request_whose_token_was_refused_does_not_get_the_same_of_a_fetch_that_ran_already() {
        let (source, fetches) = (Arc::new(TokenSource::default()), AtomicUsize::new(0));
        let fetch = |_| {
            let text = ["refused", "other"][fetches.fetch_add(1, Ordering::Relaxed)];
            async move { Ok(current(text, 60 * SECOND)) }
        };
        let refused = Token::parse("refused").unwrap();
        let (_, second) =
            tokio::join!(source.token(None, fetch), source.token(Some(&refused), fetch));
        assert_eq!(second.unwrap().text(), "other");
    }

    #[tokio::test(start_paused = true)]
    async fn a_fetch_that_takes_long_is_not_waited_for_while_the_former_token_counts() {
        let source = Arc::new(TokenSource::default());
        let due = || Current { wait_after: Duration::ZERO, ..current("former", 60 * SECOND) };
        let fetches = AtomicUsize::new(0);
        let fetch = |Replaced { known, .. }: Replaced| {
            let number = fetches.fetch_add(1, Ordering::Relaxed);
            assert_eq!(known.as_ref().map(Token::text), (number > 0).then_some("former"));
            async move {
                if number == 0 {
                    return Ok(due());
                }
                sleep(3 * SECOND).await;
                Ok(current("next", 60 * SECOND))
            }
        };
        let began = Instant::now();
        assert_eq!(source.token(None, fetch).await.unwrap().text(), "former");
        assert_eq!(began.elapsed(), FORMER_AFTER);
        // The fetch has gone on: those that come later get its token.
        assert_eq!(source.token(None, fetch).await.unwrap().text(), "next");
        assert_eq!(began.elapsed(), 3 * SECOND);
        assert_eq!(fetches.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_former_token_is_not_used_beyond_its_end_or_after_its_refresh_was_refused() {
        for (usable_for, problem, waits) in [
            (SECOND, CredentialProblem::Unavailable, 3 * SECOND),
            (60 * SECOND, CredentialProblem::NotLinked, SECOND),
        ] {
            let source = Arc::new(TokenSource::default());
            let due =
                move || Current { wait_after: Duration::ZERO, ..current("former", usable_for) };
            let fetch = |Replaced { known, .. }: Replaced| async move {
                if known.is_none() {
                    return Ok(due());
                }
                sleep(waits).await;
                Err(problem)
            };
            let token = source.token(None, fetch).await;
            assert_eq!(token.err(), Some(problem));
        }
    }
}
