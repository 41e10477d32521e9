//! The tokens of users, each exchanged for the token with which its user authenticated at this node (RFC 8693).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use budget::{Held, Share};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::UserKey;
use super::authority::Authority;
use super::linked::LinkedTokens;
use super::problem::CredentialProblem;
use super::source::{Replaced, SOURCE_BYTES, TokenSource};
use super::token::Token;
use crate::metrics::{self, TOKEN_EXCHANGE};

/// Most tokens that are kept for a backend; a further one replaces one that was not used lately. A token
/// has at most 8 KiB, so they have at most 16 MiB together, which count for the tenant. A token that the share
/// of the tenant has no room for is not kept: the next request exchanges again.
const TOKENS_MAX: usize = 2_048;

/// Most exchanges for a backend at a time. Users cause them.
const EXCHANGES_MAX: usize = 32;

/// How long an exchange waits for its turn; then the authorization server counts as unavailable.
const TURN_WITHIN: Duration = Duration::from_secs(2);

/// The turns of requests to the authorization server of a backend.
pub(crate) struct Turns(Semaphore);

impl Default for Turns {
    fn default() -> Self {
        Self(Semaphore::new(EXCHANGES_MAX))
    }
}

impl Turns {
    /// Waits for a turn.
    pub(crate) async fn take(&self) -> Result<SemaphorePermit<'_>, CredentialProblem> {
        let turn = timeout(TURN_WITHIN, self.0.acquire()).await;
        turn.ok().and_then(Result::ok).ok_or(CredentialProblem::Unavailable)
    }
}

/// The SHA-256 of a user's token.
type Digest = [u8; 32];

/// The exchanged tokens of one backend at this node.
pub(crate) struct Exchanges {
    kept: Mutex<Generations>,
    turns: Arc<Turns>,
    /// Of the bytes that the tenant's sessions keep.
    share: Share,
}

/// When the newer generation is full, the older one is dropped. A token that is found in the older one
/// moves to the newer.
#[derive(Default)]
struct Generations {
    newer: HashMap<Digest, Arc<TokenSource>>,
    older: HashMap<Digest, Arc<TokenSource>>,
}

impl Generations {
    fn find(&mut self, digest: Digest, share: &Share) -> Arc<TokenSource> {
        if let Some(source) = self.newer.get(&digest) {
            return Arc::clone(source);
        }
        let source = self.older.remove(&digest);
        let Some(source) = source.or_else(|| Some(Arc::new(self.charged(share)?))) else {
            return Arc::default();
        };
        if self.newer.len() >= TOKENS_MAX / 2 {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(digest, Arc::clone(&source));
        source
    }

    /// A source for which the tenant has room, if need be that of tokens which were not used lately.
    fn charged(&mut self, share: &Share) -> Option<TokenSource> {
        let room = || share.take(SOURCE_BYTES).ok();
        let held: Held = room().or_else(|| {
            self.older.clear();
            room()
        })?;
        Some(TokenSource::charged(held))
    }
}

/// How a user's token is got. It stays in the memory of the node that received the user's request.
pub(crate) struct Exchange {
    authority: Arc<Authority>,
    source: Arc<TokenSource>,
    from: From,
    turns: Arc<Turns>,
}

/// What a token is got for.
#[derive(Clone)]
enum From {
    /// The token with which the user authenticated at this node.
    Subject(Arc<str>),
    /// An account that the user has linked.
    Account(LinkedTokens),
}

impl Exchanges {
    /// No tokens yet. Those that will be kept are charged to this share.
    pub(crate) fn new(share: &Share) -> Self {
        let turns = Arc::default();
        Self { kept: Mutex::default(), turns, share: share.clone() }
    }

    /// The exchange of this token.
    pub(crate) fn of(&self, authority: &Arc<Authority>, subject: &str) -> Exchange {
        self.from(authority, subject, From::Subject(subject.into()))
    }

    /// The token of this user, who has linked an account.
    pub(crate) fn of_account(
        &self,
        authority: &Arc<Authority>,
        user: &UserKey,
        tokens: LinkedTokens,
    ) -> Exchange {
        // A token that was got before a revocation is not found after it.
        let key = format!("{} {}", user.revoked_ms, user.name);
        self.from(authority, &key, From::Account(tokens))
    }

    fn from(&self, authority: &Arc<Authority>, key: &str, from: From) -> Exchange {
        let digest = Sha256::digest(key.as_bytes()).into();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let source = kept.find(digest, &self.share);
        drop(kept);
        let (authority, turns) = (Arc::clone(authority), Arc::clone(&self.turns));
        Exchange { authority, source, from, turns }
    }
}

impl Exchange {
    /// The exchanged token, or another one than that which the server refused.
    pub(crate) async fn token(&self, refused: Option<&Token>) -> Result<Token, CredentialProblem> {
        let fetch = |replaced: Replaced| {
            let (authority, turns) = (Arc::clone(&self.authority), Arc::clone(&self.turns));
            let from = self.from.clone();
            async move {
                match from {
                    From::Subject(subject) => {
                        let fetched = async {
                            let _turn = turns.take().await?;
                            authority.exchange(&subject).await
                        };
                        let fetched = fetched.await;
                        metrics::count_token(TOKEN_EXCHANGE, fetched.as_ref().err());
                        fetched.map(Into::into)
                    }
                    From::Account(tokens) => tokens.fetch(&authority, &replaced, &turns).await,
                }
            }
        };
        self.source.token(refused, fetch).await
    }
}

impl protocol::TokenSource for Exchange {
    /// The next request exchanges the client's token anew, at most one in a while.
    fn note_refused(&self, token: &str) {
        self.source.note_refused(token);
    }
}

#[cfg(test)]
mod tests {
    use budget::{Budget, ShareLimits};

    use super::*;

    #[test]
    fn tokens_are_charged_to_the_tenant_and_those_without_room_are_not_kept() {
        let limits = ShareLimits { min: 0, max: 10 * SOURCE_BYTES };
        let budget = Budget::new(100 * SOURCE_BYTES, [("a".into(), limits)]);
        let share = budget.share("a").unwrap();
        let mut kept = Generations::default();
        let digest = |number: usize| Sha256::digest(number.to_string()).into();
        for number in 0..20 {
            kept.find(digest(number), &share);
        }
        assert_eq!((kept.newer.len(), share.used()), (10, 10 * SOURCE_BYTES));
        assert!(!Arc::ptr_eq(&kept.find(digest(15), &share), &kept.find(digest(15), &share)));
        // Those that were not used lately make room.
        kept.older = std::mem::take(&mut kept.newer);
        let first = kept.find(digest(0), &share);
        kept.find(digest(15), &share);
        assert_eq!((kept.newer.len(), kept.older.len()), (2, 0));
        assert_eq!(share.used(), 2 * SOURCE_BYTES);
        drop((kept, first));
        assert_eq!(share.used(), 0);
    }

    #[test]
    fn the_tokens_of_a_backend_are_bounded_and_those_in_use_stay() {
        let share = Budget::unlimited().unnamed_share("a");
        let mut kept = Generations::default();
        let digest = |number: usize| Sha256::digest(number.to_string()).into();
        let first = kept.find(digest(0), &share);
        for number in 1..5 * TOKENS_MAX {
            kept.find(digest(number), &share);
            assert!(Arc::ptr_eq(&kept.find(digest(0), &share), &first), "{number}");
        }
        assert!(kept.newer.len() + kept.older.len() <= TOKENS_MAX);
        assert!(!Arc::ptr_eq(&kept.find(digest(1), &share), &first));
    }
}
