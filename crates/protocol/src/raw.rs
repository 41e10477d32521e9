//! Reads and edits JSON text without changing the bytes of other members.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use memchr::memmem::Finder;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// An object's members in their order, each value as its original text.
#[derive(Default)]
pub(crate) struct Object<'a> {
    pub(crate) members: Vec<(Cow<'a, str>, &'a RawValue)>,
}

impl<'a> Object<'a> {
    /// Parses an object; `None` if `json` is not an object.
    pub(crate) fn read(json: &'a [u8]) -> Option<Self> {
        // One UTF-8 check of the whole: from bytes, each member would be checked separately.
        serde_json::from_str(std::str::from_utf8(json).ok()?).ok()
    }

    /// The member's text. The last one of duplicate members is used, as in most parsers.
    pub(crate) fn get(&self, key: &str) -> Option<&'a str> {
        self.members.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.get())
    }

    /// The deserialised member; `None` if it is absent or has another type.
    pub(crate) fn read_as<T: Deserialize<'a>>(&self, key: &str) -> Option<T> {
        serde_json::from_str(self.get(key)?).ok()
    }

    /// The member, if it is an object.
    pub(crate) fn object(&self, key: &str) -> Option<Self> {
        Self::read(self.get(key)?.as_bytes())
    }

    /// Whether the member is present and neither `null` nor `false`.
    pub(crate) fn declares(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| !matches!(value, "null" | "false"))
    }

    /// Whether the member is `true`.
    pub(crate) fn is_true(&self, key: &str) -> bool {
        self.get(key) == Some("true")
    }

    /// The number of members with this name.
    pub(crate) fn count(&self, key: &str) -> usize {
        self.members.iter().filter(|(name, _)| name == key).count()
    }
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Object<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some((Name(name), value)) = map.next_entry()? {
                    members.push((name, value));
                }
                Ok(Object { members })
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// The texts of some members of an object, as from [`Object::get`], without storing the others.
/// `None` if `json` is not an object.
pub(crate) fn pick<'a, const N: usize>(
    json: &'a [u8],
    keys: [&str; N],
) -> Option<[Option<&'a str>; N]> {
    let mut json = serde_json::Deserializer::from_str(std::str::from_utf8(json).ok()?);
    let picked = json.deserialize_map(Pick { keys }).ok()?;
    json.end().is_ok().then_some(picked)
}

struct Pick<'k, const N: usize> {
    keys: [&'k str; N],
}

impl<'de, const N: usize> Visitor<'de> for Pick<'_, N> {
    type Value = [Option<&'de str>; N];
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut picked = [None; N];
        while let Some(Name(name)) = map.next_key()? {
            match self.keys.iter().position(|key| *key == name) {
                Some(at) => picked[at] = Some(map.next_value::<&RawValue>()?.get()),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(picked)
    }
}

/// A member's name, borrowed from the text unless it has escapes.
pub(crate) struct Name<'a>(pub(crate) Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }
            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(name)))
            }
            fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// An array's elements, each as its original text; `None` if `json` is not an array.
pub(crate) fn elements(json: &str) -> Option<Vec<&RawValue>> {
    serde_json::from_str(json).ok()
}

/// `text` as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// Builds an object from members whose values are JSON text.
pub(crate) fn object<'a>(members: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let members: Vec<_> =
        members.into_iter().map(|(key, value)| format!("{}:{value}", quoted(key))).collect();
    format!("{{{}}}", members.join(","))
}

/// Builds an array from elements that are JSON text.
pub(crate) fn array<'a>(elements: impl IntoIterator<Item = &'a str>) -> String {
    format!("[{}]", elements.into_iter().collect::<Vec<_>>().join(","))
}

/// The position of `part` in `whole`, from which it was borrowed.
pub(crate) fn span_in(whole: &[u8], part: &str) -> Range<usize> {
    let start = part.as_ptr().addr() - whole.as_ptr().addr();
    start..start + part.len()
}

/// Replacements in a text, in ascending order of position.
#[derive(Default)]
pub(crate) struct Edits(Vec<(Range<usize>, String)>);

