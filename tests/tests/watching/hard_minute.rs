//! Three nodes under a load that uses every measured feature, one of them killed, and queries to
//! Prometheus for every panel and every rule.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::collector::Collector;
use tests::mcp::{Client, final_response};
use tests::metrics::{add_scraped, page};
use tests::prometheus::Prometheus;
use tests::redis::Redis;
use tests::{Node, Setup, tools};

/// How long the load runs before a node is killed, and after that.
const PHASE: Duration = Duration::from_secs(5);

/// The variables that Grafana replaces in an expression, and their values in this test.
const WRITTEN_OUT: [(&str, &str); 3] =
    [("$tenant", ".+"), ("$node", ".+"), ("$__rate_interval", "4s")];

/// Metrics that may stay 0 in a cluster that loses only one node: bounds, and errors of clients,
/// servers or nodes. Every other metric must have been above 0.
const ONLY_IN_TROUBLE: [&str; 61] = [
    "roundhouse_catalog_entries_left_out_total",
    "roundhouse_catalog_lists_failed_total",
    "roundhouse_catalog_server_failures_total",
    "roundhouse_catalog_servers_unavailable",
    "roundhouse_catalog_stray_messages_total",
    "roundhouse_catalog_unpinned_definitions_total",
    "roundhouse_catalog_unpinned_requests_refused_total",
    "roundhouse_access_log_left_out_total",
    "roundhouse_audit_failing",
    "roundhouse_audit_left_out_total",
    "roundhouse_audit_queue_bytes",
    "roundhouse_audit_refused_total",
    "roundhouse_audit_rejected_total",
    "roundhouse_audit_writes_failed_total",
    "roundhouse_busy_total",
    "roundhouse_calls_relayed_total",
    "roundhouse_calls_sent_by_relay_total",
    "roundhouse_child_handovers_total",
    "roundhouse_child_junk_lines_total",
    "roundhouse_child_orphans_killed_total",
    "roundhouse_child_stderr_dropped_lines_total",
    "roundhouse_dropped_messages_total",
    "roundhouse_front_bodies_cut_total",
    "roundhouse_front_connections_closed_total",
    "roundhouse_front_requests_delayed_total",
    "roundhouse_front_sessions_throttled_total",
    "roundhouse_front_tls_certificate_expiry_timestamp_seconds",
    "roundhouse_front_tls_certificate_refused",
    "roundhouse_front_tls_handshakes_total",
    "roundhouse_front_tls_reloads_total",
    "roundhouse_handovers_forced_total",
    "roundhouse_issuer_requests_total",
    "roundhouse_lease_renewals_failed_total",
    "roundhouse_leases_lost_total",
    "roundhouse_log_lines_left_out_total",
    "roundhouse_log_retries_total",
    "roundhouse_native_panics_total",
    "roundhouse_session_bytes",
    "roundhouse_sessions_evicted_total",
    "roundhouse_session_bytes_reliefs_total",
    "roundhouse_tenant_children_refused_total",
    "roundhouse_tenant_limited_total",
    "roundhouse_tenant_session_bytes",
    "roundhouse_tenant_stored_bytes",
    "roundhouse_peer_links_refused_total",
    "roundhouse_redis_connect_failures_total",
    "roundhouse_redis_connections_broken_total",
    "roundhouse_redis_repeats_total",
    "roundhouse_requests_held",
    "roundhouse_revocations",
    "roundhouse_sessions_reclaimed_total",
    "roundhouse_sessions_refused_total",
    "roundhouse_settings_reloads_total",
    "roundhouse_stabilising",
    "roundhouse_sinks_overflowed_total",
    "roundhouse_store_failovers_total",
    "roundhouse_stray_messages_total",
    "roundhouse_takeovers_failed_total",
    "roundhouse_upstream_exchanges_open",
    "roundhouse_upstream_exchanges_total",
    "roundhouse_upstream_token_requests_total",
];

/// Three nodes that share a Redis, trace everything and write one audit log: a tenant in process, which has
/// a limit, and a tenant with a separate program.
fn cluster(redis: &Redis, collector: &Collector, audit: &Path) -> Result<Vec<Node>> {
    let config = format!(
        "[store]
         url = '{}'
         [cluster]
         listen = '127.0.0.1:0'
         secret = 'known to these three nodes, no secret'
         [sessions]
         sleep_after_secs = 1
         [audit]
         to = 'file'
         file = '{}'
         [tenants.demo]
         auth = 'open'
         [tenants.demo.rates.all]
         rate = '100000/s'
         [tenants.demo.backends.main]
         kind = 'native'
         name = 'everything'
         [tenants.program]
         auth = 'open'
         [tenants.program.backends.main]
         kind = 'stdio'
         command = '{}'",
        redis.url(),
        audit.display(),
        tools::built("everything").display()
    );
    (0..3).map(|_| Node::start(&collector.of(Setup::config(config.clone())))).collect()
}

