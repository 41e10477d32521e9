//! Two programs in one cluster: nodes are replaced by those of another program and back, under
//! load, and a checker reads the observations of the clients.
//!
//! `tests/upgrade COMMIT` builds the program of a commit and runs these tests.

#![expect(clippy::print_stdout, reason = "what was logged is what it is run for")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::chaos::{Chaos, at};
use tests::node::Setup;
use tests::nodes::port;
use tests::redis::Redis;
use tests::tools;
use tokio::time::{sleep, timeout};

/// How long a node may take to be ready.
const READY: Duration = Duration::from_secs(20);

/// The log lines of a node that has no common version with a peer: of calls, or of leases.
const INCOMPATIBLE: [&str; 2] = ["read no common version", "a node's lease has another layout"];

fn old_program() -> Result<PathBuf> {
    let program = std::env::var_os("ROUNDHOUSE_OLD_PROGRAM");
    let program = PathBuf::from(program.context("ROUNDHOUSE_OLD_PROGRAM is not set")?);
    ensure!(program.is_file(), "{} is no program", program.display());
    Ok(program)
}

/// A node of a program. It announces its loopback address in a form that does not count as
/// loopback, so that its links are protected as links between machines are.
fn beyond_loopback(program: &Path, redis: &Redis) -> Result<Setup> {
    let port = port()?;
    let setup = at(port, &redis.url()).with("cluster.advertise", format!("127.1:{port}"));
    Ok(setup.program(program))
}

/// This number of nodes of one program with one Redis, under load.
async fn nodes(count: usize, program: &Path, redis: &Redis) -> Result<Chaos> {
    let setup = |_| -> Result<Setup> { beyond_loopback(program, redis) };
    Chaos::start_with((0..count).map(setup).collect::<Result<_>>()?).await
}

/// Replaces one node after another, as `docs/deploying.md` describes.
async fn replace_each(chaos: &mut Chaos, program: &Path) -> Result<()> {
    for node in 0..chaos.nodes.count() {
        chaos.nodes.balancer.set(node, false);
        sleep(Duration::from_secs(1)).await;
        chaos.nodes.terminate(node).await?;
        chaos.nodes.restart_as(node, program).await?;
        until_ready(chaos, node).await?;
        chaos.wait(2_000, 3_000).await;
    }
    Ok(())
}

async fn until_ready(chaos: &Chaos, node: usize) -> Result<()> {
    let url = format!("{}/readyz", chaos.nodes.node(node)?.admin);
    let ready = async {
        while !reqwest::get(&url).await.is_ok_and(|response| response.status() == 200) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(READY, ready).await.context("a node is not ready")
}

/// The log lines of the nodes about peers without a link.
fn refusals(chaos: &Chaos) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for node in chaos.nodes.running() {
        let output = chaos.nodes.node(node)?.output();
        let is_told = |line: &&str| {
            ["no link to a peer", "is not encrypted"].iter().any(|what| line.contains(what))
        };
        let refusals = output.lines().filter(is_told);
        lines.extend(refusals.map(|line| format!("node {node}: {line}")));
    }
    Ok(lines)
}

#[tokio::test]
#[ignore = "needs the program of another commit: tests/upgrade COMMIT"]
async fn a_rolling_upgrade_and_the_way_back_lose_nothing() -> Result<()> {
    // The programs are built before the load begins: the clients run on this thread.
    let (old, new) = (old_program()?, tools::built("roundhouse"));
    let redis = Redis::start_durable()?;
    let mut chaos = nodes(3, &old, &redis).await?;
    replace_each(&mut chaos, &new).await?;
    for line in refusals(&chaos)? {
        println!("{line}");
    }
    replace_each(&mut chaos, &old).await?;
    chaos.judge().await?;
    Ok(())
}

/// The new nodes start beside the old ones and get no request. Then they get all requests at once,
/// and the old nodes give their sessions up. No node has to reach one of the other program.
#[tokio::test]
#[ignore = "needs the program of another commit: tests/upgrade COMMIT"]
async fn a_switch_to_new_nodes_and_the_way_back_lose_nothing() -> Result<()> {
    let (old, new) = (old_program()?, tools::built("roundhouse"));
    let redis = Redis::start_durable()?;
    let mut chaos = nodes(4, &old, &redis).await?;
    let (first, second) = ([0, 1], [2, 3]);
    switch(&mut chaos, first, second, &new).await?;
    for line in refusals(&chaos)? {
        println!("{line}");
    }
    switch(&mut chaos, second, first, &old).await?;
    chaos.judge().await?;
    Ok(())
}

/// Moves all requests from the nodes `from` to the nodes `to`, which run this program.
async fn switch(chaos: &mut Chaos, from: [usize; 2], to: [usize; 2], program: &Path) -> Result<()> {
    to.iter().for_each(|node| chaos.nodes.balancer.set(*node, false));
    sleep(Duration::from_secs(1)).await;
    let running: Vec<_> =
        chaos.nodes.running().into_iter().filter(|node| to.contains(node)).collect();
    chaos.nodes.terminate_all(&running).await?;
    for node in to {
        chaos.nodes.restart_as(node, program).await?;
        chaos.nodes.balancer.set(node, false);
        until_ready(chaos, node).await?;
    }
    chaos.wait(3_500, 4_500).await;
    for node in 0..chaos.nodes.count() {
        chaos.nodes.balancer.set(node, to.contains(&node));
    }
    chaos.nodes.terminate_all(&from).await?;
    chaos.wait(3_000, 4_000).await;
    Ok(())
}

/// A peer with other payload versions is neither a peer with a wrong secret nor a dead node.
#[tokio::test]
#[ignore = "needs the program of another commit: tests/upgrade COMMIT"]
async fn two_programs_have_a_link_or_say_why_not() -> Result<()> {
    let redis = Redis::start_durable()?;
    let old = old_program()?;
    let new = tools::built("roundhouse");
    let setups = vec![beyond_loopback(&old, &redis)?, beyond_loopback(&new, &redis)?];
    let chaos = Chaos::start_with(setups).await?;
    sleep(Duration::from_secs(5)).await;
    let output = chaos.nodes.node(1)?.output();
    let says_why = |line: &&str| INCOMPATIBLE.iter().any(|reason| line.contains(reason));
    let refused: Vec<_> = output.lines().filter(says_why).collect();
    let links = chaos.nodes.node(1)?.metric("roundhouse_peer_links").await?;
    println!("links: {links:?}; {refused:#?}");
    ensure!(refused.len() <= 1, "not one line: {refused:#?}");
    ensure!(links == Some(1.0) || refused.len() == 1, "no link, and no reason:\n{output}");
    ensure!(!output.contains("marked a node dead"), "{output}");
    ensure!(chaos.nodes.running().len() == 2);
    Ok(())
}
