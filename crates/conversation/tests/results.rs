//! Results of every size and at every speed of the store: the client receives each result, or one
//! error that names the limit.

use crate::world::{NEW, World, accepted, cursor};
use conversation::{Answer, Event, EventId, Frame, Limits, Refusal, SinkId};
use protocol::{Method, Notification};

const OLD: &str = "2025-06-18";
const MIB: usize = 1 << 20;

/// The default limits on a smaller scale: a log of 4 KiB, messages of 16 KiB.
fn small() -> Limits {
    Limits { log_bytes_max: 4 << 10, message_bytes_max: 16 << 10, ..Limits::default() }
}

fn large(bytes: usize) -> String {
    "x".repeat(bytes)
}

fn log(data: &str) -> Notification {
    let params = format!(r#"{{"level":"info","data":"{data}"}}"#);
    Notification::new(Method::LogMessage, Some(params.as_bytes()))
}

/// Makes a call's answer a stream, in the way of each revision.
fn stream(world: &mut World, id: u64) -> SinkId {
    let sink = world.call(id);
    world.progress(id, 1);
    sink
}

/// The bytes of the messages that a connection received.
fn bytes_received(world: &World, sink: SinkId) -> usize {
    world.connections[&sink].messages().iter().map(String::len).sum()
}

#[test]
fn a_streamed_result_above_the_log_bound_arrives_with_default_settings() {
    for revision in [NEW, OLD] {
        for bytes in [5 * MIB, 15 * MIB] {
            let mut world = World::live(revision, Limits::default());
            world.prompt_log = false;
            let sink = stream(&mut world, 1);
            world.acknowledge();
            let cut_at = cursor(&world, sink);
            world.answer(1, &large(bytes));
            world.acknowledge();
            assert_eq!(world.gist(sink), ["progress 1", "1 result"], "{bytes} in {revision}");
            assert!(bytes_received(&world, sink) > bytes);
            // The connection broke during the stream.
            let again = world.listen(Some(cut_at));
            assert_eq!(world.gist(again), ["1 result"]);
            assert!(bytes_received(&world, again) > bytes);
        }
    }
}

#[test]
fn a_large_result_waits_for_its_disconnected_client_and_is_then_dropped() {
    let mut world = World::live(NEW, small());
    let sink = stream(&mut world, 1);
    let cut_at = cursor(&world, sink);
    world.hang_up(sink);
    world.send_from_server_about(1, log(&large(6 << 10)));
    world.answer(1, &large(8 << 10));
    world.wait(20_000);
    let again = world.listen(Some(cut_at));
    assert_eq!(world.gist(again), ["notifications/message", "1 result"]);
    // Its `hold_ms` is over, and the log exceeds its limit.
    world.wait(6_000);
    let late = world.listen(Some(cut_at));
    let text = &world.connections[&late].messages()[0];
    assert!(text.contains("sessions.log_bytes_max"), "{text}");
}

#[test]
fn a_large_notification_before_the_result_does_not_end_its_call() {
    for bytes in [5 << 10, 15 << 10] {
        let mut world = World::live(NEW, small());
        world.prompt_log = false;
        let sink = world.call(1);
        world.send_from_server_about(1, log(&large(bytes)));
        world.answer(1, "done");
        world.acknowledge();
        assert_eq!(world.gist(sink), ["notifications/message", "1 result"]);
    }
}

#[test]
fn large_messages_of_one_moment_all_arrive() {
    let mut world = World::live(NEW, small());
    let standalone = world.listen(None);
    world.prompt_log = false;
    let sinks = [stream(&mut world, 1), stream(&mut world, 2), stream(&mut world, 3)];
    for id in 1..=3 {
        world.send_from_server_about(id, log(&large(10 << 10)));
        world.answer(id, &large(15 << 10));
        let params = format!(r#"{{"x":"{}"}}"#, large(9 << 10));
        world
            .send_from_server(Notification::new(Method::ToolsListChanged, Some(params.as_bytes())));
    }
    world.acknowledge();
    for (id, sink) in (1..).zip(sinks) {
        let expected =
            ["progress 1".into(), "notifications/message".into(), format!("{id} result")];
        assert_eq!(world.gist(sink), expected);
        assert!(world.connections[&sink].finished);
    }
    assert_eq!(world.gist(standalone), ["notifications/tools/list_changed"; 3]);
    assert!(!world.connections[&standalone].finished);
}

#[test]
fn large_results_of_a_batch_all_arrive() {
    let mut world = World::live("2025-03-26", small());
    world.prompt_log = false;
    let calls = (1..=3).map(|id| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"t"}}}}"#)
    });
    let sink = world.post(&format!("[{}]", calls.collect::<Vec<_>>().join(",")));
    world.answer(1, &large(10 << 10));
    world.send_from_server_about(2, log("x"));
    world.answer(2, &large(10 << 10));
    world.answer(3, &large(10 << 10));
    world.acknowledge();
    let expected = ["1 result", "notifications/message", "2 result", "3 result"];
    assert_eq!(world.gist(sink), expected);
}

