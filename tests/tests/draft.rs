//! DRAFT-2026-v1: headers that mirror the body, and server requests only within a request.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tests::check::{self, Id};
use tests::mcp::{Client, DRAFT, mirrored};
use tests::{Node, Setup};

// holds: HDR-01, HDR-02, HDR-04, HDR-05
#[tokio::test]
async fn headers_that_mirror_the_body_must_be_there_and_agree() -> Result<()> {
    let (_node, client) = start().await?;
    let call = || client.call("test_simple_text", json!({}));
    let read = || client.message("resources/read", json!({"uri": "test://static-text"}));
    let get = || client.message("prompts/get", json!({"name": "test_simple_prompt"}));
    let note = || json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"});
    for (message, headers) in [
        (call(), vec![]),
        (call(), vec![("mcp-method", "tools/call")]),
        (call(), vec![("mcp-name", "test_simple_text")]),
        (call(), vec![("mcp-method", "tools/list"), ("mcp-name", "test_simple_text")]),
        (call(), vec![("mcp-method", "tools/call"), ("mcp-name", "test_image_content")]),
        (call(), vec![("mcp-method", "TOOLS/CALL"), ("mcp-name", "test_simple_text")]),
        (call(), vec![("mcp-method", "tools/call"), ("mcp-name", "Test_Simple_Text")]),
        (read(), vec![("mcp-method", "resources/read")]),
        (read(), vec![("mcp-method", "resources/read"), ("mcp-name", "test://static-binary")]),
        (get(), vec![("mcp-method", "prompts/get")]),
        (client.message("ping", json!({})), vec![]),
        (client.message("ping", json!({})), vec![("mcp-method", "tools/list")]),
        (note(), vec![]),
        (note(), vec![("mcp-method", "notifications/initialized")]),
    ] {
        let response = with(&client, &message, &headers).await?;
        let told = format!("{message} with {headers:?}");
        check::refused(response, 400, -32001, Id::Any).await.context(told)?;
    }
    for message in [call(), read(), get()] {
        let response = client.send(message.clone()).await?;
        ensure!(response.status() == 200, "{message}: {}", response.status());
    }
    check::accepted(client.send(note()).await?).await?;
    client.is_well().await
}

// holds: HDR-06
#[tokio::test]
async fn white_space_around_a_mirrored_value_means_nothing() -> Result<()> {
    let (_node, client) = start().await?;
    let call = client.call("test_simple_text", json!({}));
    let headers = [("MCP-METHOD", "  tools/call\t"), ("Mcp-name", " test_simple_text ")];
    check::status(&with(&client, &call, &headers).await?, 200)
}

// holds: HDR-10, HDR-18
#[tokio::test]
async fn parameters_that_a_tool_mirrors_are_compared_once_its_schema_is_known() -> Result<()> {
    let (_node, client) = start().await?;
    let tools = client.request("tools/list", json!({})).await?;
    ensure!(tools.to_string().contains("x-mcp-header"), "the fixture mirrors nothing: {tools}");
    let call = |value: Option<&str>| {
        let arguments = value.map_or(json!({}), |value| json!({"value": value}));
        client.call("test_custom_header", arguments)
    };
    for (value, header, status) in [
        (Some("Hello"), Some("Hello"), 200),
        (Some("Hello"), Some("=?base64?SGVsbG8=?="), 200),
        (Some("é"), Some("=?base64?w6k=?="), 200),
        (Some("Hello"), Some("hello"), 400),
        (Some("Hello"), Some("=?base64?SGVsbG8?="), 400),
        (Some("Hello"), Some("=?base64?SGVs!!!bG8=?="), 400),
        (Some("Hello"), None, 400),
    ] {
        let message = call(value);
        let mut headers = vec![("mcp-method", "tools/call"), ("mcp-name", "test_custom_header")];
        headers.extend(header.map(|header| ("mcp-param-value", header)));
        let response = with(&client, &message, &headers).await?;
        ensure!(response.status() == status, "{value:?} {header:?}: {}", response.status());
        if status == 400 {
            check::refused(response, 400, -32001, Id::Any).await?;
        }
    }
    // A header that no schema names is not checked.
    let message = client.call("test_simple_text", json!({}));
    let headers =
        [("mcp-method", "tools/call"), ("mcp-name", "test_simple_text"), ("mcp-param-region", "x")];
    check::status(&with(&client, &message, &headers).await?, 200)
}

