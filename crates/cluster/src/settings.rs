//! How this node meets the others.

use serde::{Deserialize, Serialize};

/// Settings of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where peers connect; empty for a node on its own.
    pub listen: String,
    /// The address that peers are told; empty for `listen`.
    pub advertise: String,
    /// What every node of the cluster knows and nobody else does.
    pub secret: String,
    /// How long a lease lasts without renewal, in milliseconds.
    pub lease_ms: u64,
}
