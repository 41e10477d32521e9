//! Who sends a request: checks the credential that its tenant asks for.
//!
//! The credential is the `Authorization` header, in each request (SEC-07). It is never logged, and
//! reaches no session, server or other node: these get the principal.

use std::sync::Arc;
use std::time::SystemTime;

use tenants::{Access, KeyDigest, KeyProblem, Keys, Principal, Tenant};

use crate::heads::Authorization;
use crate::lapse::{Lapse, Lapses, Validity};
use crate::refusal::{Challenge, Refused};

/// The client of a request, and how long it is known to be that.
#[derive(Clone, Debug)]
pub(crate) struct Credential {
    pub(crate) principal: Principal,
    /// The key that was presented; `None` at an open endpoint.
    key: Option<KeyDigest>,
}

/// Why the sender of a request is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unauthenticated {
    /// The request has no credential.
    Missing,
    /// The credential is of a scheme that is not known here.
    Scheme,
    /// The header does not have the form of its scheme.
    Malformed,
    /// The credential is not valid here, or not any more.
    Key(KeyProblem),
}

impl Credential {
    /// The credential of every client of an open endpoint, which share this principal.
    pub(crate) fn of_anyone(anonymous: &Principal) -> Self {
        Self { principal: anonymous.clone(), key: None }
    }

    /// Finds the client with this `Authorization` header. At an open endpoint the header has no
    /// meaning.
    pub(crate) fn find(
        tenant: &Tenant,
        authorization: Authorization<'_>,
        anonymous: &Principal,
    ) -> Result<Self, Unauthenticated> {
        match &tenant.access {
            Access::Open => Ok(Self::of_anyone(anonymous)),
            Access::Keys(keys) => Self::of_key(keys, authorization),
        }
    }

    fn of_key(keys: &Keys, authorization: Authorization<'_>) -> Result<Self, Unauthenticated> {
        let authorization = match authorization {
            Authorization::Absent => return Err(Unauthenticated::Missing),
            Authorization::Unreadable => return Err(Unauthenticated::Malformed),
            Authorization::Present(text) => text,
        };
        let digest = KeyDigest::of(bearer(authorization)?);
        let key = keys.find(digest, SystemTime::now()).map_err(Unauthenticated::Key)?;
        // A copy: threads share no memory that each request changes.
        Ok(Self { principal: Principal::named(key.principal.name()), key: Some(digest) })
    }

    /// Resolves when the credential does not count any more.
    pub(crate) fn lapse(&self, lapses: &Lapses, tenant: &Tenant) -> Lapse {
        let (tenant, principal) = (Arc::clone(&tenant.name), self.principal.clone());
        lapses.lapse(Validity { tenant, principal, key: self.key })
    }
}

/// The token of a header `Bearer TOKEN`. The scheme is written in any case (RFC 9110, section 11.1).
fn bearer(authorization: &str) -> Result<&str, Unauthenticated> {
    let (scheme, token) = authorization.split_once(' ').unwrap_or((authorization, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Unauthenticated::Scheme);
    }
    let token = token.trim_matches(' ');
    // RFC 6750, section 2.1.
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let is_formed = !token.is_empty() && token.bytes().all(is_token);
    if is_formed { Ok(token) } else { Err(Unauthenticated::Malformed) }
}

impl From<Unauthenticated> for Refused {
    fn from(why: Unauthenticated) -> Self {
        let (challenge, message) = match why {
            Unauthenticated::Missing => (
                Challenge::Needed,
                "the endpoint needs a key; send it as `Authorization: Bearer KEY`",
            ),
            Unauthenticated::Scheme => (
                Challenge::Needed,
                "the endpoint needs a key of the scheme Bearer: `Authorization: Bearer KEY`",
            ),
            Unauthenticated::Malformed => (
                Challenge::InvalidRequest,
                "the header `Authorization` is malformed; send it as `Bearer KEY`",
            ),
            Unauthenticated::Key(KeyProblem::Unknown) => {
                (Challenge::InvalidToken, "the key is not valid at this endpoint, or not any more")
            }
            Unauthenticated::Key(KeyProblem::Expired) => {
                (Challenge::InvalidToken, "the key has expired; ask the operator for a new one")
            }
        };
        Self::unauthenticated(challenge, message)
    }
}

#[cfg(test)]
mod tests {
    use tenants::{KeySettings, Settings};

    use super::*;

    fn tenant(keys: &[&str]) -> Tenant {
        let keys = keys.iter().map(|key| ((*key).to_owned(), KeySettings::of_key(key)));
        let settings =
            Settings { auth: Some("keys".into()), keys: keys.collect(), ..Settings::default() };
        Tenant::new("acme", &settings).unwrap()
    }

    fn found(tenant: &Tenant, header: Option<&str>) -> Result<String, Unauthenticated> {
        let anonymous = Principal::anonymous();
        let header = header.map_or(Authorization::Absent, Authorization::Present);
        Credential::find(tenant, header, &anonymous).map(|found| found.principal.name().to_owned())
    }

    #[test]
    fn a_key_names_its_client_and_nothing_else_does() {
        let tenant = tenant(&["ada", "bob"]);
        for header in ["Bearer ada", "bearer ada", "BEARER  ada "] {
            assert_eq!(found(&tenant, Some(header)).as_deref(), Ok("key:ada"), "{header}");
        }
        assert_eq!(found(&tenant, None), Err(Unauthenticated::Missing));
        let unknown = Unauthenticated::Key(KeyProblem::Unknown);
        for header in ["Bearer ADA", "Bearer key/ada", "Bearer ad", "Bearer adaa"] {
            assert_eq!(found(&tenant, Some(header)), Err(unknown), "{header}");
        }
        for header in ["Bearer", "Bearer ", "Bearer ada bob", "Bearer key:ada", "Bearer \tada"] {
            assert_eq!(found(&tenant, Some(header)), Err(Unauthenticated::Malformed), "{header}");
        }
        for header in ["", "ada", "Basic YWRhOmFkYQ==", "Bearer\tada", "BearerX ada"] {
            assert_eq!(found(&tenant, Some(header)), Err(Unauthenticated::Scheme), "{header}");
        }
    }

    #[test]
    fn an_open_endpoint_ignores_the_header() {
        let tenant = Tenant::new("acme", &Settings::open()).unwrap();
        for header in [None, Some("Bearer x"), Some("nonsense")] {
            assert_eq!(found(&tenant, header).as_deref(), Ok(""));
        }
    }
}
