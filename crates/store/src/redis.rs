//! The store of a cluster of nodes: one Redis, a Redis Cluster, or one behind Sentinels.
//!
//! Each operation that writes is one script on the keys of one session, or on the keys of all
//! nodes. The scripts make every decision. `docs/redis.md` describes the keys, the guarantees of
//! each script, and the settings of Redis that they require.
//!
//! No operation waits longer than the configured timeout, but for one that writes more than 64 KiB: it waits up
//! to as long before that until others are written. After a timeout, as after any error
//! that leaves the outcome unknown, the result is [`Error::Unavailable`].

mod address;
mod answer;
mod append_window;
mod client;
mod cluster;
mod command;
mod connection;
mod corrupt;
mod dial;
mod keys;
mod layout;
mod leases;
mod outbox;
mod revocations;
mod scanning;
mod script;
mod sentinel;
mod settings;
mod warnings;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use protocol::SessionId;
use redis::Value;
use tokio::runtime::Handle;

use self::answer::{bytes, script_result, unavailable, undecodable};
use self::append_window::AppendWindow;
use self::client::Client;
use self::command::{LogEntries, PrimaryCondition, RedisCommand};
use self::keys::{Keys, slot};
use self::revocations::StoredRevocations;
use self::scanning::StoredSessions;
use self::script::ScriptName;
pub use self::settings::{Invalid, Secret, Settings};
use crate::{
    Appended, Batch, Claimed, Error, Expected, Incarnation, Lease, Marking, NoteKey, Owner,
    Presence, Primary, PrimaryId, Record, RecordStatus, Renewed, Revocation, RevocationGeneration,
    RevocationList, ScanCursor, Scanned, State, StateExtension, Store, Token,
};

/// A [`Store`] in Redis.
pub struct Redis {
    client: Arc<Client>,
    /// Connections for lease renewals only: a renewal must not queue behind other commands, such
    /// as the logs of all sessions after a failover.
    leases: Arc<Client>,
    keys: Keys,
    append_window: AppendWindow,
    /// Whether a lease of another layout was found and logged, so that it is logged once.
    has_foreign_leases: AtomicBool,
}

impl Redis {
    /// Starts to connect in the background, and reconnects until the store is dropped. Until
    /// Redis answers, operations fail with [`Error::Unavailable`].
    ///
    /// The connections run on the tokio runtime of the caller, which must outlive the store. Long log entries
    /// are copied there, too, which takes milliseconds: it should serve no clients.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn open(settings: Settings) -> Result<Self, Invalid> {
        let keys = Keys::new(&settings.prefix);
        let leases = Arc::new(Client::new(settings.clone(), &Handle::current())?);
        let append_window = AppendWindow::new(settings.append_window_ms);
        let client = Arc::new(Client::new(settings, &Handle::current())?);
        let has_foreign_leases = AtomicBool::new(false);
        Ok(Self { client, leases, keys, append_window, has_foreign_leases })
    }

    /// A script on the keys of a session's record and log.
    fn session_script(&self, name: ScriptName, session: &SessionId) -> RedisCommand {
        let keys = self.keys.session(session);
        RedisCommand::script(name, &keys)
    }

    /// Reads and writes by the connections for renewals: a renewal waits for what it reads.
    fn stored_revocations(&self) -> StoredRevocations<'_> {
        StoredRevocations::new(&self.leases, self.keys.revocations())
    }

    fn append_command(&self, batch: &Batch) -> RedisCommand {
        let mut command = self.session_script(ScriptName::Append, &batch.session);
        command.cmd.arg(&layout::encode_token(batch.token));
        command.cmd.arg(u8::from(batch.prolongs));
        add_entries(&mut command, batch);
        command
    }
}

/// Adds the batch's numbers, time to live and entries as arguments.
fn add_entries(command: &mut RedisCommand, batch: &Batch) {
    command.cmd.arg(batch.first).arg(batch.floor).arg(millis(batch.ttl));
    command.bytes += batch.entries.iter().map(Bytes::len).sum::<usize>();
    command.entries = LogEntries { first: batch.first, payloads: batch.entries.clone() };
}

