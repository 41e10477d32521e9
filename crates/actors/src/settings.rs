//! The bounds of the node's sessions.

use std::time::Duration;

use conversation::Limits;
use serde::{Deserialize, Serialize};

use crate::lifetimes::Lifetimes;
use crate::reply::Bounds;

/// The bounds of the node's sessions, each with its consequence.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Settings {
    /// The most sessions on this node. A further new session is refused, and a take-over is left to
    /// another node. If there are several tenants, half of the sessions is divided equally among
    /// them, and no other tenant can take a tenant's part.
    pub sessions_max: usize,
    /// The most sessions of a tenant whose client has not sent `initialized`. At the bound the oldest
    /// of them ends.
    pub unconfirmed_max: usize,
    /// The most posts and streams in the mailbox of one session; a further one is refused as busy.
    pub mailbox_max: usize,
    /// The most frames that wait for a slow connection. Then it is cut, and its client may resume.
    /// Never below the bound of the log, so that a replay always fits.
    pub sink_frames_max: usize,
    /// The most bytes that wait for a slow connection, with the same consequence. A single message
    /// may be larger if no other message waits. Never below the bound of the log (`log_bytes_max`
    /// and `message_bytes_max` together), so that a replay always fits.
    pub sink_bytes_max: usize,
    /// How long a new session waits for a valid lease of its node, and then for an unreachable
    /// store, in seconds each. Then it is refused.
    pub store_wait_secs: u64,
    /// How long a request is held if its session cannot be reached, because its owner is being
    /// replaced or the store is unreachable, in milliseconds. Then JSON-RPC requests end with an
    /// error, and other requests are refused.
    pub hold_ms: u64,
    /// The most held requests; a further one is answered at once, as after `hold_ms`.
    pub held_max: usize,
    /// How long the store keeps the tombstone of a session, in seconds.
    pub tombstone_secs: u64,
    /// The suffix of session ids that this node creates: 1 to 32 letters, digits and `_`. Otherwise
    /// eight random digits are used.
    pub node_tag: String,
    /// The bounds of each session.
    #[serde(flatten)]
    pub session: Limits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sessions_max: 20_000,
            unconfirmed_max: 1_000,
            mailbox_max: 256,
            sink_frames_max: 2_048,
            sink_bytes_max: 8 << 20,
            store_wait_secs: 10,
            hold_ms: 25_000,
            held_max: 10_000,
            tombstone_secs: 60,
            node_tag: String::new(),
            session: Limits::default(),
        }
    }
}

/// The frames of a stream beside its events: heads, cursors, keep-alives.
const FRAMES_BESIDE_EVENTS: usize = 16;

impl Settings {
    /// The bounds of one connection's reply queue.
    pub(crate) fn sink_bounds(&self) -> Bounds {
        let small = |bound: usize| u32::try_from(bound).unwrap_or(u32::MAX);
        let replay = self.session.log_events_max.saturating_add(FRAMES_BESIDE_EVENTS);
        Bounds {
            frames_max: small(self.sink_frames_max.max(replay)),
            bytes_max: small(self.sink_bytes_max.max(self.session.log_bytes_most())),
        }
    }

    /// The same settings, under which no session leaves memory.
    pub(crate) fn without_sleep(self) -> Self {
        Self { session: Limits { sleep_after_secs: 0, ..self.session }, ..self }
    }

    /// The bounds of each session, including the wait that sessions and the node share.
    pub(crate) fn limits(&self) -> Limits {
        Limits { hold_ms: self.hold_ms, ..self.session.clone() }
    }

    /// How long the store keeps a record that is not refreshed. The session itself ends after half
    /// of that without requests, and refreshes the record more often.
    pub(crate) fn record_ttl(&self) -> Duration {
        Duration::from_secs(self.session.idle_secs.max(30).saturating_mul(2))
    }

    /// The times to live of a session's record.
    pub(crate) fn lifetimes(&self) -> Lifetimes {
        Lifetimes {
            owned: self.record_ttl().into(),
            released: Duration::from_secs(self.session.idle_secs).max(self.tombstone_ttl()).into(),
            ended: self.tombstone_ttl().into(),
        }
    }

    pub(crate) fn hold(&self) -> Duration {
        Duration::from_millis(self.hold_ms)
    }

    pub(crate) fn tombstone_ttl(&self) -> Duration {
        Duration::from_secs(self.tombstone_secs)
    }
}
