//! The settings of the environment: variables named `ROUNDHOUSE__SECTION__KEY`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

use serde_json::{Map, Value as Json};

use super::finding::Place;
use super::shape::join;
use super::{Problems, Settings};
use crate::private_environment::{
    self, MARK, PREFIX, is_admin_token, is_private, is_secret, is_setting,
};

/// The beginning of variables that an operator may have meant as settings.
const NEAR_PREFIX: &str = "ROUNDHOUSE_";

/// The variables of the environment that begin with `ROUNDHOUSE_`, of which those that begin with
/// `ROUNDHOUSE__` override the file. Secrets of tenants are not among them.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

/// Prints the names only: a value may be a secret.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Environment {
    /// The environment of this process, with the settings that [`crate::private_environment`] has
    /// removed from it.
    pub fn of_process() -> Self {
        let left = std::env::vars_os().filter_map(text);
        let removed = private_environment::removed().unwrap_or_default().iter().cloned();
        Self::of(left.chain(removed))
    }

    /// Exactly these variables.
    pub fn of(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let is_other = |name: &str| name == MARK || is_secret(name) || is_admin_token(name);
        let is_near = |name: &str| has_prefix(name, NEAR_PREFIX) && !is_other(name);
        Self(variables.into_iter().filter(|(name, _)| is_near(name)).collect())
    }

    /// The variables that a command from the command line inherits.
    pub(crate) fn inherited() -> impl Iterator<Item = (String, String)> {
        std::env::vars_os().filter_map(text).filter(|(name, _)| !is_private(name))
    }

    /// The variable that sets this key, and its value.
    pub(super) fn find(&self, key: &str) -> Option<(&str, &str)> {
        let wanted = variable(key);
        let found = self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(&wanted));
        found.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Adds the settings to `root`, where they replace those of the file.
    pub(super) fn add_to(&self, root: &mut Map<String, Json>, problems: &mut Problems) {
        for (name, value) in &self.0 {
            match is_setting(name) {
                true => add(name, value, root, problems),
                false => warn_if_meant(name, problems),
            }
        }
    }
}

fn text((name, value): (OsString, OsString)) -> Option<(String, String)> {
    Some((name.into_string().ok()?, value.into_string().ok()?))
}

fn has_prefix(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

fn add(name: &str, value: &str, root: &mut Map<String, Json>, problems: &mut Problems) {
    let parts = parts(&name[PREFIX.len()..]);
    let Some((last, tables)) = parts.split_last() else { return };
    let mut table = root;
    let mut at = String::new();
    for part in tables {
        at = join(&at, part);
        let entry = table.entry(part.clone()).or_insert_with(|| Json::Object(Map::new()));
        if !entry.is_object() {
            *entry = Json::Object(Map::new());
        }
        // The value was made a table just now.
        let Json::Object(inner) = entry else { return };
        table = inner;
        if problems.places().of(&at).is_none() {
            problems.places().set(at.clone(), Place::Variable(name.into()));
        }
    }
    problems.places().set(join(&at, last), Place::Variable(name.into()));
    table.insert(last.clone(), Json::String(value.into()));
}

/// The parts of a path, in lower case. The name of a server's variable keeps its case.
fn parts(name: &str) -> Vec<String> {
    let mut parts: Vec<String> = name.split("__").map(str::to_ascii_lowercase).collect();
    if let [tenants, _, backends, _, env, _, ..] = &parts[..]
        && (tenants.as_str(), backends.as_str(), env.as_str()) == ("tenants", "backends", "env")
    {
        // A variable's name may have two underscores as well.
        let name = name.splitn(6, "__").last().unwrap_or_default().to_owned();
        parts.truncate(5);
        parts.push(name);
    }
    parts
}

/// The name of the variable that sets a key.
pub(super) fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_ascii_uppercase().replace('.', "__"))
}

/// The key whose parts, joined by single underscores, are this name.
pub(super) fn key_of_flat_name(name: &str) -> Option<String> {
    let flat = name.to_ascii_lowercase().replace("__", "_");
    Settings::keys().into_keys().find(|key| key.replace('.', "_") == flat)
}

/// Other programs set variables such as `ROUNDHOUSE_PORT`, so only one that is the name of a key
/// is reported.
fn warn_if_meant(name: &str, problems: &mut Problems) {
    if let Some(key) = key_of_flat_name(&name[NEAR_PREFIX.len()..]) {
        problems.warn_at_place(
            Some(Place::Variable(name.into())),
            format!(
                "the node does not read this variable; write two underscores between the parts of \
                 a key, as in {}",
                variable(&key)
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_is_printed() {
        let name = "ROUNDHOUSE__CLUSTER__SECRET";
        let printed = format!("{:?}", Environment::of([(name.into(), "hunter2".into())]));
        assert!(printed.contains(name) && !printed.contains("hunter2"), "{printed}");
    }
}
