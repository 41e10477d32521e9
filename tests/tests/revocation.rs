//! An operator revokes a client: its sessions end at every node, and its credentials do not count.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use reqwest::{Method, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;
use tests::issuers::Issuer;
use tests::mcp::Client;
use tests::recorded::{Recorded, reaches};
use tests::redis::Redis;
use tests::sse::Events;
use tests::{Node, Setup, tools};
use tokio::time::{sleep, timeout};

#[path = "revocation/stores.rs"]
mod stores;

const NEWEST: &str = "2025-11-25";

/// Within this time a revocation counts at each node.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The longest that a test waits for what comes by itself.
const PATIENCE: Duration = Duration::from_secs(30);

const AUDIENCE: &str = "the-endpoint";

const NATIVE: &str = "kind = 'native'\nname = 'everything'\n";

/// The settings of a tenant `demo` with the keys `ada` and `bob`, and an issuer if there is one.
struct Endpoint {
    text: String,
    token: NamedTempFile,
}

impl Endpoint {
    fn new(issuer: Option<&Issuer>, backend: &str) -> Result<Self> {
        let mut token = NamedTempFile::new()?;
        token.write_all(b"a-token-for-operators")?;
        let (auth, oauth) = match issuer {
            None => ("keys", String::new()),
            Some(issuer) => (
                "keys, oauth",
                format!(
                    "[tenants.demo.oauth]\nissuer = '{}'\naudience = ['{AUDIENCE}']\n\
                     clock_skew_secs = 0\n",
                    issuer.url
                ),
            ),
        };
        let key = |name: &str| {
            let digest = Sha256::digest(format!("rhk_{name}").as_bytes());
            let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("[tenants.demo.keys.{name}]\nsha256 = '{hex}'\n")
        };
        let text = format!(
            "front.public_url = 'http://127.0.0.1'\n[tenants.demo]\nauth = '{auth}'\n{}{}{oauth}\
             [tenants.demo.backends.main]\n{backend}",
            key("ada"),
            key("bob"),
        );
        Ok(Self { text, token })
    }

    fn setup(&self) -> Setup {
        Setup::config(&self.text).with("admin.token_file", self.token.path().display())
    }

    async fn start(&self, nodes: usize) -> Result<Recorded> {
        Recorded::start((0..nodes).map(|_| self.setup())).await
    }

    /// Runs `roundhouse revoke` for the tenant at a node.
    async fn revoke(&self, node: &Node, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(tools::built("roundhouse"));
        command.args(["revoke", "--admin", &node.admin, "--token-file"]).arg(self.token.path());
        command.args(["--tenant", "demo"]).args(arguments);
        Ok(tokio::task::spawn_blocking(move || command.output()).await??)
    }

