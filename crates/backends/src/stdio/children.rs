//! All child processes of a node: bounds their number, starts them and reaps them.
//!
//! One thread starts all children and runs until the last one has ended: the kernel signals a
//! guard that its parent died when the *thread* that started it ends. The same thread reaps
//! children that were dropped while they ran.

use std::any::Any;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use budget::{Held, Share};
use serde::{Deserialize, Serialize};
use telemetry::TenantLabels;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::cgroup::Cgroup;
use super::child::{Child, UnreapedChild};
use super::environment;
use super::settings::StdioSettings;
use super::start_turns::{StartTurn, StartTurns};
use crate::guard::{Guard, ResourceLimits, for_server};
use crate::metrics::{self, ChildBound};
use crate::sandbox::{Protection, Protections};

/// The variable that identifies a child's descendants after its guard was killed.
pub(super) const MARK: &str = "ROUNDHOUSE_CHILD";

/// How often the thread checks whether dropped children have ended.
const REAP_INTERVAL: Duration = Duration::from_millis(20);

/// How long a guard may take to kill its descendants before it is killed with its group.
const GUARD_GRACE: Duration = Duration::from_secs(2);

/// The largest number of children that a node can be set to. Each needs at least two processes, and
/// the kernel has numbers for at most four million. A larger setting counts as this one.
pub const CHILDREN_MAX: usize = 100_000;

/// The greatest number of steps by which the priority of children can be lower than that of the node: the
/// kernel has 20 levels below the usual one.
pub const CHILDREN_NICE_MAX: u8 = 19;

/// Limits of a node's children.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChildrenSettings {
    /// Maximum number of processes of tenants on the node, at most [`CHILDREN_MAX`]; the link of a
    /// further one is down at once.
    pub children_max: usize,
    /// How much lower the priority of these processes is than that of the node, in steps of `nice`, at most
    /// [`CHILDREN_NICE_MAX`]. The node serves the calls of all tenants, a process those of one.
    pub children_nice: u8,
}

impl Default for ChildrenSettings {
    fn default() -> Self {
        Self { children_max: 1_000, children_nice: 7 }
    }
}

/// A limit of processes that another part of the program knows: of all nodes together.
pub trait ProcessLimit: Send + Sync {
    /// Takes one process of the tenant. The value is dropped when the process has ended.
    fn take<'a>(&'a self, tenant: &'a str) -> TakenProcess<'a>;
}

/// The answer of a [`ProcessLimit`].
pub type TakenProcess<'a> =
    Pin<Box<dyn Future<Output = Result<Box<dyn Any + Send + Sync>, LimitReached>> + Send + 'a>>;

/// The tenant has as many processes as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitReached;

/// All children of a node. Cheap to clone.
#[derive(Clone)]
pub struct Children(Arc<Inner>);

struct Inner {
    children_max: usize,
    children_nice: u8,
    guard: Option<Guard>,
    inherited: Vec<(OsString, OsString)>,
    running: AtomicUsize,
    none_left: Notify,
    turns: StartTurns,
    /// Part of every mark, so that marks of different nodes differ.
    name_seed: u128,
    marks: AtomicU64,
    thread: OnceLock<Option<SyncSender<ThreadTask>>>,
    closing: CancellationToken,
    limit: OnceLock<Arc<dyn ProcessLimit>>,
    tenant_labels: OnceLock<TenantLabels>,
}

impl Children {
    /// Starts without children. `environment` is the node's own, of which children inherit
    /// [`INHERITED`](super::INHERITED) and
    /// [`INHERITED_FOR_DOWNLOADS`](super::INHERITED_FOR_DOWNLOADS).
    ///
    /// Without a guard, only the process group of a child is killed, and only while the node
    /// runs. Processes that left the group with `setsid`, or whose node was killed, keep running. Such a
    /// child also has the controlling terminal of the node, if the node has one.
    pub fn new(
        settings: ChildrenSettings,
        guard: Option<Guard>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        metrics::register_all();
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self(Arc::new(Inner {
            children_max: settings.children_max.min(CHILDREN_MAX),
            children_nice: settings.children_nice.min(CHILDREN_NICE_MAX),
            guard,
            inherited: environment::inherited(environment),
            running: AtomicUsize::new(0),
            none_left: Notify::new(),
            turns: StartTurns::new(std::thread::available_parallelism().map_or(1, usize::from)),
            name_seed: since_epoch.unwrap_or_default().as_nanos(),
            marks: AtomicU64::new(0),
            thread: OnceLock::new(),
            closing: CancellationToken::new(),
            limit: OnceLock::new(),
            tenant_labels: OnceLock::new(),
        }))
    }

    /// The number of children that run, are being started or are being stopped.
    pub fn count(&self) -> usize {
        self.0.running.load(Ordering::Acquire)
    }

    /// Ends the children that no session has, and starts none in advance any more.
    pub fn close(&self) {
        self.0.closing.cancel();
    }

