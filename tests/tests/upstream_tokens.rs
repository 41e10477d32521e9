//! Users' tokens for servers that are reached over HTTP: a node exchanges the token of a user at a real
//! authorization server, and a real server keeps what it gets.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::audit_log::{Log, is_begin};
use tests::headers_server::Upstream;
use tests::issuers::Issuer;
use tests::mcp::{Client, final_response};
use tests::recorded::reaches;
use tests::redis::Redis;
use tests::sse::PATIENCE;
use tests::{Node, Setup, check, tools};
use tokio::time::{sleep, timeout};

const NEWEST: &str = "2025-11-25";

/// A node, or a cluster, whose users have tokens of this issuer, in front of a server that needs its own.
struct Bench {
    issuer: Issuer,
    upstream: Upstream,
    secrets: tempfile::TempDir,
    public: String,
}

impl Bench {
    async fn start(lasts_secs: u64) -> Result<Self> {
        let secrets = tempfile::tempdir()?;
        std::fs::create_dir(secrets.path().join("demo"))?;
        let file = secrets.path().join("demo/client");
        std::fs::write(&file, "s+ecret")?;
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600))?;
        let (issuer, upstream) =
            (Issuer::provider("mcp", lasts_secs).await?, Upstream::start().await?);
        Ok(Self { issuer, upstream, secrets, public: "https://mcp.example.com".to_owned() })
    }

    fn setup(&self, more: &str) -> Setup {
        Setup::config(self.config(&self.upstream, more))
    }

    /// The settings of a node whose server is this one.
    fn config(&self, upstream: &Upstream, more: &str) -> String {
        format!(
            "front.public_url = '{public}'\nfront.allowed_hosts = ['127.0.0.1']\n\
             node.secrets_dir = '{secrets}'\n[tenants.demo]\nauth = 'oauth'\n[tenants.demo.oauth]\n\
             issuer = '{issuer}'\n[tenants.demo.backends.main]\nkind = 'http'\nurl = '{url}/mcp'\n\
             allow_networks = ['127.0.0.0/8']\n[tenants.demo.backends.main.credential]\n\
             grant = 'token_exchange'\nissuer = '{issuer}'\nclient_id = 'node'\n\
             client_secret = '${{file:client}}'\n{more}",
            public = self.public,
            secrets = self.secrets.path().display(),
            issuer = self.issuer.url,
            url = upstream.url,
        )
    }

    /// A user's token for the endpoint.
    async fn token(&self, user: &str) -> Result<String> {
        self.issuer.mint(user, &format!("{}/demo/mcp", self.public)).await
    }

    /// Three nodes of a cluster.
    async fn cluster(&self, redis: &Redis, more: &str) -> Result<[Node; 3]> {
        let setup = self.setup(more);
        let setup = setup.with("store.url", redis.url()).with("cluster.listen", "127.0.0.1:0");
        let setup = setup.with("cluster.secret", "known to these three nodes, no secret");
        let nodes = [Node::start(&setup)?, Node::start(&setup)?, Node::start(&setup)?];
        for node in &nodes {
            reaches(node, "roundhouse_stabilising", |value| value == 0.0).await?;
        }
        Ok(nodes)
    }

    /// No request to the server had a token that is not one of its own, and none had one of these.
    async fn check_seen(&self, users: &[&String]) -> Result<()> {
        let all = self.upstream.seen().await?;
        ensure!(!all.is_empty(), "nothing was sent");
        for request in &all {
            let headers = request["headers"].as_str().context("no headers")?;
            for user in users {
                let (_, signature) = user.rsplit_once('.').context("no JWT")?;
                ensure!(
                    !headers.contains(signature),
                    "a user's own token was passed on: {request}"
                );
            }
            ensure!(request["aud"] == format!("{}/mcp", self.upstream.url), "{request}");
        }
        Ok(())
    }

    async fn exchanges(&self) -> Result<usize> {
        let seen = self.issuer.seen().await?;
        Ok(seen["exchanges"].as_array().context("no exchanges")?.len())
    }
}

async fn opened(url: &str, token: &str) -> Result<Client> {
    Client::new(url.to_owned(), NEWEST).with_key(token).opened(json!({})).await
}

