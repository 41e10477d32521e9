//! Nodes with different settings or different load: a rolling change of a setting, and a failover
//! to a node that has no room.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::Setup;
use tests::recorded::{Recorded, answer, call, follow, text};
use tests::sse::PATIENCE;
use tokio::time::timeout;

#[tokio::test]
async fn streams_run_between_nodes_whose_windows_differ() -> Result<()> {
    let with = |window: u32| Setup::demo().with("cluster.window", window);
    let cluster = Recorded::start([with(8), with(32)]).await?;
    for (owner, other) in [(0, 1), (1, 0)] {
        let mut client = cluster.open(owner, "2025-11-25").await?;
        client.url = cluster.node(other)?.demo();
        let key = format!("owned-by-{owner}");
        let message = call(&client, "rh_record", json!({ "n": 60, "interval_ms": 5 }), &key);
        let mut events = client.stream(message).await?;
        let (told, response) =
            timeout(PATIENCE, follow(&mut events)).await.context(key.clone())??;
        ensure!(told == (1..=60).collect::<Vec<_>>(), "{key}: {told:?}");
        ensure!(text(&response.context("no response")?)? == key, "{key}");
    }
    Ok(())
}

/// The balancer sends the client of a dead node to a full node; a third node has room.
#[tokio::test]
async fn a_full_node_sends_a_dead_nodes_sessions_on_to_one_with_room() -> Result<()> {
    let full = Setup::demo().with("sessions.sessions_max", 2);
    let mut cluster = Recorded::start([Setup::demo(), full, Setup::demo()]).await?;
    let kept = [cluster.open(1, "2025-11-25").await?, cluster.open(1, "2025-11-25").await?];
    let mut orphans = Vec::new();
    for _ in 0..3 {
        orphans.push(cluster.open(0, "2025-11-25").await?);
    }
    cluster.kill(0)?;
    cluster.deaths_noticed().await?;
    for (number, orphan) in orphans.iter_mut().enumerate() {
        orphan.url = cluster.node(1)?.demo();
        let key = format!("orphan-{number}");
        let message = call(orphan, "rh_record", json!({}), &key);
        let (response, took) = answer(orphan, message).await?;
        ensure!(text(&response)? == key, "{response}");
        ensure!(took < Duration::from_secs(5), "{key} took {took:?}");
        ensure!(cluster.runs(&key)? == 1, "{key} ran {} times", cluster.runs(&key)?);
    }
    for client in &kept {
        client.is_well().await?;
    }
    Ok(())
}
