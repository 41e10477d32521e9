//! The floods of a tenant's clients and servers, on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::backends::Kind;
use super::machine::Machine;
use crate::hostile;
use crate::mcp::{self, Endpoint, Session, Tool};
use crate::wire::Wire;

/// The clients of an honest server, and of a hostile one.
const CLIENTS: usize = 16;
const HOSTILE_CLIENTS: usize = 12;
/// How many calls at a time a client of a hostile server makes.
const CALLS: usize = 7;
/// How long such a client waits.
const WAIT: Duration = Duration::from_millis(500);
/// The longest time until a flood has done something.
const BEGIN: Duration = Duration::from_secs(30);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_millis(10);
/// The size of large arguments: a body is at most 4 MiB.
const LARGE_BYTES: usize = 3 << 20;
/// The progress events of a call with many.
const EVENTS: usize = 1_000;
/// Both with `--smoke`: a node of a debug build that shares its core with busy programs takes half a minute for
/// the first of 16 calls with as many events, or with large results.
const LARGE_BYTES_OF_SMOKE: usize = 256 << 10;
const EVENTS_OF_SMOKE: usize = 50;

/// What a tenant does as much as it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Flood {
    /// Short calls.
    Calls,
    /// Calls with large arguments.
    Arguments,
    /// Calls with large arguments and results.
    Results,
    /// Sessions that are opened and ended.
    Sessions,
    /// Calls with a stream of many events.
    Events,
    /// A hostile server: lists of 5 MB that change.
    Lists,
    /// The same, and results of 8 MB, also such that take long to scan.
    Bodies,
    /// The same, and streams without an end, of large and of small messages.
    Streams,
    /// The same, and redirects, wrong types and slow heads.
    Refusals,
}

/// A running flood.
pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<anyhow::Result<()>>,
    done: Arc<AtomicU64>,
}

impl Running {
    /// Waits for this time, and until the flood has done something.
    pub(crate) fn wait(&self, time: Duration, name: &str) -> anyhow::Result<()> {
        std::thread::sleep(time);
        let until = Instant::now() + BEGIN;
        while self.done.load(Ordering::Relaxed) == 0 {
            ensure!(Instant::now() < until, "the flood {name} did nothing");
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Ends the flood. Returns how many calls were made, or how many sessions were opened.
    pub(crate) fn end(self) -> anyhow::Result<u64> {
        drop(self.stop);
        self.thread.join().map_err(|_| anyhow::anyhow!("a flood panicked"))??;
        Ok(self.done.load(Ordering::Relaxed))
    }
}

impl Flood {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Arguments => "arguments",
            Self::Results => "results",
            Self::Sessions => "sessions",
            Self::Events => "events",
            Self::Lists => "lists",
            Self::Bodies => "bodies",
            Self::Streams => "streams",
            Self::Refusals => "refusals",
        }
    }

    /// Starts this flood of a tenant with this kind of backend. It runs on the core of this thread.
    pub(crate) fn start(self, kind: Kind, machine: &Machine, smoke: bool) -> Running {
        let (stop, stopped) = oneshot::channel();
        let done = Arc::<AtomicU64>::default();
        let whose = if self.hostile_tools(kind).is_some() { "hostile" } else { "noisy" };
        let endpoint = machine.endpoint(whose, kind);
        let (listener, counted) = (machine.hostile.try_clone(), Arc::clone(&done));
        let thread = std::thread::spawn(move || {
            // Redis and nginx, which stand for other machines, share the core.
            rustix::process::nice(5).context("the priority of a flood")?;
            let (events, large_bytes) =
                if smoke { (EVENTS_OF_SMOKE, LARGE_BYTES_OF_SMOKE) } else { (EVENTS, LARGE_BYTES) };
            let client = Client { kind, endpoint: endpoint?, events, large_bytes, done: counted };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut tasks = JoinSet::new();
                tasks.spawn(hostile::serve(listener.context("the hostile server")?));
                match self.hostile_tools(kind) {
                    Some(tools) => (0..HOSTILE_CLIENTS).for_each(|_| {
                        tasks.spawn(client.clone().use_hostile(tools.clone()));
                    }),
                    None => (0..CLIENTS).for_each(|_| {
                        tasks.spawn(client.clone().flood(self));
                    }),
                }
                tokio::select! {
                    Some(ended) = tasks.join_next() => ended?.context("a task of a flood ended"),
                    _ = stopped => Ok(()),
                }
            })
        });
        Running { stop, thread, done }
    }

    /// The tools of the hostile server that are called. `None`: the flood needs an honest one.
    fn hostile_tools(self, kind: Kind) -> Option<Vec<String>> {
        let python = kind == Kind::Stdio;
        let tools = match self {
            Self::Calls | Self::Arguments | Self::Results | Self::Sessions | Self::Events => {
                return None;
            }
            Self::Lists => &[],
            Self::Bodies if python => &["big", "dense"][..],
            Self::Bodies => hostile::BODIES,
            Self::Streams if python => &["large_events", "notify", "small"][..],
            Self::Streams => hostile::STREAMS,
            Self::Refusals => hostile::REFUSALS,
        };
        let prefix = if kind == Kind::Catalog { "bad__" } else { "" };
        Some(tools.iter().map(|tool| format!("{prefix}{tool}")).collect())
    }
}

