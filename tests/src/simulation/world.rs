//! The world of one run: its time, its chance, what is on its way, and who is alive.
//!
//! One queue of happenings, in the order of their times; of two at one time, the one that
//! was planned first. Nothing else moves.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use protocol::{RequestId, SessionId};
use store::{Incarnation, PrimaryId};

use super::checker::Checker;
use super::client::{Client, ConnId, Does, Errand, Phase, Told, Wake};
use super::faults::Fault;
use super::net::{LinkEpoch, Links, Peer, Said};
use super::plan::{Plan, Trigger};
use super::process::Process;
use super::redis::{Answer, Command, Redis, brief};
use super::rng::Rng;
use super::rules::Rules;

/// Names one command that a process waits for.
pub(super) type Tag = u64;

/// What a process set a clock for.
#[derive(Clone, Debug)]
pub(super) enum Timer {
    /// Renew the lease, by the one timer of this number.
    Renew(u64),
    /// Look after a session.
    Session(SessionId),
    /// A connection's errand is to be tried again, if it is still at this attempt.
    Again(ConnId, u64),
    /// Try to reach a peer.
    Dial(Incarnation),
    /// The tenant's server is there.
    LinkUp(SessionId, u64),
    /// An instance of the tenant's server does the next thing.
    Step(SessionId, u64, RequestId),
    /// An instance says something.
    Chat(SessionId, u64),
    /// What is in flight has had its time: the drain goes on without it.
    DrainNow,
    /// The drained process ends.
    Leave,
    /// Ends of sessions are written anew.
    Bury,
}

