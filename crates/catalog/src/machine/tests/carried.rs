//! Catalogs that move to another owner, and servers that lose their sessions.

use super::*;
use crate::machine::Carried;
use crate::saved::Saved;

const TEXT: &str = "tools/call";

/// The state that a machine saves, once servers `saved` have saved theirs.
fn state_of(bench: &mut Bench, saved: &[usize]) -> Option<Bytes> {
    for child in saved {
        let state = format!("state {child}").into();
        bench.step(Event::ChildSaved { child: *child, state });
    }
    bench.machine.take_unsaved(&mut bench.effects)
}

/// The machine of the next owner, with these requests in flight.
fn carried_on(names: &[&str], state: &Bytes, calls: &[(Option<usize>, i64)]) -> Bench {
    let mut bench = Bench::new(names);
    let (setup, pins) = (Arc::clone(&bench.machine.setup), Arc::clone(&bench.machine.pins));
    let saved = Saved::read(&setup.members, state).expect("the state reads back");
    let calls = calls.iter().map(|(child, id)| (*child, RequestId::from(*id))).collect();
    bench.effects.clear();
    let carried = Carried { saved, calls };
    bench.machine = Machine::carry_on(setup, pins, carried, 0, &mut bench.effects);
    bench.next_id = 100;
    bench
}

fn send_about(bench: &mut Bench, child: usize, about: i64, message: &Value) {
    let about = Some(RequestId::from(about));
    bench.step(Event::ChildMessage { child, message: parse(message), about });
}

fn lose_session(bench: &mut Bench, child: usize, returned: &Value) {
    let Message::Request(request) = parse(returned) else { panic!("no request") };
    bench.step(Event::ChildReturned { child, request });
    bench.step(Event::ChildDown { child, reason: "gone".to_owned() });
}

fn opened(bench: &Bench, child: usize) -> usize {
    bench.effects.iter().filter(|effect| matches!(effect, Effect::Open(at) if *at == child)).count()
}

fn changes(told: &[Value]) -> usize {
    told.iter().filter(|m| m["method"] == "notifications/tools/list_changed").count()
}

// holds: SES-10
#[test]
fn another_owner_promises_the_same_and_waits_for_no_server() {
    let mut first = Bench::ready(&["a", "b"]);
    let state = state_of(&mut first, &[0]).unwrap();
    assert_eq!(state_of(&mut first, &[]), None, "nothing has changed");
    let mut next = carried_on(&["a", "b"], &state, &[]);
    let id = next.initialize();
    let told = next.told();
    assert_eq!((told.len(), &told[0]["id"]), (1, &json!(id)));
    let promised = json!({"tools":{"listChanged":true},
        "resources":{"listChanged":true,"subscribe":true},"logging":{}});
    assert_eq!(told[0]["result"]["capabilities"], promised);
    next.notify("notifications/initialized", json!({}));
    next.start(0);
    assert_eq!(changes(&next.told()), 0, "its session is the same");
    // The other one begins anew, perhaps with other tools.
    next.start(1);
    assert_eq!(changes(&next.told()), 1);
}

#[test]
fn a_state_is_saved_once_initialize_is_answered_and_one_server_has_saved_its_own() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.initialize();
    assert_eq!(state_of(&mut bench, &[1]), None);
    bench.start(0);
    bench.start(1);
    assert!(state_of(&mut bench, &[]).is_some_and(|state| !state.is_empty()));
    bench.step(Event::ChildDown { child: 1, reason: "gone".to_owned() });
    assert_eq!(state_of(&mut bench, &[]), Some(Bytes::new()), "nothing is left");
}

