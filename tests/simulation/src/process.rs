//! One incarnation of a node: its clock, its lease, and its state of the other nodes and of Redis.

use std::collections::{BTreeMap, VecDeque};

use ownership::failover::{FailoverTracker, Generation};
use ownership::location::{self, Undecided};
use ownership::machine::Stabilisation;
use ownership::tombstones::{self, Tombstones};
use ownership::validity::{self, LeaseValidity, Renewal};
use ownership::{Error, Incarnation, Lease, Presence, Primary, PrimaryId};
use protocol::SessionId;

use super::client::{ClientEvent, ConnId};
use super::dial::{Dial, PeerLinks};
use super::ingress::RoutedConnection;
use super::owner::Owned;
use super::redis::{Answer, Command, brief};
use super::world::{Happening, Tag, Timer, World};

/// The purpose of a command.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    Renew(Renewal),
    Nodes,
    Primaries,
    /// Reads the record of the session of this connection.
    Locate(ConnId, u64, Option<u64>),
    /// Reads the lease of the owner that the record names.
    Presence(ConnId, u64, Box<ownership::Record>, Option<u64>),
    /// Reads whether the lease of this peer is over, while this node's own lease holds.
    Lapsed(Incarnation, Option<u64>),
    Claim(SessionId),
    /// Releases a session that was claimed for another node.
    PassOn(SessionId),
    Ownership(SessionId),
    Create(SessionId),
    /// Writes the tombstone of this number in this generation.
    Tombstone(u64, u64),
    /// The dial loop of this number reads the lease of a peer.
    LookPresence(Incarnation, u64),
    /// The failure detector found the peer dead.
    MarkDead(Incarnation, u64),
    /// Marks a former process of this address dead; the number counts earlier attempts.
    BuryFormer(Incarnation, u32),
}

/// The longest wait for a renewal after a lost link, and the interval of the checks whether it was
/// answered, in milliseconds.
pub(super) const DOUBT_MS: u64 = 500;
const DOUBT_POLL_MS: u64 = 5;

impl Purpose {
    /// Whether the answer is only valid if this node held its lease in the meantime.
    fn reads_the_lease(&self) -> bool {
        matches!(self, Self::Locate(..) | Self::Presence(..) | Self::Lapsed(..) | Self::Claim(_))
    }
}

/// How long an event may be on its way to a client, in milliseconds.
pub(super) const ON_ITS_WAY: u64 = 50;

/// A command whose answer the process waits for.
#[derive(Debug)]
pub(super) struct Waited {
    purpose: Purpose,
    command: Command,
    /// Until when an answer waits that arrived while the process doubts its lease.
    until: Option<u64>,
}

/// A claim that was sent and has no answer yet.
#[derive(Debug)]
pub(super) struct Claiming {
    pub(super) new: ownership::Owner,
    /// The lease generation in which the claim was sent.
    pub(super) lease_generation: Option<u64>,
    /// The failover generation of the primary when the claim was sent.
    pub(super) failover_generation: u64,
    /// The session is released at once after the claim.
    pub(super) passes_on: bool,
}

/// One incarnation of a node.
pub(super) struct Process {
    pub(super) slot: usize,
    pub(super) incarnation: Incarnation,
    /// The clock shows `shows` at the time `since`, and runs at `rate`, in millionths.
    shows: u64,
    since: u64,
    rate: u64,
    pub(super) paused: bool,
    pub(super) backlog: VecDeque<Happening>,
    pub(super) lease: LeaseValidity,
    /// A renewal was sent and has no answer yet; the next one is sent afterwards.
    renews: bool,
    renew_again: bool,
    /// The numbers of the current timers; earlier timers are ignored.
    renew_timer: u64,
    look_timer: u64,
    /// The primary that the process knows, and the failovers that it has seen.
    pub(super) failovers: FailoverTracker,
    /// The Redis server of its connection.
    pub(super) connected: Option<PrimaryId>,
    /// Its connection stays with a former primary.
    pub(super) split: bool,
    pub(super) members: BTreeMap<Incarnation, Lease>,
    /// The address of each process that it ever knew.
    pub(super) addresses: BTreeMap<Incarnation, usize>,
    /// Its links, as far as it has noticed: to members, and to other processes with a link.
    pub(super) peers: BTreeMap<Incarnation, PeerLinks>,
    /// Peers that it is connecting to.
    pub(super) dials: BTreeMap<Incarnation, Dial>,
    pub(super) next_dial: u64,
    /// It has checked which former processes had its address.
    pub(super) has_met: bool,
    pub(super) known: BTreeMap<SessionId, Incarnation>,
    pub(super) sessions: BTreeMap<SessionId, Owned>,
    pub(super) claims: BTreeMap<SessionId, Claiming>,
    pub(super) connections: BTreeMap<ConnId, RoutedConnection>,
    pub(super) waited: BTreeMap<Tag, Waited>,
    pub(super) draining: bool,
    /// When the drain began, by the world's clock.
    pub(super) draining_since: u64,
    /// The tombstones of sessions that ended here.
    pub(super) tombstones: Tombstones,
    /// How many of them are being written, and the delay of the next write when all are answered.
    writes_tombstones: u64,
    look_again: Option<u64>,
    /// The balancer gives no new connections to this process.
    pub(super) out_of_rotation: bool,
    /// The newest number of a sink of a session.
    pub(super) next_sink: u64,
}

