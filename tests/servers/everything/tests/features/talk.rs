//! Tools that send messages or requests to the client before they answer.

use serde_json::{Value, json};

use crate::client::{Client, Kind, text};

pub(crate) async fn log_messages_come_before_the_answer_and_respect_the_level(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    client.send("tools/call", json!({ "name": "test_tool_with_logging" })).await;
    for line in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
        let message = client.next().await;
        assert_eq!(message["method"], "notifications/message");
        assert_eq!(
            (&message["params"]["level"], &message["params"]["data"]),
            (&json!("info"), &json!(line))
        );
    }
    assert!(client.next().await["result"].is_object());
    for (level, lines) in [("error", 0), ("info", 3), ("notice", 0), ("debug", 3)] {
        let set = client.request("logging/setLevel", json!({ "level": level })).await;
        assert_eq!(set["result"], json!({}));
        client.send("tools/call", json!({ "name": "test_tool_with_logging" })).await;
        for _ in 0..lines {
            assert_eq!(client.next().await["method"], "notifications/message", "{level}");
        }
        assert!(client.next().await["result"].is_object(), "{level}");
    }
}

pub(crate) async fn progress_rises_and_comes_only_where_it_was_asked_for(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    for token in [json!(7), json!("7")] {
        let meta = json!({ "progressToken": token });
        let params = json!({ "name": "test_tool_with_progress", "_meta": meta });
        client.send("tools/call", params).await;
        for done in [0.0, 50.0, 100.0] {
            let told = client.next().await;
            assert_eq!(told["method"], "notifications/progress");
            let params = json!({ "progressToken": token, "progress": done, "total": 100.0 });
            assert_eq!(told["params"], params);
        }
        assert!(client.next().await["result"].is_object());
    }
    client.text("test_tool_with_progress", json!({})).await;
}

pub(crate) async fn counting_tells_every_number_in_order(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    let arguments = json!({ "n": 200, "interval_ms": 0 });
    let params =
        json!({ "name": "rh_count", "arguments": arguments, "_meta": { "progressToken": 1 } });
    client.send("tools/call", params).await;
    for number in 1..=200 {
        assert_eq!(client.next().await["params"]["progress"], f64::from(number));
        assert_eq!(client.next().await["params"]["data"]["count"], number);
    }
    assert_eq!(text(&client.next().await["result"]), "counted to 200");
}

pub(crate) async fn the_model_is_asked_and_its_answer_told(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    let params =
        json!({ "name": "test_sampling", "arguments": { "prompt": "Capital of France?" } });
    client.send("tools/call", params).await;
    let question = client.next().await;
    assert_eq!(question["method"], "sampling/createMessage");
    assert_eq!(question["params"]["maxTokens"], 100);
    let message =
        json!({ "role": "user", "content": { "type": "text", "text": "Capital of France?" } });
    assert_eq!(question["params"]["messages"], json!([message]));
    let answer = json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": "Paris" } });
    client.answer(&question, answer).await;
    assert_eq!(text(&client.next().await["result"]), "LLM response: Paris");
}

pub(crate) async fn the_user_is_asked_one_question_after_another(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    client.send("tools/call", json!({ "name": "rh_ask", "arguments": { "times": 3 } })).await;
    let answers = [
        json!({ "action": "accept", "content": { "answer": "yes" } }),
        json!({ "action": "decline" }),
        json!({ "action": "cancel" }),
    ];
    let mut ids = Vec::new();
    for (number, answer) in (1..).zip(answers) {
        let question = client.next().await;
        assert_eq!(question["params"]["message"], format!("Question {number}"));
        ids.push(question["id"].to_string());
        client.answer(&question, answer).await;
    }
    ids.dedup();
    assert_eq!(ids.len(), 3);
    let told = "action=accept, content={\"answer\":\"yes\"}\n\
                action=decline, content={}\naction=cancel, content={}";
    assert_eq!(text(&client.next().await["result"]), told);
}