// holds: SES-10, PRG-01
#[test]
fn calls_in_flight_go_on_where_the_link_is_carried_on_and_the_others_end() {
    let state = state_of(&mut Bench::ready(&["a", "b"]), &[0]).unwrap();
    let calls = [(Some(0), 7), (Some(1), 8), (None, 9)];
    let mut next = carried_on(&["a", "b"], &state, &calls);
    next.initialize();
    let told = next.told();
    let ended: Vec<_> = told[1..].iter().map(|m| (&m["id"], &m["error"]["code"])).collect();
    assert_eq!(ended, [(&json!(8), &json!(-32603)), (&json!(9), &json!(-32603))]);
    next.start(0);
    next.told();
    let progress = json!({"jsonrpc":"2.0","method":"notifications/progress",
        "params":{"progressToken":"t","progress":1}});
    send_about(&mut next, 1, 7, &progress);
    assert!(next.told().is_empty(), "another server has the call");
    send_about(&mut next, 0, 7, &progress);
    send_about(&mut next, 0, 7, &json!({"jsonrpc":"2.0","id":7,"result":{"content":[]}}));
    let told = next.told();
    assert_eq!((&told[0]["method"], &told[1]["id"]), (&progress["method"], &json!(7)));
}

#[test]
fn a_link_that_cannot_be_carried_on_ends_its_calls_and_begins_anew_at_once() {
    let state = state_of(&mut Bench::ready(&["a", "b"]), &[0]).unwrap();
    let mut next = carried_on(&["a", "b"], &state, &[(Some(0), 7)]);
    next.initialize();
    next.told();
    let call = next.request(TEXT, json!({"name":"a__x"}));
    next.step(Event::ChildDown { child: 0, reason: "of another version".to_owned() });
    let told = next.told();
    assert_eq!(
        (told.len(), &told[0]["id"], &told[0]["error"]["code"]),
        (1, &json!(7), &json!(-32603))
    );
    assert_eq!(opened(&next, 0), 2);
    next.start(0);
    let (_, sent) = next.sent(0, TEXT).expect("the call waited for it");
    assert_eq!(sent["id"], call);
}

#[test]
fn lists_and_requests_that_need_them_wait_for_servers_that_begin_anew() {
    let state = state_of(&mut Bench::ready(&["a", "b"]), &[0]).unwrap();
    for comes in [true, false] {
        let mut next = carried_on(&["a", "b"], &state, &[]);
        next.initialize();
        next.start(0);
        next.told();
        let list = next.request("tools/list", json!({}));
        next.request("resources/subscribe", json!({"uri":"x:y"}));
        let call = next.request(TEXT, json!({"name":"a__x"}));
        assert!(next.sent(0, "tools/list").is_none() && next.sent(0, TEXT).is_some(), "{call}");
        assert_eq!(next.machine.deadline(), Some(START_WAIT_MS));
        match comes {
            true => next.start(1),
            false => {
                next.now = START_WAIT_MS;
                next.step(Event::Time);
            }
        }
        next.send_tools(0, &["x"], None);
        if comes {
            next.send_tools(1, &["y"], None);
        }
        let told = next.told();
        let listed = told.iter().find(|message| message["id"] == list).expect("it is answered");
        let expected = if comes { vec!["a__x", "b__y"] } else { vec!["a__x"] };
        assert_eq!(tool_names(listed), expected);
    }
}

#[test]
fn a_server_that_is_carried_on_may_tell_of_resources_before_subscriptions_are_restored() {
    let state = state_of(&mut Bench::ready(&["a", "b"]), &[0]).unwrap();
    let mut next = carried_on(&["a", "b"], &state, &[]);
    next.initialize();
    next.start(0);
    next.start(1);
    next.told();
    let updated = json!({"jsonrpc":"2.0","method":"notifications/resources/updated",
        "params":{"uri":"x:y"}});
    next.server(1, &updated);
    assert!(next.told().is_empty());
    next.server(0, &updated);
    assert_eq!(next.told().len(), 1);
    next.machine.children[1].subscriptions.insert("x:".into());
    next.server(0, &updated);
    assert!(next.told().is_empty(), "it is a resource of another server");
}

