//! The operator's settings: a TOML file, and the environment over it.
//!
//! Each crate owns its own settings; this module only nests them, and refuses keys that no
//! crate owns. It opens nothing and starts nothing.

pub(crate) mod addresses;
mod backend;
mod cluster;
mod digests;
mod environment;
mod finding;
pub(crate) mod folder;
mod problems;
mod read;
mod shape;
mod sizes;
mod store;
mod tls;
mod tree;
mod unfit;
pub(crate) mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use backends::sandbox::Sandbox;
use backends::stdio::ChildrenSettings;
use serde::{Deserialize, Serialize};

pub(crate) use backend::read_http;
pub use backend::{BackendSettings, NativeSettings, StdioFileSettings};
pub use cluster::{ClusterSettings, Encrypt};
pub(crate) use digests::Digests;
pub use environment::Environment;
pub use finding::{Finding, Place, Severity};
pub use problems::Problems;
pub(crate) use read::Reading;
pub use store::StoreSettings;
pub use tls::TlsSettings;
pub(crate) use tree::{FILE_BYTES_MAX, read as file_text};

use shape::Shape;

/// All settings of an operator.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Settings {
    /// `[front]`: the listener for clients.
    pub front: front::Settings,
    /// `[admin]`: the listener for operators.
    pub admin: front::AdminSettings,
    /// `[node]`: this process.
    pub node: NodeSettings,
    /// `[store]`: the store that all nodes share.
    pub store: StoreSettings,
    /// `[cluster]`: how this node connects to the others.
    pub cluster: ClusterSettings,
    /// `[sessions]`: the limits of each session.
    pub sessions: actors::Settings,
    /// `[log]`: what is logged, and in which format.
    pub log: telemetry::Settings,
    /// `[audit]`: the audit log.
    pub audit: audit::Settings,
    /// `[otlp]`: the collector that gets spans and metrics.
    pub otlp: telemetry::OtlpSettings,
    /// `[tenants.X]`: the tenants and their servers.
    pub tenants: BTreeMap<String, TenantSettings>,
}

/// `[node]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct NodeSettings {
    /// How long requests in flight may take after a stop was requested, in seconds. Then they get
    /// an error as their final response.
    pub drain_secs: u64,
    /// The interval at which the settings file is compared with what was applied, in seconds. 0:
    /// it is read only at `SIGHUP`.
    pub reload_secs: u64,
    /// A folder with a file `NAME.toml` for each further tenant, which holds what the settings file
    /// would have under `[tenants.NAME]`. Empty for none. A relative path begins at the folder of the
    /// settings file.
    pub tenants_dir: PathBuf,
    /// The directory with a directory for each tenant, in which each file is a secret of this tenant.
    /// Empty for none. A relative path begins at the folder of the settings file.
    pub secrets_dir: PathBuf,
    /// The directory with the approved definitions of tenants' servers: the file `TENANT.toml` of each tenant
    /// that has `pin`, which `roundhouse pin` writes. A relative path begins at the folder of the settings file.
    pub pins_dir: PathBuf,
    /// The most bytes that the sessions of all tenants keep for clients and servers.
    pub session_bytes_max: usize,
    /// Whether stdio servers are separated from the node and from each other, where their backend
    /// does not say so itself.
    pub sandbox: Sandbox,
    /// The most tenants with metrics of their own: the first ones in alphabetical order. All others
    /// share the label `other tenants`.
    pub tenant_metrics_max: usize,
    /// A directory of cgroup v2 that was delegated to the node and has no processes. Each stdio
    /// server gets a cgroup in it. Empty for none.
    pub cgroup: PathBuf,
    /// The directory in which each tenant's servers get a private home directory, with the caches of
    /// programs that download servers. Empty for a default that depends on how the node was started.
    pub state_dir: PathBuf,
    /// The names of variables of the node's environment that all stdio servers get.
    pub pass_env: Vec<String>,
    /// The limits of the node's child processes.
    #[serde(flatten)]
    pub children: ChildrenSettings,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            drain_secs: 10,
            reload_secs: 2,
            tenants_dir: PathBuf::new(),
            secrets_dir: PathBuf::new(),
            pins_dir: PathBuf::from("pins"),
            session_bytes_max: 1 << 30,
            sandbox: Sandbox::Auto,
            tenant_metrics_max: 100,
            cgroup: PathBuf::new(),
            state_dir: PathBuf::new(),
            pass_env: Vec::new(),
            children: ChildrenSettings::default(),
        }
    }
}

