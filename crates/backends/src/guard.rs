//! The guard process between the node and a tenant's server. It kills all descendants of the
//! server, and confines them.
//!
//! A node cannot end all descendants of a server from outside: they may leave the server's
//! process group with `setsid`, and no process is left to kill them when the node itself
//! is killed. So the guard, a small program of this crate, is the server's parent. The server
//! communicates with the node directly: the guard passes its own standard streams on to
//! the server and never reads or writes them.
//!
//! The node starts the guard with its own rights. If the server has a user of its own, the guard
//! first takes on that user's rights.
//!
//! Where the kernel allows it, there are two processes. The *guard* makes user, PID and mount
//! namespaces, and starts this program again as process 1 of the PID namespace, the *init*. The
//! init mounts a `/proc` of its own, makes the files that configure the kernel read-only, gives up
//! every privilege, and starts the server. The server
//! sees neither guard nor node, nor any other server. The kernel signals the guard when the node
//! dies, kills the init when the guard dies, and kills every process of the namespace when the init
//! dies.
//!
//! Without namespaces the guard is itself the server's parent: the kernel makes every orphaned
//! descendant a child of the guard, which exits only when all of them are dead. But a server that
//! kills its guard can leave processes behind.
//!
//! The guard has no controlling terminal: it leads a session of its own if the node has one, and a
//! process group in the node's session otherwise. The parent of the server
//! leads the server's process group. It passes the first `SIGTERM` or
//! `SIGINT` on to the group. At `SIGHUP`, which the kernel also sends when the node dies, it kills
//! everything. When the server exits, the processes that the server left behind are killed, and
//! the guard exits with the server's status.
//!
//! A supervisor that signals every process of the node by itself (systemd's default
//! `KillMode`, for one) stops servers before their sessions are drained. Let it signal
//! the node only (`KillMode=mixed`), which then stops its servers in order.

mod calls;
mod command_line;
mod init;
mod limits;
mod mount_table;
mod mounts;
mod namespaces;
mod network;
mod privileges;
mod probe;
mod processes;
mod server;
mod write_list;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process, set_child_subreaper,
    set_parent_process_death_signal, setpgid, setsid,
};

pub(crate) use self::command_line::{Confinement, ServerUser};
use self::command_line::{GuardArgs, Role};
pub(crate) use self::limits::ResourceLimits;
pub use self::privileges::not_dumpable;
pub(crate) use self::probe::read_line;
pub(crate) use self::processes::processes;
use self::processes::{kill_child, kill_descendants};
use self::server::OwnStreams;
pub(crate) use self::server::for_server;

/// The exit status of shells for a command that was not found.
pub(crate) const NOT_FOUND: i32 = 127;
/// The exit status of shells for a command that was found and cannot be run.
pub(crate) const NOT_RUNNABLE: i32 = 126;
/// The exit status of a guard that failed.
pub(crate) const GUARD_FAILED: i32 = 125;
/// Shells add the number of a signal to this, for a process that the signal ended.
pub(crate) const SIGNALLED: i32 = 128;

/// How a guard is started: a program that calls [`run`] with the arguments after `args`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The program.
    pub program: OsString,
    /// The arguments that make the program call [`run`].
    pub args: Vec<OsString>,
}

impl Guard {
    /// A guard that is the running program itself, which must call [`run`] if its first argument
    /// is `word`. Works also if the program's file is replaced while it runs.
    pub fn this_program(word: impl Into<OsString>) -> Self {
        Self { program: "/proc/self/exe".into(), args: vec![word.into()] }
    }

    /// The command line of a guard for this program.
    pub(crate) fn command(
        &self,
        limits: &ResourceLimits,
        confinement: &Confinement,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Command {
        self.start(&GuardArgs {
            role: Role::Guard,
            parent: getpid(),
            limits: *limits,
            confinement: confinement.clone(),
            program: program.as_ref().into(),
            args: args.into_iter().map(|arg| arg.as_ref().into()).collect(),
        })
    }

    /// The command line that finds out which protections the kernel grants to this user.
    pub(crate) fn probe(&self, user: Option<ServerUser>) -> Command {
        let confinement = Confinement { user, ..Confinement::default() };
        self.start(&GuardArgs { confinement, ..GuardArgs::of_probe(Role::Probe, getpid()) })
    }

    fn start(&self, args: &GuardArgs) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).args(args.to_words());
        command
    }
}

/// Runs a guard until the server and all its descendants have ended. Returns the status to exit
/// with. Must be called before anything else: it needs a process with a single thread and no
/// children, which nothing has made undumpable. With a second thread it fails where the server has
/// namespaces or a user of its own.
pub fn run(args: impl IntoIterator<Item = OsString>) -> i32 {
    let words: Vec<OsString> = args.into_iter().collect();
    // The words that made the program call this function start it again.
    let own: Vec<OsString> = std::env::args_os().skip(1).collect();
    let guard = Guard {
        program: "/proc/self/exe".into(),
        args: own[..own.len().saturating_sub(words.len())].to_vec(),
    };
    let role = |args: GuardArgs| match args.role {
        Role::Guard => run_guard(&guard, args),
        Role::Init => init::run(args),
        Role::Probe => probe::run(&guard),
        Role::ProbeNamespaces => probe::run_in_namespaces(&guard),
        Role::ProbeInit => probe::run_init(&guard),
        Role::Nothing => Ok(0),
    };
    let args = GuardArgs::read(words).ok_or_else(|| io::Error::other("not called as a guard"));
    args.and_then(with_rights_of_user).and_then(role).unwrap_or_else(|error| {
        let _ = writeln!(io::stderr(), "guard: {error}");
        GUARD_FAILED
    })
}

