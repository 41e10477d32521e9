//! The HTTP level of Streamable HTTP: methods, heads, statuses, sessions, origins.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use tests::check::{self, Id};
use tests::mcp::{Client, DRAFT, REVISIONS};
use tests::{Node, Setup, raw};

const NEWEST: &str = "2025-11-25";

// holds: POST-03
#[tokio::test]
async fn accept_may_be_spelled_in_any_way_that_admits_both() -> Result<()> {
    let (_node, client) = start(NEWEST).await?;
    for accept in [
        "application/json, text/event-stream",
        "text/event-stream,application/json",
        "TEXT/event-stream; q=0.5, Application/JSON",
        "application/json, text/event-stream, text/html;q=0.1",
        "*/*",
        "application/*, text/*",
    ] {
        let response = ping_with(&client, "accept", accept).await?;
        ensure!(response.status() == 200, "{accept}: {}", response.status());
    }
    for accept in [
        "application/json",
        "text/event-stream",
        "text/html",
        "text/event-stream;q=0, application/json",
    ] {
        let response = ping_with(&client, "accept", accept).await?;
        ensure!(response.status() == 406, "{accept}: {}", response.status());
    }
    client.is_well().await
}

// holds: POST-04
#[tokio::test]
async fn a_body_must_be_declared_as_json() -> Result<()> {
    let (_node, client) = start(NEWEST).await?;
    let ping = client.message("ping", json!({})).to_string();
    for (kind, status) in [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON;charset=UTF-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/jsonp", 415),
    ] {
        let post = client.http(Method::POST).header("content-type", kind).body(ping.clone());
        let got = post.send().await?.status();
        ensure!(got == status, "{kind}: {got}");
    }
    let bare = client.http(Method::POST).body(ping).send().await?;
    check::status(&bare, 415)
}

// holds: GET-03
#[tokio::test]
async fn a_get_must_accept_events() -> Result<()> {
    let (node, client) = start(NEWEST).await?;
    let session = client.session.clone().context("no session")?;
    for (accept, status) in
        [("application/json", 406), ("text/html", 406), ("*/*", 200), ("text/*", 200)]
    {
        let get = reqwest::Client::new().get(node.demo()).header("mcp-session-id", &session);
        let got = get.header("accept", accept).send().await?.status();
        ensure!(got == status, "{accept}: {got}");
    }
    Ok(())
}

// holds: POST-01, GET-02
#[tokio::test]
async fn one_path_takes_four_methods_and_refuses_others_with_a_list() -> Result<()> {
    let (node, client) = start(NEWEST).await?;
    for method in [Method::PUT, Method::PATCH] {
        let response = client.http(method).send().await?;
        check::status(&response, 405)?;
        let allow = check::header(&response, "allow")?;
        for method in ["GET", "POST", "DELETE"] {
            ensure!(allow.contains(method), "{allow}");
        }
    }
    let unknown = Client::new(node.mcp("nobody"), NEWEST);
    let response = unknown.send(unknown.message("ping", json!({}))).await?;
    check::status(&response, 404)
}

// holds: POST-08, POST-09, RPC-05, RPC-10
#[tokio::test]
async fn notifications_and_answers_get_202_and_nothing() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        for method in [
            "notifications/initialized",
            "notifications/roots/list_changed",
            "notifications/vendor",
        ] {
            check::accepted(client.notify(method, json!({})).await?).await?;
        }
        // A response without a request may be refused, but is never answered (POST-09).
        let stray = client.answer(&json!("nobody-asked"), json!({})).await?.status();
        ensure!(stray == 202 || stray == 400, "{stray}");
    }
    Ok(())
}

// holds: SES-01, SES-02, SES-03
#[tokio::test]
async fn a_session_has_an_id_of_visible_ascii_that_nobody_guesses() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    let mut ids = HashSet::new();
    for revision in REVISIONS.iter().cycle().take(40) {
        let client = Client::open(node.demo(), revision).await?;
        let id = client.session.context("no session id")?;
        ensure!(id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)) && id.len() >= 32, "{id}");
        ids.insert(id);
    }
    ensure!(ids.len() == 40, "an id came twice");
    Ok(())
}

