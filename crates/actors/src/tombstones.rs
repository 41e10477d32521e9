//! Sessions that ended here, for as long as a failover of the store could bring them back.
//!
//! A store that fails over may forget what it was told last, the end of a session too. Then
//! the session, perhaps a stolen one, would be there again. So the node that ended it keeps
//! what says so for as long as the store would have, and writes it anew after each failover.
//! It never ends what is another owner's meanwhile: the store compares tokens.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use conversation::Millis;
use futures_util::future::join_all;
use protocol::SessionId;
use store::{Batch, Error, Record, State};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::clock;
use crate::handle::Node;

/// Most ends that are kept. Then the oldest is let go before its time: what was told longest
/// ago is what a failover forgets last. Each takes some hundred bytes.
const KEPT_MAX: usize = 16_384;
/// Most that are written at once.
const WRITTEN_AT_ONCE: usize = 64;
/// The wait before what could not be written is written again.
const AGAIN: Duration = Duration::from_millis(200);
/// The shortest that one is written for.
const LIFE_MIN: u64 = 1_000;

/// The ends that this node has to stand for.
#[derive(Default)]
pub(crate) struct Tombstones {
    kept: Mutex<Kept>,
    /// One came that the store was never told of.
    untold: Notify,
}

#[derive(Default)]
struct Kept {
    /// The number of the oldest; they are numbered without a hole.
    first: u64,
    /// All for the same time, so the oldest is over first.
    oldest_first: VecDeque<Tombstone>,
    /// That there are too many was said since there were last none.
    is_told: bool,
}

/// That a session has ended.
#[derive(Clone, Debug)]
pub(crate) struct Tombstone {
    session: SessionId,
    record: Record,
    /// In which era of the store it was written; `None`: in none yet, or nothing says so.
    era: Option<u64>,
    until: Millis,
}

impl Tombstone {
    pub(crate) fn new(session: SessionId, record: Record, era: Option<u64>, until: Millis) -> Self {
        // Of the rest nothing is written.
        let state = State { version: record.state.version, bytes: Arc::default() };
        let record = Record { initialize: Arc::default(), state, ..record };
        Self { session, record, era, until }
    }

    fn ring(&self, now: Millis) -> Batch {
        Batch {
            session: self.session.clone(),
            token: self.record.owner.token,
            first: 1,
            floor: 1,
            entries: Vec::new(),
            ttl: Duration::from_millis(self.until.0.saturating_sub(now.0).max(LIFE_MIN)),
            prolongs: true,
        }
    }
}

impl Tombstones {
    pub(crate) fn keep(&self, tombstone: Tombstone, now: Millis) {
        let is_told = tombstone.era.is_some();
        let mut kept = self.kept();
        kept.bury(now);
        if kept.oldest_first.len() == KEPT_MAX {
            // Said once, not for each session that ends meanwhile.
            if !std::mem::replace(&mut kept.is_told, true) {
                tracing::warn!("too many sessions end at once: a failover may bring some back");
            }
            kept.let_go();
        }
        kept.oldest_first.push_back(tombstone);
        drop(kept);
        if !is_told {
            self.untold.notify_one();
        }
    }

    /// Some that were not written in the era that it is now, numbered, from a number on.
    fn due(
        &self,
        from: u64,
        now: Millis,
        era: impl Fn(&SessionId) -> u64,
    ) -> Vec<(u64, u64, Tombstone)> {
        let mut kept = self.kept();
        kept.bury(now);
        let skipped = usize::try_from(from.saturating_sub(kept.first)).unwrap_or(usize::MAX);
        let numbered = (kept.first..).zip(&kept.oldest_first).skip(skipped);
        let due = numbered.filter_map(|(number, tombstone)| {
            let era = era(&tombstone.session);
            let is_due = tombstone.era.is_none_or(|written| written < era);
            is_due.then(|| (number, era, tombstone.clone()))
        });
        due.take(WRITTEN_AT_ONCE).collect()
    }