/// A session that uses one node after another, as behind a balancer without affinity.
async fn wander(urls: &[String], first: usize) -> Result<()> {
    let at = |turn: usize| urls[(first + turn) % urls.len()].clone();
    let capabilities = json!({ "elicitation": {} });
    let mut client = Client::open_with(at(0), "2025-11-25", capabilities).await?;
    let listening = client.listen().await?;
    for turn in 0..6 {
        client.url = at(turn);
        client.tool("rh_echo", json!({ "turn": turn })).await?;
        client.request("nobody/knows", json!({})).await?;
    }
    // A stream that is cut, and resumed at another node; then once more after its end.
    let call = client.call_with_progress("rh_count", json!({"n": 6, "interval_ms": 20}), json!(1));
    let mut stream = client.stream(call).await?;
    let cursor = loop {
        let (block, message) = stream.message().await?.context("the stream ended")?;
        if message["params"]["progress"].as_f64() == Some(2.0) {
            break block.id.context("no event id")?;
        }
    };
    drop(stream);
    client.url = at(1);
    let mut resumed = client.resume(&cursor).await?;
    let mut last = None;
    while let Some((block, _)) = resumed.message().await? {
        last = block.id.or(last);
    }
    let _finished = client.get(last.as_deref()).await?;
    let _unknown = client.get(Some("nobody.knows-1")).await?;
    // A server request, answered at another node.
    let mut asking = client.stream(client.call("rh_ask", json!({ "times": 1 }))).await?;
    let (_, question) = asking.message().await?.context("no question")?;
    client.url = at(2);
    let yes = json!({ "action": "accept", "content": {} });
    client.answer(&question["id"], yes).await?;
    while asking.message().await?.is_some() {}
    drop(listening);
    client.delete().await?;
    Ok(())
}

/// A session with a server process, which crashes.
async fn crash(url: &str) -> Result<()> {
    let client = Client::open(url, "2025-11-25").await?;
    client.is_well().await?;
    let _lost = client.send(client.call("rh_crash", json!({}))).await?;
    Ok(())
}

/// Clients of all kinds, until the time is over. Without `strict` they may fail: their node may be
/// gone.
async fn load(nodes: &[String], programs: &[String], strict: bool) -> Result<()> {
    let until = Instant::now() + PHASE;
    while Instant::now() < until {
        let (one, other) = tokio::join!(wander(nodes, 0), wander(nodes, 1));
        let (well, crashed) = tokio::join!(wander(programs, 0), crash(&programs[1]));
        if strict {
            one.and(other).and(well).and(crashed)?;
        }
        let _refused = reqwest::get(&nodes[0]).await?;
    }
    Ok(())
}

/// The metrics that exist only with certificates for clients, which these nodes do not have.
const OF_CERTIFICATES: [&str; 2] = [
    "roundhouse_front_tls_certificate_expiry_timestamp_seconds",
    "roundhouse_front_tls_certificate_refused",
];

fn written_out(expression: &str) -> String {
    WRITTEN_OUT.iter().fold(expression.to_owned(), |text, (name, value)| text.replace(name, value))
}

/// A rule whose comparisons return 0 or 1. So the test detects whether there are values to
/// compare, even if no alert fires.
fn asked(rule: &str) -> String {
    let comparisons = [" == ", " != ", " > ", " < ", " >= ", " <= "];
    comparisons
        .iter()
        .fold(rule.to_owned(), |text, sign| text.replace(sign, &format!("{sign}bool ")))
}

