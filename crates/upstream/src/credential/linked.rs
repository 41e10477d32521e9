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
use super::refresh::{Current, renew_before, skew};
use super::source::Replaced;
use super::token::Token;
use super::turn::in_turn;
use super::vault::{Vault, VaultUnavailable};
use crate::metrics::{self, AUTHORIZATION_CODE};

/// How long tokens are kept that are not refreshed. Then the user has to link the account again.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3_600);

/// How long one node may take to refresh tokens and to keep them, and how often others look whether it has.
const REFRESHING: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(200);
const LOOKS_MAX: u32 = 50;

/// How long a node uses a token without a look into the vault, where another node may have forgotten it, and
/// when it looks.
const IN_MEMORY: Duration = Duration::from_secs(60);
const LOOK_AFTER: Duration = Duration::from_secs(45);

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
    /// How many seconds it counted in all. The program before did not keep it.
    #[serde(default = "long_life")]
    lifetime: u64,
    /// When the user was revoked last before the account was linked, in milliseconds since 1970, or 0.
    revoked_ms: u64,
}

impl LinkedTokens {
    /// Those of this user. `server` identifies the server, and the tenant.
    pub(crate) fn new(vault: &Arc<dyn Vault>, server: &str, user: &UserKey) -> Self {
        let name = serde_json::json!(["tokens", server, user.name]).to_string();
        Self { vault: Arc::clone(vault), name: name.into(), revoked_ms: user.revoked_ms }
    }

    /// Keeps tokens that the user has linked now. `asked`: since 1970, when the authorization server was asked for
    /// them.
    pub(crate) async fn keep(
        &self,
        fetched: &Fetched,
        asked: Duration,
    ) -> Result<(), CredentialProblem> {
        self.keep_since(fetched, asked, self.revoked_ms).await
    }

    /// Keeps tokens of an account that was linked after this revocation.
    async fn keep_since(
        &self,
        fetched: &Fetched,
        asked: Duration,
        revoked_ms: u64,
    ) -> Result<(), CredentialProblem> {
        let kept = Kept {
            access: fetched.token.text().to_owned(),
            refresh: fetched.refresh.as_ref().map(|token| token.expose().to_owned()),
            ends: (asked + fetched.lifetime).as_secs(),
            lifetime: fetched.lifetime.as_secs(),
            revoked_ms,
        };
        // Without another token to get, they are of no use after their end.
        let within = if kept.refresh.is_some() { KEPT } else { fetched.lifetime };
        let bytes = serde_json::to_vec(&kept).map_err(|_| CredentialProblem::Invalid)?;
        Ok(self.vault.write(&self.name, &bytes, within).await?)
    }

