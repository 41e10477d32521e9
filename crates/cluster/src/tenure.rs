//! One session's ownership at its owner: which store operation is next, and what an answer means.
//!
//! A [`Tenure`] never waits, never reads a clock and performs nothing. Whoever holds it
//! asks [`Tenure::next`] what to do, does that one thing, and brings back what came of it.
//! It decides nothing about what a session says.

#[cfg(test)]
mod faults;
mod rules;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use protocol::SessionId;
use store::{
    Appended, Batch, Claimed, Error, Expected, Incarnation, Owner, Record, Standing, State, Token,
};
use thin_vec::ThinVec;

pub use self::rules::Rules;

/// The wait after a first failure, in milliseconds; it doubles with each further one.
const BACKOFF_MIN: u64 = 50;
/// The longest wait between two attempts, in milliseconds.
const BACKOFF_MAX: u64 = 2_000;
/// The wait while a failover settles, in milliseconds.
const SETTLING: u64 = 100;
/// The wait while the node holds no lease, in milliseconds. It ends when there is one.
const AWAY: u64 = 500;

/// How far the node knows what the session's primary holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Settling {
    /// It may have forgotten what others have yet to put back.
    First,
    /// They had time to.
    Second,
    /// All that will come back is back.
    Done,
}

/// What the node knows at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Milliseconds of the node's clock.
    pub now: u64,
    /// The epoch of its lease, where it may act.
    pub right: Option<u64>,
    /// Rises with each failover of the session's primary that was seen.
    pub era: u64,
    /// How far the newest failover has settled.
    pub settling: Settling,
}

/// What to do next in the store.
#[derive(Clone, Debug)]
pub enum Op {
    /// Append to the log.
    Append(Batch),
    /// Write record and ring anew.
    Reassert(Record, Batch),
    /// Save the state.
    Save {
        /// The right to.
        token: Token,
        /// What to save.
        state: State,
    },
    /// Claim the session.
    Claim {
        /// From whom.
        expected: Expected,
        /// As whom.
        new: Owner,
    },
    /// Give the session up.
    Release {
        /// The right to.
        token: Token,
    },
    /// End it.
    End {
        /// The right to.
        token: Token,
    },
}

/// What came of an operation.
#[derive(Debug)]
pub enum Came {
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
    /// The session is somebody else's, or over. Nothing may be done any more.
    Deposed,
    /// It is given up.
    Released,
    /// It is over.
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Under {
    /// Once it is done, nothing below this number is missing.
    Append {
        end: u64,
    },
    Reassert(Box<Reasserting>),
    Save,
    /// Under which right it was sent.
    Claim {
        right: u64,
    },
    Release,
    End,
}

/// A re-assertion that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reasserting {
    /// The era it was sent in.
    era: u64,
    /// The version of the state that it holds.
    version: u64,
    /// Once it is done, nothing below this number is missing.
    end: u64,
    /// It says that the session is over.
    ends: bool,
}

/// One session's ownership. What only a failover or a lapsed lease needs is boxed: every
/// session of a node keeps one of these.
#[derive(Debug)]
pub struct Tenure {
    session: SessionId,
    record: Record,
    ttl: Duration,
    rules: Rules,
    /// The epoch of the lease under which it was claimed.
    epoch: u64,
    /// The newest era in which it is known to be whole in the store.
    era: Option<u64>,
    /// What the log does not hold yet, oldest first, and the number of the first.
    unheld: ThinVec<Bytes>,
    first: u64,
    /// Up to which number it was told that all is held, or is not to be any more.
    told: u64,
    floor: u64,
    /// The version of the state that the record holds.
    saved: u64,
    under: Option<Under>,
    failures: u32,
    retry_at: u64,
    /// That is only because the node held no lease.
    away: bool,
    /// When the record's time to live is to begin anew, and that it is time now.
    refresh_at: u64,
    refresh: bool,
    /// The store forgot something: write all of it anew.
    anew: bool,
    /// A claim whose outcome is not known.
    claiming: Option<Box<(Expected, Owner)>>,
    /// The record names this node under this token.
    late: Option<Box<Token>>,
    releasing: bool,
    /// A release was sent.
    released: bool,
    ending: bool,
    over: bool,
}