    /// As [`Self::revoke`]; it must succeed.
    async fn revoked(&self, node: &Node, arguments: &[&str]) -> Result<String> {
        let output = self.revoke(node, arguments).await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// The subject of the key `rhk_ada`.
const ADA: [&str; 2] = ["--subject", "ada"];

async fn opened(node: &Node, credential: &str) -> Result<Client> {
    Client::new(node.demo(), NEWEST).with_key(credential).opened(json!({})).await
}

/// The same session, by another node.
fn at(client: &Client, node: &Node) -> Client {
    let mut twin = client.twin();
    twin.url = node.demo();
    twin
}

async fn ping(client: &Client) -> Result<StatusCode> {
    Ok(client.send(client.message("ping", json!({}))).await?.status())
}

/// The answer to an `initialize` with this credential.
async fn initialize(node: &Node, credential: &str) -> Result<StatusCode> {
    let client = Client::new(node.demo(), NEWEST).with_key(credential);
    let message = client.message("initialize", client.introduction(json!({})));
    Ok(client.send(message).await?.status())
}

/// Waits until a credential is refused at a node, and returns how long that took. Sends what no session
/// and no store is asked for.
async fn refused_after(node: &Node, credential: &str, began: Instant) -> Result<Duration> {
    let client = Client::new(node.demo(), NEWEST).with_key(credential);
    loop {
        let sent = client.http(Method::POST).header("Content-Type", "text/plain").body("x");
        match sent.send().await?.status().as_u16() {
            401 => return Ok(began.elapsed()),
            status => ensure!(status == 415, "{status}"),
        }
        ensure!(began.elapsed() < PATIENCE, "the credential still counts");
        sleep(Duration::from_millis(10)).await;
    }
}

async fn ended_after(stream: &mut Events, began: Instant) -> Result<Duration> {
    timeout(PATIENCE, stream.rest()).await.context("the stream is still open")??;
    Ok(began.elapsed())
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

async fn token(issuer: &Issuer, subject: &str, claims: Value) -> Result<String> {
    let mut wanted = json!({ "sub": subject, "aud": AUDIENCE });
    for (name, value) in claims.as_object().into_iter().flatten() {
        wanted[name] = value.clone();
    }
    issuer.token(json!({ "kid": "rs", "claims": wanted })).await
}

/// Waits until the clock shows another second: `iat` has no parts of one.
async fn next_second() {
    let second = now();
    while now() == second {
        sleep(Duration::from_millis(20)).await;
    }
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while !is_so().await? {
        ensure!(Instant::now() < until, "timed out: {what}");
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

// Measures: the one place that prints.
#[allow(clippy::print_stdout)]
fn show(what: &str, times: &[Duration]) {
    println!("{what}: {times:?}");
}

#[tokio::test]
async fn a_revocation_ends_all_sessions_of_a_client_at_all_nodes_within_a_second() -> Result<()> {
    let endpoint = Endpoint::new(None, NATIVE)?;
    let cluster = endpoint.start(3).await?;
    let node = |number: usize| cluster.node(number % 3);
    let mut sessions = Vec::new();
    let mut streams = Vec::new();
    for number in 0..3 {
        let ada = opened(node(number)?, "rhk_ada").await?;
        // The connection of the stream and the session are at different nodes.
        streams.push(at(&ada, node(number + 1)?).listen().await?);
        sessions.push(ada);
    }
    let bob = opened(node(1)?, "rhk_bob").await?;
    let mut bobs = at(&bob, node(2)?).listen().await?;

    let began = Instant::now();
    let told = endpoint.revoked(node(0)?, &ADA).await?;
    show("the command", &[began.elapsed()]);
    ensure!(told.contains("ada") && told.contains("key"), "{told}");
    let mut ends = Vec::new();
    for stream in &mut streams {
        ends.push(ended_after(stream, began).await?);
    }
    let mut refused = Vec::new();
    for number in 0..3 {
        refused.push(refused_after(node(number)?, "rhk_ada", began).await?);
    }
    show("streams closed", &ends);
    show("requests refused", &refused);
    ensure!(ends.iter().chain(&refused).all(|took| *took < AT_ONCE), "{ends:?} {refused:?}");
    for (number, ada) in sessions.iter().enumerate() {
        ensure!(ping(ada).await? == 401 && ping(&at(ada, node(number + 1)?)).await? == 401);
        ensure!(node(number)?.metric("roundhouse_revocations").await? == Some(1.0));
    }
    until("the sessions have ended", async || {
        let mut left = 0.0;
        for number in 0..3 {
            left += node(number)?.metric("roundhouse_sessions").await?.unwrap_or(0.0);
        }
        Ok(left == 1.0)
    })
    .await?;
    // The other client notices nothing.
    bob.is_well().await?;
    ensure!(bobs.is_quiet_for(Duration::from_millis(300)).await? && bobs.end.is_none());

    // What was taken back counts again, and the sessions stay ended.
    let listed = endpoint.revoked(node(2)?, &["--list"]).await?;
    ensure!(listed.contains(" ada ") && !listed.contains("bob"), "{listed}");
    endpoint.revoked(node(2)?, &[&ADA[..], &["--lift"]].concat()).await?;
    until("the key counts again", async || {
        Ok(initialize(node(0)?, "rhk_ada").await? == 200 && ping(&bob).await? == 200)
    })
    .await?;
    for (number, ada) in sessions.iter().enumerate() {
        until("the key counts at each node", async || {
            Ok(initialize(node(number)?, "rhk_ada").await? == 200)
        })
        .await?;
        ensure!(ping(ada).await? == 404, "a session has come back");
    }
    opened(node(1)?, "rhk_ada").await?.is_well().await
}

#[tokio::test]
async fn tokens_from_before_a_revocation_are_refused_and_newer_ones_count() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let endpoint = Endpoint::new(Some(&issuer), NATIVE)?;
    let cluster = endpoint.start(2).await?;
    let (one, other) = (cluster.node(0)?, cluster.node(1)?);
    let old = token(&issuer, "ada", json!({})).await?;
    let unseen = token(&issuer, "ada", json!({})).await?;
    let ageless = token(&issuer, "ada", json!({ "iat": null })).await?;
    let bobs = token(&issuer, "bob", json!({ "iat": null })).await?;
    let long = token(&issuer, "bob", json!({ "exp": now() + 40 * 24 * 3_600 })).await?;
    ensure!(initialize(one, &long).await? == 401, "it would outlive a revocation");
    let session = opened(one, &old).await?;
    for token in [&ageless, &bobs] {
        opened(other, token).await?.is_well().await?;
    }
    // With the issuer, keys of that subject are not meant.
    let told = endpoint.revoked(one, &["--subject", "ada", "--issuer", &issuer.url]).await?;
    ensure!(told.contains("token") && told.contains(&issuer.url), "{told}");
    let began = Instant::now();
    for node in [one, other] {
        for token in [&old, &unseen, &ageless] {
            refused_after(node, token, began).await?;
        }
        ensure!(initialize(node, &bobs).await? == 200);
        ensure!(initialize(node, "rhk_ada").await? == 200);
    }
    ensure!(began.elapsed() < 2 * AT_ONCE, "{:?}", began.elapsed());
    next_second().await;
    let new = token(&issuer, "ada", json!({})).await?;
    opened(other, &new).await?.is_well().await?;
    // The client signed in again, and its former session is unknown.
    let mut again = session.twin();
    again.key = Some(new.clone());
    ensure!(ping(&again).await? == 404 && ping(&at(&again, other)).await? == 404);
    ensure!(ping(&session).await? == 401, "the old token is replayed");
    opened(one, &new).await?.is_well().await
}

#[tokio::test]
async fn sessions_that_sleep_or_lost_their_node_do_not_come_back() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let endpoint = Endpoint::new(Some(&issuer), NATIVE)?;
    let mut cluster = endpoint.start(3).await?;
    let old = token(&issuer, "ada", json!({})).await?;
    let bobs = token(&issuer, "bob", json!({})).await?;
    let adas = opened(cluster.node(2)?, &old).await?;
    let bobs = opened(cluster.node(2)?, &bobs).await?;
    cluster.kill(2)?;
    cluster.deaths_noticed().await?;
    let (one, other) = (cluster.node(0)?, cluster.node(1)?);
    endpoint.revoked(one, &["--subject", "ada"]).await?;
    next_second().await;
    let new = token(&issuer, "ada", json!({})).await?;
    let mut again = at(&adas, other);
    again.key = Some(new.clone());
    // As an unknown id: at both nodes, and each time.
    for _ in 0..2 {
        let status = timeout(PATIENCE, ping(&again)).await??;
        ensure!(status == 404, "{status}");
        again.url = one.demo();
    }
    timeout(PATIENCE, at(&bobs, other).is_well()).await??;
    opened(other, &new).await?.is_well().await
}

/// A server that writes each message to a file, and answers no call.
const SERVER: &str = r#"
import json, sys
out = open(sys.argv[1], "a", buffering=1)
for line in sys.stdin:
    out.write(line)
    message = json.loads(line)
    if message.get("method") == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "s", "version": "1"}}
    elif message.get("method") == "tools/list":
        result = {"tools": [{"name": "wait", "inputSchema": {"type": "object"}}]}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
out.write("end of input\n")
"#;

fn holds(file: &Path, text: &str) -> Result<bool> {
    Ok(std::fs::read_to_string(file)?.contains(text))
}

#[tokio::test]
async fn running_calls_of_a_revoked_client_are_cancelled_at_the_server() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (server, told) = (folder.path().join("server.py"), folder.path().join("told"));
    std::fs::write(&server, SERVER)?;
    std::fs::write(&told, "")?;
    let backend = format!(
        "kind = 'stdio'\ncommand = 'python3'\nargs = ['{}', '{}']\nwrite_paths = ['{1}']\n",
        server.display(),
        told.display()
    );
    let endpoint = Endpoint::new(None, &backend)?;
    let cluster = endpoint.start(2).await?;
    let ada = opened(cluster.node(0)?, "rhk_ada").await?;
    let elsewhere = at(&ada, cluster.node(1)?);
    let call = elsewhere.call("wait", json!({}));
    let calling = tokio::spawn(async move { elsewhere.send(call).await?.text().await.context("") });
    until("the server has the call", async || holds(&told, "tools/call")).await?;
    endpoint.revoked(cluster.node(1)?, &ADA).await?;
    until("the call is cancelled", async || holds(&told, "notifications/cancelled")).await?;
    until("the server is left", async || holds(&told, "end of input")).await?;
    // The call ends, at either end of the connection.
    let _ended = timeout(PATIENCE, calling).await??;
    Ok(())
}