#[tokio::test]
async fn every_panel_and_every_rule_has_something_to_say_of_a_cluster_in_a_hard_minute()
-> Result<()> {
    let began = Instant::now();
    let (redis, collector) = (Redis::start()?, Collector::start().await?);
    let folder = tempfile::tempdir()?;
    let mut nodes = cluster(&redis, &collector, &folder.path().join("audit.log"))?;
    let admins: Vec<String> = nodes.iter().map(|node| node.admin.clone()).collect();
    let admins: Vec<&str> = admins.iter().map(String::as_str).collect();
    let prometheus = Prometheus::start(&admins).await?;
    let urls = |tenant: &str| nodes.iter().map(|node| node.mcp(tenant)).collect::<Vec<_>>();
    let (demo, program) = (urls("demo"), urls("program"));
    // This session is idle during the load, and continues at another node.
    let mut sleeper = Client::open(&demo[0], "2025-11-25").await?;
    load(&demo, &program, true).await?;
    sleeper.url.clone_from(&demo[1]);
    sleeper.is_well().await?;

    // A call at a node that is killed, sent through another node.
    let mut orphans = Vec::new();
    for _ in 0..5 {
        orphans.push(Client::open(&demo[2], "2025-11-25").await?);
    }
    let mut client = Client::open(&demo[2], "2025-11-25").await?;
    client.url.clone_from(&demo[0]);
    let call = client.send(client.call("rh_read_only_slow", json!({ "ms": 2_000 })));
    let kill = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        nodes[2].kill()
    };
    let (told, killed) = tokio::join!(call, kill);
    killed?;
    // Other tests check its result; here only its metrics count.
    let _word = final_response(told?).await;
    for orphan in &mut orphans {
        orphan.url.clone_from(&demo[1]);
        orphan.is_well().await?;
    }
    load(&demo[..2], &program[..2], false).await?;

    says_what_the_page_says(&nodes[..2]).await?;
    let lately = began.elapsed().as_secs();
    let mut silent = Vec::new();
    for (title, expressions) in super::panels()? {
        for expression in expressions {
            let values = prometheus.lately(&written_out(&expression), lately).await?;
            let is_of_tls = OF_CERTIFICATES.iter().any(|metric| expression.contains(metric));
            if !is_of_tls && !values.iter().any(|value| value.is_finite()) {
                silent.push(format!("panel {title}: {expression}"));
            }
        }
    }
    for (name, metric) in page()? {
        if ONLY_IN_TROUBLE.contains(&&*name) {
            continue;
        }
        let name = if metric.kind == "histogram" { format!("{name}_count") } else { name };
        if !prometheus.lately(&name, lately).await?.iter().any(|value| *value > 0.0) {
            silent.push(format!("metric {name} stayed 0"));
        }
    }
    let alerts = prometheus.alerts().await?;
    for alert in &alerts {
        let query = alert["query"].as_str().context("no query")?;
        ensure!(alert["health"] == "ok", "{alert}");
        let is_of_tls = OF_CERTIFICATES.iter().any(|metric| query.contains(metric));
        if !is_of_tls && prometheus.now(&asked(query)).await?.is_empty() {
            silent.push(format!("alert {}: {query}", alert["name"]));
        }
    }
    ensure!(silent.is_empty(), "no values:\n{}", silent.join("\n"));
    let is_seen = |name: &str| {
        let alert = alerts.iter().find(|alert| alert["name"] == name);
        alert.is_some_and(|alert| alert["state"] != "inactive")
    };
    ensure!(is_seen("NodeDown"), "no alert after a node was killed: {alerts:?}");
    ensure!(!is_seen("StoreUnreachable") && !is_seen("NodeNotReady"), "{alerts:?}");
    Ok(())
}

/// The metrics of the nodes match the page: names, types, labels and their values.
async fn says_what_the_page_says(nodes: &[Node]) -> Result<()> {
    let mut said = BTreeMap::new();
    for node in nodes {
        let text = reqwest::get(format!("{}/metrics", node.admin)).await?.text().await?;
        add_scraped(&text, &mut said)?;
    }
    let mut wrong = Vec::new();
    for (name, row) in page()? {
        let Some(metric) = said.remove(&name) else {
            if !OF_CERTIFICATES.contains(&&*name) {
                wrong.push(format!("no node has {name}"));
            }
            continue;
        };
        let kept = metric.labels.iter().all(|(key, values)| {
            let listed = row.labels.get(key);
            listed.is_some_and(|listed| listed.is_empty() || values.is_subset(listed))
        });
        if metric.kind != row.kind || !kept || metric.labels.len() != row.labels.len() {
            wrong.push(format!("{name} is {metric:?}, but in the page {row:?}"));
        }
    }
    wrong.extend(said.into_keys().map(|name| format!("{name} is not in the page")));
    ensure!(wrong.is_empty(), "docs/metrics.md:\n{}", wrong.join("\n"));
    Ok(())
}

#[tokio::test]
async fn a_node_says_that_its_store_is_gone_and_stays_ready_while_it_holds_its_lease() -> Result<()>
{
    let redis = Redis::start()?;
    let setup = Setup::demo()
        .with("store.url", redis.url())
        .with("cluster.listen", "127.0.0.1:0")
        .with("cluster.secret", "known to this node alone, and no secret")
        .with("cluster.lease_ms", 60_000);
    let node = Node::start(&setup)?;
    says(&node, "ready\n").await?;
    drop(redis);
    says(&node, "ready\nremark: the store cannot be reached\n").await?;
    ensure!(node.metric("roundhouse_redis_up").await? == Some(0.0));
    ensure!(node.metric("roundhouse_ready").await? == Some(1.0));
    Ok(())
}

/// Waits until the body of `/readyz` is exactly this text.
async fn says(node: &Node, wanted: &str) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let text = reqwest::get(format!("{}/readyz", node.admin)).await?.text().await?;
        if text == wanted {
            return Ok(());
        }
        ensure!(Instant::now() < until, "/readyz returns {text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn a_rule_is_asked_without_its_threshold() {
    let rule = r#"a{b!="c"} / d > 0.2 and e == 0"#;
    assert_eq!(asked(rule), r#"a{b!="c"} / d > bool 0.2 and e == bool 0"#);
}
