//! Definitions that are not the approved ones.

use super::*;
use crate::Fingerprint;
use crate::pins::{Part, Pin, ServerPins};

fn tool(name: &str, description: &str) -> Value {
    json!({"name": name, "description": description})
}

/// What is approved: tools with these descriptions, and the instructions that a test server has.
fn pinned(pin: Pin, child: usize, tools: &[(&str, &str)]) -> Pinned {
    let fingerprint = |(name, description): &(&str, &str)| {
        let raw = tool(name, description).to_string();
        ((*name).to_owned(), Fingerprint::of_entry(Listed::Tool, &raw).unwrap())
    };
    let pins = ServerPins {
        instructions: Some(Fingerprint::of_instructions(&format!("use {child}"))),
        tools: tools.iter().map(fingerprint).collect(),
        ..ServerPins::default()
    };
    Pinned { pin, pins: Arc::new(pins) }
}

/// Machine of two servers, of which the first has pins for `a` and `b`.
fn bench(pin: Pin) -> Bench {
    let mut bench = Bench::new(&["one", "two"]);
    bench.machine.pins =
        vec![pinned(pin, 0, &[("a", "good"), ("b", "good")]), Pinned::default()].into();
    bench.initialize();
    (0..2).for_each(|child| bench.start(child));
    bench
}

fn answer_tools(bench: &mut Bench, child: usize, tools: &[Value]) {
    let (_, request) = bench.sent(child, "tools/list").expect("the tools are read");
    bench.server(child, &json!({"jsonrpc":"2.0","id":request["id"],"result":{"tools":tools}}));
}

fn call(bench: &mut Bench, name: &str) -> i64 {
    bench.told();
    bench.request("tools/call", json!({ "name": name }))
}

fn differing(bench: &Bench) -> Vec<(String, bool, bool)> {
    let of = |report: &&Report| match report {
        Report::Differs { child: 0, difference } => Some((
            difference.name.to_string(),
            difference.approved.is_some(),
            difference.is_refused,
        )),
        Report::Differs { .. } => panic!("of a server without pins"),
        _ => None,
    };
    bench.reports().iter().filter_map(of).collect()
}

const CHANGED: [(&str, &str); 3] = [("a", "good"), ("b", "evil"), ("c", "new")];

fn changed() -> Vec<Value> {
    CHANGED.iter().map(|(name, description)| tool(name, description)).collect()
}

#[test]
fn a_changed_and_a_new_tool_are_reported_and_with_refuse_not_offered() {
    for (pin, offered) in [
        (Pin::Off, &["one__a", "one__b", "one__c", "two__b"][..]),
        (Pin::Warn, &["one__a", "one__b", "one__c", "two__b"]),
        (Pin::Refuse, &["one__a", "two__b"]),
    ] {
        let mut bench = bench(pin);
        bench.told();
        bench.request("tools/list", json!({}));
        answer_tools(&mut bench, 0, &changed());
        answer_tools(&mut bench, 1, &[tool("b", "evil")]);
        assert_eq!(tool_names(&bench.told()[0]), offered, "{pin:?}");
        let is_refused = pin == Pin::Refuse;
        let expected = match pin {
            Pin::Off => vec![],
            _ => vec![("b".to_owned(), true, is_refused), ("c".to_owned(), false, is_refused)],
        };
        assert_eq!(differing(&bench), expected, "{pin:?}");
    }
}

#[test]
fn a_call_of_a_tool_waits_for_the_list_and_is_refused_if_its_definition_has_changed() {
    let mut bench = bench(Pin::Refuse);
    let good = call(&mut bench, "one__a");
    let evil = bench.request("tools/call", json!({ "name": "one__b" }));
    assert!(bench.sent(0, "tools/call").is_none(), "before the list is known");
    answer_tools(&mut bench, 0, &changed());
    let (_, sent) = bench.sent(0, "tools/call").expect("the approved one");
    assert_eq!((&sent["id"], bench.sent(0, "tools/call")), (&json!(good), None));
    let told = bench.told();
    assert_eq!(told[0]["id"], evil);
    let text = told[0]["error"]["message"].as_str().unwrap();
    for wanted in ["tool `b`", "server `one`", "`roundhouse pin acme`"] {
        assert!(text.contains(wanted), "{text}");
    }
    // The list is known now.
    call(&mut bench, "one__a");
    assert!(bench.sent(0, "tools/call").is_some() && bench.sent(0, "tools/list").is_none());
    // A name without an approved definition needs no list.
    call(&mut bench, "one__other");
    assert!(bench.told()[0]["error"]["message"].as_str().unwrap().contains("pinned"));
    assert!(bench.sent(0, "tools/call").is_none());
}

#[test]
fn a_server_without_pins_or_with_warn_gets_calls_before_its_list_is_known() {
    for (pin, name) in [(Pin::Refuse, "two__b"), (Pin::Warn, "one__b")] {
        let mut bench = bench(pin);
        call(&mut bench, name);
        let child = usize::from(name.starts_with("two"));
        assert!(bench.sent(child, "tools/call").is_some());
    }
}

