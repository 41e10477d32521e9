//! What a session does, told as stories. The world checks what holds in every story.

mod world;

use conversation::{Answer, Cause, Event, EventId, Frame, Limits, Refusal, SinkId};
use protocol::{Message, Method, Mirrored, Notification, Request, Response};
use world::{World, accepted};

const NEW: &str = "2025-11-25";

fn live() -> World {
    World::live(NEW, Limits::default())
}

/// The cursor of a stream's connection.
fn cursor(world: &World, sink: SinkId) -> EventId {
    world.connections[&sink].cursor().expect("a cursor")
}

// holds: RPC-07, RPC-08, SES-01, VER-13
#[test]
fn every_revision_is_answered_with_itself_and_an_unknown_one_with_the_newest_stable() {
    let asked = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "DRAFT-2026-v1"];
    let all = asked.map(|revision| (revision, revision));
    for (asked, answered) in all.into_iter().chain([("2026-07-28", NEW), ("1999-01-01", NEW)]) {
        let mut world = World::new(Limits::default());
        let sink = world.initialize(asked, "{}");
        assert!(matches!(world.connections[&sink].answer, Some(Answer::Welcome(_))), "{asked}");
        assert_eq!(world.json(sink)["result"]["protocolVersion"], answered);
        assert_eq!(world.json(sink)["id"], "init");
    }
}

// holds: RPC-10
#[test]
fn initialized_is_accepted_and_handed_on() {
    let world = live();
    assert_eq!(world.sent_methods(), ["initialize", "notifications/initialized"]);
}

// holds: SES-11
#[test]
fn a_session_is_initialized_once() {
    let mut world = live();
    let sink = world.post(r#"{"jsonrpc":"2.0","id":2,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#);
    assert!(matches!(world.refusal(sink), Refusal::Rejected(_)));
    let again = world.call(3);
    world.answer(3, "still here");
    assert_eq!(world.gist(again), ["3 result"]);
}

// holds: POST-10, POST-12
#[test]
fn a_quick_answer_is_json_and_costs_no_log() {
    let mut world = live();
    let sink = world.call(1);
    world.answer(1, "quick");
    assert!(matches!(world.connections[&sink].answer, Some(Answer::Json(_))));
    assert_eq!(world.appended, 0);
}

// holds: POST-11, SSE-04, SSE-05, PRG-03
#[test]
fn progress_makes_the_answer_a_primed_stream_that_ends_with_the_response() {
    let mut world = live();
    let sink = world.call(1);
    world.progress(1, 1);
    world.progress(1, 2);
    world.answer(1, "done");
    assert_eq!(world.gist(sink), ["progress 1", "progress 2", "1 result"]);
    let connection = &world.connections[&sink];
    assert!(matches!(connection.frames[0], Frame::Cursor { retry: 1_500..=2_500, .. }));
    assert!(connection.finished);
}

// holds: SSE-04
#[test]
fn older_revisions_are_not_primed() {
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18"] {
        let mut world = World::live(revision, Limits::default());
        let sink = world.call(1);
        world.progress(1, 1);
        world.answer(1, "done");
        let cursors = world.connections[&sink].frames.iter();
        assert_eq!(cursors.filter(|frame| matches!(frame, Frame::Cursor { .. })).count(), 0);
        assert_eq!(world.gist(sink), ["progress 1", "1 result"]);
    }
}

#[test]
fn a_silent_call_becomes_a_stream_in_time() {
    let mut world = live();
    let sink = world.call(1);
    world.wait(249);
    assert!(!world.connections[&sink].open);
    world.wait(1);
    assert!(world.connections[&sink].open);

    let mut old = World::live("2025-06-18", Limits::default());
    let sink = old.call(1);
    old.wait(14_999);
    assert!(!old.connections[&sink].open);
    old.wait(1);
    assert_eq!(old.connections[&sink].frames, [Frame::KeepAlive]);
}

// holds: SSE-07, POST-16, SSE-11
#[test]
fn a_stream_cut_in_mid_call_goes_on_where_it_was_cut() {
    let mut world = live();
    let first = world.call(1);
    world.progress(1, 1);
    let cut_at = cursor(&world, first);
    world.hang_up(first);
    world.progress(1, 2);
    let second = world.listen(Some(cut_at));
    world.progress(1, 3);
    world.answer(1, "done");
    assert_eq!(world.gist(second), ["progress 2", "progress 3", "1 result"]);
    assert!(world.connections[&second].finished);
    let third = world.listen(Some(cut_at));
    assert_eq!(world.gist(third), world.gist(second), "coming back twice gives the same");
}

