//! Tests the headers for servers of a revision that has them.

use super::*;

const DRAFT: Option<Revision> = Some(Revision::Draft2026V1);

/// A confirmed session with a server that answered with this revision.
fn ready(answered: &str) -> Bench {
    let machine = Machine::new(0xab).asking_for(DRAFT);
    let mut bench = Bench { machine, effects: Vec::new() };
    let initialize = r#"{"jsonrpc":"2.0","id":"i","method":"initialize",
        "params":{"protocolVersion":"2025-11-25"}}"#;
    let (opening, exchange) = bench.send(message(initialize)).remove(0);
    assert_eq!(headers(&exchange), ["mcp-method: initialize"]);
    let Verb::Request(sent) = &exchange.verb else { panic!("{exchange:?}") };
    assert!(String::from_utf8_lossy(sent).contains("DRAFT-2026-v1"), "{sent:?}");
    bench.event(opening, ExchangeEvent::Opened(Some(text("s1"))));
    bench.event(opening, event(vec![message(&RESULT.replace("2025-06-18", answered))], None));
    bench.event(opening, ExchangeEvent::Ended);
    let (confirming, _) = bench.send(message(INITIALIZED)).remove(0);
    bench.event(confirming, ExchangeEvent::Accepted);
    bench
}

fn headers(exchange: &Exchange) -> Vec<String> {
    let all = exchange.mirrored.iter().flat_map(|mirrored| mirrored.headers());
    all.map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value))).collect()
}

/// A call of the tool `t`.
fn call(id: u64) -> Message {
    message(&format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"t","arguments":{{"p":"x"}}}}}}"#
    ))
}

/// The tool `t`, whose argument is mirrored in this header.
fn tool(header: &str) -> String {
    format!(
        r#"{{"name":"t","inputSchema":{{"properties":{{"p":{{"type":"string","x-mcp-header":"{header}"}}}}}}}}"#
    )
}

/// The response to the request of an exchange.
fn answer(exchange: &Exchange, result: &str) -> ExchangeEvent {
    let Verb::Request(sent) = &exchange.verb else { panic!("{exchange:?}") };
    let Message::Request(request) = Message::parse(sent.clone()).unwrap() else { panic!() };
    event(vec![Response::result(request.id, result.as_bytes()).into()], None)
}

fn mismatch() -> ExchangeEvent {
    let error = message(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"x"}}"#);
    let Message::Response(error) = error else { panic!("{error:?}") };
    ExchangeEvent::Refused { status: 400, error: Some(error) }
}

