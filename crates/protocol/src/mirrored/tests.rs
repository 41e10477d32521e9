//! Tests mirrored headers against bodies.

use bytes::Bytes;

use super::*;

fn headers(given: &[(&str, &[u8])]) -> Option<Box<Mirrored>> {
    Mirrored::from_headers(given.iter().copied())
}

fn message(json: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(json.as_bytes())).expect("the test sends a message")
}

/// `Ok`, or the error message.
fn outcome(
    given: &[(&str, &[u8])],
    json: &str,
    annotations: Option<&HeaderParams>,
) -> Result<(), String> {
    let checked = Mirrored::check(headers(given).as_deref(), &message(json), annotations);
    checked.map_err(|rejection| {
        assert_eq!(rejection.code, ErrorCode::HeaderMismatch);
        let id = match message(json) {
            Message::Request(request) => Some(request.id),
            _ => None,
        };
        assert_eq!(rejection.id, id, "the answer goes to the request");
        rejection.message
    })
}

fn check(given: &[(&str, &[u8])], json: &str) -> Result<(), String> {
    outcome(given, json, None)
}

/// Asserts an error whose message contains these words.
fn refused(outcome: Result<(), String>, words: &str) {
    let message = outcome.expect_err("the headers do not mirror the body");
    assert!(message.contains(words), "{message}");
}

const PING: &str = r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const CALL: &str =
    r#"{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"echo","arguments":{}}}"#;
const READ: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///ä b"}}"#;

// holds: HDR-01, HDR-05
#[test]
fn requests_and_notifications_need_the_method_and_responses_need_nothing() {
    refused(check(&[], PING), "Mcp-Method is missing");
    refused(check(&[], INITIALIZED), "Mcp-Method is missing");
    assert_eq!(check(&[("mCP-mEthod", b"ping")], PING), Ok(()));
    assert_eq!(check(&[("Mcp-Method", b"notifications/initialized")], INITIALIZED), Ok(()));
    assert_eq!(check(&[], r#"{"jsonrpc":"2.0","id":1,"result":{}}"#), Ok(()));
}

// holds: HDR-06
#[test]
fn values_are_trimmed_and_compared_in_their_case() {
    assert_eq!(check(&[("mcp-method", b" \t ping\t ")], PING), Ok(()));
    refused(check(&[("mcp-method", b"PING")], PING), "'PING' does not match body value 'ping'");
    refused(check(&[("mcp-method", b"")], PING), "'' does not match");
}

#[test]
fn a_header_sent_twice_must_say_the_same_twice() {
    assert_eq!(check(&[("mcp-method", b"ping"), ("Mcp-Method", b" ping")], PING), Ok(()));
    refused(check(&[("mcp-method", b"ping"), ("Mcp-Method", b"pong")], PING), "sent twice");
    refused(check(&[("mcp-method", b"pong"), ("Mcp-Method", b"ping")], PING), "sent twice");
}

// holds: HDR-04
#[test]
fn values_that_no_header_may_hold_are_refused() {
    for value in [&b"pi\0ng"[..], b"p\xC3\xA4", b"\xFF", b"ping\x7F", b"a\rb"] {
        refused(check(&[("mcp-method", value)], PING), "not visible ASCII");
    }
}

// holds: HDR-02, HDR-04
#[test]
fn calls_gets_and_reads_need_their_name() {
    let method: (&str, &[u8]) = ("mcp-method", b"tools/call");
    refused(check(&[method], CALL), "Mcp-Name is missing");
    assert_eq!(check(&[method, ("mcp-name", b"  echo  ")], CALL), Ok(()));
    let differs = "Mcp-Name header value 'foo' does not match body value 'echo'";
    refused(check(&[method, ("mcp-name", b"foo")], CALL), differs);
    let get = r#"{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"p"}}"#;
    assert_eq!(check(&[("mcp-method", b"prompts/get"), ("mcp-name", b"p")], get), Ok(()));
    refused(check(&[("mcp-method", b"prompts/get"), ("mcp-name", b"P")], get), "does not match");
}

#[test]
fn other_methods_need_no_name_and_ignore_one() {
    assert_eq!(check(&[("mcp-method", b"ping"), ("mcp-name", b"echo")], PING), Ok(()));
}

#[test]
fn a_name_outside_ascii_may_come_as_base64() {
    let method: (&str, &[u8]) = ("mcp-method", b"resources/read");
    assert_eq!(check(&[method, ("mcp-name", b"=?base64?ZmlsZTovLy/DpCBi?=")], READ), Ok(()));
    refused(check(&[method, ("mcp-name", b"=?BASE64?ZmlsZTovLy/DpCBi?=")], READ), "does not match");
    refused(check(&[method, ("mcp-name", "file:///ä b".as_bytes())], READ), "not visible ASCII");
}

#[test]
fn a_body_without_a_name_is_left_to_the_server_unless_a_header_claims_one() {
    let nameless = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}"#;
    let method: (&str, &[u8]) = ("mcp-method", b"tools/call");
    assert_eq!(check(&[method], nameless), Ok(()));
    refused(check(&[method, ("mcp-name", b"7")], nameless), "nothing in the body");
}

#[test]
fn a_body_that_says_a_name_twice_is_refused() {
    let twice =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}"#;
    refused(check(&[("mcp-method", b"tools/call"), ("mcp-name", b"b")], twice), "twice");
}

