//! What tenants may take of the node changes while it runs. Each maximum and each minimum applies to a
//! tenant that runs, to one that is added, and to one that was there before it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tests::mcp::Client;
use tests::{Node, Setup};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{APPLIED, NEWEST, answers, native, program, reaches, write};

/// How many changes the node has applied.
const CHANGES: &str = "roundhouse_settings_reloads_total{outcome=\"applied\"}";

/// Starts a node with these settings.
fn start(settings: &str) -> Result<Node> {
    Node::start(&Setup::config(settings).with("node.reload_secs", 1))
}

/// Applies these settings, and waits until that is done.
async fn apply(node: &Node, settings: &str) -> Result<()> {
    let before = node.metric(CHANGES).await?.unwrap_or_default();
    write(node, settings)?;
    reaches(node, CHANGES, before + 1.0).await
}

/// The limits of a tenant.
fn limits(tenant: &str, text: &str) -> String {
    format!("[tenants.{tenant}.limits]\n{text}\n\n")
}

/// Opens so many sessions of a tenant.
async fn opened(node: &Node, tenant: &str, count: usize) -> Result<Vec<Client>> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(Client::open(node.mcp(tenant), NEWEST).await?);
    }
    Ok(clients)
}

/// Checks that the tenant gets no further session, or no further server.
async fn is_full(node: &Node, tenant: &str) -> Result<()> {
    let further = Client::open(node.mcp(tenant), NEWEST).await;
    ensure!(further.is_err(), "{tenant} got one more than it may:\n{}", node.output());
    Ok(())
}

/// Checks that the server of a session answers.
async fn runs(client: &Client) -> Result<()> {
    client.tool("any", json!({})).await.map(drop)
}

