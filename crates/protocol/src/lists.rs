//! Removes entries from lists of tools, prompts and resources in a response.

use std::borrow::Cow;

use bytes::Bytes;

use crate::raw::{Edits, Needle, Object, array, elements, may_hold};

/// What the entries of a list are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Listed {
    /// Tools, by name.
    Tool = 0,
    /// Prompts, by name.
    Prompt = 1,
    /// Resources, by URI.
    Resource = 2,
    /// Templates of resources, by the template of their URIs.
    Template = 3,
}

/// The members of results that are such lists, and the member that identifies an entry.
const LISTS: [(&str, &str, Listed); 4] = [
    ("tools", "name", Listed::Tool),
    ("prompts", "name", Listed::Prompt),
    ("resources", "uri", Listed::Resource),
    ("resourceTemplates", "uriTemplate", Listed::Template),
];

impl Listed {
    /// The member of a result that is this list.
    pub(crate) fn member(self) -> &'static str {
        LISTS[self as usize].0
    }

    /// The member that identifies an entry.
    pub(crate) fn key(self) -> &'static str {
        LISTS[self as usize].1
    }
}

static RESULT: Needle = Needle::new(|| memchr::memmem::Finder::new("\"result\""));

/// The response without the entries that `keeps` refuses; `None` if it keeps all of them, or if the
/// message has no list. An entry that names nothing is removed, and a result that cannot be read is
/// emptied.
pub fn without_entries(message: &Bytes, keeps: impl Fn(Listed, &str) -> bool) -> Option<Bytes> {
    if !may_hold(message, &RESULT) {
        return None;
    }
    let response = Object::read(message)?;
    let mut edits = Edits::default();
    let results = response.members.iter().filter(|(name, _)| name == "result");
    for (_, result) in results {
        let Some(members) = Object::read(result.get().as_bytes()) else {
            // Another parser may read what this one cannot.
            if result.get().starts_with('{') {
                edits.replace(message, result.get(), "{}".to_owned());
            }
            continue;
        };
        for (name, list) in &members.members {
            let Some((_, key, listed)) = LISTS.iter().find(|(list, ..)| list == name) else {
                continue;
            };
            let Some(entries) = elements(list.get()) else { continue };
            let kept = entries.iter().filter(|entry| {
                let entry = Object::read(entry.get().as_bytes());
                let named = entry.and_then(|entry| entry.read_as::<Cow<'_, str>>(key));
                named.is_some_and(|name| keeps(*listed, &name))
            });
            let kept: Vec<&str> = kept.map(|entry| entry.get()).collect();
            if kept.len() < entries.len() {
                edits.replace(message, list.get(), array(kept));
            }
        }
    }
    edits.apply(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(message: &str, names: &[&str]) -> Option<String> {
        let message = Bytes::from(message.to_owned());
        let kept = without_entries(&message, |_, name| names.contains(&name))?;
        Some(String::from_utf8(kept.to_vec()).unwrap())
    }

    #[test]
    fn entries_are_removed_and_every_other_byte_stays() {
        let tools = r#"{"jsonrpc":"2.0", "id":1,"result":{"tools":[ {"name":"a","x": 1},{"name":"b"}],"nextCursor":"c"}}"#;
        let expected = r#"{"jsonrpc":"2.0", "id":1,"result":{"tools":[{"name":"a","x": 1}],"nextCursor":"c"}}"#;
        assert_eq!(kept(tools, &["a"]).as_deref(), Some(expected));
        assert_eq!(kept(tools, &["a", "b"]), None);
        let resources = r#"{"result":{"resources":[{"uri":"x:/a","name":"b"}],"resourceTemplates":[{"uriTemplate":"x:/{b}"}]}}"#;
        assert_eq!(
            kept(resources, &["x:/{b}"]).as_deref(),
            Some(r#"{"result":{"resources":[],"resourceTemplates":[{"uriTemplate":"x:/{b}"}]}}"#)
        );
    }

    #[test]
    fn each_spelling_of_a_list_is_found() {
        for message in [
            r#"{"result":{"t\u006fols":[{"name":"b"}]}}"#,
            r#"{"res\u0075lt":{"tools":[{"name":"b"}]}}"#,
            r#"{"result":{"tools":[],"tools":[{"name":"b"}]}}"#,
            r#"{"result":{"tools":[{"name":"b"}]},"result":{}}"#,
            r#"{"result":{"tools":[{"title":"b"}]}}"#,
            r#"{"result":{"tools":[{"name":"a","name":"b"}]}}"#,
        ] {
            assert!(!kept(message, &["a"]).unwrap().contains("\"b\""), "{message}");
        }
    }

    #[test]
    fn a_result_that_cannot_be_read_is_emptied() {
        let message = r#"{"id":1,"result":{"\ud800":1,"tools":[{"name":"b"}]}}"#;
        assert_eq!(kept(message, &["a"]).as_deref(), Some(r#"{"id":1,"result":{}}"#));
    }

    #[test]
    fn other_messages_stay() {
        for message in [
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"tools":[{"name":"b"}]}}"#,
            r#"{"result":{"content":[{"type":"text","text":"{\"tools\":[{\"name\":\"b\"}]}"}]}}"#,
            r#"{"error":{"code":1,"message":"result"}}"#,
            r#"{"result":{"tools":{"name":"b"}}}"#,
            r#"{"result":7}"#,
            "[]",
            "",
        ] {
            assert_eq!(kept(message, &["a"]), None, "{message}");
        }
    }
}
