//! Clients reach a node over TLS: which certificate they get, what bounds a handshake, and how
//! certificates change.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustls::ClientConfig;
use serde_json::json;
use tempfile::TempDir;
use tests::mcp::{Client, messages};
use tests::redis::Redis;
use tests::sse::PATIENCE;
use tests::tls::{Authority, Tunnel, certificate, connect, shown};
use tests::{Node, Setup, tls, tools};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

#[path = "tls/handshakes.rs"]
mod handshakes;

const NEWEST: &str = "2025-11-25";
const HANDSHAKES: &str = "roundhouse_front_tls_handshakes_total";

/// A folder with certificates of one authority, and the settings that name them.
struct Certified {
    authority: Authority,
    folder: TempDir,
}

impl Certified {
    /// A default certificate for `mcp.example.com` and 127.0.0.1, and one for a host of the tenant
    /// `acme`.
    fn new() -> Result<Self> {
        let certified = Self { authority: Authority::new()?, folder: tempfile::tempdir()? };
        certified.issue("default", &["mcp.example.com", "127.0.0.1"])?;
        certified.issue("acme", &["acme.example.com", "*.acme.example"])?;
        Ok(certified)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn issue(&self, name: &str, hosts: &[&str]) -> Result<()> {
        self.authority.issue(self.path(), name, hosts)
    }

    fn file(&self, name: &str) -> String {
        self.path().join(name).display().to_string()
    }

    /// `[front.tls]` with the two certificates, and the two tenants.
    fn settings(&self) -> String {
        let files = |name: &str| {
            let (cert, key) =
                (self.file(&format!("{name}.cert")), self.file(&format!("{name}.key")));
            format!("cert_file = '{cert}'\nkey_file = '{key}'\n")
        };
        format!(
            "[front.tls]\n{}[front.tls.certificates.acme]\n{}{}{}",
            files("default"),
            files("acme"),
            tenant("demo", ""),
            tenant("acme", "'acme.example.com'")
        )
    }

    fn setup(&self) -> Setup {
        Setup::config(self.settings()).with("node.reload_secs", 1)
    }

    fn client(&self) -> Result<ClientConfig> {
        self.authority.client()
    }

    /// A tunnel to a node, for clients without TLS.
    async fn tunnel(&self, nodes: &[&Node]) -> Result<Tunnel> {
        let nodes: Vec<&str> = nodes.iter().map(|node| node.base.as_str()).collect();
        Tunnel::start(&nodes, self.client()?, "mcp.example.com").await
    }

    /// Which of the certificates a node shows to a client that asks for this name.
    async fn shows(&self, node: &Node, name: &str, file: &str) -> Result<bool> {
        Ok(shown(&node.base, self.client()?, name).await? == certificate(self.path(), file)?)
    }

    /// The settings with a mistake, as `check` judges them.
    fn check(&self, settings: &str) -> Result<(bool, String)> {
        let file = self.path().join("roundhouse.toml");
        // This machine may allow few descriptors.
        std::fs::write(&file, format!("front.connections_max = 100\n{settings}"))?;
        let program = tools::built("roundhouse");
        let Output { status, stdout, stderr } =
            Command::new(program).arg("check").arg(&file).output()?;
        Ok((status.success(), String::from_utf8(stdout)? + &String::from_utf8(stderr)?))
    }
}

fn tenant(name: &str, hosts: &str) -> String {
    format!(
        "[tenants.{name}]\nauth = 'open'\nhosts = [{hosts}]\n[tenants.{name}.backends.main]\n\
         kind = 'native'\nname = 'everything'\n"
    )
}

/// Polls until something is so.
async fn until(node: &Node, what: &str, is_so: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !is_so().await? {
        ensure!(Instant::now() < end, "not in time: {what}: {}", node.output());
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// The number of handshakes with this outcome.
async fn handshakes(node: &Node, outcome: &str) -> Result<f64> {
    labelled(node, &format!("{HANDSHAKES}{{outcome=\"{outcome}\"}}")).await
}

/// Waits until so many handshakes have this outcome: a client may see an alert, or the end of its
/// connection, before the node has counted it.
async fn counted(node: &Node, outcome: &str, count: f64) -> Result<()> {
    let what = format!("{count} handshakes are {outcome}");
    until(node, &what, async || Ok(handshakes(node, outcome).await? == count)).await
}

/// The value of one sample; 0 if there is none.
async fn labelled(node: &Node, sample: &str) -> Result<f64> {
    let text = reqwest::get(format!("{}/metrics", node.admin)).await?.text().await?;
    let line = text.lines().find_map(|line| line.strip_prefix(sample));
    Ok(line.map_or(Ok(0.0), |value| value.trim().parse())?)
}

#[tokio::test]
async fn a_client_gets_the_certificate_of_the_host_that_it_names() -> Result<()> {
    let certified = Certified::new()?;
    let node = Node::start(&certified.setup())?;
    ensure!(node.output().contains("tenant demo: https://127.0.0.1:"), "{}", node.output());
    for (name, file) in [
        ("mcp.example.com", "default"),
        ("acme.example.com", "acme"),
        ("ACME.example.com", "acme"),
        ("x.acme.example", "acme"),
        // A client does not send an address.
        ("127.0.0.1", "default"),
    ] {
        ensure!(certified.shows(&node, name, file).await?, "{name}");
    }
    // A client that names an unknown host gets the default one, and refuses it.
    let unknown = connect(&node.base, certified.client()?, "other.example.com").await;
    ensure!(unknown.is_err());
    counted(&node, "refused_by_client", 1.0).await
}

#[tokio::test]
async fn clients_of_either_version_use_http_1_over_tls() -> Result<()> {
    let certified = Certified::new()?;
    let node = Node::start(&certified.setup())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut roots = rustls::RootCertStore::empty();
        let pem = certified.authority.pem();
        roots.add(rustls::pki_types::pem::PemObject::from_pem_slice(pem.as_bytes())?)?;
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[version])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut stream = connect(&node.base, config.clone(), "mcp.example.com").await?;
        ensure!(stream.get_ref().1.alpn_protocol() == Some(&b"http/1.1"[..]));
        stream.write_all(b"GET /demo/mcp HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await?;
        ensure!(answer.starts_with(b"HTTP/1.1 400"), "{answer:?}");
        let before = handshakes(&node, "resumed").await?;
        let tunnel = Tunnel::start(&[&node.base], config.clone(), "mcp.example.com").await?;
        let client = Client::open(tunnel.mcp("demo"), NEWEST).await?;
        client.is_well().await?;
        // Further connections of the same client resume its session of TLS.
        ensure!(handshakes(&node, "resumed").await? > before, "{version:?}");
        config.alpn_protocols = vec![b"h2".to_vec()];
        ensure!(connect(&node.base, config, "mcp.example.com").await.is_err(), "HTTP/2");
    }
    counted(&node, "incompatible", 2.0).await
}

#[tokio::test]
async fn a_stream_goes_on_over_another_connection_and_another_node() -> Result<()> {
    let (certified, redis) = (Certified::new()?, Redis::start()?);
    let setup = certified
        .setup()
        .with("store.url", redis.url())
        .with("cluster.listen", "127.0.0.1:0")
        .with("cluster.secret", "0123456789abcdef0123456789abcdef");
    let nodes = [Node::start(&setup)?, Node::start(&setup)?];
    // As behind a balancer that passes TLS on: each connection goes to another node.
    let tunnel = certified.tunnel(&[&nodes[0], &nodes[1]]).await?;
    let client = Client::open(tunnel.mcp("demo"), NEWEST).await?;
    let call = client.call_with_progress("rh_count", json!({"n": 40, "interval_ms": 25}), json!(1));
    let mut stream = client.stream(call).await?;
    let mut seen = Vec::new();
    let cursor = loop {
        let (block, message) = stream.message().await?.context("the stream ended")?;
        seen.push(message);
        if seen.len() == 3 {
            break block.id.context("an event without id")?;
        }
    };
    drop((stream, tunnel));
    let tunnel = certified.tunnel(&[&nodes[1], &nodes[0]]).await?;
    let mut client = client;
    client.url = tunnel.mcp("demo");
    seen.extend(messages(&client.resume(&cursor).await?.rest().await?));
    let progress = seen.iter().filter(|message| message["method"] == "notifications/progress");
    let progress: Vec<_> = progress.map(|message| message["params"]["progress"].as_f64()).collect();
    ensure!(progress == (1..=40).map(|n| Some(f64::from(n))).collect::<Vec<_>>(), "{progress:?}");
    ensure!(seen.last().context("nothing")?.get("result").is_some(), "{seen:?}");
    Ok(())
}

#[tokio::test]
async fn a_certificate_is_replaced_while_connections_are_open() -> Result<()> {
    let certified = Certified::new()?;
    let node = Node::start(&certified.setup())?;
    let tunnel = certified.tunnel(&[&node]).await?;
    let client = Client::open(tunnel.mcp("demo"), NEWEST).await?;
    let call =
        client.call_with_progress("rh_count", json!({"n": 400, "interval_ms": 25}), json!(1));
    let mut stream = client.stream(call).await?;
    stream.message().await?.context("the stream ended")?;
    let ends = "roundhouse_front_tls_certificate_expiry_timestamp_seconds{certificate=\"acme\"}";
    let former = certificate(certified.path(), "acme")?;
    certified.authority.issue_until(certified.path(), "acme", &["acme.example.com"], 3_000)?;
    ensure!(former != certificate(certified.path(), "acme")?);
    until(&node, "the new certificate is shown", async || {
        certified.shows(&node, "acme.example.com", "acme").await
    })
    .await?;
    // The first day of the year 3000.
    ensure!(labelled(&node, ends).await? == 32_503_680_000.0);
    stream.message().await?.context("the stream ended with the certificate")?;

    // The key of another certificate: the node keeps the former pair, and logs an error.
    let key = certified.path().join("acme.key");
    let (right, wrong) =
        (std::fs::read_to_string(&key)?, std::fs::read_to_string(certified.file("default.key"))?);
    tls::write(&key, &wrong)?;
    let refused = "roundhouse_front_tls_certificate_refused{certificate=\"acme\"}";
    until(&node, "the pair is refused", async || Ok(labelled(&node, refused).await? == 1.0))
        .await?;
    ensure!(certified.shows(&node, "acme.example.com", "acme").await?);
    let ready = reqwest::get(format!("{}/readyz", node.admin)).await?;
    ensure!(ready.status() == 200);
    let told = ready.text().await?;
    ensure!(told.contains("files of a certificate for clients cannot be used"), "{told}");
    // It stops no other change, also not one of another certificate.
    certified.issue("default", &["mcp.example.com"])?;
    std::fs::write(node.config_file(), certified.settings() + &tenant("new", ""))?;
    until(&node, "the other certificate is shown", async || {
        certified.shows(&node, "mcp.example.com", "default").await
    })
    .await?;
    until(&node, "the tenant is applied", async || {
        let tunnel = certified.tunnel(&[&node]).await?;
        Ok(Client::open(tunnel.mcp("new"), NEWEST).await.is_ok())
    })
    .await?;
    node.logs("is not the key of this certificate").await?;
    let lines = node.output().matches("certificate not replaced").count();
    ensure!(lines == 1, "{lines} lines: {}", node.output());
    ensure!(!node.output().contains("PRIVATE"), "a key is in the log");
    tls::write(&key, &right)?;
    until(&node, "the pair is right again", async || Ok(labelled(&node, refused).await? == 0.0))
        .await?;
    stream.message().await?.context("the stream ended")?;
    Ok(())
}

#[tokio::test]
async fn certificates_are_added_and_removed_with_the_settings() -> Result<()> {
    let certified = Certified::new()?;
    let node = Node::start(&certified.setup())?;
    certified.issue("added", &["added.example.com"])?;
    let (cert, key) = (certified.file("added.cert"), certified.file("added.key"));
    let added =
        format!("[front.tls.certificates.added]\ncert_file = '{cert}'\nkey_file = '{key}'\n");
    std::fs::write(node.config_file(), certified.settings() + &added)?;
    until(&node, "the certificate is added", async || {
        Ok(certified.shows(&node, "added.example.com", "added").await.unwrap_or(false))
    })
    .await?;
    std::fs::write(node.config_file(), certified.settings())?;
    until(&node, "the certificate is removed", async || {
        Ok(certified.shows(&node, "added.example.com", "added").await.is_err())
    })
    .await?;
    // Without TLS the listener would be another one.
    std::fs::write(node.config_file(), tenant("demo", ""))?;
    node.logs("take effect only after a restart of the node were changed: front.tls").await?;
    ensure!(certified.shows(&node, "mcp.example.com", "default").await?);
    Ok(())
}

#[tokio::test]
async fn an_ambiguous_head_is_refused_inside_tls_too() -> Result<()> {
    let certified = Certified::new()?;
    let node = Node::start(&certified.setup())?;
    let mut stream = connect(&node.base, certified.client()?, "mcp.example.com").await?;
    stream.write_all(b"GET /demo/mcp HTTP/1.1\nHost: localhost\r\n\r\n").await?;
    let mut told = String::new();
    stream.read_to_string(&mut told).await?;
    ensure!(told.contains("the head is ambiguous"), "{told}");
    Ok(())
}

#[tokio::test]
async fn idle_connections_make_room_and_a_drain_closes_them() -> Result<()> {
    let certified = Certified::new()?;
    let setup = certified.setup().with("front.connections_max", 4).with("front.workers", 1);
    let node = Node::start(&setup)?;
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.push(connect(&node.base, certified.client()?, "mcp.example.com").await?);
    }
    // A connection is closed for the new one once it has been idle for long enough.
    let tunnel = certified.tunnel(&[&node]).await?;
    let client = timeout(PATIENCE, Client::open(tunnel.mcp("demo"), NEWEST)).await??;
    client.is_well().await?;
    let mut closed = [0];
    let first = timeout(PATIENCE, idle[0].read(&mut closed)).await?;
    ensure!(first.is_ok_and(|length| length == 0), "it was not closed in order");
    let status = node.stop(Duration::from_secs(20))?;
    ensure!(status.success(), "{status}");
    Ok(())
}

#[tokio::test]
async fn pages_of_a_tenants_host_are_accepted_over_tls() -> Result<()> {
    let certified = Certified::new()?;
    let node = Node::start(&certified.setup())?;
    for (origin, wanted) in
        [("https://acme.example.com", "HTTP/1.1 400"), ("http://acme.example.com", "HTTP/1.1 403")]
    {
        let mut stream = connect(&node.base, certified.client()?, "acme.example.com").await?;
        let head = format!(
            "GET /mcp HTTP/1.1\r\nHost: acme.example.com\r\nOrigin: {origin}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        let mut told = String::new();
        stream.read_to_string(&mut told).await?;
        ensure!(told.starts_with(wanted), "{origin}: {told}");
    }
    Ok(())
}

#[tokio::test]
async fn the_typescript_sdk_reaches_a_node_over_tls() -> Result<()> {
    let certified = Certified::new()?;
    let node = Node::start(&certified.setup())?;
    let ca = certified.path().join("ca.pem");
    std::fs::write(&ca, certified.authority.pem())?;
    let client = tools::root().join("tests/clients/ts1/client.mjs");
    let output = tokio::process::Command::new("node")
        .arg(client)
        .args([&node.mcp("demo"), "tour"])
        .env("NODE_EXTRA_CA_CERTS", ca)
        .env("PATH", tools::path())
        .output()
        .await?;
    let told = String::from_utf8(output.stdout)?;
    ensure!(told.contains("pong"), "{told}{}", String::from_utf8(output.stderr)?);
    Ok(())
}

#[test]
fn a_certificate_that_cannot_be_used_is_refused_with_its_key_and_the_remedy() -> Result<()> {
    let certified = Certified::new()?;
    let settings = certified.settings();
    let with = |from: &str, to: &str| settings.replacen(from, to, 1);
    std::fs::write(certified.path().join("empty"), "")?;
    std::fs::write(certified.path().join("text"), "hunter2")?;
    certified.issue("nameless", &[])?;
    for (settings, told) in [
        (with("acme.key", "default.key"), "`front.tls.certificates.acme.key_file`: "),
        (with("acme.key", "default.key"), "is not the key of this certificate"),
        (with("default.cert", "nowhere"), "`front.tls.cert_file`: "),
        (with("default.cert", "empty"), "the file is empty"),
        (with("default.cert", "text"), "holds no certificate"),
        (with("default.key", "text"), "holds no key that can be used"),
        (with("acme.cert", "default.key"), "`front.tls.certificates.acme.cert_file`: "),
        (
            settings.replace("acme.cert'", "nameless.cert'").replace("acme.key'", "nameless.key'"),
            "names no host",
        ),
        (with("certificates.acme", "certificates.default"), "choose another name"),
        (with("key_file", "# key_file"), "`front.tls.key_file` is not set"),
        (with("cert_file", "cert"), "unknown key `front.tls.cert`"),
    ] {
        let (is_fine, output) = certified.check(&settings)?;
        ensure!(!is_fine && output.contains(told), "{told}: {output}");
        ensure!(!output.contains("hunter2") && !output.contains("PRIVATE"), "{output}");
    }
    ensure!(Node::start(&Setup::config(with("acme.key", "default.key"))).is_err());
    Ok(())
}

#[test]
fn a_certificate_that_clients_would_refuse_is_a_warning() -> Result<()> {
    let certified = Certified::new()?;
    let settings = certified.settings();
    let (is_fine, output) = certified.check(&settings)?;
    ensure!(is_fine && !output.contains("warning"), "{output}");
    ensure!(output.contains("clients: 127.0.0.1:8080 over TLS\n"), "{output}");
    let line = "certificate acme: for acme.example.com, *.acme.example, ends on 4000-01-01\n";
    ensure!(output.contains(line), "{output}");
    for (public_url, hosts, told) in [
        ("https://mcp.example.com", "'x.acme.example'", None),
        ("https://other.example.com:8443/x", "", Some("the host \"other.example.com\", which no")),
        ("http://mcp.example.com", "", Some("but clients are served over TLS")),
        ("https://127.0.0.1", "", None),
        (
            "https://mcp.example.com",
            "'x.example.com'",
            Some("`tenants.new.hosts` has \"x.example.com\", which no certificate"),
        ),
    ] {
        let front = format!("front.public_url = '{public_url}'\n");
        let (is_fine, output) = certified.check(&(front + &settings + &tenant("new", hosts)))?;
        ensure!(is_fine, "{output}");
        match told {
            Some(told) => ensure!(output.contains(told), "{told}: {output}"),
            None => ensure!(!output.contains("warning"), "{output}"),
        }
    }
    certified.authority.issue_until(certified.path(), "acme", &["acme.example.com"], 2020)?;
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(certified.path().join("acme.key"), open)?;
    let (is_fine, output) = certified.check(&settings)?;
    ensure!(!is_fine && output.contains("the certificate ended on 2020-01-01"), "{output}");
    ensure!(output.contains("`front.tls.certificates.acme.key_file`"), "{output}");
    Ok(())
}

/// A node that does not start serves the hosts of its other certificates to no client.
#[tokio::test]
async fn a_node_starts_with_a_certificate_that_has_ended_and_reports_it_until_it_is_renewed()
-> Result<()> {
    let certified = Certified::new()?;
    certified.authority.issue_until(certified.path(), "acme", &["acme.example.com"], 2020)?;
    let node = Node::start(&certified.setup())?;
    let errors = || {
        let output = node.output();
        output.lines().filter(|line| line.contains("certificate has ended")).count()
    };
    let output = node.output();
    let line = output.lines().find(|line| line.contains("ended on 2020-01-01"));
    let line = line.context(output.clone())?;
    ensure!(line.contains("ERROR") && line.contains("certificate=\"acme\""), "{line}");
    let ready = async || -> Result<String> {
        Ok(reqwest::get(format!("{}/readyz", node.admin)).await?.text().await?)
    };
    let answer = ready().await?;
    ensure!(answer.starts_with("ready") && answer.contains("certificate"), "{answer}");
    let metric = "roundhouse_front_tls_certificate_expiry_timestamp_seconds{certificate=\"acme\"}";
    let ends = node.metric(metric).await?.context("no metric")?;
    ensure!(ends < 1_600_000_000.0, "{ends}");
    certified.authority.issue(certified.path(), "acme", &["acme.example.com"])?;
    let until = Instant::now() + PATIENCE;
    while ready().await?.contains("certificate") {
        ensure!(Instant::now() < until, "{}", node.output());
        sleep(Duration::from_millis(100)).await;
    }
    ensure!(errors() == 1, "{}", node.output());
    ensure!(node.metric(metric).await?.is_some_and(|renewed| renewed > ends));
    Ok(())
}
