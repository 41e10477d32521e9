//! Runs the examples and uses them as a client does.

use crate::client::Client;
use anyhow::Result;
use serde_json::json;

#[tokio::test]
async fn a_handler_is_mounted_in_ten_lines_and_answers() -> Result<()> {
    let node = crate::handler::node().on_free_ports().start().await?;
    let client = Client::initialize(&node.url("acme")).await?;
    assert_eq!(client.server["name"], "echo");
    let tools = client.call("tools/list", json!({})).await?;
    assert_eq!(tools["tools"][0]["name"], "echo");
    let params = json!({ "name": "echo", "arguments": { "text": "grüezi" } });
    let result = client.call("tools/call", params).await?;
    assert_eq!(result["content"][0]["text"], "grüezi");
    node.stop().await;
    Ok(())
}

#[tokio::test]
async fn an_rmcp_service_is_mounted_as_it_is_and_each_session_has_its_own() -> Result<()> {
    let node = crate::rmcp_service::node().on_free_ports().start().await?;
    let params = json!({ "name": "count", "arguments": {} });
    let one = Client::initialize(&node.url("acme")).await?;
    for expected in ["call 1", "call 2"] {
        let result = one.call("tools/call", params.clone()).await?;
        assert_eq!(result["content"][0]["text"], expected);
    }
    let other = Client::initialize(&node.url("acme")).await?;
    let result = other.call("tools/call", params).await?;
    assert_eq!(result["content"][0]["text"], "call 1");
    node.stop().await;
    Ok(())
}
