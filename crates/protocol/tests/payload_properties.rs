//! Property tests of payload readers: in the payloads, names of the specification are in wrong
//! places. No reader panics, and every changed payload is JSON.

use proptest::prelude::*;
use protocol::{HeaderParams, InitializeParams, InitializeResult, Method, Revision};
use protocol::{downgrade, header_params, payload, with_protocol_version};
use serde_json::Value;

const WORDS: [&str; 30] = [
    "content",
    "messages",
    "type",
    "text",
    "audio",
    "resource_link",
    "uri",
    "requestedSchema",
    "properties",
    "required",
    "oneOf",
    "const",
    "title",
    "default",
    "array",
    "boolean",
    "tools",
    "name",
    "inputSchema",
    "x-mcp-header",
    "nextCursor",
    "capabilities",
    "elicitation",
    "sampling",
    "protocolVersion",
    "clientInfo",
    "requestId",
    "progressToken",
    "progress",
    "mode",
];

fn word() -> impl Strategy<Value = String> + Clone {
    prop_oneof![9 => prop::sample::select(&WORDS[..]).prop_map(str::to_owned), 1 => "\\PC{0,3}"]
}

fn payload() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        3 => word().prop_map(Value::from),
        1 => any::<i32>().prop_map(Value::from),
        1 => any::<Option<bool>>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        prop_oneof![
            1 => proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            3 => proptest::collection::vec((word(), inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Payloads with the right structure and random parts.
fn shaped() -> impl Strategy<Value = String> {
    let any_part = || payload().prop_map(|value| value.to_string());
    prop_oneof![
        any_part(),
        (any_part(), any_part()).prop_map(|(a, b)| format!(r#"{{"content":[{a}, {b}]}}"#)),
        (any_part(), any_part()).prop_map(|(a, b)| format!(
            r#"{{"messages":[{{"content":{a}}},{{"content":[{b}]}}]}}"#
        )),
        (any_part(), any_part()).prop_map(|(a, b)| format!(
            r#"{{"requestedSchema":{{"required":["b"],"properties":{{"a":{a},"b":{b}}}}}}}"#
        )),
        (any_part(), any_part()).prop_map(|(a, b)| format!(
            r#"{{"tools":[{{"name":"t","inputSchema":{{"properties":{{"a":{a}}}}}}},{b}]}}"#
        )),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn no_reader_panics_and_changed_payloads_stay_json(json in shaped()) {
        let json = json.as_bytes();
        let mut changed = Vec::new();
        for revision in Revision::ALL {
            for method in [Method::ToolsCall, Method::PromptsGet, Method::CreateMessage, Method::Elicit] {
                changed.extend(downgrade::result_for_client(revision, &method, json));
                changed.extend(downgrade::request_for_client(revision, &method, json));
                changed.extend(downgrade::result_for_server(revision, &method, json));
            }
            changed.push(with_protocol_version(json, revision));
        }
        changed.extend(header_params::without_invalid_tools(json).map(|(edited, _)| edited));
        changed.extend(payload::with_cancelled_request_id(json, &7.into()));
        changed.extend(payload::with_progress_token(json, &"t".into()));
        for changed in changed {
            let read = serde_json::from_slice::<Value>(&changed);
            prop_assert!(read.is_ok(), "{:?}", changed);
        }
        let _ = InitializeParams::read(json);
        let _ = InitializeResult::read(json);
        let _ = HeaderParams::read(json);
        let _ = header_params::tools(json);
        let _ = payload::sampling_uses_tools(json);
        let _ = payload::elicitation_mode(json);
    }

    #[test]
    fn a_second_downgrade_changes_nothing(json in shaped()) {
        let json = json.as_bytes();
        for revision in Revision::ALL {
            for method in [Method::ToolsCall, Method::PromptsGet, Method::CreateMessage, Method::Elicit] {
                for downgrade in [
                    downgrade::result_for_client,
                    downgrade::request_for_client,
                    downgrade::result_for_server,
                ] {
                    if let Some(older) = downgrade(revision, &method, json) {
                        prop_assert_eq!(downgrade(revision, &method, &older), None);
                    }
                }
            }
        }
    }
}