#[tokio::test]
async fn without_the_store_linked_nodes_learn_of_a_revocation_and_it_is_stored_later() -> Result<()>
{
    let endpoint = Endpoint::new(None, NATIVE)?;
    let cluster = endpoint.start(3).await?;
    cluster.redis.freeze()?;
    let began = Instant::now();
    let first = cluster.node(0)?;
    let revoking = endpoint.revoke(first, &ADA);
    let refusing = async {
        let mut all = Vec::new();
        for number in 0..3 {
            all.push(refused_after(cluster.node(number)?, "rhk_ada", began).await?);
        }
        anyhow::Ok(all)
    };
    let (output, refused) = tokio::join!(revoking, refusing);
    let (output, refused) = (output?, refused?);
    show("requests refused without the store", &refused);
    ensure!(refused.iter().all(|took| *took < AT_ONCE), "{refused:?}");
    let why = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1) && why.contains("not stored"), "{why}");
    ensure!(why.contains("at 2 others"), "{why}");
    cluster.redis.thaw()?;
    let key = "rh:{nodes}:revocations";
    until("the revocation is stored", async || {
        Ok(cluster.redis.ask(&format!("EXISTS {key}"))?.contains(":1"))
    })
    .await?;
    endpoint.revoked(first, &ADA).await?;
    // A failover may lose it. Each node that knows it writes it again.
    cluster.redis.ask(&format!("DEL {key}"))?;
    until("the revocation is stored again", async || {
        Ok(cluster.redis.ask(&format!("EXISTS {key}"))?.contains(":1"))
    })
    .await
}

