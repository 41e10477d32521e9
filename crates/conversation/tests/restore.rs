//! Sessions whose owner is lost or leaves, and sessions that leave memory because they are idle.

use crate::world::{NEW, World, accepted, cursor, live};
use bytes::Bytes;
use conversation::{Cause, Event, EventId, Limits, OwnerTag, Refusal, Rerun, Session};
use protocol::{Message, Method, Notification, Request, Response};

/// A session. All tools of its server may be called twice.
pub(crate) fn harmless() -> World {
    World::with(Limits::default(), Rerun::Always, None).alive(NEW, ELICITS)
}

pub(crate) const ELICITS: &str = r#"{"sampling":{},"elicitation":{},"roots":{}}"#;

/// The link opens at a new owner, and its server answers the handshake.
pub(crate) fn start(world: &mut World) {
    assert!(world.link_open, "the link was not requested");
    world.shake();
}

/// The server answers the session's own request for its list of tools; `t` is read-only.
pub(crate) fn list_tools(world: &mut World) {
    let lists = |message: &&Message| {
        matches!(message, Message::Request(request)
            if request.method == Method::ToolsList && request.id.to_string().starts_with("roundhouse:"))
    };
    let Some(Message::Request(list)) = world.sent.iter().rev().find(lists).cloned() else {
        panic!("the tools were not requested")
    };
    let tools = br#"{"tools":[{"name":"t","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}"#;
    world.send_from_server(Response::result(list.id, tools));
}

pub(crate) fn called(world: &World) -> usize {
    world.sent_methods().iter().filter(|method| *method == "tools/call").count()
}

#[test]
fn a_call_that_may_have_been_done_ends_with_an_error_that_states_it() {
    let mut world = World::with(Limits::default(), Rerun::Never, None).alive(NEW, ELICITS);
    let first = world.call(1);
    world.progress(1, 1);
    let cut_at = cursor(&world, first);
    world.restore(0);
    let second = world.listen(Some(cut_at));
    assert_eq!(world.gist(second), ["1 error -32000"]);
    assert!(world.connections[&second].finished);
    assert_eq!(called(&world), 1);
    let third = world.listen(Some(cursor(&world, second)));
    assert_eq!(*world.refusal(third), Refusal::NothingMore);
}

#[test]
fn a_call_that_may_be_done_twice_runs_again_on_its_stream_and_its_progress_rises() {
    let mut world = harmless();
    let first = world.call(1);
    world.progress(1, 1);
    world.progress(1, 3);
    let cut_at = cursor(&world, first);
    world.restore(0);
    let second = world.listen(Some(cut_at));
    start(&mut world);
    for progress in 1..=4 {
        world.progress(1, progress);
    }
    world.answer(1, "done");
    assert_eq!(world.gist(second), ["progress 4", "1 result"]);
    assert_eq!(called(&world), 2);
}

#[test]
fn an_unknown_tool_is_looked_up_before_it_is_called_again() {
    let mut world = live();
    let first = world.call(1);
    world.progress(1, 1);
    let cut_at = cursor(&world, first);
    world.restore(0);
    let second = world.listen(Some(cut_at));
    start(&mut world);
    assert_eq!(called(&world), 1);
    list_tools(&mut world);
    assert_eq!(called(&world), 2);
    world.answer(1, "done");
    assert_eq!(world.gist(second), ["1 result"]);
}