#[tokio::test]
async fn each_user_has_a_token_of_their_own_upstream_and_no_own_token_is_passed_on() -> Result<()> {
    let bench = Bench::start(600).await?;
    let node = Node::start(&bench.setup(""))?;
    let (ada, bob) = (bench.token("ada").await?, bench.token("bob").await?);
    let clients = [opened(&node.demo(), &ada).await?, opened(&node.demo(), &bob).await?];
    for _ in 0..3 {
        for (client, user) in clients.iter().zip(["ada", "bob"]) {
            let who = Upstream::whoami(client).await?;
            ensure!(who["sub"] == user, "{who}");
        }
    }
    ensure!(bench.exchanges().await? == 2, "a token was exchanged more than once");
    // Another session of the same user uses the same token.
    Upstream::whoami(&opened(&node.demo(), &ada).await?).await?;
    ensure!(bench.exchanges().await? == 2, "a token was exchanged more than once");
    for client in &clients {
        check::status(&client.delete().await?, 204)?;
    }
    let until = Instant::now() + PATIENCE;
    while bench.upstream.seen().await?.iter().filter(|one| one["what"] == "DELETE").count() < 2 {
        ensure!(Instant::now() < until, "the sessions are not ended");
        sleep(Duration::from_millis(20)).await;
    }
    bench.check_seen(&[&ada, &bob]).await?;
    let output = node.output();
    ensure!(!output.contains("eyJ"), "a token is in the log: {output}");
    let metric =
        "roundhouse_upstream_token_requests_total{grant=\"token_exchange\",outcome=\"issued\"}";
    ensure!(node.metric(metric).await? == Some(2.0));
    Ok(())
}

#[tokio::test]
async fn each_request_has_the_token_of_its_own_credential() -> Result<()> {
    let bench = Bench::start(600).await?;
    let node = Node::start(&bench.setup(""))?;
    let first = bench.token("ada").await?;
    let client = opened(&node.demo(), &first).await?;
    let before = Upstream::whoami(&client).await?;
    let second = bench.token("ada").await?;
    let renewed = client.twin().with_key(&second);
    let after = Upstream::whoami(&renewed).await?;
    ensure!(before["jti"] != after["jti"] && after["sub"] == "ada", "{before} {after}");
    ensure!(Upstream::whoami(&client).await?["jti"] == before["jti"]);
    ensure!(bench.exchanges().await? == 2);
    bench.check_seen(&[&first, &second]).await
}

#[tokio::test]
async fn a_refused_exchange_is_an_error_of_the_call() -> Result<()> {
    let bench = Bench::start(600).await?;
    let node = Node::start(&bench.setup(""))?;
    let token = bench.token("ada").await?;
    let client = opened(&node.demo(), &token).await?;
    Upstream::whoami(&client).await?;
    bench.issuer.exchange(json!({ "refusal": "no" })).await?;
    let other = client.twin().with_key(&bench.token("ada").await?);
    let answer = other.request("tools/call", json!({ "name": "whoami" })).await?;
    let text = answer["error"]["message"].as_str().unwrap_or_default();
    ensure!(
        text.contains("refused to exchange your token") && text.contains("invalid_grant"),
        "{answer}"
    );
    // With the former token the session goes on.
    Upstream::whoami(&client).await?;
    let unknown = Client::new(node.demo(), NEWEST).with_key(&bench.token("bob").await?);
    let initialize = unknown.message("initialize", unknown.introduction(json!({})));
    let response = unknown.send(initialize).await?;
    check::status(&response, 200)?;
    let answer: Value = response.json().await?;
    ensure!(answer["error"]["message"].to_string().contains("invalid_grant"), "{answer}");
    Ok(())
}

#[tokio::test]
async fn a_token_that_the_server_refuses_is_exchanged_once_more() -> Result<()> {
    let bench = Bench::start(600).await?;
    let node = Node::start(&bench.setup(""))?;
    let token = bench.token("ada").await?;
    let client = opened(&node.demo(), &token).await?;
    let before = Upstream::whoami(&client).await?;
    bench.upstream.revoke().await?;
    let after = Upstream::whoami(&client).await?;
    ensure!(before["jti"] != after["jti"], "{after}");
    // The third one in a row is not asked for at once.
    bench.upstream.revoke().await?;
    let response = client.send(client.message("tools/call", json!({ "name": "whoami" }))).await?;
    check::status(&response, 200)?;
    let answer: Value = response.json().await?;
    ensure!(answer["error"]["message"].to_string().contains("HTTP 401"), "{answer}");
    ensure!(bench.exchanges().await? == 2);
    bench.check_seen(&[&token]).await
}