impl Edits {
    /// Replaces `part`, which was borrowed from `whole`, by `text`.
    pub(crate) fn replace(&mut self, whole: &[u8], part: &str, text: String) {
        self.0.push((span_in(whole, part), text));
    }

    /// Returns the edited text; `None` if there was no replacement.
    pub(crate) fn apply(self, whole: &[u8]) -> Option<Bytes> {
        if self.0.is_empty() {
            return None;
        }
        let mut edited = BytesMut::with_capacity(whole.len() + 64);
        let mut copied = 0;
        for (span, text) in self.0 {
            edited.extend_from_slice(&whole[copied..span.start]);
            edited.extend_from_slice(text.as_bytes());
            copied = span.end;
        }
        edited.extend_from_slice(&whole[copied..]);
        Some(edited.freeze())
    }
}

/// Replaces each member `key` of the object `json`, or inserts it as the first one if it is
/// missing. Every other byte stays. `None` if `json` is not an object.
pub(crate) fn with_member(json: &[u8], key: &str, value: &str) -> Option<Bytes> {
    let object = Object::read(json)?;
    let mut edits = Edits::default();
    for (name, old) in &object.members {
        if name == key {
            edits.replace(json, old.get(), value.to_owned());
        }
    }
    if let Some(edited) = edits.apply(json) {
        return Some(edited);
    }
    let brace = memchr::memchr(b'{', json)? + 1;
    let comma = if object.members.is_empty() { "" } else { "," };
    let inserted = format!("{}:{value}{comma}", quoted(key));
    Some([&json[..brace], inserted.as_bytes(), &json[brace..]].concat().into())
}

/// The largest end of a part of `text` that has at most `bytes_max` bytes.
pub(crate) fn floor_char_boundary(text: &str, bytes_max: usize) -> usize {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    end
}

/// A text that is searched for in many messages. It is prepared once, since the preparation costs
/// more than a search.
pub(crate) type Needle = LazyLock<Finder<'static>>;

/// Whether `json` may contain the string `text`. `false` only if it certainly does not. Costs a
/// search instead of a parse. `true` for any escaped text, which may decode to `text`.
pub(crate) fn may_hold(json: &[u8], text: &Needle) -> bool {
    text.find(json).is_some() || memchr::memchr(b'\\', json).is_some_and(|at| escapes(&json[at..]))
}

/// Whether the text has an escape by number.
fn escapes(json: &[u8]) -> bool {
    static ESCAPE: Needle = Needle::new(|| Finder::new("\\u"));
    ESCAPE.find(json).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_picked_is_what_the_whole_object_has() {
        for json in [
            r#"{"a":1,"b":{"a":2},"c":"x"}"#,
            r#" { "c" : [1, {"a":3}] , "a" : "y\u00fc" , "a" : null } "#,
            r#"{"\u0061":1}"#,
            "{}",
            r#"["a"]"#,
            r#"{"a":1} x"#,
            r#"{"a":1,}"#,
            r#"{"z":"\q","a":1}"#,
            "{",
            "",
        ] {
            let whole = Object::read(json.as_bytes());
            let expected = whole.map(|object| ["a", "missing", "c"].map(|key| object.get(key)));
            assert_eq!(pick(json.as_bytes(), ["a", "missing", "c"]), expected, "{json}");
        }
        assert_eq!(pick(b"{\"z\":\"\xFF\",\"a\":1}", ["a"]), None);
    }

    #[test]
    fn replacing_a_member_leaves_every_other_byte() {
        let check = |json: &str, expected: Option<&str>| {
            let edited = with_member(json.as_bytes(), "v", "9");
            assert_eq!(edited.as_deref(), expected.map(str::as_bytes), "{json}");
        };
        check(
            r#"{ "a" : [1, 2],"v" :  "x" , "b":{"v":0} }"#,
            Some(r#"{ "a" : [1, 2],"v" :  9 , "b":{"v":0} }"#),
        );
        check(r#"{"\u0076":1,"v":2}"#, Some(r#"{"\u0076":9,"v":9}"#));
        check(r#" { "a":1}"#, Some(r#" {"v":9, "a":1}"#));
        check("{}", Some(r#"{"v":9}"#));
        check(r#"["v"]"#, None);
        check("{", None);
    }
}
