//! Operators of a cluster: the sessions of all nodes, from any of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;
use tests::mcp::Client;
use tests::recorded::{Recorded, pinged};
use tests::{Node, Setup};
use tokio::time::sleep;

use super::{DEMO, NEWEST, PATIENCE, TOKEN, ask, json_of, list, request, token_file};

/// Three nodes that share a Redis.
async fn three(token: &NamedTempFile) -> Result<Recorded> {
    let setup = |name: &str| {
        Setup::demo().with("cluster.name", name).with("admin.token_file", token.path().display())
    };
    Recorded::start(["one", "two", "three"].map(setup)).await
}

#[tokio::test]
async fn a_node_lists_and_ends_the_sessions_of_all_nodes() -> Result<()> {
    let token = token_file(TOKEN)?;
    let cluster = three(&token).await?;
    let mut clients = Vec::new();
    for node in 0..3 {
        clients.push(cluster.open(node, NEWEST).await?);
    }
    let any = cluster.node(0)?;
    let nodes = json_of(any, &["nodes"]).await?;
    let names = list(&nodes, "nodes")?.iter().map(|node| node["name"].as_str().unwrap_or_default());
    ensure!(names.collect::<Vec<_>>() == ["one", "three", "two"], "{nodes}");
    for node in list(&nodes, "nodes")? {
        ensure!(node["ready"] == true && node["version"].is_string(), "{node}");
        ensure!(node["self"] == (node["name"] == "one"), "{node}");
        ensure!(node["linked"].as_array().is_some_and(|linked| linked.len() == 2), "{node}");
    }

    // Each page has another session, and all of them are those of one long page.
    let all = json_of(any, &["sessions"]).await?;
    let ids = |page: &Value| -> Result<Vec<String>> {
        let ids = list(page, "sessions")?.iter().filter_map(|session| session["id"].as_str());
        Ok(ids.map(str::to_owned).collect())
    };
    let all_ids = ids(&all)?;
    ensure!(all_ids.len() == 3 && all_ids.is_sorted() && all["next"].is_null(), "{all}");
    let mut paged = Vec::new();
    let mut page = json_of(any, &["sessions", "--limit", "1"]).await?;
    loop {
        paged.extend(ids(&page)?);
        let Some(next) = page["next"].as_str().map(str::to_owned) else { break };
        ensure!(paged.len() < 4, "{paged:?}");
        page = json_of(any, &["sessions", "--limit", "1", "--after", &next]).await?;
    }
    ensure!(paged == all_ids, "{paged:?} {all_ids:?}");

    // From node 0: a session of node 1 by its short id, and one of node 2 by its id.
    let of_two = list(&all, "sessions")?.iter().find(|session| session["node"] == "two");
    let id = of_two.and_then(|session| session["id"].as_str()).context("no session at two")?;
    let ended = json_of(any, &["end-session", id, "--tenant", "demo"]).await?;
    ensure!(ended["ended"]["node"] == "two", "{ended}");
    let session = clients[2].session.clone().context("no session")?;
    let ended = json_of(any, &["end-session", &session]).await?;
    ensure!(ended["ended"]["node"] == "three", "{ended}");
    for node in 0..3 {
        for client in &clients[1..] {
            ensure!(pinged(client, cluster.node(node)?).await? == 404, "node {node}");
        }
        ensure!(pinged(&clients[0], cluster.node(node)?).await? < 300, "node {node}");
    }
    let output = cluster.node(0)?.output();
    ensure!(output.contains(&format!("object=\"{id}\" outcome=\"ended\"")), "{output}");
    ensure!(!output.contains(&session), "an id is in the log");
    Ok(())
}

#[tokio::test]
async fn a_node_lists_what_a_tenant_uses_on_all_nodes() -> Result<()> {
    let token = token_file(TOKEN)?;
    let cluster = three(&token).await?;
    let mut clients = Vec::new();
    for node in [0, 1, 1, 2] {
        clients.push(cluster.open(node, NEWEST).await?);
    }
    for node in 0..3 {
        let tenants = json_of(cluster.node(node)?, &["tenants"]).await?;
        let [demo] = &**list(&tenants, "tenants")? else { bail!("{tenants}") };
        ensure!(demo["sessions"] == 4 && list(&tenants, "unasked")?.is_empty(), "{tenants}");
        let figures =
            list(demo, "nodes")?.iter().map(|one| (one["node"].as_str(), &one["sessions"]));
        let figures: Vec<_> = figures.collect();
        let expected = [(Some("one"), 1), (Some("three"), 1), (Some("two"), 2)];
        ensure!(figures.iter().zip(expected).all(|(one, of)| one.0 == of.0 && *one.1 == of.1));
        let sum = |figure: &str| -> u64 {
            let nodes = demo["nodes"].as_array().into_iter().flatten();
            nodes.filter_map(|node| node.pointer(figure)?.as_u64()).sum()
        };
        for figure in ["/stored_bytes", "/session_bytes", "/limits/sessions_max"] {
            let all = demo.pointer(figure).and_then(Value::as_u64);
            ensure!(all == Some(sum(figure)), "{figure}: {demo}");
        }
        ensure!(sum("/limits/sessions_max") > 0, "{demo}");
    }
    let table = ask(cluster.node(1)?, &["tenants"], Some(TOKEN)).await?;
    ensure!(table.clone().is_ok_and(|table| table.contains("4/")), "{table:?}");
    Ok(())
}

