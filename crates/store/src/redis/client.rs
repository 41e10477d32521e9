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
use redis::{Cmd, Pipeline, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::address::{Address, Shape};
use super::answer::{Verdict, refused, unavailable, verdict};
use super::cluster::Cluster;
use super::dial::{Dialer, primary_in};
use super::link::{Link, Route, Up, backoff};
use super::script;
use super::settings::{Invalid, Settings};
use crate::metrics::{self, Operation, Outcome};
use crate::{Error, Primary, PrimaryId};

/// Pauses between attempts, in milliseconds: the first and the longest.
const PAUSE: (u64, u64) = (5, 100);

/// How often a redirected command is sent on without a pause.
const HOPS_MAX: u32 = 4;

/// One command and the slot of its keys.
pub(super) struct Call {
    pub(super) slot: u16,
    pub(super) command: Cmd,
    /// The label of the command in metrics.
    pub(super) operation: Operation,
    /// The approximate length of the command.
    pub(super) bytes: usize,
    pub(super) terms: Terms,
}

/// On which primary a command may be executed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Terms {
    /// On any.
    Plain,
    /// Only on this primary, from which the caller read the state of the session. `None` stands
    /// for any primary that the caller acknowledged.
    At(Option<PrimaryId>),
}

/// The answer to a command.
pub(super) struct Answer {
    pub(super) value: Value,
    /// Whether the caller acknowledged the primary that sent the answer.
    pub(super) is_acknowledged: bool,
}

/// The connections to every primary.
pub(super) struct Client {
    paths: Paths,
    settings: Settings,
    /// The primaries that the caller acknowledged. `None` until it first reads the primaries: a
    /// caller that never does accepts any.
    acknowledged: Mutex<Option<HashSet<PrimaryId>>>,
}

enum Paths {
    Single(Arc<Link>),
    Cluster(Cluster),
}

/// A command without a final answer, and its index among the commands.
struct Pending {
    place: usize,
    call: Call,
    /// The server that the command was redirected to, and whether `ASKING` precedes it.
    detour: Option<(Address, bool)>,
}

/// Commands to one server.
type Group = (Arc<Link>, Vec<Pending>);

/// The result of one attempt to execute a command.
enum Attempted {
    Answer(Result<Answer, Error>),
    /// No final answer: the command is sent again.
    Again {
        pending: Pending,
        why: Error,
        cause: Cause,
    },
}

/// Why a command is sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
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

impl Cause {
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
    const fn rests(self) -> bool {
        !matches!(self, Self::Script | Self::Moved)
    }
}