#[test]
fn long_names_are_quoted_in_part() {
    let name = "ä".repeat(500);
    let call =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{name}"}}}}"#);
    let message = check(&[("mcp-method", b"tools/call"), ("mcp-name", b"b")], &call).unwrap_err();
    assert!(message.len() < 300, "{message}");
}

/// Annotations `Region` (string), `Count` (number) and `Dry` (boolean) against the
/// arguments, with headers of the call itself already there.
fn check_params(given: &[(&str, &[u8])], arguments: &str) -> Result<(), String> {
    let annotations = HeaderParams::read(
        br#"{"properties":{"region":{"type":"string","x-mcp-header":"Region"},
            "count":{"type":"number","x-mcp-header":"Count"},
            "dry":{"type":"boolean","x-mcp-header":"Dry"}}}"#,
    )
    .expect("the annotations are valid");
    let call = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"t","arguments":{arguments}}}}}"#
    );
    let mut all: Vec<(&str, &[u8])> = vec![("mcp-method", b"tools/call"), ("mcp-name", b"t")];
    all.extend(given);
    outcome(&all, &call, Some(&annotations))
}

// holds: HDR-10
#[test]
fn the_four_rows_of_the_drafts_table() {
    // A value is provided: the header must match it.
    assert_eq!(check_params(&[("Mcp-Param-Region", b"eu")], r#"{"region":"eu"}"#), Ok(()));
    let differs = check_params(&[("mcp-param-region", b"us")], r#"{"region":"secret"}"#);
    refused(differs.clone(), "Mcp-Param-Region differs");
    assert!(!differs.unwrap_err().contains("secret"), "arguments may be sensitive");
    // Null, or no such argument: no header is expected.
    assert_eq!(check_params(&[], r#"{"region":null}"#), Ok(()));
    assert_eq!(check_params(&[], "{}"), Ok(()));
    refused(check_params(&[("mcp-param-region", b"eu")], "{}"), "leave it out");
    refused(check_params(&[("mcp-param-region", b"null")], r#"{"region":null}"#), "leave it out");
    // A value is in the body, but not in a header.
    refused(check_params(&[], r#"{"region":"eu"}"#), "Mcp-Param-Region is missing");
}

#[test]
fn encoded_values_are_decoded_strictly() {
    let greeting = r#"{"region":"Hello, 世界"}"#;
    let check =
        |value: &[u8], arguments: &str| check_params(&[("mcp-param-region", value)], arguments);
    assert_eq!(check(b"=?base64?SGVsbG8sIOS4lueVjA==?=", greeting), Ok(()));
    assert_eq!(check(b"=?base64?IHBhZGRlZCA=?=", r#"{"region":" padded "}"#), Ok(()));
    assert_eq!(check(b"=?base64?bGluZTEKbGluZTI=?=", r#"{"region":"line1\nline2"}"#), Ok(()));
    assert_eq!(check(b"=?base64??=", r#"{"region":""}"#), Ok(()));
    // Padding missing, a foreign alphabet, stray bits, white space, not UTF-8.
    for bad in ["SGVsbG8", "SGVsbG8sIOS4lueVjA", "_-8=", "SGVsbG9=", "SGVs bG8=", "//8="] {
        let value = format!("=?base64?{bad}?=");
        refused(check(value.as_bytes(), greeting), "not valid base64");
    }
    // A prefix or suffix alone, both overlapping, and other case stand for themselves.
    for literal in ["=?base64?SGVsbG8=", "SGVsbG8=?=", "=?base64?=", "=?Base64?SGVsbG8=?="] {
        let arguments = format!(r#"{{"region":"{literal}"}}"#);
        assert_eq!(check(literal.as_bytes(), &arguments), Ok(()), "{literal}");
    }
    // A value that looks encoded is always decoded, so it cannot stand for itself.
    refused(check(b"=?base64?ZXU=?=", r#"{"region":"=?base64?ZXU=?="}"#), "differs");
}

#[test]
fn numbers_and_booleans_are_compared_by_their_string_form() {
    let count = |value: &[u8], n: &str| {
        check_params(&[("mcp-param-count", value)], &format!(r#"{{"count":{n}}}"#))
    };
    for (value, n) in [("42", "42"), ("42.0", "42"), ("42", "42.0"), ("3.14", "3.14"), ("-1", "-1")]
    {
        assert_eq!(count(value.as_bytes(), n), Ok(()), "{value} {n}");
    }
    refused(count(b"42", "43"), "differs");
    refused(count(b"9007199254740993", "9007199254740992"), "differs");
    refused(count(b"042", "42"), "differs");
    let dry = |value: &[u8], b: &str| {
        check_params(&[("mcp-param-dry", value)], &format!(r#"{{"dry":{b}}}"#))
    };
    assert_eq!(dry(b"true", "true"), Ok(()));
    assert_eq!(dry(b"false", "false"), Ok(()));
    refused(dry(b"True", "true"), "differs");
    refused(dry(b"1", "true"), "differs");
    refused(dry(b"[]", "[]"), "differs");
    // The argument's own type counts, not the schema's: a text of digits is a text.
    assert_eq!(dry(b"true", r#""true""#), Ok(()));
}

#[test]
fn an_argument_that_stands_there_twice_cannot_be_mirrored() {
    let twice = r#"{"region":"eu","region":"us"}"#;
    refused(check_params(&[("mcp-param-region", b"us")], twice), "twice");
}

// holds: HDR-18
#[test]
fn unknown_parameters_and_unknown_tools_are_not_checked() {
    assert_eq!(check_params(&[("mcp-param-trace", b"\xFF")], "{}"), Ok(()));
    let unknown_tool = [
        ("mcp-method", &b"tools/call"[..]),
        ("mcp-name", b"echo"),
        ("mcp-param-region", b"whatever"),
    ];
    assert_eq!(check(&unknown_tool, CALL), Ok(()));
}

#[test]
fn only_mirrored_headers_are_kept_and_they_travel_to_another_node() {
    assert_eq!(
        headers(&[("accept", b"x"), ("mcp-session-id", b"s"), ("mcp-", b""), ("ä", b"")]),
        None
    );
    let given = headers(&[("Mcp-Method", b" ping "), ("MCP-PARAM-X", b"\xFF"), ("host", b"h")]);
    let given = given.expect("two of them mirror");
    let again = Mirrored::from_headers(given.headers());
    assert_eq!(again.as_ref(), Some(&given));
    assert_eq!(
        given.headers().collect::<Vec<_>>(),
        [("mcp-method", &b"ping"[..]), ("mcp-param-x", b"\xFF")]
    );
}

/// The headers that a client sends with a message.
fn sent(json: &str, annotations: Option<&HeaderParams>) -> Vec<(String, String)> {
    let sent = Mirrored::of(&message(json), annotations).unwrap();
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
    sent.headers().map(|(name, value)| (name.to_owned(), text(value))).collect()
}

// holds: HDR-01, HDR-02, HDR-16
#[test]
fn a_client_sends_the_headers_that_a_server_checks() {
    let schema = r#"{"properties":{
        "s":{"type":"string","x-mcp-header":"S"},"n":{"type":"number","x-mcp-header":"N"},
        "b":{"type":"boolean","x-mcp-header":"B"},"o":{"type":"string","x-mcp-header":"My(O)"},
        "plain":{"type":"string"}}}"#;
    let annotations = HeaderParams::read(schema.as_bytes()).unwrap();
    let call = |arguments: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"t","arguments":{arguments}}}}}"#
        )
    };
    for (arguments, params) in [
        (
            r#"{"s":"a b","n":42,"b":false,"plain":"x"}"#,
            vec!["mcp-param-s: a b", "mcp-param-n: 42", "mcp-param-b: false"],
        ),
        (r#"{"s":"","n":3.14}"#, vec!["mcp-param-s: ", "mcp-param-n: 3.14"]),
        (r#"{"s":null,"b":[true],"n":{}}"#, vec![]),
        (r#"{"s":"é"}"#, vec!["mcp-param-s: =?base64?w6k=?="]),
        (r#"{"s":" x"}"#, vec!["mcp-param-s: =?base64?IHg=?="]),
        (r#"{"s":"a\r\nb: c"}"#, vec!["mcp-param-s: =?base64?YQ0KYjogYw==?="]),
        (r#"{"s":"=?base64?eA==?="}"#, vec!["mcp-param-s: =?base64?PT9iYXNlNjQ/ZUE9PT89?="]),
        // No header can have this name, so a server cannot ask for it either.
        (r#"{"o":"x"}"#, vec![]),
        ("7", vec![]),
    ] {
        let json = call(arguments);
        let sent = sent(&json, Some(&annotations));
        let lines: Vec<_> = sent.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let expected = [vec!["mcp-method: tools/call", "mcp-name: t"], params].concat();
        assert_eq!(lines, expected, "{arguments}");
        let given: Vec<_> = sent.iter().map(|(name, value)| (&**name, value.as_bytes())).collect();
        let checks = !arguments.contains('[') && !arguments.contains("\"o\"");
        assert_eq!(outcome(&given, &json, checks.then_some(&annotations)), Ok(()), "{arguments}");
    }
    assert_eq!(sent(PING, None), [("mcp-method".to_owned(), "ping".to_owned())]);
    assert_eq!(sent(INITIALIZED, None).len(), 1);
    assert_eq!(sent(READ, None)[1].1, "=?base64?ZmlsZTovLy/DpCBi?=");
    assert!(sent(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, None).is_empty());
    let long = call(&format!(r#"{{"s":"{}"}}"#, "x".repeat(SENT_BYTES_MAX)));
    assert_eq!(Mirrored::of(&message(&long), Some(&annotations)), Err(HeadersTooLong));
}
