//! Errors that clients get for servers.

use super::*;

fn failed(bench: &mut Bench, child: usize, id: i64) -> Value {
    let text = "the upstream server did not answer in time";
    let message = Response::failure(id.into(), -32_603, text).into();
    bench.told();
    bench.step(Event::ChildMessage { child, message, about: None });
    bench.told().remove(0)
}

#[test]
fn an_error_of_a_link_names_its_server_if_there_are_several() {
    for (names, expected) in [
        (&["one"][..], "the upstream server did not answer in time"),
        (
            &["one", "two"],
            "the server `one` did not answer: the upstream server did not answer in time",
        ),
    ] {
        let mut bench = Bench::ready(names);
        let name = if names.len() == 1 { "t" } else { "one__t" };
        let id = bench.request("tools/call", json!({ "name": name }));
        let told = failed(&mut bench, 0, id);
        assert_eq!((&told["id"], &told["error"]["message"]), (&json!(id), &json!(expected)));
    }
}

#[test]
fn an_error_of_a_server_stays_as_it_is() {
    let mut bench = Bench::ready(&["one", "two"]);
    let id = bench.request("tools/call", json!({ "name": "one__t" }));
    let error = json!({ "code": -32042, "message": "the upstream server", "data": [1] });
    bench.told();
    bench.server(0, &json!({ "jsonrpc": "2.0", "id": id, "error": error }));
    assert_eq!(bench.told()[0]["error"], error);
}

#[test]
fn clients_get_the_error_of_initialize_and_the_log_its_code() {
    let mut bench = Bench::new(&["one", "two"]);
    bench.initialize();
    bench.start(1);
    bench.step(Event::ChildUp(0));
    let (_, request) = bench.sent(0, "initialize").unwrap();
    let error = json!({ "code": -32001, "message": "key abc is\nunknown" });
    bench.server(0, &json!({ "jsonrpc": "2.0", "id": request["id"], "error": error }));
    let logged = bench.reports().into_iter().find_map(|report| match report {
        Report::Down { failure, .. } => Some(failure.reason.to_string()),
        _ => None,
    });
    assert_eq!(logged.as_deref(), Some("it answered `initialize` with the error -32001"));
    bench.told();
    bench.request("tools/call", json!({ "name": "one__t" }));
    let told = bench.told();
    let text = told[0]["error"]["message"].as_str().unwrap();
    assert!(text.contains("-32001: \"key abc is unknown\""), "{text}");
}

#[test]
fn the_error_of_a_server_is_for_the_client_that_calls_it() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.initialize();
    bench.start(0);
    bench.step(Event::ChildUp(1));
    let (_, request) = bench.sent(1, "initialize").unwrap();
    let error = json!({"code":-1,"message":"sign in first"});
    bench.server(1, &json!({"jsonrpc":"2.0","id":request["id"],"error":error}));
    bench.notify("notifications/initialized", json!({}));
    bench.told();
    bench.request("tools/call", json!({ "name": "b__x" }));
    let text = bench.told()[0]["error"].to_string();
    assert!(text.contains("sign in first"), "{text}");
}

#[test]
fn each_call_of_a_server_that_needs_a_page_to_be_opened_gets_its_error() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.initialize();
    bench.start(0);
    bench.step(Event::ChildUp(1));
    let (_, request) = bench.sent(1, "initialize").unwrap();
    let error = json!({"code":-32042,"message":"open a page","data":{"elicitations":[]}});
    bench.server(1, &json!({"jsonrpc":"2.0","id":request["id"],"error":error}));
    bench.told();
    bench.request("tools/call", json!({ "name": "b__x" }));
    assert_eq!(bench.told()[0]["error"], error);
}
