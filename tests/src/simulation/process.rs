//! One life of a node: its clock, its lease, what it knows of the others and of Redis.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use protocol::SessionId;
use store::{Error, Incarnation, Lease, Marking, Presence, PrimaryId};

use super::client::{ConnId, Told};
use super::ingress::Keeper;
use super::owner::Owned;
use super::redis::{Answer, Command, brief};
use super::world::{Happening, Tag, Timer, World};

/// What a command was sent for.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    Renew {
        sent: u64,
    },
    Nodes,
    Primaries,
    /// Where is the session that this connection wants?
    Locate(ConnId, u64),
    /// Is the owner there, which the record names?
    Presence(ConnId, u64, Box<store::Record>, Option<u64>),
    /// Is the lease of this peer over, while this node's own holds?
    Lapsed(Incarnation, Option<u64>),
    Claim(SessionId),
    Tenure(SessionId),
    Create(SessionId),
    /// The end of a session is written anew.
    Grave(SessionId),
    MarkDead(Incarnation),
}

/// How long something may be on its way to a client.
const ON_ITS_WAY: u64 = 50;

/// A command that is waited for.
#[derive(Debug)]
pub(super) struct Waited {
    purpose: Purpose,
    command: Command,
}

/// A claim under way, and who waits for it.
#[derive(Debug)]
pub(super) struct Claiming {
    pub(super) new: store::Owner,
    /// The right that it was asked under.
    pub(super) right: Option<u64>,
}

/// One life of a node.
pub(super) struct Process {
    pub(super) slot: usize,
    pub(super) incarnation: Incarnation,
    /// What its clock shows at `started`, and how fast it runs, in millionths.
    shows: u64,
    since: u64,
    rate: u64,
    pub(super) paused: bool,
    pub(super) backlog: VecDeque<Happening>,
    /// Until when it may act, by its own clock.
    until: u64,
    epoch: u64,
    /// It was told that it is dead.
    pub(super) buried: bool,
    renewals: u64,
    /// When the last renewal was sent that is not answered, by its own clock.
    /// The primary that it was told of.
    pub(super) told: Option<PrimaryId>,
    /// The server that its connection leads to.
    pub(super) connected: Option<PrimaryId>,
    /// Its connection stays with a former primary.
    pub(super) split: bool,
    pub(super) era: u64,
    /// When it began to settle, by its own clock.
    pub(super) settles_from: u64,
    pub(super) members: BTreeMap<Incarnation, Lease>,
    /// Where each process that it ever knew is.
    pub(super) addresses: BTreeMap<Incarnation, usize>,
    pub(super) dead: BTreeSet<Incarnation>,
    pub(super) dialling: BTreeSet<Incarnation>,
    pub(super) known: BTreeMap<SessionId, Incarnation>,
    pub(super) sessions: BTreeMap<SessionId, Owned>,
    pub(super) claims: BTreeMap<SessionId, Claiming>,
    pub(super) keepers: BTreeMap<ConnId, Keeper>,
    pub(super) waited: BTreeMap<Tag, Waited>,
    pub(super) draining: bool,
    /// Since when, by the world's clock.
    pub(super) draining_since: u64,
    /// What says that sessions are over that ended here, and in which era it was written.
    pub(super) graves: BTreeMap<SessionId, (store::Record, u64)>,
    /// The balancer sends nothing new.
    pub(super) out_of_rotation: bool,
    /// Connections of other nodes that sessions here speak with.
    pub(super) next_sink: u64,
}

impl Process {
    /// What its clock shows, in milliseconds.
    pub(super) fn clock(&self, now: u64) -> u64 {
        self.shows + now.saturating_sub(self.since) * self.rate / 1_000_000
    }

    /// The epoch of its lease, where it may act.
    pub(super) fn right(&self, now: u64) -> Option<u64> {
        (self.clock(now) < self.until && !self.buried).then_some(self.epoch)
    }

    /// Did it hold a lease a moment ago, when it wrote what now arrives?
    pub(super) fn held_a_lease(&self, now: u64) -> bool {
        self.clock(now) < self.until + ON_ITS_WAY
    }

    pub(super) fn waits_for(&self, tag: Tag) -> bool {
        self.waited.contains_key(&tag)
    }

