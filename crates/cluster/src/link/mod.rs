//! The link between two nodes: one connection each way of calling, made as soon as one knows
//! of the other, and kept.

pub(crate) mod answering;
pub(crate) mod calls;
pub(crate) mod dial;
pub(crate) mod frame;
mod handshake;
mod inbox;
mod line;
pub(crate) mod listen;
mod proof;
mod suspicion;
pub(crate) mod tls;
pub(crate) mod wire;

use std::time::Duration;

use crate::Settings;

/// Room in a frame beside its message.
const FRAME_OVERHEAD_BYTES: usize = 64;

/// Longest time between two pings, in milliseconds: a minute.
pub(crate) const PING_MS_MAX: u64 = 60_000;

/// How long the longest frame of a peer is that has proven itself, in bytes.
fn frame_bytes_max(settings: &Settings) -> usize {
    settings.message_bytes_max.saturating_add(FRAME_OVERHEAD_BYTES)
}

/// How long a peer may be silent that says something every `ping_ms`.
fn silence(settings: &Settings, ping_ms: u64) -> Duration {
    let Settings { ping_ms: own, pong_ms, .. } = *settings;
    Duration::from_millis(own.max(ping_ms.min(PING_MS_MAX)).saturating_add(pong_ms))
}
