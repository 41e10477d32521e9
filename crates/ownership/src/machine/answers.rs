//! What the answer to an operation means for the ownership.

use conversation::mutant;
use thin_vec::ThinVec;

use super::under::{Anew, Reasserting, Under};
use super::{LeaseSnapshot, OpResult, Outcome, Ownership};
use crate::rules::rule;
use crate::{Claimed, Error, Incarnation, Owner, RecordStatus};

/// The wait after a first failure, in milliseconds; it doubles with each further one.
const BACKOFF_MIN: u64 = 50;
/// The longest wait between two attempts, in milliseconds.
const BACKOFF_MAX: u64 = 2_000;

impl Ownership {
    /// Takes what came of the operation that was under way.
    pub fn completed(&mut self, snapshot: &LeaseSnapshot, result: OpResult) -> Vec<Outcome> {
        let Some(under) = self.under.take() else { return Vec::new() };
        let result = match result {
            OpResult::Appended(Ok(_)) => Ok(self.appended(&under)),
            OpResult::Saved(Ok(version)) => {
                let newest = mutant!("ownership.take_a_save_for_the_newest");
                let version = if newest { self.record.state.version } else { version };
                self.saved = self.saved.max(version);
                if let Under::Save { end } = under {
                    self.covered = self.covered.max(end);
                }
                Ok(vec![Outcome::Saved(version)])
            }
            OpResult::Claimed(Ok(claimed)) => Ok(self.claimed(&under, &claimed)),
            OpResult::Done(Ok(())) => {
                self.over = true;
                let end = under == Under::End;
                Ok(vec![if end { Outcome::Ended } else { Outcome::Released }])
            }
            OpResult::Appended(Err(error)) => Err(error),
            OpResult::Saved(Err(error)) => Err(error),
            OpResult::Claimed(Err(error)) => Err(error),
            OpResult::Done(Err(error)) => Err(error),
        };
        match result {
            Ok(outcomes) => {
                let is_retry = std::mem::take(&mut self.failures) > 0;
                self.retry_at = 0;
                if is_retry && mutant!("ownership.report_nothing_after_a_retry") {
                    return Vec::new();
                }
                outcomes
            }
            Err(error) => {
                let is_known = is_known(&error);
                let outcome = self.failed(snapshot, &under, error);
                if outcome.is_none() {
                    self.wait(snapshot.now, is_known);
                }
                outcome.into_iter().collect()
            }
        }
    }

    /// Waits before the next attempt; not where the store has said what is to be done, and
    /// said so for the first time.
    fn wait(&mut self, now: u64, is_known: bool) {
        let wait = (BACKOFF_MIN << self.failures.min(10)).min(BACKOFF_MAX);
        self.retry_at = if is_known && self.failures == 0 { 0 } else { now + wait };
        if mutant!("ownership.never_retry") {
            self.retry_at = u64::MAX;
        }
        self.failures = self.failures.saturating_add(1);
    }