// holds: SES-05, SES-06
#[tokio::test]
async fn no_session_is_400_and_an_unknown_one_404_whatever_the_method() -> Result<()> {
    let (node, client) = start(NEWEST).await?;
    let nobody = Client::new(node.demo(), NEWEST);
    check::refused(list(&nobody).await?, 400, -32600, Id::Any).await?;
    check::status(&nobody.get(None).await?, 400)?;
    check::status(&nobody.delete().await?, 400)?;
    let almost = format!("{}0", client.session.clone().context("no session")?);
    for id in ["00000000-0000-4000-8000-000000000000", "no such session", "x", &almost] {
        let mut stranger = Client::new(node.demo(), NEWEST);
        stranger.session = Some(id.to_owned());
        check::status(&list(&stranger).await?, 404)?;
        check::status(&stranger.get(None).await?, 404)?;
        check::status(&stranger.delete().await?, 404)?;
    }
    client.is_well().await
}

// holds: SES-06, SES-07, SES-08
#[tokio::test]
async fn delete_ends_a_session_with_its_streams_and_its_work() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        for revision in REVISIONS {
            let client = Client::open(node.demo(), revision).await?;
            let mut listening = client.listen().await?;
            let arguments = json!({"n": 1_000, "interval_ms": 20});
            let call = client.call_with_progress("rh_count", arguments, json!(1));
            let mut stream = client.stream(call).await?;
            stream.message().await?.context("nothing came")?;
            let ended = client.delete().await?.status();
            ensure!(ended.is_success(), "{ended}");
            listening.rest().await?;
            stream.rest().await?;
            check::status(&list(&client).await?, 404)?;
            check::status(&client.get(None).await?, 404)?;
            check::status(&client.delete().await?, 404)?;
        }
        ensure!(node.metric("roundhouse_sessions").await? == Some(0.0));
    }
    Ok(())
}

// holds: SES-11
#[tokio::test]
async fn a_live_session_is_never_initialized_again() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        let again = client.message("initialize", initialize(revision));
        let id = again["id"].clone();
        check::refused(client.send(again).await?, 400, -32600, Id::Of(id)).await?;
        client.is_well().await?;
    }
    Ok(())
}

// holds: SES-13, HDR-06
#[tokio::test]
async fn header_names_come_in_any_case() -> Result<()> {
    let (node, client) = start(DRAFT).await?;
    let session = client.session.clone().context("no session")?;
    let body = client.message("ping", json!({})).to_string();
    let head = format!(
        "POST /demo/mcp HTTP/1.1\r\nhOST: {}\r\nCONTENT-type: application/json\r\naCCept: */*\r\n\
         MCP-SESSION-ID: {session}\r\nmcp-PROTOCOL-version: {DRAFT}\r\nMCP-method: ping\r\n\
         content-LENGTH: {}\r\nConnection: close\r\n\r\n{body}",
        node.base.trim_start_matches("http://"),
        body.len(),
    );
    let answer = raw::send(&node.base, head.as_bytes(), Duration::from_secs(5)).await?;
    ensure!(answer.status == Some(200) && answer.text.contains(r#""result":{}"#), "{answer:?}");
    Ok(())
}

// holds: SES-04, SES-06
#[tokio::test]
async fn a_session_of_one_tenant_is_unknown_to_another() -> Result<()> {
    let tenant = |name: &str| {
        format!(
            "[tenants.{name}]\nauth = \"open\"\n[tenants.{name}.backends.it]\nkind = \"native\"\nname = \"everything\"\n"
        )
    };
    let node = Node::start(&Setup::config(tenant("acme") + &tenant("evil")))?;
    let acme = Client::open(node.mcp("acme"), NEWEST).await?;
    let events =
        acme.stream(acme.call_with_progress("rh_count", json!({"n": 2}), json!(1))).await?;
    let events = {
        let mut events = events;
        events.rest().await?
    };
    let cursor = events[0].id.clone().context("no id")?;
    let mut evil = Client::open(node.mcp("evil"), NEWEST).await?;
    check::status(&evil.get(Some(&cursor)).await?, 400)?;
    evil.session = acme.session.clone();
    check::status(&list(&evil).await?, 404)?;
    check::status(&evil.get(Some(&cursor)).await?, 404)?;
    check::status(&evil.delete().await?, 404)?;
    acme.is_well().await
}

// holds: RPC-08, VER-11, VER-13
#[tokio::test]
async fn a_known_revision_is_agreed_to_and_for_others_the_newest_is_offered() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        for (asked, given) in [
            ("2024-11-05", "2024-11-05"),
            ("2025-03-26", "2025-03-26"),
            ("2025-06-18", "2025-06-18"),
            (NEWEST, NEWEST),
            (DRAFT, DRAFT),
            ("2026-07-28", NEWEST),
            ("1999-01-01", NEWEST),
            ("", NEWEST),
        ] {
            let mut client = Client::new(node.demo(), asked);
            client.initialize(json!({})).await?;
            ensure!(client.revision == given, "{asked} gave {}", client.revision);
        }
    }
    Ok(())
}

