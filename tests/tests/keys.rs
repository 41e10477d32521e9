//! Clients authenticate with keys, and a session belongs to the client that opened it.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use reqwest::{Method, StatusCode};
use rmcp::ServiceExt;
use rmcp::model::CallToolRequestParams;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::json;
use tests::mcp::Client;
use tests::recorded::Recorded;
use tests::sse::{End, Events};
use tests::{Node, Setup, check, tools};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::{sleep, timeout};

const NEWEST: &str = "2025-11-25";

/// How long a change of the settings file may take to be applied.
const APPLIED: Duration = Duration::from_secs(20);

/// A tenant `demo` without keys.
const NO_KEYS: &str = "\
[tenants.demo]
auth = 'keys'

[tenants.demo.backends.main]
kind = 'native'
name = 'everything'
";

/// The text of a settings file to which `roundhouse key` adds keys.
struct Keyed {
    folder: tempfile::TempDir,
}

impl Keyed {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("roundhouse.toml"), NO_KEYS)?;
        Ok(Self { folder })
    }

    /// Makes a key with these arguments, and returns it.
    fn key(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(tools::built("roundhouse"))
            .args(["key", "demo"])
            .args(arguments)
            .current_dir(self.folder.path())
            .output()?;
        let told = String::from_utf8(output.stderr)?;
        ensure!(output.status.success(), "{told}");
        let key = String::from_utf8(output.stdout)?.trim().to_owned();
        ensure!(key.starts_with("rhk_") && !told.contains(&key), "{told}");
        Ok(key)
    }

    fn text(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.folder.path().join("roundhouse.toml"))?)
    }

    fn start(&self) -> Result<Node> {
        Node::start(&Setup::config(self.text()?).with("log.level", "trace"))
    }
}

async fn opened(node: &Node, key: &str) -> Result<Client> {
    Client::new(node.demo(), NEWEST).with_key(key).opened(json!({})).await
}

/// The status of each kind of request in the session of another client.
async fn statuses(client: &Client, event: &str) -> Result<Vec<StatusCode>> {
    let ping = client.message("ping", json!({}));
    Ok(vec![
        client.send(ping).await?.status(),
        client.get(None).await?.status(),
        client.get(Some(event)).await?.status(),
        client.delete().await?.status(),
    ])
}

// holds: SEC-05
// holds: SEC-07
// holds: SEC-08
#[tokio::test]
async fn only_a_client_with_a_key_is_served() -> Result<()> {
    let settings = Keyed::new()?;
    let key = settings.key(&["ada"])?;
    let node = settings.start()?;
    let mut client = Client::new(node.demo(), NEWEST);
    let initialize = client.message("initialize", client.introduction(json!({})));

    let refused = client.send(initialize.clone()).await?;
    check::status(&refused, 401)?;
    ensure!(check::header(&refused, "www-authenticate")? == "Bearer realm=\"roundhouse\"");
    let told = refused.text().await?;
    ensure!(told.contains("`Authorization: Bearer KEY`"), "{told}");

    let wrong = format!("rhk_{}", "0".repeat(64));
    let other = Client::new(node.demo(), NEWEST).with_key(&wrong);
    let refused = other.http(Method::POST).header("Origin", "http://localhost:1");
    let refused = refused.json(&initialize).send().await?;
    check::status(&refused, 401)?;
    let challenge = check::header(&refused, "www-authenticate")?;
    ensure!(challenge.contains("error=\"invalid_token\""), "{challenge}");
    let exposed = check::header(&refused, "access-control-expose-headers")?;
    ensure!(exposed.contains("WWW-Authenticate"), "a page cannot read the challenge: {exposed}");

    // The key counts in the header alone, and in one header.
    client.url = format!("{}?access_token={key}", node.demo());
    check::status(&client.send(initialize.clone()).await?, 401)?;
    client.url = node.demo();
    for (header, status) in [
        (format!("Basic {key}"), 401),
        (key.clone(), 401),
        ("Bearer".to_owned(), 400),
        (format!("Bearer {key} {key}"), 400),
    ] {
        let sent = client.http(Method::POST).header("Authorization", &header);
        check::status(&sent.json(&initialize).send().await?, status).context(header)?;
    }
    let twice = client.http(Method::POST).bearer_auth(&key).bearer_auth(&wrong);
    check::status(&twice.json(&initialize).send().await?, 400)?;

    // A browser asks first, without a credential.
    let asked = client.http(Method::OPTIONS).header("Origin", "http://localhost:1");
    let asked = asked
        .header("Access-Control-Request-Method", "POST")
        .header("Access-Control-Request-Headers", "authorization");
    check::status(&asked.send().await?, 204)?;

    let client = client.with_key(&key).opened(json!({})).await?;
    client.is_well().await?;
    let _stream = client.listen().await?;
    let mut stranger = client.twin();
    stranger.key = None;
    ensure!(statuses(&stranger, "x").await? == [StatusCode::UNAUTHORIZED; 4]);
    check::status(&client.delete().await?, 204)?;
    let output = node.output();
    ensure!(![&key, &wrong].iter().any(|key| output.contains(*key)), "a key is in the log");
    Ok(())
}

