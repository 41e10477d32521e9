//! The faults, and how the world performs them.

use ownership::{Incarnation, RecordStatus};

use super::client::Wake;
use super::plan::{PROBE, Plan};
use super::redis::brief;
use super::rng::Rng;
use super::wire::{Mishap, Weather};
use super::world::{Happening, Timer, World};

/// A fault. The numbers of nodes are their addresses, and the milliseconds are the duration.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// SIGKILL; a supervisor starts another process after this time.
    Kill(usize, u64),
    /// The machine is lost: the other nodes are not notified. It returns after this time.
    Vanish(usize, u64),
    /// SIGSTOP, and SIGCONT after this time.
    Pause(usize, u64),
    /// The whole machine is frozen, its clock with it.
    Freeze(usize, u64),
    Wake(usize, Option<u64>),
    /// SIGTERM.
    Drain(usize),
    /// The link of two nodes is reset; they can connect again at once.
    Reset(usize, usize),
    /// No frames pass between two nodes.
    Part(usize, usize, u64),
    Join(usize, usize),
    /// A firewall between two nodes is reloaded: it resets their link, and for a time they refuse
    /// each other's connections.
    Reload(usize, usize, u64),
    Loaded(usize, usize),
    /// A node cannot reach Redis.
    CutOff(usize, u64),
    /// Redis loses, delays and repeats commands.
    Weather(Weather, u64),
    Fair,
    /// The mishap of the next command that begins so.
    Next(&'static str, Mishap),
    /// Redis executes nothing for a time.
    Away(u64),
    /// Redis fails over: the writes of so many milliseconds are lost, and the clock of the new
    /// primary is so far ahead.
    FailOver {
        lost: u64,
        ahead: u64,
    },
    /// As before, but this node stays connected to the former primary for a time.
    Split {
        lost: u64,
        node: usize,
        millis: u64,
    },
    Heal,
    /// Redis is full for a time.
    Full(u64),
    Roomy,
    /// The slots of all sessions of a Redis Cluster are being moved for a time.
    Move(u64),
    RestartEmpty,
    /// The keys of a session are evicted, or only its log.
    Evict {
        only_log: bool,
    },
    /// There are no faults from here on.
    Calm,
    /// Every client sends a request to its session.
    Probe,
}

/// The random faults of a seed.
pub(super) fn random_faults(rng: &mut Rng, plan: &Plan) -> Vec<(u64, Fault)> {
    let mut faults = Vec::new();
    let mut at = rng.between(4_000, 9_000);
    let mut failed_over = false;
    while at < plan.calm_at - 2_000 {
        let node = rng.below(plan.nodes as u64) as usize;
        let other = (node + 1 + rng.below(plan.nodes as u64 - 1) as usize) % plan.nodes;
        let fault = match rng.below(100) {
            0..=17 => Fault::Kill(node, rng.between(50, 4_000)),
            18..=21 => Fault::Vanish(node, rng.between(500, 9_000)),
            22..=33 => Fault::Pause(node, rng.between(200, 9_000)),
            34..=35 => Fault::Freeze(node, rng.between(200, 9_000)),
            36..=43 => Fault::Drain(node),
            44..=47 => Fault::Reset(node, other),
            48..=49 => Fault::Reload(node, other, rng.between(100, 4_000)),
            50..=55 => Fault::Part(node, other, rng.between(200, 8_000)),
            56..=61 => Fault::CutOff(node, rng.between(500, 9_000)),
            62..=75 => {
                let weather = Weather {
                    lost: rng.below(30),
                    unheard: rng.below(40),
                    late: rng.below(50),
                    late_by: rng.between(10, 6_000),
                    twice: rng.below(30),
                    cut_off: None,
                };
                Fault::Weather(weather, rng.between(300, 6_000))
            }
            76..=79 => Fault::Away(rng.between(100, 7_000)),
            80..=91 if !failed_over => {
                failed_over = rng.chance(60);
                let ahead = if rng.chance(30) { rng.between(0, 20_000) } else { 0 };
                Fault::FailOver { lost: rng.between(0, 1_500), ahead }
            }
            92..=94 => {
                let millis = rng.between(500, 9_000);
                Fault::Split { lost: rng.between(0, 500), node, millis }
            }
            95 => Fault::Full(rng.between(300, 5_000)),
            96..=97 => Fault::Evict { only_log: rng.chance(50) },
            98 => Fault::RestartEmpty,
            _ => Fault::Move(rng.between(300, 6_000)),
        };
        faults.push((at, fault));
        at += if rng.chance(40) { rng.between(0, 400) } else { rng.between(500, 7_000) };
    }
    faults
}

impl World {
    fn at_slot(&self, slot: usize) -> Option<Incarnation> {
        self.slots.get(slot).copied().flatten()
    }

    fn impair(&mut self, process: Option<Incarnation>, millis: u64) {
        if let Some(process) = process {
            self.checker.impair(process, self.now, self.now + millis);
        }
    }

    fn blind(&mut self, process: Option<Incarnation>, millis: u64) {
        if let Some(process) = process {
            self.checker.blind(process, self.now, self.now + millis);
        }
    }

