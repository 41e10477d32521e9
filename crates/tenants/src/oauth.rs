//! The rules of a tenant whose clients authenticate with OAuth tokens.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::scopes::is_scope;
use crate::{ClaimValues, Error, Scopes};

/// Greatest permitted difference of clocks, in seconds.
const SKEW_SECS_MAX: u64 = 300;

/// The settings of OAuth tokens.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct OauthSettings {
    /// The issuer of the tokens: the URL that stands in their `iss`, character by character.
    pub issuer: String,
    /// The audiences of which a token must have one in its `aud`. Empty: the URLs of the endpoint, as
    /// clients ask for them by RFC 8707.
    pub audience: Vec<String>,
    /// The scopes that each token must have.
    pub scopes: Vec<String>,
    /// Where the keys of the issuer are. Empty: where the metadata of the issuer says.
    pub jwks_url: String,
    /// Where the issuer is asked about tokens that are no JWT (RFC 7662). Empty: such tokens are
    /// refused.
    pub introspection_url: String,
    /// The id with which the node authenticates there.
    pub client_id: String,
    /// The secret with which the node authenticates there; may refer to a secret, as in
    /// `"${file:introspection}"`.
    pub client_secret: Hidden,
    /// How much the clocks of the issuer and of this node may differ, in seconds.
    pub clock_skew_secs: u64,
}

impl Default for OauthSettings {
    fn default() -> Self {
        Self {
            issuer: String::new(),
            audience: Vec::new(),
            scopes: Vec::new(),
            jwks_url: String::new(),
            introspection_url: String::new(),
            client_id: String::new(),
            client_secret: Hidden::default(),
            clock_skew_secs: 5,
        }
    }
}

/// A text that is not shown.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Hidden(String);

impl Hidden {
    /// The text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Hidden {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Hidden {
    /// Only whether there is a text.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.0.is_empty() { "" } else { "***" })
    }
}

/// Checked rules for OAuth tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct OauthRules {
    /// The issuer of the tokens.
    pub issuer: String,
    /// The audiences; empty: the URLs of the endpoint.
    pub audiences: Vec<String>,
    /// The hosts of the tenant, if the URLs of the endpoint at these are audiences.
    pub hosts: Vec<String>,
    /// The scopes that each token must have.
    pub scopes: Scopes,
    /// Where the keys of the issuer are; empty: where its metadata says.
    pub jwks_url: String,
    /// Where the issuer is asked about opaque tokens.
    pub introspection: Option<Introspection>,
    /// The permitted difference of clocks.
    pub clock_skew: Duration,
    /// The values of claims that count, since permissions name them.
    pub claims: ClaimValues,
}

/// Where an issuer is asked about opaque tokens, and as which client.
#[derive(Clone, Debug, PartialEq)]
pub struct Introspection {
    /// The URL.
    pub url: String,
    /// The id of the client that asks.
    pub client_id: String,
    /// Its secret.
    pub client_secret: Hidden,
}

impl OauthRules {
    /// The rules for tokens of this issuer, and otherwise the defaults.
    pub fn of_issuer(issuer: &str) -> Self {
        Self {
            issuer: issuer.into(),
            audiences: Vec::new(),
            hosts: Vec::new(),
            scopes: Scopes::default(),
            jwks_url: String::new(),
            introspection: None,
            clock_skew: Duration::from_secs(OauthSettings::default().clock_skew_secs),
            claims: ClaimValues::default(),
        }
    }

    /// The rules of these settings, or all errors in them.
    pub(crate) fn new(tenant: &str, written: &OauthSettings) -> Result<Self, Vec<Error>> {
        let mut wrong = Vec::new();
        let mut add = |key: &'static str, written: &str, remedy: &'static str| {
            let (tenant, written) = (tenant.to_owned(), written.to_owned());
            wrong.push(Error::Oauth { tenant, key, written, remedy });
        };
        const FETCHED: &str = "write a URL with https://; http:// is for loopback addresses only";
        if !is_fetchable(&written.issuer) || written.issuer.contains(['?', '#']) {
            add("issuer", &written.issuer, FETCHED);
        }
        for (key, url) in
            [("jwks_url", &written.jwks_url), ("introspection_url", &written.introspection_url)]
        {
            if !url.is_empty() && !is_fetchable(url) {
                add(key, url, FETCHED);
            }
        }
        for scope in written.scopes.iter().filter(|scope| !is_scope(scope)) {
            add(
                "scopes",
                scope,
                "write each scope as a word of its own, as in [\"mcp\", \"tools\"]",
            );
        }
        if written.audience.iter().any(String::is_empty) {
            add("audience", "", "write what the tokens have in `aud`, or leave the key out");
        }
        if written.clock_skew_secs > SKEW_SECS_MAX {
            let secs = written.clock_skew_secs.to_string();
            add("clock_skew_secs", &secs, "write at most 300, and set the clocks by NTP");
        }
        let asks = !written.introspection_url.is_empty();
        let secret = written.client_secret.expose();
        if asks && (written.client_id.is_empty() || secret.is_empty()) {
            let remedy = "write it as well: the issuer answers no stranger";
            add(if secret.is_empty() { "client_secret" } else { "client_id" }, "", remedy);
        }
        let has_credentials = !written.client_id.is_empty() || !secret.is_empty();
        if has_credentials && !asks {
            let remedy = "write it as well, or leave `client_id` and `client_secret` out";
            add("introspection_url", "", remedy);
        }
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let introspection = asks.then(|| Introspection {
            url: written.introspection_url.clone(),
            client_id: written.client_id.clone(),
            client_secret: written.client_secret.clone(),
        });
        Ok(Self {
            issuer: written.issuer.clone(),
            audiences: written.audience.clone(),
            hosts: Vec::new(),
            scopes: Scopes::of(written.scopes.iter().map(String::as_str)),
            jwks_url: written.jwks_url.clone(),
            introspection,
            clock_skew: Duration::from_secs(written.clock_skew_secs),
            claims: ClaimValues::default(),
        })
    }
}