// holds: HDR-16, HDR-01
#[test]
fn a_call_waits_until_the_annotations_of_its_tool_are_known() {
    let mut bench = ready("DRAFT-2026-v1");
    let (listing, list) = bench.send(call(1)).remove(0);
    assert_eq!(headers(&list), ["mcp-method: tools/list"]);
    assert!(bench.send(call(2)).is_empty(), "the list is requested once");
    assert!(bench.machine.bytes() > 0);
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}"#;
    assert!(bench.send(message(cancel)).is_empty(), "it was not sent");
    let page = r#"{"tools":[{"name":"u"}],"nextCursor":"c"}"#;
    bench.event(listing, answer(&list, page));
    let (listing, list) = bench.started().remove(0);
    bench.event(listing, answer(&list, &format!(r#"{{"tools":[{}]}}"#, tool("P"))));
    let sent = bench.started();
    let [(_, sent)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(headers(sent), ["mcp-method: tools/call", "mcp-name: t", "mcp-param-p: x"]);
    assert_eq!(bench.send(call(3)).len(), 1, "the list is known");
}

#[test]
fn a_call_is_sent_though_the_list_cannot_be_read() {
    let mut bench = ready("DRAFT-2026-v1");
    let (listing, _) = bench.send(call(1)).remove(0);
    bench.event(listing, ExchangeEvent::Failed(Failure::Lost));
    assert_eq!(headers(&bench.started()[0].1), ["mcp-method: tools/call", "mcp-name: t"]);
    assert_eq!(bench.send(call(2)).len(), 1);
}

#[test]
fn calls_that_wait_for_the_list_are_returned_when_the_session_is_lost() {
    let mut bench = ready("DRAFT-2026-v1");
    let (listing, _) = bench.send(call(1)).remove(0);
    bench.event(listing, ExchangeEvent::SessionGone);
    assert_eq!(bench.returned(), [call(1)]);
    assert!(bench.down());
}

// holds: HDR-16
#[test]
fn a_call_whose_headers_are_refused_is_sent_once_more_after_the_list() {
    let mut bench = ready("DRAFT-2026-v1");
    let (listing, list) = bench.send(call(1)).remove(0);
    bench.event(listing, answer(&list, r#"{"tools":[{"name":"t"}]}"#));
    let (first, sent) = bench.started().remove(0);
    assert_eq!(headers(&sent).len(), 2);
    bench.event(first, mismatch());
    let (listing, list) = bench.started().remove(0);
    assert_eq!(headers(&list), ["mcp-method: tools/list"]);
    bench.event(listing, answer(&list, &format!(r#"{{"tools":[{}]}}"#, tool("P"))));
    let started = bench.started();
    let [(second, sent)] = &started[..] else { panic!("{started:?}") };
    assert_eq!(headers(sent)[2], "mcp-param-p: x");
    // A second refusal is the answer, once a ping has shown that the session exists.
    bench.event(*second, mismatch());
    let (probing, ping) = bench.started().remove(0);
    assert_eq!(headers(&ping), ["mcp-method: ping"]);
    bench.event(probing, answer(&ping, "{}"));
    bench.event(probing, ExchangeEvent::Ended);
    bench.one_error("-32001");
}

// holds: HDR-16
#[test]
fn tools_with_invalid_annotations_are_left_out_of_lists_and_the_others_stay() {
    let mut bench = ready("DRAFT-2026-v1");
    let list = r#"{"jsonrpc":"2.0","id":7,"method":"tools/list"}"#;
    let (listing, exchange) = bench.send(message(list)).remove(0);
    let tools =
        format!(r#"{{"tools":[{},{}]}}"#, tool("a b").replace("\"t\"", "\"bad\""), tool("P"));
    bench.event(listing, answer(&exchange, &tools));
    let (delivered, _) = bench.delivered().remove(0);
    assert!(!delivered.contains("bad") && delivered.contains("\"t\""), "{delivered}");
    let left_out = bench.effects.iter().any(|effect| {
        matches!(effect, Effect::LeftOut(tools) if tools.len() == 1 && tools[0].0 == "bad")
    });
    assert!(left_out, "{:?}", bench.effects);
    let (_, sent) = bench.send(call(1)).remove(0);
    assert_eq!(headers(&sent)[2], "mcp-param-p: x", "the list of the client is read as well");
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    bench.event(listing, event(vec![message(changed)], None));
    assert_eq!(headers(&bench.send(call(2)).remove(0).1), ["mcp-method: tools/list"]);
}

#[test]
fn a_server_of_an_older_revision_gets_no_such_headers_and_a_later_one_does() {
    let mut bench = ready("2025-11-25");
    let (_, sent) = bench.send(call(1)).remove(0);
    assert_eq!((headers(&sent), sent.verb), (vec![], Verb::Request(call(1).raw().clone())));
    let mut bench = ready("2026-07-28");
    assert_eq!(headers(&bench.send(call(1)).remove(0).1), ["mcp-method: tools/list"]);
}

#[test]
fn what_is_kept_of_tools_is_bounded() {
    let mut bench = ready("DRAFT-2026-v1");
    let (listing, mut list) = bench.send(call(1)).remove(0);
    let mut listing = listing;
    for page in 0.. {
        let tools: Vec<_> =
            (0..100).map(|n| tool("P").replace("\"t\"", &format!("\"{page}-{n}\""))).collect();
        let page = format!(r#"{{"tools":[{}],"nextCursor":"c"}}"#, tools.join(","));
        bench.event(listing, answer(&list, &page));
        assert!(bench.machine.bytes() <= (64 << 10) + 200, "{}", bench.machine.bytes());
        let (next, exchange) = bench.started().remove(0);
        if headers(&exchange)[0] != "mcp-method: tools/list" {
            return assert_eq!(headers(&exchange).len(), 2, "it is sent after {page} pages");
        }
        (listing, list) = (next, exchange);
    }
}

#[test]
fn arguments_that_are_too_long_for_headers_are_an_error() {
    let mut bench = ready("DRAFT-2026-v1");
    let (listing, list) = bench.send(call(1)).remove(0);
    bench.event(listing, answer(&list, &format!(r#"{{"tools":[{}]}}"#, tool("P"))));
    let long = String::from_utf8(call(2).raw().to_vec()).unwrap();
    let long = message(&long.replace("\"x\"", &format!("\"{}\"", "x".repeat(10_000))));
    assert!(bench.send(long).is_empty());
    bench.one_error("more than 8192 bytes");
}
