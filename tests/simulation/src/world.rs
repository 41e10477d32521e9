//! The state of one run: time, random numbers, events in flight, and processes.
//!
//! All events are in one queue, in the order of their times. Of two events at the same time, the
//! one that was queued first is first. Nothing else changes the state.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use ownership::detector::Attempt;
use ownership::{Incarnation, PrimaryId};
use protocol::{RequestId, SessionId};

use super::balancer::Conn;
use super::checker::Checker;
use super::client::{Client, ClientEvent, ClientRequest, ConnId, Wake};
use super::faults::Fault;
use super::net::{LinkEpoch, Links, Peer, PeerReply};
use super::plan::Plan;
use super::process::Process;
use super::redis::{Answer, Command, Redis, brief};
use super::rng::Rng;
use super::rules::Rules;
use super::wire::{Mishap, Weather};

/// The id of one command that a process waits for.
pub(super) type Tag = u64;

/// The purpose of a timer of a process.
#[derive(Clone, Debug)]
pub(super) enum Timer {
    /// Renew the lease, if this is the number of the current timer.
    Renew(u64),
    /// Read the nodes and primaries, if this is the number of the current timer.
    Look(u64),
    /// Continue with a session.
    Session(SessionId),
    /// Retry the request of a connection, if it is still at this attempt.
    Again(ConnId, u64),
    /// The dial loop of this number connects to a peer again.
    Dial(Incarnation, u64),
    /// Try again to have a former process of this address marked dead.
    BuryFormer(Incarnation, u32),
    /// The tenant's server is running.
    LinkUp(SessionId, u64),
    /// An instance of the tenant's server continues with a request.
    Step(SessionId, u64, RequestId),
    /// An instance sends a message.
    Chat(SessionId, u64),
    /// The drain time of requests in flight is over: the drain continues without them.
    DrainNow,
    /// The drained process ends.
    Leave,
    /// Writes the ends of sessions again.
    Tombstones,
    /// The DELETEs of a session no longer wait until its end is written.
    EndPatience(SessionId),
}

