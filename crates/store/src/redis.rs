//! The store of a cluster of nodes: one Redis, a Redis Cluster, or one behind Sentinels.
//!
//! Each operation that writes is one script on the keys of one session, or on the keys of all
//! nodes. The scripts make every decision. `docs/redis.md` describes the keys, the guarantees of
//! each script, and the settings of Redis that they require.
//!
//! No operation waits longer than the configured timeout. After a timeout, as after any error
//! that leaves the outcome unknown, the result is [`Error::Unavailable`].

mod address;
mod answer;
mod client;
mod cluster;
mod corrupt;
mod dial;
mod doubts;
mod gather;
mod keys;
mod layout;
mod leases;
mod link;
mod outbox;
mod script;
mod sentinel;
mod settings;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use protocol::SessionId;
use redis::{Cmd, Value};
use tokio::runtime::Handle;

use self::answer::{bytes, nonsense, outcome, unavailable};
use self::client::{Call, Client, Terms};
use self::gather::Gather;
use self::keys::{Keys, slot};
use self::script::Name;
pub use self::settings::{Invalid, Secret, Settings};
use crate::metrics::Operation;
use crate::{
    Appended, Batch, Claimed, Error, Expected, Incarnation, Lease, Marking, Owner, Presence,
    Primary, PrimaryId, Record, RecordStatus, Renewed, State, Store, Token,
};

/// A [`Store`] in Redis.
pub struct Redis {
    client: Arc<Client>,
    /// Connections for lease renewals only: a renewal must not queue behind other commands, such
    /// as the logs of all sessions after a failover.
    leases: Arc<Client>,
    keys: Keys,
    gather: Gather,
    /// Whether a lease of another layout was found and logged, so that it is logged once.
    has_foreign_leases: AtomicBool,
}

impl Redis {
    /// Starts to connect in the background, and reconnects until the store is dropped. Until
    /// Redis answers, operations fail with [`Error::Unavailable`].
    ///
    /// The connections run on the tokio runtime of the caller, which must outlive the store.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn open(settings: Settings) -> Result<Self, Invalid> {
        let keys = Keys::new(&settings.prefix);
        let leases = Arc::new(Client::new(settings.clone(), &Handle::current())?);
        let gather = Gather::new(settings.append_window_ms);
        let client = Arc::new(Client::new(settings, &Handle::current())?);
        let has_foreign_leases = AtomicBool::new(false);
        Ok(Self { client, leases, keys, gather, has_foreign_leases })
    }

    /// A script on the keys of a session's record and log.
    fn on_session(&self, name: Name, session: &SessionId) -> Call {
        let keys = self.keys.session(session);
        Call::script(name, &keys)
    }

    fn append_call(&self, batch: &Batch) -> Call {
        let mut call = self.on_session(Name::Append, &batch.session);
        call.command.arg(&layout::encode_token(batch.token));
        call.command.arg(u8::from(batch.prolongs));
        add_entries(&mut call, batch);
        call
    }
}

impl Call {
    /// A script on these keys, which must all be in one slot.
    fn script<K: AsRef<str>>(name: Name, keys: &[K]) -> Self {
        let key = keys.first().map_or("", K::as_ref);
        Self { operation: name.into(), ..Self::new(key, name.on(keys)) }
    }

    /// A plain command. It counts as a read unless the caller sets another operation.
    fn new(key: &str, command: Cmd) -> Self {
        let (operation, terms) = (Operation::Read, Terms::Plain);
        Self { slot: slot(key.as_bytes()), command, operation, bytes: 0, terms }
    }

    fn arg(mut self, arg: impl redis::ToRedisArgs) -> Self {
        self.command.arg(arg);
        self
    }

    fn on(self, terms: Terms) -> Self {
        Self { terms, ..self }
    }
}

