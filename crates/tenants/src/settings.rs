//! The settings of a tenant as the operator wrote them, before they are checked.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::auth::shown;
use crate::rates;
use crate::{
    Access, AuditSettings, Auth, ClaimValues, ClusterLimits, Credentials, Error, KeySettings, Keys,
    OauthRules, OauthSettings, PermissionSettings, Permissions, RateSettings,
};

/// The settings of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How clients authenticate: `"open"`, `"keys"`, `"oauth"`, or `["keys", "oauth"]` for both. It has no
    /// default, so that an endpoint is open to every client only if the operator has set `"open"`.
    pub auth: Option<Auth>,
    /// The keys with which clients authenticate, by name, if `auth` has `"keys"`.
    pub keys: BTreeMap<String, KeySettings>,
    /// The tokens with which clients authenticate, if `auth` has `"oauth"`.
    pub oauth: OauthSettings,
    /// Rules that say what clients may do, by name. Without any they may do everything.
    pub permissions: BTreeMap<String, PermissionSettings>,
    /// What audit records have of payloads.
    pub audit: AuditSettings,
    /// The rates of requests, by name.
    pub rates: BTreeMap<String, RateSettings>,
    /// Host names at which the endpoint is also served, at `/mcp` without the name of the tenant.
    pub hosts: Vec<String>,
    /// Origins that may use the endpoint, in addition to the node's own and loopback ones.
    pub allowed_origins: Vec<String>,
    /// Request headers that pages may send to the endpoint, in addition to those of MCP and of the
    /// node.
    pub cors_headers: Vec<String>,
    /// The limits of the tenant.
    pub limits: Limits,
}

impl Settings {
    /// The settings of an endpoint that is open to every client.
    pub fn open() -> Self {
        Self { auth: Some("open".into()), ..Self::default() }
    }

    /// What clients may do, or all errors in that; `None`: everything.
    pub(crate) fn permissions(&self, name: &str) -> Result<Option<Permissions>, Vec<Error>> {
        // Without `auth` that is the error.
        let has_tokens = self.auth.as_ref().is_none_or(|auth| auth.has("oauth"));
        Permissions::new(name, &self.permissions, has_tokens)
    }

    /// What the tenant may have in the whole cluster, or all errors in that.
    pub(crate) fn cluster_limits(&self, name: &str) -> Result<ClusterLimits, Vec<Error>> {
        let has = |word| self.auth.as_ref().is_some_and(|auth| auth.has(word));
        // Without `auth` nothing is known of the clients, which is an error of its own.
        let (is_known, has_keys) = (self.auth.is_some(), has("keys"));
        let rates = rates::read(name, &self.rates, !has("open"), has_keys || !is_known)?;
        Ok(ClusterLimits {
            rates,
            exchanges_max: self.limits.cluster_exchanges_max,
            sessions_max: self.limits.cluster_sessions_max,
            streams_max: self.limits.cluster_streams_max,
            children_max: self.limits.cluster_children_max,
            log_bytes_per_day: self.limits.cluster_log_bytes_per_day,
        })
    }

    /// Who may use the endpoint, or all errors in that. `claims`: the values of claims that count.
    pub(crate) fn access(&self, name: &str, claims: ClaimValues) -> Result<Access, Vec<Error>> {
        let Some(auth) = &self.auth else { return Err(vec![Error::AuthMissing(name.into())]) };
        let mut wrong: Vec<Error> =
            auth.words().filter_map(|word| auth_error(name, word, auth)).collect();
        if auth.words().next().is_none() {
            wrong.push(Error::AuthUnknown { name: name.into(), written: String::new() });
        }
        let has_oauth = self.oauth != OauthSettings::default();
        if auth.has("open") {
            if !self.keys.is_empty() {
                wrong.push(Error::KeysOfOpenTenant(name.into()));
            }
            if has_oauth {
                wrong.push(Error::OauthOfOtherTenant(name.into(), auth.to_string()));
            }
            return if wrong.is_empty() { Ok(Access::Open) } else { Err(wrong) };
        }
        let mut credentials = Credentials::default();
        if auth.has("keys") {
            match Keys::new(name, &self.keys) {
                Ok(keys) => credentials.keys = Some(Arc::new(keys)),
                Err(more) => wrong.extend(more),
            }
        } else if !self.keys.is_empty() && wrong.is_empty() {
            wrong.push(Error::KeysOfOtherTenant(name.into(), auth.to_string()));
        }
        if auth.has("oauth") {
            match OauthRules::new(name, &self.oauth) {
                Ok(rules) => {
                    // Tokens that were accepted for a host do not count without it.
                    let are_audiences = rules.audiences.is_empty();
                    let hosts = if are_audiences { self.hosts.clone() } else { Vec::new() };
                    credentials.oauth = Some(Arc::new(OauthRules { claims, hosts, ..rules }));
                }
                Err(more) => wrong.extend(more),
            }
        } else if has_oauth && wrong.is_empty() {
            wrong.push(Error::OauthOfOtherTenant(name.into(), auth.to_string()));
        }
        if wrong.is_empty() { Ok(Access::Authenticated(credentials)) } else { Err(wrong) }
    }
}

