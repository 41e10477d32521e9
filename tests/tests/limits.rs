//! Limits of tenants: what is admitted, by one node and by a cluster, and what the others are told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use reqwest::Response;
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::mcp::Client;
use tests::recorded::Recorded;
use tests::{Node, Setup, check};
use tokio::task::JoinSet;

const NEWEST: &str = "2025-11-25";

/// A tenant `demo` with these lines of settings.
fn limited(lines: &str) -> String {
    format!(
        "[tenants.demo]
         auth = 'open'
         {lines}
         [tenants.demo.backends.main]
         kind = 'native'
         name = 'everything'
        "
    )
}

/// A tenant `demo` with two clients and these lines of settings.
fn limited_with_keys(lines: &str) -> (String, [String; 2]) {
    let keys = ["1", "2"].map(|digit| format!("rhk_{}", digit.repeat(64)));
    let text = format!(
        "[tenants.demo]
         auth = 'keys'
         [tenants.demo.keys.ada]
         sha256 = '{}'
         [tenants.demo.keys.night-job]
         sha256 = '{}'
         {lines}
         [tenants.demo.backends.main]
         kind = 'native'
         name = 'everything'
        ",
        check::sha256(&keys[0]),
        check::sha256(&keys[1])
    );
    (text, keys)
}

async fn opened(node: &Node) -> Result<Client> {
    Client::new(node.demo(), NEWEST).opened(json!({})).await
}

/// How many of these requests got a result. The others must be refused over this limit.
async fn results(client: &Client, requests: &[Value], limit: &str) -> Result<usize> {
    let mut results = 0;
    for request in requests {
        let answer = client.ask(request.clone()).await?;
        if answer.get("result").is_some() {
            results += 1;
            continue;
        }
        let error = &answer["error"];
        ensure!(error["code"] == -32000 && error["data"]["limit"] == limit, "{answer}");
        ensure!(error["data"]["retryAfterMs"].as_u64().is_some(), "{answer}");
    }
    Ok(results)
}

fn pings(client: &Client, count: usize) -> Vec<Value> {
    (0..count).map(|_| client.message("ping", json!({}))).collect()
}

/// The text of a header.
fn header<'a>(response: &'a Response, name: &str) -> Result<&'a str> {
    let value = response.headers().get(name).with_context(|| format!("no {name}"))?;
    Ok(value.to_str()?)
}

#[tokio::test]
async fn a_session_gets_an_error_and_a_new_client_429() -> Result<()> {
    let rate = "[tenants.demo.rates.all]\nrate = '6/m'\nburst = 5";
    let node = Node::start(&Setup::config(limited(rate)))?;
    let client = opened(&node).await?;
    // The handshake took one token.
    let results = results(&client, &pings(&client, 10), "all").await?;
    ensure!(results == 4, "{results}");
    // A notification is not refused: nothing could be answered to it.
    let told = client.send(json!({"jsonrpc": "2.0", "method": "notifications/x"})).await?;
    check::status(&told, 202)?;
    let other = Client::new(node.demo(), NEWEST);
    let initialize = other.message("initialize", other.introduction(json!({})));
    let refused = other.send(initialize).await?;
    check::status(&refused, 429)?;
    ensure!(header(&refused, "ratelimit-policy")? == "\"all\";q=6;w=60");
    let secs: u64 = header(&refused, "retry-after")?.parse()?;
    ensure!((1..=10).contains(&secs), "{secs}");
    ensure!(header(&refused, "ratelimit")? == format!("\"all\";r=0;t={secs}"));
    let body: Value = refused.json().await?;
    ensure!(body["error"]["data"]["limit"] == "all", "{body}");
    ensure!(body["error"]["message"].as_str().is_some_and(|m| m.contains("`all`")), "{body}");
    let limited = node.metric("roundhouse_tenant_limited_total{limit=\"tenant\",tenant=\"demo\"}");
    ensure!(limited.await? == Some(7.0));
    Ok(())
}