#[test]
fn a_resumed_stream_begins_with_its_own_cursor() {
    let mut world = live();
    let first = world.call(1);
    world.progress(1, 1);
    let cut_at = cursor(&world, first);
    world.hang_up(first);
    let second = world.listen(Some(cut_at));
    world.hang_up(second);
    assert!(
        matches!(world.connections[&second].frames[0], Frame::Cursor { id, .. } if id == cut_at)
    );
    let third = world.listen(Some(cursor(&world, second)));
    world.answer(1, "done");
    assert_eq!(world.gist(third), ["1 result"]);
}

// holds: SSE-11
#[test]
fn nothing_comes_after_the_last_event_of_a_finished_stream() {
    let mut world = live();
    let sink = world.call(1);
    world.progress(1, 1);
    world.answer(1, "done");
    let end = cursor(&world, sink);
    let again = world.listen(Some(end));
    assert_eq!(*world.refusal(again), Refusal::NothingMore);
}

// holds: SSE-08, SSE-10
#[test]
fn an_id_of_no_event_or_of_another_session_is_refused() {
    let mut world = live();
    let sink = world.call(1);
    world.progress(1, 1);
    let id = cursor(&world, sink);
    let other_call = world.call(2);
    world.progress(2, 5);
    let other = cursor(&world, other_call);
    let foreign = EventId { emitter: conversation::Emitter(1), ..id };
    let crossed = EventId { number: other.number, ..id };
    let future = EventId { number: 999, ..id };
    for wrong in [foreign, crossed, future] {
        let sink = world.listen(Some(wrong));
        assert_eq!(*world.refusal(sink), Refusal::UnknownEvent);
    }
}

#[test]
fn a_newer_resume_displaces_the_older_one() {
    let mut world = live();
    let first = world.call(1);
    world.progress(1, 1);
    let second = world.listen(Some(cursor(&world, first)));
    assert!(world.connections[&first].finished);
    world.answer(1, "done");
    assert_eq!(world.gist(second), ["1 result"]);
}

#[test]
fn what_was_trimmed_ends_its_request_with_an_error_and_is_never_skipped() {
    let limits = Limits { log_events_max: 4, ..Limits::default() };
    let mut world = World::live(NEW, limits);
    let first = world.call(1);
    world.progress(1, 1);
    let cut_at = cursor(&world, first);
    world.hang_up(first);
    for progress in 2..10 {
        world.progress(1, progress);
    }
    let second = world.listen(Some(cut_at));
    assert_eq!(world.gist(second), ["1 error -32603"]);
    assert!(world.connections[&second].finished);
    assert_eq!(world.sent_methods().last().unwrap(), "notifications/cancelled");
}

#[test]
fn a_trimmed_standalone_stream_goes_on_and_says_what_to_ask_anew() {
    let limits = Limits { log_events_max: 3, ..Limits::default() };
    let mut world = World::live(NEW, limits);
    let first = world.listen(None);
    let cut_at = cursor(&world, first);
    for _ in 0..6 {
        world.say(Notification::new(Method::PromptsListChanged, None));
    }
    world.hang_up(first);
    let second = world.listen(Some(cut_at));
    let gist = world.gist(second);
    assert!(gist.contains(&"notifications/tools/list_changed".to_owned()), "{gist:?}");
    assert!(!world.connections[&second].finished);
}

// holds: SSE-02
#[test]
fn nothing_with_an_id_is_told_before_the_log_holds_it() {
    let mut world = live();
    world.prompt_log = false;
    let sink = world.call(1);
    world.progress(1, 1);
    world.answer(1, "done");
    assert!(!world.connections[&sink].open);
    world.acknowledge();
    assert_eq!(world.gist(sink), ["progress 1", "1 result"]);
}

// holds: SSE-01, GET-09, GET-05
#[test]
fn each_message_goes_to_one_stream_the_newest_standalone_one() {
    let mut world = live();
    let (older, newer) = (world.listen(None), world.listen(None));
    for _ in 0..3 {
        world.say(Notification::new(Method::ToolsListChanged, None));
    }
    assert_eq!(world.gist(older), Vec::<String>::new());
    assert_eq!(world.gist(newer).len(), 3);
}

