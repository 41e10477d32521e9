//! How a user links an account at the authorization server of an upstream server, with a browser.
//!
//! 1. A request of the user's client needs a token, and there is none: [`Linking::begin`] makes a link, whose page
//!    the client has the user open.
//! 2. The page has the browser sign in at the issuer of the tenant: the user who opens it must be the one whose
//!    client it was made for.
//! 3. Then the user agrees at the authorization server of the upstream server, and the node gets the tokens.
//!
//! A step is bound to the browser by a cookie and to the one before by a state that counts once. All of it is in
//! the vault, so each step may be at another node. It expires.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::time::sleep;

use super::UserKey;
use super::authority::{Authority, CodeRequest, CodeResponse};
use super::linked::{LinkedTokens, now};
use super::problem::CredentialProblem;
use super::turn::in_turn;
use super::vault::{Vault, VaultUnavailable};

/// How long a link and each of its steps count.
const LINK: Duration = Duration::from_secs(600);

/// How long the same link is given to further requests of the user: the user needs time for the last one.
const SAME_LINK: Duration = Duration::from_secs(300);

/// How long a node has the turn to make a link of a user, and how often other requests look for that link. They
/// wait a little longer than the turn of a node that died.
const MAKING: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);
const LOOKS_MAX: u32 = 120;

/// Most links of a tenant that are pending, at all its servers and of all nodes together. Each takes one of as
/// many places. One in [`PLACES_TRIED`] chosen at random has to be free, otherwise the request gets an error: by
/// chance from about three quarters of them on.
const LINKS_MAX: u16 = 1_024;

/// See [`LINKS_MAX`]. Two random bytes choose each.
const PLACES_TRIED: usize = 16;

/// Most steps of one link, of which each is a note in the store. Then the user needs another link.
const STEPS_MAX: u8 = 32;

/// Longest text that a browser brings back.
const TEXT_BYTES_MAX: usize = 4_096;

/// Links accounts at one server. Cheap to clone.
#[derive(Clone)]
pub struct Linking {
    /// Identifies the server, and the tenant.
    server: Arc<str>,
    /// The authorization server of the upstream server.
    authority: Arc<Authority>,
    /// The issuer of the tenant.
    issuer: Arc<Authority>,
}

/// A link that was made for a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingLink {
    /// Identifies the server, and the tenant.
    pub server: String,
    /// The user whose client needs the token.
    pub user: UserKey,
    /// Its place among the links of the tenant.
    place: u16,
}

/// A step of a link that a browser has begun.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The id of the link.
    pub link: String,
    /// Whether the user has signed in.
    pub is_signed_in: bool,
    /// The SHA-256 of the browser's cookie.
    cookie: [u8; 32],
    /// See RFC 7636.
    verifier: String,
}

/// Prints nothing of the verifier.
impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Step")
    }
}

/// What a browser brought back from an authorization server.
#[derive(Clone, Copy)]
pub struct Returned<'a> {
    /// The code.
    pub code: &'a str,
    /// The issuer, if it is named.
    pub issuer: Option<&'a str>,
    /// The URL at which it came back.
    pub redirect_uri: &'a str,
}

impl Linking {
    pub(crate) fn new(server: &Arc<str>, authority: &Arc<Authority>, issuer: Authority) -> Self {
        let (server, authority) = (Arc::clone(server), Arc::clone(authority));
        Self { server, authority, issuer: Arc::new(issuer) }
    }

    /// Identifies the server, and the tenant.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The name of the backend.
    pub fn backend(&self) -> &str {
        let name = self.server.rsplit_once('#').map_or(&*self.server, |(name, _)| name);
        name.split_once('/').map_or(name, |(_, backend)| backend)
    }

    /// Removes the tokens of a user. Returns whether there were any. Those of a server that the settings
    /// had before are not used, and expire.
    pub async fn unlink(
        &self,
        vault: &Arc<dyn Vault>,
        user: &UserKey,
    ) -> Result<bool, CredentialProblem> {
        LinkedTokens::new(vault, &self.server, user).forget().await
    }

