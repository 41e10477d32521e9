//! How a process connects to its peers, and detects that one is dead: by the product's
//! [`FailureDetector`], with simulated results of connections and of commands to Redis.

use ownership::detector::{
    Attempt, FailureDetector, LEASE_READ_MS, LeaseAnswer, LinkStatus, Liveness, NextStep, Timing,
};
use ownership::{Error, Incarnation, Marking, Presence};

use super::process::Purpose;
use super::redis::{Command, brief};
use super::world::{Dialled, Happening, Timer, World};

/// How long an attempt to connect may take, in milliseconds: the default of
/// `cluster.connect_ms`.
const CONNECT_MS: u64 = 1_000;

/// How often a process tries to have a former process of its address marked dead.
const TRIES_ON_FORMER: u32 = 20;

/// The links to a peer, as far as this process has noticed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerLinks {
    pub(super) is_up: bool,
    /// The peer's system closed a link in order, and no link was established since.
    pub(super) was_closed: bool,
}

/// Connects to one peer until a link is up, or the peer is no longer a member.
pub(super) struct Dial {
    /// Events and answers for an earlier loop are dropped.
    number: u64,
    detector: FailureDetector,
    /// When the current read of the lease began, by the process's clock.
    asked_ms: u64,
    /// The last attempt showed that the peer's process is dead.
    found_dead: bool,
}

impl World {
    /// Begins to connect to a peer, unless there is a link or a dial loop.
    pub(super) fn dial(&mut self, at: Incarnation, peer: Incarnation) {
        let notice_ms = self.plan.silence;
        let timing = Timing { renew_ms: self.plan.renew, notice_ms };
        let is_up = self.links.is_up(at, peer);
        let Some(process) = self.processes.get_mut(&at) else { return };
        let has_noticed = process.peers.get(&peer).is_none_or(|links| !links.is_up);
        if is_up || !has_noticed || process.dials.contains_key(&peer) {
            return;
        }
        let number = process.next_dial;
        process.next_dial += 1;
        let detector = FailureDetector::new(process.clock(self.now), timing);
        let dial = Dial { number, detector, asked_ms: 0, found_dead: false };
        process.dials.insert(peer, dial);
        self.connect_to(at, peer, number);
    }

    fn dial_of(&mut self, at: Incarnation, peer: Incarnation, number: u64) -> Option<&mut Dial> {
        let dial = self.processes.get_mut(&at)?.dials.get_mut(&peer)?;
        (dial.number == number).then_some(dial)
    }

    /// One attempt to connect.
    pub(super) fn connect_to(&mut self, at: Incarnation, peer: Incarnation, number: u64) {
        if self.dial_of(at, peer, number).is_none() {
            return;
        }
        let Some(process) = self.processes.get(&at) else { return };
        let slot = process.slot;
        let address = process.addresses.get(&peer).copied();
        let there = address.and_then(|address| self.slots[address]);
        let is_silent = address.is_none_or(|address| {
            self.links.parts(slot, address) || self.checker.machine_gone.contains(&address)
        });
        let refuses = address.is_some_and(|address| self.links.refuses(slot, address));
        let is_paused =
            there.and_then(|there| self.processes.get(&there)).is_some_and(|p| p.paused);
        let how = match there {
            // A machine that is gone refuses no connections.
            _ if is_silent => Dialled::Failed(Attempt::Unreachable),
            _ if refuses => Dialled::Failed(Attempt::Refused),
            None => Dialled::Failed(Attempt::Refused),
            // The kernel accepts the connection, and nothing answers on it.
            Some(_) if is_paused => Dialled::Failed(Attempt::Unreachable),
            Some(there) if there == peer => Dialled::Connected,
            Some(there) if there == at => Dialled::Failed(Attempt::Unreachable),
            Some(_) => Dialled::Failed(Attempt::Superseded),
        };
        let times_out = is_silent || is_paused;
        let after = if times_out { CONNECT_MS } else { self.rng.between(1, 5) };
        self.after(after, Happening::Dialled { at, peer, number, how });
    }

    pub(super) fn dialled(
        &mut self,
        at: Incarnation,
        peer: Incarnation,
        number: u64,
        how: Dialled,
    ) {
        if self.dial_of(at, peer, number).is_none() {
            return;
        }
        let is_awake = self.processes.get(&peer).is_some_and(|peer| !peer.paused);
        match how {
            Dialled::Connected if is_awake => self.link_is_up(at, peer),
            Dialled::Connected => self.attempt_failed(at, peer, Attempt::Unreachable),
            Dialled::Failed(attempt) => self.attempt_failed(at, peer, attempt),
        }
    }

    /// A link serves both directions, so both ends stop connecting.
    fn link_is_up(&mut self, at: Incarnation, peer: Incarnation) {
        self.links.connect(at, peer, self.now);
        for (end, other) in [(at, peer), (peer, at)] {
            if let Some(process) = self.processes.get_mut(&end) {
                process.dials.remove(&other);
                process.peers.insert(other, PeerLinks { is_up: true, was_closed: false });
                if !process.members.contains_key(&other) {
                    self.look_around(end);
                }
            }
            // The lease names the link, and requests that waited for it continue.
            self.renew(end);
            self.retry_those_at(end, other);
        }
    }

