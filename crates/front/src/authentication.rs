//! Who sends a request: checks the credential that its tenant asks for.
//!
//! The credential is the `Authorization` header, in each request (SEC-07). It is never logged, and
//! reaches no session, server or other node: these get the principal. Only the issuer of a token gets
//! the token, if it is to be asked about it.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::SystemTime;

use actors::RevocationsOfThread;
use identity::{Identity, TokenCache, TokenDigest, TokenProblem, Tokens};
use tenants::{
    Access, Attributes, Credentials, KEY_PREFIX, KeyDigest, KeyProblem, Keys, OauthRules,
    Principal, Scopes, Tenant,
};

use crate::heads::Authorization;
use crate::lapse::{Accepted, Lapse, Lapses, Validity};
use crate::permissions::Grant;
use crate::resource::PublicUrls;

/// The client of a request, and how long it is known to be that.
#[derive(Clone, Debug)]
pub(crate) struct Credential {
    pub(crate) principal: Principal,
    accepted: Accepted,
    /// What the client may do; `None`: everything. Boxed: most tenants have no rules.
    pub(crate) grant: Option<Box<Grant>>,
}

/// Why the sender of a request is not known, or may not send it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unauthenticated {
    /// The request has no credential.
    Missing,
    /// The credential is of a scheme that is not known here.
    Scheme,
    /// The header does not have the form of its scheme.
    Malformed,
    /// The tenant does not have this key.
    UnknownKey,
    /// The key of this client has ended.
    ExpiredKey(Principal),
    /// The token is not valid here, or its issuer could not be asked.
    Token(TokenProblem),
    /// The key or token was valid, and its client was revoked since.
    Revoked(Principal),
    /// The token is valid, and lacks some of these scopes. With its client, unless that is known already.
    Scope(Scopes, Option<Principal>),
}

impl Unauthenticated {
    /// The client, if what the request presents was made for it.
    pub(crate) fn client(&self) -> Option<&Principal> {
        match self {
            Self::ExpiredKey(client) | Self::Revoked(client) => Some(client),
            Self::Scope(_, client) => client.as_ref(),
            Self::Missing | Self::Scheme | Self::Malformed | Self::UnknownKey | Self::Token(_) => {
                None
            }
        }
    }
}

/// What the header of a request says.
pub(crate) enum Found<'a> {
    /// The client is known.
    Credential(Credential),
    /// A token that is to be verified: [`Authentication::verify`].
    Token { rules: &'a Arc<OauthRules>, token: &'a str, digest: TokenDigest },
}

/// Authenticates the requests of one worker.
#[derive(Clone, Debug)]
pub(crate) struct Authentication {
    /// The principal of every client at an open endpoint: one for all of a worker's requests.
    anonymous: Principal,
    tokens: Tokens,
    verified: RefCell<TokenCache>,
    urls: Arc<PublicUrls>,
    revocations: RevocationsOfThread,
}

impl Authentication {
    /// For the first worker.
    pub(crate) fn new(
        tokens: Tokens,
        urls: Arc<PublicUrls>,
        revocations: RevocationsOfThread,
    ) -> Self {
        let anonymous = Principal::anonymous();
        Self { anonymous, tokens, verified: RefCell::default(), urls, revocations }
    }

    /// The same for another worker. The two share no memory that each request changes.
    pub(crate) fn for_worker(&self) -> Self {
        Self::new(self.tokens.clone(), Arc::clone(&self.urls), self.revocations.clone())
    }

    /// The credential of every client of an open endpoint, which share this principal.
    pub(crate) fn of_anyone(&self) -> Credential {
        let principal = self.anonymous.clone();
        Credential { principal, accepted: Accepted::Open, grant: None }
    }

