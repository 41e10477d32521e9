//! The tokens of users, each exchanged for the token with which its user authenticated at this node (RFC 8693).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::authority::Authority;
use super::problem::CredentialProblem;
use super::source::TokenSource;
use super::token::Token;
use crate::metrics::{self, TOKEN_EXCHANGE};

/// Most tokens that are kept for a backend; a further one replaces one that was not used lately. A token
/// has at most 8 KiB, so they have at most 16 MiB together.
const TOKENS_MAX: usize = 2_048;

/// Most exchanges for a backend at a time. Users cause them.
const EXCHANGES_MAX: usize = 32;

/// How long an exchange waits for its turn; then the authorization server counts as unavailable.
const TURN_WITHIN: Duration = Duration::from_secs(2);

/// The SHA-256 of a user's token.
type Digest = [u8; 32];

/// The exchanged tokens of one backend at this node.
pub(crate) struct Exchanges {
    kept: Mutex<Generations>,
    turns: Arc<Semaphore>,
}

impl Default for Exchanges {
    fn default() -> Self {
        Self { kept: Mutex::default(), turns: Arc::new(Semaphore::new(EXCHANGES_MAX)) }
    }
}

/// When the newer generation is full, the older one is dropped. A token that is found in the older one
/// moves to the newer.
#[derive(Default)]
struct Generations {
    newer: HashMap<Digest, Arc<TokenSource>>,
    older: HashMap<Digest, Arc<TokenSource>>,
}

impl Generations {
    fn find(&mut self, digest: Digest) -> Arc<TokenSource> {
        if let Some(source) = self.newer.get(&digest) {
            return Arc::clone(source);
        }
        let source = self.older.remove(&digest).unwrap_or_default();
        if self.newer.len() >= TOKENS_MAX / 2 {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(digest, Arc::clone(&source));
        source
    }
}

/// The exchange of one user's token. It has that token, and stays in the memory of the node that received it.
pub(crate) struct Exchange {
    authority: Arc<Authority>,
    source: Arc<TokenSource>,
    subject: Arc<str>,
    turns: Arc<Semaphore>,
}

impl Exchanges {
    /// The exchange of this token.
    pub(crate) fn of(&self, authority: &Arc<Authority>, subject: &str) -> Exchange {
        let digest = Sha256::digest(subject.as_bytes()).into();
        let source = self.kept.lock().unwrap_or_else(PoisonError::into_inner).find(digest);
        let (authority, turns) = (Arc::clone(authority), Arc::clone(&self.turns));
        Exchange { authority, source, subject: subject.into(), turns }
    }
}

impl Exchange {
    /// The exchanged token, or another one than that which the server refused.
    pub(crate) async fn token(&self, refused: Option<&Token>) -> Result<Token, CredentialProblem> {
        let fetch = || {
            let (authority, turns) = (Arc::clone(&self.authority), Arc::clone(&self.turns));
            let subject = Arc::clone(&self.subject);
            async move {
                let turn = timeout(TURN_WITHIN, turns.acquire()).await;
                let fetched = match turn {
                    Ok(Ok(_turn)) => authority.exchange(&subject).await,
                    _ => Err(CredentialProblem::Unavailable),
                };
                metrics::count_token(TOKEN_EXCHANGE, fetched.as_ref().err());
                fetched
            }
        };
        self.source.token(refused, fetch).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokens_of_a_backend_are_bounded_and_those_in_use_stay() {
        let mut kept = Generations::default();
        let digest = |number: usize| Sha256::digest(number.to_string()).into();
        let first = kept.find(digest(0));
        for number in 1..5 * TOKENS_MAX {
            kept.find(digest(number));
            assert!(Arc::ptr_eq(&kept.find(digest(0)), &first), "{number}");
        }
        assert!(kept.newer.len() + kept.older.len() <= TOKENS_MAX);
        assert!(!Arc::ptr_eq(&kept.find(digest(1)), &first));
    }
}
