//! The authorization server of one backend: where its token endpoint is, and what is sent there.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use budget::Share;
use hyper::header::HeaderValue;
use tokio::time::{Instant, timeout};
use url::form_urlencoded::{Serializer, byte_serialize};

use super::answer::{self, Fetched};
use super::discovery::{self, Endpoints};
use super::fetch::Fetch;
use super::problem::CredentialProblem;
use super::settings::{ClientAuth, CredentialSettings};
use crate::settings::HttpSettings;
use crate::url::Url;

/// How long it may take to find the token endpoint and to get a token.
const WHOLE: Duration = Duration::from_secs(12);

/// How long a token endpoint that was found counts.
const FOUND: Duration = Duration::from_secs(3_600);

/// The type of tokens that are exchanged, and that are asked for.
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";

/// The authorization server of one backend.
pub(crate) struct Authority {
    /// The backend, for logs.
    name: String,
    settings: CredentialSettings,
    /// The URL of the upstream server.
    url: Url,
    fetch: Fetch,
    /// The token endpoint, if the settings name it.
    endpoint: Option<Url>,
    /// The endpoints that were found, and when.
    found: Mutex<Option<(Endpoints, Instant)>>,
}

/// What a user agrees to.
#[derive(Clone, Copy)]
pub(crate) struct CodeRequest<'a> {
    /// Where the browser goes then.
    pub(crate) redirect_uri: &'a str,
    /// What comes back with it.
    pub(crate) state: &'a str,
    /// The SHA-256 of the verifier (RFC 7636).
    pub(crate) challenge: &'a str,
    /// What the token is for, if not for the upstream server.
    pub(crate) resource: Option<&'a str>,
}

/// What the browser brought back.
#[derive(Clone, Copy)]
pub(crate) struct CodeResponse<'a> {
    pub(crate) code: &'a str,
    /// The issuer that the authorization response names.
    pub(crate) issuer: Option<&'a str>,
    pub(crate) redirect_uri: &'a str,
    pub(crate) verifier: &'a str,
    pub(crate) resource: Option<&'a str>,
}

impl Authority {
    /// That of these settings, which have no problem.
    pub(crate) fn new(
        name: &str,
        settings: &HttpSettings,
        url: &Url,
        share: &Share,
    ) -> io::Result<Self> {
        let credential = settings.credential.clone();
        let endpoint = Url::parse(&credential.token_url).ok();
        let issuer = Url::parse(&credential.issuer).ok();
        // What metadata names may be encrypted where the metadata is not.
        let begin = endpoint.as_ref().or(issuer.as_ref()).unwrap_or(url);
        let is_encrypted = endpoint.is_none() || begin.is_encrypted();
        let fetch = Fetch::new(name, settings, share, is_encrypted)?;
        let (url, found) = (url.clone(), Mutex::default());
        Ok(Self { name: name.to_owned(), settings: credential, url, fetch, endpoint, found })
    }

    /// A token for the node itself.
    pub(crate) async fn client_credentials(&self) -> Result<Fetched, CredentialProblem> {
        let form = [("grant_type", "client_credentials")];
        self.bounded(self.token(&form)).await
    }

