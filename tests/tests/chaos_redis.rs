//! Faults between nodes and their Redis, or inside Redis: failovers that lose writes, slots that
//! move, a Redis that stalls, and a connection that is cut. Clients are under load all the time,
//! and a checker reads their observations and the runs of the tools.
//!
//! `SEED=… cargo test -p tests --test chaos_redis` repeats the random choices.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::chaos::{Chaos, LEASE, at, turn};
use tests::mcp::{Client, REVISIONS};
use tests::nodes::port;
use tests::partition::Gate;
use tests::redis::Redis;
use tests::redis::clustered::Clustered;
use tests::redis::sentinels::Watched;
use tokio::time::{Instant, sleep, timeout};

/// Longer than the stabilisation takes, and long enough that a node which did not run before the
/// failover may claim sessions as well.
const SETTLED: Duration = Duration::from_secs(4);

/// A live node renews its lease within this time after Redis can be reached again.
const RETURN: Duration = Duration::from_millis(2_500);

/// How long after a node's death another node has claimed each of its sessions that is in use.
const CLAIMED: Duration = Duration::from_millis(2_200);

/// The nodes whose connection to Redis works while that of node 0 is cut.
const REACHING: [usize; 2] = [1, 2];

/// The primary dies with its last writes: events, sessions, and the claims of the sessions of a
/// killed node. The nodes that wrote them still run and still have this data.
#[tokio::test]
async fn a_failover_that_forgets_the_last_writes_is_noticed_by_no_client() -> Result<()> {
    let _turn = turn().await;
    let redis = Watched::start().await?;
    let mut chaos = Chaos::start(3, &redis.url()).await?;
    redis.part()?;
    chaos.wait(0, 500).await;
    let node = chaos.any();
    chaos.nodes.kill(node)?;
    sleep(CLAIMED).await;
    chaos.wait(0, 500).await;
    chaos.nodes.note(None, "Redis fails over");
    let forgotten = redis.kill_primary()?;
    ensure!(forgotten > 10_000, "only {forgotten} bytes were not replicated");
    redis.promoted().await?;
    chaos.nodes.restart(node).await?;
    sleep(SETTLED).await;
    let seen = chaos.figures("roundhouse_store_failovers_total").await?;
    ensure!(seen.iter().sum::<f64>() >= 2.0, "failovers that two nodes detected: {seen:?}");
    // The lost data is in Redis again, and other nodes than its owner can use it.
    let node = chaos.any();
    chaos.nodes.kill(node)?;
    chaos.wait(500, 1_000).await;
    chaos.judge().await?;
    Ok(())
}

/// The slots of live sessions, and the slot of all leases.
#[tokio::test]
async fn slots_move_under_their_sessions_and_a_primary_dies() -> Result<()> {
    let _turn = turn().await;
    let redis = Clustered::start().await?;
    let mut chaos = Chaos::start(3, &redis.url()).await?;
    for turn in 0..8 {
        let slot = match turn {
            3 => redis.slot_of_leases()?,
            _ => chaos.chance.pick(&redis.live_slots()?),
        };
        let to = (redis.home_of(slot)? + usize::from(chaos.chance.is(50)) + 1) % 3;
        let rest = Duration::from_millis(chaos.chance.between(5, 150));
        chaos.nodes.note(None, "a slot moves");
        redis.move_slot(slot, to, rest).await?;
    }
    let repeats = chaos.figures("roundhouse_redis_repeats_total").await?;
    ensure!(repeats.iter().sum::<f64>() >= 3.0, "no command used a moving slot: {repeats:?}");
    chaos.nodes.note(None, "a primary dies");
    let primary = chaos.chance.pick(&[0, 1, 2]);
    redis.fail_over(primary).await?;
    sleep(SETTLED).await;
    let seen = chaos.figures("roundhouse_store_failovers_total").await?;
    ensure!(seen.iter().all(|seen| *seen >= 1.0), "failovers detected: {seen:?}");
    let node = chaos.any();
    chaos.nodes.kill(node)?;
    chaos.wait(500, 1_000).await;
    chaos.judge().await?;
    Ok(())
}

