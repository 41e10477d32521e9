//! The answer to a request whose sender is not known: its status, and what `WWW-Authenticate` says
//! (RFC 6750, section 3; RFC 9728, section 5.1).

use actix_http::StatusCode;
use actix_http::header::HeaderValue;
use identity::TokenProblem;
use tenants::{Access, Credentials, Scopes, Tenant};

use crate::audit_reading::{RefusalCause, SignInProblem};
use crate::authentication::Unauthenticated;
use crate::refusal::Refused;

/// The scheme of credentials. It must have a parameter.
const REALM: &str = "Bearer realm=\"roundhouse\"";

/// What a challenge says. A request without a credential gets no error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Needed,
    InvalidToken,
    InvalidRequest,
    InsufficientScope,
}

impl Code {
    fn status(self) -> StatusCode {
        match self {
            Self::Needed | Self::InvalidToken => StatusCode::UNAUTHORIZED,
            Self::InvalidRequest => StatusCode::BAD_REQUEST,
            Self::InsufficientScope => StatusCode::FORBIDDEN,
        }
    }

    fn name(self) -> Option<&'static str> {
        match self {
            Self::Needed => None,
            Self::InvalidToken => Some("invalid_token"),
            Self::InvalidRequest => Some("invalid_request"),
            Self::InsufficientScope => Some("insufficient_scope"),
        }
    }
}

/// The refusal of a request at this tenant's endpoint, whose metadata is at this URL.
pub(crate) fn refuse(
    why: &Unauthenticated,
    tenant: &Tenant,
    metadata_url: Option<String>,
) -> Refused {
    let none = Credentials::default();
    let credentials = match &tenant.access {
        Access::Authenticated(credentials) => credentials,
        Access::Open => &none,
    };
    let (code, message) = match why {
        Unauthenticated::Token(TokenProblem::Unavailable) => {
            let refused = Refused::issuer_unavailable(TokenProblem::Unavailable.to_string());
            return refused.by(cause_of(why));
        }
        Unauthenticated::Missing => {
            (Code::Needed, format!("the endpoint needs {}", needed(credentials)))
        }
        Unauthenticated::Scheme => {
            let needed = needed(credentials);
            (Code::Needed, format!("the endpoint knows the scheme Bearer only, and needs {needed}"))
        }
        Unauthenticated::Malformed => (
            Code::InvalidRequest,
            format!(
                "the header `Authorization` is malformed; the endpoint needs {}",
                needed(credentials)
            ),
        ),
        Unauthenticated::UnknownKey => (
            Code::InvalidToken,
            "the key is not valid at this endpoint, or not any more".to_owned(),
        ),
        Unauthenticated::ExpiredKey(_) => {
            (Code::InvalidToken, "the key has expired; ask the operator for a new one".to_owned())
        }
        Unauthenticated::Revoked(_) => {
            (Code::InvalidToken, "the key or token was revoked by the operator".to_owned())
        }
        Unauthenticated::Token(problem) => (Code::InvalidToken, problem.to_string()),
        Unauthenticated::Scope(needed, _) => {
            (Code::InsufficientScope, format!("the token lacks a scope; this needs: {needed}"))
        }
    };
    // All scopes at once: a client asks its issuer for exactly these.
    let scopes = credentials.oauth.as_ref().map(|rules| match why {
        Unauthenticated::Scope(needed, _) => rules.scopes.union(needed),
        _ => rules.scopes.clone(),
    });
    let challenge = header(code, &message, scopes.as_ref(), metadata_url.as_deref());
    Refused::unauthenticated(code.status(), challenge, message).by(cause_of(why))
}

/// The same for audit records, which tell fewer cases apart, and name the client if it is known.
fn cause_of(why: &Unauthenticated) -> RefusalCause {
    let problem = match why {
        Unauthenticated::Missing => SignInProblem::NoCredential,
        Unauthenticated::Scheme => SignInProblem::UnknownScheme,
        Unauthenticated::Malformed => SignInProblem::Malformed,
        Unauthenticated::UnknownKey => SignInProblem::UnknownKey,
        Unauthenticated::ExpiredKey(_) => SignInProblem::ExpiredKey,
        Unauthenticated::Token(TokenProblem::Expired) => SignInProblem::ExpiredToken,
        Unauthenticated::Token(TokenProblem::Audience) => SignInProblem::TokenOfOtherAudience,
        Unauthenticated::Token(TokenProblem::Issuer) => SignInProblem::TokenOfOtherIssuer,
        Unauthenticated::Token(TokenProblem::Signature | TokenProblem::Key) => {
            SignInProblem::WrongSignature
        }
        Unauthenticated::Token(TokenProblem::Unavailable) => SignInProblem::IssuerUnavailable,
        Unauthenticated::Token(_) => SignInProblem::InvalidToken,
        Unauthenticated::Scope(..) => SignInProblem::InsufficientScope,
        Unauthenticated::Revoked(_) => SignInProblem::Revoked,
    };
    RefusalCause::SignIn(problem, why.client().cloned())
}