    /// A token for the user with this one (RFC 8693).
    pub(crate) async fn exchange(&self, subject: &str) -> Result<Fetched, CredentialProblem> {
        let form = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("subject_token", subject),
            ("subject_token_type", ACCESS_TOKEN),
            ("requested_token_type", ACCESS_TOKEN),
        ];
        self.bounded(self.token(&form)).await.map_err(|problem| match problem {
            CredentialProblem::Refused(code) => CredentialProblem::NotExchanged(code),
            other => other,
        })
    }

    /// The page on which a user agrees.
    pub(crate) async fn authorization_url(
        &self,
        request: CodeRequest<'_>,
    ) -> Result<String, CredentialProblem> {
        let endpoints = timeout(WHOLE, self.endpoints()).await;
        let endpoints = endpoints.unwrap_or(Err(CredentialProblem::Unavailable))?;
        let page = endpoints.authorization.ok_or(CredentialProblem::Invalid)?.uri().to_string();
        let mut page = url::Url::parse(&page).map_err(|_| CredentialProblem::Invalid)?;
        let own = self.settings.resource_for(&self.url);
        let scopes = self.settings.scopes.join(" ");
        let pairs = [
            ("response_type", "code"),
            ("client_id", self.settings.client_id.as_str()),
            ("redirect_uri", request.redirect_uri),
            ("state", request.state),
            ("code_challenge", request.challenge),
            ("code_challenge_method", "S256"),
            ("scope", scopes.as_str()),
            ("resource", request.resource.unwrap_or(&own)),
        ];
        let pairs = pairs.into_iter().filter(|(_, value)| !value.is_empty());
        page.query_pairs_mut().extend_pairs(pairs);
        Ok(page.into())
    }

    /// The tokens of the user who agreed.
    pub(crate) async fn redeem(
        &self,
        response: CodeResponse<'_>,
    ) -> Result<Fetched, CredentialProblem> {
        self.bounded(async {
            let endpoints = self.endpoints().await?;
            // RFC 9207, section 2.4: another authorization server's response.
            let is_its = match response.issuer {
                Some(issuer) => issuer == endpoints.issuer,
                None => !endpoints.names_itself,
            };
            if !is_its {
                return Err(CredentialProblem::Invalid);
            }
            let form = [
                ("grant_type", "authorization_code"),
                ("code", response.code),
                ("redirect_uri", response.redirect_uri),
                ("code_verifier", response.verifier),
            ];
            let resource = response.resource.map(|resource| ("resource", resource));
            self.token(&form.into_iter().chain(resource).collect::<Vec<_>>()).await
        })
        .await
    }

    /// Tokens in exchange for a refresh token.
    pub(crate) async fn refresh(&self, token: &str) -> Result<Fetched, CredentialProblem> {
        let form = [("grant_type", "refresh_token"), ("refresh_token", token)];
        self.bounded(self.token(&form)).await
    }

    async fn bounded(
        &self,
        token: impl Future<Output = Result<Fetched, CredentialProblem>>,
    ) -> Result<Fetched, CredentialProblem> {
        let fetched = timeout(WHOLE, token).await;
        let fetched = fetched.unwrap_or(Err(CredentialProblem::Unavailable));
        if let Err(problem) = &fetched {
            tracing::warn!(backend = self.name, %problem, "got no token for an upstream server");
        }
        fetched
    }

    async fn token(&self, grant: &[(&str, &str)]) -> Result<Fetched, CredentialProblem> {
        let endpoint = self.endpoint().await?;
        let (authorization, form) = self.form(grant);
        let fetched = self.fetch.post_form(&endpoint, authorization, form).await;
        let read =
            fetched.and_then(|fetched| answer::read(fetched.status, fetched.json.as_deref()));
        if matches!(read, Err(problem) if !matches!(problem, CredentialProblem::Refused(_))) {
            // It may have moved.
            *self.found() = None;
        }
        read
    }

    fn form(&self, grant: &[(&str, &str)]) -> (Option<HeaderValue>, String) {
        let settings = &self.settings;
        let (id, secret) = (settings.client_id.as_str(), settings.client_secret.expose());
        let mut form = Serializer::new(String::new());
        form.extend_pairs(grant);
        let scopes = settings.scopes.join(" ");
        let resource = settings.resource_for(&self.url);
        let more = [("scope", &scopes), ("resource", &resource), ("audience", &settings.audience)];
        form.extend_pairs(more.into_iter().filter(|(_, value)| !value.is_empty()));
        let authorization = match settings.client_auth {
            ClientAuth::Basic => basic(id, secret),
            ClientAuth::Post => {
                form.extend_pairs([("client_id", id), ("client_secret", secret)]);
                None
            }
        };
        (authorization, form.finish())
    }

    /// The token endpoint.
    async fn endpoint(&self) -> Result<Url, CredentialProblem> {
        match &self.endpoint {
            Some(endpoint) => Ok(endpoint.clone()),
            None => Ok(self.endpoints().await?.token),
        }
    }

    /// The endpoints that the metadata names.
    async fn endpoints(&self) -> Result<Endpoints, CredentialProblem> {
        let found = self.found().as_ref().filter(|(_, at)| at.elapsed() < FOUND).cloned();
        if let Some((endpoints, _)) = found {
            return Ok(endpoints);
        }
        let issuer = match self.settings.issuer.is_empty() {
            true => discovery::issuer_of(&self.fetch, &self.url).await?,
            false => self.settings.issuer.clone(),
        };
        let endpoints = discovery::endpoints(&self.fetch, &issuer).await?;
        *self.found() = Some((endpoints.clone(), Instant::now()));
        Ok(endpoints)
    }

    fn found(&self) -> std::sync::MutexGuard<'_, Option<(Endpoints, Instant)>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The value of `Authorization` (RFC 6749, section 2.3.1).
fn basic(id: &str, secret: &str) -> Option<HeaderValue> {
    let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    let pair = BASE64.encode(format!("{}:{}", encoded(id), encoded(secret)));
    let mut value = HeaderValue::from_str(&format!("Basic {pair}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use budget::Budget;

    use super::*;
    use crate::credential::{Grant, Secret};

    fn authority(change: impl FnOnce(&mut CredentialSettings)) -> Authority {
        let mut settings = HttpSettings::new("http://mcp.example.com/mcp?key=hunter2");
        settings.credential = CredentialSettings {
            grant: Grant::ClientCredentials,
            client_id: "the node".into(),
            client_secret: Secret::from("s+ecret:".to_owned()),
            scopes: vec!["a".into(), "b".into()],
            ..CredentialSettings::default()
        };
        change(&mut settings.credential);
        let (url, share) = (Url::parse(&settings.url).unwrap(), Budget::unlimited());
        Authority::new("a/b", &settings, &url, &share.unnamed_share("a")).unwrap()
    }

    const GRANT: [(&str, &str); 1] = [("grant_type", "client_credentials")];

    #[test]
    fn a_form_has_the_scopes_and_the_resource_without_its_query() {
        let (authorization, form) = authority(|_| {}).form(&GRANT);
        let resource = "http%3A%2F%2Fmcp.example.com%2Fmcp";
        assert_eq!(form, format!("grant_type=client_credentials&scope=a+b&resource={resource}"));
        let encoded = BASE64.encode("the+node:s%2Becret%3A");
        assert_eq!(authorization.unwrap(), format!("Basic {encoded}"));
    }

    #[test]
    fn a_secret_in_the_form_is_in_no_header() {
        let (authorization, form) = authority(|settings| {
            settings.client_auth = ClientAuth::Post;
            settings.resource = Some(String::new());
            settings.audience = "api".into();
        })
        .form(&GRANT);
        assert_eq!(authorization, None);
        assert_eq!(
            form,
            "grant_type=client_credentials&scope=a+b&audience=api&client_id=the+node&client_secret=\
             s%2Becret%3A"
        );
    }
}
