//! Clients authenticate with OAuth tokens of a real issuer, and sign in at a real authorization server.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tests::issuers::Issuer;
use tests::mcp::Client;
use tests::nodes::port;
use tests::program::Program;
use tests::recorded::Recorded;
use tests::sse::End;
use tests::{Node, Setup, check, raw};
use tokio::time::timeout;

const NEWEST: &str = "2025-11-25";

/// The threads of a node. Each verifies a token once.
const WORKERS: u64 = 2;

/// Where clients reach a node, and its settings: a tenant `demo` with tokens of this issuer.
struct Protected {
    base: String,
    listen: String,
    text: String,
}

impl Protected {
    fn by(issuer: &str, more: &str) -> Result<Self> {
        let listen = format!("127.0.0.1:{}", port()?);
        let base = format!("http://{listen}");
        let text = format!(
            "front.public_url = '{base}'\n\n[tenants.demo]\nauth = 'oauth'\n\n[tenants.demo.oauth]\n\
             issuer = '{issuer}'\n{more}\n\n[tenants.demo.backends.main]\nkind = 'native'\n\
             name = 'everything'\n"
        );
        Ok(Self { base, listen, text })
    }

    fn setup(&self) -> Setup {
        let setup = Setup::config(&self.text).with("log.level", "trace");
        setup.with("front.workers", WORKERS).listen(&self.listen)
    }

    fn start(&self) -> Result<Node> {
        Node::start(&self.setup())
    }

    /// The endpoint, which is the audience of tokens for it.
    fn endpoint(&self) -> String {
        format!("{}/demo/mcp", self.base)
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A token of this subject for this audience.
async fn token(issuer: &Issuer, subject: &str, audience: &str) -> Result<String> {
    issuer.token(json!({ "kid": "rs", "claims": { "sub": subject, "aud": audience } })).await
}

async fn opened(node: &Node, token: &str) -> Result<Client> {
    Client::new(node.demo(), NEWEST).with_key(token).opened(json!({})).await
}

/// The answer to an `initialize` with this token: its status, and its challenge.
async fn refusal(node: &Node, token: &str) -> Result<(StatusCode, String)> {
    let client = Client::new(node.demo(), NEWEST).with_key(token);
    let message = client.message("initialize", client.introduction(json!({})));
    let response = client.send(message).await?;
    let challenge = response.headers().get("www-authenticate");
    let challenge = challenge.map(|value| value.to_str().map(str::to_owned)).transpose()?;
    Ok((response.status(), challenge.unwrap_or_default()))
}

// holds: SEC-05, SEC-08, SEC-09, SEC-10, SEC-11
#[tokio::test]
async fn a_client_without_a_token_learns_where_to_get_one() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let settings = Protected::by(&issuer.url, "scopes = ['mcp', 'tools']")?;
    let node = settings.start()?;
    let client = Client::new(node.demo(), NEWEST);
    let refused = client.get(None).await?;
    check::status(&refused, 401)?;
    let challenge = check::header(&refused, "www-authenticate")?;
    let metadata = format!("{}/.well-known/oauth-protected-resource/demo/mcp", settings.base);
    ensure!(challenge.contains(&format!("resource_metadata=\"{metadata}\"")), "{challenge}");
    ensure!(
        challenge.contains("scope=\"mcp tools\"") && !challenge.contains("error"),
        "{challenge}"
    );
    let response = reqwest::get(&metadata).await?;
    // A page of any origin may read it, also after asking.
    ensure!(check::header(&response, "access-control-allow-origin")? == "*");
    let said: Value = response.json().await?;
    ensure!(said["resource"] == settings.endpoint(), "{said}");
    ensure!(said["authorization_servers"] == json!([issuer.url]), "{said}");
    ensure!(said["scopes_supported"] == json!(["mcp", "tools"]), "{said}");
    let http = reqwest::Client::new();
    let asked = http.request(Method::OPTIONS, &metadata).header("origin", "https://page.example");
    check::status(&asked.send().await?, 204)?;
    check::status(&http.post(&metadata).send().await?, 405)?;
    // A transport of its own is a resource of its own.
    let sse = format!("{}/.well-known/oauth-protected-resource/demo/sse", settings.base);
    let said: Value = reqwest::get(&sse).await?.json().await?;
    ensure!(said["resource"] == format!("{}/demo/sse", settings.base), "{said}");
    // The root is no tenant's, and a tenant that is not there has no metadata.
    for path in ["", "/", "/mcp", "/other/mcp", "/demo", "/demo/mcp/", "/demo/mcpx", "x"] {
        let url = format!("{}/.well-known/oauth-protected-resource{path}", settings.base);
        check::status(&reqwest::get(&url).await?, 404).context(url)?;
    }
    Ok(())
}

/// A head that a proxy could read in another way is answered as at each other path: refused, and the
/// connection closed.
#[tokio::test]
async fn an_ambiguous_request_for_metadata_closes_its_connection() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let settings = Protected::by(&issuer.url, "")?;
    let node = settings.start()?;
    let head = |end: &str| {
        let path = "/.well-known/oauth-protected-resource/demo/mcp";
        format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1{end}\r\n")
    };
    let quiet = Duration::from_millis(500);
    let plain = raw::send(&node.base, head("\r\n").as_bytes(), quiet).await?;
    ensure!(plain.status == Some(200), "{}", plain.text);
    let ambiguous = raw::send(&node.base, head("\r\nX: y\n").as_bytes(), quiet).await?;
    ensure!(ambiguous.status == Some(400), "{}", ambiguous.text);
    ensure!(ambiguous.text.to_lowercase().contains("connection: close"), "{}", ambiguous.text);
    Ok(())
}