    fn impair_all(&mut self, millis: u64) {
        for process in self.slots.clone() {
            self.impair(process, millis);
        }
    }

    pub(super) fn strike(&mut self, fault: Fault) {
        self.note(|| format!("---- {fault:?}"));
        let lasts = match fault {
            Fault::Kill(_, millis)
            | Fault::Vanish(_, millis)
            | Fault::Pause(_, millis)
            | Fault::Freeze(_, millis)
            | Fault::Part(_, _, millis)
            | Fault::Reload(_, _, millis)
            | Fault::CutOff(_, millis)
            | Fault::Weather(_, millis)
            | Fault::Away(millis)
            | Fault::Split { millis, .. }
            | Fault::Full(millis)
            | Fault::Move(millis) => millis,
            _ => 0,
        };
        self.checker.disturbed(self.now + lasts);
        match fault {
            Fault::Kill(slot, millis) => {
                if let Some(at) = self.at_slot(slot) {
                    let seen = self.rng.between(1, 5);
                    self.kill(at, seen, true);
                    self.after(millis, Happening::Starts(slot));
                }
            }
            Fault::Vanish(slot, millis) => {
                if let Some(at) = self.at_slot(slot) {
                    self.checker.machine_gone.insert(slot);
                    let seen = self.plan.silence;
                    self.kill(at, seen, false);
                    self.after(millis, Happening::Fault(Fault::Wake(slot, None)));
                }
            }
            Fault::Pause(slot, millis) => {
                self.pause(slot, millis);
                self.after(millis, Happening::Fault(Fault::Wake(slot, None)));
            }
            Fault::Freeze(slot, millis) => {
                self.pause(slot, millis);
                let since = self.now;
                let woken = self.now + millis;
                self.checker.frozen.extend(self.at_slot(slot).map(|at| (at, woken)));
                self.after(millis, Happening::Fault(Fault::Wake(slot, Some(since))));
            }
            Fault::Wake(slot, frozen) => self.wake_node(slot, frozen),
            Fault::Drain(slot) => self.drain(slot),
            Fault::Reset(one, other) => {
                if let (Some(one), Some(other)) = (self.at_slot(one), self.at_slot(other)) {
                    self.break_link(one, other, 1, false);
                }
            }
            Fault::Part(one, other, millis) => {
                self.links.parted.insert((one.min(other), one.max(other)));
                if let Some(at) = self.at_slot(one) {
                    self.watch_links_of(at);
                }
                self.after(millis, Happening::Fault(Fault::Join(one, other)));
            }
            Fault::Join(one, other) => {
                self.links.parted.remove(&(one.min(other), one.max(other)));
                self.let_stalled_pass();
            }
            Fault::Reload(one, other, millis) => {
                self.links.refusing.insert((one.min(other), one.max(other)));
                self.strike(Fault::Reset(one, other));
                self.after(millis, Happening::Fault(Fault::Loaded(one, other)));
            }
            Fault::Loaded(one, other) => {
                self.links.refusing.remove(&(one.min(other), one.max(other)));
            }
            Fault::CutOff(slot, millis) => {
                self.weather.cut_off = Some(slot);
                self.blind(self.at_slot(slot), millis);
                self.after(millis, Happening::Fault(Fault::Fair));
            }
            Fault::Weather(weather, millis) => {
                self.weather = Weather { cut_off: self.weather.cut_off, ..weather };
                self.impair_all(millis + weather.late_by.min(1_000));
                self.after(millis, Happening::Fault(Fault::Fair));
            }
            Fault::Next(command, mishap) => {
                self.mishaps.push((command, mishap));
            }
            Fault::Fair => self.weather = Weather::default(),
            Fault::Away(millis) => {
                self.redis.away_until = self.redis.away_until.max(self.now + millis);
                self.impair_all(millis);
            }
            Fault::FailOver { lost, ahead } => {
                self.fail_over(lost, ahead, None);
            }
            Fault::Split { lost, node, millis } => {
                self.fail_over(lost, 0, Some(node));
                self.after(millis, Happening::Fault(Fault::Heal));
            }
            Fault::Heal => self.heal(),
            Fault::Full(millis) => {
                self.redis.full = true;
                self.impair_all(millis);
                self.after(millis, Happening::Fault(Fault::Roomy));
            }
            Fault::Roomy => self.redis.full = false,
            Fault::Move(millis) => {
                self.redis.moves_until = self.now + millis;
                self.impair_all(millis);
            }
            Fault::RestartEmpty => {
                self.compare_redis(|world| world.redis.restart_empty());
            }
            Fault::Evict { only_log } => {
                let sessions = self.redis.sessions(self.now);
                if let Some(session) = self.rng.pick(&sessions) {
                    self.checker.evicted.insert(session.clone());
                    self.compare_redis(|world| world.redis.evict(&session, only_log));
                }
            }
            Fault::Calm => self.calm(),
            Fault::Probe => {
                for client in 0..self.clients.len() {
                    self.after(0, Happening::Wakes(client, Wake::Probe));
                }
            }
        }
    }

