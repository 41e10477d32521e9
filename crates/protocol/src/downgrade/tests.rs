//! Tests downgrades with pairs of texts. `None` means that nothing changes.

use super::*;

const A: &str = "2024-11-05";
const B: &str = "2025-03-26";
const C: &str = "2025-06-18";
const D: &str = "2025-11-25";

type Downgrade = fn(Revision, &Method, &[u8]) -> Option<Bytes>;

fn check(downgrade: Downgrade, revision: &str, method: Method, json: &str, expected: Option<&str>) {
    let revision = Revision::named(revision).expect("the test names a revision");
    let found = downgrade(revision, &method, json.as_bytes());
    let found = found.as_deref().map(|json| std::str::from_utf8(json).expect("it is text"));
    assert_eq!(found, expected, "{revision} {method} {json}");
}

const MIXED: &str = r#"{ "content": [ {"type":"text", "text":"audio"},{"type":"audio","data":"AA==","mimeType":"audio/wav","annotations":{"priority":1}},
 {"type":"resource_link","uri":"file:///a","name":"a"} ], "isError":false , "x":1.0}"#;
const NOTE: &str = r#"{"type":"text","text":"[audio left out: audio/wav; only newer revisions of MCP have it]","annotations":{"priority":1}}"#;
const LINK: &str = r#"{"type":"text","text":"[resource: a] file:///a"}"#;

