//! Attacks with tokens: forged ones, floods that an issuer would have to answer, and another client's
//! sessions. The tenant beside the attacked one sees no error, and waits for nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tests::issuers::{Issuer, in_an_hour};
use tests::mcp::Client;
use tests::nodes::port;
use tests::{Node, Setup};
use tokio::task::JoinSet;

const NEWEST: &str = "2025-11-25";

/// The longest that a call of the other tenant may take while its neighbour is attacked.
const QUIET_MAX: Duration = Duration::from_millis(500);

/// A node with a tenant `demo` with tokens of this issuer, and an open tenant `quiet`.
struct Attacked {
    node: Node,
    audience: String,
}

impl Attacked {
    fn start(issuer: &Issuer, more: &str) -> Result<Self> {
        let listen = format!("127.0.0.1:{}", port()?);
        let backend = "kind = 'native'\nname = 'everything'\n";
        let more = format!("{more}\naudience = ['http://{listen}/demo/mcp']");
        let text = format!(
            "front.public_url = 'http://{listen}'\n[tenants.demo]\nauth = 'oauth'\n\
             [tenants.demo.oauth]\nissuer = '{}'\n{more}\n[tenants.demo.backends.main]\n{backend}\
             [tenants.beside]\nauth = 'oauth'\n[tenants.beside.oauth]\nissuer = '{}'\n{more}\n\
             [tenants.beside.backends.main]\n{backend}[tenants.quiet]\nauth = 'open'\n[tenants.quiet.backends.main]\n{backend}",
            issuer.url, issuer.url
        );
        let setup = Setup::config(text).with("log.level", "debug").listen(&listen);
        Ok(Self { node: Node::start(&setup)?, audience: format!("http://{listen}/demo/mcp") })
    }

    fn client(&self, token: &str) -> Client {
        Client::new(self.node.demo(), NEWEST).with_key(token)
    }

    /// The status of an `initialize` with this token.
    async fn status(&self, token: &str) -> Result<StatusCode> {
        status(&self.client(token)).await
    }

