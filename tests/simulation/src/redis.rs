//! A model of Redis for the store's client: one primary, perhaps a former one that does not know it
//! yet, and the data that a failover loses.
//!
//! The effect of a command is that of [`store::Memory`], which has the same contract tests as the
//! real Redis. Each write is recorded, so that a server can be built that has executed all writes
//! except the last ones, or except those of one session.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use ownership::{
    Appended, Batch, Claimed, Error, Expected, Incarnation, Lease, Marking, Owner, Presence,
    PrimaryId, Record, RecordStatus, Renewed, State, StateExtension, Token,
};
use protocol::SessionId;
use store::{Memory, Store};

/// The commands of a node.
#[derive(Clone, Debug)]
pub(super) enum Command {
    Create(SessionId, Record),
    Read(SessionId),
    Claim(SessionId, Expected, Owner),
    Append(Batch),
    Reassert(Record, Batch),
    Save(SessionId, Token, State),
    ExtendState(SessionId, Token, StateExtension),
    Release(SessionId, Token),
    End(SessionId, Token),
    Renew(Lease, u64),
    Nodes,
    Presence(Incarnation),
    /// The node, the node that marks it, and the nodes that are dead as well.
    MarkDead(Incarnation, Incarnation, Vec<Incarnation>, Option<u64>),
    Primaries,
}

/// The answers of Redis.
#[derive(Debug)]
pub(super) enum Answer {
    Done(Result<(), Error>),
    Read(Result<Option<Record>, Error>),
    Claimed(Result<Claimed, Error>),
    Appended(Result<Appended, Error>),
    Saved(Result<u64, Error>),
    Renewed(Result<Renewed, Error>),
    Nodes(Result<Vec<Lease>, Error>),
    Presence(Result<Presence, Error>),
    Marked(Result<Marking, Error>),
    Primaries(Result<PrimaryId, Error>),
}

/// How long tombstones and dead marks are kept: longer than any run.
pub(super) const TTL: Duration = Duration::from_secs(3_600);

/// How long a primary without a replica still accepts writes if it needs one, in milliseconds.
pub(super) const MAX_LAG: u64 = 2_000;

impl Command {
    /// The session of the command, if it has one.
    pub(super) fn session(&self) -> Option<&SessionId> {
        match self {
            Self::Create(session, _)
            | Self::Read(session)
            | Self::Claim(session, ..)
            | Self::Save(session, ..)
            | Self::ExtendState(session, ..)
            | Self::Release(session, _)
            | Self::End(session, _) => Some(session),
            Self::Append(batch) | Self::Reassert(_, batch) => Some(&batch.session),
            Self::Renew(..)
            | Self::Nodes
            | Self::Presence(_)
            | Self::MarkDead(..)
            | Self::Primaries => None,
        }
    }

    fn writes(&self) -> bool {
        !matches!(self, Self::Read(_) | Self::Nodes | Self::Presence(_) | Self::Primaries)
    }

    /// Whether the command is refused if memory is short.
    fn grows(&self) -> bool {
        match self {
            Self::Append(batch) => !batch.entries.is_empty(),
            Self::Create(..) | Self::Reassert(..) | Self::Save(..) | Self::ExtendState(..) => true,
            _ => false,
        }
    }

    /// Whether the command is only executed by a primary that its node knows.
    pub(super) fn is_for_a_told_primary(&self) -> bool {
        matches!(self, Self::Claim(..) | Self::Release(..))
    }

    /// The answer if the result of the command is unknown.
    pub(super) fn unanswered(&self, why: &str) -> Answer {
        let error = || Error::Unavailable(io::Error::other(why.to_owned()));
        match self {
            Self::Create(..) | Self::Release(..) | Self::End(..) => Answer::Done(Err(error())),
            Self::Read(_) => Answer::Read(Err(error())),
            Self::Claim(..) => Answer::Claimed(Err(error())),
            Self::Append(_) | Self::Reassert(..) => Answer::Appended(Err(error())),
            Self::Save(..) | Self::ExtendState(..) => Answer::Saved(Err(error())),
            Self::Renew(..) => Answer::Renewed(Err(error())),
            Self::Nodes => Answer::Nodes(Err(error())),
            Self::Presence(_) => Answer::Presence(Err(error())),
            Self::MarkDead(..) => Answer::Marked(Err(error())),
            Self::Primaries => Answer::Primaries(Err(error())),
        }
    }

