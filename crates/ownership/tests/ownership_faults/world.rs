//! The owners, their store and their network.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use conversation::StateChange;
use futures_util::FutureExt;
use protocol::SessionId;
use store::{Memory, Store};

use ownership::machine::{
    Acquired, Claimable, LeaseSnapshot, Op, OpResult, Outcome, Ownership, Stabilisation,
};
use ownership::*;

use crate::steps::{Fate, Step};

const TTL: Duration = Duration::from_secs(40_000);
pub(crate) const NODES: usize = 3;

/// A command to the store.
#[derive(Clone)]
enum StoreCommand {
    Create(Record),
    Op(Op),
}

/// A node, and the session at it.
#[derive(Default)]
struct Node {
    lease_generation: Option<u64>,
    lease_generations: u64,
    owner: Option<Owned>,
}

struct Owned {
    ownership: Ownership,
    /// The entries that can be replayed, and the number of the first one.
    first: u64,
    ring: Vec<Bytes>,
    /// Every entry up to this number was acknowledged.
    held: u64,
    version: u64,
    released: bool,
    release_sent: bool,
}

pub(crate) struct World {
    now: Arc<AtomicU64>,
    store: Memory,
    /// The commands that changed the store, in order.
    history: Vec<StoreCommand>,
    late: Vec<StoreCommand>,
    nodes: [Node; NODES],
    failover_generation: u64,
    stabilisation: Stabilisation,
    claimable: Claimable,
    random: u64,
    /// The session has ended, and no failover has undone the end.
    ended: bool,
}

fn session() -> SessionId {
    SessionId::parse("a-session").unwrap()
}

fn memory(now: &Arc<AtomicU64>) -> Memory {
    let now = now.clone();
    Memory::with_clock(move || Duration::from_millis(now.load(Ordering::SeqCst)))
}

fn unavailable<T>() -> Result<T, Error> {
    Err(Error::Unavailable(std::io::ErrorKind::TimedOut.into()))
}

/// The error that a sender gets if no answer arrives.
fn nothing(op: &Op) -> OpResult {
    match op {
        Op::Append(_) | Op::Reassert(..) => OpResult::Appended(unavailable()),
        Op::Save { .. } | Op::ExtendState { .. } => OpResult::Saved(unavailable()),
        Op::Claim { .. } => OpResult::Claimed(unavailable()),
        Op::Release { .. } | Op::End { .. } => OpResult::Done(unavailable()),
    }
}

impl World {
    pub(crate) fn new() -> Self {
        let now = Arc::new(AtomicU64::new(1));
        let mut nodes: [Node; NODES] = Default::default();
        for node in &mut nodes {
            node.lease_generation = Some(0);
        }
        let mut world = Self {
            store: memory(&now),
            now,
            history: Vec::new(),
            late: Vec::new(),
            nodes,
            failover_generation: 1,
            stabilisation: Stabilisation::Done,
            claimable: Claimable { newest: 1, former: 0 },
            random: 100,
            ended: false,
        };
        let record = Record {
            owner: Owner { token: Token::first(7), node: Incarnation(0) },
            former: Vec::new(),
            tenant: "acme".into(),
            principal: Digest([0; 32]),
            revision: "any revision".into(),
            initialize: [].into(),
            state: State::default(),
            status: RecordStatus::Owned,
        };
        world.send_to_store(StoreCommand::Create(record.clone()));
        world.install(0, record, Vec::new(), 0);
        world
    }