    fn attempt_failed(&mut self, at: Incarnation, peer: Incarnation, attempt: Attempt) {
        let world_now = self.now;
        let is_up = self.links.is_up(at, peer);
        let Some(process) = self.processes.get_mut(&at) else { return };
        let now = process.clock(world_now);
        if !process.members.contains_key(&peer) {
            return self.stop_dialling(at, peer);
        }
        let noticed = process.peers.get(&peer);
        let links = LinkStatus {
            is_up: is_up || noticed.is_some_and(|links| links.is_up),
            was_closed: noticed.map(|links| links.was_closed),
        };
        let Some(dial) = process.dials.get_mut(&peer) else { return };
        let next = dial.detector.attempt_failed(now, attempt, links);
        match next {
            NextStep::ReadLease => dial.asked_ms = now,
            NextStep::Retry => dial.found_dead = false,
        }
        let number = dial.number;
        self.not_reached(at, peer);
        match next {
            NextStep::Retry => self.pause_dial(at, peer, number),
            NextStep::ReadLease => {
                let purpose = Purpose::LookPresence(peer, number);
                let tag = self.send_for(at, Command::Presence(peer), purpose);
                self.after(LEASE_READ_MS, Happening::GaveUp { to: at, tag });
            }
        }
    }

    pub(super) fn presence_seen(
        &mut self,
        at: Incarnation,
        peer: Incarnation,
        number: u64,
        came: Result<Presence, Error>,
    ) {
        let Some(answered_ms) = self.processes.get(&at).map(|process| process.clock(self.now))
        else {
            return;
        };
        let Some(dial) = self.dial_of(at, peer, number) else { return };
        let Ok(presence) = came else { return self.look_failed(at, peer, number) };
        let found = LeaseAnswer { asked_ms: dial.asked_ms, answered_ms, presence: &presence };
        let verdict = dial.detector.lease_read(at, found);
        let is_dead = matches!(verdict, Liveness::Dead { .. });
        dial.found_dead = is_dead && dial.detector.saw_process_end();
        match verdict {
            Liveness::Undecided => self.pause_dial(at, peer, number),
            Liveness::Dead { renewal } => {
                let purpose = Purpose::MarkDead(peer, number);
                self.mark_dead(at, peer, Some(renewal), purpose);
            }
            Liveness::Gone => self.is_dead(at, peer),
        }
    }

    fn mark_dead(
        &mut self,
        at: Incarnation,
        peer: Incarnation,
        seen: Option<u64>,
        purpose: Purpose,
    ) {
        let Some(process) = self.processes.get(&at) else { return };
        let found_dead = process.dials.iter().filter(|(_, dial)| dial.found_dead);
        let also_dead = found_dead.map(|(dead, _)| *dead).filter(|dead| *dead != peer).collect();
        self.send_for(at, Command::MarkDead(peer, at, also_dead, seen), purpose);
    }

    fn look_failed(&mut self, at: Incarnation, peer: Incarnation, number: u64) {
        let Some(now) = self.processes.get(&at).map(|process| process.clock(self.now)) else {
            return;
        };
        if let Some(dial) = self.dial_of(at, peer, number) {
            dial.detector.lease_read_failed(now);
            dial.found_dead = false;
            self.pause_dial(at, peer, number);
        }
    }

    fn pause_dial(&mut self, at: Incarnation, peer: Incarnation, number: u64) {
        if let Some(dial) = self.dial_of(at, peer, number) {
            let pause = dial.detector.pause_ms();
            self.after(pause, Happening::Rings(at, Timer::Dial(peer, number)));
        }
    }

    /// The result of marking a peer dead that the failure detector found dead.
    pub(super) fn marked(
        &mut self,
        at: Incarnation,
        peer: Incarnation,
        number: u64,
        came: Result<Marking, Error>,
    ) {
        match came {
            Ok(Marking::Dead) => self.is_dead(at, peer),
            Ok(Marking::LinkedTo(_) | Marking::Renewed) | Err(_) => {
                self.pause_dial(at, peer, number);
            }
        }
    }

    /// This process listens at its address, so the process that had it before is dead.
    pub(super) fn bury_former(&mut self, at: Incarnation, peer: Incarnation, tries: u32) {
        let purpose = Purpose::BuryFormer(peer, tries);
        self.mark_dead(at, peer, None, purpose);
    }

    pub(super) fn former_marked(
        &mut self,
        at: Incarnation,
        peer: Incarnation,
        tries: u32,
        came: Result<Marking, Error>,
    ) {
        match came {
            Ok(Marking::Dead) => self.is_dead(at, peer),
            // The peers of the former process may not have noticed yet that their links to it
            // broke.
            Ok(Marking::LinkedTo(_) | Marking::Renewed) | Err(_) if tries + 1 < TRIES_ON_FORMER => {
                let timer = Timer::BuryFormer(peer, tries + 1);
                self.after(self.plan.renew / 4, Happening::Rings(at, timer));
            }
            Ok(Marking::LinkedTo(_) | Marking::Renewed) | Err(_) => {}
        }
    }

    /// A peer was marked dead, or has no lease.
    fn is_dead(&mut self, at: Incarnation, peer: Incarnation) {
        let name = self.name(at);
        self.note(|| format!("{name} learns that {} is dead", brief(peer)));
        if let Some(process) = self.processes.get_mut(&at) {
            process.members.remove(&peer);
            process.known.retain(|_, owner| *owner != peer);
        }
        self.stop_dialling(at, peer);
        self.retry_those_at(at, peer);
    }

    fn stop_dialling(&mut self, at: Incarnation, peer: Incarnation) {
        if let Some(process) = self.processes.get_mut(&at) {
            process.dials.remove(&peer);
        }
        self.not_reached(at, peer);
    }
}
