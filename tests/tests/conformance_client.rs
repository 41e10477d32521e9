//! The public conformance suite for clients: its server is behind a node, which is its client.
//!
//! What the suite asks of a client's user, such as which tool is called with which arguments, comes from
//! the client of the node. The scenarios on authorization with a browser are not for a node.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::conformance::client::scenario;
use tests::mcp::{Client, DRAFT, is_response, messages, result};
use tests::{Node, Setup};

const REVISION: &str = "2025-11-25";

/// A node in front of the suite's server, and a client of it.
async fn through(url: &str, capabilities: Value) -> Result<(Node, Client)> {
    let node = Node::start(&Setup::in_front_of(url))?;
    let client = Client::open_with(node.demo(), REVISION, capabilities).await?;
    Ok((node, client))
}

#[tokio::test]
async fn the_handshake_with_a_server_conforms() -> Result<()> {
    for revision in ["2025-06-18", REVISION] {
        scenario("initialize", revision, async |url| {
            let (_node, client) = through(&url, json!({})).await?;
            result(client.request("tools/list", json!({})).await?)?;
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_call_reaches_a_server_with_its_arguments() -> Result<()> {
    for revision in ["2025-06-18", REVISION] {
        scenario("tools_call", revision, async |url| {
            let (_node, client) = through(&url, json!({})).await?;
            result(client.request("tools/list", json!({})).await?)?;
            client.tool("add_numbers", json!({ "a": 5, "b": 3 })).await?;
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_stream_is_resumed_when_the_server_wishes() -> Result<()> {
    scenario("sse-retry", REVISION, async |url| {
        let (_node, client) = through(&url, json!({})).await?;
        result(client.request("tools/list", json!({})).await?)?;
        client.tool("test_reconnection", json!({})).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_schema_of_a_tool_arrives_unchanged() -> Result<()> {
    scenario("json-schema-2020-12-preservation", REVISION, async |url| {
        let (_node, client) = through(&url, json!({})).await?;
        let list = result(client.request("tools/list", json!({})).await?)?;
        let tools = list["tools"].as_array().context("no tools")?;
        let [rich, echo] = &tools[..] else { anyhow::bail!("the tools are {list}") };
        let name = echo["name"].as_str().context("no name")?;
        client.tool(name, json!({ "schema": rich["inputSchema"] })).await?;
        Ok(())
    })
    .await
}

/// The client of the node fills the defaults in; the schema with them and the answer pass through.
#[tokio::test]
async fn defaults_of_a_servers_question_reach_the_client() -> Result<()> {
    scenario("elicitation-sep1034-client-defaults", REVISION, async |url| {
        let capabilities = json!({ "elicitation": { "form": { "applyDefaults": true } } });
        let (_node, client) = through(&url, capabilities).await?;
        let list = result(client.request("tools/list", json!({})).await?)?;
        let name = list["tools"][0]["name"].as_str().context("no tool")?;
        let mut events = client.stream(client.call(name, json!({}))).await?;
        loop {
            let block = events.next().await?.context("the stream ended")?;
            for message in messages(&[block]) {
                if is_response(&message) {
                    result(message)?;
                    return Ok(());
                }
                let properties = message["params"]["requestedSchema"]["properties"].as_object();
                let properties = properties.context("no schema")?.iter();
                let content: serde_json::Map<_, _> = properties
                    .filter_map(|(name, schema)| {
                        Some((name.clone(), schema.get("default")?.clone()))
                    })
                    .collect();
                let answer = json!({ "action": "accept", "content": content });
                client.answer(&message["id"], answer).await?;
            }
        }
    })
    .await
}

/// The suite's server has a later revision than the draft, with the same headers. Its rules differ from those
/// of the draft in one tool only: numbers may be mirrored in the draft.
const LATER: &str = "2026-07-28";

/// A node that asks the suite's server for the draft, and a client of the node.
async fn through_with_headers(url: &str) -> Result<(Node, Client)> {
    let node = Node::start(&Setup::in_front_of_asking(url, DRAFT))?;
    let client = Client::open(node.demo(), REVISION).await?;
    Ok((node, client))
}

// holds: HDR-16
#[tokio::test]
async fn messages_are_mirrored_in_headers() -> Result<()> {
    scenario("http-standard-headers", LATER, async |url| {
        let (_node, client) = through_with_headers(&url).await?;
        for (list, items, method, name) in [
            ("tools/list", "tools", "tools/call", "name"),
            ("resources/list", "resources", "resources/read", "uri"),
            ("prompts/list", "prompts", "prompts/get", "name"),
        ] {
            let listed = result(client.request(list, json!({})).await?)?;
            for item in listed[items].as_array().context("no list")? {
                result(client.request(method, json!({ name: item[name] })).await?)?;
            }
        }
        Ok(())
    })
    .await
}

// holds: HDR-16
#[tokio::test]
#[expect(clippy::approx_constant, reason = "the suite expects these digits")]
async fn arguments_are_mirrored_in_headers() -> Result<()> {
    scenario("http-custom-headers", LATER, async |url| {
        let (_node, client) = through_with_headers(&url).await?;
        let arguments = json!({
            "region": "us-west1", "priority": 42, "verbose": false, "debug": true, "empty_val": "",
            "method_val": "test-method", "float_val": 3.14159, "non_ascii_val": "Hello, 世界",
            "whitespace_val": " padded ", "leading_space_val": " us-west1",
            "trailing_space_val": "us-west1 ", "internal_space_val": "us west 1",
            "control_char_val": "line1\nline2", "crlf_val": "line1\r\nline2", "tab_val": "\tindented",
            "query": "SELECT * FROM users",
        });
        client.tool("test_custom_headers", arguments).await?;
        let nothing = json!({ "region": "us-east1", "priority": 1, "verbose": null, "query": "" });
        client.tool("test_custom_headers_null", nothing).await?;
        Ok(())
    })
    .await
}

// holds: HDR-16
#[tokio::test]
async fn tools_with_invalid_annotations_for_headers_are_not_offered() -> Result<()> {
    scenario("http-invalid-tool-headers", LATER, async |url| {
        let (_node, client) = through_with_headers(&url).await?;
        let list = result(client.request("tools/list", json!({})).await?)?;
        let names = list["tools"].as_array().context("no tools")?.iter();
        let names: Vec<_> = names.filter_map(|tool| tool["name"].as_str()).collect();
        // The draft has no rule against numbers.
        ensure!(names == ["valid_tool", "invalid_number_header"], "{names:?}");
        client.tool("valid_tool", json!({ "region": "x" })).await?;
        Ok(())
    })
    .await
}