/// A client of the tenant.
#[derive(Clone)]
struct Client {
    kind: Kind,
    endpoint: Endpoint,
    /// The progress events of a call with many, and the size of large arguments.
    events: usize,
    large_bytes: usize,
    done: Arc<AtomicU64>,
}

impl Client {
    fn note(&self, done: usize) {
        self.done.fetch_add(done as u64, Ordering::Relaxed);
    }

    /// Floods an honest server. A failure is part of a flood.
    async fn flood(self, flood: Flood) -> anyhow::Result<()> {
        loop {
            let _failed = match flood {
                Flood::Sessions => self.open_sessions().await,
                Flood::Arguments => self.call(&self.count(0, self.large_bytes), false).await,
                Flood::Results => self.call(&self.echo(self.large_bytes), false).await,
                Flood::Events => self.call(&self.count(self.events, 0), true).await,
                _ => self.call(&self.echo(0), false).await,
            };
            sleep(PAUSE).await;
        }
    }

    fn echo(&self, bytes: usize) -> Tool {
        self.kind.tool("echo", format!(r#"{{"message":"{}"}}"#, "x".repeat(bytes)))
    }

    fn count(&self, events: usize, bytes: usize) -> Tool {
        let pad = "x".repeat(bytes);
        self.kind.tool("count", format!(r#"{{"n":{events},"interval_ms":0,"pad":"{pad}"}}"#))
    }

    /// Calls a tool until a call fails.
    async fn call(&self, tool: &Tool, progress: bool) -> anyhow::Result<()> {
        let mut wire = Wire::connect(self.endpoint.address, None).await?;
        let mut session = Session::open(&self.endpoint, &mut wire).await?;
        loop {
            let (_, request) = session.call(tool, progress);
            let called = mcp::call(&mut wire, &request).await?;
            self.note(usize::from(called.is_result));
        }
    }

    /// Opens and ends sessions until that fails.
    async fn open_sessions(&self) -> anyhow::Result<()> {
        let mut wire = Wire::connect(self.endpoint.address, None).await?;
        loop {
            let session = Session::open(&self.endpoint, &mut wire).await?;
            session.close(&mut wire).await?;
            self.note(1);
        }
    }

    /// Uses a hostile server, with more calls at a time than it answers.
    async fn use_hostile(self, tools: Vec<String>) -> anyhow::Result<()> {
        loop {
            let _failed = self.use_session(&tools).await;
            sleep(PAUSE).await;
        }
    }

    async fn use_session(&self, tools: &[String]) -> anyhow::Result<()> {
        let mut wire = Wire::connect(self.endpoint.address, None).await?;
        let mut session = Session::open(&self.endpoint, &mut wire).await?;
        // A stream that the client does not read.
        let mut stream = Wire::connect(self.endpoint.address, None).await?;
        stream.send(session.get(None).as_bytes()).await?;
        let list = session.post(r#"{"jsonrpc":"2.0","id":"list","method":"tools/list"}"#);
        for _ in 0..4 {
            self.send(list.clone()).await;
            let tools = tools.iter().cycle().take(if tools.is_empty() { 0 } else { CALLS });
            let call = |name: &String| {
                let tool = Tool { name: name.clone(), arguments: "{}".to_owned() };
                session.call(&tool, false).1
            };
            let calls: Vec<_> = tools.map(call).collect();
            join_all(calls.into_iter().map(|call| self.send(call))).await;
        }
        session.close(&mut wire).await
    }

    /// Sends a request on a connection of its own. Few are answered in time.
    async fn send(&self, request: String) {
        let sending = async {
            let mut wire = Wire::connect(self.endpoint.address, None).await?;
            mcp::call(&mut wire, &request).await
        };
        let _answer = timeout(WAIT, sending).await;
        self.note(1);
    }
}
