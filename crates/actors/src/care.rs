//! The per-tenant settings for the servers of sessions.

use conversation::{Definition, Rerun};
use serde::{Deserialize, Serialize};

/// Settings for a tenant's server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Care {
    /// Which tool calls may be run again when the node that handled them was lost: "annotated"
    /// (tools that are annotated as read-only or idempotent), "always" or "never". A call that is
    /// not run again ends with an error that states this.
    pub rerun: Rerun,
    /// How long a session's server may be idle before it is stopped, in seconds; the next request
    /// starts it again. `None`: it runs as long as the session is in memory.
    pub idle_stop_secs: Option<u64>,
    /// How long the handshake with the server may take, in seconds, if another time than
    /// `sessions.start_secs`; set by the program that reads the settings of the server.
    #[serde(skip)]
    pub start_secs: Option<u64>,
    /// Identifies the server in the settings of all nodes, so that a session that moves is known to get
    /// another server; set by the program that reads the settings of the server.
    #[serde(skip)]
    pub definition: Option<Definition>,
}
