//! The bytes that a session keeps, and the verdicts on its tenant's budget.

use conversation::{Answer, BudgetVerdict, Cause, Event, Limits, Rerun};
use protocol::Response;

use crate::world::{NEW, World, cursor, live};

const HOLD_MS: u64 = 1_000;

fn limits() -> Limits {
    Limits { hold_ms: HOLD_MS, ..Limits::default() }
}

#[test]
fn while_the_budget_is_exhausted_new_requests_get_an_error_and_those_in_flight_go_on() {
    let mut world = live();
    let before = world.call(1);
    world.step(Event::Budget(BudgetVerdict::Exhausted));
    let refused = world.call(2);
    assert_eq!(world.gist(refused), ["2 error -32000"]);
    assert!(world.json(refused)["error"]["message"].to_string().contains("session_bytes_max"));
    let ping = world.post(r#"{"jsonrpc":"2.0","id":3,"method":"ping"}"#);
    assert_eq!(world.gist(ping), ["3 result"], "a ping needs no memory");
    world.answer(1, "done");
    assert_eq!(world.gist(before), ["1 result"]);
    world.step(Event::Budget(BudgetVerdict::Available));
    let accepted = world.call(4);
    world.answer(4, "done");
    assert_eq!(world.gist(accepted), ["4 result"]);
}

#[test]
fn trimming_drops_delivered_events_and_keeps_those_that_a_client_may_still_need() {
    let mut world = World::live(NEW, limits());
    let first = world.call(1);
    world.progress(1, 1);
    world.progress(1, 2);
    let after_first = cursor(&world, first);
    world.wait(HOLD_MS);
    world.hang_up(first);
    world.answer(1, "a response that its client has not received");
    let full = world.session.kept_bytes();
    world.step(Event::Budget(BudgetVerdict::Trim));
    assert!(world.session.kept_bytes() < full, "{} of {full}", world.session.kept_bytes());
    let resumed = world.listen(Some(after_first));
    assert_eq!(world.gist(resumed), ["1 result"], "the final response is kept for `hold_ms`");
}

#[test]
fn an_idle_session_leaves_memory_on_demand_and_a_busy_one_stays() {
    let mut world = World::with(limits(), Rerun::Annotated, Some(60)).alive(NEW, "{}");
    world.call(1);
    world.step(Event::Budget(BudgetVerdict::Sleep));
    assert_eq!(world.over, None, "a request is in flight");
    world.answer(1, "done");
    world.step(Event::Budget(BudgetVerdict::Sleep));
    assert_eq!(world.over, Some(Cause::Asleep));
    assert!(!world.link_open);
}

#[test]
fn a_session_does_not_fall_asleep_with_events_for_which_the_store_has_no_room() {
    let limits = Limits { sleep_after_secs: 1, hold_ms: 3_000, ..limits() };
    for (exhausted, after) in [(None, 1_000), (Some(0), 3_000), (Some(5_000), 5_000)] {
        let mut world = World::with(limits.clone(), Rerun::Annotated, Some(0)).alive(NEW, "{}");
        world.call(1);
        world.progress(1, 1);
        world.progress(1, 2);
        world.answer(1, "done");
        let exhausted = exhausted.map(|after| world.now.plus(after));
        world.step(Event::Budget(BudgetVerdict::Store { exhausted }));
        world.step(Event::Budget(BudgetVerdict::Sleep));
        assert_eq!(world.over.is_none(), exhausted.is_some());
        world.wait(after - 1);
        world.step(Event::Budget(BudgetVerdict::Trim));
        world.step(Event::Budget(BudgetVerdict::Sleep));
        assert_eq!(world.over.is_none(), exhausted.is_some());
        world.wait(2);
        assert_eq!(world.over, Some(Cause::Asleep), "{exhausted:?}");
    }
}

#[test]
fn a_session_whose_server_must_not_be_stopped_does_not_leave_memory() {
    let mut world = World::live(NEW, limits());
    world.step(Event::Budget(BudgetVerdict::Sleep));
    assert_eq!(world.over, None);
}

#[test]
fn every_kind_of_bytes_counts_and_is_given_back() {
    let mut world = World::live(NEW, Limits { idle_secs: 1_000_000, ..limits() });
    let idle = world.session.kept_bytes();
    let uri = "u".repeat(500);
    world.post(&format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{{"uri":"{uri}"}}}}"#
    ));
    world.answer(1, "subscribed");
    assert_eq!(world.session.kept_bytes(), idle + 500, "a subscription");
    world.send_from_server(protocol::Notification::new(
        protocol::Method::ToolsListChanged,
        Some(format!(r#"{{"_meta":{{"pad":"{uri}"}}}}"#).as_bytes()),
    ));
    assert!(world.session.kept_bytes() > idle + 1_000, "a message that waits for a stream");
    let stream = world.listen(None);
    world.hang_up(stream);
    world.wait(1_000_000);
    assert!(world.session.kept_bytes() < idle + 600, "the log and its message have expired");
}

#[test]
fn a_session_with_a_message_that_waits_does_not_leave_memory() {
    let mut world = World::with(limits(), Rerun::Annotated, Some(60)).alive(NEW, "{}");
    world.send_from_server(protocol::Notification::new(protocol::Method::ToolsListChanged, None));
    world.step(Event::Budget(BudgetVerdict::Sleep));
    assert_eq!(world.over, None, "no log holds the message");
}

#[test]
fn a_request_that_is_posted_again_is_not_refused() {
    let mut world = World::with(limits(), Rerun::Always, None).alive(NEW, "{}");
    world.step(Event::Budget(BudgetVerdict::Exhausted));
    let again = world
        .post_again(r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"echo"}}"#);
    world.answer(5, "done");
    assert_eq!(world.gist(again), ["5 result"]);
}

/// Relief asks for everything, in its order.
fn relieve(world: &mut World) {
    for verdict in [BudgetVerdict::Exhausted, BudgetVerdict::Trim, BudgetVerdict::Sleep] {
        world.step(Event::Budget(verdict));
    }
}

#[test]
fn relief_takes_no_pending_request_cancellation_level_or_subscription() {
    let mut world = World::with(limits(), Rerun::Annotated, Some(60)).alive(NEW, "{}");
    world
        .post(r#"{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"error"}}"#);
    world.send_from_server(Response::result(2.into(), b"{}"));
    world.post(r#"{"jsonrpc":"2.0","id":3,"method":"resources/subscribe","params":{"uri":"a:b"}}"#);
    world.send_from_server(Response::result(3.into(), b"{}"));
    let lost = world.call(1);
    world.hang_up(lost);
    world.post(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#);
    let pending = world.call(4);
    relieve(&mut world);
    assert_eq!(world.over, None, "a request is pending");
    let again = world
        .post_again(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}"#);
    assert_eq!(world.connections[&again].answer, Some(Answer::Nothing), "it was cancelled");
    world.answer(4, "done");
    assert_eq!(world.gist(pending), ["4 result"]);
    relieve(&mut world);
    assert_eq!(world.over, Some(Cause::Asleep));
    world.restore(0);
    let before = world.sent.len();
    world.call(5);
    world.shake();
    let sent = &world.sent_methods()[before..];
    for method in ["logging/setLevel", "resources/subscribe"] {
        assert!(sent.iter().any(|sent| sent == method), "{method} is not in {sent:?}");
    }
}
