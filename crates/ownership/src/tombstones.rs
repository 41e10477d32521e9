//! The tombstones of sessions that ended at this node.
//!
//! A store that fails over may lose its last writes, also the end of a session. The session,
//! which may have been stolen, would then exist again. The node that ended a session therefore
//! keeps a tombstone for as long as the store would have, and writes it again after each
//! failover. A tombstone never ends a session that another node owns meanwhile: the store
//! compares tokens. [`Tombstones`] decides what to write; it calls no store and reads no clock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use protocol::SessionId;

use crate::{Batch, Error, Record, State, StateBytes};

/// Most tombstones that are kept. At the limit the oldest is dropped early: a failover loses the
/// newest writes first. Each takes some hundred bytes.
pub const KEPT_MAX: usize = 16_384;

/// Most tombstones that [`Tombstones::due_tombstones`] returns at once.
pub const DUE_MAX: usize = 64;

/// The wait before a failed write is retried, in milliseconds.
pub const RETRY_MS: u64 = 200;

/// The shortest time to live of a written tombstone, in milliseconds.
const TTL_MIN_MS: u64 = 1_000;

/// The tombstone of one session.
#[derive(Clone, Debug)]
pub struct Tombstone {
    session: SessionId,
    record: Record,
    /// The generation of the store in which it was written; `None`: not written yet, or not
    /// known.
    generation: Option<u64>,
    /// When it expires, in milliseconds of the node's clock.
    until: u64,
}

impl Tombstone {
    /// The tombstone of the session of this record, to be kept until `until_ms`.
    pub fn new(session: SessionId, record: Record, generation: Option<u64>, until_ms: u64) -> Self {
        // The other fields are not written.
        let state = State { version: record.state.version, bytes: StateBytes::default() };
        let record = Record { initialize: Arc::default(), state, ..record };
        Self { session, record, generation, until: until_ms }
    }

    /// The session that has ended.
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// Must it be written in this generation of the store?
    fn is_due(&self, generation: u64) -> bool {
        let is_due = self.generation.is_none_or(|written| written < generation);
        is_due && !conversation::mutant!("tombstones.never_due")
    }

    /// The re-assertion for the store: the record, and a log without entries.
    pub fn reassertion(&self, now_ms: u64) -> (Record, Batch) {
        let batch = Batch {
            session: self.session.clone(),
            token: self.record.owner.token,
            first: 1,
            floor: 1,
            entries: Vec::new(),
            ttl: Duration::from_millis(self.until.saturating_sub(now_ms).max(TTL_MIN_MS)),
            prolongs: true,
        };
        (self.record.clone(), batch)
    }
}

/// A tombstone that has to be written.
#[derive(Clone, Debug)]
pub struct Due {
    /// Its number for [`Tombstones::tombstone_written`].
    pub number: u64,
    /// The generation of the store to write it in.
    pub generation: u64,
    /// The re-assertion to write.
    pub tombstone: Tombstone,
}

/// Whether there was room for a tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepOutcome {
    /// There was room.
    WithRoom,
    /// The oldest was dropped for it. `is_first`: it is the first drop since the list was last
    /// empty.
    InsteadOfOldest {
        /// To be logged once.
        is_first: bool,
    },
}

/// Whether an answer of the store to [`Tombstone::reassertion`] means that no retry is needed in
/// this generation: it was written, or another owner claimed the restored session.
pub fn is_done<T>(answer: &Result<T, Error>) -> bool {
    !matches!(answer, Err(Error::Unavailable(_)))
}

/// The tombstones that this node keeps, at most [`KEPT_MAX`].
#[derive(Debug, Default)]
pub struct Tombstones {
    /// The number of the oldest; they are numbered without a hole.
    first: u64,
    /// All are kept for the same time, so the oldest expires first.
    oldest_first: VecDeque<Tombstone>,
    /// One was dropped early since the list was last empty.
    dropped: bool,
}

impl Tombstones {
    /// Adds a tombstone.
    pub fn keep_tombstone(&mut self, tombstone: Tombstone, now_ms: u64) -> KeepOutcome {
        self.drop_expired(now_ms);
        let mut kept = KeepOutcome::WithRoom;
        if self.oldest_first.len() == KEPT_MAX {
            kept = KeepOutcome::InsteadOfOldest {
                is_first: !std::mem::replace(&mut self.dropped, true),
            };
            self.drop_oldest();
        }
        self.oldest_first.push_back(tombstone);
        kept
    }

    /// Must the newest be written? A replaced primary may have acknowledged the end of a session
    /// late: then the search for due tombstones after the failover did not include this one.
    pub fn is_newest_due(&self, generation: impl FnOnce(&SessionId) -> u64) -> bool {
        let newest = self.oldest_first.back();
        newest.is_some_and(|newest| newest.is_due(generation(&newest.session)))
    }

    /// The tombstones from a number on that were not written in the present generation of their
    /// session; at most [`DUE_MAX`].
    pub fn due_tombstones(
        &mut self,
        from: u64,
        now_ms: u64,
        generation: impl Fn(&SessionId) -> u64,
    ) -> Vec<Due> {
        self.drop_expired(now_ms);
        let skipped = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let numbered = (self.first..).zip(&self.oldest_first).skip(skipped);
        let due = numbered.filter_map(|(number, tombstone)| {
            let generation = generation(&tombstone.session);
            tombstone.is_due(generation).then(|| Due {
                number,
                generation,
                tombstone: tombstone.clone(),
            })
        });
        due.take(DUE_MAX).collect()
    }