#[test]
fn a_change_that_the_server_reports_is_compared_before_the_next_call() {
    let mut bench = bench(Pin::Refuse);
    call(&mut bench, "one__b");
    answer_tools(&mut bench, 0, &[tool("b", "good")]);
    assert!(bench.sent(0, "tools/call").is_some());
    bench.server(0, &json!({"jsonrpc":"2.0","method":"notifications/tools/list_changed"}));
    call(&mut bench, "one__b");
    answer_tools(&mut bench, 0, &changed());
    assert!(bench.sent(0, "tools/call").is_none());
    assert!(bench.told()[0].get("error").is_some());
}

#[test]
fn a_server_that_reports_changes_without_end_holds_no_call_back() {
    let mut bench = bench(Pin::Refuse);
    let id = call(&mut bench, "one__a");
    bench.server(0, &json!({"jsonrpc":"2.0","method":"notifications/tools/list_changed"}));
    answer_tools(&mut bench, 0, &[tool("a", "good")]);
    assert_eq!(bench.sent(0, "tools/call").expect("it is sent").1["id"], id);
}

#[test]
fn a_call_whose_list_does_not_come_is_refused_and_can_be_cancelled() {
    let mut bench = bench(Pin::Refuse);
    let cancelled = call(&mut bench, "one__a");
    bench.notify("notifications/cancelled", json!({ "requestId": cancelled }));
    let id = bench.request("tools/call", json!({ "name": "one__a" }));
    bench.now = 60_000;
    bench.step(Event::Time);
    let told = bench.told();
    let answers: Vec<_> = told.iter().filter(|message| message.get("error").is_some()).collect();
    assert_eq!((answers.len(), &answers[0]["id"]), (1, &json!(id)));
    assert!(answers[0]["error"]["message"].as_str().unwrap().contains("did not send its list"));
}

#[test]
fn a_server_that_ends_while_its_list_is_read_fails_the_call() {
    let mut bench = bench(Pin::Refuse);
    let id = call(&mut bench, "one__a");
    bench.step(Event::ChildDown { child: 0, reason: "gone".to_owned() });
    let told = bench.told();
    let answer = told.iter().find(|message| message["id"] == id).expect("an answer");
    assert!(answer["error"]["message"].as_str().unwrap().contains("`one` is not available"));
}

#[test]
fn instructions_that_differ_are_left_out() {
    for (pin, expected) in [(Pin::Warn, true), (Pin::Refuse, false)] {
        let mut bench = Bench::new(&["one"]);
        bench.machine.pins = vec![pinned(pin, 7, &[])].into();
        bench.initialize();
        bench.start(0);
        let told = bench.told();
        assert_eq!(told[0]["result"].get("instructions").is_some(), expected, "{pin:?}");
        let is_it = |report: &&Report| matches!(report, Report::Differs { difference, .. } if difference.part == Part::Instructions);
        assert_eq!(bench.reports().into_iter().filter(is_it).count(), 1);
    }
}

#[test]
fn other_pins_hold_at_once_and_the_client_is_told() {
    let mut bench = bench(Pin::Refuse);
    call(&mut bench, "one__b");
    answer_tools(&mut bench, 0, &changed());
    bench.told();
    let approved = pinned(Pin::Refuse, 0, &CHANGED);
    bench.step(Event::Pins(vec![approved, Pinned::default()].into()));
    assert_eq!(bench.told()[0]["method"], "notifications/tools/list_changed");
    call(&mut bench, "one__b");
    answer_tools(&mut bench, 0, &changed());
    assert!(bench.sent(0, "tools/call").is_some());
    // And the other way.
    let former = pinned(Pin::Refuse, 0, &[]);
    bench.step(Event::Pins(vec![former, Pinned::default()].into()));
    call(&mut bench, "one__b");
    assert!(bench.told()[0].get("error").is_some());
}

#[test]
fn a_list_that_is_read_while_pins_change_is_judged_by_the_new_ones() {
    let mut bench = bench(Pin::Warn);
    call(&mut bench, "one__a");
    bench.request("tools/list", json!({}));
    let (_, request) = bench.sent(0, "tools/list").expect("the tools are read");
    bench.told();
    bench.step(Event::Pins(vec![pinned(Pin::Refuse, 0, &[]), Pinned::default()].into()));
    let result = json!({ "tools": changed() });
    bench.server(0, &json!({"jsonrpc":"2.0","id":request["id"],"result":result}));
    answer_tools(&mut bench, 1, &[]);
    let listed = bench.told();
    assert!(!listed.iter().any(|told| told.get("result").is_some()), "{listed:?}");
    answer_tools(&mut bench, 0, &changed());
    let listed = bench.told();
    let listed = listed.iter().find(|told| told.get("result").is_some()).expect("a list");
    assert_eq!(listed["result"]["tools"], json!([]));
}
