//! Tests which envelopes are accepted, and which bytes stay unchanged.

use bytes::Bytes;
use protocol::{
    Body, ErrorCode, Limits, Message, Method, Notification, Rejection, Request, RequestId,
    Response, parse,
};

fn body(text: impl AsRef<[u8]>) -> Result<Body, Rejection> {
    parse(Bytes::copy_from_slice(text.as_ref()), &Limits::default())
}

fn message(text: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(text.as_bytes())).expect("the test sends a message")
}

fn request(text: &str) -> Request {
    match message(text) {
        Message::Request(request) => request,
        other => panic!("not a request: {other:?}"),
    }
}

fn response(text: &str) -> Response {
    match message(text) {
        Message::Response(response) => response,
        other => panic!("not a response: {other:?}"),
    }
}

/// Asserts a rejection with this code and id.
fn refused(text: impl AsRef<[u8]>, code: ErrorCode, id: Option<RequestId>) {
    let rejection = body(&text).expect_err("the text is no message");
    let shown = String::from_utf8_lossy(text.as_ref());
    let shown: String = shown.chars().take(100).collect();
    assert_eq!((rejection.code, rejection.id), (code, id), "{shown}");
}

// holds: RPC-01, RPC-13
#[test]
fn text_that_is_not_utf8_json_is_a_parse_error() {
    for text in [
        &b"\xFF\xFE"[..],
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"p\xC3\"}",
        b"",
        b"   ",
        b"{bad",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n{}",
        b"[1,2",
        b"[1]2",
        b"\xEF\xBB\xBF{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"a\":01}}",
        b"\xC2\xA0[]",
    ] {
        refused(text, ErrorCode::ParseError, None);
    }
}

// holds: RPC-01, RPC-13
#[test]
fn json_that_is_not_a_message_is_an_invalid_request() {
    for text in [
        "1",
        "null",
        "\"ping\"",
        "true",
        "{}",
        r#"{"jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"2.0","params":{}}"#,
        r#"{"jsonrpc":"2.0","method":7}"#,
        r#"{"jsonrpc":"2.0","method":null}"#,
        r#"{"jsonrpc":"1.0","method":"ping"}"#,
        r#"{"jsonrpc":2.0,"method":"ping"}"#,
        r#"{"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","result":{}}"#,
    ] {
        refused(text, ErrorCode::InvalidRequest, None);
    }
}

// holds: RPC-02
#[test]
fn ids_keep_their_type_and_are_never_null() {
    for (json, id) in [
        ("7", RequestId::from(7)),
        ("-1", (-1).into()),
        ("9223372036854775807", i64::MAX.into()),
        (r#""7""#, "7".into()),
        (r#""a-b""#, "a-b".into()),
        (r#""\u0061\n""#, "a\n".into()),
        (r#""""#, "".into()),
    ] {
        let request = request(&format!(r#"{{"jsonrpc":"2.0","id":{json},"method":"ping"}}"#));
        assert_eq!(request.id, id);
        let answer = Response::result(request.id, b"{}");
        assert_eq!(response(std::str::from_utf8(answer.raw()).unwrap()).id, Some(id));
    }
    for json in ["null", "1.5", "1.0", "1e2", "true", "[]", "{}", "9223372036854775808", "-1e400"] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{json},"method":"ping"}}"#);
        refused(text, ErrorCode::InvalidRequest, None);
    }
}

#[test]
fn an_id_that_would_fill_the_memory_is_refused() {
    let long = |length| {
        body(format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, "x".repeat(length)))
    };
    assert!(long(1000).is_ok());
    let rejection = long(2000).unwrap_err();
    assert_eq!((rejection.code, rejection.id), (ErrorCode::InvalidRequest, None));
}

// holds: RPC-04
#[test]
fn a_response_has_exactly_one_of_result_and_error() {
    assert_eq!(
        response(r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#).outcome().unwrap(),
        r#"{"a":1}"#
    );
    let error =
        response(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no","data":[]}}"#);
    assert_eq!(error.outcome().unwrap_err(), r#"{"code":-1,"message":"no","data":[]}"#);
    for text in [
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"error":null}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":null}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":"no"}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":[1,"no"]}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":1.5,"message":""}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":1}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","error":{"code":1,"message":""}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":null,"result":{}}"#,
    ] {
        refused(text, ErrorCode::InvalidRequest, Some(1.into()));
    }
}

// holds: RPC-05
#[test]
fn a_notification_is_a_method_without_an_id() {
    let Message::Notification(told) = message(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#)
    else {
        panic!("not a notification")
    };
    assert_eq!((told.method.as_str(), told.params()), ("notifications/x", None));
    let ours = Notification::new(Method::Initialized, None);
    assert_eq!(ours.raw(), r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
}

// holds: RPC-06
#[test]
fn an_error_without_a_readable_id_has_no_id() {
    for text in [
        r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"m"}}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m"}}"#,
    ] {
        assert_eq!(response(text).id, None);
        let renamed = response(text).with_id(7.into());
        assert_eq!(response(std::str::from_utf8(renamed.raw()).unwrap()).id, Some(7.into()));
    }
    let rejection = body("{bad").unwrap_err();
    let answer = Response::rejecting(&rejection);
    assert!(answer.raw().starts_with(br#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"#));
    let known = Rejection::new(ErrorCode::InvalidParams, "m").of(Some("a".into()));
    let expected = r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32602,"message":"m"}}"#;
    assert_eq!(Response::rejecting(&known).raw(), expected);
}

// holds: RPC-13
#[test]
fn parameters_are_an_object_or_absent() {
    for params in ["[]", "null", "7", "\"a\""] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{params}}}"#);
        refused(text, ErrorCode::InvalidParams, Some(1.into()));
    }
    assert_eq!(request(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).params(), None);
}

