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
