//! The tokens of one user who has linked an account at the authorization server of an upstream server. All
//! nodes use them, and one refreshes them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::UserKey;
use super::answer::Fetched;
use super::authority::Authority;
use super::exchanges::Turns;
use super::problem::{CredentialProblem, OauthCode};
use super::token::Token;
use super::turn::in_turn;
use super::vault::{Vault, VaultUnavailable};

/// How long tokens are kept that are not refreshed. Then the user has to link the account again.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3_600);

/// How long before its end a token is refreshed.
const BEFORE_END: Duration = Duration::from_secs(60);

/// How long one node may take to refresh tokens and to keep them, and how often others look whether it has.
const REFRESHING: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(200);
const LOOKS_MAX: u32 = 50;

/// How long a node uses a token without a look into the vault, where another node may have forgotten it.
const IN_MEMORY: Duration = Duration::from_secs(60);

/// How often a node that forgets tokens waits for one that refreshes them, which would keep them again.
const FORGETS_MAX: u32 = 30;

/// How often a node tries to keep tokens that it has refreshed: the former refresh token may count no more.
const KEEPS_MAX: u32 = 20;

/// The tokens of a user for a server.
#[derive(Clone)]
pub(crate) struct LinkedTokens {
    vault: Arc<dyn Vault>,
    /// Their name in the vault.
    name: Arc<str>,
    /// Those that were linked before this do not count.
    revoked_ms: u64,
}

/// As the vault has them.
#[derive(Serialize, Deserialize)]
struct Kept {
    access: String,
    refresh: Option<String>,
    /// When the access token ends, in seconds since 1970.
    ends: u64,
    /// When the user was revoked last before the account was linked, in milliseconds since 1970, or 0.
    revoked_ms: u64,
}

impl LinkedTokens {
    /// Those of this user. `server` identifies the server, and the tenant.
    pub(crate) fn new(vault: &Arc<dyn Vault>, server: &str, user: &UserKey) -> Self {
        let name = serde_json::json!(["tokens", server, user.name]).to_string();
        Self { vault: Arc::clone(vault), name: name.into(), revoked_ms: user.revoked_ms }
    }

    /// Keeps tokens that the user has linked now.
    pub(crate) async fn keep(&self, fetched: &Fetched) -> Result<(), CredentialProblem> {
        self.keep_since(fetched, self.revoked_ms).await
    }

    /// Keeps tokens of an account that was linked after this revocation.
    async fn keep_since(
        &self,
        fetched: &Fetched,
        revoked_ms: u64,
    ) -> Result<(), CredentialProblem> {
        let kept = Kept {
            access: fetched.token.text().to_owned(),
            refresh: fetched.refresh.as_ref().map(|token| token.expose().to_owned()),
            ends: (now() + fetched.lifetime).as_secs(),
            revoked_ms,
        };
        // Without another token to get, they are of no use after their end.
        let within = if kept.refresh.is_some() { KEPT } else { fetched.lifetime };
        let bytes = serde_json::to_vec(&kept).map_err(|_| CredentialProblem::Invalid)?;
        Ok(self.vault.write(&self.name, &bytes, within).await?)
    }

    /// The access token, or another one than that which the server refused. `turns` are for requests to the
    /// authorization server.
    pub(crate) async fn fetch(
        &self,
        authority: &Arc<Authority>,
        refused: Option<&Token>,
        turns: &Arc<Turns>,
    ) -> Result<Fetched, CredentialProblem> {
        let mut fetched = self.fetch_to_the_end(authority, refused, turns).await?;
        fetched.lifetime = fetched.lifetime.min(IN_MEMORY);
        Ok(fetched)
    }

    /// Removes the tokens. Returns whether there were any that counted. Other nodes use them for at most
    /// [`IN_MEMORY`] from now on.
    pub(crate) async fn forget(&self) -> Result<bool, CredentialProblem> {
        for _ in 0..FORGETS_MAX {
            let tokens = self.clone();
            let forgetting = async move {
                let was_there = tokens.read().await;
                tokens.vault.take(&tokens.name).await?;
                Ok(was_there?.is_some())
            };
            if let Some(forgotten) = self.in_turn(forgetting).await? {
                return forgotten;
            }
            sleep(LOOK).await;
        }
        Err(CredentialProblem::Unavailable)
    }

