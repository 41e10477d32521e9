//! Servers whose settings change while a session has one: which notifications the client of the session
//! gets, and when the session leaves its server.

use crate::world::{NEW, World, live};
use conversation::{Definition, Event, Limits, Rerun, SinkId};
use protocol::{Method, Notification, Response};

const TOOLS: &str = "notifications/tools/list_changed";
const PROMPTS: &str = "notifications/prompts/list_changed";
const RESOURCES: &str = "notifications/resources/list_changed";

/// A server that has every list and reports changes of each.
const ALL: &str = r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"listChanged":true}}"#;

/// A live session whose client was promised notifications of the changes of every list.
fn promised_all() -> World {
    let mut world = World::new(Limits::default());
    world.post_initialize(NEW, "{}");
    choose(&mut world, 1, false);
    world.shake_with(ALL);
    world.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    world
}

/// The link that was requested is opened to a server with this definition.
fn choose(world: &mut World, definition: u32, is_replaced: bool) {
    assert!(world.link_open, "no link was requested");
    world.step(Event::BackendChosen { definition: Some(Definition(definition)), is_replaced });
}

fn end_server(world: &mut World) {
    world.link_open = false;
    world.step(Event::LinkDown { reason: "it exited".to_owned() });
}

/// The server ends, and the next call starts one with this definition and all lists. Returns the call.
fn restart(world: &mut World, id: u64, definition: u32, is_replaced: bool) -> SinkId {
    end_server(world);
    world.wait(60_000);
    let call = world.call(id);
    choose(world, definition, is_replaced);
    world.shake_with(ALL);
    call
}

#[test]
fn a_client_is_told_of_the_lists_of_a_replaced_server_before_its_call_is_answered() {
    let mut world = promised_all();
    let standalone = world.listen(None);
    end_server(&mut world);
    let call = world.call(1);
    choose(&mut world, 1, true);
    assert_eq!(world.gist(standalone), [""; 0], "the new server may not start");
    world.shake_with(ALL);
    assert_eq!(world.gist(standalone), [TOOLS, PROMPTS, RESOURCES]);
    world.answer(1, "of the new server");
    assert_eq!(world.gist(call), ["1 result"]);
    // Once: the next start is of the same server.
    restart(&mut world, 2, 1, false);
    assert_eq!(world.gist(standalone), [TOOLS, PROMPTS, RESOURCES]);
}

#[test]
fn a_server_that_is_only_started_again_changes_no_list() {
    let mut world = promised_all();
    let standalone = world.listen(None);
    restart(&mut world, 1, 1, false);
    assert_eq!(world.gist(standalone), [""; 0]);
}

#[test]
fn a_client_is_told_only_of_lists_that_it_was_promised_and_that_the_new_server_has() {
    // It was promised notifications for tools only.
    let mut world = live();
    let standalone = world.listen(None);
    for (capabilities, told) in [(ALL, 1), (r#"{"tools":{}}"#, 2), (r#"{"prompts":{}}"#, 2)] {
        end_server(&mut world);
        world.wait(60_000);
        world.call(told);
        choose(&mut world, 2, true);
        world.shake_with(capabilities);
        assert_eq!(world.gist(standalone), vec![TOOLS; told as usize], "{capabilities}");
    }
}

#[test]
fn the_notifications_wait_for_a_stream_and_can_be_replayed() {
    let mut world = promised_all();
    restart(&mut world, 1, 1, true);
    let first = world.listen(None);
    assert_eq!(world.gist(first), [TOOLS, PROMPTS, RESOURCES]);
    let begun = world.connections[&first].at;
    world.hang_up(first);
    let second = world.listen(begun);
    assert_eq!(world.gist(second), [TOOLS, PROMPTS, RESOURCES]);
}

#[test]
fn a_new_server_that_fails_to_start_first_is_reported_once_it_starts() {
    let mut world = promised_all();
    let standalone = world.listen(None);
    end_server(&mut world);
    world.call(1);
    choose(&mut world, 1, true);
    restart(&mut world, 2, 1, false);
    assert_eq!(world.gist(standalone), [TOOLS, PROMPTS, RESOURCES]);
}

#[test]
fn a_restored_session_tells_its_client_of_a_server_with_another_definition() {
    for (definition, told) in [(1, 0), (2, 3)] {
        let mut world = promised_all();
        let first = world.listen(None);
        world.send_from_server(Notification::new(Method::ToolsListChanged, None));
        let seen = world.connections[&first].at;
        world.restore(0);
        let second = world.listen(seen);
        world.call(1);
        choose(&mut world, definition, false);
        world.shake_with(ALL);
        // The first one was sent before the move.
        let expected = &[TOOLS, TOOLS, PROMPTS, RESOURCES][..told + 1];
        assert_eq!(world.gist(second), expected, "{definition}");
        // The state has the new definition.
        world.restore(0);
        let third = world.listen(None);
        world.call(2);
        choose(&mut world, definition, false);
        world.shake_with(ALL);
        assert_eq!(world.gist(third), [""; 0], "{definition}");
    }
}

#[test]
fn a_state_without_a_definition_as_an_older_version_writes_it_is_compared_with_none() {
    let mut world = live();
    let text = String::from_utf8(world.state.1.to_vec()).unwrap();
    assert!(!text.contains("definition"), "{text}");
    world.restore(0);
    let standalone = world.listen(None);
    world.call(1);
    choose(&mut world, 2, false);
    world.shake_with(ALL);
    assert_eq!(world.gist(standalone), [""; 0]);
    let text = String::from_utf8(world.state.1.to_vec()).unwrap();
    assert!(text.contains(r#""definition":2"#), "{text}");
}

#[test]
fn annotations_of_a_former_server_do_not_let_a_call_run_twice() {
    let mut world = World::with(Limits::default(), Rerun::Annotated, None).alive(NEW, "{}");
    world.post(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#);
    let tools = br#"{"tools":[{"name":"t","inputSchema":{},"annotations":{"readOnlyHint":true}}]}"#;
    world.send_from_server(Response::result(1.into(), tools));
    end_server(&mut world);
    world.call(2);
    choose(&mut world, 2, true);
    world.shake();
    world.progress(2, 1);
    // The next owner asks the server what may be run twice.
    world.restore(0);
    let before = world.sent.len();
    assert!(world.link_open, "the new owner decides by the list of the new server");
    world.shake();
    let sent = &world.sent_methods()[before..];
    assert!(sent.contains(&"tools/list".to_owned()), "{sent:?}");
    assert!(!sent.contains(&"tools/call".to_owned()), "{sent:?}");
}

#[test]
fn a_retired_server_is_left_when_it_is_idle_and_the_next_call_starts_the_new_one() {
    let mut world = World::with(Limits::default(), Rerun::Annotated, Some(300)).alive(NEW, "{}");
    let standalone = world.listen(None);
    let call = world.call(1);
    world.step(Event::ServerRetired);
    assert!(world.link_open, "a call is in flight");
    world.wait(1_000);
    assert!(world.link_open, "a call is in flight");
    world.answer(1, "of the former server");
    assert_eq!(world.gist(call), ["1 result"]);
    world.wait(1);
    assert!(!world.link_open, "it is idle");
    world.call(2);
    choose(&mut world, 2, true);
    world.shake();
    assert_eq!(world.gist(standalone), [TOOLS]);
    world.answer(2, "of the new server");
    world.wait(1_000);
    assert!(world.link_open, "the new server is not retired");
    world.step(Event::ServerRetired);
    assert!(!world.link_open, "an idle server is left at once");
}