#[test]
fn messages_above_the_bound_are_one_error_and_the_call_ran_once() {
    let mut world = World::live(NEW, small());
    let quick = world.call(1);
    let streamed = stream(&mut world, 2);
    world.send_from_server_about(2, log(&large(17 << 10)));
    for (id, sink) in [(1, quick), (2, streamed)] {
        world.answer(id, &large(17 << 10));
        let received = world.connections[&sink].messages();
        let text = received.last().unwrap();
        assert!(text.contains("16384 of sessions.message_bytes_max"), "{text}");
        assert_eq!(
            world.sent.iter().filter(|m| format!("{m:?}").contains("tools/call")).count(),
            2
        );
    }
    assert_eq!(world.gist(streamed), ["progress 1", "2 error -32000"]);
    assert!(world.connections[&streamed].finished);
    // A server request that is too large is refused, too.
    let params = format!(r#"{{"message":"{}","requestedSchema":{{}}}}"#, large(17 << 10));
    let question = protocol::Request::new("q".into(), Method::Elicit, Some(params.as_bytes()));
    world.send_from_server(question);
    let refused = format!("{:?}", world.sent.last().unwrap());
    assert!(refused.contains("message_bytes_max"), "{refused}");
}

#[test]
fn the_log_is_never_above_its_bound_and_one_message() {
    let mut world = World::live(NEW, small());
    world.prompt_log = false;
    for id in 1..60 {
        let sink = stream(&mut world, id);
        if id % 2 == 0 {
            world.hang_up(sink);
        }
        world.answer(id, &large((id as usize * 997) % (15 << 10)));
        let bytes: usize =
            world.session.replay_buffer().entries.iter().map(|entry| entry.len()).sum();
        assert!(bytes < (4 << 10) + (16 << 10) + (4 << 10), "{bytes} after {id}");
    }
    // The log is trimmed to the permanent limit.
    world.acknowledge();
    world.wait(30_000);
    world.acknowledge();
    let bytes: usize = world.session.replay_buffer().entries.iter().map(|entry| entry.len()).sum();
    assert!(bytes < (4 << 10) + (4 << 10), "{bytes}");
}

#[test]
fn a_store_that_refuses_keeps_no_client_from_its_head_and_its_result() {
    for revision in [NEW, OLD] {
        let mut world = World::live(revision, Limits::default());
        world.prompt_log = false;
        let sink = stream(&mut world, 1);
        world.wait(4_999);
        let connection = &world.connections[&sink];
        assert!(connection.open && connection.at.is_none());
        assert_eq!(connection.frames, [Frame::KeepAlive]);
        // The call continues as long as the server works.
        world.wait(100_000);
        assert!(!world.connections[&sink].finished);
        world.answer(1, "done");
        world.wait(24_999);
        assert_eq!(world.gist(sink), Vec::<String>::new(), "the store may still answer");
        world.wait(1);
        assert_eq!(world.gist(sink), ["progress 1", "1 result"]);
        let connection = &world.connections[&sink];
        assert!(connection.finished);
        let with_id = |frame: &&Frame| {
            matches!(frame, Frame::Cursor { .. } | Frame::Message { id: Some(_), .. })
        };
        assert_eq!(connection.frames.iter().find(with_id), None, "the log has no event of it");
        world.acknowledge();
    }
}

#[test]
fn a_stream_whose_head_came_without_an_id_gets_its_ids_when_the_log_has_it() {
    let mut world = World::live(NEW, Limits { stream_secs: 5, ..Limits::default() });
    world.prompt_log = false;
    let sink = stream(&mut world, 1);
    // No client could resume, so the connection is not ended because of its age.
    world.wait(60_000);
    assert!(!world.connections[&sink].finished);
    world.acknowledge();
    let frames = &world.connections[&sink].frames;
    assert!(matches!(frames[1], Frame::Cursor { .. }), "{frames:?}");
    world.answer(1, "done");
    world.acknowledge();
    assert_eq!(world.gist(sink), ["progress 1", "1 result"]);
    let again = world.listen(Some(cursor(&world, sink)));
    assert_eq!(*world.refusal(again), Refusal::NothingMore);
}

#[test]
fn a_connection_that_could_not_be_resumed_at_its_maximum_age_ends_soon_after() {
    let mut world = World::live(NEW, Limits { stream_secs: 5, ..Limits::default() });
    world.prompt_log = false;
    let sink = stream(&mut world, 1);
    world.wait(60_000);
    assert!(!world.connections[&sink].finished, "its client has no event id");
    world.acknowledge();
    world.wait(1_000);
    assert!(world.connections[&sink].finished);
}

#[test]
fn a_get_stream_that_cannot_be_written_gets_its_head() {
    let mut world = World::live(NEW, Limits::default());
    world.prompt_log = false;
    let sink = world.listen(None);
    world.wait(5_000);
    assert!(world.connections[&sink].open);
    world.send_from_server(Notification::new(Method::ToolsListChanged, None));
    assert_eq!(world.gist(sink), Vec::<String>::new());
    world.acknowledge();
    assert_eq!(world.gist(sink), ["notifications/tools/list_changed"]);
    let EventId { number, .. } = cursor(&world, sink);
    assert!(number <= world.acknowledged);
}

#[test]
fn a_result_sent_without_an_id_is_replayed_only_to_a_client_that_resumes() {
    let mut world = World::live(NEW, Limits::default());
    let sink = stream(&mut world, 1);
    let cut_at = cursor(&world, sink);
    world.prompt_log = false;
    world.answer(1, "done");
    world.wait(25_000);
    assert_eq!(world.gist(sink), ["progress 1", "1 result"]);
    world.acknowledge();
    assert_eq!(world.gist(sink), ["progress 1", "1 result"], "no message is sent twice");
    let again = world.listen(Some(cut_at));
    assert_eq!(world.gist(again), ["1 result"]);
}

#[test]
fn many_withheld_messages_do_not_end_a_call_that_works() {
    let mut world = World::live(NEW, Limits { log_events_max: 16, ..Limits::default() });
    world.prompt_log = false;
    let sink = world.call(1);
    for progress in 1..=50 {
        world.progress(1, progress);
    }
    world.answer(1, "done");
    world.wait(25_000);
    let received = world.gist(sink);
    assert_eq!((received.len(), received.last().unwrap().as_str()), (51, "1 result"));
    assert!(world.connections[&sink].finished);
}

#[test]
fn what_would_acknowledge_a_change_is_an_error_where_the_store_refuses() {
    let mut world = World::live(NEW, Limits::default());
    world.prompt_log = false;
    let level = world
        .post(r#"{"jsonrpc":"2.0","id":5,"method":"logging/setLevel","params":{"level":"error"}}"#);
    world.step(Event::DeadlinePassed);
    world.send_from_server(protocol::Response::result(5.into(), b"{}"));
    world.wait(25_000);
    let Some(Answer::Json(error)) = &world.connections[&level].answer else { panic!("no answer") };
    let error = String::from_utf8_lossy(error);
    assert!(error.contains("sessions.hold_ms") && error.contains("error"), "{error}");

    // The same if the answer is a stream.
    let mut world = World::live(NEW, Limits::default());
    world.prompt_log = false;
    let level = world
        .post(r#"{"jsonrpc":"2.0","id":5,"method":"logging/setLevel","params":{"level":"error"}}"#);
    world.wait(250);
    world.send_from_server(protocol::Response::result(5.into(), b"{}"));
    world.wait(26_000);
    assert_eq!(world.gist(level), ["5 error -32000"]);

    // A cancellation is not acknowledged either.
    let mut world = World::live(NEW, Limits::default());
    stream(&mut world, 1);
    world.prompt_log = false;
    let cancel = world
        .post(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#);
    world.wait(25_000);
    assert!(!accepted(&world, cancel));
    assert_eq!(*world.refusal(cancel), Refusal::Unavailable);
}

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#;

/// How often the server received a call.
fn runs(world: &World) -> usize {
    world.sent_methods().iter().filter(|method| *method == "tools/call").count()
}

#[test]
fn a_result_whose_connection_was_lost_answers_the_repeated_post() {
    let mut world = World::live(NEW, Limits::default());
    let lost = world.call(1);
    world.hang_up(lost);
    world.answer(1, "done");
    world.wait(24_000);
    // The result is returned each time that the client posts the call.
    for _ in 0..2 {
        let again = world.post_again(CALL);
        assert_eq!(world.gist(again), ["1 result"]);
    }
    assert_eq!(runs(&world), 1);
    world.wait(1_000);
    let late = world.post_again(CALL);
    world.send_from_server(protocol::Response::result("none".into(), b"{}"));
    assert_ne!(world.gist(late), ["1 result"], "the result is kept too long");
}

#[test]
fn a_result_that_another_node_may_have_lost_is_kept_for_a_moment() {
    let mut world = World::live(NEW, Limits::default());
    let first = world.post_forwarded(CALL);
    world.answer(1, "done");
    assert_eq!(world.gist(first), ["1 result"]);
    let again = world.post_again(CALL);
    assert_eq!(world.gist(again), ["1 result"]);
    assert_eq!(runs(&world), 1);
    world.wait(5_000);
    assert_eq!(world.session.deadline().map(|at| at.0 > 1_000_000), Some(true), "nothing is kept");
}

#[test]
fn a_request_that_timed_out_meanwhile_gets_its_error_and_a_cancelled_one_nothing() {
    let limits = Limits { request_secs: 10, ..Limits::default() };
    for wait in [15_000, 60_000] {
        let mut world = World::live(NEW, limits.clone());
        let lost = world.call(1);
        world.hang_up(lost);
        world.wait(10_000 + wait);
        let again = world.post_again(CALL);
        assert_eq!(world.gist(again), ["1 error -32000"], "after {wait} ms");
        assert_eq!(runs(&world), 1);
    }
    let mut world = World::live(NEW, limits);
    let lost = world.call(1);
    world.hang_up(lost);
    world.post(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#);
    let again = world.post_again(CALL);
    assert_eq!(world.connections[&again].answer, Some(Answer::Nothing));
    // The same if the result arrived before the cancellation.
    let lost = world.call(2);
    world.hang_up(lost);
    world.answer(2, "done");
    world.post(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}"#);
    let again = world.post_again(&CALL.replace("\"id\":1", "\"id\":2"));
    assert_eq!(world.connections[&again].answer, Some(Answer::Nothing));
}

#[test]
fn kept_results_are_bounded_in_number_and_bytes() {
    let limits =
        Limits { kept_results_max: 3, kept_results_bytes_max: 10 << 10, ..Limits::default() };
    let mut world = World::live(NEW, limits);
    for id in 1..=9 {
        let lost = world.call(id);
        world.hang_up(lost);
        world.answer(id, &large(if id > 6 { 4 << 10 } else { 10 }));
        let again = |world: &mut World, id: u64| {
            let sink = world.post_again(&CALL.replace("\"id\":1", &format!("\"id\":{id}")));
            world.connections[&sink].answer.is_some()
        };
        assert!(again(&mut world, id));
        if id == 6 {
            assert!(again(&mut world, 4) && !again(&mut world, 3));
        }
        if id == 9 {
            assert!(again(&mut world, 8) && !again(&mut world, 7));
        }
    }
}

#[test]
fn a_session_that_ends_gives_what_waits_for_the_store() {
    let mut world = World::live(NEW, Limits::default());
    world.prompt_log = false;
    let (done, open) = (stream(&mut world, 1), stream(&mut world, 2));
    world.answer(1, "done");
    world.step(Event::Stopping);
    assert_eq!(world.gist(done), ["progress 1", "1 result"]);
    assert_eq!(world.gist(open), ["progress 1", "2 error -32000"]);
}

#[test]
fn a_session_that_ends_asks_the_client_nothing_that_the_store_does_not_hold() {
    let mut world = World::live(NEW, Limits::default());
    world.prompt_log = false;
    let call = stream(&mut world, 1);
    world.ask("what", Some(1));
    let sink = world.sink();
    // If its owner is lost before the end is written, the next one may run the call again.
    world.step(Event::Deleted { sink });
    assert_eq!(world.gist(call), ["progress 1", "1 error -32000"]);
}