#[tokio::test]
async fn a_tenant_that_only_another_node_has_is_listed_with_its_settings() -> Result<()> {
    let token = token_file(TOKEN)?;
    let digest = "0".repeat(64);
    let more = format!(
        "[tenants.only]\nauth = 'keys'\nhosts = ['only.example.com']\n[tenants.only.keys.ada]\n\
         sha256 = '{digest}'\n[tenants.only.backends.main]\nkind = 'native'\nname = 'everything'\n"
    );
    let setup = |text: String| Setup::config(text).with("admin.token_file", token.path().display());
    let cluster =
        Recorded::start([setup(DEMO.to_owned()), setup(format!("{DEMO}\n{more}"))]).await?;
    for node in [0, 1] {
        let tenants = json_of(cluster.node(node)?, &["tenants"]).await?;
        let [demo, only] = &**list(&tenants, "tenants")? else { bail!("{tenants}") };
        ensure!(demo["name"] == "demo" && demo["auth"][0] == "open", "{demo}");
        ensure!(only["name"] == "only" && only["auth"][0] == "keys", "{only}");
        ensure!(only["keys"] == 1 && only["hosts"][0] == "only.example.com", "{only}");
        let page = json_of(cluster.node(node)?, &["tenants", "--limit", "1"]).await?;
        ensure!(list(&page, "tenants")?.len() == 1 && page["next"] == "demo", "{page}");
        let page = json_of(cluster.node(node)?, &["tenants", "--after", "demo"]).await?;
        ensure!(list(&page, "tenants")?.len() == 1 && page["next"].is_null(), "{page}");
    }
    Ok(())
}

/// Two nodes whose sessions fall asleep after a second: a session sleeps when its server does not run.
async fn sleepy(token: &NamedTempFile) -> Result<Recorded> {
    let setup = || {
        Setup::config(DEMO.replace("auth = 'open'", "auth = 'open'\nidle_stop_secs = 1"))
            .with("sessions.sleep_after_secs", 1)
            .with("admin.token_file", token.path().display())
    };
    Recorded::start([setup(), setup()]).await
}

#[tokio::test]
async fn a_session_that_sleeps_is_ended_by_its_id() -> Result<()> {
    let token = token_file(TOKEN)?;
    let cluster = sleepy(&token).await?;
    let client = cluster.open(0, NEWEST).await?;
    let session = client.session.clone().context("no session")?;
    let until = Instant::now() + PATIENCE;
    let listed = async || {
        anyhow::Ok(list(&json_of(cluster.node(0)?, &["sessions"]).await?, "sessions")?.len())
    };
    while listed().await? > 0 {
        ensure!(Instant::now() < until, "the session does not fall asleep");
        sleep(Duration::from_millis(200)).await;
    }
    let other = cluster.node(1)?;
    let refused = ask(other, &["end-session", &session, "--tenant", "other"], Some(TOKEN)).await?;
    ensure!(refused.unwrap_err().contains("404"));
    let ended = json_of(other, &["end-session", &session]).await?;
    ensure!(ended["ended"]["tenant"] == "demo", "{ended}");
    for node in [0, 1] {
        ensure!(pinged(&client, cluster.node(node)?).await? == 404, "node {node}");
    }
    Ok(())
}