/// What happens.
#[derive(Debug)]
pub(super) enum Happening {
    /// A command reaches the server that its connection leads to.
    Execute { from: Incarnation, tag: Tag, at: PrimaryId, command: Command, heard: bool },
    /// An answer of Redis's reaches a process.
    Answered { to: Incarnation, tag: Tag, answer: Answer },
    /// A process waits for an answer no longer.
    GaveUp { to: Incarnation, tag: Tag },
    /// A frame of the peer link reaches a process.
    Deliver { from: Incarnation, to: Incarnation, epoch: LinkEpoch, peer: Box<Peer> },
    /// A session speaks to a connection at its own node.
    Here { at: Incarnation, conn: ConnId, attachment: u64, said: Said },
    /// A process sees its link break.
    LinkLost { at: Incarnation, peer: Incarnation },
    /// What came of dialling a peer.
    Dialled { at: Incarnation, peer: Incarnation, how: Dialled },
    /// A process's clock rings.
    Rings(Incarnation, Timer),
    /// A client's connection reaches a process.
    Arrives { at: Incarnation, conn: ConnId, session: Option<SessionId>, errand: Errand },
    /// A process sees a client hang up.
    HungUp { at: Incarnation, conn: ConnId },
    /// A client is told something.
    Tells { conn: ConnId, told: Told },
    /// A client is woken.
    Wakes(usize, Wake),
    /// Something goes wrong.
    Fault(Fault),
    /// A process starts at an address.
    Starts(usize),
    /// A link of which nothing is heard is given up.
    Unheard { one: Incarnation, other: Incarnation, epoch: LinkEpoch },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialled {
    Connected,
    Refused,
    TimedOut,
}

impl Happening {
    /// The process that has to be awake for it.
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

/// A connection of a client's, as the wire knows it.
pub(super) struct Conn {
    pub(super) client: usize,
    pub(super) ingress: Incarnation,
    /// Neither side has left it.
    pub(super) whole: bool,
    /// When the newest thing on its way to the client arrives.
    tells_until: u64,
}

/// The world of one run.
pub(super) struct World {
    pub(super) now: u64,
    pub(super) rng: Rng,
    pub(super) rules: Rules,
    pub(super) plan: Plan,
    queue: BinaryHeap<Reverse<Planned>>,
    planned: u64,
    pub(super) redis: Redis,
    pub(super) processes: BTreeMap<Incarnation, Process>,
    /// Who is at each address.
    pub(super) slots: Vec<Option<Incarnation>>,
    pub(super) links: Links,
    pub(super) conns: BTreeMap<ConnId, Conn>,
    pub(super) clients: Vec<Client>,
    pub(super) checker: Checker,
    pub(super) weather: Weather,
    /// What becomes of the next commands that begin so.
    pub(super) mishaps: Vec<(&'static str, Mishap)>,
    next_tag: Tag,
    /// A digest of everything that happened.
    pub(super) digest: u64,
    /// What happened, where somebody wants to read it.
    pub(super) trace: Option<Vec<String>>,
}

/// How commands to Redis fare now, in percent, and in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    /// Lost on the way there.
    pub(super) lost: u64,
    /// Done, and the answer is lost.
    pub(super) unheard: u64,
    /// Done up to `late_by` later.
    pub(super) late: u64,
    pub(super) late_by: u64,
    /// Done twice.
    pub(super) twice: u64,
    /// The address from which Redis cannot be reached.
    pub(super) cut_off: Option<usize>,
}

/// What becomes of one command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mishap {
    /// It is never done.
    Lost,
    /// It is done, and the answer is lost.
    Unheard,
    /// It is done so much later; whoever sent it waits no longer.
    Late(u64),
    /// It is done, and done again so much later.
    Twice(u64),
}

impl World {
    pub(super) fn new(seed: u64, plan: Plan, rules: Rules, tracing: bool) -> Self {
        let mut rng = Rng::new(seed);
        let clients = (0..plan.clients)
            .map(|n| Client::new(n, !plan.script.is_empty(), rng.fork()))
            .collect();
        let mut redis = Redis::new();
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

    /// How a process is called in the trace: its address and which life it is.
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
                // The kernel keeps it; what came over a link that broke since, too.
                if let Happening::Deliver { from, to, epoch, .. } = &what {
                    let slot = process.slot;
                    let (from, to, epoch) = (*from, *to, *epoch);
                    if !self.links.carries(from, to, epoch) {
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
            Happening::Execute { from, tag, at, command, heard } => {
                self.execute(from, tag, at, command, heard);
            }
            Happening::Answered { to, tag, answer } => self.answered(to, tag, answer),
            Happening::GaveUp { to, tag } => self.gave_up(to, tag),
            Happening::Deliver { from, to, epoch, peer } => {
                self.deliver(from, to, epoch, *peer, false);
            }
            Happening::Here { at, conn, attachment, said } => {
                self.hear_said(at, conn, attachment, said);
            }
            Happening::LinkLost { at, peer } => self.link_lost(at, peer),
            Happening::Dialled { at, peer, how } => self.dialled(at, peer, how),
            Happening::Rings(at, timer) => self.rings(at, timer),
            Happening::Arrives { at, conn, session, errand } => {
                if self.conns.get(&conn).is_some_and(|conn| conn.whole) {
                    self.arrives(at, conn, session, errand);
                }
            }
            Happening::HungUp { at, conn } => self.hung_up(at, conn),
            Happening::Tells { conn, told } => self.tells(conn, told),
            Happening::Wakes(client, wake) => self.wakes(client, wake),
            Happening::Fault(fault) => self.strike(fault),
            Happening::Starts(slot) => self.start(slot),
            Happening::Unheard { one, other, epoch } => self.unheard(one, other, epoch),
        }
    }

    /// What came while the process was stopped.
    pub(super) fn work_off(&mut self, incarnation: Incarnation) {
        loop {
            let Some(process) = self.processes.get_mut(&incarnation) else { return };
            let Some(next) = process.backlog.pop_front() else { return };
            match next {
                Happening::Deliver { from, to, epoch, peer } => {
                    self.deliver(from, to, epoch, *peer, true);
                }
                other => self.happen(other),
            }
        }
    }

    // ---- Redis ----

    /// A process sends a command. What comes of it is told to `answered` or `gave_up`.
    pub(super) fn send(&mut self, from: Incarnation, command: Command) -> Tag {
        self.next_tag += 1;
        let tag = self.next_tag;
        let Some(process) = self.processes.get_mut(&from) else { return tag };
        let slot = process.slot;
        let current = self.redis.current();
        // A connection leads to the server that was there when it was made.
        let at = process.connected.filter(|_| process.split).unwrap_or(current);
        process.connected = Some(at);
        let told = process.told == Some(at) || process.told.is_none();
        if self.rules.told_primary && command.is_for_a_told_primary() && !told {
            let answer = command.unanswered("another primary");
            self.after(0, Happening::Answered { to: from, tag, answer });
            return tag;
        }
        let weather = self.weather;
        let cut_off = weather.cut_off == Some(slot);
        self.after(self.plan.redis_patience, Happening::GaveUp { to: from, tag });
        if cut_off || self.rng.chance(weather.lost) {
            return tag;
        }
        let brief = command.brief();
        let mishap = self.mishaps.iter().position(|(begins, _)| brief.starts_with(begins));
        let mishap = mishap.map(|index| self.mishaps.remove(index).1);
        let mut heard = !self.rng.chance(weather.unheard);
        let mut there = self.rng.between(0, 2);
        match mishap {
            Some(Mishap::Lost) => return tag,
            Some(Mishap::Unheard) => heard = false,
            Some(Mishap::Late(millis)) => there += millis,
            Some(Mishap::Twice(millis)) => {
                let command = command.clone();
                let again = self.now + millis;
                self.at(again, Happening::Execute { from, tag, at, command, heard: false });
            }
            None => {}
        }
        if self.rng.chance(weather.late) {
            there += self.rng.below(weather.late_by);
        }
        let there = (self.now + there).max(self.redis.away_until);
        if self.rng.chance(weather.twice) {
            let again = there + self.rng.below(weather.late_by.max(10));
            let command = command.clone();
            self.at(again, Happening::Execute { from, tag, at, command, heard: false });
        }
        self.at(there, Happening::Execute { from, tag, at, command, heard });
        tag
    }

    fn execute(
        &mut self,
        from: Incarnation,
        tag: Tag,
        at: PrimaryId,
        command: Command,
        heard: bool,
    ) {
        if self.now < self.redis.away_until {
            let until = self.redis.away_until;
            self.at(until, Happening::Execute { from, tag, at, command, heard });
            return;
        }
        let Some(answer) = self.redis.execute(self.now, at, command.clone()) else {
            self.resend(from, tag, command);
            return;
        };
        if at == self.redis.current() {
            self.checker.executed(self.now, &command, &answer);
        } else {
            let alive = self.processes.contains_key(&from);
            if alive {
                self.checker.executed_apart(self.now, from, &command, &answer);
            }
        }
        if !matches!(command, Command::Renew(..) | Command::Nodes | Command::Primaries) {
            let (name, of) = (self.name(from), command.session().map(|s| s.as_str().to_owned()));
            self.note(|| {
                let of = of.unwrap_or_default();
                format!("{name} redis {of} {}: {}", command.brief(), answer.brief())
            });
        }
        if let Some(trigger) = self.plan.triggers.first()
            && command.brief().starts_with(trigger.command)
        {
            let Trigger { after, fault, .. } = self.plan.triggers.remove(0);
            self.after(after, Happening::Fault(fault));
        }
        // A told primary also covers that nobody is missing: see the store's `read`.
        let answer = match (answer, self.processes.get(&from)) {
            (Answer::Read(Ok(None)), Some(process))
                if self.rules.told_primary && process.told.is_some_and(|told| told != at) =>
            {
                command.unanswered("another primary")
            }
            (answer, _) => answer,
        };
        if heard {
            let back = self.rng.between(0, 2);
            self.after(back, Happening::Answered { to: from, tag, answer });
        }
    }

    /// The connection that a command was sent on is gone: the store's client sends it again
    /// on a new one, if it may be done by a primary that its node was not told of.
    fn resend(&mut self, from: Incarnation, tag: Tag, command: Command) {
        let at = self.redis.current();
        let waits = self.processes.get(&from).is_some_and(|process| {
            process.waits_for(tag) && (!command.is_for_a_told_primary() || process.told == Some(at))
        });
        if waits {
            let after = self.rng.between(5, 60);
            self.after(after, Happening::Execute { from, tag, at, command, heard: true });
        }
    }

    // ---- Clients ----

    fn wakes(&mut self, number: usize, wake: Wake) {
        let mut does = Vec::new();
        if let Some(client) = self.clients.get_mut(number) {
            client.wake(self.now, wake, &mut does);
        }
        self.does(number, does);
    }

    pub(super) fn does(&mut self, number: usize, does: Vec<Does>) {
        for done in does {
            match done {
                Does::Connect(conn, errand, to) => self.connect(number, conn, errand, to),
                Does::Wake(after, wake) => self.after(after, Happening::Wakes(number, wake)),
                Does::HangUp(conn) => {
                    let Some(conn_) = self.conns.get_mut(&conn) else { continue };
                    conn_.whole = false;
                    let at = conn_.ingress;
                    self.note(|| format!("c{number} hangs up {conn:x}"));
                    let after = self.rng.between(0, 5);
                    self.after(after, Happening::HungUp { at, conn });
                }
                Does::Complain(text) => self.checker.breaks(format!("client {number}: {text}")),
                Does::Forgotten(text) => {
                    let Some(session) = self.clients[number].session.clone() else { continue };
                    self.checker.forgotten(self.now, &session, &format!("client {number}: {text}"));
                }
            }
        }
    }

    /// The balancer gives a connection to some node.
    fn connect(&mut self, number: usize, conn: ConnId, errand: Errand, to: Option<usize>) {
        let ready = |world: &Self, draining: bool| -> Vec<Incarnation> {
            let there = world.slots.iter().flatten().copied();
            there
                .filter(|at| {
                    let process = world.processes.get(at);
                    process.is_some_and(|process| !process.out_of_rotation || draining)
                })
                .collect()
        };
        let mut nodes = ready(self, false);
        if nodes.is_empty() {
            nodes = ready(self, true);
        }
        let probing = self.plan.probe_of(self.now, number);
        let to = to.or(self.plan.born_at.filter(|_| matches!(errand, Errand::Begin(_))));
        let told = to.and_then(|slot| self.slots.get(slot).copied().flatten());
        let picked = match probing {
            _ if told.is_some() => told,
            Some(turn) if !nodes.is_empty() => nodes.get(turn % nodes.len()).copied(),
            _ => self.rng.pick(&nodes),
        };
        let session = self.clients[number].session.clone();
        let Some(at) = picked else {
            self.conns.insert(
                conn,
                Conn { client: number, ingress: Incarnation(0), whole: true, tells_until: 0 },
            );
            self.after(20, Happening::Tells { conn, told: Told::Cut });
            return;
        };
        let session = session.filter(|_| !matches!(errand, Errand::Begin(_)));
        let name = self.name(at);
        let text = describe(&errand);
        self.note(|| format!("c{number} {conn:x} -> {name} {text}"));
        let whole = Conn { client: number, ingress: at, whole: true, tells_until: 0 };
        self.conns.insert(conn, whole);
        let after = self.rng.between(0, 5);
        self.after(after, Happening::Arrives { at, conn, session, errand });
    }

    /// An ingress writes to a client's connection.
    pub(super) fn tell(&mut self, conn: ConnId, told: Told) {
        let wait = self.rng.between(0, 5);
        let Some(wire) = self.conns.get_mut(&conn).filter(|wire| wire.whole) else { return };
        let at = (self.now + wait).max(wire.tells_until);
        wire.tells_until = at;
        self.at(at, Happening::Tells { conn, told });
    }

    fn tells(&mut self, conn: ConnId, told: Told) {
        let Some(wire) = self.conns.get_mut(&conn).filter(|wire| wire.whole) else { return };
        let (number, ingress) = (wire.client, wire.ingress);
        if matches!(told, Told::Answer(_) | Told::Welcome(..) | Told::End | Told::Cut) {
            wire.whole = false;
            self.conns.remove(&conn);
        }
        let apart = self.processes.get(&ingress).is_some_and(|process| process.split);
        self.note(|| format!("c{number} {conn:x} <- {}", describe_told(&told)));
        if apart && let Some(session) = self.clients[number].session.clone() {
            self.checker.told_apart(session, &told);
        }
        let mut does = Vec::new();
        if let Some(client) = self.clients.get_mut(number) {
            let before = client.phase;
            client.heard(self.now, conn, told, &mut does);
            if client.phase == Phase::Ended
                && before != Phase::Ended
                && let Some(session) = client.session.clone()
            {
                self.checker.ended(self.now, session);
            }
        }
        self.does(number, does);
    }

    /// Every connection to a process that is no more breaks.
    pub(super) fn cut_clients_of(&mut self, incarnation: Incarnation, after: u64) {
        let seen = self.now + after;
        let gone: Vec<(ConnId, u64)> = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.ingress == incarnation && conn.whole)
            // What was written before is still read.
            .map(|(conn, wire)| (*conn, wire.tells_until.max(seen)))
            .collect();
        for (conn, at) in gone {
            self.at(at, Happening::Tells { conn, told: Told::Cut });
        }
    }