impl Process {
    /// The time of its clock, in milliseconds.
    pub(super) fn clock(&self, now: u64) -> u64 {
        self.shows + now.saturating_sub(self.since) * self.rate / 1_000_000
    }

    /// The generation of its lease, if the process may act.
    pub(super) fn lease_generation(&self, now: u64) -> Option<u64> {
        self.lease.generation_if_valid(self.clock(now))
    }

    /// Whether the process held a lease when it wrote what arrives now.
    pub(super) fn held_a_lease(&self, now: u64) -> bool {
        self.clock(now) < self.lease.until_ms() + ON_ITS_WAY
    }

    /// The primary that the process knows.
    pub(super) fn known_primary(&self) -> Option<PrimaryId> {
        self.failovers.primaries().first().copied()
    }

    /// Whether the process has a tombstone of the session.
    pub(super) fn has_tombstone(&self, session: &SessionId) -> bool {
        self.tombstones.sessions().any(|ended| ended == session)
    }

    /// What the process knows of the primary, which keeps all slots.
    pub(super) fn generation(&self, now: u64) -> Generation {
        self.failovers.generation(|| 0, || 0, self.clock(now))
    }

    pub(super) fn waits_for(&self, tag: Tag) -> bool {
        self.waited.contains_key(&tag)
    }

    /// Its clock stopped at `at`, as the clock of a frozen machine does.
    pub(super) fn forget_time(&mut self, now: u64, at: u64) {
        self.shows = self.clock(at);
        self.since = now;
    }
}

impl World {
    /// A process starts at an address.
    pub(super) fn start(&mut self, slot: usize) {
        if self.slots[slot].is_some() || self.checker.machine_gone.contains(&slot) {
            return;
        }
        let incarnation = Incarnation(self.random());
        self.checker.started(incarnation, self.now);
        let shows = self.rng.between(1_000, 100_000);
        let drift = self.plan.drift;
        let rate = self.rng.between(1_000_000 - drift, 1_000_000 + drift);
        let timing = self.timing();
        let process = Process {
            slot,
            incarnation,
            shows,
            since: self.now,
            rate,
            paused: false,
            backlog: VecDeque::new(),
            lease: LeaseValidity::new(timing),
            renews: false,
            renew_again: false,
            renew_timer: 0,
            look_timer: 0,
            failovers: FailoverTracker::new(self.plan.stabilisation),
            connected: None,
            split: false,
            members: BTreeMap::new(),
            addresses: BTreeMap::new(),
            peers: BTreeMap::new(),
            dials: BTreeMap::new(),
            next_dial: 1,
            has_met: false,
            known: BTreeMap::new(),
            sessions: BTreeMap::new(),
            claims: BTreeMap::new(),
            connections: BTreeMap::new(),
            waited: BTreeMap::new(),
            draining: false,
            draining_since: 0,
            tombstones: Tombstones::default(),
            writes_tombstones: 0,
            look_again: None,
            out_of_rotation: false,
            next_sink: 1,
        };
        self.slots[slot] = Some(incarnation);
        self.processes.insert(incarnation, process);
        self.note(|| format!("n{slot}:{} starts", brief(incarnation)));
        self.renew(incarnation);
        self.look_around(incarnation);
    }

    /// Ends the process and its state. `closes`: its system closes its links in order, unless the
    /// process left bytes unread.
    pub(super) fn kill(&mut self, incarnation: Incarnation, seen_after: u64, closes: bool) {
        let Some(process) = self.processes.remove(&incarnation) else { return };
        let name = brief(incarnation);
        self.note(|| format!("n{}:{name} dies", process.slot));
        self.slots[process.slot] = None;
        self.checker.died(&process, self.now);
        for other in self.links.of(incarnation) {
            let closed = closes && !self.rng.chance(self.plan.resets);
            self.break_link(incarnation, other, seen_after, closed);
        }
        self.cut_clients_of(incarnation, seen_after);
    }

