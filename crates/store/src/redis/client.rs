//! Sends each command to the primary of its slot, until it is answered or its timeout is over.
//!
//! Every command is safe to repeat, so a command without an answer is sent again. A command
//! without an answer at the timeout has an unknown outcome. Commands to one server are sent in
//! one write, in order, and the outcome of one does not affect the others.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::{Pipeline, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::address::{Address, Shape};
use super::answer::{ErrorAction, error_action, refused, unavailable};
use super::cluster::Cluster;
use super::command::{PrimaryCondition, RedisCommand};
use super::connection::{OpenConnection, RedisConnection, Route, backoff};
use super::dial::{Dialer, primary_in};
use super::script;
use super::settings::{Invalid, Settings};
use crate::metrics::{self, Outcome};
use crate::{Error, Primary, PrimaryId};

/// Pauses between attempts, in milliseconds: the first and the longest.
const PAUSE: (u64, u64) = (5, 100);

/// How often a redirected command is sent on without a pause.
const HOPS_MAX: u32 = 4;

/// The answer to a command.
pub(super) struct RedisAnswer {
    pub(super) value: Value,
    /// Whether the caller acknowledged the primary that sent the answer.
    pub(super) is_acknowledged: bool,
}

/// The connections to every primary.
pub(super) struct Client {
    paths: Paths,
    settings: Settings,
    /// The runtime of the connections.
    runtime: Handle,
    /// The primaries that the caller acknowledged. `None` until it first reads the primaries: a
    /// caller that never does accepts any.
    acknowledged: Mutex<Option<HashSet<PrimaryId>>>,
}

enum Paths {
    Single(Arc<RedisConnection>),
    Cluster(Cluster),
}

/// A command without a final answer, and its index among the commands.
struct PendingCommand {
    place: usize,
    command: RedisCommand,
    /// The server that the command was redirected to, and whether `ASKING` precedes it.
    detour: Option<(Address, bool)>,
}

/// Commands to one server.
type Group = (Arc<RedisConnection>, Vec<PendingCommand>);

/// The result of one attempt to execute a command.
enum Attempted {
    Answer(Result<RedisAnswer, Error>),
    /// No final answer: the command is sent again.
    Again {
        pending: PendingCommand,
        why: Error,
        cause: RetryCause,
    },
}

/// Why a command is sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RetryCause {
    /// The slot has no connection, or the server did not answer.
    Unanswered,
    /// The server has not loaded the script.
    Script,
    /// Another server keeps the slot.
    Moved,
    /// The server cannot execute the command now.
    Busy,
    /// The server is no longer a primary.
    Deposed,
}

impl RetryCause {
    /// The label of the cause in metrics.
    const fn label(self) -> &'static str {
        match self {
            Self::Unanswered => "unanswered",
            Self::Script => "script",
            Self::Moved => "moved",
            Self::Busy => "busy",
            Self::Deposed => "deposed",
        }
    }

    /// Whether the retry waits for a pause.
    const fn needs_pause(self) -> bool {
        !matches!(self, Self::Script | Self::Moved)
    }
}