    /// What must hold when all is calm again.
    fn check_end(&mut self) {
        for client in &self.clients {
            self.checker.check_client(client, &self.plan);
        }
    }
}

/// An errand in few words.
pub(super) fn describe(errand: &Errand) -> String {
    match errand {
        Errand::Begin(_) => "begin".to_owned(),
        Errand::Post(message) => {
            let raw = message.line();
            let text = String::from_utf8_lossy(&raw);
            let short: String = text.chars().skip(16).take(110).collect();
            format!("POST {short}")
        }
        Errand::Listen(None) => "GET".to_owned(),
        Errand::Listen(Some(after)) => format!("GET after {after}"),
        Errand::Delete => "DELETE".to_owned(),
    }
}

fn describe_told(told: &Told) -> String {
    match told {
        Told::Welcome(session) => format!("welcome to {}", session.as_str()),
        Told::Answer(conversation::Answer::Json(data)) => {
            format!("json {}", String::from_utf8_lossy(data))
        }
        Told::Answer(answer) => format!("{answer:?}"),
        Told::Frame(conversation::Frame::Message { id, data }) => {
            let id = id.map_or("-".to_owned(), |id| id.to_string());
            format!("{id} {}", String::from_utf8_lossy(data))
        }
        Told::Frame(conversation::Frame::Cursor { id, .. }) => format!("cursor {id}"),
        other => format!("{other:?}"),
    }
}