    /// Sends the store a command.
    fn send_to_store(&mut self, command: StoreCommand) -> OpResult {
        let store = &self.store;
        let id = session();
        let result = match command.clone() {
            StoreCommand::Create(record) => {
                OpResult::Done(store.create(&id, record, TTL).now_or_never().unwrap())
            }
            StoreCommand::Op(Op::Append(batch)) => {
                OpResult::Appended(store.append(batch).now_or_never().unwrap())
            }
            StoreCommand::Op(Op::Reassert(record, ring)) => {
                OpResult::Appended(store.reassert(record, ring).now_or_never().unwrap())
            }
            StoreCommand::Op(Op::Save { token, state }) => {
                OpResult::Saved(store.save(&id, token, state).now_or_never().unwrap())
            }
            StoreCommand::Op(Op::ExtendState { token, extension }) => {
                let extended = store.extend_state(&id, token, extension);
                OpResult::Saved(extended.now_or_never().unwrap())
            }
            StoreCommand::Op(Op::Claim { expected, new, at }) => {
                OpResult::Claimed(store.claim(&id, expected, new, at, TTL).now_or_never().unwrap())
            }
            StoreCommand::Op(Op::Release { token, at }) => {
                OpResult::Done(store.release(&id, token, at, TTL).now_or_never().unwrap())
            }
            StoreCommand::Op(Op::End { token }) => {
                OpResult::Done(store.end(&id, token, TTL).now_or_never().unwrap())
            }
        };
        self.history.push(command);
        result
    }

    fn send(&mut self, op: Op, fate: Fate) -> OpResult {
        let gone = nothing(&op);
        match fate {
            Fate::Done => self.send_to_store(StoreCommand::Op(op)),
            Fate::Lost => gone,
            Fate::Unanswered => {
                self.send_to_store(StoreCommand::Op(op));
                gone
            }
            Fate::Late => {
                self.late.push(StoreCommand::Op(op));
                gone
            }
            Fate::Twice => {
                self.late.push(StoreCommand::Op(op.clone()));
                self.send_to_store(StoreCommand::Op(op))
            }
        }
    }

    fn install(
        &mut self,
        node: usize,
        record: Record,
        log: Vec<(u64, Bytes)>,
        lease_generation: u64,
    ) {
        let now = self.now.load(Ordering::SeqCst);
        let first = log.first().map_or(1, |(number, _)| *number);
        let ring: Vec<_> = log.into_iter().map(|(_, entry)| entry).collect();
        let held = first + ring.len() as u64 - 1;
        let version = record.state.version;
        let ownership = Ownership::new(
            session(),
            record,
            Acquired { lease_generation, failover_generation: self.failover_generation },
            TTL,
            now,
        );
        let owned =
            Owned { ownership, first, ring, held, version, released: false, release_sent: false };
        self.nodes[node].owner = Some(owned);
    }

    fn lease_snapshot(&self, node: usize) -> LeaseSnapshot {
        let now = self.now.load(Ordering::SeqCst);
        LeaseSnapshot {
            now,
            lease_generation: self.nodes[node].lease_generation,
            failover_generation: self.failover_generation,
            stabilisation: self.stabilisation,
            claimable: self.claimable,
            primary: None,
        }
    }

    fn acts(&self, node: usize) -> bool {
        let snapshot = self.lease_snapshot(node);
        let owned = self.nodes[node].owner.as_ref();
        owned.is_some_and(|owned| owned.ownership.may_act(snapshot.lease_generation, || snapshot))
    }

    fn record(&self) -> Option<Record> {
        self.store.read(&session()).now_or_never().unwrap().unwrap()
    }

    fn log(&self) -> Vec<(u64, Bytes)> {
        self.store.read_log(&session()).now_or_never().unwrap().unwrap()
    }

