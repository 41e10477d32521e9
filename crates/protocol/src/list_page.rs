//! One page of a list of tools, prompts, resources or templates, entry by entry, for a list that is
//! made of several.

use std::borrow::Cow;

use crate::raw::{self, Object};
use crate::{Listed, Method};

/// Longest name or URI of an entry that is read.
const NAME_BYTES_MAX: usize = 16 << 10;

/// One page of a list.
#[derive(Debug, Default)]
pub struct ListPage<'a> {
    /// The entries, in their order.
    pub entries: Vec<ListEntry<'a>>,
    /// The cursor of the next page, if there is one.
    pub next_cursor: Option<String>,
}

/// One entry of a list.
#[derive(Debug)]
pub struct ListEntry<'a> {
    /// The JSON text of the entry.
    pub raw: &'a str,
    /// Its name, its URI or its template; `None` if it has none that can be read, or two.
    pub name: Option<Cow<'a, str>>,
}

impl<'a> ListPage<'a> {
    /// Reads the result of a request for this list; `None` if it has no such list.
    pub fn read(result: &'a [u8], listed: Listed) -> Option<Self> {
        let result = Object::read(result)?;
        let entries = raw::elements(result.get(listed.member())?)?;
        let entries = entries.into_iter().map(|entry| ListEntry::read(entry.get(), listed));
        Some(Self { entries: entries.collect(), next_cursor: result.read_as("nextCursor") })
    }
}

impl<'a> ListEntry<'a> {
    fn read(raw: &'a str, listed: Listed) -> Self {
        let key = listed.key();
        let object = Object::read(raw.as_bytes()).filter(|object| object.count(key) == 1);
        let text = object.and_then(|object| object.get(key));
        let text = text.filter(|text| text.len() <= NAME_BYTES_MAX);
        let name = text.and_then(|text| match text.strip_prefix('"')?.strip_suffix('"')? {
            plain if !plain.contains('\\') => Some(Cow::Borrowed(plain)),
            _ => serde_json::from_str(text).ok().map(Cow::Owned),
        });
        Self { raw, name }
    }

    /// The entry with another name. Every other byte stays.
    pub fn with_name(&self, listed: Listed, name: &str) -> Option<String> {
        let renamed = raw::with_member(self.raw.as_bytes(), listed.key(), &raw::quoted(name))?;
        String::from_utf8(renamed.to_vec()).ok()
    }

    /// The URI of the user interface that a tool names (MCP Apps), in either of its two places.
    pub fn interface_uri(&self) -> Option<String> {
        let meta = Object::read(self.raw.as_bytes())?.object("_meta")?;
        let nested = meta.object("ui").and_then(|ui| ui.read_as::<String>("resourceUri"));
        nested.or_else(|| meta.read_as("ui/resourceUri"))
    }
}

impl Listed {
    /// All lists.
    pub const ALL: [Self; 4] = [Self::Tool, Self::Prompt, Self::Resource, Self::Template];

    /// The list that requests of this method ask for.
    pub fn of(method: &Method) -> Option<Self> {
        Self::ALL.into_iter().find(|listed| listed.method() == *method)
    }

    /// The method of requests for the list.
    pub fn method(self) -> Method {
        match self {
            Self::Tool => Method::ToolsList,
            Self::Prompt => Method::PromptsList,
            Self::Resource => Method::ResourcesList,
            Self::Template => Method::ResourceTemplatesList,
        }
    }

    /// The notification of changes of the list.
    pub fn changed(self) -> Method {
        match self {
            Self::Tool => Method::ToolsListChanged,
            Self::Prompt => Method::PromptsListChanged,
            Self::Resource | Self::Template => Method::ResourcesListChanged,
        }
    }

    /// The result of a request for the list, with entries that are JSON text.
    pub fn result<'a>(
        self,
        entries: impl IntoIterator<Item = &'a str>,
        next_cursor: Option<&str>,
    ) -> Vec<u8> {
        let mut json = format!("{{\"{}\":[", self.member()).into_bytes();
        for (at, entry) in entries.into_iter().enumerate() {
            if at > 0 {
                json.push(b',');
            }
            json.extend_from_slice(entry.as_bytes());
        }
        json.push(b']');
        if let Some(cursor) = next_cursor {
            json.extend_from_slice(format!(",\"nextCursor\":{}", raw::quoted(cursor)).as_bytes());
        }
        json.push(b'}');
        json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_its_entries_and_the_cursor_of_the_next() {
        let result = br#"{"tools":[{"name":"a","x": 1},{"n\u0061me":"\u0062"},{"title":"c"},7,{"name":"d","name":"e"}],"nextCursor":"2"}"#;
        let page = ListPage::read(result, Listed::Tool).unwrap();
        let names: Vec<_> = page.entries.iter().map(|entry| entry.name.as_deref()).collect();
        assert_eq!(names, [Some("a"), Some("b"), None, None, None]);
        assert_eq!(page.next_cursor.as_deref(), Some("2"));
        let renamed = page.entries[0].with_name(Listed::Tool, "p__a").unwrap();
        assert_eq!(renamed, r#"{"name":"p__a","x": 1}"#);
        assert!(ListPage::read(result, Listed::Prompt).is_none());
        assert!(ListPage::read(b"[]", Listed::Tool).is_none());
    }

    #[test]
    fn the_interface_of_a_tool_is_found_in_both_places() {
        for meta in [r#"{"ui":{"resourceUri":"ui://a"}}"#, r#"{"ui/resourceUri":"ui://a"}"#] {
            let result = format!(r#"{{"tools":[{{"name":"a","_meta":{meta}}}]}}"#);
            let page = ListPage::read(result.as_bytes(), Listed::Tool).unwrap();
            assert_eq!(page.entries[0].interface_uri().as_deref(), Some("ui://a"));
        }
    }

    #[test]
    fn a_list_is_put_together() {
        let result = Listed::Tool.result(["{}", "{\"a\":1}"], Some("c\"1"));
        assert_eq!(result, br#"{"tools":[{},{"a":1}],"nextCursor":"c\"1"}"#);
        assert_eq!(Listed::Prompt.result([], None), br#"{"prompts":[]}"#);
    }
}
