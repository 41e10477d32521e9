//! Real nodes, a real Redis and clients under load, with faults. A checker reads the observations
//! of the clients and the runs of the tools.
//!
//! `SEED=… cargo test -p tests --test chaos` repeats the random choices. `KILLS=1000` is the long
//! form of the first test: it checks the history after every 100 kills, and prints each verdict.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::chance::Chance;
use tests::chaos::{Chaos, LEASE, at, number, turn};
use tests::nodes::port;
use tests::partition::{Gate, Side};
use tests::redis::Redis;
use tokio::time::sleep;

/// The number of kills of one cluster, which have one verdict.
const ROUND: u64 = 100;

#[tokio::test]
async fn nodes_are_killed_at_random_and_come_back_at_their_address() -> Result<()> {
    let _turn = turn().await;
    let (seed, kills) = (Chance::seed(), number("KILLS").unwrap_or(6));
    let mut failures = Vec::new();
    for first in (0..kills).step_by(ROUND as usize) {
        let seed = seed.wrapping_add(first / ROUND);
        let round = nodes_are_killed(seed, ROUND.min(kills - first)).await;
        // The test continues after a failure: the other rounds give more information.
        failures.extend(round.err().map(|error| format!("SEED={seed}: {error:#}")));
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

async fn nodes_are_killed(seed: u64, kills: u64) -> Result<()> {
    let redis = Redis::start_durable()?;
    let mut chaos = Chaos::start_from(seed, 3, &redis.url()).await?;
    for _ in 0..kills {
        let node = chaos.any();
        chaos.nodes.kill(node)?;
        chaos.wait(100, 1_500).await;
        chaos.nodes.restart(node).await?;
        chaos.wait(500, 1_500).await;
    }
    let verdict = chaos.judge().await?;
    // The gap is about 0.4 s. If the other nodes have just started, it includes their wait before
    // the first claim (3 s).
    verdict.in_time(500, 3_800)
}

/// Bytes that peers send to a stopped process are unread when it is killed, so the kernel resets
/// its links. Two nodes that are killed at once list their links to each other.
#[tokio::test]
async fn nodes_that_are_killed_with_bytes_unread_are_found_dead_as_fast() -> Result<()> {
    let _turn = turn().await;
    let redis = Redis::start_durable()?;
    let mut chaos = Chaos::start(3, &redis.url()).await?;
    for killed in [1, 1, 2, 2] {
        // Waits until the other nodes may claim sessions again.
        chaos.wait(3_400, 3_900).await;
        let first = chaos.any();
        let nodes: Vec<_> = (0..killed).map(|next| (first + next) % 3).collect();
        for node in &nodes {
            chaos.nodes.freeze(*node)?;
        }
        // Each peer pings them at least once.
        sleep(Duration::from_millis(400)).await;
        for node in &nodes {
            chaos.nodes.kill(*node)?;
        }
        // No process listens at the address for longer than a peer needs to prove a death by a
        // reset link.
        sleep(Duration::from_millis(2_200)).await;
        for node in &nodes {
            chaos.nodes.restart(*node).await?;
        }
    }
    let verdict = chaos.judge().await?;
    let gaps = verdict.figures.gaps(true).len();
    ensure!(gaps > 0, "no stream lost its owner and kept its connection");
    verdict.in_time(500, 1_400)
}

/// Other nodes claim its sessions while its process is stopped; the node must detect that.
#[tokio::test]
async fn an_owner_that_was_stopped_beyond_its_lease_says_nothing_new() -> Result<()> {
    let _turn = turn().await;
    let redis = Redis::start_durable()?;
    let mut chaos = Chaos::start(3, &redis.url()).await?;
    let node = chaos.any();
    chaos.nodes.freeze(node)?;
    let stop = LEASE + Duration::from_secs(3);
    sleep(stop).await;
    chaos.nodes.thaw(node)?;
    // The clients continue: they observe any further action of the former owner.
    sleep(Duration::from_secs(3)).await;
    // Requests at the stopped node itself continue when its process does; its sessions are
    // available again after a lease.
    let longest = stop + Duration::from_secs(2);
    chaos.judge().await?.in_time(300, u64::try_from(longest.as_millis())?)
}

#[tokio::test]
async fn an_owner_that_was_stopped_for_a_moment_goes_on() -> Result<()> {
    let _turn = turn().await;
    let redis = Redis::start_durable()?;
    let mut chaos = Chaos::start(3, &redis.url()).await?;
    for _ in 0..2 {
        let node = chaos.any();
        chaos.nodes.freeze(node)?;
        chaos.wait(200, 3_000).await;
        chaos.nodes.thaw(node)?;
        chaos.wait(500, 1_000).await;
    }
    chaos.judge().await?.in_time(300, 5_000)
}

/// The balancer is not informed: only requests in the listen queue that is reset may fail.
#[tokio::test]
async fn nodes_that_are_asked_to_stop_lose_nothing() -> Result<()> {
    let _turn = turn().await;
    let redis = Redis::start_durable()?;
    let mut chaos = Chaos::start(3, &redis.url()).await?;
    for node in 0..3 {
        chaos.nodes.terminate(node).await?;
        chaos.nodes.restart(node).await?;
        chaos.wait(500, 1_000).await;
    }
    chaos.judge().await?;
    Ok(())
}

#[tokio::test]
async fn redis_restarts_and_stalls() -> Result<()> {
    let _turn = turn().await;
    let mut redis = Redis::start_durable()?;
    let mut chaos = Chaos::start(3, &redis.url()).await?;
    chaos.nodes.note(None, "Redis stalls");
    redis.freeze()?;
    chaos.wait(1_000, 3_000).await;
    redis.thaw()?;
    chaos.nodes.note(None, "Redis goes on");
    chaos.wait(1_000, 2_000).await;
    chaos.nodes.note(None, "Redis restarts");
    redis.restart()?;
    chaos.nodes.note(None, "Redis goes on");
    // The clients continue during the stabilisation that follows, and after it.
    sleep(Duration::from_secs(4)).await;
    chaos.judge().await?;
    Ok(())
}

#[tokio::test]
async fn redis_is_away_longer_than_a_lease() -> Result<()> {
    let _turn = turn().await;
    let redis = Redis::start_durable()?;
    let chaos = Chaos::start(3, &redis.url()).await?;
    chaos.nodes.note(None, "Redis stalls");
    redis.freeze()?;
    sleep(LEASE + Duration::from_secs(2)).await;
    redis.thaw()?;
    chaos.nodes.note(None, "Redis goes on");
    // The clients continue while the nodes get new leases, and after that.
    sleep(Duration::from_secs(4)).await;
    chaos.judge().await?;
    Ok(())
}

/// Two nodes under load, each behind a gate through which the other node connects.
async fn apart(redis: &Redis) -> Result<(Chaos, [Gate; 2])> {
    let (one, other) = (port()?, port()?);
    let gates = [
        Gate::start(&format!("127.0.0.1:{one}")).await?,
        Gate::start(&format!("127.0.0.1:{other}")).await?,
    ];
    let setups = std::iter::zip([one, other], &gates)
        .map(|(port, gate)| at(port, &redis.url()).with("cluster.advertise", &gate.address));
    Ok((Chaos::start_with(setups.collect()).await?, gates))
}

/// Both nodes run and keep their leases: no session may be claimed, and requests must wait.
#[tokio::test]
async fn two_nodes_that_cannot_reach_each_other_wait() -> Result<()> {
    let _turn = turn().await;
    let redis = Redis::start_durable()?;
    let (chaos, gates) = apart(&redis).await?;
    for reset in [true, false] {
        chaos.nodes.note(None, "partition");
        gates.iter().for_each(|gate| gate.close(reset));
        // Longer than a silent link is kept, and shorter than a lease.
        sleep(Duration::from_secs(4)).await;
        gates.iter().for_each(Gate::open);
        // The clients continue over new links.
        sleep(Duration::from_secs(3)).await;
    }
    chaos.judge().await?;
    Ok(())
}

/// A node receives the bytes of the other, but its own bytes are delayed. They arrive when no
/// request waits for them any more.
#[tokio::test]
async fn a_node_that_the_other_does_not_hear_has_nothing_done_twice() -> Result<()> {
    let _turn = turn().await;
    let redis = Redis::start_durable()?;
    let (mut chaos, gates) = apart(&redis).await?;
    let first = chaos.any();
    // A silent link is closed after 0.9 s; bytes that arrive late before that are in time.
    for (unheard, (low, high)) in [(first, (100, 800)), (1 - first, (1_500, 4_000))] {
        chaos.nodes.note(Some(unheard), "is not heard");
        // On the links that this node opened, and on the links that the other node opened.
        gates[1 - unheard].hold(Side::Caller);
        gates[unheard].hold(Side::Callee);
        chaos.wait(low, high).await;
        gates.iter().for_each(Gate::open);
        chaos.wait(800, 1_500).await;
    }
    let broken = chaos.figures("roundhouse_peer_links_broken_total").await?;
    ensure!(broken.iter().sum::<f64>() >= 1.0, "no link broke: {broken:?}");
    chaos.judge().await?;
    Ok(())
}
