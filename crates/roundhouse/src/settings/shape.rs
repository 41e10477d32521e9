//! Which keys exist, and which of a file's keys are wrong.
//!
//! A [`Shape`] is made from serialised defaults, so it knows a key as soon as a crate adds it to
//! its settings. It does not know what a value means.

use std::collections::BTreeMap;

use config::{Value, ValueKind};
use serde_json::Value as Json;

use super::Problems;

/// The origin of values from the environment.
const ENVIRONMENT: &str = "the environment";

/// The values that are allowed at one place of the settings.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// Any value; the crate that owns the key checks it.
    Any,
    /// Text.
    Text,
    /// A whole number.
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

    /// Adds a problem for every unknown key of `value` and every value of the wrong kind.
    /// Converts texts of the environment into numbers and lists.
    pub(crate) fn fit(&self, at: &str, value: &mut Value, problems: &mut Problems) {
        let origin = value.origin().map(str::to_owned);
        let from_environment = origin.as_deref() == Some(ENVIRONMENT);
        if from_environment
            && let ValueKind::String(text) = &value.kind
            && let Some(parsed) = self.parse(text)
        {
            value.kind = parsed;
        }
        match (self, &mut value.kind) {
            (_, ValueKind::Nil) | (Self::Any, _) => {}
            (Self::Table(keys), ValueKind::Table(table)) => {
                for (key, value) in table {
                    match keys.get(key) {
                        Some(shape) => shape.fit(&join(at, key), value, problems),
                        None => problems.unknown_key(at, key, value.origin(), keys),
                    }
                }
            }
            (Self::Named(shape), ValueKind::Table(table)) => {
                if matches!(**shape, Self::Text) {
                    restore_case(table);
                }
                for (key, value) in table {
                    shape.fit(&join(at, key), value, problems);
                }
            }
            (Self::Kinds(kinds), ValueKind::Table(table)) => {
                let kind = table.get("kind").and_then(|kind| match &kind.kind {
                    ValueKind::String(kind) => Some(kind.clone()),
                    _ => None,
                });
                match kind.as_deref().map(|kind| (kind, kinds.get(kind))) {
                    Some((_, Some(shape))) => {
                        shape.clone().with("kind", Self::Text).fit(at, value, problems);
                    }
                    Some((kind, None)) => problems.unknown_kind(at, kind, kinds),
                    None => problems.no_kind(at, kinds),
                }
            }
            (Self::Text, ValueKind::String(_))
            | (Self::Truth, ValueKind::Boolean(_))
            | (Self::List, ValueKind::Array(_))
            | (Self::Number, ValueKind::I64(_) | ValueKind::U64(_)) => {}
            _ => problems.wrong_kind(at, self.wanted(), origin.as_deref()),
        }
    }

    fn parse(&self, text: &str) -> Option<ValueKind> {
        let origin = Some(ENVIRONMENT.to_owned());
        match self {
            Self::Number => text.trim().parse().ok().map(ValueKind::I64),
            Self::Truth => text.trim().parse().ok().map(ValueKind::Boolean),
            Self::List => {
                let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
                let words = words.map(|word| Value::new(origin.as_ref(), word)).collect();
                Some(ValueKind::Array(words))
            }
            // The crate that owns the key reports a number where text is expected.
            Self::Any => Self::Number.parse(text).or_else(|| Self::Truth.parse(text)),
            _ => None,
        }
    }

    fn wanted(&self) -> &'static str {
        match self {
            Self::Any => "anything",
            Self::Text => "text",
            Self::Number => "a whole number",
            Self::Truth => "true or false",
            Self::List => "a list",
            Self::Table(_) | Self::Named(_) | Self::Kinds(_) => "a table",
        }
    }
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

/// Names of a child's variables lost their case in the environment's keys; nearly all are in
/// upper case.
fn restore_case(table: &mut config::Map<String, Value>) {
    let (lowered, mut rest): (config::Map<_, _>, config::Map<_, _>) =
        table.drain().partition(|(_, value)| value.origin() == Some(ENVIRONMENT));
    rest.extend(lowered.into_iter().map(|(key, value)| (key.to_uppercase(), value)));
    *table = rest;
}

pub(crate) fn join(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }
}
