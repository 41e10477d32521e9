//! Reads the response of a token endpoint.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::problem::{CredentialProblem, OauthCode};
use super::settings::Secret;
use super::token::{TOKEN_BYTES_MAX, Token};

/// How long a token counts whose response does not say it.
const LIFETIME: Duration = Duration::from_secs(300);

/// How long a token is used at most, also if it lasts longer.
const LIFETIME_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The types of tokens that an exchange may issue (RFC 8693, section 3).
const ISSUED: [&str; 2] =
    ["urn:ietf:params:oauth:token-type:access_token", "urn:ietf:params:oauth:token-type:jwt"];

/// A token, and how long it counts from the request on.
#[derive(Clone, Debug)]
pub(crate) struct Fetched {
    pub(crate) token: Token,
    pub(crate) lifetime: Duration,
    /// What another one is got for.
    pub(crate) refresh: Option<Secret>,
}

#[derive(Deserialize)]
struct Success {
    access_token: String,
    token_type: String,
    #[serde(default)]
    expires_in: Value,
    issued_token_type: Option<String>,
    refresh_token: Option<String>,
}

#[derive(Deserialize)]
struct Failure {
    error: String,
}

/// The token in a response with this status; `body` is `None` if it is no JSON.
pub(crate) fn read(status: u16, body: Option<&[u8]>) -> Result<Fetched, CredentialProblem> {
    match (status, body) {
        (200, Some(body)) => success(body).ok_or(CredentialProblem::Invalid),
        (429 | 500.., _) => Err(CredentialProblem::Unavailable),
        (400..500, body) => {
            let failure = body.and_then(|body| serde_json::from_slice::<Failure>(body).ok());
            let code = failure.map_or(OauthCode::Other, |failure| OauthCode::named(&failure.error));
            Err(CredentialProblem::Refused(code))
        }
        _ => Err(CredentialProblem::Invalid),
    }
}

fn success(body: &[u8]) -> Option<Fetched> {
    let success: Success = serde_json::from_slice(body).ok()?;
    let issued = success.issued_token_type.as_deref();
    // A token of another type is not for `Authorization: Bearer`.
    if !success.token_type.eq_ignore_ascii_case("bearer")
        || issued.is_some_and(|issued| !ISSUED.contains(&issued))
    {
        return None;
    }
    let lifetime = lifetime(&success.expires_in)?;
    let refresh = success.refresh_token.filter(|token| token.len() <= TOKEN_BYTES_MAX);
    let refresh = refresh.map(Secret::from);
    Some(Fetched { token: Token::parse(&success.access_token)?, lifetime, refresh })
}

/// The lifetime that `expires_in` says, which some servers write as text; `None` if a token has expired
/// already, or if that is no number.
fn lifetime(expires_in: &Value) -> Option<Duration> {
    let secs = match expires_in {
        Value::Null => return Some(LIFETIME),
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    // Not a number is not above 0 either.
    (secs > 0.0)
        .then(|| Duration::try_from_secs_f64(secs).unwrap_or(LIFETIME_MAX).min(LIFETIME_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lasts(expires_in: &str) -> Option<u64> {
        let body =
            format!(r#"{{"access_token":"a","token_type":"bearer","expires_in":{expires_in}}}"#);
        read(200, Some(body.as_bytes())).ok().map(|fetched| fetched.lifetime.as_secs())
    }

    #[test]
    fn a_lifetime_is_above_zero_and_bounded() {
        for (written, secs) in [
            ("60", 60),
            ("60.5", 60),
            ("\"3600\"", 3_600),
            ("null", 300),
            ("1e400", 86_400),
            ("1e300", 86_400),
            ("18446744073709551615", 86_400),
        ] {
            // Numbers beyond those of JSON parsers are refused as no JSON.
            let expected = if written == "1e400" { None } else { Some(secs) };
            assert_eq!(lasts(written), expected, "{written}");
        }
        for wrong in ["0", "-1", "\"soon\"", "\"NaN\"", "\"-1\"", "{}", "[60]", "true"] {
            assert_eq!(lasts(wrong), None, "{wrong}");
        }
        let without = br#"{"access_token":"a","token_type":"Bearer"}"#;
        assert_eq!(read(200, Some(without)).unwrap().lifetime, LIFETIME);
    }

    #[test]
    fn only_a_bearer_token_of_visible_characters_counts() {
        for body in [
            r#"{"access_token":"a\r\nX: y","token_type":"bearer"}"#,
            r#"{"access_token":"","token_type":"bearer"}"#,
            r#"{"access_token":7,"token_type":"bearer"}"#,
            r#"{"access_token":"a"}"#,
            r#"{"access_token":"a","token_type":"DPoP"}"#,
            r#"{"access_token":"a","token_type":"N_A"}"#,
            r#"{"access_token":"a","token_type":"bearer","issued_token_type":"urn:ietf:params:oauth:token-type:saml2"}"#,
            "[]",
            "",
        ] {
            assert_eq!(read(200, Some(body.as_bytes())).err(), Some(CredentialProblem::Invalid));
        }
        let issued = r#"{"access_token":"a","token_type":"Bearer","issued_token_type":"urn:ietf:params:oauth:token-type:access_token"}"#;
        assert!(read(200, Some(issued.as_bytes())).is_ok());
    }

    #[test]
    fn a_refusal_has_its_code_and_no_text_of_the_server() {
        let refused = |status, body: &str| read(status, Some(body.as_bytes())).unwrap_err();
        let code = |code| CredentialProblem::Refused(code);
        assert_eq!(refused(400, r#"{"error":"invalid_grant"}"#), code(OauthCode::InvalidGrant));
        assert_eq!(refused(401, r#"{"error":"invalid_client"}"#), code(OauthCode::InvalidClient));
        assert_eq!(refused(400, r#"{"error":"hunter2"}"#), code(OauthCode::Other));
        assert!(!refused(400, r#"{"error":"hunter2"}"#).to_string().contains("hunter2"));
        assert_eq!(refused(403, "no"), code(OauthCode::Other));
        assert_eq!(refused(500, r#"{"error":"invalid_grant"}"#), CredentialProblem::Unavailable);
        assert_eq!(refused(429, ""), CredentialProblem::Unavailable);
        assert_eq!(refused(302, ""), CredentialProblem::Invalid);
        assert_eq!(read(200, None).err(), Some(CredentialProblem::Invalid));
    }
}
