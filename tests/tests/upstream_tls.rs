//! Servers over HTTPS, with certificates of a private authority.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::mcp::{Client, result};
use tests::sse::PATIENCE;
use tests::tls::{self, Authority};
use tests::{Node, Setup};
use tokio::time::sleep;

const NEWEST: &str = "2025-11-25";

/// A server over HTTPS with a certificate for this host, which ends in a year.
struct Upstream {
    node: Node,
    folder: TempDir,
}

impl Upstream {
    fn start(authority: &Authority, host: &str, ends: i32) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        authority.issue_until(folder.path(), "server", &[host], ends)?;
        tls::write(&folder.path().join("authority.pem"), &authority.pem())?;
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (cert, key) = (file("server.cert"), file("server.key"));
        let config = format!(
            "[front.tls]\ncert_file = '{cert}'\nkey_file = '{key}'\n[tenants.demo]\nauth = 'open'\n\
             [tenants.demo.backends.main]\nkind = 'native'\nname = 'everything'\n"
        );
        Ok(Self { node: Node::start(&Setup::config(config))?, folder })
    }

    /// A node in front of it that trusts this authority.
    fn behind_a_node(&self, trusted: &Authority) -> Result<Node> {
        let file = self.folder.path().join("trusted.pem");
        tls::write(&file, &trusted.pem())?;
        let url = self.node.demo().replacen("http:", "https:", 1);
        let setup = Setup::in_front_of(&url);
        Node::start(&setup.env("SSL_CERT_FILE", &file.display().to_string()))
    }
}

/// The error that a client of a node gets for `initialize`.
async fn refusal(node: &Node) -> Result<String> {
    let client = Client::new(node.demo(), NEWEST);
    let who = json!({ "name": "test", "version": "1" });
    let params = json!({ "protocolVersion": NEWEST, "capabilities": {}, "clientInfo": who });
    let answer: Value = client.send(client.message("initialize", params)).await?.json().await?;
    let text = answer["error"]["message"].as_str();
    Ok(text.with_context(|| format!("no error: {answer}"))?.to_owned())
}

#[tokio::test]
async fn a_server_with_a_certificate_of_a_private_authority_is_used() -> Result<()> {
    let authority = Authority::new()?;
    let upstream = Upstream::start(&authority, "127.0.0.1", 4_000)?;
    let node = upstream.behind_a_node(&authority)?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let echo = client.tool("rh_echo", json!({ "number": 7 })).await?;
    ensure!(echo["structuredContent"]["number"] == 7, "{echo}");
    result(client.request("tools/list", json!({})).await?)?;
    Ok(())
}

#[tokio::test]
async fn a_certificate_that_cannot_be_trusted_is_an_error_that_the_log_explains() -> Result<()> {
    let authority = Authority::new()?;
    let other = Authority::new()?;
    for (host, ends, trusted, cause) in [
        ("mcp.example.com", 4_000, &authority, "not valid for name"),
        ("127.0.0.1", 2_001, &authority, "expired"),
        ("127.0.0.1", 4_000, &other, "invalid peer certificate"),
    ] {
        let upstream = Upstream::start(&authority, host, ends)?;
        let node = upstream.behind_a_node(trusted)?;
        let text = refusal(&node).await?;
        ensure!(text.contains("the upstream server could not be reached"), "{cause}: {text}");
        ensure!(!text.contains("127.0.0.1") && !text.contains(host), "{cause}: {text}");
        // The log is read by a thread of its own.
        let until = Instant::now() + PATIENCE;
        let is_logged = |line: &str| {
            line.contains("an exchange with an upstream server failed") && line.contains(cause)
        };
        while !node.output().lines().any(is_logged) {
            ensure!(Instant::now() < until, "{cause}: {}", node.output());
            sleep(Duration::from_millis(10)).await;
        }
    }
    Ok(())
}
