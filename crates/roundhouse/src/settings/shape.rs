//! Which keys exist, and which of a file's keys are wrong.
//!
//! A [`Shape`] is made from serialised defaults, so it knows a key as soon as a crate adds it to
//! its settings. It does not know what a value means.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::finding::Place;
use super::{Problems, sizes, unfit};

/// The values that are allowed at one place of the settings.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// Any value; the crate that owns the key checks it.
    Any,
    /// Text.
    Text,
    /// A whole number, not below 0.
    Number,
    /// `true` or `false`.
    Truth,
    /// A list; in the environment, words separated by commas.
    List,
    /// Exactly these keys.
    Table(BTreeMap<String, Shape>),
    /// Keys that the operator chooses, each of this shape.
    Named(Box<Shape>),
    /// The table that `kind` chooses.
    Kinds(BTreeMap<String, Shape>),
}

impl Shape {
    /// The shape of these defaults. An empty table in them is a table of texts whose keys the
    /// operator chooses.
    pub(crate) fn of(defaults: &impl serde::Serialize) -> Self {
        // Settings are plain tables. If one could not be serialised, its owner still refuses
        // unknown keys, with a less helpful message.
        serde_json::to_value(defaults).map_or(Self::Any, |defaults| Self::of_json(&defaults))
    }

    fn of_json(default: &Json) -> Self {
        match default {
            Json::Null => Self::Any,
            Json::Bool(_) => Self::Truth,
            Json::Number(_) => Self::Number,
            Json::String(_) => Self::Text,
            Json::Array(_) => Self::List,
            Json::Object(keys) if keys.is_empty() => Self::Named(Box::new(Self::Text)),
            Json::Object(keys) => Self::Table(
                keys.iter().map(|(key, value)| (key.clone(), Self::of_json(value))).collect(),
            ),
        }
    }

    /// The same table with one more key.
    pub(crate) fn with(self, key: &str, shape: Shape) -> Self {
        match self {
            Self::Table(mut keys) => {
                keys.insert(key.into(), shape);
                Self::Table(keys)
            }
            other => other,
        }
    }

    /// Adds a problem for every unknown key of `value` and every value of the wrong kind, and
    /// removes both. Converts texts of the environment into numbers and lists, and sizes with a
    /// unit into bytes.
    pub(super) fn fit(&self, at: &str, value: &mut Json, problems: &mut Problems) -> Fit {
        if let Json::String(text) = &*value {
            let from_environment = matches!(problems.places().of(at), Some(Place::Variable(_)));
            let parsed = match sizes::is_size(at) && matches!(self, Self::Any | Self::Number) {
                true => sizes::parse(text),
                false if from_environment => self.parse(text),
                false => None,
            };
            if let Some(parsed) = parsed {
                *value = parsed;
            }
        }
        match (self, value) {
            (_, Json::Null) | (Self::Any, _) => {}
            (Self::Table(keys), Json::Object(table)) => {
                table.retain(|key, value| match keys.get(key) {
                    Some(shape) => shape.fit(&join(at, key), value, problems) == Fit::Keep,
                    None => {
                        problems.unknown_key(at, key, keys);
                        false
                    }
                });
            }
            (Self::Named(shape), Json::Object(table)) => {
                table.retain(|key, value| shape.fit(&join(at, key), value, problems) == Fit::Keep);
            }
            (Self::Kinds(kinds), value @ Json::Object(_)) => {
                match value.get("kind").cloned() {
                    Some(Json::String(kind)) => match kinds.get(&kind) {
                        Some(shape) => {
                            return shape.clone().with("kind", Self::Text).fit(at, value, problems);
                        }
                        None => problems.unknown_kind(at, &kind, kinds),
                    },
                    Some(kind) => {
                        problems.wrong_kind(&join(at, "kind"), &Self::Text.wanted(at), &kind);
                    }
                    None => problems.no_kind(at, kinds),
                }
                return Fit::Remove;
            }
            (Self::Text, Json::String(_))
            | (Self::Truth, Json::Bool(_))
            | (Self::List, Json::Array(_)) => {}
            (Self::Number, Json::Number(number)) if number.is_u64() => {}
            (_, value) => {
                problems.wrong_kind(at, &self.wanted(at), value);
                return Fit::Remove;
            }
        }
        Fit::Keep
    }

    fn parse(&self, text: &str) -> Option<Json> {
        match self {
            Self::Number => text.trim().parse::<i64>().ok().map(Json::from),
            Self::Truth => text.trim().parse::<bool>().ok().map(Json::from),
            Self::List => {
                let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
                Some(words.collect())
            }
            // The crate that owns the key reports a number where text is expected.
            Self::Any => Self::Number.parse(text).or_else(|| Self::Truth.parse(text)),
            _ => None,
        }
    }

    fn wanted(&self, at: &str) -> String {
        match self {
            Self::Any => "anything".into(),
            Self::Text => "text in quotation marks".into(),
            Self::Number => unfit::wanted_number(at),
            Self::Truth => "true or false, without quotation marks".into(),
            Self::List => "a list, as in [\"a\", \"b\"]".into(),
            Self::Table(_) | Self::Named(_) | Self::Kinds(_) => {
                format!("a table, as in [{at}]")
            }
        }
    }
}

/// Whether a value has the shape that it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    Keep,
    Remove,
}

/// The path and value of every leaf of these defaults.
pub(crate) fn leaves(
    at: &str,
    defaults: &impl serde::Serialize,
    into: &mut BTreeMap<String, Json>,
) {
    match serde_json::to_value(defaults) {
        Ok(Json::Object(keys)) if !keys.is_empty() => {
            keys.iter().for_each(|(key, value)| leaves(&join(at, key), value, into));
        }
        Ok(value) => {
            into.insert(at.into(), value);
        }
        Err(_) => {}
    }
}

pub(crate) fn join(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }
}
