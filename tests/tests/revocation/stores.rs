//! Revocations in each kind of Redis, and with another secret.

use tests::nodes::port;
use tests::recorded::reaches;
use tests::redis::clustered::Clustered;
use tests::redis::sentinels::Watched;

use super::*;

const SECRET: &str = "known to these nodes alone, no secret";

/// A member of a cluster at this store.
fn member(endpoint: &Endpoint, url: &str) -> Result<Setup> {
    let setup = endpoint.setup().with("store.url", url).with("cluster.secret", SECRET);
    Ok(setup.with("cluster.listen", format!("127.0.0.1:{}", port()?)))
}

async fn start(setup: Setup) -> Result<Node> {
    tokio::task::spawn_blocking(move || Node::start(&setup)).await?
}

/// Starts two nodes at this store, and revokes the client `ada` at one.
async fn two_that_revoke(endpoint: &Endpoint, url: &str) -> Result<[Node; 2]> {
    let nodes = [start(member(endpoint, url)?).await?, start(member(endpoint, url)?).await?];
    for node in &nodes {
        reaches(node, "roundhouse_stabilising", |value| value == 0.0).await?;
        reaches(node, "roundhouse_peer_links", |links| links >= 1.0).await?;
    }
    let ada = opened(&nodes[0], "rhk_ada").await?;
    let mut stream = at(&ada, &nodes[1]).listen().await?;
    let began = Instant::now();
    endpoint.revoked(&nodes[1], &ADA).await?;
    let took = ended_after(&mut stream, began).await?;
    ensure!(took < AT_ONCE, "{took:?}");
    for node in &nodes {
        let took = refused_after(node, "rhk_ada", began).await?;
        ensure!(took < 2 * AT_ONCE, "{took:?}");
        ensure!(initialize(node, "rhk_bob").await? == 200);
    }
    Ok(nodes)
}

#[tokio::test]
async fn a_revocation_counts_at_each_node_of_a_redis_cluster_and_at_one_that_starts_later()
-> Result<()> {
    let endpoint = Endpoint::new(None, NATIVE)?;
    let redis = Clustered::start().await?;
    let nodes = two_that_revoke(&endpoint, &redis.url()).await?;
    // No peer tells it: what it knows is in the store.
    nodes.into_iter().try_for_each(|mut node| node.kill())?;
    let later = start(member(&endpoint, &redis.url())?).await?;
    ensure!(initialize(&later, "rhk_ada").await? == 401);
    reaches(&later, "roundhouse_stabilising", |value| value == 0.0).await?;
    endpoint.revoked(&later, &[&ADA[..], &["--lift"]].concat()).await?;
    ensure!(initialize(&later, "rhk_ada").await? == 200);
    Ok(())
}

#[tokio::test]
async fn a_revocation_that_a_failover_of_sentinels_loses_is_written_again() -> Result<()> {
    let endpoint = Endpoint::new(None, NATIVE)?;
    let redis = Watched::start().await?;
    // The replica misses everything from here on.
    redis.part()?;
    let nodes = two_that_revoke(&endpoint, &redis.url()).await?;
    ensure!(redis.kill_primary()? > 0, "nothing was lost");
    redis.promoted().await?;
    for node in &nodes {
        ensure!(initialize(node, "rhk_ada").await? == 401, "a revocation was forgotten");
    }
    until("the new primary has the revocation", async || {
        redis.replica_has("rh:{nodes}:revocations")
    })
    .await?;
    nodes.into_iter().try_for_each(|mut node| node.kill())?;
    let later = start(member(&endpoint, &redis.url())?).await?;
    ensure!(initialize(&later, "rhk_ada").await? == 401);
    Ok(())
}

/// A file that holds a secret, with mode 600.
fn secret_file(secret: &str) -> Result<NamedTempFile> {
    let mut file = NamedTempFile::new()?;
    file.write_all(secret.as_bytes())?;
    Ok(file)
}

/// The settings with a present secret in a file, and maybe a former one.
fn with_secrets(setup: Setup, present: &NamedTempFile, former: Option<&NamedTempFile>) -> Setup {
    let setup = setup.with("cluster.secret_file", present.path().display());
    match former {
        Some(former) => setup.with("cluster.former_secret_file", former.path().display()),
        None => setup,
    }
}

#[tokio::test]
async fn a_node_on_its_own_makes_digests_with_the_secret_in_a_file() -> Result<()> {
    let endpoint = Endpoint::new(None, NATIVE)?;
    let (redis, secret) = (Redis::start()?, secret_file(SECRET)?);
    let setup = endpoint.setup().with("store.url", redis.url());
    let node = start(with_secrets(setup, &secret, None)).await?;
    let _bob = opened(&node, "rhk_bob").await?;
    ensure!(has_value_with(&redis, b"demo")?, "no record was found");
    ensure!(!has_value_with(&redis, &Sha256::digest(b"key:bob"))?, "the digest has no key");
    Ok(())
}

#[tokio::test]
async fn sessions_and_revocations_outlive_a_change_of_the_secret() -> Result<()> {
    let endpoint = Endpoint::new(None, NATIVE)?;
    let redis = Redis::start_durable()?;
    let [first, second] =
        [secret_file(SECRET)?, secret_file("another one that is long enough, too")?];
    let member = || -> Result<Setup> {
        let setup = endpoint.setup().with("store.url", redis.url());
        Ok(setup.with("cluster.listen", format!("127.0.0.1:{}", port()?)))
    };
    let mut node = start(with_secrets(member()?, &first, None)).await?;
    reaches(&node, "roundhouse_stabilising", |value| value == 0.0).await?;
    let bob = opened(&node, "rhk_bob").await?;
    endpoint.revoked(&node, &ADA).await?;

    // The secret is changed with the node stopped, and the former one is kept for its sessions.
    node.kill()?;
    node = start(with_secrets(member()?, &second, Some(&first))).await?;
    ensure!(initialize(&node, "rhk_ada").await? == 401, "a change of the secret took it back");
    timeout(PATIENCE, at(&bob, &node).is_well()).await??;

    // Without the former one, the session is that of a client that is not known.
    node.kill()?;
    node = start(with_secrets(member()?, &second, None)).await?;
    let status = timeout(PATIENCE, ping(&at(&bob, &node))).await??;
    ensure!(status == 404, "{status}");
    ensure!(initialize(&node, "rhk_ada").await? == 401);
    Ok(())
}