#[tokio::test]
async fn a_node_without_a_link_learns_of_a_revocation_from_the_store() -> Result<()> {
    let endpoint = Endpoint::new(None, NATIVE)?;
    let (cluster, gates) = Recorded::start_apart(|| endpoint.setup()).await?;
    gates.iter().for_each(|gate| gate.close(false));
    for number in 0..2 {
        reaches(cluster.node(number)?, "roundhouse_peer_links", |links| links == 0.0).await?;
    }
    let ada = opened(cluster.node(1)?, "rhk_ada").await?;
    let mut stream = ada.listen().await?;
    let began = Instant::now();
    endpoint.revoked(cluster.node(0)?, &ADA).await?;
    let refused = refused_after(cluster.node(1)?, "rhk_ada", began).await?;
    let ended = ended_after(&mut stream, began).await?;
    show("refused and ended without a link", &[refused, ended]);
    ensure!(refused < AT_ONCE && ended < AT_ONCE, "{refused:?} {ended:?}");
    Ok(())
}

#[tokio::test]
async fn a_node_that_was_stopped_meanwhile_serves_no_revoked_client() -> Result<()> {
    let endpoint = Endpoint::new(None, NATIVE)?;
    let cluster = endpoint.start(3).await?;
    let (first, stopped) = (cluster.node(0)?, cluster.node(2)?);
    let ada = opened(stopped, "rhk_ada").await?;
    let bob = opened(stopped, "rhk_bob").await?;
    ada.is_well().await?;
    stopped.signal(Signal::STOP)?;
    endpoint.revoked(first, &ADA).await?;
    // Longer than its lease.
    sleep(Duration::from_secs(7)).await;
    // These wait in the node's sockets, before it knows anything.
    let (echo, new) = (ada.twin(), ada.twin());
    let call = tokio::spawn(async move {
        let call = echo.call("test_simple_text", json!({}));
        anyhow::Ok(echo.send(call).await?.text().await.unwrap_or_default())
    });
    let begin = tokio::spawn(async move {
        let new = Client::new(new.url.clone(), NEWEST).with_key("rhk_ada");
        new.opened(json!({})).await?.is_well().await
    });
    sleep(Duration::from_millis(300)).await;
    stopped.signal(Signal::CONT)?;
    let said = timeout(PATIENCE, call).await??;
    ensure!(!said.is_ok_and(|said| said.contains("\"result\"")), "it served a revoked client");
    ensure!(timeout(PATIENCE, begin).await??.is_err(), "it opened a session for a revoked client");
    refused_after(stopped, "rhk_ada", Instant::now()).await?;
    timeout(PATIENCE, at(&bob, first).is_well()).await?
}