    /// The id of a link for this user. For a while it is the same one, also of requests at the same time: each
    /// link takes a place of the tenant.
    pub(crate) async fn begin(
        &self,
        vault: &Arc<dyn Vault>,
        user: &UserKey,
    ) -> Result<String, CredentialProblem> {
        let turn = name(&["making a link", &self.server, &user.name]);
        for _ in 0..LOOKS_MAX {
            if let Some(id) = self.last(&**vault, user).await? {
                return Ok(id);
            }
            let (linking, of_turn, user) = (self.clone(), Arc::clone(vault), user.clone());
            let making = async move { linking.last_or_new(&*of_turn, &user).await };
            if let Some(made) = in_turn(vault, &turn, MAKING, making).await? {
                return made;
            }
            sleep(LOOK).await;
        }
        // Others have had the turn all the time: the store is slow.
        Err(CredentialProblem::StoreUnavailable)
    }

    /// Makes a link, unless the request that had the turn before has made one.
    async fn last_or_new(
        &self,
        vault: &dyn Vault,
        user: &UserKey,
    ) -> Result<String, CredentialProblem> {
        match self.last(vault, user).await? {
            Some(id) => Ok(id),
            None => self.make(vault, user).await,
        }
    }

    async fn make(&self, vault: &dyn Vault, user: &UserKey) -> Result<String, CredentialProblem> {
        let place = self.take_place(vault).await?;
        let id = random(vault)?;
        let link = PendingLink { server: self.server.to_string(), user: user.clone(), place };
        write(vault, &name(&["link", &id]), &link).await?;
        vault.write(&self.last_name(user), id.as_bytes(), SAME_LINK).await?;
        Ok(id)
    }

    /// The id of the link that was made last for this user, if it is pending.
    async fn last(
        &self,
        vault: &dyn Vault,
        user: &UserKey,
    ) -> Result<Option<String>, VaultUnavailable> {
        let last = vault.read(&self.last_name(user)).await?;
        let Some(id) = last.and_then(|id| String::from_utf8(id).ok()) else { return Ok(None) };
        let link = PendingLink::find(vault, &id).await?;
        Ok(link.filter(|link| link.user == *user).map(|_| id))
    }

    /// The name under which the vault has the id of the last link of this user.
    fn last_name(&self, user: &UserKey) -> String {
        name(&["last link", &self.server, &user.name])
    }

    /// Where the browser with this cookie signs in. `resource`: what its token is for.
    pub async fn sign_in_url(
        &self,
        vault: &dyn Vault,
        link: &str,
        cookie: &str,
        redirect_uri: &str,
        resource: &str,
    ) -> Result<String, CredentialProblem> {
        let (state, challenge) = self.step(vault, link, cookie, false).await?;
        let (challenge, resource) = (challenge.as_str(), Some(resource));
        let request = CodeRequest { redirect_uri, state: &state, challenge, resource };
        self.issuer.authorization_url(request).await
    }

    /// The token with which the issuer says who signed in.
    pub async fn signed_in(
        &self,
        step: &Step,
        returned: Returned<'_>,
        resource: &str,
    ) -> Result<String, CredentialProblem> {
        let response = returned.with(step, Some(resource))?;
        Ok(self.issuer.redeem(response).await?.token.text().to_owned())
    }

    /// Where the user agrees, who has signed in.
    pub async fn agree_url(
        &self,
        vault: &dyn Vault,
        link: &str,
        cookie: &str,
        redirect_uri: &str,
    ) -> Result<String, CredentialProblem> {
        let (state, challenge) = self.step(vault, link, cookie, true).await?;
        let (challenge, resource) = (challenge.as_str(), None);
        let request = CodeRequest { redirect_uri, state: &state, challenge, resource };
        self.authority.authorization_url(request).await
    }

