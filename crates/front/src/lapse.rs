//! The end of a credential while a stream is open.
//!
//! A request is authenticated at its start. A stream goes on after that, so it waits for changes of the
//! tenants and for the end of its key or token, and looks then whether the credential still counts.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actors::{RevocationTimes, Revocations};
use tenants::{Access, Key, KeyDigest, OauthRules, Principal, Tenants};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::permissions::Grant;

/// The longest wait until a credential with an end is looked at again. The clock of the machine may be set
/// meanwhile, and stands still for the timer while the machine sleeps.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// Resolves when a credential does not count any more.
pub(crate) type Lapse = Pin<Box<dyn Future<Output = ()>>>;

/// What a credential was accepted as.
pub(crate) struct Validity {
    pub(crate) tenant: Arc<str>,
    pub(crate) principal: Principal,
    pub(crate) accepted: Accepted,
    /// The rules for tokens by which it was accepted, if the tenant had any.
    pub(crate) rules: Option<Arc<OauthRules>>,
    /// What the stream shows.
    pub(crate) grant: Option<Box<Grant>>,
}

/// What a client presented.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accepted {
    /// Nothing: the endpoint was open.
    Open,
    /// This key.
    Key(KeyDigest),
    /// A token with this end, and with the time of its `iat`, if it has one.
    Token { expires: SystemTime, issued: Option<SystemTime> },
}

impl Accepted {
    /// Whether the revocation of its client refuses it. `rules` are those for tokens.
    pub(crate) fn is_refused_by(
        self,
        times: Option<RevocationTimes>,
        rules: Option<&OauthRules>,
    ) -> bool {
        let Some(times) = times else { return false };
        match self {
            Self::Open => false,
            Self::Key(_) => times.refuses_key(),
            Self::Token { issued, .. } => {
                let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                let since = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).ok();
                let skew = rules.map_or(0, |rules| millis(rules.clock_skew));
                times.refuses_token(issued.and_then(since).map(millis), skew)
            }
        }
    }
}

/// Wakes the streams of one worker when the tenants have changed. Streams of different workers share
/// no memory that each of their events changes.
#[derive(Clone)]
pub(crate) struct Lapses {
    tenants: Tenants,
    revocations: Revocations,
    changed: Arc<Notify>,
}

impl Lapses {
    /// For the streams of one worker.
    pub(crate) fn new(tenants: &Tenants, revocations: &Revocations) -> Self {
        let (tenants, revocations) = (tenants.clone(), revocations.clone());
        Self { tenants, revocations, changed: Arc::default() }
    }

    /// The same for another worker.
    pub(crate) fn for_worker(&self) -> Self {
        Self::new(&self.tenants, &self.revocations)
    }

    /// Passes changes on to the streams of this worker, for as long as its thread runs.
    pub(crate) fn pass_changes_on(&self) -> impl Future<Output = ()> + use<> {
        let (mut tenants, mut revocations) = (self.tenants.changes(), self.revocations.changes());
        let changed = Arc::clone(&self.changed);
        async move {
            loop {
                let change = tokio::select! {
                    change = tenants.changed() => change,
                    change = revocations.changed() => change,
                };
                if change.is_err() {
                    return;
                }
                changed.notify_waiters();
            }
        }
    }

    /// Resolves when this does not hold any more.
    pub(crate) fn lapse(&self, validity: Validity) -> Lapse {
        let Self { tenants, revocations, changed } = self.clone();
        Box::pin(async move {
            loop {
                // Receives each change from here on, so none is missed while this looks.
                let change = changed.notified();
                match validity.holds_for(&tenants, &revocations) {
                    Holds::No => return,
                    Holds::UntilChange => change.await,
                    Holds::For(time) => {
                        // Boxed: most streams need no timer.
                        let mut time = Box::pin(sleep(time.min(WAIT_MAX)));
                        tokio::select! {
                            () = &mut time => {}
                            () = change => {}
                        }
                    }
                }
            }
        })
    }
}

