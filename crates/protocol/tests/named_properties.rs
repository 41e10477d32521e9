//! Property tests of what decisions about a message depend on: what it names, the forms of a URI, and
//! the lists that are filtered. Readers here stand for servers and clients in other languages.

use std::fmt;

use bytes::Bytes;
use percent_encoding::percent_decode_str;
use proptest::prelude::*;
use protocol::{Body, Limits, Listed, Message, Named, named, parse, uri_forms, without_entries};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use url::Url;

/// An object's members in their order, duplicates included.
struct Members(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// How a parser finds a member.
#[derive(Clone, Copy, Debug)]
struct Reader {
    takes_first: bool,
    /// As Go does: by simple folding of Unicode.
    ignores_case: bool,
    /// Ends a name at a zero byte, as parsers in C do.
    ends_at_zero: bool,
}

impl Reader {
    fn all() -> impl Iterator<Item = Self> {
        (0..8).map(|n| Self {
            takes_first: n & 1 > 0,
            ignores_case: n & 2 > 0,
            ends_at_zero: n & 4 > 0,
        })
    }

    fn form(self, name: &str) -> String {
        let name =
            if self.ends_at_zero { name.split('\0').next().unwrap_or_default() } else { name };
        if !self.ignores_case {
            return name.to_owned();
        }
        let folded = name.chars().map(|letter| match letter {
            '\u{17f}' => 's',
            '\u{212a}' => 'k',
            other => other.to_ascii_lowercase(),
        });
        folded.collect()
    }

    /// The member to which a path leads.
    fn find(self, json: &str, path: &[&str]) -> Option<String> {
        let Some((name, rest)) = path.split_first() else { return Some(json.to_owned()) };
        let Members(members) = serde_json::from_str(json).ok()?;
        let mut found = members.iter().filter(|(key, _)| self.form(key) == self.form(name));
        let (_, value) = if self.takes_first { found.next() } else { found.next_back() }?;
        self.find(value.get(), rest)
    }

    fn text(self, json: &str, path: &[&str]) -> Option<String> {
        serde_json::from_str(&self.find(json, path)?).ok()
    }
}

/// The name of a member, in one of the ways in which it may be written.
fn key(name: &'static str) -> impl Strategy<Value = String> {
    let escaped = move |at: usize| {
        let at = at % name.len();
        format!("{}\\u{:04x}{}", &name[..at], name.as_bytes()[at], &name[at + 1..])
    };
    prop_oneof![
        12 => Just(name.to_owned()),
        2 => any::<usize>().prop_map(escaped),
        1 => Just(name.to_ascii_uppercase()),
        1 => Just(format!("{}{}", name[..1].to_ascii_uppercase(), &name[1..])),
        1 => Just(name.replace('s', "\u{17f}")),
        1 => Just(format!("{name}\\u0000")),
        1 => Just(format!("{name}x")),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(&["\"a\"", "\"b\"", "\"\\u0061\"", "\"x:/a\""][..]),
        1 => prop::sample::select(&["7", "null", "[\"a\"]", "{\"name\":\"b\"}", "\"\\\"\""][..]),
    ]
    .prop_map(str::to_owned)
}

fn object(
    members: impl Strategy<Value = (String, String)>,
    count: impl Into<prop::collection::SizeRange>,
) -> impl Strategy<Value = String> {
    prop::collection::vec(members, count).prop_map(|members| {
        let members = members.iter().map(|(key, value)| format!("\"{key}\":{value}"));
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    })
}

fn params() -> impl Strategy<Value = String> {
    let reference = object(
        prop_oneof![(key("name"), text()), (key("uri"), text()), (key("type"), text())],
        0..3,
    );
    object(
        prop_oneof![
            3 => (key("name"), text()),
            3 => (key("uri"), text()),
            2 => (key("ref"), reference),
            1 => (key("arguments"), Just("{\"name\":\"b\"}".to_owned())),
        ],
        0..4,
    )
}

/// Requests whose members are there once, twice or not at all, in several ways of writing them.
fn request() -> impl Strategy<Value = String> {
    let methods = [
        "\"tools/call\"",
        "\"prompts/get\"",
        "\"resources/read\"",
        "\"resources/subscribe\"",
        "\"completion/complete\"",
        "\"tools\\/call\"",
        "\"tools/list\"",
        "\"x/own\"",
    ];
    let method = || prop::sample::select(methods.to_vec()).prop_map(str::to_owned);
    let more = object(
        prop_oneof![
            (key("params"), params()),
            (key("method"), method()),
            (key("result"), Just("{}".to_owned())),
            (key("extra"), text()),
        ],
        0..2,
    );
    (method(), params(), more, any::<bool>()).prop_map(|(method, params, more, is_last)| {
        let usual = format!(r#""jsonrpc":"2.0","id":1,"method":{method},"params":{params}"#);
        match (&more[1..more.len() - 1], is_last) {
            ("", _) => format!("{{{usual}}}"),
            (more, true) => format!("{{{usual},{more}}}"),
            (more, false) => format!("{{{more},{usual}}}"),
        }
    })
}

fn read(text: &str) -> Option<Message> {
    match parse(Bytes::from(text.to_owned()), &Limits::default()) {
        Ok(Body::One(message)) => Some(message),
        _ => None,
    }
}

/// A response with lists, whose members and entries occur once.
fn response() -> impl Strategy<Value = Value> {
    let name = || prop::sample::select(&["a", "b", "x:/a", "\u{e4}\"\\", ""][..]);
    let id = prop::sample::select(&["name", "uri", "uriTemplate", "title"][..]);
    let entry = prop_oneof![
        6 => (id, name(), name()).prop_map(|(id, name, title)| {
            let mut entry = serde_json::json!({ "description": title });
            entry[id] = name.into();
            entry
        }),
        1 => Just(serde_json::json!({ "name": 7 })),
        1 => Just(serde_json::json!("a")),
    ];
    let list = prop_oneof![
        6 => prop::collection::vec(entry, 0..5).prop_map(Value::from),
        1 => name().prop_map(Value::from),
    ];
    let lists = ["tools", "prompts", "resources", "resourceTemplates", "content", "nextCursor"];
    let members = (prop::sample::select(lists.to_vec()), list);
    let result = prop::collection::vec(members, 0..4);
    let outer = prop::sample::select(&["result", "error", "params"][..]);
    (outer, result).prop_map(|(outer, result)| {
        let result: serde_json::Map<_, _> =
            result.into_iter().map(|(list, entries)| (list.to_owned(), entries)).collect();
        let mut response = serde_json::json!({ "jsonrpc": "2.0", "id": 1, "extra": [1, "é"] });
        response[outer] = result.into();
        response
    })
}

/// What a client would make of the response if it kept the names itself.
fn filtered(mut response: Value, keeps: impl Fn(&str) -> bool) -> Value {
    for (list, key) in [
        ("tools", "name"),
        ("prompts", "name"),
        ("resources", "uri"),
        ("resourceTemplates", "uriTemplate"),
    ] {
        if let Some(Value::Array(entries)) = response.pointer_mut(&format!("/result/{list}")) {
            entries.retain(|entry| entry[key].as_str().is_some_and(&keeps));
        }
    }
    response
}

/// URIs with what normalising and decoding change.
fn uri() -> impl Strategy<Value = String> {
    let scheme = prop::sample::select(
        &["x:", "x:/", "test://", "file:///", "FILE:///", "https://A.example/", "", " file:\\"][..],
    );
    let parts = [
        "a",
        "secret",
        "..",
        ".",
        "%2e",
        "%2E%2e",
        "%252e",
        "%2f",
        "%25",
        "%252f",
        "/",
        "/",
        "\\",
        "\t",
        " ",
        "%73",
        "%",
        "%f",
        "\u{e4}",
        "%C3%A4",
        "%ff",
        "?",
        "#",
        "%00",
        ":8080",
        "localhost",
    ];
    let parts = prop::collection::vec(prop::sample::select(parts.to_vec()), 0..8);
    (scheme, parts).prop_map(|(scheme, parts)| scheme.to_owned() + &parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// A decision about a name holds for each server only if all read the same one.
    #[test]
    fn each_reader_reads_the_name_that_was_judged(text in request()) {
        let Some(message) = read(&text) else { return Ok(()) };
        let Ok(found) = named(&message) else { return Ok(()) };
        for reader in Reader::all() {
            let reads = |path: &[&str]| reader.text(&text, path);
            let method = reads(&["method"]);
            let expected = match &message {
                Message::Request(request) => Some(request.method.as_str()),
                Message::Notification(notification) => Some(notification.method.as_str()),
                Message::Response(_) => None,
            };
            prop_assert_eq!(method.as_deref(), expected, "{:?} {}", reader, &text);
            let completes = expected == Some("completion/complete");
            let (path, other): (&[&str], &[&str]) = match (&found, completes) {
                (Named::Tool(_), _) | (Named::Prompt(_), false) => (&["params", "name"], &[]),
                (Named::Prompt(_), true) => (&["params", "ref", "name"], &["params", "ref", "uri"]),
                (Named::Resource(_), false) => (&["params", "uri"], &[]),
                (Named::Resource(_), true) => (&["params", "ref", "uri"], &["params", "ref", "name"]),
                (Named::Method(_) | Named::Nothing, _) => continue,
            };
            let (Named::Tool(name) | Named::Prompt(name) | Named::Resource(name)) = &found else {
                continue;
            };
            let read = reads(path);
            prop_assert_eq!(read.as_deref(), Some(&**name), "{:?} {}", reader, &text);
            if !other.is_empty() {
                prop_assert_eq!(reads(other), None, "{:?} {}", reader, &text);
            }
        }
    }

    #[test]
    fn a_response_is_filtered_as_by_a_parser_and_every_other_value_stays(
        response in response(),
        kept in prop::collection::vec(prop::sample::select(&["a", "b", "x:/a", "\u{e4}\"\\"][..]), 0..4),
        pretty in any::<bool>(),
    ) {
        let text = if pretty { format!("{response:#}") } else { response.to_string() };
        let keeps = |name: &str| kept.contains(&name);
        let out = without_entries(&Bytes::from(text.clone()), |_, name| keeps(name));
        let read: Value = serde_json::from_slice(out.as_deref().unwrap_or(text.as_bytes())).unwrap();
        prop_assert_eq!(&read, &filtered(response.clone(), keeps));
        prop_assert_eq!(out.is_some(), read != response);
        if let Some(out) = out {
            prop_assert_eq!(without_entries(&out, |_, name| keeps(name)), None);
        }
    }

    /// Neither panics, and what comes out can be read if what went in could.
    #[test]
    fn any_bytes_are_named_and_filtered(
        texts in prop::collection::vec(request(), 1..3),
        response in response(),
        wrong in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut texts = texts;
        texts.push(response.to_string());
        texts.push(response.to_string().replace("\"tools\"", "\"t\\u006fols\"").replace("\"prompts\"", "\"tools\""));
        for text in texts {
            let mut bytes = text.into_bytes();
            for (index, byte) in &wrong {
                let at = index.index(bytes.len());
                bytes[at] = *byte;
            }
            let bytes = Bytes::from(bytes);
            if let Some(out) = without_entries(&bytes, |listed, _| listed == Listed::Prompt) {
                prop_assert!(serde_json::from_slice::<&RawValue>(&bytes).is_ok());
                prop_assert!(serde_json::from_slice::<&RawValue>(&out).is_ok(), "{:?}", out);
            }
            match parse(bytes, &Limits::default()) {
                Ok(Body::One(message)) => _ = named(&message),
                Ok(Body::Batch(all)) => all.iter().flatten().for_each(|m| _ = named(m)),
                Err(_) => {}
            }
        }
    }

    /// A server may normalise, decode, and normalise again. What it looks up then was judged.
    #[test]
    fn what_servers_make_of_a_uri_is_one_of_its_forms(
        uri in prop_oneof![9 => uri(), 1 => "\\PC{0,20}"],
        steps in prop::collection::vec(any::<bool>(), 0..4),
    ) {
        let Ok(forms) = uri_forms(&uri) else { return Ok(()) };
        prop_assert_eq!(&forms[0], &uri);
        let normal = |uri: &str| Url::parse(uri).map_or_else(|_| uri.to_owned(), String::from);
        let mut looked_up = uri.clone();
        for decodes in steps {
            looked_up = match decodes {
                true => percent_decode_str(&looked_up).decode_utf8_lossy().into_owned(),
                false => normal(&looked_up),
            };
        }
        let looked_up = normal(&looked_up);
        prop_assert!(forms.contains(&looked_up), "{:?} {:?} {:?}", uri, forms, looked_up);
    }
}