/// Takes on the rights of the server's user, and then enters the working directory that needs them. What this process
/// starts has both.
fn with_rights_of_user(mut args: GuardArgs) -> io::Result<GuardArgs> {
    let (user, cwd) = (args.confinement.user.take(), args.confinement.cwd.take());
    if let Some(ServerUser { uid, gid }) = user {
        let named = |error| {
            io::Error::other(format!("no rights of the user {uid} and the group {gid}: {error}"))
        };
        privileges::become_user(uid, gid).map_err(named)?;
        if let Some(cwd) = cwd {
            let named = |error| io::Error::other(format!("the working directory {cwd:?}: {error}"));
            std::env::set_current_dir(&cwd).map_err(named)?;
        }
        // Not before: another process of this user could open the directory where this one still stands.
        privileges::dumpable()?;
    }
    Ok(args)
}

fn run_guard(guard: &Guard, args: GuardArgs) -> io::Result<i32> {
    // The name in process listings, which would be that of the link to the program otherwise.
    let _ = rustix::thread::set_name(c"mcp-guard");
    let mut signals = server::handled_signals()?;
    leave_terminal()?;
    set_child_subreaper(Some(getpid()))?;
    set_parent_process_death_signal(Some(Signal::HUP))?;
    // If the parent died before the call above, the kernel sends no signal.
    if getppid() != Some(args.parent) {
        return Ok(GUARD_FAILED);
    }
    if let Some(cgroup) = &args.confinement.cgroup {
        // Before the namespaces: the path is that of the node. 0 stands for this process.
        std::fs::write(cgroup.join("cgroup.procs"), "0")?;
    }
    let streams = OwnStreams::open()?;
    if !args.confinement.namespaces {
        privileges::not_dumpable()?;
        return run_server(&mut signals, streams, &args);
    }
    namespaces::enter()?;
    // Not before: the files of an undumpable process belong to root, `uid_map` among them.
    privileges::not_dumpable()?;
    let args = GuardArgs { role: Role::Init, parent: getpid(), ..args };
    let init = guard.start(&args).process_group(0).spawn()?;
    streams.close()?;
    let pid = Pid::from_child(&init);
    let status = server::wait_for(&mut signals, init.id(), || Ok(kill_process(pid, Signal::TERM)?));
    if !matches!(status, Ok(Some(_))) {
        // The init ends only when its namespace has no other process left. It is the only child. The
        // guard cannot list its children: the init's `/proc` is also mounted for the guard.
        kill_child(pid);
    }
    Ok(server::shell_status(status?))
}

/// Leads a process group, without a controlling terminal: a server cannot push input into that of the node (`TIOCSTI`).
///
/// Without a terminal this needs no session of its own. Where the kernel shares cores between sessions (autogroups),
/// each would get as much as the node: priorities count within a session only.
fn leave_terminal() -> io::Result<()> {
    let terminal = rustix::fs::open("/dev/tty", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    match terminal {
        Err(Errno::NXIO) => setpgid(None, None)?,
        _ => drop(setsid()?),
    }
    Ok(())
}

/// Confines this process, and starts the server as its child.
fn run_server(
    signals: &mut signal_hook::iterator::Signals,
    streams: OwnStreams,
    args: &GuardArgs,
) -> io::Result<i32> {
    confine(args)?;
    let server = match server::start(&args.program, &args.args) {
        Ok(server) => server,
        Err(status) => return Ok(status),
    };
    let status = streams
        .close()
        .and_then(|()| server::wait_for(signals, server.id(), server::terminate_own_group));
    // The kernel ends a PID namespace with its process 1.
    if getpid() != Pid::INIT {
        kill_descendants();
    }
    Ok(server::shell_status(status?))
}

/// Takes from this process, and so from its children, what the server must not have.
fn confine(args: &GuardArgs) -> io::Result<()> {
    let confinement = &args.confinement;
    let named = |what: &'static str| {
        move |error: io::Error| io::Error::other(format!("the protection `{what}` failed: {error}"))
    };
    if confinement.no_new_privs {
        privileges::no_new_privs().map_err(named("no_new_privs"))?;
    }
    args.limits.apply(None).map_err(named("resource limits"))?;
    if confinement.own_network {
        network::enter_empty().map_err(named("network"))?;
    }
    if confinement.no_capabilities {
        privileges::drop_capabilities().map_err(named("no_capabilities"))?;
    }
    if let Some(paths) = &confinement.write_paths {
        write_list::restrict(paths).map_err(named("write_list"))?;
    }
    if confinement.filter_calls {
        calls::filter().map_err(named("call_filter"))?;
    }
    Ok(())
}
