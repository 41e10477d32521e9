//! The commands and the memory that the cluster needs in Redis.

#![expect(clippy::print_stdout, reason = "the figures are what it is run for")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::mcp::Client;
use tests::monitor::Monitor;
use tests::redis::Redis;
use tests::sse::PATIENCE;
use tests::{Node, Setup};
use tokio::time::sleep;

/// The number of calls.
const CALLS: u64 = 1_000;
/// The number of sessions whose memory is measured together.
const SESSIONS: u64 = 50;

fn cluster(redis: &Redis) -> Result<[Node; 2]> {
    let setup = Setup::demo()
        .with("store.url", redis.url())
        .with("cluster.listen", "127.0.0.1:0")
        .with("cluster.secret", "known to these two nodes, and no secret");
    Ok([Node::start(&setup)?, Node::start(&setup)?])
}

/// The memory of a key, in bytes; 0 if the key does not exist.
fn weight(redis: &Redis, key: &str) -> Result<u64> {
    let answer = redis.ask(&format!("MEMORY USAGE {key} SAMPLES 0"))?;
    Ok(answer.trim().strip_prefix(':').map_or(Ok(0), str::parse)?)
}

/// Commands about nodes and their leases contain no session id, so they do not count.
#[tokio::test]
async fn a_call_asks_redis_nothing_at_its_owner_nor_after_the_first_touch_elsewhere() -> Result<()>
{
    let redis = Redis::start()?;
    let nodes = cluster(&redis)?;
    let mut client = Client::open(nodes[0].demo(), "2025-11-25").await?;
    let session = client.session.clone().context("no session")?;
    let mut monitor = Monitor::start(&redis)?;
    for (node, touches) in nodes.iter().zip([0, 1]) {
        client.url = node.demo();
        client.tool("rh_echo", json!({})).await?;
        let touched = monitor.heard(&session)?;
        ensure!(touched.len() == touches, "commands of the first call: {touched:?}");
        for number in 0..CALLS {
            client.tool("rh_echo", json!({ "number": number })).await?;
        }
        let asked = monitor.heard(&session)?;
        ensure!(asked.is_empty(), "{} commands during {CALLS} calls: {asked:?}", asked.len());
    }
    Ok(())
}

/// The claim returns record and log. Before the claim, the node looks up the owner of the session:
/// once if the owner is known to be gone, otherwise repeatedly until it is.
#[tokio::test]
async fn a_take_over_is_one_round_trip() -> Result<()> {
    let redis = Redis::start()?;
    let mut nodes = cluster(&redis)?;
    let (first, first_session) = touched_elsewhere(&nodes).await?;
    let (second, second_session) = touched_elsewhere(&nodes).await?;
    metric(&nodes[1], "roundhouse_stabilising", 0.0).await?;
    let mut monitor = Monitor::start(&redis)?;
    nodes[0].kill()?;
    first.tool("rh_echo", json!({})).await?;
    let asked = monitor.heard(&first_session)?;
    let (claim, looks) = asked.split_last().context("no command was sent")?;
    ensure!(is_claim(claim) && looks.iter().all(|look| is_look(look)), "{asked:#?}");

    metric(&nodes[1], "roundhouse_nodes_marked_dead_total", 1.0).await?;
    let mut monitor = Monitor::start(&redis)?;
    second.tool("rh_echo", json!({})).await?;
    let asked = monitor.heard(&second_session)?;
    ensure!(asked.len() == 2 && is_look(&asked[0]) && is_claim(&asked[1]), "{asked:#?}");
    for (client, session) in [(&first, &first_session), (&second, &second_session)] {
        client.tool("rh_echo", json!({})).await?;
        let more = monitor.heard(session)?;
        ensure!(more.is_empty(), "after the take-over: {more:#?}");
    }
    Ok(())
}

/// A session of the first node that the second node has already located, and its id.
async fn touched_elsewhere(nodes: &[Node; 2]) -> Result<(Client, String)> {
    let mut client = Client::open(nodes[0].demo(), "2025-11-25").await?;
    client.url = nodes[1].demo();
    client.tool("rh_echo", json!({})).await?;
    let session = client.session.clone().context("no session")?;
    Ok((client, session))
}

/// One script that reads and writes record and log.
fn is_claim(command: &str) -> bool {
    command.starts_with("\"EVALSHA\"") && command.contains(":log\"")
}

/// A read of the record.
fn is_look(command: &str) -> bool {
    command.starts_with("\"GET\"")
}

/// Waits until a metric of a node has this value.
async fn metric(node: &Node, name: &str, due: f64) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while node.metric(name).await? != Some(due) {
        ensure!(Instant::now() < until, "{name} is not {due}");
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

#[tokio::test]
async fn an_idle_session_takes_at_most_a_kilobyte_of_redis() -> Result<()> {
    let redis = Redis::start()?;
    let nodes = cluster(&redis)?;
    let mut bytes = 0;
    for _ in 0..SESSIONS {
        let client = Client::open(nodes[0].demo(), "2025-11-25").await?;
        client.tool("rh_echo", json!({})).await?;
        let session = client.session.context("no session")?;
        let record = weight(&redis, &format!("rh:{{{session}}}"))?;
        ensure!(record > 0, "no record of the session");
        bytes += record + weight(&redis, &format!("rh:{{{session}}}:log"))?;
    }
    let each = bytes / SESSIONS;
    println!("an idle session takes {each} bytes of Redis");
    ensure!(each <= 1_024, "{each} bytes a session");
    Ok(())
}