    fn appended(&mut self, under: &Under) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        match under {
            Under::Reassert(reasserting) if reasserting.ends => {
                self.failover_generation = reasserting.failover_generation;
                self.over = true;
                outcomes.push(Outcome::Ended);
            }
            Under::Reassert(reasserting) => {
                let Reasserting { failover_generation, version, end, .. } = **reasserting;
                (self.failover_generation, self.sure) =
                    (failover_generation, self.sure.max(failover_generation));
                self.anew = Anew::No;
                if version > self.saved {
                    self.saved = version;
                    outcomes.push(Outcome::Saved(version));
                }
                outcomes.extend(self.held(end));
            }
            Under::Append { .. } if mutant!("ownership.acknowledge_what_came_since") => {
                outcomes.extend(self.held(u64::MAX));
            }
            Under::Append { end } => outcomes.extend(self.held(*end)),
            Under::Save { .. } | Under::Claim { .. } | Under::Release { .. } | Under::End => {}
        }
        outcomes
    }

    /// Everything below `end` is in the log, or below its floor.
    fn held(&mut self, end: u64) -> Option<Outcome> {
        let held = usize::try_from(end.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let held = held.min(self.unheld.len());
        self.unheld.drain(..held);
        if self.unheld.is_empty() {
            // An idle session keeps no buffer.
            self.unheld = ThinVec::new();
        }
        self.first += held as u64;
        // What was dropped meanwhile is below a floor that the log does not have yet.
        let through = self.first.min(end).saturating_sub(1);
        let is_news = through > self.told;
        self.told = self.told.max(through);
        is_news.then_some(Outcome::Through(through))
    }

    fn claimed(&mut self, under: &Under, claimed: &Claimed) -> Vec<Outcome> {
        let Under::Claim { lease_generation, failover_generation } = under else {
            return Vec::new();
        };
        self.sure = self.sure.max(*failover_generation);
        self.claiming = None;
        self.late = None;
        // Not under this token.
        self.released = false;
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
        if !self.ending {
            self.record.status = RecordStatus::Owned;
        }
        // The log may have lost its end while others saw this node gone.
        self.anew = Anew::UnderLease;
        let mut outcomes = vec![Outcome::Reclaimed(self.token())];
        // The answer to the save that the record holds may have been lost.
        if self.saved > reported && !mutant!("ownership.claim_reports_no_state") {
            outcomes.push(Outcome::Saved(self.saved));
        }
        outcomes
    }

    fn failed(&mut self, snapshot: &LeaseSnapshot, under: &Under, error: Error) -> Option<Outcome> {
        if let (Under::Append { end }, false) = (under, rule!(ResendsWhole)) {
            self.held(*end);
        }
        // The store was asked, and has said whom it names.
        if matches!(under, Under::Claim { .. } | Under::Release { .. }) && is_known(&error) {
            self.answered = self.seen;
        }
        match error {
            Error::Unavailable(_) if mutant!("ownership.an_unknown_outcome_is_a_success") => {
                self.appended(under).into_iter().next()
            }
            Error::Unavailable(_) | Error::MarkedDead { .. } | Error::LeaseGone => {
                // It may have been the one that prolongs.
                self.refresh |= matches!(under, Under::Append { .. });
                self.unwritten |= matches!(under, Under::Reassert(_));
                None
            }
            Error::Missing if self.ending && !rule!(ReassertsEnd) => self.gone(Outcome::Ended),
            // Nothing was forgotten since the session was last whole in the store: so it was
            // ended, or it expired, under another owner.
            Error::Missing
                if self.may_have_been_claimed(under, snapshot)
                    && !self.ending
                    && !self.is_forgotten(snapshot) =>
            {
                self.gone(Outcome::Deposed)
            }
            Error::Missing if rule!(ReassertsMissing) => {
                // A late claim was forgotten with the record, and so what was claimed from it.
                if self.late.take().is_some() {
                    self.claiming = None;
                }
                self.anew = Anew::UnderLease;
                None
            }
            Error::Missing => self.gone(Outcome::Deposed),
            Error::Hole { .. } if mutant!("ownership.ignore_a_hole") => None,
            Error::Hole { .. } => {
                self.anew = Anew::UnderLease;
                None
            }
            Error::Fenced(_) if mutant!("ownership.deposed_is_released") => {
                self.gone(Outcome::Released)
            }
            Error::Fenced(owner) => self.fenced(owner),
            Error::Released if self.released => self.gone(Outcome::Released),
            // A release under this token, which an earlier ownership of this session sent.
            Error::Released => self.gone(Outcome::Deposed),
            Error::Ended if self.ending => self.gone(Outcome::Ended),
            Error::Ended => self.gone(Outcome::Deposed),
        }
    }

    fn fenced(&mut self, owner: Owner) -> Option<Outcome> {
        let is_older = self.record.came_after(owner.token);
        if (is_older || mutant!("ownership.replace_a_newer_owner")) && rule!(ReassertsFallenBack) {
            self.late = None;
            self.anew = Anew::Yes;
            return None;
        }
        let mine: Incarnation = self.record.owner.node;
        if owner.node == mine && rule!(KnowsLateClaims) {
            // A claim of its own that was given up for lost, or whose outcome was not known.
            self.late = Some(Box::new(owner.token));
            self.claiming = None;
            return None;
        }
        if !rule!(StopsWhenDeposed) {
            return None;
        }
        self.gone(Outcome::Deposed)
    }

    fn gone(&mut self, outcome: Outcome) -> Option<Outcome> {
        self.over = true;
        self.unheld = ThinVec::new();
        Some(outcome)
    }
}

/// Has the store said what is the case?
fn is_known(error: &Error) -> bool {
    !matches!(error, Error::Unavailable(_))
}
