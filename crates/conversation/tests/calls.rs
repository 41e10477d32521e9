//! Requests of either side: calls, batches, server requests, cancellations, mirrored headers.

use crate::world::{NEW, World, accepted, live};
use conversation::{Answer, Cause, Event, Limits, Refusal};
use protocol::{Message, Method, Mirrored, Notification, Request, Response};

// holds: RPC-03
#[test]
fn an_id_in_flight_cannot_be_used_again() {
    let mut world = live();
    let first = world.call(1);
    let second = world.call(1);
    assert_eq!(world.gist(second), ["1 error -32600"]);
    world.answer(1, "first");
    assert_eq!(world.gist(first), ["1 result"]);
}

#[test]
fn a_call_beyond_the_bound_gets_an_error_and_the_others_go_on() {
    let mut world = World::live(NEW, Limits { exchanges_max: 1, ..Limits::default() });
    let first = world.call(1);
    let second = world.call(2);
    assert_eq!(world.gist(second), ["2 error -32000"]);
    world.answer(1, "done");
    assert_eq!(world.gist(first), ["1 result"]);
}

// holds: PING-01, PING-04
#[test]
fn pings_of_either_side_are_answered_at_once() {
    let mut world = live();
    let sink = world.post(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
    assert_eq!(world.json(sink), serde_json::json!({"jsonrpc":"2.0","id":"p","result":{}}));
    world.send_from_server(Request::new("theirs".into(), Method::Ping, None));
    assert_eq!(world.sent_methods().last().unwrap(), "response theirs");
}

// holds: PING-02
#[test]
fn an_idle_client_is_pinged_where_it_listens() {
    let mut world = World::live(NEW, Limits { ping_secs: 20, ..Limits::default() });
    let sink = world.listen(None);
    world.wait(20_000);
    assert_eq!(world.gist(sink), ["ping"]);
}

// holds: CAN-01, CAN-04
#[test]
fn a_cancelled_call_gets_no_response_and_a_late_one_is_dropped() {
    let mut world = live();
    let sink = world.call(1);
    let cancel = world
        .post(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#);
    assert!(accepted(&world, cancel));
    assert_eq!(world.connections[&sink].answer, Some(Answer::Nothing));
    assert_eq!(world.sent_methods().last().unwrap(), "notifications/cancelled");
    world.answer(1, "late");
    assert_eq!(world.connections[&sink].messages(), Vec::<String>::new());
}

// holds: CAN-01, CAN-10
#[test]
fn a_cancelled_stream_ends_and_unknown_or_finished_requests_are_not_cancelled() {
    let mut world = live();
    let sink = world.call(1);
    world.progress(1, 1);
    world.post(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#);
    assert!(world.connections[&sink].finished);
    assert_eq!(world.gist(sink), ["progress 1"]);
    let sent = world.sent.len();
    for body in [r#"{"requestId":1}"#, r#"{"requestId":77}"#, "{}", r#"{"requestId":null}"#] {
        let text =
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{body}}}"#);
        let sink = world.post(&text);
        assert!(accepted(&world, sink));
    }
    assert_eq!(world.sent.len(), sent);
}

// holds: SMP-01, ELI-03, SES-04
#[test]
fn an_answer_finds_its_question_and_a_second_one_is_taken_and_dropped() {
    let mut world = live();
    let sink = world.call(1);
    world.ask("theirs", None);
    let asked: serde_json::Value =
        serde_json::from_str(&world.connections[&sink].messages()[0]).unwrap();
    let id = asked["id"].as_str().unwrap().to_owned();
    assert!(id.contains("feed"));
    let answer =
        format!(r#"{{"jsonrpc":"2.0","id":"{id}","result":{{"action":"accept","content":{{}}}}}}"#);
    for _ in 0..2 {
        let sink = world.post(&answer);
        assert!(accepted(&world, sink));
    }
    let answers = world.sent_methods().into_iter().filter(|method| method == "response theirs");
    assert_eq!(answers.count(), 1);
}

// holds: POST-09
#[test]
fn an_answer_to_a_question_never_asked_is_refused() {
    let mut world = live();
    for id in ["1", "\"nobody\"", "\"000000000000feed-1\""] {
        let sink = world.post(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
        assert!(matches!(world.refusal(sink), Refusal::Rejected(_)), "{id}");
    }
}

// holds: RPC-12, ROOT-01, SMP-01, SMP-02, ELI-01
#[test]
fn a_client_is_asked_only_what_it_declared() {
    let form = r#"{"message":"?","requestedSchema":{}}"#;
    let url = r#"{"mode":"url","message":"?","url":"https://example.com","elicitationId":"e"}"#;
    let tools = r#"{"messages":[],"maxTokens":1,"tools":[]}"#;
    let plain = r#"{"messages":[],"maxTokens":1}"#;
    let cases = [
        (NEW, "{}", Method::RootsList, "{}", false),
        (NEW, r#"{"roots":{}}"#, Method::RootsList, "{}", true),
        (NEW, "{}", Method::CreateMessage, plain, false),
        (NEW, r#"{"sampling":{}}"#, Method::CreateMessage, plain, true),
        (NEW, r#"{"sampling":{}}"#, Method::CreateMessage, tools, false),
        (NEW, r#"{"sampling":{"tools":{}}}"#, Method::CreateMessage, tools, true),
        ("2025-06-18", r#"{"sampling":{"tools":{}}}"#, Method::CreateMessage, tools, false),
        (NEW, "{}", Method::Elicit, form, false),
        (NEW, r#"{"elicitation":{}}"#, Method::Elicit, form, true),
        (NEW, r#"{"elicitation":{}}"#, Method::Elicit, url, false),
        (NEW, r#"{"elicitation":{"url":{}}}"#, Method::Elicit, url, true),
        (NEW, r#"{"elicitation":{"url":{}}}"#, Method::Elicit, form, false),
        ("2025-06-18", r#"{"elicitation":{}}"#, Method::Elicit, form, true),
        ("2025-03-26", r#"{"elicitation":{}}"#, Method::Elicit, form, false),
    ];
    for (revision, capabilities, method, params, asked) in cases {
        let mut world = World::live_with(revision, Limits::default(), capabilities);
        let sink = world.call(1);
        world.send_from_server(Request::new("q".into(), method.clone(), Some(params.as_bytes())));
        let received = world.connections[&sink].messages().len();
        assert_eq!(received == 1, asked, "{revision} {capabilities} {method} {params}");
        let refused = matches!(world.sent.last(), Some(Message::Response(r)) if !r.is_result());
        assert_eq!(refused, !asked);
    }
}

// holds: ELI-01, ELI-05
#[test]
fn only_a_client_that_opens_urls_gets_the_error_that_asks_for_it() {
    let data = br#"{"elicitations":[{"mode":"url","url":"https://a.example","elicitationId":"e","message":"?"}]}"#;
    let error = |id| Response::error(id, -32042, "open a page", Some(data));
    let urls = r#"{"elicitation":{"url":{}}}"#;
    for (revision, capabilities, is_told) in [
        (NEW, urls, true),
        ("DRAFT-2026-v1", urls, true),
        (NEW, r#"{"elicitation":{}}"#, false),
        (NEW, "{}", false),
        ("2025-06-18", urls, false),
        ("2024-11-05", urls, false),
    ] {
        let check = |error: &serde_json::Value| {
            let error = &error["error"];
            if is_told {
                assert_eq!(error["code"], -32042, "{revision} {capabilities}");
                assert_eq!(error["data"]["elicitations"][0]["url"], "https://a.example");
            } else {
                let expected = serde_json::json!({
                    "code": -32000, "message": "open a page: open https://a.example",
                });
                assert_eq!(*error, expected, "{revision} {capabilities}");
            }
        };
        // A call of the draft needs headers, which have nothing to do with its error.
        if revision != "DRAFT-2026-v1" {
            let mut world = World::live_with(revision, Limits::default(), capabilities);
            let sink = world.call(1);
            world.send_from_server(error(Some(1.into())));
            check(&world.json(sink));
        }
        let mut world = World::new(Limits::default());
        let sink = world.post_initialize(revision, capabilities);
        world.step(Event::LinkUp);
        let Some(Message::Request(initialize)) = world.sent.last().cloned() else {
            panic!("no handshake")
        };
        world.send_from_server(error(Some(initialize.id)));
        check(&world.json(sink));
    }
}

// holds: GET-06, ROOT-03
#[test]
fn in_the_draft_nothing_is_asked_on_a_standalone_stream() {
    let mut world = World::live("DRAFT-2026-v1", Limits::default());
    let sink = world.listen(None);
    world.ask("q", None);
    assert_eq!(world.gist(sink), Vec::<String>::new());
    assert!(matches!(world.sent.last(), Some(Message::Response(r)) if !r.is_result()));

    let mut older = World::live(NEW, Limits::default());
    let sink = older.listen(None);
    older.ask("q", None);
    assert_eq!(older.gist(sink), ["elicitation/create"]);
}

// holds: CAN-05
#[test]
fn a_question_that_takes_too_long_is_withdrawn_on_both_sides() {
    let mut world = live();
    let sink = world.call(1);
    world.ask("q", None);
    world.wait(600_000);
    assert_eq!(world.gist(sink), ["elicitation/create", "notifications/cancelled"]);
    assert!(matches!(world.sent.last(), Some(Message::Response(r)) if !r.is_result()));
}

// holds: PRG-01, PRG-02
#[test]
fn progress_of_nobody_and_progress_that_does_not_rise_is_dropped() {
    let mut world = live();
    let sink = world.call(1);
    world.progress(9, 1);
    world.progress(1, 2);
    world.progress(1, 2);
    world.progress(1, 1);
    world.answer(1, "done");
    world.progress(1, 3);
    assert_eq!(world.gist(sink), ["progress 2", "1 result"]);
}

// holds: LOG-02, LOG-03
#[test]
fn log_messages_below_the_level_are_dropped_and_a_level_that_does_not_exist_is_refused() {
    let mut world = live();
    let sink = world.listen(None);
    let log = |level: &str| {
        let params = format!(r#"{{"level":"{level}","data":1}}"#);
        Notification::new(Method::LogMessage, Some(params.as_bytes()))
    };
    world.send_from_server(log("debug"));
    let set = world
        .post(r#"{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"error"}}"#);
    world.send_from_server(Response::result(1.into(), b"{}"));
    assert_eq!(world.gist(set), ["1 result"]);
    world.send_from_server(log("info"));
    world.send_from_server(log("critical"));
    assert_eq!(world.gist(sink).len(), 2);
    let bad = world
        .post(r#"{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"loud"}}"#);
    assert_eq!(world.gist(bad), ["2 error -32602"]);
}

// holds: RES-06
#[test]
fn a_resource_is_told_of_only_while_it_is_subscribed() {
    let mut world = live();
    let sink = world.listen(None);
    let updated = || Notification::new(Method::ResourceUpdated, Some(br#"{"uri":"test://a"}"#));
    world.send_from_server(updated());
    for (id, method) in [(1, "subscribe"), (2, "unsubscribe")] {
        world.post(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"resources/{method}","params":{{"uri":"test://a"}}}}"#));
        world.send_from_server(Response::result(id.into(), b"{}"));
        world.send_from_server(updated());
    }
    assert_eq!(world.gist(sink), ["notifications/resources/updated"]);
}

// holds: RPC-22
#[test]
fn a_hung_server_costs_its_caller_an_error_and_is_told() {
    let mut world = live();
    let sink = world.call(1);
    world.wait(300_000);
    assert_eq!(world.gist(sink), ["1 error -32000"]);
    assert_eq!(world.sent_methods().last().unwrap(), "notifications/cancelled");
    world.call(2);
    for progress in 1..40 {
        world.wait(100_000);
        world.progress(2, progress);
    }
    assert_eq!(world.session.load().exchanges, 0, "progress does not outlast the hard maximum");
}

// holds: BAT-01, BAT-03, BAT-04
#[test]
fn a_batch_is_answered_with_an_array_or_one_stream() {
    let mut world = World::live("2025-03-26", Limits::default());
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{"progressToken":1}}},{"jsonrpc":"2.0","id":"p","method":"ping"}]"#;
    let sink = world.post(batch);
    world.answer(1, "done");
    assert!(matches!(&world.connections[&sink].answer, Some(Answer::Array(all)) if all.len() == 2));
    let sink = world.post(&batch.replace(":1", ":2"));
    world.progress(2, 1);
    world.answer(2, "done");
    assert_eq!(world.gist(sink), ["\"p\" result", "progress 1", "2 result"]);
    assert!(world.connections[&sink].finished);
    let sink = world.post(r#"[{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}]"#);
    assert!(accepted(&world, sink));
}

// holds: BAT-02, BAT-05, BAT-06, POST-06
#[test]
fn batches_are_refused_where_they_do_not_exist_and_bad_members_answered_one_by_one() {
    let ping = r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#;
    for revision in ["2025-06-18", NEW, "DRAFT-2026-v1"] {
        let mut world = World::live(revision, Limits::default());
        let sink = world.post(ping);
        assert!(matches!(world.refusal(sink), Refusal::Rejected(_)));
    }
    let mut world = World::live("2025-03-26", Limits::default());
    let sink = world.post("[1,2]");
    assert!(matches!(&world.connections[&sink].answer, Some(Answer::Array(all)) if all.len() == 2));
    let sink = world.post(r#"[{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}]"#);
    assert!(matches!(world.refusal(sink), Refusal::Rejected(_)));
}

// holds: HDR-01, HDR-02, HDR-10, HDR-21
#[test]
fn the_draft_checks_mirrored_headers_and_parameters_and_older_revisions_do_not() {
    let mut world = World::live("DRAFT-2026-v1", Limits::default());
    let Some(Message::Request(list)) = world.sent.iter().find(|message| {
        matches!(message, Message::Request(request) if request.method == Method::ToolsList)
    }) else {
        panic!("the tools are listed");
    };
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{"value":"Hello"}}}"#;
    let headers = |value: &'static str| {
        let given = [("Mcp-Method", "tools/call"), ("Mcp-Name", "t"), ("Mcp-Param-Value", value)];
        Mirrored::from_headers(given.into_iter().map(|(name, value)| (name, value.as_bytes())))
    };
    let id = list.id.clone();
    let early = world.post_with(call, headers("Hello"));
    assert!(world.connections[&early].answer.is_none(), "the call waits for the list of tools");
    assert!(world.session.has_work(), "a node that stops waits for it");
    let tools = br#"{"tools":[{"name":"t","inputSchema":{"type":"object","properties":{"value":{"type":"string","x-mcp-header":"Value"}}}}]}"#;
    world.send_from_server(Response::result(id, tools));
    world.answer(1, "done");
    assert_eq!(world.gist(early), ["1 result"]);
    let wrong = world.post_with(&call.replace(":1,", ":2,"), headers("Bye"));
    assert!(matches!(world.refusal(wrong), Refusal::Rejected(_)));
    let missing = world.post(&call.replace(":1,", ":3,"));
    assert!(matches!(world.refusal(missing), Refusal::Rejected(_)));

    let mut older = live();
    let sink = older.post(call);
    older.answer(1, "done");
    assert_eq!(older.gist(sink), ["1 result"]);
}

// holds: RPC-22
#[test]
fn a_call_that_waits_for_a_list_of_tools_that_never_comes_gets_an_error() {
    let limits = Limits { request_secs: 60, idle_secs: 30, ..Limits::default() };
    let mut world = World::live("DRAFT-2026-v1", limits);
    let given = [("Mcp-Method", "tools/call"), ("Mcp-Name", "t")];
    let headers =
        Mirrored::from_headers(given.map(|(name, value)| (name, value.as_bytes())).into_iter());
    let call =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{}}}"#;
    let sink = world.post_with(call, headers);
    world.wait(59_000);
    assert_eq!(world.over, None, "the session is not idle");
    assert!(world.connections[&sink].answer.is_none());
    world.wait(1_000);
    assert_eq!(world.gist(sink), ["1 error -32000"]);
    assert!(!world.session.has_work());
    world.wait(30_000);
    assert_eq!(world.over, Some(Cause::Idle));
}

#[test]
fn second_and_unrequested_responses_of_a_server_change_nothing() {
    let mut world = live();
    let sink = world.call(1);
    world.answer(1, "first");
    world.answer(1, "second");
    world.answer(99, "nobody");
    assert_eq!(world.gist(sink), ["1 result"]);
}

#[test]
fn a_message_that_the_link_cannot_take_is_answered_with_an_error() {
    let mut world = live();
    let sink = world.call(1);
    let message = world.sent.last().unwrap().clone();
    world.step(Event::Unsent { message });
    assert_eq!(world.gist(sink), ["1 error -32000"]);
}

// holds: RPC-11
#[test]
fn a_server_asks_nothing_before_its_handshake_and_never_initializes_a_client() {
    let mut world = World::new(Limits::default());
    let sink = world.post(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{}},"clientInfo":{"name":"x","version":"1"}}}"#);
    world.step(Event::LinkUp);
    let refused =
        |world: &World| matches!(world.sent.last(), Some(Message::Response(r)) if !r.is_result());
    for method in [Method::Initialize, Method::RootsList] {
        world.send_from_server(Request::new("echoed".into(), method, Some(b"{}")));
        assert!(refused(&world));
    }
    assert!(!world.connections[&sink].open);
    let mut world = live();
    let sink = world.call(1);
    world.send_from_server(Request::new("echoed".into(), Method::Initialize, Some(b"{}")));
    assert!(refused(&world) && !world.connections[&sink].open);
}

/// Subscribes; the server confirms if it received the request.
fn subscribe(world: &mut World, id: i64, uri: &str) -> Vec<String> {
    let sink = world.post(&format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"resources/subscribe","params":{{"uri":"{uri}"}}}}"#
    ));
    if !world.connections[&sink].finished {
        world.send_from_server(Response::result(id.into(), b"{}"));
    }
    world.gist(sink)
}

#[test]
fn subscriptions_are_bounded_in_bytes_each_and_together() {
    let mut world = live();
    assert_eq!(subscribe(&mut world, 1, &"x".repeat(8_193)), ["1 error -32602"]);
    let uri = |number: i64| format!("{number:08192}");
    for number in 0..32 {
        assert_eq!(subscribe(&mut world, 10 + number, &uri(number)).len(), 1);
    }
    let before = world.state.1.len();
    assert_eq!(subscribe(&mut world, 50, "x"), ["50 error -32000"]);
    // A second subscription to the same resource needs no memory.
    assert_eq!(subscribe(&mut world, 51, &uri(3)), ["51 result"]);
    assert_eq!(world.state.1.len(), before);
}

#[test]
fn subscriptions_that_are_not_confirmed_count() {
    let mut world = live();
    let uri = "x".repeat(8_000);
    let ask = |world: &mut World, id: usize| {
        world.post(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"resources/subscribe","params":{{"uri":"{id}{uri}"}}}}"#
        ))
    };
    let sinks: Vec<_> = (10..50).map(|id| ask(&mut world, id)).collect();
    let refused = sinks.iter().filter(|sink| world.connections[sink].finished).count();
    assert_eq!(refused, 8);
}

#[test]
fn a_progress_token_is_no_longer_than_an_id_may_be() {
    let mut world = live();
    for (length, outcome) in [(1_024, None), (1_025, Some("7 error -32602"))] {
        let token = "x".repeat(length);
        let sink = world.post(&format!(
            r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"t","_meta":{{"progressToken":"{token}"}}}}}}"#
        ));
        assert_eq!(world.gist(sink).first().map(String::as_str), outcome);
        if outcome.is_none() {
            world.answer(7, "done");
        }
    }
}
