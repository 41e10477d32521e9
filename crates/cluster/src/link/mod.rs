//! The links between two nodes: one connection each way of calling, made as soon as one knows
//! of the other, and kept; and beside each another connection that carries nothing (`watch.rs`).

pub(crate) mod answering;
mod assembly;
pub(crate) mod calls;
mod connection;
pub(crate) mod dial;
pub(crate) mod frame;
pub(crate) mod handshake;
mod inbox;
pub(crate) mod listen;
mod proof;
pub(crate) mod tls;
mod watch;
pub(crate) mod wire;

use std::time::Duration;

use crate::Settings;

/// Room in a frame beside its piece of a message, in bytes.
const FRAME_OVERHEAD_BYTES: usize = 64;

/// Longest frame of a peer that has proven itself, in bytes. A longer frame ends the link.
const FRAME_BYTES_MAX: usize = frame::PIECE_BYTES_MAX + FRAME_OVERHEAD_BYTES;

/// Longest time between two pings, in milliseconds: a minute.
pub(crate) const PING_MS_MAX: u64 = 60_000;

/// How long a peer may be silent that says something every `ping_ms`.
fn silence(settings: &Settings, ping_ms: u64) -> Duration {
    let Settings { ping_ms: own, pong_ms, .. } = *settings;
    Duration::from_millis(own.max(ping_ms.min(PING_MS_MAX)).saturating_add(pong_ms))
}