    /// A short text for the trace.
    pub(super) fn brief(&self) -> String {
        match self {
            Self::Append(batch) => format!(
                "append {} {}+{} floor {}",
                short(batch.token),
                batch.first,
                batch.entries.len(),
                batch.floor
            ),
            Self::Reassert(record, batch) => format!(
                "reassert {} {}+{} {:?}",
                short(record.owner.token),
                batch.first,
                batch.entries.len(),
                record.status
            ),
            Self::Create(_, record) => format!("create {}", short(record.owner.token)),
            Self::Claim(_, Expected::Token(token), new) => {
                format!("claim {} -> {}", short(*token), short(new.token))
            }
            Self::Claim(_, Expected::Released, new) => {
                format!("claim released -> {}", short(new.token))
            }
            Self::Save(_, token, state) => format!("save {} v{}", short(*token), state.version),
            Self::ExtendState(_, token, extension) => {
                let (after, version) = (extension.after, extension.version);
                format!("save {} v{version} after v{after}", short(*token))
            }
            Self::Release(_, token) => format!("release {}", short(*token)),
            Self::End(_, token) => format!("end {}", short(*token)),
            Self::Read(_) => "read".to_owned(),
            Self::Renew(..) => "renew".to_owned(),
            Self::Nodes => "nodes".to_owned(),
            Self::Presence(of) => format!("presence {}", brief(*of)),
            Self::MarkDead(of, ..) => format!("mark dead {}", brief(*of)),
            Self::Primaries => "primaries".to_owned(),
        }
    }
}

impl Answer {
    /// A short text for the trace.
    pub(super) fn brief(&self) -> String {
        fn of<T>(result: &Result<T, Error>, ok: impl FnOnce(&T) -> String) -> String {
            match result {
                Ok(value) => ok(value),
                Err(Error::Unavailable(why)) => format!("unavailable ({why})"),
                Err(Error::Fenced(owner)) => format!("fenced by {}", short(owner.token)),
                Err(Error::Hole { last }) => format!("hole after {last:?}"),
                Err(Error::Missing) => "missing".to_owned(),
                Err(Error::Released) => "released".to_owned(),
                Err(Error::Ended) => "ended".to_owned(),
                Err(other) => other.to_string(),
            }
        }
        match self {
            Self::Done(came) => of(came, |()| "done".to_owned()),
            Self::Read(came) => of(came, |record| match record {
                None => "nothing".to_owned(),
                Some(record) => {
                    format!("{} {:?}", short(record.owner.token), record.status)
                }
            }),
            Self::Claimed(came) => {
                of(came, |claimed| format!("claimed, {} entries", claimed.log.len()))
            }
            Self::Appended(came) => of(came, |appended| format!("through {:?}", appended.through)),
            Self::Saved(came) => of(came, |version| format!("holds v{version}")),
            Self::Renewed(came) => of(came, |renewed| format!("was there: {}", renewed.was_there)),
            Self::Nodes(came) => of(came, |leases| format!("{} nodes", leases.len())),
            Self::Presence(came) => of(came, |presence| match presence {
                Presence::Live(_) => "live".to_owned(),
                Presence::Dead { .. } => "dead".to_owned(),
                Presence::Gone => "gone".to_owned(),
            }),
            Self::Marked(came) => of(came, |marking| format!("{marking:?}")),
            Self::Primaries(came) => of(came, |primary| format!("primary {:x}", primary.0)),
        }
    }
}

/// A short text for a token.
pub(super) fn short(token: Token) -> String {
    format!("{}.{:04x}", token.counter, token.random >> 48)
}

/// A short text for an incarnation.
pub(super) fn brief(incarnation: Incarnation) -> String {
    format!("{:04x}", incarnation.0 >> 48)
}

/// One Redis server.
struct Server {
    id: PrimaryId,
    memory: Memory,
    clock: Arc<AtomicU64>,
    /// How far its clock is ahead of the world's clock, in milliseconds.
    ahead: u64,
    /// Every write that it executed, with its time by the world's clock.
    history: Vec<(u64, Command)>,
    /// Since when it has no connected replica.
    alone_since: Option<u64>,
    /// How long records and logs are kept.
    ttl: Duration,
}