pub(crate) async fn forms_go_out_as_they_are_written(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    let form = async |client: &mut Client, tool: &str, arguments: Value| {
        client.send("tools/call", json!({ "name": tool, "arguments": arguments })).await;
        let question = client.next().await;
        assert_eq!(question["method"], "elicitation/create");
        client.answer(&question, json!({ "action": "accept", "content": { "a": 1 } })).await;
        assert!(text(&client.next().await["result"]).ends_with("action=accept, content={\"a\":1}"));
        question["params"]["requestedSchema"].clone()
    };
    let plain = form(&mut client, "test_elicitation", json!({ "message": "Who?" })).await;
    assert_eq!(plain["required"], json!(["username", "email"]));
    let defaults = form(&mut client, "test_elicitation_sep1034_defaults", json!({})).await;
    let defaults: Vec<_> = defaults["properties"].as_object().unwrap().values().collect();
    let defaults: Vec<_> = defaults.iter().map(|field| field["default"].to_string()).collect();
    assert_eq!(defaults, [r#""John Doe""#, "30", "95.5", r#""active""#, "true"]);
    let enums = form(&mut client, "test_elicitation_sep1330_enums", json!({})).await;
    let enums = &enums["properties"];
    let first = json!({ "const": "value1", "title": "First Option" });
    assert_eq!(enums["titledSingle"]["oneOf"][0], first);
    let names = json!(["Option One", "Option Two", "Option Three"]);
    assert_eq!(enums["legacyEnum"]["enumNames"], names);
    let third = json!({ "const": "value3", "title": "Third Choice" });
    assert_eq!(enums["titledMulti"]["items"]["anyOf"][2], third);
}

pub(crate) async fn the_roots_are_told(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    client.send("tools/call", json!({ "name": "rh_roots" })).await;
    let question = client.next().await;
    assert_eq!(question["method"], "roots/list");
    let roots = json!({ "roots": [{ "uri": "file:///a" }, { "uri": "file:///b" }] });
    client.answer(&question, roots).await;
    assert_eq!(text(&client.next().await["result"]), "file:///a\nfile:///b");
}

pub(crate) async fn nobody_is_asked_who_did_not_say_so(kind: Kind) {
    let mut client = Client::connect(kind, None).await;
    client.initialize("2025-03-26", json!({})).await;
    for (tool, capability) in
        [("test_sampling", "sampling"), ("test_elicitation", "elicitation"), ("rh_roots", "roots")]
    {
        let arguments = json!({ "prompt": "p", "message": "m" });
        let failed = client.call(tool, arguments).await;
        assert_eq!(failed["isError"], true);
        assert!(text(&failed).contains(capability));
    }
}

pub(crate) async fn a_cancelled_call_is_counted_and_not_answered(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    let params = json!({ "name": "rh_sleep", "arguments": { "ms": 600_000 } });
    let id = client.send("tools/call", params).await;
    client.notify("notifications/cancelled", json!({ "requestId": id, "reason": "enough" })).await;
    // The next response is not that of the cancelled call; it may arrive before the call has
    // stopped.
    while client.text("rh_cancelled", json!({})).await != "1" {}
    // A cancellation of an unknown or finished request is ignored.
    client.notify("notifications/cancelled", json!({ "requestId": id })).await;
    client.notify("notifications/cancelled", json!({ "requestId": "never" })).await;
    assert_eq!(client.text("rh_cancelled", json!({})).await, "1");
}

pub(crate) async fn a_cancelled_call_takes_back_its_question(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    let params = json!({ "name": "rh_ask", "arguments": { "times": 1 } });
    let id = client.send("tools/call", params).await;
    let question = client.next().await;
    client.notify("notifications/cancelled", json!({ "requestId": id })).await;
    let taken_back = client.next().await;
    assert_eq!(taken_back["method"], "notifications/cancelled");
    assert_eq!(taken_back["params"]["requestId"], question["id"]);
    while client.text("rh_cancelled", json!({})).await != "1" {}
}

pub(crate) async fn a_crash_is_no_silent_end(kind: Kind) {
    let mut client = Client::initialized(kind).await;
    if kind == Kind::Native {
        let crashed = client.request("tools/call", json!({ "name": "rh_crash" })).await;
        assert_eq!(crashed["error"]["code"], -32603);
        assert_eq!(client.text("rh_cancelled", json!({})).await, "0");
    } else {
        client.send("tools/call", json!({ "name": "rh_crash" })).await;
        assert!(client.ended().await, "the output is closed without a further message");
    }
}
