//! The setup of a session: its limits, its rules for running calls again, its transport.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Limits, OwnerTag, SinkId};

/// The constants of a session.
#[derive(Clone, Debug)]
pub struct SessionSetup {
    /// Its limits.
    pub limits: Arc<Limits>,
    /// The tag of its owner's events: random, and never used before.
    pub owner_tag: OwnerTag,
    /// The seed of its jitter: any number.
    pub seed: u64,
    /// Which tool calls may be run again when it is not known whether they were run before.
    pub rerun: Rerun,
    /// How long the handshake with the server may take, its start included, in seconds, if another
    /// time than the limits have.
    pub start_secs: Option<u64>,
    /// After how long without a request the link to the server is closed, in seconds; `None` to
    /// keep it. A session whose link is kept does not sleep.
    pub idle_stop_secs: Option<u64>,
    /// The pipe of a duplex transport (HTTP+SSE, stdio), open already; `None` for Streamable
    /// HTTP.
    pub duplex: Option<SinkId>,
}

/// Which tool calls may be run a second time. Requests that only read always may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rerun {
    /// Those of tools that are annotated as read-only or idempotent.
    #[default]
    Annotated,
    /// All.
    Always,
    /// None.
    Never,
}

/// The part of the [`SessionSetup`] that every step of the session needs. It never changes.
pub(crate) struct Setup {
    pub(crate) limits: Arc<Limits>,
    pub(crate) rerun: Rerun,
    /// 32 bits are 136 years, and each session has these.
    pub(crate) start_secs: u32,
    pub(crate) idle_stop_secs: Option<u32>,
    pub(crate) duplex: Option<SinkId>,
}

impl From<SessionSetup> for Setup {
    fn from(setup: SessionSetup) -> Self {
        let SessionSetup { limits, rerun, start_secs, idle_stop_secs, duplex, .. } = setup;
        let in_32_bits = |secs: u64| u32::try_from(secs).unwrap_or(u32::MAX);
        let start_secs = in_32_bits(start_secs.unwrap_or(limits.start_secs));
        let idle_stop_secs = idle_stop_secs.map(in_32_bits);
        Self { limits, rerun, start_secs, idle_stop_secs, duplex }
    }
}