impl Client {
    /// Starts to connect in the background, on this runtime.
    pub(super) fn new(settings: Settings, runtime: &Handle) -> Result<Self, Invalid> {
        let target = settings.target()?;
        metrics::register_all();
        if target.tls {
            // A program that embeds this crate may have installed another provider before.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let dialer = Dialer::new(&settings, target.tls, target.login, target.db)?;
        let single = |route| {
            let connection = RedisConnection::new(route, dialer.clone(), &settings, runtime);
            Paths::Single(Arc::new(connection))
        };
        let paths = match target.shape {
            Shape::Single(address) => single(Route::Fixed(address)),
            Shape::Sentinel { sentinels, master } => {
                let dialer = Dialer::new(&settings, target.tls, settings.sentinel_login(), 0)?;
                single(Route::Sentinels { sentinels, master, dialer })
            }
            Shape::Cluster(seeds) => {
                Paths::Cluster(Cluster::new(seeds, dialer.clone(), &settings, runtime))
            }
        };
        Ok(Self { paths, settings, runtime: runtime.clone(), acknowledged: Mutex::default() })
    }

    /// Executes one command, apart from all others.
    pub(super) async fn execute_alone(&self, command: RedisCommand) -> Result<RedisAnswer, Error> {
        let mut answers = self.execute_all(vec![command]).await;
        answers.pop().unwrap_or_else(|| Err(unavailable("redis gave no answer")))
    }

    /// Executes a long command on the runtime of the connections, which copies it there. It is executed also
    /// if the caller goes away.
    pub(super) async fn execute_there(
        self: &Arc<Self>,
        command: RedisCommand,
    ) -> Result<RedisAnswer, Error> {
        let client = Arc::clone(self);
        let executing = self.runtime.spawn(async move { client.execute_alone(command).await });
        executing.await.unwrap_or_else(|error| Err(unavailable(format!("given up: {error}"))))
    }

    /// Executes commands and returns their answers, in the same order.
    pub(super) async fn execute_all(
        &self,
        commands: Vec<RedisCommand>,
    ) -> Vec<Result<RedisAnswer, Error>> {
        let mut answers: Vec<_> = commands.iter().map(|_| None).collect();
        self.execute_each(commands, |place, answer| answers[place] = Some(answer)).await;
        let unanswered = || Err(unavailable("redis gave no answer"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    /// Executes commands. Calls `on_answer` with the index and the answer of each command as soon as
    /// its server has answered. A slow server does not delay the commands to another one.
    pub(super) async fn execute_each(
        &self,
        commands: Vec<RedisCommand>,
        mut on_answer: impl FnMut(usize, Result<RedisAnswer, Error>),
    ) {
        let operations: Vec<_> = commands.iter().map(|command| command.operation).collect();
        let commands = commands.into_iter().enumerate();
        let pending = commands
            .map(|(place, command)| PendingCommand { place, command, detour: None })
            .collect();
        let start = Instant::now();
        let deadline = start + self.settings.timeout();
        let (groups, lost) = self.group_by_server(pending);
        let groups = groups.into_iter().map(|(_, group)| group);
        let groups = groups.chain((!lost.is_empty()).then_some(lost));
        let mut rounds: FuturesUnordered<_> =
            groups.map(|group| self.attempt_after_pause(group, 1, false, deadline)).collect();
        while let Some((attempt, results)) = rounds.next().await {
            let is_late = Instant::now() >= deadline;
            let mut rest = false;
            let mut pending = Vec::new();
            for (place, attempted) in results {
                match attempted {
                    Attempted::Answer(answer) => {
                        metrics::count_command(
                            operations[place],
                            final_outcome(&answer),
                            start.elapsed(),
                        );
                        on_answer(place, answer);
                    }
                    Attempted::Again { why, .. } if is_late => {
                        let answer = Err(why);
                        metrics::count_command(
                            operations[place],
                            final_outcome(&answer),
                            start.elapsed(),
                        );
                        on_answer(place, answer);
                    }
                    Attempted::Again { pending: again, cause, .. } => {
                        metrics::REPEATS.with_label_values(&[cause.label()]).inc();
                        rest |= cause.needs_pause();
                        pending.push(again);
                    }
                }
            }
            pending.sort_by_key(|pending| pending.place);
            if !pending.is_empty() {
                rounds.push(self.attempt_after_pause(
                    pending,
                    attempt + 1,
                    rest || attempt > HOPS_MAX,
                    deadline,
                ));
            }
        }
    }

    /// Sends each command once, after a pause if `rests`. Returns also the number of the attempt.
    async fn attempt_after_pause(
        &self,
        pending: Vec<PendingCommand>,
        attempt: u32,
        rests: bool,
        deadline: Instant,
    ) -> (u32, Vec<(usize, Attempted)>) {
        if rests {
            self.pause(attempt - 1, deadline).await;
        }
        (attempt, self.attempt_all(pending, deadline).await)
    }

    /// Sends each command once. Commands to one server are sent together.
    async fn attempt_all(
        &self,
        pending: Vec<PendingCommand>,
        deadline: Instant,
    ) -> Vec<(usize, Attempted)> {
        let (groups, lost) = self.group_by_server(pending);
        if !lost.is_empty() {
            self.refresh();
        }
        let lost = lost.into_iter().map(|pending| {
            let why = unavailable("no primary of the redis cluster is known for the slot");
            (pending.place, Attempted::Again { pending, why, cause: RetryCause::Unanswered })
        });
        let mut results: Vec<_> = lost.collect();
        let groups = groups
            .into_iter()
            .map(|(connection, group)| self.send_group(connection, group, deadline));
        results.extend(join_all(groups).await.into_iter().flatten());
        results
    }

    /// Groups commands by server. The second list has the commands without a known server.
    fn group_by_server(&self, pending: Vec<PendingCommand>) -> (Vec<Group>, Vec<PendingCommand>) {
        let (mut groups, mut lost) = (Vec::<Group>::new(), Vec::new());
        for pending in pending {
            let Some(connection) = self.connection(&pending) else {
                lost.push(pending);
                continue;
            };
            match groups.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &connection)) {
                Some((_, group)) => group.push(pending),
                None => groups.push((connection, vec![pending])),
            }
        }
        (groups, lost)
    }

    /// Sends a group to its server, in as many writes as the bounds of a write require. Each
    /// write has a timeout of its own, which starts once the write before it was answered.
    async fn send_group(
        &self,
        connection: Arc<RedisConnection>,
        group: Vec<PendingCommand>,
        mut deadline: Instant,
    ) -> Vec<(usize, Attempted)> {
        let mut results = Vec::with_capacity(group.len());
        let mut group = group.into_iter().peekable();
        while group.peek().is_some() {
            let (mut write, mut bytes) = (Vec::new(), 0);
            while let Some(next) = group.next_if(|_| {
                bytes < self.settings.batch_bytes_max
                    && write.len() < self.settings.batch_commands_max
            }) {
                bytes += next.command.bytes;
                write.push(next);
            }
            match self.send_write(&connection, write, deadline).await {
                Ok(answered) => results.extend(answered),
                Err((write, why)) => {
                    self.refresh();
                    for pending in write.into_iter().chain(group) {
                        let why = Error::Unavailable(io::Error::new(why.kind(), why.to_string()));
                        results.push((
                            pending.place,
                            Attempted::Again { pending, why, cause: RetryCause::Unanswered },
                        ));
                    }
                    break;
                }
            }
            deadline = deadline.max(Instant::now() + self.settings.timeout());
        }
        results
    }

    /// Sends one write and reads its answers. An error applies to all commands of the write. The timeout of
    /// a long command starts anew when it has its turn: what it waits for is the length of the others.
    async fn send_write(
        &self,
        connection: &RedisConnection,
        write: Vec<PendingCommand>,
        mut deadline: Instant,
    ) -> Result<Vec<(usize, Attempted)>, (Vec<PendingCommand>, io::Error)> {
        // Few bytes of long commands are on their way at a time, so that answers to others are read in between.
        let long_bytes = write.iter().map(|pending| pending.command.long_bytes()).sum();
        let _turn = match connection.turn(long_bytes, deadline).await {
            Ok(turn) => turn,
            Err(why) => return Err((write, why)),
        };
        if long_bytes > 0 {
            deadline = deadline.max(Instant::now() + self.settings.timeout());
        }
        let open = match connection.wait_until_open(deadline).await {
            Ok(open) => open,
            Err(why) => return Err((write, why)),
        };
        let is_acknowledged = self.is_acknowledged(open.primary);
        let mut pipeline = Pipeline::with_capacity(write.len());
        // The indices of answers to commands; the other answers are to `ASKING`.
        let mut places = Vec::with_capacity(write.len());
        let mut results = Vec::with_capacity(write.len());
        let mut sent = Vec::with_capacity(write.len());
        for mut pending in write {
            // Checked at each attempt: a failover may have happened since the last one.
            let may_be_sent = match pending.command.primary {
                PrimaryCondition::At(Some(expected)) => expected == open.primary,
                PrimaryCondition::At(None) => is_acknowledged,
                PrimaryCondition::Any => true,
            };
            if !may_be_sent {
                // The slot may have moved, so the caller's next read needs a new map.
                self.refresh();
                let why = refused(
                    "redis has another primary than the one that was read; read the session again",
                );
                results.push((pending.place, Attempted::Answer(Err(why))));
                continue;
            }
            if let Some((_, true)) = pending.detour.take() {
                pipeline.cmd("ASKING");
            }
            places.push(pipeline.len());
            pipeline.add_command(pending.command.to_cmd());
            sent.push(pending);
        }
        if sent.is_empty() {
            return Ok(results);
        }
        let mut values = match connection.send(&open, &pipeline, deadline).await {
            Ok(values) => values,
            Err(why) => return Err((sent, why)),
        };
        let (mut load, mut reconnect) = (false, false);
        for (pending, place) in sent.into_iter().zip(places) {
            let value = std::mem::take(&mut values[place]);
            let Value::ServerError(error) = value else {
                results.push((
                    pending.place,
                    Attempted::Answer(Ok(RedisAnswer { value, is_acknowledged })),
                ));
                continue;
            };
            let action = error_action(&error, &open.address);
            load |= action == ErrorAction::Load;
            reconnect |= action == ErrorAction::Reconnect;
            results.push((pending.place, self.retry_or_fail(pending, action, &open, error.code())));
        }
        if load {
            // If this fails, the next attempt fails too.
            let _ = connection.send(&open, &script::load_all(), deadline).await;
        }
        if reconnect {
            connection.drop_connection(&open, "the server is no longer a primary");
            self.refresh();
        }
        Ok(results)
    }

    /// Decides whether a command that was answered with an error is sent again.
    fn retry_or_fail(
        &self,
        mut pending: PendingCommand,
        action: ErrorAction,
        open: &OpenConnection,
        code: &str,
    ) -> Attempted {
        let why = unavailable(format!("redis at {} answered {code}", open.address));
        let cause = match (action, &self.paths) {
            (ErrorAction::Refused(why), _) => return Attempted::Answer(Err(refused(why))),
            (ErrorAction::Load, _) => RetryCause::Script,
            (ErrorAction::Wait, _) => RetryCause::Busy,
            (ErrorAction::Reconnect, _) => RetryCause::Deposed,
            (ErrorAction::Moved(_) | ErrorAction::Ask(_), Paths::Single(_)) => {
                let why = "this redis is part of a cluster; use redis+cluster:// in its URL";
                return Attempted::Answer(Err(refused(why)));
            }
            (ErrorAction::Moved(address), Paths::Cluster(_)) => {
                self.refresh();
                pending.detour = Some((address, false));
                RetryCause::Moved
            }
            (ErrorAction::Ask(address), Paths::Cluster(_)) => {
                pending.detour = Some((address, true));
                RetryCause::Moved
            }
        };
        if cause.needs_pause() {
            self.refresh();
        }
        Attempted::Again { pending, why, cause }
    }

    /// Every primary that answers, with its slots.
    pub(super) async fn primaries(&self) -> Result<Vec<Primary>, Error> {
        let known = match &self.paths {
            Paths::Single(connection) => vec![(Arc::clone(connection), None)],
            Paths::Cluster(cluster) => {
                if cluster.primaries().is_empty() {
                    let _ = timeout(self.settings.timeout(), cluster.refreshed()).await;
                }
                cluster
                    .primaries()
                    .into_iter()
                    .map(|(connection, slots)| (connection, Some(slots)))
                    .collect()
            }
        };
        let asked = join_all(known.into_iter().map(|(connection, slots)| async move {
            let id = self.primary_at(&connection).await?;
            Ok(Primary { id, slots })
        }));
        let (mut primaries, mut failed) = (Vec::new(), None);
        for answer in asked.await {
            match answer {
                Ok(primary) => primaries.push(primary),
                Err(why) => failed = Some(why),
            }
        }
        if failed.is_some() {
            self.refresh();
        }
        if primaries.is_empty() {
            let none = || unavailable("no node of the redis cluster answered");
            return Err(failed.unwrap_or_else(none));
        }
        // Before the first answer, the caller has made no decision that a failover could void.
        let ids = || primaries.iter().map(|primary: &Primary| primary.id).collect();
        self.acknowledged().get_or_insert_with(ids);
        Ok(primaries)
    }

    /// Replaces the set of acknowledged primaries. Only these may report that a key is missing.
    pub(super) fn acknowledge(&self, primaries: &[PrimaryId]) {
        *self.acknowledged() = Some(primaries.iter().copied().collect());
    }

    /// Reads the id of the primary at the other end.
    async fn primary_at(&self, connection: &RedisConnection) -> Result<PrimaryId, Error> {
        let deadline = Instant::now() + self.settings.timeout();
        let mut pipeline = redis::pipe();
        pipeline.cmd("INFO").arg("replication");
        let open = connection.wait_until_open(deadline).await.map_err(Error::Unavailable)?;
        let answers =
            connection.send(&open, &pipeline, deadline).await.map_err(Error::Unavailable)?;
        let id = answers.first().and_then(primary_in);
        if id != Some(open.primary) {
            // The server was demoted, perhaps only for a while. A new connection has its new id.
            connection
                .drop_connection(&open, "the server was demoted, or its replication id changed");
        }
        id.ok_or_else(|| unavailable(format!("redis at {} is no longer a primary", open.address)))
    }

    /// Whether every known primary has a connection.
    pub(super) fn is_up(&self) -> bool {
        let up = match &self.paths {
            Paths::Single(connection) => connection.is_open(),
            Paths::Cluster(cluster) => {
                let primaries = cluster.primaries();
                !primaries.is_empty()
                    && primaries.iter().all(|(connection, _)| connection.is_open())
            }
        };
        metrics::set_up(up);
        up
    }

    fn is_acknowledged(&self, primary: PrimaryId) -> bool {
        self.acknowledged().as_ref().is_none_or(|known| known.contains(&primary))
    }

    fn acknowledged(&self) -> MutexGuard<'_, Option<HashSet<PrimaryId>>> {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self, pending: &PendingCommand) -> Option<Arc<RedisConnection>> {
        match &self.paths {
            Paths::Single(connection) => Some(Arc::clone(connection)),
            Paths::Cluster(cluster) => match &pending.detour {
                Some((address, _)) => Some(cluster.connection_to(address)),
                None => cluster.connection_of_slot(pending.command.slot),
            },
        }
    }

    fn refresh(&self) {
        if let Paths::Cluster(cluster) = &self.paths {
            cluster.refresh();
        }
    }

    async fn pause(&self, attempt: u32, deadline: Instant) {
        let pause = deadline.min(Instant::now() + backoff(attempt, PAUSE.0, PAUSE.1));
        match &self.paths {
            Paths::Single(_) => sleep_until(pause).await,
            // A new map of the slots ends the pause.
            Paths::Cluster(cluster) => {
                let _ = timeout_at(pause, cluster.refreshed()).await;
            }
        }
    }
}

/// The label of a final answer in metrics.
fn final_outcome(answer: &Result<RedisAnswer, Error>) -> Outcome {
    match answer {
        Ok(_) => Outcome::Answered,
        Err(Error::Unavailable(why)) => match why.kind() {
            io::ErrorKind::PermissionDenied => Outcome::Refused,
            io::ErrorKind::TimedOut => Outcome::Late,
            _ => Outcome::Unreachable,
        },
        Err(_) => Outcome::Refused,
    }
}