// holds: SEC-15
#[tokio::test]
async fn a_client_of_2025_03_26_is_sent_to_the_issuer() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let settings = Protected::by(&issuer.url, "")?;
    let _node = settings.start()?;
    let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
    let at = |path: &str| {
        let url = format!("{}/.well-known/oauth-authorization-server{path}", settings.base);
        http.get(url).send()
    };
    let sent = at("/demo/mcp").await?;
    check::status(&sent, 307)?;
    let target = format!("{}/.well-known/oauth-authorization-server", issuer.url);
    ensure!(check::header(&sent, "location")? == target);
    // At the root no tenant is named.
    check::status(&at("").await?, 404)
}

#[tokio::test]
async fn a_token_of_the_issuer_for_the_endpoint_opens_a_session() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let settings = Protected::by(&issuer.url, "")?;
    let node = settings.start()?;
    for alg in ["RS256", "RS512", "PS256", "ES256", "ES384", "EdDSA"] {
        issuer.add_key(alg, alg).await?;
    }
    let mut tokens = Vec::new();
    for kid in ["rs", "RS256", "RS512", "PS256", "ES256", "ES384", "EdDSA"] {
        let claims = json!({ "sub": "ada", "aud": [settings.endpoint(), "https://other.example"] });
        tokens.push(issuer.token(json!({ "kid": kid, "claims": claims })).await?);
        let client = opened(&node, &tokens[tokens.len() - 1]).await.context(kid)?;
        client.is_well().await?;
    }
    let output = node.output();
    ensure!(!tokens.iter().any(|token| output.contains(token)), "a token is in the log");
    let parts = tokens.iter().flat_map(|token| token.split('.').skip(1));
    ensure!(!parts.into_iter().any(|part| output.contains(part)), "a part is in the log");
    Ok(())
}

// holds: SEC-08, SEC-11, SEC-13
#[tokio::test]
async fn a_token_that_is_not_for_the_endpoint_is_refused() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let settings = Protected::by(&issuer.url, "scopes = ['mcp']")?;
    let node = settings.start()?;
    let good = json!({ "sub": "ada", "aud": settings.endpoint(), "scope": "mcp" });
    let changed = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        json!({ "kid": "rs", "claims": claims })
    };
    let fine = issuer.token(json!({ "kid": "rs", "claims": good })).await?;
    let (status, challenge) = refusal(&node, &fine).await?;
    ensure!(status == 200, "{status} {challenge}");
    for (wanted, why) in [
        (changed("aud", json!("https://other.example/mcp")), "for another audience"),
        (changed("aud", json!(format!("{}/other/mcp", settings.base))), "for another audience"),
        (changed("aud", json!(settings.base)), "for another audience"),
        (changed("aud", json!([])), "audience"),
        (changed("aud", Value::Null), "audience"),
        (changed("iss", json!("https://evil.example")), "of another issuer"),
        (changed("iss", json!([issuer.url, "https://evil.example"])), "the token"),
        (changed("iss", Value::Null), "of another issuer"),
        (changed("exp", json!(now() - 60)), "has expired"),
        (changed("exp", Value::Null), "when it expires"),
        (changed("exp", json!("soon")), "the token"),
        (changed("nbf", json!(now() + 600)), "not valid yet"),
        (changed("sub", Value::Null), "neither a subject nor a client"),
        (changed("sub", json!("")), "neither a subject nor a client"),
        (changed("sub", json!("x".repeat(600))), "neither a subject nor a client"),
        (changed("at_hash", json!("x")), "no access token"),
        (changed("events", json!({})), "no access token"),
        (changed("scope", json!("x ".repeat(300))), "more than 256 scopes"),
        (changed("sub", json!({"a": 1})), "another form"),
        (
            json!({ "kid": "rs", "header": { "typ": "logout+jwt" }, "claims": good }),
            "no access token",
        ),
        (json!({ "kid": "rs", "header": { "crit": ["x"], "x": 1 }, "claims": good }), "form"),
        (
            json!({ "kid": "rs", "header": { "kid": "other" }, "claims": good }),
            "key of the token is unknown",
        ),
    ] {
        let token = issuer.token(wanted.clone()).await?;
        let (status, challenge) = refusal(&node, &token).await?;
        ensure!(status == 401, "{wanted}: {status}");
        ensure!(challenge.contains("error=\"invalid_token\""), "{wanted}: {challenge}");
        ensure!(challenge.contains(why), "{wanted}: {challenge}");
    }
    // The token is valid, and its client may not use the endpoint.
    let token = issuer.token(changed("scope", json!("mcpx other"))).await?;
    let (status, challenge) = refusal(&node, &token).await?;
    ensure!(status == 403, "{status}");
    ensure!(challenge.contains("error=\"insufficient_scope\""), "{challenge}");
    ensure!(challenge.contains("scope=\"mcp\"") && challenge.contains("resource_metadata="));
    Ok(())
}

