//! A model of Redis as the store's client sees it: one primary, perhaps a former one that
//! does not know it yet, and what a failover makes them forget.
//!
//! What a command does is what [`store::Memory`] does, which is held to the same contract
//! as the real thing. Each write is remembered, so that a server can be made anew that
//! has seen all of them but the last, or none about one session.

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
    PrimaryId, Record, RecordStatus, Renewed, State, Token,
};
use protocol::SessionId;
use store::{Memory, Store};

/// What a node asks Redis for.
#[derive(Clone, Debug)]
pub(super) enum Command {
    Create(SessionId, Record),
    Read(SessionId),
    Claim(SessionId, Expected, Owner),
    Append(Batch),
    Reassert(Record, Batch),
    Save(SessionId, Token, State),
    Release(SessionId, Token),
    End(SessionId, Token),
    Renew(Lease, u64),
    Nodes,
    Presence(Incarnation),
    /// Whom, by whom, and who is dead as well.
    MarkDead(Incarnation, Incarnation, Vec<Incarnation>, Option<u64>),
    Primaries,
}

/// What Redis says to it.
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

/// How long tombstones and dead marks stand: longer than any run.
pub(super) const TTL: Duration = Duration::from_secs(3_600);

/// How long a primary without replica goes on taking writes where it must not.
pub(super) const MAX_LAG: u64 = 2_000;

impl Command {
    /// Whose keys it touches, where it is about a session.
    pub(super) fn session(&self) -> Option<&SessionId> {
        match self {
            Self::Create(session, _)
            | Self::Read(session)
            | Self::Claim(session, ..)
            | Self::Save(session, ..)
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

    /// Is it refused where memory is short?
    fn grows(&self) -> bool {
        match self {
            Self::Append(batch) => !batch.entries.is_empty(),
            Self::Create(..) | Self::Reassert(..) | Self::Save(..) => true,
            _ => false,
        }
    }

    /// Is it done only by a primary that its node was told of?
    pub(super) fn is_for_a_told_primary(&self) -> bool {
        matches!(self, Self::Claim(..) | Self::Release(..))
    }

    /// The answer to it that says nothing.
    pub(super) fn unanswered(&self, why: &str) -> Answer {
        let error = || Error::Unavailable(io::Error::other(why.to_owned()));
        match self {
            Self::Create(..) | Self::Release(..) | Self::End(..) => Answer::Done(Err(error())),
            Self::Read(_) => Answer::Read(Err(error())),
            Self::Claim(..) => Answer::Claimed(Err(error())),
            Self::Append(_) | Self::Reassert(..) => Answer::Appended(Err(error())),
            Self::Save(..) => Answer::Saved(Err(error())),
            Self::Renew(..) => Answer::Renewed(Err(error())),
            Self::Nodes => Answer::Nodes(Err(error())),
            Self::Presence(_) => Answer::Presence(Err(error())),
            Self::MarkDead(..) => Answer::Marked(Err(error())),
            Self::Primaries => Answer::Primaries(Err(error())),
        }
    }

    /// In few words, for the trace.
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
    /// In few words, for the trace.
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

/// A token, as people tell them apart.
pub(super) fn short(token: Token) -> String {
    format!("{}.{:04x}", token.counter, token.random >> 48)
}

/// An incarnation, as people tell them apart.
pub(super) fn brief(incarnation: Incarnation) -> String {
    format!("{:04x}", incarnation.0 >> 48)
}

/// One Redis server.
struct Server {
    id: PrimaryId,
    memory: Memory,
    clock: Arc<AtomicU64>,
    /// How far its clock is ahead of the world's.
    ahead: u64,
    /// Every write it took, and when by the world's clock.
    history: Vec<(u64, Command)>,
    /// From when on it has no replica that listens.
    alone_since: Option<u64>,
    /// How long records and logs stand.
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

    /// A server that has seen these writes. Expiry is replicated as a time of day, so what
    /// its own clock says about it counts only from now on.
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

    /// Does a script name a key of a session that is not there? Who reads names one key.
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
            Command::Release(session, token) => {
                Answer::Done(at_once(memory.release(&session, token, None, self.ttl)))
            }
            Command::End(session, token) => Answer::Done(at_once(memory.end(&session, token, TTL))),
            Command::Renew(lease, ttl) => {
                Answer::Renewed(at_once(memory.renew(lease, Duration::from_millis(ttl))))
            }
            Command::Nodes => Answer::Nodes(at_once(memory.nodes()).map(|mut leases| {
                // Kept in a map whose order is chance.
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

/// Every Redis server that somebody may still be connected to.
pub(super) struct Redis {
    servers: Vec<Server>,
    /// The one that a new connection finds.
    current: PrimaryId,
    next_id: u128,
    /// Memory is short: what grows is refused.
    pub(super) full: bool,
    /// `min-replicas-to-write` is set.
    pub(super) needs_replica: bool,
    /// Nothing is executed before this time.
    pub(super) away_until: u64,
    /// Until then the slots of all sessions are on the move.
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

    /// The primary that a new connection finds.
    pub(super) fn current(&self) -> PrimaryId {
        self.current
    }

    /// How far the clock of the current primary is ahead of the world's, in milliseconds.
    pub(super) fn ahead(&self) -> u64 {
        let current = self.servers.iter().find(|server| server.id == self.current);
        current.map_or(0, |server| server.ahead)
    }

    /// Does a command that came to this server. `None` where there is no such server any
    /// more: nobody will ever answer.
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
            // Neither side has all that is named.
            return Some(command.unanswered("TRYAGAIN"));
        }
        Some(server.execute(now, command))
    }

    /// Does a part of what was asked for, as a script does that fails half way: what it
    /// writes first is written.
    pub(super) fn break_off(&mut self, now: u64, at: PrimaryId, command: Command) {
        let Some(server) = self.servers.iter_mut().find(|server| server.id == at) else { return };
        let half = |batch: Batch| {
            let entries = batch.entries[..batch.entries.len() / 2].to_vec();
            Batch { entries, ..batch }
        };
        let begun = match command {
            Command::Append(batch) => Command::Append(half(batch)),
            Command::Reassert(record, batch) => Command::Reassert(record, half(batch)),
            // Nothing can fail between what these write.
            _ => return,
        };
        server.execute(now, begun);
    }

    /// A replica takes over that has not seen what was written after `seen_until`, and whose
    /// clock is `ahead`. The former primary is gone, or, where it `lives_on`, does not know.
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

    /// The former primaries learn that they are: what they alone were told is gone.
    pub(super) fn heal(&mut self) {
        let current = self.current;
        self.servers.retain(|server| server.id == current);
    }

    /// It starts again with nothing.
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

    /// Every session that the current primary has, but for tombstones.
    pub(super) fn sessions(&mut self, now: u64) -> Vec<SessionId> {
        let mut sessions = self.with_ended();
        sessions.retain(|session| {
            self.record(now, session).is_some_and(|record| record.status != RecordStatus::Ended)
        });
        sessions
    }

    /// Every session that the current primary was ever told of.
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

/// What a future comes to that never waits.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("a store in memory answers at once"),
    }
}
