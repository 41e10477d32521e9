//! A tenant's endpoint is served at a host of its own, beside its path.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use tests::issuers::Issuer;
use tests::mcp::Client;
use tests::nodes::port;
use tests::sse::Events;
use tests::{Node, Setup, check, tools};
use tokio::time::sleep;

const NEWEST: &str = "2025-11-25";

/// A tenant with these hosts.
fn tenant(name: &str, hosts: &str) -> String {
    format!(
        "[tenants.{name}]\nauth = 'open'\nhosts = [{hosts}]\n[tenants.{name}.backends.main]\n\
         kind = 'native'\nname = 'everything'\n"
    )
}

/// A client of this path at a host. The node listens on loopback at a port of its own.
fn client(node: &Node, host: &str, path: &str, revision: &str) -> Result<Client> {
    let port = node.base.rsplit_once(':').context("no port")?.1;
    Client::new(format!("http://{host}:{port}{path}"), revision).resolving(host, &node.base)
}

/// The status of `initialize` at a path of a host, sent by a page of this origin.
async fn status(node: &Node, host: &str, path: &str, origin: Option<&str>) -> Result<u16> {
    let client = client(node, host, path, NEWEST)?;
    let mut request = client.http(Method::POST);
    if let Some(origin) = origin {
        request = request.header("Origin", origin);
    }
    let message = client.message("initialize", client.introduction(json!({})));
    Ok(request.json(&message).send().await?.status().as_u16())
}

#[tokio::test]
async fn a_tenant_is_served_at_its_host_and_at_its_path() -> Result<()> {
    let settings = tenant("acme", "'acme.example.com', 'mcp.acme.example'") + &tenant("other", "");
    let node = Node::start(&Setup::config(settings))?;
    for (host, path) in [
        ("acme.example.com", "/mcp"),
        ("ACME.example.com", "/mcp"),
        ("mcp.acme.example", "/mcp"),
        ("acme.example.com", "/acme/mcp"),
        ("127.0.0.1", "/acme/mcp"),
    ] {
        let client = client(&node, host, path, NEWEST)?.opened(json!({})).await;
        let client = client.with_context(|| format!("{host}{path}"))?;
        client.is_well().await?;
        let _stream = client.listen().await?;
        check::status(&client.delete().await?, 204)?;
    }
    for (host, path, wanted) in [
        ("127.0.0.1", "/mcp", 404),
        // A page of the host could otherwise read what another tenant answers to a GET.
        ("acme.example.com", "/other/mcp", 403),
        ("acme.example.com", "/mcp/", 404),
        ("acme.example.com", "/", 404),
        ("example.com", "/mcp", 403),
        ("x.acme.example.com", "/mcp", 403),
        ("x.acme.example.com", "/acme/mcp", 403),
    ] {
        let got = status(&node, host, path, None).await?;
        ensure!(got == wanted, "{host}{path}: {got}");
    }
    Ok(())
}

#[tokio::test]
async fn pages_of_a_tenants_host_may_use_its_endpoint_and_no_other() -> Result<()> {
    let settings = tenant("acme", "'acme.example.com'") + &tenant("other", "'other.example.com'");
    let node = Node::start(&Setup::config(settings))?;
    let host = "acme.example.com";
    for (origin, wanted) in [
        ("https://acme.example.com", 200),
        ("https://acme.example.com:8443", 200),
        // Such a page may come from a stranger on the way.
        ("http://acme.example.com", 403),
        ("https://other.example.com", 403),
        ("https://acme.example.com.evil.example", 403),
        ("https://acme.example.com@evil.example", 403),
    ] {
        let got = status(&node, host, "/mcp", Some(origin)).await?;
        ensure!(got == wanted, "{origin}: {got}");
    }
    Ok(())
}

#[tokio::test]
async fn the_transport_of_2024_names_an_endpoint_of_the_same_host() -> Result<()> {
    let node = Node::start(&Setup::config(tenant("acme", "'acme.example.com'")))?;
    let opener = client(&node, "acme.example.com", "/sse", "2024-11-05")?;
    let mut events = Events::of(opener.get(None).await?)?;
    let endpoint = events.next().await?.context("no event")?.data.context("no data")?;
    ensure!(endpoint.starts_with("/messages?session="), "{endpoint}");
    let poster = client(&node, "acme.example.com", &endpoint, "2024-11-05")?;
    let message = poster.message("initialize", poster.introduction(json!({})));
    check::status(&poster.send(message).await?, 202)?;
    let (_, answer) = events.message().await?.context("no answer")?;
    ensure!(answer.get("result").is_some(), "{answer}");
    Ok(())
}

