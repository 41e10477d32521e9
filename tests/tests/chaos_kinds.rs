//! Faults in configurations that the other tests of chaos do not have: servers that are processes,
//! links with TLS, batches, and HTTP+SSE.
//!
//! `SEED=… cargo test -p tests --test chaos_kinds` repeats the random choices.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::chaos::{Chaos, at, turn};
use tests::mcp::is_response;
use tests::nodes::port;
use tests::recorded::{HELD, Recorded, call, shortened, text};
use tests::redis::Redis;
use tests::sse::Events;
use tests::{Node, Setup};
use tokio::time::{sleep, timeout};

/// Kills a node and starts it again, then stops one for a moment.
async fn strike(mut chaos: Chaos) -> Result<()> {
    let node = chaos.any();
    chaos.nodes.kill(node)?;
    chaos.wait(100, 1_000).await;
    chaos.nodes.restart(node).await?;
    chaos.wait(300, 800).await;
    let node = chaos.any();
    chaos.nodes.freeze(node)?;
    chaos.wait(300, 2_500).await;
    chaos.nodes.thaw(node)?;
    chaos.wait(300, 800).await;
    chaos.judge().await?.in_time(500, 5_000)
}

/// When a node ends, the guard ends each of its servers, and the next owner starts another.
#[tokio::test]
async fn nodes_with_servers_that_are_processes_are_killed_and_stopped() -> Result<()> {
    let _turn = turn().await;
    let redis = Redis::start_durable()?;
    let setup = || -> Result<Setup> {
        let listen = format!("127.0.0.1:{}", port()?);
        Ok(Setup::fixture().with("store.url", redis.url()).with("cluster.listen", listen))
    };
    strike(Chaos::start_with(vec![setup()?, setup()?, setup()?]).await?).await
}

/// Writes a certificate authority (`ca`), and a certificate of a node (`cert`, `key`).
fn certify(dir: &Path) -> Result<()> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec!["127.0.0.1".into()])?;
    params.distinguished_name.push(DnType::CommonName, "node");
    std::fs::write(dir.join("ca"), issuer.pem())?;
    std::fs::write(dir.join("cert"), params.signed_by(&key, &issuer)?.pem())?;
    Ok(std::fs::write(dir.join("key"), key.serialize_pem())?)
}

#[tokio::test]
async fn nodes_with_links_over_tls_are_killed_and_stopped() -> Result<()> {
    let _turn = turn().await;
    let (redis, dir) = (Redis::start_durable()?, tempfile::tempdir()?);
    certify(dir.path())?;
    let file = |name: &str| dir.path().join(name).display().to_string();
    let setup = || -> Result<Setup> {
        Ok(at(port()?, &redis.url())
            .with("cluster.tls.ca_file", file("ca"))
            .with("cluster.tls.cert_file", file("cert"))
            .with("cluster.tls.key_file", file("key")))
    };
    strike(Chaos::start_with(vec![setup()?, setup()?, setup()?]).await?).await
}

/// The responses of a batch, by their ids, as text.
async fn responses(response: reqwest::Response) -> Result<BTreeMap<String, Vec<Value>>> {
    let kind = response.headers().get("content-type").context("no type")?.to_str()?.to_owned();
    let mut all = Vec::new();
    if kind.starts_with("application/json") {
        match response.json::<Value>().await? {
            Value::Array(several) => all.extend(several),
            one => all.push(one),
        }
    } else {
        let mut events = Events::of(response)?;
        while let Some((_, message)) = events.message().await? {
            match message {
                Value::Array(several) => all.extend(several),
                one => all.push(one),
            }
        }
    }
    let mut by_id = BTreeMap::<_, Vec<_>>::new();
    for message in all.into_iter().filter(is_response) {
        by_id.entry(message["id"].to_string()).or_default().push(message);
    }
    Ok(by_id)
}

