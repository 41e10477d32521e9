//! Finds out which value of the settings its owner does not accept, and why.
//!
//! The deserialiser reports the first such value only, and for settings that are nested without a
//! table of their own not even its key. So each value is tried alone.

use serde::Deserialize as _;
use serde_json::{Map, Value as Json, json};

use super::shape::join;
use super::{BackendSettings, Settings};

/// Why the value at this path is not accepted.
pub(super) struct Unfit {
    pub(super) value: Json,
    pub(super) what_to_write: String,
}

/// Why the value at this path is not accepted; `None` if it is.
pub(super) fn why(root: &Json, path: &[String]) -> Option<Unfit> {
    let value = path.iter().try_fold(root, |table, key| table.get(key))?;
    let error = attempt(path, value).err()?.to_string();
    let what_to_write = match largest_of(path, value) {
        Some(max) => format!("which is too large; write at most {max}"),
        None => remedy(path, &error),
    };
    Some(Unfit { value: value.clone(), what_to_write })
}

/// Deserialises settings in which only this value is set.
fn attempt(path: &[String], value: &Json) -> serde_json::Result<Settings> {
    let mut inner = value.clone();
    for (depth, key) in path.iter().enumerate().rev() {
        let mut table = Map::new();
        let is_backend = depth == 4 && path[0] == "tenants" && path[2] == "backends";
        if is_backend {
            // A backend is only valid with its kind and its program.
            let kind = BackendSettings::kind_with(&path[4]);
            table.insert("kind".into(), kind.into());
            if let Some((required, _)) = BackendSettings::required(kind) {
                table.insert(required.into(), "x".into());
            }
        }
        table.insert(key.clone(), inner);
        inner = Json::Object(table);
    }
    Settings::deserialize(inner)
}

/// The largest number that is accepted instead of a number that is too large.
fn largest_of(path: &[String], value: &Json) -> Option<u64> {
    let number = value.as_u64()?;
    let all = [u64::from(u32::MAX), u16::MAX.into(), u8::MAX.into()];
    all.into_iter().filter(|max| *max < number).find(|max| attempt(path, &json!(max)).is_ok())
}

/// What to write instead, from the deserialiser's words.
fn remedy(path: &[String], error: &str) -> String {
    let expected = error.rsplit_once("expected ").map_or("", |(_, expected)| expected);
    if error.starts_with("unknown variant") {
        let mut words = expected.trim_start_matches("one of ").replace('`', "\"");
        if let Some(last) = words.rfind(", ") {
            words.replace_range(last..last + 2, " or ");
        }
        return format!("which is not known; write {words}");
    }
    let key = path.iter().fold(String::new(), |at, key| join(&at, key));
    let wanted = match expected {
        word if word.starts_with(['u', 'i']) && word[1..].parse::<u8>().is_ok() => {
            wanted_number(&key)
        }
        "usize" => wanted_number(&key),
        "a string" | "path string" => "text in quotation marks".into(),
        "a boolean" => "true or false".into(),
        "a sequence" => "a list, as in [\"a\", \"b\"]".into(),
        _ => return format!("which cannot be used: {error}"),
    };
    format!("write {wanted}")
}

/// A number, as a value of this key.
pub(super) fn wanted_number(key: &str) -> String {
    match super::sizes::is_size(key) {
        true => "a whole number of bytes, or text with a unit of 1024, as in \"64K\", \"512M\" or \
                 \"2G\""
            .into(),
        false => "a whole number without quotation marks, 0 or above".into(),
    }
}