// holds: SES-04
#[tokio::test]
async fn a_session_belongs_to_the_subject_of_the_token_at_every_node() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let audience = "https://mcp.example.com/demo/mcp";
    let mut settings = Protected::by(&issuer.url, "")?;
    settings.text = settings.text.replace(&settings.base, "https://mcp.example.com");
    let setup = Setup::config(&settings.text).with("front.allowed_hosts", "127.0.0.1");
    let mut cluster = Recorded::start([setup.clone(), setup]).await?;
    let [ada, renewed] = [token(&issuer, "ada", audience).await?, {
        let claims = json!({ "sub": "ada", "aud": audience, "jti": "2" });
        issuer.token(json!({ "kid": "rs", "claims": claims })).await?
    }];
    let bob = token(&issuer, "bob", audience).await?;
    // A client that has no subject, and whose id is the subject of another.
    let claims = json!({ "client_id": "ada", "aud": audience });
    let app = issuer.token(json!({ "kid": "rs", "claims": claims })).await?;
    let client = opened(cluster.node(0)?, &ada).await?;
    client.is_well().await?;
    let others = async |cluster: &Recorded, node: usize| -> Result<()> {
        for thief in [&bob, &app] {
            let mut client = client.twin().with_key(thief);
            client.url = cluster.node(node)?.demo();
            let ping = client.message("ping", json!({}));
            check::status(&client.send(ping).await?, 404)?;
            check::status(&client.get(None).await?, 404)?;
        }
        let mut owner = client.twin().with_key(&renewed);
        owner.url = cluster.node(node)?.demo();
        owner.is_well().await
    };
    others(&cluster, 0).await?;
    others(&cluster, 1).await?;
    cluster.kill(0)?;
    cluster.deaths_noticed().await?;
    others(&cluster, 1).await
}

#[tokio::test]
async fn a_stream_ends_when_its_token_expires_and_goes_on_with_the_next_one() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let settings = Protected::by(&issuer.url, "clock_skew_secs = 0")?;
    let node = settings.start()?;
    let claims = |exp: u64| json!({ "sub": "ada", "aud": settings.endpoint(), "exp": exp });
    let end = now() + 3;
    let short = issuer.token(json!({ "kid": "rs", "claims": claims(end) })).await?;
    let long = issuer.token(json!({ "kid": "rs", "claims": claims(end + 600) })).await?;
    let client = opened(&node, &short).await?;
    let arguments = json!({ "n": 60, "interval_ms": 100 });
    let call = client.call_with_progress("rh_count", arguments, json!(1));
    let mut stream = client.stream(call).await?;
    let mut last = None;
    let cut = async {
        while let Some(block) = stream.next().await? {
            last = block.id.clone().or(last.take());
        }
        anyhow::Ok(())
    };
    timeout(Duration::from_secs(10), cut).await.context("the stream goes on")??;
    ensure!(stream.end == Some(End::Cut), "{:?}", stream.end);
    ensure!(now() >= end, "the stream was cut before the token ended");
    check::status(&client.get(None).await?, 401)?;
    let renewed = client.twin().with_key(&long);
    let mut resumed = renewed.resume(&last.context("no event")?).await?;
    loop {
        let (_, message) = resumed.message().await?.context("the stream ended")?;
        if message.get("result").is_some() {
            return Ok(());
        }
    }
}

