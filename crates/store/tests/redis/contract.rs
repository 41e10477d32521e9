//! Runs the contract of every store on each shape of Redis.
//!
//! Tests of expiry neither wait nor depend on the load of the machine. The store gets each time
//! to live multiplied by sixty, and the test reduces the remaining time of every key. A separate
//! test checks that Redis applies a time to live.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use protocol::SessionId;
use store::redis::{Redis, Settings};
use store::{
    Appended, Batch, Claimed, Error, Expected, Incarnation, Lease, Marking, Owner, PrimaryId,
    Record, Renewed, Store, StoreLayer, Token,
};

use crate::server::{connect, run};

/// The factor between a time of the store and a time of the test.
const SLOWNESS: u32 = 60;

/// Reduces the remaining time of a key and, in a set ordered by expiry, of every member.
const BRING_FORWARD: &str = "
local by = tonumber(ARGV[1])
if redis.call('TYPE', KEYS[1]).ok == 'zset' then
  local all = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
  for i = 1, #all, 2 do redis.call('ZADD', KEYS[1], all[i + 1] - by, all[i]) end
end
local left = redis.call('PTTL', KEYS[1])
if left >= 0 then redis.call('PEXPIRE', KEYS[1], math.max(left - by, 0)) end
";

/// A store on a Redis, with a prefix of its own.
pub(crate) struct World {
    store: Slow,
    prefix: String,
    /// Every server that keeps keys.
    servers: Vec<String>,
}

impl World {
    pub(crate) fn new(url: String, servers: Vec<String>) -> Self {
        let prefix = format!("t{:x}", RandomState::new().hash_one(0));
        let settings = Settings { prefix: prefix.clone(), timeout_ms: 10_000, ..Settings::at(url) };
        let store = Slow(Arc::new(Redis::open(settings).expect("the settings are right")));
        Self { store, prefix, servers }
    }
}

#[async_trait::async_trait]
impl store::contract::World for World {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn pass(&self, time: Duration) {
        let by = (time * SLOWNESS).as_millis().to_string();
        for server in &self.servers {
            let mut connection = connect(server).await;
            let pattern = format!("{}:*", self.prefix);
            let keys: Vec<String> = run(&mut connection, &["KEYS", &pattern]).await;
            for key in keys {
                let () = run(&mut connection, &["EVAL", BRING_FORWARD, "1", &key, &by]).await;
            }
        }
    }
}

mod standalone {
    use super::World;
    use crate::server::{shared, shared_url};

    fn world() -> World {
        World::new(shared_url(), vec![shared().url()])
    }

    store::contract!(world());
}

mod cluster {
    use super::World;
    use crate::clustered::shared;

    fn world() -> World {
        let cluster = shared();
        World::new(cluster.url(), cluster.primaries())
    }

    store::contract!(world());
}

/// A store that multiplies each time to live.
struct Slow(Arc<dyn Store>);

#[async_trait::async_trait]
impl StoreLayer for Slow {
    fn inner(&self) -> Result<Arc<dyn Store>, Error> {
        Ok(Arc::clone(&self.0))
    }

    async fn create(&self, id: &SessionId, record: Record, ttl: Duration) -> Result<(), Error> {
        self.0.create(id, record, ttl * SLOWNESS).await
    }

    async fn claim(
        &self,
        session: &SessionId,
        expected: Expected,
        new: Owner,
        at: Option<PrimaryId>,
        ttl: Duration,
    ) -> Result<Claimed, Error> {
        self.0.claim(session, expected, new, at, ttl * SLOWNESS).await
    }

    async fn append(&self, batch: Batch) -> Result<Appended, Error> {
        self.0.append(slower(batch)).await
    }

    async fn reassert(&self, record: Record, ring: Batch) -> Result<Appended, Error> {
        self.0.reassert(record, slower(ring)).await
    }

    async fn release(
        &self,
        session: &SessionId,
        token: Token,
        at: Option<PrimaryId>,
        ttl: Duration,
    ) -> Result<(), Error> {
        self.0.release(session, token, at, ttl * SLOWNESS).await
    }

    async fn end(&self, session: &SessionId, token: Token, ttl: Duration) -> Result<(), Error> {
        self.0.end(session, token, ttl * SLOWNESS).await
    }

    async fn leave(&self, incarnation: Incarnation, ttl: Duration) -> Result<(), Error> {
        self.0.leave(incarnation, ttl * SLOWNESS).await
    }

    async fn renew(&self, lease: Lease, ttl: Duration) -> Result<Renewed, Error> {
        self.0.renew(lease, ttl * SLOWNESS).await
    }

    async fn mark_dead(
        &self,
        incarnation: Incarnation,
        by: Incarnation,
        also_dead: &[Incarnation],
        seen: Option<u64>,
        ttl: Duration,
    ) -> Result<Marking, Error> {
        self.0.mark_dead(incarnation, by, also_dead, seen, ttl * SLOWNESS).await
    }
}

fn slower(batch: Batch) -> Batch {
    Batch { ttl: batch.ttl * SLOWNESS, ..batch }
}
