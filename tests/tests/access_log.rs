//! The access log of whole nodes: which node has which line, and how many lines there are.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::mcp::Client;
use tests::redis::Redis;
use tests::{Node, Setup};

/// The lines of the access log that fulfil a condition, once there is one.
async fn lines(node: &Node, fits: impl Fn(&Value) -> bool) -> Result<Vec<Value>> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let output = node.output();
        let lines = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let lines: Vec<_> = lines.filter(|line| line["target"] == "access" && fits(line)).collect();
        if !lines.is_empty() {
            return Ok(lines);
        }
        ensure!(Instant::now() < until, "no such line:\n{output}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_forwarded_call_is_logged_at_the_clients_node_with_its_owner_and_its_client() -> Result<()>
{
    let redis = Redis::start()?;
    let setup = |name: &str| {
        Setup::demo()
            .with("store.url", redis.url())
            .with("cluster.listen", "127.0.0.1:0")
            .with("cluster.secret", "known to these two nodes, and no secret")
            .with("cluster.name", name)
            .with("log.format", "json")
            .with("log.access", "all")
    };
    let (owner, other) = (Node::start(&setup("n1"))?, Node::start(&setup("n2"))?);
    // Before a node has a link of its own it does not know what its peer reads, and calls carry less.
    while other.metric("roundhouse_peer_links").await? != Some(1.0) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut client = Client::open(&owner.demo(), "2025-11-25").await?;
    client.url = other.demo();
    let secret = "a text that no log may hold";
    client.tool("rh_echo", json!({ "text": secret })).await?;
    let found = lines(&other, |line| line["method"] == "tools/call").await?;
    ensure!(found.len() == 1, "{found:?}");
    let line = &found[0];
    let session = client.session.clone().context("no session")?;
    for (key, value) in [
        ("tenant", "demo"),
        ("session", &session[..8]),
        ("revision", "2025-11-25"),
        ("client", "scenarios/1"),
        ("endpoint", "mcp"),
        ("verb", "POST"),
        ("tool", "rh_echo"),
        ("outcome", "result"),
        ("node", "n2"),
        ("owner", "n1"),
    ] {
        ensure!(line[key] == value, "{key} is not {value} in {line}");
    }
    ensure!(line["status"] == 200 && line["ms"].as_f64() > Some(0.0), "{line}");
    ensure!(line["bytes_in"].as_u64() > Some(secret.len() as u64), "{line}");
    let of_owner = lines(&owner, |line| line["method"] == "initialize").await?;
    ensure!(of_owner[0]["owner"] == "n1" && of_owner[0]["client"] == "scenarios/1", "{of_owner:?}");
    for node in [&owner, &other] {
        let output = node.output();
        ensure!(!output.contains(secret) && !output.contains(&session), "{output}");
        ensure!(output.contains("\"message\":\"node started\""), "{output}");
    }
    owner.logs("\"message\":\"session opened\"").await?;
    ensure!(other.metric("roundhouse_tenant_requests_total").await? > Some(0.0));
    Ok(())
}

#[tokio::test]
async fn a_flood_of_refusals_writes_as_many_lines_as_the_setting_allows_and_their_number()
-> Result<()> {
    let setup = Setup::demo()
        .with("log.format", "json")
        .with("log.access_errors_per_sec", 5)
        .with("log.access_samples_per_sec", 0);
    let node = Node::start(&setup)?;
    let began = Instant::now();
    let http = reqwest::Client::new();
    let mut refused = 0_u64;
    while began.elapsed() < Duration::from_secs(3) {
        let response = http.post(node.demo()).body("{}").send().await?;
        refused += u64::from(response.status() == 415);
    }
    ensure!(refused > 100, "too few refusals: {refused}");
    let reported = |line: &str| -> Option<u64> {
        let line: Value = serde_json::from_str(line).ok()?;
        line["above_rate"].as_u64()
    };
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let output = node.output();
        let left_out: u64 = output.lines().filter_map(reported).sum();
        let written = lines(&node, |line| line["status"] == 415).await?.len() as u64;
        if written + left_out == refused {
            let secs = began.elapsed().as_secs() + 2;
            ensure!(written <= 5 * secs, "{written} lines in {secs} s");
            break;
        }
        ensure!(Instant::now() < until, "{written} + {left_out} of {refused}:\n{output}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let counted = node.metric("roundhouse_access_log_left_out_total").await?;
    ensure!(counted > Some(0.0), "{counted:?}");
    Ok(())
}
