//! A client receives a server request on another stream than that of its call.

use crate::world::{NEW, World, accepted, cursor};
use conversation::{Limits, Rerun};

const ELICITS: &str = r#"{"sampling":{},"elicitation":{},"roots":{}}"#;
const POSTED: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#;

fn harmless() -> World {
    World::with(Limits::default(), Rerun::Always, None).alive(NEW, ELICITS)
}

fn called(world: &World) -> usize {
    world.sent_methods().iter().filter(|method| *method == "tools/call").count()
}

/// If the connection of a call is lost, its client receives the server request on the GET stream.
#[test]
fn a_call_that_asked_its_client_elsewhere_is_not_run_again_either() {
    for answered in [false, true] {
        let mut world = harmless();
        let listening = world.listen(None);
        let lost = world.call(1);
        world.hang_up(lost);
        world.prompt_log = false;
        world.ask("theirs", Some(1));
        // The client receives the server request only when the next owner would know its call.
        world.acknowledge_log();
        assert_eq!(world.gist(listening), [""; 0]);
        world.prompt_log = true;
        world.acknowledge();
        assert_eq!(world.gist(listening), ["elicitation/create"]);
        let question = world.json(listening)["id"].as_str().unwrap().to_owned();
        if answered {
            let text = format!(r#"{{"jsonrpc":"2.0","id":"{question}","result":{{}}}}"#);
            let sink = world.post(&text);
            assert!(accepted(&world, sink));
        }
        for _ in 0..2 {
            world.restore(usize::MAX);
        }
        let again = world.post_again(POSTED);
        assert_eq!(world.gist(again), ["1 error -32000"], "answered: {answered}");
        assert_eq!(called(&world), 1);
        // Another call may be run again, as before.
        let other = world.post_again(&POSTED.replace("\"id\":1", "\"id\":2"));
        world.shake();
        world.answer(2, "done");
        assert_eq!(world.gist(other), ["2 result"]);
    }
}

/// The answer of the call may have become a stream. The log of that stream does not contain the
/// server request.
#[test]
fn so_it_is_where_its_answer_became_a_stream_since() {
    let mut world = harmless();
    world.listen(None);
    let lost = world.call(1);
    world.hang_up(lost);
    world.ask("theirs", Some(1));
    let first = world.post_again(POSTED);
    world.progress(1, 1);
    let cut_at = cursor(&world, first);
    world.restore(usize::MAX);
    let second = world.listen(Some(cut_at));
    assert_eq!(world.gist(second).last().map(String::as_str), Some("1 error -32000"));
    assert_eq!(called(&world), 1);
}

/// Only a GET stream could deliver the server request, and the client never opens one.
#[test]
fn a_server_request_without_a_route_is_sent_on_its_call_that_is_posted_again() {
    let mut world = harmless();
    let lost = world.call(1);
    let other = world.call(2);
    world.hang_up(lost);
    world.ask("theirs", Some(1));
    let again = world.post_again(POSTED);
    assert_eq!(world.gist(again), ["elicitation/create"]);
    assert_eq!(world.gist(other), [""; 0]);
    let question = world.json(again)["id"].as_str().unwrap().to_owned();
    let text = format!(r#"{{"jsonrpc":"2.0","id":"{question}","result":{{}}}}"#);
    let sink = world.post(&text);
    assert!(accepted(&world, sink));
    world.answer(1, "once");
    assert_eq!(world.gist(again), ["elicitation/create", "1 result"]);
    assert_eq!(called(&world), 2);
}