impl Client {
    /// Starts to connect in the background, on this runtime.
    pub(super) fn new(settings: Settings, runtime: &Handle) -> Result<Self, Invalid> {
        let target = settings.target()?;
        metrics::show();
        if target.tls {
            // A program that embeds this crate may have installed another provider before.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let dialer = Dialer::new(&settings, target.tls, target.login, target.db)?;
        let single = |route| {
            let link = Link::new(route, dialer.clone(), &settings, runtime);
            Paths::Single(Arc::new(link))
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
        Ok(Self { paths, settings, acknowledged: Mutex::default() })
    }

    /// Executes commands and returns their answers, in the same order.
    pub(super) async fn perform(&self, calls: Vec<Call>) -> Vec<Result<Answer, Error>> {
        let mut answers: Vec<_> = calls.iter().map(|_| None).collect();
        self.perform_each(calls, |place, answer| answers[place] = Some(answer)).await;
        let unanswered = || Err(unavailable("redis gave no answer"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    /// Executes commands. Calls `tell` with the index and the answer of each command as soon as
    /// its server has answered. A slow server does not delay the commands to another one.
    pub(super) async fn perform_each(
        &self,
        calls: Vec<Call>,
        mut tell: impl FnMut(usize, Result<Answer, Error>),
    ) {
        let operations: Vec<_> = calls.iter().map(|call| call.operation).collect();
        let calls = calls.into_iter().enumerate();
        let pending = calls.map(|(place, call)| Pending { place, call, detour: None }).collect();
        let start = Instant::now();
        let deadline = start + self.settings.timeout();
        let (groups, lost) = self.by_server(pending);
        let groups = groups.into_iter().map(|(_, group)| group);
        let groups = groups.chain((!lost.is_empty()).then_some(lost));
        let mut rounds: FuturesUnordered<_> =
            groups.map(|group| self.round(group, 1, false, deadline)).collect();
        while let Some((attempt, came)) = rounds.next().await {
            let is_late = Instant::now() >= deadline;
            let mut rest = false;
            let mut pending = Vec::new();
            for (place, came) in came {
                match came {
                    Attempted::Answer(answer) => {
                        metrics::came(operations[place], outcome(&answer), start.elapsed());
                        tell(place, answer);
                    }
                    Attempted::Again { why, .. } if is_late => {
                        let answer = Err(why);
                        metrics::came(operations[place], outcome(&answer), start.elapsed());
                        tell(place, answer);
                    }
                    Attempted::Again { pending: again, cause, .. } => {
                        metrics::REPEATS.with_label_values(&[cause.label()]).inc();
                        rest |= cause.rests();
                        pending.push(again);
                    }
                }
            }
            pending.sort_by_key(|pending| pending.place);
            if !pending.is_empty() {
                rounds.push(self.round(pending, attempt + 1, rest || attempt > HOPS_MAX, deadline));
            }
        }
    }

    /// Sends each command once, after a pause if `rests`. Returns also the number of the attempt.
    async fn round(
        &self,
        pending: Vec<Pending>,
        attempt: u32,
        rests: bool,
        deadline: Instant,
    ) -> (u32, Vec<(usize, Attempted)>) {
        if rests {
            self.pause(attempt - 1, deadline).await;
        }
        (attempt, self.attempt(pending, deadline).await)
    }

    /// Sends each command once. Commands to one server are sent together.
    async fn attempt(&self, pending: Vec<Pending>, deadline: Instant) -> Vec<(usize, Attempted)> {
        let (groups, lost) = self.by_server(pending);
        if !lost.is_empty() {
            self.refresh();
        }
        let lost = lost.into_iter().map(|pending| {
            let why = unavailable("no primary of the redis cluster is known for the slot");
            (pending.place, Attempted::Again { pending, why, cause: Cause::Unanswered })
        });
        let mut came: Vec<_> = lost.collect();
        let groups = groups.into_iter().map(|(link, group)| self.send(link, group, deadline));
        came.extend(join_all(groups).await.into_iter().flatten());
        came
    }

    /// Groups commands by server. The second list has the commands without a known server.
    fn by_server(&self, pending: Vec<Pending>) -> (Vec<Group>, Vec<Pending>) {
        let (mut groups, mut lost) = (Vec::<Group>::new(), Vec::new());
        for pending in pending {
            let Some(link) = self.link(&pending) else {
                lost.push(pending);
                continue;
            };
            match groups.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &link)) {
                Some((_, group)) => group.push(pending),
                None => groups.push((link, vec![pending])),
            }
        }
        (groups, lost)
    }

    /// Sends a group to its server, in as many writes as the bounds of a write require. Each
    /// write has a timeout of its own, which starts once the write before it was answered.
    async fn send(
        &self,
        link: Arc<Link>,
        group: Vec<Pending>,
        mut deadline: Instant,
    ) -> Vec<(usize, Attempted)> {
        let mut came = Vec::with_capacity(group.len());
        let mut group = group.into_iter().peekable();
        while group.peek().is_some() {
            let (mut write, mut bytes) = (Vec::new(), 0);
            while let Some(next) = group.next_if(|_| {
                bytes < self.settings.batch_bytes_max
                    && write.len() < self.settings.batch_commands_max
            }) {
                bytes += next.call.bytes;
                write.push(next);
            }
            match self.write(&link, write, deadline).await {
                Ok(answered) => came.extend(answered),
                Err((write, why)) => {
                    self.refresh();
                    for pending in write.into_iter().chain(group) {
                        let why = Error::Unavailable(io::Error::new(why.kind(), why.to_string()));
                        came.push((
                            pending.place,
                            Attempted::Again { pending, why, cause: Cause::Unanswered },
                        ));
                    }
                    break;
                }
            }
            deadline = deadline.max(Instant::now() + self.settings.timeout());
        }
        came
    }

    /// Sends one write and reads its answers. An error applies to all commands of the write.
    async fn write(
        &self,
        link: &Link,
        write: Vec<Pending>,
        deadline: Instant,
    ) -> Result<Vec<(usize, Attempted)>, (Vec<Pending>, io::Error)> {
        let up = match link.up(deadline).await {
            Ok(up) => up,
            Err(why) => return Err((write, why)),
        };
        let is_acknowledged = self.is_acknowledged(up.primary);
        let mut pipeline = Pipeline::with_capacity(write.len());
        // The indices of answers to commands; the other answers are to `ASKING`.
        let mut places = Vec::with_capacity(write.len());
        let mut came = Vec::with_capacity(write.len());
        let mut sent = Vec::with_capacity(write.len());
        for mut pending in write {
            // Checked at each attempt: a failover may have happened since the last one.
            let may_be_sent = match pending.call.terms {
                Terms::At(Some(judged_by)) => judged_by == up.primary,
                Terms::At(None) => is_acknowledged,
                Terms::Plain => true,
            };
            if !may_be_sent {
                // The slot may have moved, so the caller's next read needs a new map.
                self.refresh();
                let why = refused(
                    "redis has another primary than the one that was read; read the session again",
                );
                came.push((pending.place, Attempted::Answer(Err(why))));
                continue;
            }
            if let Some((_, true)) = pending.detour.take() {
                pipeline.cmd("ASKING");
            }
            places.push(pipeline.len());
            pipeline.add_command(pending.call.command.clone());
            sent.push(pending);
        }
        if sent.is_empty() {
            return Ok(came);
        }
        let mut values = match link.send(&up, &pipeline, deadline).await {
            Ok(values) => values,
            Err(why) => return Err((sent, why)),
        };
        let (mut load, mut reconnect) = (false, false);
        for (pending, place) in sent.into_iter().zip(places) {
            let value = std::mem::take(&mut values[place]);
            let Value::ServerError(error) = value else {
                came.push((
                    pending.place,
                    Attempted::Answer(Ok(Answer { value, is_acknowledged })),
                ));
                continue;
            };
            let verdict = verdict(&error, &up.address);
            load |= verdict == Verdict::Load;
            reconnect |= verdict == Verdict::Reconnect;
            came.push((pending.place, self.judge(pending, verdict, &up, error.code())));
        }
        if load {
            // If this fails, the next attempt fails too.
            let _ = link.send(&up, &script::load_all(), deadline).await;
        }
        if reconnect {
            link.drop_connection(&up, "the server is no longer a primary");
            self.refresh();
        }
        Ok(came)
    }

    /// Decides whether a command that was answered with an error is sent again.
    fn judge(&self, mut pending: Pending, verdict: Verdict, up: &Up, code: &str) -> Attempted {
        let why = unavailable(format!("redis at {} answered {code}", up.address));
        let cause = match (verdict, &self.paths) {
            (Verdict::Refused(why), _) => return Attempted::Answer(Err(refused(why))),
            (Verdict::Load, _) => Cause::Script,
            (Verdict::Wait, _) => Cause::Busy,
            (Verdict::Reconnect, _) => Cause::Deposed,
            (Verdict::Moved(_) | Verdict::Ask(_), Paths::Single(_)) => {
                let why = "this redis is part of a cluster; use redis+cluster:// in its URL";
                return Attempted::Answer(Err(refused(why)));
            }
            (Verdict::Moved(address), Paths::Cluster(_)) => {
                self.refresh();
                pending.detour = Some((address, false));
                Cause::Moved
            }
            (Verdict::Ask(address), Paths::Cluster(_)) => {
                pending.detour = Some((address, true));
                Cause::Moved
            }
        };
        if cause.rests() {
            self.refresh();
        }
        Attempted::Again { pending, why, cause }
    }

    /// Every primary that answers, with its slots.
    pub(super) async fn primaries(&self) -> Result<Vec<Primary>, Error> {
        let known = match &self.paths {
            Paths::Single(link) => vec![(Arc::clone(link), None)],
            Paths::Cluster(cluster) => {
                if cluster.primaries().is_empty() {
                    let _ = timeout(self.settings.timeout(), cluster.refreshed()).await;
                }
                cluster.primaries().into_iter().map(|(link, slots)| (link, Some(slots))).collect()
            }
        };
        let asked = join_all(known.into_iter().map(|(link, slots)| async move {
            let id = self.primary_at(&link).await?;
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
    async fn primary_at(&self, link: &Link) -> Result<PrimaryId, Error> {
        let deadline = Instant::now() + self.settings.timeout();
        let mut pipeline = redis::pipe();
        pipeline.cmd("INFO").arg("replication");
        let up = link.up(deadline).await.map_err(Error::Unavailable)?;
        let answers = link.send(&up, &pipeline, deadline).await.map_err(Error::Unavailable)?;
        let id = answers.first().and_then(primary_in);
        if id != Some(up.primary) {
            // The server was demoted, perhaps only for a while. A new connection has its new id.
            link.drop_connection(&up, "the server was demoted, or its replication id changed");
        }
        id.ok_or_else(|| unavailable(format!("redis at {} is no longer a primary", up.address)))
    }

    /// Whether every known primary has a connection.
    pub(super) fn is_up(&self) -> bool {
        let up = match &self.paths {
            Paths::Single(link) => link.is_up(),
            Paths::Cluster(cluster) => {
                let primaries = cluster.primaries();
                !primaries.is_empty() && primaries.iter().all(|(link, _)| link.is_up())
            }
        };
        metrics::is_up(up);
        up
    }

    fn is_acknowledged(&self, primary: PrimaryId) -> bool {
        self.acknowledged().as_ref().is_none_or(|known| known.contains(&primary))
    }

    fn acknowledged(&self) -> MutexGuard<'_, Option<HashSet<PrimaryId>>> {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(&self, pending: &Pending) -> Option<Arc<Link>> {
        match &self.paths {
            Paths::Single(link) => Some(Arc::clone(link)),
            Paths::Cluster(cluster) => match &pending.detour {
                Some((address, _)) => Some(cluster.link_to(address)),
                None => cluster.link(pending.call.slot),
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
fn outcome(answer: &Result<Answer, Error>) -> Outcome {
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
