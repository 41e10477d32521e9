//! The effect of node failures on clients: they call a tool that counts, through the balancer
//! of a local cluster, while its nodes are killed and drained in turn.
//!
//! Each client behaves as SDKs do. It never repeats a POST. It resumes a stream that was cut
//! with the last event id, after the wait that the server has requested.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use indicatif::ProgressBar;
use tokio::process::Command;
use tokio::sync::watch;

use super::resume::progress_of;
use super::{Load, on_many};
use crate::figures::{Figures, Stopwatch, Tally};
use crate::local::SCRIPT;
use crate::mcp::{self, Endpoint, Session, Tool};
use crate::target::Target;
use crate::wire::{Event, Events, Wire};

/// The pause between two actions on nodes.
const CALM: Duration = Duration::from_secs(2);
/// The number of progress events of one call.
const EVENTS: u64 = 40;
/// The interval between these events.
const INTERVAL_MS: u64 = 50;
/// The wait of a client before it resumes, if the server has requested none.
const RETRY: Duration = Duration::from_secs(1);
/// The number of attempts to resume the streams of one call. Then the call has failed.
const RESUMES_MAX: usize = 5;

pub(crate) async fn run(
    target: &Target,
    load: &Load,
    bar: &ProgressBar,
) -> anyhow::Result<Figures> {
    let file =
        target.cluster.as_deref().context("its nodes cannot be killed; take local-cluster")?;
    bar.set_length(load.kills as u64 * 2);
    let nodes = nodes(file)?;
    ensure!(nodes.len() > 1, "chaos needs at least two nodes");
    let tool = target.count(EVENTS, INTERVAL_MS)?;
    let (over, is_over) = watch::channel(false);
    let all = Arc::new(Mutex::new(Seen::default()));
    let watch = Stopwatch::start(target)?;
    let clients = on_many(load.connections, |number| {
        let endpoint = target.endpoints[number % target.endpoints.len()].clone();
        let mut client = Client {
            endpoint,
            tool: tool.clone(),
            is_over: is_over.clone(),
            seen: Seen::default(),
        };
        let all = Arc::clone(&all);
        async move {
            let tally = client.live().await?;
            all.lock().unwrap_or_else(PoisonError::into_inner).add(&client.seen);
            Ok(tally)
        }
    });
    let trouble = async {
        let came = trouble(file, &nodes, load.kills, bar).await;
        let _told = over.send(true);
        came
    };
    let (tally, came) = tokio::join!(clients, trouble);
    came?;
    let mut figures = watch.stop("chaos", tally?)?;
    figures.cpu_micros = None;
    figures.more = all.lock().unwrap_or_else(PoisonError::into_inner).figures();
    Ok(figures)
}

/// Repeatedly kills a node and starts it again, then drains the next one and starts it again.
async fn trouble(
    file: &Path,
    nodes: &[String],
    kills: usize,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let folder = file.parent().context("cluster.json is in no folder")?;
    for turn in 0..kills {
        tokio::time::sleep(CALM).await;
        let node = &nodes[turn % nodes.len()];
        tell(folder, "kill", node).await?;
        bar.inc(1);
        tokio::time::sleep(CALM).await;
        tell(folder, "start", node).await?;
        tell(folder, "restart", &nodes[(turn + 1) % nodes.len()]).await?;
        bar.inc(1);
    }
    tokio::time::sleep(CALM).await;
    Ok(())
}

async fn tell(folder: &Path, what: &str, node: &str) -> anyhow::Result<()> {
    let told = Command::new(SCRIPT).args([what, node, "--dir"]).arg(folder).output().await;
    let told = told.context("deploy/local/cluster")?;
    if !told.status.success() {
        bail!("deploy/local/cluster {what} {node}: {}", String::from_utf8_lossy(&told.stderr));
    }
    Ok(())
}

fn nodes(file: &Path) -> anyhow::Result<Vec<String>> {
    let cluster: serde_json::Value = serde_json::from_slice(&std::fs::read(file)?)?;
    let nodes = cluster["nodes"].as_array().context("cluster.json names no nodes")?;
    Ok(nodes.iter().filter_map(|node| node["name"].as_str().map(str::to_owned)).collect())
}

/// The observations of a client, except the outcome of its calls.
#[derive(Default)]
struct Seen {
    events: u64,
    lost: u64,
    doubled: u64,
    resumes: u64,
    /// The longest wait between two events of a stream, including resumes.
    longest: Duration,
}

