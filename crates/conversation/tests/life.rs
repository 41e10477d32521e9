//! How sessions begin and end: the handshake, servers that end, clients that disconnect.

use crate::world::{NEW, World, accepted, live};
use conversation::{Answer, Cause, Event, Limits, Refusal, SinkId};
use protocol::{ErrorCode, Message, Method, Notification, Response};

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

// holds: RPC-11
#[test]
fn before_initialized_only_log_messages_pass() {
    let mut world = World::new(Limits::default());
    world.initialize(NEW, "{}");
    let sink = world.listen(None);
    world.send_from_server(Notification::new(Method::ToolsListChanged, None));
    world.send_from_server(Notification::new(
        Method::LogMessage,
        Some(br#"{"level":"info","data":1}"#),
    ));
    assert_eq!(world.gist(sink), ["notifications/message"]);
    world.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    assert_eq!(world.gist(sink), ["notifications/message", "notifications/tools/list_changed"]);
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

// holds: STD-05
#[test]
fn a_server_that_dies_fails_what_was_in_flight_and_the_next_call_starts_it_anew() {
    let mut world = live();
    let first = world.call(1);
    world
        .post(r#"{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"error"}}"#);
    world.send_from_server(Response::result(2.into(), b"{}"));
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
    assert_eq!(world.over, Some(Cause::HandshakeFailed));
}

#[test]
fn a_client_that_leaves_before_the_answer_to_initialize_leaves_no_session() {
    let mut world = World::new(Limits::default());
    let sink = world.post(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#);
    world.hang_up(sink);
    assert_eq!(world.over, Some(Cause::HandshakeFailed));
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
fn a_delete_is_answered_when_the_store_holds_the_end() {
    let mut world = live();
    world.prompt_log = false;
    let (first, second) = (world.sink(), world.sink());
    world.step(Event::Deleted { sink: first });
    assert_eq!(world.over, Some(Cause::Deleted));
    world.step(Event::Deleted { sink: second });
    let post = world.call(1);
    assert_eq!(*world.refusal(post), Refusal::UnknownSession);
    assert_eq!(world.connections[&first].answer, None);
    assert!(world.session.awaits_end(first) && world.session.awaits_end(second));
    world.step(Event::Ended { durable: true });
    assert_eq!(world.connections[&first].answer, Some(Answer::Ended));
    assert_eq!(world.connections[&second].answer, Some(Answer::Ended));
    let late = world.sink();
    world.step(Event::Deleted { sink: late });
    assert_eq!(*world.refusal(late), Refusal::UnknownSession);
}

#[test]
fn a_delete_whose_end_is_not_written_in_time_is_not_answered_as_done() {
    let mut world = live();
    world.prompt_log = false;
    let sinks = [world.sink(), world.sink()];
    sinks.into_iter().for_each(|sink| world.step(Event::Deleted { sink }));
    world.step(Event::Ended { durable: false });
    sinks.iter().for_each(|sink| assert_eq!(*world.refusal(*sink), Refusal::Unavailable));
    let late = world.sink();
    world.step(Event::Deleted { sink: late });
    assert_eq!(*world.refusal(late), Refusal::Unavailable);
    // The end is reported once.
    world.step(Event::Ended { durable: true });
}

#[test]
fn deletes_that_wait_for_one_end_are_bounded() {
    let mut world = live();
    world.prompt_log = false;
    let sinks: Vec<_> = (0..70).map(|_| world.sink()).collect();
    sinks.iter().for_each(|sink| world.step(Event::Deleted { sink: *sink }));
    let busy = sinks.iter().filter(|sink| !world.session.awaits_end(**sink));
    let refused: Vec<_> = busy.map(|sink| world.refusal(*sink).clone()).collect();
    assert_eq!(refused, vec![Refusal::Busy; 6]);
}

#[test]
fn a_delete_of_a_session_that_was_to_be_handed_over_ends_it() {
    let mut world = live();
    world.call(1);
    world.step(Event::HandOver { at_once: false });
    world.prompt_log = false;
    let (sink, other) = (world.sink(), world.sink());
    world.step(Event::Deleted { sink });
    world.step(Event::Deleted { sink: other });
    assert_eq!(world.over, Some(Cause::Deleted));
    let post = world.call(2);
    assert_eq!(*world.refusal(post), Refusal::UnknownSession);
    world.step(Event::Ended { durable: true });
    assert_eq!(world.connections[&other].answer, Some(Answer::Ended));
}

#[test]
fn an_idle_session_ends_and_one_that_listens_does_not() {
    let mut world = live();
    let sink = world.listen(None);
    world.wait(4_000_000);
    assert_eq!(world.over, None);
    world.hang_up(sink);
    // The client is alive after this, with or without a stream.
    let post = world.post(r#"{"jsonrpc":"2.0","id":9,"method":"ping"}"#);
    world.hang_up(post);
    world.wait(1_799_000);
    assert_eq!(world.over, None);
    world.wait(1_000);
    assert_eq!(world.over, Some(Cause::Idle));
}

#[test]
fn a_session_whose_client_closed_its_stream_and_did_nothing_more_ends_sooner() {
    let mut world = live();
    let (one, other) = (world.listen(None), world.listen(None));
    world.hang_up(one);
    world.wait(1_000_000);
    assert_eq!(world.over, None, "it has another stream");
    world.hang_up(other);
    world.wait(599_000);
    assert_eq!(world.over, None);
    let again = world.listen(None);
    world.wait(1_000_000);
    assert_eq!(world.over, None, "it has opened the stream again");
    world.hang_up(again);
    world.wait(600_000);
    assert_eq!(world.over, Some(Cause::Idle));
}

#[test]
fn a_session_makes_room_for_another_only_if_its_server_was_idle_for_long() {
    let mut world = live();
    world.call(1);
    world.wait(100_000);
    world.step(Event::ServerRoomWanted);
    assert!(world.link_open, "a request is in flight");
    world.answer(1, "done");
    world.wait(299_000);
    world.step(Event::ServerRoomWanted);
    assert!(world.link_open, "it was idle for less than the limit");
    world.wait(1_000);
    world.step(Event::ServerRoomWanted);
    assert!(!world.link_open);
    world.call(2);
    assert!(world.link_open, "the next request starts it again");
}

#[test]
fn a_session_whose_client_never_sends_initialized_ends() {
    let mut world = World::new(Limits::default());
    world.initialize(NEW, "{}");
    world.wait(60_000);
    assert_eq!(world.over, Some(Cause::Idle));
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
fn a_duplex_session_ends_after_its_calls_when_its_node_drains() {
    let live = || {
        let mut world = World::duplex(Limits::default());
        world.initialize("2024-11-05", "{}");
        world.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        world
    };
    let mut world = live();
    world.call(1);
    world.step(Event::HandOver { at_once: false });
    assert_eq!(world.over, None);
    world.answer(1, "done");
    assert!(world.gist(SinkId(0)).contains(&"1 result".to_owned()));
    assert_eq!(world.over, Some(Cause::Stopping));

    let mut world = live();
    world.call(1);
    world.step(Event::HandOver { at_once: false });
    world.step(Event::HandOver { at_once: true });
    assert!(world.gist(SinkId(0)).contains(&"1 error -32000".to_owned()));
    assert_eq!(world.over, Some(Cause::Stopping));
}

#[test]
fn a_node_that_stops_gives_every_request_a_final_response() {
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
fn a_revoked_client_gets_errors_and_its_requests_are_cancelled_at_the_server() {
    let mut world = live();
    let (held, streamed, standalone) = (world.call(1), world.call(2), world.listen(None));
    world.progress(2, 1);
    world.step(Event::Revoked);
    assert_eq!(world.gist(held), ["1 error -32000"]);
    assert_eq!(world.gist(streamed), ["progress 1", "2 error -32000"]);
    assert!(world.connections[&standalone].finished);
    assert_eq!(world.over, Some(Cause::Revoked));
    let sent = world.sent_methods();
    let cancelled = sent.iter().filter(|method| *method == "notifications/cancelled");
    assert_eq!(cancelled.count(), 2, "{sent:?}");
}

/// `initialize` with this in its parameters.
fn initialize_with(more: &str, name: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{{more}"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{{"name":"{name}","version":"1"}}}}}}"#
    )
}

#[test]
fn of_initialize_only_what_is_used_again_is_kept_and_the_server_is_sent_that() {
    let mut world = World::new(Limits::default());
    let more = format!(r#""_meta":{{"a":1}},"pad":"{}","#, "x".repeat(100_000));
    world.post(&initialize_with(&more, "c"));
    world.shake();
    let kept = r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
    assert_eq!(*world.session.initialize(), *kept.as_bytes());
    let Some(Message::Request(sent)) = world.sent.first() else { panic!("{:?}", world.sent) };
    assert_eq!(sent.params().unwrap(), kept);
}

#[test]
fn an_initialize_of_which_too_much_would_be_kept_is_refused_by_the_name_of_its_bound() {
    let mut world = World::new(Limits::default());
    let sink = world.post(&initialize_with("", &"x".repeat(20_000)));
    let Refusal::Rejected(rejection) = world.refusal(sink) else { panic!("not rejected") };
    assert_eq!(rejection.code, ErrorCode::InvalidParams);
    assert!(rejection.message.contains("16384 bytes (sessions.initialize_bytes_max)"));
    assert_eq!(world.over, Some(Cause::HandshakeFailed));
}
