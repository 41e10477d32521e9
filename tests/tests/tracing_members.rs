//! Traces of the members of a batch, and of the requests that a tenant's server sends to its client.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::Node;
use tests::collector::Collector;
use tests::mcp::{Client, is_response};
use tests::recorded::{Recorded, text};
use tests::spans::{
    CLIENT, INTERNAL, PARENT, SERVER, TRACE, call, of_trace, only, position, received, traced,
};
use tests::sse::Events;

const NEWEST: &str = "2025-11-25";
const WITH_BATCHES: &str = "2025-03-26";
/// The trace of the second member.
const OTHER: &str = "0af7651916cd43dd8448eb211c80319c";

/// Posts a batch, and returns its responses.
async fn post(client: &Client, batch: &Value) -> Result<Vec<Value>> {
    let response = client.send_bytes(serde_json::to_vec(batch)?).await?;
    if response.headers()["content-type"] == "application/json" {
        let answers: Value = response.json().await?;
        return Ok(answers.as_array().context("no list")?.clone());
    }
    let messages = tests::mcp::messages(&Events::of(response)?.rest().await?);
    Ok(messages.into_iter().filter(is_response).collect())
}

/// Checks the traces of a batch that `client` posts to a node; `owner`: another node owns the session.
async fn check_batch(collector: &Collector, client: &Client, owner: Option<&str>) -> Result<()> {
    let other = format!("00-{OTHER}-b7ad6b7169203331-00");
    let first = call(client, "meta", json!({ "traceparent": PARENT }));
    let second = call(client, "fail", json!({ "traceparent": other }));
    let third = call(client, "meta", json!({}));
    let note = json!({ "jsonrpc": "2.0", "method": "notifications/vendor",
        "params": { "_meta": { "traceparent": PARENT } } });
    let batch = json!([first, second, third, note]);
    let answers = post(client, &batch).await?;
    ensure!(answers.len() == 3, "{answers:?}");
    let position_of = |request: &Value| {
        let answer = answers.iter().find(|answer| answer["id"] == request["id"]);
        position(&received(answer.context("no answer")?)?)
    };
    let all = [(&first, TRACE), (&second, OTHER), (&third, &*position_of(&third)?.0)];
    ensure!(all[2].1 != TRACE && all[2].1 != OTHER, "a message without a parent begins a trace");
    let wanted = if owner.is_some() { 3 } else { 2 };
    let is_due = |spans: &[Value]| {
        let counts = all.iter().map(|(_, trace)| of_trace(spans, trace).len());
        counts.collect::<Vec<_>>() == [wanted + 1, wanted, wanted]
    };
    let spans = collector.until("spans", is_due).await?;
    for (request, trace) in all {
        let of_request: Vec<_> = of_trace(&spans, trace)
            .into_iter()
            .filter(|span| span["name"] != "notifications/vendor")
            .collect();
        let (ingress, link) = (only(&of_request, SERVER)?, only(&of_request, CLIENT)?);
        let before = match owner {
            Some(_) => only(&of_request, INTERNAL)?,
            None => ingress,
        };
        ensure!(before == ingress || before["parent"] == ingress["span"], "{of_request:#?}");
        ensure!(link["parent"] == before["span"], "{of_request:#?}");
        ensure!(link["span"] == position_of(request)?.1.as_str(), "{of_request:#?}");
        ensure!(ingress["attributes"]["jsonrpc.request.id"] == request["id"].to_string());
        for (span, node) in [(link, owner), (before, owner)] {
            ensure!(node.is_none_or(|node| span["resource"]["service.instance.id"] == node));
        }
        // Each ends by its own response, and not by that of another.
        let failed = request == &second;
        let error = if failed { json!("tool_error") } else { Value::Null };
        for span in [ingress, link] {
            ensure!(span["attributes"]["error.type"] == error, "{span}");
        }
        let outcome = if failed { "tool_error" } else { "result" };
        ensure!(ingress["attributes"]["roundhouse.outcome"] == outcome, "{ingress}");
    }
    let noted = spans.iter().find(|span| span["name"] == "notifications/vendor");
    let noted = noted.context("no span of the notification")?;
    ensure!(noted["trace"] == TRACE && noted["parent"] == "00f067aa0ba902b7", "{noted}");
    ensure!(noted["status"] == 0, "{noted}");
    Ok(())
}

#[tokio::test]
async fn each_member_of_a_batch_is_in_its_own_trace() -> Result<()> {
    let collector = Collector::start().await?;
    let node = Node::start(&collector.of(traced()))?;
    let client = Client::open(node.demo(), WITH_BATCHES).await?;
    check_batch(&collector, &client, None).await
}

#[tokio::test]
async fn each_member_of_a_batch_at_another_node_is_in_its_own_trace() -> Result<()> {
    let collector = Collector::start().await?;
    let setups = ["n0", "n1", "n2"].map(|name| collector.of(traced()).with("cluster.name", name));
    let cluster = Recorded::start(setups).await?;
    let mut client = cluster.open(1, WITH_BATCHES).await?;
    client.url = cluster.node(0)?.demo();
    check_batch(&collector, &client, Some("n1")).await
}

/// Calls `ask` with these arguments, answers the server's request, and returns what the client got of it and
/// the final response.
async fn ask(client: &Client, arguments: Value, meta: Value) -> Result<(Value, Value)> {
    let params = json!({ "name": "ask", "arguments": arguments, "_meta": meta });
    let mut events = client.stream(client.message("tools/call", params)).await?;
    let (_, request) = events.message().await?.context("no request")?;
    ensure!(request["method"] == "sampling/createMessage", "{request}");
    client.answer(&request["id"], json!({ "role": "assistant" })).await?;
    let (_, answer) = events.message().await?.context("no response")?;
    ensure!(text(&answer)?.contains("assistant"), "{answer}");
    Ok((request, answer))
}

