//! Leases of nodes, and marks of dead ones.

use std::time::Duration;

use redis::Value;

use super::answer::{bytes, nonsense, outcome, text, unavailable};
use super::client::Call;
use super::script::Name;
use super::{Redis, layout, millis};
use crate::{Error, Incarnation, Lease, Marking, Presence, Renewed};

/// How often a marking begins again because nodes came meanwhile.
const ROUNDS_MAX: usize = 4;

/// Most nodes that are looked at.
const NODES_MAX: usize = 4_096;

impl Redis {
    pub(super) async fn renew_lease(&self, lease: Lease, ttl: Duration) -> Result<Renewed, Error> {
        let keys = [self.keys.node(lease.incarnation), self.keys.nodes()];
        let text = layout::encode_lease(&lease);
        let call = Call::script(Name::Renew, &keys)
            .arg(&text.ok_or_else(|| unavailable("the lease is too long for redis"))?)
            .arg(millis(ttl))
            .arg(lease.incarnation.to_string());
        let words = outcome(self.client.call(call).await?.value)?;
        Ok(Renewed { was_there: matches!(words.first(), Some(Value::Int(1))) })
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
        let answer = self.client.call(Call::new(&self.keys.nodes(), get)).await?;
        let Value::Array(leases) = answer.value else { return Err(nonsense()) };
        let lease = |(member, lease): (Incarnation, Value)| {
            match layout::decode_presence(member, bytes(&lease)?) {
                Some(Presence::Live(lease)) => Some(lease),
                // Dead, or of a version that says it in other words; its links to others
                // are not known then.
                _ => None,
            }
        };
        Ok(members.into_iter().zip(leases).filter_map(lease).collect())
    }

    pub(super) async fn presence_of(&self, incarnation: Incarnation) -> Result<Presence, Error> {
        let key = self.keys.node(incarnation);
        let mut get = redis::cmd("GET");
        get.arg(&key);
        match self.client.call(Call::new(&key, get)).await?.value {
            Value::Nil => Ok(Presence::Gone),
            value => {
                let presence = bytes(&value).and_then(|b| layout::decode_presence(incarnation, b));
                presence.ok_or_else(nonsense)
            }
        }
    }

    /// For a node that holds a lease. That of one that is marked is not asked for.
    pub(super) async fn left_of(
        &self,
        incarnation: Incarnation,
    ) -> Result<Option<Duration>, Error> {
        let key = self.keys.node(incarnation);
        let mut left = redis::cmd("PTTL");
        left.arg(&key);
        match self.client.call(Call::new(&key, left)).await?.value {
            Value::Int(left) => Ok(u64::try_from(left).ok().map(Duration::from_millis)),
            _ => Err(nonsense()),
        }
    }

    pub(super) async fn mark(
        &self,
        incarnation: Incarnation,
        by: Incarnation,
        ttl: Duration,
    ) -> Result<Marking, Error> {
        for _ in 0..ROUNDS_MAX {
            let mut others = self.members().await?;
            others.retain(|other| ![incarnation, by].contains(other));
            let mut keys = vec![self.keys.node(incarnation), self.keys.node(by), self.keys.nodes()];
            keys.extend(others.iter().map(|other| self.keys.node(*other)));
            let mut call = Call::script(Name::Mark, &keys)
                .arg(&layout::encode_node(incarnation))
                .arg(&layout::encode_node(by))
                .arg(millis(ttl));
            for member in others.iter().chain([&by, &incarnation]) {
                call = call.arg(member.to_string());
            }
            let answer = self.client.call(call).await?.value;
            let Value::Array(words) = &answer else { return Err(nonsense()) };
            match &words[..] {
                [Value::Int(8)] => {}
                [Value::Int(9), other] => {
                    let other = text(other).and_then(Incarnation::parse);
                    return other.map(Marking::LinkedTo).ok_or_else(nonsense);
                }
                _ => return outcome(answer).map(|_| Marking::Dead),
            }
        }
        Err(unavailable("nodes come faster than they can be looked at; try again"))
    }

    /// Everybody who may hold a lease.
    async fn members(&self) -> Result<Vec<Incarnation>, Error> {
        let key = self.keys.nodes();
        let mut range = redis::cmd("ZRANGE");
        range.arg(&key).arg(0).arg(NODES_MAX - 1);
        let answer = self.client.call(Call::new(&key, range)).await?;
        let Value::Array(members) = answer.value else { return Err(nonsense()) };
        let member = |value| text(value).and_then(Incarnation::parse).ok_or_else(nonsense);
        members.iter().map(member).collect()
    }
}
