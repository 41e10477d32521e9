//! Three nodes, one Redis, and a client that uses another node for each request.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::check;
use tests::mcp::{Client, REVISIONS};
use tests::recorded::reaches;
use tests::redis::Redis;
use tests::{Node, Setup};

/// Three nodes with the same settings, which share a Redis.
struct Cluster {
    nodes: Vec<Node>,
    turn: usize,
    redis: Redis,
    setup: Setup,
}

impl Cluster {
    fn start() -> Result<Self> {
        let redis = Redis::start()?;
        let setup = Setup::demo()
            .with("store.url", redis.url())
            .with("cluster.listen", "127.0.0.1:0")
            .with("cluster.secret", "known to these three nodes, no secret");
        let starting: Vec<_> = (0..3)
            .map(|_| {
                let setup = setup.clone();
                std::thread::spawn(move || Node::start(&setup))
            })
            .collect();
        let started = starting.into_iter().map(|node| node.join().expect("no start panics"));
        let nodes = started.collect::<Result<_>>()?;
        Ok(Self { nodes, turn: 0, redis, setup })
    }

    /// Sends the client to the next node, as a balancer without affinity does.
    fn balance(&mut self, client: &mut Client) {
        self.turn = (self.turn + 1) % self.nodes.len();
        client.url = self.nodes[self.turn].demo();
    }
}

// holds: SES-10, SSE-03
#[tokio::test]
async fn it_does_not_matter_which_node_a_request_reaches() -> Result<()> {
    let mut cluster = Cluster::start()?;
    for revision in REVISIONS {
        let mut client = Client::new(cluster.nodes[0].demo(), revision);
        client.initialize(json!({ "elicitation": {} })).await?;
        cluster.balance(&mut client);
        check::accepted(client.notify("notifications/initialized", json!({})).await?).await?;
        for number in 0..9 {
            cluster.balance(&mut client);
            let said = client.tool("rh_echo", json!({ "number": number })).await?;
            ensure!(said["structuredContent"]["number"] == number, "{revision}: {said}");
        }
        cluster.balance(&mut client);
        check::status(&client.delete().await?, 204)?;
        cluster.balance(&mut client);
        let gone = client.send(client.message("tools/list", json!({}))).await?;
        check::status(&gone, 404)?;
    }
    Ok(())
}

// holds: SES-10, SSE-03, SSE-07
#[tokio::test]
async fn a_stream_begun_at_one_node_goes_on_at_another() -> Result<()> {
    let mut cluster = Cluster::start()?;
    let mut client = Client::open(cluster.nodes[0].demo(), "2025-11-25").await?;
    cluster.balance(&mut client);
    let call = client.call_with_progress("rh_count", json!({"n": 20, "interval_ms": 20}), json!(7));
    let mut stream = client.stream(call).await?;
    let mut progress = Vec::new();
    let mut cursor = None;
    while progress.len() < 5 {
        let (block, message) = stream.message().await?.context("the stream ended")?;
        cursor = block.id;
        progress.extend(message["params"]["progress"].as_f64());
    }
    drop(stream);
    cluster.balance(&mut client);
    let mut resumed = client.resume(&cursor.context("no event id")?).await?;
    let mut word = None;
    while let Some((_, message)) = resumed.message().await? {
        progress.extend(message["params"]["progress"].as_f64());
        if message.get("result").is_some() {
            word = Some(message);
        }
    }
    ensure!(word.is_some(), "no final response");
    ensure!(progress.len() == 20, "{progress:?}");
    ensure!(progress.is_sorted_by(|a, b| a < b), "{progress:?}");
    Ok(())
}

// holds: SES-10
#[tokio::test]
async fn an_answer_finds_its_question_from_any_node() -> Result<()> {
    let mut cluster = Cluster::start()?;
    let capabilities = json!({ "elicitation": {} });
    let mut client = Client::open_with(cluster.nodes[0].demo(), "2025-11-25", capabilities).await?;
    cluster.balance(&mut client);
    let mut stream = client.stream(client.call("rh_ask", json!({ "times": 3 }))).await?;
    for _ in 0..3 {
        let (_, question) = stream.message().await?.context("no question")?;
        ensure!(question["method"] == "elicitation/create", "{question}");
        cluster.balance(&mut client);
        let answer = json!({ "action": "accept", "content": {} });
        check::accepted(client.answer(&question["id"], answer).await?).await?;
    }
    let (_, word) = stream.message().await?.context("no final response")?;
    ensure!(word.get("result").is_some(), "{word}");
    Ok(())
}