    // ---- Commands to Redis ----

    pub(super) fn send_for(
        &mut self,
        from: Incarnation,
        command: Command,
        purpose: Purpose,
    ) -> Tag {
        let tag = self.send(from, command.clone());
        if let Some(process) = self.processes.get_mut(&from) {
            process.waited.insert(tag, Waited { purpose, command, until: None });
        }
        tag
    }

    pub(super) fn gave_up(&mut self, to: Incarnation, tag: Tag) {
        let waited = self.processes.get(&to).and_then(|process| process.waited.get(&tag));
        if let Some(waited) = waited.filter(|waited| waited.until.is_none()) {
            let answer = waited.command.unanswered("no answer");
            self.answered(to, tag, answer);
        }
    }

    pub(super) fn answered(&mut self, to: Incarnation, tag: Tag, answer: Answer) {
        let Some(process) = self.processes.get_mut(&to) else { return };
        let Some(waited) = process.waited.get_mut(&tag) else { return };
        // Whether the process held its lease is known when the next renewal is answered.
        let until = *waited.until.get_or_insert(self.now + DOUBT_MS);
        if waited.purpose.reads_the_lease() && process.lease.is_doubted() && self.now < until {
            self.after(DOUBT_POLL_MS, Happening::Answered { to, tag, answer });
            return;
        }
        let Some(Waited { purpose, .. }) = process.waited.remove(&tag) else { return };
        match (purpose, answer) {
            (Purpose::Renew(renewal), Answer::Renewed(came)) => match came {
                Ok(renewed) => {
                    self.renewed(to, renewal, renewed.was_there);
                }
                Err(Error::MarkedDead { .. }) => self.buried(to),
                // A renewal without an answer is sent again before the lease ends.
                Err(_) => self.renew_in(to, self.timing().retry_ms()),
            },
            (Purpose::Nodes, Answer::Nodes(Ok(leases))) => self.met(to, leases),
            (Purpose::Primaries, Answer::Primaries(Ok(id))) => self.learn_of_primary(to, id),
            (Purpose::Locate(conn, attempt, lease_generation), Answer::Read(came)) => {
                self.located(to, conn, attempt, lease_generation, came);
            }
            (
                Purpose::Presence(conn, attempt, record, lease_generation),
                Answer::Presence(came),
            ) => {
                self.presence_told(to, conn, attempt, &record, lease_generation, came);
            }
            (Purpose::Lapsed(peer, lease_generation), Answer::Presence(Ok(Presence::Gone))) => {
                self.lapsed(to, peer, lease_generation);
            }
            (Purpose::Claim(session), Answer::Claimed(came)) => self.claimed(to, &session, came),
            (Purpose::PassOn(session), Answer::Done(came)) => self.passed_on(to, &session, came),
            (Purpose::Ownership(session), answer) => self.operation_completed(to, &session, answer),
            (Purpose::Create(session), Answer::Done(came)) => self.created(to, &session, came),
            (Purpose::LookPresence(peer, number), Answer::Presence(came)) => {
                self.presence_seen(to, peer, number, came);
            }
            (Purpose::MarkDead(peer, number), Answer::Marked(came)) => {
                self.marked(to, peer, number, came);
            }
            (Purpose::BuryFormer(peer, tries), Answer::Marked(came)) => {
                self.former_marked(to, peer, tries, came);
            }
            (Purpose::Tombstone(number, generation), Answer::Appended(came)) => {
                self.tombstone_written(to, number, generation, &came);
            }
            _ => {}
        }
    }

    // ---- The lease ----

    /// Renews the lease now, or as soon as the current renewal has ended.
    pub(super) fn renew(&mut self, at: Incarnation) {
        let Some(process) = self.processes.get_mut(&at) else { return };
        if std::mem::replace(&mut process.renews, true) {
            process.renew_again = true;
            return;
        }
        process.renew_again = false;
        let linked = process.peers.iter().filter(|(_, links)| links.is_up);
        let linked = linked.map(|(peer, _)| *peer).collect();
        let renewal = process.lease.begin_renewal(process.clock(self.now));
        let lease = Lease {
            incarnation: at,
            renewal: renewal.number,
            acknowledged: renewal.acknowledged,
            name: "".into(),
            address: process.slot.to_string().into(),
            draining: process.draining,
            load: 0,
            linked: if self.rules.links_save { linked } else { Vec::new() },
        };
        let ttl = self.plan.lease;
        self.send_for(at, Command::Renew(lease, ttl), Purpose::Renew(renewal));
    }