/// `[tenants.X]`, and the servers that the tenant brings.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct TenantSettings {
    /// Who may use the endpoint, and how much.
    #[serde(flatten)]
    pub tenant: tenants::Settings,
    /// How the tenant's server is supervised.
    #[serde(flatten)]
    pub care: actors::Care,
    /// `[tenants.X.backends.Y]`: its servers, which are offered as one.
    pub backends: BTreeMap<String, BackendSettings>,
}

impl TenantSettings {
    /// The longest time that the start of one of its servers may take, if one has a time of its own.
    pub(crate) fn start_secs_max(&self) -> Option<u64> {
        let own = self.backends.values().filter_map(|backend| match backend {
            BackendSettings::Stdio(stdio) => stdio.program.start_secs,
            BackendSettings::Http(_) | BackendSettings::Native(_) => None,
        });
        own.max()
    }
}

impl Settings {
    /// The name of a node without a cluster, for logs.
    pub(crate) fn node_name(&self) -> &str {
        let name = &self.cluster.peers.name;
        if name.is_empty() { "local" } else { name }
    }

    /// The tenants, each with the most bytes of its incomplete bodies, if that is written.
    pub(crate) fn body_maxima(&self) -> impl Iterator<Item = (Arc<str>, Option<usize>)> {
        let tenants = self.tenants.iter();
        tenants.map(|(name, tenant)| (name.as_str().into(), tenant.tenant.limits.bodies_bytes_max))
    }

    /// Every valid key, with its default as JSON (`null` where there is none), and `*` for a name
    /// that the operator chooses.
    pub fn keys() -> BTreeMap<String, serde_json::Value> {
        let mut keys = BTreeMap::new();
        shape::leaves("", &Self::default(), &mut keys);
        keys.remove("tenants");
        keys.remove("front.tls.certificates");
        let pair = front::PairSettings::default();
        shape::leaves("front.tls.certificates.*", &pair, &mut keys);
        keys.remove("admin.credentials");
        let credential = front::AdminCredentialSettings::default();
        shape::leaves("admin.credentials.*", &credential, &mut keys);
        shape::leaves("tenants.*", &tenants::Settings::default(), &mut keys);
        shape::leaves("tenants.*", &actors::Care::default(), &mut keys);
        keys.remove("tenants.*.keys");
        shape::leaves("tenants.*.keys.*", &tenants::KeySettings::default(), &mut keys);
        keys.remove("tenants.*.permissions");
        let rule = tenants::PermissionSettings::default();
        shape::leaves("tenants.*.permissions.*", &rule, &mut keys);
        keys.remove("tenants.*.rates");
        let rate = tenants::RateSettings::default();
        shape::leaves("tenants.*.rates.*", &rate, &mut keys);
        keys.insert("tenants.*.backends.*.kind".into(), serde_json::Value::Null);
        shape::leaves("tenants.*.backends.*", &backend::stdio(), &mut keys);
        shape::leaves("tenants.*.backends.*", &backend::http(), &mut keys);
        shape::leaves("tenants.*.backends.*", &NativeSettings::default(), &mut keys);
        keys
    }

    /// These settings with the tenants of others, where those and their secrets are read, the files of
    /// certificates and the credentials of operators.
    pub(crate) fn with_tenants_of(&self, other: Self) -> Self {
        let keeps_tls = self.keeps_tls_in(&other);
        let NodeSettings { tenants_dir, secrets_dir, pins_dir, .. } = other.node;
        let node = NodeSettings { tenants_dir, secrets_dir, pins_dir, ..self.node.clone() };
        let credentials = other.admin.credentials;
        let admin = front::AdminSettings { credentials, ..self.admin.clone() };
        let mut settings = Self { tenants: other.tenants, node, admin, ..self.clone() };
        if keeps_tls {
            settings.front.tls = other.front.tls;
        }
        settings
    }

    /// Whether clients have TLS both here and in `other`: a listener cannot change.
    fn keeps_tls_in(&self, other: &Self) -> bool {
        self.front.tls.is_on() && other.front.tls.is_on()
    }

