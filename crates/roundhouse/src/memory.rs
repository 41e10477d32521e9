//! How much memory a node may need under its settings.
//!
//! The figure is the sum of the bounds that are counted in bytes, and of what each countable thing
//! needs besides: for a node whose clients and servers do their worst, not for an honest load. It is
//! for the process of the node: the guards and the servers of tenants are other processes.

use crate::settings::{BackendSettings, Settings};

/// The program itself, its threads and the allocator's caches.
const PROGRAM: usize = 128 << 20;
/// A connection of a client: its task, and an unread reply that is less than a granule (24 KiB),
/// what the HTTP layer reads ahead (128 KiB of a head or of further requests, 32 KiB of a body), and
/// what it has written and the client has not read (two pieces of 32 KiB).
const CONNECTION: usize = (24 + 128 + 32 + 64) << 10;
/// What TLS adds to it: a message of the handshake (64 KiB), a record that has arrived in part and one that
/// is read (18 KiB and 16 KiB), what it has encrypted and the client has not read (32 KiB), and its keys.
const TLS: usize = (64 + 34 + 32 + 6) << 10;
/// A session that keeps less than a granule: its actor, its machine, its record in memory.
const SESSION: usize = 4 << 10;
/// A process of a server: its tasks, its pipes, and what its line buffer holds below a granule.
const CHILD: usize = 96 << 10;
/// The tombstones of a store in memory.
const TOMBSTONES: usize = store::Memory::TOMBSTONES_MAX * 640;
/// The allocator keeps more than is in use, by at most this part of it.
const OVERHEAD_DIVISOR: usize = 4;

/// The memory of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    sessions_bytes: usize,
    bodies_bytes: usize,
    peers_bytes: usize,
    connections: usize,
    sessions: usize,
    children: usize,
    records: usize,
}

impl Memory {
    /// The memory under these settings, with so many connections of clients.
    pub(crate) fn of(settings: &Settings, connections: usize) -> Self {
        let is_stdio = |backend: &BackendSettings| matches!(backend, BackendSettings::Stdio(_));
        let has_children =
            settings.tenants.values().any(|tenant| tenant.backends.values().any(is_stdio));
        let peers = &settings.cluster.peers;
        let sessions_bytes = settings.node.session_bytes_max;
        Self {
            sessions_bytes,
            bodies_bytes: settings.front.bodies_bytes_max,
            peers_bytes: if peers.listen.is_empty() { 0 } else { peers.waiting_bytes_max },
            connections: connections
                .saturating_mul(CONNECTION + if settings.front.tls.is_on() { TLS } else { 0 }),
            sessions: settings
                .sessions
                .sessions_max
                .saturating_mul(SESSION + budget::GRANULE_BYTES),
            children: if has_children {
                settings.node.children.children_max.saturating_mul(CHILD)
            } else {
                0
            },
            // A record has a copy of what its session saves, and no session leaves memory.
            records: if settings.store.is_in_process() {
                sessions_bytes.saturating_add(TOMBSTONES)
            } else {
                0
            },
        }
    }

    /// The most bytes of resident memory.
    pub(crate) fn total(&self) -> usize {
        let Self {
            sessions_bytes,
            bodies_bytes,
            peers_bytes,
            connections,
            sessions,
            children,
            records,
        } = self;
        let parts = [
            sessions_bytes,
            bodies_bytes,
            peers_bytes,
            connections,
            sessions,
            children,
            records,
            &PROGRAM,
        ];
        let sum = parts.into_iter().fold(0_usize, |sum, part| sum.saturating_add(*part));
        sum.saturating_add(sum / OVERHEAD_DIVISOR)
    }

    /// The figure and its largest parts, for people.
    pub(crate) fn summary(&self) -> String {
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        format!(
            "memory: about {} MiB at most ({} MiB that sessions keep, {} MiB of incomplete bodies, {} MiB for \
             connections, {} MiB for sessions, {} MiB for servers, {} MiB for a peer, {} MiB for records in \
             memory); not counted: the servers themselves and their guards",
            mib(self.total()),
            mib(self.sessions_bytes),
            mib(self.bodies_bytes),
            mib(self.connections),
            mib(self.sessions),
            mib(self.children),
            mib(self.peers_bytes),
            mib(self.records)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_the_sum_of_the_bounds_and_an_overhead() {
        let mut settings = Settings::default();
        settings.sessions.sessions_max = 0;
        settings.front.bodies_bytes_max = 0;
        settings.node.session_bytes_max = 272 << 20;
        let memory = Memory::of(&settings, 0);
        assert_eq!(memory.total(), 890 << 20);
        assert!(
            memory.summary().starts_with("memory: about 890 MiB at most (272 MiB"),
            "{memory:?}"
        );
        settings.sessions.sessions_max = 1 << 10;
        assert_eq!(Memory::of(&settings, 0).total(), 900 << 20);
        settings.store.url.0 = "redis://localhost".into();
        assert_eq!(Memory::of(&settings, 0).total(), 510 << 20, "no record is in this process");
    }
}
