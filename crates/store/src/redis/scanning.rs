//! Pages of the sessions in Redis, by `SCAN`: Redis keeps no list of them.
//!
//! A page costs Redis as many steps through its keys as the caller names, also where the keys are those of
//! another program. The pages of a Redis Cluster are those of one primary after another.

use std::sync::Arc;

use redis::Value;

use super::answer::{bytes, text, unavailable, undecodable};
use super::client::Client;
use super::command::RedisCommand;
use super::keys::{Keys, SLOTS};
use crate::{Error, Primary, ScanCursor, Scanned};

/// The records in Redis.
pub(super) struct StoredSessions<'a> {
    client: &'a Arc<Client>,
    keys: &'a Keys,
}

impl<'a> StoredSessions<'a> {
    /// The records of these keys, by these connections.
    pub(super) fn new(client: &'a Arc<Client>, keys: &'a Keys) -> Self {
        Self { client, keys }
    }

    pub(super) async fn page(&self, from: ScanCursor, count: usize) -> Result<Scanned, Error> {
        let parts = parts(&self.client.primaries().await?)?;
        let Some(part) = parts.iter().copied().find(|part| *part >= from.part) else {
            return Ok(Scanned::default());
        };
        let position = if part == from.part { from.position } else { 0 };
        let mut scan = redis::cmd("SCAN");
        scan.arg(position).arg("MATCH").arg(self.keys.pattern_of_records());
        scan.arg("COUNT").arg(count.max(1));
        let command = RedisCommand { slot: part, ..RedisCommand::new("", scan) };
        let answer = self.client.execute(command).await?.value;
        let Value::Array(answer) = answer else { return Err(undecodable()) };
        let [position, Value::Array(keys)] = &answer[..] else { return Err(undecodable()) };
        let position = text(position).and_then(|text| text.parse().ok()).ok_or_else(undecodable)?;
        let session = |key: &Value| self.keys.session_of(std::str::from_utf8(bytes(key)?).ok()?);
        let next_part = parts.iter().copied().find(|other| *other > part);
        let next = match position {
            0 => next_part.map(|part| ScanCursor { part, position: 0 }),
            position => Some(ScanCursor { part, position }),
        };
        Ok(Scanned { sessions: keys.iter().filter_map(session).collect(), next })
    }
}

/// The lowest slot of each primary, in order. An error, if a primary is missing: its sessions would be as well.
fn parts(primaries: &[Primary]) -> Result<Vec<u16>, Error> {
    let all = [(0, SLOTS - 1)];
    let ranges_of = |primary: &Primary| primary.slots.clone().unwrap_or_else(|| all.to_vec());
    let ranges: Vec<_> = primaries.iter().map(ranges_of).collect();
    let kept = ranges.iter().flatten().map(|(first, last)| usize::from(last - first) + 1);
    if kept.sum::<usize>() < usize::from(SLOTS) {
        return Err(unavailable("a part of the redis cluster did not answer"));
    }
    let lowest = |ranges: &Vec<(u16, u16)>| ranges.iter().map(|(first, _)| *first).min();
    let mut parts: Vec<_> = ranges.iter().filter_map(lowest).collect();
    parts.sort_unstable();
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PrimaryId;

    #[test]
    fn each_primary_is_a_part_and_none_may_be_missing() {
        let of = |ranges: &[(u16, u16)]| Primary::of_slots(PrimaryId(1), ranges.to_vec());
        assert_eq!(parts(&[Primary::of_everything(PrimaryId(1))]).ok(), Some(vec![0]));
        let (one, two) = (of(&[(6_000, 16_383), (0, 99)]), of(&[(100, 5_999)]));
        assert_eq!(parts(&[two.clone(), one.clone()]).ok(), Some(vec![0, 100]));
        assert!(parts(&[one]).is_err() && parts(&[two]).is_err() && parts(&[]).is_err());
    }
}
