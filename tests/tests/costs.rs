//! What the cluster costs its Redis.

#![expect(clippy::print_stdout, reason = "the figures are what it is run for")]

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::mcp::Client;
use tests::redis::Redis;
use tests::{Node, Setup};

/// Calls that are counted: many more than what nodes say to Redis of their own meanwhile.
const CALLS: u64 = 1_000;
/// Sessions that are weighed together.
const SESSIONS: u64 = 50;

fn cluster(redis: &Redis) -> Result<[Node; 2]> {
    let setup = Setup::demo()
        .with("store.url", redis.url())
        .with("cluster.listen", "127.0.0.1:0")
        .with("cluster.secret", "known to these two nodes");
    Ok([Node::start(&setup)?, Node::start(&setup)?])
}

/// How many commands Redis has been asked so far.
fn commands(redis: &Redis) -> Result<u64> {
    let stats = redis.ask("INFO stats")?;
    let line = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    Ok(line.context("no count of commands")?.trim().parse()?)
}

/// What a key takes, in bytes; nothing where there is none.
fn weight(redis: &Redis, key: &str) -> Result<u64> {
    let answer = redis.ask(&format!("MEMORY USAGE {key} SAMPLES 0"))?;
    Ok(answer.trim().strip_prefix(':').map_or(Ok(0), str::parse)?)
}

/// Only the leases of the nodes go on meanwhile.
#[tokio::test]
async fn a_call_asks_redis_nothing_at_its_owner_nor_after_the_first_touch_elsewhere() -> Result<()>
{
    let redis = Redis::start()?;
    let nodes = cluster(&redis)?;
    let mut client = Client::open(nodes[0].demo(), "2025-11-25").await?;
    for node in &nodes {
        client.url = node.demo();
        client.tool("rh_echo", json!({})).await?;
        let before = commands(&redis)?;
        for number in 0..CALLS {
            client.tool("rh_echo", json!({ "number": number })).await?;
        }
        let asked = commands(&redis)? - before;
        ensure!(asked < CALLS / 2, "{asked} commands during {CALLS} calls");
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
    bytes += weight(&redis, "rh:tenant:demo:sessions")?;
    let each = bytes / SESSIONS;
    println!("an idle session takes {each} bytes of Redis");
    ensure!(each <= 1_024, "{each} bytes a session");
    Ok(())
}