#[test]
fn a_call_that_asked_its_client_something_is_not_run_again_and_its_question_is_withdrawn() {
    let mut world = harmless();
    let first = world.call(1);
    world.ask("what", Some(1));
    let cut_at = cursor(&world, first);
    let question = world.json(first)["id"].as_str().unwrap().to_owned();
    world.restore(0);
    let second = world.listen(Some(cut_at));
    assert_eq!(world.gist(second), ["notifications/cancelled", "1 error -32000"]);
    let late = world.post(&format!(r#"{{"jsonrpc":"2.0","id":"{question}","result":{{}}}}"#));
    assert!(accepted(&world, late), "the late answer is accepted and dropped");
    assert!(!world.sent_methods().contains(&"response what".to_owned()));
}

#[test]
fn a_final_response_in_the_log_is_sent_and_no_call_is_run_again() {
    let mut world = harmless();
    let first = world.call(1);
    world.progress(1, 1);
    let cut_at = cursor(&world, first);
    world.prompt_log = false;
    world.answer(1, "done");
    world.prompt_log = true;
    world.restore(1);
    let second = world.listen(Some(cut_at));
    assert_eq!(world.gist(second), ["1 result"]);
    assert!(!world.link_open || called(&world) == 1);
}

#[test]
fn numbers_go_on_and_an_id_is_known_by_its_owner_tag() {
    let mut world = harmless();
    let first = world.call(1);
    world.progress(1, 1);
    world.progress(1, 2);
    let seen = cursor(&world, first);
    world.restore(0);
    let foreign = EventId { owner_tag: OwnerTag(1), ..seen };
    let sink = world.listen(Some(foreign));
    assert_eq!(*world.refusal(sink), Refusal::UnknownEvent);
    let never = EventId { owner_tag: world.owner_tag, ..seen };
    let sink = world.listen(Some(never));
    assert_eq!(*world.refusal(sink), Refusal::UnknownEvent);
    let sink = world.listen(Some(seen));
    start(&mut world);
    world.answer(1, "done");
    let head = cursor(&world, sink);
    assert_eq!((head.stream, head.owner_tag, head.number), (seen.stream, world.owner_tag, 4));
}

/// The store has lost its entries from this number on.
fn forget(world: &mut World, from: u64) {
    world.held.retain(|number, _| *number < from);
}

#[test]
fn what_was_lost_after_a_client_saw_it_ends_its_request_and_is_never_skipped() {
    let mut world = harmless();
    let first = world.call(1);
    for progress in 1..=3 {
        world.progress(1, progress);
    }
    let seen = cursor(&world, first);
    forget(&mut world, seen.number);
    world.restore(0);
    start(&mut world);
    world.progress(1, 9);
    let second = world.listen(Some(seen));
    assert_eq!(world.gist(second), ["1 error -32603"]);
    let again = world.listen(Some(seen));
    assert_eq!(world.gist(again), ["1 error -32603"]);
}

#[test]
fn the_number_of_a_lost_stream_never_leads_to_another_owners_stream() {
    let mut world = harmless();
    let first = world.call(1);
    world.progress(1, 1);
    let seen = cursor(&world, first);
    forget(&mut world, 0);
    world.restore(0);
    let other = world.call(2);
    start(&mut world);
    world.progress(2, 5);
    assert_eq!(cursor(&world, other).stream, seen.stream);
    let second = world.listen(Some(seen));
    assert_eq!(*world.refusal(second), Refusal::UnknownEvent);
    world.answer(2, "unharmed");
    assert_eq!(world.gist(other), ["progress 5", "2 result"]);
}

#[test]
fn a_standalone_stream_that_lost_events_is_replaced_by_a_new_one() {
    let mut world = live();
    let first = world.listen(None);
    for _ in 0..3 {
        world.send_from_server(Notification::new(Method::PromptsListChanged, None));
    }
    let seen = cursor(&world, first);
    forget(&mut world, seen.number);
    world.restore(0);
    let second = world.listen(Some(seen));
    assert_eq!(world.gist(second), ["notifications/tools/list_changed"]);
    assert_ne!(cursor(&world, second).stream, seen.stream);
}

#[test]
fn a_standalone_stream_continues_at_another_owner() {
    let mut world = live();
    let first = world.listen(None);
    let cut_at = cursor(&world, first);
    world.restore(0);
    let second = world.listen(Some(cut_at));
    start(&mut world);
    world.send_from_server(Notification::new(Method::ToolsListChanged, None));
    assert_eq!(world.gist(second), ["notifications/tools/list_changed"]);
}

#[test]
fn level_and_subscriptions_reach_the_new_owners_server() {
    let mut world = live();
    world
        .post(r#"{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"error"}}"#);
    world.send_from_server(Response::result(2.into(), b"{}"));
    world.post(r#"{"jsonrpc":"2.0","id":3,"method":"resources/subscribe","params":{"uri":"a:b"}}"#);
    world.send_from_server(Response::result(3.into(), b"{}"));
    world.restore(0);
    let before = world.sent.len();
    world.call(4);
    start(&mut world);
    assert_eq!(
        world.sent_methods()[before..],
        [
            "initialize",
            "notifications/initialized",
            "logging/setLevel",
            "resources/subscribe",
            "tools/call"
        ]
    );
}

#[test]
fn what_changes_a_session_is_answered_when_it_is_held() {
    let mut world = live();
    world.prompt_log = false;
    let level = world
        .post(r#"{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"error"}}"#);
    world.send_from_server(Response::result(2.into(), b"{}"));
    assert_eq!(world.connections[&level].answer, None);
    let call = world.call(3);
    world.answer(3, "waits for nothing");
    assert_eq!(world.gist(call), ["3 result"]);
    world.acknowledge();
    assert_eq!(world.gist(level), ["2 result"]);
}

#[test]
fn a_change_that_the_store_lacks_at_the_end_is_not_acknowledged() {
    let mut world = live();
    let call = world.call(1);
    world.wait(300);
    world.prompt_log = false;
    let level = world
        .post(r#"{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"error"}}"#);
    world.send_from_server(Response::result(2.into(), b"{}"));
    let cancelled = world
        .post(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#);
    assert_eq!(world.connections[&cancelled].answer, None, "{:?}", world.gist(call));
    let sink = world.sink();
    world.step(Event::Deleted { sink });
    // The end may still be lost with its owner, and then the session continues.
    assert_eq!(world.gist(level), ["2 error -32000"]);
    assert!(!accepted(&world, cancelled));
}

#[test]
fn what_is_changed_before_initialized_is_held_too() {
    let mut world = World::with(Limits::default(), Rerun::Annotated, None);
    world.initialize(NEW, ELICITS);
    assert_eq!(world.state.0, 0, "the handshake alone does not change the state");
    let level = world
        .post(r#"{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"error"}}"#);
    world.send_from_server(Response::result(2.into(), b"{}"));
    assert_eq!(world.gist(level), ["2 result"]);
    world.restore(0);
    let before = world.sent.len();
    world.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    world.call(3);
    start(&mut world);
    assert_eq!(
        world.sent_methods()[before..],
        ["initialize", "notifications/initialized", "logging/setLevel", "tools/call"]
    );
}

#[test]
fn a_streamed_answer_to_what_changes_a_session_waits_for_its_record() {
    let mut world = live();
    world.prompt_log = false;
    let level = world
        .post(r#"{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"error"}}"#);
    world.wait(300);
    world.send_from_server(Response::result(2.into(), b"{}"));
    let through = world.appended;
    world.acknowledged = through;
    world.step(Event::Appended { through });
    assert!(world.gist(level).is_empty(), "the state is not saved");
    world.step(Event::Saved { version: 2 });
    assert_eq!(world.gist(level), ["2 result"]);
}

#[test]
fn an_answer_to_a_question_is_accepted_when_the_log_holds_it() {
    let mut world = live();
    let call = world.call(1);
    world.ask("what", Some(1));
    world.prompt_log = false;
    let id = world.json(call)["id"].clone();
    let answer = world.post(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
    assert_eq!(world.connections[&answer].answer, None);
    assert!(world.sent_methods().contains(&"response what".to_owned()));
    world.acknowledge();
    assert!(accepted(&world, answer));
}

pub(crate) const POSTED: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#;

#[test]
fn a_session_that_reclaims_itself_continues_under_another_owner_tag() {
    let mut world = live();
    let first = world.call(1);
    world.progress(1, 1);
    let before = cursor(&world, first);
    world.reclaim();
    world.progress(1, 2);
    let after = cursor(&world, first);
    assert_ne!(before.owner_tag, after.owner_tag);
    world.ask("what", Some(1));
    let second = world.listen(Some(before));
    world.reclaim();
    world.answer(1, "done");
    assert_eq!(world.gist(second), ["progress 2", "elicitation/create", "1 result"]);
}

#[test]
fn a_session_is_handed_over_when_nothing_is_in_flight_and_all_is_held() {
    let mut world = harmless();
    let (call, standalone) = (world.call(1), world.listen(None));
    world.progress(1, 1);
    world.step(Event::HandOver { at_once: false });
    let late = world.call(2);
    world.answer(2, "still served");
    assert_eq!(world.gist(late), ["2 result"]);
    assert_eq!(world.over, None);
    world.prompt_log = false;
    world.answer(1, "done");
    assert_eq!(world.over, None);
    world.acknowledge();
    assert_eq!(world.over, Some(Cause::Moved));
    assert_eq!(world.gist(call), ["progress 1", "1 result"]);
    assert!(world.connections[&standalone].moved);
    assert!(!world.link_open);
    let after = cursor(&world, standalone);
    world.over = None;
    let too_late = world.call(3);
    assert_eq!(*world.refusal(too_late), Refusal::Moved);
    world.prompt_log = true;
    world.restore(0);
    let standalone = world.listen(Some(after));
    assert!(world.connections[&standalone].open);
}

#[test]
fn at_once_means_that_what_is_in_flight_gets_its_final_response_in_the_log() {
    let mut world = harmless();
    let (held, streamed) = (world.call(1), world.call(2));
    world.progress(2, 1);
    world.prompt_log = false;
    world.step(Event::HandOver { at_once: true });
    assert_eq!(world.gist(held), ["1 error -32000"]);
    let late = world.call(3);
    assert_eq!(*world.refusal(late), Refusal::Moved);
    world.acknowledge();
    assert_eq!(world.gist(streamed), ["progress 1", "2 error -32000"]);
    assert_eq!(world.over, Some(Cause::Moved));
}

#[test]
fn at_once_a_question_is_withdrawn_before_the_final_response_on_what_asked_it() {
    let mut world = harmless();
    let call = world.call(1);
    world.ask("theirs", Some(1));
    world.step(Event::HandOver { at_once: true });
    let expected = ["elicitation/create", "notifications/cancelled", "1 error -32000"];
    assert_eq!(world.gist(call), expected);
    assert_eq!(world.over, Some(Cause::Moved));
}

#[test]
fn an_idle_server_is_stopped_and_then_the_session_sleeps_until_it_is_touched() {
    let limits = Limits { sleep_after_secs: 60, ..Limits::default() };
    let mut kept = World::with(limits.clone(), Rerun::Annotated, None).alive(NEW, ELICITS);
    kept.wait(300_000);
    assert_eq!(kept.over, None, "a session whose server runs does not sleep");

    let mut world = World::with(limits, Rerun::Annotated, Some(30)).alive(NEW, ELICITS);
    world.wait(29_000);
    assert!(world.link_open);
    world.wait(1_000);
    assert!(!world.link_open);
    world.wait(30_000);
    assert_eq!(world.over, Some(Cause::Asleep));
    world.restore(0);
    assert!(!world.link_open, "the session resumes without its server");
    let call = world.call(1);
    start(&mut world);
    world.answer(1, "awake");
    assert_eq!(world.gist(call), ["1 result"]);
}

#[test]
fn a_quiet_streams_opening_outlives_the_trimming_of_the_log() {
    let limits = Limits { log_events_max: 16, ..Limits::default() };
    let mut world = World::with(limits, Rerun::Always, None).alive(NEW, ELICITS);
    let quiet = world.call(1);
    world.progress(1, 1);
    let cut_at = cursor(&world, quiet);
    world.listen(None);
    for _ in 0..200 {
        world.send_from_server(Notification::new(Method::ToolsListChanged, None));
    }
    assert!(world.session.load().events <= 16);
    let checkpoints = |entries: &mut dyn Iterator<Item = &Bytes>| {
        entries.filter(|entry| entry.starts_with(br#"{"k":"checkpoint""#)).count()
    };
    assert!(checkpoints(&mut world.history.values()) < 150, "too many checkpoints");
    world.restore(0);
    let second = world.listen(Some(cut_at));
    start(&mut world);
    world.answer(1, "done");
    assert_eq!(world.gist(second), ["1 result"]);
}

#[test]
fn an_idle_session_ends_up_with_an_empty_log_and_is_not_woken_for_it_for_ever() {
    let mut world = live();
    for id in 1..=20 {
        world.call(id);
        world.progress(id, 1);
        world.answer(id, "done");
    }
    let mut writes = 0;
    for _ in 0..1_500 {
        let held = world.held.len();
        world.wait(1_000);
        writes += u32::from(world.held.len() != held);
    }
    assert_eq!(world.held.len(), 0);
    assert!(writes < 6, "{writes}");

    let mut world = live();
    let sink = world.listen(None);
    world.wait(1_700_000);
    assert_eq!(world.held.len(), 1, "the entry of the open stream");
    assert!(world.held.values().map(Bytes::len).sum::<usize>() < 300);
    world.restore(0);
    let again = world.listen(Some(cursor(&world, sink)));
    assert!(world.connections[&again].open);
}

#[test]
fn what_another_version_wrote_is_unreadable_and_never_a_panic() {
    let mut world = harmless();
    world.call(1);
    world.progress(1, 1);
    world.progress(1, 2);
    let good = world.saved();
    let restore = |saved| {
        let setup = conversation::SessionSetup {
            limits: Default::default(),
            owner_tag: OwnerTag(77),
            seed: 1,
            duplex: None,
            rerun: Rerun::default(),
            start_secs: None,
            idle_stop_secs: None,
        };
        Session::restore(setup, saved, world.now, &mut Vec::new()).is_ok()
    };
    assert!(restore(good.clone()));
    let mut saved = good.clone();
    saved.log[1].1 =
        Bytes::from_static(b"{\"k\":\"tomorrow\",\"s\":1,\"e\":\"000000000000feed\"}\n");
    assert!(!restore(saved));
    let mut hole = good.clone();
    hole.log.remove(1);
    assert!(!restore(hole));
    for state in ["{", "{\"format\":2,\"initialized\":true}", "[]"] {
        assert!(!restore(conversation::Saved { state: state.as_bytes().into(), ..good.clone() }));
    }
    assert!(!restore(conversation::Saved { initialize: (*b"1").into(), ..good }));
}

#[test]
fn server_requests_of_a_lost_standalone_stream_are_withdrawn_on_resume() {
    let mut world = live();
    let first = world.listen(None);
    let request = Request::new("lost".into(), Method::RootsList, None);
    world.send_from_server(request);
    let cut_at = cursor(&world, first);
    assert_eq!(world.gist(first), ["roots/list"]);
    world.restore(0);
    let second = world.listen(Some(cut_at));
    assert_eq!(world.gist(second), ["notifications/cancelled"]);
}

#[test]
fn a_missing_list_of_tools_is_not_waited_for_for_ever() {
    let limits = Limits { request_secs: 10, ..Limits::default() };
    let mut world = World::with(limits, Rerun::Annotated, None).alive(NEW, ELICITS);
    world.call(1);
    world.restore(0);
    let first = world.post_again(POSTED);
    start(&mut world);
    world.wait(11_000);
    assert_eq!(world.gist(first), ["1 error -32000"]);
    let second = world.post_again(&POSTED.replace("\"id\":1", "\"id\":2"));
    list_tools(&mut world);
    world.answer(2, "done");
    assert_eq!(world.gist(second), ["2 result"]);
}
