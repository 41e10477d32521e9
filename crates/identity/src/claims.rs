//! What a token says of its client: the principal, its scopes, and when the token ends.

use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use tenants::{ClaimValues, ClientName, Principal, Scopes};

use crate::problem::TokenProblem;

/// Most bytes of a subject or of the id of a client.
const NAME_BYTES_MAX: usize = 512;

/// Most scopes of a token. A token with more is refused: to leave some out could lift a denial.
const SCOPES_MAX: usize = 256;

/// Most bytes of all scopes of a token.
const SCOPES_BYTES_MAX: usize = 8 << 10;

/// The longest life of a token: a revocation must outlive each token that it refuses.
const TOKEN_LASTS_MAX: Duration = Duration::from_hours(30 * 24);

/// The client of a verified token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Who the client is.
    pub principal: Principal,
    /// What the token allows.
    pub scopes: Scopes,
    /// The values of its claims, of those that the rules for tokens name.
    pub claims: ClaimValues,
    /// When the token ends, the permitted difference of clocks included.
    pub expires: SystemTime,
    /// When the token was issued, if it has an `iat`.
    pub issued: Option<SystemTime>,
}

/// The claims of a token that count here: of a JWT (RFC 9068), or of the response of an introspection
/// (RFC 7662).
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Claims {
    sub: Option<String>,
    client_id: Option<String>,
    /// The client, in the tokens of some issuers.
    azp: Option<String>,
    #[serde(default)]
    scope: Words,
    /// The scopes, in the tokens of some issuers.
    #[serde(default)]
    scp: Words,
    pub(crate) exp: Option<Seconds>,
    iat: Option<Seconds>,
    /// Claims that ID tokens and notices of a sign-out have, and access tokens do not.
    at_hash: Option<IgnoredAny>,
    c_hash: Option<IgnoredAny>,
    events: Option<IgnoredAny>,
    #[serde(default)]
    pub(crate) aud: Words,
    pub(crate) iss: Option<String>,
}

/// A time in seconds since 1970 (RFC 7519, section 2).
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Seconds(f64);

impl Seconds {
    /// The time, later by the permitted difference of clocks.
    pub(crate) fn with_skew(self, skew: Duration) -> Option<SystemTime> {
        let since = Duration::try_from_secs_f64(self.0).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(since)?.checked_add(skew)
    }
}

/// A list of words, or a text with words between spaces.
#[derive(Debug, Default, Deserialize)]
#[serde(untagged)]
pub(crate) enum Words {
    #[default]
    None,
    Text(String),
    List(Vec<String>),
}

impl Words {
    /// Whether this is one of the words; a text counts as one word.
    pub(crate) fn has(&self, word: &str) -> bool {
        match self {
            Self::None => false,
            Self::Text(text) => text == word,
            Self::List(list) => list.iter().any(|one| one == word),
        }
    }

    fn split(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match self {
            Self::None => Box::new(std::iter::empty()),
            Self::Text(text) => Box::new(text.split(' ')),
            Self::List(list) => Box::new(list.iter().flat_map(|text| text.split(' '))),
        }
    }
}

impl Claims {
    /// The client of these claims, which this issuer has made.
    pub(crate) fn identity(&self, issuer: &str, skew: Duration) -> Result<Identity, TokenProblem> {
        let client = || self.client_id.as_ref().or(self.azp.as_ref());
        let principal = match (&self.sub, client()) {
            (Some(subject), _) => {
                ClientName::Subject { issuer, subject: checked(subject)? }.principal()
            }
            (None, Some(client)) => ClientName::Client { issuer, id: checked(client)? }.principal(),
            (None, None) => return Err(TokenProblem::NoSubject),
        };
        if self.at_hash.is_some() || self.c_hash.is_some() || self.events.is_some() {
            return Err(TokenProblem::Kind);
        }
        let words = || self.scope.split().chain(self.scp.split());
        let (count, bytes) = words().fold((0, 0), |(n, bytes), word| (n + 1, bytes + word.len()));
        if count > SCOPES_MAX || bytes > SCOPES_BYTES_MAX {
            return Err(TokenProblem::Scopes);
        }
        let expires = self.exp.ok_or(TokenProblem::NoEnd)?;
        let expires = expires.with_skew(skew).ok_or(TokenProblem::NoEnd)?;
        let issued = match self.iat {
            Some(issued) => Some(issued.with_skew(Duration::ZERO).ok_or(TokenProblem::Form)?),
            None => None,
        };
        // Else it would live longer than a revocation counts, and be newer than each of them.
        if issued.is_some_and(|issued| issued > SystemTime::now() + skew) {
            return Err(TokenProblem::NotYet);
        }
        // The time from which it lives at the latest.
        let from = issued.unwrap_or_else(SystemTime::now);
        if expires.duration_since(from).is_ok_and(|lasts| lasts > TOKEN_LASTS_MAX + skew) {
            return Err(TokenProblem::Lasts);
        }
        let (scopes, claims) = (Scopes::of(words()), ClaimValues::default());
        Ok(Identity { principal, scopes, claims, expires, issued })
    }
}