    /// Gets and keeps the tokens of the user who agreed. The link is over.
    pub async fn agreed(
        &self,
        vault: &Arc<dyn Vault>,
        step: &Step,
        link: &PendingLink,
        returned: Returned<'_>,
    ) -> Result<(), CredentialProblem> {
        let asked = now();
        let fetched = self.authority.redeem(returned.with(step, None)?).await?;
        LinkedTokens::new(vault, &self.server, &link.user).keep(&fetched, asked).await?;
        // The account is linked. What is not removed expires.
        let _ = vault.take(&name(&["link", &step.link])).await;
        let _ = vault.take(&self.last_name(&link.user)).await;
        let _ = vault.take(&self.place(link.place)).await;
        Ok(())
    }

    /// Takes a place for a link of the tenant. It is free again when the link is over.
    async fn take_place(&self, vault: &dyn Vault) -> Result<u16, CredentialProblem> {
        let random: [u8; 2 * PLACES_TRIED] = vault.random()?;
        for bytes in random.chunks_exact(2) {
            let place = u16::from_le_bytes([bytes[0], bytes[1]]) % LINKS_MAX;
            if vault.claim(&self.place(place), LINK).await? {
                return Ok(place);
            }
        }
        Err(CredentialProblem::TooManyLinks)
    }

    /// The name of a place among the links of the tenant.
    fn place(&self, place: u16) -> String {
        let tenant = self.server.split_once('/').map_or(&*self.server, |(tenant, _)| tenant);
        name(&["place", tenant, &place.to_string()])
    }

    /// Takes one of the steps of a link. Each has a name of its own, so that no two requests take the same one.
    async fn count_step(&self, vault: &dyn Vault, link: &str) -> Result<(), CredentialProblem> {
        let steps = name(&["steps", link]);
        // Where free ones begin, more or less.
        let first = vault.read(&steps).await?.and_then(|count| count.first().copied());
        for step in first.unwrap_or_default()..STEPS_MAX {
            if vault.claim(&name(&["step of", link, &step.to_string()]), LINK).await? {
                return Ok(vault.write(&steps, &[step + 1], LINK).await?);
            }
        }
        Err(CredentialProblem::TooManySteps)
    }

    /// Begins a step, and returns its state and the challenge of its verifier.
    async fn step(
        &self,
        vault: &dyn Vault,
        link: &str,
        cookie: &str,
        is_signed_in: bool,
    ) -> Result<(String, String), CredentialProblem> {
        self.count_step(vault, link).await?;
        let (state, verifier) = (format!("{}.{}", tag(link), random(vault)?), random(vault)?);
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
        let cookie = Sha256::digest(cookie.as_bytes()).into();
        let step = Step { link: link.to_owned(), is_signed_in, cookie, verifier };
        write(vault, &name(&["step", &state]), &step).await?;
        Ok((state, challenge))
    }
}

impl PendingLink {
    /// The link with this id.
    pub async fn find(vault: &dyn Vault, id: &str) -> Result<Option<Self>, VaultUnavailable> {
        let bytes = vault.read(&name(&["link", id])).await?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }
}

impl Step {
    /// The step with this state, if the browser with this cookie has begun it. It counts once.
    pub async fn take(
        vault: &dyn Vault,
        state: &str,
        cookie: &str,
    ) -> Result<Option<Self>, VaultUnavailable> {
        if state.len() > TEXT_BYTES_MAX {
            return Ok(None);
        }
        let bytes = vault.take(&name(&["step", state])).await?;
        let step: Option<Self> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        // The digests are compared: how long that takes shows nothing of the cookie.
        Ok(step.filter(|step| Sha256::digest(cookie.as_bytes())[..] == step.cookie))
    }
}