/// Opens a session of a tenant as soon as there is a place for it: the server of a session that has
/// ended needs a moment to end.
async fn opened_when_free(node: &Node, tenant: &str) -> Result<Client> {
    let opened = async {
        loop {
            if let Ok(client) = Client::open(node.mcp(tenant), NEWEST).await {
                return client;
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    let within = timeout(APPLIED, opened).await;
    within.with_context(|| format!("the place was not free again:\n{}", node.output()))
}

/// Ends a session, and opens another one in its place.
async fn replaced(node: &Node, tenant: &str, client: Client) -> Result<Client> {
    client.delete().await?;
    opened_when_free(node, tenant).await
}

#[tokio::test]
async fn a_changed_maximum_of_servers_applies_and_ends_none_that_runs() -> Result<()> {
    let settings = |children_max: usize| {
        let limits = limits("held", &format!("children_max = {children_max}"));
        native("one") + &program("held", "any") + &limits
    };
    let node = start(&settings(1))?;
    let mut clients = opened(&node, "held", 1).await?;
    is_full(&node, "held").await?;
    apply(&node, &settings(3)).await?;
    clients.extend(opened(&node, "held", 2).await?);
    is_full(&node, "held").await?;
    apply(&node, &settings(2)).await?;
    is_full(&node, "held").await?;
    for client in &clients {
        runs(client).await?;
    }
    // One above the maximum: the end of the first makes no room, that of the second does.
    clients.remove(0).delete().await?;
    reaches_exactly(&node, "roundhouse_children", 2.0).await?;
    is_full(&node, "held").await?;
    runs(&replaced(&node, "held", clients.remove(0)).await?).await
}

/// Waits until a metric has this value.
async fn reaches_exactly(node: &Node, metric: &str, value: f64) -> Result<()> {
    let reached = async {
        while node.metric(metric).await? != Some(value) {
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let within = timeout(APPLIED, reached).await;
    within.with_context(|| format!("{metric} is not {value}:\n{}", node.output()))?
}

#[tokio::test]
async fn an_added_tenant_has_its_part_of_the_servers_and_a_removed_one_gives_it_back() -> Result<()>
{
    let total = "node.children_max = 4\n";
    let largest = limits("first", "children_max = 4");
    let first = total.to_owned() + &program("first", "any") + &largest;
    let node = start(&first)?;
    let mut clients = opened(&node, "first", 3).await?;
    apply(&node, &(first.clone() + &program("late", "any"))).await?;
    // Half of the four are divided: one is for each.
    is_full(&node, "first").await?;
    let late = opened(&node, "late", 1).await?.remove(0);
    is_full(&node, "late").await?;
    runs(&late).await?;
    apply(&node, &first).await?;
    node.logs("removed a tenant").await?;
    clients.push(opened_when_free(&node, "first").await?);
    is_full(&node, "first").await
}

#[tokio::test]
async fn an_added_tenant_has_its_part_of_the_sessions_and_a_removed_one_gives_it_back() -> Result<()>
{
    let first = "sessions.sessions_max = 8\n".to_owned() + &native("first");
    let node = start(&first)?;
    let mut clients = opened(&node, "first", 5).await?;
    apply(&node, &(first.clone() + &native("late"))).await?;
    // Half of the eight are divided: two are for each.
    clients.extend(opened(&node, "first", 1).await?);
    is_full(&node, "first").await?;
    let _late = opened(&node, "late", 2).await?;
    is_full(&node, "late").await?;
    apply(&node, &first).await?;
    node.logs("removed a tenant").await?;
    clients.extend(opened(&node, "first", 2).await?);
    is_full(&node, "first").await?;
    // The tenant's own maximum.
    apply(&node, &(first.clone() + &limits("first", "sessions_max = 7"))).await?;
    for client in &clients {
        client.is_well().await?;
    }
    clients.remove(0).delete().await?;
    is_full(&node, "first").await?;
    replaced(&node, "first", clients.remove(0)).await?.is_well().await
}

/// A client whose session keeps more than this many bytes as long as it exists.
async fn keeping(node: &Node, tenant: &str, bytes: usize) -> Result<Client> {
    let large = json!({ "experimental": { "large": { "text": "x".repeat(bytes) } } });
    Client::open_with(node.mcp(tenant), NEWEST, large).await
}

#[tokio::test]
async fn changed_bytes_of_sessions_apply_to_sessions_that_run_and_end_none() -> Result<()> {
    let settings = |of_held: &str, of_one: &str| {
        let held = native("held") + &limits("held", of_held);
        let one = native("one") + &limits("one", of_one);
        let node = "node.session_bytes_max = 1048576\nsessions.initialize_bytes_max = 120000\n";
        format!("{node}{held}{one}")
    };
    let large = "session_bytes_max = 1000000";
    let node = start(&settings(large, "session_bytes_min = 0"))?;
    let client = keeping(&node, "held", 100_000).await?;
    answers(&node, "held", 200).await?;
    // Its maximum is lowered, and raised again.
    apply(&node, &settings("session_bytes_max = 65536", "session_bytes_min = 0")).await?;
    answers(&node, "held", 429).await?;
    answers(&node, "one", 200).await?;
    apply(&node, &settings(large, "session_bytes_min = 0")).await?;
    answers(&node, "held", 200).await?;
    client.is_well().await?;
    // What it keeps is promised to another tenant.
    apply(&node, &settings(large, "session_bytes_min = 1000000")).await?;
    answers(&node, "held", 429).await?;
    answers(&node, "one", 200).await?;
    apply(&node, &settings(large, "session_bytes_min = 800000")).await?;
    answers(&node, "held", 200).await?;
    client.is_well().await
}

#[tokio::test]
async fn minima_that_exceed_the_total_are_refused_at_a_reload_as_at_a_start() -> Result<()> {
    let settings = |of_one: usize, of_other: usize| {
        let min = |bytes: usize| format!("session_bytes_min = {bytes}");
        let one = native("one") + &limits("one", &min(of_one));
        let other = native("other") + &limits("other", &min(of_other));
        format!("node.session_bytes_max = 1048576\n{one}{other}")
    };
    let node = start(&settings(500_000, 500_000))?;
    let bad = settings(500_000, 600_000) + &native("late");
    write(&node, &bad)?;
    let problem = "`tenants.other.limits.session_bytes_min` is 600000, the largest of minima that are \
                   1100000 bytes together, more than `node.session_bytes_max`, which is 1048576";
    for text in [problem, "lower minima", "the node goes on with the former ones"] {
        node.logs(text).await?;
    }
    answers(&node, "late", 404).await?;
    answers(&node, "other", 200).await?;
    let refused = format!("{:#}", start(&bad).err().context("a node started")?);
    ensure!(refused.contains(problem), "{refused}");
    Ok(())
}

/// The bytes of an incomplete body.
const BODY: usize = 90_000;

/// A POST of this client whose body has one byte less than its head says.
async fn unfinished(node: &Node, client: &Client) -> Result<TcpStream> {
    let (address, session) = (node.base.strip_prefix("http://"), client.session.as_ref());
    let mut stream = TcpStream::connect(address.context("not http")?).await?;
    let head = format!(
        "POST /first/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMcp-Session-Id: {}\r\n\
         Content-Length: {}\r\n\r\n",
        session.context("no session")?,
        BODY + 1
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&[b' '; BODY]).await?;
    Ok(stream)
}

/// How many of these were answered. Each gets its answer only if it is cut.
fn answered(streams: &[TcpStream]) -> usize {
    let is_answered = |stream: &&TcpStream| stream.try_read(&mut [0; 1]).is_ok();
    streams.iter().filter(is_answered).count()
}

/// Waits until this many more of the bodies are cut.
async fn cut(node: &Node, streams: &mut Vec<TcpStream>, count: usize) -> Result<()> {
    let left = streams.len().checked_sub(count).context("there are fewer")?;
    let answered = async {
        while streams.len() > left {
            streams.retain(|stream| stream.try_read(&mut [0; 1]).is_err());
            sleep(Duration::from_millis(20)).await;
        }
    };
    let within = timeout(APPLIED, answered).await;
    within.with_context(|| format!("no body was cut:\n{}", node.output()))?;
    ensure!(streams.len() == left, "{} bodies are left instead of {left}", streams.len());
    Ok(())
}

#[tokio::test]
async fn changed_bytes_of_incomplete_bodies_apply_to_bodies_that_arrive() -> Result<()> {
    let front = "front.bodies_bytes_max = 400000\nfront.body_bytes_max = 100000\n\
                 front.initialize_body_bytes_max = 100000\nfront.body_bytes_per_sec_min = 0\n\
                 front.body_timeout_secs = 300\n";
    let first = |bytes: usize| {
        let limits = limits("first", &format!("bodies_bytes_max = {bytes}"));
        front.to_owned() + &native("first") + &limits
    };
    let node = start(&first(400_000))?;
    let client = Client::open(node.mcp("first"), NEWEST).await?;
    let text = json!({ "text": "x".repeat(60_000) });
    let mut bodies = Vec::new();
    for _ in 0..3 {
        bodies.push(unfinished(&node, &client).await?);
    }
    client.tool("test_simple_text", text.clone()).await?;
    ensure!(answered(&bodies) == 0, "a body was cut though there was room");
    // A quarter is the minimum of each of two tenants: 300,000 are left for the first.
    apply(&node, &(first(400_000) + &native("late"))).await?;
    ensure!(answered(&bodies) == 0, "a change alone cuts no body");
    client.tool("test_simple_text", text.clone()).await?;
    cut(&node, &mut bodies, 1).await?;
    // The maximum is less than what two bodies have.
    apply(&node, &first(100_000)).await?;
    ensure!(answered(&bodies) == 0, "a change alone cuts no body");
    client.tool("test_simple_text", text).await?;
    cut(&node, &mut bodies, 2).await
}
