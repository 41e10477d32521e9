//! Asks an issuer whether an opaque token counts (RFC 7662).

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tenants::{Introspection, OauthRules};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::claims::{Claims, Identity};
use crate::http::{Client, form_encoded};
use crate::metrics::count_fetch;
use crate::problem::TokenProblem;

/// Most tokens that an issuer is asked about for one tenant at a time. Clients without any valid token
/// can cause these requests.
pub(crate) const ASKED_MAX: usize = 32;

/// How long a token waits for its turn to be asked about; then the issuer counts as unavailable.
const PERMIT: Duration = Duration::from_millis(500);

#[derive(Deserialize)]
struct Answer {
    active: bool,
    #[serde(flatten)]
    claims: Claims,
}

/// The client of a token, as the issuer says.
pub(crate) async fn ask(
    client: &Client,
    tenant: &Arc<str>,
    rules: &OauthRules,
    introspection: &Introspection,
    audiences: &[String],
    token: &str,
    asking: &Arc<Semaphore>,
) -> Result<Identity, TokenProblem> {
    let permit = timeout(PERMIT, asking.acquire()).await;
    let Ok(Ok(_asking)) = permit else { return Err(TokenProblem::Unavailable) };
    let form = format!("token={}&token_type_hint=access_token", form_encoded(token));
    let Introspection { url, client_id, client_secret } = introspection;
    let body = client.post_form(tenant, url, (client_id, client_secret.expose()), form).await;
    count_fetch("introspection", body.is_ok());
    let answer = body.map_err(|error| error.to_string()).and_then(|body| {
        let answer = serde_json::from_slice(&body);
        answer.map(|answer| (answer, body)).map_err(|_| "the response has another form".into())
    });
    let (Answer { active, claims }, body) = match answer {
        Ok(answer) => answer,
        Err(error) => {
            // Bounded: `ASKED_MAX` requests run at a time, and each takes the time of a round trip.
            tracing::debug!(issuer = %rules.issuer, error, "introspection failed");
            return Err(TokenProblem::Unavailable);
        }
    };
    if !active {
        return Err(TokenProblem::Inactive);
    }
    if claims.iss.as_ref().is_some_and(|issuer| *issuer != rules.issuer) {
        return Err(TokenProblem::Issuer);
    }
    if !audiences.iter().any(|audience| claims.aud.has(audience)) {
        return Err(TokenProblem::Audience);
    }
    let identity = claims.identity(&rules.issuer, rules.clock_skew)?;
    match identity.expires <= std::time::SystemTime::now() {
        true => Err(TokenProblem::Expired),
        false => identity.with_claims(&body, &rules.claims),
    }
}