    pub(crate) fn take(&mut self, step: Step) {
        match step {
            Step::Say(node) if self.acts(node) => {
                let owned = self.nodes[node].owner.as_mut().unwrap();
                let number = owned.first + owned.ring.len() as u64;
                let entry = format!("{number} of {}", owned.ownership.token());
                let entry = Bytes::from(entry);
                owned.ring.push(entry.clone());
                owned.ownership.push_entries(number, owned.first, vec![entry]);
            }
            Step::Trim(node) if self.acts(node) => {
                let owned = self.nodes[node].owner.as_mut().unwrap();
                let floor = (owned.held + 1).max(owned.first);
                owned.ring.drain(..(floor - owned.first) as usize);
                owned.first = floor;
                owned.ownership.push_entries(floor + owned.ring.len() as u64, floor, Vec::new());
            }
            Step::Save(node) if self.acts(node) => {
                let owned = self.nodes[node].owner.as_mut().unwrap();
                owned.version += 1;
                owned.ownership.save_state(owned.version, change_to(owned.version));
            }
            Step::Act(node, fate) => self.act(node, fate),
            Step::Arrive(which) if which < self.late.len() => {
                let command = self.late.remove(which);
                self.send_to_store(command);
            }
            Step::Lapse(node) => self.nodes[node].lease_generation = None,
            Step::Renew(node) => {
                let node = &mut self.nodes[node];
                if node.lease_generation.is_none() {
                    node.lease_generations += 1;
                    node.lease_generation = Some(node.lease_generations);
                }
            }
            Step::Take(node, fate) => self.claim(node, fate),
            Step::Failover(forgotten, order) => self.fail_over(forgotten, order),
            Step::Release(node) if self.acts(node) => {
                let owned = self.nodes[node].owner.as_mut().unwrap();
                owned.ownership.release_session();
                owned.released = true;
            }
            Step::End(node) if self.acts(node) => {
                self.nodes[node].owner.as_mut().unwrap().ownership.end_session();
            }
            Step::Evict if self.nodes.iter().filter(|node| node.owner.is_some()).count() == 1 => {
                self.evict();
            }
            Step::Pass(millis) => {
                self.now.fetch_add(millis, Ordering::SeqCst);
            }
            _ => {}
        }
    }

    /// The store loses the session, after every delayed command has arrived.
    fn evict(&mut self) {
        // An owner that was suspended since before a failover cannot tell an expired session from
        // one that the failover lost.
        let slept = |node: &Node| {
            node.owner.as_ref().is_some_and(|owned| {
                owned.ownership.failover_generation() < self.failover_generation
            })
        };
        if self.ended && self.nodes.iter().any(slept) {
            return;
        }
        self.store = memory(&self.now);
        self.history.clear();
        self.late.clear();
    }

    /// The owner at a node performs its next operation.
    fn act(&mut self, node: usize, fate: Fate) {
        let snapshot = self.lease_snapshot(node);
        self.random += 1;
        let random = self.random;
        let Some(owned) = &mut self.nodes[node].owner else { return };
        let ring = || (owned.first, owned.ring.clone());
        let Some(op) = owned.ownership.next(&snapshot, ring, random) else { return };
        let is_release = matches!(op, Op::Release { .. });
        let is_repeated = is_release && std::mem::replace(&mut owned.release_sent, true);
        let result = self.send(op, fate);
        let (log, record) = (self.log(), self.record());
        let Some(owned) = &mut self.nodes[node].owner else { return };
        let mut over = false;
        for outcome in owned.ownership.completed(&snapshot, result) {
            match outcome {
                Outcome::Through(through) => {
                    assert!(
                        through >= owned.held,
                        "{through} is acknowledged after {}",
                        owned.held
                    );
                    owned.held = through;
                    let held = (owned.first..=through).zip(&owned.ring);
                    for (number, entry) in held {
                        assert!(log.contains(&(number, entry.clone())), "{number} is not logged");
                    }
                }
                Outcome::Saved(version) => {
                    assert_eq!(record.as_ref().unwrap().state.version, version);
                }
                Outcome::Reclaimed(token) => {
                    assert_eq!(record.as_ref().unwrap().owner.token, token);
                }
                Outcome::Deposed => {
                    let lapsed = self.nodes[node].lease_generation
                        != Some(owned.ownership.lease_generation());
                    let is_whole =
                        owned.ownership.failover_generation() == self.failover_generation;
                    let may_be_over = (lapsed || is_repeated) && is_whole;
                    assert!(record.is_some() || may_be_over, "what the store lost is re-asserted");
                    let is_own = record.as_ref().is_some_and(|record| {
                        record.owner.node.0 == node as u64 && record.status == RecordStatus::Owned
                    });
                    assert!(!is_own, "an owner was deposed by its own record");
                    over = true;
                }
                Outcome::Released => {
                    let last = owned.first + owned.ring.len() as u64 - 1;
                    assert!(owned.held >= last, "released with {} of {last} logged", owned.held);
                    let token = owned.ownership.token();
                    if record.as_ref().is_some_and(|record| record.owner.token == token) {
                        let mut ring = (owned.first..).zip(&owned.ring);
                        let lost = ring.find(|(n, entry)| !log.contains(&(*n, (*entry).clone())));
                        assert_eq!(lost, None, "released, and an entry is not in the log");
                    }
                    over = true;
                }
                Outcome::Ended => {
                    let status = record.as_ref().map(|record| record.status);
                    assert_eq!(status, Some(RecordStatus::Ended));
                    over = true;
                }
            }
        }
        if over {
            self.nodes[node].owner = None;
        }
    }

