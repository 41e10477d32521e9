//! How a tenant's server is looked after on behalf of its sessions.

use conversation::Rerun;
use serde::{Deserialize, Serialize};

/// What a tenant's server puts up with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Care {
    /// Which tool calls may be run again when the node that worked on them was lost:
    /// "annotated" (those of tools that say they only read, or can be repeated), "always"
    /// or "never". A call that is not run again ends with an error that says so.
    pub rerun: Rerun,
    /// How long a session's server may have nothing to do before it is stopped, in seconds;
    /// the next request starts it again. Nothing: as long as the session is in memory.
    pub idle_stop_secs: Option<u64>,
}
