//! The ids of traces in the lines of the log.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::Node;
use tests::collector::Collector;
use tests::mcp::Client;
use tests::recorded::Recorded;
use tests::spans::{PARENT, SERVER, TRACE, call, of_trace, only, traced};
use tests::sse::PATIENCE;

const NEWEST: &str = "2025-11-25";

/// Waits until the log of a node has a line with all these texts, and returns it.
async fn line(node: &Node, texts: &[&str]) -> Result<String> {
    let until = Instant::now() + PATIENCE;
    loop {
        let output = node.output();
        let found = output.lines().find(|line| texts.iter().all(|text| line.contains(text)));
        if let Some(found) = found {
            return Ok(found.to_owned());
        }
        ensure!(Instant::now() < until, "no line with {texts:?}: {output}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// `initialize` in a trace of the client.
async fn open(url: String, parent: Option<&str>) -> Result<Client> {
    let mut client = Client::new(url, NEWEST);
    let mut params = client.introduction(json!({}));
    if let Some(parent) = parent {
        params["_meta"] = json!({ "traceparent": parent });
    }
    let response = client.send(client.message("initialize", params)).await?;
    let session = response.headers().get("mcp-session-id").context("no session")?;
    client.session = Some(session.to_str()?.to_owned());
    client.notify("notifications/initialized", json!({})).await?;
    Ok(client)
}

#[tokio::test]
async fn each_line_of_a_request_that_is_traced_has_its_ids_in_both_formats() -> Result<()> {
    for format in ["text", "json"] {
        let collector = Collector::start().await?;
        let setup = collector.of(traced()).with("log.level", "info,front=debug");
        let node = Node::start(&setup.with("log.format", format).with("log.access", "all"))?;
        let client = open(node.demo(), Some(PARENT)).await?;
        let spans = collector.until("spans", |spans| !of_trace(spans, TRACE).is_empty()).await?;
        let of_trace = of_trace(&spans, TRACE);
        let span = only(&of_trace, SERVER)?["span"].as_str().context("no id")?.to_owned();
        // The session, the front, and the access log.
        for text in ["session opened", "status", "exchange"] {
            let line = line(&node, &[text, TRACE]).await?;
            let fields = match format {
                "text" => format!("trace_id={TRACE} span_id={span}"),
                _ => format!("\"trace_id\":\"{TRACE}\",\"span_id\":\"{span}\""),
            };
            ensure!(line.contains(&fields), "{line}");
            if format == "json" {
                let line: Value = serde_json::from_str(&line)?;
                ensure!(line["trace_id"] == TRACE, "{line}");
            }
        }
        // A line of the same thread that is of no message that is traced.
        client.delete().await?;
        let line = line(&node, &["DELETE"]).await?;
        ensure!(!line.contains("trace_id"), "{line}");
    }
    Ok(())
}

#[tokio::test]
async fn no_line_has_ids_without_a_collector() -> Result<()> {
    let node = Node::start(&traced().with("log.level", "info,front=debug"))?;
    open(node.demo(), Some(PARENT)).await?.delete().await?;
    line(&node, &["DELETE"]).await?;
    ensure!(!node.output().contains("trace_id"), "{}", node.output());
    Ok(())
}

/// Kills the owner, and sends a request that is traced to another node: the log of the node that takes the
/// session over has the trace.
#[tokio::test]
async fn a_take_over_for_a_request_that_is_traced_has_its_ids() -> Result<()> {
    let collector = Collector::start().await?;
    let setups = ["n0", "n1", "n2"].map(|name| collector.of(traced()).with("cluster.name", name));
    let mut cluster = Recorded::start(setups).await?;
    let mut client = open(cluster.node(1)?.demo(), None).await?;
    client.request("tools/list", json!({})).await?;
    client.url = cluster.node(0)?.demo();
    cluster.kill(1)?;
    client.ask(call(&client, "meta", json!({ "traceparent": PARENT }))).await?;
    let until = Instant::now() + PATIENCE;
    loop {
        let lines = [0, 2].map(|node| Ok(cluster.node(node)?.output()));
        let lines = lines.into_iter().collect::<Result<Vec<_>>>()?.join("\n");
        let taken = lines.lines().find(|line| line.contains("session taken over"));
        if let Some(taken) = taken {
            ensure!(taken.contains(&format!("trace_id={TRACE} span_id=")), "{taken}");
            break;
        }
        ensure!(Instant::now() < until, "nothing was taken over: {lines}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
