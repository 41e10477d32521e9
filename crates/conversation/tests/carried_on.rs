//! Sessions whose next owner carries the link to the server on.

use conversation::{Cause, Event, Limits, SavedLink};
use protocol::{Message, Method, Notification, Position, RequestId, Response};

use crate::restore::{called, start};
use crate::world::{NEW, World, cursor};

const ELICITS: &str = r#"{"elicitation":{}}"#;

/// A session whose link has saved something. No tool may be called twice.
fn carried() -> World {
    let mut world =
        World::with(Limits::default(), conversation::Rerun::Never, None).alive(NEW, ELICITS);
    world.step(Event::LinkSaved { state: "sealed".into() });
    world
}

fn at(text: &str) -> Box<Position> {
    Box::new(Position { stream: "".into(), at: text.into() })
}

fn send_at(world: &mut World, about: Option<i64>, position: &str, message: impl Into<Message>) {
    let (about, position) = (about.map(RequestId::from), Some(at(position)));
    world.step(Event::ServerMessage { message: message.into(), about, position });
}

fn progress(world: &mut World, id: i64, progress: u64, position: &str) {
    let params = format!(r#"{{"progressToken":{id},"progress":{progress}}}"#);
    let notification = Notification::new(Method::Progress, Some(params.as_bytes()));
    send_at(world, Some(id), position, notification);
}

fn log_message(text: &str) -> Notification {
    let params = format!(r#"{{"level":"info","data":"{text}"}}"#);
    Notification::new(Method::LogMessage, Some(params.as_bytes()))
}

fn positions(world: &World) -> Vec<(Option<String>, String)> {
    let SavedLink { state, positions, .. } =
        world.session.saved_link().expect("nothing is carried on");
    assert_eq!(&*state, "sealed");
    let text = |(about, position): (Option<RequestId>, Position)| {
        (about.map(|id| id.to_json()), position.at.into_string())
    };
    positions.into_iter().map(text).collect()
}

fn call_at(position: &str) -> (Option<String>, String) {
    (Some("1".to_owned()), position.to_owned())
}

#[test]
fn a_call_goes_on_at_the_next_owner_without_a_second_run() {
    let mut world = carried();
    assert_eq!(world.session.saved_link(), None, "the link is up");
    let first = world.call(1);
    world.step(Event::ServerAdvanced { about: Some(1.into()), position: at("e0") });
    progress(&mut world, 1, 1, "e1");
    progress(&mut world, 1, 2, "e2");
    let cut_at = cursor(&world, first);
    world.restore(0);
    assert!(world.link_open, "the rest of the stream is requested at once");
    assert_eq!(positions(&world), [call_at("e2")]);
    let second = world.listen(Some(cut_at));
    start(&mut world);
    assert_eq!(world.session.saved_link(), None);
    progress(&mut world, 1, 2, "e2");
    progress(&mut world, 1, 3, "e3");
    world.answer(1, "done");
    assert_eq!(world.gist(second), ["progress 3", "1 result"]);
    assert_eq!(called(&world), 1);
}

#[test]
fn an_event_and_its_position_are_lost_together() {
    let mut world = carried();
    let first = world.call(1);
    progress(&mut world, 1, 1, "e1");
    let cut_at = cursor(&world, first);
    world.prompt_log = false;
    progress(&mut world, 1, 2, "e2");
    world.restore(0);
    world.prompt_log = true;
    assert_eq!(positions(&world), [call_at("e1")]);
    let second = world.listen(Some(cut_at));
    start(&mut world);
    progress(&mut world, 1, 2, "e2");
    world.answer(1, "done");
    assert_eq!(world.gist(second), ["progress 2", "1 result"]);
}

#[test]
fn a_call_that_was_silent_has_the_position_of_the_entry_that_opened_its_stream() {
    let mut world = carried();
    let _sink = world.call(1);
    world.step(Event::ServerAdvanced { about: Some(1.into()), position: at("e0") });
    world.wait(60_000);
    world.restore(0);
    assert_eq!(positions(&world), [call_at("e0")]);
}

#[test]
fn a_call_that_asked_its_client_ends_with_an_error_at_the_next_owner() {
    let mut world = carried();
    let first = world.call(1);
    progress(&mut world, 1, 1, "e1");
    world.ask("q", Some(1));
    let cut_at = cursor(&world, first);
    world.restore(0);
    assert!(!world.link_open);
    let second = world.listen(Some(cut_at));
    assert_eq!(world.gist(second).last().unwrap(), "1 error -32000");
}

#[test]
fn calls_end_with_an_error_if_the_link_cannot_carry_on() {
    let mut world = carried();
    let first = world.call(1);
    progress(&mut world, 1, 1, "e1");
    let cut_at = cursor(&world, first);
    world.restore(0);
    let second = world.listen(Some(cut_at));
    world.link_open = false;
    world.step(Event::LinkDown { reason: "another secret".into() });
    assert_eq!(world.gist(second), ["1 error -32603"]);
    assert_eq!(world.session.saved_link(), None);
    // The record does not have it any more either.
    world.restore(0);
    assert_eq!(world.session.saved_link(), None);
}

#[test]
fn a_request_that_was_not_sent_because_the_link_cannot_carry_on_begins_a_new_session() {
    let mut world = carried();
    let first = world.call(1);
    progress(&mut world, 1, 1, "e1");
    let cut_at = cursor(&world, first);
    world.restore(0);
    let cut = world.listen(Some(cut_at));
    let new = world.call(2);
    world.link_open = false;
    world.step(Event::LinkDown { reason: "another secret".into() });
    assert_eq!(world.gist(cut), ["1 error -32603"], "it may have been run");
    assert!(world.gist(new).is_empty());
    start(&mut world);
    world.answer(2, "done");
    assert_eq!(world.gist(new), ["2 result"]);

    // The new link is no other than any: what waits for it when it fails gets an error.
    world.link_open = false;
    world.step(Event::LinkDown { reason: "gone".into() });
    let later = world.call(3);
    world.wait(1_000);
    world.step(Event::LinkDown { reason: "gone".into() });
    assert_eq!(world.gist(later), ["3 error -32603"]);
}

#[test]
fn the_stream_without_a_request_goes_on_after_the_last_event_that_the_client_can_get() {
    let mut world = carried();
    let listening = world.listen(None);
    send_at(&mut world, None, "g1", log_message("one"));
    let cut_at = cursor(&world, listening);
    world.hang_up(listening);
    // It waits here for the client, so another owner gets it again.
    send_at(&mut world, None, "g2", Notification::new(Method::ToolsListChanged, None));
    world.restore(0);
    assert_eq!(positions(&world), [(None, "g1".to_owned())]);
    world.listen(Some(cut_at));
    start(&mut world);
    send_at(&mut world, None, "g2", log_message("two"));
    world.restore(0);
    assert_eq!(positions(&world), [(None, "g2".to_owned())]);
}

#[test]
fn no_later_event_overtakes_messages_that_wait_for_the_client() {
    for client_comes_back in [false, true] {
        let limits = Limits { waiting_max: 2, ..Limits::default() };
        let mut world = World::with(limits, conversation::Rerun::Never, None).alive(NEW, ELICITS);
        world.step(Event::LinkSaved { state: "sealed".into() });
        let listening = world.listen(None);
        send_at(&mut world, None, "g1", log_message("one"));
        let cut_at = cursor(&world, listening);
        world.hang_up(listening);
        // The third is kept in place of the first.
        for position in ["g2", "g3", "g4"] {
            let changed = Notification::new(Method::ToolsListChanged, None);
            send_at(&mut world, None, position, changed);
        }
        world.call(1);
        progress(&mut world, 1, 1, "e1");
        // To the stream of the call.
        send_at(&mut world, None, "g5", log_message("five"));
        world.step(Event::ServerAdvanced { about: None, position: at("g6") });
        progress(&mut world, 1, 2, "e2");
        if client_comes_back {
            world.listen(Some(cut_at));
        }
        world.restore(0);
        let read = if client_comes_back { "g6" } else { "g1" };
        let positions = positions(&world);
        assert!(positions.contains(&(None, read.to_owned())), "{positions:?}");
    }
}

#[test]
fn a_position_outlives_its_entry() {
    let limits = Limits { log_events_max: 4, ..Limits::default() };
    let mut world = World::with(limits, conversation::Rerun::Never, None).alive(NEW, ELICITS);
    world.step(Event::LinkSaved { state: "sealed".into() });
    world.listen(None);
    send_at(&mut world, None, "g1", log_message("one"));
    world.call(1);
    progress(&mut world, 1, 1, "e1");
    for number in 0..20 {
        world.send_from_server(log_message(&number.to_string()));
    }
    world.restore(0);
    let mut all = positions(&world);
    all.sort();
    assert_eq!(all, [(None, "g1".to_owned()), call_at("e1")]);
}

#[test]
fn a_session_that_ends_before_its_link_is_open_ends_what_the_link_saved() {
    let mut world = carried();
    world.restore(0);
    assert!(!world.link_open);
    let sink = world.sink();
    world.step(Event::Deleted { sink });
    assert_eq!(world.over, Some(Cause::Deleted));
    assert_eq!(world.links_ended, 1);
}

#[test]
fn a_session_that_moves_leaves_what_its_link_saved_and_one_that_ends_does_not() {
    let mut world = carried();
    world.step(Event::HandOver { at_once: false });
    assert_eq!((world.over, world.links_ended), (Some(Cause::Moved), 0));
    world.restore(0);
    start_by_call(&mut world);
    let sink = world.sink();
    world.step(Event::Deleted { sink });
    assert_eq!((world.over, world.links_ended), (Some(Cause::Deleted), 1));
}

/// The server does not know its session any more.
fn lose_session(world: &mut World, returned: &[u64]) {
    for id in returned {
        let request = world.sent.iter().rev().find_map(|message| match message {
            Message::Request(request) if request.id == RequestId::from(*id as i64) => {
                Some(request.clone())
            }
            _ => None,
        });
        world.step(Event::ServerReturned { request: request.unwrap() });
    }
    world.link_open = false;
    world.step(Event::LinkDown { reason: "gone".into() });
}

#[test]
fn a_request_that_was_returned_is_sent_once_more_and_the_others_end_with_an_error() {
    let mut world = carried();
    let (returned, other) = (world.call(1), world.call(2));
    lose_session(&mut world, &[1]);
    assert_eq!(world.gist(other), ["2 error -32603"]);
    assert!(world.gist(returned).is_empty());
    start(&mut world);
    assert_eq!(called(&world), 3);
    world.answer(1, "done");
    assert_eq!(world.gist(returned), ["1 result"]);

    let again = world.call(3);
    lose_session(&mut world, &[3]);
    world.wait(60_000);
    start(&mut world);
    lose_session(&mut world, &[3]);
    assert_eq!(world.gist(again), ["3 error -32603"], "once only");
}

#[test]
fn a_session_whose_server_lost_its_state_ends() {
    let mut world = carried();
    let call = world.call(1);
    world.step(Event::ServerStateLost);
    assert_eq!(world.gist(call), ["1 error -32000"]);
    assert_eq!(world.over, Some(Cause::StateLost));
}

fn start_by_call(world: &mut World) {
    world.call(2);
    assert_eq!(positions(world), []);
    start(world);
    world.send_from_server(Response::result(2.into(), b"{}"));
}