/// An event of the simulation.
#[derive(Debug)]
pub(super) enum Happening {
    /// A command reaches the Redis server of its connection.
    Execute { from: Incarnation, tag: Tag, at: PrimaryId, command: Command, receive_event: bool },
    /// A command reaches the Redis server, and fails after a part of it is done.
    BreaksOff { from: Incarnation, tag: Tag, at: PrimaryId, command: Command },
    /// An answer of Redis reaches a process.
    Answered { to: Incarnation, tag: Tag, answer: Answer },
    /// A process no longer waits for an answer.
    GaveUp { to: Incarnation, tag: Tag },
    /// A frame of the peer link reaches a process.
    Deliver { from: Incarnation, to: Incarnation, lease_generation: LinkEpoch, peer: Box<Peer> },
    /// A session sends to a connection at its own node.
    Here { at: Incarnation, conn: ConnId, attachment: u64, reply: PeerReply },
    /// A process sees its link break. `closed`: the system of the peer closed it in order.
    LinkLost { at: Incarnation, peer: Incarnation, closed: bool },
    /// The result of an attempt to connect, by the dial loop of this number.
    Dialled { at: Incarnation, peer: Incarnation, number: u64, how: Dialled },
    /// A timer of a process fires.
    Rings(Incarnation, Timer),
    /// A client's connection reaches a process.
    Arrives { at: Incarnation, conn: ConnId, session: Option<SessionId>, request: ClientRequest },
    /// A process sees that a client closed its connection.
    HungUp { at: Incarnation, conn: ConnId },
    /// A client receives an event.
    Tells { conn: ConnId, sent: ClientEvent },
    /// A client wakes up.
    Wakes(usize, Wake),
    /// A fault occurs.
    Fault(Fault),
    /// A process starts at an address.
    Starts(usize),
    /// A link over which nothing was received for too long is closed.
    Unheard { one: Incarnation, other: Incarnation, lease_generation: LinkEpoch },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialled {
    Connected,
    Failed(Attempt),
}

impl Happening {
    /// The process that must be running to receive the event.
    fn process(&self) -> Option<Incarnation> {
        match self {
            Self::Answered { to, .. } | Self::GaveUp { to, .. } | Self::Deliver { to, .. } => {
                Some(*to)
            }
            Self::LinkLost { at, .. }
            | Self::Here { at, .. }
            | Self::Dialled { at, .. }
            | Self::Arrives { at, .. }
            | Self::HungUp { at, .. }
            | Self::Rings(at, _) => Some(*at),
            _ => None,
        }
    }
}

struct Planned {
    at: u64,
    number: u64,
    what: Happening,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// The state of one run.
pub(super) struct World {
    pub(super) now: u64,
    pub(super) rng: Rng,
    pub(super) rules: Rules,
    pub(super) plan: Plan,
    queue: BinaryHeap<Reverse<Planned>>,
    planned: u64,
    pub(super) redis: Redis,
    pub(super) processes: BTreeMap<Incarnation, Process>,
    /// The process at each address.
    pub(super) slots: Vec<Option<Incarnation>>,
    pub(super) links: Links,
    pub(super) conns: BTreeMap<ConnId, Conn>,
    pub(super) clients: Vec<Client>,
    pub(super) checker: Checker,
    pub(super) weather: Weather,
    /// The mishaps of the next commands that begin so.
    pub(super) mishaps: Vec<(&'static str, Mishap)>,
    pub(super) next_tag: Tag,
    /// The number of every instance of a tenant's server.
    pub(super) instances: BTreeSet<u64>,
    /// The number of every session.
    pub(super) session_numbers: BTreeSet<u64>,
    /// A digest of everything that happened.
    pub(super) digest: u64,
    /// The events of the run, one a line, if tracing was requested.
    pub(super) trace: Option<Vec<String>>,
}

/// The most events in one run: a hundred times the usual number.
const PLANNED_MAX: u64 = 1_000_000;

impl World {
    pub(super) fn new(seed: u64, plan: Plan, rules: Rules, tracing: bool) -> Self {
        #[cfg(feature = "mutants")]
        rules.ownership.select();
        let mut rng = Rng::new(seed);
        let clients = (0..plan.clients)
            .map(|n| Client::new(n, !plan.script.is_empty(), rng.fork()))
            .collect();
        let mut redis = Redis::new(plan.ttl);
        redis.needs_replica = plan.needs_replica;
        let mut world = Self {
            now: 0,
            rng,
            rules,
            queue: BinaryHeap::new(),
            planned: 0,
            redis,
            processes: BTreeMap::new(),
            slots: vec![None; plan.nodes],
            links: Links::default(),
            conns: BTreeMap::new(),
            clients,
            checker: Checker::default(),
            weather: Weather::default(),
            mishaps: Vec::new(),
            next_tag: 0,
            instances: BTreeSet::new(),
            session_numbers: BTreeSet::new(),
            digest: 0,
            trace: tracing.then(Vec::new),
            plan,
        };
        for slot in 0..world.plan.nodes {
            let after = world.rng.between(0, 200);
            world.after(after, Happening::Starts(slot));
        }
        for (at, what, node) in world.plan.script.clone() {
            world.at(at, Happening::Wakes(0, Wake::Do(what, node)));
        }
        for client in 0..world.plan.clients {
            let after = world.rng.between(1_500, 6_000);
            world.after(after, Happening::Wakes(client, Wake::Begin));
        }
        for (at, fault) in world.plan.faults.clone() {
            world.at(at, Happening::Fault(fault));
        }
        world.at(world.plan.calm_at, Happening::Fault(Fault::Calm));
        world
    }

    /// Runs to the end, or to the first promise that is broken.
    pub(super) fn run(&mut self) {
        while self.checker.broken.is_none() {
            if self.planned > PLANNED_MAX {
                self.checker.breaks(format!("more than {PLANNED_MAX} events: the run never ends"));
                break;
            }
            let Some(Reverse(next)) = self.queue.pop() else { break };
            if next.at > self.plan.ends_at {
                break;
            }
            self.now = next.at;
            self.digest =
                (self.digest ^ next.at ^ next.number << 20).wrapping_mul(0x0100_0000_01B3);
            self.happen(next.what);
        }
        if self.checker.broken.is_none() {
            self.check_end();
        }
    }

