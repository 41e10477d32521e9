//! Traces of calls, as a collector of OpenTelemetry gets them from nodes and as a tenant's server gets
//! them in `_meta`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::collector::Collector;
use tests::mcp::{Client, final_response};
use tests::recorded::{Recorded, reaches};
use tests::spans::{
    CLIENT, INTERNAL, PARENT, SERVER, TRACE, call, of_trace, only, position, received, traced,
};
use tests::sse::{Events, PATIENCE};
use tests::{Node, check};

const NEWEST: &str = "2025-11-25";

#[tokio::test]
async fn a_call_is_one_trace_from_the_client_to_the_server() -> Result<()> {
    let collector = Collector::start().await?;
    let node = Node::start(&collector.of(traced()))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let meta = json!({ "traceparent": PARENT, "tracestate": "a=b", "other": {"x": 1.0} });
    let answer = client.ask(call(&client, "meta", meta)).await?;
    let received = received(&answer)?;
    ensure!(received["tracestate"] == "a=b" && received["other"] == json!({"x": 1.0}));
    let (trace, parent_of_server) = position(&received)?;
    ensure!(trace == TRACE);
    let spans = collector.until("spans", |spans| of_trace(spans, TRACE).len() >= 2).await?;
    let spans = of_trace(&spans, TRACE);
    let (ingress, link) = (only(&spans, SERVER)?, only(&spans, CLIENT)?);
    ensure!(ingress["parent"] == "00f067aa0ba902b7" && ingress["state"] == "a=b", "{ingress}");
    ensure!(link["parent"] == ingress["span"], "{spans:#?}");
    ensure!(link["span"] == parent_of_server, "{spans:#?}");
    for span in [ingress, link] {
        ensure!(span["name"] == "tools/call meta", "{span}");
        let attributes = &span["attributes"];
        ensure!(attributes["mcp.method.name"] == "tools/call", "{span}");
        ensure!(attributes["gen_ai.tool.name"] == "meta", "{span}");
        ensure!(attributes["gen_ai.operation.name"] == "execute_tool", "{span}");
        ensure!(attributes["jsonrpc.request.id"].is_string(), "{span}");
        ensure!(span["status"] == 0 && attributes.get("error.type").is_none(), "{span}");
        ensure!(span["resource"]["service.name"] == "roundhouse", "{span}");
        ensure!(span["start"].as_u64() <= span["end"].as_u64(), "{span}");
    }
    ensure!(ingress["attributes"]["mcp.protocol.version"] == NEWEST, "{ingress}");
    ensure!(ingress["attributes"]["network.transport"] == "tcp", "{ingress}");
    ensure!(ingress["start"].as_u64() <= link["start"].as_u64());
    // The whole id of the session is a secret of its client.
    let session = client.session.clone().context("no session")?;
    ensure!(!collector.arrived().await?.to_string().contains(&session));
    Ok(())
}

#[tokio::test]
async fn a_call_at_another_node_is_one_trace_with_a_span_of_each() -> Result<()> {
    let collector = Collector::start().await?;
    let setups = ["n0", "n1", "n2"].map(|name| collector.of(traced()).with("cluster.name", name));
    let cluster = Recorded::start(setups).await?;
    let mut client = cluster.open(1, NEWEST).await?;
    client.url = cluster.node(0)?.demo();
    let answer = client.ask(call(&client, "meta", json!({ "traceparent": PARENT }))).await?;
    let (trace, parent_of_server) = position(&received(&answer)?)?;
    ensure!(trace == TRACE);
    let spans = collector.until("spans", |spans| of_trace(spans, TRACE).len() >= 3).await?;
    let spans = of_trace(&spans, TRACE);
    let [ingress, owner, link] =
        [only(&spans, SERVER)?, only(&spans, INTERNAL)?, only(&spans, CLIENT)?];
    ensure!(ingress["parent"] == "00f067aa0ba902b7", "{spans:#?}");
    ensure!(owner["parent"] == ingress["span"] && link["parent"] == owner["span"], "{spans:#?}");
    ensure!(link["span"] == parent_of_server, "{spans:#?}");
    for (span, node) in [(ingress, "n0"), (owner, "n1"), (link, "n1")] {
        ensure!(span["resource"]["service.instance.id"] == node, "{span}");
    }
    ensure!(ingress["attributes"]["roundhouse.owner"] == "n1", "{ingress}");
    Ok(())
}

