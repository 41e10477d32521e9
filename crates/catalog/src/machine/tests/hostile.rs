//! What is meant for one server reaches no other, and no server takes more than its part.

use super::*;

fn answer_list(bench: &mut Bench, child: usize, method: &str, member: &str) {
    let (_, request) = bench.sent(child, method).expect("the list is read");
    bench.server(child, &json!({"jsonrpc":"2.0","id":request["id"],"result":{ member: [] }}));
}

#[test]
fn a_resource_of_a_server_that_is_down_is_not_asked_of_the_only_other_one() {
    let mut bench = Bench::ready(&["a", "b"]);
    bench.step(Event::ChildDown { child: 1, reason: "it exited".to_owned() });
    bench.told();
    let id = bench.request("resources/read", json!({ "uri": "secret:/of-b" }));
    for (method, member) in [
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
        ("tools/list", "tools"),
    ] {
        answer_list(&mut bench, 0, method, member);
    }
    assert!(bench.sent(0, "resources/read").is_none(), "it is for the other server");
    let told = bench.told();
    let text = told[0]["error"]["message"].as_str().unwrap();
    assert_eq!(told[0]["id"], id);
    assert!(text.contains("not all of them are available"), "{text}");
}

#[test]
fn a_notification_that_names_no_server_reaches_the_only_one() {
    for (names, reached) in [(&["a"][..], true), (&["a", "b"], false)] {
        let mut bench = Bench::ready(names);
        bench.notify("notifications/vendor/secret", json!({ "key": "x" }));
        assert_eq!(bench.sent(0, "notifications/vendor/secret").is_some(), reached);
        bench.notify("notifications/roots/list_changed", json!({}));
        assert!(bench.sent(0, "notifications/roots/list_changed").is_some());
    }
}

#[test]
fn all_lists_of_all_servers_together_are_bounded() {
    let names: Vec<String> = (0..12).map(|at| format!("s{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut bench = Bench::ready(&names);
    let long = "x".repeat(700_000);
    for (method, member) in [
        ("tools/list", "tools"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ] {
        bench.request(method, json!({}));
        for child in 0..names.len() {
            let (_, request) = bench.sent(child, method).expect("the list is read");
            let entry = |at: i32| {
                let uri = format!("x:/{child}/{at}");
                json!({ "name": format!("t{at}"), "uri": uri, "uriTemplate": uri, "title": long })
            };
            let result = json!({ member: [entry(0), entry(1), entry(2)] });
            bench.server(child, &json!({"jsonrpc":"2.0","id":request["id"],"result":result}));
        }
    }
    let all: usize = bench.machine.children.iter().map(Child::list_bytes).sum();
    assert!(all <= LISTS_BYTES_MAX && all > LISTS_BYTES_MAX / 2, "{all}");
}
