//! Verifies a token for a tenant, now or after asking its issuer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenants::OauthRules;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::Identity;
use crate::http::{Client, Http};
use crate::introspection::{ASKED_MAX, ask};
use crate::issuer::{IssuerKeys, KeyPlace, Keys};
use crate::jwt::{self, Expected};
use crate::key_set::{KeySet, NoKey};
use crate::problem::TokenProblem;

/// How long the keys of an issuer that no token needed are kept.
const UNUSED: Duration = Duration::from_secs(3_600);

/// How often a token waits for keys: for the first ones, and for new ones if its key is unknown.
const WAITS_MAX: usize = 3;

/// Verifies tokens. Cheap to clone; one for the node.
#[derive(Clone, Debug, Default)]
pub struct Tokens(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    http: Http,
    issuers: Mutex<HashMap<KeyPlace, Used<Arc<IssuerKeys>>>>,
    /// The requests that run, by tenant: one cannot take the place of another's.
    asking: Mutex<HashMap<Box<str>, Arc<Semaphore>>>,
}

#[derive(Debug)]
struct Used<T> {
    value: T,
    at: Instant,
}

impl Tokens {
    /// The client of a token for this tenant, under these rules, for one of these audiences. Waits for the issuer
    /// where it must be asked: at most for some seconds.
    pub async fn verify(
        &self,
        tenant: &str,
        rules: &OauthRules,
        audiences: &[String],
        token: &str,
    ) -> Result<Identity, TokenProblem> {
        let client = self.0.http.client().ok_or(TokenProblem::Unavailable)?;
        match &rules.introspection {
            Some(introspection) if !jwt::is_jwt(token) => {
                let asking = self.asking(tenant);
                ask(client, &tenant.into(), rules, introspection, audiences, token, &asking).await
            }
            _ => self.verify_jwt(client, rules, audiences, token).await,
        }
    }

    async fn verify_jwt(
        &self,
        client: &Client,
        rules: &OauthRules,
        audiences: &[String],
        token: &str,
    ) -> Result<Identity, TokenProblem> {
        let header = jwt::header(token)?;
        let (issuer, claims) = (&rules.issuer, &rules.claims);
        let expected = Expected { issuer, audiences, skew: rules.clock_skew, claims };
        let issuer = self.issuer(client, rules);
        for _ in 0..WAITS_MAX {
            let knows = |keys: &KeySet| !matches!(keys.find(&header), Err(NoKey::Unknown));
            match issuer.find(knows) {
                Keys::Here(keys) => return jwt::verify(token, &header, &keys, &expected),
                Keys::Coming(mut ended, until) => {
                    // An error: the fetch has ended.
                    let ended = async move { while ended.changed().await.is_ok() {} };
                    match until {
                        Some(until) => drop(timeout_at(until, ended).await),
                        None => ended.await,
                    }
                }
                Keys::Unavailable => return Err(TokenProblem::Unavailable),
            }
        }
        Err(TokenProblem::Unavailable)
    }

    fn issuer(&self, client: &Client, rules: &OauthRules) -> Arc<IssuerKeys> {
        let (issuer, jwks_url) = (rules.issuer.clone(), rules.jwks_url.clone());
        let place = KeyPlace { issuer, jwks_url };
        let now = Instant::now();
        let mut all = self.0.issuers.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(&place) {
            all.retain(|_, used| now.duration_since(used.at) < UNUSED);
        }
        let keys = || IssuerKeys::new(place.clone(), client.clone());
        let used = all.entry(place.clone()).or_insert_with(|| Used { value: keys(), at: now });
        used.at = now;
        Arc::clone(&used.value)
    }

    fn asking(&self, tenant: &str) -> Arc<Semaphore> {
        let mut all = self.0.asking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(asking) = all.get(tenant) {
            return Arc::clone(asking);
        }
        all.retain(|_, asking| Arc::strong_count(asking) > 1);
        Arc::clone(all.entry(tenant.into()).or_insert_with(|| Arc::new(Semaphore::new(ASKED_MAX))))
    }
}
