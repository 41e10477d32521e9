//! Requests that are posted again after their owner was lost.

use conversation::{Answer, Event, Limits, Rerun};
use protocol::Response;

use crate::restore::{ELICITS, POSTED, called, harmless, list_tools, start};
use crate::world::{NEW, World, accepted, live};

#[test]
fn a_request_posted_again_gets_its_logged_stream_from_the_beginning() {
    let mut world = harmless();
    world.call(1);
    world.progress(1, 1);
    world.answer(1, "done");
    world.restore(0);
    let again = world.post_again(POSTED);
    assert_eq!(world.gist(again), ["progress 1", "1 result"]);
    assert!(world.connections[&again].finished);
    assert_eq!(called(&world), 1);
}

#[test]
fn a_request_posted_again_while_it_runs_is_answered_there() {
    let mut world = live();
    let first = world.call(1);
    let second = world.post_again(POSTED);
    assert_eq!(world.connections[&first].answer, Some(Answer::Nothing));
    world.answer(1, "once");
    assert_eq!(world.gist(second), ["1 result"]);
    assert_eq!(called(&world), 1);
}

#[test]
fn an_unknown_request_that_is_posted_again_runs_only_if_that_does_no_harm() {
    let mut world = World::with(Limits::default(), Rerun::Never, None).alive(NEW, ELICITS);
    world.call(1);
    world.restore(0);
    let again = world.post_again(POSTED);
    assert_eq!(world.gist(again), ["1 error -32000"]);
    let reads = world.post_again(r#"{"jsonrpc":"2.0","id":2,"method":"prompts/list"}"#);
    start(&mut world);
    world.send_from_server(Response::result(2.into(), b"{}"));
    assert_eq!(world.gist(reads), ["2 result"]);

    let mut world = live();
    world.call(1);
    world.restore(0);
    let again = world.post_again(POSTED);
    start(&mut world);
    assert_eq!(called(&world), 1);
    list_tools(&mut world);
    world.answer(1, "done");
    assert_eq!(world.gist(again), ["1 result"]);
}

#[test]
fn a_tool_that_is_known_to_do_harm_or_cannot_be_looked_up_is_not_called_again() {
    let mut world = live();
    world.call(1);
    world.restore(0);
    let again = world.post_again(&POSTED.replace("\"t\"", "\"u\""));
    start(&mut world);
    list_tools(&mut world);
    assert_eq!(world.gist(again), ["1 error -32000"]);

    let mut world = live();
    world.call(1);
    world.restore(0);
    let again = world.post_again(POSTED);
    world.link_open = false;
    world.step(Event::LinkDown { reason: "no such program".to_owned() });
    assert_eq!(world.gist(again), ["1 error -32603"]);
}

#[test]
fn a_batch_posted_again_runs_what_does_no_harm() {
    let mut world = World::with(Limits::default(), Rerun::Never, None).alive("2025-03-26", ELICITS);
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}},{"jsonrpc":"2.0","id":2,"method":"tools/list"}]"#;
    world.post(batch);
    world.restore(0);
    let again = world.post_again(batch);
    start(&mut world);
    world.send_from_server(Response::result(2.into(), br#"{"tools":[]}"#));
    assert_eq!(world.gist(again), ["1 error -32000", "2 result"]);
}

#[test]
fn a_request_posted_again_after_it_was_cancelled_is_not_run() {
    let mut world = harmless();
    world.call(1);
    world.restore(0);
    world.post(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#);
    let again = world.post_again(POSTED);
    assert_eq!(world.connections[&again].answer, Some(Answer::Nothing));
    assert_eq!(called(&world), 1);
}

#[test]
fn a_late_cancellation_is_accepted_when_the_log_holds_the_final_response() {
    let mut world = harmless();
    world.call(1);
    world.progress(1, 1);
    world.prompt_log = false;
    world.answer(1, "done");
    let late = world
        .post(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#);
    assert_eq!(world.connections[&late].answer, None);
    world.acknowledge();
    assert!(accepted(&world, late));
}

#[test]
fn initialized_posted_again_is_sent_to_the_server_once() {
    let mut world = live();
    let again = world.post_again(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    assert!(accepted(&world, again));
    let sent = world.sent_methods();
    assert_eq!(sent.iter().filter(|method| *method == "notifications/initialized").count(), 1);
}