    /// The keys that have other values than in `other`, except those of [`Self::with_tenants_of`].
    pub(crate) fn keys_changed_in(&self, other: &Self) -> Vec<String> {
        let keeps_tls = self.keeps_tls_in(other);
        let keys = |settings: &Self| {
            let mut keys = BTreeMap::new();
            shape::leaves("", &Self { tenants: BTreeMap::new(), ..settings.clone() }, &mut keys);
            let is_applied = |key: &str| {
                matches!(key, "node.tenants_dir" | "node.secrets_dir" | "node.pins_dir")
                    || key.starts_with("admin.credentials")
                    || (keeps_tls && key.starts_with("front.tls."))
            };
            keys.retain(|key, _| !is_applied(key));
            keys
        };
        let (own, others) = (keys(self), keys(other));
        let differs = |key: &&String| own.get(*key) != others.get(*key);
        let all = own.keys().chain(others.keys()).filter(differs).cloned();
        let secrets = self.secrets().into_iter().zip(other.secrets());
        let changed = secrets.filter(|(own, other)| own != other);
        let all: BTreeSet<_> = all.chain(changed.map(|((key, _), _)| key.to_owned())).collect();
        all.into_iter().collect()
    }

    /// The keys outside of `tenants` whose values are not serialised, and these values.
    fn secrets(&self) -> [(&'static str, &str); 5] {
        [
            ("store.url", &self.store.url.0),
            ("store.password", &self.store.password.0),
            ("store.sentinel_password", &self.store.sentinel_password.0),
            ("cluster.secret", &self.cluster.peers.secret),
            ("cluster.former_secret", &self.cluster.peers.former_secret),
        ]
    }

    /// Clients are told why a server did not start, where the settings do not say otherwise: for a
    /// node whose only client is on the same machine.
    pub(crate) fn explain_failed_starts(&mut self) {
        let backends = self.tenants.values_mut().flat_map(|tenant| tenant.backends.values_mut());
        for backend in backends {
            if let BackendSettings::Stdio(stdio) = backend {
                stdio.program.explain.get_or_insert(true);
            }
        }
    }

    fn shape() -> Shape {
        let backends = Shape::Named(Box::new(Shape::Kinds(BackendSettings::shapes())));
        let key = Shape::of(&tenants::KeySettings::default());
        let rule = Shape::of(&tenants::PermissionSettings::default())
            .with("claims", Shape::Named(Box::new(Shape::List)));
        let rate = Shape::of(&tenants::RateSettings::default());
        let tenant = Shape::of(&tenants::Settings::default())
            .with("keys", Shape::Named(Box::new(key)))
            .with("permissions", Shape::Named(Box::new(rule)))
            .with("rates", Shape::Named(Box::new(rate)))
            .with("rerun", Shape::Text)
            .with("idle_stop_secs", Shape::Number)
            .with("backends", backends);
        let pair = Shape::of(&front::PairSettings::default());
        let tls = Shape::of(&front::TlsSettings::default())
            .with("certificates", Shape::Named(Box::new(pair)));
        let front = Shape::of(&front::Settings::default()).with("tls", tls);
        let credential = Shape::of(&front::AdminCredentialSettings::default());
        let admin = Shape::of(&front::AdminSettings::default())
            .with("credentials", Shape::Named(Box::new(credential)));
        Shape::of(&Self::default())
            .with("front", front)
            .with("admin", admin)
            .with("tenants", Shape::Named(Box::new(tenant)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_secrets(secret: &str) -> Settings {
        let mut settings = Settings::default();
        settings.store.url = format!("redis://:{secret}@host").into();
        settings.store.password = secret.into();
        settings.store.sentinel_password = secret.into();
        settings.cluster.peers.secret = secret.into();
        settings.cluster.peers.former_secret = secret.into();
        settings
    }

    #[test]
    fn a_changed_secret_is_named_and_not_shown() {
        let changed = with_secrets("hunter2").keys_changed_in(&with_secrets("hunter3"));
        let keys = [
            "cluster.former_secret",
            "cluster.secret",
            "store.password",
            "store.sentinel_password",
            "store.url",
        ];
        assert_eq!(changed, keys);
        assert!(with_secrets("hunter2").keys_changed_in(&with_secrets("hunter2")).is_empty());
    }

    #[test]
    fn each_value_that_is_not_serialised_is_compared() {
        let settings = with_secrets("hunter2");
        let mut keys = BTreeMap::new();
        shape::leaves("", &settings, &mut keys);
        let masked = keys.iter().filter(|(_, value)| value.to_string().contains("***"));
        let masked: BTreeSet<_> = masked.map(|(key, _)| key.as_str()).collect();
        assert_eq!(masked, settings.secrets().into_iter().map(|(key, _)| key).collect());
    }
}
