//! The links between nodes: ordered, delayed, and cut by partitions, resets and deaths.

use std::collections::{BTreeMap, BTreeSet};

use conversation::{Answer, Ending, EventId, Frame};
use ownership::{Incarnation, SessionRequest};
use protocol::SessionId;

use super::client::ConnId;
use super::world::{Happening, World};

/// The number of a link between two processes: each new link has another one.
pub(super) type LinkEpoch = u64;

/// A request that is sent to another node.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) conn: ConnId,
    /// The number of the attachment of that connection.
    pub(super) attachment: u64,
    pub(super) session: SessionId,
    /// `None`: asks the callee to take the session over, and whether it has the session.
    pub(super) request: Option<SessionRequest>,
}

/// A message from one node to another.
#[derive(Clone, Debug)]
pub(super) enum Peer {
    Call(Call),
    /// Nothing was done.
    NotStarted {
        conn: ConnId,
        attachment: u64,
    },
    /// The owner writes something to a connection.
    Reply {
        conn: ConnId,
        attachment: u64,
        reply: PeerReply,
    },
    /// The connection is gone, or has another attachment.
    Gone {
        conn: ConnId,
        attachment: u64,
    },
}

/// The events that an owner writes to a connection, which may be at another node.
#[derive(Clone, Debug)]
pub(super) enum PeerReply {
    Answer(Answer),
    Open {
        welcome: bool,
        at: Option<EventId>,
    },
    Frame(Frame),
    Finish(Ending),
    /// The owner lost the session; whether the request was done is not known.
    Lost,
}

#[derive(Debug, Default)]
struct Link {
    lease_generation: LinkEpoch,
    up: bool,
    since: u64,
    /// When the newest frame in each direction arrives.
    until: [u64; 2],
}

/// Every link between two processes.
#[derive(Debug, Default)]
pub(super) struct Links {
    links: BTreeMap<(Incarnation, Incarnation), Link>,
    /// Pairs of addresses between which no frames pass.
    pub(super) parted: BTreeSet<(usize, usize)>,
    /// Pairs of addresses that refuse each other's connections.
    pub(super) refusing: BTreeSet<(usize, usize)>,
    /// Frames that wait for the end of a partition, in order.
    pub(super) stalled: Vec<Happening>,
}

impl Links {
    fn pair(one: Incarnation, other: Incarnation) -> (Incarnation, Incarnation) {
        (one.min(other), one.max(other))
    }

    /// Establishes a link, unless there is one.
    pub(super) fn connect(&mut self, one: Incarnation, other: Incarnation, now: u64) -> bool {
        let link = self.link(one, other);
        if link.up {
            return false;
        }
        let lease_generation = link.lease_generation + 1;
        *link = Link { lease_generation, up: true, since: now, until: [0; 2] };
        true
    }

    fn link(&mut self, one: Incarnation, other: Incarnation) -> &mut Link {
        self.links.entry(Self::pair(one, other)).or_default()
    }

    pub(super) fn is_up(&self, one: Incarnation, other: Incarnation) -> bool {
        self.links.get(&Self::pair(one, other)).is_some_and(|link| link.up)
    }

    pub(super) fn carries(
        &self,
        one: Incarnation,
        other: Incarnation,
        lease_generation: LinkEpoch,
    ) -> bool {
        let link = self.links.get(&Self::pair(one, other));
        link.is_some_and(|link| link.up && link.lease_generation == lease_generation)
    }

    /// The processes to which a process has a link.
    pub(super) fn of(&self, one: Incarnation) -> Vec<Incarnation> {
        let up = self.links.iter().filter(|(_, link)| link.up);
        up.filter_map(|((a, b), _)| match (*a == one, *b == one) {
            (true, _) => Some(*b),
            (_, true) => Some(*a),
            _ => None,
        })
        .collect()
    }

    /// The processes to which a process has had a link since this time.
    pub(super) fn since(&self, one: Incarnation, time: u64) -> Vec<Incarnation> {
        let others = self.of(one).into_iter();
        let lasts = |other: &Incarnation| {
            self.links.get(&Self::pair(one, *other)).is_some_and(|link| link.since <= time)
        };
        others.filter(lasts).collect()
    }

