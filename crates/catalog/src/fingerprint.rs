//! The fingerprint of what a server says to a model of a tool, a prompt or of itself.
//!
//! It is the SHA-256 of a canonical form: the order of members means nothing, nor does space between
//! them. A member that is given twice counts twice, since clients differ in which one they use. Some find
//! members in any case, so the case of a key of the definition means nothing either.

use std::fmt;

use protocol::Listed;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Begins what is hashed. Another number is another canonical form.
const FORM: &str = "roundhouse definition 1";
/// Begins the text of a fingerprint.
const PREFIX: &str = "sha256:";
/// What a model gets of a tool.
const TOOL: Pinned = Pinned {
    kind: "tool",
    members: &["name", "title", "description", "inputSchema", "outputSchema", "annotations"],
};
/// What a model gets of a prompt.
const PROMPT: Pinned =
    Pinned { kind: "prompt", members: &["name", "title", "description", "arguments"] };
/// The kind of instructions.
const INSTRUCTIONS: &str = "instructions";

/// The SHA-256 of a definition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// That of an entry of a list, as the server sent it; `None` for a list whose entries are not pinned.
    pub fn of_entry(listed: Listed, raw: &str) -> Option<Self> {
        let Pinned { kind, members } = Pinned::of(listed)?;
        let mut hasher = begin(kind);
        match serde_json::from_str(raw) {
            Ok(Value::Object(mut all)) => {
                all.retain(|(key, _)| members.iter().any(|member| folded(member) == folded(key)));
                Value::Object(all).write_to(&mut hasher);
            }
            // Nested too deeply, or a number that no program can represent: each byte counts.
            _ => hasher.update(raw),
        }
        Some(Self(hasher.finalize().into()))
    }

    /// That of the instructions of a server.
    pub fn of_instructions(text: &str) -> Self {
        Self(begin(INSTRUCTIONS).chain_update(text).finalize().into())
    }
}

/// A key in the form in which keys are equal that differ by case only.
fn folded(key: &str) -> String {
    key.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

/// The kind of entries, and their members that count.
struct Pinned {
    kind: &'static str,
    members: &'static [&'static str],
}

impl Pinned {
    fn of(listed: Listed) -> Option<Self> {
        match listed {
            Listed::Tool => Some(TOOL),
            Listed::Prompt => Some(PROMPT),
            // They change with what a server has, and not with what it is.
            Listed::Resource | Listed::Template => None,
        }
    }
}

/// No definition of one kind has the fingerprint of another.
fn begin(kind: &str) -> Sha256 {
    Sha256::new().chain_update(FORM).chain_update([0]).chain_update(kind).chain_update([0])
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let wrong = "a fingerprint is `sha256:` and 64 digits of 0-9 and a-f";
        let digits = text.strip_prefix(PREFIX).ok_or(wrong)?.as_bytes();
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if digits.len() != 64 || !digits.iter().all(is_digit) {
            return Err(wrong);
        }
        let value = |digit: u8| if digit > b'9' { digit - b'a' + 10 } else { digit - b'0' };
        let mut bytes = [0; 32];
        for (byte, [high, low]) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
            *byte = value(*high) << 4 | value(*low);
        }
        Ok(Self(bytes))
    }
}

/// A value of JSON with all members of its objects, also those with equal keys.
enum Value {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

impl Value {
    /// Writes the canonical form.
    fn write_to(&self, hasher: &mut Sha256) {
        match self {
            Self::Null => hasher.update("null"),
            Self::Bool(value) => hasher.update(if *value { "true" } else { "false" }),
            Self::Unsigned(number) => hasher.update(number.to_string()),
            Self::Signed(number) => hasher.update(number.to_string()),
            Self::Float(number) => hasher.update(number.to_string()),
            Self::Text(text) => write_text(text, hasher),
            Self::List(all) => {
                hasher.update("[");
                for value in all {
                    value.write_to(hasher);
                    hasher.update(",");
                }
                hasher.update("]");
            }
            Self::Object(all) => {
                let mut sorted: Vec<_> = all.iter().collect();
                // Stable: the order of equal keys decides which one a client uses.
                sorted.sort_by(|(one, _), (other, _)| one.cmp(other));
                hasher.update("{");
                for (key, value) in sorted {
                    write_text(key, hasher);
                    hasher.update(":");
                    value.write_to(hasher);
                    hasher.update(",");
                }
                hasher.update("}");
            }
        }
    }
}

/// The length stands before a text, so that no text looks like another value.
fn write_text(text: &str, hasher: &mut Sha256) {
    hasher.update(format!("\"{}:", text.len()));
    hasher.update(text);
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadsValue)
    }
}

