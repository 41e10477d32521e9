//! The bounds of the node's sessions.

use std::time::Duration;

use conversation::Limits;
use serde::{Deserialize, Serialize};

use crate::lifetimes::Lifetimes;
use crate::reply::Bounds;

/// Bounds of the node's sessions, each with what happens at it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Settings {
    /// Most sessions on this node; a further one is refused, and one that lived elsewhere is
    /// left for another node.
    pub sessions_max: usize,
    /// Most posts and streams of one session that wait for their turn; a further one is
    /// refused as busy.
    pub mailbox_max: usize,
    /// Most frames that wait for a slow connection; then it is cut, and its client may
    /// resume. Never below what the log keeps, so that a replay always fits.
    pub sink_frames_max: usize,
    /// Most bytes that wait for a slow connection, with the same consequence. A single
    /// message may be larger: it is taken when no other message waits. Never below what the
    /// log keeps (`log_bytes_max` and `message_bytes_max` together), so that a replay
    /// always fits.
    pub sink_bytes_max: usize,
    /// How long a new session waits until its node's lease is renewed, and then for a store
    /// that cannot be reached, in seconds each. Then it is refused.
    pub store_wait_secs: u64,
    /// How long a request is held whose session cannot be reached, because its owner is
    /// being replaced or the store is away, in milliseconds. Then its requests end with an
    /// error, and what carries none is refused.
    pub hold_ms: u64,
    /// Most requests that are held; a further one is answered at once as if its time were over.
    pub held_max: usize,
    /// How long the store remembers that a session has ended, in seconds.
    pub tombstone_secs: u64,
    /// What session ids made here end with: 1 to 32 letters, digits and `_`. Anything
    /// else means eight random digits.
    pub node_tag: String,
    /// The bounds of each session.
    #[serde(flatten)]
    pub session: Limits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sessions_max: 20_000,
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

/// What a stream may be told beside its events: heads, cursors, signs of life.
const FRAMES_BESIDE_EVENTS: usize = 16;

impl Settings {
    /// What may wait for one connection.
    pub(crate) fn sink_bounds(&self) -> Bounds {
        let small = |bound: usize| u32::try_from(bound).unwrap_or(u32::MAX);
        let replay = self.session.log_events_max.saturating_add(FRAMES_BESIDE_EVENTS);
        Bounds {
            frames_max: small(self.sink_frames_max.max(replay)),
            bytes_max: small(self.sink_bytes_max.max(self.session.log_bytes_most())),
        }
    }

    /// The bounds of each session, with the one wait that sessions and the node share.
    pub(crate) fn limits(&self) -> Limits {
        Limits { hold_ms: self.hold_ms, ..self.session.clone() }
    }

    /// How long the store keeps a session of which it hears nothing. The session itself
    /// gives up after half of that, and is heard of more often.
    pub(crate) fn record_ttl(&self) -> Duration {
        Duration::from_secs(self.session.idle_secs.max(30).saturating_mul(2))
    }

    /// How long a session's record lives after each kind of write.
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
