//! The handshake, resources, prompts, completions.

use serde_json::{Value, json};

use crate::client::{Client, Kind, text};

pub(crate) async fn every_revision_with_a_handshake_is_spoken(kind: Kind) {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut client = Client::connect(kind, None).await;
        let result = client.initialize(version, json!({})).await;
        assert_eq!(result["protocolVersion"], version);
        let capabilities = json!({
            "logging": {},
            "completions": {},
            "prompts": {},
            "resources": { "subscribe": true },
            "tools": { "listChanged": true },
        });
        assert_eq!(result["capabilities"], capabilities);
        assert_eq!(client.request("ping", json!({})).await["result"], json!({}));
    }
}

pub(crate) async fn lists_come_in_pages_that_make_up_the_whole(kind: Kind) {
    let mut whole = Client::connect(kind, None).await;
    whole.initialize("2025-11-25", json!({})).await;
    let mut paged = Client::connect(kind, Some(2)).await;
    paged.initialize("2025-11-25", json!({})).await;
    for (method, list) in [
        ("tools/list", "tools"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
        ("prompts/list", "prompts"),
    ] {
        let all = whole.request(method, json!({})).await["result"][list].clone();
        let (mut pages, mut params) = (Vec::new(), json!({}));
        loop {
            let page = paged.request(method, params).await["result"].clone();
            let items = page[list].as_array().unwrap();
            assert!((1..=2).contains(&items.len()));
            pages.extend(items.clone());
            match page.get("nextCursor") {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => break,
            }
        }
        assert_eq!(Value::from(pages), all, "{method}");
    }
}

pub(crate) async fn a_cursor_that_was_never_given_out_is_refused(kind: Kind) {
    let mut client = Client::connect(kind, Some(2)).await;
    client.initialize("2025-11-25", json!({})).await;
    let page = client.request("prompts/list", json!({})).await;
    let elsewhere = page["result"]["nextCursor"].as_str().unwrap().to_owned();
    for cursor in ["bogus", "", &elsewhere] {
        let refused = client.request("tools/list", json!({ "cursor": cursor })).await;
        assert_eq!(refused["error"]["code"], -32602, "{cursor}");
    }
}

pub(crate) async fn resources_are_read_by_uri_and_by_template(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    let read = async |client: &mut Client, uri: &str| {
        let answer = client.request("resources/read", json!({ "uri": uri })).await;
        let contents = answer["result"]["contents"].as_array().unwrap().clone();
        assert_eq!((contents.len(), &contents[0]["uri"]), (1, &json!(uri)));
        contents[0].clone()
    };
    let static_text = read(&mut client, "test://static-text").await;
    assert_eq!(static_text["text"], "This is the content of the static text resource.");
    let binary = read(&mut client, "test://static-binary").await;
    assert_eq!(binary["mimeType"], "image/png");
    assert!(binary["blob"].as_str().unwrap().starts_with("iVBORw0KGgo"));
    let templated = read(&mut client, "test://template/123/data").await;
    assert_eq!(templated["mimeType"], "application/json");
    let json = r#"{"id":"123","templateTest":true,"data":"Data for ID: 123"}"#;
    assert_eq!(templated["text"], json);
}

pub(crate) async fn a_missing_resource_is_named_in_the_error(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    for method in ["resources/read", "resources/subscribe"] {
        for (uri, code) in [("test://missing", -32002), ("no uri", -32602)] {
            let error = client.request(method, json!({ "uri": uri })).await["error"].clone();
            assert_eq!((&error["code"], &error["data"]["uri"]), (&json!(code), &json!(uri)));
        }
    }
}

pub(crate) async fn a_touched_resource_is_told_to_subscribers_only(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    let watched = json!({ "uri": "test://watched-resource" });
    assert_eq!(
        client.text("rh_touch_resource", json!({})).await,
        "no client is subscribed to the resource"
    );
    client.request("resources/subscribe", watched.clone()).await;
    client.send("tools/call", json!({ "name": "rh_touch_resource" })).await;
    let told = client.next().await;
    assert_eq!(told["method"], "notifications/resources/updated");
    assert_eq!(told["params"], watched);
    assert_eq!(text(&client.next().await["result"]), "touched");
    client.request("resources/unsubscribe", watched).await;
    assert_eq!(
        client.text("rh_touch_resource", json!({})).await,
        "no client is subscribed to the resource"
    );
}

pub(crate) async fn prompts_put_in_their_arguments(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    let get = async |client: &mut Client, name: &str, arguments: Value| {
        let params = json!({ "name": name, "arguments": arguments });
        let messages = client.request("prompts/get", params).await["result"]["messages"].clone();
        messages.as_array().unwrap().iter().map(|m| m["content"].clone()).collect::<Vec<_>>()
    };
    let simple = client.request("prompts/get", json!({ "name": "test_simple_prompt" })).await;
    let message = json!({
        "role": "user",
        "content": { "type": "text", "text": "This is a simple prompt for testing." },
    });
    assert_eq!(simple["result"]["messages"], json!([message]));
    let arguments = json!({ "arg1": "it's", "arg2": "{arg1}" });
    let put_in = get(&mut client, "test_prompt_with_arguments", arguments).await;
    assert_eq!(put_in[0]["text"], "Prompt with arguments: arg1='it's', arg2='{arg1}'");
    let uri = json!({ "resourceUri": "test://static-text" });
    let embedded = get(&mut client, "test_prompt_with_embedded_resource", uri).await;
    let resource = json!({
        "uri": "test://static-text",
        "mimeType": "text/plain",
        "text": "Embedded resource content for testing.",
    });
    assert_eq!(embedded[0]["resource"], resource);
    assert_eq!(embedded[1]["text"], "Please process the embedded resource above.");
    let image = get(&mut client, "test_prompt_with_image", json!({})).await;
    assert_eq!(image[0]["mimeType"], "image/png");
    assert_eq!(image[1]["text"], "Please analyze the image above.");
}

pub(crate) async fn a_prompt_that_cannot_be_given_is_refused(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    for params in [
        json!({ "name": "no such prompt" }),
        json!({ "name": "test_prompt_with_arguments" }),
        json!({ "name": "test_prompt_with_arguments", "arguments": { "arg1": "a" } }),
        json!({ "name": "test_prompt_with_arguments", "arguments": { "arg1": "a", "arg2": 2 } }),
        json!({}),
    ] {
        let refused = client.request("prompts/get", params).await;
        assert_eq!(refused["error"]["code"], -32602);
    }
}

pub(crate) async fn a_completion_holds_at_most_a_hundred_values(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    let complete = async |client: &mut Client, argument: &str, value: &str| {
        let params = json!({
            "ref": { "type": "ref/prompt", "name": "test_prompt_with_arguments" },
            "argument": { "name": argument, "value": value },
            "context": { "arguments": { "arg1": "x" } },
        });
        client.request("completion/complete", params).await["result"]["completion"].clone()
    };
    let few = json!({ "values": ["paris", "park", "party"], "total": 3, "hasMore": false });
    assert_eq!(complete(&mut client, "arg1", "par").await, few);
    let many = complete(&mut client, "arg2", "").await;
    assert_eq!(many["values"].as_array().unwrap().len(), 100);
    assert_eq!((&many["total"], &many["hasMore"]), (&json!(200), &json!(true)));
    let params = json!({
        "ref": { "type": "ref/resource", "uri": "test://template/{id}/data" },
        "argument": { "name": "id", "value": "12" },
    });
    let templated = client.request("completion/complete", params).await;
    assert_eq!(templated["result"]["completion"]["values"], json!(["12", "123"]));
}

pub(crate) async fn a_completion_of_nothing_known_is_refused(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    for (of, argument) in [
        (json!({ "type": "ref/prompt", "name": "no such prompt" }), "arg1"),
        (json!({ "type": "ref/prompt", "name": "test_prompt_with_arguments" }), "arg3"),
        (json!({ "type": "ref/resource", "uri": "test://missing" }), "id"),
        (json!({ "type": "ref/tool", "name": "rh_echo" }), "x"),
    ] {
        let params = json!({ "ref": of, "argument": { "name": argument, "value": "" } });
        let refused = client.request("completion/complete", params).await;
        assert_eq!(refused["error"]["code"], -32602);
    }
}

pub(crate) async fn unknown_methods_and_bad_parameters_are_told_apart(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    for (method, params, code) in [
        ("no/such", json!({}), -32601),
        ("tools/call", json!({ "arguments": {} }), -32602),
        ("logging/setLevel", json!({ "level": "loud" }), -32602),
        ("resources/read", json!({}), -32602),
    ] {
        assert_eq!(client.request(method, params).await["error"]["code"], code, "{method}");
    }
}