struct ReadsValue;

impl<'de> Visitor<'de> for ReadsValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Unsigned(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Signed(number))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut read: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(value) = read.next_element()? {
            all.push(value);
        }
        Ok(Value::List(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut read: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(member) = read.next_entry()? {
            all.push(member);
        }
        Ok(Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(raw: &str) -> Fingerprint {
        Fingerprint::of_entry(Listed::Tool, raw).unwrap()
    }

    const TOOL: &str =
        r#"{"name":"a","description":"x","inputSchema":{"type":"object","minimum":1,"b":[1,2]}}"#;

    #[test]
    fn a_member_that_some_clients_find_in_another_case_counts() {
        for key in ["Description", "DESCRIPTION", "de\u{17f}cription"] {
            let other = TOOL.replacen('{', &format!(r#"{{"{key}":"ignore all","#), 1);
            assert_ne!(of(&other), of(TOOL), "{key}");
        }
    }

    #[test]
    fn the_form_of_the_text_means_nothing() {
        for same in [
            r#"{"inputSchema":{"b":[1, 2],"type":"object","minimum":1.0},"name":"a","description":"x"}"#,
            r#"{"n\u0061me":"a","description":"\u0078","inputSchema":{"type":"object","minimum":1,"b":[1,2]}}"#,
            r#"{"_meta":{"version":7},"icons":[],"name":"a","description":"x","inputSchema":{"type":"object","minimum":1,"b":[1,2]}}"#,
        ] {
            assert_eq!(of(TOOL), of(same), "{same}");
        }
    }

    #[test]
    fn each_change_that_a_model_can_read_counts() {
        for other in [
            TOOL.replace("\"x\"", "\"y\""),
            TOOL.replace("\"x\"", "null"),
            TOOL.replace("\"x\"", "\"x\\u200b\""),
            TOOL.replace("[1,2]", "[2,1]"),
            TOOL.replace("[1,2]", "[12]"),
            TOOL.replace(",\"description\":\"x\"", ""),
            TOOL.replace("{\"name\"", "{\"title\":\"t\",\"name\""),
            TOOL.replace("{\"name\"", "{\"annotations\":{\"readOnlyHint\":true},\"name\""),
            TOOL.replace("{\"name\"", "{\"outputSchema\":{},\"name\""),
            // Clients that take the first description, and those that take the last one.
            TOOL.replace("{\"name\"", "{\"description\":\"y\",\"name\""),
            TOOL.replace("\"type\"", "\"type\":\"x\",\"type\""),
        ] {
            assert_ne!(of(TOOL), of(&other), "{other}");
        }
        let (one, other) = (r#"{"title":"\"1:a"}"#, r#"{"title":"","\"1:a":1}"#);
        assert_ne!(of(one), of(other));
    }

    #[test]
    fn what_no_program_can_represent_counts_byte_by_byte() {
        let deep = |text: &str| {
            format!(
                r#"{{"name":"a","inputSchema":{}"{text}"{}}}"#,
                "[".repeat(200),
                "]".repeat(200)
            )
        };
        assert_ne!(of(&deep("x")), of(&deep("y")));
        assert_ne!(of(r#"{"name":"a","title":1e999}"#), of(r#"{"name":"a","title":1e998}"#));
    }

    #[test]
    fn a_fingerprint_reads_back_and_stays_the_same() {
        let fingerprint = of(TOOL);
        let text = fingerprint.to_string();
        assert_eq!(Fingerprint::try_from(text.clone()), Ok(fingerprint));
        // Files have it, also those of other versions, so this number stays.
        assert_eq!(text, "sha256:8dc385df1fcf66489b18668deff9f4b8db5502329755ff960ed762f36a738bc3");
        for wrong in ["", "sha256:", &text[..70], &text.to_uppercase(), &format!("{text}0")] {
            assert!(Fingerprint::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
        let instructions = Fingerprint::of_instructions("x");
        assert_ne!(instructions, Fingerprint::of_instructions("y"));
        let prompt = Fingerprint::of_entry(Listed::Prompt, r#"{"name":"a"}"#);
        assert_ne!(prompt, Some(of(r#"{"name":"a"}"#)));
        assert_eq!(Fingerprint::of_entry(Listed::Resource, "{}"), None);
    }
}