    /// The current renewal has ended; the next one is sent so much later.
    fn renew_in(&mut self, at: Incarnation, millis: u64) {
        let Some(process) = self.processes.get_mut(&at) else { return };
        process.renews = false;
        if process.renew_again {
            return self.renew(at);
        }
        process.renew_timer += 1;
        let timer = Timer::Renew(process.renew_timer);
        self.after(millis, Happening::Rings(at, timer));
    }

    /// Reads the nodes and primaries now, and repeats that at each interval.
    pub(super) fn look_around(&mut self, at: Incarnation) {
        let Some(process) = self.processes.get_mut(&at) else { return };
        process.look_timer += 1;
        let timer = Timer::Look(process.look_timer);
        self.send_for(at, Command::Primaries, Purpose::Primaries);
        self.send_for(at, Command::Nodes, Purpose::Nodes);
        self.after(self.plan.renew, Happening::Rings(at, timer));
    }

    fn renewed(&mut self, at: Incarnation, renewal: Renewal, was_there: bool) {
        let Some(process) = self.processes.get_mut(&at) else { return };
        let renewed = process.lease.renewed(process.clock(self.now), renewal, was_there);
        if let Some(lost) = renewed.lost {
            let name = self.name(at);
            self.note(|| format!("{name} had lost its lease ({lost:?})"));
        }
        self.renew_in(at, self.plan.renew);
        if renewed.is_news {
            self.look_after_all(at);
        }
    }

    /// The process was marked dead while it was running: it stops at once, and its supervisor
    /// starts another one.
    fn buried(&mut self, at: Incarnation) {
        let Some(slot) = self.slot_of(at) else { return };
        let name = self.name(at);
        self.note(|| format!("{name} learns that it was marked dead"));
        if let Some(process) = self.processes.get_mut(&at) {
            process.lease.end_permission();
        }
        self.kill(at, 2, true);
        self.after(200, Happening::Starts(slot));
    }