// holds: HDR-21
#[tokio::test]
async fn older_revisions_are_not_held_to_any_of_it() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let client = Client::open(node.demo(), revision).await?;
        let message = client.call("test_simple_text", json!({}));
        for headers in [vec![], vec![("mcp-method", "forged"), ("mcp-name", "forged")]] {
            let message = json!({"jsonrpc": "2.0", "id": format!("{headers:?}"), "method": "tools/call", "params": message["params"]});
            check::status(&with(&client, &message, &headers).await?, 200).context(revision)?;
        }
    }
    Ok(())
}

// holds: HDR-01
#[tokio::test]
async fn initialize_needs_the_headers_once_the_draft_is_asked_for() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    let client = Client::new(node.demo(), DRAFT);
    let params = json!({"protocolVersion": DRAFT, "capabilities": {}, "clientInfo": {"name": "s", "version": "1"}});
    let initialize = client.message("initialize", params);
    let wrong = with(&client, &initialize, &[("mcp-method", "ping")]).await?;
    check::refused(wrong, 400, -32001, Id::Any).await?;
    let right = client.http(Method::POST).headers(mirrored(&initialize)?).json(&initialize);
    check::status(&right.send().await?, 200)
}

// holds: GET-06, ROOT-03, ROOT-01
#[tokio::test]
async fn questions_come_on_the_requests_own_stream_only() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        let capabilities = json!({"roots": {}, "sampling": {}, "elicitation": {}});
        let client = Client::open_with(node.demo(), DRAFT, capabilities).await?;
        let mut listening = client.listen().await?;
        for (tool, arguments, question, reply) in [
            (
                "rh_roots",
                json!({}),
                "roots/list",
                json!({"roots": [{"uri": "file:///home", "name": "home"}]}),
            ),
            (
                "test_sampling",
                json!({"prompt": "?"}),
                "sampling/createMessage",
                json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "x"}}),
            ),
            (
                "test_elicitation",
                json!({"message": "?"}),
                "elicitation/create",
                json!({"action": "accept", "content": {"username": "a", "email": "a@b.cc"}}),
            ),
        ] {
            let mut stream = client.stream(client.call(tool, arguments)).await?;
            let (_, asked) = stream.message().await?.context("no question")?;
            ensure!(asked["method"] == question, "{asked}");
            check::accepted(client.answer(&asked["id"], reply).await?).await?;
            let (_, word) = stream.message().await?.context("no response")?;
            ensure!(word.get("result").is_some(), "{word}");
        }
        ensure!(listening.is_quiet_for(Duration::from_millis(300)).await?);
    }
    Ok(())
}

// holds: RPC-19, RPC-18
#[tokio::test]
async fn trace_context_reaches_the_server() -> Result<()> {
    let script = tests::tools::root().join("tests/servers/odd.py").display().to_string();
    let python = tests::tools::python("py1").display().to_string();
    let node = Node::start(&Setup::hosting([python, script]))?;
    for revision in tests::mcp::REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        let meta = json!({
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "tracestate": "a=1",
            "baggage": "b=2",
            "vendor.example/key": {"deep": [1, 2]},
        });
        let params = json!({"name": "schema", "arguments": {}, "_meta": meta});
        let word = client.request("tools/call", params).await?;
        let text = word["result"]["content"][0]["text"].as_str().context("no text")?;
        let seen: Value = serde_json::from_str(text)?;
        ensure!(seen == meta, "{seen}");
    }
    Ok(())
}

async fn start() -> Result<(Node, Client)> {
    let node = Node::start(&Setup::demo())?;
    let client = Client::open(node.demo(), DRAFT).await?;
    Ok((node, client))
}

/// Posts a message with these headers, and no other headers that mirror it.
async fn with(
    client: &Client,
    message: &Value,
    headers: &[(&str, &str)],
) -> Result<reqwest::Response> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(HeaderName::from_bytes(name.as_bytes())?, HeaderValue::from_str(value)?);
    }
    Ok(client.http(Method::POST).headers(map).json(message).send().await?)
}