impl Identity {
    /// The same with the values of claims that count, of those in the JSON of the token.
    pub(crate) fn with_claims(
        self,
        json: &[u8],
        that_count: &ClaimValues,
    ) -> Result<Self, TokenProblem> {
        if that_count.is_empty() {
            return Ok(self);
        }
        let token = serde_json::from_slice(json).map_err(|_| TokenProblem::Form)?;
        Ok(Self { claims: values(&token, that_count), ..self })
    }
}

/// The values in the token that count. It keeps no others, so these are bounded by the settings.
fn values(token: &Map<String, Value>, that_count: &ClaimValues) -> ClaimValues {
    let mut found: Vec<(&str, String)> = Vec::new();
    for claim in that_count.claims() {
        let values = match find(token, claim) {
            Some(Value::Array(values)) => values,
            Some(one) => std::slice::from_ref(one),
            None => continue,
        };
        let texts = values.iter().filter_map(text).map(|text| (claim, text));
        found.extend(texts.filter(|(claim, text)| that_count.has(claim, text)));
    }
    ClaimValues::of(found.iter().map(|(claim, text)| (*claim, &**text)))
}

/// The member with this name, or else the one to which the parts between dots lead.
fn find<'a>(token: &'a Map<String, Value>, claim: &str) -> Option<&'a Value> {
    if let Some(value) = token.get(claim) {
        return Some(value);
    }
    let (parents, name) = claim.rsplit_once('.')?;
    let parent = parents.split('.').try_fold(token, |at, part| at.get(part)?.as_object())?;
    parent.get(name)
}

