//! One shard of the sessions, with their expiry.
//!
//! Every operation completes its checks before it changes anything.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use protocol::SessionId;

use super::log::Log;
use crate::{
    Appended, Batch, Claimed, Error, Expected, FORMER_MAX, Owner, Record, RecordStatus, State,
    StateBytes, StateExtension, Token,
};

/// The most tombstones of a shard. At the bound the oldest one is dropped before its time to live
/// ends: its session is then missing instead of ended, which a client cannot tell apart. This store
/// has no failover that could bring such a session back.
pub(super) const TOMBSTONES_MAX: usize = 4_096;

/// The table is not shrunk below this capacity.
const CAPACITY_MIN: usize = 64;

/// One shard of the sessions. Times are milliseconds of the store's clock.
#[derive(Debug, Default)]
pub(super) struct Shard {
    sessions: HashMap<SessionId, Box<Entry>>,
    /// When each session is next checked for expiry, one entry a session. Prolonging a session
    /// leaves its entry as it is: the check finds that the session has not expired and
    /// schedules the next one.
    expiry_checks: BTreeSet<(u64, SessionId)>,
    /// The sessions that ended, oldest first, of which some may have expired.
    tombstones: VecDeque<SessionId>,
}

#[derive(Debug)]
struct Entry {
    record: Record,
    log: Log,
    /// When the session expires.
    expires: u64,
    /// When the session is next checked for expiry; never after `expires`.
    next_check: u64,
}

impl Shard {
    pub(super) fn create(
        &mut self,
        session: &SessionId,
        record: Record,
        (now, expires): (u64, u64),
    ) -> Result<(), Error> {
        match self.find(session, now) {
            Err(Error::Missing) => {
                self.insert_session(session, record, Log::default(), expires);
                Ok(())
            }
            Err(other) => Err(other),
            Ok(entry) if entry.record.owner.token != record.owner.token => {
                Err(Error::Fenced(entry.record.owner))
            }
            Ok(entry) if entry.record.status == RecordStatus::Released => Err(Error::Released),
            Ok(_) => Ok(()),
        }
    }

    pub(super) fn read(&self, session: &SessionId, now: u64) -> Option<Record> {
        let entry = self.sessions.get(session).filter(|entry| entry.expires > now)?;
        Some(entry.record.clone())
    }

    pub(super) fn read_log(&self, session: &SessionId, now: u64) -> Vec<(u64, Bytes)> {
        let entry = self.sessions.get(session).filter(|entry| entry.expires > now);
        entry.map_or_else(Vec::new, |entry| entry.log.to_vec())
    }

    pub(super) fn claim(
        &mut self,
        session: &SessionId,
        expected: Expected,
        new: Owner,
        (now, expires): (u64, u64),
    ) -> Result<Claimed, Error> {
        let entry = self.find(session, now)?;
        let record = &mut entry.record;
        let released = record.status == RecordStatus::Released;
        if record.owner.token == new.token {
            if released {
                return Err(Error::Released);
            }
        } else {
            let as_expected = match expected {
                Expected::Token(token) => token == record.owner.token,
                Expected::Released => released,
            };
            if !as_expected || new.token.counter <= record.owner.token.counter {
                return Err(Error::Fenced(record.owner));
            }
            record.pass_to(new);
        }
        let claimed = Claimed { record: entry.record.clone(), log: entry.log.to_vec() };
        self.prolong(session, expires);
        Ok(claimed)
    }

    pub(super) fn append(
        &mut self,
        batch: Batch,
        (now, expires): (u64, u64),
    ) -> Result<Appended, Error> {
        let Batch { session, token, first, floor, entries, prolongs, .. } = batch;
        let appended = self.owned(&session, token, now)?.log.append(first, floor, entries)?;
        if prolongs {
            self.prolong(&session, expires);
        }
        Ok(appended)
    }

    pub(super) fn reassert(
        &mut self,
        record: Record,
        ring: Batch,
        (now, expires): (u64, u64),
    ) -> Result<Appended, Error> {
        let Batch { session, first, floor, entries, .. } = ring;
        let ends = record.status == RecordStatus::Ended;
        match self.find(&session, now) {
            // A session that is missing, or fell back to an earlier owner, is written again.
            Err(Error::Missing) => {}
            Ok(entry) if record.came_after(entry.record.owner.token) => {}
            Err(Error::Ended) if ends => return Ok(Appended { through: None }),
            Err(other) => return Err(other),
            Ok(_) => {
                let entry = self.owned(&session, record.owner.token, now)?;
                if !ends {
                    let appended = entry.log.append(first, floor, entries)?;
                    save(&mut entry.record, record.state);
                    self.prolong(&session, expires);
                    return Ok(appended);
                }
            }
        }
        if ends {
            self.insert_session(&session, tombstone(record), Log::default(), expires);
            return Ok(Appended { through: None });
        }
        let mut log = Log::default();
        let appended = log.append(first, floor, entries)?;
        self.insert_session(&session, record, log, expires);
        Ok(appended)
    }

    pub(super) fn save(
        &mut self,
        session: &SessionId,
        token: Token,
        state: State,
        now: u64,
    ) -> Result<u64, Error> {
        Ok(save(&mut self.owned(session, token, now)?.record, state))
    }