    fn written(&self, number: u64, era: u64) {
        let mut kept = self.kept();
        let index = number.checked_sub(kept.first).and_then(|index| usize::try_from(index).ok());
        if let Some(tombstone) = index.and_then(|index| kept.oldest_first.get_mut(index)) {
            tombstone.era = Some(era);
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn bury(&mut self, now: Millis) {
        while self.oldest_first.front().is_some_and(|oldest| oldest.until <= now) {
            self.let_go();
        }
        if self.oldest_first.is_empty() {
            self.oldest_first = VecDeque::new();
            self.is_told = false;
        }
    }

    fn let_go(&mut self) {
        if self.oldest_first.pop_front().is_some() {
            self.first += 1;
        }
    }
}

/// Writes anew whatever the store may have forgotten, each time that it may have.
pub(crate) async fn stand_for(
    node: Weak<Node>,
    tombstones: Arc<Tombstones>,
    mut changes: watch::Receiver<u64>,
) {
    loop {
        let is_told = match node.upgrade() {
            Some(node) => tell(&node).await,
            None => return,
        };
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = tombstones.untold.notified() => {}
            () = sleep(AGAIN), if !is_told => {}
        }
    }
}

/// Answers whether the store was told everything.
async fn tell(node: &Node) -> bool {
    let (mut from, mut is_told) = (0, true);
    loop {
        let now = clock::now();
        let due = node.tombstones.due(from, now, |session| node.moment(session).era);
        let Some((last, ..)) = due.last() else { return is_told };
        from = last + 1;
        let writing = due.into_iter().map(async |(number, era, tombstone)| {
            let came = node.store.reassert(tombstone.record.clone(), tombstone.ring(now)).await;
            match came {
                Err(Error::Unavailable(_)) => return false,
                Ok(_) | Err(Error::Ended) => {}
                // It is another owner's, who claimed what had come back.
                Err(error) => {
                    tracing::warn!(session = ?tombstone.session, %error, "an end came too late");
                }
            }
            node.tombstones.written(number, era);
            true
        });
        is_told &= join_all(writing).await.into_iter().all(|is_told| is_told);
    }
}

#[cfg(test)]
mod tests {
    use store::{Digest, Incarnation, Owner, Standing, Token};

    use super::*;

    fn tombstone(number: usize, era: Option<u64>, until: u64) -> Tombstone {
        let record = Record {
            owner: Owner { token: Token::first(7), node: Incarnation(1) },
            former: Vec::new(),
            tenant: "acme".into(),
            principal: Digest([7; 32]),
            revision: "2025-11-25".into(),
            initialize: (*b"{}").into(),
            state: State::default(),
            standing: Standing::Ended,
        };
        let session = SessionId::parse(&format!("session-{number}")).expect("a valid id");
        Tombstone::new(session, record, era, Millis(until))
    }

    fn due(tombstones: &Tombstones, from: u64, now: u64, era: u64) -> Vec<u64> {
        let due = tombstones.due(from, Millis(now), |_| era);
        due.into_iter().map(|(number, ..)| number).collect()
    }

    #[test]
    fn an_end_is_due_once_in_each_era_after_that_in_which_it_was_written() {
        let tombstones = Tombstones::default();
        tombstones.keep(tombstone(0, Some(1), 60_000), Millis(0));
        tombstones.keep(tombstone(1, None, 60_000), Millis(0));
        assert_eq!(due(&tombstones, 0, 1, 1), [1]);
        tombstones.written(1, 1);
        assert!(due(&tombstones, 0, 1, 1).is_empty());
        assert_eq!(due(&tombstones, 0, 1, 2), [0, 1]);
        assert_eq!(due(&tombstones, 1, 1, 2), [1]);
        tombstones.written(0, 2);
        assert_eq!(due(&tombstones, 0, 1, 2), [1]);
    }

    #[test]
    fn an_end_is_kept_for_its_time() {
        let tombstones = Tombstones::default();
        tombstones.keep(tombstone(0, Some(1), 1_000), Millis(0));
        tombstones.keep(tombstone(1, Some(1), 2_000), Millis(0));
        assert_eq!(due(&tombstones, 0, 999, 2), [0, 1]);
        assert_eq!(due(&tombstones, 0, 1_000, 2), [1]);
        // What was written after it had gone is nothing to anybody.
        tombstones.written(0, 2);
        assert_eq!(due(&tombstones, 0, 1_000, 2), [1]);
        assert!(due(&tombstones, 0, 2_000, 2).is_empty());
    }

    #[test]
    fn at_the_bound_the_oldest_goes_and_all_others_are_found_in_pieces() {
        let tombstones = Tombstones::default();
        for number in 0..=KEPT_MAX {
            tombstones.keep(tombstone(number, Some(1), 60_000), Millis(0));
        }
        let (mut from, mut found) = (0, Vec::new());
        loop {
            let piece = due(&tombstones, from, 1, 2);
            assert!(piece.len() <= WRITTEN_AT_ONCE);
            let Some(last) = piece.last() else { break };
            from = last + 1;
            found.extend(piece);
        }
        assert!(found.into_iter().eq(1..=KEPT_MAX as u64));
    }
}
