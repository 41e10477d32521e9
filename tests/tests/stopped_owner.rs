//! The owner of sessions is stopped (SIGSTOP) for a moment, much shorter than its lease, while
//! other nodes forward calls to it. No call is lost, and no call runs twice.

use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;
use serde_json::json;
use tests::Setup;
use tests::recorded::{Recorded, answer, call, text};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The number of calls of each tool in flight.
const CALLS: usize = 4;

/// The servers are separate processes, which continue and answer meanwhile.
async fn check(setup: Setup, stop: Duration) -> Result<()> {
    let cluster = Recorded::start([setup.clone(), setup]).await?;
    let mut answers = JoinSet::new();
    for (tool, number) in
        ["rh_record", "rh_record_again"].iter().flat_map(|tool| (0..CALLS).map(move |n| (tool, n)))
    {
        // Some answer with JSON however long a call takes, the others with a stream after a while.
        let revision = if number % 2 == 0 { "2025-06-18" } else { "2025-11-25" };
        let mut client = cluster.open(0, revision).await?;
        client.url = cluster.node(1)?.demo();
        client.is_well().await?;
        let key = format!("{tool}-{number}");
        // Some calls end before the owner continues, and some do not.
        let arguments = json!({ "ms": 200 + 600 * (number / 2) });
        let message = call(&client, tool, arguments, &key);
        answers.spawn(async move { (answer(&client, message).await, key) });
    }
    sleep(Duration::from_millis(100)).await;
    let owner = cluster.node(0)?;
    owner.signal(Signal::STOP)?;
    sleep(stop).await;
    owner.signal(Signal::CONT)?;
    let mut failed = Vec::new();
    while let Some(answered) = answers.join_next().await {
        let (answer, key) = answered?;
        let (response, took) = answer.map_err(|error| error.context(key.clone()))?;
        let runs = cluster.runs(&key)?;
        if text(&response).ok() != Some(&key) || runs != 1 || took > stop + Duration::from_secs(3) {
            failed.push(format!("{key} ran {runs} times, {took:?}: {response}"));
        }
    }
    ensure!(failed.is_empty(), "{} of {}: {failed:#?}", failed.len(), 2 * CALLS);
    Ok(())
}

#[tokio::test]
async fn calls_succeed_whose_owner_was_stopped_for_half_a_second() -> Result<()> {
    check(Setup::fixture(), Duration::from_millis(500)).await
}

#[tokio::test]
async fn calls_succeed_whose_owner_was_stopped_for_1500_ms() -> Result<()> {
    check(Setup::fixture(), Duration::from_millis(1_500)).await
}

#[tokio::test]
async fn calls_succeed_whose_owner_was_stopped_for_3_s() -> Result<()> {
    check(Setup::fixture(), Duration::from_secs(3)).await
}

#[tokio::test]
async fn calls_of_built_in_servers_succeed_whose_owner_was_stopped_for_3_s() -> Result<()> {
    check(Setup::demo(), Duration::from_secs(3)).await
}
