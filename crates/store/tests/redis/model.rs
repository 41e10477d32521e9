//! Compares the store in Redis with the store in memory as its model: both give the same results
//! for any sequence of operations.
//!
//! `ROUNDHOUSE_SEED` repeats the sequence of one failure.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use store::{
    Batch, Digest, Expected, Incarnation, Memory, Owner, Record, RecordStatus, State, StateBytes,
    StateExtension, Store, Token,
};

use crate::fixture::{LONG, Session, open_with};
use crate::server::shared_url;

const SEQUENCES: u64 = 300;
const STEPS: usize = 40;

#[tokio::test]
async fn redis_gives_the_same_results_as_memory() {
    let settings =
        store::redis::Settings { timeout_ms: 10_000, ..store::redis::Settings::at(shared_url()) };
    let redis = open_with(settings);
    let fixed = std::env::var("ROUNDHOUSE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = fixed.map_or(0..SEQUENCES, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let (memory, session) = (Memory::default(), Session::new());
        let tenant = format!("tenant-{:x}", crate::fixture::random());
        let mut told = Vec::new();
        for _ in 0..STEPS {
            let step = Step::thrown(&mut dice, &session, &tenant);
            told.push(format!("{step:?}"));
            let expected = step.run(&memory, &session).await;
            let said = step.run(&redis, &session).await;
            assert_eq!(expected, said, "seed {seed}, after {told:#?}");
        }
    }
}

#[derive(Debug)]
enum Step {
    Create(Record),
    Claim(Expected, Owner),
    Append(Batch),
    Many(Vec<Batch>),
    Reassert(Record, Batch),
    Save(Token, State),
    ExtendState(Token, StateExtension),
    Release(Token),
    End(Token),
}

impl Step {
    fn thrown(dice: &mut Dice, session: &Session, tenant: &str) -> Self {
        match dice.below(20) {
            0..3 => Self::Create(Record { status: RecordStatus::Owned, ..dice.record(tenant) }),
            3..6 => {
                let expected = match dice.below(3) {
                    0 => Expected::Released,
                    _ => Expected::Token(dice.owner().token),
                };
                Self::Claim(expected, dice.owner())
            }
            6..11 => Self::Append(dice.batch(session)),
            11 => Self::Many((0..4).map(|_| dice.batch(session)).collect()),
            12..16 => Self::Reassert(dice.record(tenant), dice.batch(session)),
            16..18 => {
                // Some of the versions are equal as numbers in Lua.
                let version = dice.below(3) + [0, 1 << 53, u64::MAX - 3][dice.below(3) as usize];
                let bytes: StateBytes = dice.bytes()[..].into();
                match dice.below(3) {
                    0 => Self::Save(dice.owner().token, State { version, bytes }),
                    1 => {
                        let bytes = StateBytes::read(bytes.to_bytes(), true);
                        Self::Save(dice.owner().token, State { version, bytes })
                    }
                    _ => {
                        let (after, bytes) = (version, bytes.to_bytes());
                        let version = after.wrapping_add(1 + dice.below(2));
                        let extension = StateExtension { after, version, bytes };
                        Self::ExtendState(dice.owner().token, extension)
                    }
                }
            }
            18 => Self::Release(dice.owner().token),
            _ if dice.below(4) == 0 => Self::End(dice.owner().token),
            _ => Self::Release(dice.owner().token),
        }
    }

    /// The result of the step, and the record and log after it.
    async fn run(&self, store: &dyn Store, session: &Session) -> String {
        let id = &session.id;
        let said = match self {
            Self::Create(record) => {
                format!("{:?}", store.create(id, record.clone(), LONG).await)
            }
            Self::Claim(expected, new) => {
                format!("{:?}", store.claim(id, *expected, *new, None, LONG).await)
            }
            Self::Append(batch) => format!("{:?}", store.append(batch.clone()).await),
            Self::Many(batches) => {
                format!("{:?}", join_all(batches.iter().map(|b| store.append(b.clone()))).await)
            }
            Self::Reassert(record, ring) => {
                format!("{:?}", store.reassert(record.clone(), ring.clone()).await)
            }
            Self::Save(token, state) => {
                format!("{:?}", store.save(id, *token, state.clone()).await)
            }
            Self::ExtendState(token, extension) => {
                format!("{:?}", store.extend_state(id, *token, extension.clone()).await)
            }
            Self::Release(token) => format!("{:?}", store.release(id, *token, None, LONG).await),
            Self::End(token) => format!("{:?}", store.end(id, *token, LONG).await),
        };
        let record = store.read(id).await.expect("read");
        let log = store.read_log(id).await.expect("read");
        format!("{said} {record:?} {log:?}")
    }
}

/// A pseudo-random generator whose sequence can be repeated.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// One of a few owners, so that they conflict; some have the same counter.
    fn owner(&mut self) -> Owner {
        let high = [0, 1 << 53, 1 << 63][self.below(3) as usize / 2 * self.below(3) as usize];
        let token = Token { counter: 1 + high + self.below(3), random: self.below(2) };
        Owner { token, node: Incarnation(token.counter ^ token.random) }
    }

    fn record(&mut self, tenant: &str) -> Record {
        let former = (0..self.below(3) * self.below(9)).map(|_| self.owner().token).collect();
        Record {
            owner: self.owner(),
            former,
            tenant: tenant.into(),
            principal: Digest([self.below(256) as u8; 32]),
            revision: "2025-11-25".into(),
            initialize: self.bytes()[..].into(),
            state: State { version: self.below(3), bytes: self.bytes()[..].into() },
            status: if self.below(12) == 0 { RecordStatus::Ended } else { RecordStatus::Owned },
        }
    }

    fn batch(&mut self, session: &Session) -> Batch {
        let first = 1 + self.below(9);
        let floor = (first + self.below(3)).saturating_sub(self.below(7)).max(1);
        let entries = (0..self.below(5)).map(|_| self.bytes()).collect();
        let (token, ttl) = (self.owner().token, LONG + Duration::from_secs(self.below(9)));
        let (session, prolongs) = (session.id.clone(), self.below(2) == 0);
        Batch { session, token, first, floor, entries, ttl, prolongs }
    }

    fn bytes(&mut self) -> Bytes {
        (0..self.below(6)).map(|_| self.below(256) as u8).collect()
    }
}