    /// As `Cluster::claim` does, for a node that found the session ownerless, or its own.
    fn claim(&mut self, node: usize, fate: Fate) {
        let Some(lease_generation) = self.nodes[node].lease_generation else { return };
        let Some(record) = self.record() else { return };
        let owner = record.owner.node.0 as usize;
        let is_free = record.status == RecordStatus::Released
            || self.nodes[owner].lease_generation.is_none()
            || owner == node;
        if self.nodes[node].owner.is_some() || !is_free {
            return;
        }
        self.random += 1;
        let token = record.owner.token;
        let expected = match record.status {
            RecordStatus::Released => Expected::Released,
            _ => Expected::Token(token),
        };
        let new = Owner { token: token.next(self.random), node: Incarnation(node as u64) };
        if let OpResult::Claimed(Ok(claimed)) =
            self.send(Op::Claim { expected, new, at: None }, fate)
        {
            self.install(node, claimed.record, claimed.log, lease_generation);
        }
    }

    fn fail_over(&mut self, forgotten: usize, order: u64) {
        let acted: Vec<_> = (0..NODES).filter(|node| self.acts(*node)).collect();
        self.store = memory(&self.now);
        // Delayed commands were sent to the former primary.
        self.late.clear();
        let kept = self.history.len().saturating_sub(forgotten);
        for command in self.history.drain(..).take(kept).collect::<Vec<_>>() {
            self.send_to_store(command);
        }
        self.failover_generation += 1;
        self.stabilisation = Stabilisation::First;
        self.claimable.former = self.claimable.newest;
        self.ended = false;
        self.check();
        // Owners have time to re-assert their sessions, in any order; their first commands may be
        // lost.
        for turn in 0..6 {
            self.now.fetch_add(100, Ordering::SeqCst);
            let drawn = order >> (8 * turn);
            let fate = if drawn & 0xc0 == 0xc0 { Fate::Lost } else { Fate::Done };
            self.act((drawn & 0x3f) as usize % NODES, fate);
            self.check();
        }
        let is_short = order >> 62 == 3;
        if !is_short {
            self.stabilise();
        }
        // A failover loses no session that had not ended.
        for node in acted {
            let owned = self.nodes[node].owner.as_ref();
            let gone = owned.is_none()
                && self.record().is_none_or(|record| record.status == RecordStatus::Owned);
            assert!(!gone, "{node} lost the session with a failover");
        }
        if is_short {
            // The next failover occurs before the first half is over.
            self.fail_over(forgotten, order << 2);
        }
    }