    fn learn_of_primary(&mut self, at: Incarnation, id: PrimaryId) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(&at) else { return };
        let clock = process.clock(now);
        if !process.failovers.observe(vec![Primary::of_everything(id)], clock).failed_over {
            return;
        }
        let name = self.name(at);
        self.note(|| format!("{name} sees that Redis failed over"));
        self.look_after_all(at);
        self.write_tombstones(at);
    }

    /// Writes the tombstones again: sessions that ended here stay ended after a failover.
    pub(super) fn write_tombstones(&mut self, at: Incarnation) {
        if !self.rules.remembers_ends {
            return;
        }
        let now = self.now;
        let Some(process) = self.processes.get_mut(&at) else { return };
        if process.writes_tombstones > 0 {
            process.look_again = Some(0);
            return;
        }
        let (clock, generation) = (process.clock(now), process.generation(now).number);
        // Fewer sessions end in a run than one call returns.
        let due = process.tombstones.due_tombstones(0, clock, |_| generation);
        process.writes_tombstones = due.len() as u64;
        for due in due {
            let (record, batch) = due.tombstone.reassertion(clock);
            let purpose = Purpose::Tombstone(due.number, due.generation);
            self.send_for(at, Command::Reassert(record, batch), purpose);
        }
    }

    fn tombstone_written(
        &mut self,
        at: Incarnation,
        number: u64,
        generation: u64,
        came: &Result<ownership::Appended, Error>,
    ) {
        let Some(process) = self.processes.get_mut(&at) else { return };
        if tombstones::is_done(came) {
            process.tombstones.tombstone_written(number, generation);
        } else {
            process.look_again = Some(tombstones::RETRY_MS);
        }
        process.writes_tombstones -= 1;
        if process.writes_tombstones == 0
            && let Some(wait) = process.look_again.take()
        {
            self.after(wait, Happening::Rings(at, Timer::Tombstones));
        }
    }

    /// Whether the stabilisation after a failover, and after the start, is done.
    pub(super) fn is_stable(&self, at: Incarnation) -> bool {
        let process = self.processes.get(&at);
        process.is_some_and(|process| {
            process.generation(self.now).stabilisation == Stabilisation::Done
        })
    }

    /// The times of the leases.
    fn timing(&self) -> validity::Timing {
        validity::Timing {
            lease_ms: self.plan.lease,
            renew_ms: self.plan.renew,
            margin_ms: self.plan.margin,
        }
    }

    /// Whether a missing lease proves that its node may not act.
    pub(super) fn lapse_proves(&self, at: Incarnation) -> Result<(), Undecided> {
        let process = self.processes.get(&at).ok_or(Undecided::NoLease)?;
        let now = process.clock(self.now);
        let outlasts = process.failovers.lapse_proves(|| 0, now, self.plan.lease);
        location::lapse_proof(outlasts, &process.lease, now)
    }

    fn met(&mut self, at: Incarnation, leases: Vec<Lease>) {
        let linked = self.links.of(at);
        let lease_generation = self.lease_generation_of(at);
        let Some(process) = self.processes.get_mut(&at) else { return };
        // A node that drains ends its links itself.
        let leaves =
            |peer: &Incarnation| process.members.get(peer).is_some_and(|lease| lease.draining);
        let has_none = |peer: &Incarnation| leases.iter().all(|lease| lease.incarnation != *peer);
        let lapsed: Vec<_> =
            linked.into_iter().filter(|peer| has_none(peer) && !leaves(peer)).collect();
        process.members = leases
            .into_iter()
            .filter(|lease| lease.incarnation != at)
            .map(|lease| (lease.incarnation, lease))
            .collect();
        let slot = process.slot;
        let members = &process.members;
        process.peers.retain(|peer, links| links.is_up || members.contains_key(peer));
        let mut peers = Vec::new();
        for (peer, lease) in &process.members {
            let address: usize = lease.address.parse().unwrap_or(0);
            process.addresses.insert(*peer, address);
            peers.push((*peer, address));
        }
        let is_first = !std::mem::replace(&mut process.has_met, true);
        let lapsed = if self.rules.leaves_lapsed { lapsed } else { Vec::new() };
        for peer in lapsed {
            self.send_for(at, Command::Presence(peer), Purpose::Lapsed(peer, lease_generation));
        }
        for (peer, address) in peers {
            if address == slot && is_first {
                self.bury_former(at, peer, 0);
            }
            self.dial(at, peer);
        }
    }

    /// The lease of a peer is over, and other nodes may claim its sessions: the requests that were
    /// sent to it are sent to another owner. The proof is the same as for claims.
    fn lapsed(&mut self, at: Incarnation, peer: Incarnation, lease_generation: Option<u64>) {
        let holds = lease_generation.is_some() && lease_generation == self.lease_generation_of(at);
        if holds && self.lapse_proves(at).is_ok() {
            self.leave_owner(at, peer);
        }
    }

    pub(super) fn link_lost(&mut self, at: Incarnation, peer: Incarnation, closed: bool) {
        let is_up = self.links.is_up(at, peer);
        let Some(process) = self.processes.get_mut(&at) else { return };
        if let Some(links) = process.peers.get_mut(&peer) {
            links.is_up = is_up;
            links.was_closed |= closed;
        }
        if self.rules.renews_on_loss {
            process.lease.doubt();
        }
        let name = self.name(at);
        self.note(|| format!("{name} lost its link to {}", brief(peer)));
        if self.rules.renews_on_loss {
            self.renew(at);
        }
        self.lose_callers(at, peer);
        self.lose_owner(at, peer);
        self.dial(at, peer);
    }

    pub(super) fn rings(&mut self, at: Incarnation, timer: Timer) {
        match timer {
            Timer::Renew(number) => {
                if self.processes.get(&at).is_some_and(|process| process.renew_timer == number) {
                    self.renew(at);
                }
            }
            Timer::Look(number) => {
                if self.processes.get(&at).is_some_and(|process| process.look_timer == number) {
                    self.look_around(at);
                }
            }
            Timer::Session(session) => self.look_after(at, &session),
            Timer::Again(conn, attempt) => self.try_again(at, conn, attempt),
            Timer::Dial(peer, number) => self.connect_to(at, peer, number),
            Timer::BuryFormer(peer, tries) => self.bury_former(at, peer, tries),
            Timer::LinkUp(session, instance) => self.link_up(at, &session, instance),
            Timer::Step(session, instance, request) => {
                self.instance_goes_on(at, &session, instance, &request);
            }
            Timer::Chat(session, instance) => self.instance_chats(at, &session, instance),
            Timer::DrainNow => self.drain_now(at),
            Timer::Leave => self.leave(at),
            Timer::Tombstones => self.write_tombstones(at),
            Timer::EndPatience(session) => self.end_takes_too_long(at, &session),
        }
    }

    /// A process writes to a client of its own, if the connection is still open.
    pub(super) fn answer_client(&mut self, conn: ConnId, sent: ClientEvent) {
        self.tell(conn, sent);
    }

    /// The lease of a peer, if the process knows it as a member.
    pub(super) fn presence_of_member(
        &self,
        at: Incarnation,
        peer: Incarnation,
    ) -> Option<Presence> {
        self.processes.get(&at)?.members.get(&peer).cloned().map(Presence::Live)
    }
}
