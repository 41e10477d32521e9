//! Two nodes claim one session from each other on a network that loses answers, repeats requests
//! and delivers them late. The log stays free of duplicates, holes and disorder.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;

use super::Memory;
use crate::{
    Appended, Batch, Digest, Error, Expected, Incarnation, Owner, Record, RecordStatus, State,
    Store, Token,
};
use bytes::Bytes;
use protocol::SessionId;

const TTL: Duration = Duration::from_secs(60);

/// One step of a sequence. The nodes are 0 and 1.
#[derive(Clone, Debug)]
enum Step {
    /// A node numbers this many new entries.
    Append(usize, u64),
    /// A node raises its floor by this much, at most to its next number.
    Raise(usize, u64),
    /// A node sends all unacknowledged entries, or an empty batch.
    Send(usize),
    /// A node sends only its newest entries; the earlier ones may be in flight.
    SendNewest(usize, u64),
    /// A node sends its whole ring, as after a failover.
    Reassert(usize),
    /// A node releases the session.
    Release(usize),
    /// A node reads the session's record and sends a claim against the owner in it.
    Claim(usize),
    /// A request that was sent is executed, perhaps again. Its answer may be lost.
    Execute(Index, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..2_usize;
    prop_oneof![
        3 => (node.clone(), 1..4_u64).prop_map(|(node, count)| Step::Append(node, count)),
        2 => (node.clone(), 1..6_u64).prop_map(|(node, by)| Step::Raise(node, by)),
        3 => node.clone().prop_map(Step::Send),
        1 => (node.clone(), 1..3_u64).prop_map(|(node, count)| Step::SendNewest(node, count)),
        1 => node.clone().prop_map(Step::Reassert),
        1 => node.clone().prop_map(Step::Release),
        1 => node.prop_map(Step::Claim),
        8 => (any::<Index>(), any::<bool>()).prop_map(|(which, heard)| Step::Execute(which, heard)),
    ]
}

/// A request that a node has sent.
#[derive(Clone, Debug)]
enum Sent {
    Append(Batch),
    Reassert(Record, Batch),
    Release(Token),
    Claim(Expected, Owner),
}

/// The state of a node that believes that it owns the session.
#[derive(Clone, Debug)]
struct OwnedSession {
    record: Record,
    /// The owner that wrote each entry from the floor on.
    ring: Vec<Bytes>,
    floor: u64,
    /// The entries up to this number are acknowledged, and may have been sent to clients.
    acknowledged: u64,
}

impl OwnedSession {
    fn next(&self) -> u64 {
        self.floor + self.ring.len() as u64
    }

    fn batch(&self, session: &SessionId, first: u64) -> Batch {
        let entries = self.ring[(first - self.floor) as usize..].to_vec();
        let token = self.record.owner.token;
        let (session, floor) = (session.clone(), self.floor);
        Batch { session, token, first, floor, entries, ttl: TTL, prolongs: true }
    }

    fn shown(&self) -> RangeInclusive<u64> {
        self.floor..=self.acknowledged
    }
}

struct Fight {
    store: Memory,
    session: SessionId,
    nodes: [Option<OwnedSession>; 2],
    sent: Vec<(usize, Sent)>,
    /// Claims without an answer.
    asked: HashSet<Token>,
    /// The counter of every token, by its random part.
    tokens: HashMap<u64, u64>,
}

impl Fight {
    async fn begin() -> Self {
        let session = SessionId::parse("fought-over").expect("a valid id");
        let owner = Owner { token: Token::first(1), node: Incarnation(0) };
        let record = Record {
            owner,
            former: Vec::new(),
            tenant: "demo".into(),
            principal: Digest([0; 32]),
            revision: "2025-11-25".into(),
            initialize: [].into(),
            state: State::default(),
            status: RecordStatus::Owned,
        };
        let store = Memory::default();
        store.create(&session, record.clone(), TTL).await.expect("made");
        let owned = OwnedSession { record, ring: Vec::new(), floor: 1, acknowledged: 0 };
        let tokens = HashMap::from([(1, 1)]);
        Self {
            store,
            session,
            nodes: [Some(owned), None],
            sent: Vec::new(),
            asked: HashSet::new(),
            tokens,
        }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Append(node, count) => self.append(node, count),
            Step::Raise(node, by) => self.raise(node, by),
            Step::Send(node) => {
                let Some(owned) = &self.nodes[node] else { return };
                let first = owned.floor.max(owned.acknowledged + 1);
                self.sent.push((node, Sent::Append(owned.batch(&self.session, first))));
            }
            Step::SendNewest(node, count) => {
                let Some(owned) = &self.nodes[node] else { return };
                let first = owned.next().saturating_sub(count).max(owned.floor);
                self.sent.push((node, Sent::Append(owned.batch(&self.session, first))));
            }
            Step::Reassert(node) => {
                let Some(owned) = &self.nodes[node] else { return };
                let ring = owned.batch(&self.session, owned.floor);
                self.sent.push((node, Sent::Reassert(owned.record.clone(), ring)));
            }
            Step::Release(node) => {
                // A release is the last operation under a token.
                let Some(owned) = self.nodes[node].take() else { return };
                self.sent.push((node, Sent::Release(owned.record.owner.token)));
            }
            Step::Claim(node) => self.claim(node).await,
            Step::Execute(which, heard) => {
                if !self.sent.is_empty() {
                    let (node, sent) = self.sent[which.index(self.sent.len())].clone();
                    self.execute(node, sent, heard).await;
                }
            }
        }
    }