impl Tenure {
    /// The ownership that a record states, written or claimed in this epoch of the lease.
    pub fn new(session: SessionId, record: Record, epoch: u64, ttl: Duration, now: u64) -> Self {
        Self {
            session,
            saved: record.state.version,
            record,
            ttl,
            rules: Rules::default(),
            epoch,
            era: None,
            unheld: ThinVec::new(),
            first: 1,
            told: 0,
            floor: 1,
            under: None,
            failures: 0,
            retry_at: 0,
            away: false,
            refresh_at: refresh_at(now, ttl),
            refresh: false,
            anew: false,
            claiming: None,
            late: None,
            releasing: false,
            released: false,
            ending: false,
            over: false,
        }
    }

    /// It was written or claimed in this era, or later: that of the moment before it was.
    /// Where that is not said, a failover before [`Tenure::next`] is first asked goes unseen.
    pub fn in_era(self, era: u64) -> Self {
        Self { era: Some(era), ..self }
    }

    /// By other rules than the protocol's. For tests.
    pub fn with_rules(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// Whose ownership it is.
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// The token that it is owned under.
    pub fn token(&self) -> Token {
        self.record.owner.token
    }

    /// What says that the session is over. While the store may yet fail over to where that
    /// is not known, whoever ended it keeps this, and [re-asserts](store::Store::reassert) it
    /// with each failover: an ended session, perhaps a stolen one, must not come back.
    pub fn tombstone(&self) -> Record {
        Record { standing: Standing::Ended, ..self.record.clone() }
    }

    /// The newest era in which the store is known to hold what it was told of the session.
    pub fn era(&self) -> u64 {
        self.era.unwrap_or(0)
    }

    /// Takes entries for the log.
    pub fn push(&mut self, first: u64, floor: u64, entries: Vec<Bytes>) {
        if self.over {
            return;
        }
        if self.unheld.is_empty() {
            self.first = first;
        }
        // Nothing but a raised floor is news as well.
        self.refresh |= entries.is_empty();
        self.unheld.extend(entries);
        self.floor = self.floor.max(floor);
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
        self.ending = true;
        self.record.standing = Standing::Ended;
    }

    /// May anything be done for the session now?
    pub fn may_act(&self, moment: &Moment) -> bool {
        let mine = moment.right.is_some_and(|right| self.is_claimed(right));
        let gone = self.over || (self.released && self.rules.release_is_last);
        mine && !gone && self.late.is_none()
    }

    fn is_claimed(&self, right: u64) -> bool {
        right == self.epoch || !self.rules.claims_after_lapse
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
        moment: &Moment,
        ring: impl FnOnce() -> (u64, Vec<Bytes>),
        random: u64,
    ) -> Option<Op> {
        if self.over || self.under.is_some() {
            return None;
        }
        if self.away && moment.right.is_some() {
            (self.away, self.retry_at) = (false, 0);
        }
        if moment.now < self.retry_at {
            return None;
        }
        if self.released && self.late.is_none() && self.rules.release_is_last {
            // It may have been done, and then nothing is this owner's to do any more.
            return self.give_up(moment, ring);
        }
        let Some(right) = moment.right else {
            // Nothing is due while nothing may be done.
            self.away = true;
            self.retry_at = moment.now + AWAY;
            return None;
        };
        self.era.get_or_insert(moment.era);
        // Also where the lease has lapsed since: it claims nothing, and whoever came after
        // this owner replaces it.
        if self.late.is_none() && (self.anew || self.is_forgotten(moment)) {
            return Some(self.reassert(moment.era, ring()));
        }
        if !self.is_claimed(right) || self.late.is_some() {
            if moment.settling == Settling::First && self.rules.claims_late_in_settling {
                // Whoever comes after this owner puts itself back first.
                self.retry_at = moment.now + SETTLING;
                return None;
            }
            return Some(self.claim(right, random));
        }
        if self.releasing && !self.rules.release_waits {
            return self.give_up(moment, ring);
        }
        if moment.now >= self.refresh_at {
            self.refresh |= self.rules.refreshes;
            self.refresh_at = refresh_at(moment.now, self.ttl);
        }
        if !self.ending && (!self.unheld.is_empty() || self.refresh) {
            return Some(self.append(moment.now));
        }
        if !self.ending && self.record.state.version > self.saved {
            self.under = Some(Under::Save);
            let state = self.record.state.clone();
            return Some(Op::Save { token: self.token(), state });
        }
        if self.ending {
            self.under = Some(Under::End);
            return Some(Op::End { token: self.token() });
        }
        if self.releasing {
            return self.give_up(moment, ring);
        }
        None
    }

    /// Has the store failed over since it was last known to hold everything?
    fn is_forgotten(&self, moment: &Moment) -> bool {
        self.era.is_some_and(|seen| seen < moment.era) && self.rules.reasserts_after_failover
    }

    fn give_up(&mut self, moment: &Moment, ring: impl FnOnce() -> (u64, Vec<Bytes>)) -> Option<Op> {
        if self.anew || self.is_forgotten(moment) {
            // The store forgot it, and perhaps the release with it. Where it did not, it
            // says so. Nobody may call the session unknown meanwhile, so at once.
            return Some(self.reassert(moment.era, ring()));
        }
        if moment.settling != Settling::Done && self.rules.releases_settled {
            self.retry_at = moment.now + SETTLING;
            return None;
        }
        self.released = true;
        self.under = Some(Under::Release);
        Some(Op::Release { token: self.token() })
    }

    fn claim(&mut self, right: u64, random: u64) -> Op {
        let mine = self.record.owner;
        let from = self.late.as_deref().copied().unwrap_or(mine.token);
        let again = self.claiming.as_deref().copied().filter(|(expected, _)| {
            self.rules.repeats_claims && *expected == Expected::Token(from)
        });
        let (expected, new) = again.unwrap_or_else(|| {
            let newest = if from.counter > mine.token.counter { from } else { mine.token };
            let new = Owner { token: newest.next(random), node: mine.node };
            (Expected::Token(from), new)
        });
        self.claiming = Some(Box::new((expected, new)));
        self.under = Some(Under::Claim { right });
        Op::Claim { expected, new }
    }

    fn reassert(&mut self, era: u64, (first, entries): (u64, Vec<Bytes>)) -> Op {
        let version = self.record.state.version;
        let end = first + entries.len() as u64;
        let reasserting = Reasserting { era, version, end, ends: self.ending };
        self.under = Some(Under::Reassert(Box::new(reasserting)));
        self.refresh = false;
        let batch = self.batch(first, first, entries);
        Op::Reassert(self.record.clone(), batch)
    }

    fn append(&mut self, now: u64) -> Op {
        // What lies below the floor is not replayable, so nobody misses it.
        let below = usize::try_from(self.floor.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let below = below.min(self.unheld.len());
        self.unheld.drain(..below);
        self.first += below as u64;
        if self.unheld.is_empty() {
            self.first = self.first.max(self.floor);
        }
        let prolongs = std::mem::take(&mut self.refresh);
        if prolongs {
            self.refresh_at = refresh_at(now, self.ttl);
        }
        let end = self.first + self.unheld.len() as u64;
        self.under = Some(Under::Append { end });
        let entries = self.unheld.iter().cloned().collect();
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

    /// Takes what came of the operation that was under way.
    pub fn came(&mut self, moment: &Moment, came: Came) -> Vec<Outcome> {
        let Some(under) = self.under.take() else { return Vec::new() };
        let came = match came {
            Came::Appended(Ok(_)) => Ok(self.appended(&under)),
            Came::Saved(Ok(version)) => {
                self.saved = self.saved.max(version);
                Ok(vec![Outcome::Saved(version)])
            }
            Came::Claimed(Ok(claimed)) => Ok(self.claimed(&under, &claimed)),
            Came::Done(Ok(())) => {
                self.over = true;
                let end = under == Under::End;
                Ok(vec![if end { Outcome::Ended } else { Outcome::Released }])
            }
            Came::Appended(Err(error)) => Err(error),
            Came::Saved(Err(error)) => Err(error),
            Came::Claimed(Err(error)) => Err(error),
            Came::Done(Err(error)) => Err(error),
        };
        match came {
            Ok(outcomes) => {
                self.failures = 0;
                self.retry_at = 0;
                outcomes
            }
            Err(error) => {
                let is_known = !matches!(error, Error::Unavailable(_));
                let outcome = self.failed(&under, error);
                if outcome.is_none() {
                    self.wait(moment.now, is_known);
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
        self.failures = self.failures.saturating_add(1);
    }

    fn appended(&mut self, under: &Under) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        match under {
            Under::Reassert(reasserting) if reasserting.ends => {
                self.over = true;
                outcomes.push(Outcome::Ended);
            }
            Under::Reassert(reasserting) => {
                let Reasserting { era, version, end, .. } = **reasserting;
                self.era = Some(era);
                self.anew = false;
                if version > self.saved {
                    self.saved = version;
                    outcomes.push(Outcome::Saved(version));
                }
                outcomes.extend(self.held(end));
            }
            Under::Append { end } => outcomes.extend(self.held(*end)),
            Under::Save | Under::Claim { .. } | Under::Release | Under::End => {}
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
        let through = self.first.saturating_sub(1);
        let is_news = through > self.told;
        self.told = self.told.max(through);
        is_news.then_some(Outcome::Through(through))
    }

    fn claimed(&mut self, under: &Under, claimed: &Claimed) -> Vec<Outcome> {
        let Under::Claim { right } = under else { return Vec::new() };
        self.claiming = None;
        self.late = None;
        // Not under this token.
        self.released = false;
        self.epoch = *right;
        self.record.owner = claimed.record.owner;
        self.record.former.clone_from(&claimed.record.former);
        self.saved = claimed.record.state.version.min(self.record.state.version);
        if !self.ending {
            self.record.standing = Standing::Owned;
        }
        // The log may have lost its end while others saw this node gone.
        self.anew = true;
        vec![Outcome::Reclaimed(self.token())]
    }

    fn failed(&mut self, under: &Under, error: Error) -> Option<Outcome> {
        if let (Under::Append { end }, false) = (under, self.rules.resends_whole) {
            self.held(*end);
        }
        match error {
            Error::Unavailable(_) | Error::MarkedDead { .. } | Error::LeaseGone => {
                // It may have been the one that prolongs.
                self.refresh |= matches!(under, Under::Append { .. });
                None
            }
            Error::Missing if self.ending && !self.rules.reasserts_end => self.gone(Outcome::Ended),
            Error::Missing if self.rules.reasserts_missing => {
                self.anew = true;
                None
            }
            Error::Missing => self.gone(Outcome::Deposed),
            Error::Hole { .. } => {
                self.anew = true;
                None
            }
            Error::Fenced(owner) => self.fenced(owner),
            Error::Released if self.released || *under == Under::Release => {
                self.gone(Outcome::Released)
            }
            // A release under this token, which a former life of this tenure sent.
            Error::Released => self.gone(Outcome::Deposed),
            Error::Ended if self.ending => self.gone(Outcome::Ended),
            Error::Ended => self.gone(Outcome::Deposed),
        }
    }

    fn fenced(&mut self, owner: Owner) -> Option<Outcome> {
        if self.record.came_after(owner.token) && self.rules.reasserts_fallen_back {
            self.anew = true;
            return None;
        }
        let mine: Incarnation = self.record.owner.node;
        if owner.node == mine && self.rules.knows_late_claims {
            // A claim of its own that was given up for lost, or whose outcome was not known.
            self.late = Some(Box::new(owner.token));
            self.claiming = None;
            return None;
        }
        if !self.rules.stops_when_deposed {
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

/// Often enough that the record never expires under a session that lives.
fn refresh_at(now: u64, ttl: Duration) -> u64 {
    now.saturating_add(u64::try_from(ttl.as_millis() / 4).unwrap_or(u64::MAX))
}