/// What is wrong with one word of `auth`.
fn auth_error(name: &str, word: &str, auth: &Auth) -> Option<Error> {
    let name = name.to_owned();
    match word {
        "open" if auth.words().count() > 1 => {
            Some(Error::AuthOpenAndMore { name, written: auth.to_string() })
        }
        "open" | "keys" | "oauth" => None,
        other => Some(Error::AuthUnknown { name, written: shown(other).into() }),
    }
}

/// What the bytes of events in a day can be limited to. Of fewer, each node would have less than a small
/// event at a time.
const LOG_BYTES_PER_DAY: std::ops::RangeInclusive<u64> = 1_000_000..=100_000_000_000_000;

/// The limits of a tenant.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Maximum number of sessions of the tenant on this node; a further `initialize` is refused
    /// until one ends.
    pub sessions_max: usize,
    /// Maximum number of bytes that the tenant's sessions keep on this node. At the bound, unread
    /// streams are cut, delivered events are dropped and idle sessions leave memory; then new
    /// sessions and requests are refused. `None`: half of the node's total, or all of it if there
    /// is only one tenant.
    pub session_bytes_max: Option<usize>,
    /// Bytes of the node's total that no other tenant can use. `None`: half of the total is divided
    /// equally among the tenants.
    pub session_bytes_min: Option<usize>,
    /// Maximum number of server processes of the tenant on this node; the link of a further one is
    /// down at once. `None`: half of the node's, or all of them if there is only one tenant.
    pub children_max: Option<usize>,
    /// Most bytes of the tenant's incomplete bodies on this node, of the node's
    /// `front.bodies_bytes_max`. At the bound the slowest body of the tenant is answered 408 to make
    /// room. Without a value, half of the node's; all of it if the node has only one tenant.
    pub bodies_bytes_max: Option<usize>,
    /// Maximum number of the tenant's requests that are in flight in the whole cluster. `None`: no limit
    /// but those of sessions and nodes.
    pub cluster_exchanges_max: Option<u32>,
    /// Maximum number of sessions of the tenant in the whole cluster.
    pub cluster_sessions_max: Option<u32>,
    /// Maximum number of the tenant's open GET streams in the whole cluster.
    pub cluster_streams_max: Option<u32>,
    /// Maximum number of server processes of the tenant in the whole cluster; the link of a further one is
    /// down at once.
    pub cluster_children_max: Option<u32>,
    /// Most bytes of events that the tenant's sessions add to their logs in a day, in the whole cluster.
    /// At the limit new requests are refused; what runs goes on.
    pub cluster_log_bytes_per_day: Option<u64>,
}

