//! One tenant does its worst in each class of attack, on another core than the node. The calls of
//! another tenant all succeed, and nearly as fast as before. The node needs no more memory than
//! `check` prints for its settings.
//!
//! The node is a release build. It and the client that is measured have the first core of the
//! machine, the attacking clients and the attacking tenant's processes have the last one. Nothing
//! else should run: `.config/nextest.toml` starts no other test beside this one.
//!
//! From a terminal with `kernel.sched_autogroup_enabled=1`, and outside of a cgroup of its own, the server of
//! the tenant `steady` may get no core for longer than is allowed here: `docs/deploying.md`.

#![expect(clippy::print_stdout, reason = "the figures are what it is run for")]

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::cores::{self, Core};
use tests::{Node, Setup, processes, tools};

#[path = "tenant_isolation/attacks.rs"]
mod attacks;
#[path = "tenant_isolation/remote.rs"]
mod remote;
#[path = "tenant_isolation/victim.rs"]
mod victim;

use attacks::{Attack, Class};
use victim::Victim;

/// How long calls are made under an attack, and how many at least.
const TIME: Duration = Duration::from_secs(3);
const CALLS: usize = 300;

/// How long an attack lasts before calls are measured.
const BEFORE: Duration = Duration::from_secs(1);

/// The p99 that is allowed under attack if four times the quiet one is less.
const ALLOWED_MIN: Duration = Duration::from_millis(20);

/// How often all attacks at once are measured. They come in waves, so the p99 of one measurement differs from that of the
/// next by up to three times; the median is judged. Each call of each measurement must succeed.
const ROUNDS_OF_ALL: usize = 3;

/// The descriptors of the node: fewer than the attacking clients have connections.
const DESCRIPTORS: usize = 1_000;

/// A user of no program, for the processes of the attacking tenant: the system does not bound the
/// processes of root.
const STRANGER: u32 = 64_123;

const SETTINGS: &str = "
[node]
session_bytes_max = 67108864
children_max = 24

[front]
bodies_bytes_max = 33554432

[sessions]
sessions_max = 4000
unconfirmed_max = 200

[tenants.hostile]
auth = 'open'
[tenants.hostile.backends.main]
kind = 'native'
name = 'everything'

[tenants.quiet]
auth = 'open'
[tenants.quiet.backends.main]
kind = 'native'
name = 'everything'
";

/// A folder with the settings of a node, and a program that runs the node on its core.
struct Machine {
    folder: tempfile::TempDir,
    settings: String,
    attackers: Core,
    /// Where the tenant `remote` has its server.
    remote: std::net::TcpListener,
}

impl Machine {
    fn new(node: Core, attackers: Core) -> Result<Self> {
        let greedy = std::fs::read_to_string(tools::root().join("tests/servers/greedy.py"))?;
        let steady = tools::built("everything");
        // The folder of this test may be closed to other users, so the server's text is passed.
        let stranger = if rustix::process::geteuid().is_root() {
            format!("user = '{STRANGER}'\ncwd = '/'\n")
        } else {
            String::new()
        };
        let core = attackers.number();
        let remote = std::net::TcpListener::bind("127.0.0.1:0")?;
        let address = remote.local_addr()?;
        let port = address.port();
        let settings = format!(
            "{SETTINGS}
[tenants.greedy]
auth = 'open'
[tenants.greedy.backends.main]
kind = 'stdio'
command = 'taskset'
args = ['-c', '{core}', 'python3', '-u', '-c', '''{greedy}''']
processes_max = 64
memory_bytes_max = 67108864
{stranger}
[tenants.steady]
auth = 'open'
[tenants.steady.backends.main]
kind = 'stdio'
command = '{}'
[tenants.remote]
auth = 'open'
[tenants.remote.backends.main]
kind = 'http'
url = 'http://{address}/mcp'
allow_networks = ['127.0.0.0/8']
[tenants.catalog]
auth = 'open'
[tenants.catalog.backends.bad]
kind = 'http'
url = 'http://{address}/mcp'
allow_networks = ['127.0.0.0/8']
[tenants.catalog.backends.good]
kind = 'native'
name = 'everything'
[tenants.rebound]
auth = 'open'
[tenants.rebound.backends.main]
kind = 'http'
url = 'http://localhost:{port}/mcp'
",
            steady.display(),
        );
        let folder = tempfile::tempdir()?;
        let program = tools::released("roundhouse");
        let lines = format!("ulimit -n {DESCRIPTORS}\n{}", node.exec(program));
        let machine = Self { folder, settings, attackers, remote };
        tools::write_script(&machine.program(), &lines)?;
        Ok(machine)
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("node")
    }

    fn start(&self) -> Result<Node> {
        Node::start(&Setup::config(&*self.settings).program(self.program()))
    }

    /// The most memory of this node, in bytes, as `check` prints it.
    fn checked_memory(&self) -> Result<u64> {
        let file = self.folder.path().join("roundhouse.toml");
        std::fs::write(&file, &self.settings)?;
        let checked = Command::new(self.program()).arg("check").arg(&file).output()?;
        let text = String::from_utf8(checked.stdout)?;
        let complaint = String::from_utf8_lossy(&checked.stderr);
        let line = text.lines().find_map(|line| line.strip_prefix("memory: about "));
        let mib = line.and_then(|line| line.split_once(" MiB"));
        let mib = mib.with_context(|| format!("no memory in {text}{complaint}"))?.0;
        println!("check: {mib} MiB");
        Ok(mib.parse::<u64>()? << 20)
    }