/// Over HTTP+SSE: the span ends with the answer on the stream, if that is at the node with the POST.
#[tokio::test]
async fn a_call_over_http_sse_has_a_span_until_its_answer_is_on_the_stream() -> Result<()> {
    let collector = Collector::start().await?;
    let setups = ["n0", "n1", "n2"].map(|name| collector.of(traced()).with("cluster.name", name));
    let cluster = Recorded::start(setups).await?;
    let (streaming, posting) = (cluster.node(0)?, cluster.node(1)?);
    let opener = Client::new(format!("{}/demo/sse", streaming.base), "2024-11-05");
    let mut events = Events::of(opener.get(None).await?)?;
    let path = events.next().await?.context("no endpoint")?.data.context("no data")?;
    let mut poster = Client::new(format!("{}{path}", streaming.base), "2024-11-05");
    let initialize = poster.message("initialize", poster.introduction(json!({ "sampling": {} })));
    check::status(&poster.send(initialize).await?, 202)?;
    events.message().await?.context("no answer")?;
    check::status(&poster.notify("notifications/initialized", json!({})).await?, 202)?;
    let parent = |at: usize| PARENT.replace(TRACE, &format!("{at:032x}"));
    for (at, node, tool, outcome) in [
        (1, streaming, "meta", "result"),
        (2, streaming, "fail", "tool_error"),
        (3, posting, "meta", "accepted"),
    ] {
        poster.url = format!("{}{path}", node.base);
        let call = call(&poster, tool, json!({ "traceparent": parent(at) }));
        check::status(&poster.send(call).await?, 202)?;
        events.message().await?.context("no answer")?;
        let trace = format!("{at:032x}");
        let wanted = if outcome == "accepted" { 3 } else { 2 };
        let is_due = |spans: &[Value]| of_trace(spans, &trace).len() == wanted;
        let spans = collector.until("spans", is_due).await?;
        let spans = of_trace(&spans, &trace);
        let (ingress, link) = (only(&spans, SERVER)?, only(&spans, CLIENT)?);
        ensure!(ingress["attributes"]["roundhouse.outcome"] == outcome, "{ingress}");
        if outcome != "accepted" {
            ensure!(ingress["end"].as_u64() >= link["end"].as_u64(), "{ingress} {link}");
            ensure!(ingress["attributes"]["roundhouse.owner"] == "n0", "{ingress}");
        }
    }
    // A request of an unknown session has its refusal, and one that was cancelled no answer.
    poster.url = format!("{}/demo/messages?session=unknown", streaming.base);
    let refused = call(&poster, "meta", json!({ "traceparent": parent(4) }));
    check::status(&poster.send(refused).await?, 404)?;
    poster.url = format!("{}{path}", streaming.base);
    // The client does not answer what the tool asks.
    let asking = call(&poster, "ask", json!({ "traceparent": parent(5) }));
    let id = asking["id"].clone();
    check::status(&poster.send(asking).await?, 202)?;
    let cancelled = poster.notify("notifications/cancelled", json!({ "requestId": id })).await?;
    check::status(&cancelled, 202)?;
    for (at, outcome) in [(4, "refused"), (5, "cancelled")] {
        let trace = format!("{at:032x}");
        let is_server = |span: &Value| span["trace"] == *trace && span["kind"] == SERVER;
        let spans = collector.until("spans", |spans| spans.iter().any(is_server)).await?;
        let ingress = spans.iter().find(|span| is_server(span)).context("no span")?;
        ensure!(ingress["attributes"]["roundhouse.outcome"] == outcome, "{ingress}");
    }
    Ok(())
}

