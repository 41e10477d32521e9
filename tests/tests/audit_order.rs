//! No message is at a tenant's server before its audit record is written.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use tests::audit_log::Log;
use tests::mcp::Client;
use tests::sse::Events;
use tests::{Node, Setup, check, tools};
use tokio::time::{sleep, timeout};

const NEWEST: &str = "2025-11-25";

/// The last revision that has batches.
const WITH_BATCHES: &str = "2025-03-26";

/// A notification that sessions pass on.
const ROOTS: &str = "notifications/roots/list_changed";

/// Opens a pipe that has no writer yet.
const O_NONBLOCK: i32 = 0o4000;

/// The records of fewer calls fill a pipe of 64 KiB: each call has more than 400 bytes. The queue of the
/// node has room for the records of more.
const PIPE_CALLS_MAX: usize = 200;

/// A node whose server writes down what it receives.
struct Recorded {
    node: Node,
    log: Log,
}

impl Recorded {
    fn start(log: Log, with: impl FnOnce(Setup) -> Setup) -> Result<Self> {
        let script = tools::root().join("tests/servers/ledger.py").display().to_string();
        let (ledger, audit) =
            (ledger(&log).display().to_string(), log.path().display().to_string());
        let python = tools::python("py1").display().to_string();
        // The threads have few calls each, and share one writer.
        let setup = Setup::hosting([python, script, ledger, audit]).with("front.workers", 2);
        Ok(Self { node: Node::start(&with(log.of(setup)))?, log })
    }

    /// What the server received: its name, and whether its record was in the file.
    fn received(&self) -> Result<Vec<(String, bool)>> {
        let text = std::fs::read_to_string(ledger(&self.log)).unwrap_or_default();
        let line = |line: &str| {
            let (name, is_recorded) = line.split_once(' ').context("no space")?;
            Ok((name.to_owned(), is_recorded == "recorded"))
        };
        text.lines().map(line).collect()
    }

    async fn clients(&self) -> Result<Clients> {
        let demo = self.node.demo();
        Ok(Clients {
            newest: Client::open(demo.as_str(), NEWEST).await?,
            batching: Client::open(demo.as_str(), WITH_BATCHES).await?,
            oldest: Oldest::open(&self.node).await?,
        })
    }
}

fn ledger(log: &Log) -> PathBuf {
    log.folder.path().join("ledger")
}

/// A client of each way in which a message is posted.
struct Clients {
    newest: Client,
    batching: Client,
    oldest: Oldest,
}

impl Clients {
    /// Sends a call, a notification, a batch and a call over HTTP+SSE at once, and waits for all of their
    /// answers.
    async fn send_all(&mut self) -> Result<()> {
        let (newest, batching) = (&self.newest, &self.batching);
        let call = async {
            let answer = newest.ask(newest.call("one", json!({}))).await?;
            ensure!(answer["result"]["content"][0]["text"] == "one", "{answer}");
            Ok(())
        };
        let notification = async { check::status(&newest.notify(ROOTS, json!({})).await?, 202) };
        let batch = async {
            let members = [batching.call("two", json!({})), batching.call("three", json!({}))];
            let answer = batching.http(Method::POST).json(&members).send().await?;
            check::status(&answer, 200)?;
            let text = answer.text().await?;
            ensure!(text.matches("\"content\"").count() == 2, "{text}");
            Ok(())
        };
        let (call, notification, batch, oldest) =
            tokio::join!(call, notification, batch, self.oldest.call("four"));
        [call, notification, batch, oldest].into_iter().collect()
    }
}

/// The names of what [`Clients::send_all`] sends.
const ALL: [&str; 5] = ["four", ROOTS, "one", "three", "two"];

/// A client of HTTP+SSE.
struct Oldest {
    poster: Client,
    events: Events,
}

impl Oldest {
    async fn open(node: &Node) -> Result<Self> {
        let opener = Client::new(format!("{}/demo/sse", node.base), "2024-11-05");
        let mut events = Events::of(opener.get(None).await?)?;
        let path = events.next().await?.and_then(|event| event.data).context("no endpoint")?;
        let poster = Client::new(format!("{}{path}", node.base), "2024-11-05");
        let initialize = poster.message("initialize", poster.introduction(json!({})));
        check::status(&poster.send(initialize).await?, 202)?;
        events.message().await?.context("no answer")?;
        check::status(&poster.notify("notifications/initialized", json!({})).await?, 202)?;
        Ok(Self { poster, events })
    }

    async fn call(&mut self, tool: &str) -> Result<()> {
        check::status(&self.poster.send(self.poster.call(tool, json!({}))).await?, 202)?;
        let (_, answer) = self.events.message().await?.context("no answer")?;
        ensure!(answer["result"]["content"][0]["text"] == tool, "{answer}");
        Ok(())
    }
}

/// A pipe in the place of the audit file.
struct Pipe(std::fs::File);

impl Pipe {
    fn make(log: &Log) -> Result<Self> {
        let made = std::process::Command::new("mkfifo").arg(log.path()).status()?;
        ensure!(made.success());
        Ok(Self(OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(log.path())?))
    }

    /// Sends calls until one is held: the pipe is full, and the node's writer waits for it.
    async fn fill(client: &Client) -> Result<()> {
        for _ in 0..PIPE_CALLS_MAX {
            let call = timeout(Duration::from_millis(500), client.tool("filling", json!({})));
            if call.await.is_err() {
                return Ok(());
            }
        }
        bail!("calls are not held while their records are not written")
    }