    /// Calls of the quiet tenant for as long as `attack` runs; fails if one fails or is slow. They have a thread
    /// of their own, so that the work of the attacking clients is not measured.
    async fn quiet_during<T>(&self, attack: impl Future<Output = Result<T>>) -> Result<T> {
        let (is_over, url) =
            (Arc::new(AtomicBool::new(false)), format!("{}/quiet/mcp", self.node.base));
        let runs = Arc::clone(&is_over);
        let calls = async move {
            let quiet = Client::open(url, NEWEST).await?;
            while !runs.load(Ordering::Relaxed) {
                let begun = Instant::now();
                quiet.is_well().await.context("the quiet tenant")?;
                let took = begun.elapsed();
                ensure!(took < QUIET_MAX, "the quiet tenant waited {took:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok(())
        };
        let quiet = tokio::task::spawn_blocking(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(calls)
        });
        let done = attack.await;
        is_over.store(true, Ordering::Relaxed);
        quiet.await??;
        done
    }

    async fn issuer_requests(&self, kind: &str) -> Result<f64> {
        let text = reqwest::get(format!("{}/metrics", self.node.admin)).await?.text().await?;
        let of_kind = text.lines().filter(|line| {
            line.starts_with("roundhouse_issuer_requests_total")
                && line.contains(&format!("kind=\"{kind}\""))
        });
        Ok(of_kind.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }
}

async fn status(client: &Client) -> Result<StatusCode> {
    let message = client.message("initialize", client.introduction(json!({})));
    Ok(client.send(message).await?.status())
}

#[tokio::test]
async fn forged_tokens_are_refused() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let attacked = Attacked::start(&issuer, "")?;
    let claims = json!({ "sub": "ada", "aud": attacked.audience });
    let good = issuer.token(json!({ "kid": "rs", "claims": claims })).await?;
    ensure!(attacked.status(&good).await? == 200);
    let header = |alg: &str| json!({ "alg": alg, "kid": "rs", "typ": "at+jwt" });
    let with = |name: &str, value: Value| {
        let mut header = header("RS256");
        header[name] = value;
        header
    };
    for (header, by) in [
        (header("none"), "nothing"),
        (header("None"), "nothing"),
        (header("NONE"), "nothing"),
        (header("RS256"), "nothing"),
        // A public key as the secret of another algorithm.
        (header("HS256"), "pem"),
        (header("HS256"), "modulus"),
        (header("HS256"), "empty"),
        // The issuer's key, with an algorithm for which it is not published; and other kinds of keys.
        (header("PS256"), "issuer-pss"),
        (header("ES256"), "own"),
        (header("EdDSA"), "own"),
        // A key of the attacker, also if the header brings it.
        (header("RS256"), "own"),
        (with("jwk", json!("own")), "own"),
        (with("jku", json!("http://127.0.0.1:1/keys")), "own"),
        (with("x5u", json!("http://127.0.0.1:1/keys")), "own"),
        (with("kid", json!("../../etc/passwd")), "own"),
        (with("kid", json!("rs' OR '1'='1")), "own"),
        (with("kid", json!("")), "own"),
        (with("kid", json!("x".repeat(10_000))), "own"),
        (with("kid", json!(7)), "own"),
    ] {
        let claims = json!({ "aud": attacked.audience });
        let wanted = json!({ "header": header, "by": by, "claims": claims });
        let token = issuer.forge(wanted.clone()).await?;
        let client = attacked.client(&token);
        let message = client.message("initialize", client.introduction(json!({})));
        let response = client.send(message).await?;
        ensure!(response.status() == 401, "{}: {wanted}", response.status());
        let text = response.text().await?;
        // Only the algorithm is wrong with this one.
        let is_by_algorithm = text.contains("the algorithm of the token is not accepted");
        ensure!(by != "issuer-pss" || is_by_algorithm, "{text}");
    }
    // Other parts around a good signature, and a good token that is cut or longer.
    let parts: Vec<&str> = good.split('.').collect();
    let other = issuer.forge(json!({ "header": header("RS256"), "by": "nothing" })).await?;
    let payload = other.split('.').nth(1).context("no payload")?;
    for token in [
        format!("{}.{payload}.{}", parts[0], parts[2]),
        format!("{}.{}.", parts[0], parts[1]),
        format!("{}.{}", parts[0], parts[1]),
        format!("{good}."),
        format!("{good}.x"),
        format!(".{}.{}", parts[1], parts[2]),
        format!("{}..{}", parts[0], parts[2]),
        good[..good.len() - 3].to_owned(),
        "..".to_owned(),
        "a.b.c".to_owned(),
        ".".repeat(200),
        "opaque".to_owned(),
    ] {
        let found = attacked.status(&token).await?;
        ensure!(found == 401, "{found}: {token}");
    }
    ensure!(attacked.status(&good).await? == 200);
    Ok(())
}

#[tokio::test]
async fn huge_tokens_are_refused() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let attacked = Attacked::start(&issuer, "")?;
    let attack = async {
        for length in [1_000, 30_000, 60_000, 120_000] {
            let long = format!("a.{}.c", "b".repeat(length));
            let found = attacked.status(&long).await?;
            let expected = if length > 32_000 { 431 } else { 401 };
            ensure!(found == expected, "{length}: {found}");
        }
        Ok(())
    };
    attacked.quiet_during(attack).await
}

/// Tokens with unknown keys have the issuer asked once, however many come.
#[tokio::test]
async fn a_flood_of_unknown_keys_asks_the_issuer_once() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let attacked = Attacked::start(&issuer, "")?;
    let claims = json!({ "sub": "ada", "aud": attacked.audience });
    let good = issuer.token(json!({ "kid": "rs", "claims": claims })).await?;
    let client = attacked.client(&good).opened(json!({})).await?;
    let before = attacked.issuer_requests("keys").await?;
    let attack = async {
        let mut forged = Vec::new();
        for number in 0..50 {
            let header = json!({ "alg": "RS256", "kid": format!("unknown-{number}") });
            forged.push(issuer.forge(json!({ "header": header, "by": "own" })).await?);
        }
        let mut posts = JoinSet::new();
        for (number, token) in forged.iter().cycle().take(400).enumerate() {
            let client = attacked.client(&format!("{token}{}", number / 50));
            posts.spawn(async move { status(&client).await });
        }
        while let Some(found) = posts.join_next().await {
            let found = found??;
            ensure!(found == 401, "{found}");
            client.is_well().await?;
        }
        Ok(())
    };
    attacked.quiet_during(attack).await?;
    let asked = attacked.issuer_requests("keys").await? - before;
    ensure!(asked <= 2.0, "the issuer was asked {asked} times");
    Ok(())
}