/// A draining node has another node create the session.
#[tokio::test]
async fn an_initialize_at_a_draining_node_stays_in_its_trace() -> Result<()> {
    let collector = Collector::start().await?;
    let token = tempfile::NamedTempFile::new()?;
    std::fs::write(&token, "a-token-for-operators")?;
    let setups = ["n0", "n1"].map(|name| {
        let setup = collector.of(traced()).with("cluster.name", name);
        setup.with("admin.token_file", token.path().display())
    });
    let cluster = Recorded::start(setups).await?;
    let node = cluster.node(0)?;
    let drain = reqwest::Client::new().post(format!("{}/drain?secs=0", node.admin));
    drain.bearer_auth("a-token-for-operators").send().await?.error_for_status()?;
    let client = Client::new(node.demo(), NEWEST);
    let mut introduction = client.introduction(json!({}));
    introduction["_meta"] = json!({ "traceparent": PARENT });
    let answer = client.ask(client.message("initialize", introduction)).await?;
    ensure!(answer.get("result").is_some(), "{answer}");
    let spans = collector.until("spans", |spans| of_trace(spans, TRACE).len() >= 2).await?;
    let spans = of_trace(&spans, TRACE);
    let (ingress, owner) = (only(&spans, SERVER)?, only(&spans, INTERNAL)?);
    ensure!(owner["parent"] == ingress["span"], "{spans:#?}");
    ensure!(owner["name"] == "owner initialize", "{owner}");
    for (span, node) in [(ingress, "n0"), (owner, "n1")] {
        ensure!(span["resource"]["service.instance.id"] == node, "{span}");
    }
    Ok(())
}

