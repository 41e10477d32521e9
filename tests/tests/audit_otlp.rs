//! The audit log of whole nodes that is sent to a collector of OpenTelemetry.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::collector::Collector;
use tests::mcp::Client;
use tests::recorded::reaches;
use tests::spans::PARENT;
use tests::sse::PATIENCE;
use tests::tls::Authority;
use tests::{Node, Setup, check};

const NEWEST: &str = "2025-11-25";

/// A node that sends its records to this collector, and traces nothing.
fn audited(collector: &Collector, setup: Setup) -> Setup {
    collector.of(setup).with("otlp.traces_one_in", 0).with("audit.to", "otlp")
}

/// The records that arrived, each once: those that arrived again have the same id.
fn once(logs: &[Value]) -> Result<Vec<Value>> {
    let mut seen = HashSet::new();
    let mut numbers = Vec::new();
    let mut records = Vec::new();
    for log in logs {
        let uid = log["attributes"]["log.record.uid"].as_str().context("no id")?;
        if seen.insert(uid.to_owned()) {
            let number = uid.rsplit('-').next().context("no number")?;
            numbers.push(number.parse::<u64>()?);
            records.push(serde_json::from_str(log["body"].as_str().context("no text")?)?);
        }
    }
    ensure!(numbers.is_sorted(), "records arrived in another order: {numbers:?}");
    Ok(records)
}

/// Waits until the records that arrived are as expected.
async fn records(collector: &Collector, is_due: impl Fn(&[Value]) -> bool) -> Result<Vec<Value>> {
    let logs = collector.until("logs", |logs| once(logs).is_ok_and(|all| is_due(&all))).await?;
    once(&logs)
}

fn count(records: &[Value], fits: impl Fn(&Value) -> bool) -> usize {
    records.iter().filter(|record| fits(record)).count()
}

fn is_call(record: &Value, kind: &str) -> bool {
    record["kind"] == kind && record["method"] == "tools/call"
}

async fn echo(client: &Client) -> Result<Value> {
    client.ask(client.call("rh_echo", json!({ "text": "a secret text" }))).await
}

/// Calls that are in flight together.
async fn echo_at_once(client: &Client, count: usize) -> Result<()> {
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..count {
        let twin = client.twin();
        let call = client.call("rh_echo", json!({ "text": "a secret text" }));
        calls.spawn(async move { twin.ask(call).await });
    }
    for answer in calls.join_all().await {
        let answer = answer?;
        ensure!(answer.get("result").is_some(), "{answer}");
    }
    Ok(())
}

#[tokio::test]
async fn each_record_is_at_the_collector_before_its_call_is_answered() -> Result<()> {
    let collector = Collector::start().await?;
    let setup = audited(&collector, Setup::demo()).with("cluster.name", "n1");
    let node = Node::start(&setup.with("audit.hold_ms", 20_000))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    for calls in 1..10 {
        let answer = echo(&client).await?;
        ensure!(answer.get("result").is_some(), "{answer}");
        let arrived = collector.arrived().await?;
        let records = once(arrived["logs"].as_array().context("no list")?)?;
        ensure!(count(&records, |record| is_call(record, "begin")) == calls, "{records:?}");
    }
    let meta = json!({ "traceparent": PARENT });
    let params = json!({ "name": "test_simple_text", "arguments": {}, "_meta": meta });
    client.send(client.message("tools/call", params)).await?;
    // What waits is sent before the node has ended.
    node.stop(Duration::from_secs(40))?;
    let arrived = collector.arrived().await?;
    let logs = arrived["logs"].as_array().context("no list")?;
    let records = once(logs)?;
    ensure!(logs.len() == records.len(), "records arrived twice: {logs:#?}");
    let begun = count(&records, |record| record["kind"] == "begin");
    ensure!(begun == count(&records, |record| record["kind"] == "end"), "{records:#?}");
    let log = logs.iter().find(|log| log["attributes"]["gen_ai.tool.name"] == "rh_echo");
    let log = log.context("no record of the tool")?;
    let record: Value = serde_json::from_str(log["body"].as_str().context("no text")?)?;
    let attributes = &log["attributes"];
    ensure!(attributes["roundhouse.audit.kind"] == "begin", "{log}");
    ensure!(attributes["roundhouse.audit.call"] == record["call"], "{log}");
    ensure!(attributes["roundhouse.tenant"] == "demo", "{log}");
    ensure!(attributes["mcp.method.name"] == "tools/call", "{log}");
    ensure!(log["scope"] == "roundhouse.audit" && log["severity"] == "INFO", "{log}");
    ensure!(log["resource"]["service.name"] == "roundhouse", "{log}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let age = now.as_secs().abs_diff(log["time"].as_u64().context("no time")? / 1_000_000_000);
    ensure!(age < 600, "{log}");
    ensure!(!arrived["logs"].to_string().contains("a secret text"), "{log}");
    Ok(())
}

#[tokio::test]
async fn with_block_calls_are_refused_while_the_collector_is_down_and_none_lacks_its_record()
-> Result<()> {
    let collector = Collector::start().await?;
    let port = collector.port()?;
    let setup = audited(&collector, Setup::demo()).with("audit.hold_ms", 300);
    let node = Node::start(&setup.with("otlp.timeout_ms", 1_000))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    drop(collector);
    // Each of these is refused, after it was held.
    for _ in 0..3 {
        let began = Instant::now();
        let answer = echo(&client).await?;
        ensure!(answer["error"]["code"] == -32000, "{answer}");
        ensure!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());
    }
    let ready = reqwest::get(format!("{}/readyz", node.admin)).await?;
    check::status(&ready, 503)?;
    ensure!(ready.text().await?.contains("audit records cannot be written"));
    node.logs("audit records cannot be written").await?;
    ensure!(client.request("ping", json!({})).await?["result"] == json!({}));
    let collector = Collector::start_at(port).await?;
    let until = Instant::now() + PATIENCE;
    while echo(&client).await?.get("error").is_some() {
        ensure!(Instant::now() < until, "{}", node.output());
    }
    check::status(&reqwest::get(format!("{}/readyz", node.admin)).await?, 200)?;
    // The refused calls have a begin and an end that says why, and the last one its result.
    let is_due = |records: &[Value]| {
        count(records, |record| record["kind"] == "end" && record["outcome"] == "result") >= 1
            && count(records, |record| record["kind"] == "end" && record["reason"] == "audit") >= 3
    };
    let records = records(&collector, is_due).await?;
    let begun: Vec<_> = records.iter().filter(|record| is_call(record, "begin")).collect();
    for begin in &begun {
        let ends = count(&records, |end| end["kind"] == "end" && end["call"] == begin["call"]);
        ensure!(ends == 1, "{ends} ends of {begin}");
    }
    let logs = collector.arrived().await?["logs"].as_array().context("no list")?.len();
    ensure!(logs == records.len(), "a collector that was down got records twice");
    Ok(())
}

