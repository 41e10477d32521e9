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
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use ring::signature::{Ed25519KeyPair, KeyPair as _};
    use serde_json::{Value, json};

    use super::*;

    const AUDIENCE: &str = "https://mcp.example/mcp";

    /// When these tests began, in seconds since 1970.
    static NOW: LazyLock<u64> = LazyLock::new(|| {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
    });

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
        let audiences = ["https://mcp.example/sse", AUDIENCE].map(str::to_owned);
        let claims = ClaimValues::of([("groups", "a")]);
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
            "iss": "https://i.example", "aud": AUDIENCE, "sub": "ada", "iat": *NOW,
            "exp": *NOW + 3_600, "groups": ["a", "b"]
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

    /// Checks the token of the good claims with one changed, or without it if it is `null`.
    #[track_caller]
    fn check_with(claim: &str, value: Value, expected: Result<(), TokenProblem>) {
        let mut claims = good_claims();
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(claim)),
            ref value => claims[claim] = value.clone(),
        }
        let token = signed(r#"{"alg":"EdDSA","kid":"ed"}"#, &claims.to_string());
        assert_eq!(checked(&token).map(drop), expected, "{claim}: {value}");
    }

    #[test]
    fn each_claim_refuses_a_token_by_itself() {
        let other = json!("https://i.example/");
        for issuer in [other.clone(), json!("https://I.example")] {
            check_with("iss", issuer, Err(TokenProblem::Issuer));
        }
        check_with("iss", json!(["https://i.example"]), Err(TokenProblem::Form));
        check_with("iss", Value::Null, Err(TokenProblem::Issuer));
        check_with("aud", json!(["x", AUDIENCE]), Ok(()));
        check_with("aud", json!("https://mcp.example/sse"), Ok(()));
        for audience in [json!("https://mcp.example/mcp/"), json!(format!("{AUDIENCE} x")), other] {
            check_with("aud", audience.clone(), Err(TokenProblem::Audience));
            check_with("aud", json!([audience]), Err(TokenProblem::Audience));
        }
        check_with("aud", Value::Null, Err(TokenProblem::Audience));
        check_with("aud", json!([]), Err(TokenProblem::Audience));
        check_with("sub", Value::Null, Err(TokenProblem::NoSubject));
    }

    /// Times are compared with a second of room for the test itself; the skew is 5 s.
    #[test]
    fn each_time_refuses_a_token_by_itself() {
        let now = *NOW;
        check_with("exp", json!(now - 1), Ok(()));
        // With the skew it ends in the second in which the test begins, or before.
        for late in [now - 5, now - 7, now - 3_600, 0] {
            check_with("exp", json!(late), Err(TokenProblem::Expired));
        }
        check_with("exp", Value::Null, Err(TokenProblem::NoEnd));
        check_with("exp", json!((now + 60).to_string()), Err(TokenProblem::Form));
        for soon in [now - 60, now + 4] {
            check_with("nbf", json!(soon), Ok(()));
            check_with("iat", json!(soon), Ok(()));
        }
        for far in [now + 60, now + 3_000_000_000] {
            check_with("nbf", json!(far), Err(TokenProblem::NotYet));
            check_with("iat", json!(far), Err(TokenProblem::NotYet));
        }
        check_with("nbf", json!("soon"), Err(TokenProblem::Form));
        check_with("iat", Value::Null, Ok(()));
        // 30 days from its issue, or from now.
        let lasts_max = 30 * 24 * 3_600;
        check_with("exp", json!(now + lasts_max), Ok(()));
        check_with("exp", json!(now + lasts_max + 1), Err(TokenProblem::Lasts));
        check_with("iat", json!(now - lasts_max), Err(TokenProblem::Lasts));
    }

    #[test]
    fn a_header_refuses_a_token_by_itself() {
        let with = |header: &str| {
            let header = format!(r#"{{"alg":"EdDSA","kid":"ed"{header}}}"#);
            checked(&signed(&header, &good_claims().to_string())).map(drop)
        };
        for kind in ["JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt", "Application/JWT"] {
            assert_eq!(with(&format!(r#","typ":"{kind}""#)), Ok(()), "{kind}");
        }
        for kind in ["", "JWS", "id+jwt", "logout+jwt", "dpop+jwt", "application/", "x/at+jwt"] {
            assert_eq!(with(&format!(r#","typ":"{kind}""#)), Err(TokenProblem::Kind), "{kind}");
        }
        for names in ["[]", r#"["b64"]"#, r#"["exp"]"#] {
            assert_eq!(with(&format!(r#","crit":{names}"#)), Err(TokenProblem::Form), "{names}");
        }
        let header = |alg: &str, kid: &str| {
            let header = format!(r#"{{"alg":"{alg}","kid":"{kid}"}}"#);
            checked(&signed(&header, &good_claims().to_string())).map(drop)
        };
        assert_eq!(header("EdDSA", "other"), Err(TokenProblem::Key));
        for alg in ["none", "HS256", "ES256", "RS256", "eddsa"] {
            assert_eq!(header(alg, "ed"), Err(TokenProblem::Algorithm), "{alg}");
        }
        assert!(is_jwt("a.b.c"));
        for other in ["a.b", "a.b.c.d", "a.b.c.d.e", "abc"] {
            assert!(!is_jwt(other), "{other}");
        }
    }

    /// JSON that is like a header or like claims.
    fn near() -> impl Strategy<Value = String> {
        let names = [
            "alg", "kid", "typ", "crit", "jwk", "x5c", "iss", "aud", "sub", "iat", "exp", "nbf",
            "groups",
        ];
        let end = (*NOW + 3_600).to_string();
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
            &end,
            "-1e300",
            "null",
            "\"\\ud800\"",
        ];
        let values = values.map(str::to_owned).to_vec();
        let member = (prop::sample::select(names.to_vec()), prop::sample::select(values));
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
                prop_assert_eq!(&read["exp"], *NOW + 3_600);
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