// holds: VER-01, VER-02, VER-03, VER-04, VER-05
#[tokio::test]
async fn the_version_header_is_checked_to_be_known_and_the_sessions_own_decides() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    for revision in ["2025-03-26", "2025-06-18", NEWEST] {
        let client = Client::open(node.demo(), revision).await?;
        let session = client.session.clone().context("no session")?;
        let http = reqwest::Client::new();
        let post = |version: Option<&str>| {
            let post = http.post(node.demo()).header("mcp-session-id", &session);
            let post = post.header("accept", "application/json, text/event-stream");
            let body =
                json!([client.message("ping", json!({})), client.message("ping", json!({}))]);
            let post = post.json(&body);
            version.iter().fold(post, |post, version| post.header("mcp-protocol-version", *version))
        };
        // Batches show which revision applies.
        let due = if revision == "2025-03-26" { 200 } else { 400 };
        for version in [None, Some(revision), Some("2025-03-26"), Some(NEWEST)] {
            let got = post(version).send().await?.status();
            ensure!(got == due, "{revision} with {version:?}: {got}");
        }
        for version in ["nope", "2025-11-26", "1999-01-01"] {
            let response = post(Some(version)).send().await?;
            ensure!(response.status() == 400, "{version}: {}", response.status());
            for method in [Method::GET, Method::DELETE] {
                let request = http.request(method, node.demo()).header("mcp-session-id", &session);
                let request = request.header("accept", "text/event-stream");
                let response = request.header("mcp-protocol-version", version).send().await?;
                check::status(&response, 400)?;
            }
        }
        client.is_well().await?;
    }
    Ok(())
}

// holds: SEC-01, SEC-02, CORS-05
#[tokio::test]
async fn a_strangers_page_is_refused_on_every_method_and_endpoint() -> Result<()> {
    let (node, client) = start(NEWEST).await?;
    let session = client.session.clone().context("no session")?;
    for path in ["/demo/mcp", "/demo/sse", "/demo/messages?session=x"] {
        for method in [Method::GET, Method::POST, Method::DELETE, Method::OPTIONS] {
            for origin in ["http://evil.example.com", "https://localhost.evil.example.com", "null"]
            {
                let request =
                    reqwest::Client::new().request(method.clone(), format!("{}{path}", node.base));
                let request = request.header("origin", origin).header("mcp-session-id", &session);
                let request = request.header("access-control-request-method", "POST");
                let response = request.header("accept", "*/*").send().await?;
                ensure!(
                    response.status() == 403,
                    "{method} {path} {origin}: {}",
                    response.status()
                );
                // The page may read why; its browser sends nothing after such a preflight.
                ensure!(!response.headers().contains_key("access-control-allow-methods"));
                ensure!(!response.headers().contains_key("access-control-allow-headers"));
            }
        }
    }
    for origin in ["http://localhost:5173", "http://127.0.0.1:1", "http://[::1]:9"] {
        let response = ping_with(&client, "origin", origin).await?;
        check::status(&response, 200)?;
        ensure!(check::header(&response, "access-control-allow-origin")? == origin);
        ensure!(check::header(&response, "vary")?.to_lowercase().contains("origin"));
    }
    check::status(&ping(&client).await?, 200)
}