/// A batch, posted to a node that is not the owner, while the owner is first stopped for a moment
/// and then killed. Each request has one response, and a result if one is promised.
#[tokio::test]
async fn every_request_of_a_batch_is_answered_once_whatever_becomes_of_its_owner() -> Result<()> {
    let _turn = turn().await;
    let mut cluster = Recorded::start([Setup::fixture(), Setup::fixture()]).await?;
    let mut client = cluster.open(0, "2025-03-26").await?;
    client.url = cluster.node(1)?.demo();
    client.is_well().await?;
    for kills in [false, true] {
        let tools = ["rh_record", "rh_record_again", "rh_record_again", "rh_record"];
        let keys: Vec<_> = (0..tools.len()).map(|number| format!("{kills}-{number}")).collect();
        let arguments = json!({ "n": 3, "interval_ms": 100, "ms": 300 });
        let calls = std::iter::zip(tools, &keys)
            .map(|(tool, key)| call(&client, tool, arguments.clone(), key));
        let calls: Vec<_> = calls.collect();
        let posted = client.http(Method::POST).json(&calls).send();
        let posting = tokio::spawn(timeout(HELD, async { responses(posted.await?).await }));
        sleep(Duration::from_millis(250)).await;
        if kills {
            cluster.kill(0)?;
        } else {
            cluster.node(0)?.signal(Signal::STOP)?;
            sleep(Duration::from_millis(1_500)).await;
            cluster.node(0)?.signal(Signal::CONT)?;
        }
        let responses = posting.await?.context("the batch is not answered")??;
        for ((tool, key), call) in std::iter::zip(std::iter::zip(tools, &keys), &calls) {
            let of = responses.get(&call["id"].to_string()).context("no response")?;
            ensure!(of.len() == 1, "{key}: {} responses", of.len());
            let runs = cluster.runs(key)?;
            if tool == "rh_record" {
                ensure!(runs <= 1, "{key} ran {runs} times");
            }
            if tool == "rh_record_again" || !kills {
                ensure!(text(&of[0])? == key, "{key}: {}", shortened(&of[0]));
            }
            if !kills {
                ensure!(runs == 1, "{key} ran {runs} times");
            }
        }
    }
    Ok(())
}

/// A client of 2024-11-05.
struct Old {
    http: reqwest::Client,
    stream: Events,
    endpoint: String,
}

impl Old {
    async fn open(node: &Node) -> Result<Self> {
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).build()?;
        let get = http.get(format!("{}/demo/sse", node.base)).header("accept", "text/event-stream");
        let mut stream = Events::of(get.send().await?)?;
        let endpoint = stream.next().await?.context("nothing came")?.data.context("no endpoint")?;
        let endpoint = format!("{}{endpoint}", node.base);
        let mut old = Self { http, stream, endpoint };
        let params = json!({ "protocolVersion": "2024-11-05", "capabilities": {},
            "clientInfo": { "name": "old", "version": "1" } });
        old.post(&json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params }))
            .await?;
        ensure!(old.stream.message().await?.context("the stream ended")?.1["result"].is_object());
        old.post(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await?;
        Ok(old)
    }

    async fn post(&mut self, message: &Value) -> Result<()> {
        let status = self.http.post(&self.endpoint).json(message).send().await?.status();
        ensure!(status == 202, "{status}");
        Ok(())
    }

    /// A counting call up to its response: progress in order, and the result.
    async fn count(&mut self, key: &str) -> Result<()> {
        let arguments = json!({ "key": key, "n": 5, "interval_ms": 20 });
        let params = json!({ "name": "rh_record", "arguments": arguments, "_meta": { "progressToken": key } });
        let call = json!({ "jsonrpc": "2.0", "id": key, "method": "tools/call", "params": params });
        self.post(&call).await?;
        let mut told = Vec::new();
        loop {
            let (_, message) = self.stream.message().await?.context("the stream ended")?;
            if is_response(&message) {
                ensure!(message["id"] == key && text(&message)? == key, "{message}");
                ensure!(told == [1.0, 2.0, 3.0, 4.0, 5.0], "{key}: {told:?}");
                return Ok(());
            }
            told.extend(message["params"]["progress"].as_f64());
        }
    }
}

/// The session is at the node of its connection. The death of another node, a Redis that does not
/// answer, and a short stop of its own node have no effect on it.
#[tokio::test]
async fn a_client_of_2024_notices_nothing_of_what_strikes_others() -> Result<()> {
    let _turn = turn().await;
    let mut cluster = Recorded::start([Setup::fixture(), Setup::fixture()]).await?;
    let mut old = Old::open(cluster.node(0)?).await?;
    for number in 0..24 {
        match number {
            4 => cluster.node(0)?.signal(Signal::STOP)?,
            8 => cluster.redis.freeze()?,
            12 => cluster.redis.thaw()?,
            16 => cluster.kill(1)?,
            20 => cluster.redis.restart()?,
            _ => {}
        }
        let key = format!("old-{number}");
        let counting = timeout(HELD, old.count(&key));
        let going_on = async {
            if number == 4 {
                sleep(Duration::from_millis(1_500)).await;
                cluster.node(0)?.signal(Signal::CONT)?;
            }
            anyhow::Ok(())
        };
        let (counted, going_on) = tokio::join!(counting, going_on);
        going_on?;
        counted.with_context(|| key.clone())??;
        ensure!(cluster.runs(&key)? == 1, "{key} ran {} times", cluster.runs(&key)?);
    }
    Ok(())
}