    /// Reads it to its end.
    async fn read(mut self) -> Result<()> {
        let mut bytes = vec![0; 1 << 16];
        loop {
            match self.0.read(&mut bytes) {
                // The node has ended.
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    sleep(Duration::from_millis(2)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[tokio::test]
async fn a_server_that_receives_a_message_finds_its_record_in_the_file() -> Result<()> {
    let recorded = Recorded::start(Log::new()?, |setup| setup)?;
    let mut clients = recorded.clients().await?;
    clients.send_all().await?;
    // Each of these is alone in its tick, or with others of other sessions.
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..40 {
        let client = clients.newest.twin();
        let call = clients.newest.call(&format!("tool{number}"), json!({}));
        calls.spawn(async move { client.ask(call).await });
    }
    while let Some(called) = calls.join_next().await {
        called??;
    }
    let until = Instant::now() + Duration::from_secs(20);
    // The session has accepted the notification, and its server may be about to receive it.
    while !recorded.received()?.iter().any(|(name, _)| name == ROOTS) {
        ensure!(Instant::now() < until, "{:?}", recorded.received()?);
        sleep(Duration::from_millis(10)).await;
    }
    let received = recorded.received()?;
    let early: Vec<_> = received.iter().filter(|(_, is_recorded)| !is_recorded).collect();
    ensure!(early.is_empty(), "{early:?}");
    for name in ALL {
        ensure!(received.iter().any(|(received, _)| received == name), "{name} in {received:?}");
    }
    ensure!(received.len() >= ALL.len() + 40, "{received:?}");
    Ok(())
}

#[tokio::test]
async fn with_block_nothing_is_sent_while_the_destination_hangs_and_everything_afterwards()
-> Result<()> {
    let log = Log::new()?;
    let pipe = Pipe::make(&log)?;
    let recorded = Recorded::start(log, |setup| setup.with("audit.hold_ms", 60_000))?;
    let mut clients = recorded.clients().await?;
    Pipe::fill(&Client::open(recorded.node.demo(), NEWEST).await?).await?;
    let names = |received: Vec<(String, bool)>| {
        let mut names: Vec<String> = received.into_iter().map(|(name, _)| name).collect();
        names.retain(|name| ALL.contains(&name.as_str()));
        names.sort();
        names
    };
    let sending = clients.send_all();
    let reading = async {
        sleep(Duration::from_millis(1_500)).await;
        ensure!(names(recorded.received()?).is_empty(), "{:?}", recorded.received()?);
        pipe.read().await
    };
    // The pipe is read until everything is answered.
    tokio::select! {
        sent = sending => sent?,
        read = reading => read.and(Err(anyhow::anyhow!("the node has ended")))?,
    }
    let until = Instant::now() + Duration::from_secs(20);
    while names(recorded.received()?) != ALL {
        ensure!(Instant::now() < until, "{:?}", recorded.received()?);
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

#[tokio::test]
async fn with_drop_a_message_is_sent_at_the_earliest_when_its_time_is_over() -> Result<()> {
    const HOLD: Duration = Duration::from_millis(2_000);
    let log = Log::new()?;
    let _pipe = Pipe::make(&log)?;
    let with = |setup: Setup| {
        setup.with("audit.when_full", "drop").with("audit.hold_ms", HOLD.as_millis())
    };
    let recorded = Recorded::start(log, with)?;
    let client = Client::open(recorded.node.demo(), NEWEST).await?;
    // A call that is the first to be held: no record was late before.
    let until = Instant::now() + Duration::from_secs(60);
    let mut number = 0;
    let held = loop {
        number += 1;
        let name = format!("tool{number}");
        let began = Instant::now();
        let is_held = {
            let mut call = std::pin::pin!(client.tool(&name, json!({})));
            let is_held = timeout(HOLD / 4, &mut call).await.is_err();
            if is_held {
                let received = recorded.received()?;
                ensure!(!received.iter().any(|(received, _)| *received == name), "{received:?}");
                call.await?;
                ensure!(began.elapsed() >= HOLD, "{:?}", began.elapsed());
            }
            is_held
        };
        if is_held {
            break name;
        }
        ensure!(Instant::now() < until, "the pipe takes everything");
    };
    ensure!(recorded.received()?.iter().any(|(name, _)| *name == held));
    // From now on nothing waits.
    let began = Instant::now();
    client.tool("next", json!({})).await?;
    ensure!(began.elapsed() < HOLD, "{:?}", began.elapsed());
    Ok(())
}

#[tokio::test]
async fn with_block_a_message_that_is_refused_is_never_sent() -> Result<()> {
    let log = Log::new()?;
    let pipe = Pipe::make(&log)?;
    let recorded = Recorded::start(log, |setup| setup.with("audit.hold_ms", 300))?;
    let client = Client::open(recorded.node.demo(), NEWEST).await?;
    let mut sent = 0;
    while client.ask(client.call("filling", json!({}))).await?.get("error").is_none() {
        sent += 1;
        ensure!(sent < PIPE_CALLS_MAX, "calls are not held while their records are not written");
    }
    let refused: Value = client.ask(client.call("refused", json!({}))).await?;
    ensure!(refused["error"]["code"] == -32000, "{refused}");
    // Its record is written when there is room.
    let calls = async {
        let until = Instant::now() + Duration::from_secs(60);
        while client.ask(client.call("later", json!({}))).await?.get("error").is_some() {
            ensure!(Instant::now() < until, "{}", recorded.node.output());
        }
        Ok(())
    };
    tokio::select! {
        later = calls => later?,
        read = pipe.read() => read.and(Err(anyhow::anyhow!("the node has ended")))?,
    }
    let received = recorded.received()?;
    ensure!(!received.iter().any(|(name, _)| name == "refused"), "{received:?}");
    Ok(())
}
