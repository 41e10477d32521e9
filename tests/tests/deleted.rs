//! DELETE while Redis is stopped, killed, or slow: after a confirmed end, the id of a session is
//! unknown at every node.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::StatusCode;
use tests::Setup;
use tests::partition::{Gate, Side};
use tests::recorded::{HELD, Recorded, pinged};
use tokio::time::{sleep, timeout};

/// The number of requests for the session to a node, with half a second in between.
const TRIES: usize = 6;

/// Sends requests for an ended session to a node: each gets 404, as soon as the node can know.
async fn stays_ended(cluster: &Recorded, client: &tests::mcp::Client, node: usize) -> Result<()> {
    for _ in 0..TRIES {
        let status = timeout(HELD, pinged(client, cluster.node(node)?)).await??;
        ensure!(status == 404, "{status} at node {node} for a session that has ended");
        // A late write might restore the session.
        sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

/// The status of a DELETE; no answer is due while Redis has not stored the end of the session.
async fn ended(client: &tests::mcp::Client) -> Option<StatusCode> {
    let deleted = timeout(HELD, client.twin().delete()).await.ok()?;
    deleted.ok().map(|response| response.status())
}

#[tokio::test]
async fn a_session_deleted_while_redis_stands_still_has_ended_when_that_is_said() -> Result<()> {
    let cluster = Recorded::start([Setup::demo(), Setup::demo()]).await?;
    for at in [0, 1] {
        let mut client = cluster.open(0, "2025-11-25").await?;
        client.url = cluster.node(at)?.demo();
        client.is_well().await?;
        cluster.redis.freeze()?;
        let twin = client.twin();
        let deleting = tokio::spawn(async move { ended(&twin).await });
        sleep(Duration::from_millis(1_500)).await;
        let early = deleting.is_finished();
        cluster.redis.thaw()?;
        let status = deleting.await?.context("DELETE was not answered")?;
        ensure!(!early || status != 204, "204 before Redis could answer");
        ensure!(status == 204 || status == 503, "DELETE got {status}");
        if status == 204 {
            for node in [0, 1] {
                ensure!(pinged(&client, cluster.node(node)?).await? == 404, "node {node}");
            }
        }
    }
    Ok(())
}

/// Redis is gone when the client deletes; the owner dies; Redis returns with its earlier data.
#[tokio::test]
async fn a_session_deleted_while_redis_is_away_is_not_said_to_have_ended_and_then_there()
-> Result<()> {
    for restarts in [false, true] {
        let mut cluster = Recorded::start([Setup::demo(), Setup::demo()]).await?;
        let client = cluster.open(0, "2025-11-25").await?;
        client.is_well().await?;
        // Redis writes its data to disk once a second.
        sleep(Duration::from_millis(1_200)).await;
        if restarts {
            cluster.redis.kill()?
        } else {
            cluster.redis.freeze()?
        }
        let twin = client.twin();
        let deleting = tokio::spawn(async move { ended(&twin).await });
        sleep(Duration::from_secs(1)).await;
        cluster.kill(0)?;
        if restarts {
            cluster.redis.restart()?
        } else {
            cluster.redis.thaw()?
        }
        let status = deleting.await?;
        let again = timeout(HELD, pinged(&client, cluster.node(1)?)).await??;
        if status == Some(StatusCode::NO_CONTENT) {
            ensure!(again == 404, "a ping after 204 got {again}");
            stays_ended(&cluster, &client, 1).await?;
        } else {
            ensure!([None, Some(StatusCode::SERVICE_UNAVAILABLE)].contains(&status), "{status:?}");
        }
    }
    Ok(())
}

/// The owner ends the session, but its bytes are delayed for longer than a link is kept (0.9 s).
/// The other node sends the request again, and learns that the session has ended.
#[tokio::test]
async fn a_session_whose_owner_could_not_say_that_it_has_ended_is_not_unknown() -> Result<()> {
    let (cluster, gates) = Recorded::start_apart(Setup::demo).await?;
    for (owner, other) in [(0, 1), (1, 0)] {
        let client = cluster.open(owner, "2025-11-25").await?;
        let mut elsewhere = client.twin();
        elsewhere.url = cluster.node(other)?.demo();
        elsewhere.is_well().await?;
        gates[owner].hold(Side::Callee);
        gates[other].hold(Side::Caller);
        let deleting = tokio::spawn(async move { ended(&elsewhere).await });
        sleep(Duration::from_secs(2)).await;
        let own = pinged(&client, cluster.node(owner)?).await?;
        ensure!(own == 404, "the owner has not ended it: status {own}");
        gates.iter().for_each(Gate::open);
        let status = deleting.await?.context("DELETE was not answered")?;
        ensure!(status == 204, "DELETE got {status}");
        let again = client.delete().await?.status();
        ensure!(again == 404, "a second DELETE got {again}");
        // Waits until there is a link again.
        sleep(Duration::from_secs(2)).await;
    }
    Ok(())
}

/// The owner is stopped, and another node takes the session over and ends it. The owner continues
/// after the store has removed the tombstone.
#[tokio::test]
async fn a_former_owner_that_wakes_after_the_tombstone_does_not_bring_a_session_back() -> Result<()>
{
    let setup = || Setup::demo().with("sessions.tombstone_secs", 2);
    let cluster = Recorded::start([setup(), setup(), setup()]).await?;
    let client = cluster.open(0, "2025-11-25").await?;
    client.is_well().await?;
    let owner = cluster.node(0)?;
    owner.signal(rustix::process::Signal::STOP)?;
    let mut elsewhere = client.twin();
    elsewhere.url = cluster.node(1)?.demo();
    timeout(HELD, elsewhere.is_well()).await??;
    let status = elsewhere.delete().await?.status();
    ensure!(status == 204, "DELETE got {status}");
    ensure!(pinged(&client, cluster.node(2)?).await? == 404, "not 404 after 204");
    sleep(Duration::from_secs(6)).await;
    owner.signal(rustix::process::Signal::CONT)?;
    sleep(Duration::from_secs(1)).await;
    let stays = async |node| {
        stays_ended(&cluster, &client, node).await.with_context(|| format!("node {node}"))
    };
    tokio::try_join!(stays(2), stays(0), stays(1))?;
    Ok(())
}
