//! Gets one token: a single fetch for all requests that wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use budget::Held;
use tokio::sync::watch;
use tokio::time::Instant;

use super::answer::Fetched;
use super::problem::CredentialProblem;
use super::refresh::{Decision, Refresh};
use super::token::Token;

/// How often a request waits for a fetch: for one that was running, and for one of its own.
const WAITS_MAX: usize = 3;

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
    /// Closes when the fetch that runs has ended.
    fetching: Option<watch::Receiver<()>>,
}

impl TokenSource {
    /// A source whose token is charged as well. `held`: what is charged for the source.
    pub(crate) fn charged(held: Held) -> Self {
        Self(Mutex::new(State { held: Some(held), ..State::default() }))
    }

    /// The server refused this token, in a request of another node: the next request fetches another one.
    pub(crate) fn note_refused(&self, token: &str) {
        self.state().refresh.note_refused(token, Instant::now());
    }

    /// The token. `refused` is the one that the server refused, if it did. `fetch` gets the token that is to be
    /// replaced since it was refused, if one was, and is bounded in time.
    pub(crate) async fn token<F>(
        self: &Arc<Self>,
        refused: Option<&Token>,
        fetch: impl Fn(Option<Token>) -> F,
    ) -> Result<Token, CredentialProblem>
    where
        F: Future<Output = Result<Fetched, CredentialProblem>> + Send + 'static,
    {
        for _ in 0..WAITS_MAX {
            match self.find(refused, &fetch) {
                Ok(token) => return token,
                // An error: the fetch has ended.
                Err(mut ended) => while ended.changed().await.is_ok() {},
            }
        }
        Err(CredentialProblem::Unavailable)
    }

    /// The token or the problem; `Err` closes when it is to be looked for again.
    fn find<F>(
        self: &Arc<Self>,
        refused: Option<&Token>,
        fetch: &impl Fn(Option<Token>) -> F,
    ) -> Result<Result<Token, CredentialProblem>, watch::Receiver<()>>
    where
        F: Future<Output = Result<Fetched, CredentialProblem>> + Send + 'static,
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
            Decision::Wait { fetch: true } => Err(self.begin(&mut state, refused.is_some(), fetch)),
            Decision::Wait { fetch: false } => match &state.fetching {
                Some(fetching) => Err(fetching.clone()),
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
        fetch: &impl Fn(Option<Token>) -> F,
    ) -> watch::Receiver<()>
    where
        F: Future<Output = Result<Fetched, CredentialProblem>> + Send + 'static,
    {
        let (running, ended) = watch::channel(());
        state.refresh.begin(is_forced, Instant::now());
        let fetch = fetch(state.refresh.refused().cloned());
        state.fetching = Some(ended.clone());
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let fetched = fetch.await;
            let mut state = this.state();
            state.refresh.end(fetched, Instant::now());
            state.fetching = None;
            let bytes = SOURCE_BYTES + state.refresh.token_bytes();
            if let Some(held) = &mut state.held {
                held.set(bytes);
            }
            drop(running);
        });
        ended
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of the state is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