    /// Measures the calls of the victim while these attacks run.
    async fn measure(&self, classes: &[Class]) -> Result<Measured> {
        let node = self.start()?;
        let victim = Victim::open(&node).await?;
        let start = |class: &Class| {
            let listener = self.remote.try_clone()?;
            anyhow::Ok(Attack::start(*class, &node, self.attackers, listener))
        };
        let attacks: Vec<_> = classes.iter().map(start).collect::<Result<_>>()?;
        tokio::time::sleep(BEFORE).await;
        let called = victim.call(TIME, CALLS).await;
        let opened = victim.open_more().await;
        let (mut p99_of_calls, mut faults) = (None, Vec::new());
        let done: Vec<_> = attacks.into_iter().map(Attack::end).collect::<Result<_>>()?;
        // Together one attack may take what another one needs.
        ensure!(classes.len() > 1 || done[0] > 0, "the attack {classes:?} did nothing");
        match called {
            Ok(times) => {
                let (p50, p99, max) =
                    (times.percentile(50), times.percentile(99), times.percentile(100));
                let count = times.count();
                println!(
                    "{classes:?}: {count} calls, p50 {p50:.1?}, p99 {p99:.1?}, max {max:.1?}, opened in \
                     {opened:.1?}, done {done:?}; p90/max: {}",
                    times.of_kinds()
                );
                p99_of_calls = Some(p99);
            }
            Err(error) => faults.push(format!("{classes:?}: {error:#}")),
        }
        if let Err(error) = opened {
            faults.push(format!("{classes:?}: a new session: {error:#}"));
        }
        faults.iter().for_each(|fault| println!("FAULT {fault}"));
        Ok(Measured { node, p99: p99_of_calls, faults })
    }
}

/// What one measurement found.
struct Measured {
    node: Node,
    /// `None` if a call failed, which is a fault.
    p99: Option<Duration>,
    faults: Vec<String>,
}

/// The fault of calls that took too long: judges the median of these p99.
fn too_slow(classes: &[Class], mut p99: Vec<Duration>, allowed: Duration) -> Option<String> {
    p99.sort_unstable();
    let median = *p99.get(p99.len() / 2)?;
    let fault = (median > allowed).then(|| {
        format!("{classes:?}: median {median:.1?} of p99 {p99:.1?}, {allowed:?} allowed")
    })?;
    println!("FAULT {fault}");
    Some(fault)
}

#[test]
fn long_a_tenant_that_does_its_worst_slows_no_call_of_another_and_takes_no_more_than_check_says()
-> Result<()> {
    on_two_cores(async |machine| judge(machine).await)
}

#[test]
fn long_the_lists_and_messages_of_a_hostile_server_slow_no_call_of_another_tenant() -> Result<()> {
    beside_servers(&[Class::RemoteLists, Class::Stdio])
}

#[test]
fn long_the_streams_and_bodies_of_a_hostile_server_slow_no_call_of_another_tenant() -> Result<()> {
    use Class::{Catalog, RemoteBodies, RemoteRefusals, RemoteStreams};
    beside_servers(&[RemoteStreams, RemoteBodies, RemoteRefusals, Catalog])
}

/// Judges the calls beside each of these attacks.
fn beside_servers(classes: &[Class]) -> Result<()> {
    on_two_cores(async |machine| {
        let allowed = quiet(machine).await?;
        let mut faults = Vec::new();
        for class in classes {
            faults.extend(faults_beside(machine, *class, allowed).await?);
        }
        ensure!(faults.is_empty(), "{}", faults.join("\n"));
        Ok(())
    })
}

/// The faults beside one attack.
async fn faults_beside(machine: &Machine, class: Class, allowed: Duration) -> Result<Vec<String>> {
    let Measured { p99, mut faults, .. } = machine.measure(&[class]).await?;
    faults.extend(too_slow(&[class], p99.into_iter().collect(), allowed));
    Ok(faults)
}

fn on_two_cores(test: impl AsyncFnOnce(&Machine) -> Result<()>) -> Result<()> {
    let Some((first, last)) = cores::two() else {
        println!("skipped: the machine has one core, so the attackers cannot have another one");
        return Ok(());
    };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    ensure!(limit.current.is_none_or(|most| most > 4_000), "`ulimit -n` is below 4000");
    // The kernel's table of open files has its size now. Victim and attackers share it, and wait when it grows.
    rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), 4_000)?;
    let machine = Machine::new(first, last)?;
    // Before the runtime starts, and with it threads.
    first.enter()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(test(&machine))
}

/// Measures the calls without an attack. Returns the p99 that is allowed under one.
async fn quiet(machine: &Machine) -> Result<Duration> {
    let node = machine.start()?;
    let quiet = Victim::open(&node).await?.call(TIME, CALLS).await?;
    let (p50, p99) = (quiet.percentile(50), quiet.percentile(99));
    println!("quiet: {} calls, p50 {p50:.1?}, p99 {p99:.1?}", quiet.count());
    Ok((p99 * 4).max(ALLOWED_MIN))
}

async fn judge(machine: &Machine) -> Result<()> {
    let allowed = quiet(machine).await?;
    let mut faults = Vec::new();
    for class in Class::ALL {
        faults.extend(faults_beside(machine, class, allowed).await?);
    }
    let (mut p99, mut most) = (Vec::new(), 0);
    for _ in 0..ROUNDS_OF_ALL {
        let measured = machine.measure(&Class::ALL).await?;
        most = most.max(processes::resident_most(measured.node.pid())?);
        p99.extend(measured.p99);
        faults.extend(measured.faults);
    }
    faults.extend(too_slow(&Class::ALL, p99, allowed));
    let checked = machine.checked_memory()?;
    println!("resident: {} MiB at most, {} MiB checked", most >> 20, checked >> 20);
    if most > checked {
        faults.push(format!("{most} bytes were resident, and `check` prints {checked}"));
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}
