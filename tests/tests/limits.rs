//! Limits of tenants: what is admitted, by one node and by a cluster, and what the others are told.

#[path = "limits/cluster.rs"]
mod cluster;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use reqwest::Response;
use serde_json::{Value, json};
use tests::audit_log::Log;
use tests::mcp::Client;
use tests::recorded::{Recorded, follow};
use tests::sse::Events;
use tests::{Node, Setup, check, tools};

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
    // A notification counts by itself.
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

#[tokio::test]
async fn a_flood_of_notifications_is_refused_and_takes_nothing_from_requests() -> Result<()> {
    let rate = "[tenants.demo.rates.all]\nrate = '1/h'\nburst = 6";
    let node = Node::start(&Setup::config(limited(rate)))?;
    let client = opened(&node).await?;
    let mut statuses = Vec::new();
    for _ in 0..10 {
        statuses.push(client.notify("notifications/x", json!({})).await?.status().as_u16());
    }
    // The handshake had one.
    let accepted = statuses.iter().filter(|status| **status == 202).count();
    ensure!(
        accepted == 5 && statuses.iter().all(|status| [202, 429].contains(status)),
        "{statuses:?}"
    );
    ensure!(results(&client, &pings(&client, 8), "all").await? == 5);
    Ok(())
}

#[tokio::test]
async fn streams_are_counted_over_http_sse_and_have_the_rates_of_the_tenant() -> Result<()> {
    let limits = "[tenants.demo.limits]
        cluster_streams_max = 1
        [tenants.demo.rates.all]
        rate = '1/h'
        burst = 4";
    let node = Node::start(&Setup::config(limited(limits)))?;
    let old = Client::new(format!("{}/demo/sse", node.base), "2024-11-05");
    let stream = old.get(None).await?;
    check::status(&stream, 200)?;
    let refused = old.get(None).await?;
    check::status(&refused, 429)?;
    ensure!(header(&refused, "ratelimit-policy")? == "\"streams\";q=1");
    drop(stream);
    let client = opened(&node).await?;
    // Each stream took a token, and those of requests are others.
    until(async || {
        let refused = client.get(None).await?;
        let policy = refused.headers().get("ratelimit-policy");
        Ok(policy.is_some_and(|policy| policy == "\"all\";q=1;w=3600"))
    })
    .await?;
    let refused = old.get(None).await?;
    ensure!(header(&refused, "ratelimit-policy")? == "\"all\";q=1;w=3600");
    ensure!(results(&client, &pings(&client, 5), "all").await? == 3);
    Ok(())
}

#[tokio::test]
async fn a_request_over_http_sse_is_in_flight_until_its_answer_is_on_the_stream() -> Result<()> {
    let limits = "[tenants.demo.limits]\ncluster_exchanges_max = 1";
    let node = Node::start(&Setup::config(limited(limits)))?;
    let http = reqwest::Client::new();
    let get = http.get(format!("{}/demo/sse", node.base)).header("accept", "text/event-stream");
    let mut stream = Events::of(get.send().await?)?;
    let endpoint = stream.next().await?.and_then(|block| block.data).context("no endpoint")?;
    let url = reqwest::Url::parse(&node.base)?.join(&endpoint)?;
    let post = async |message: Value| -> Result<u16> {
        Ok(http.post(url.clone()).json(&message).send().await?.status().as_u16())
    };
    let request = |id: u64, method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    let introduction = Client::new(node.demo(), "2024-11-05").introduction(json!({}));
    ensure!(post(request(1, "initialize", introduction)).await? == 202);
    stream.message().await?;
    post(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await?;
    let slow = json!({ "name": "rh_sleep", "arguments": { "ms": 1500 } });
    ensure!(post(request(2, "tools/call", slow)).await? == 202);
    let other = opened(&node).await;
    ensure!(other.is_err(), "a request of another session, while one is in flight");
    ensure!(post(request(3, "ping", json!({}))).await? == 429);
    let (_, answer) = stream.message().await?.context("the stream ended")?;
    ensure!(answer["id"] == 2, "{answer}");
    until(async || Ok(post(request(4, "ping", json!({}))).await? == 202)).await
}

#[tokio::test]
async fn server_processes_are_counted_in_the_whole_cluster() -> Result<()> {
    let text = format!(
        "[tenants.demo]
         auth = 'open'
         [tenants.demo.limits]
         cluster_children_max = 1
         [tenants.demo.backends.main]
         kind = 'stdio'
         command = {:?}
        ",
        tools::built("everything")
    );
    let cluster = Recorded::start([Setup::config(&text), Setup::config(&text)]).await?;
    let first = cluster.open(0, NEWEST).await?;
    first.tool("test_simple_text", json!({})).await?;
    let second = Client::new(cluster.node(1)?.demo(), NEWEST);
    let initialize = || second.message("initialize", second.introduction(json!({})));
    let refused = second.ask(initialize()).await?;
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("as many servers as it may in the cluster"), "{refused}");
    let refusals = cluster
        .node(1)?
        .metric("roundhouse_tenant_children_refused_total{bound=\"cluster\",tenant=\"demo\"}");
    ensure!(refusals.await? == Some(1.0));
    check::status(&first.delete().await?, 204)?;
    until(async || Ok(second.ask(initialize()).await?.get("result").is_some())).await
}