// holds: POST-14, GET-04
#[test]
fn list_changes_never_go_with_an_answer_nor_answers_on_a_standalone_stream() {
    let mut world = live();
    let standalone = world.listen(None);
    let call = world.call(1);
    world.progress(1, 1);
    world.say(Notification::new(Method::ToolsListChanged, None));
    world.answer(1, "done");
    assert_eq!(world.gist(call), ["progress 1", "1 result"]);
    assert_eq!(world.gist(standalone), ["notifications/tools/list_changed"]);
}

#[test]
fn what_comes_while_nobody_listens_waits_for_the_next_who_does() {
    let mut world = live();
    world.say(Notification::new(Method::ToolsListChanged, None));
    let sink = world.listen(None);
    assert_eq!(world.gist(sink), ["notifications/tools/list_changed"]);
}

// holds: RPC-11
#[test]
fn before_initialized_only_log_messages_pass() {
    let mut world = World::new(Limits::default());
    world.initialize(NEW, "{}");
    let sink = world.listen(None);
    world.say(Notification::new(Method::ToolsListChanged, None));
    world.say(Notification::new(Method::LogMessage, Some(br#"{"level":"info","data":1}"#)));
    assert_eq!(world.gist(sink), ["notifications/message"]);
    world.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    assert_eq!(world.gist(sink), ["notifications/message", "notifications/tools/list_changed"]);
}

#[test]
fn beyond_the_bound_the_standalone_stream_idle_longest_is_closed() {
    let mut world = live();
    let sinks: Vec<_> = (0..4).map(|_| world.listen(None)).collect();
    world.wait(10);
    world.say(Notification::new(Method::ToolsListChanged, None));
    let fifth = world.listen(None);
    assert!(world.connections[&sinks[0]].finished);
    assert!(!world.connections[&sinks[3]].finished && !world.connections[&fifth].finished);
}

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
    world.say(Request::new("theirs".into(), Method::Ping, None));
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
fn a_cancelled_call_gets_no_word_and_its_late_answer_is_dropped() {
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

// holds: CAN-02
#[test]
fn initialize_is_never_cancelled() {
    let mut world = World::new(Limits::default());
    let sink = world.post(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#);
    world.post(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":0}}"#);
    world.shake();
    assert!(matches!(world.connections[&sink].answer, Some(Answer::Welcome(_))));
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
        world.say(Request::new("q".into(), method.clone(), Some(params.as_bytes())));
        let told = world.connections[&sink].messages().len();
        assert_eq!(told == 1, asked, "{revision} {capabilities} {method} {params}");
        let refused = matches!(world.sent.last(), Some(Message::Response(r)) if !r.is_result());
        assert_eq!(refused, !asked);
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
    world.say(log("debug"));
    let set = world
        .post(r#"{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"error"}}"#);
    world.say(Response::result(1.into(), b"{}"));
    assert_eq!(world.gist(set), ["1 result"]);
    world.say(log("info"));
    world.say(log("critical"));
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
    world.say(updated());
    for (id, method) in [(1, "subscribe"), (2, "unsubscribe")] {
        world.post(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"resources/{method}","params":{{"uri":"test://a"}}}}"#));
        world.say(Response::result(id.into(), b"{}"));
        world.say(updated());
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

// holds: STD-05
#[test]
fn a_server_that_dies_fails_what_was_in_flight_and_the_next_call_starts_it_anew() {
    let mut world = live();
    let first = world.call(1);
    world
        .post(r#"{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"error"}}"#);
    world.say(Response::result(2.into(), b"{}"));
    world.link_open = false;
    world.step(Event::LinkDown { reason: "it exited with status 1".to_owned() });
    assert_eq!(world.gist(first), ["1 error -32603"]);
    let before = world.sent.len();
    let second = world.call(3);
    world.shake();
    world.answer(3, "again");
    assert_eq!(world.gist(second), ["3 result"]);
    assert_eq!(
        world.sent_methods()[before..],
        ["initialize", "notifications/initialized", "logging/setLevel", "tools/call"]
    );
}

#[test]
fn a_server_that_keeps_dying_is_started_ever_more_rarely() {
    let mut world = live();
    let mut starts = 0;
    for id in 0..40 {
        if world.link_open {
            world.link_open = false;
            world.step(Event::LinkDown { reason: "it exited".to_owned() });
        }
        world.call(100 + id);
        starts += u32::from(world.link_open);
        world.wait(100);
    }
    assert!(starts < 12, "{starts}");
}

#[test]
fn a_server_that_cannot_be_started_leaves_no_session() {
    let mut world = World::new(Limits::default());
    let sink = world.post(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#);
    world.link_open = false;
    world.step(Event::LinkDown { reason: "no such program".to_owned() });
    assert_eq!(world.gist(sink), ["0 error -32603"]);
    assert_eq!(world.over, Some(Cause::NotBorn));
}

#[test]
fn a_client_that_leaves_before_the_answer_to_initialize_leaves_no_session() {
    let mut world = World::new(Limits::default());
    let sink = world.post(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#);
    world.hang_up(sink);
    assert_eq!(world.over, Some(Cause::NotBorn));
    assert!(!world.link_open);
}

// holds: SES-07, SES-08, SES-06
#[test]
fn delete_ends_streams_calls_and_the_server() {
    let mut world = live();
    let (standalone, call) = (world.listen(None), world.call(1));
    let sink = world.sink();
    world.step(Event::Deleted { sink });
    assert_eq!(world.connections[&sink].answer, Some(Answer::Ended));
    assert!(world.connections[&standalone].finished);
    assert_eq!(world.gist(call), ["1 error -32000"]);
    assert!(!world.link_open);
    assert_eq!(world.over, Some(Cause::Deleted));
}

#[test]
fn an_idle_session_ends_and_one_that_listens_does_not() {
    let mut world = live();
    let sink = world.listen(None);
    world.wait(4_000_000);
    assert_eq!(world.over, None);
    world.hang_up(sink);
    world.wait(1_799_000);
    assert_eq!(world.over, None);
    world.wait(1_000);
    assert_eq!(world.over, Some(Cause::Idle));
}

#[test]
fn a_client_that_never_says_initialized_is_not_waited_for() {
    let mut world = World::new(Limits::default());
    world.initialize(NEW, "{}");
    world.wait(60_000);
    assert_eq!(world.over, Some(Cause::Idle));
}

// holds: SSE-13
#[test]
fn an_idle_stream_is_kept_alive_by_comments() {
    let mut world = live();
    let sink = world.listen(None);
    world.wait(31_000);
    let frames = world.connections[&sink].frames.iter();
    assert_eq!(frames.filter(|frame| **frame == Frame::KeepAlive).count(), 2);
}

// holds: SSE-05, POST-13, GET-07
#[test]
fn an_old_connection_is_told_when_to_come_back_and_ends() {
    let mut world = World::live(NEW, Limits { stream_secs: 5, ..Limits::default() });
    let first = world.call(1);
    world.wait(5_250);
    let connection = &world.connections[&first];
    assert!(connection.finished);
    assert!(matches!(connection.frames.last(), Some(Frame::Retry(_))));
    world.answer(1, "done");
    let second = world.listen(Some(cursor(&world, first)));
    assert_eq!(world.gist(second), ["1 result"]);
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
    assert!(world.connections[&early].answer.is_none(), "it waits for the list");
    let tools = br#"{"tools":[{"name":"t","inputSchema":{"type":"object","properties":{"value":{"type":"string","x-mcp-header":"Value"}}}}]}"#;
    world.say(Response::result(id, tools));
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

// holds: OLD-03, OLD-04, OLD-10
#[test]
fn on_a_duplex_transport_everything_goes_through_the_one_pipe_and_ends_with_it() {
    let mut world = World::duplex(Limits::default());
    let pipe = SinkId(0);
    let posted = world.initialize("2024-11-05", "{}");
    assert!(accepted(&world, posted));
    world.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    let posted = world.call(1);
    assert!(accepted(&world, posted));
    world.progress(1, 1);
    world.answer(1, "done");
    assert_eq!(world.gist(pipe), ["\"init\" result", "progress 1", "1 result"]);
    assert_eq!(world.appended, 0);
    world.hang_up(pipe);
    assert_eq!(world.over, Some(Cause::Disconnected));
    let late = world.sink();
    world.over = None;
    world.step(Event::Listened { sink: late, after: None });
    assert_eq!(*world.refusal(late), Refusal::UnknownSession);
}

#[test]
fn a_node_that_stops_leaves_nobody_without_a_word() {
    let mut world = live();
    let (held, streamed, standalone) = (world.call(1), world.call(2), world.listen(None));
    world.progress(2, 1);
    world.step(Event::Stopping);
    assert_eq!(world.gist(held), ["1 error -32000"]);
    assert_eq!(world.gist(streamed), ["progress 1", "2 error -32000"]);
    assert!(world.connections[&standalone].finished);
    assert_eq!(world.over, Some(Cause::Stopping));
}

#[test]
fn a_server_that_answers_twice_or_what_nobody_asked_changes_nothing() {
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