    fn pause(&mut self, slot: usize, millis: u64) {
        let Some(at) = self.at_slot(slot) else { return };
        if let Some(process) = self.processes.get_mut(&at) {
            process.paused = true;
        }
        self.blind(Some(at), millis);
        self.watch_links_of(at);
    }

    fn wake_node(&mut self, slot: usize, frozen: Option<u64>) {
        if self.checker.machine_gone.remove(&slot) {
            self.start(slot);
            return;
        }
        let now = self.now;
        let Some(at) = self.at_slot(slot) else { return };
        let Some(process) = self.processes.get_mut(&at) else { return };
        if !std::mem::replace(&mut process.paused, false) {
            return;
        }
        if let Some(since) = frozen {
            process.forget_time(now, since);
        }
        self.work_off(at);
    }

    /// Redis fails over; one node may stay connected to the former primary.
    fn fail_over(&mut self, lost: u64, ahead: u64, stays: Option<usize>) {
        let (now, seen) = (self.now, self.now.saturating_sub(lost));
        let former = self.redis.current();
        // Leases last longer if the clock of the new primary is behind that of the former one.
        let behind = self.redis.ahead().saturating_sub(ahead);
        self.checker.disturbed(now + behind);
        self.checker.clock_is_behind(now, behind);
        if let Some(at) = stays.and_then(|slot| self.at_slot(slot)) {
            self.impair(Some(at), self.plan.ends_at);
            self.checker.stays(at);
            if let Some(process) = self.processes.get_mut(&at) {
                process.split = true;
                process.connected = Some(former);
            }
        }
        self.compare_redis(|world| world.redis.fail_over(now, seen, ahead, stays.is_some()));
    }

    fn heal(&mut self) {
        self.redis.heal();
        self.checker.healed(self.now);
        for process in self.processes.values_mut() {
            process.split = false;
        }
    }

    /// Changes Redis, and records the sessions of which it lost data.
    fn compare_redis(&mut self, change: impl FnOnce(&mut Self)) {
        let now = self.now;
        let sessions = self.redis.with_ended();
        let before: Vec<_> = sessions
            .iter()
            .map(|session| (self.redis.record(now, session), self.redis.log(session)))
            .collect();
        change(self);
        self.checker.changed_at(now);
        for (session, (record, log)) in sessions.iter().zip(before) {
            let after = (self.redis.record(now, session), self.redis.log(session));
            let Some(record) = record else { continue };
            if after.0.as_ref() == Some(&record) && after.1 == log {
                continue;
            }
            let owner = record.owner;
            // No node writes a released session again, even if its owner has no answer yet.
            let is_released = record.status == RecordStatus::Released;
            let alive = !is_released
                && self.processes.get(&owner.node).is_some_and(|process| {
                    process.sessions.contains_key(session)
                        || process.has_tombstone(session)
                        || process.claims.get(session).is_some_and(|c| c.new.token == owner.token)
                });
            self.note(|| {
                format!("redis forgot data of {} ({})", session.as_str(), brief(owner.node))
            });
            let process = self.processes.get(&owner.node);
            if let Some(owned) = process.and_then(|process| process.sessions.get(session)) {
                self.checker.note_heard_claim(owner.token);
                if owned.owner.token != owner.token {
                    self.checker.forgot_own_claim(session, owned.owner.token);
                }
            }
            self.checker.forgot(session, owner, alive, now);
        }
    }

    /// Delivers the frames that waited for the end of a partition, in their order. Frames of
    /// other partitions continue to wait.
    fn let_stalled_pass(&mut self) {
        for stalled in std::mem::take(&mut self.links.stalled) {
            self.happen(stalled);
        }
    }

    /// Ends all faults.
    fn calm(&mut self) {
        self.checker.calm(self.now);
        self.weather = Weather::default();
        self.mishaps.clear();
        self.redis.full = false;
        self.redis.away_until = 0;
        self.redis.moves_until = 0;
        self.heal();
        self.links.parted.clear();
        self.links.refusing.clear();
        self.let_stalled_pass();
        for slot in 0..self.slots.len() {
            self.wake_node(slot, None);
            self.after(100, Happening::Starts(slot));
        }
        for client in &mut self.clients {
            client.quiet = true;
        }
        for turn in 0..self.plan.nodes as u64 {
            self.at(self.plan.probe_at + turn * PROBE, Happening::Fault(Fault::Probe));
        }
    }

    /// SIGTERM: the balancer is notified, and the sessions are handed over.
    fn drain(&mut self, slot: usize) {
        let Some(at) = self.at_slot(slot) else { return };
        let Some(process) = self.processes.get_mut(&at) else { return };
        if std::mem::replace(&mut process.draining, true) {
            return;
        }
        process.out_of_rotation = true;
        process.draining_since = self.now;
        self.checker.drains(at, self.now);
        self.renew(at);
        self.hand_over_all(at, false);
        self.after(self.plan.drain, Happening::Rings(at, Timer::DrainNow));
    }
}