#[tokio::test]
async fn over_the_events_of_a_day_requests_are_refused_and_streams_go_on() -> Result<()> {
    // A tenth of it may come at once.
    let limits = "[tenants.demo.limits]\ncluster_log_bytes_per_day = 1000000";
    let cluster =
        Recorded::start([Setup::config(limited(limits)), Setup::config(limited(limits))]).await?;
    let (one, two) = (cluster.open(0, NEWEST).await?, cluster.open(1, NEWEST).await?);
    let count = |client: &Client, n: u32, interval_ms: u32| {
        let arguments = json!({ "n": n, "interval_ms": interval_ms });
        client.call_with_progress("rh_count", arguments, json!("t"))
    };
    let mut stream = one.stream(count(&one, 200, 20)).await?;
    let is_over = |answer: &Value| answer["error"]["data"]["limit"] == "log_bytes";
    // Events are added at the second node, and the limit holds at both.
    until(async || Ok(is_over(&two.ask(count(&two, 100, 1)).await?))).await?;
    until(async || Ok(is_over(&one.ask(one.message("ping", json!({}))).await?))).await?;
    // What was accepted is not lost.
    let (steps, answer) = follow(&mut stream).await?;
    let has_result = answer.is_some_and(|answer| answer.get("result").is_some());
    ensure!(steps.len() == 200 && has_result, "{} steps", steps.len());
    let third = Client::new(cluster.node(0)?.demo(), NEWEST);
    let refused = third.send(third.message("initialize", third.introduction(json!({})))).await?;
    check::status(&refused, 429)?;
    ensure!(
        header(&refused, "ratelimit-policy")?
            == "\"log_bytes\";q=1000000;qu=\"content-bytes\";w=86400"
    );
    Ok(())
}

#[tokio::test]
async fn how_much_of_each_limit_is_used_is_a_metric() -> Result<()> {
    let limits = "[tenants.demo.rates.all]\nrate = '1/s'\nburst = 100
        [tenants.demo.limits]\ncluster_sessions_max = 4";
    let node = Node::start(&Setup::config(limited(limits)))?;
    let client = opened(&node).await?;
    let used = |limit: &str| {
        format!("roundhouse_tenant_limit_used_ratio{{limit=\"{limit}\",tenant=\"demo\"}}")
    };
    until(async || Ok(node.metric(&used("sessions")).await? == Some(0.25))).await?;
    results(&client, &pings(&client, 20), "all").await?;
    until(async || Ok(node.metric(&used("tenant")).await?.is_some_and(|used| used > 0.5))).await
}

#[tokio::test]
async fn a_call_that_can_be_read_in_two_ways_is_malformed_for_auditors() -> Result<()> {
    let log = Log::new()?;
    let rate = "[tenants.demo.rates.text]\nrate = '1/h'\ntools = ['test_*']";
    let node = Node::start(&log.of(Setup::config(limited(rate))))?;
    let client = opened(&node).await?;
    let two = json!({ "jsonrpc": "2.0", "id": 71, "method": "tools/call",
        "params": { "name": "x", "Name": "test_simple_text" } });
    client.ask(two).await?;
    let refusal = log.one(|record| record["kind"] == "refused").await?;
    ensure!(refusal["reason"] == "malformed", "{refusal}");
    Ok(())
}