/// The owner is killed in the middle of a call that may run again.
async fn check_take_over(revision: &str, meta: Value) -> Result<()> {
    let collector = Collector::start().await?;
    let setups = ["n0", "n1", "n2"].map(|name| collector.of(traced()).with("cluster.name", name));
    let mut cluster = Recorded::start(setups).await?;
    let mut client = cluster.open(1, revision).await?;
    client.request("tools/list", json!({})).await?;
    client.url = cluster.node(0)?.demo();
    let is_streamed = meta.get("progressToken").is_some();
    let mut meta = meta;
    meta["traceparent"] = json!(PARENT);
    let message = call(&client, "wait", meta);
    let mut calling = tokio::spawn(async move {
        let response = client.send(message).await?;
        // The head of a stream arrives before the owner is lost.
        anyhow::Ok((tokio::time::Instant::now(), final_response(response).await?))
    });
    let mut runs = Vec::new();
    while runs.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
        runs = cluster.recorded()?;
        ensure!(!calling.is_finished(), "{:?}", (&mut calling).await?);
    }
    if is_streamed {
        // The log holds the stream's first event before its client gets it.
        reaches(cluster.node(0)?, "roundhouse_front_streams", |streams| streams > 0.0).await?;
    }
    cluster.kill(1)?;
    let (_, answer) = calling.await??;
    let (trace, parent_of_server) = position(&received(&answer)?)?;
    ensure!(trace == TRACE, "{answer}");
    let runs = cluster.recorded()?;
    ensure!(runs.len() == 2, "{runs:?}");
    let first: Value = serde_json::from_str(&runs[0])?;
    let first = position(&first)?;
    ensure!(first.0 == TRACE && first.1 != parent_of_server, "{runs:?}");
    let is_complete = |spans: &[Value]| {
        let has = |kind| of_trace(spans, TRACE).iter().any(|span| span["kind"] == kind);
        has(SERVER) && has(CLIENT)
    };
    let spans = collector.until("spans", is_complete).await?;
    let spans = of_trace(&spans, TRACE);
    let (ingress, link) = (only(&spans, SERVER)?, only(&spans, CLIENT)?);
    ensure!(ingress["parent"] == "00f067aa0ba902b7", "{spans:#?}");
    ensure!(link["span"] == parent_of_server, "{spans:#?}");
    // Each parent is a span that arrived: none is of the node that was killed.
    let parents = spans.iter().filter(|span| span["span"] != ingress["span"]);
    for span in parents {
        let is_known = spans.iter().any(|other| other["span"] == span["parent"]);
        ensure!(is_known, "{span} has no parent in {spans:#?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_call_that_goes_on_at_the_next_owner_stays_in_its_trace() -> Result<()> {
    check_take_over("2025-06-18", json!({})).await
}

#[tokio::test]
async fn a_stream_that_goes_on_at_the_next_owner_stays_in_its_trace() -> Result<()> {
    check_take_over(NEWEST, json!({ "progressToken": "p" })).await
}

#[tokio::test]
async fn nothing_is_traced_with_a_share_of_none() -> Result<()> {
    let collector = Collector::start().await?;
    let setup = collector.of(traced()).with("otlp.traces_one_in", 0);
    let node = Node::start(&setup)?;
    let client = Client::open(node.demo(), NEWEST).await?;
    // The flag of a client decides nothing.
    let sampled = PARENT.replace("-00", "-01");
    let sampled = format!("{}01", &sampled[..53]);
    for meta in [json!({}), json!({ "traceparent": PARENT }), json!({ "traceparent": sampled })] {
        let answer = client.ask(call(&client, "meta", meta.clone())).await?;
        ensure!(received(&answer)? == meta, "{answer}");
    }
    node.stop(Duration::from_secs(40))?;
    ensure!(collector.arrived().await?["spans"] == json!([]));
    Ok(())
}

#[tokio::test]
async fn a_client_decides_by_its_flag_only_where_the_settings_say_so() -> Result<()> {
    let collector = Collector::start().await?;
    let sampled = format!("{}01", &PARENT[..53]);
    let trusting = collector.of(traced()).with("otlp.traces_one_in", 0);
    let node = Node::start(&trusting.with("otlp.trust_sampled", true))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let unsampled = json!({ "traceparent": PARENT });
    let answer = client.ask(call(&client, "meta", unsampled.clone())).await?;
    ensure!(received(&answer)? == unsampled, "{answer}");
    let answer = client.ask(call(&client, "meta", json!({ "traceparent": sampled }))).await?;
    ensure!(position(&received(&answer)?)?.0 == TRACE);
    node.stop(Duration::from_secs(40))?;
    let spans = collector.arrived().await?["spans"].as_array().context("no list")?.clone();
    ensure!(of_trace(&spans, TRACE).len() == 2 && spans.len() == 2, "{spans:#?}");
    Ok(())
}

#[tokio::test]
async fn the_context_of_the_http_request_is_a_link_and_else_the_parent() -> Result<()> {
    let collector = Collector::start().await?;
    let node = Node::start(&collector.of(traced()))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let of_http = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let ask = async |meta: Value| {
        let message = call(&client, "meta", meta);
        let request = client.http(reqwest::Method::POST).header("traceparent", of_http);
        received(&final_response(request.json(&message).send().await?).await?)
    };
    ensure!(position(&ask(json!({ "traceparent": PARENT })).await?)?.0 == TRACE);
    let other = "0af7651916cd43dd8448eb211c80319c";
    ensure!(position(&ask(json!({})).await?)?.0 == other);
    let is_due =
        |spans: &[Value]| of_trace(spans, TRACE).len() == 2 && of_trace(spans, other).len() == 2;
    let spans = collector.until("spans", is_due).await?;
    let linked = only(&of_trace(&spans, TRACE), SERVER)?.clone();
    ensure!(linked["parent"] == "00f067aa0ba902b7", "{linked}");
    ensure!(linked["links"] == json!([[other, "b7ad6b7169203331"]]), "{linked}");
    let child = only(&of_trace(&spans, other), SERVER)?.clone();
    ensure!(child["parent"] == "b7ad6b7169203331" && child["links"] == json!([]), "{child}");
    Ok(())
}

#[tokio::test]
async fn hostile_contexts_begin_a_trace_of_their_own_and_break_nothing() -> Result<()> {
    let collector = Collector::start().await?;
    let node = Node::start(&collector.of(traced()))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let long = "x".repeat(10_000);
    let hostile = [
        json!("00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
        json!(format!("ff{}", &PARENT[2..])),
        json!(format!("{PARENT}-extra")),
        json!(PARENT.to_uppercase()),
        json!(long),
        json!("\u{0}\r\ntraceparent: x"),
        json!(7),
        json!(null),
        json!({ "traceparent": PARENT }),
        json!([PARENT]),
    ];
    for parent in &hostile {
        let meta = json!({ "traceparent": parent, "tracestate": long, "kept": 1 });
        let received = received(&client.ask(call(&client, "meta", meta)).await?)?;
        let (trace, _) = position(&received)?;
        ensure!(trace != TRACE && received["kept"] == 1, "{parent}: {received}");
        ensure!(received.get("tracestate").is_none(), "the state of no trace: {parent}");
    }
    for state in [json!(long), json!("a=b,=,,"), json!("a=\u{1}"), json!(7)] {
        let meta = json!({ "traceparent": PARENT, "tracestate": state });
        let received = received(&client.ask(call(&client, "meta", meta)).await?)?;
        ensure!(position(&received)?.0 == TRACE, "{state}");
    }
    // Two headers, and one that is none, count as none.
    let (twice, odd) = ([PARENT, PARENT].as_slice(), ["no parent"].as_slice());
    for parents in [twice, odd] {
        let mut request = client.http(reqwest::Method::POST);
        for parent in parents {
            request = request.header("traceparent", *parent);
        }
        let message = call(&client, "meta", json!({}));
        let answer = final_response(request.json(&message).send().await?).await?;
        ensure!(position(&received(&answer)?)?.0 != TRACE, "{answer}");
    }
    // A `_meta` that is no object is the server's to judge.
    let message = client.message("tools/call", json!({ "name": "meta", "_meta": [PARENT] }));
    let _ = client.send(message).await?;
    client.is_well().await?;
    let spans = collector.until("spans", |spans| of_trace(spans, TRACE).len() >= 8).await?;
    ensure!(of_trace(&spans, TRACE).iter().all(|span| span["state"] == ""), "{spans:#?}");
    Ok(())
}

#[tokio::test]
async fn how_a_call_failed_is_in_its_spans_and_its_trace_in_the_access_log() -> Result<()> {
    let collector = Collector::start().await?;
    let node = Node::start(&collector.of(traced()).with("log.access", "all"))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let meta = json!({ "traceparent": PARENT });
    client.ask(call(&client, "fail", meta.clone())).await?;
    let message = client.message("resources/read", json!({ "uri": "x://secret", "_meta": meta }));
    client.ask(message).await?;
    let spans = collector.until("spans", |spans| of_trace(spans, TRACE).len() >= 4).await?;
    let spans = of_trace(&spans, TRACE);
    for (name, error) in [("tools/call fail", "tool_error"), ("resources/read", "-32601")] {
        let of_call = spans.iter().filter(|span| span["name"] == name).collect::<Vec<_>>();
        ensure!(of_call.len() == 2, "{name}: {spans:#?}");
        for span in of_call {
            ensure!(span["attributes"]["error.type"] == error && span["status"] == 2, "{span}");
        }
    }
    ensure!(!format!("{spans:?}").contains("secret"), "{spans:#?}");
    let until = Instant::now() + PATIENCE;
    let traced = format!("trace_id={TRACE}");
    while node.output().lines().filter(|line| line.contains(&traced)).count() < 2 {
        ensure!(Instant::now() < until, "{}", node.output());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

#[tokio::test]
async fn calls_do_not_notice_a_collector_that_is_down_or_hangs() -> Result<()> {
    let collector = Collector::start().await?;
    let setup = collector.of(traced()).with("otlp.timeout_ms", 300).with("otlp.queue_max", 20);
    let node = Node::start(&setup.with("otlp.batch_max", 10))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    for (status, delay) in [(503, Duration::ZERO), (200, Duration::from_secs(60))] {
        collector.answer(status, delay).await?;
        for _ in 0..40 {
            let began = Instant::now();
            client.ask(call(&client, "meta", json!({}))).await?;
            ensure!(began.elapsed() < Duration::from_secs(5), "a call waited for the collector");
        }
    }
    let spans = |end: &str| format!("roundhouse_otlp_spans_total{{end=\"{end}\"}}");
    reaches(&node, &spans("lost"), |lost| lost > 0.0).await?;
    reaches(&node, &spans("dropped"), |dropped| dropped > 0.0).await?;
    let output = node.output();
    let reports = output.lines().filter(|line| line.contains("`otlp.endpoint` failed")).count();
    ensure!(reports == 1, "{reports} lines: {output}");
    // The end of the node does not wait for it for long.
    let began = Instant::now();
    node.stop(Duration::from_secs(40))?;
    ensure!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    Ok(())
}

#[tokio::test]
async fn durations_arrive_by_the_names_of_the_conventions_with_the_headers() -> Result<()> {
    let collector = Collector::start().await?;
    let folder = tempfile::tempdir()?;
    let headers = folder.path().join("headers");
    std::fs::write(&headers, "x-team=a secret of ours\n")?;
    std::fs::set_permissions(&headers, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let setup = collector.of(traced()).with("otlp.metrics_secs", 1);
    let node = Node::start(&setup.with("otlp.headers_file", headers.display()))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    client.ask(call(&client, "meta", json!({}))).await?;
    client.ask(call(&client, "fail", json!({}))).await?;
    client.ask(client.message("made/up", json!({}))).await?;
    client.delete().await?;
    let operation = "mcp_server_operation_duration_seconds_count";
    let failed = "{mcp_method_name=\"tools/call\",error_type=\"tool_error\"}";
    reaches(&node, &format!("{operation}{failed}"), |count| count == 1.0).await?;
    let other = "{mcp_method_name=\"_OTHER\",error_type=\"-32601\"}";
    reaches(&node, &format!("{operation}{other}"), |count| count == 1.0).await?;
    let points = |metrics: &[Value], name: &str| {
        let last = metrics.iter().rfind(|metric| metric["name"] == name);
        last.and_then(|metric| metric["histogram"]["dataPoints"].as_array().cloned())
    };
    let attributes = |point: &Value| {
        let all = point["attributes"].as_array().cloned().unwrap_or_default();
        let pair = |one: &Value| format!("{}={}", one["key"], one["value"]["stringValue"]);
        all.iter().map(pair).collect::<Vec<_>>().join(" ").replace('"', "")
    };
    let is_due = |metrics: &[Value]| {
        let sessions = points(metrics, "mcp.server.session.duration").unwrap_or_default();
        let operations = points(metrics, "mcp.server.operation.duration").unwrap_or_default();
        let has = |points: &[Value], wanted: &str| {
            points.iter().any(|point| attributes(point) == wanted && point["count"] == "1")
        };
        has(&sessions, "mcp.protocol.version=2025-11-25")
            && has(&operations, "mcp.method.name=tools/call")
            && has(&operations, "mcp.method.name=tools/call error.type=tool_error")
            && has(&operations, "mcp.method.name=_OTHER error.type=-32601")
    };
    let metrics = collector.until("metrics", is_due).await?;
    let operation = metrics.iter().rfind(|one| one["name"] == "mcp.server.operation.duration");
    let operation = operation.context("no metric")?;
    ensure!(operation["unit"] == "s", "{operation}");
    let point = &operation["histogram"]["dataPoints"][0];
    let bounds = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1., 2., 5., 10., 30., 60., 120., 300.];
    ensure!(point["explicitBounds"] == json!(bounds), "{point}");
    ensure!(point["bucketCounts"].as_array().is_some_and(|counts| counts.len() == 15), "{point}");
    ensure!(metrics.iter().any(|one| one["name"] == "roundhouse_sessions"));
    let arrived = collector.arrived().await?;
    let sent = arrived["headers"].as_array().context("no list")?;
    ensure!(sent.iter().all(|headers| headers["x-team"] == "a secret of ours"), "{sent:?}");
    ensure!(!node.output().contains("a secret of ours"));
    Ok(())
}