fn named<'a>(spans: &[&'a Value], name: &str, kind: i64) -> Result<&'a Value> {
    let named: Vec<_> = spans.iter().copied().filter(|span| span["name"] == name).collect();
    only(&named, kind)
}

const SAMPLING: &str = "sampling/createMessage";

#[tokio::test]
async fn a_request_of_the_server_is_a_child_of_the_call_that_it_is_for() -> Result<()> {
    let collector = Collector::start().await?;
    let setups = ["n0", "n1", "n2"].map(|name| collector.of(traced()).with("cluster.name", name));
    let cluster = Recorded::start(setups).await?;
    let capabilities = json!({ "sampling": {} });
    let mut client =
        Client::open_with(cluster.node(1)?.demo(), NEWEST, capabilities.clone()).await?;
    client.url = cluster.node(0)?.demo();
    let kept = json!({ "meta": { "kept": 1 } });
    let (request, _) = ask(&client, kept, json!({ "traceparent": PARENT })).await?;
    let meta = &request["params"]["_meta"];
    ensure!(meta["kept"] == 1, "{request}");
    let (trace, parent_of_client) = position(meta)?;
    ensure!(trace == TRACE, "{request}");
    let spans = collector.until("spans", |spans| of_trace(spans, TRACE).len() >= 4).await?;
    let spans = of_trace(&spans, TRACE);
    let (link, asked) =
        (named(&spans, "tools/call ask", CLIENT)?, named(&spans, SAMPLING, CLIENT)?);
    ensure!(asked["parent"] == link["span"], "{spans:#?}");
    ensure!(asked["span"] == parent_of_client.as_str(), "{spans:#?}");
    ensure!(asked["resource"]["service.instance.id"] == "n1", "{asked}");
    let attributes = &asked["attributes"];
    ensure!(attributes["mcp.method.name"] == SAMPLING && asked["status"] == 0, "{asked}");
    ensure!(attributes["jsonrpc.request.id"].is_string(), "{asked}");
    ensure!(link["start"].as_u64() <= asked["start"].as_u64(), "{spans:#?}");
    ensure!(asked["end"].as_u64() <= link["end"].as_u64(), "{spans:#?}");
    Ok(())
}

#[tokio::test]
async fn a_server_with_spans_of_its_own_is_between_its_call_and_its_request() -> Result<()> {
    let collector = Collector::start().await?;
    let node = Node::start(&collector.of(traced()))?;
    let client =
        Client::open_with(node.demo(), NEWEST, json!({ "sampling": {}, "roots": {} })).await?;
    let within = json!({ "within": true });
    let (request, _) = ask(&client, within, json!({ "traceparent": PARENT })).await?;
    ensure!(position(&request["params"]["_meta"])?.0 == TRACE, "{request}");
    // A trace that the call is not in is a link.
    let foreign = format!("00-{OTHER}-b7ad6b7169203331-01");
    let foreign = json!({ "meta": { "traceparent": foreign, "tracestate": "a=b" } });
    let (request, answer) = ask(&client, foreign, json!({})).await?;
    let meta = &request["params"]["_meta"];
    ensure!(position(meta)?.0 != OTHER && meta.get("tracestate").is_none(), "{request}");
    let second = position(meta)?.0;
    let is_due =
        |spans: &[Value]| of_trace(spans, TRACE).len() == 3 && of_trace(spans, &second).len() == 3;
    let spans = collector.until("spans", is_due).await?;
    let asked = named(&of_trace(&spans, TRACE), SAMPLING, CLIENT)?;
    ensure!(asked["parent"] == "00000000000000aa", "{asked}");
    let asked = named(&of_trace(&spans, &second), SAMPLING, CLIENT)?;
    ensure!(asked["links"] == json!([[OTHER, "b7ad6b7169203331"]]), "{asked} {answer}");
    Ok(())
}

#[tokio::test]
async fn a_request_of_the_server_that_is_refused_has_its_code_and_an_untraced_one_no_span()
-> Result<()> {
    let collector = Collector::start().await?;
    let setup = collector.of(traced());
    let node = Node::start(&setup)?;
    // The client declares no sampling, so the session refuses the request.
    let client = Client::open(node.demo(), NEWEST).await?;
    let answer = client.ask(call(&client, "ask", json!({ "traceparent": PARENT }))).await?;
    ensure!(text(&answer)?.contains("-32601"), "{answer}");
    let spans = collector.until("spans", |spans| of_trace(spans, TRACE).len() >= 3).await?;
    let asked = named(&of_trace(&spans, TRACE), SAMPLING, CLIENT)?;
    ensure!(asked["attributes"]["rpc.response.status_code"] == "-32601", "{asked}");
    ensure!(asked["attributes"]["error.type"] == "-32601" && asked["status"] == 2, "{asked}");

    // A request for a call that is not traced stays as the server wrote it.
    let trusting = setup.with("otlp.trust_sampled", true);
    let node = Node::start(&trusting)?;
    let client = Client::open_with(node.demo(), NEWEST, json!({ "sampling": {} })).await?;
    let meta = json!({ "traceparent": PARENT });
    let (request, _) = ask(&client, json!({ "meta": meta }), meta.clone()).await?;
    ensure!(request["params"]["_meta"] == meta, "{request}");
    Ok(())
}
