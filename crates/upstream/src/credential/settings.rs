//! The settings of the credential for an upstream server.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::networks::Networks;
use crate::url::{Url, UrlProblem};

/// Most scopes, and most bytes of each.
const SCOPES_MAX: usize = 64;

/// How the node gets the token for an upstream server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// It needs none, or `headers` have it.
    #[default]
    None,
    /// As a client of its own (RFC 6749, section 4.4).
    ClientCredentials,
    /// For each user, in exchange for the token of the user's client (RFC 8693).
    TokenExchange,
    /// For each user, who links an account at the authorization server (RFC 6749, section 4.1).
    AuthorizationCode,
}

/// How the node authenticates at the token endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    /// `client_secret_basic`: in the header `Authorization`.
    #[default]
    Basic,
    /// `client_secret_post`: in the form.
    Post,
}

/// A secret text that is neither printed nor written.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Secret {
    /// Only whether there is a text.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.0.is_empty() { "" } else { "***" })
    }
}

/// The credential for an upstream server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct CredentialSettings {
    /// How the node gets the token.
    pub grant: Grant,
    /// The authorization server, whose metadata says where its token endpoint is.
    pub issuer: String,
    /// The token endpoint, instead of `issuer`.
    pub token_url: String,
    /// The id of the node at the authorization server.
    pub client_id: String,
    /// The secret of the node there; may refer to a secret, as in `"${file:client-secret}"`.
    pub client_secret: Secret,
    /// How the node authenticates there.
    pub client_auth: ClientAuth,
    /// The scopes of the token. Empty: those that the authorization server chooses.
    pub scopes: Vec<String>,
    /// What the token is for (RFC 8707). Absent: the URL of the backend without its query. Empty: not
    /// sent.
    pub resource: Option<String>,
    /// The audience of the token, for authorization servers that ask for it. Empty: not sent.
    pub audience: String,
    /// The client as which the node signs users in at the issuer of the tenant, before they link an account.
    pub sign_in: SignInSettings,
}

/// The client as which the node signs users in at the issuer of the tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SignInSettings {
    /// The id of the node at the issuer.
    pub client_id: String,
    /// The secret of the node there; may refer to a secret.
    pub client_secret: Secret,
    /// The scopes of the browser's token, if the issuer wants some. Empty: those that it chooses.
    pub scopes: Vec<String>,
    /// The issuer of the tenant, which its settings name.
    #[serde(skip)]
    pub issuer: String,
}

/// What is wrong with a key of the credential. No text has a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`credential.{key}` {why}")]
pub struct CredentialSetting {
    key: &'static str,
    why: String,
}

impl CredentialSettings {
    /// Everything that is wrong with these settings. `has_header`: the settings have a header
    /// `Authorization` as well.
    pub(crate) fn problems(&self, networks: &Networks, has_header: bool) -> Vec<CredentialSetting> {
        let mut problems = Vec::new();
        let mut add =
            |key, why: &str| problems.push(CredentialSetting { key, why: why.to_owned() });
        if self.grant == Grant::None {
            if *self != Self::default() {
                add(
                    "grant",
                    "is missing; write \"client_credentials\", \"token_exchange\" or \"authorization_code\"",
                );
            }
            return problems;
        }
        if has_header {
            add("grant", "sets `Authorization`, which `headers` has as well; remove one of them");
        }
        if self.client_id.is_empty() {
            add("client_id", "is missing; write the id of the node at the authorization server");
        }
        if self.client_secret.expose().is_empty() {
            add("client_secret", "is missing; write a reference, as in \"${file:client-secret}\"");
        }
        if self.grant == Grant::TokenExchange && self.issuer.is_empty() && self.token_url.is_empty()
        {
            // The server would name the one that gets the tokens of its users.
            add("issuer", "is missing; write the authorization server that gets the users' tokens");
        }
        if self.grant == Grant::AuthorizationCode {
            if self.issuer.is_empty() {
                // Its metadata names the page on which users agree.
                add(
                    "issuer",
                    "is missing; write the authorization server at which users have accounts",
                );
            }
            if self.sign_in.client_id.is_empty() || self.sign_in.client_secret.expose().is_empty() {
                add(
                    "sign_in",
                    "has no `client_id` or no `client_secret`; write those of the node at the issuer of the tenant",
                );
            }
        } else if self.sign_in != SignInSettings::default() {
            add("sign_in", "is for the grant \"authorization_code\" only; remove it");
        }
        if !self.issuer.is_empty() && !self.token_url.is_empty() {
            add("token_url", "and `credential.issuer` are both there; remove one of them");
        }
        for (key, text) in [("issuer", &self.issuer), ("token_url", &self.token_url)] {
            let wrong = if text.is_empty() { None } else { wrong_url(text, networks) };
            wrong.into_iter().for_each(|why| add(key, &why));
        }
        let is_scope = |scope: &String| {
            !scope.is_empty()
                && scope.len() <= 256
                && scope.bytes().all(|b| matches!(b, 0x21 | 0x23..=0x5B | 0x5D..=0x7E))
        };
        for (key, scopes) in [("scopes", &self.scopes), ("sign_in.scopes", &self.sign_in.scopes)] {
            if scopes.len() > SCOPES_MAX || !scopes.iter().all(is_scope) {
                add(key, "has a text that is no scope; write at most 64, each without spaces");
            }
        }
        let resource = self.resource.as_deref().unwrap_or_default();
        let is_resource = |text| url::Url::parse(text).is_ok_and(|url| url.fragment().is_none());
        if !resource.is_empty() && !is_resource(resource) {
            add(
                "resource",
                "is not a URI without a fragment; write one, as in \"https://mcp.example.com/mcp\"",
            );
        }
        problems
    }