    fn append(&mut self, node: usize, count: u64) {
        let Some(owned) = &mut self.nodes[node] else { return };
        for _ in 0..count {
            let payload = format!("{} {}", owned.record.owner.token.random, owned.next());
            owned.ring.push(payload.into());
        }
    }

    fn raise(&mut self, node: usize, by: u64) {
        let Some(owned) = &mut self.nodes[node] else { return };
        let by = by.min(owned.ring.len() as u64);
        owned.ring.drain(..by as usize);
        owned.floor += by;
    }

    async fn claim(&mut self, node: usize) {
        let Some(record) = self.store.read(&self.session).await.expect("read") else { return };
        let random = self.tokens.len() as u64 + 1;
        let token = record.owner.token.next(random);
        self.tokens.insert(random, token.counter);
        self.asked.insert(token);
        let expected = match record.status {
            RecordStatus::Released => Expected::Released,
            _ => Expected::Token(record.owner.token),
        };
        let new = Owner { token, node: Incarnation(node as u64) };
        self.sent.push((node, Sent::Claim(expected, new)));
    }

    async fn execute(&mut self, node: usize, sent: Sent, heard: bool) {
        match sent {
            Sent::Append(batch) => {
                let token = batch.token;
                let answer = self.store.append(batch).await;
                self.hear(node, token, heard, answer);
            }
            Sent::Reassert(record, ring) => {
                let token = record.owner.token;
                let answer = self.store.reassert(record, ring).await;
                self.hear(node, token, heard, answer);
            }
            Sent::Release(token) => {
                let _ = self.store.release(&self.session, token, None, TTL).await;
            }
            Sent::Claim(expected, new) => {
                let answer = self.store.claim(&self.session, expected, new, None, TTL).await;
                // An answer is processed once: no node starts twice under one token.
                if !heard || !self.asked.remove(&new.token) {
                    return;
                }
                let Ok(claimed) = answer else { return };
                let floor = claimed.log.first().map_or(1, |(number, _)| *number);
                let ring: Vec<_> = claimed.log.into_iter().map(|(_, payload)| payload).collect();
                let acknowledged = floor + ring.len() as u64 - 1;
                self.nodes[node] =
                    Some(OwnedSession { record: claimed.record, ring, floor, acknowledged });
            }
        }
    }

    /// A node receives the answer to a batch, which it may have sent under an earlier token.
    fn hear(&mut self, node: usize, token: Token, heard: bool, answer: Result<Appended, Error>) {
        let Some(owned) = &mut self.nodes[node] else { return };
        if !heard || owned.record.owner.token != token {
            return;
        }
        match answer {
            Ok(Appended { through }) => {
                owned.acknowledged = owned.acknowledged.max(through.unwrap_or(0));
            }
            // The node sends all unacknowledged entries again.
            Err(Error::Hole { .. }) => {}
            Err(_) => self.nodes[node] = None,
        }
    }

    async fn check(&self) {
        let record = self.store.read(&self.session).await.expect("read").expect("there");
        let log = self.store.read_log(&self.session).await.expect("read");
        let mut counter_before = 0;
        for (at, (number, payload)) in log.iter().enumerate() {
            assert_eq!(*number, log[0].0 + at as u64, "duplicate, hole or disorder: {log:?}");
            let (owner_tag, named) = parse(payload);
            assert_eq!(named, *number, "an entry under another's number: {log:?}");
            let counter = self.tokens[&owner_tag];
            assert!(counter >= counter_before, "a deposed owner wrote: {log:?}");
            counter_before = counter;
        }
        let owners = self.nodes.iter().flatten().filter(|t| t.record.owner == record.owner);
        for owned in owners {
            for number in owned.shown() {
                let mine = &owned.ring[(number - owned.floor) as usize];
                let held = log.iter().find(|(n, _)| *n == number).map(|(_, payload)| payload);
                assert_eq!(held, Some(mine), "{number} was shown and is lost: {log:?}");
            }
        }
    }
}

/// The owner that wrote an entry, and the number that it gave the entry.
fn parse(payload: &Bytes) -> (u64, u64) {
    let text = std::str::from_utf8(payload).expect("text");
    let (owner_tag, number) = text.split_once(' ').expect("two words");
    (owner_tag.parse().expect("a number"), number.parse().expect("a number"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn no_interleaving_gives_a_log_with_duplicate_hole_or_disorder(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut fight = Fight::begin().await;
            for step in steps {
                fight.step(step).await;
                fight.check().await;
            }
        });
    }
}