impl Limits {
    pub(crate) fn check(&self, name: &str) -> Result<(), Error> {
        let limits = [
            ("limits.sessions_max", Some(self.sessions_max)),
            ("limits.children_max", self.children_max),
            ("limits.session_bytes_max", self.session_bytes_max),
            ("limits.bodies_bytes_max", self.bodies_bytes_max),
            ("limits.cluster_exchanges_max", self.cluster_exchanges_max.map(|max| max as usize)),
            ("limits.cluster_sessions_max", self.cluster_sessions_max.map(|max| max as usize)),
            ("limits.cluster_streams_max", self.cluster_streams_max.map(|max| max as usize)),
            ("limits.cluster_children_max", self.cluster_children_max.map(|max| max as usize)),
        ];
        if let Some(written) = self.cluster_log_bytes_per_day
            && !LOG_BYTES_PER_DAY.contains(&written)
        {
            return Err(Error::LogBytesPerDay { name: name.into(), written });
        }
        match limits.into_iter().find(|(_, limit)| *limit == Some(0)) {
            Some((limit, _)) => Err(Error::LimitZero { name: name.into(), limit }),
            None => Ok(()),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions_max: 10_000,
            children_max: None,
            session_bytes_max: None,
            session_bytes_min: None,
            bodies_bytes_max: None,
            cluster_exchanges_max: None,
            cluster_sessions_max: None,
            cluster_streams_max: None,
            cluster_children_max: None,
            cluster_log_bytes_per_day: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tenant;

    fn refusal(settings: &Settings) -> String {
        let wrong = Tenant::new("acme", settings).unwrap_err();
        wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_tenant_without_auth_is_refused_with_the_line_to_write() {
        let refusal = refusal(&Settings::default());
        assert!(refusal.contains("`auth = \"open\"` under [tenants.acme]"), "{refusal}");
    }

    #[test]
    fn a_tenant_whose_auth_means_nothing_is_refused() {
        let refusal = refusal(&Settings { auth: Some("Open".into()), ..Settings::default() });
        assert!(refusal.contains("`tenants.acme.auth` has \"Open\""), "{refusal}");
    }

    #[test]
    fn several_kinds_count_at_once_and_open_stands_alone() {
        let oauth =
            OauthSettings { issuer: "https://i.example".into(), ..OauthSettings::default() };
        let both = |auth: &str| Settings {
            auth: Some(auth.into()),
            keys: BTreeMap::from([("ada".to_owned(), KeySettings::of_key("a"))]),
            oauth: oauth.clone(),
            ..Settings::default()
        };
        let tenant = Tenant::new("acme", &both("keys, oauth")).unwrap();
        let Access::Authenticated(Credentials { keys, oauth: rules }) = tenant.access else {
            panic!("{:?}", tenant.access)
        };
        assert!(keys.is_some() && rules.is_some());
        for (auth, problems) in [("open", 2), ("keys", 1), ("oauth", 1), ("open, keys", 3), ("", 1)]
        {
            let refusal = refusal(&both(auth));
            assert_eq!(refusal.lines().count(), problems, "{auth}: {refusal}");
        }
        let refusal = refusal(&both("open, rhk_1234"));
        assert!(refusal.contains("a key") && !refusal.contains("1234"), "{refusal}");
    }

    #[test]
    fn everything_wrong_is_told_at_once() {
        let settings = Settings {
            auth: None,
            keys: BTreeMap::new(),
            oauth: OauthSettings::default(),
            permissions: BTreeMap::new(),
            audit: AuditSettings::default(),
            rates: BTreeMap::new(),
            hosts: vec!["*.example".into()],
            allowed_origins: vec!["*".into(), "https://fine.example".into()],
            cors_headers: vec!["*".into(), "x-fine".into()],
            limits: Limits { sessions_max: 0, ..Limits::default() },
        };
        assert_eq!(refusal(&settings).lines().count(), 5);
    }

    #[test]
    fn a_limit_of_nothing_is_refused() {
        let limits = Limits { bodies_bytes_max: Some(0), ..Limits::default() };
        let refusal = refusal(&Settings { limits, ..Settings::open() });
        assert!(refusal.contains("`tenants.acme.limits.bodies_bytes_max` is 0"), "{refusal}");
    }

    #[test]
    fn bytes_of_events_that_no_cluster_can_divide_are_refused() {
        for (written, is_fine) in [(999_999, false), (1_000_000, true), (u64::MAX, false)] {
            let limits = Limits { cluster_log_bytes_per_day: Some(written), ..Limits::default() };
            let tenant = Tenant::new("acme", &Settings { limits, ..Settings::open() });
            assert_eq!(tenant.is_ok(), is_fine, "{written}");
            let wrong = tenant.err().unwrap_or_default();
            let is_named = |error: &Error| error.to_string().contains(&written.to_string());
            assert!(wrong.iter().all(is_named), "{wrong:?}");
        }
    }

    #[test]
    fn an_open_tenant_is_served_within_its_limits() {
        let tenant = Tenant::new("acme", &Settings::open()).unwrap();
        assert_eq!((&*tenant.name, tenant.sessions_max), ("acme", 10_000));
    }
}