/// A value as a rule has it.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn checked(name: &str) -> Result<&str, TokenProblem> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    if fits { Ok(name) } else { Err(TokenProblem::NoSubject) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(claims: &str) -> Result<Identity, TokenProblem> {
        let claims: Claims = serde_json::from_str(claims).unwrap();
        claims.identity("https://i.example", Duration::from_secs(5))
    }

    #[test]
    fn a_subject_comes_before_the_client_and_the_two_never_meet() {
        let name = |claims| identity(claims).map(|found| found.principal.name().to_owned());
        let ada = Ok("sub:https://i.example ada".to_owned());
        assert_eq!(name(r#"{"sub":"ada","client_id":"app","exp":1}"#), ada);
        let app = Ok("client:https://i.example ada".to_owned());
        assert_eq!(name(r#"{"client_id":"ada","exp":1}"#), app);
        assert_eq!(name(r#"{"azp":"ada","exp":1}"#), app);
        assert_eq!(name(r#"{"client_id":"ada","azp":"bob","exp":1}"#), app);
        for claims in [r#"{"exp":1}"#, r#"{"sub":"","exp":1}"#] {
            assert_eq!(name(claims), Err(TokenProblem::NoSubject));
        }
        let long = format!(r#"{{"sub":"{}","exp":1}}"#, "x".repeat(513));
        assert_eq!(name(&long), Err(TokenProblem::NoSubject));
        assert!(name(&long.replacen('x', "", 1)).is_ok());
    }

    #[test]
    fn an_audience_is_compared_as_a_whole() {
        let words = |json: &str| serde_json::from_str::<Words>(json).unwrap();
        for (json, has) in [
            (r#""a""#, true),
            (r#"["b","a"]"#, true),
            (r#""ab""#, false),
            (r#""a b""#, false),
            (r#"["b a","ab"]"#, false),
            ("[]", false),
        ] {
            assert_eq!(words(json).has("a"), has, "{json}");
        }
        assert!(!Words::None.has("") && !Words::None.has("a"));
    }

    #[test]
    fn a_time_of_issue_is_read_as_it_is() {
        let issued = |iat: &str| {
            let claims = format!(r#"{{"sub":"a","exp":1,"iat":{iat}}}"#);
            identity(&claims).map(|found| found.issued)
        };
        let at = |secs: f64| Some(SystemTime::UNIX_EPOCH + Duration::from_secs_f64(secs));
        assert_eq!(issued("1"), Ok(at(1.0)));
        assert_eq!(issued("0.5"), Ok(at(0.5)));
        for iat in ["-1", "1e300"] {
            assert_eq!(issued(iat), Err(TokenProblem::Form), "{iat}");
        }
    }

    #[test]
    fn scopes_are_read_in_each_form() {
        for claims in [
            r#"{"sub":"a","exp":1,"scope":"x y"}"#,
            r#"{"sub":"a","exp":1,"scp":["x","y"]}"#,
            r#"{"sub":"a","exp":1,"scope":["x"],"scp":" y"}"#,
            r#"{"sub":"a","exp":1,"scp":["x y"]}"#,
        ] {
            assert_eq!(identity(claims).unwrap().scopes, Scopes::of(["y", "x"]), "{claims}");
        }
    }

    #[test]
    fn the_values_that_count_are_found_in_each_form_and_no_others_are_kept() {
        let token = r#"{"sub":"ada","exp":1,"groups":["staff","admins",7,["in"],{"a":1},null],
            "org":"acme","level":3,"verified":true,"realm_access":{"roles":["r"]},
            "https://acme.example/roles":["w"],"a.b":"whole","a":{"b":"path"},"x":{"y":"z"}}"#;
        let that_count = [
            ("sub", "ada"),
            ("groups", "staff"),
            ("groups", "other"),
            ("groups", "in"),
            ("groups", "7"),
            ("groups", "null"),
            ("org", "ac"),
            ("level", "3"),
            ("verified", "true"),
            ("realm_access.roles", "r"),
            ("https://acme.example/roles", "w"),
            ("a.b", "whole"),
            ("a.b", "path"),
            ("x", "z"),
            ("x.y.z", "z"),
            (".", ""),
        ];
        let that_count = ClaimValues::of(that_count);
        let found = identity(token).unwrap().with_claims(token.as_bytes(), &that_count).unwrap();
        let expected = [
            ("sub", "ada"),
            ("groups", "staff"),
            ("groups", "7"),
            ("level", "3"),
            ("verified", "true"),
            ("realm_access.roles", "r"),
            ("https://acme.example/roles", "w"),
            ("a.b", "whole"),
        ];
        assert_eq!(found.claims, ClaimValues::of(expected));
        let none = identity(token).unwrap().with_claims(b"not read", &ClaimValues::default());
        assert!(none.unwrap().claims.is_empty());
    }

    #[test]
    fn a_token_without_an_end_is_refused() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(12);
        assert_eq!(identity(r#"{"sub":"a","exp":7}"#).unwrap().expires, at);
        for exp in ["null", "-1", "1e300"] {
            let claims = format!(r#"{{"sub":"a","exp":{exp}}}"#);
            assert_eq!(identity(&claims), Err(TokenProblem::NoEnd), "{exp}");
        }
    }

    #[test]
    fn other_tokens_and_too_many_scopes_are_refused() {
        for claim in [r#""at_hash":"x""#, r#""c_hash":"x""#, r#""events":{}"#] {
            let claims = format!(r#"{{"sub":"a","exp":1,{claim}}}"#);
            assert_eq!(identity(&claims), Err(TokenProblem::Kind), "{claim}");
        }
        for scope in ["a ".repeat(257), "x".repeat(8_193)] {
            let claims = format!(r#"{{"sub":"a","exp":1,"scope":"{scope}"}}"#);
            assert_eq!(identity(&claims), Err(TokenProblem::Scopes));
        }
        for scope in [format!("{}a", "a ".repeat(255)), "x".repeat(8_192)] {
            let claims = format!(r#"{{"sub":"a","exp":1,"scope":"{scope}"}}"#);
            assert!(identity(&claims).is_ok());
        }
    }
}