    /// Finds the client with this `Authorization` header. At an open endpoint the header has no
    /// meaning.
    pub(crate) fn find<'a>(
        &self,
        tenant: &'a Tenant,
        authorization: Authorization<'a>,
    ) -> Result<Found<'a>, Unauthenticated> {
        let Access::Authenticated(credentials) = &tenant.access else {
            let grant = grant(tenant, false, Attributes::default);
            return Ok(Found::Credential(Credential { grant, ..self.of_anyone() }));
        };
        let token = bearer(match authorization {
            Authorization::Absent => return Err(Unauthenticated::Missing),
            Authorization::Unreadable => return Err(Unauthenticated::Malformed),
            Authorization::Present(text) => text,
        })?;
        let Credentials { keys, oauth } = credentials;
        match (keys, oauth) {
            (Some(keys), None) => self.of_key(tenant, keys, formed(token)?),
            (Some(keys), Some(_)) if token.starts_with(KEY_PREFIX) => {
                self.of_key(tenant, keys, formed(token)?)
            }
            (_, Some(rules)) => self.of_token(tenant, rules, token),
            (None, None) => Err(Unauthenticated::UnknownKey),
        }
    }

    /// The credential, unless its client was revoked.
    pub(crate) fn unrevoked(
        &self,
        tenant: &Tenant,
        credential: Credential,
    ) -> Result<Credential, Unauthenticated> {
        match credential.is_revoked(tenant, &self.revocations) {
            false => Ok(credential),
            true => Err(Unauthenticated::Revoked(credential.principal)),
        }
    }

    fn of_key<'a>(
        &self,
        tenant: &Tenant,
        keys: &Keys,
        presented: &str,
    ) -> Result<Found<'a>, Unauthenticated> {
        let credential = of_key(tenant, keys, presented)?;
        self.unrevoked(tenant, credential).map(Found::Credential)
    }

    fn of_token<'a>(
        &self,
        tenant: &Tenant,
        rules: &'a Arc<OauthRules>,
        token: &'a str,
    ) -> Result<Found<'a>, Unauthenticated> {
        let digest = TokenDigest::of(token);
        let mut verified = self.verified.borrow_mut();
        let Some(identity) = verified.find(&tenant.name, rules, digest) else {
            // Only here: the characters of a token that was verified are those of a token.
            return Ok(Found::Token { rules, token: formed(token)?, digest });
        };
        let credential = self.unrevoked(tenant, of_identity(tenant, rules, &identity)?);
        if credential.is_err() {
            verified.forget(&tenant.name, digest);
        }
        credential.map(Found::Credential)
    }

    /// Verifies a token, which can take as long as its issuer takes to answer.
    pub(crate) async fn verify(
        &self,
        tenant: &Tenant,
        rules: &Arc<OauthRules>,
        token: &str,
        digest: TokenDigest,
    ) -> Result<Credential, Unauthenticated> {
        let audiences = self.urls.audiences(tenant, rules);
        let verified = self.tokens.verify(&tenant.name, rules, &audiences, token).await;
        let identity = Arc::new(verified.map_err(Unauthenticated::Token)?);
        let credential = of_identity(tenant, rules, &identity);
        let credential = credential.and_then(|credential| self.unrevoked(tenant, credential));
        if !matches!(credential, Err(Unauthenticated::Revoked(_))) {
            self.verified.borrow_mut().keep(&tenant.name, rules, digest, identity);
        }
        credential
    }
}

fn of_key(tenant: &Tenant, keys: &Keys, presented: &str) -> Result<Credential, Unauthenticated> {
    let digest = KeyDigest::of(presented);
    let key = keys.find(digest, SystemTime::now()).map_err(|problem| match problem {
        KeyProblem::Unknown => Unauthenticated::UnknownKey,
        KeyProblem::Expired(client) => Unauthenticated::ExpiredKey(client),
    })?;
    // A copy: threads share no memory that each request changes.
    let principal = Principal::named(key.principal.name());
    let attributes = || Attributes { scopes: key.scopes.clone(), ..Attributes::default() };
    let grant = grant(tenant, false, attributes);
    Ok(Credential { principal, accepted: Accepted::Key(digest), grant })
}

/// What a client with these attributes may do at the tenant's endpoint.
fn grant(
    tenant: &Tenant,
    can_step_up: bool,
    client: impl FnOnce() -> Attributes,
) -> Option<Box<Grant>> {
    let permissions = tenant.permissions.as_ref()?;
    Some(Box::new(Grant::new(permissions, client(), can_step_up)))
}

fn of_identity(
    tenant: &Tenant,
    rules: &OauthRules,
    identity: &Identity,
) -> Result<Credential, Unauthenticated> {
    if !identity.scopes.has_all(&rules.scopes) {
        let client = Some(identity.principal.clone());
        return Err(Unauthenticated::Scope(rules.scopes.clone(), client));
    }
    // The identity belongs to this worker, so each request may count the principal.
    let principal = identity.principal.clone();
    let Identity { scopes, claims, expires, issued, .. } = identity;
    let attributes = || Attributes { scopes: scopes.clone(), claims: claims.clone() };
    let grant = grant(tenant, true, attributes);
    let accepted = Accepted::Token { expires: *expires, issued: *issued };
    Ok(Credential { principal, accepted, grant })
}

impl Credential {
    /// Whether the client was revoked since it got what it presented.
    pub(crate) fn is_revoked(&self, tenant: &Tenant, revocations: &RevocationsOfThread) -> bool {
        let times = revocations.times(&tenant.name, self.principal.name());
        self.accepted.is_refused_by(times, tenant.access.oauth().map(Arc::as_ref))
    }