impl<'a> Returned<'a> {
    fn with(
        self,
        step: &'a Step,
        resource: Option<&'a str>,
    ) -> Result<CodeResponse<'a>, CredentialProblem> {
        let Self { code, issuer, redirect_uri } = self;
        if code.len() > TEXT_BYTES_MAX {
            return Err(CredentialProblem::Invalid);
        }
        Ok(CodeResponse { code, issuer, redirect_uri, verifier: &step.verifier, resource })
    }
}

/// Tells the cookies of several links in one browser apart. A state begins with it.
pub fn tag(link: &str) -> String {
    let digest = Sha256::digest(link.as_bytes());
    digest[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A text of 256 random bits, for URLs.
pub fn random(vault: &dyn Vault) -> Result<String, VaultUnavailable> {
    vault.random().map(|bytes| URL_SAFE_NO_PAD.encode(bytes))
}

/// A name in the vault. No two lists of parts have the same.
fn name(parts: &[&str]) -> String {
    serde_json::json!(parts).to_string()
}

async fn write(
    vault: &dyn Vault,
    name: &str,
    what: &impl Serialize,
) -> Result<(), CredentialProblem> {
    let bytes = serde_json::to_vec(what).map_err(|_| CredentialProblem::Invalid)?;
    Ok(vault.write(name, &bytes, LINK).await?)
}

#[cfg(test)]
mod tests {
    use budget::Budget;

    use super::super::answer::Fetched;
    use super::super::source::Replaced;
    use super::super::token::Token;
    use super::super::vault::tests::TestVault;
    use super::*;
    use crate::credential::CredentialSettings;
    use crate::settings::HttpSettings;
    use crate::url::Url;

    fn vault() -> Arc<dyn Vault> {
        Arc::new(TestVault::default())
    }

    fn linking() -> Linking {
        linking_of("a/main#0")
    }

    fn linking_of(server: &str) -> Linking {
        let authority = || {
            let mut settings = HttpSettings::new("https://mcp.example.com/mcp");
            settings.credential =
                CredentialSettings { client_id: "node".into(), ..CredentialSettings::default() };
            let (url, share) = (Url::parse(&settings.url).unwrap(), Budget::unlimited());
            Authority::new("a/main", &settings, &url, &share.unnamed_share("a")).unwrap()
        };
        Linking::new(&server.into(), &Arc::new(authority()), authority())
    }

    #[tokio::test]
    async fn a_user_gets_one_link_and_another_user_another_one() {
        let (linking, vault) = (linking(), vault());
        let user = |name: &str, revoked_ms| UserKey { name: name.into(), revoked_ms };
        let id = linking.begin(&vault, &user("ada", 0)).await.unwrap();
        assert_eq!(linking.begin(&vault, &user("ada", 0)).await.unwrap(), id);
        assert_ne!(linking.begin(&vault, &user("bob", 0)).await.unwrap(), id);
        let link = PendingLink::find(&*vault, &id).await.unwrap().unwrap();
        assert_eq!((&*link.server, &link.user), ("a/main#0", &user("ada", 0)));
        // One that was made before a revocation is not given after it.
        assert_ne!(linking.begin(&vault, &user("ada", 1)).await.unwrap(), id);
        assert_eq!(PendingLink::find(&*vault, "unknown").await.unwrap(), None);
        assert_eq!(linking.backend(), "main");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_a_user_at_the_same_time_get_one_link() {
        let (linking, vault) = (linking(), vault());
        let user = UserKey { name: "ada".into(), revoked_ms: 0 };
        let begin = || linking.begin(&vault, &user);
        let links = futures_util::future::join_all((0..32).map(|_| begin())).await;
        assert!(links[0].is_ok() && links.iter().all(|link| *link == links[0]), "{links:?}");
        // A node that died with the turn delays others until that is over.
        vault.take(&linking.last_name(&user)).await.unwrap();
        let (died, turn) =
            (tokio::time::Instant::now(), name(&["making a link", "a/main#0", "ada"]));
        assert!(vault.claim(&turn, MAKING).await.unwrap());
        let (begun, _) = tokio::join!(begin(), async {
            sleep(MAKING).await;
            vault.take(&turn).await
        });
        assert!(died.elapsed() >= MAKING);
        assert!(begun.is_ok_and(|id| links[0].as_ref() != Ok(&id)));
    }

    #[tokio::test]
    async fn a_node_looks_at_least_once_a_minute_whether_an_account_is_still_linked() {
        let (linking, vault) = (linking(), vault());
        let user = UserKey { name: "ada".into(), revoked_ms: 0 };
        let tokens = LinkedTokens::new(&vault, linking.server(), &user);
        let (token, lifetime) = (Token::parse("a").unwrap(), Duration::from_secs(3_600));
        tokens
            .keep(&Fetched { token, lifetime, refresh: Some("r".to_owned().into()) }, now())
            .await
            .unwrap();
        let fetch = async || {
            let current =
                tokens.fetch(&linking.authority, &Replaced::default(), &Arc::default()).await;
            current.map(|current| current.renew_after.as_secs())
        };
        assert_eq!(fetch().await, Ok(45));
        assert_eq!(linking.unlink(&vault, &user).await, Ok(true));
        assert_eq!(fetch().await, Err(CredentialProblem::NotLinked));
        assert_eq!(linking.unlink(&vault, &user).await, Ok(false));
    }

    #[tokio::test]
    async fn the_links_of_a_tenant_are_bounded_and_those_of_another_one_are_its_own() {
        let (first, vault) = (linking_of("a/main#0"), vault());
        let user = |name: usize| UserKey { name: name.to_string(), revoked_ms: 0 };
        for place in 0..LINKS_MAX {
            vault.claim(&first.place(place), LINK).await.unwrap();
        }
        let second = linking_of("a/other#0");
        for linking in [&first, &second] {
            let begun = linking.begin(&vault, &user(1)).await;
            assert_eq!(begun.err(), Some(CredentialProblem::TooManyLinks));
        }
        let other = linking_of("b/main#0");
        let id = other.begin(&vault, &user(1)).await.unwrap();
        // The same link takes no other place.
        let link = PendingLink::find(&*vault, &id).await.unwrap().unwrap();
        assert_eq!(other.begin(&vault, &user(1)).await.unwrap(), id);
        assert!(!vault.claim(&other.place(link.place), LINK).await.unwrap());
    }

    #[tokio::test]
    async fn a_step_is_of_one_cookie_and_counts_once() {
        let (linking, vault) = (linking(), TestVault::default());
        let (state, challenge) = linking.step(&vault, "link", "cookie", true).await.unwrap();
        assert!(state.starts_with(&tag("link")));
        let step = Step::take(&vault, &state, "cookie").await.unwrap().unwrap();
        assert!(step.link == "link" && step.is_signed_in);
        let expected = URL_SAFE_NO_PAD.encode(Sha256::digest(step.verifier.as_bytes()));
        assert_eq!(challenge, expected);
        assert_eq!(Step::take(&vault, &state, "cookie").await.unwrap(), None);
        let (state, _) = linking.step(&vault, "link", "cookie", true).await.unwrap();
        assert_eq!(Step::take(&vault, &state, "another").await.unwrap(), None);
        assert_eq!(Step::take(&vault, &state, "cookie").await.unwrap(), None, "it was tried");
    }

    #[tokio::test]
    async fn the_steps_of_a_link_are_bounded() {
        let (linking, vault) = (linking(), TestVault::default());
        for _ in 0..STEPS_MAX {
            linking.step(&vault, "link", "cookie", false).await.unwrap();
        }
        let step = linking.step(&vault, "link", "cookie", false).await;
        assert_eq!(step.err(), Some(CredentialProblem::TooManySteps));
        assert!(linking.step(&vault, "other", "cookie", false).await.is_ok());
    }
}
