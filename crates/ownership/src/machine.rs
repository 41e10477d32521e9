//! One session's ownership at its owner: which store operation is next, and what an answer means.
//!
//! An [`Ownership`] never waits, never reads a clock and performs nothing. Its caller gets the
//! next operation from [`Ownership::next`], performs it, and passes its result back.
//! An ownership decides nothing about the messages of a session.

mod acting;
mod answers;
mod attempts;
mod decision;
mod generations;
mod goal;
mod in_flight;
mod log_tail;
mod op;
mod snapshot;
#[cfg(test)]
mod tests;
mod token_doubt;

use std::time::Duration;

use bytes::Bytes;
use conversation::{StateChange, mutant};
use protocol::SessionId;

use self::attempts::Attempts;
use self::decision::{
    Decision, LeaseStatus, OperationStatus, Situation, TokenStatus, Unwritten, Wholeness,
};
use self::generations::Generations;
use self::goal::Goal;
use self::in_flight::{InFlight, Phase, Reassertion, Rewrite};
use self::log_tail::{LogSlice, LogTail};
pub use self::op::Op;
pub use self::snapshot::{Acquired, Claimable, LeaseSnapshot, Stabilisation};
use self::token_doubt::{SentClaim, TokenDoubt};
use crate::rules::rule;
use crate::{
    Appended, Batch, Claimed, Error, Expected, Owner, Record, RecordStatus, StateExtension, Token,
};

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

/// The meaning of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The log holds everything up to this number.
    Through(u64),
    /// The record holds the state of this version.
    Saved(u64),
    /// The session is owned under another token of this node.
    Reclaimed(Token),
    /// Another node owns the session, or the session has ended. This owner may not act for it any
    /// more.
    Deposed,
    /// The session is released.
    Released,
    /// The session has ended.
    Ended,
}

/// One session's ownership. State that only a failover or a lapse of the lease needs is boxed:
/// every session of a node has one of these.
#[derive(Debug)]
pub struct Ownership {
    session: SessionId,
    record: Record,
    ttl: Duration,
    /// The version of the state that the store's record holds.
    saved: u64,
    /// The store's record has another version, so that nothing can be added to it.
    must_save_whole: bool,
    log_tail: LogTail,
    /// The generation of the lease under which the session was claimed.
    lease_generation: u64,
    generations: Generations,
    token_doubt: TokenDoubt,
    rewrite: Rewrite,
    goal: Goal,
    phase: Phase,
    attempts: Attempts,
    refresh: Refresh,
}

/// The refresh of the record's time to live.
#[derive(Debug)]
struct Refresh {
    /// When the next one is due.
    at: u64,
    /// The next append refreshes at any time, also without an entry.
    is_forced: bool,
}

impl Refresh {
    /// A time to live that begins now.
    fn new(now: u64, ttl: Duration) -> Self {
        Self { at: Self::next_at(now, ttl), is_forced: false }
    }

    fn is_due(&self, now: u64) -> bool {
        self.is_forced || now >= self.at
    }

    /// Often enough that the record does not expire while the session has an owner.
    fn next_at(now: u64, ttl: Duration) -> u64 {
        if !rule!(Refreshes) {
            return u64::MAX;
        }
        now.saturating_add(u64::try_from(ttl.as_millis() / 4).unwrap_or(u64::MAX))
    }
}

impl Ownership {
    /// The ownership that a record states.
    pub fn new(
        session: SessionId,
        mut record: Record,
        Acquired { lease_generation, failover_generation }: Acquired,
        ttl: Duration,
        now: u64,
    ) -> Self {
        // From now on each difference belongs to one version.
        record.state.bytes = std::mem::take(&mut record.state.bytes).joined();
        Self {
            session,
            saved: record.state.version,
            must_save_whole: false,
            record,
            ttl,
            log_tail: LogTail::new(),
            lease_generation,
            generations: Generations::new(failover_generation),
            token_doubt: TokenDoubt::None,
            rewrite: Rewrite::No,
            goal: Goal::Keep,
            phase: Phase::Idle,
            attempts: Attempts::new(),
            refresh: Refresh::new(now, ttl),
        }
    }

    /// The session that is owned.
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// The token that it is owned under.
    pub fn token(&self) -> Token {
        self.record.owner.token
    }

    /// The record that marks the session as ended. The store may yet fail over to a primary that
    /// has not received it. The node that ended the session therefore keeps this record and
    /// re-asserts it after each failover. Otherwise an ended session, which may have been stolen,
    /// could be used again.
    pub fn tombstone(&self) -> Record {
        Record { status: RecordStatus::Ended, ..self.record.clone() }
    }