/// Adds the batch's numbers, time to live and entries as arguments.
fn add_entries(call: &mut Call, batch: &Batch) {
    call.command.arg(batch.first).arg(batch.floor).arg(millis(batch.ttl));
    for (number, entry) in (batch.first..).zip(&batch.entries) {
        call.command.arg(layout::encode_entry(number, entry));
        call.bytes += entry.len();
    }
}

/// The result of an append: the last number of the batch.
fn taken(batch: &Batch) -> Appended {
    let end = batch.first.saturating_add(batch.entries.len() as u64);
    Appended { through: end.checked_sub(1) }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl Store for Redis {
    async fn create(
        &self,
        session: &SessionId,
        record: Record,
        ttl: Duration,
    ) -> Result<(), Error> {
        let create = self
            .on_session(Name::Create, session)
            .arg(&encoded(&record)?)
            .arg(&layout::encode_token(record.owner.token))
            .arg(millis(ttl));
        outcome(self.client.call(create).await?.value).map(drop)
    }

    async fn read(&self, session: &SessionId) -> Result<Option<Record>, Error> {
        let key = self.keys.record(session);
        let mut get = redis::cmd("GET");
        get.arg(&key);
        let answer = self.client.call(Call::new(&key, get)).await?;
        match &answer.value {
            Value::Nil if !answer.is_acknowledged => Err(unavailable(
                "redis has a new primary, which may lack the session; retry after its owner \
                     has re-asserted it",
            )),
            Value::Nil => Ok(None),
            value => {
                let bytes = bytes(value).ok_or_else(nonsense)?;
                match layout::decode_record(bytes) {
                    Some(record) => Ok(Some(record)),
                    None if layout::is_newer(bytes) => Err(nonsense()),
                    None => self.end_corrupt(session, bytes).await.map(Some),
                }
            }
        }
    }

    async fn read_log(&self, session: &SessionId) -> Result<Vec<(u64, Bytes)>, Error> {
        let [record, log] = self.keys.session(session);
        let (mut exists, mut range) = (redis::cmd("EXISTS"), redis::cmd("LRANGE"));
        exists.arg(&record);
        range.arg(&log).arg(0).arg(-1);
        let calls = vec![Call::new(&record, exists), Call::new(&log, range)];
        let mut answers = self.client.perform(calls).await.into_iter();
        let mut next = || answers.next().unwrap_or_else(|| Err(nonsense())).map(|a| a.value);
        match (next()?, next()?) {
            (Value::Int(0), _) => Ok(Vec::new()),
            (_, Value::Array(entries)) => decode_log(entries),
            _ => Err(nonsense()),
        }
    }

    async fn claim(
        &self,
        session: &SessionId,
        expected: Expected,
        new: Owner,
        at: Option<PrimaryId>,
        ttl: Duration,
    ) -> Result<Claimed, Error> {
        let expected = match expected {
            Expected::Token(token) => layout::encode_token(token).to_vec(),
            Expected::Released => Vec::new(),
        };
        let call = self
            .on_session(Name::Claim, session)
            .arg(&layout::encode_token(new.token))
            .arg(&layout::encode_node(new.node))
            .arg(&expected)
            .arg(millis(ttl))
            .on(Terms::At(at));
        let mut words = outcome(self.client.call(call).await?.value)?.into_iter();
        let (Some(record), Some(Value::Array(log))) = (words.next(), words.next()) else {
            return Err(nonsense());
        };
        let bytes = bytes(&record).ok_or_else(nonsense)?;
        if let (Some(record), Ok(log)) = (layout::decode_record(bytes), decode_log(log)) {
            return Ok(Claimed { record, log });
        }
        self.end_corrupt(session, bytes).await?;
        Err(Error::Ended)
    }

    async fn append(&self, batch: Batch) -> Result<Appended, Error> {
        self.gather.wait().await;
        outcome(self.client.call(self.append_call(&batch)).await?.value).map(|_| taken(&batch))
    }

    async fn reassert(&self, record: Record, ring: Batch) -> Result<Appended, Error> {
        let mut reassert = self
            .on_session(Name::Reassert, &ring.session)
            .arg(&encoded(&record)?)
            .arg(&layout::encode_token(record.owner.token));
        add_entries(&mut reassert, &ring);
        let ends = record.status == RecordStatus::Ended;
        outcome(self.client.call(reassert).await?.value)?;
        Ok(if ends { Appended { through: None } } else { taken(&ring) })
    }

    async fn save(&self, session: &SessionId, token: Token, state: State) -> Result<u64, Error> {
        let key = self.keys.record(session);
        let call = Call::script(Name::Save, &[&key])
            .arg(&layout::encode_token(token))
            .arg(&state.version.to_be_bytes())
            .arg(&*state.bytes);
        let words = outcome(self.client.call(call).await?.value)?;
        let version = words.first().and_then(bytes).and_then(|bytes| bytes.try_into().ok());
        version.map(u64::from_be_bytes).ok_or_else(nonsense)
    }

    async fn release(
        &self,
        session: &SessionId,
        token: Token,
        at: Option<PrimaryId>,
        ttl: Duration,
    ) -> Result<(), Error> {
        let call = self
            .on_session(Name::Release, session)
            .arg(&layout::encode_token(token))
            .arg(millis(ttl))
            .on(Terms::At(at));
        outcome(self.client.call(call).await?.value).map(drop)
    }

    async fn end(&self, session: &SessionId, token: Token, ttl: Duration) -> Result<(), Error> {
        let call = self
            .on_session(Name::Finish, session)
            .arg(&layout::encode_token(token))
            .arg(millis(ttl));
        outcome(self.client.call(call).await?.value).map(drop)
    }

    async fn renew(&self, lease: Lease, ttl: Duration) -> Result<Renewed, Error> {
        self.renew_lease(lease, ttl).await
    }

    async fn leave(&self, incarnation: Incarnation, ttl: Duration) -> Result<(), Error> {
        self.leave_for_good(incarnation, ttl).await
    }

    async fn nodes(&self) -> Result<Vec<Lease>, Error> {
        self.live_nodes().await
    }

    async fn presence(&self, incarnation: Incarnation) -> Result<Presence, Error> {
        self.presence_of(incarnation).await
    }

    async fn mark_dead(
        &self,
        incarnation: Incarnation,
        by: Incarnation,
        also_dead: &[Incarnation],
        seen: Option<u64>,
        ttl: Duration,
    ) -> Result<Marking, Error> {
        self.mark(incarnation, by, also_dead, seen, ttl).await
    }

    async fn primaries(&self) -> Result<Vec<Primary>, Error> {
        self.client.primaries().await
    }

    fn acknowledge(&self, primaries: &[PrimaryId]) {
        self.client.acknowledge(primaries);
    }

    fn is_reachable(&self) -> bool {
        self.client.is_up()
    }
}

fn encoded(record: &Record) -> Result<Vec<u8>, Error> {
    layout::encode_record(record)
        .ok_or_else(|| unavailable("the session record is too long to be written to redis"))
}

fn decode_log(entries: Vec<Value>) -> Result<Vec<(u64, Bytes)>, Error> {
    let decode = |entry| match entry {
        Value::BulkString(bytes) => layout::decode_entry(bytes).ok_or_else(nonsense),
        _ => Err(nonsense()),
    };
    entries.into_iter().map(decode).collect()
}

/// Milliseconds for Redis, which accepts only whole numbers above zero.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).clamp(1, TTL_MS_MAX)
}

/// A hundred years. Redis adds the current time and refuses a sum that overflows.
const TTL_MS_MAX: u64 = 100 * 365 * 24 * 3_600 * 1_000;

/// The slot of a session's keys.
pub fn slot_of(session: &SessionId) -> u16 {
    slot(Keys::new("").record(session).as_bytes())
}

/// The slot of the keys about nodes.
pub fn slot_of_leases() -> u16 {
    slot(Keys::new("").nodes().as_bytes())
}