    pub(super) fn refuses(&self, one: usize, other: usize) -> bool {
        self.refusing.contains(&(one.min(other), one.max(other)))
    }

    pub(super) fn parts(&self, one: usize, other: usize) -> bool {
        self.parted.contains(&(one.min(other), one.max(other)))
    }
}

impl World {
    /// Sends over the link to a peer. Returns false if there is no link: nothing was sent.
    pub(super) fn peer_send(&mut self, from: Incarnation, to: Incarnation, peer: Peer) -> bool {
        let wait = self.rng.between(0, 3);
        let now = self.now;
        let link = self.links.link(from, to);
        if !link.up {
            return false;
        }
        let direction = usize::from(from > to);
        let at = (now + wait).max(link.until[direction]);
        link.until[direction] = at;
        let lease_generation = link.lease_generation;
        self.at(at, Happening::Deliver { from, to, lease_generation, peer: Box::new(peer) });
        true
    }

    /// A frame arrives. A `kept` frame arrived while the process was stopped.
    pub(super) fn deliver(
        &mut self,
        from: Incarnation,
        to: Incarnation,
        lease_generation: LinkEpoch,
        peer: Peer,
        kept: bool,
    ) {
        if !kept {
            if !self.links.carries(from, to, lease_generation) {
                return;
            }
            let (a, b) = (self.slot_of(from), self.slot_of(to));
            if let (Some(a), Some(b)) = (a, b)
                && self.links.parts(a, b)
            {
                let stalled =
                    Happening::Deliver { from, to, lease_generation, peer: Box::new(peer) };
                self.links.stalled.push(stalled);
                return;
            }
        }
        match peer {
            Peer::Call(call) => self.receive_call(to, from, call),
            Peer::NotStarted { conn, attachment } => self.call_not_started(to, conn, attachment),
            Peer::Reply { conn, attachment, reply } => {
                self.receive_reply(to, conn, attachment, reply)
            }
            Peer::Gone { conn, attachment } => self.receive_end(to, from, conn, attachment),
        }
    }

    pub(super) fn slot_of(&self, incarnation: Incarnation) -> Option<usize> {
        self.processes.get(&incarnation).map(|process| process.slot)
    }

    /// A link breaks; each side notices it after so many milliseconds. `closed`: the system of the
    /// other end closes it in order, as the system of a killed process does.
    pub(super) fn break_link(
        &mut self,
        one: Incarnation,
        other: Incarnation,
        after: u64,
        closed: bool,
    ) {
        let link = self.links.link(one, other);
        if !link.up {
            return;
        }
        link.up = false;
        link.lease_generation += 1;
        self.checker.link_broke(self.now + after, one, other);
        self.after(after, Happening::LinkLost { at: one, peer: other, closed });
        self.after(after, Happening::LinkLost { at: other, peer: one, closed });
    }

    /// Nothing was received on a link for too long.
    pub(super) fn unheard(
        &mut self,
        one: Incarnation,
        other: Incarnation,
        lease_generation: LinkEpoch,
    ) {
        if !self.links.carries(one, other, lease_generation) {
            return;
        }
        let silent = |at: Incarnation| self.processes.get(&at).is_none_or(|p| p.paused);
        let parted = match (self.slot_of(one), self.slot_of(other)) {
            (Some(a), Some(b)) => self.links.parts(a, b),
            _ => true,
        };
        if parted || silent(one) || silent(other) {
            self.break_link(one, other, 0, false);
        }
    }

    /// The process may send nothing from now on: checks its links when their timeout is over.
    pub(super) fn watch_links_of(&mut self, incarnation: Incarnation) {
        for other in self.links.of(incarnation) {
            let lease_generation = self.links.link(incarnation, other).lease_generation;
            let after = self.plan.silence;
            self.after(after, Happening::Unheard { one: incarnation, other, lease_generation });
        }
    }
}