// holds: SES-09
#[test]
fn a_request_that_a_lost_session_did_not_run_is_sent_once_more_and_the_others_fail() {
    let mut bench = Bench::ready(&["a", "b"]);
    state_of(&mut bench, &[0]);
    let (first, other) =
        (bench.request(TEXT, json!({"name":"a__x"})), bench.request(TEXT, json!({"name":"a__x"})));
    let (_, sent) = bench.sent(0, TEXT).unwrap();
    bench.sent(0, TEXT).unwrap();
    bench.told();
    lose_session(&mut bench, 0, &sent);
    let told = bench.told();
    let errors: Vec<_> = told.iter().filter(|m| m["error"].is_object()).collect();
    assert_eq!((errors.len(), &errors[0]["id"]), (1, &json!(other)));
    assert_eq!(opened(&bench, 0), 1, "at once");
    bench.start(0);
    let (_, again) = bench.sent(0, TEXT).expect("it is sent once more");
    assert_eq!(again, sent);
    lose_session(&mut bench, 0, &sent);
    let told = bench.told();
    assert!(told.iter().any(|m| m["id"] == first && m["error"].is_object()), "{told:?}");
    assert_eq!(opened(&bench, 0), 1, "the second time after a wait");
}

#[test]
fn a_stateful_server_that_lost_its_state_fails_its_tools_also_at_the_next_owner() {
    let mut bench = Bench::ready(&["a", "b"]);
    state_of(&mut bench, &[0, 1]);
    bench.step(Event::ChildStateLost(0));
    bench.step(Event::ChildDown { child: 0, reason: "gone".to_owned() });
    bench.now = 100_000_000;
    bench.step(Event::Time);
    assert_eq!(opened(&bench, 0), 0);
    let refused = |bench: &mut Bench| {
        bench.told();
        bench.request(TEXT, json!({"name":"a__x"}));
        let told = bench.told();
        let text = told[0]["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(
            text.contains("`a` has lost what it kept") && text.contains("new session"),
            "{text}"
        );
        bench.request(TEXT, json!({"name":"b__x"}));
        assert!(bench.sent(1, TEXT).is_some());
    };
    refused(&mut bench);
    let state = state_of(&mut bench, &[]).unwrap();
    let mut next = carried_on(&["a", "b"], &state, &[]);
    next.initialize();
    next.start(1);
    assert_eq!(opened(&next, 0), 0);
    refused(&mut next);
}

#[test]
fn a_stateful_server_that_never_started_is_started_again() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.initialize();
    bench.start(1);
    bench.step(Event::ChildStateLost(0));
    bench.step(Event::ChildDown { child: 0, reason: "refused".to_owned() });
    bench.effects.clear();
    bench.now = 5_000;
    bench.step(Event::Time);
    assert_eq!(opened(&bench, 0), 1);
}

#[test]
fn another_owner_reads_a_resource_at_the_server_whose_result_had_a_link_to_it() {
    let mut first = Bench::ready(&["a", "b"]);
    let state = state_of(&mut first, &[0, 1]).unwrap();
    first.request("tools/call", json!({ "name": "b__t" }));
    let (_, request) = first.sent(1, "tools/call").unwrap();
    let content = json!([{ "type": "resource_link", "uri": "x:/made", "name": "l" }]);
    let result = json!({ "content": content });
    first.server(1, &json!({"jsonrpc":"2.0","id":request["id"],"result":result}));
    let due = first.machine.links.save_at().expect("the link is new");
    first.machine.step(due, Event::Time, &mut first.effects);
    let later = first.machine.take_unsaved(&mut first.effects).expect("it is saved");
    assert_ne!(later, state);
    let next = carried_on(&["a", "b"], &later, &[]);
    let links: Vec<_> = next.machine.links.newest().collect();
    assert_eq!((links, next.machine.links.save_at()), (vec![(1, "x:/made")], None));
}
