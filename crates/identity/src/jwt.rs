//! Verifies a JWT: its signature, issuer, audience and times (RFC 9068, RFC 8725).

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Header, Validation};
use tenants::ClaimValues;

use crate::claims::{Claims, Identity};
use crate::key_set::{KeySet, NoKey};
use crate::problem::TokenProblem;

/// What a token must say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected<'a> {
    pub(crate) issuer: &'a str,
    /// One of these is the audience of the token.
    pub(crate) audiences: &'a [String],
    /// The permitted difference of clocks.
    pub(crate) skew: Duration,
    /// The values of claims that count.
    pub(crate) claims: &'a ClaimValues,
}

/// Whether a token has the form of a JWT: three parts with dots between them.
pub(crate) fn is_jwt(token: &str) -> bool {
    token.bytes().filter(|byte| *byte == b'.').count() == 2
}

/// The header of a token, which nothing vouches for.
pub(crate) fn header(token: &str) -> Result<Header, TokenProblem> {
    let header = jsonwebtoken::decode_header(token).map_err(|error| match error.kind() {
        // `none` is such an algorithm.
        ErrorKind::Json(_) | ErrorKind::InvalidAlgorithmName => TokenProblem::Algorithm,
        _ => TokenProblem::Form,
    })?;
    // A token of another kind, such as one that reports a sign-out.
    let kind = header.typ.as_deref().unwrap_or("JWT");
    let kind = kind.get(.."application/".len()).map_or(kind, |start| {
        let is_media_type = start.eq_ignore_ascii_case("application/");
        if is_media_type { &kind["application/".len()..] } else { kind }
    });
    if !["JWT", "at+jwt"].iter().any(|known| kind.eq_ignore_ascii_case(known)) {
        return Err(TokenProblem::Kind);
    }
    // Extensions that must be understood (RFC 7515, section 4.1.11): none is known here.
    match header.crit {
        None => Ok(header),
        Some(_) => Err(TokenProblem::Form),
    }
}

/// The client of a token whose header was read.
pub(crate) fn verify(
    token: &str,
    header: &Header,
    keys: &KeySet,
    expected: &Expected<'_>,
) -> Result<Identity, TokenProblem> {
    let key = keys.find(header).map_err(|why| match why {
        NoKey::Unknown => TokenProblem::Key,
        NoKey::OtherAlgorithm => TokenProblem::Algorithm,
    })?;
    let mut validation = Validation::new(header.alg);
    validation.leeway = expected.skew.as_secs();
    validation.validate_nbf = true;
    validation.set_required_spec_claims(&["exp", "iss", "aud"]);
    validation.set_issuer(&[expected.issuer]);
    validation.set_audience(expected.audiences);
    let decoded = jsonwebtoken::decode::<Claims>(token, key, &validation);
    let claims = decoded.map_err(|error| problem(error.kind()))?.claims;
    // The library also takes a list of issuers.
    if claims.iss.as_deref() != Some(expected.issuer) {
        return Err(TokenProblem::Issuer);
    }
    let identity = claims.identity(expected.issuer, expected.skew)?;
    // The library counts in whole seconds, and accepts a token for the rest of its last one.
    if identity.expires <= SystemTime::now() {
        return Err(TokenProblem::Expired);
    }
    if expected.claims.is_empty() {
        return Ok(identity);
    }
    let payload = token.split('.').nth(1).and_then(|part| URL_SAFE_NO_PAD.decode(part).ok());
    identity.with_claims(&payload.ok_or(TokenProblem::Form)?, expected.claims)
}

