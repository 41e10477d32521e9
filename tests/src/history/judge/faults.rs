//! Which promise of docs/reliability.md a fault suspends, for which process and how long.
//!
//! Every fault that is not listed here excuses nothing: a stop shorter than a lease, a Redis that
//! stalls. A partition between two nodes excuses only the requests that were in transit between
//! them before the nodes detected the silent link.

use std::ops::RangeInclusive;

use super::super::{Entry, What};

/// A node that has not renewed its lease for this time does not act any more, in milliseconds.
const ACTS_MS: u64 = 5_000;

/// How long a client may take to detect that its connection broke, in milliseconds.
const NOTICED_MS: u64 = 1_000;

/// How long peers may take to read that a killed process has ended, in milliseconds. Bytes that they send to it until
/// then are lost.
const DIES_MS: u64 = 20;

/// How long a node that has lost its lease may take to detect that, after its process runs again
/// or after it reaches Redis again: one renewal and its reply.
const FOUND_OUT_MS: u64 = 3_000;

/// How long a silent link between two nodes still accepts calls, in milliseconds: the silence is
/// detected after 900 ms, plus a margin.
const SILENT_MS: u64 = 1_200;
/// A shorter stop breaks no link. A link is closed 900 ms after the last byte, which arrives up to one
/// ping (300 ms) before the stop.
const SILENT_MIN_MS: u64 = 600;

/// How long a process that runs again may take to read that its peers have closed the links to it.
/// A call that it forwards before is lost.
const READS_END_MS: u64 = 300;

/// How long a server of a catalog may be away for a session after it was killed or started again, in milliseconds.
/// The breaker of a server over HTTP tries again after 1 and 2 s, and the link of a session waits for that; its own
/// wait after a failure begins at the same time. A program is started again after 1 s.
const SERVER_BACK_MS: u64 = 4_000;

/// The maximum age of writes that a failover loses, in milliseconds.
const FORGOTTEN_MS: u64 = 5_000;

/// The fault of a process of a server of a catalog that is killed.
pub const SERVER_ENDS: &str = "a server ends";

/// A server of a catalog that was killed listens again.
pub const SERVER_BACK: &str = "a server is back";

/// The kind of a fault of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The process was killed; the fault ends when the kernel has ended it and closed its connections.
    Killed,
    /// The node was asked to stop; the fault ends when the node has stopped.
    AskedToStop,
    /// The node was stopped, or cut off from Redis, for longer than a lease.
    Lapsed,
}

/// A fault of one node, and its end.
#[derive(Clone, Copy, Debug)]
struct Strike {
    node: usize,
    process: u32,
    kind: Kind,
    from: u64,
    until: u64,
}

/// All faults in a history.
#[derive(Debug, Default)]
pub(super) struct Faults {
    strikes: Vec<Strike>,
    failovers: Vec<u64>,
    /// Links between running nodes broke: the times at which they still took calls.
    partitions: Vec<RangeInclusive<u64>>,
    /// The times in which servers of a catalog may be away.
    servers_away: Vec<RangeInclusive<u64>>,
    /// The processes of all nodes.
    processes: Vec<u32>,
}