// holds: TOOL-09
#[test]
fn a_tools_content_is_said_in_text_where_the_client_has_no_word_for_it() {
    let call = |revision, expected: Option<&str>| {
        check(result_for_client, revision, Method::ToolsCall, MIXED, expected);
    };
    let links = MIXED.replace(r#"{"type":"resource_link","uri":"file:///a","name":"a"}"#, LINK);
    let audio =
        r#"{"type":"audio","data":"AA==","mimeType":"audio/wav","annotations":{"priority":1}}"#;
    call(A, Some(&links.replace(audio, NOTE)));
    call(B, Some(&links));
    call(C, None);
    call(D, None);
    call("DRAFT-2026-v1", None);
}

// holds: PRM-03
#[test]
fn a_prompts_messages_are_said_in_text_likewise() {
    let get = r#"{"messages":[{"role":"user","content":{"type":"audio","data":""}},{"role":"user","content":{"type":"text","text":"t"}}]}"#;
    let text = r#"{"messages":[{"role":"user","content":{"type":"text","text":"[audio left out: of unknown type; only newer revisions of MCP have it]"}},{"role":"user","content":{"type":"text","text":"t"}}]}"#;
    check(result_for_client, A, Method::PromptsGet, get, Some(text));
    check(result_for_client, B, Method::PromptsGet, get, None);
}

// holds: ELI-01, ELI-05
#[test]
fn an_error_that_has_a_user_open_urls_has_them_in_its_text_instead() {
    let check = |error: &str, expected: Option<&str>| {
        let found = error_without_urls(error.as_bytes());
        let found = found.as_deref().map(|json| std::str::from_utf8(json).unwrap());
        assert_eq!(found, expected, "{error}");
    };
    check(
        r#"{"code":-32042,"message":"look \"here\"","data":{"elicitations":[{"mode":"url","url":"https://a.example/1"},{"url":"https://a.example/2"},{},7]}}"#,
        Some(
            r#"{"code":-32000,"message":"look \"here\": open https://a.example/1: open https://a.example/2"}"#,
        ),
    );
    check(
        r#"{"code":-32042,"message":"open https://a.example/1","data":{"elicitations":[{"url":"https://a.example/1"}]}}"#,
        Some(r#"{"code":-32000,"message":"open https://a.example/1"}"#),
    );
    check(r#"{"code":-32042,"message":"","data":[]}"#, Some(r#"{"code":-32000,"message":""}"#));
    check(r#"{"code":-32000,"message":"-32042"}"#, None);
    check(r#"{"code":-32602,"message":"no"}"#, None);
    check("-32042", None);
    let urls: Vec<_> =
        (0..100_000).map(|n| format!(r#"{{"url":"https://a.example/{n}"}}"#)).collect();
    let many =
        format!(r#"{{"code":-32042,"message":"","data":{{"elicitations":[{}]}}}}"#, urls.join(","));
    let text = error_without_urls(many.as_bytes()).unwrap();
    assert_eq!(String::from_utf8_lossy(&text).matches("open ").count(), 16);
    let long = many.replace("a.example", &"a".repeat(6_000));
    let text = error_without_urls(long.as_bytes()).unwrap();
    assert_eq!(String::from_utf8_lossy(&text).matches("open ").count(), 1);
}

#[test]
fn other_results_and_unreadable_ones_stay_as_they_are() {
    let read = r#"{"contents":[{"uri":"resource_link:audio"}]}"#;
    check(result_for_client, A, Method::ResourcesRead, read, None);
    for json in ["", "{", "[]", r#"{"content":"audio"}"#, r#"{"content":[1,{"type":["audio"]}]}"#] {
        check(result_for_client, A, Method::ToolsCall, json, None);
        check(request_for_client, C, Method::Elicit, json, None);
        check(request_for_client, C, Method::CreateMessage, json, None);
    }
    check(
        result_for_client,
        A,
        Method::ToolsCall,
        r#"{"content":[{"type":"text","text":"audio"}]}"#,
        None,
    );
}

#[test]
fn a_type_hidden_behind_escapes_is_found() {
    let hidden = r#"{"content":[{"type":"\u0061udio","mimeType":"m"}]}"#;
    let text = r#"{"content":[{"type":"text","text":"[audio left out: m; only newer revisions of MCP have it]"}]}"#;
    check(result_for_client, A, Method::ToolsCall, hidden, Some(text));
}

fn check_form(fields: &str, required: &str, expected: Option<(&str, &str)>) {
    let form = |fields: &str, required: &str| {
        format!(
            r#"{{"message":"m","requestedSchema":{{"type":"object","properties":{fields}, "required":{required}}},"x":1}}"#
        )
    };
    let expected = expected.map(|(fields, required)| form(fields, required));
    let asked = form(fields, required);
    check(request_for_client, C, Method::Elicit, &asked, expected.as_deref());
    check(request_for_client, D, Method::Elicit, &asked, None);
}

// holds: ELI-02
#[test]
fn titled_choices_become_enum_and_enum_names() {
    check_form(
        r#"{"c":{"type":"string","title":"C","oneOf":[{"const":"r","title":"Red"},{"const":"g"}],"default":"r"}}"#,
        r#"["c"]"#,
        Some((
            r#"{"c":{"type":"string","title":"C","enum":["r","g"],"enumNames":["Red","g"]}}"#,
            r#"["c"]"#,
        )),
    );
    check_form(
        r#"{"c":{"oneOf":[{"const":"r","title":"Red"}]}}"#,
        "[]",
        Some((r#"{"c":{"type":"string","enum":["r"],"enumNames":["Red"]}}"#, "[]")),
    );
    // Not a titled enum of the revision.
    check_form(r#"{"c":{"oneOf":[{"type":"string"},{"type":"number"}]}}"#, "[]", None);
    check_form(r#"{"c":{"type":"string","enum":["a"],"enumNames":["A"]}}"#, "[]", None);
}

// holds: ELI-02
#[test]
fn defaults_go_but_those_of_booleans() {
    check_form(
        r#"{"n":{"type":"integer","default":7},"b":{"type":"boolean","default":true},"s":{"type":"string","minLength":1,"default":"x"}}"#,
        r#"["n"]"#,
        Some((
            r#"{"n":{"type":"integer"},"b":{"type":"boolean","default":true},"s":{"type":"string","minLength":1}}"#,
            r#"["n"]"#,
        )),
    );
    check_form(
        r#"{"b":{"type":"boolean","default":true},"e":{"type":"string","format":"email"}}"#,
        r#"["b"]"#,
        None,
    );
}

// holds: ELI-02
#[test]
fn choices_of_several_are_left_out_required_or_not() {
    check_form(
        r#"{"a":{"type":"array","items":{"type":"string","enum":["x"]}},"b":{"type":"number"},"c":{"type":"array","items":{"anyOf":[]}}}"#,
        r#"["a", "b"]"#,
        Some((r#"{"b":{"type":"number"}}"#, r#"["b"]"#)),
    );
}

// holds: SMP-04
#[test]
fn a_sampling_answer_of_several_blocks_becomes_one() {
    let answer =
        |content: &str| format!(r#"{{"role":"assistant","content":{content},"model":"m"}}"#);
    let sampled = |revision, content: &str, expected: Option<&str>| {
        let expected = expected.map(answer);
        let method = Method::CreateMessage;
        check(result_for_server, revision, method, &answer(content), expected.as_deref());
    };
    let text = r#"{"type":"text","text":"a","_meta":{}}"#;
    let image = r#"{"type":"image","data":"","mimeType":"image/png"}"#;
    let audio = r#"{"type":"audio","data":"","mimeType":"audio/wav"}"#;
    let tool = r#"{"type":"tool_use","id":"1","name":"n","input":{}}"#;
    let empty = r#"{"type":"text","text":""}"#;
    sampled(C, text, None);
    sampled(C, &format!("[{text}]"), Some(text));
    sampled(C, &format!("[{text},{image},{text}]"), Some(r#"{"type":"text","text":"a\na"}"#));
    sampled(C, &format!("[{tool}, {image}, {audio}]"), Some(image));
    sampled(B, &format!("[{tool},{audio}]"), Some(audio));
    sampled(C, &format!("[{tool},{tool}]"), Some(empty));
    sampled(C, "[]", Some(empty));
    sampled(D, &format!("[{text},{tool}]"), None);
    let note = r#"{"type":"text","text":"[audio left out: audio/wav; only newer revisions of MCP have it]"}"#;
    sampled(A, audio, Some(note));
    check(result_for_server, A, Method::RootsList, &answer("[]"), None);
}

// holds: SMP-04
#[test]
fn a_sampling_message_of_several_blocks_becomes_several_messages() {
    let ask = |messages: &str| format!(r#"{{"maxTokens":9,"messages":[{messages}] }}"#);
    let sample = |revision, messages: &str, expected: Option<&str>| {
        let expected = expected.map(ask);
        let method = Method::CreateMessage;
        check(request_for_client, revision, method, &ask(messages), expected.as_deref());
    };
    let several = r#"{"role":"user","content":[{"type":"text","text":"a"}, {"type":"image","data":""}]}, {"role":"assistant","content":{"type":"text","text":"b"}}"#;
    let split = r#"{"role":"user","content":{"type":"text","text":"a"}},{"role":"user","content":{"type":"image","data":""}}, {"role":"assistant","content":{"type":"text","text":"b"}}"#;
    sample(D, several, None);
    sample(C, several, Some(split));
    sample(A, split, None);
    sample(
        C,
        r#"{"role":"user","content":[]}"#,
        Some(r#"{"role":"user","content":{"type":"text","text":""}}"#),
    );
}