    pub(super) fn at(&mut self, at: u64, what: Happening) {
        self.planned += 1;
        self.queue.push(Reverse(Planned { at: at.max(self.now), number: self.planned, what }));
    }

    pub(super) fn after(&mut self, millis: u64, what: Happening) {
        self.at(self.now + millis, what);
    }

    pub(super) fn note(&mut self, text: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>3}.{:03}  {}", now / 1_000, now % 1_000, text()));
        }
    }

    /// The name of a process in the trace: its address and its incarnation.
    pub(super) fn name(&self, incarnation: Incarnation) -> String {
        match self.processes.get(&incarnation) {
            Some(process) => format!("n{}:{}", process.slot, brief(incarnation)),
            None => format!("gone:{}", brief(incarnation)),
        }
    }

    pub(super) fn random(&mut self) -> u64 {
        self.rng.next()
    }

    pub(super) fn happen(&mut self, what: Happening) {
        if let Some(at) = what.process() {
            let Some(process) = self.processes.get(&at) else { return };
            if process.paused {
                // The kernel of a paused process keeps the event; also if its link has broken
                // since.
                if let Happening::Deliver { from, to, lease_generation, .. } = &what {
                    let slot = process.slot;
                    let (from, to, lease_generation) = (*from, *to, *lease_generation);
                    if !self.links.carries(from, to, lease_generation) {
                        return;
                    }
                    if self.slot_of(from).is_some_and(|from| self.links.parts(from, slot)) {
                        self.links.stalled.push(what);
                        return;
                    }
                }
                let process = self.processes.get_mut(&at).expect("it was there");
                process.backlog.push_back(what);
                return;
            }
        }
        match what {
            Happening::Execute { from, tag, at, command, receive_event } => {
                self.execute(from, tag, at, command, receive_event);
            }
            Happening::BreaksOff { from, tag, at, command } => {
                self.break_off(from, tag, at, command);
            }
            Happening::Answered { to, tag, answer } => self.answered(to, tag, answer),
            Happening::GaveUp { to, tag } => self.gave_up(to, tag),
            Happening::Deliver { from, to, lease_generation, peer } => {
                self.deliver(from, to, lease_generation, *peer, false);
            }
            Happening::Here { at, conn, attachment, reply } => {
                self.receive_reply(at, conn, attachment, reply);
            }
            Happening::LinkLost { at, peer, closed } => self.link_lost(at, peer, closed),
            Happening::Dialled { at, peer, number, how } => self.dialled(at, peer, number, how),
            Happening::Rings(at, timer) => self.rings(at, timer),
            Happening::Arrives { at, conn, session, request } => {
                if self.conns.get(&conn).is_some_and(|conn| conn.whole) {
                    self.arrives(at, conn, session, request);
                }
            }
            Happening::HungUp { at, conn } => self.hung_up(at, conn),
            Happening::Tells { conn, sent } => self.tells(conn, sent),
            Happening::Wakes(client, wake) => self.wakes(client, wake),
            Happening::Fault(fault) => self.strike(fault),
            Happening::Starts(slot) => self.start(slot),
            Happening::Unheard { one, other, lease_generation } => {
                self.unheard(one, other, lease_generation)
            }
        }
    }

    /// Processes the events that arrived while the process was stopped.
    pub(super) fn work_off(&mut self, incarnation: Incarnation) {
        loop {
            let Some(process) = self.processes.get_mut(&incarnation) else { return };
            let Some(next) = process.backlog.pop_front() else { return };
            match next {
                Happening::Deliver { from, to, lease_generation, peer } => {
                    self.deliver(from, to, lease_generation, *peer, true);
                }
                other => self.happen(other),
            }
        }
    }

    /// Checks what must hold at the end, after all faults.
    fn check_end(&mut self) {
        for client in &self.clients {
            self.checker.check_client(client, &self.plan);
        }
    }
}
