//! Tenants: who may use an endpoint, and how much.
//!
//! A [`Tenant`] is created from valid [`Settings`] only: its name fits into a path, its origins
//! are origins, and its `auth` is set. This crate reads no file, header or message.

mod audit;
mod auth;
mod claim_values;
mod client_name;
mod error;
mod header_name;
mod host;
mod keys;
mod name;
mod oauth;
mod origin;
mod pattern;
mod permissions;
mod rates;
mod scopes;
mod settings;
mod table;

use std::sync::Arc;

use sha2::{Digest, Sha256};

pub use audit::{AuditSettings, AuditedField};
pub use auth::Auth;
pub use claim_values::ClaimValues;
pub use client_name::ClientName;
pub use error::Error;
pub use host::name_of_host;
pub use keys::{KEY_PREFIX, Key, KeyDigest, KeyProblem, KeySettings, Keys, time_of};
pub use oauth::{Hidden, Introspection, OauthRules, OauthSettings, is_fetchable};
pub use origin::remedy as origin_remedy;
pub use pattern::{PATTERN_BYTES_MAX, Pattern};
pub use permissions::{Attributes, Judgement, Kind, PermissionSettings, Permissions};
pub use rates::{ClusterLimits, Per, RateRule, RateSettings, limit_id};
pub use scopes::Scopes;
pub use settings::{Limits, Settings};
pub use table::{Tenants, TenantsOfThread};

/// Who may use an endpoint.
#[derive(Clone, Debug)]
pub enum Access {
    /// Every client that can reach it.
    Open,
    /// The clients with a credential of one of these kinds.
    Authenticated(Credentials),
}

impl Access {
    /// The rules for tokens, if tokens count.
    pub fn oauth(&self) -> Option<&Arc<OauthRules>> {
        match self {
            Self::Open => None,
            Self::Authenticated(credentials) => credentials.oauth.as_ref(),
        }
    }
}

/// The credentials that count at an endpoint. Without any, no client may use it.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// Keys that the operator made.
    pub keys: Option<Arc<Keys>>,
    /// Tokens of an issuer.
    pub oauth: Option<Arc<OauthRules>>,
}

/// A tenant: the owner of a server and its endpoint.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// The name in the endpoint's path: 1 to 64 of `a-z 0-9 - _`, beginning with a letter or digit.
    pub name: Arc<str>,
    /// Who may use the endpoint.
    pub access: Access,
    /// What clients may do; `None`: everything.
    pub permissions: Option<Arc<Permissions>>,
    /// The parts of payloads that audit records have.
    pub audited_fields: Arc<[AuditedField]>,
    /// Host names at which the endpoint is served without the tenant's name, in lower case.
    pub hosts: Vec<String>,
    /// Origins that may use the endpoint, beside the node's own and loopback ones.
    pub allowed_origins: Vec<String>,
    /// Request headers that pages may send, beside those of MCP and of the node.
    pub cors_headers: Vec<String>,
    /// Maximum number of sessions of the tenant on this node; a further `initialize` is refused.
    pub sessions_max: usize,
    /// What the tenant may have in the whole cluster; `None`: no limit.
    pub cluster_limits: Option<Arc<ClusterLimits>>,
    /// Whether the tenant was removed from the settings: its sessions go on for a while, and it gets
    /// no new ones.
    pub is_leaving: bool,
    /// Whether the tenant's server gets a token of each user, in exchange for that of the user's client.
    pub exchanges_tokens: bool,
}

impl Tenant {
    /// Creates the tenant of these settings, or returns all errors in them.
    pub fn new(name: &str, settings: &Settings) -> Result<Self, Vec<Error>> {
        let origins = settings.allowed_origins.iter().map(|written| origin::check(name, written));
        let checks = [name::check(name), settings.limits.check(name)];
        let headers = settings.cors_headers.iter().map(|written| header_name::check(name, written));
        let hosts = settings.hosts.iter().map(|written| host::check(name, written));
        let checks = checks.into_iter().chain(hosts).chain(origins).chain(headers);
        let mut wrong: Vec<Error> = checks.filter_map(Result::err).collect();
        let permissions = settings.permissions(name).map_err(|more| wrong.extend(more));
        let audited_fields = settings.audit.fields(name).map_err(|more| wrong.extend(more));
        let cluster_limits = settings.cluster_limits(name).map_err(|more| wrong.extend(more));
        let claims = permissions.iter().flatten().map(Permissions::claims).next();
        let access =
            settings.access(name, claims.unwrap_or_default()).map_err(|more| wrong.extend(more));
        let (Ok(access), Ok(permissions), Ok(audited_fields), Ok(cluster_limits), true) =
            (access, permissions, audited_fields, cluster_limits, wrong.is_empty())
        else {
            return Err(wrong);
        };
        Ok(Self {
            name: name.into(),
            access,
            permissions: permissions.map(Arc::new),
            audited_fields: audited_fields.into(),
            hosts: settings.hosts.clone(),
            allowed_origins: settings.allowed_origins.clone(),
            cors_headers: settings.cors_headers.iter().map(|n| n.to_ascii_lowercase()).collect(),
            sessions_max: settings.limits.sessions_max,
            cluster_limits: (!cluster_limits.is_empty()).then(|| Arc::new(cluster_limits)),
            is_leaving: false,
            exchanges_tokens: false,
        })
    }
}

impl Tenant {
    /// A tenant as another node named it with a request of an authenticated client. No client of this
    /// node may use its endpoint.
    pub fn of_peer(name: Arc<str>, sessions_max: usize) -> Self {
        Self {
            name,
            access: Access::Authenticated(Credentials::default()),
            permissions: None,
            audited_fields: Arc::default(),
            hosts: Vec::new(),
            allowed_origins: Vec::new(),
            cors_headers: Vec::new(),
            sessions_max,
            cluster_limits: None,
            is_leaving: false,
            exchanges_tokens: false,
        }
    }
}

/// The authenticated sender of a request. Only the principal that opened a session may use it
/// (SES-04).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal(Arc<str>);

impl Principal {
    /// The principal that all clients of an open endpoint share.
    pub fn anonymous() -> Self {
        Self("".into())
    }

    /// The principal of a client, by a name that no other client has at that endpoint.
    pub fn named(name: &str) -> Self {
        Self(name.into())
    }

    /// The name given to [`Principal::named`], for another node of the cluster; empty for the
    /// anonymous principal. Must not be logged; only audit records have it.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// A digest that identifies the principal, for this process only: other processes could try names.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }

    /// Whether this is the principal that all clients of an open endpoint share.
    pub fn is_anonymous(&self) -> bool {
        self.0.is_empty()
    }
}
