//! Tokens that were verified, so that each is verified once in a while and not at each request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use tenants::OauthRules;
use tokio::time::Instant;

use crate::Identity;

/// Most verified tokens of one tenant that are kept, on each thread; a further one replaces one that
/// was not used lately. The replaced one is verified again when it comes.
const TOKENS_MAX: usize = 2_048;

/// How long a verified token is kept. A key that the issuer removed counts for so long, and the time
/// after which its keys are fetched.
const KEPT: Duration = Duration::from_secs(60);

/// The SHA-256 of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// The digest of this token.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }
}

/// The verified tokens of all tenants, on one thread.
#[derive(Clone, Debug, Default)]
pub struct TokenCache(HashMap<Arc<str>, OfTenant>);

/// Tokens are in two generations: when the newer one is full, the older one is dropped. A token that
/// is found in the older one moves to the newer.
#[derive(Clone, Debug)]
struct OfTenant {
    rules: Arc<OauthRules>,
    /// When a token was kept last. Later than [`KEPT`] after that no token counts.
    kept_at: Instant,
    newer: HashMap<TokenDigest, Verified>,
    older: HashMap<TokenDigest, Verified>,
}

#[derive(Clone, Debug)]
struct Verified {
    identity: Arc<Identity>,
    until: Instant,
}

impl TokenCache {
    /// The client of a token that was verified under these rules.
    pub fn find(
        &mut self,
        tenant: &str,
        rules: &Arc<OauthRules>,
        token: TokenDigest,
    ) -> Option<Arc<Identity>> {
        let cache = self.0.get_mut(tenant).filter(|cache| cache.is_under(rules))?;
        if let Some(verified) = cache.older.remove(&token) {
            cache.add(token, verified);
        }
        let verified = cache.newer.get(&token)?;
        let counts =
            verified.until > Instant::now() && verified.identity.expires > SystemTime::now();
        counts.then(|| Arc::clone(&verified.identity))
    }

    /// Forgets a token.
    pub fn forget(&mut self, tenant: &str, token: TokenDigest) {
        if let Some(cache) = self.0.get_mut(tenant) {
            cache.newer.remove(&token);
            cache.older.remove(&token);
        }
    }

    /// Keeps a verified token for a while.
    pub fn keep(
        &mut self,
        tenant: &Arc<str>,
        rules: &Arc<OauthRules>,
        token: TokenDigest,
        identity: Arc<Identity>,
    ) {
        let now = Instant::now();
        let verified = Verified { identity, until: now + KEPT };
        if !self.0.contains_key(tenant) {
            // Tenants that are not served any more.
            self.0.retain(|_, other| now.duration_since(other.kept_at) < KEPT);
        }
        let cache = self.0.entry(Arc::clone(tenant)).or_insert_with(|| OfTenant::new(rules));
        // What was verified under other rules does not count.
        if !cache.is_under(rules) {
            *cache = OfTenant::new(rules);
        }
        cache.kept_at = now;
        cache.add(token, verified);
    }
}

impl OfTenant {
    fn new(rules: &Arc<OauthRules>) -> Self {
        let (newer, older) = (HashMap::new(), HashMap::new());
        Self { rules: Arc::clone(rules), kept_at: Instant::now(), newer, older }
    }

    /// Whether the tokens were verified under these rules. A reload of the settings copies rules that
    /// stay the same.
    fn is_under(&self, rules: &Arc<OauthRules>) -> bool {
        Arc::ptr_eq(&self.rules, rules) || self.rules == *rules
    }

    fn add(&mut self, token: TokenDigest, verified: Verified) {
        if self.newer.len() >= TOKENS_MAX / 2 && !self.newer.contains_key(&token) {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(token, verified);
    }
}

#[cfg(test)]
mod tests {
    use tenants::{ClaimValues, Principal, Scopes};

    use super::*;

    fn rules() -> Arc<OauthRules> {
        Arc::new(OauthRules::of_issuer("https://i.example"))
    }

    fn identity(name: &str) -> Arc<Identity> {
        let expires = SystemTime::now() + Duration::from_secs(3_600);
        let (principal, scopes) = (Principal::named(name), Scopes::default());
        let claims = ClaimValues::default();
        Arc::new(Identity { principal, scopes, claims, expires, issued: None })
    }