    /// The credential of a client that needs none.
    pub(crate) fn anonymous() -> Self {
        Self { principal: Principal::anonymous(), accepted: Accepted::Open, grant: None }
    }

    /// The token that the client presented with this header, if it presented one.
    pub(crate) fn token<'a>(&self, authorization: &Authorization<'a>) -> Option<&'a str> {
        match (&self.accepted, authorization) {
            (Accepted::Token { .. }, Authorization::Present(header)) => bearer(header).ok(),
            _ => None,
        }
    }

    /// The name of the key that the client presented, if it presented one.
    pub(crate) fn key_name<'a>(&self, tenant: &'a Tenant) -> Option<&'a str> {
        match (&self.accepted, &tenant.access) {
            (
                Accepted::Key(digest),
                Access::Authenticated(Credentials { keys: Some(keys), .. }),
            ) => keys.name(*digest),
            _ => None,
        }
    }

    /// Resolves when the credential does not count any more.
    pub(crate) fn lapse(&self, lapses: &Lapses, tenant: &Tenant) -> Lapse {
        let rules = tenant.access.oauth().cloned();
        let (tenant, principal) = (Arc::clone(&tenant.name), self.principal.clone());
        let (accepted, grant) = (self.accepted, self.grant.clone());
        lapses.lapse(Validity { tenant, principal, accepted, rules, grant })
    }
}

/// The token of a header `Bearer TOKEN`, whose characters are not judged yet. The scheme is written in
/// any case (RFC 9110, section 11.1).
fn bearer(authorization: &str) -> Result<&str, Unauthenticated> {
    let (scheme, token) = authorization.split_once(' ').unwrap_or((authorization, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Unauthenticated::Scheme);
    }
    Ok(token.trim_matches(' '))
}

