//! Where a token endpoint is: the metadata of a server (RFC 9728) names its authorization servers, and the metadata
//! of one of these (RFC 8414, OpenID Connect Discovery) names the endpoint.

use serde::Deserialize;

use super::fetch::Fetch;
use super::problem::CredentialProblem;
use super::settings::is_fetchable;
use crate::url::Url;

/// What counts of the metadata of an upstream server.
#[derive(Deserialize)]
struct Protected {
    resource: String,
    #[serde(default)]
    authorization_servers: Vec<String>,
}

/// What counts of the metadata of an authorization server.
#[derive(Deserialize)]
struct Metadata {
    issuer: String,
    token_endpoint: String,
    authorization_endpoint: Option<String>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

/// The endpoints of an authorization server.
#[derive(Clone, Debug)]
pub(crate) struct Endpoints {
    pub(crate) issuer: String,
    pub(crate) token: Url,
    /// The page on which users agree.
    pub(crate) authorization: Option<Url>,
    /// Whether it names itself in each authorization response (RFC 9207).
    pub(crate) names_itself: bool,
}

/// The first authorization server that the upstream server names. Only the origin of the server is asked,
/// and the metadata has to be about this URL or its origin.
pub(crate) async fn issuer_of(fetch: &Fetch, url: &Url) -> Result<String, CredentialProblem> {
    let (origin, path) = (url.origin(), url.path());
    let places = [
        format!("{origin}/.well-known/oauth-protected-resource{path}"),
        format!("{origin}/.well-known/oauth-protected-resource"),
    ];
    let places = if path.is_empty() { &places[1..] } else { &places[..] };
    let found = first(fetch, places, |protected: Protected| {
        let about = protected.resource.trim_end_matches('/');
        let is_about = about == format!("{origin}{path}") || about == origin;
        protected.authorization_servers.into_iter().next().filter(|_| is_about)
    });
    let issuer = found.await?;
    // A server on the internet must not send this node to its own machine.
    match may_lead(url, &issuer) {
        true => Ok(issuer),
        false => Err(CredentialProblem::Invalid),
    }
}

/// The endpoints of an issuer.
pub(crate) async fn endpoints(fetch: &Fetch, issuer: &str) -> Result<Endpoints, CredentialProblem> {
    let base = Url::parse(issuer).map_err(|_| CredentialProblem::Invalid)?;
    let (origin, path) = (base.origin(), base.path());
    let mut places = vec![
        format!("{origin}/.well-known/oauth-authorization-server{path}"),
        format!("{origin}/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        places.push(format!("{origin}{path}/.well-known/openid-configuration"));
    }
    let found = first(fetch, &places, |metadata: Metadata| {
        // RFC 8414, section 3.3.
        let is_its = metadata.issuer == issuer;
        let url = |text: &str| Url::parse(text).ok().filter(|_| may_lead(&base, text));
        let authorization = metadata.authorization_endpoint.as_deref().and_then(url);
        Some(Endpoints {
            token: url(&metadata.token_endpoint).filter(|_| is_its)?,
            issuer: metadata.issuer,
            authorization,
            names_itself: metadata.authorization_response_iss_parameter_supported,
        })
    });
    found.await
}

/// Whether a document from this URL may name the other one.
fn may_lead(from: &Url, to: &str) -> bool {
    Url::parse(to).is_ok_and(|to| is_fetchable(&to) && (to.is_encrypted() || !from.is_encrypted()))
}

/// What the first document has that has it.
async fn first<T: for<'a> Deserialize<'a>, F>(
    fetch: &Fetch,
    places: &[String],
    read: impl Fn(T) -> Option<F>,
) -> Result<F, CredentialProblem> {
    let mut problem = CredentialProblem::Invalid;
    for place in places {
        let url = Url::parse(place).map_err(|_| CredentialProblem::Invalid)?;
        match fetch.get(&url).await {
            Ok(fetched) => {
                let json = fetched.json.filter(|_| fetched.status == 200);
                let document = json.and_then(|json| serde_json::from_slice(&json).ok());
                if let Some(found) = document.and_then(&read) {
                    return Ok(found);
                }
                if fetched.status == 429 || fetched.status >= 500 {
                    problem = CredentialProblem::Unavailable;
                }
            }
            // The other places have the same origin.
            Err(failed) => return Err(failed),
        }
    }
    Err(problem)
}