impl Server {
    fn new(id: PrimaryId, ahead: u64, ttl: Duration) -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&clock);
        let memory =
            Memory::with_clock(move || Duration::from_millis(read.load(Ordering::Relaxed)));
        Self { id, memory, clock, ahead, history: Vec::new(), alone_since: None, ttl }
    }

    /// A server that has executed these writes. Expiry is replicated as a time of day, so its own
    /// clock affects expiry only from now on.
    fn replay(id: PrimaryId, ahead: u64, from: &Self, history: Vec<(u64, Command)>) -> Self {
        let mut server = Self::new(id, ahead, from.ttl);
        for (at, command) in &history {
            server.clock.store(at + from.ahead, Ordering::Relaxed);
            server.perform(command.clone());
        }
        server.history = history;
        server
    }

    fn execute(&mut self, now: u64, command: Command) -> Answer {
        self.clock.store(now + self.ahead, Ordering::Relaxed);
        if command.writes() {
            self.history.push((now, command.clone()));
        }
        self.perform(command)
    }

    /// Whether a script names a key of a session that does not exist. A read names only one key.
    fn lacks_a_key_of(&self, now: u64, command: &Command) -> bool {
        let Some(session) = command.session().filter(|_| !matches!(command, Command::Read(_)))
        else {
            return false;
        };
        self.clock.store(now + self.ahead, Ordering::Relaxed);
        let record = at_once(self.memory.read(session)).ok().flatten();
        let log = at_once(self.memory.read_log(session)).unwrap_or_default();
        record.is_none() || log.is_empty()
    }

    fn perform(&mut self, command: Command) -> Answer {
        let memory = &self.memory;
        match command {
            Command::Create(session, record) => {
                Answer::Done(at_once(memory.create(&session, record, self.ttl)))
            }
            Command::Read(session) => Answer::Read(at_once(memory.read(&session))),
            Command::Claim(session, expected, new) => {
                Answer::Claimed(at_once(memory.claim(&session, expected, new, None, self.ttl)))
            }
            Command::Append(batch) => Answer::Appended(at_once(memory.append(batch))),
            Command::Reassert(record, ring) => {
                Answer::Appended(at_once(memory.reassert(record, ring)))
            }
            Command::Save(session, token, state) => {
                Answer::Saved(at_once(memory.save(&session, token, state)))
            }
            Command::ExtendState(session, token, extension) => {
                Answer::Saved(at_once(memory.extend_state(&session, token, extension)))
            }
            Command::Release(session, token) => {
                Answer::Done(at_once(memory.release(&session, token, None, self.ttl)))
            }
            Command::End(session, token) => Answer::Done(at_once(memory.end(&session, token, TTL))),
            Command::Renew(lease, ttl) => {
                Answer::Renewed(at_once(memory.renew(lease, Duration::from_millis(ttl))))
            }
            Command::Nodes => Answer::Nodes(at_once(memory.nodes()).map(|mut leases| {
                // The leases are kept in a map with a random order.
                leases.sort_by_key(|lease| lease.incarnation);
                leases
            })),
            Command::Presence(of) => Answer::Presence(at_once(memory.presence(of))),
            Command::MarkDead(of, by, also_dead, seen) => {
                Answer::Marked(at_once(memory.mark_dead(of, by, &also_dead, seen, TTL)))
            }
            Command::Primaries => Answer::Primaries(Ok(self.id)),
        }
    }
}

/// Every Redis server that a node may still be connected to.
pub(super) struct Redis {
    servers: Vec<Server>,
    /// The server of a new connection.
    current: PrimaryId,
    next_id: u128,
    /// Memory is short: commands that need more memory are refused.
    pub(super) full: bool,
    /// `min-replicas-to-write` is set.
    pub(super) needs_replica: bool,
    /// Nothing is executed before this time.
    pub(super) away_until: u64,
    /// Until then the slots of all sessions are being moved.
    pub(super) moves_until: u64,
    ttl: Duration,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("current", &self.current).finish_non_exhaustive()
    }
}

impl Redis {
    pub(super) fn new(ttl: u64) -> Self {
        let id = PrimaryId(1);
        let ttl = Duration::from_millis(ttl);
        Self {
            servers: vec![Server::new(id, 0, ttl)],
            current: id,
            next_id: 2,
            full: false,
            needs_replica: false,
            away_until: 0,
            moves_until: 0,
            ttl,
        }
    }

    /// The primary of a new connection.
    pub(super) fn current(&self) -> PrimaryId {
        self.current
    }

    /// How far the clock of the current primary is ahead of the world's, in milliseconds.
    pub(super) fn ahead(&self) -> u64 {
        let current = self.servers.iter().find(|server| server.id == self.current);
        current.map_or(0, |server| server.ahead)
    }

    /// Executes a command that arrived at this server. `None` if the server no longer exists: the
    /// command has no answer.
    pub(super) fn execute(&mut self, now: u64, at: PrimaryId, command: Command) -> Option<Answer> {
        let (full, needs_replica) = (self.full, self.needs_replica);
        let moves = now < self.moves_until;
        let server = self.servers.iter_mut().find(|server| server.id == at)?;
        if full && command.grows() {
            return Some(command.unanswered("OOM"));
        }
        let alone = server.alone_since.is_some_and(|since| now >= since + MAX_LAG);
        if needs_replica && alone && command.writes() {
            return Some(command.unanswered("NOREPLICAS"));
        }
        if moves && server.lacks_a_key_of(now, &command) {
            // Neither side has all keys of the command.
            return Some(command.unanswered("TRYAGAIN"));
        }
        Some(server.execute(now, command))
    }