#[tokio::test]
async fn records_that_are_not_acknowledged_arrive_again_with_the_same_ids() -> Result<()> {
    let collector = Collector::start().await?;
    let setup = audited(&collector, Setup::demo()).with("audit.hold_ms", 20_000);
    let node = Node::start(&setup.with("otlp.batch_max", 3))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    collector.control(json!({ "lost": true })).await?;
    let twin = client.twin();
    let calling = tokio::spawn(async move { echo(&twin).await });
    let twice = |logs: &[Value]| once(logs).is_ok_and(|records| records.len() < logs.len());
    collector.until("logs", twice).await?;
    ensure!(!calling.is_finished(), "a call went on without an acknowledged record");
    collector.control(json!({ "lost": false })).await?;
    let answer = calling.await??;
    ensure!(answer.get("result").is_some(), "{answer}");
    echo(&client).await?;
    let records =
        records(&collector, |records| count(records, |record| record["kind"] == "end") == 3)
            .await?;
    ensure!(count(&records, |record| is_call(record, "begin")) == 2, "{records:#?}");
    ensure!(count(&records, |record| record["kind"] == "begin") == 3, "{records:#?}");
    Ok(())
}

#[tokio::test]
async fn with_drop_calls_go_on_while_the_collector_hangs_and_the_gap_is_counted() -> Result<()> {
    let collector = Collector::start().await?;
    let setup = audited(&collector, Setup::demo())
        .with("audit.when_full", "drop")
        .with("audit.hold_ms", 200)
        .with("audit.tenant_queue_records_max", 20)
        .with("otlp.timeout_ms", 500);
    let node = Node::start(&setup)?;
    let client = Client::open(node.demo(), NEWEST).await?;
    collector.answer(200, Duration::from_secs(600)).await?;
    let began = Instant::now();
    for _ in 0..50 {
        ensure!(echo(&client).await?.get("result").is_some());
    }
    ensure!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    reaches(&node, "roundhouse_audit_left_out_total", |records| records > 20.0).await?;
    check::status(&reqwest::get(format!("{}/readyz", node.admin)).await?, 200)?;
    collector.answer(200, Duration::ZERO).await?;
    let is_due = |records: &[Value]| records.iter().any(|record| record["kind"] == "left_out");
    let records = records(&collector, is_due).await?;
    let gap = records.iter().find(|record| record["kind"] == "left_out").context("no gap")?;
    ensure!(gap["tenant"] == "demo" && gap["count"].as_u64() > Some(20), "{gap}");
    Ok(())
}