#[tokio::test]
async fn exchanged_tokens_are_renewed_before_they_end() -> Result<()> {
    let bench = Bench::start(600).await?;
    bench.issuer.exchange(json!({ "secs": 4 })).await?;
    let node = Node::start(&bench.setup(""))?;
    let client = opened(&node.demo(), &bench.token("ada").await?).await?;
    let until = Instant::now() + Duration::from_secs(9);
    while Instant::now() < until {
        Upstream::whoami(&client).await?;
        sleep(Duration::from_millis(200)).await;
    }
    let exchanges = bench.exchanges().await?;
    ensure!((3..=6).contains(&exchanges), "{exchanges}");
    Ok(())
}

#[tokio::test]
async fn an_answer_to_the_server_has_a_token_as_well() -> Result<()> {
    let bench = Bench::start(600).await?;
    let node = Node::start(&bench.setup(""))?;
    let token = bench.token("ada").await?;
    let client = Client::new(node.demo(), NEWEST).with_key(&token);
    let client = client.opened(json!({ "elicitation": {} })).await?;
    let mut stream = client.stream(client.message("tools/call", json!({ "name": "ask" }))).await?;
    let (_, asked) = stream.message().await?.context("the stream ended")?;
    ensure!(asked["method"] == "elicitation/create", "{asked}");
    let answer = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": { "action": "decline" } });
    check::accepted(client.send(answer).await?).await?;
    let (_, result) = stream.message().await?.context("the stream ended")?;
    ensure!(result["result"]["content"][0]["text"] == "decline", "{result}");
    bench.check_seen(&[&token]).await
}

// holds: SES-10
#[tokio::test]
async fn only_exchanged_tokens_reach_another_node_and_redis() -> Result<()> {
    let (bench, redis) = (Bench::start(600).await?, Redis::start()?);
    let mut nodes = bench.cluster(&redis, "").await?;
    let token = bench.token("ada").await?;
    let mut client = opened(&nodes[0].demo(), &token).await?;
    Upstream::whoami(&client).await?;
    client.url = nodes[1].demo();
    ensure!(Upstream::whoami(&client).await?["sub"] == "ada");
    // The owner is lost: the session goes on with the token of the next request.
    client.url = nodes[2].demo();
    nodes[0].kill()?;
    let until = Instant::now() + PATIENCE;
    loop {
        let call = client.message("tools/call", json!({ "name": "whoami" }));
        let answer = final_response(client.send(call).await?).await?;
        if answer.get("result").is_some() {
            break;
        }
        ensure!(Instant::now() < until, "{answer}");
    }
    bench.check_seen(&[&token]).await?;
    redis.ask("CONFIG SET rdbcompression no")?;
    redis.ask("SAVE")?;
    let folder = redis.told("CONFIG GET dir")?.pop().context("no folder")?;
    let file = std::path::Path::new(&folder).join("dump.rdb");
    let kept = std::fs::read(&file)?;
    std::fs::remove_file(file)?;
    let has = |text: &str| kept.windows(text.len()).any(|window| window == text.as_bytes());
    ensure!(has("clientInfo"), "the session is not in Redis");
    ensure!(!has("eyJ"), "a token is in Redis");
    Ok(())
}

#[tokio::test]
async fn a_client_with_a_key_gets_a_clear_error() -> Result<()> {
    let bench = Bench::start(600).await?;
    let key = format!("rhk_{}", "1".repeat(64));
    let keys = format!("[tenants.demo.keys.ada]\nsha256 = '{}'\n", check::sha256(&key));
    let node = Node::start(&bench.setup(&keys).with("tenants.demo.auth", "keys,oauth"))?;
    let client = Client::new(node.demo(), NEWEST).with_key(&key);
    let initialize = client.message("initialize", client.introduction(json!({})));
    let response = client.send(initialize).await?;
    check::status(&response, 200)?;
    let answer: Value = response.json().await?;
    let text = answer["error"]["message"].as_str().unwrap_or_default();
    ensure!(text.contains("needs a token of each user") && text.contains("OAuth"), "{answer}");
    ensure!(bench.upstream.seen().await?.is_empty() && bench.exchanges().await? == 0);
    Ok(())
}