    /// The resource that is asked for; empty: none.
    pub(crate) fn resource_for(&self, url: &Url) -> String {
        self.resource.clone().unwrap_or_else(|| url.without_query())
    }
}

fn wrong_url(text: &str, networks: &Networks) -> Option<String> {
    const ADDRESS: &str = "has an address that is not public; if the authorization server is meant to be \
                           there, write its network into `allow_networks`";
    match Url::parse(text) {
        Err(UrlProblem::Credentials) => {
            Some("has a user or a password; remove them, and write `client_id`".to_owned())
        }
        Err(problem) => Some(problem.to_string()),
        Ok(url) if url.address().is_some_and(|address| !networks.permit(address)) => {
            Some(ADDRESS.to_owned())
        }
        Ok(url) if !is_fetchable(&url) => Some(
            "has no `https:`, and the secret of the node is sent there; write an `https:` URL, since \
             `http:` is for loopback only"
                .to_owned(),
        ),
        Ok(_) => None,
    }
}

/// Whether secrets may be sent there: encrypted, or on this machine.
pub(crate) fn is_fetchable(url: &Url) -> bool {
    let is_local = || match url.address() {
        Some(address) => address.is_loopback(),
        None => url.uri().host() == Some("localhost"),
    };
    url.is_encrypted() || is_local()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(change: impl FnOnce(&mut CredentialSettings)) -> String {
        let mut settings = CredentialSettings {
            grant: Grant::ClientCredentials,
            issuer: "https://auth.example.com".into(),
            client_id: "node".into(),
            client_secret: "hunter2".to_owned().into(),
            scopes: vec!["mcp:tools".into()],
            ..CredentialSettings::default()
        };
        change(&mut settings);
        let problems = settings.problems(&Networks::default(), false);
        problems.iter().map(|problem| format!("{problem}\n")).collect()
    }

    #[test]
    fn each_problem_names_its_key_and_no_secret() {
        assert_eq!(problems(|_| {}), "");
        type Change = fn(&mut CredentialSettings);
        let all: [(Change, &str); 16] = [
            (|s| s.grant = Grant::None, "`credential.grant` is missing"),
            (
                |s| (s.grant, s.issuer) = (Grant::TokenExchange, String::new()),
                "`credential.issuer` is missing",
            ),
            (
                |s| (s.grant, s.issuer) = (Grant::AuthorizationCode, String::new()),
                "`credential.issuer` is missing",
            ),
            (|s| s.grant = Grant::AuthorizationCode, "`credential.sign_in` has no `client_id`"),
            (|s| s.sign_in.client_id = "hunter2".into(), "`credential.sign_in` is for"),
            (|s| s.client_id = String::new(), "`credential.client_id` is missing"),
            (|s| s.client_secret = Secret::default(), "`credential.client_secret` is missing"),
            (|s| s.token_url = "https://a.example/t".into(), "both there"),
            (|s| s.issuer = "http://auth.example.com".into(), "has no `https:`"),
            (|s| s.issuer = "https://10.0.0.1/hunter2".into(), "`allow_networks`"),
            (|s| s.issuer = "http://127.0.0.1/hunter2".into(), "`allow_networks`"),
            (|s| s.issuer = "https://hunter2@a.example".into(), "has a user or a password"),
            (|s| s.issuer = "ftp://a.example/hunter2".into(), "neither `https:` nor"),
            (|s| s.scopes.push("a b".into()), "`credential.scopes`"),
            (|s| s.resource = Some("https://a.example/#x".into()), "`credential.resource`"),
            (|s| s.resource = Some("mcp".into()), "`credential.resource`"),
        ];
        for (change, expected) in all {
            let text = problems(change);
            assert!(text.contains(expected) && !text.contains("hunter2"), "{expected}: {text}");
        }
    }

    #[test]
    fn no_secret_is_printed_or_written() {
        let settings = CredentialSettings {
            client_secret: "hunter2".to_owned().into(),
            ..CredentialSettings::default()
        };
        assert!(!format!("{settings:?}").contains("hunter2"));
    }
}
