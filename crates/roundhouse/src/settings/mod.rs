//! What the operator writes down: a TOML file, and the environment over it.
//!
//! Each crate owns the settings of what it does; this module only nests them, and refuses
//! keys that nobody owns. It opens nothing and starts nothing.

mod backend;
mod problems;
mod read;
mod shape;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use backend::{BackendSettings, NativeSettings, StdioSettings};
pub use problems::Problems;
pub use read::Environment;

use shape::Shape;

/// All that the operator may write down.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Settings {
    /// `[front]`: the side that faces clients.
    pub front: front::Settings,
    /// `[admin]`: the side that faces operators.
    pub admin: front::AdminSettings,
    /// `[node]`: this process among others.
    pub node: NodeSettings,
    /// `[store]`: what all nodes must agree on.
    pub store: StoreSettings,
    /// `[sessions]`: the bounds of each session.
    pub sessions: actors::Settings,
    /// `[log]`: what is logged, and in what shape.
    pub log: telemetry::Settings,
    /// `[tenants.X]`: who brings servers.
    pub tenants: BTreeMap<String, TenantSettings>,
}

/// `[node]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeSettings {
    /// How long requests in flight may go on after the node was asked to stop, in seconds.
    /// Then they get an error as their last word.
    pub drain_secs: u64,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self { drain_secs: 10 }
    }
}

/// `[store]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreSettings {
    /// Where session records are kept. `memory:` keeps them in this process, for one node.
    pub url: String,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self { url: "memory:".into() }
    }
}

/// `[tenants.X]`, and the servers that the tenant brings.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct TenantSettings {
    /// Who may use the endpoint, and how much.
    #[serde(flatten)]
    pub tenant: tenants::Settings,
    /// `[tenants.X.backends.Y]`; exactly one for now.
    pub backends: BTreeMap<String, BackendSettings>,
}

impl Settings {
    /// Every key that may be written, with `*` for a name that the operator chooses.
    pub fn keys() -> Vec<String> {
        Self::shape().paths()
    }

    fn shape() -> Shape {
        let backends = Shape::Named(Box::new(Shape::Kinds(BackendSettings::shapes())));
        let tenant = Shape::of(&tenants::Settings::default()).with("backends", backends);
        Shape::of(&Self::default()).with("tenants", Shape::Named(Box::new(tenant)))
    }
}