    /// The generation of its node's lease under which it was claimed.
    pub fn lease_generation(&self) -> u64 {
        self.lease_generation
    }

    /// The newest failover generation in which the store is known to hold the whole session.
    pub fn failover_generation(&self) -> u64 {
        self.generations.whole()
    }

    /// Takes entries for the log.
    pub fn push_entries(&mut self, first: u64, floor: u64, entries: Vec<Bytes>) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        self.refresh.is_forced |= self.log_tail.push(first, floor, entries);
    }

    /// Takes a change of the state for the record. Changes come in the order of their versions.
    pub fn save_state(&mut self, version: u64, change: StateChange) {
        let state = &mut self.record.state;
        if version <= state.version {
            return;
        }
        match change {
            StateChange::Whole(bytes) => state.bytes = bytes.into(),
            StateChange::Difference(bytes) => {
                debug_assert_eq!(version, state.version + 1, "a change of the state is missing");
                state.bytes.push(bytes);
            }
        }
        state.version = version;
    }

    /// Releases the session once the store holds everything.
    pub fn release_session(&mut self) {
        self.goal.release();
    }

    /// Ends the session.
    pub fn end_session(&mut self) {
        if mutant!("ownership.release_instead_of_an_end") {
            self.goal.release();
        } else {
            self.goal.end();
        }
        self.record.status = RecordStatus::Ended;
    }

    /// When to call [`Ownership::next`] again if nothing happens before.
    pub fn wake_at(&self) -> Option<u64> {
        match self.phase {
            Phase::Idle => Some(self.attempts.paused_until().unwrap_or(self.refresh.at)),
            Phase::InFlight(_) | Phase::Over => None,
        }
    }

    /// The next operation to perform, if there is one now; it counts as in flight.
    /// `replay_buffer` returns everything that can be replayed, and the number of its first
    /// entry.
    pub fn next(
        &mut self,
        snapshot: &LeaseSnapshot,
        replay_buffer: impl FnOnce() -> (u64, Vec<Bytes>),
        random: u64,
    ) -> Option<Op> {
        self.observe(snapshot.failover_generation);
        if snapshot.lease_generation.is_some() {
            self.attempts.lease_is_held();
        }
        match decision::decide(&self.situation(snapshot)) {
            Decision::Nothing => None,
            Decision::AwaitLease => {
                self.attempts.await_lease(snapshot.now);
                None
            }
            Decision::AwaitStabilisation => {
                self.attempts.await_stabilisation(snapshot.now);
                None
            }
            Decision::Reassert => Some(self.send_reassertion(replay_buffer())),
            Decision::Claim => {
                let lease_generation = snapshot.lease_generation?;
                Some(self.send_claim(lease_generation, snapshot, random))
            }
            Decision::Append => Some(self.send_append(snapshot.now)),
            Decision::Save => Some(self.send_save()),
            Decision::End if mutant!("ownership.never_write_the_end") => {
                self.attempts.stop();
                None
            }
            Decision::End => {
                self.phase = Phase::InFlight(InFlight::End);
                Some(Op::End { token: self.token() })
            }
            Decision::Release => {
                let again = self.goal.send_release();
                self.phase = Phase::InFlight(InFlight::Release { again });
                Some(Op::Release { token: self.token(), at: snapshot.primary })
            }
        }
    }

    fn situation(&self, snapshot: &LeaseSnapshot) -> Situation {
        Situation {
            operation: match self.phase {
                Phase::Over => OperationStatus::Over,
                Phase::InFlight(_) => OperationStatus::InFlight,
                Phase::Idle if self.attempts.is_paused(snapshot.now) => OperationStatus::Paused,
                Phase::Idle => OperationStatus::Ready,
            },
            goal: self.goal,
            lease: match snapshot.lease_generation {
                None => LeaseStatus::None,
                Some(generation) if generation == self.lease_generation => LeaseStatus::OfTheClaim,
                Some(_) => LeaseStatus::OfAnotherGeneration,
            },
            token: match self.token_doubt {
                TokenDoubt::None => TokenStatus::OwnersToken,
                TokenDoubt::ClaimSent(_) => TokenStatus::ClaimSent,
                TokenDoubt::LateClaim(_) | TokenDoubt::LateClaimAndSent(_) => {
                    TokenStatus::LateClaim
                }
            },
            wholeness: if !self.goal.is_end() && self.generations.asks_first(snapshot) {
                Wholeness::Rivalled
            } else if self.is_to_reassert(snapshot) {
                Wholeness::Lost
            } else {
                Wholeness::Whole
            },
            stabilisation: snapshot.stabilisation,
            unwritten: if self.log_tail.appendable(self.is_saved()) > 0
                || self.refresh.is_due(snapshot.now)
            {
                Unwritten::Log
            } else if self.is_saved() {
                Unwritten::Nothing
            } else {
                Unwritten::State
            },
        }
    }

    /// Does the store's record hold the newest state?
    fn is_saved(&self) -> bool {
        self.record.state.version <= self.saved
    }

    fn is_to_reassert(&self, snapshot: &LeaseSnapshot) -> bool {
        let by_answer = match self.rewrite {
            Rewrite::No => false,
            // A tombstone may be written at any time: it restores no session.
            Rewrite::UnderLease => self.goal.is_end() || !self.has_lapsed(snapshot),
            Rewrite::FellBack => true,
        };
        by_answer || self.generations.is_forgotten(snapshot)
    }

    /// Was the lease lost since the session was claimed?
    fn has_lapsed(&self, snapshot: &LeaseSnapshot) -> bool {
        snapshot.lease_generation != Some(self.lease_generation) && rule!(EndsMissingWhereClaimable)
    }

    fn send_claim(&mut self, lease_generation: u64, snapshot: &LeaseSnapshot, random: u64) -> Op {
        self.generations.claim_sent();
        let mine = self.record.owner;
        let from = self.token_doubt.late_claim().unwrap_or(mine.token);
        // A claim of unknown outcome is retried unchanged, but not after a failover. The failover
        // may have lost that claim together with claims that other nodes made from it: those
        // nodes would take its token for an earlier one than theirs.
        let (expected, failover_generation) = (Expected::Token(from), self.generations.seen());
        let again = self.token_doubt.sent_claim().filter(|claim| {
            claim.expected == expected && claim.failover_generation == failover_generation
        });
        let claim = again.unwrap_or_else(|| {
            let newest = if from.counter > mine.token.counter { from } else { mine.token };
            let new = Owner { token: newest.next(random), node: mine.node };
            SentClaim { failover_generation, expected, new }
        });
        self.token_doubt.set_sent(claim);
        self.phase = Phase::InFlight(InFlight::Claim { lease_generation, failover_generation });
        Op::Claim { expected, new: claim.new, at: snapshot.primary }
    }

    fn send_reassertion(&mut self, (first, mut entries): (u64, Vec<Bytes>)) -> Op {
        if mutant!("ownership.reassert_without_the_oldest_entry") && !entries.is_empty() {
            entries.remove(0);
        }
        if mutant!("ownership.reassert_without_the_log") {
            entries.clear();
        }
        let slice = LogSlice { first, floor: first, entries };
        let reassertion = Reassertion {
            failover_generation: self.generations.seen(),
            version: self.record.state.version,
            end: slice.end(),
            ends: self.goal.is_end(),
        };
        self.phase = Phase::InFlight(InFlight::Reassert(Box::new(reassertion)));
        self.refresh.is_forced = false;
        Op::Reassert(self.record.clone(), self.batch(slice, true))
    }

    fn send_append(&mut self, now: u64) -> Op {
        let prolongs = self.refresh.is_due(now);
        if prolongs {
            self.refresh = Refresh::new(now, self.ttl);
        }
        let slice = self.log_tail.appendable_slice(self.is_saved());
        self.phase = Phase::InFlight(InFlight::Append { end: slice.end() });
        Op::Append(self.batch(slice, prolongs))
    }

    fn send_save(&mut self) -> Op {
        let state = &self.record.state;
        self.phase =
            Phase::InFlight(InFlight::Save { end: self.log_tail.end(), version: state.version });
        let token = self.token();
        let added = state.bytes.added(state.version - self.saved).filter(|_| !self.must_save_whole);
        match added {
            Some(bytes) => {
                let extension = StateExtension { after: self.saved, version: state.version, bytes };
                Op::ExtendState { token, extension }
            }
            None => Op::Save { token, state: state.clone() },
        }
    }

    fn batch(&self, LogSlice { first, floor, entries }: LogSlice, prolongs: bool) -> Batch {
        Batch {
            session: self.session.clone(),
            token: self.token(),
            first,
            floor,
            entries,
            ttl: self.ttl,
            prolongs,
        }
    }
}