    async fn fetch_to_the_end(
        &self,
        authority: &Arc<Authority>,
        refused: Option<&Token>,
        turns: &Arc<Turns>,
    ) -> Result<Fetched, CredentialProblem> {
        for _ in 0..LOOKS_MAX {
            let kept = self.read().await?.ok_or(CredentialProblem::NotLinked)?;
            let (access, revoked_ms) = (kept.access.clone(), kept.revoked_ms);
            let refresh = match kept.usable(refused) {
                Ok(fetched) => return Ok(fetched),
                Err(Some(refresh)) => refresh,
                Err(None) => {
                    self.end(|kept| kept.access == access).await?;
                    return Err(CredentialProblem::NotLinked);
                }
            };
            let tokens = self.clone();
            let (authority, turns) = (Arc::clone(authority), Arc::clone(turns));
            let refreshing = async move {
                // The node that had the turn before may have refreshed them meanwhile.
                let kept = tokens.read().await?;
                match kept.is_some_and(|kept| kept.refresh.as_deref() == Some(&*refresh)) {
                    true => {
                        tokens.refresh(&authority, (refresh, revoked_ms), &turns).await.map(Some)
                    }
                    false => Ok(None),
                }
            };
            match self.in_turn(refreshing).await? {
                Some(Ok(Some(refreshed))) => return Ok(refreshed),
                Some(Ok(None)) => {}
                Some(Err(problem)) => return Err(problem),
                None => sleep(LOOK).await,
            }
        }
        Err(CredentialProblem::Unavailable)
    }

    /// Performs what only one node may do at a time: refresh the tokens, or forget them. `None`: another one does.
    async fn in_turn<W>(&self, work: W) -> Result<Option<W::Output>, VaultUnavailable>
    where
        W: Future<Output: Send> + Send + 'static,
    {
        in_turn(&self.vault, &self.turn(), REFRESHING, work).await
    }

    /// The name of the turn.
    fn turn(&self) -> String {
        format!("refreshing {}", self.name)
    }

    async fn refresh(
        &self,
        authority: &Authority,
        (refresh, revoked_ms): (String, u64),
        turns: &Turns,
    ) -> Result<Fetched, CredentialProblem> {
        let turn = turns.take().await?;
        let refreshed = authority.refresh(&refresh).await;
        drop(turn);
        match refreshed {
            Ok(mut fetched) => {
                // RFC 6749, section 6: without a new one, the former goes on.
                fetched.refresh = fetched.refresh.or(Some(refresh.into()));
                let mut keeps = 1;
                while self.keep_since(&fetched, revoked_ms).await.is_err() && keeps < KEEPS_MAX {
                    keeps += 1;
                    sleep(LOOK).await;
                }
                // The access token counts in any case.
                Ok(fetched)
            }
            // The user, or the authorization server, has taken it back.
            Err(CredentialProblem::Refused(OauthCode::InvalidGrant)) => {
                self.end(|kept| kept.refresh.as_deref() == Some(&*refresh)).await?;
                Err(CredentialProblem::NotLinked)
            }
            Err(problem) => Err(problem),
        }
    }

    /// Forgets the tokens if they are still these: the user may have linked the account again.
    async fn end(&self, are_these: impl FnOnce(&Kept) -> bool) -> Result<(), CredentialProblem> {
        if self.read().await?.as_ref().is_some_and(are_these) {
            self.vault.take(&self.name).await?;
        }
        Ok(())
    }

    async fn read(&self) -> Result<Option<Kept>, CredentialProblem> {
        let bytes = self.vault.read(&self.name).await?;
        let kept: Option<Kept> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Ok(kept.filter(|kept| kept.revoked_ms >= self.revoked_ms))
    }
}