#[test]
fn a_duplicate_member_is_rejected_in_every_spelling() {
    for member in
        [r#""jsonrpc":"2.0""#, r#""id":2"#, r#""\u0069d":2"#, r#""method":"x""#, r#""params":{}"#]
    {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{}},{member}}}"#);
        refused(text, ErrorCode::InvalidRequest, None);
    }
    // Unknown members may occur twice.
    assert!(body(r#"{"jsonrpc":"2.0","id":1,"method":"ping","x":1,"x":2}"#).is_ok());
}

// holds: BAT-05
#[test]
fn a_batch_is_never_empty_and_its_members_are_judged_one_by_one() {
    refused("[]", ErrorCode::InvalidRequest, None);
    refused(" [ ] ", ErrorCode::InvalidRequest, None);
    let Body::Batch(members) = body(
        r#" [1, {"jsonrpc":"2.0","id":1,"method":"ping"}, {"id":"a"}, ["2.0",1,"ping"],
            {"jsonrpc":"2.0","method":"n"},{"jsonrpc":"2.0","id":null,"method":"x"}] "#,
    )
    .unwrap() else {
        panic!("not a batch")
    };
    let told: Vec<_> = members.iter().map(Result::is_ok).collect();
    assert_eq!(told, [false, true, false, false, true, false]);
    for member in members.iter().flat_map(|member| member.as_ref().err()) {
        assert_eq!(member.code, ErrorCode::InvalidRequest);
    }
    assert_eq!(members[2].as_ref().unwrap_err().id, Some("a".into()));
    let raw = members[1].as_ref().unwrap().raw();
    assert_eq!(raw, r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
}

// holds: BAT-09
#[test]
fn a_batch_longer_than_the_limit_is_refused_whole() {
    let ping = r#"{"jsonrpc":"2.0","method":"n"}"#;
    let batch = |count| format!("[{}]", vec![ping; count].join(","));
    assert!(body(batch(100)).is_ok());
    refused(batch(101), ErrorCode::InvalidRequest, None);
    refused(format!("[{}1]", "1,".repeat(1_000_000)), ErrorCode::InvalidRequest, None);
    refused(format!("[{}]", "1,".repeat(1_000_000)), ErrorCode::ParseError, None);
}

#[test]
fn a_batch_is_rejected_where_a_single_message_is_expected() {
    let batch = Bytes::from_static(br#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#);
    assert_eq!(Message::parse(batch).unwrap_err().code, ErrorCode::InvalidRequest);
}

#[test]
fn nesting_has_a_bound_and_strings_do_not_count() {
    let nested = |depth: usize, open: &str, close: &str| {
        let params = format!("{}1{}", open.repeat(depth), close.repeat(depth));
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"a":{params}}}}}"#)
    };
    assert!(body(nested(126, "[", "]")).is_ok());
    refused(nested(127, "[", "]"), ErrorCode::InvalidRequest, None);
    refused(nested(127, r#"{"a":"#, "}"), ErrorCode::InvalidRequest, None);
    refused("[".repeat(10_000_000), ErrorCode::InvalidRequest, None);
    let text = r#"\"[{"#.repeat(1000);
    assert!(
        body(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"a":"{text}"}}}}"#))
            .is_ok()
    );
    let wide = vec!["[]"; 10_000].join(",");
    assert!(
        body(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"a":[{wide}]}}}}"#))
            .is_ok()
    );
}