#[tokio::test]
async fn the_transport_of_2024_asks_for_the_key_too() -> Result<()> {
    let settings = Keyed::new()?;
    let (key, others) = (settings.key(&["ada"])?, settings.key(&["bob"])?);
    let node = settings.start()?;
    let mut client = Client::new(format!("{}/demo/sse", node.base), "2024-11-05");
    check::status(&client.get(None).await?, 401)?;
    client.key = Some(key);
    let mut events = Events::of(client.get(None).await?)?;
    let endpoint = events.next().await?.context("no endpoint")?;
    let messages = format!("{}{}", node.base, endpoint.data.context("no data")?);
    let mut poster = Client::new(messages, "2024-11-05");
    let message = poster.message("initialize", poster.introduction(json!({})));
    check::status(&poster.send(message.clone()).await?, 401)?;
    poster.key = Some(others);
    check::status(&poster.send(message.clone()).await?, 404)?;
    poster.key = client.key;
    check::status(&poster.send(message).await?, 202)?;
    let (_, answer) = events.message().await?.context("no answer")?;
    ensure!(answer.get("result").is_some(), "{answer}");
    Ok(())
}

// holds: SES-04
#[tokio::test]
async fn a_session_belongs_to_the_client_whose_key_opened_it_at_every_node() -> Result<()> {
    let settings = Keyed::new()?;
    let [ada, second, bob] = [
        settings.key(&["ada"])?,
        settings.key(&["ada-2", "--subject", "ada", "--days", "30"])?,
        settings.key(&["bob"])?,
    ];
    let setup = Setup::config(settings.text()?);
    let mut cluster = Recorded::start([setup.clone(), setup.clone(), setup]).await?;
    let client = opened(cluster.node(0)?, &ada).await?;
    client.is_well().await?;
    let arguments = json!({"n": 2, "interval_ms": 1});
    let call = client.call_with_progress("rh_count", arguments, json!(1));
    let mut stream = client.stream(call).await?;
    let (event, _) = stream.message().await?.context("no event")?;
    let event = event.id.context("no event id")?;
    for node in [0, 1, 2] {
        let mut thief = client.twin().with_key(&bob);
        thief.url = cluster.node(node)?.demo();
        let got = statuses(&thief, &event).await?;
        ensure!(got == [StatusCode::NOT_FOUND; 4], "node {node}: {got:?}");
    }
    cluster.kill(0)?;
    cluster.deaths_noticed().await?;
    for node in [1, 2] {
        let mut thief = client.twin().with_key(&bob);
        thief.url = cluster.node(node)?.demo();
        let got = statuses(&thief, &event).await?;
        ensure!(got == [StatusCode::NOT_FOUND; 4], "after the death, node {node}: {got:?}");
        // The second key is of the same client.
        let mut owner = client.twin().with_key(&second);
        owner.url = cluster.node(node)?.demo();
        owner.is_well().await?;
    }
    for node in cluster.nodes.iter().flatten() {
        let output = node.output();
        ensure!(![&ada, &second, &bob].iter().any(|key| output.contains(*key)), "{output}");
    }
    Ok(())
}

/// Waits until the stream is cut by its node; an error if it ends in another way.
async fn cut(stream: &mut Events) -> Result<()> {
    let ends = async {
        while let Some(block) = stream.next().await? {
            let is_over = block.message().is_some_and(|message| message.get("result").is_some());
            ensure!(!is_over, "the call has ended");
        }
        Ok(())
    };
    timeout(APPLIED, ends).await.context("the stream goes on")??;
    ensure!(stream.end == Some(End::Cut), "the stream was not cut: {:?}", stream.end);
    Ok(())
}