    fn token(number: usize) -> TokenDigest {
        TokenDigest::of(&number.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_counts_for_its_tenant_and_its_rules_and_for_a_minute() {
        let (mut cache, rules, tenant) = (TokenCache::default(), rules(), Arc::from("a"));
        cache.keep(&tenant, &rules, token(1), identity("ada"));
        assert_eq!(cache.find("a", &rules, token(1)).unwrap().principal.name(), "ada");
        assert!(cache.find("b", &rules, token(1)).is_none());
        assert!(cache.find("a", &rules, token(2)).is_none());
        assert!(cache.find("a", &self::rules(), token(1)).is_some(), "the same after a reload");
        let others = Arc::new(OauthRules::of_issuer("https://other.example"));
        assert!(cache.find("a", &others, token(1)).is_none());
        // Their values were not kept.
        let claims = ClaimValues::of([("groups", "admins")]);
        let more = Arc::new(OauthRules { claims, ..OauthRules::clone(&rules) });
        assert!(cache.find("a", &more, token(1)).is_none());
        tokio::time::advance(KEPT).await;
        assert!(cache.find("a", &rules, token(1)).is_none());
    }

    #[test]
    fn a_token_that_has_ended_does_not_count() {
        let (mut cache, rules, tenant) = (TokenCache::default(), rules(), Arc::from("a"));
        let ended = Identity { expires: SystemTime::now(), ..Identity::clone(&identity("ada")) };
        cache.keep(&tenant, &rules, token(1), Arc::new(ended));
        assert!(cache.find("a", &rules, token(1)).is_none());
    }

    #[test]
    fn the_tokens_of_a_tenant_are_bounded_and_those_in_use_stay() {
        let (mut cache, rules, tenant) = (TokenCache::default(), rules(), Arc::from("a"));
        cache.keep(&tenant, &rules, token(0), identity("ada"));
        for number in 1..10 * TOKENS_MAX {
            cache.keep(&tenant, &rules, token(number), identity("bob"));
            assert!(cache.find("a", &rules, token(0)).is_some(), "{number}");
        }
        let of_tenant = &cache.0["a"];
        assert!(of_tenant.newer.len() + of_tenant.older.len() <= TOKENS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_in_use_is_verified_again_after_a_minute_as_well() {
        let (mut cache, rules, tenant) = (TokenCache::default(), rules(), Arc::from("a"));
        cache.keep(&tenant, &rules, token(0), identity("ada"));
        tokio::time::advance(KEPT / 2).await;
        // It becomes one of the older ones, and moves back when it is found.
        (1..=TOKENS_MAX / 2).for_each(|n| cache.keep(&tenant, &rules, token(n), identity("bob")));
        assert!(cache.0["a"].older.contains_key(&token(0)));
        assert!(cache.find("a", &rules, token(0)).is_some());
        tokio::time::advance(KEPT / 2).await;
        assert!(cache.find("a", &rules, token(0)).is_none());
    }

    #[test]
    fn a_forgotten_token_does_not_count() {
        let (mut cache, rules, tenant) = (TokenCache::default(), rules(), Arc::from("a"));
        cache.keep(&tenant, &rules, token(0), identity("ada"));
        (1..=TOKENS_MAX / 2).for_each(|n| cache.keep(&tenant, &rules, token(n), identity("bob")));
        assert!(cache.0["a"].older.contains_key(&token(0)));
        for number in [0, TOKENS_MAX / 2] {
            cache.forget("a", token(number));
            assert!(cache.find("a", &rules, token(number)).is_none(), "{number}");
        }
        assert!(cache.find("a", &rules, token(1)).is_some());
    }

    /// A thread may keep a token under former rules after another has read the new ones.
    #[test]
    fn no_token_counts_under_rules_under_which_it_was_not_verified() {
        let (mut cache, rules, tenant) = (TokenCache::default(), rules(), Arc::from("a"));
        let others =
            Arc::new(OauthRules { hosts: vec!["h.example".into()], ..rules.as_ref().clone() });
        cache.keep(&tenant, &rules, token(1), identity("ada"));
        cache.keep(&tenant, &others, token(2), identity("ada"));
        assert!(cache.find("a", &rules, token(2)).is_none());
        assert!(cache.find("a", &others, token(1)).is_none());
        assert!(cache.find("a", &others, token(2)).is_some());
    }

    #[test]
    fn each_part_of_a_token_counts_in_its_digest() {
        let token = "x".repeat(200);
        for at in [0, 99, 199] {
            let mut other = token.clone();
            other.replace_range(at..=at, "y");
            assert_ne!(TokenDigest::of(&token), TokenDigest::of(&other), "{at}");
        }
        assert_ne!(TokenDigest::of(&token), TokenDigest::of(&token[1..]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_without_tokens_is_forgotten() {
        let (mut cache, rules) = (TokenCache::default(), rules());
        cache.keep(&"a".into(), &rules, token(1), identity("ada"));
        tokio::time::advance(KEPT).await;
        cache.keep(&"b".into(), &rules, token(2), identity("bob"));
        assert_eq!(cache.0.keys().map(|name| &**name).collect::<Vec<_>>(), ["b"]);
    }
}
