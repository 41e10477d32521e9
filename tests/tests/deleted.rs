//! DELETE while Redis is stopped, killed, or slow: a session that was said to have ended opens
//! nothing afterwards.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::StatusCode;
use tests::Setup;
use tests::partition::{Gate, Side};
use tests::recorded::{HELD, Recorded, pinged};
use tokio::time::{sleep, timeout};

/// The session is asked for at a node this many times, half a second apart.
const TRIES: usize = 6;

/// Asks for an ended session at a node: 404 each time, as soon as the node can know.
async fn stays_ended(cluster: &Recorded, client: &tests::mcp::Client, node: usize) -> Result<()> {
    for _ in 0..TRIES {
        let status = timeout(HELD, pinged(client, cluster.node(node)?)).await??;
        ensure!(status == 404, "{status} at node {node} for a session that has ended");
        // What brings it back may come later.
        sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

/// What a DELETE comes to, of which no answer is due for as long as Redis has not been told.
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
        ensure!(!early || status != 204, "204 before Redis could be told");
        ensure!(status == 204 || status == 503, "DELETE is answered {status}");
        if status == 204 {
            for node in [0, 1] {
                ensure!(pinged(&client, cluster.node(node)?).await? == 404, "node {node}");
            }
        }
    }
    Ok(())
}

/// Redis is gone when the client deletes; the owner dies; Redis comes back as it was.
#[tokio::test]
async fn a_session_deleted_while_redis_is_away_is_not_said_to_have_ended_and_then_there()
-> Result<()> {
    for restarts in [false, true] {
        let mut cluster = Recorded::start([Setup::demo(), Setup::demo()]).await?;
        let client = cluster.open(0, "2025-11-25").await?;
        client.is_well().await?;
        // What was written is on disk each second.
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
            ensure!(again == 404, "204 was said, and then {again}");
            stays_ended(&cluster, &client, 1).await?;
        } else {
            ensure!([None, Some(StatusCode::SERVICE_UNAVAILABLE)].contains(&status), "{status:?}");
        }
    }
    Ok(())
}

/// The owner does what it is asked and is not heard, for longer than a link is kept for (0.9 s):
/// whoever asked it asks again, and finds that the session has ended.
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
        ensure!(own == 404, "the owner has not ended it: {own}");
        gates.iter().for_each(Gate::open);
        let status = deleting.await?.context("DELETE was not answered")?;
        ensure!(status == 204, "DELETE is answered {status}");
        let again = client.delete().await?.status();
        ensure!(again == 404, "a second DELETE is answered {again}");
        // Until there is a link again.
        sleep(Duration::from_secs(2)).await;
    }
    Ok(())
}

/// The owner is stopped, another node takes the session over and ends it, and the owner goes
/// on when the store has forgotten that the session has ended.
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
    ensure!(status == 204, "DELETE is answered {status}");
    ensure!(pinged(&client, cluster.node(2)?).await? == 404, "it is there after 204");
    sleep(Duration::from_secs(6)).await;
    owner.signal(rustix::process::Signal::CONT)?;
    sleep(Duration::from_secs(1)).await;
    let stays = async |node| {
        stays_ended(&cluster, &client, node).await.with_context(|| format!("node {node}"))
    };
    tokio::try_join!(stays(2), stays(0), stays(1))?;
    Ok(())
}