    /// The tombstone of that number was written in that generation.
    pub fn tombstone_written(&mut self, number: u64, generation: u64) {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(tombstone) = index.and_then(|index| self.oldest_first.get_mut(index)) {
            tombstone.generation = Some(generation);
        }
    }

    /// Every session of which a tombstone is kept.
    pub fn sessions(&self) -> impl Iterator<Item = &SessionId> {
        self.oldest_first.iter().map(Tombstone::session)
    }

    fn drop_expired(&mut self, now_ms: u64) {
        while self.oldest_first.front().is_some_and(|oldest| oldest.until <= now_ms) {
            self.drop_oldest();
        }
        if self.oldest_first.is_empty() {
            self.oldest_first = VecDeque::new();
            self.dropped = false;
        }
    }

    fn drop_oldest(&mut self) {
        if self.oldest_first.pop_front().is_some() {
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Digest, Incarnation, Owner, RecordStatus, Token};

    fn tombstone(number: usize, generation: Option<u64>, until: u64) -> Tombstone {
        let record = Record {
            owner: Owner { token: Token::first(7), node: Incarnation(1) },
            former: Vec::new(),
            tenant: "acme".into(),
            principal: Digest([7; 32]),
            revision: "2025-11-25".into(),
            initialize: (*b"{}").into(),
            state: State::default(),
            status: RecordStatus::Ended,
        };
        let session = SessionId::parse(&format!("session-{number}")).expect("a valid id");
        Tombstone::new(session, record, generation, until)
    }

    fn due(tombstones: &mut Tombstones, from: u64, now: u64, generation: u64) -> Vec<u64> {
        let due = tombstones.due_tombstones(from, now, |_| generation);
        due.into_iter().map(|due| due.number).collect()
    }

    #[test]
    fn a_tombstone_is_due_once_in_each_generation_after_that_in_which_it_was_written() {
        let mut tombstones = Tombstones::default();
        tombstones.keep_tombstone(tombstone(0, Some(1), 60_000), 0);
        tombstones.keep_tombstone(tombstone(1, None, 60_000), 0);
        assert_eq!(due(&mut tombstones, 0, 1, 1), [1]);
        tombstones.tombstone_written(1, 1);
        assert!(due(&mut tombstones, 0, 1, 1).is_empty());
        assert_eq!(due(&mut tombstones, 0, 1, 2), [0, 1]);
        assert_eq!(due(&mut tombstones, 1, 1, 2), [1]);
        tombstones.tombstone_written(0, 2);
        assert_eq!(due(&mut tombstones, 0, 1, 2), [1]);
    }

    #[test]
    fn a_tombstone_of_an_end_that_was_written_before_the_last_failover_is_due_when_it_is_kept() {
        let mut tombstones = Tombstones::default();
        assert!(!tombstones.is_newest_due(|_| 2));
        for (generation, is_due) in [(Some(2), false), (Some(1), true), (None, true)] {
            tombstones.keep_tombstone(tombstone(0, generation, 60_000), 0);
            assert_eq!(tombstones.is_newest_due(|_| 2), is_due, "{generation:?}");
        }
    }

    #[test]
    fn a_tombstone_is_kept_for_its_time() {
        let mut tombstones = Tombstones::default();
        tombstones.keep_tombstone(tombstone(0, Some(1), 1_000), 0);
        tombstones.keep_tombstone(tombstone(1, Some(1), 2_000), 0);
        assert_eq!(due(&mut tombstones, 0, 999, 2), [0, 1]);
        assert_eq!(due(&mut tombstones, 0, 1_000, 2), [1]);
        // A write after its expiry has no use.
        tombstones.tombstone_written(0, 2);
        assert_eq!(due(&mut tombstones, 0, 1_000, 2), [1]);
        assert!(due(&mut tombstones, 0, 2_000, 2).is_empty());
    }

    #[test]
    fn a_tombstone_is_written_with_the_rest_of_its_time_to_live() {
        let tombstone = tombstone(0, None, 60_000);
        let ttl = |now| tombstone.reassertion(now).1.ttl;
        assert_eq!(ttl(10_000), Duration::from_secs(50));
        assert_eq!(ttl(59_999), Duration::from_secs(1));
    }

    #[test]
    fn at_the_limit_the_oldest_is_dropped_and_the_others_are_due_in_pieces() {
        let mut tombstones = Tombstones::default();
        let mut keep = |number| tombstones.keep_tombstone(tombstone(number, Some(1), 60_000), 0);
        assert!((0..KEPT_MAX).all(|number| keep(number) == KeepOutcome::WithRoom));
        assert_eq!(keep(KEPT_MAX), KeepOutcome::InsteadOfOldest { is_first: true });
        assert_eq!(keep(KEPT_MAX + 1), KeepOutcome::InsteadOfOldest { is_first: false });
        let (mut from, mut found) = (0, Vec::new());
        loop {
            let piece = due(&mut tombstones, from, 1, 2);
            assert!(piece.len() <= DUE_MAX);
            let Some(last) = piece.last() else { break };
            from = last + 1;
            found.extend(piece);
        }
        assert!(found.into_iter().eq(2..=KEPT_MAX as u64 + 1));
    }
}
