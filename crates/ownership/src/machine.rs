//! One session's ownership at its owner: which store operation is next, and what an answer means.
//!
//! An [`Ownership`] never waits, never reads a clock and performs nothing. Its caller gets the
//! next operation from [`Ownership::next`], performs it, and passes its result back.
//! An ownership decides nothing about the messages of a session.

mod acting;
mod answers;
mod op;
mod snapshot;
#[cfg(test)]
mod tests;
mod under;

use std::time::Duration;

use bytes::Bytes;
use conversation::mutant;
use protocol::SessionId;
use thin_vec::ThinVec;

pub use self::op::Op;
pub use self::snapshot::{Acquired, Claimable, LeaseSnapshot, Stabilisation};
use self::under::{Anew, Claiming, Reasserting, Under};
use crate::rules::rule;
use crate::{Appended, Batch, Claimed, Error, Expected, Owner, Record, RecordStatus, State, Token};

/// The wait until the next look during stabilisation, in milliseconds.
const STABILISATION_RETRY: u64 = 100;
/// The wait while the node holds no lease, in milliseconds. It ends when there is one.
const AWAY: u64 = 500;

/// The result of an operation.
#[derive(Debug)]
pub enum OpResult {
    /// Of an append or a re-assertion.
    Appended(Result<Appended, Error>),
    /// Of saving.
    Saved(Result<u64, Error>),
    /// Of claiming.
    Claimed(Result<Claimed, Error>),
    /// Of a release or an end.
    Done(Result<(), Error>),
}

/// What that means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The log holds everything up to this number.
    Through(u64),
    /// The record holds the state of this version.
    Saved(u64),
    /// The session is owned under another token of this node.
    Reclaimed(Token),
    /// Another owner has the session, or it has ended. This owner may not act for it any more.
    Deposed,
    /// It is given up.
    Released,
    /// It is over.
    Ended,
}

/// One session's ownership. What only a failover or a lapsed lease needs is boxed: every
/// session of a node keeps one of these.
#[derive(Debug)]
pub struct Ownership {
    session: SessionId,
    record: Record,
    ttl: Duration,
    /// The generation of the lease under which it was claimed.
    lease_generation: u64,
    /// The newest failover generation in which it is known to be whole in the store.
    failover_generation: u64,
    /// The newest failover generation in which the store is known to name this owner.
    sure: u64,
    /// When the newest failover generation began, the store was not known to name this owner.
    doubted: bool,
    /// The newest failover generation in which the store said whom it names.
    answered: u64,
    /// The store could not be made to hold it since it was last asked whom it names.
    unwritten: bool,
    /// What the log does not hold yet, oldest first, and the number of the first.
    unheld: ThinVec<Bytes>,
    first: u64,
    /// Up to which number it was told that all is held, or is not to be any more.
    told: u64,
    floor: u64,
    /// The version of the state that the record holds.
    saved: u64,
    /// Entries below this number may be appended before a newer state is saved: they were there
    /// before it.
    covered: u64,
    under: Option<Under>,
    failures: u32,
    retry_at: u64,
    /// That is only because the node held no lease.
    away: bool,
    /// The newest failover generation that it was told of.
    seen: u64,
    /// When the record's time to live is to begin anew, and that it is time now.
    refresh_at: u64,
    refresh: bool,
    anew: Anew,
    /// A claim whose outcome is not known.
    claiming: Option<Box<Claiming>>,
    /// The record names this node under this token.
    late: Option<Box<Token>>,
    releasing: bool,
    /// A release was sent.
    released: bool,
    ending: bool,
    over: bool,
}

impl Ownership {
    /// The ownership that a record states.
    pub fn new(
        session: SessionId,
        record: Record,
        Acquired { lease_generation, failover_generation }: Acquired,
        ttl: Duration,
        now: u64,
    ) -> Self {
        Self {
            session,
            saved: record.state.version,
            covered: 0,
            record,
            ttl,
            lease_generation,
            failover_generation,
            sure: failover_generation,
            doubted: false,
            answered: 0,
            unwritten: false,
            unheld: ThinVec::new(),
            first: 1,
            told: 0,
            floor: 1,
            under: None,
            failures: 0,
            retry_at: 0,
            away: false,
            seen: failover_generation,
            refresh_at: refresh_at(now, ttl),
            refresh: false,
            anew: Anew::No,
            claiming: None,
            late: None,
            releasing: false,
            released: false,
            ending: false,
            over: false,
        }
    }

    /// Whose ownership it is.
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// The token that it is owned under.
    pub fn token(&self) -> Token {
        self.record.owner.token
    }

    /// The record that marks the session as ended. The store may yet fail over to a primary that
    /// has not received it. The node that ended the session therefore keeps this record and
    /// writes it anew after each failover: an ended session, perhaps a stolen one, must not come
    /// back.
    pub fn tombstone(&self) -> Record {
        Record { status: RecordStatus::Ended, ..self.record.clone() }
    }

    /// The generation of its node's lease under which it was claimed.
    pub fn lease_generation(&self) -> u64 {
        self.lease_generation
    }