/// Whether a credential counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    No,
    UntilChange,
    For(Duration),
}

impl Validity {
    fn holds_for(&self, tenants: &Tenants, revocations: &Revocations) -> Holds {
        // The sessions of a removed tenant end by themselves, and their streams with them.
        let Some(tenant) = tenants.find(&self.tenant) else { return Holds::UntilChange };
        // A stream shows what its client could see when it was opened.
        let is_same_grant = match (&self.grant, &tenant.permissions) {
            (None, None) => true,
            (Some(grant), Some(permissions)) => grant.is_by(permissions),
            _ => false,
        };
        if !is_same_grant {
            return Holds::No;
        }
        let credentials = match (&tenant.access, self.accepted) {
            (Access::Open, Accepted::Open) => return Holds::UntilChange,
            (Access::Open, _) | (Access::Authenticated(_), Accepted::Open) => return Holds::No,
            (Access::Authenticated(credentials), _) => credentials,
        };
        let times = revocations.list().times(&self.tenant, self.principal.name());
        if self.accepted.is_refused_by(times, self.rules.as_deref()) {
            return Holds::No;
        }
        let now = SystemTime::now();
        match self.accepted {
            Accepted::Open => Holds::No,
            Accepted::Key(key) => {
                let found = credentials.keys.as_ref().map(|keys| keys.find(key, now));
                match found {
                    Some(Ok(key)) if self.is_of(key) => match key.expires {
                        None => Holds::UntilChange,
                        Some(expires) => Holds::until(expires, now),
                    },
                    _ => Holds::No,
                }
            }
            Accepted::Token { expires, .. } => {
                let is_same = self.rules.is_some() && self.rules == credentials.oauth;
                if is_same && expires > now { Holds::until(expires, now) } else { Holds::No }
            }
        }
    }
}

impl Validity {
    /// Whether the key is still the same client's, with the same scopes where these count.
    fn is_of(&self, key: &Key) -> bool {
        let has_scopes = |grant: &Grant| grant.has_scopes(&key.scopes);
        key.principal == self.principal && self.grant.as_deref().is_none_or(has_scopes)
    }
}