/// What a client is to send.
fn needed(credentials: &Credentials) -> &'static str {
    match (&credentials.keys, &credentials.oauth) {
        (Some(_), Some(_)) => {
            "a key or a token of its issuer; send it as `Authorization: Bearer KEY`"
        }
        (None, Some(_)) => "a token of its issuer; send it as `Authorization: Bearer TOKEN`",
        (_, None) => "a key; send it as `Authorization: Bearer KEY`",
    }
}

fn header(
    code: Code,
    message: &str,
    scopes: Option<&Scopes>,
    metadata_url: Option<&str>,
) -> Option<HeaderValue> {
    let mut challenge = REALM.to_owned();
    let mut add = |name: &str, value: &str| {
        // No value here has a quotation mark or a backslash.
        challenge += &format!(", {name}=\"{value}\"");
    };
    if let Some(scopes) = scopes {
        if let Some(url) = metadata_url {
            add("resource_metadata", url);
        }
        if !scopes.is_empty() {
            add("scope", &scopes.to_string());
        }
    }
    if let Some(error) = code.name() {
        add("error", error);
        add("error_description", message);
    }
    HeaderValue::from_str(&challenge).ok()
}

#[cfg(test)]
mod tests {
    use actix_http::header;
    use tenants::{OauthSettings, Settings};

    use super::*;

    fn tenant(auth: &str, scopes: &[&str]) -> Tenant {
        let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        let issuer = "https://i.example".to_owned();
        let oauth = match auth.contains("oauth") {
            true => OauthSettings { issuer, scopes, ..OauthSettings::default() },
            false => OauthSettings::default(),
        };
        let auth = Some(auth.into());
        Tenant::new("acme", &Settings { auth, oauth, ..Settings::default() }).unwrap()
    }

    fn challenge(why: Unauthenticated, tenant: &Tenant) -> (u16, String) {
        let response = refuse(&why, tenant, Some("https://r.example/m".into())).into_response();
        let challenge = response.headers().get(header::WWW_AUTHENTICATE);
        let challenge = challenge.map(|value| value.to_str().unwrap().to_owned());
        (response.status().as_u16(), challenge.unwrap_or_default())
    }

    #[test]
    fn a_challenge_says_where_the_metadata_is_and_which_scopes_are_needed() {
        let oauth = tenant("oauth", &["mcp", "tools"]);
        let begin = "Bearer realm=\"roundhouse\", resource_metadata=\"https://r.example/m\", scope=\"mcp tools\"";
        assert_eq!(challenge(Unauthenticated::Missing, &oauth), (401, begin.into()));
        for (why, status, error) in [
            (Unauthenticated::Token(TokenProblem::Expired), 401, "invalid_token"),
            (Unauthenticated::Malformed, 400, "invalid_request"),
            (Unauthenticated::Scope(Scopes::of(["mcp", "tools"]), None), 403, "insufficient_scope"),
        ] {
            let (found, text) = challenge(why, &oauth);
            assert_eq!(found, status);
            assert!(text.starts_with(&format!("{begin}, error=\"{error}\"")), "{text}");
        }
    }

    #[test]
    fn what_a_message_needs_is_asked_for_with_what_each_token_needs() {
        let why = Unauthenticated::Scope(Scopes::of(["write", "mcp"]), None);
        let (status, text) = challenge(why, &tenant("oauth", &["mcp", "tools"]));
        assert_eq!(status, 403);
        assert!(text.contains(", scope=\"mcp tools write\", error="), "{text}");
    }

    #[test]
    fn a_challenge_for_keys_names_no_metadata() {
        let keys = tenant("keys", &[]);
        let challenged = challenge(Unauthenticated::Missing, &keys);
        assert_eq!(challenged, (401, "Bearer realm=\"roundhouse\"".into()));
    }

    #[test]
    fn an_issuer_that_is_down_is_no_reason_to_sign_in_again() {
        let why = Unauthenticated::Token(TokenProblem::Unavailable);
        assert_eq!(challenge(why, &tenant("oauth", &[])), (503, String::new()));
    }
}
