//! Leases of nodes and dead marks, in Redis.

use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;

use super::answer::{bytes, script_result, text, unavailable, undecodable};
use super::command::RedisCommand;
use super::script::ScriptName;
use super::{Redis, layout, millis, revocations};
use crate::{Error, Incarnation, Lease, Marking, Presence, Renewed};

/// How often a dead mark is attempted again because other nodes joined during the attempt.
const ROUNDS_MAX: usize = 4;

/// Maximum number of nodes whose leases are read.
const NODES_MAX: usize = 4_096;

impl Redis {
    pub(super) async fn renew_lease(&self, lease: Lease, ttl: Duration) -> Result<Renewed, Error> {
        let keys = [self.keys.node(lease.incarnation), self.keys.nodes(), self.keys.revocations()];
        let text = layout::encode_lease(&lease);
        let command = RedisCommand::script(ScriptName::Renew, &keys)
            .arg(&text.ok_or_else(|| unavailable("the lease is too long for redis"))?)
            .arg(millis(ttl))
            .arg(lease.incarnation.to_string());
        let answer = self.leases.execute(command).await?.value;
        if matches!(&answer, Value::Array(words) if words[..] == [Value::Int(10)]) {
            return Err(unavailable(
                "the renewal arrived late: redis holds a newer one of this lease",
            ));
        }
        let words = script_result(answer)?;
        let was_there = matches!(words.first(), Some(Value::Int(1)));
        let generation = words.get(1).and_then(revocations::generation);
        let revocations = generation.ok_or_else(undecodable)?;
        Ok(Renewed { was_there, revocations })
    }

    pub(super) async fn end_lease(
        &self,
        incarnation: Incarnation,
        ttl: Duration,
    ) -> Result<(), Error> {
        let keys = [self.keys.node(incarnation), self.keys.nodes()];
        let command = RedisCommand::script(ScriptName::Leave, &keys)
            .arg(&layout::encode_node(incarnation))
            .arg(millis(ttl))
            .arg(incarnation.to_string());
        script_result(self.leases.execute(command).await?.value).map(drop)
    }

    pub(super) async fn live_nodes(&self) -> Result<Vec<Lease>, Error> {
        let members = self.members().await?;
        if members.is_empty() {
            return Ok(Vec::new());
        }
        let mut get = redis::cmd("MGET");
        for member in &members {
            get.arg(self.keys.node(*member));
        }
        let answer = self.client.execute(RedisCommand::new(&self.keys.nodes(), get)).await?;
        let Value::Array(leases) = answer.value else { return Err(undecodable()) };
        let mut foreign = None;
        let mut live = Vec::new();
        for (member, lease) in members.into_iter().zip(leases) {
            let Some(lease) = bytes(&lease) else { continue };
            match layout::decode_presence(member, lease) {
                Some(Presence::Live(lease)) => live.push(lease),
                Some(_) => {}
                // A program with another layout wrote it, so its links cannot be read.
                None => foreign = Some(member),
            }
        }
        self.log_foreign(foreign);
        Ok(live)
    }

    /// Logs a lease of another layout. It is logged again only after all such leases are gone.
    fn log_foreign(&self, foreign: Option<Incarnation>) {
        let was_logged = self.has_foreign_leases.swap(foreign.is_some(), Ordering::Relaxed);
        if let Some(node) = foreign.filter(|_| !was_logged) {
            tracing::warn!(
                %node,
                "a node's lease has another layout: its program is of a version that this node \
                 cannot work with, and requests for its sessions wait until it gives them up; see \
                 \"An upgrade that changes what nodes send each other\" in docs/deploying.md"
            );
        }
    }

    pub(super) async fn presence_of(&self, incarnation: Incarnation) -> Result<Presence, Error> {
        let key = self.keys.node(incarnation);
        let mut get = redis::cmd("GET");
        get.arg(&key);
        let answer = self.client.execute(RedisCommand::new(&key, get)).await?;
        match &answer.value {
            Value::Nil if !answer.is_acknowledged => {
                Err(unavailable("redis has a new primary, which may lack the node's lease"))
            }
            Value::Nil => Ok(Presence::Gone),
            value => {
                let presence = bytes(value).and_then(|b| layout::decode_presence(incarnation, b));
                presence.ok_or_else(undecodable)
            }
        }
    }

    pub(super) async fn mark_incarnation(
        &self,
        incarnation: Incarnation,
        by: Incarnation,
        also_dead: &[Incarnation],
        seen: Option<u64>,
        ttl: Duration,
    ) -> Result<Marking, Error> {
        for _ in 0..ROUNDS_MAX {
            let mut others = self.members().await?;
            others.retain(|other| ![incarnation, by].contains(other) && !also_dead.contains(other));
            let mut keys = vec![self.keys.node(incarnation), self.keys.node(by), self.keys.nodes()];
            keys.extend(others.iter().map(|other| self.keys.node(*other)));
            let mut command = RedisCommand::script(ScriptName::Mark, &keys)
                .arg(&layout::encode_node(incarnation))
                .arg(&layout::encode_node(by))
                .arg(millis(ttl))
                .arg(seen.map_or_else(Vec::new, |seen| seen.to_be_bytes().to_vec()));
            // The script reads the leases of `others` only.
            for member in others.iter().chain(also_dead).chain([&by, &incarnation]) {
                command = command.arg(member.to_string());
            }
            let answer = self.client.execute(command).await?.value;
            let Value::Array(words) = &answer else { return Err(undecodable()) };
            match &words[..] {
                [Value::Int(8)] => {}
                [Value::Int(9), other] => {
                    let other = text(other).and_then(Incarnation::parse);
                    return other.map(Marking::LinkedTo).ok_or_else(undecodable);
                }
                [Value::Int(12)] => return Ok(Marking::Renewed),
                _ => return script_result(answer).map(|_| Marking::Dead),
            }
        }
        Err(unavailable("the node was not marked dead: other nodes kept joining; try again"))
    }

    /// Every incarnation that may hold a lease.
    async fn members(&self) -> Result<Vec<Incarnation>, Error> {
        let key = self.keys.nodes();
        let mut range = redis::cmd("ZRANGE");
        range.arg(&key).arg(0).arg(NODES_MAX - 1);
        let answer = self.client.execute(RedisCommand::new(&key, range)).await?;
        let Value::Array(members) = answer.value else { return Err(undecodable()) };
        let member = |value| text(value).and_then(Incarnation::parse).ok_or_else(undecodable);
        members.iter().map(member).collect()
    }
}
