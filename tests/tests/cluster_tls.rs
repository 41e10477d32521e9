//! Nodes that identify each other by certificates, and a node whose authority is not trusted.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::json;
use tests::mcp::Client;
use tests::redis::Redis;
use tests::sse::PATIENCE;
use tests::{Node, Setup};
use tokio::time::sleep;

/// Writes a certificate authority (`ca`), and the certificate of a node (`cert`, `key`) for a
/// host.
fn vouch(dir: &Path, host: &str) -> Result<()> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec![host.into()])?;
    // With the name of the authority, the certificate would be taken for a self-signed one.
    params.distinguished_name.push(DnType::CommonName, "node");
    std::fs::write(dir.join("ca"), issuer.pem())?;
    std::fs::write(dir.join("cert"), params.signed_by(&key, &issuer)?.pem())?;
    Ok(std::fs::write(dir.join("key"), key.serialize_pem())?)
}

/// A node with the certificate in a folder, and without a secret.
fn setup(redis: &Redis, dir: &Path) -> Setup {
    let file = |name: &str| dir.join(name).display().to_string();
    Setup::demo()
        .with("store.url", redis.url())
        .with("cluster.listen", "127.0.0.1:0")
        .with("cluster.tls.ca_file", file("ca"))
        .with("cluster.tls.cert_file", file("cert"))
        .with("cluster.tls.key_file", file("key"))
}

/// Waits until the value of a metric of a node is as expected.
async fn metric(node: &Node, name: &str, is_due: impl Fn(f64) -> bool) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while !node.metric(name).await?.is_some_and(&is_due) {
        ensure!(Instant::now() < until, "{name} is not as expected: {}", node.output());
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Waits until a node has at least this number of links.
async fn has_links(node: &Node, links: f64) -> Result<()> {
    metric(node, "roundhouse_peer_links", |now| now >= links).await
}

/// Waits until a node has refused at least this number of links.
async fn has_refused(node: &Node, peers: f64) -> Result<()> {
    metric(node, "roundhouse_peer_links_refused_total", |now| now >= peers).await
}

#[tokio::test]
async fn nodes_that_one_authority_vouches_for_are_a_cluster() -> Result<()> {
    let (redis, dir) = (Redis::start()?, tempfile::tempdir()?);
    vouch(dir.path(), "127.0.0.1")?;
    let setup = setup(&redis, dir.path());
    let mut nodes = [Node::start(&setup)?, Node::start(&setup)?, Node::start(&setup)?];
    for node in &nodes {
        has_links(node, 2.0).await?;
    }
    let mut client = Client::open(nodes[0].demo(), "2025-11-25").await?;
    for number in 0..9 {
        client.url = nodes[number % 3].demo();
        let said = client.tool("rh_echo", json!({ "number": number })).await?;
        ensure!(said["structuredContent"]["number"] == number, "{said}");
    }
    let call = client.call_with_progress("rh_count", json!({"n": 5, "interval_ms": 20}), json!(7));
    client.url = nodes[1].demo();
    let mut stream = client.stream(call).await?;
    let mut told = Vec::new();
    while let Some((_, message)) = stream.message().await? {
        told.push(message);
    }
    ensure!(told.last().context("nothing")?.get("result").is_some(), "{told:?}");
    // A death is detected as without TLS: within the lease of the node, with a margin.
    nodes[0].kill()?;
    metric(&nodes[1], "roundhouse_stabilising", |now| now == 0.0).await?;
    let began = Instant::now();
    client.is_well().await?;
    ensure!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    for node in &nodes[1..] {
        let refused = node.metric("roundhouse_peer_links_refused_total").await?;
        ensure!(refused == Some(0.0), "{refused:?} were refused");
    }
    Ok(())
}

#[tokio::test]
async fn a_node_that_another_authority_vouches_for_is_refused_and_both_sides_say_why() -> Result<()>
{
    let (redis, ours, theirs) = (Redis::start()?, tempfile::tempdir()?, tempfile::tempdir()?);
    vouch(ours.path(), "127.0.0.1")?;
    vouch(theirs.path(), "127.0.0.1")?;
    let nodes =
        [Node::start(&setup(&redis, ours.path()))?, Node::start(&setup(&redis, ours.path()))?];
    has_links(&nodes[0], 1.0).await?;
    let stranger = Node::start(&setup(&redis, theirs.path()))?;
    for node in [&nodes[0], &nodes[1], &stranger] {
        has_refused(node, 2.0).await?;
        node.logs(
            "give every node a certificate for its own host that the cluster.tls.ca_file of all vouches for",
        )
        .await?;
        ensure!(!node.output().contains("PRIVATE KEY"), "a key is in the log");
    }
    let links = stranger.metric("roundhouse_peer_links").await?;
    ensure!(links == Some(0.0), "the stranger has {links:?} links");
    // The other nodes remain one cluster.
    let mut client = Client::open(nodes[0].demo(), "2025-11-25").await?;
    client.url = nodes[1].demo();
    client.is_well().await
}

/// It accepts the other nodes, and learns after its side of the handshake that they refuse it.
#[tokio::test]
async fn a_node_that_trusts_the_others_and_is_not_trusted_says_so() -> Result<()> {
    let (redis, ours, theirs) = (Redis::start()?, tempfile::tempdir()?, tempfile::tempdir()?);
    vouch(ours.path(), "127.0.0.1")?;
    vouch(theirs.path(), "127.0.0.1")?;
    let both = [ours.path(), theirs.path()].map(|dir| std::fs::read_to_string(dir.join("ca")));
    let [first, second] = both;
    std::fs::write(theirs.path().join("ca"), first? + &second?)?;
    let node = Node::start(&setup(&redis, ours.path()))?;
    let stranger = Node::start(&setup(&redis, theirs.path()))?;
    stranger.logs("the peer does not trust this node's certificate").await?;
    for node in [&node, &stranger] {
        has_refused(node, 1.0).await?;
        ensure!(node.metric("roundhouse_peer_links").await? == Some(0.0), "they are linked");
    }
    Ok(())
}

/// A certificate is valid only for the host that it names, although the authority is trusted.
#[tokio::test]
async fn a_node_whose_certificate_names_another_host_is_not_called() -> Result<()> {
    let (redis, dir) = (Redis::start()?, tempfile::tempdir()?);
    vouch(dir.path(), "127.0.0.2")?;
    let setup = setup(&redis, dir.path());
    let nodes = [Node::start(&setup)?, Node::start(&setup)?];
    for node in &nodes {
        node.logs("not valid for name").await?;
        has_refused(node, 1.0).await?;
        ensure!(node.metric("roundhouse_peer_links").await? == Some(0.0), "they are linked");
    }
    Ok(())
}

/// Neither end continues without TLS.
#[tokio::test]
async fn a_node_without_tls_is_refused_by_those_that_have_it() -> Result<()> {
    let (redis, dir) = (Redis::start()?, tempfile::tempdir()?);
    vouch(dir.path(), "127.0.0.1")?;
    let secret = "known to both of them, and not enough";
    let with = Node::start(&setup(&redis, dir.path()).with("cluster.secret", secret))?;
    let without = Setup::demo()
        .with("store.url", redis.url())
        .with("cluster.listen", "127.0.0.1:0")
        .with("cluster.secret", secret);
    let without = Node::start(&without)?;
    has_refused(&with, 1.0).await?;
    for node in [&with, &without] {
        ensure!(node.metric("roundhouse_peer_links").await? == Some(0.0), "they are linked");
    }
    Ok(())
}