/// The token, if it has the characters of one (RFC 6750, section 2.1).
fn formed(token: &str) -> Result<&str, Unauthenticated> {
    let is_mark = |byte| matches!(byte, b'-' | b'.' | b'_' | b'~' | b'+' | b'/' | b'=');
    let is_formed = !token.is_empty()
        && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || is_mark(byte));
    if is_formed { Ok(token) } else { Err(Unauthenticated::Malformed) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use actors::{Revocation, RevocationTimes, Revocations};
    use proptest::prelude::*;
    use tenants::{ClaimValues, KeySettings, OauthSettings, Settings};

    use super::*;

    fn tenant(auth: &str, keys: &[&str]) -> Tenant {
        let keys = keys.iter().map(|key| {
            let name = key.trim_start_matches(KEY_PREFIX).to_owned();
            (name, KeySettings::of_key(key))
        });
        let oauth = match auth.contains("oauth") {
            true => OauthSettings {
                issuer: "https://i.example".into(),
                scopes: vec!["mcp".into()],
                ..OauthSettings::default()
            },
            false => OauthSettings::default(),
        };
        let (auth, keys) = (Some(auth.into()), keys.collect());
        Tenant::new("acme", &Settings { auth, keys, oauth, ..Settings::default() }).unwrap()
    }

    fn authentication() -> Authentication {
        let urls = PublicUrls::new(&crate::Settings::default()).unwrap();
        let revocations = RevocationsOfThread::new(&Revocations::default());
        Authentication::new(Tokens::default(), Arc::new(urls), revocations)
    }

    impl Authentication {
        fn shared_revocations(&self) -> &Revocations {
            self.revocations.shared()
        }
    }

    fn found(tenant: &Tenant, header: Option<&str>) -> Result<String, Unauthenticated> {
        let header = header.map_or(Authorization::Absent, Authorization::Present);
        authentication().find(tenant, header).map(|found| match found {
            Found::Credential(credential) => credential.principal.name().to_owned(),
            Found::Token { token, .. } => format!("token {token}"),
        })
    }

    #[test]
    fn a_key_names_its_client_and_nothing_else_does() {
        let tenant = tenant("keys", &["ada", "bob"]);
        for header in ["Bearer ada", "bearer ada", "BEARER  ada "] {
            assert_eq!(found(&tenant, Some(header)).as_deref(), Ok("key:ada"), "{header}");
        }
        assert_eq!(found(&tenant, None), Err(Unauthenticated::Missing));
        let unknown = Unauthenticated::UnknownKey;
        for header in ["Bearer ADA", "Bearer key/ada", "Bearer ad", "Bearer adaa"] {
            assert_eq!(found(&tenant, Some(header)), Err(unknown.clone()), "{header}");
        }
        for header in ["Bearer", "Bearer ", "Bearer ada bob", "Bearer key:ada", "Bearer \tada"] {
            assert_eq!(found(&tenant, Some(header)), Err(Unauthenticated::Malformed), "{header}");
        }
        for header in ["", "ada", "Basic YWRhOmFkYQ==", "Bearer\tada", "BearerX ada"] {
            assert_eq!(found(&tenant, Some(header)), Err(Unauthenticated::Scheme), "{header}");
        }
    }

    /// A client that can ask its issuer for scopes gets their names; one with a key does not.
    #[test]
    fn rules_judge_a_client_by_what_it_presents() {
        let rule = |scope: &str, group: &str, tool: &str| tenants::PermissionSettings {
            scopes: vec![scope.to_owned()],
            claims: match group {
                "" => Default::default(),
                group => [("groups".to_owned(), vec![group.to_owned()])].into(),
            },
            tools: vec![tool.to_owned()],
            ..Default::default()
        };
        let key = KeySettings { scopes: vec!["mcp".into()], ..KeySettings::of_key("rhk_1") };
        let settings = |auth: &str| Settings {
            auth: Some(auth.into()),
            keys: match auth {
                "open" => Default::default(),
                _ => [("ada".to_owned(), key.clone())].into(),
            },
            oauth: OauthSettings {
                issuer: if auth == "open" { String::new() } else { "https://i.example".into() },
                ..OauthSettings::default()
            },
            permissions: [
                ("a".to_owned(), rule("mcp", "", "a")),
                ("b".to_owned(), rule("more", "", "b")),
                ("c".to_owned(), rule("mcp", if auth == "open" { "" } else { "staff" }, "c")),
            ]
            .into(),
            ..Settings::default()
        };
        let tenant = Tenant::new("acme", &settings("keys, oauth")).unwrap();
        let authentication = authentication();
        let claims = ClaimValues::of([("groups", "staff")]);
        let expires = SystemTime::now() + Duration::from_secs(60);
        let (principal, scopes) = (Principal::named("ada"), Scopes::of(["mcp"]));
        let identity = Arc::new(Identity { principal, scopes, claims, expires, issued: None });
        let rules = tenant.access.oauth().unwrap();
        let digest = TokenDigest::of("a.b.c");
        authentication.verified.borrow_mut().keep(&tenant.name, rules, digest, identity);
        let judged = |tenant: &Tenant, header: Option<&str>| {
            let header = header.map_or(Authorization::Absent, Authorization::Present);
            let Ok(Found::Credential(found)) = authentication.find(tenant, header) else {
                panic!("not found")
            };
            let grant = found.grant.expect("there are rules");
            ["a", "b", "c"].map(|tool| {
                let call = format!(
                    r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}"}}}}"#
                );
                let body = protocol::parse(call.into(), &protocol::Limits::default()).unwrap();
                match grant.judge(body) {
                    Ok(_) => "allowed",
                    Err(crate::permissions::NotPermitted::Needs(..)) => "needs scopes",
                    Err(crate::permissions::NotPermitted::Refused(_)) => "refused",
                }
            })
        };
        let token = judged(&tenant, Some("Bearer a.b.c"));
        assert_eq!(token, ["allowed", "needs scopes", "allowed"]);
        let key = judged(&tenant, Some("Bearer rhk_1"));
        assert_eq!(key, ["allowed", "refused", "refused"]);
        let open = Tenant::new("acme", &settings("open")).unwrap();
        assert_eq!(judged(&open, None), ["refused"; 3]);
    }

    #[test]
    fn an_open_endpoint_ignores_the_header() {
        let tenant = Tenant::new("acme", &Settings::open()).unwrap();
        for header in [None, Some("Bearer x"), Some("nonsense")] {
            assert_eq!(found(&tenant, header).as_deref(), Ok(""));
        }
    }

    #[test]
    fn a_credential_is_of_the_kind_that_its_form_says() {
        let key = format!("{KEY_PREFIX}1");
        let header = format!("Bearer {key}");
        let both = tenant("keys, oauth", &[&key]);
        assert_eq!(found(&both, Some(&header)), Ok("key:1".into()));
        assert_eq!(found(&both, Some("Bearer a.b.c")).as_deref(), Ok("token a.b.c"));
        // Where no key counts, a key is a token like any other.
        let oauth = tenant("oauth", &[]);
        assert_eq!(found(&oauth, Some(&header)), Ok(format!("token {key}")));
        let none = Tenant::of_peer("acme".into(), 1);
        assert!(found(&none, Some(&header)).is_err() && found(&none, None).is_err());
    }

    #[test]
    fn a_verified_token_is_not_verified_again_and_needs_the_scopes() {
        let (authentication, tenant) = (authentication(), tenant("oauth", &[]));
        let Access::Authenticated(Credentials { oauth: Some(rules), .. }) = &tenant.access else {
            panic!("{:?}", tenant.access)
        };
        for (token, scopes) in [("a.b.c", "mcp"), ("a.b.d", "other")] {
            let expires = SystemTime::now() + Duration::from_secs(60);
            let (principal, scopes) = (Principal::named(token), Scopes::of([scopes]));
            let claims = ClaimValues::default();
            let identity = Arc::new(Identity { principal, scopes, claims, expires, issued: None });
            let mut verified = authentication.verified.borrow_mut();
            verified.keep(&tenant.name, rules, TokenDigest::of(token), identity);
        }
        let find = |header| authentication.find(&tenant, Authorization::Present(header));
        assert!(matches!(find("Bearer a.b.c"), Ok(Found::Credential(_))));
        let lacks = Unauthenticated::Scope(Scopes::of(["mcp"]), Some(Principal::named("a.b.d")));
        assert_eq!(find("Bearer a.b.d").err(), Some(lacks));
        assert!(matches!(find("Bearer a.b.e"), Ok(Found::Token { .. })));
    }

    #[test]
    fn a_revoked_client_is_refused_unless_its_token_is_newer() {
        let (authentication, tenant) = (authentication(), tenant("keys, oauth", &["rhk_1"]));
        let rules = tenant.access.oauth().unwrap();
        let revoked_ms = 1_800_000_000_000;
        let issued =
            |after: u64| SystemTime::UNIX_EPOCH + Duration::from_millis(revoked_ms + after);
        let skew_ms = u64::try_from(rules.clock_skew.as_millis()).unwrap();
        let far = SystemTime::now() + Duration::from_hours(24 * 365 * 20);
        for (token, issued) in
            [("old", Some(issued(skew_ms))), ("new", Some(issued(skew_ms + 1))), ("none", None)]
        {
            let (principal, scopes) = (Principal::named("sub:i ada"), Scopes::of(["mcp"]));
            let claims = ClaimValues::default();
            let identity = Identity { principal, scopes, claims, expires: far, issued };
            let mut verified = authentication.verified.borrow_mut();
            verified.keep(&tenant.name, rules, TokenDigest::of(token), Arc::new(identity));
        }
        let find = |token: &str| {
            let header = format!("Bearer {token}");
            match authentication.find(&tenant, Authorization::Present(&header)) {
                Ok(Found::Credential(_)) => "found",
                Ok(Found::Token { .. }) => "to be verified",
                Err(Unauthenticated::Revoked(client)) => {
                    assert!(["key:1", "sub:i ada"].contains(&client.name()));
                    "revoked"
                }
                Err(_) => "refused",
            }
        };
        let all = ["rhk_1", "old", "new", "none"];
        assert_eq!(all.map(find), ["found"; 4]);
        let times = RevocationTimes { revoked_ms, lifted_ms: 0 };
        for principal in ["key:1", "sub:i ada"] {
            let (tenant, principal) = (Arc::clone(&tenant.name), principal.into());
            let revocation = Revocation { tenant, principal, times };
            authentication.shared_revocations().merge(&[revocation]);
        }
        assert_eq!(all.map(find), ["revoked", "revoked", "found", "revoked"]);
        // The cache keeps no token of a revoked client.
        assert_eq!(all.map(find), ["revoked", "to be verified", "found", "to be verified"]);
    }

    proptest! {
        /// Any header is read without a panic, and what counts as its token has no other characters.
        #[test]
        fn a_token_is_read_from_any_header(
            text in "\\PC{0,40}|(?i:bearer)[ \t]{0,3}[A-Za-z0-9._~+/= ,\"-]{0,40}",
            token in "[A-Za-z0-9._~+/=-]{1,40}",
            spaces in " {1,3}",
        ) {
            let bearer = |text| bearer(text).and_then(formed);
            if let Ok(found) = bearer(&text) {
                prop_assert!(text.ends_with(found) || text.trim_end().ends_with(found));
                let is_plain = |letter: char| letter.is_ascii_graphic() && !"\",:".contains(letter);
                prop_assert!(!found.is_empty() && found.chars().all(is_plain), "{}", found);
            }
            let one = format!("bEARER{spaces}{token}");
            prop_assert_eq!(bearer(&one), Ok(&*token));
            let two = format!("Bearer {token},{token}");
            prop_assert_eq!(bearer(&two), Err(Unauthenticated::Malformed));
        }
    }
}