    pub(super) fn extend_state(
        &mut self,
        session: &SessionId,
        token: Token,
        extension: StateExtension,
        now: u64,
    ) -> Result<u64, Error> {
        let state = &mut self.owned(session, token, now)?.record.state;
        if state.version == extension.after {
            state.bytes.push(extension.bytes);
            state.version = extension.version;
        }
        Ok(state.version)
    }

    pub(super) fn sessions(&self, now: u64) -> Vec<SessionId> {
        let there = self.sessions.iter().filter(|(_, entry)| now < entry.expires);
        there.map(|(session, _)| session.clone()).collect()
    }

    pub(super) fn release(
        &mut self,
        session: &SessionId,
        token: Token,
        (now, expires): (u64, u64),
    ) -> Result<(), Error> {
        match self.owned(session, token, now) {
            Ok(entry) => entry.record.status = RecordStatus::Released,
            Err(Error::Released) => return Ok(()),
            Err(other) => return Err(other),
        }
        self.prolong(session, expires);
        Ok(())
    }

    pub(super) fn end(
        &mut self,
        session: &SessionId,
        token: Token,
        (now, expires): (u64, u64),
    ) -> Result<(), Error> {
        match self.owned(session, token, now) {
            Ok(entry) => {
                let record = tombstone(entry.record.clone());
                self.insert_session(session, record, Log::default(), expires);
                self.bound_tombstones(session);
                Ok(())
            }
            Err(Error::Ended) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Adds a tombstone to those that count, and drops the oldest one at the bound. The id of a
    /// session is never used again, so an entry that has expired names no other session.
    fn bound_tombstones(&mut self, ended: &SessionId) {
        self.tombstones.push_back(ended.clone());
        if self.tombstones.len() > TOMBSTONES_MAX
            && let Some(oldest) = self.tombstones.pop_front()
        {
            self.remove_session(&oldest);
        }
    }

    /// Checks up to `max` sessions for expiry, and returns how many it removed.
    pub(super) fn sweep(&mut self, now: u64, max: usize) -> usize {
        let mut forgotten = 0;
        for _ in 0..max {
            if self.expiry_checks.first().is_none_or(|(due, _)| *due > now) {
                break;
            }
            let Some((_, session)) = self.expiry_checks.pop_first() else { break };
            let Some(entry) = self.sessions.get_mut(&session) else { continue };
            if entry.expires > now {
                entry.next_check = entry.expires;
                self.expiry_checks.insert((entry.expires, session));
            } else {
                self.remove_session(&session);
                forgotten += 1;
            }
        }
        self.shrink();
        forgotten
    }

    /// The numbers of sessions and of scheduled checks.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        (self.sessions.len(), self.expiry_checks.len())
    }

    /// The capacity of the table of sessions.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.sessions.capacity()
    }

    /// Returns the session, unless it has expired or ended.
    fn find(&mut self, session: &SessionId, now: u64) -> Result<&mut Entry, Error> {
        let entry = self.sessions.get_mut(session).filter(|entry| entry.expires > now);
        let entry = entry.ok_or(Error::Missing)?;
        if entry.record.status == RecordStatus::Ended { Err(Error::Ended) } else { Ok(entry) }
    }

    /// Returns the session if `token` owns it.
    fn owned(&mut self, session: &SessionId, token: Token, now: u64) -> Result<&mut Entry, Error> {
        let entry = self.find(session, now)?;
        let record = &entry.record;
        if record.owner.token != token {
            Err(Error::Fenced(record.owner))
        } else if record.status == RecordStatus::Released {
            Err(Error::Released)
        } else {
            Ok(entry)
        }
    }

    /// Writes the session, replacing any entry that it has.
    fn insert_session(&mut self, session: &SessionId, mut record: Record, log: Log, expires: u64) {
        self.remove_session(session);
        record.former.truncate(FORMER_MAX);
        let entry = Box::new(Entry { record, log, expires, next_check: expires });
        self.expiry_checks.insert((expires, session.clone()));
        self.sessions.insert(session.clone(), entry);
    }

    fn remove_session(&mut self, session: &SessionId) {
        let Some(entry) = self.sessions.remove(session) else { return };
        self.expiry_checks.remove(&(entry.next_check, session.clone()));
    }

    fn prolong(&mut self, session: &SessionId, expires: u64) {
        let Some(entry) = self.sessions.get_mut(session) else { return };
        entry.expires = expires;
        if expires < entry.next_check {
            self.expiry_checks.remove(&(entry.next_check, session.clone()));
            entry.next_check = expires;
            self.expiry_checks.insert((expires, session.clone()));
        }
    }

    /// Frees memory of the table once most of it is unused.
    fn shrink(&mut self) {
        if self.sessions.capacity() > CAPACITY_MIN.max(self.sessions.len() * 4) {
            self.sessions.shrink_to(self.sessions.len() * 2);
        }
    }
}

/// Writes the state if it is newer. Returns the version that the record has afterwards.
fn save(record: &mut Record, state: State) -> u64 {
    if state.version > record.state.version {
        record.state = state;
    }
    record.state.version
}

/// The tombstone of a session that has ended.
fn tombstone(record: Record) -> Record {
    Record {
        former: Vec::new(),
        initialize: Arc::default(),
        state: State { version: record.state.version, bytes: StateBytes::default() },
        status: RecordStatus::Ended,
        ..record
    }
}