// holds: SEC-03, SEC-04
#[tokio::test]
async fn a_loopback_listener_answers_to_local_names_only() -> Result<()> {
    let (node, client) = start(NEWEST).await?;
    ensure!(node.base.starts_with("http://127.0.0.1:"), "{}", node.base);
    for host in
        ["evil.example.com", "evil.example.com:80", "127.0.0.1.evil.example.com", "localhost.evil"]
    {
        let response = ping_with(&client, "host", host).await?;
        ensure!((400..500).contains(&response.status().as_u16()), "{host}: {}", response.status());
    }
    for host in ["localhost", "localhost:1234", "127.0.0.1", "[::1]:8080", "LOCALHOST"] {
        check::status(&ping_with(&client, "host", host).await?, 200).context(host)?;
    }
    Ok(())
}

// holds: CORS-01, CORS-02, CORS-03, CORS-04
#[tokio::test]
async fn pages_on_the_list_may_use_the_endpoint_from_a_browser() -> Result<()> {
    let node = Node::start(&Setup::config(
        "[front]\nallowed_origins = [\"https://app.example.com\"]\n[tenants.demo]\nauth = \"open\"\n\
         [tenants.demo.backends.it]\nkind = \"native\"\nname = \"everything\"\n",
    ))?;
    let origin = "https://app.example.com";
    let asked = "authorization, content-type, mcp-session-id, mcp-protocol-version, last-event-id, \
                 accept, mcp-method, mcp-name, mcp-param-region";
    let preflight = reqwest::Client::new().request(Method::OPTIONS, node.demo());
    let preflight =
        preflight.header("origin", origin).header("access-control-request-method", "POST");
    let response = preflight.header("access-control-request-headers", asked).send().await?;
    ensure!(response.status() == 204 || response.status() == 200, "{}", response.status());
    ensure!(check::header(&response, "access-control-allow-origin")? == origin);
    let methods = check::header(&response, "access-control-allow-methods")?;
    for method in ["GET", "POST", "DELETE", "OPTIONS"] {
        ensure!(methods.contains(method), "{methods}");
    }
    let allowed = check::header(&response, "access-control-allow-headers")?.to_lowercase();
    let allowed: HashSet<&str> = allowed.split(',').map(str::trim).collect();
    for name in asked.split(',').map(str::trim) {
        ensure!(allowed.contains(name), "{name} is not in {allowed:?}");
    }
    // An error must have these headers too, or a page cannot read it.
    let client = Client::open(node.demo(), NEWEST).await?;
    let mut stranger = Client::new(node.demo(), NEWEST);
    stranger.session = Some("00000000-0000-4000-8000-000000000000".into());
    for (client, status) in [(&client, 200), (&stranger, 404)] {
        let response = ping_with(client, "origin", origin).await?;
        check::status(&response, status)?;
        ensure!(check::header(&response, "access-control-allow-origin")? == origin);
        let exposed = check::header(&response, "access-control-expose-headers")?.to_lowercase();
        for name in ["mcp-session-id", "mcp-protocol-version"] {
            ensure!(exposed.contains(name), "{exposed}");
        }
    }
    Ok(())
}

// holds: RPC-11
#[tokio::test]
async fn before_initialized_the_server_says_nothing() -> Result<()> {
    let node = Node::start(&Setup::fixture())?;
    for revision in REVISIONS {
        let mut client = Client::new(node.demo(), revision);
        client.initialize(json!({"roots": {"listChanged": true}, "sampling": {}})).await?;
        let mut listening = client.listen().await?;
        ensure!(listening.is_quiet_for(Duration::from_millis(300)).await?);
    }
    Ok(())
}

async fn start(revision: &str) -> Result<(Node, Client)> {
    let node = Node::start(&Setup::demo())?;
    let client = Client::open(node.demo(), revision).await?;
    Ok((node, client))
}

fn initialize(revision: &str) -> Value {
    json!({"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "scenarios", "version": "1"}})
}

async fn ping(client: &Client) -> Result<Response> {
    client.send(client.message("ping", json!({}))).await
}

/// A ping with one header added or replaced.
async fn ping_with(client: &Client, name: &str, value: &str) -> Result<Response> {
    let mut request = client.http(Method::POST).json(&client.message("ping", json!({}))).build()?;
    let name = reqwest::header::HeaderName::from_bytes(name.as_bytes())?;
    request.headers_mut().insert(name, value.parse()?);
    Ok(reqwest::Client::new().execute(request).await?)
}

/// A request that is not `initialize`.
async fn list(client: &Client) -> Result<Response> {
    client.send(client.message("tools/list", json!({}))).await
}
