//! The public conformance suite through nginx, in round robin over three nodes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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
        passes.with_context(|| format!("{set:?}\n{}", cluster.tails(20)))?;
    }
    Ok(())
}

/// Only a call that dies with the very node that its client is connected to may fail; it
/// fails once.
#[tokio::test]
async fn they_conform_while_one_is_killed_and_another_drained_every_few_seconds() -> Result<()> {
    let cluster = Plan::demo().start().await?;
    let is_over = AtomicBool::new(false);
    let story = async {
        let disturbed = async {
            let disturbed = disturb(&cluster).await;
            is_over.store(true, Ordering::Relaxed);
            disturbed.context("the disturbance failed")
        };
        let passed = async {
            for set in conformance::ALL.into_iter().cycle() {
                passes_but_for_the_dead(set, &cluster).await?;
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok(())
        };
        tokio::try_join!(disturbed, passed).map(drop)
    };
    story.await.with_context(|| cluster.tails(30))
}

/// Kills a node, drains another, and brings both back, three times.
async fn disturb(cluster: &Deployment) -> Result<()> {
    const REST: Duration = Duration::from_millis(700);
    let nodes = cluster.members()?;
    for turn in 0..3 {
        let (killed, drained) = (&nodes[turn % 3].name, &nodes[(turn + 1) % 3].name);
        cluster.kill(killed).await?;
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

/// Runs a set until it passes: each time it may fail in no more scenarios than nginx saw
/// requests die at a node that had them.
async fn passes_but_for_the_dead(set: Set, cluster: &Deployment) -> Result<()> {
    const RUNS_MAX: usize = 5;
    for _ in 0..RUNS_MAX {
        let before = died(cluster);
        let report = set.run(&cluster.demo()).await?;
        if report.complaints.is_empty() && report.is_content {
            return Ok(());
        }
        let died = died(cluster) - before;
        let wrong = &report.complaints;
        ensure!(
            wrong.len() <= died && died > 0,
            "{set:?}: {died} requests died with their node, but {} scenarios failed: {wrong:?}\n{}",
            wrong.len(),
            report.said
        );
    }
    anyhow::bail!("{set:?} did not pass in {RUNS_MAX} runs")
}

/// How many requests nginx had handed to a node that died before it answered.
fn died(cluster: &Deployment) -> usize {
    let log = cluster.output("nginx");
    let is_death = |line: &&str| line.contains("while reading") && line.contains("upstream");
    log.lines().filter(is_death).count()
}