impl Holds {
    fn until(end: SystemTime, now: SystemTime) -> Self {
        Self::For(end.duration_since(now).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use tenants::{Attributes, KeySettings, PermissionSettings, Scopes, Settings, Tenant};
    use tokio::time::timeout;

    use super::*;

    const SHORT: Duration = Duration::from_millis(10);

    fn tenant(keys: &[(&str, KeySettings)]) -> Tenant {
        let keys = keys.iter().map(|(name, key)| ((*name).to_owned(), key.clone())).collect();
        let settings = Settings { auth: Some("keys".into()), keys, ..Settings::default() };
        Tenant::new("acme", &settings).unwrap()
    }

    fn key(key: &str, subject: &str, expires: &str) -> KeySettings {
        let (subject, expires) = (subject.to_owned(), expires.to_owned());
        KeySettings { subject, expires, ..KeySettings::of_key(key) }
    }

    /// The lapses of one worker, whose task runs.
    fn lapses(tenants: &Tenants) -> Lapses {
        let lapses = Lapses::new(tenants, &Revocations::default());
        tokio::spawn(lapses.pass_changes_on());
        lapses
    }

    fn lapse(lapses: &Lapses, key: Option<&str>, principal: &str) -> Lapse {
        let accepted = key.map_or(Accepted::Open, |key| Accepted::Key(KeyDigest::of(key)));
        lapses.lapse(Validity {
            tenant: "acme".into(),
            principal: Principal::named(principal),
            accepted,
            rules: None,
            grant: None,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_credential_lapses_when_its_key_is_removed_or_given_to_another_and_not_before() {
        let (ada, bob, eve) = (key("a", "ada", ""), key("b", "bob", ""), key("e", "eve", ""));
        let tenants = Tenants::new([tenant(&[("a", ada.clone()), ("b", bob), ("e", eve)])]);
        let lapses = lapses(&tenants);
        let mut all = [("a", "key:ada"), ("b", "key:bob"), ("e", "key:eve")]
            .map(|(key, principal)| lapse(&lapses, Some(key), principal));
        for lapse in &mut all {
            assert!(timeout(SHORT, lapse).await.is_err());
        }
        tenants.replace([tenant(&[("a", ada), ("b", key("b", "carol", ""))])]);
        let [mut ada, bob, eve] = all;
        timeout(SHORT, eve).await.expect("the key was removed");
        timeout(SHORT, bob).await.expect("the key is another client's");
        assert!(timeout(SHORT, &mut ada).await.is_err(), "its key stays");
        tenants.replace([]);
        assert!(timeout(SHORT, &mut ada).await.is_err(), "the sessions end by themselves");
        tenants.replace([Tenant::new("acme", &Settings::open()).unwrap()]);
        timeout(SHORT, ada).await.expect("its session cannot be used any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_an_open_endpoint_ends_when_clients_need_keys() {
        let tenants = Tenants::new([Tenant::new("acme", &Settings::open()).unwrap()]);
        let lapses = lapses(&tenants);
        let mut stream = lapse(&lapses, None, "");
        assert!(timeout(SHORT, &mut stream).await.is_err());
        tenants.replace([Tenant::new("acme", &Settings::open()).unwrap()]);
        assert!(timeout(SHORT, &mut stream).await.is_err(), "nothing has changed");
        tenants.replace([tenant(&[])]);
        timeout(SHORT, stream).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_when_its_client_is_revoked_and_others_do_not() {
        let tenants =
            Tenants::new([tenant(&[("a", key("a", "ada", "")), ("b", key("b", "bob", ""))])]);
        let lapses = lapses(&tenants);
        let stream = |(key, principal)| lapse(&lapses, Some(key), principal);
        let [mut ada, mut bob] = [("a", "key:ada"), ("b", "key:bob")].map(stream);
        assert!(timeout(SHORT, &mut ada).await.is_err());
        let times = RevocationTimes { revoked_ms: 1, lifted_ms: 0 };
        let revocation =
            actors::Revocation { tenant: "acme".into(), principal: "key:ada".into(), times };
        lapses.revocations.merge(&[revocation]);
        timeout(SHORT, ada).await.unwrap();
        assert!(timeout(SHORT, &mut bob).await.is_err());
    }

    #[tokio::test]
    async fn a_credential_lapses_by_the_clock() {
        let end = time::OffsetDateTime::now_utc() + Duration::from_millis(300);
        let end = end.format(&time::format_description::well_known::Rfc3339).unwrap();
        let tenants = Tenants::new([tenant(&[("a", key("a", "ada", &end))])]);
        let mut stream = lapse(&lapses(&tenants), Some("a"), "key:ada");
        assert!(timeout(Duration::from_millis(50), &mut stream).await.is_err());
        timeout(Duration::from_secs(5), stream).await.unwrap();
    }

    #[tokio::test]
    async fn a_token_lapses_at_its_end_and_when_the_rules_change() {
        let tenant = |issuer: &str| {
            let oauth = tenants::OauthSettings { issuer: issuer.into(), ..Default::default() };
            let auth = Some("oauth".into());
            Tenant::new("acme", &Settings { auth, oauth, ..Settings::default() }).unwrap()
        };
        let tenants = Tenants::new([tenant("https://i.example")]);
        let lapses = lapses(&tenants);
        let token = |lasts| {
            let rules = Some(Arc::new(OauthRules::of_issuer("https://i.example")));
            let expires = SystemTime::now() + lasts;
            let accepted = Accepted::Token { expires, issued: Some(SystemTime::now()) };
            let (tenant, principal) = ("acme".into(), Principal::named("ada"));
            lapses.lapse(Validity { tenant, principal, accepted, rules, grant: None })
        };
        let mut short = token(Duration::from_millis(300));
        assert!(timeout(Duration::from_millis(50), &mut short).await.is_err());
        timeout(Duration::from_secs(5), short).await.unwrap();
        let mut long = token(Duration::from_secs(60));
        tenants.replace([tenant("https://i.example")]);
        assert!(timeout(SHORT, &mut long).await.is_err(), "the rules are the same");
        tenants.replace([tenant("https://other.example")]);
        timeout(SHORT, long).await.unwrap();
        tenants.replace([tenant("https://i.example")]);
        let mut at_host = token(Duration::from_secs(60));
        assert!(timeout(SHORT, &mut at_host).await.is_err());
        let mut moved = tenant("https://i.example");
        let hosts = vec!["acme.example".to_owned()];
        let rules = OauthRules { hosts, ..OauthRules::of_issuer("https://i.example") };
        let oauth = Some(Arc::new(rules));
        moved.access = Access::Authenticated(tenants::Credentials { oauth, keys: None });
        tenants.replace([moved]);
        timeout(SHORT, at_host).await.expect("its audience may be gone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_when_its_client_may_see_something_else() {
        let tenant = |tool: &str, scope: &str| {
            let scopes = vec![scope.to_owned()];
            let ada = KeySettings { scopes, ..KeySettings::of_key("a") };
            let rule = PermissionSettings { tools: vec![tool.into()], ..Default::default() };
            let settings = Settings {
                auth: Some("keys".into()),
                keys: [("ada".to_owned(), ada)].into(),
                permissions: [("rule".to_owned(), rule)].into(),
                ..Settings::default()
            };
            Tenant::new("acme", &settings).unwrap()
        };
        let first = tenant("a", "read");
        let permissions = first.permissions.clone().unwrap();
        let tenants = Tenants::new([first]);
        let lapses = lapses(&tenants);
        let stream = || {
            let scopes = Scopes::of(["read"]);
            let client = Attributes { scopes, ..Attributes::default() };
            let grant = Grant::new(&permissions, client, false);
            lapses.lapse(Validity {
                tenant: "acme".into(),
                principal: Principal::named("key:ada"),
                accepted: Accepted::Key(KeyDigest::of("a")),
                rules: None,
                grant: Some(Box::new(grant)),
            })
        };
        let [mut by_rule, mut by_scope] = [stream(), stream()];
        tenants.replace([tenant("a", "read")]);
        assert!(timeout(SHORT, &mut by_rule).await.is_err(), "nothing has changed");
        assert!(timeout(SHORT, &mut by_scope).await.is_err(), "nothing has changed");
        tenants.replace([tenant("a", "write")]);
        timeout(SHORT, by_scope).await.expect("the key has another scope");
        let mut by_rule = stream_after(&tenants, tenant("a", "read"), stream);
        assert!(timeout(SHORT, &mut by_rule).await.is_err());
        tenants.replace([tenant("b", "read")]);
        timeout(SHORT, by_rule).await.expect("the rule allows another tool");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_without_rules_ends_when_there_are_some() {
        let rule = ("rule".to_owned(), PermissionSettings::default());
        let ruled = Settings { permissions: [rule].into(), ..Settings::open() };
        let tenants = Tenants::new([Tenant::new("acme", &Settings::open()).unwrap()]);
        let mut stream = lapse(&lapses(&tenants), None, "");
        assert!(timeout(SHORT, &mut stream).await.is_err());
        tenants.replace([Tenant::new("acme", &ruled).unwrap()]);
        timeout(SHORT, stream).await.expect("it may see less");
    }

    /// A stream that is opened once the tenant is this one.
    fn stream_after(tenants: &Tenants, tenant: Tenant, stream: impl Fn() -> Lapse) -> Lapse {
        tenants.replace([tenant]);
        stream()
    }
}