#[tokio::test]
async fn rates_of_clients_keys_and_tools_count_by_themselves() -> Result<()> {
    let (text, keys) = limited_with_keys(
        "[tenants.demo.rates.each]
         rate = '1/h'
         burst = 8
         per = 'principal'
         [tenants.demo.rates.nightly]
         rate = '1/h'
         burst = 5
         keys = ['night-*']
         [tenants.demo.rates.text]
         rate = '1/h'
         burst = 3
         tools = ['test_simple_t*']",
    );
    let node = Node::start(&Setup::config(text))?;
    let [ada, night] = keys.each_ref();
    let ada = Client::new(node.demo(), NEWEST).with_key(ada).opened(json!({})).await?;
    let night = Client::new(node.demo(), NEWEST).with_key(night).opened(json!({})).await?;
    let calls = |client: &Client, tool: &str| -> Vec<Value> {
        (0..5).map(|_| client.call(tool, json!({}))).collect()
    };
    // A refused call takes no token of the other rates.
    ensure!(results(&ada, &calls(&ada, "test_simple_text"), "text").await? == 3);
    ensure!(results(&ada, &calls(&ada, "test_image_content"), "each").await? == 4);
    ensure!(results(&night, &pings(&night, 6), "nightly").await? == 4);
    // Servers could read the name in two ways.
    let two = json!({ "jsonrpc": "2.0", "id": 71, "method": "tools/call",
        "params": { "name": "x", "Name": "test_simple_text" } });
    let answer = night.ask(two).await?;
    ensure!(answer["error"]["code"] == -32602, "{answer}");
    // They could also read a call in what is none here, or does not count.
    let name = json!({ "name": "test_simple_text" });
    for (hidden, status) in [
        (json!({ "method": "tools/list", "Method": "tools/call", "id": 72 }), 200),
        (json!({ "method": "notifications/x", "Method": "tools/call", "Id": 73 }), 400),
        (json!({ "result": {}, "Method": "tools/call", "id": 74 }), 400),
    ] {
        let mut hidden = hidden;
        hidden["jsonrpc"] = json!("2.0");
        hidden["params"] = name.clone();
        let response = night.send(hidden.clone()).await?;
        ensure!(response.status() == status, "{hidden}: {}", response.status());
        let answer: Value = response.json().await?;
        ensure!(answer["error"]["code"] == -32602, "{hidden}: {answer}");
    }
    night.notify("notifications/x", json!({})).await?;
    Ok(())
}

#[tokio::test]
async fn each_member_of_a_batch_counts_by_itself() -> Result<()> {
    let rate = "[tenants.demo.rates.all]\nrate = '1/h'\nburst = 4";
    let node = Node::start(&Setup::config(limited(rate)))?;
    let client = Client::new(node.demo(), "2025-03-26").opened(json!({})).await?;
    let response = client.send(Value::Array(pings(&client, 5))).await?;
    check::status(&response, 200)?;
    let answers: Vec<Value> = response.json().await?;
    let (results, errors): (Vec<_>, Vec<_>) =
        answers.iter().partition(|answer| answer.get("result").is_some());
    ensure!((results.len(), errors.len()) == (3, 2), "{answers:?}");
    ensure!(errors.iter().all(|error| error["error"]["data"]["limit"] == "all"), "{errors:?}");
    Ok(())
}

#[tokio::test]
async fn sessions_streams_and_exchanges_are_counted() -> Result<()> {
    let limits = "[tenants.demo.limits]
        cluster_exchanges_max = 1
        cluster_sessions_max = 2
        cluster_streams_max = 1";
    let node = Node::start(&Setup::config(limited(limits)))?;
    let (one, two) = (opened(&node).await?, opened(&node).await?);
    let third = Client::new(node.demo(), NEWEST);
    let initialize = third.message("initialize", third.introduction(json!({})));
    let refused = third.send(initialize.clone()).await?;
    check::status(&refused, 429)?;
    ensure!(header(&refused, "ratelimit-policy")? == "\"sessions\";q=2");

    let stream = one.get(None).await?;
    check::status(&stream, 200)?;
    let refused = two.get(None).await?;
    check::status(&refused, 429)?;
    ensure!(header(&refused, "ratelimit-policy")? == "\"streams\";q=1");
    drop(stream);
    until(async || Ok(two.get(None).await?.status() == 200)).await?;

    let slow =
        one.message("tools/call", json!({ "name": "rh_sleep", "arguments": { "ms": 1500 } }));
    let (slow, others) = tokio::join!(one.ask(slow), async {
        let mut others = Vec::new();
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            others.push(two.ask(two.message("ping", json!({}))).await);
        }
        others
    });
    slow?;
    let others = others.into_iter().collect::<Result<Vec<_>>>()?;
    let limit = |answer: &Value| answer["error"]["data"]["limit"] == "exchanges";
    ensure!(others.iter().any(limit), "{others:?}");
    two.is_well().await?;
    check::status(&one.delete().await?, 204)?;
    until(async || Ok(third.send(initialize.clone()).await?.status() == 200)).await
}

