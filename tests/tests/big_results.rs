//! Results of many megabytes: as JSON and on a stream, from the owner and through another node,
//! and resumed after a cut. The tool runs once, and its whole result arrives.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::Setup;
use tests::mcp::Client;
use tests::recorded::{Recorded, answer, call, follow, shortened, text};
use tests::sse::Events;
use tokio::time::sleep;

const MIB: usize = 1 << 20;

/// The largest message that all parts of a node accept by default
/// (`tenants.*.backends.*.line_bytes_max`).
const MESSAGE_MIB_MAX: usize = 16;

/// A whole result; above the bound, an error that names the bound is permitted instead.
fn is_whole(response: &Value, key: &str, mib: usize) -> Result<()> {
    if mib > MESSAGE_MIB_MAX && response["error"].is_object() {
        let why = response["error"]["message"].as_str().context("no message")?;
        let names_bound = why.contains("bytes") || why.contains("MiB") || why.contains("large");
        ensure!(names_bound, "an error that does not name the bound: {why}");
        return Ok(());
    }
    let text = text(response)?;
    ensure!(text.len() == key.len() + mib * MIB, "{} bytes: {}", text.len(), shortened(response));
    Ok(())
}

async fn check(mib: usize) -> Result<()> {
    let cluster = Recorded::start([Setup::demo(), Setup::demo()]).await?;
    let mut client = cluster.open(0, "2025-11-25").await?;
    let bytes = mib * MIB;
    for (at, tool) in [(0, "rh_record"), (1, "rh_record"), (1, "rh_record_again")] {
        client.url = cluster.node(at)?.demo();
        for (kind, arguments) in [
            ("json", json!({ "bytes": bytes })),
            ("late", json!({ "bytes": bytes, "ms": 600 })),
            ("told", json!({ "bytes": bytes, "n": 2, "interval_ms": 50 })),
        ] {
            let key = format!("{kind}-{at}-{tool}");
            let (response, _) = answer(&client, call(&client, tool, arguments, &key)).await?;
            is_whole(&response, &key, mib).with_context(|| key.clone())?;
            ensure!(cluster.runs(&key)? == 1, "{key} ran {} times", cluster.runs(&key)?);
        }
    }
    for at in [0, 1] {
        client.url = cluster.node(at)?.demo();
        let key = format!("cut-{at}");
        let arguments = json!({ "bytes": bytes, "n": 2, "interval_ms": 100 });
        let response = cut_and_resumed(&client, &cluster, arguments, &key).await;
        is_whole(&response.with_context(|| key.clone())?, &key, mib)?;
        ensure!(cluster.runs(&key)? == 1, "{key} ran {} times", cluster.runs(&key)?);
    }
    client.is_well().await
}

/// Loses its connection after the first event, and resumes at the other node when the call has
/// ended.
async fn cut_and_resumed(
    client: &Client,
    cluster: &Recorded,
    arguments: Value,
    key: &str,
) -> Result<Value> {
    let mut events = client.stream(call(client, "rh_record", arguments, key)).await?;
    let (block, _) = events.message().await?.context("no event")?;
    let id = block.id.context("an event without an id")?;
    drop(events);
    sleep(Duration::from_millis(1_500)).await;
    let mut twin = client.twin();
    let other = cluster.nodes.iter().flatten().find(|node| node.demo() != client.url);
    twin.url = other.context("no other node")?.demo();
    let mut rest: Events = twin.resume(&id).await?;
    let (told, response) = follow(&mut rest).await?;
    ensure!(told == [2], "progress after the cut: {told:?}");
    response.context("the stream ended without a response")
}

#[tokio::test]
async fn results_of_1_mib_arrive_whole() -> Result<()> {
    check(1).await
}

/// Larger than the log that is kept for replay (`sessions.log_bytes_max`).
#[tokio::test]
async fn results_of_5_mib_arrive_whole() -> Result<()> {
    check(5).await
}

/// Larger than the queue for a slow connection (`sessions.sink_bytes_max`).
#[tokio::test]
async fn results_of_15_mib_arrive_whole() -> Result<()> {
    check(15).await
}

/// Larger than the maximum of a message between nodes, and of a line of a server.
#[tokio::test]
async fn results_of_20_mib_arrive_whole_or_are_refused_once() -> Result<()> {
    check(20).await
}