#[tokio::test]
async fn redis_answers_nobody_for_a_while_and_then_beyond_a_lease() -> Result<()> {
    pauses("ALL").await
}

/// Leases can be read, and no node can renew its lease.
#[tokio::test]
async fn redis_takes_no_writes_for_a_while_and_then_beyond_a_lease() -> Result<()> {
    pauses("WRITE").await
}

async fn pauses(kind: &str) -> Result<()> {
    let _turn = turn().await;
    let redis = Redis::start_durable()?;
    let mut chaos = Chaos::start(3, &redis.url()).await?;
    for longer in [Duration::ZERO, LEASE] {
        let pause = longer + Duration::from_millis(chaos.chance.between(300, 1_200));
        chaos.nodes.note(None, "Redis pauses");
        redis.told(&format!("CLIENT PAUSE {} {kind}", pause.as_millis()))?;
        sleep(pause).await;
        chaos.nodes.note(None, "Redis goes on");
        if longer.is_zero() {
            chaos.wait(500, 900).await;
            let lost = chaos.figures("roundhouse_leases_lost_total").await?;
            ensure!(lost.iter().all(|lost| *lost == 0.0), "leases lost: {lost:?}");
        } else {
            let returned = Instant::now();
            loop {
                let lost = chaos.figures("roundhouse_leases_lost_total").await?;
                if lost.iter().all(|lost| *lost >= 1.0) {
                    break;
                }
                ensure!(returned.elapsed() < RETURN, "leases lost: {lost:?}");
                sleep(Duration::from_millis(50)).await;
            }
            chaos.wait(500, 900).await;
        }
    }
    chaos.judge().await?;
    Ok(())
}

/// The other nodes keep their leases and take its sessions over; the node detects that and
/// continues.
#[tokio::test]
async fn a_node_that_redis_is_out_of_reach_for_beyond_its_lease_acts_no_more() -> Result<()> {
    let _turn = turn().await;
    let redis = Redis::start_durable()?;
    let way = Gate::start(&redis.address()).await?;
    let mut setups = vec![at(port()?, &format!("redis://{}", way.address))];
    setups.extend([at(port()?, &redis.url()), at(port()?, &redis.url())]);
    let mut chaos = Chaos::start_with(setups).await?;
    let revision = REVISIONS[2];
    let mut owned = Vec::new();
    for _ in REACHING {
        owned.push(Client::open(chaos.nodes.node(0)?.demo(), revision).await?);
    }
    chaos.nodes.note(Some(0), "Redis is out of reach");
    way.close(chaos.chance.is(50));
    sleep(LEASE).await;
    // Most clients of the load wait at the node without Redis by now, so the others are used directly:
    // for a session of that node, and for a new one.
    for (node, mut client) in REACHING.into_iter().zip(owned) {
        let url = chaos.nodes.node(node)?.demo();
        client.url.clone_from(&url);
        let used = timeout(CLAIMED, client.is_well()).await;
        used.with_context(|| format!("node {node} did not take a session over"))??;
        let opened = timeout(CLAIMED, Client::open(&url, revision)).await;
        opened.with_context(|| format!("node {node} opened no session"))??.is_well().await?;
    }
    chaos.wait(1_000, 2_000).await;
    chaos.nodes.note(Some(0), "Redis is in reach");
    way.open();
    chaos.wait(1_500, 2_000).await;
    let lost = chaos.figures("roundhouse_leases_lost_total").await?;
    ensure!(lost == [1.0, 0.0, 0.0], "leases lost: {lost:?}");
    let taken = chaos.figures("roundhouse_takeovers_total").await?;
    ensure!(taken[1] >= 1.0 && taken[2] >= 1.0, "sessions that nodes took over: {taken:?}");
    chaos.judge().await?;
    Ok(())
}