impl Faults {
    pub(super) fn of(entries: &[Entry]) -> Self {
        let mut faults = Self::default();
        let done = entries.iter().filter_map(|entry| match entry.what {
            What::Fault { node, what, process } => Some((entry.at, node, what, process)),
            _ => None,
        });
        for (at, node, what, process) in done {
            if node.is_some() && process != 0 {
                faults.processes.push(process);
            }
            if what == "Redis fails over" || what == "a primary dies" {
                faults.failovers.push(at);
            }
            if what == "partition" || what == "is not heard" {
                faults.partitions.push(at..=at + SILENT_MS);
            }
            if what == SERVER_ENDS || what == SERVER_BACK {
                faults.servers_away.push(at..=at + SERVER_BACK_MS);
            }
            let Some(node) = node else { continue };
            let strike = |kind, until| Strike { node, process, kind, from: at, until };
            match what {
                "SIGKILL" => faults.strikes.push(strike(Kind::Killed, at)),
                "SIGTERM" | "drains" => faults.strikes.push(strike(Kind::AskedToStop, u64::MAX)),
                "SIGSTOP" | "Redis is out of reach" => {
                    faults.strikes.push(strike(Kind::Lapsed, u64::MAX));
                }
                "has died" | "has stopped" | "drain taken back" | "SIGCONT"
                | "Redis is in reach" => {
                    let open = faults.strikes.iter_mut().rev().find(|open| open.node == node);
                    let Some(open) = open else { continue };
                    open.until = at;
                    // Its peers close the links to it.
                    if what == "SIGCONT" && at - open.from >= SILENT_MIN_MS {
                        faults.partitions.push(open.from..=open.from + SILENT_MS);
                        faults.partitions.push(at..=at + READS_END_MS);
                    }
                }
                _ => {}
            }
        }
        let is_short = |strike: &Strike| strike.until.saturating_sub(strike.from) < ACTS_MS;
        faults.strikes.retain(|strike| strike.kind != Kind::Lapsed || !is_short(strike));
        faults
    }

    /// May a connection to this node have broken, if a client detected that between these times?
    pub(super) fn breaks(&self, node: usize, found: RangeInclusive<u64>) -> bool {
        self.strikes.iter().filter(|strike| strike.node == node).any(|strike| {
            let late = match strike.kind {
                Kind::Killed | Kind::AskedToStop => NOTICED_MS,
                Kind::Lapsed => FOUND_OUT_MS,
            };
            strike.from <= *found.end() && strike.until.saturating_add(late) >= *found.start()
        })
    }

    /// Did an owner have a fault between two times, so that its work may be lost? If the process
    /// of the owner is not known, any process may have been the owner.
    pub(super) fn lost_owner(&self, owners: &[u32], from: u64, to: u64) -> bool {
        let is_known = owners.iter().any(|owner| self.processes.contains(owner));
        self.strikes.iter().any(|strike| {
            let is_mortal = strike.kind != Kind::AskedToStop;
            let until = match strike.kind {
                Kind::Lapsed => strike.until.saturating_add(FOUND_OUT_MS),
                Kind::Killed => strike.until.saturating_add(DIES_MS),
                Kind::AskedToStop => strike.until,
            };
            is_mortal
                && (!is_known || owners.contains(&strike.process))
                && strike.from <= to
                && until >= from
        })
    }

    /// Did the link to a running owner break while a request was in transit? Then it is not known
    /// whether the owner began with the request.
    pub(super) fn lost_link(&self, from: u64, to: u64) -> bool {
        self.partitions.iter().any(|took| from <= *took.end() && to >= *took.start())
    }

    /// Was a server of a catalog away between two times? Then the error of a call of it names it.
    pub(super) fn lost_server(&self, from: u64, to: u64) -> bool {
        self.servers_away.iter().any(|away| from <= *away.end() && to >= *away.start())
    }

    /// Did a failover lose the writes of an owner around this time, and did the owner have a fault
    /// before it could write them again?
    pub(super) fn forgot(&self, at: u64) -> bool {
        self.failovers.iter().any(|failover| {
            let window = failover.saturating_sub(FORGOTTEN_MS)..=failover + NOTICED_MS;
            let is_gone = |strike: &Strike| window.contains(&strike.from);
            window.contains(&at) && self.strikes.iter().any(is_gone)
        })
    }

    /// The nodes that were asked to stop, each with the time in which it may lose requests.
    pub(super) fn stops(&self) -> impl Iterator<Item = (usize, u64, u64)> + use<'_> {
        let asked = self.strikes.iter().filter(|strike| strike.kind == Kind::AskedToStop);
        asked.map(|strike| (strike.node, strike.from, strike.until.saturating_add(NOTICED_MS)))
    }
}