#[test]
fn a_pretty_printed_message_goes_on_one_line_and_means_the_same() {
    let pretty = "\r\n{\n  \"jsonrpc\": \"2.0\",\r\n\t\"id\": 1,\n  \"method\": \"x\",\n  \"params\": {\n \"a\": \"b\\nc\" }\n}\n";
    let line = message(pretty).line();
    assert_eq!(
        line,
        "{   \"jsonrpc\": \"2.0\",  \t\"id\": 1,   \"method\": \"x\",   \"params\": {  \"a\": \"b\\nc\" } }"
    );
    let again = request(std::str::from_utf8(&line).unwrap());
    assert_eq!(
        (again.id.clone(), again.params().unwrap().as_ref()),
        (1.into(), &b"{  \"a\": \"b\\nc\" }"[..])
    );
    let single = message(r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#);
    assert_eq!(single.line().as_ptr(), single.raw().as_ptr(), "nothing is copied");
}

// holds: RPC-18
#[test]
fn unknown_members_and_number_spellings_pass_through() {
    let text = r#"{"x":[1.0,1e3,12345678901234567890123],"jsonrpc":"2.0","params":{"_meta":{"a.b/c":1.50},"u":"\u00e4"},"method":"tools/call","id":1,"y":null}"#;
    let call = request(text);
    assert_eq!(call.raw(), text);
    let renamed = call.with_id("other".into());
    assert_eq!(renamed.raw(), text.replace("\"id\":1", "\"id\":\"other\"").as_str());
    assert_eq!(renamed.params(), call.params());
    let changed = renamed.with_params(b"{}");
    let expected = text
        .replace("\"id\":1", "\"id\":\"other\"")
        .replace(r#"{"_meta":{"a.b/c":1.50},"u":"\u00e4"}"#, "{}");
    assert_eq!(changed.raw(), expected.as_str());
    let again = changed.with_id(1.into()).with_params(&call.params().unwrap());
    assert_eq!(again, call);
}

#[test]
fn parameters_are_added_where_there_were_none() {
    let call =
        request(r#" {"jsonrpc":"2.0","id":1,"method":"x","y":{} } "#).with_params(b"{\"a\":1}");
    assert_eq!(call.raw(), r#"{"jsonrpc":"2.0","id":1,"method":"x","y":{} ,"params":{"a":1}}"#);
    assert_eq!(call.params().unwrap(), r#"{"a":1}"#);
    assert_eq!(request(std::str::from_utf8(call.raw()).unwrap()), call);
}

#[test]
fn a_response_is_renamed_and_given_another_result_in_place() {
    let text = r#"{"result":{"a":1.0},"x":1,"id":"long id","jsonrpc":"2.0"}"#;
    let answer = response(text);
    let changed = answer.with_result(b"[]").with_id(7.into());
    assert_eq!(changed.raw(), r#"{"result":[],"x":1,"id":7,"jsonrpc":"2.0"}"#);
    assert_eq!(changed.outcome().unwrap(), "[]");
    assert_eq!(changed.with_id("long id".into()).with_result(b"{\"a\":1.0}"), answer);
    let error = response(r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}"#);
    assert_eq!(error.with_result(b"{}"), error);
}

// holds: PRG-01
#[test]
fn a_progress_token_is_found_and_replaced_in_its_place() {
    let call = |params: &str| {
        request(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{params}}}"#))
    };
    assert_eq!(call(r#"{"_meta":{"progressToken":7}}"#).progress_token(), Some(7.into()));
    assert_eq!(call(r#"{"_meta":{"progressToken":"7"}}"#).progress_token(), Some("7".into()));
    assert_eq!(call(r#"{"_meta":{"progressT\u006fken":7}}"#).progress_token(), Some(7.into()));
    for none in [
        "{}",
        r#"{"progressToken":7}"#,
        r#"{"_meta":{"progressToken":null}}"#,
        r#"{"_meta":{"progressToken":1.5}}"#,
        r#"{"_meta":["progressToken"]}"#,
        r#"{"_meta":{},"arguments":{"progressToken":7}}"#,
    ] {
        assert_eq!(call(none).progress_token(), None, "{none}");
    }
    let params = r#"{"_meta":{"a":1, "progressToken" : 7 },"arguments":{"progressToken":7}}"#;
    let replaced = call(params).with_progress_token(&"t".into());
    let expected = r#"{"_meta":{"a":1, "progressToken" : "t" },"arguments":{"progressToken":7}}"#;
    assert_eq!(replaced.params().unwrap(), expected);
    assert_eq!(call("{}").with_progress_token(&"t".into()), call("{}"));
}

#[test]
fn a_rejection_never_quotes_its_input() {
    for text in [
        "{\"token\":\"hunter2\"",
        r#"{"jsonrpc":"hunter2","id":1,"method":"x"}"#,
        r#"{"jsonrpc":"2.0","id":["hunter2"],"method":"x"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":{"hunter2":1}}"#,
        r#"{"hunter2":1,"id":1,"id":1}"#,
        r#""hunter2""#,
    ] {
        assert!(!body(text).unwrap_err().to_string().contains("hunter2"), "{text}");
    }
}