impl Seen {
    fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.resumes += other.resumes;
        self.longest = self.longest.max(other.longest);
    }

    fn figures(&self) -> BTreeMap<String, f64> {
        BTreeMap::from([
            ("events".to_owned(), self.events as f64),
            ("events_lost".to_owned(), self.lost as f64),
            ("events_doubled".to_owned(), self.doubled as f64),
            ("resumes".to_owned(), self.resumes as f64),
            ("longest_wait_secs".to_owned(), self.longest.as_secs_f64()),
        ])
    }
}

struct Client {
    endpoint: Endpoint,
    tool: Tool,
    is_over: watch::Receiver<bool>,
    seen: Seen,
}

impl Client {
    async fn live(&mut self) -> anyhow::Result<Tally> {
        let mut tally = Tally::new()?;
        let mut session = None;
        while !*self.is_over.borrow() {
            let began = Instant::now();
            let open = match session.take() {
                Some(open) => open,
                None => match self.open().await {
                    Ok(open) => open,
                    Err(error) => {
                        tally.failed(&error.context("opening a session"));
                        tokio::time::sleep(RETRY).await;
                        continue;
                    }
                },
            };
            let mut open: Session = open;
            match self.call(&mut open).await {
                Ok(()) => {
                    tally.done(began);
                    session = Some(open);
                }
                Err(error) => tally.failed(&error),
            }
        }
        Ok(tally)
    }

    async fn open(&self) -> anyhow::Result<Session> {
        let mut wire = Wire::connect(self.endpoint.address, None).await?;
        Session::open(&self.endpoint, &mut wire).await
    }

    /// Makes one call and reads until its final response. Resumes a stream that was cut, at most
    /// [`RESUMES_MAX`] times.
    async fn call(&mut self, session: &mut Session) -> anyhow::Result<()> {
        let mut wire = Wire::connect(self.endpoint.address, None).await?;
        let (_, request) = session.call(&self.tool, true);
        wire.send(request.as_bytes()).await?;
        let head = wire.head().await.context("a post without an answer")?;
        ensure!(head.status == 200 && head.is_stream, "a call was answered {}", head.status);
        let mut reading = Reading { events: Events::of(&head), wire, cursor: None, retry: RETRY };
        let mut counted = 0;
        let mut resumes = 0;
        let mut last = Instant::now();
        loop {
            match reading.next().await {
                Ok(Some(event)) if mcp::is_final_response(&event) => {
                    let error = memchr::memmem::find(&event.data, b"\"error\"").is_some();
                    ensure!(!error, "a call ended with an error");
                    self.seen.lost += EVENTS.saturating_sub(counted);
                    return Ok(());
                }
                Ok(Some(event)) => {
                    self.seen.longest = self.seen.longest.max(last.elapsed());
                    last = Instant::now();
                    self.see(&event, &mut counted);
                }
                // The stream was cut, or the server has ended it so that the client resumes.
                Ok(None) | Err(_) => {
                    ensure!(resumes < RESUMES_MAX, "a stream could not be resumed");
                    resumes += 1;
                    self.seen.resumes += 1;
                    tokio::time::sleep(reading.retry).await;
                    // A node that is gone refuses the connection. The next attempt reaches another.
                    if let Ok(resumed) = reading.resume(session).await {
                        reading = resumed;
                    }
                }
            }
        }
    }

    fn see(&mut self, event: &Event, counted: &mut u64) {
        let Some(number) = progress_of(event) else { return };
        self.seen.events += 1;
        if number <= *counted {
            self.seen.doubled += 1;
        } else {
            self.seen.lost += number - *counted - 1;
            *counted = number;
        }
    }
}

struct Reading {
    wire: Wire,
    events: Events,
    cursor: Option<Box<str>>,
    retry: Duration,
}

impl Reading {
    async fn next(&mut self) -> anyhow::Result<Option<Event>> {
        loop {
            let event = self.wire.event(&mut self.events).await?;
            let Some(event) = event else { return Ok(None) };
            if let Some(id) = &event.id {
                self.cursor = Some(id.clone());
            }
            if let Some(retry) = event.retry {
                self.retry = Duration::from_millis(retry);
            }
            if !event.data.is_empty() {
                return Ok(Some(event));
            }
        }
    }

    async fn resume(&self, session: &Session) -> anyhow::Result<Self> {
        let cursor = self.cursor.as_deref().context("cut before the first id")?;
        let mut wire = Wire::connect(session.endpoint().address, None).await?;
        wire.send(session.get(Some(cursor)).as_bytes()).await?;
        let head = wire.head().await?;
        ensure!(head.status == 200 && head.is_stream, "a resume was answered {}", head.status);
        let cursor = self.cursor.clone();
        Ok(Self { events: Events::of(&head), wire, cursor, retry: self.retry })
    }
}
