//! Features for operators: a log that no client can fill, and a drain that can be taken back.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::json;
use tests::chaos::{Chaos, at, turn};
use tests::mcp::Client;
use tests::nodes::port;
use tests::redis::Redis;
use tests::{Node, Setup};
use tokio::time::{Instant, sleep};

/// The maximum time of each step here.
const PATIENCE: Duration = Duration::from_secs(30);

const TOKEN: &str = "a-token-for-operators";

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;

/// Posts `initialize` on several connections for a time; returns the number of answers.
async fn flood(url: &str, lasts: Duration) -> Result<usize> {
    let until = Instant::now() + lasts;
    let client = reqwest::Client::new();
    let posts = (0..16).map(|_| {
        let (client, url) = (client.clone(), url.to_owned());
        tokio::spawn(async move {
            let mut answered = 0;
            while Instant::now() < until {
                let post = client.post(&url).header("content-type", "application/json");
                let post = post.header("accept", "application/json, text/event-stream");
                answered += usize::from(post.body(INITIALIZE).send().await.is_ok());
            }
            answered
        })
    });
    let mut answered = 0;
    for posting in posts.collect::<Vec<_>>() {
        answered += posting.await?;
    }
    Ok(answered)
}

#[tokio::test]
async fn a_flood_of_refused_sessions_writes_tens_of_lines_and_their_number() -> Result<()> {
    let setup =
        Setup::fixture().with("node.children_max", 1).with("sessions.sessions_max", 100_000);
    // A hosted command has a line for each exchange, which an operator asks for.
    let setup = setup.with("log.access", "off");
    let node = Node::start(&setup)?;
    let _first = Client::open(&node.demo(), "2025-11-25").await?;
    let before = node.output().lines().count();
    let began = Instant::now();
    let answered = flood(&node.demo(), Duration::from_secs(3)).await?;
    // Each answer waits a moment for a server that could make room.
    ensure!(answered > 100, "too few answers: {answered}");
    let left_out = || -> Option<u64> {
        let output = node.output();
        let reports = output.lines().filter(|line| line.contains("more lines like this"));
        let reports = reports.filter(|line| line.contains("stdio server was not started"));
        let lines =
            |line: &str| line.split("lines=").nth(1)?.split(' ').next()?.parse::<u64>().ok();
        reports.map(lines).sum()
    };
    let until = Instant::now() + PATIENCE;
    while left_out().is_none_or(|lines| lines == 0) {
        ensure!(Instant::now() < until, "no report:\n{}", node.output());
        sleep(Duration::from_millis(100)).await;
    }
    let output = node.output();
    let lines = output.lines().count() - before;
    // A burst of 20 lines, 10 lines a second, and a report every 5 s.
    let most = 20 + 12 * (began.elapsed().as_secs() + 1) as usize;
    ensure!(lines <= most, "{lines} lines of {answered} answers, {most} were allowed:\n{output}");
    Ok(())
}

/// Sends a request to the admin port of a node; returns the status.
async fn ask(node: &Node, method: Method, path: &str) -> Result<u16> {
    let request = reqwest::Client::new().request(method, format!("{}{path}", node.admin));
    Ok(request.bearer_auth(TOKEN).send().await?.status().as_u16())
}

async fn until_sessions(node: &Node, is: impl Fn(f64) -> bool) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while !is(node.metric("roundhouse_sessions").await?.context("no such metric")?) {
        ensure!(Instant::now() < until, "the sessions do not change:\n{}", node.output());
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_drain_is_taken_back_in_a_cluster_behind_load() -> Result<()> {
    let _turn = turn().await;
    let redis = Redis::start_durable()?;
    // The file has mode 600.
    let mut token = tempfile::NamedTempFile::new()?;
    token.write_all(TOKEN.as_bytes())?;
    let file = token.path().display().to_string();
    let setup =
        || -> Result<Setup> { Ok(at(port()?, &redis.url()).with("admin.token_file", &file)) };
    let mut chaos = Chaos::start_with(vec![setup()?, setup()?, setup()?]).await?;
    for round in 0..4 {
        let drained = chaos.any();
        let node = chaos.nodes.node(drained)?;
        chaos.nodes.note(Some(drained), "drains");
        let drains = ask(node, Method::POST, "/drain?secs=5").await?;
        ensure!(drains == 202, "{drains}");
        ensure!(ask(node, Method::GET, "/readyz").await? == 503);
        // The first drain is taken back while sessions still leave.
        if round > 0 {
            until_sessions(node, |sessions| sessions == 0.0).await?;
        }
        for _ in 0..2 {
            let taken_back = ask(node, Method::DELETE, "/drain").await?;
            ensure!(taken_back == 200, "{taken_back}");
            ensure!(ask(node, Method::GET, "/readyz").await? == 200);
        }
        chaos.nodes.note(Some(drained), "drain taken back");
        // The node accepts new sessions again, and they stay.
        let client = Client::open(chaos.nodes.balancer.url(drained), "2025-11-25").await?;
        until_sessions(node, |sessions| sessions > 0.0).await?;
        client.is_well().await?;
        chaos.wait(300, 800).await;
        until_sessions(chaos.nodes.node(drained)?, |sessions| sessions > 0.0).await?;
        client.delete().await?;
    }
    chaos.judge().await?;
    Ok(())
}

#[tokio::test]
async fn a_drain_by_a_signal_is_not_taken_back() -> Result<()> {
    let mut token = tempfile::NamedTempFile::new()?;
    token.write_all(TOKEN.as_bytes())?;
    let setup =
        Setup::demo().with("admin.token_file", token.path().display()).with("node.drain_secs", 20);
    let node = Node::start(&setup)?;
    let client = Client::open(&node.demo(), "2025-11-25").await?;
    // This call keeps the node from ending at once.
    let call = tokio::spawn({
        let client = client.twin();
        async move { client.tool("rh_sleep", json!({ "ms": 5_000 })).await.is_ok() }
    });
    let until = Instant::now() + PATIENCE;
    while node.metric("roundhouse_requests_in_flight").await?.is_none_or(|calls| calls == 0.0) {
        ensure!(Instant::now() < until, "the call does not begin");
        sleep(Duration::from_millis(10)).await;
    }
    node.signal(rustix::process::Signal::TERM)?;
    let until = Instant::now() + PATIENCE;
    while ask(&node, Method::GET, "/readyz").await? == 200 {
        ensure!(Instant::now() < until, "the node does not begin to stop");
        sleep(Duration::from_millis(10)).await;
    }
    ensure!(ask(&node, Method::DELETE, "/drain").await? == 409);
    ensure!(ask(&node, Method::GET, "/readyz").await? == 503);
    call.abort();
    Ok(())
}
