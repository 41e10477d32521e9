//! What the answer to an operation means for the ownership.

use conversation::mutant;

use super::in_flight::{InFlight, Phase, Reassertion, Rewrite};
use super::token_doubt::TokenDoubt;
use super::{LeaseSnapshot, OpResult, Outcome, Ownership};
use crate::rules::rule;
use crate::{Claimed, Error, Incarnation, Owner, RecordStatus};

impl Ownership {
    /// Takes the result of the operation that was in flight.
    pub fn completed(&mut self, snapshot: &LeaseSnapshot, result: OpResult) -> Vec<Outcome> {
        let in_flight = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::InFlight(in_flight) => in_flight,
            other => {
                self.phase = other;
                return Vec::new();
            }
        };
        let result = match result {
            OpResult::Appended(Ok(_)) => Ok(self.appended(&in_flight)),
            OpResult::Saved(Ok(version)) => Ok(self.saved(&in_flight, version)),
            OpResult::Claimed(Ok(claimed)) => Ok(self.claimed(&in_flight, &claimed)),
            OpResult::Done(Ok(())) => {
                self.phase = Phase::Over;
                let is_end = in_flight == InFlight::End;
                Ok(vec![if is_end { Outcome::Ended } else { Outcome::Released }])
            }
            OpResult::Appended(Err(error)) => Err(error),
            OpResult::Saved(Err(error)) => Err(error),
            OpResult::Claimed(Err(error)) => Err(error),
            OpResult::Done(Err(error)) => Err(error),
        };
        match result {
            Ok(outcomes) => {
                let is_retry = self.attempts.succeeded();
                if is_retry && mutant!("ownership.report_nothing_after_a_retry") {
                    return Vec::new();
                }
                outcomes
            }
            Err(error) => {
                let is_known = is_known(&error);
                let outcome = self.failed(snapshot, &in_flight, error);
                if outcome.is_none() {
                    self.attempts.failed(snapshot.now, is_known);
                }
                outcome.into_iter().collect()
            }
        }
    }

    fn appended(&mut self, in_flight: &InFlight) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        match in_flight {
            InFlight::Reassert(reassertion) if reassertion.ends => {
                self.generations.end_reasserted(reassertion.failover_generation);
                self.phase = Phase::Over;
                outcomes.push(Outcome::Ended);
            }
            InFlight::Reassert(reassertion) => {
                let Reassertion { failover_generation, version, end, .. } = **reassertion;
                self.generations.reasserted(failover_generation);
                self.rewrite = Rewrite::No;
                if version > self.saved {
                    self.saved = version;
                    outcomes.push(Outcome::Saved(version));
                }
                outcomes.extend(self.acknowledged(end));
            }
            InFlight::Append { .. } if mutant!("ownership.acknowledge_what_came_since") => {
                outcomes.extend(self.acknowledged(u64::MAX));
            }
            InFlight::Append { end } => outcomes.extend(self.acknowledged(*end)),
            InFlight::Save { .. }
            | InFlight::Claim { .. }
            | InFlight::Release { .. }
            | InFlight::End => {}
        }
        outcomes
    }

    /// Everything below `end` is in the log, or below its floor.
    fn acknowledged(&mut self, end: u64) -> Option<Outcome> {
        self.log_tail.acknowledge(end).map(Outcome::Through)
    }

    fn saved(&mut self, in_flight: &InFlight, version: u64) -> Vec<Outcome> {
        let newest = mutant!("ownership.take_a_save_for_the_newest");
        let version = if newest { self.record.state.version } else { version };
        let InFlight::Save { end, version: sent } = in_flight else { return Vec::new() };
        let trusts = mutant!("ownership.take_an_extension_for_written");
        let version = if trusts { *sent } else { version };
        // The record had another version than the one to which bytes were to be added.
        self.must_save_whole = version < *sent;
        if self.must_save_whole {
            return Vec::new();
        }
        self.log_tail.cover(*end);
        self.saved = self.saved.max(version);
        vec![Outcome::Saved(version)]
    }

    fn claimed(&mut self, in_flight: &InFlight, claimed: &Claimed) -> Vec<Outcome> {
        let InFlight::Claim { lease_generation, failover_generation } = in_flight else {
            return Vec::new();
        };
        self.generations.claimed(*failover_generation);
        self.token_doubt = TokenDoubt::None;
        self.goal.token_changed();
        self.lease_generation = *lease_generation;
        if mutant!("ownership.act_on_under_the_older_token") {
            return Vec::new();
        }
        self.record.owner = claimed.record.owner;
        self.record.former.clone_from(&claimed.record.former);
        let reported = self.saved;
        self.saved = claimed.record.state.version.min(self.record.state.version);
        if mutant!("ownership.claim_trusts_its_own_state") {
            self.saved = self.record.state.version;
        }
        if !self.goal.is_end() {
            self.record.status = RecordStatus::Owned;
        }
        // The log may have lost its end while this node held no lease.
        self.rewrite = Rewrite::UnderLease;
        let mut outcomes = vec![Outcome::Reclaimed(self.token())];
        // The answer to the save that the record holds may have been lost.
        if self.saved > reported && !mutant!("ownership.claim_reports_no_state") {
            outcomes.push(Outcome::Saved(self.saved));
        }
        outcomes
    }

    fn failed(
        &mut self,
        snapshot: &LeaseSnapshot,
        in_flight: &InFlight,
        error: Error,
    ) -> Option<Outcome> {
        if let (InFlight::Append { end }, false) = (in_flight, rule!(ResendsWhole)) {
            self.acknowledged(*end);
        }
        let is_question = matches!(in_flight, InFlight::Claim { .. } | InFlight::Release { .. });
        if is_question && is_known(&error) {
            self.generations.owner_answered();
        }
        let ends = self.goal.is_end();
        match error {
            Error::Unavailable(_) if mutant!("ownership.an_unknown_outcome_is_a_success") => {
                self.appended(in_flight).into_iter().next()
            }
            Error::Unavailable(_) | Error::MarkedDead { .. } | Error::LeaseGone => {
                match in_flight {
                    // The append may have been the one that refreshes the time to live.
                    InFlight::Append { .. } => self.refresh.is_forced = true,
                    InFlight::Reassert(_) => self.generations.reassertion_failed(),
                    _ => {}
                }
                None
            }
            Error::Missing if ends && !rule!(ReassertsEnd) => self.end_ownership(Outcome::Ended),
            // The store has lost nothing since it was known to hold the whole session. The session
            // was therefore ended, or it expired, under another owner.
            Error::Missing
                if self.may_have_been_claimed(in_flight, snapshot)
                    && !ends
                    && !self.generations.is_forgotten(snapshot) =>
            {
                self.end_ownership(Outcome::Deposed)
            }
            Error::Missing if rule!(ReassertsMissing) => {
                self.token_doubt.forget_late_claim_and_its_successor();
                self.rewrite = Rewrite::UnderLease;
                None
            }
            Error::Missing => self.end_ownership(Outcome::Deposed),
            Error::Hole { .. } if mutant!("ownership.ignore_a_hole") => None,
            Error::Hole { .. } => {
                self.rewrite = Rewrite::UnderLease;
                None
            }
            Error::Fenced(_) if mutant!("ownership.deposed_is_released") => {
                self.end_ownership(Outcome::Released)
            }
            Error::Fenced(owner) => self.fenced(owner),
            Error::Released if self.goal.is_release_sent() => self.end_ownership(Outcome::Released),
            // A release under this token, which an earlier ownership of this session sent.
            Error::Released => self.end_ownership(Outcome::Deposed),
            Error::Ended if ends => self.end_ownership(Outcome::Ended),
            Error::Ended => self.end_ownership(Outcome::Deposed),
        }
    }

    /// Could another node have claimed the session before this was sent?
    fn may_have_been_claimed(&self, in_flight: &InFlight, snapshot: &LeaseSnapshot) -> bool {
        match in_flight {
            InFlight::Claim { .. } => self.has_lapsed(snapshot),
            InFlight::Release { again } => *again && rule!(EndsMissingWhereClaimable),
            InFlight::Append { .. }
            | InFlight::Reassert(_)
            | InFlight::Save { .. }
            | InFlight::End => false,
        }
    }

    /// The record names this owner under another token.
    fn fenced(&mut self, owner: Owner) -> Option<Outcome> {
        let is_older = self.record.came_after(owner.token);
        if (is_older || mutant!("ownership.replace_a_newer_owner")) && rule!(ReassertsFallenBack) {
            self.token_doubt.forget_late_claim();
            self.rewrite = Rewrite::FellBack;
            return None;
        }
        let mine: Incarnation = self.record.owner.node;
        if owner.node == mine && rule!(KnowsLateClaims) {
            // A claim of its own that was taken for lost, or whose outcome was not known.
            self.token_doubt = TokenDoubt::LateClaim(Box::new(owner.token));
            return None;
        }
        if !rule!(StopsWhenDeposed) {
            return None;
        }
        self.end_ownership(Outcome::Deposed)
    }

    fn end_ownership(&mut self, outcome: Outcome) -> Option<Outcome> {
        self.phase = Phase::Over;
        self.log_tail.clear();
        Some(outcome)
    }
}

/// Is the answer definite?
fn is_known(error: &Error) -> bool {
    !matches!(error, Error::Unavailable(_))
}