#[tokio::test]
async fn a_token_goes_only_to_the_server_that_it_was_made_for() -> Result<()> {
    let (bench, second) = (Bench::start(600).await?, Upstream::start().await?);
    let node = Node::start(&bench.setup("").with("node.reload_secs", 1))?;
    let token = bench.token("ada").await?;
    let client = opened(&node.demo(), &token).await?;
    let _stream = client.listen().await?;
    Upstream::whoami(&client).await?;
    let (file, new) = (node.config_file(), node.config_file().with_extension("new"));
    std::fs::write(&new, bench.config(&second, ""))?;
    std::fs::rename(&new, &file)?;
    let until = Instant::now() + PATIENCE;
    // New sessions have the new server.
    while second.seen().await?.is_empty() {
        ensure!(Instant::now() < until, "{}", node.output());
        opened(&node.demo(), &token).await?.delete().await?;
        sleep(Duration::from_millis(100)).await;
    }
    // The open one goes on there as well, after an error at most.
    loop {
        let answer = client.request("tools/call", json!({ "name": "whoami" })).await?;
        if answer["result"]["content"][0]["text"].to_string().contains(&second.url) {
            break;
        }
        ensure!(Instant::now() < until, "{answer}");
    }
    for (upstream, other) in [(&bench.upstream, &second), (&second, &bench.upstream)] {
        for request in upstream.seen().await? {
            let aud = request["aud"].as_str().unwrap_or_default();
            ensure!(!aud.starts_with(&other.url), "a token for another server was sent: {request}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_token_that_is_refused_at_another_node_is_exchanged_for_the_next_request() -> Result<()> {
    let (bench, redis) = (Bench::start(600).await?, Redis::start()?);
    let nodes = bench.cluster(&redis, "").await?;
    let token = bench.token("ada").await?;
    let mut client = opened(&nodes[0].demo(), &token).await?;
    client.url = nodes[1].demo();
    let before = Upstream::whoami(&client).await?;
    bench.upstream.revoke().await?;
    let answer = client.request("tools/call", json!({ "name": "whoami" })).await?;
    ensure!(answer["error"]["message"].to_string().contains("HTTP 401"), "{answer}");
    let after = Upstream::whoami(&client).await?;
    ensure!(before["jti"] != after["jti"] && after["sub"] == "ada", "{after}");
    bench.check_seen(&[&token]).await
}

#[tokio::test]
async fn a_client_with_a_key_gets_the_servers_that_need_no_token_of_users() -> Result<()> {
    let (bench, redis) = (Bench::start(600).await?, Redis::start()?);
    let key = format!("rhk_{}", "1".repeat(64));
    let more = format!(
        "[tenants.demo.keys.ada]\nsha256 = '{}'\n[tenants.demo.backends.own]\nkind = 'native'\n\
         name = 'everything'\nprefix = 'own'\n",
        check::sha256(&key)
    );
    let config = bench.config(&bench.upstream, &more);
    let config = config.replace("auth = 'oauth'", "auth = ['keys', 'oauth']");
    let config = config.replace("kind = 'http'", "kind = 'http'\nprefix = 'far'");
    let setup = Setup::config(config).with("store.url", redis.url());
    let setup = setup.with("cluster.listen", "127.0.0.1:0");
    let setup = setup.with("cluster.secret", "known to these two nodes, and no secret");
    let nodes = [Node::start(&setup)?, Node::start(&setup)?];
    for node in &nodes {
        reaches(node, "roundhouse_stabilising", |value| value == 0.0).await?;
    }
    let mut client = opened(&nodes[0].demo(), &key).await?;
    for node in &nodes {
        client.url = node.demo();
        let begin = Instant::now();
        let listed = client.request("tools/list", json!({})).await?;
        let tools = listed["result"]["tools"].as_array().context("no tools")?;
        ensure!(tools.iter().any(|tool| tool["name"] == "own__rh_echo"), "{listed}");
        ensure!(!listed.to_string().contains("far__whoami"), "{listed}");
        client.tool("own__rh_echo", json!({ "text": "x" })).await?;
        let answer = client.request("tools/call", json!({ "name": "far__whoami" })).await?;
        let text = answer.to_string();
        ensure!(text.contains("needs a token of each user") && text.contains("OAuth"), "{text}");
        ensure!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    }
    ensure!(bench.upstream.seen().await?.is_empty() && bench.exchanges().await? == 0);
    // A client with a token gets both.
    let ada = opened(&nodes[0].demo(), &bench.token("ada").await?).await?;
    let listed = ada.request("tools/list", json!({})).await?;
    ensure!(listed.to_string().contains("far__whoami"), "{listed}");
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_during_the_exchange_has_dispatched_nothing() -> Result<()> {
    let (bench, log) = (Bench::start(600).await?, Log::new()?);
    let node = Node::start(&log.of(bench.setup("")))?;
    let client = opened(&node.demo(), &bench.token("ada").await?).await?;
    bench.issuer.exchange(json!({ "pause_ms": 4_000 })).await?;
    let other = client.twin().with_key(&bench.token("ada").await?);
    let call = other.ask(other.call("whoami", json!({})));
    ensure!(timeout(Duration::from_millis(500), call).await.is_err(), "the exchange took no time");
    let begin = log.one(|record| is_begin(record, "whoami")).await?;
    let end = log.end_of(&begin).await?;
    ensure!(end["outcome"] == "not_dispatched", "{end}");
    // A refused exchange is answered.
    bench.issuer.exchange(json!({ "refusal": "no" })).await?;
    let third = client.twin().with_key(&bench.token("ada").await?);
    third.request("tools/call", json!({ "name": "whoami", "arguments": { "a": 1 } })).await?;
    log.one(|record| record["kind"] == "end" && record["outcome"] == "error").await?;
    Ok(())
}

#[tokio::test]
async fn a_client_that_waits_for_its_first_token_counts_as_a_session() -> Result<()> {
    let (bench, log) = (Bench::start(600).await?, Log::new()?);
    let limits = "[tenants.demo.limits]\ncluster_sessions_max = 1\n";
    let node = Node::start(&log.of(bench.setup(limits)))?;
    bench.issuer.exchange(json!({ "pause_ms": 3_000 })).await?;
    let (url, first) = (node.demo(), bench.token("ada").await?);
    let first = tokio::spawn(async move { opened(&url, &first).await });
    log.one(|record| record["kind"] == "begin" && record["method"] == "initialize").await?;
    let second = Client::new(node.demo(), NEWEST).with_key(&bench.token("bob").await?);
    // What the node has is counted anew every 100 ms.
    for _ in 0..8 {
        let initialize = second.message("initialize", second.introduction(json!({})));
        let answer = timeout(Duration::from_millis(1_500), second.send(initialize)).await;
        check::status(&answer.context("another session is opened")??, 429)?;
        sleep(Duration::from_millis(100)).await;
    }
    check::status(&first.await??.delete().await?, 204)?;
    Ok(())
}

#[tokio::test]
async fn exchanged_tokens_count_for_their_tenant() -> Result<()> {
    let bench = Bench::start(600).await?;
    let node = Node::start(&bench.setup(""))?;
    let held = "roundhouse_tenant_session_bytes{tenant=\"demo\"}";
    let client = opened(&node.demo(), &bench.token("ada").await?).await?;
    check::status(&client.delete().await?, 204)?;
    // The session is gone, its token is kept.
    reaches(&node, held, |bytes| bytes > 500.0 && bytes < 4_000.0).await?;
    Ok(())
}

#[tokio::test]
async fn a_check_names_the_servers_that_need_a_user_and_starts_the_others() -> Result<()> {
    let bench = Bench::start(600).await?;
    let own = "[tenants.demo.backends.own]\nkind = 'native'\nname = 'everything'\nprefix = 'own'\n";
    for (more, started) in [("", false), (own, true)] {
        let file = tempfile::NamedTempFile::new()?;
        let config = bench.config(&bench.upstream, more);
        let config = config.replace("kind = 'http'", "kind = 'http'\nprefix = 'far'");
        std::fs::write(file.path(), config)?;
        std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o600))?;
        let mut command = std::process::Command::new(tools::built("roundhouse"));
        let output = command.args(["check", "--start"]).arg(file.path()).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(text.contains("backend main: not started: it needs a token of a user"), "{text}");
        ensure!(text.contains("own__rh_echo") == started, "{text}");
    }
    ensure!(bench.upstream.seen().await?.is_empty());
    Ok(())
}