#[tokio::test]
async fn hosts_change_while_a_node_runs_and_belong_to_one_tenant() -> Result<()> {
    let node = Node::start(&Setup::config(tenant("acme", "'one.example'")))?;
    std::fs::write(node.config_file(), tenant("acme", "") + &tenant("new", "'one.example'"))?;
    let until = Instant::now() + Duration::from_secs(20);
    while status(&node, "127.0.0.1", "/new/mcp", None).await? != 200 {
        ensure!(Instant::now() < until, "the change is not applied: {}", node.output());
        sleep(Duration::from_millis(100)).await;
    }
    ensure!(status(&node, "one.example", "/mcp", None).await? == 200);
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("two.toml");
    std::fs::write(&file, tenant("a", "'one.example'") + &tenant("b", "'one.example', 'B.x'"))?;
    let checked = Command::new(tools::built("roundhouse")).arg("check").arg(&file).output()?;
    let told = String::from_utf8(checked.stderr)?;
    ensure!(!checked.status.success() && told.contains("write it in lower case"), "{told}");
    let own = "front.public_url = 'https://mcp.example.com/x'\n".to_owned();
    std::fs::write(&file, own + &tenant("a", "'mcp.example.com'") + &tenant("b", "'localhost'"))?;
    let checked = Command::new(tools::built("roundhouse")).arg("check").arg(&file).output()?;
    let told = String::from_utf8(checked.stderr)?;
    ensure!(told.matches("which is a name of the node").count() == 2, "{told}");
    std::fs::write(&file, tenant("a", "'one.example'") + &tenant("b", "'one.example'"))?;
    let checked = Command::new(tools::built("roundhouse")).arg("check").arg(&file).output()?;
    let told = String::from_utf8(checked.stderr)?;
    ensure!(
        told.contains("`tenants.b.hosts` has \"one.example\", which `tenants.a.hosts`"),
        "{told}"
    );
    // Another port makes no other host.
    std::fs::write(&file, tenant("a", "'one.example:8443'") + &tenant("b", "'one.example:9443'"))?;
    let checked = Command::new(tools::built("roundhouse")).arg("check").arg(&file).output()?;
    let told = String::from_utf8(checked.stderr)?;
    ensure!(told.contains("\"one.example:9443\", which `tenants.a.hosts` has too"), "{told}");
    Ok(())
}

/// Clients that reach a host at a port of its own sign in there: the metadata names that port, and a token
/// for this URL counts.
#[tokio::test]
async fn a_host_with_a_port_is_the_resource_and_the_audience_of_tokens() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let listen = format!("127.0.0.1:{}", port()?);
    let host = format!("acme.example.com:{}", listen.rsplit_once(':').context("no port")?.1);
    let settings = format!(
        "front.public_url = 'http://mcp.example.com'\n[tenants.acme]\nauth = 'oauth'\n\
         hosts = ['{host}']\n[tenants.acme.oauth]\nissuer = '{}'\n[tenants.acme.backends.main]\n\
         kind = 'native'\nname = 'everything'\n",
        issuer.url
    );
    let node = Node::start(&Setup::config(settings).listen(&listen))?;
    let at = |path: &str| client(&node, "acme.example.com", path, NEWEST);
    let endpoint = at("/mcp")?;
    let refused = endpoint.get(None).await?;
    check::status(&refused, 401)?;
    let challenge = check::header(&refused, "www-authenticate")?;
    let well_known = format!("http://{host}/.well-known/oauth-protected-resource");
    ensure!(challenge.contains(&format!("resource_metadata=\"{well_known}/mcp\"")), "{challenge}");
    let metadata = at("/.well-known/oauth-protected-resource/mcp")?.http(Method::GET);
    let metadata: Value = metadata.send().await?.json().await?;
    let resource = metadata["resource"].as_str().context("no resource")?;
    ensure!(resource == format!("http://{host}/mcp"), "{metadata}");
    let token = |audience: String| {
        let claims = json!({ "kid": "rs", "claims": { "sub": "ada", "aud": audience } });
        issuer.token(claims)
    };
    let client = endpoint.with_key(&token(resource.into()).await?).opened(json!({})).await?;
    client.is_well().await?;
    // A token for another port is for another server.
    let other = at("/mcp")?.with_key(&token("http://acme.example.com:1/mcp".into()).await?);
    check::status(&other.get(None).await?, 401)
}

#[tokio::test]
async fn a_request_that_names_hosts_of_two_tenants_is_refused() -> Result<()> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let settings = tenant("acme", "'acme.example.com'") + &tenant("other", "'other.example.com'");
    let node = Node::start(&Setup::config(settings))?;
    let address = node.base.strip_prefix("http://").context("no http URL")?;
    for (target, host, is_ambiguous) in [
        ("http://other.example.com/mcp", "acme.example.com", true),
        ("http://acme.example.com/mcp", "localhost", true),
        ("http://localhost/acme/mcp", "acme.example.com", true),
        ("http://acme.example.com/mcp", "ACME.example.com", false),
        ("/mcp", "acme.example.com", false),
    ] {
        let mut connection = tokio::net::TcpStream::connect(address).await?;
        let head = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        connection.write_all(head.as_bytes()).await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await?;
        ensure!(answer.starts_with("HTTP/1.1 400"), "{target} at {host}: {answer}");
        let is_refused = answer.contains("the head is ambiguous");
        ensure!(is_refused == is_ambiguous, "{target} at {host}: {answer}");
    }
    Ok(())
}