/// The short id of the session of a client.
fn short_id(client: &Client) -> Result<String> {
    let digest = Sha256::digest(client.session.as_ref().context("no session")?);
    Ok(digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

/// All pages of the sessions without a node: whether each was released, by its short id.
async fn sleeping(node: &Node, limit: &str) -> Result<BTreeMap<String, bool>> {
    let (mut found, mut next) = (BTreeMap::new(), None);
    loop {
        let mut arguments = vec!["sessions", "--sleeping", "--tenant", "demo", "--limit", limit];
        arguments.extend(next.iter().flat_map(|next: &String| ["--after", next]));
        let page = json_of(node, &arguments).await?;
        for session in list(&page, "sessions")? {
            let id = session["id"].as_str().context("no id")?.to_owned();
            ensure!(session["tenant"] == "demo" && session["revision"] == NEWEST, "{session}");
            ensure!(session["client"].is_string(), "{session}");
            found.insert(id, session["released"] == true);
        }
        match page["next"].as_str() {
            Some(written) => next = Some(written.to_owned()),
            None => return Ok(found),
        }
    }
}

#[tokio::test]
async fn sessions_that_no_node_has_are_listed_and_ended_by_their_short_ids() -> Result<()> {
    let token = token_file(TOKEN)?;
    let mut cluster = sleepy(&token).await?;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(cluster.open(0, NEWEST).await?);
    }
    let awake = cluster.open(0, NEWEST).await?;
    let _stream = awake.listen().await?;
    let mut ids = Vec::new();
    for client in &clients {
        ids.push(short_id(client)?);
    }
    let until = Instant::now() + PATIENCE;
    let asleep: BTreeMap<_, _> = ids.iter().map(|id| (id.clone(), true)).collect();
    while sleeping(cluster.node(1)?, "1").await? != asleep {
        ensure!(Instant::now() < until, "the sessions do not fall asleep");
        sleep(Duration::from_millis(200)).await;
    }
    ensure!(sleeping(cluster.node(0)?, "1000").await? == asleep);
    let of_other = ["sessions", "--sleeping", "--tenant", "other"];
    let none = json_of(cluster.node(0)?, &of_other).await?;
    ensure!(list(&none, "sessions")?.is_empty() && none["next"].is_null(), "{none}");
    let table = ask(cluster.node(1)?, &["sessions", "--sleeping"], Some(TOKEN)).await?;
    ensure!(table.clone().is_ok_and(|table| table.contains("sleeping")), "{table:?}");

    // At the other node: by the short id, and by its beginning.
    let other = cluster.node(1)?;
    let of_wrong = ask(other, &["end-session", &ids[0], "--tenant", "other"], Some(TOKEN)).await?;
    ensure!(of_wrong.unwrap_err().contains("404"));
    for (client, named) in clients.iter().zip([&ids[0][..], &ids[1][..8]]) {
        let ended = json_of(other, &["end-session", named, "--tenant", "demo"]).await?;
        ensure!(ended["ended"]["id"] == short_id(client)?, "{ended}");
        ensure!(pinged(client, cluster.node(0)?).await? == 404);
        let again = ask(other, &["end-session", named, "--tenant", "demo"], Some(TOKEN)).await?;
        ensure!(again.unwrap_err().contains("404"));
    }
    let left = BTreeMap::from([(ids[2].clone(), true)]);
    ensure!(sleeping(other, "1").await? == left);

    // The session of a lost node waits for its client.
    cluster.kill(0)?;
    cluster.deaths_noticed().await?;
    let lost = BTreeMap::from([(ids[2].clone(), true), (short_id(&awake)?, false)]);
    // The other node marks it dead in Redis a moment later.
    let until = Instant::now() + PATIENCE;
    while sleeping(cluster.node(1)?, "1").await? != lost {
        ensure!(Instant::now() < until, "the session of the lost node is not listed");
        sleep(Duration::from_millis(50)).await;
    }
    let mut again = awake.twin();
    again.url = cluster.node(1)?.demo();
    again.is_well().await?;
    let _stream = again.listen().await?;
    let found = sleeping(cluster.node(1)?, "1").await?;
    ensure!(found == left, "{found:?}");
    Ok(())
}

#[tokio::test]
async fn a_node_that_does_not_answer_is_named_and_delays_no_probe() -> Result<()> {
    let token = token_file(TOKEN)?;
    let cluster = three(&token).await?;
    let _client = cluster.open(0, NEWEST).await?;
    let (any, frozen) = (cluster.node(0)?, cluster.node(2)?);
    frozen.signal(Signal::STOP)?;
    let bearer = format!("Bearer {TOKEN}");
    let asked = (0..24).map(|_| {
        let (url, bearer) = (format!("{}/v1/sessions", any.admin), bearer.clone());
        tokio::spawn(async move {
            let asked = reqwest::Client::new().get(url).header("authorization", bearer);
            anyhow::Ok(asked.send().await?.status().as_u16())
        })
    });
    let asked: Vec<_> = asked.collect();
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let began = Instant::now();
        ensure!(request(any, Method::GET, "/healthz", ("accept", "*/*")).await?.0 == 200);
        slowest = slowest.max(began.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    for asked in asked {
        let status = asked.await??;
        ensure!(status == 200 || status == 503, "{status}");
    }
    let (sessions, tenants) = (["sessions"], ["tenants"]);
    let (sessions, tenants) = tokio::join!(json_of(any, &sessions), json_of(any, &tenants));
    let (sessions, tenants) = (sessions?, tenants?);
    ensure!(list(&sessions, "sessions")?.len() == 1, "{sessions}");
    ensure!(tenants["tenants"][0]["sessions"] == 1, "{tenants}");
    let gone = json_of(any, &["end-session", "0123456789abcdef", "--tenant", "demo"]).await;
    frozen.signal(Signal::CONT)?;
    // Its lease may have ended meanwhile: then it is no node of the cluster.
    let unasked = list(&sessions, "unasked")?;
    let is_frozen = |one: &Value| one["node"] == "three";
    let is_named = unasked.iter().any(is_frozen);
    let lacks_its_figures = !list(&tenants["tenants"][0], "nodes")?.iter().any(is_frozen);
    ensure!(lacks_its_figures, "{tenants}");
    ensure!(list(&tenants, "unasked")?.iter().any(is_frozen) == is_named, "{tenants} {sessions}");
    let told = gone.unwrap_err().to_string();
    ensure!(is_named || told.contains("404"), "{sessions}");
    ensure!(!is_named || told.contains("three") || told.contains("404"), "{told}");
    // The answer takes microseconds; the machine is busy with other tests.
    ensure!(slowest < Duration::from_secs(2), "a probe took {slowest:?}");
    Ok(())
}