fn problem(kind: &ErrorKind) -> TokenProblem {
    match kind {
        ErrorKind::ExpiredSignature => TokenProblem::Expired,
        ErrorKind::ImmatureSignature => TokenProblem::NotYet,
        ErrorKind::InvalidIssuer => TokenProblem::Issuer,
        ErrorKind::InvalidAudience => TokenProblem::Audience,
        ErrorKind::InvalidSignature => TokenProblem::Signature,
        ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => TokenProblem::Algorithm,
        ErrorKind::MissingRequiredClaim(claim) => match &**claim {
            "aud" => TokenProblem::Audience,
            "iss" => TokenProblem::Issuer,
            _ => TokenProblem::NoEnd,
        },
        _ => TokenProblem::Form,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ring::signature::{Ed25519KeyPair, KeyPair as _};
    use serde_json::{Value, json};

    use super::*;

    const AUDIENCE: &str = "https://mcp.example/mcp";

    fn encoded(bytes: impl AsRef<[u8]>) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// A token with this header and these claims, signed with the one key of the issuer.
    fn signed(header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", encoded(header), encoded(claims));
        format!("{signed}.{}", encoded(key().sign(signed.as_bytes())))
    }

    fn key() -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap()
    }

    fn checked(token: &str) -> Result<Identity, TokenProblem> {
        crate::provider::install();
        let x = encoded(key().public_key());
        let keys = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": "ed" }] });
        let keys = KeySet::parse(keys.to_string().as_bytes()).unwrap();
        let (audiences, claims) = ([AUDIENCE.to_owned()], ClaimValues::of([("groups", "a")]));
        let expected = Expected {
            issuer: "https://i.example",
            audiences: &audiences,
            skew: Duration::from_secs(5),
            claims: &claims,
        };
        verify(token, &header(token)?, &keys, &expected)
    }

    fn good_claims() -> Value {
        json!({
            "iss": "https://i.example", "aud": AUDIENCE, "sub": "ada", "iat": 3_999_996_400_u64,
            "exp": 4_000_000_000_u64, "groups": ["a", "b"]
        })
    }

    fn good() -> String {
        signed(r#"{"alg":"EdDSA","kid":"ed","typ":"at+jwt"}"#, &good_claims().to_string())
    }

    #[test]
    fn a_token_of_the_issuer_names_its_client_and_has_the_claims_that_count() {
        let identity = checked(&good()).unwrap();
        assert_eq!(identity.principal.name(), "sub:https://i.example ada");
        assert_eq!(identity.claims, ClaimValues::of([("groups", "a")]));
    }

    /// JSON that is like a header or like claims.
    fn near() -> impl Strategy<Value = String> {
        let names = [
            "alg", "kid", "typ", "crit", "jwk", "x5c", "iss", "aud", "sub", "iat", "exp", "nbf",
            "groups",
        ];
        let values = [
            "\"none\"",
            "\"HS256\"",
            "\"EdDSA\"",
            "\"ES256\"",
            "\"ed\"",
            "\"at+jwt\"",
            "\"application/at+jwt\"",
            "\"\u{e4}pplication/\"",
            "\"https://i.example\"",
            "\"https://mcp.example/mcp\"",
            "[]",
            "[\"https://mcp.example/mcp\",7]",
            "{\"a\":[]}",
            "4000000000",
            "-1e300",
            "null",
            "\"\\ud800\"",
        ];
        let member = (prop::sample::select(names.to_vec()), prop::sample::select(values.to_vec()));
        prop::collection::vec(member, 0..7).prop_map(|members| {
            let members = members.iter().map(|(name, value)| format!("\"{name}\":{value}"));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,60}|[A-Za-z0-9_.=-]{0,80}") {
            let _ = is_jwt(&text);
            prop_assert!(checked(&text).is_err());
        }

        /// What the issuer signed is refused if its header or its claims are wrong, and never panics.
        #[test]
        fn a_header_and_claims_of_any_form_are_read(head in near(), claims in near()) {
            let token = signed(&head, &claims);
            if let Ok(read) = header(&token) {
                prop_assert!(read.crit.is_none());
                let kind = read.typ.unwrap_or_else(|| "JWT".into()).to_ascii_lowercase();
                let kind = kind.strip_prefix("application/").unwrap_or(&kind);
                prop_assert!(matches!(kind, "jwt" | "at+jwt"), "{}", kind);
            }
            if checked(&token).is_ok() {
                let read: Value = serde_json::from_str(&claims).unwrap();
                prop_assert_eq!(&read["iss"], "https://i.example");
                prop_assert_eq!(&read["exp"], 4_000_000_000_u64);
                prop_assert!(read["sub"].is_string());
                prop_assert!(head.contains("EdDSA"));
            }
        }

        /// No other text than the issuer's is accepted, whichever character is another.
        #[test]
        fn a_changed_token_is_refused(at in any::<prop::sample::Index>(), letter in "[A-Za-z0-9_.=-]") {
            let mut token = good();
            let at = at.index(token.len());
            prop_assume!(token[at..=at] != letter);
            token.replace_range(at..=at, &letter);
            prop_assert!(checked(&token).is_err());
            // The same signature, under another header.
            let parts: Vec<&str> = token.split('.').collect();
            let other = format!("{}.{}", encoded(r#"{"alg":"EdDSA"}"#), parts[1..].join("."));
            prop_assert!(checked(&other).is_err());
        }
    }
}
