//! Revocations, in Redis: one value for all of them.
//!
//! The value is the generation in 16 bytes, the layout in 1 byte, and for each client the times in 8
//! bytes each, then its tenant and its principal, each after its length in 2 bytes. A node that adds one
//! reads the value, merges, and writes all of it if the generation is still the same. Their number is
//! bounded ([`ownership::revocation::REVOCATIONS_MAX`]), and they change seldom.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::answer::{bytes, script_result, unavailable, undecodable};
use super::client::Client;
use super::command::RedisCommand;
use super::layout::{Rest, put_text};
use super::millis;
use super::script::ScriptName;
use crate::{Error, Revocation, RevocationGeneration, RevocationList, RevocationTimes};

/// The layout of what follows the generation.
const LAYOUT: u8 = 1;

/// How often a revocation is added again because another node added one at the same time.
const ROUNDS_MAX: usize = 32;

/// How long Redis keeps revocations that do not change, while no node runs that would write them again:
/// ten years. A revocation that is not taken back does not end.
const KEPT: Duration = Duration::from_secs(10 * 366 * 24 * 3_600);

/// The value in Redis.
pub(super) struct StoredRevocations<'a> {
    client: &'a Arc<Client>,
    key: String,
}

impl<'a> StoredRevocations<'a> {
    /// The value of this key, by these connections.
    pub(super) fn new(client: &'a Arc<Client>, key: String) -> Self {
        Self { client, key }
    }

    pub(super) async fn add(
        &self,
        revocations: &[Revocation],
        now_ms: u64,
    ) -> Result<RevocationGeneration, Error> {
        let key = &self.key;
        for _ in 0..ROUNDS_MAX {
            let (held, mut list) = self.read().await?;
            if !list.merge_all(revocations) {
                return Ok(held);
            }
            list.remove_ended(now_ms);
            let next = held.next(RandomState::new().hash_one(now_ms));
            let encoded = encode(next, &list);
            let expected = if held == RevocationGeneration::NONE { &[][..] } else { &held.0 };
            let command = RedisCommand::script(ScriptName::Revoke, &[key])
                .arg(expected)
                .arg(&encoded.ok_or_else(|| unavailable("the name of a client is too long"))?)
                .arg(millis(KEPT));
            let answer = self.client.execute(command).await?.value;
            let is_late = matches!(&answer, Value::Array(words) if words[..] == [Value::Int(11)]);
            if !is_late {
                return script_result(answer).map(|_| next);
            }
        }
        Err(unavailable("the revocation was not written: other nodes kept writing; try again"))
    }

    pub(super) async fn read(&self) -> Result<(RevocationGeneration, RevocationList), Error> {
        let key = &self.key;
        let mut get = redis::cmd("GET");
        get.arg(key);
        match self.client.execute(RedisCommand::new(key, get)).await?.value {
            Value::Nil => Ok(Default::default()),
            value => bytes(&value).and_then(decode).ok_or_else(undecodable),
        }
    }

    pub(super) async fn read_generation(&self) -> Result<RevocationGeneration, Error> {
        let key = &self.key;
        let mut get = redis::cmd("GETRANGE");
        get.arg(key).arg(0).arg(15);
        let answer = self.client.execute(RedisCommand::new(key, get)).await?;
        generation(&answer.value).ok_or_else(undecodable)
    }
}

/// The generation, as the first bytes of the value or nothing.
pub(super) fn generation(value: &Value) -> Option<RevocationGeneration> {
    match bytes(value)? {
        [] => Some(RevocationGeneration::NONE),
        bytes => Some(RevocationGeneration(bytes.try_into().ok()?)),
    }
}

/// `None` if a name is longer than its length prefix can express.
fn encode(generation: RevocationGeneration, list: &RevocationList) -> Option<Vec<u8>> {
    let mut bytes = generation.0.to_vec();
    bytes.push(LAYOUT);
    for Revocation { tenant, principal, times } in list.all() {
        bytes.extend(times.revoked_ms.to_be_bytes());
        bytes.extend(times.lifted_ms.to_be_bytes());
        put_text(&mut bytes, &tenant)?;
        put_text(&mut bytes, &principal)?;
    }
    Some(bytes)
}

fn decode(bytes: &[u8]) -> Option<(RevocationGeneration, RevocationList)> {
    let mut rest = Rest(bytes);
    let generation = RevocationGeneration(*rest.array()?);
    if rest.byte()? != LAYOUT {
        return None;
    }
    let mut list = RevocationList::default();
    while !rest.0.is_empty() {
        let times = RevocationTimes { revoked_ms: rest.number()?, lifted_ms: rest.number()? };
        let (tenant, principal) = (rest.text()?.into(), rest.text()?.into());
        list.merge(&Revocation { tenant, principal, times });
    }
    Some((generation, list))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn revocations_decode_to_what_was_encoded_and_not_if_they_are_truncated() {
        let mut list = RevocationList::default();
        for (tenant, principal) in [("acme", "key:ada"), ("acme", "sub:https://i.example b c")] {
            let times = RevocationTimes { revoked_ms: 1 << 40, lifted_ms: 7 };
            list.merge(&Revocation { tenant: tenant.into(), principal: principal.into(), times });
        }
        let generation = RevocationGeneration::NONE.next(9);
        let bytes = encode(generation, &list).expect("short names");
        assert_eq!(decode(&bytes), Some((generation, list)));
        let ends: Vec<_> =
            (0..bytes.len()).filter(|end| decode(&bytes[..*end]).is_some()).collect();
        // Where a revocation ends, an earlier end is not noticed: Redis cuts no value off.
        assert_eq!(ends.len(), 2, "{ends:?}");
        assert!(decode(&[&bytes[..16], &[2], &bytes[17..]].concat()).is_none(), "another layout");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            decode(&bytes);
        }
    }
}