/// Opaque tokens that were never issued are asked about a few at a time; the others are refused for now.
#[tokio::test]
async fn a_flood_of_opaque_tokens_is_bounded() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let more = format!(
        "introspection_url = '{}'\nclient_id = 'node'\nclient_secret = 's+ecret'\n",
        issuer.introspection_url()
    );
    let attacked = Attacked::start(&issuer, &more)?;
    let says = json!({
        "active": true, "sub": "ada", "exp": in_an_hour(), "aud": attacked.audience
    });
    issuer.introspects("good", says).await?;
    let client = attacked.client("good").opened(json!({})).await?;
    client.is_well().await?;
    issuer.be_slow(1_000).await?;
    let before = issuer.introspections().await?;
    // Another tenant with the same issuer.
    let says = json!({
        "active": true, "sub": "bob", "exp": in_an_hour(), "aud": attacked.audience
    });
    issuer.introspects("beside", says).await?;
    let beside = Client::new(format!("{}/beside/mcp", attacked.node.base), NEWEST);
    let beside = beside.with_key("beside");
    let attack = async {
        let mut posts = JoinSet::new();
        for number in 0..300 {
            let client = attacked.client(&format!("never-issued-{number}"));
            posts.spawn(async move { status(&client).await });
        }
        ensure!(status(&beside).await? == 200, "another tenant's client was refused");
        let mut refused = 0;
        while let Some(found) = posts.join_next().await {
            let found = found??;
            ensure!(found == 401 || found == 503, "{found}");
            refused += usize::from(found == 503);
        }
        Ok(refused)
    };
    let refused = attacked.quiet_during(attack).await?;
    let asked = issuer.introspections().await? - before;
    ensure!(refused >= 200 && asked <= 100, "{refused} refused, {asked} asked");
    Ok(())
}

// holds: SES-04
#[tokio::test]
async fn another_clients_session_and_events_are_unknown() -> Result<()> {
    let issuer = Issuer::mock().await?;
    let attacked = Attacked::start(&issuer, "")?;
    let token = async |claims: Value| issuer.token(json!({ "kid": "rs", "claims": claims })).await;
    let ada = token(json!({ "sub": "ada", "aud": attacked.audience })).await?;
    let client = attacked.client(&ada).opened(json!({})).await?;
    let call = client.call_with_progress("rh_count", json!({ "n": 3, "interval_ms": 1 }), json!(1));
    let mut stream = client.stream(call).await?;
    let (event, _) = stream.message().await?.context("no event")?;
    let event = event.id.context("no event id")?;
    for claims in [
        json!({ "sub": "bob", "aud": attacked.audience }),
        json!({ "sub": "ADA", "aud": attacked.audience }),
        json!({ "sub": "ada ", "aud": attacked.audience }),
        json!({ "sub": "x\nada", "aud": attacked.audience }),
        json!({ "client_id": "ada", "aud": attacked.audience }),
        json!({ "sub": format!("ada {} ada", issuer.url), "aud": attacked.audience }),
    ] {
        let thief = client.twin().with_key(&token(claims.clone()).await?);
        let ping = thief.message("ping", json!({}));
        let found = [
            thief.send(ping).await?.status(),
            thief.get(None).await?.status(),
            thief.get(Some(&event)).await?.status(),
            thief.delete().await?.status(),
        ];
        ensure!(found == [StatusCode::NOT_FOUND; 4], "{claims}: {found:?}");
    }
    client.is_well().await
}