    /// Executes a part of a command, as a script does that fails half way: its first writes remain.
    pub(super) fn break_off(&mut self, now: u64, at: PrimaryId, command: Command) {
        let Some(server) = self.servers.iter_mut().find(|server| server.id == at) else { return };
        let half = |batch: Batch| {
            let entries = batch.entries[..batch.entries.len() / 2].to_vec();
            Batch { entries, ..batch }
        };
        let begun = match command {
            Command::Append(batch) => Command::Append(half(batch)),
            Command::Reassert(record, batch) => Command::Reassert(record, half(batch)),
            // These commands cannot fail between two writes.
            _ => return,
        };
        server.execute(now, begun);
    }

    /// A replica becomes the primary. It has not seen the writes after `seen_until`, and its clock
    /// is `ahead`. The former primary is gone, or, if it `lives_on`, does not know of the failover.
    pub(super) fn fail_over(&mut self, now: u64, seen_until: u64, ahead: u64, lives_on: bool) {
        let id = self.new_id();
        let Some(old) = self.servers.iter_mut().find(|server| server.id == self.current) else {
            return;
        };
        let seen = old.history.iter().filter(|(at, _)| *at <= seen_until).cloned().collect();
        let server = Server::replay(id, ahead, old, seen);
        old.alone_since = Some(now);
        if !lives_on {
            let gone = self.current;
            self.servers.retain(|server| server.id != gone);
        }
        self.servers.push(server);
        self.current = id;
    }

    /// The former primaries learn of the failover: the writes that only they executed are lost.
    pub(super) fn heal(&mut self) {
        let current = self.current;
        self.servers.retain(|server| server.id == current);
    }

    /// Redis starts again without data.
    pub(super) fn restart_empty(&mut self) {
        let id = self.new_id();
        self.servers = vec![Server::new(id, 0, self.ttl)];
        self.current = id;
    }

    /// The keys of a session are evicted; all of them, or only its log.
    pub(super) fn evict(&mut self, session: &SessionId, only_log: bool) {
        let current = self.current;
        let Some(server) = self.servers.iter_mut().find(|server| server.id == current) else {
            return;
        };
        let history = std::mem::take(&mut server.history);
        let kept = history.into_iter().filter_map(|(at, command)| {
            if command.session() != Some(session) {
                return Some((at, command));
            }
            if !only_log {
                return None;
            }
            match command {
                Command::Append(_) => None,
                Command::Reassert(record, batch) => {
                    let batch = Batch { floor: batch.first, entries: Vec::new(), ..batch };
                    Some((at, Command::Reassert(record, batch)))
                }
                other => Some((at, other)),
            }
        });
        let kept = kept.collect();
        *server = Server::replay(server.id, server.ahead, server, kept);
    }

    /// The record that the current primary holds.
    pub(super) fn record(&mut self, now: u64, session: &SessionId) -> Option<Record> {
        let server = self.servers.iter_mut().find(|server| server.id == self.current)?;
        server.clock.store(now + server.ahead, Ordering::Relaxed);
        at_once(server.memory.read(session)).ok().flatten()
    }

    /// The log that the current primary holds.
    pub(super) fn log(&mut self, session: &SessionId) -> Vec<(u64, Bytes)> {
        let server = self.servers.iter().find(|server| server.id == self.current);
        server.and_then(|server| at_once(server.memory.read_log(session)).ok()).unwrap_or_default()
    }

    /// Every session that the current primary has, except ended ones.
    pub(super) fn sessions(&mut self, now: u64) -> Vec<SessionId> {
        let mut sessions = self.with_ended();
        sessions.retain(|session| {
            self.record(now, session).is_some_and(|record| record.status != RecordStatus::Ended)
        });
        sessions
    }

    /// Every session of a write that the current primary executed.
    pub(super) fn with_ended(&self) -> Vec<SessionId> {
        let Some(server) = self.servers.iter().find(|server| server.id == self.current) else {
            return Vec::new();
        };
        let mut sessions: Vec<SessionId> =
            server.history.iter().filter_map(|(_, command)| command.session().cloned()).collect();
        sessions.sort();
        sessions.dedup();
        sessions
    }

    fn new_id(&mut self) -> PrimaryId {
        let id = PrimaryId(self.next_id);
        self.next_id += 1;
        id
    }
}

/// The output of a future that never waits.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("a store in memory never waits"),
    }
}
