//! Sessions that no client ends: most current clients never send DELETE.
//!
//! The tests open thousands of sessions and leave each in one of the states in which clients
//! leave them. After their idle time no session and no child process exists, and the memory is as
//! before.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::mcp::{Client, REVISIONS};
use tests::{Node, Setup, processes};

/// The number of sessions that are opened at the same time.
const AT_ONCE: usize = 16;

/// The maximum memory after all sessions have ended: a tenth and 8 MiB more than before, which
/// allocators and connection pools keep. A leak of 4 kB per session would be 12 MB for three thousand.
fn bound(before: u64) -> u64 {
    before + before / 10 + (8 << 20)
}

#[tokio::test]
async fn three_thousand_abandoned_sessions_leave_nothing_behind() -> Result<()> {
    check(3_000).await
}

#[tokio::test]
async fn long_ten_thousand_abandoned_sessions_leave_nothing_behind() -> Result<()> {
    check(10_000).await
}

async fn check(sessions: usize) -> Result<()> {
    let setup = Setup::demo()
        .with("sessions.idle_secs", 3)
        .with("sessions.handshake_secs", 3)
        .with("sessions.replay_secs", 3)
        .with("tenants.demo.limits.sessions_max", sessions + 1);
    let node = Node::start(&setup)?;
    // Warm-up: uses every code path, and lets every pool grow to its full size.
    open(&node, sessions / 10).await?;
    all_over(&node).await?;
    let before = processes::resident(node.pid())?;

    open(&node, sessions).await?;
    let most = node.metric("roundhouse_sessions").await?.context("no gauge")?;
    all_over(&node).await?;

    // The allocator returns freed memory to the kernel a little later.
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let after = processes::resident(node.pid())?;
        if after <= bound(before) {
            return Ok(());
        }
        let told = format!("from {before} to {after} bytes; at most {most} sessions at once");
        ensure!(Instant::now() < until, "{told}");
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Opens sessions and leaves each in one of the ways in which clients leave them.
async fn open(node: &Node, sessions: usize) -> Result<()> {
    let url = node.demo();
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..AT_ONCE {
        let url = url.clone();
        tasks.spawn(async move {
            for number in (worker..sessions).step_by(AT_ONCE) {
                abandon(&url, number).await.with_context(|| format!("session {number}"))?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(())
}

async fn abandon(url: &str, number: usize) -> Result<()> {
    let mut client = Client::new(url, REVISIONS[number % REVISIONS.len()]);
    client.initialize(json!({"sampling": {}})).await?;
    if number.is_multiple_of(5) {
        // Never sends `notifications/initialized`.
        return Ok(());
    }
    client.notify("notifications/initialized", json!({})).await?;
    match number % 5 {
        1 => drop(client.listen().await?),
        2 => {
            // Leaves in the middle of a call.
            let call =
                client.call_with_progress("rh_count", json!({"n": 3, "interval_ms": 20}), json!(1));
            client.stream(call).await?.message().await?;
        }
        3 => {
            // Refuses a server request, and leaves before the final response.
            let mut stream =
                client.stream(client.call("test_sampling", json!({"prompt": "?"}))).await?;
            let (_, question) = stream.message().await?.context("no question")?;
            let refused = json!({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -1, "message": "no"}});
            client.send(refused).await?;
        }
        _ => {
            client.tool("test_simple_text", json!({})).await?;
        }
    }
    Ok(())
}

/// Waits until no session is left.
async fn all_over(node: &Node) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let sessions = node.metric("roundhouse_sessions").await?.context("no gauge of sessions")?;
        if sessions == 0.0 {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{sessions} sessions are still there");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