    /// Its clock stood still since `at`, as that of a machine does which is frozen whole.
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
        let shows = self.rng.between(1_000, 100_000);
        let drift = self.plan.drift;
        let rate = self.rng.between(1_000_000 - drift, 1_000_000 + drift);
        let process = Process {
            slot,
            incarnation,
            shows,
            since: self.now,
            rate,
            paused: false,
            backlog: VecDeque::new(),
            until: 0,
            epoch: 0,
            buried: false,
            renewals: 0,
            told: None,
            connected: None,
            split: false,
            era: 0,
            settles_from: shows,
            members: BTreeMap::new(),
            addresses: BTreeMap::new(),
            dead: BTreeSet::new(),
            dialling: BTreeSet::new(),
            known: BTreeMap::new(),
            sessions: BTreeMap::new(),
            claims: BTreeMap::new(),
            keepers: BTreeMap::new(),
            waited: BTreeMap::new(),
            draining: false,
            draining_since: 0,
            graves: BTreeMap::new(),
            out_of_rotation: false,
            next_sink: 1,
        };
        self.slots[slot] = Some(incarnation);
        self.processes.insert(incarnation, process);
        self.note(|| format!("n{slot}:{} starts", brief(incarnation)));
        self.renew(incarnation);
    }

    /// The process is gone, and everything in it.
    pub(super) fn kill(&mut self, incarnation: Incarnation, seen_after: u64) {
        let Some(process) = self.processes.remove(&incarnation) else { return };
        let name = brief(incarnation);
        self.note(|| format!("n{}:{name} dies", process.slot));
        self.slots[process.slot] = None;
        self.checker.died(&process, self.now);
        for other in self.links.of(incarnation) {
            self.break_link(incarnation, other, seen_after);
        }
        self.cut_clients_of(incarnation, seen_after);
    }

    // ---- What it asks Redis ----

    pub(super) fn send_for(&mut self, from: Incarnation, command: Command, purpose: Purpose) {
        let tag = self.send(from, command.clone());
        if let Some(process) = self.processes.get_mut(&from) {
            process.waited.insert(tag, Waited { purpose, command });
        }
    }

    pub(super) fn gave_up(&mut self, to: Incarnation, tag: Tag) {
        let waited = self.processes.get(&to).and_then(|process| process.waited.get(&tag));
        if let Some(waited) = waited {
            let answer = waited.command.unanswered("no answer");
            self.answered(to, tag, answer);
        }
    }

    pub(super) fn answered(&mut self, to: Incarnation, tag: Tag, answer: Answer) {
        let Some(process) = self.processes.get_mut(&to) else { return };
        let Some(Waited { purpose, .. }) = process.waited.remove(&tag) else { return };
        match (purpose, answer) {
            (Purpose::Renew { sent }, Answer::Renewed(came)) => match came {
                Ok(renewed) => self.renewed(to, sent, renewed.was_there),
                Err(Error::MarkedDead { .. }) => self.buried(to),
                Err(_) => {}
            },
            (Purpose::Nodes, Answer::Nodes(Ok(leases))) => self.met(to, leases),
            (Purpose::Primaries, Answer::Primaries(Ok(id))) => self.told_of(to, id),
            (Purpose::Locate(conn, attempt), Answer::Read(came)) => {
                self.located(to, conn, attempt, came);
            }
            (Purpose::Presence(conn, attempt, record, right), Answer::Presence(came)) => {
                self.presence_told(to, conn, attempt, &record, right, came);
            }
            (Purpose::Lapsed(peer, right), Answer::Presence(Ok(Presence::Gone))) => {
                self.lapsed(to, peer, right);
            }
            (Purpose::Claim(session), Answer::Claimed(came)) => self.claimed(to, &session, came),
            (Purpose::Tenure(session), answer) => self.tenure_came(to, &session, answer),
            (Purpose::Create(session), Answer::Done(came)) => self.created(to, &session, came),
            (Purpose::MarkDead(peer), Answer::Marked(came)) => self.marked(to, peer, came),
            (Purpose::Grave(session), Answer::Appended(came)) => {
                self.buried_anew(to, session, came)
            }
            _ => {}
        }
    }

    // ---- The lease ----

    pub(super) fn renew(&mut self, at: Incarnation) {
        let linked = self.links.of(at);
        let Some(process) = self.processes.get_mut(&at) else { return };
        if process.buried {
            return;
        }
        process.renewals += 1;
        let number = process.renewals;
        let sent = process.clock(self.now);
        let lease = Lease {
            incarnation: at,
            name: "".into(),
            address: process.slot.to_string().into(),
            draining: process.draining,
            load: 0,
            linked: if self.rules.links_save { linked } else { Vec::new() },
        };
        let ttl = self.plan.lease;
        self.send_for(at, Command::Renew(lease, ttl), Purpose::Renew { sent });
        self.send_for(at, Command::Primaries, Purpose::Primaries);
        self.send_for(at, Command::Nodes, Purpose::Nodes);
        self.after(self.plan.renew, Happening::Rings(at, Timer::Renew(number)));
    }

    fn renewed(&mut self, at: Incarnation, sent: u64, was_there: bool) {
        let (now, epochs) = (self.now, self.rules.epochs);
        let span = self.plan.lease - self.plan.margin;
        let Some(process) = self.processes.get_mut(&at) else { return };
        let lapsed = process.clock(now) >= process.until;
        let first = process.until == 0;
        let lost = !first && (lapsed || !was_there);
        if lost && epochs {
            process.epoch += 1;
        }
        process.until = process.until.max(sent + span);
        if lost {
            let name = self.name(at);
            self.note(|| format!("{name} had lost its lease (lapsed {lapsed}, there {was_there})"));
        }
        if lost || first {
            self.look_after_all(at);
        }
    }

    /// It was marked dead while it lived: it stops at once, and its supervisor starts another.
    fn buried(&mut self, at: Incarnation) {
        let Some(slot) = self.slot_of(at) else { return };
        let name = self.name(at);
        self.note(|| format!("{name} learns that it was marked dead"));
        if let Some(process) = self.processes.get_mut(&at) {
            process.buried = true;
        }
        self.kill(at, 2);
        self.after(200, Happening::Starts(slot));
    }

    fn told_of(&mut self, at: Incarnation, id: PrimaryId) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(&at) else { return };
        if process.told == Some(id) {
            return;
        }
        let first = process.told.is_none();
        process.told = Some(id);
        process.settles_from = process.clock(now);
        if first {
            return;
        }
        process.era += 1;
        let name = self.name(at);
        self.note(|| format!("{name} sees that Redis failed over"));
        self.look_after_all(at);
        self.bury_anew(at);
    }

    /// Sessions that ended here stay ended, whatever a failover forgot.
    fn bury_anew(&mut self, at: Incarnation) {
        if !self.rules.remembers_ends {
            return;
        }
        let Some(process) = self.processes.get(&at) else { return };
        let era = process.era;
        let graves: Vec<_> = process
            .graves
            .iter()
            .filter(|(_, (_, written))| *written < era)
            .map(|(session, (record, _))| (session.clone(), record.clone()))
            .collect();
        for (session, record) in graves {
            let batch = store::Batch {
                session: session.clone(),
                token: record.owner.token,
                first: 1,
                floor: 1,
                entries: Vec::new(),
                ttl: super::redis::TTL,
                prolongs: true,
            };
            self.send_for(at, Command::Reassert(record, batch), Purpose::Grave(session));
        }
    }

    fn buried_anew(
        &mut self,
        at: Incarnation,
        session: SessionId,
        came: Result<store::Appended, Error>,
    ) {
        let Some(process) = self.processes.get_mut(&at) else { return };
        let era = process.era;
        if matches!(came, Err(Error::Unavailable(_))) {
            self.after(300, Happening::Rings(at, Timer::Bury));
        } else if let Some(grave) = process.graves.get_mut(&session) {
            grave.1 = era;
        }
    }

    /// Does it know too little yet to say who owns what?
    pub(super) fn settles(&self, at: Incarnation) -> bool {
        let Some(process) = self.processes.get(&at) else { return true };
        let until = process.settles_from + self.plan.settle;
        self.rules.settles && (process.told.is_none() || process.clock(self.now) < until)
    }

    /// Does a lease that is gone prove that its node may not act? Redis may have forgotten
    /// the last renewals, or its clock may be ahead of the one before.
    pub(super) fn lapse_proves(&self, at: Incarnation) -> bool {
        let Some(process) = self.processes.get(&at) else { return false };
        let since = process.clock(self.now).saturating_sub(process.settles_from);
        since >= self.plan.lease || !self.rules.waits_out_leases
    }

    fn met(&mut self, at: Incarnation, leases: Vec<Lease>) {
        let linked = self.links.of(at);
        let right = self.right_of(at);
        let Some(process) = self.processes.get_mut(&at) else { return };
        // Whoever is about to leave ends its links itself.
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
        let mut peers = Vec::new();
        for (peer, lease) in &process.members {
            let address: usize = lease.address.parse().unwrap_or(0);
            process.addresses.insert(*peer, address);
            peers.push((*peer, address));
        }
        let lapsed = if self.rules.leaves_lapsed { lapsed } else { Vec::new() };
        for peer in lapsed {
            self.send_for(at, Command::Presence(peer), Purpose::Lapsed(peer, right));
        }
        for (peer, address) in peers {
            if address == slot {
                // It listens at its address, so whoever had it before is dead.
                self.send_for(at, Command::MarkDead(peer, at), Purpose::MarkDead(peer));
            } else {
                self.dial(at, peer);
            }
        }
    }

    /// A peer may not act any more, and others may claim what was its own: what was brought
    /// to it goes elsewhere. By the same proof as for claims.
    fn lapsed(&mut self, at: Incarnation, peer: Incarnation, right: Option<u64>) {
        let holds = right.is_some() && right == self.right_of(at);
        if holds && self.lapse_proves(at) {
            self.leave_owner(at, peer);
        }
    }

    fn marked(&mut self, at: Incarnation, peer: Incarnation, came: Result<Marking, Error>) {
        match came {
            Ok(Marking::Dead) => {
                let name = self.name(at);
                self.note(|| format!("{name} knows that {} is dead", brief(peer)));
                let Some(process) = self.processes.get_mut(&at) else { return };
                process.dead.insert(peer);
                process.members.remove(&peer);
                process.known.retain(|_, owner| *owner != peer);
                self.retry_those_at(at, peer);
            }
            Ok(Marking::LinkedTo(_)) | Err(Error::Unavailable(_)) => {
                self.after(300, Happening::Rings(at, Timer::Dial(peer)));
            }
            Err(Error::MarkedDead { .. }) => self.buried(at),
            Err(_) => {}
        }
    }

    pub(super) fn link_lost(&mut self, at: Incarnation, peer: Incarnation) {
        if !self.processes.contains_key(&at) {
            return;
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
                if self.processes.get(&at).is_some_and(|process| process.renewals == number) {
                    self.renew(at);
                }
            }
            Timer::Session(session) => self.look_after(at, &session),
            Timer::Again(conn, attempt) => self.try_again(at, conn, attempt),
            Timer::Dial(peer) => {
                let Some(process) = self.processes.get(&at) else { return };
                let wanted = process.members.contains_key(&peer)
                    || process.keepers.values().any(|keeper| keeper.waits_for(peer));
                if wanted && !process.dead.contains(&peer) {
                    self.dial(at, peer);
                }
            }
            Timer::LinkUp(session, instance) => self.link_up(at, &session, instance),
            Timer::Step(session, instance, request) => {
                self.instance_goes_on(at, &session, instance, &request);
            }
            Timer::Chat(session, instance) => self.instance_chats(at, &session, instance),
            Timer::DrainNow => self.drain_now(at),
            Timer::Leave => self.leave(at),
            Timer::Bury => self.bury_anew(at),
        }
    }

    /// What a process writes to a client of its own, if that is still there.
    pub(super) fn answer_client(&mut self, conn: ConnId, told: Told) {
        self.tell(conn, told);
    }

    /// Is the peer known to hold a lease?
    pub(super) fn presence_of_member(
        &self,
        at: Incarnation,
        peer: Incarnation,
    ) -> Option<Presence> {
        let process = self.processes.get(&at)?;
        if process.dead.contains(&peer) {
            return Some(Presence::Dead { by: at });
        }
        process.members.get(&peer).cloned().map(Presence::Live)
    }
}
