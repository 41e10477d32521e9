//! The bytes that a machine keeps, which are charged to its tenant.

use super::*;

#[test]
fn requests_that_wait_and_lists_that_are_read_are_kept_until_they_are_done() {
    let mut bench = Bench::new(&["a"]);
    bench.initialize();
    let before = bench.machine.kept_bytes();
    let long = "x".repeat(100_000);
    bench.request("tools/call", json!({ "name": "a__t", "arguments": { "a": long } }));
    assert!(bench.machine.kept_bytes() > before + 100_000, "it waits for the start");
    bench.start(0);
    let ready = bench.machine.kept_bytes();
    assert!(ready < before + 1_000 && ready > before, "instructions: {ready}");
    bench.request("tools/list", json!({}));
    let (_, request) = bench.sent(0, "tools/list").unwrap();
    let tools = json!([{ "name": "t", "description": long }]);
    let result = json!({ "tools": tools, "nextCursor": "2" });
    bench.server(0, &json!({"jsonrpc":"2.0","id":request["id"],"result":result}));
    assert!(bench.machine.kept_bytes() > ready + 100_000, "one more page comes");
    bench.send_tools(0, &["u"], None);
    // It is charged as the list that sessions share.
    assert_eq!(bench.machine.kept_bytes(), ready - bench.machine.waiting.bytes());
}

#[test]
fn links_to_resources_are_kept_within_bounds() {
    let mut bench = Bench::ready(&["a", "b"]);
    let before = bench.machine.kept_bytes();
    for round in 0..40 {
        bench.request("tools/call", json!({ "name": "a__t" }));
        let (_, request) = bench.sent(0, "tools/call").unwrap();
        let link = |at: i32| {
            let uri = format!("x:/{round}/{at}/{}", "y".repeat(1_900));
            json!({ "type": "resource_link", "uri": uri, "name": "l" })
        };
        let content: Vec<_> = (0..64).map(link).collect();
        let result = json!({ "content": content });
        bench.server(0, &json!({"jsonrpc":"2.0","id":request["id"],"result":result}));
    }
    let kept = bench.machine.kept_bytes() - before;
    assert!((200_000..300_000).contains(&kept), "{kept}");
}