    /// No fault occurs until stabilisation is done.
    fn stabilise(&mut self) {
        for stabilisation in [Stabilisation::First, Stabilisation::First, Stabilisation::Second] {
            self.stabilisation = stabilisation;
            if stabilisation == Stabilisation::Second {
                self.claimable.newest = self.failover_generation;
            }
            for _ in 0..4 {
                self.now.fetch_add(2_100, Ordering::SeqCst);
                for node in 0..NODES {
                    self.act(node, Fate::Done);
                    self.check();
                }
            }
        }
        self.stabilisation = Stabilisation::Done;
    }

    pub(crate) fn check(&mut self) {
        let record = self.record();
        if let Some(state) = record.as_ref().map(|record| &record.state) {
            assert!(is_state_of(&state.bytes.to_bytes(), state.version), "{state:?}");
        }
        let status = record.map(|record| record.status);
        self.ended |= status == Some(RecordStatus::Ended);
        let is_back = self.ended && !matches!(status, None | Some(RecordStatus::Ended));
        assert!(!is_back, "a session that had ended exists again");
        let acting: Vec<_> = (0..NODES).filter(|node| self.acts(*node)).collect();
        assert!(acting.len() <= 1, "{acting:?} act at the same time");
        let log = self.log();
        for pair in log.windows(2) {
            assert_eq!(pair[0].0 + 1, pair[1].0, "an entry is missing");
        }
        for (number, entry) in &log {
            let text = String::from_utf8(entry.to_vec()).unwrap();
            assert!(text.starts_with(&format!("{number} of ")), "{text} is number {number}");
        }
    }

    /// No fault occurs from now on.
    pub(crate) fn calm_down(&mut self) {
        for command in std::mem::take(&mut self.late) {
            self.send_to_store(command);
            self.check();
        }
        if self.ended {
            self.evict();
        }
        for node in 0..NODES {
            self.take(Step::Renew(node));
        }
        for _ in 0..40 {
            self.now.fetch_add(2_100, Ordering::SeqCst);
            for node in 0..NODES {
                self.act(node, Fate::Done);
                self.check();
            }
        }
        // No entry waits for a refresh to be acknowledged.
        for owned in self.nodes.iter().filter_map(|node| node.owner.as_ref()) {
            let last = owned.first + owned.ring.len() as u64 - 1;
            let waits = self.record().is_some_and(|record| {
                record.owner.token == owned.ownership.token() && owned.held < last
            });
            assert!(!waits, "{} of {last} are acknowledged", owned.held);
        }
        // An owner without entries learns of another owner at its next refresh.
        self.now.fetch_add(u64::try_from(TTL.as_millis()).unwrap() / 3, Ordering::SeqCst);
        for _ in 0..8 {
            self.now.fetch_add(2_100, Ordering::SeqCst);
            for node in 0..NODES {
                self.act(node, Fate::Done);
                self.check();
            }
        }
        let owners = self.nodes.iter().filter_map(|node| node.owner.as_ref());
        let owners: Vec<_> = owners.collect();
        assert!(owners.len() <= 1, "{} owners in the end", owners.len());
        let Some(owned) = owners.first() else { return };
        assert!(!owned.released, "the released session still has an owner");
        let record = self.record().expect("a record of the session");
        assert_eq!(record.owner.token, owned.ownership.token());
        assert_eq!(record.state.version, owned.version);
        let ring: Vec<_> = (owned.first..).zip(owned.ring.iter().cloned()).collect();
        assert_eq!(self.log(), ring);
    }
}

/// The change of the state to this version.
fn change_to(version: u64) -> StateChange {
    let bytes = version.to_be_bytes().into();
    if version % 4 == 1 { StateChange::Whole(bytes) } else { StateChange::Difference(bytes) }
}

/// Are these the bytes of a state with this version: a whole one, and each difference after it? A
/// tombstone has none.
fn is_state_of(bytes: &[u8], version: u64) -> bool {
    let parts = bytes.chunks(8).map(|part| u64::from_be_bytes(part.try_into().unwrap()));
    let whole = version.saturating_sub((version.wrapping_sub(1)) % 4);
    bytes.is_empty() || parts.eq(whole..=version)
}