#[tokio::test]
async fn keys_and_tokens_count_at_the_same_endpoint() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let mut settings = Protected::by(&issuer.url, "")?;
    settings.text = settings.text.replace("auth = 'oauth'", "auth = ['keys', 'oauth']");
    let key = format!("rhk_{}", "1".repeat(64));
    let sha256 = check::sha256(&key);
    settings.text += &format!("\n[tenants.demo.keys.ada]\nsha256 = '{sha256}'\n");
    let node = settings.start()?;
    let by_key = opened(&node, &key).await?;
    by_key.is_well().await?;
    let token = token(&issuer, "ada", &settings.endpoint()).await?;
    let by_token = opened(&node, &token).await?;
    by_token.is_well().await?;
    // The key and the token of one name are two clients.
    let ping = by_key.message("ping", json!({}));
    check::status(&by_key.twin().with_key(&token).send(ping).await?, 404)?;
    let (status, _) = refusal(&node, &format!("rhk_{}", "2".repeat(64))).await?;
    ensure!(status == 401, "{status}");
    Ok(())
}

#[tokio::test]
async fn an_issuer_that_is_down_stops_no_client_whose_key_is_known() -> Result<()> {
    let mut issuer = Issuer::mock().await?;
    let settings = Protected::by(&issuer.url, "")?;
    let node = settings.start()?;
    let first = token(&issuer, "ada", &settings.endpoint()).await?;
    let second = token(&issuer, "bob", &settings.endpoint()).await?;
    let client = opened(&node, &first).await?;
    issuer.stop().await?;
    client.is_well().await?;
    // Not seen before, and of a known key.
    opened(&node, &second).await?.is_well().await?;
    // A node that never reached the issuer does not have the client sign in again for that.
    let other = Protected { listen: format!("127.0.0.1:{}", port()?), ..settings };
    let node = other.start()?;
    let (status, challenge) = refusal(&node, &first).await?;
    ensure!(status == 503 && challenge.is_empty(), "{status} {challenge}");
    node.logs("fetching the keys of an issuer of tokens failed").await?;
    Ok(())
}

#[tokio::test]
async fn an_opaque_token_counts_as_its_issuer_says() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let more = format!(
        "scopes = ['mcp']\nintrospection_url = '{}'\nclient_id = 'node'\n\
         client_secret = 's+ecret'\n",
        issuer.introspection_url()
    );
    let settings = Protected::by(&issuer.url, &more)?;
    let node = settings.start()?;
    let says = json!({
        "active": true, "sub": "ada", "scope": "mcp", "aud": settings.endpoint(), "exp": now() + 600
    });
    issuer.introspects("opaque-1", says.clone()).await?;
    let client = opened(&node, "opaque-1").await?;
    let before = issuer.introspections().await?;
    for _ in 0..20 {
        client.is_well().await?;
    }
    let asked = issuer.introspections().await? - before;
    ensure!(asked <= WORKERS, "the issuer was asked {asked} times");
    for (name, value, status, why) in [
        ("aud", Value::Null, 401, "for another audience"),
        ("active", json!(false), 401, "the token is not valid"),
        ("aud", json!("https://other.example"), 401, "for another audience"),
        ("iss", json!("https://evil.example"), 401, "of another issuer"),
        ("exp", json!(now() - 60), 401, "has expired"),
        ("scope", json!("other"), 403, "insufficient_scope"),
    ] {
        let mut changed = says.clone();
        changed[name] = value;
        let token = format!("opaque-{name}-{}", changed[name].is_null());
        issuer.introspects(&token, changed).await?;
        let (found, challenge) = refusal(&node, &token).await?;
        ensure!(found == status && challenge.contains(why), "{name}: {found} {challenge}");
    }
    let (status, _) = refusal(&node, "never-issued").await?;
    ensure!(status == 401, "{status}");
    ensure!(!node.output().contains("opaque-") && !node.output().contains("s+ecret"));
    Ok(())
}

/// A client signs in at a real authorization server, from the challenge to a call.
#[tokio::test]
async fn sdk_clients_sign_in() -> Result<()> {
    let issuer = Issuer::provider("mcp", 600).await?;
    let settings = Protected::by(&issuer.url, "scopes = ['mcp']")?;
    let node = settings.start()?;
    let programs = [Program::TypeScript1, Program::TypeScript2, Program::Python1, Program::Python2];
    for program in programs {
        let seen = program.play_signed_in(&node.demo(), "tour").await?;
        let redirected = seen.one("redirected")?;
        ensure!(redirected["resource"] == settings.endpoint(), "{redirected}");
        seen.one("token")?;
        let result = &seen.one("result")?["text"];
        ensure!(result == "This is a simple text response for testing.", "{result}");
    }
    Ok(())
}