    /// The newest failover generation in which the store is known to hold what it was told of the
    /// session.
    pub fn failover_generation(&self) -> u64 {
        self.failover_generation
    }

    /// Takes entries for the log.
    pub fn push(&mut self, first: u64, floor: u64, entries: Vec<Bytes>) {
        if self.over {
            return;
        }
        if self.unheld.is_empty() || mutant!("ownership.number_from_the_newest") {
            self.first = first;
        }
        // Nothing but a raised floor is news as well.
        self.refresh |= entries.is_empty();
        self.unheld.extend(entries);
        self.floor = self.floor.max(floor);
        self.drop_below_the_floor();
    }

    /// Drops the entries below the floor, which cannot be replayed: they are not kept while the
    /// store refuses what comes before them.
    fn drop_below_the_floor(&mut self) {
        let below = usize::try_from(self.floor.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let below = below.min(self.unheld.len());
        self.unheld.drain(..below);
        self.first += below as u64;
        if self.unheld.is_empty() {
            self.first = self.first.max(self.floor);
            // Nothing but a raised floor is news as well.
            self.refresh |= below > 0;
        }
    }

    /// Takes a state for the record.
    pub fn save(&mut self, state: State) {
        if state.version > self.record.state.version {
            self.record.state = state;
        }
    }

    /// Gives the session up, once everything is held.
    pub fn release(&mut self) {
        self.releasing = true;
    }

    /// Ends the session.
    pub fn end(&mut self) {
        self.ending = !mutant!("ownership.release_instead_of_an_end");
        self.releasing |= !self.ending;
        self.record.status = RecordStatus::Ended;
    }

    /// When to ask again what is next, if nothing happens before.
    pub fn wake_at(&self) -> Option<u64> {
        if self.over || self.under.is_some() {
            return None;
        }
        Some(if self.retry_at > 0 { self.retry_at } else { self.refresh_at })
    }

    /// What to do next, if anything is to be done now; then it is under way. `ring` is
    /// everything that can be replayed, and the number of its first entry.
    pub fn next(
        &mut self,
        snapshot: &LeaseSnapshot,
        ring: impl FnOnce() -> (u64, Vec<Bytes>),
        random: u64,
    ) -> Option<Op> {
        self.observe(snapshot.failover_generation);
        if self.over || self.under.is_some() {
            return None;
        }
        if self.away && snapshot.lease_generation.is_some() {
            (self.away, self.retry_at) = (false, 0);
        }
        if snapshot.now < self.retry_at {
            return None;
        }
        if self.released && self.late.is_none() && rule!(ReleaseIsLast) {
            // It may have been done, and then nothing is this owner's to do any more.
            return self.give_up(snapshot, ring);
        }
        let Some(lease_generation) = snapshot.lease_generation else {
            // Nothing is due while nothing may be done.
            self.away = true;
            self.retry_at = snapshot.now + AWAY;
            return None;
        };
        // After a failover the session is re-asserted even if the lease has lapsed since: a
        // re-assertion claims nothing, and an owner that came after this one replaces it. An
        // owner whose claim replaced a predecessor of this one does not. Where there may be such
        // an owner, this one first asks the store, once that owner has re-asserted itself.
        let asks = self.asks_first(snapshot);
        if self.late.is_none() && self.is_to_write_anew(snapshot) && !asks {
            return Some(self.reassert(ring()));
        }
        if !self.is_claimed(lease_generation) || self.late.is_some() || asks {
            if snapshot.stabilisation == Stabilisation::First && rule!(ClaimsLateInStabilisation) {
                // An owner that came after this one re-asserts itself first.
                self.retry_at = snapshot.now + STABILISATION_RETRY;
                return None;
            }
            return Some(self.claim(lease_generation, snapshot, random));
        }
        if self.releasing && !rule!(ReleaseWaits) {
            return self.give_up(snapshot, ring);
        }
        if snapshot.now >= self.refresh_at {
            self.refresh |= rule!(Refreshes);
            self.refresh_at = refresh_at(snapshot.now, self.ttl);
        }
        if !self.ending && (self.appendable() > 0 || self.refresh) {
            return Some(self.append(snapshot.now));
        }
        if !self.ending && self.record.state.version > self.saved {
            let end = self.first + self.unheld.len() as u64;
            self.under = Some(Under::Save { end });
            let state = self.record.state.clone();
            return Some(Op::Save { token: self.token(), state });
        }
        if self.ending && !mutant!("ownership.never_write_the_end") {
            self.under = Some(Under::End);
            return Some(Op::End { token: self.token() });
        }
        if self.releasing {
            return self.give_up(snapshot, ring);
        }
        None
    }

    /// Has the store failed over since it was last known to hold everything?
    fn is_forgotten(&self, snapshot: &LeaseSnapshot) -> bool {
        self.failover_generation < self.seen.max(snapshot.failover_generation)
            && rule!(ReassertsAfterFailover)
    }

    fn is_to_write_anew(&self, snapshot: &LeaseSnapshot) -> bool {
        let by_answer = match self.anew {
            Anew::No => false,
            // A tombstone may be written at any time: nothing comes back by it.
            Anew::UnderLease => self.ending || !self.has_lapsed(snapshot),
            Anew::Yes => true,
        };
        by_answer || self.is_forgotten(snapshot)
    }

    /// Was the lease lost since the session was claimed?
    fn has_lapsed(&self, snapshot: &LeaseSnapshot) -> bool {
        snapshot.lease_generation != Some(self.lease_generation) && rule!(EndsMissingWhereClaimable)
    }

    /// Could another node have claimed the session before this was sent?
    fn may_have_been_claimed(&self, under: &Under, snapshot: &LeaseSnapshot) -> bool {
        match under {
            Under::Claim { .. } => self.has_lapsed(snapshot),
            Under::Release { again } => *again && rule!(EndsMissingWhereClaimable),
            Under::Append { .. } | Under::Reassert(_) | Under::Save { .. } | Under::End => false,
        }
    }

    fn give_up(
        &mut self,
        snapshot: &LeaseSnapshot,
        ring: impl FnOnce() -> (u64, Vec<Bytes>),
    ) -> Option<Op> {
        if self.is_to_write_anew(snapshot) && !self.asks_first(snapshot) {
            // The store forgot the session, and perhaps the release with it; if it did not
            // forget the release, it refuses the re-assertion. The session is written anew at
            // once, so that no node takes it for unknown meanwhile.
            return Some(self.reassert(ring()));
        }
        if snapshot.stabilisation != Stabilisation::Done && rule!(ReleasesWhenStable) {
            self.retry_at = snapshot.now + STABILISATION_RETRY;
            return None;
        }
        let again = std::mem::replace(&mut self.released, true);
        self.under = Some(Under::Release { again });
        Some(Op::Release { token: self.token(), at: snapshot.primary })
    }

    fn claim(&mut self, lease_generation: u64, snapshot: &LeaseSnapshot, random: u64) -> Op {
        self.unwritten = false;
        let mine = self.record.owner;
        let from = self.late.as_deref().copied().unwrap_or(mine.token);
        // One of unknown outcome is sent again as it was; but not after a failover, which may have
        // forgotten it with what others claimed from it: they take its token for one before theirs.
        let (expected, failover_generation) = (Expected::Token(from), self.seen);
        let again = self.claiming.as_deref().copied();
        let again = again.filter(|claim| {
            claim.expected == expected && claim.failover_generation == failover_generation
        });
        let claiming = again.unwrap_or_else(|| {
            let newest = if from.counter > mine.token.counter { from } else { mine.token };
            let new = Owner { token: newest.next(random), node: mine.node };
            Claiming { failover_generation, expected, new }
        });
        self.claiming = Some(Box::new(claiming));
        self.under = Some(Under::Claim { lease_generation, failover_generation });
        Op::Claim { expected, new: claiming.new, at: snapshot.primary }
    }

    fn reassert(&mut self, (first, mut entries): (u64, Vec<Bytes>)) -> Op {
        if mutant!("ownership.reassert_without_the_oldest_entry") && !entries.is_empty() {
            entries.remove(0);
        }
        if mutant!("ownership.reassert_without_the_log") {
            entries.clear();
        }
        let version = self.record.state.version;
        let end = first + entries.len() as u64;
        let reasserting =
            Reasserting { failover_generation: self.seen, version, end, ends: self.ending };
        self.under = Some(Under::Reassert(Box::new(reasserting)));
        self.refresh = false;
        let batch = self.batch(first, first, entries);
        Op::Reassert(self.record.clone(), batch)
    }

    /// How many entries may be appended. What the next owner reads in the log it must find in the
    /// record as well: an entry follows the state that changed with it or before it.
    fn appendable(&self) -> usize {
        let is_saved = self.record.state.version <= self.saved;
        if is_saved || !rule!(SavesBeforeItAppends) {
            return self.unheld.len();
        }
        let covered = usize::try_from(self.covered.saturating_sub(self.first));
        covered.unwrap_or(usize::MAX).min(self.unheld.len())
    }

    fn append(&mut self, now: u64) -> Op {
        if mutant!("ownership.append_without_the_oldest_entry") && self.unheld.len() > 1 {
            self.unheld.remove(0);
        }
        let prolongs = std::mem::take(&mut self.refresh);
        if prolongs {
            self.refresh_at = refresh_at(now, self.ttl);
        }
        let count = self.appendable();
        let end = self.first + count as u64;
        self.under = Some(Under::Append { end });
        let entries = self.unheld.iter().take(count).cloned().collect();
        Op::Append(Batch { prolongs, ..self.batch(self.first, self.floor, entries) })
    }

    fn batch(&self, first: u64, floor: u64, entries: Vec<Bytes>) -> Batch {
        Batch {
            session: self.session.clone(),
            token: self.token(),
            first,
            floor,
            entries,
            ttl: self.ttl,
            prolongs: true,
        }
    }
}

/// Often enough that the record never expires under a session that lives.
fn refresh_at(now: u64, ttl: Duration) -> u64 {
    now.saturating_add(u64::try_from(ttl.as_millis() / 4).unwrap_or(u64::MAX))
}