#[tokio::test]
async fn when_a_node_dies_its_clients_are_told_and_the_others_go_on() -> Result<()> {
    let mut cluster = Cluster::start()?;
    let mut orphan = Client::open(cluster.nodes[0].demo(), "2025-11-25").await?;
    orphan.url = cluster.nodes[1].demo();
    let call = orphan.send(orphan.call("rh_sleep", json!({ "ms": 30_000 })));
    let kill = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cluster.nodes[0].kill()
    };
    let (told, killed) = tokio::join!(call, kill);
    killed?;
    let told = tests::mcp::final_response(told?).await?;
    ensure!(told["error"]["code"] == -32000, "{told}");
    let other = Client::open(cluster.nodes[1].demo(), "2025-11-25").await?;
    other.is_well().await
}

/// A node that lost a peer serves no session until Redis confirms that the node itself is not
/// marked dead. No client repeats an `initialize`.
#[tokio::test]
async fn a_session_is_opened_where_a_peer_has_just_died() -> Result<()> {
    opened_while_redis_is_away_for(Duration::from_millis(1_500)).await
}

#[tokio::test]
async fn a_session_is_opened_where_the_lease_has_lapsed() -> Result<()> {
    opened_while_redis_is_away_for(Duration::from_millis(8_000)).await
}

/// A new node cannot know whether Redis failed over just before its start; the third node can.
#[tokio::test]
async fn a_session_whose_owner_dies_goes_on_at_once_at_a_node_that_has_just_come() -> Result<()> {
    let mut cluster = Cluster::start()?;
    // Waits until the three nodes have used this Redis for long enough.
    for node in &cluster.nodes {
        reaches(node, "roundhouse_stabilising", |value| value == 0.0).await?;
    }
    let mut client = Client::open(cluster.nodes[0].demo(), "2025-11-25").await?;
    client.is_well().await?;
    let newcomer = Node::start(&cluster.setup)?;
    // Each node has a link to each other node.
    for node in cluster.nodes.iter().chain([&newcomer]) {
        reaches(node, "roundhouse_peer_links", |now| now >= 3.0).await?;
    }
    client.url = newcomer.demo();
    client.is_well().await?;
    cluster.nodes[0].kill()?;
    let died = Instant::now();
    client.is_well().await?;
    let dark = died.elapsed();
    ensure!(dark < Duration::from_secs(1), "no answer for {dark:?}");
    Ok(())
}

async fn opened_while_redis_is_away_for(time: Duration) -> Result<()> {
    let mut cluster = Cluster::start()?;
    // These calls make each node open a link to the other.
    for (from, to) in [(0, 1), (1, 0)] {
        let mut client = Client::open(cluster.nodes[from].demo(), "2025-11-25").await?;
        client.url = cluster.nodes[to].demo();
        client.is_well().await?;
    }
    cluster.redis.freeze()?;
    cluster.nodes[0].kill()?;
    tokio::time::sleep(time - time / 8).await;
    let opened = Client::open(cluster.nodes[1].demo(), "2025-11-25");
    let thawed = async {
        tokio::time::sleep(time / 8).await;
        cluster.redis.thaw()
    };
    let (client, thawed) = tokio::join!(opened, thawed);
    thawed?;
    client?.is_well().await
}

/// Redis gets back the copy of the session and is then restarted. A replica that did not receive
/// the end of the session would be promoted in the same state.
// holds: SES-07
#[tokio::test]
async fn a_deleted_session_stays_gone_where_a_failover_forgot_its_end() -> Result<()> {
    let mut redis = Redis::start_durable()?;
    let setup = Setup::demo()
        .with("store.url", redis.url())
        .with("cluster.listen", "127.0.0.1:0")
        .with("cluster.secret", "known to these two nodes, and no secret");
    let nodes = [Node::start(&setup)?, Node::start(&setup)?];
    let mut client = Client::open(nodes[0].demo(), "2025-11-25").await?;
    client.is_well().await?;
    let key = format!("rh:{{{}}}", client.session.as_deref().context("no session")?);
    ensure!(redis.ask(&format!("COPY {key} as-it-was"))?.starts_with(":1"), "no record");
    check::status(&client.delete().await?, 204)?;
    ensure!(redis.ask(&format!("COPY as-it-was {key} REPLACE"))?.starts_with(":1"), "no copy");
    redis.restart()?;
    // The nodes hold these requests until the stabilisation has ended.
    for node in &nodes {
        client.url = node.demo();
        check::status(&client.send(client.message("tools/list", json!({}))).await?, 404)?;
    }
    Ok(())
}
