//! Which sessions a tenant has: a list beside the sessions, in a slot of its own.
//!
//! It is written after the session or together with it, but never in one script, so it can
//! be behind: a session may be missing from it after a failover until it is re-asserted,
//! and may be on it after its end until the time it was expected to live. Appends prolong
//! a session and do not reach here. Whoever reads the list looks after those whose time on
//! it has come, a bounded number each time, and corrects it.

use std::time::Duration;

use protocol::SessionId;
use redis::Value;

use super::answer::{bytes, nonsense, outcome, text};
use super::client::{Call, Terms};
use super::script::Name;
use super::{Redis, millis};
use crate::metrics::Operation;
use crate::{Error, Standing, Store};

/// How many overdue sessions one reading looks after.
const OVERDUE_MAX: usize = 128;

/// How often a reading begins again because it corrected the list.
const ROUNDS_MAX: usize = 3;

/// A time to be overdue soon, after which somebody looks how long it really is.
const UNKNOWN: Duration = Duration::from_secs(1);

impl Redis {
    /// How many sessions a tenant has, and up to `max` of them.
    pub(super) async fn listed(
        &self,
        tenant: &str,
        max: usize,
    ) -> Result<(usize, Vec<SessionId>), Error> {
        let key = self.keys.tenant(tenant);
        for round in 1.. {
            let list = Call::script(Name::List, &[&key]).arg(max).arg(OVERDUE_MAX);
            let Value::Array(words) = self.client.call(list).await?.value else {
                return Err(nonsense());
            };
            let [Value::Int(count), Value::Array(overdue), Value::Array(listed)] = &words[..]
            else {
                return Err(nonsense());
            };
            if overdue.is_empty() || round == ROUNDS_MAX {
                let sessions = listed.iter().filter_map(|id| SessionId::parse(text(id)?));
                return Ok((usize::try_from(*count).unwrap_or(0), sessions.collect()));
            }
            self.settle(&key, overdue).await?;
        }
        Err(nonsense())
    }

    /// Finds out what became of overdue sessions, members and scores by turns, and writes it
    /// down.
    async fn settle(&self, key: &str, overdue: &[Value]) -> Result<(), Error> {
        let (mut calls, mut settle) = (Vec::new(), Call::script(Name::Settle, &[key]));
        for member in overdue.chunks_exact(2) {
            let session = text(&member[0]).and_then(SessionId::parse).ok_or_else(nonsense)?;
            let record = self.keys.record(&session);
            let (mut left, mut standing) = (redis::cmd("PTTL"), redis::cmd("GETRANGE"));
            left.arg(&record);
            standing.arg(&record).arg(1).arg(1);
            calls.extend([Call::new(&record, left), Call::new(&record, standing)]);
        }
        let answers = self.client.perform(calls).await;
        for (member, answers) in overdue.chunks_exact(2).zip(answers.chunks_exact(2)) {
            // Where the session cannot be reached, the next reading looks again.
            let [Ok(left), Ok(standing)] = answers else { continue };
            let [Some(session), Some(score)] = [bytes(&member[0]), bytes(&member[1])] else {
                continue;
            };
            let left = match (&left.value, bytes(&standing.value)) {
                (Value::Int(left), Some(b"O" | b"R")) => *left,
                _ => -1,
            };
            settle = settle.arg(session).arg(score).arg(left);
        }
        outcome(self.client.call(settle).await?.value).map(drop)
    }

    /// Puts a session on its tenant's list.
    pub(super) fn enlist_call(&self, tenant: &str, session: &SessionId, ttl: Duration) -> Call {
        let key = self.keys.tenant(tenant);
        Call::script(Name::Enlist, &[&key]).arg(session.as_str()).arg(millis(ttl)).on(Terms::Brief)
    }

    /// A session was put on a list, or taken off, and then was not written: what is
    /// true about it, if that is to be had right now?
    pub(super) async fn correct_list(&self, tenant: &str, session: &SessionId) {
        let Ok(record) = self.read(session).await else { return };
        match record.filter(|record| record.standing != Standing::Ended) {
            Some(record) if *record.tenant == *tenant => {
                let call = self.enlist_call(tenant, session, UNKNOWN);
                let _ = self.client.call(call).await;
            }
            _ => self.delist(tenant, session).await,
        }
    }

    /// Takes a session off its tenant's list.
    pub(super) fn delist_call(&self, tenant: &str, session: &SessionId) -> Call {
        let key = self.keys.tenant(tenant);
        let mut command = redis::cmd("ZREM");
        command.arg(&key).arg(session.as_str());
        let call = Call { operation: Operation::Delist, ..Call::new(&key, command) };
        call.on(Terms::Brief)
    }

    /// Takes a session off the list, if that is possible right now.
    pub(super) async fn delist(&self, tenant: &str, session: &SessionId) {
        let _ = self.client.call(self.delist_call(tenant, session)).await;
    }
}
