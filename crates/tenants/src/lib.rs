//! Who may use what, and how much.

use std::collections::HashMap;
use std::sync::Arc;

/// A tenant: who brings a server and owns an endpoint.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// The name in the endpoint's path: 1 to 64 of `a-z 0-9 - _`, beginning with a letter or digit.
    pub name: Arc<str>,
    /// Origins that may use the endpoint, beside the node's own and loopback ones.
    pub allowed_origins: Vec<String>,
    /// Most sessions of the tenant on this node; a further `initialize` is refused.
    pub sessions_max: usize,
}

/// Who a request is from. A session answers only to the principal that opened it (SES-04).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal(Arc<str>);

impl Principal {
    /// Everybody, at an open endpoint.
    pub fn anonymous() -> Self {
        Self("".into())
    }
}

/// Every tenant of the node.
#[derive(Clone, Debug, Default)]
pub struct Tenants(Arc<HashMap<Arc<str>, Arc<Tenant>>>);

impl Tenants {
    /// These tenants.
    pub fn new(tenants: impl IntoIterator<Item = Tenant>) -> Self {
        Self(Arc::new(tenants.into_iter().map(|t| (t.name.clone(), Arc::new(t))).collect()))
    }

    /// The tenant of that name.
    pub fn find(&self, name: &str) -> Option<&Arc<Tenant>> {
        self.0.get(name)
    }
}
