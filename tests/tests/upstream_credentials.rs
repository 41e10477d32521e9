//! The credentials of a node at servers that are reached over HTTP, with a real authorization server.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::issuers::Issuer;
use tests::mcp::Client;
use tests::nodes::port;
use tests::sse::PATIENCE;
use tests::{Node, Setup};
use tokio::time::sleep;

const NEWEST: &str = "2025-11-25";

/// A node whose clients need tokens of this issuer: an upstream server with the metadata of RFC 9728.
fn protected(issuer: &Issuer) -> Result<Node> {
    let listen = format!("127.0.0.1:{}", port()?);
    let text = format!(
        "front.public_url = 'http://{listen}'\n[tenants.demo]\nauth = 'oauth'\n[tenants.demo.oauth]\n\
         issuer = '{}'\nscopes = ['mcp']\n[tenants.demo.backends.main]\nkind = 'native'\n\
         name = 'everything'\n",
        issuer.url
    );
    Node::start(&Setup::config(text).listen(listen))
}

/// A folder with the secret of the node.
fn secrets(secret: &str) -> Result<tempfile::TempDir> {
    let dir = tempfile::tempdir()?;
    std::fs::create_dir(dir.path().join("demo"))?;
    write_secret(&dir, secret)?;
    Ok(dir)
}

fn write_secret(dir: &tempfile::TempDir, secret: &str) -> Result<()> {
    let (file, new) = (dir.path().join("demo/client"), dir.path().join("demo/new"));
    std::fs::write(&new, secret)?;
    std::fs::set_permissions(&new, PermissionsExt::from_mode(0o600))?;
    Ok(std::fs::rename(new, file)?)
}

/// A node in front of this server, with client credentials, and another tenant.
fn in_front_of(url: &str, secrets: &tempfile::TempDir, more: &str) -> Setup {
    Setup::config(format!(
        "node.secrets_dir = '{}'\nnode.reload_secs = 1\n[tenants.demo]\nauth = 'open'\n\
         [tenants.demo.backends.main]\nkind = 'http'\nurl = '{url}'\nallow_networks = ['127.0.0.0/8']\n\
         [tenants.demo.backends.main.credential]\ngrant = 'client_credentials'\nclient_id = 'node'\n\
         client_secret = '${{file:client}}'\nscopes = ['mcp']\n{more}\n\
         [tenants.other]\nauth = 'open'\nbackends.main = {{ kind = 'native', name = 'everything' }}\n",
        secrets.path().display()
    ))
}

async fn issued(issuer: &Issuer) -> Result<u64> {
    issuer.seen().await?["client_credentials"].as_u64().context("no count")
}

#[tokio::test]
async fn a_node_finds_the_authorization_server_of_its_server_and_gets_a_token() -> Result<()> {
    let issuer = Issuer::provider("mcp", 600).await?;
    let (upstream, secrets) = (protected(&issuer)?, secrets("s+ecret")?);
    for more in
        [String::new(), format!("issuer = '{}'", issuer.url), "client_auth = 'basic'".into()]
    {
        let before = issued(&issuer).await?;
        let node = Node::start(&in_front_of(&upstream.demo(), &secrets, &more))?;
        for _ in 0..2 {
            let client = Client::open(node.demo(), NEWEST).await?;
            client.is_well().await?;
        }
        ensure!(issued(&issuer).await? == before + 1, "{more}: not one token");
        let output = node.output();
        ensure!(!output.contains("s+ecret") && !output.contains("eyJ"), "a secret is in the log");
        let metric = "roundhouse_upstream_token_requests_total{grant=\"client_credentials\",outcome=\"issued\"}";
        ensure!(node.metric(metric).await? == Some(1.0), "{more}");
    }
    Ok(())
}

#[tokio::test]
async fn a_token_that_ends_during_a_session_is_renewed() -> Result<()> {
    let issuer = Issuer::provider("mcp", 4).await?;
    let (upstream, secrets) = (protected(&issuer)?, secrets("s+ecret")?);
    let node = Node::start(&in_front_of(&upstream.demo(), &secrets, ""))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        client.is_well().await?;
        sleep(Duration::from_millis(200)).await;
    }
    let issued = issued(&issuer).await?;
    ensure!((3..=6).contains(&issued), "{issued}");
    Ok(())
}

#[tokio::test]
async fn a_changed_secret_is_applied_while_the_node_runs() -> Result<()> {
    let issuer = Issuer::provider("mcp", 3).await?;
    let (upstream, secrets) = (protected(&issuer)?, secrets("s+ecret")?);
    let node = Node::start(&in_front_of(&upstream.demo(), &secrets, ""))?;
    let former = Client::open(node.demo(), NEWEST).await?;
    former.is_well().await?;
    write_secret(&secrets, "an+other")?;
    issuer.change_secret("an+other").await?;
    let until = Instant::now() + PATIENCE;
    while node.metric("roundhouse_settings_reloads_total{outcome=\"applied\"}").await? != Some(1.0)
    {
        ensure!(Instant::now() < until, "{}", node.output());
        sleep(Duration::from_millis(50)).await;
    }
    let client = Client::open(node.demo(), NEWEST).await?;
    client.is_well().await?;
    // The former session has the former secret until that is refused.
    sleep(Duration::from_secs(4)).await;
    let mut refusals = 0;
    while former.request("tools/list", json!({})).await?.get("error").is_some() {
        refusals += 1;
        ensure!(refusals < 3, "it does not get the new secret:\n{}", node.output());
    }
    former.is_well().await
}

#[tokio::test]
async fn an_authorization_server_that_is_down_costs_only_its_tenant() -> Result<()> {
    let mut issuer = Issuer::provider("mcp", 4).await?;
    let (upstream, secrets) = (protected(&issuer)?, secrets("s+ecret")?);
    let node = Node::start(&in_front_of(&upstream.demo(), &secrets, ""))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    client.is_well().await?;
    issuer.stop().await?;
    // The token counts on.
    client.is_well().await?;
    sleep(Duration::from_secs(4)).await;
    let answer = client.request("tools/list", json!({})).await?;
    let text = answer["error"]["message"].as_str().unwrap_or_default();
    ensure!(text.contains("authorization server") && text.contains("try again later"), "{answer}");
    ensure!(!text.contains("127.0.0.1"), "{answer}");
    Client::open(node.mcp("other"), NEWEST).await?.is_well().await
}

#[tokio::test]
async fn a_refused_secret_is_a_clear_error() -> Result<()> {
    let issuer = Issuer::provider("mcp", 600).await?;
    let (upstream, secrets) = (protected(&issuer)?, secrets("wrong")?);
    let node = Node::start(&in_front_of(&upstream.demo(), &secrets, ""))?;
    let client = Client::new(node.demo(), NEWEST);
    let initialize = client.message("initialize", client.introduction(json!({})));
    let answer = client.ask(initialize).await?;
    let text = answer["error"]["message"].as_str().unwrap_or_default();
    ensure!(
        text.contains("refused the node a token") && text.contains("invalid_client"),
        "{answer}"
    );
    let refused = issuer.seen().await?["refused"].clone();
    for _ in 0..5 {
        let initialize = client.message("initialize", client.introduction(json!({})));
        client.ask(initialize).await?;
    }
    ensure!(issuer.seen().await?["refused"] == refused, "asked again at once");
    Ok(())
}