#[tokio::test]
async fn a_node_reads_revocations_before_its_first_request() -> Result<()> {
    let endpoint = Endpoint::new(None, NATIVE)?;
    let mut cluster = endpoint.start(2).await?;
    endpoint.revoked(cluster.node(0)?, &ADA).await?;
    cluster.kill(0)?;
    cluster.kill(1)?;
    // On its own, and as a member of the cluster.
    let url = cluster.redis.url();
    let alone = endpoint.setup().with("store.url", &url);
    let member = alone
        .clone()
        .with("cluster.listen", format!("127.0.0.1:{}", tests::nodes::port()?))
        .with("cluster.secret", "known to these nodes alone, no secret");
    for setup in [alone, member] {
        let node = tokio::task::spawn_blocking(move || Node::start(&setup)).await??;
        ensure!(initialize(&node, "rhk_ada").await? == 401);
        ensure!(initialize(&node, "rhk_bob").await? == 200);
    }
    Ok(())
}

/// Whether a record in Redis has these bytes.
fn is_recorded(cluster: &Recorded, bytes: &[u8]) -> Result<bool> {
    has_value_with(&cluster.redis, bytes)
}

fn has_value_with(redis: &Redis, bytes: &[u8]) -> Result<bool> {
    let bytes: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    let script = "local n = 0 for _, k in ipairs(redis.call('KEYS', 'rh:*')) do if \
                  redis.call('TYPE', k).ok == 'string' and string.find(redis.call('GET', k), ARGV[1], 1, \
                  true) then n = n + 1 end end return n";
    let told = redis.ask(&format!("EVAL \"{script}\" 0 \"{bytes}\""))?;
    ensure!(told.starts_with(':'), "{told}");
    Ok(!told.starts_with(":0"))
}

#[tokio::test]
async fn redis_has_no_digest_of_a_client_that_could_be_guessed() -> Result<()> {
    let endpoint = Endpoint::new(None, NATIVE)?;
    let mut cluster = endpoint.start(2).await?;
    let ada = opened(cluster.node(1)?, "rhk_ada").await?;
    let principal = b"key:ada";
    ensure!(is_recorded(&cluster, b"demo")?, "no record was found");
    ensure!(!is_recorded(&cluster, &Sha256::digest(principal))?);
    ensure!(!is_recorded(&cluster, principal)?);
    // Another node recognises the digest.
    cluster.kill(1)?;
    cluster.deaths_noticed().await?;
    timeout(PATIENCE, at(&ada, cluster.node(0)?).is_well()).await?
}

#[tokio::test]
async fn only_an_operator_revokes_and_wrong_orders_say_what_to_write() -> Result<()> {
    let endpoint = Endpoint::new(None, NATIVE)?;
    let setup = endpoint.setup();
    let node = tokio::task::spawn_blocking(move || Node::start(&setup)).await??;
    let http = reqwest::Client::new();
    let url = format!("{}/revocations?tenant=demo&subject=ada", node.admin);
    ensure!(http.post(&url).send().await?.status() == 401);
    ensure!(http.get(&url).send().await?.status() == 401);
    ensure!(initialize(&node, "rhk_ada").await? == 200);
    for (arguments, word) in [
        (&["--subject", "carol", "--lift"][..], "no such client"),
        (&["--client", "app"], "no issuer"),
    ] {
        let output = endpoint.revoke(&node, arguments).await?;
        let told = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(1) && told.contains(word), "{told}");
    }
    // A name that no key has may be a typing error.
    let output = endpoint.revoke(&node, &["--subject", "adda"]).await?;
    let told = String::from_utf8(output.stderr)?;
    ensure!(output.status.success() && told.contains("no key in the settings"), "{told}");
    // A node alone keeps revocations in its memory.
    let output = endpoint.revoke(&node, &ADA).await?;
    ensure!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    ensure!(initialize(&node, "rhk_ada").await? == 401);
    let output = node.output();
    let is_action = |line: &&str| line.contains("operator action") && line.contains("revoke");
    let said = output.lines().rfind(is_action);
    ensure!(said.is_some_and(|line| !line.contains("ada")), "the log names the client");
    Ok(())
}