    pub(super) fn closing(&self) -> &CancellationToken {
        &self.0.closing
    }

    /// Returns when no child is left, for a node that stops. The wait for each child is bounded
    /// by its backend's grace period.
    pub async fn stopped(&self) {
        loop {
            let mut none_left = std::pin::pin!(self.0.none_left.notified());
            none_left.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            none_left.await;
        }
    }

    /// Sets the limit that counts the processes of all nodes. Only the first one counts.
    pub fn limit_by(&self, limit: Arc<dyn ProcessLimit>) {
        let _ = self.0.limit.set(limit);
    }

    /// Sets which tenants have metrics of their own. Only the first call counts.
    pub fn label_by(&self, labels: TenantLabels) {
        metrics::show_refused(&labels);
        let _ = self.0.tenant_labels.set(labels);
    }

    /// Counts a child that a session of the tenant did not get.
    pub(super) fn count_refused(&self, tenant: &str, bound: ChildBound) {
        if let Some(labels) = self.0.tenant_labels.get() {
            metrics::count_refused(labels.label(tenant), bound);
        }
    }

    /// Takes a permit for one more child, if the node, the tenant and the cluster have one left.
    pub(super) async fn take_permit(&self, share: &Share) -> Result<ChildPermit, ChildBound> {
        let mut permit = self.take_permit_here(share)?;
        if let Some(limit) = self.0.limit.get() {
            let taken = limit.take(share.tenant()).await;
            permit._of_cluster = Some(taken.map_err(|LimitReached| ChildBound::Cluster)?);
        }
        Ok(permit)
    }

    /// The same, without those of other nodes.
    fn take_permit_here(&self, share: &Share) -> Result<ChildPermit, ChildBound> {
        let of_tenant = share.take(1).map_err(|_| ChildBound::Tenant)?;
        let more = |running| (running < self.0.children_max).then_some(running + 1);
        self.0
            .running
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .map_err(|_| ChildBound::Node)?;
        metrics::CHILDREN.inc();
        Ok(ChildPermit { children: self.clone(), of_tenant, _of_cluster: None })
    }

    /// Starts a child when it is its tenant's turn. When the future is dropped, the child is killed or never
    /// started.
    pub(super) async fn start(
        &self,
        permit: ChildPermit,
        settings: &StdioSettings,
        protections: &Protections,
    ) -> io::Result<(Child, StartTurn)> {
        let mut turn = self.0.turns.take(permit.of_tenant.share().tenant()).await;
        let (reply, started) = oneshot::channel();
        let mark = format!(
            "{}.{}.{}",
            std::process::id(),
            self.0.name_seed,
            self.0.marks.fetch_add(1, Ordering::Relaxed)
        );
        let bounds = settings.bounds(protections);
        let cgroup = create_cgroup(settings, protections, &mark)?;
        let command = self.command(settings, protections, &mark, cgroup.as_ref());
        let start = Start { permit, command, mark, bounds, cgroup, reply };
        self.send(ThreadTask::Start(Box::new(start)))?;
        let gone = || io::Error::other("the starting thread is gone");
        let child = started.await.unwrap_or_else(|_| Err(gone()))?;
        turn.begin();
        Ok((child, turn))
    }

    pub(super) fn is_guarded(&self) -> bool {
        self.0.guard.is_some()
    }

    /// Waits in the thread for the end of a signalled child, kills it if it is late, and reaps it.
    pub(super) fn reap(&self, unreaped: UnreapedChild) {
        if self.send(ThreadTask::Reap(Box::new(unreaped))).is_err() {
            tracing::error!("child process not reaped: the thread of the children has ended");
        }
    }