impl Kept {
    /// The access token, or what another one is got for.
    fn usable(self, refused: Option<&Token>) -> Result<Fetched, Option<String>> {
        let rest = Duration::from_secs(self.ends).saturating_sub(now());
        let token = Token::parse(&self.access);
        let is_refused = |token: &Token| refused.is_some_and(|refused| refused.is(token));
        match token.filter(|token| !is_refused(token)) {
            // A short one is used to its end if no other can be got.
            Some(token) if rest > BEFORE_END || (self.refresh.is_none() && !rest.is_zero()) => {
                let lifetime = if self.refresh.is_some() { rest - BEFORE_END } else { rest };
                Ok(Fetched { token, lifetime, refresh: self.refresh.map(Into::into) })
            }
            _ => Err(self.refresh),
        }
    }
}

impl From<VaultUnavailable> for CredentialProblem {
    fn from(VaultUnavailable: VaultUnavailable) -> Self {
        Self::StoreUnavailable
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::vault::tests::TestVault;
    use super::*;

    fn kept(secs: u64, refresh: Option<&str>) -> Kept {
        let ends = (now() + Duration::from_secs(secs)).as_secs();
        Kept { access: "a".into(), refresh: refresh.map(str::to_owned), ends, revoked_ms: 0 }
    }

    #[test]
    fn a_token_is_used_until_a_minute_before_its_end_or_to_its_end_if_there_is_no_other() {
        let fetched = kept(600, Some("r")).usable(None).unwrap();
        assert!(fetched.lifetime <= Duration::from_secs(540));
        assert_eq!(kept(50, Some("r")).usable(None).unwrap_err().as_deref(), Some("r"));
        assert!(kept(50, None).usable(None).is_ok());
        assert_eq!(kept(0, None).usable(None).unwrap_err(), None);
    }

    #[tokio::test]
    async fn what_was_linked_after_a_revocation_counts_also_when_that_is_forgotten() {
        let vault: Arc<dyn Vault> = Arc::new(TestVault::default());
        let tokens = |revoked_ms| {
            let user = UserKey { name: "ada".into(), revoked_ms };
            LinkedTokens::new(&vault, "a/main#0", &user)
        };
        let fetched = kept(600, Some("r")).usable(None).unwrap();
        tokens(0).keep(&fetched).await.unwrap();
        assert!(tokens(0).read().await.unwrap().is_some());
        assert!(tokens(7).read().await.unwrap().is_none(), "it was linked before");
        tokens(7).keep(&fetched).await.unwrap();
        assert!(tokens(7).read().await.unwrap().is_some());
        assert!(tokens(8).read().await.unwrap().is_none(), "revoked once more");
        assert!(tokens(0).read().await.unwrap().is_some());
        // A node that does not know the revocation any more refreshes them.
        let of_refresh = tokens(0);
        let revoked_ms = of_refresh.read().await.unwrap().unwrap().revoked_ms;
        of_refresh.keep_since(&fetched, revoked_ms).await.unwrap();
        assert!(tokens(7).read().await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_are_forgotten_while_no_node_refreshes_them() {
        let vault: Arc<dyn Vault> = Arc::new(TestVault::default());
        let user = UserKey { name: "ada".into(), revoked_ms: 0 };
        let tokens = LinkedTokens::new(&vault, "a/main#0", &user);
        assert!(!tokens.forget().await.unwrap());
        let fetched = kept(600, Some("r")).usable(None).unwrap();
        tokens.keep(&fetched).await.unwrap();
        // A node that refreshes them keeps them again.
        assert!(vault.claim(&tokens.turn(), REFRESHING).await.unwrap());
        assert_eq!(tokens.forget().await, Err(CredentialProblem::Unavailable));
        let (forgetting, kept_again) = (tokens.clone(), tokens.clone());
        let (forgotten, _) = tokio::join!(forgetting.forget(), async {
            sleep(LOOK * 3).await;
            kept_again.keep(&fetched).await.unwrap();
            kept_again.vault.take(&kept_again.turn()).await.unwrap();
        });
        assert_eq!(forgotten, Ok(true));
        assert!(tokens.read().await.unwrap().is_none());
    }

    #[test]
    fn a_refused_token_is_replaced_and_that_of_another_node_is_used() {
        let (refused, other) = (Token::parse("a").unwrap(), Token::parse("b").unwrap());
        let refresh = kept(600, Some("r")).usable(Some(&refused)).unwrap_err();
        assert_eq!(refresh.as_deref(), Some("r"));
        assert!(kept(600, Some("r")).usable(Some(&other)).is_ok());
    }
}
