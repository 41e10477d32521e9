//! The keys of one issuer, fetched when a token needs them. Tenants with the same issuer share them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fairness::compute_for_bytes;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::discovery::find_keys;
use crate::http::{Client, Failed, KEYS_BYTES_MAX};
use crate::key_set::KeySet;
use crate::metrics::count_fetch;
use crate::refresh::{Decision, Refresh};

/// How long it may take to find the keys of an issuer and to fetch them.
const FETCH: Duration = Duration::from_secs(8);

/// Where the keys of an issuer are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeyPlace {
    pub(crate) issuer: String,
    /// Where the keys are; empty: the metadata of the issuer says it.
    pub(crate) jwks_url: String,
}

/// The keys of one issuer.
#[derive(Debug)]
pub(crate) struct IssuerKeys {
    place: KeyPlace,
    client: Client,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    refresh: Refresh,
    /// Closes when the fetch that runs has ended.
    fetching: Option<watch::Receiver<()>>,
}

/// What is there for a token now.
pub(crate) enum Keys {
    Here(Arc<KeySet>),
    /// The keys come when this closes. At the time, if there is one, those that are there count.
    Coming(watch::Receiver<()>, Option<Instant>),
    Unavailable,
}

impl IssuerKeys {
    pub(crate) fn new(place: KeyPlace, client: Client) -> Arc<Self> {
        Arc::new(Self { place, client, state: Mutex::default() })
    }

    /// The keys for a token whose key `knows` finds; begins a fetch if one is due. Call it within a
    /// runtime.
    pub(crate) fn find(self: &Arc<Self>, knows: impl Fn(&KeySet) -> bool) -> Keys {
        let now = Instant::now();
        let mut state = self.state();
        // The runtime of a fetch may have ended before the fetch.
        if state.fetching.as_ref().is_some_and(|fetch| fetch.has_changed().is_err()) {
            state.fetching = None;
            state.refresh.end(None, now);
        }
        match state.refresh.decide(knows, now) {
            Decision::Use { keys, fetch } => {
                if fetch {
                    self.begin(&mut state, now);
                }
                Keys::Here(keys)
            }
            Decision::Wait { fetch: true, until } => {
                Keys::Coming(self.begin(&mut state, now), until)
            }
            Decision::Wait { fetch: false, until } => match &state.fetching {
                Some(fetching) => Keys::Coming(fetching.clone(), until),
                None => Keys::Unavailable,
            },
            Decision::Unavailable => Keys::Unavailable,
        }
    }

    /// Begins a fetch, which goes on if the client that needs it goes away.
    fn begin(self: &Arc<Self>, state: &mut State, now: Instant) -> watch::Receiver<()> {
        let (running, ended) = watch::channel(());
        state.refresh.begin(now);
        state.fetching = Some(ended.clone());
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let fetched = timeout(FETCH, this.fetch()).await.unwrap_or(Err(Failed::Late));
            count_fetch("keys", fetched.is_ok());
            if let Err(error) = &fetched {
                let issuer = &this.place.issuer;
                tracing::warn!(%issuer, %error, "fetching the keys of an issuer of tokens failed");
            }
            let mut state = this.state();
            state.refresh.end(fetched.ok(), Instant::now());
            state.fetching = None;
            drop(running);
        });
        ended
    }

    async fn fetch(&self) -> Result<KeySet, Failed> {
        let KeyPlace { issuer, jwks_url } = &self.place;
        let asker = format!("{issuer} {jwks_url}").into();
        let found;
        let url = if jwks_url.is_empty() {
            found = find_keys(&self.client, &asker, issuer).await?;
            &found
        } else {
            jwks_url
        };
        let body = self.client.get(&asker, url, KEYS_BYTES_MAX).await?;
        let keys = compute_for_bytes(&asker, body.len(), move || KeySet::parse(&body)).await;
        let keys = keys.map_err(|_| Failed::Form("a set of keys"))?;
        tracing::debug!(%issuer, count = keys.count(), "fetched the keys of an issuer");
        Ok(keys)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of the state is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;

    use crate::http::Http;

    use super::*;

    fn keys_at(url: &str) -> Arc<IssuerKeys> {
        let place = KeyPlace { issuer: url.to_owned(), jwks_url: format!("{url}/keys") };
        IssuerKeys::new(place, Http::default().client().unwrap().clone())
    }

    /// Answers one request with an empty set.
    fn serve_once() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let head = BufReader::new(&connection).lines();
            head.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
            let answer =
                b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\nconnection: close\r\n\r\n{\"keys\":[]}";
            connection.write_all(answer).unwrap();
        });
        url
    }

    #[test]
    fn a_fetch_whose_runtime_has_ended_is_begun_again() {
        let keys = keys_at("http://127.0.0.1:1");
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().start_paused(true).build().unwrap()
        };
        let begun = runtime().block_on(async { matches!(keys.find(|_| true), Keys::Coming(..)) });
        assert!(begun);
        runtime().block_on(async {
            tokio::time::advance(Duration::from_secs(11)).await;
            let Keys::Coming(fetch, _) = keys.find(|_| true) else { panic!("no fetch") };
            assert!(fetch.has_changed().is_ok(), "the fetch has ended with its runtime");
        });
    }

    #[tokio::test]
    async fn after_a_fetch_that_succeeded_old_keys_are_waited_for() {
        let keys = keys_at(&serve_once());
        let Keys::Coming(mut fetch, _) = keys.find(|_| true) else { panic!("no fetch") };
        while fetch.changed().await.is_ok() {}
        assert!(matches!(keys.find(|_| true), Keys::Here(_)));
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(301)).await;
        assert!(matches!(keys.find(|_| true), Keys::Coming(..)));
    }
}