/// Whether a node may send a request to this URL: over TLS, or to its own machine.
pub fn is_fetchable(url: &str) -> bool {
    let is_plain = url.bytes().all(|byte| byte.is_ascii_graphic());
    let Some((scheme, rest)) = url.split_once("://").filter(|_| is_plain) else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() || authority.contains('@') {
        return false;
    }
    match scheme {
        "https" => true,
        "http" => is_loopback(authority),
        _ => false,
    }
}

fn is_loopback(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(issuer: &str) -> OauthSettings {
        OauthSettings { issuer: issuer.into(), ..OauthSettings::default() }
    }

    fn refusal(written: &OauthSettings) -> String {
        let wrong = OauthRules::new("acme", written).unwrap_err();
        wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn an_issuer_is_reached_over_tls_or_on_loopback() {
        for url in
            ["https://i.example/a", "http://127.0.0.1:1/x", "http://[::1]:1", "http://localhost"]
        {
            assert!(OauthRules::new("acme", &settings(url)).is_ok(), "{url}");
        }
        for url in [
            "",
            "i.example",
            "http://i.example",
            "http://127.0.0.1.example",
            "http://localhost@i.example",
            "https://user@i.example",
            "http://user@127.0.0.1",
            "https://",
            "ftp://i.example",
            "https://i.example/?a",
            "https://i.ex ample",
        ] {
            let refusal = refusal(&settings(url));
            assert!(refusal.starts_with("`tenants.acme.oauth.issuer` is"), "{refusal}");
        }
    }

    #[test]
    fn everything_wrong_is_told_at_once_without_the_secret() {
        let written = OauthSettings {
            jwks_url: "http://i.example/keys".into(),
            scopes: vec!["two words".into(), "fine".into()],
            audience: vec![String::new()],
            clock_skew_secs: 301,
            client_secret: Hidden::from("hunter2".to_owned()),
            ..settings("i.example")
        };
        let refusal = refusal(&written);
        assert_eq!(refusal.lines().count(), 6, "{refusal}");
        let shown = format!("{written:?}");
        assert!(!refusal.contains("hunter2") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn introspection_needs_an_id_and_a_secret() {
        let url = "https://i.example/introspect".to_owned();
        let asks = OauthSettings { introspection_url: url, ..settings("https://i.example") };
        assert!(refusal(&asks).contains("oauth.client_secret"));
        let secret = Hidden::from("s".to_owned());
        let asks = OauthSettings { client_secret: secret, ..asks };
        assert!(refusal(&asks).contains("oauth.client_id"));
        let asks = OauthSettings { client_id: "node".into(), ..asks };
        assert!(OauthRules::new("acme", &asks).unwrap().introspection.is_some());
    }

    #[test]
    fn rules_have_the_claims_that_permissions_name_and_the_hosts_that_are_audiences() {
        let tenant = |audience: &[&str]| {
            let audience = audience.iter().map(|one| (*one).to_owned()).collect();
            let rule = crate::PermissionSettings {
                claims: [("groups".to_owned(), vec!["a".to_owned()])].into(),
                ..Default::default()
            };
            let settings = crate::Settings {
                auth: Some("oauth".into()),
                oauth: OauthSettings { audience, ..settings("https://i.example") },
                hosts: vec!["acme.example".into()],
                permissions: [("r".to_owned(), rule)].into(),
                ..crate::Settings::default()
            };
            let tenant = crate::Tenant::new("acme", &settings).unwrap();
            OauthRules::clone(tenant.access.oauth().unwrap())
        };
        let by_url = tenant(&[]);
        assert_eq!(by_url.claims, ClaimValues::of([("groups", "a")]));
        assert_eq!(by_url.hosts, ["acme.example"]);
        assert!(tenant(&["api://acme"]).hosts.is_empty(), "no host is an audience");
    }
}
