//! Sessions whose saved state is long: what is written of it, and who can read it.

use conversation::{Cause, Event};
use protocol::Response;

use crate::world::{World, live};

/// A session with 31 subscriptions of 8,000 bytes each.
fn subscribed() -> World {
    let mut world = live();
    for n in 0..31 {
        subscribe(&mut world, n, "subscribe");
    }
    world
}

fn subscribe(world: &mut World, n: i64, method: &str) {
    let (id, uri) = (1_000 + world.sent.len() as i64, format!("{n}{}", "u".repeat(8_000)));
    world.post(&format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"resources/{method}","params":{{"uri":"{uri}"}}}}"#
    ));
    world.send_from_server(Response::result(id.into(), b"{}"));
}

#[test]
fn a_change_of_a_long_state_is_saved_in_about_its_own_length() {
    let mut world = subscribed();
    assert!(world.state.1.len() > 31 * 8_000);
    let kept = world.session.kept_bytes();
    assert!(kept >= 31 * 8_000 + world.state.1.len(), "{kept}: the encoded state is charged");
    // Each byte is written with its own change, and twice more at most with the whole state.
    let written: usize = world.saves.iter().sum();
    assert!(written < 4 * 31 * 8_000, "{written}");
    world.saves.clear();
    for round in 0..100 {
        let level = ["debug", "error"][round % 2];
        let id = 10_000 + round as i64;
        world.post(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"logging/setLevel","params":{{"level":"{level}"}}}}"#
        ));
        world.send_from_server(Response::result(id.into(), b"{}"));
        let method = ["unsubscribe", "subscribe"][round % 2];
        subscribe(&mut world, 7, method);
        world.post(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":"{id}{}"}}}}"#,
            "i".repeat(900)
        ));
    }
    assert!(world.saves.len() >= 200, "{}", world.saves.len());
    let whole = world.saves.iter().filter(|bytes| **bytes > 10_000).count();
    assert!((1..=8).contains(&whole), "{whole} of {:?}", world.saves);
    let longest = world.state.1.len();
    assert!(longest < 2 * 40 * 8_000, "{longest}");
    // The world compares the restored state with the newest one.
    world.restore(0);
    subscribe(&mut world, 9, "unsubscribe");
    world.restore(0);
}

/// A restored session does not take what it read for a longer whole state, again and again.
#[test]
fn a_state_does_not_grow_with_each_owner() {
    let mut world = subscribed();
    let mut longest = 0;
    for round in 0..60 {
        let method = ["unsubscribe", "subscribe"][round % 2];
        subscribe(&mut world, 7, method);
        world.restore(0);
        longest = longest.max(world.state.1.len());
    }
    assert!(longest < 2 * 33 * 8_000, "{longest}");
}

#[test]
fn a_session_that_moves_leaves_a_whole_state_which_older_nodes_read() {
    let mut world = subscribed();
    subscribe(&mut world, 7, "unsubscribe");
    assert!(!is_whole(&world));
    world.step(Event::HandOver { at_once: false });
    assert_eq!(world.over, Some(Cause::Moved));
    assert!(is_whole(&world));
    world.restore(0);
}

/// Is the saved state one JSON object?
fn is_whole(world: &World) -> bool {
    serde_json::from_slice::<serde_json::Value>(&world.state.1).is_ok()
}

/// A client that subscribes again and again changes nothing, so nothing of it is kept.
#[test]
fn what_changes_nothing_of_a_long_state_is_neither_saved_nor_kept_for_later() {
    let mut world = subscribed();
    world.saves.clear();
    for _ in 0..50 {
        subscribe(&mut world, 7, "subscribe");
        subscribe(&mut world, 99, "unsubscribe");
    }
    assert_eq!(world.saves, [0; 0]);
    subscribe(&mut world, 7, "unsubscribe");
    assert!(world.saves.iter().all(|bytes| *bytes < 9_000), "{:?}", world.saves);
    assert_eq!(world.saves.len(), 1);
}
