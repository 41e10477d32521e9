//! Limits of tenants: what is admitted, by one node and by a cluster, and what the others are told.

use anyhow::{Context, Result, ensure};
use reqwest::Response;
use serde_json::{Value, json};
use tests::mcp::Client;
use tests::{Node, Setup, check};

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