#[tokio::test]
async fn a_key_that_is_removed_ends_its_streams_and_its_client_goes_on_with_another() -> Result<()>
{
    let settings = Keyed::new()?;
    let old = settings.key(&["ada"])?;
    let node = settings.start()?;
    let client = opened(&node, &old).await?;
    let call =
        client.call_with_progress("rh_count", json!({"n": 200, "interval_ms": 100}), json!(1));
    let mut stream = client.stream(call).await?;
    let (event, _) = stream.message().await?.context("no event")?;
    // Rotation: both are valid, then the old one is removed.
    let new = settings.key(&["ada-2", "--subject", "ada"])?;
    let text = settings.text()?;
    std::fs::write(node.config_file(), &text)?;
    let owner = client.twin().with_key(&new);
    let until = Instant::now() + APPLIED;
    while owner.get(None).await?.status() != 200 {
        ensure!(Instant::now() < until, "the new key is not known: {}", node.output());
        sleep(Duration::from_millis(100)).await;
    }
    client.is_well().await?;
    let (before, after) = text.split_once("\n[tenants.demo.keys.ada]").context("no key")?;
    let after = after.split_once("\n[").map_or("", |(_, after)| after);
    std::fs::write(node.config_file(), format!("{before}\n[{after}"))?;
    cut(&mut stream).await.with_context(|| node.output())?;
    check::status(&client.get(None).await?, 401)?;
    // Nothing of the stream is lost.
    let mut resumed = owner.resume(&event.id.context("no id")?).await?;
    let mut last = 1.0;
    loop {
        let (_, message) = resumed.message().await?.context("the stream ended")?;
        if message.get("result").is_some() {
            break;
        }
        if let Some(progress) = message["params"]["progress"].as_f64() {
            ensure!(progress == last + 1.0, "{progress} after {last}");
            last = progress;
        }
    }
    ensure!(last == 200.0, "the last was {last}");
    Ok(())
}

#[tokio::test]
async fn a_stream_ends_when_its_key_expires() -> Result<()> {
    let settings = Keyed::new()?;
    let key = settings.key(&["ada"])?;
    let node = settings.start()?;
    let client = opened(&node, &key).await?;
    let mut stream = client.listen().await?;
    let end = SystemTime::now() + Duration::from_secs(5);
    let expires = OffsetDateTime::from(end).format(&Rfc3339)?;
    let text = format!("{}expires = '{expires}'\n", settings.text()?);
    std::fs::write(node.config_file(), text)?;
    cut(&mut stream).await.with_context(|| node.output())?;
    ensure!(SystemTime::now() >= end, "the stream was cut before its key ended");
    let refused = client.get(None).await?;
    check::status(&refused, 401)?;
    let told = refused.text().await?;
    ensure!(told.contains("the key has expired"), "{told}");
    Ok(())
}

#[tokio::test]
async fn a_stream_of_an_open_endpoint_ends_when_clients_need_keys() -> Result<()> {
    let open = NO_KEYS.replace("'keys'", "'open'");
    let node = Node::start(&Setup::config(&open))?;
    // A credential that nothing asks for is no reason to refuse a request.
    let client = Client::open(node.demo(), NEWEST).await?;
    let twice = client.http(Method::GET).bearer_auth("a").bearer_auth("b").send().await?;
    let mut stream = Events::of(twice)?;
    std::fs::write(node.config_file(), NO_KEYS)?;
    cut(&mut stream).await.with_context(|| node.output())?;
    check::status(&client.get(None).await?, 401)
}

#[tokio::test]
async fn an_sdk_client_sends_its_key() -> Result<()> {
    let settings = Keyed::new()?;
    let key = settings.key(&["ada"])?;
    let node = settings.start()?;
    let config = || StreamableHttpClientTransportConfig::with_uri(node.demo());
    let stranger = StreamableHttpClientTransport::from_config(config());
    ensure!(().serve(stranger).await.is_err(), "it came in without a key");
    let transport = StreamableHttpClientTransport::from_config(config().auth_header(key));
    let client = ().serve(transport).await?;
    client.call_tool(CallToolRequestParams::new("test_simple_text")).await?;
    client.cancel().await?;
    Ok(())
}

#[test]
fn mistakes_with_keys_say_what_to_do() -> Result<()> {
    let settings = Keyed::new()?;
    settings.key(&["ada"])?;
    let refusal = |arguments: &[&str]| match settings.key(arguments) {
        Ok(_) => anyhow::bail!("{arguments:?} was accepted"),
        Err(refusal) => Ok(refusal.to_string()),
    };
    let again = refusal(&["ada"])?;
    ensure!(again.contains("`--subject ada`"), "{again}");
    let name = refusal(&["a.b"])?;
    ensure!(name.contains("letters of ASCII"), "{name}");
    let program = tools::built("roundhouse");
    let other = Command::new(&program)
        .args(["key", "unknown", "ada"])
        .current_dir(settings.folder.path())
        .output()?;
    let told = String::from_utf8(other.stderr)?;
    ensure!(told.contains("has no tenant `unknown`"), "{told}");
    let printed = Command::new(&program).args(["key", "demo", "zed", "--print"]).output()?;
    let table = String::from_utf8(printed.stderr)?;
    ensure!(table.contains("[tenants.demo.keys.zed]\nsha256 = "), "{table}");
    ensure!(!settings.text()?.contains("zed"), "--print has written a file");
    Ok(())
}
