//! Who may use what, and how much.
//!
//! A [`Tenant`] is what [`Settings`] say once they were found to be right: its name fits
//! into a path, its origins are origins, and its `auth` was written by someone. Nothing
//! here reads a file, a header or a message.

mod error;
mod name;
mod origin;
mod settings;

use std::collections::HashMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};

pub use error::Error;
pub use settings::{Limits, Settings};

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

impl Tenant {
    /// The tenant that these settings describe, or everything that is wrong with them.
    pub fn new(name: &str, settings: &Settings) -> Result<Self, Vec<Error>> {
        let origins = settings.allowed_origins.iter().map(|written| origin::check(name, written));
        let checks = [name::check(name), settings.check_auth(name), settings.limits.check(name)];
        let wrong: Vec<Error> = checks.into_iter().chain(origins).filter_map(Result::err).collect();
        if !wrong.is_empty() {
            return Err(wrong);
        }
        Ok(Self {
            name: name.into(),
            allowed_origins: settings.allowed_origins.clone(),
            sessions_max: settings.limits.sessions_max,
        })
    }
}

/// Who a request is from. A session answers only to the principal that opened it (SES-04).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal(Arc<str>);

impl Principal {
    /// The one principal of all clients of an open endpoint.
    pub fn anonymous() -> Self {
        Self("".into())
    }

    /// A client, by a name that no other client has at that endpoint.
    pub fn named(name: &str) -> Self {
        Self(name.into())
    }

    /// The name that [`Principal::named`] took, for another node that is trusted as this one
    /// is; empty for the anonymous principal. Not for logs.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Enough to recognise the principal, not to become it.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }

    /// Is this the principal of all clients of an open endpoint, rather than of one client?
    pub fn is_anonymous(&self) -> bool {
        self.0.is_empty()
    }
}

/// Every tenant of the node. Fixed once the node runs, so it is as large as its settings.
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

    /// Every tenant, by name.
    pub fn by_name(&self) -> Vec<&Arc<Tenant>> {
        let mut all: Vec<_> = self.0.values().collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }
}