/// Waits until this is so.
async fn until(is_so: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(10);
    while !is_so().await? {
        ensure!(Instant::now() < until, "it did not become so");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// What happens to a node of the cluster.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// The process of the node that owns the limit is killed.
    KillOwner,
    /// The process of the node that owns the limit is stopped (SIGSTOP).
    FreezeOwner,
}

/// The limit of the tenant, in requests for each second.
const LIMIT: u32 = 60;

/// The requests for each second that clients send to each node: three times the limit.
const DEMANDS: [u32; 3] = [126, 45, 9];

/// How long the clients send.
const RUN: Duration = Duration::from_secs(16);

/// By then the burst is used.
const BURST_OVER: Duration = Duration::from_secs(3);

/// When the fault happens.
const FAULT_AT: Duration = Duration::from_secs(5);

/// How long a request may take. A frozen node answers none.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the nodes are watched without requests.
const QUIET: Duration = Duration::from_secs(3);

/// Sends to three nodes, each client at its own pace. Returns when results arrived, and how many
/// commands for each second Redis got without requests and with them.
async fn admitted(fault: Fault) -> Result<(Vec<Duration>, [f64; 2])> {
    let rate = format!("[tenants.demo.rates.all]\nrate = '{LIMIT}/s'\nburst = 60");
    let setup = || Setup::config(limited(&rate));
    let mut cluster = Recorded::start([setup(), setup(), setup()]).await?;
    let mut clients = Vec::new();
    for node in 0..DEMANDS.len() {
        let client = cluster.open(node, NEWEST).await?.keeping_connections();
        clients.push(Arc::new(client));
    }
    let before = commands(&cluster)?;
    tokio::time::sleep(QUIET).await;
    let begin = commands(&cluster)?;
    let down: Arc<[AtomicBool; 3]> = Arc::default();
    let began = Instant::now();
    let mut senders = JoinSet::new();
    for (node, demand) in DEMANDS.into_iter().enumerate() {
        senders.spawn(send(node, demand, clients.clone(), Arc::clone(&down), began));
    }
    if fault != Fault::None {
        tokio::time::sleep(FAULT_AT).await;
        let mut owner = None;
        for node in 0..DEMANDS.len() {
            let owned = cluster.node(node)?.metric("roundhouse_limits_owned").await?;
            owner = if owned == Some(1.0) { Some(node) } else { owner };
        }
        let owner = owner.context("no node owns the limit")?;
        match fault {
            Fault::KillOwner => {
                cluster.kill(owner)?;
                down[owner].store(true, Ordering::Relaxed);
            }
            _ => cluster.node(owner)?.signal(Signal::STOP)?,
        }
    }
    let mut all = Vec::new();
    while let Some(results) = senders.join_next().await {
        all.extend(results??);
    }
    let quiet = (begin - before) as f64 / QUIET.as_secs_f64();
    let busy = (commands(&cluster)? - begin) as f64 / began.elapsed().as_secs_f64();
    all.sort();
    Ok((all, [quiet, busy]))
}

/// Sends pings at a pace until the end. Returns when results arrived.
async fn send(
    node: usize,
    demand: u32,
    clients: Vec<Arc<Client>>,
    down: Arc<[AtomicBool; 3]>,
    began: Instant,
) -> Result<Vec<Duration>> {
    let mut requests = JoinSet::new();
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / demand);
    let mut results = Vec::new();
    while began.elapsed() < RUN {
        ticks.tick().await;
        let is_up = |at: &usize| !down[*at].load(Ordering::Relaxed);
        let at = (0..3).map(|step| (node + step) % 3).find(is_up).context("no node")?;
        let client = Arc::clone(&clients[at]);
        requests.spawn(async move {
            let ping = client.ask(client.message("ping", json!({})));
            let answer = tokio::time::timeout(PATIENCE, ping).await.ok()?.ok()?;
            answer.get("result").map(|_| began.elapsed())
        });
        while let Some(result) = requests.try_join_next() {
            results.extend(result?);
        }
    }
    while let Some(result) = requests.join_next().await {
        results.extend(result?);
    }
    Ok(results)
}

/// The number of commands that Redis has got.
fn commands(cluster: &Recorded) -> Result<u64> {
    let info = cluster.redis.answer("INFO stats")?;
    let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    Ok(line.context("no number of commands")?.trim().parse()?)
}

/// Checks what was admitted in each 10 seconds.
fn check_windows(results: &[Duration], least: f64, most: f64) -> Result<()> {
    let window = Duration::from_secs(10);
    let mut from = BURST_OVER;
    let mut parts = Vec::new();
    while from + window <= RUN {
        let count = results.iter().filter(|at| (from..from + window).contains(*at)).count();
        parts.push(count as f64 / f64::from(LIMIT * 10));
        from += Duration::from_millis(500);
    }
    ensure!(parts.iter().all(|part| (least..=most).contains(part)), "of the limit: {parts:?}");
    Ok(())
}

#[tokio::test]
async fn three_nodes_admit_the_limit_under_uneven_load_without_redis() -> Result<()> {
    let (results, [quiet, busy]) = admitted(Fault::None).await?;
    check_windows(&results, 0.95, 1.05)?;
    // Leases are renewed in any case. There are 180 requests a second.
    ensure!(busy < quiet * 1.2 + 10.0, "{busy} commands a second, and {quiet} without requests");
    Ok(())
}

#[tokio::test]
async fn three_nodes_admit_the_limit_when_its_owner_is_killed() -> Result<()> {
    check_windows(&admitted(Fault::KillOwner).await?.0, 0.95, 1.05)
}

#[tokio::test]
async fn a_frozen_owner_costs_a_part_of_the_limit_at_most() -> Result<()> {
    check_windows(&admitted(Fault::FreezeOwner).await?.0, 0.3, 1.05)
}
