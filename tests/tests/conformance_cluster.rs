//! The public conformance suite through nginx, round robin over three nodes.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use tests::conformance::{self, Set};
use tests::deployment::{Deployment, Plan};

#[tokio::test]
async fn three_nodes_behind_a_balancer_conform_like_one() -> Result<()> {
    conform(Plan::demo()).await
}

#[tokio::test]
async fn three_nodes_with_servers_of_their_own_conform_like_one() -> Result<()> {
    conform(Plan::fixture()).await
}

async fn conform(plan: Plan) -> Result<()> {
    let cluster = plan.start().await?;
    for set in conformance::ALL {
        let passes = set.passes(&cluster.demo()).await;
        passes.with_context(|| format!("{set:?}"))?;
    }
    Ok(())
}

/// The error of a call whose owner died while it may have run, and that may not run twice.
const LOST: &str = "the node that worked on this was lost";

/// What may have lost calls.
#[derive(Debug, Default)]
struct Losses {
    /// When nginx logged that a node died before it answered a request.
    cut: Vec<SystemTime>,
    /// When nodes were killed. The owner of one call may have died with each.
    killed: Vec<Range<SystemTime>>,
}

/// A call may fail only if the node to which its client is connected dies, or with [`LOST`] if its owner
/// dies, and it may fail once.
#[tokio::test]
async fn they_conform_while_one_is_killed_and_another_drained_every_few_seconds() -> Result<()> {
    let cluster = Plan::demo().start().await?;
    let is_over = AtomicBool::new(false);
    let losses = Mutex::default();
    let scenario = async {
        let disturbed = async {
            let disturbed = disturb(&cluster, &losses).await;
            is_over.store(true, Ordering::Relaxed);
            disturbed.context("the disturbance failed")
        };
        let passed = async {
            for set in conformance::ALL.into_iter().cycle() {
                passes_but_for_the_dead(set, &cluster, &losses).await?;
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok(())
        };
        tokio::select! {
            told = async { tokio::try_join!(disturbed, passed).map(drop) } => told,
            never = watch_for_deaths(&cluster, &losses) => match never {},
        }
    };
    scenario.await
}

/// Kills a node, drains another, and brings both back, three times.
async fn disturb(cluster: &Deployment, losses: &Mutex<Losses>) -> Result<()> {
    const REST: Duration = Duration::from_millis(700);
    let nodes = cluster.members()?;
    for turn in 0..3 {
        let (killed, drained) = (&nodes[turn % 3].name, &nodes[(turn + 1) % 3].name);
        let began = SystemTime::now();
        cluster.kill(killed).await?;
        let dead = began..SystemTime::now() + SEEN_WITHIN;
        losses.lock().expect("a reader panicked").killed.push(dead);
        tokio::time::sleep(REST).await;
        cluster.start(killed).await?;
        tokio::time::sleep(REST).await;
        cluster.drain(drained).await?;
        tokio::time::sleep(REST).await;
        cluster.start(drained).await?;
        tokio::time::sleep(REST).await;
    }
    Ok(())
}

/// The maximum time from the death of a request until the test detects it.
const SEEN_WITHIN: Duration = Duration::from_millis(300);

/// Runs a set until it passes. In each run, a scenario may fail only if nginx logged the death of
/// a request during that scenario, or with [`LOST`] if a node was killed meanwhile. Each death permits
/// one failure.
async fn passes_but_for_the_dead(
    set: Set,
    cluster: &Deployment,
    losses: &Mutex<Losses>,
) -> Result<()> {
    const RUNS_MAX: usize = 5;
    for _ in 0..RUNS_MAX {
        let report = set.run(&cluster.demo()).await?;
        if report.complaints.is_empty() && report.is_content {
            return Ok(());
        }
        tokio::time::sleep(SEEN_WITHIN).await;
        let mut losses = std::mem::take(&mut *losses.lock().expect("a writer panicked"));
        let mut unexcused = Vec::new();
        for complaint in &report.complaints {
            let during = complaint.ran.start..complaint.ran.end + SEEN_WITHIN;
            let overlaps =
                |killed: &Range<SystemTime>| killed.start < during.end && during.start < killed.end;
            if let Some(excuse) = losses.cut.iter().position(|seen| during.contains(seen)) {
                losses.cut.remove(excuse);
            } else if complaint.text.contains(LOST)
                && let Some(excuse) = losses.killed.iter().position(overlaps)
            {
                losses.killed.remove(excuse);
            } else {
                unexcused.push(&complaint.text);
            }
        }
        let said = &report.said;
        ensure!(unexcused.is_empty(), "{set:?}: failed without a lost request: {unexcused:?}");
        ensure!(!report.complaints.is_empty(), "{set:?}: the suite fails without a reason: {said}");
    }
    anyhow::bail!("{set:?} did not pass in {RUNS_MAX} runs")
}

/// Records the times at which nginx logs that a node died before it answered a request.
async fn watch_for_deaths(cluster: &Deployment, losses: &Mutex<Losses>) -> Infallible {
    let mut known = 0;
    loop {
        let log = cluster.output("nginx");
        let is_death = |line: &&str| line.contains("while reading") && line.contains("upstream");
        let died = log.lines().filter(is_death).count();
        let new = vec![SystemTime::now(); died - known];
        losses.lock().expect("a reader panicked").cut.extend(new);
        known = died;
        tokio::time::sleep(SEEN_WITHIN / 6).await;
    }
}