/// The result of an append: the last number of the batch.
fn appended(batch: &Batch) -> Appended {
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
            .session_script(ScriptName::Create, session)
            .long_arg(&encoded(&record)?)
            .arg(&layout::encode_token(record.owner.token))
            .arg(millis(ttl));
        script_result(self.client.execute(create).await?.value).map(drop)
    }

    async fn read(&self, session: &SessionId) -> Result<Option<Record>, Error> {
        let key = self.keys.record(session);
        let mut get = redis::cmd("GET");
        get.arg(&key);
        let answer = self.client.execute(RedisCommand::new(&key, get)).await?;
        match &answer.value {
            Value::Nil if !answer.is_acknowledged => Err(unavailable(
                "redis has a new primary, which may lack the session; retry after its owner \
                     has re-asserted it",
            )),
            Value::Nil => Ok(None),
            value => {
                let bytes = bytes(value).ok_or_else(undecodable)?;
                match layout::decode_record(bytes) {
                    Some(record) => Ok(Some(record)),
                    None if layout::is_newer(bytes) => Err(undecodable()),
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
        let commands = vec![RedisCommand::new(&record, exists), RedisCommand::new(&log, range)];
        let mut answers = self.client.execute_all(commands).await.into_iter();
        let mut next = || answers.next().unwrap_or_else(|| Err(undecodable())).map(|a| a.value);
        match (next()?, next()?) {
            (Value::Int(0), _) => Ok(Vec::new()),
            (_, Value::Array(entries)) => decode_log(entries),
            _ => Err(undecodable()),
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
        let command = self
            .session_script(ScriptName::Claim, session)
            .arg(&layout::encode_token(new.token))
            .arg(&layout::encode_node(new.node))
            .arg(&expected)
            .arg(millis(ttl))
            .only_on(PrimaryCondition::At(at));
        let mut words = script_result(self.client.execute(command).await?.value)?.into_iter();
        let (Some(record), Some(Value::Array(log))) = (words.next(), words.next()) else {
            return Err(undecodable());
        };
        let bytes = bytes(&record).ok_or_else(undecodable)?;
        if let (Some(record), Ok(log)) = (layout::decode_record(bytes), decode_log(log)) {
            return Ok(Claimed { record, log });
        }
        self.end_corrupt(session, bytes).await?;
        Err(Error::Ended)
    }

    async fn append(&self, batch: Batch) -> Result<Appended, Error> {
        self.append_window.wait().await;
        script_result(self.client.execute(self.append_command(&batch)).await?.value)
            .map(|_| appended(&batch))
    }

    async fn reassert(&self, record: Record, ring: Batch) -> Result<Appended, Error> {
        let mut reassert = self
            .session_script(ScriptName::Reassert, &ring.session)
            .long_arg(&encoded(&record)?)
            .arg(&layout::encode_token(record.owner.token));
        add_entries(&mut reassert, &ring);
        let ends = record.status == RecordStatus::Ended;
        script_result(self.client.execute(reassert).await?.value)?;
        Ok(if ends { Appended { through: None } } else { appended(&ring) })
    }

    async fn save(&self, session: &SessionId, token: Token, state: State) -> Result<u64, Error> {
        let key = self.keys.record(session);
        let command = RedisCommand::script(ScriptName::Save, &[&key])
            .arg(&layout::encode_token(token))
            .arg(&state.version.to_be_bytes())
            .long_arg(&state.bytes.to_bytes())
            .arg(&[layout::layout(&state.bytes)]);
        decode_version(&script_result(self.client.execute(command).await?.value)?)
    }

    async fn extend_state(
        &self,
        session: &SessionId,
        token: Token,
        extension: StateExtension,
    ) -> Result<u64, Error> {
        let key = self.keys.record(session);
        let command = RedisCommand::script(ScriptName::ExtendState, &[&key])
            .arg(&layout::encode_token(token))
            .arg(&extension.after.to_be_bytes())
            .arg(&extension.version.to_be_bytes())
            .long_arg(&extension.bytes);
        decode_version(&script_result(self.client.execute(command).await?.value)?)
    }

    async fn release(
        &self,
        session: &SessionId,
        token: Token,
        at: Option<PrimaryId>,
        ttl: Duration,
    ) -> Result<(), Error> {
        let command = self
            .session_script(ScriptName::Release, session)
            .arg(&layout::encode_token(token))
            .arg(millis(ttl))
            .only_on(PrimaryCondition::At(at));
        script_result(self.client.execute(command).await?.value).map(drop)
    }

    async fn end(&self, session: &SessionId, token: Token, ttl: Duration) -> Result<(), Error> {
        let command = self
            .session_script(ScriptName::Finish, session)
            .arg(&layout::encode_token(token))
            .arg(millis(ttl));
        script_result(self.client.execute(command).await?.value).map(drop)
    }

    async fn renew(&self, lease: Lease, ttl: Duration) -> Result<Renewed, Error> {
        self.renew_lease(lease, ttl).await
    }

    async fn leave(&self, incarnation: Incarnation, ttl: Duration) -> Result<(), Error> {
        self.end_lease(incarnation, ttl).await
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
        self.mark_incarnation(incarnation, by, also_dead, seen, ttl).await
    }

    async fn revoke(
        &self,
        revocations: &[Revocation],
        now_ms: u64,
    ) -> Result<RevocationGeneration, Error> {
        self.stored_revocations().add(revocations, now_ms).await
    }

    async fn revocations(&self) -> Result<(RevocationGeneration, RevocationList), Error> {
        self.stored_revocations().read().await
    }

    async fn revocation_generation(&self) -> Result<RevocationGeneration, Error> {
        self.stored_revocations().read_generation().await
    }

    async fn scan(&self, from: ScanCursor, count: usize) -> Result<Scanned, Error> {
        StoredSessions::new(&self.client, &self.keys).page(from, count).await
    }

    async fn note(&self, key: &NoteKey) -> Result<Option<Bytes>, Error> {
        let key = self.keys.note(key);
        let mut get = redis::cmd("GET");
        get.arg(&key);
        note_in(self.client.execute(RedisCommand::new(&key, get)).await?.value)
    }

    async fn put_note(&self, key: &NoteKey, note: Bytes, ttl: Duration) -> Result<(), Error> {
        let key = self.keys.note(key);
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(&*note).arg("PX").arg(millis(ttl));
        self.client.execute(RedisCommand::new(&key, set)).await.map(drop)
    }

    async fn add_note(&self, key: &NoteKey, note: Bytes, ttl: Duration) -> Result<bool, Error> {
        let key = self.keys.note(key);
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(&*note).arg("PX").arg(millis(ttl)).arg("NX");
        let answer = self.client.execute(RedisCommand::new(&key, set)).await?;
        if answer.value != Value::Nil {
            return Ok(true);
        }
        let mut get = redis::cmd("GET");
        get.arg(&key);
        let present = note_in(self.client.execute(RedisCommand::new(&key, get)).await?.value)?;
        Ok(present == Some(note))
    }

    async fn take_note(&self, key: &NoteKey) -> Result<Option<Bytes>, Error> {
        let key = self.keys.note(key);
        let mut take = redis::cmd("GETDEL");
        take.arg(&key);
        note_in(self.client.execute(RedisCommand::new(&key, take)).await?.value)
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

fn note_in(value: Value) -> Result<Option<Bytes>, Error> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes.into())),
        _ => Err(undecodable()),
    }
}

/// Decodes the version that a script returns.
fn decode_version(words: &[Value]) -> Result<u64, Error> {
    let version = words.first().and_then(bytes).and_then(|bytes| bytes.try_into().ok());
    version.map(u64::from_be_bytes).ok_or_else(undecodable)
}

fn decode_log(entries: Vec<Value>) -> Result<Vec<(u64, Bytes)>, Error> {
    let decode = |entry| match entry {
        Value::BulkString(bytes) => layout::decode_entry(bytes).ok_or_else(undecodable),
        _ => Err(undecodable()),
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
