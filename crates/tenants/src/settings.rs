//! The settings of a tenant as the operator wrote them, before they are checked.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Access, Error, KEY_PREFIX, KeySettings, Keys};

/// The settings of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Which clients may use the endpoint: `"open"` or `"keys"`. It has no default, so that an endpoint
    /// is open to every client only if the operator has set `"open"`.
    pub auth: Option<String>,
    /// The keys with which clients authenticate, by name, if `auth` is `"keys"`. Without any, no client
    /// may use the endpoint.
    pub keys: BTreeMap<String, KeySettings>,
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

    /// Who may use the endpoint, or all errors in that.
    pub(crate) fn access(&self, name: &str) -> Result<Access, Vec<Error>> {
        let error = match self.auth.as_deref() {
            Some("keys") => {
                return Keys::new(name, &self.keys).map(|keys| Access::Keys(Arc::new(keys)));
            }
            Some("open") if self.keys.is_empty() => return Ok(Access::Open),
            Some("open") => Error::KeysOfOpenTenant(name.into()),
            // An operator may have written a key there.
            Some(written) if written.contains(KEY_PREFIX) => {
                Error::AuthUnknown { name: name.into(), written: "a key".into() }
            }
            Some(written) => Error::AuthUnknown { name: name.into(), written: written.into() },
            None => Error::AuthMissing(name.into()),
        };
        Err(vec![error])
    }
}

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
}

impl Limits {
    pub(crate) fn check(&self, name: &str) -> Result<(), Error> {
        let limits = [
            ("limits.sessions_max", Some(self.sessions_max)),
            ("limits.children_max", self.children_max),
            ("limits.session_bytes_max", self.session_bytes_max),
            ("limits.bodies_bytes_max", self.bodies_bytes_max),
        ];
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
        assert!(refusal.contains("`tenants.acme.auth` is \"Open\""), "{refusal}");
    }

    #[test]
    fn everything_wrong_is_told_at_once() {
        let settings = Settings {
            auth: None,
            keys: BTreeMap::new(),
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
    fn an_open_tenant_is_served_within_its_limits() {
        let tenant = Tenant::new("acme", &Settings::open()).unwrap();
        assert_eq!((&*tenant.name, tenant.sessions_max), ("acme", 10_000));
    }
}