#[tokio::test]
async fn what_the_collector_answers_is_obeyed() -> Result<()> {
    let collector = Collector::start().await?;
    let setup = audited(&collector, Setup::demo()).with("audit.hold_ms", 20_000);
    let node = Node::start(&setup)?;
    let client = Client::open(node.demo(), NEWEST).await?;
    // Requests that are too large become smaller.
    collector.control(json!({ "records_max": 2 })).await?;
    echo_at_once(&client, 20).await?;
    records(&collector, |records| count(records, |record| is_call(record, "begin")) == 20).await?;
    // Records that it rejects from a request that it takes are lost, and counted.
    let answers = json!({ "records_max": 0, "rejected": 1, "rejected_of": 2 });
    collector.control(answers).await?;
    let rejected = "roundhouse_audit_rejected_total";
    let until = Instant::now() + PATIENCE;
    while node.metric(rejected).await? == Some(0.0) {
        ensure!(Instant::now() < until, "nothing is counted: {}", node.output());
        echo_at_once(&client, 20).await?;
    }
    node.logs("audit records are lost").await?;
    // A request of which it rejects each record is sent again: nothing has arrived.
    collector.control(json!({ "rejected": 1_000, "rejected_of": 0 })).await?;
    let failed = node.metric("roundhouse_audit_writes_failed_total").await?.unwrap_or_default();
    let twin = client.twin();
    let calling = tokio::spawn(async move { echo(&twin).await });
    reaches(&node, "roundhouse_audit_writes_failed_total", |now| now >= failed + 3.0).await?;
    ensure!(!calling.is_finished(), "a call went on whose record was rejected");
    collector.control(json!({ "rejected": 0 })).await?;
    ensure!(calling.await??.get("result").is_some());
    // A pause that it asks for is kept.
    let failed = node.metric("roundhouse_audit_writes_failed_total").await?.unwrap_or_default();
    collector.control(json!({ "status": 503, "retry_after": 2 })).await?;
    let began = Instant::now();
    let twin = client.twin();
    let calling = tokio::spawn(async move { echo(&twin).await });
    reaches(&node, "roundhouse_audit_writes_failed_total", |now| now > failed).await?;
    collector.control(json!({ "status": 200 })).await?;
    ensure!(calling.await??.get("result").is_some());
    ensure!(began.elapsed() >= Duration::from_millis(1_900), "{:?}", began.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_collector_with_tls_is_reached_with_the_file_of_its_authority_and_no_other() -> Result<()>
{
    let folder = tempfile::tempdir()?;
    let (ours, other) = (Authority::new()?, Authority::new()?);
    ours.issue(folder.path(), "collector", &["127.0.0.1"])?;
    tests::tls::write(&folder.path().join("ours.pem"), &ours.pem())?;
    tests::tls::write(&folder.path().join("other.pem"), &other.pem())?;
    let file = |name: &str| folder.path().join(name);
    let tls = [file("collector.cert"), file("collector.key")];
    let collector = Collector::start_with(0, &[&tls[0], &tls[1]]).await?;
    ensure!(collector.url.starts_with("https:"), "{}", collector.url);
    let setup = |ca: &str| {
        collector
            .of(Setup::demo())
            .with("otlp.ca_file", file(ca).display())
            .with("otlp.metrics_secs", 1)
            .with("audit.to", "otlp")
            .with("audit.hold_ms", 10_000)
    };
    let node = Node::start(&setup("ours.pem"))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    ensure!(echo(&client).await?.get("result").is_some());
    // Spans, metrics and records.
    records(&collector, |records| count(records, |record| is_call(record, "begin")) == 1).await?;
    collector.until("spans", |spans| spans.len() >= 2).await?;
    collector.until("metrics", |metrics| !metrics.is_empty()).await?;
    node.stop(Duration::from_secs(40))?;
    let before = collector.arrived().await?;
    let node = Node::start(&setup("other.pem").with("audit.hold_ms", 300))?;
    let client = Client::new(node.demo(), NEWEST);
    let initialize = client.message("initialize", client.introduction(json!({})));
    check::status(&client.send(initialize).await?, 503)?;
    reaches(&node, "roundhouse_audit_writes_failed_total", |failed| failed > 0.0).await?;
    ensure!(collector.arrived().await?["logs"] == before["logs"], "the certificate is not checked");
    node.logs("certificate").await?;
    Ok(())
}

#[tokio::test]
async fn a_node_that_cannot_start_behind_its_exporter_ends_it() -> Result<()> {
    let collector = Collector::start().await?;
    let setup = collector.of(Setup::demo()).with("otlp.metrics_secs", 3_600);
    let setup = setup.with("audit.to", "file").with("audit.file", "/nowhere/audit");
    let error = Node::start(&setup).err().context("it starts without its audit log")?.to_string();
    ensure!(error.contains("`audit.file`"), "{error}");
    // It sends its metrics for the last time, as each node that ends.
    collector.until("metrics", |metrics| !metrics.is_empty()).await?;
    Ok(())
}

#[tokio::test]
async fn without_a_collector_the_settings_are_refused_by_their_key() -> Result<()> {
    let error = Node::start(&Setup::demo().with("audit.to", "otlp"));
    let error = error.err().context("it starts without a collector")?.to_string();
    ensure!(
        error.contains("`audit.to` is \"otlp\"") && error.contains("`otlp.endpoint`"),
        "{error}"
    );
    Ok(())
}
