//! Tools that answer without sending other messages first.

use serde_json::{Value, json};

use crate::client::{Client, Kind, text};

pub(crate) async fn the_first_tool_needs_nothing_and_succeeds(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    let tools = client.request("tools/list", json!({})).await["result"]["tools"].clone();
    assert_eq!(tools[0]["name"], "test_simple_text");
    for tool in tools.as_array().unwrap() {
        let name = tool["name"].as_str().unwrap();
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        assert!((1..=64).contains(&name.len()) && name.chars().all(plain), "{name}");
        assert!(tool["description"].is_string() && tool["inputSchema"]["type"] == "object");
    }
    let answer = client.request("tools/call", json!({ "name": "test_simple_text" })).await;
    assert_eq!(text(&answer["result"]), "This is a simple text response for testing.");
}

pub(crate) async fn each_kind_of_content_is_there(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    let image = client.call("test_image_content", json!({})).await["content"][0].clone();
    assert_eq!((&image["type"], &image["mimeType"]), (&json!("image"), &json!("image/png")));
    let sound = client.call("test_audio_content", json!({})).await["content"][0].clone();
    assert_eq!((&sound["type"], &sound["mimeType"]), (&json!("audio"), &json!("audio/wav")));
    let resource = client.call("test_embedded_resource", json!({})).await["content"][0].clone();
    let embedded = json!({
        "uri": "test://embedded-resource",
        "mimeType": "text/plain",
        "text": "This is an embedded resource content.",
    });
    assert_eq!(resource, json!({ "type": "resource", "resource": embedded }));
    let mixed = client.call("test_multiple_content_types", json!({})).await["content"].clone();
    let types: Vec<_> = mixed.as_array().unwrap().iter().map(|c| c["type"].clone()).collect();
    assert_eq!(types, ["text", "image", "resource"]);
    assert_eq!(mixed[2]["resource"]["text"], r#"{"test":"data","value":123}"#);
}

pub(crate) async fn schemas_keep_every_keyword_and_their_order(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    let tools = client.request("tools/list", json!({})).await["result"]["tools"].clone();
    let schema = |name: &str| {
        let tool = tools.as_array().unwrap().iter().find(|tool| tool["name"] == name);
        tool.unwrap()["inputSchema"].to_string()
    };
    let contact = concat!(
        r##"{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","##,
        r##""$defs":{"address":{"$anchor":"addressDef","type":"object","properties":"##,
        r##"{"street":{"type":"string"},"city":{"type":"string"}}}},"##,
        r##""properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"},"##,
        r##""contactMethod":{"type":"string","enum":["phone","email"]},"##,
        r##""phone":{"type":"string"},"email":{"type":"string"}},"##,
        r##""allOf":[{"anyOf":[{"required":["phone"]},{"required":["email"]}]}],"##,
        r##""if":{"properties":{"contactMethod":{"const":"phone"}},"required":["contactMethod"]},"##,
        r##""then":{"required":["phone"]},"else":{"required":["email"]},"##,
        r##""additionalProperties":false}"##,
    );
    assert_eq!(schema("json_schema_2020_12_tool"), contact);
    assert!(schema("test_custom_header").contains(r#""x-mcp-header":"Value""#));
    let value = json!({ "value": "Hello" });
    assert_eq!(client.text("test_custom_header", value).await, "Hello");
}

pub(crate) async fn an_unknown_tool_is_an_error_and_a_failing_one_is_not(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    let unknown = client.request("tools/call", json!({ "name": "no_such_tool" })).await;
    assert_eq!(unknown["error"]["code"], -32602);
    let failed = client.call("test_error_handling", json!({})).await;
    assert_eq!(failed["isError"], true);
    assert_eq!(text(&failed), "This tool intentionally returns an error for testing");
}

pub(crate) async fn a_missing_argument_is_the_tools_failure(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    for (tool, argument) in
        [("test_sampling", "prompt"), ("test_elicitation", "message"), ("rh_sleep", "ms")]
    {
        let failed = client.call(tool, json!({})).await;
        assert_eq!(failed["isError"], true, "{tool}");
        assert!(text(&failed).contains(argument), "{tool}");
    }
    let too_long = client.call("rh_big", json!({ "bytes": 1_u64 << 40 })).await;
    assert_eq!(too_long["isError"], true);
}

pub(crate) async fn an_echo_returns_its_arguments_twice(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    let arguments = json!({ "z": 1, "a": [true, null, "é"], "m": { "x": 1.5 } });
    let echoed = client.call("rh_echo", arguments.clone()).await;
    assert_eq!(text(&echoed), arguments.to_string());
    assert_eq!(echoed["structuredContent"].to_string(), arguments.to_string());
}

pub(crate) async fn a_tool_comes_and_goes(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    for is_there in [true, false] {
        client.send("tools/call", json!({ "name": "rh_toggle_tool" })).await;
        assert_eq!(client.next().await["method"], "notifications/tools/list_changed");
        client.next().await;
        let tools = client.request("tools/list", json!({})).await["result"]["tools"].clone();
        let is_dynamic = |tool: &Value| tool["name"] == "rh_dynamic";
        assert_eq!(tools.as_array().unwrap().iter().any(is_dynamic), is_there);
        let called = client.request("tools/call", json!({ "name": "rh_dynamic" })).await;
        assert_eq!(called["error"].is_null(), is_there);
    }
}

pub(crate) async fn a_text_is_as_long_as_it_was_asked_for(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    for bytes in [0, 1, 3 << 20] {
        assert_eq!(client.text("rh_big", json!({ "bytes": bytes })).await.len(), bytes);
    }
}

pub(crate) async fn the_environment_is_told_only_by_a_process_of_its_own(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    let told = client.call("rh_env", json!({})).await;
    assert_eq!(told["isError"], kind == Kind::Native);
    let names = text(&told);
    assert_eq!(names.lines().any(|name| name == "PATH"), kind == Kind::Program);
    let pid = client.text("rh_pid", json!({})).await;
    assert_eq!(pid == std::process::id().to_string(), kind == Kind::Native);
}