    /// The access token that the vault has, if that is another one than what it replaces; it may be due. Otherwise
    /// the next one. `turns` are for requests to the authorization server.
    pub(crate) async fn fetch(
        &self,
        authority: &Arc<Authority>,
        replaced: &Replaced,
        turns: &Arc<Turns>,
    ) -> Result<Current, CredentialProblem> {
        for _ in 0..LOOKS_MAX {
            let kept = self.read().await?.ok_or_else(not_linked)?;
            let (access, revoked_ms) = (kept.access.clone(), kept.revoked_ms);
            let refresh = match kept.usable(replaced) {
                Usable::Now(current) => return Ok(current),
                Usable::Due(refresh) => refresh,
                Usable::Never => {
                    self.end(|kept| kept.access == access).await?;
                    return Err(not_linked());
                }
            };
            let tokens = self.clone();
            let (authority, turns) = (Arc::clone(authority), Arc::clone(turns));
            let refreshing = async move {
                // The node that had the turn before may have refreshed them meanwhile. Not each authorization
                // server gives another refresh token then.
                let is_same = |kept: Kept| {
                    kept.access == access && kept.refresh.as_deref() == Some(&*refresh)
                };
                match tokens.read().await?.is_some_and(is_same) {
                    true => {
                        tokens.refresh(&authority, (refresh, revoked_ms), &turns).await.map(Some)
                    }
                    false => Ok(None),
                }
            };
            match self.in_turn(refreshing).await? {
                Some(Ok(Some(current))) => return Ok(current),
                Some(Ok(None)) => {}
                Some(Err(problem)) => return Err(problem),
                None => sleep(LOOK).await,
            }
        }
        Err(CredentialProblem::Unavailable)
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
    ) -> Result<Current, CredentialProblem> {
        let asked = now();
        let refreshed = async {
            let _turn = turns.take().await?;
            authority.refresh(&refresh).await
        };
        let refreshed = refreshed.await;
        metrics::count_token(AUTHORIZATION_CODE, refreshed.as_ref().err());
        match refreshed {
            Ok(mut fetched) => {
                // RFC 6749, section 6: without a new one, the former goes on.
                fetched.refresh = fetched.refresh.or(Some(refresh.into()));
                let mut keeps = 1;
                while self.keep_since(&fetched, asked, revoked_ms).await.is_err()
                    && keeps < KEEPS_MAX
                {
                    keeps += 1;
                    sleep(LOOK).await;
                }
                // The access token counts in any case.
                Ok(of_all_nodes(fetched.token, fetched.lifetime, fetched.lifetime))
            }
            // The user, or the authorization server, has taken it back.
            Err(CredentialProblem::Refused(OauthCode::InvalidGrant)) => {
                // What stays in the vault leads here again.
                let _ = self.end(|kept| kept.refresh.as_deref() == Some(&*refresh)).await;
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

/// What a node does with the tokens of the vault.
#[derive(Debug)]
enum Usable {
    /// It uses the access token.
    Now(Current),
    /// It gets another one, for this refresh token.
    Due(String),
    /// Neither can be used.
    Never,
}

impl Kept {
    /// What a node does that has this token.
    fn usable(self, replaced: &Replaced) -> Usable {
        let rest = Duration::from_secs(self.ends).saturating_sub(now());
        let lifetime = Duration::from_secs(self.lifetime);
        let is =
            |token: &Option<Token>| token.as_ref().is_some_and(|token| token.text() == self.access);
        let (is_refused, is_known) = (is(&replaced.refused), is(&replaced.known));
        let token = Token::parse(&self.access).filter(|_| !is_refused);
        match (token, self.refresh) {
            (Some(token), Some(refresh)) => {
                let current = of_all_nodes(token, rest, lifetime);
                // A node that has it gets another one when it is due. One that has none takes it first, also if it
                // is due, so that there is one to use while another one is got.
                let counts = if is_known { current.wait_after } else { current.usable_for };
                if counts.is_zero() { Usable::Due(refresh) } else { Usable::Now(current) }
            }
            (None, Some(refresh)) => Usable::Due(refresh),
            // It is used to its end: there is no other one.
            (Some(token), None) if !rest.is_zero() => {
                let lifetime = rest.min(IN_MEMORY);
                Usable::Now(Fetched { token, lifetime, refresh: None }.into())
            }
            (_, None) => Usable::Never,
        }
    }
}

/// How a node uses a token with this rest of its lifetime. Many authorization servers end a token when another one
/// is got for its refresh token, so when that is due at one node it is at all, and requests wait for it.
fn of_all_nodes(token: Token, rest: Duration, lifetime: Duration) -> Current {
    let due = rest.saturating_sub(renew_before(lifetime));
    let usable_for = rest.saturating_sub(skew(lifetime)).min(IN_MEMORY);
    Current { token, renew_after: due.min(LOOK_AFTER), wait_after: due.min(usable_for), usable_for }
}

/// The user has linked no account: no authorization server is asked.
fn not_linked() -> CredentialProblem {
    let problem = CredentialProblem::NotLinked;
    metrics::count_token(AUTHORIZATION_CODE, Some(&problem));
    problem
}

/// A lifetime of which as much is left as of any when a token is due.
fn long_life() -> u64 {
    3_600
}

impl From<VaultUnavailable> for CredentialProblem {
    fn from(VaultUnavailable: VaultUnavailable) -> Self {
        Self::StoreUnavailable
    }
}

/// The time since 1970.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use budget::Budget;

    use super::super::settings::{CredentialSettings, Grant};
    use super::super::source::TokenSource;
    use super::super::vault::tests::TestVault;
    use super::*;
    use crate::settings::HttpSettings;
    use crate::url::Url;

    fn kept(secs: u64, refresh: Option<&str>) -> Kept {
        let ends = (now() + Duration::from_secs(secs)).as_secs();
        let refresh = refresh.map(str::to_owned);
        Kept { access: "a".into(), refresh, ends, lifetime: 600, revoked_ms: 0 }
    }

    fn fetched(text: &str, secs: u64) -> Fetched {
        let (token, lifetime) = (Token::parse(text).unwrap(), Duration::from_secs(secs));
        Fetched { token, lifetime, refresh: Some("r".to_owned().into()) }
    }

    /// An authorization server that does not listen.
    fn absent() -> Arc<Authority> {
        let mut settings = HttpSettings::new("http://127.0.0.1:1/mcp");
        settings.allow_networks = vec!["127.0.0.0/8".parse().unwrap()];
        settings.credential = CredentialSettings {
            grant: Grant::AuthorizationCode,
            token_url: "http://127.0.0.1:1/token".into(),
            ..CredentialSettings::default()
        };
        let (url, share) = (Url::parse(&settings.url).unwrap(), Budget::unlimited());
        Authority::new("a/b", &settings, &url, &share.unnamed_share("a")).unwrap().into()
    }

    /// What a node replaces that has the token `a`.
    fn known() -> Replaced {
        Replaced { known: Token::parse("a"), ..Replaced::default() }
    }

    #[test]
    fn a_token_is_due_at_all_nodes_a_minute_before_its_end_and_counts_until_ten_seconds_before_it()
    {
        let (none, refresh) = (Replaced::default(), Some("r"));
        let Usable::Now(current) = kept(90, refresh).usable(&known()) else { panic!("it is due") };
        // Ends are kept in whole seconds.
        assert!((28..30).contains(&current.wait_after.as_secs()), "{current:?}");
        assert_eq!(current.renew_after, current.wait_after);
        assert_eq!(current.usable_for, IN_MEMORY);
        assert!(
            matches!(kept(50, refresh).usable(&known()), Usable::Due(refresh) if refresh == "r")
        );
        // A node that has no token yet uses it while another one is got.
        let Usable::Now(current) = kept(50, refresh).usable(&none) else { panic!("it is unused") };
        assert_eq!(current.wait_after, Duration::ZERO);
        assert!((38..40).contains(&current.usable_for.as_secs()), "{current:?}");
        assert!(matches!(kept(10, refresh).usable(&none), Usable::Due(_)));
        assert!(matches!(kept(50, None).usable(&known()), Usable::Now(_)));
        assert!(matches!(kept(0, None).usable(&none), Usable::Never));
        // A short one is due in its last quarter.
        let (token, second) = (Token::parse("a").unwrap(), Duration::from_secs(1));
        let Current { wait_after, usable_for, .. } = of_all_nodes(token, 20 * second, 20 * second);
        assert_eq!((wait_after, usable_for), (15 * second, 18 * second));
    }

    #[test]
    fn tokens_that_an_older_program_has_kept_are_due_a_minute_before_their_end() {
        let ends = now().as_secs() + 60;
        let text = format!(r#"{{"access":"a","refresh":"r","ends":{ends},"revoked_ms":0}}"#);
        let kept: Kept = serde_json::from_str(&text).unwrap();
        assert!(matches!(kept.usable(&known()), Usable::Due(_)));
    }

    #[tokio::test]
    async fn a_token_that_is_due_stays_when_no_other_can_be_got() {
        let vault: Arc<dyn Vault> = Arc::new(TestVault::default());
        let user = UserKey { name: "ada".into(), revoked_ms: 0 };
        let tokens = LinkedTokens::new(&vault, "a/main#0", &user);
        let (authority, turns) = (absent(), Arc::default());
        let asked = now() - Duration::from_secs(550);
        tokens.keep(&fetched("a", 600), asked).await.unwrap();
        let source = Arc::new(TokenSource::default());
        let fetch = |replaced: Replaced| {
            let (tokens, authority, turns) =
                (tokens.clone(), Arc::clone(&authority), Arc::clone(&turns));
            async move { tokens.fetch(&authority, &replaced, &turns).await }
        };
        assert_eq!(source.token(None, fetch).await.unwrap().text(), "a");
        // The server refuses it.
        let refused = Token::parse("a").unwrap();
        let problem = source.token(Some(&refused), fetch).await.err();
        assert_eq!(problem, Some(CredentialProblem::Rejected));
        // A node that has no token yet, while another one gets the next and does not come to an end.
        assert!(vault.claim(&tokens.turn(), REFRESHING).await.unwrap());
        let source = Arc::new(TokenSource::default());
        assert_eq!(source.token(None, fetch).await.unwrap().text(), "a");
    }

    #[tokio::test]
    async fn tokens_are_refreshed_once_also_if_the_refresh_token_stays() {
        let test_vault = Arc::new(TestVault::default());
        let vault: Arc<dyn Vault> = Arc::clone(&test_vault) as _;
        let user = UserKey { name: "ada".into(), revoked_ms: 0 };
        let tokens = LinkedTokens::new(&vault, "a/main#0", &user);
        let asked = now() - Duration::from_secs(550);
        tokens.keep(&fetched("a", 600), asked).await.unwrap();
        // Another node refreshes them just before this one has its turn.
        let next = Kept { access: "b".into(), ..kept(600, Some("r")) };
        test_vault.write_at_the_next_claim(&tokens.name, &serde_json::to_vec(&next).unwrap());
        let current = tokens.fetch(&absent(), &known(), &Arc::default()).await.unwrap();
        assert_eq!(current.token.text(), "b");
    }

    #[tokio::test]
    async fn what_was_linked_after_a_revocation_counts_also_when_that_is_forgotten() {
        let vault: Arc<dyn Vault> = Arc::new(TestVault::default());
        let tokens = |revoked_ms| {
            let user = UserKey { name: "ada".into(), revoked_ms };
            LinkedTokens::new(&vault, "a/main#0", &user)
        };
        let fetched = fetched("a", 600);
        tokens(0).keep(&fetched, now()).await.unwrap();
        assert!(tokens(0).read().await.unwrap().is_some());
        assert!(tokens(7).read().await.unwrap().is_none(), "it was linked before");
        tokens(7).keep(&fetched, now()).await.unwrap();
        assert!(tokens(7).read().await.unwrap().is_some());
        assert!(tokens(8).read().await.unwrap().is_none(), "revoked once more");
        assert!(tokens(0).read().await.unwrap().is_some());
        // A node that does not know the revocation any more refreshes them.
        let of_refresh = tokens(0);
        let revoked_ms = of_refresh.read().await.unwrap().unwrap().revoked_ms;
        of_refresh.keep_since(&fetched, now(), revoked_ms).await.unwrap();
        assert!(tokens(7).read().await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_are_forgotten_while_no_node_refreshes_them() {
        let vault: Arc<dyn Vault> = Arc::new(TestVault::default());
        let user = UserKey { name: "ada".into(), revoked_ms: 0 };
        let tokens = LinkedTokens::new(&vault, "a/main#0", &user);
        assert!(!tokens.forget().await.unwrap());
        let fetched = fetched("a", 600);
        tokens.keep(&fetched, now()).await.unwrap();
        // A node that refreshes them keeps them again.
        assert!(vault.claim(&tokens.turn(), REFRESHING).await.unwrap());
        assert_eq!(tokens.forget().await, Err(CredentialProblem::Unavailable));
        let (forgetting, kept_again) = (tokens.clone(), tokens.clone());
        let (forgotten, _) = tokio::join!(forgetting.forget(), async {
            sleep(LOOK * 3).await;
            kept_again.keep(&fetched, now()).await.unwrap();
            kept_again.vault.take(&kept_again.turn()).await.unwrap();
        });
        assert_eq!(forgotten, Ok(true));
        assert!(tokens.read().await.unwrap().is_none());
    }

    #[test]
    fn a_refused_token_is_replaced_and_that_of_another_node_is_used() {
        let refused = |text| Replaced { refused: Token::parse(text), ..Replaced::default() };
        assert!(matches!(kept(600, Some("r")).usable(&refused("a")), Usable::Due(_)));
        assert!(matches!(kept(600, Some("r")).usable(&refused("b")), Usable::Now(_)));
    }
}
