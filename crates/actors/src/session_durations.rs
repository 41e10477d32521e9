//! How long sessions last, by the names of OpenTelemetry's conventions for MCP.

use std::sync::LazyLock;
use std::time::Duration;

use conversation::Cause;
use protocol::Revision;
use telemetry::{DurationLabel, DurationNames, DurationObserver, Durations};

use crate::metrics::{End, SESSION_SECONDS};

/// How a session failed, if it did.
static ERRORS: [&str; 3] = ["", "handshake_failed", "_OTHER"];

/// Sessions end rarely, so all threads share these cells.
static SESSIONS: LazyLock<DurationObserver> = LazyLock::new(|| {
    Durations::register(DurationNames {
        name: SESSION_SECONDS,
        convention: "mcp.server.session.duration",
        help: "Time from the start of a session at this node, or its take-over, to its end.",
        labels: [
            DurationLabel {
                name: "mcp_protocol_version",
                attribute: "mcp.protocol.version",
                values: &Revision::NAMES,
            },
            DurationLabel { name: "error_type", attribute: "error.type", values: &ERRORS },
        ],
    })
    .observer()
});

/// Counts a session that has ended. One that goes on at another node, or that sleeps, has not.
pub(crate) fn count_session(revision: Revision, end: End, millis: u64) {
    let error = match end {
        End::Deposed | End::Over(Cause::Asleep | Cause::Moved) => return,
        End::Over(Cause::HandshakeFailed) => 1,
        End::Unrecorded | End::Panicked => 2,
        End::Over(
            Cause::Deleted
            | Cause::Idle
            | Cause::Disconnected
            | Cause::Stopping
            | Cause::Revoked
            | Cause::StateLost,
        ) => 0,
    };
    SESSIONS.observe([revision.number(), error], Duration::from_millis(millis));
}

/// Registers the metric at the start.
pub(crate) fn show() {
    LazyLock::force(&SESSIONS);
}