    fn command(
        &self,
        settings: &StdioSettings,
        protections: &Protections,
        mark: &str,
        cgroup: Option<&Cgroup>,
    ) -> Command {
        let mut command = match &self.0.guard {
            Some(guard) => {
                let mut confinement = settings.confinement(protections);
                confinement.cgroup = cgroup.map(|cgroup| cgroup.path().to_owned());
                guard.command(
                    &settings.bounds(protections),
                    &confinement,
                    &settings.command,
                    &settings.args,
                )
            }
            None => {
                let mut command = Command::new(&settings.command);
                command.args(&settings.args);
                command
            }
        };
        // The guard itself must not be changed by variables that are for the server.
        let is_guarded = self.0.guard.is_some();
        let rename = |name: &OsStr| match is_guarded && !environment::is_plain(name) {
            true => for_server(name),
            false => name.to_owned(),
        };
        // Such a guard takes on the user, and enters the directory with that user's rights.
        let has_user_by_guard = is_guarded && settings.run_as.is_some();
        command.env_clear();
        command.envs(self.0.inherited.iter().map(|(name, value)| (rename(name), value)));
        if let Some(user) = &settings.run_as {
            if !has_user_by_guard {
                // As root, this also leaves the groups of the node.
                command.uid(user.uid).gid(user.gid);
            }
            let home = user.home.as_ref().map(|home| ("HOME", home.as_os_str()));
            let name = user.name.as_ref().map(OsStr::new);
            let names = name.map(|name| [("USER", name), ("LOGNAME", name)]);
            command.envs(home.into_iter().chain(names.into_iter().flatten()));
        }
        if let Some(home) = &settings.home {
            let variables = environment::of_home(home);
            command.envs(variables.map(|(name, value)| (rename(OsStr::new(name)), value)));
        }
        command.envs(settings.env.iter().map(|(name, value)| {
            let name = if is_guarded { for_server(OsStr::new(name)) } else { name.into() };
            (name, value)
        }));
        command.env(MARK, mark);
        if let Some(cwd) = settings.cwd.as_ref().filter(|_| !has_user_by_guard) {
            command.current_dir(cwd);
        }
        if !is_guarded {
            // A guard may have to begin a session, which a leader of a group cannot.
            command.process_group(0);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn send(&self, task: ThreadTask) -> io::Result<()> {
        let thread = self.0.thread.get_or_init(|| {
            // Each permit has at most two tasks in the queue, so the queue is never full. It has memory
            // for all tasks from the start, so their number is bounded.
            let (tasks, received) = sync_channel(2 * self.0.children_max + 2);
            let (thread, nice) =
                (std::thread::Builder::new().name("children".into()), self.0.children_nice);
            let run = move || {
                lower_priority(nice);
                ChildThread::default().run(&received);
            };
            thread.spawn(run).ok().map(|_| tasks)
        });
        let thread = thread.as_ref().ok_or_else(|| io::Error::other("no thread to start with"))?;
        thread.try_send(task).map_err(|_| io::Error::other("the starting thread is gone"))
    }
}

/// Lowers the priority of this thread by so many steps. The processes that it starts have the thread's, also while
/// the guard and the sandbox of a server are set up.
fn lower_priority(steps: u8) {
    if let Err(error) = rustix::process::nice(steps.into()) {
        tracing::warn!(%error, steps, "servers have the priority of the node: it was not lowered");
    }
}

/// Creates the cgroup of a server, if it has one.
fn create_cgroup(
    settings: &StdioSettings,
    protections: &Protections,
    mark: &str,
) -> io::Result<Option<Cgroup>> {
    let folder = protections.cgroups().filter(|_| settings.has(Protection::Cgroup, protections));
    let mut limits = settings.cgroup_limits();
    if !protections.has_controller("pids") {
        limits.processes = None;
    }
    folder.map(|folder| Cgroup::create(folder, mark, &limits)).transpose()
}

/// The permit of one child; released when dropped.
pub(super) struct ChildPermit {
    pub(super) children: Children,
    of_tenant: Held,
    _of_cluster: Option<Box<dyn Any + Send + Sync>>,
}

impl Drop for ChildPermit {
    fn drop(&mut self) {
        metrics::CHILDREN.dec();
        if self.children.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.children.0.none_left.notify_waiters();
        }
    }
}

/// A task for the thread.
enum ThreadTask {
    Start(Box<Start>),
    Reap(Box<UnreapedChild>),
}

struct Start {
    permit: ChildPermit,
    command: Command,
    mark: String,
    bounds: ResourceLimits,
    cgroup: Option<Cgroup>,
    reply: oneshot::Sender<io::Result<Child>>,
}

/// The thread that starts and reaps children. Runs until [`Children`] and all permits are dropped.
#[derive(Default)]
struct ChildThread {
    /// At most one for each permit.
    reaping: VecDeque<(Box<UnreapedChild>, Instant)>,
}

impl ChildThread {
    fn run(mut self, tasks: &Receiver<ThreadTask>) {
        loop {
            let task = if self.reaping.is_empty() {
                tasks.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                tasks.recv_timeout(REAP_INTERVAL)
            };
            match task {
                Ok(ThreadTask::Start(start)) => start_child(*start),
                Ok(ThreadTask::Reap(unreaped)) => {
                    self.reaping.push_back((unreaped, Instant::now() + GUARD_GRACE));
                }
                Err(RecvTimeoutError::Timeout) => {}
                // No child is left to reap either: the permit of each child keeps the queue open.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = Instant::now();
            self.reaping.retain_mut(|(unreaped, deadline)| {
                if now >= *deadline {
                    unreaped.kill();
                }
                !unreaped.is_over()
            });
        }
    }
}

fn start_child(start: Start) {
    let Start { permit, mut command, mark, bounds, cgroup, reply } = start;
    if reply.is_closed() {
        return;
    }
    let child = command.spawn().map(|process| Child::new(process, permit, mark, cgroup));
    if let Ok(child) = &child {
        metrics::STARTS.inc();
        child.bound(&bounds);
    }
    // If the caller no longer waits, the child is dropped here, which ends and reaps it.
    let _ = reply.send(child);
}
