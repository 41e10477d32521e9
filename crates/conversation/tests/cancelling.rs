//! An acknowledged cancellation remains effective after the owner is lost.

use crate::world::{NEW, World, accepted};
use conversation::{Answer, Limits, Rerun, SinkId};

const ELICITS: &str = r#"{"sampling":{},"elicitation":{},"roots":{}}"#;

/// A call of a tool, as [`World::call`] posts it.
const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{"progressToken":1}}}"#;

/// A session of this revision. All tools of its server may be called twice.
fn harmless(revision: &str) -> World {
    World::with(Limits::default(), Rerun::Always, None).alive(revision, ELICITS)
}

fn cancel(world: &mut World, id: u64) -> SinkId {
    world.post(&format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
    ))
}

fn called(world: &World) -> usize {
    world.sent_methods().iter().filter(|method| *method == "tools/call").count()
}

/// Neither POST is acknowledged before the store has executed the writes; then both are.
fn both_wait(world: &mut World, first: SinkId, second: SinkId) {
    assert_eq!(world.connections[&first].answer, None);
    assert_eq!(world.connections[&second].answer, None, "the second was acknowledged too early");
    world.acknowledge();
    assert!(accepted(world, first) && accepted(world, second));
}

#[test]
fn a_repeated_cancellation_is_acknowledged_when_the_log_holds_the_first() {
    let mut world = harmless(NEW);
    world.call(1);
    world.progress(1, 1);
    world.prompt_log = false;
    let (first, second) = (cancel(&mut world, 1), cancel(&mut world, 1));
    both_wait(&mut world, first, second);
}

#[test]
fn so_is_the_cancellation_of_a_batch_member_and_one_within_a_batch() {
    let mut world = harmless("2025-03-26");
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{"progressToken":1}}},{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t"}}]"#;
    world.post(batch);
    world.progress(1, 1);
    world.prompt_log = false;
    let (first, second) = (cancel(&mut world, 1), cancel(&mut world, 1));
    both_wait(&mut world, first, second);
    // The last open member closes the stream.
    let first = cancel(&mut world, 2);
    let again =
        r#"[{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}]"#;
    let second = world.post(again);
    both_wait(&mut world, first, second);
}

#[test]
fn a_cancellation_of_a_call_without_a_stream_is_known_to_the_next_owner() {
    let mut world = harmless(NEW);
    world.call(1);
    world.prompt_log = false;
    let (first, second) = (cancel(&mut world, 1), cancel(&mut world, 1));
    both_wait(&mut world, first, second);
    world.restore(0);
    let again = world.post_again(CALL);
    assert_eq!(world.connections[&again].answer, Some(Answer::Nothing));
    assert_eq!(called(&world), 1);
}

#[test]
fn a_cancellation_that_was_not_acknowledged_may_be_lost_with_its_owner() {
    let mut world = harmless(NEW);
    world.call(1);
    world.prompt_log = false;
    let lost = cancel(&mut world, 1);
    world.restore(0);
    assert!(!accepted(&world, lost));
    world.prompt_log = true;
    let again = world.post_again(CALL);
    world.shake();
    world.answer(1, "done");
    assert_eq!(world.gist(again), ["1 result"]);
}

#[test]
fn a_cancellation_that_overtakes_its_call_is_known_to_the_next_owner() {
    for again in [true, false] {
        let mut world = harmless(NEW);
        world.prompt_log = false;
        let early = cancel(&mut world, 1);
        assert_eq!(world.connections[&early].answer, None);
        world.acknowledge();
        assert!(accepted(&world, early));
        world.restore(0);
        let call = if again { world.post_again(CALL) } else { world.post(CALL) };
        assert!(world.connections[&call].finished, "the call waits for the server");
        assert_eq!(called(&world), 0, "the call was run");
        // The same holds at the next owner.
        world.restore(0);
        let call = world.post_again(CALL);
        assert_eq!(world.connections[&call].answer, Some(Answer::Nothing));
        assert_eq!(called(&world), 0);
    }
}

#[test]
fn a_cancellation_after_an_answer_that_may_be_lost_is_known_to_the_next_owner() {
    for forwarded in [true, false] {
        let mut world = harmless(NEW);
        let lost = if forwarded { world.post_forwarded(CALL) } else { world.post(CALL) };
        if !forwarded {
            world.hang_up(lost);
        }
        world.answer(1, "done");
        let late = cancel(&mut world, 1);
        assert!(accepted(&world, late));
        world.restore(0);
        let again = world.post_again(CALL);
        assert_eq!(world.connections[&again].answer, Some(Answer::Nothing), "{forwarded}");
        assert_eq!(called(&world), 1, "the call was run again");
    }
}

#[test]
fn a_late_cancellation_writes_nothing() {
    let mut world = harmless(NEW);
    let before = world.state.0;
    for id in 1..=8 {
        world.call(id);
        world.answer(id, "done");
    }
    world.call(9);
    world.progress(9, 1);
    world.answer(9, "done");
    for id in 1..=9 {
        let late = cancel(&mut world, id);
        assert!(accepted(&world, late));
    }
    assert_eq!(world.state.0, before);
    world.call(10);
    cancel(&mut world, 10);
    assert_eq!(world.state.0, before + 1);
    cancel(&mut world, 10);
    assert_eq!(world.state.0, before + 1);
}

#[test]
fn cancelled_ids_that_are_saved_are_bounded() {
    let mut world = harmless(NEW);
    for id in 1..=1_000 {
        let early = cancel(&mut world, id);
        assert!(accepted(&world, early));
    }
    let size = world.state.1.len();
    assert!(size < 1_000, "{size} bytes for 64 short ids");
}
