//! Property tests of the parser of envelopes.

use bytes::Bytes;
use proptest::prelude::*;
use protocol::{Body, Limits, Message, RequestId, Response, parse};
use serde_json::Value;

/// Texts that are similar enough to messages to pass the first check.
fn almost_a_message() -> impl Strategy<Value = Vec<u8>> {
    let member = prop_oneof![
        Just(r#""jsonrpc":"2.0""#.to_owned()),
        Just(r#""jsonrpc":"1.0""#.to_owned()),
        id().prop_map(|id| format!(r#""id":{id}"#)),
        "[a-z/\"\\\\]{0,6}".prop_map(|method| format!(r#""method":"{method}""#)),
        json().prop_map(|params| format!(r#""params":{params}"#)),
        json().prop_map(|result| format!(r#""result":{result}"#)),
        Just(r#""error":{"code":1,"message":"m"}"#.to_owned()),
        json().prop_map(|error| format!(r#""error":{error}"#)),
        ("[a-z\\\\\"]{0,4}", json()).prop_map(|(key, value)| format!(r#""{key}":{value}"#)),
    ];
    let object = proptest::collection::vec(member, 0..6)
        .prop_map(|members| format!("{{{}}}", members.join(" ,\n")));
    let text = prop_oneof![
        4 => object.clone(),
        1 => proptest::collection::vec(object, 0..4).prop_map(|all| format!("[{}]", all.join(","))),
    ];
    // Some texts have a wrong byte.
    (text, proptest::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>()))).prop_map(
        |(text, wrong)| {
            let mut bytes = text.into_bytes();
            if let Some((index, byte)) = wrong {
                let at = index.index(bytes.len());
                bytes[at] = byte;
            }
            bytes
        },
    )
}

fn id() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|id| id.to_string()),
        "[ -~äö]{0,8}".prop_map(|id| Value::from(id).to_string()),
        Just("null".to_owned()),
        any::<f64>().prop_map(|id| id.to_string()),
    ]
}

fn json() -> impl Strategy<Value = String> + Clone {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("1.0".to_owned()),
        Just("123456789012345678901234567890".to_owned()),
        Just(r#""\u0061\n\" ä""#.to_owned()),
        "[ -~]{0,8}".prop_map(|text| Value::from(text).to_string()),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4)
                .prop_map(|values| format!("[ {}]", values.join(", "))),
            proptest::collection::vec(("[a-z]{0,3}", inner), 0..4).prop_map(|members| {
                let members: Vec<_> = members
                    .into_iter()
                    .map(|(key, value)| format!("\"{key}\" : {value}"))
                    .collect();
                format!("{{{} }}", members.join(","))
            }),
        ]
    })
}

/// A message of each kind, well formed, its members in any order.
fn well_formed() -> impl Strategy<Value = String> {
    let real_id = prop_oneof![
        any::<i64>().prop_map(|id| id.to_string()),
        "[ -~äö]{0,8}".prop_map(|id| Value::from(id).to_string()),
    ]
    .prop_map(|id| format!(r#""id":{id}"#));
    let method =
        "[a-zA-Z/_\"\\\\ä]{0,9}".prop_map(|name| format!(r#""method":{}"#, Value::from(name)));
    let params = json().prop_map(|value| format!(r#""params":{{"v":{value}}}"#));
    let outcome = prop_oneof![
        json().prop_map(|value| format!(r#""result":{value}"#)),
        json().prop_map(|v| format!(r#""error":{{"data":{v},"code":-1,"message":"m"}}"#)),
    ];
    let extra = json().prop_map(|value| format!(r#""extra":{value}"#));
    let request = (real_id.clone(), method.clone(), params.clone(), extra.clone())
        .prop_map(|(id, method, params, extra)| vec![id, method, params, extra]);
    let bare = (real_id.clone(), method.clone()).prop_map(|(id, method)| vec![id, method]);
    let notification = (method, params).prop_map(|(method, params)| vec![method, params]);
    let response =
        (real_id, outcome, extra).prop_map(|(id, outcome, extra)| vec![id, outcome, extra]);
    prop_oneof![request, bare, notification, response]
        .prop_map(|mut members| {
            members.push(r#""jsonrpc":"2.0""#.to_owned());
            members
        })
        .prop_shuffle()
        .prop_map(|members| format!("{{ {}\r\n}}", members.join(" , ")))
}

fn messages(body: Body) -> Vec<Message> {
    match body {
        Body::One(message) => vec![message],
        Body::Batch(members) => members.into_iter().filter_map(Result::ok).collect(),
    }
}

fn reread(message: &Message) -> Message {
    Message::parse(message.raw().clone()).expect("an accepted message is accepted again")
}

fn value(json: &[u8]) -> Value {
    serde_json::from_slice(json).expect("an accepted message is JSON")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn bytes_never_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(bytes.into(), &Limits::default());
    }

    #[test]
    fn an_accepted_message_parses_again_to_the_same(bytes in almost_a_message()) {
        let limits = Limits { depth_max: 5, batch_max: 2 };
        let Ok(body) = parse(Bytes::from(bytes.clone()), &limits) else { return Ok(()) };
        if let Body::Batch(members) = &body {
            prop_assert!((1..=2).contains(&members.len()));
        }
        for message in messages(body) {
            prop_assert_eq!(&reread(&message), &message);
            let line = message.line();
            prop_assert!(!line.contains(&b'\n') && !line.contains(&b'\r'));
            prop_assert_eq!(value(&line), value(message.raw()));
            if let Message::Request(request) = &message {
                let _ = request.progress_token();
            }
        }
    }

    #[test]
    fn every_well_formed_message_is_accepted(text in well_formed()) {
        let accepted = Message::parse(Bytes::from(text.clone()));
        prop_assert!(accepted.is_ok(), "{:?}", accepted);
        let message = accepted.unwrap();
        prop_assert_eq!(message.raw(), &text);
    }

    #[test]
    fn a_new_id_changes_nothing_else(text in well_formed(), number in any::<i64>(), name in "\\PC{0,9}") {
        for id in [RequestId::from(number), RequestId::from(name.as_str())] {
            let message = Message::parse(Bytes::from(text.clone())).unwrap();
            let (renamed, back) = match message.clone() {
                Message::Request(request) => {
                    let renamed = request.with_id(id.clone());
                    prop_assert_eq!(renamed.params(), request.params());
                    (Message::from(renamed.clone()), renamed.with_id(request.id).into())
                }
                Message::Response(response) => {
                    let renamed = response.with_id(id.clone());
                    prop_assert_eq!(renamed.outcome(), response.outcome());
                    let old = response.id.expect("well formed responses have one");
                    (Message::from(renamed.clone()), renamed.with_id(old).into())
                }
                told @ Message::Notification(_) => (told.clone(), told),
            };
            prop_assert_eq!(&reread(&renamed), &renamed);
            let (old, mut new) = (value(message.raw()), value(renamed.raw()));
            if let Some(member) = old.get("id") {
                prop_assert_eq!(&new["id"], &serde_json::to_value(&id).unwrap());
                new["id"] = member.clone();
            }
            prop_assert_eq!(old, new);
            prop_assert_eq!(value(Message::raw(&back)), value(message.raw()));
        }
    }

    #[test]
    fn new_parameters_change_nothing_else(text in well_formed(), params in json()) {
        let Ok(Message::Request(request)) = Message::parse(Bytes::from(text)) else { return Ok(()) };
        let params = format!(r#"{{"new":{params}}}"#);
        let changed = request.with_params(params.as_bytes());
        prop_assert_eq!(changed.params().unwrap(), &params);
        prop_assert_eq!(&reread(&changed.clone().into()), &Message::from(changed.clone()));
        if let Some(old) = request.params() {
            prop_assert_eq!(changed.with_params(&old), request);
        } else {
            prop_assert!(changed.raw().starts_with(&request.raw()[..request.raw().len() - 1]));
        }
    }

    #[test]
    fn our_own_answers_are_messages(id in any::<i64>(), result in json(), text in "\\PC{0,20}") {
        let answer = Response::result(id.into(), result.as_bytes());
        prop_assert_eq!(reread(&answer.clone().into()), Message::from(answer));
        let error = Response::error(Some(text.as_str().into()), -1, &text, Some(result.as_bytes()));
        prop_assert_eq!(reread(&error.clone().into()), Message::from(error));
    }
}
