//! All problems of the settings, reported together.

use std::collections::BTreeMap;
use std::fmt;

use super::Settings;
use super::shape::{Shape, join};

/// Renamed keys, each with its new name.
pub(crate) const RENAMED: &[(&str, &str)] = &[
    ("cluster.whereabouts_max", "cluster.location_cache_max"),
    ("sessions.asks_max", "sessions.server_requests_max"),
];

/// Removed keys, each with what applies instead. A `*` matches any one name.
const REMOVED: &[(&str, &str)] = &[(
    "tenants.*.backends.*.scope",
    "each session has a process of its own, which was the only value; leave the key out",
)];

/// The reasons why settings cannot be used, one line each. It never repeats a value, which may be
/// a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct Problems(Vec<String>);

impl Problems {
    /// A single problem.
    pub fn one(problem: impl Into<String>) -> Self {
        Self(vec![problem.into()])
    }

    /// The problems, one line each.
    pub fn lines(&self) -> &[String] {
        &self.0
    }

    /// Adds a problem.
    pub(crate) fn add(&mut self, problem: impl Into<String>) {
        self.0.push(problem.into());
    }

    /// The value of a result; adds its problem if it is one.
    pub(crate) fn ok_or_add<T>(&mut self, outcome: Result<T, impl fmt::Display>) -> Option<T> {
        outcome.map_err(|wrong| self.add(wrong.to_string())).ok()
    }

    /// The same for a result with several problems.
    pub(crate) fn ok_or_add_all<T, E: fmt::Display>(
        &mut self,
        outcome: Result<T, Vec<E>>,
    ) -> Option<T> {
        let add = |wrong: Vec<E>| self.0.extend(wrong.iter().map(E::to_string));
        outcome.map_err(add).ok()
    }

    /// `value`, if there is no problem.
    pub(crate) fn or<T>(self, value: T) -> Result<T, Self> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }

    pub(crate) fn unknown_key(
        &mut self,
        at: &str,
        key: &str,
        origin: Option<&str>,
        known: &BTreeMap<String, Shape>,
    ) {
        let path = join(at, key);
        if let Some((_, new)) = RENAMED.iter().find(|(old, _)| *old == path) {
            self.add(format!("`{path}`{} is now called `{new}`", from(origin)));
            return;
        }
        if let Some((_, instead)) = REMOVED.iter().find(|(old, _)| matches(old, &path)) {
            self.add(format!("`{path}`{} is no longer a key: {instead}", from(origin)));
            return;
        }
        let near = nearest(key, known.keys()).map(|near| join(at, near));
        let advice = match near.or_else(|| elsewhere(key)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known here: {}", list(known.keys())),
        };
        self.add(format!("unknown key `{path}`{}; {advice}", from(origin)));
    }

    pub(crate) fn wrong_kind(&mut self, at: &str, wanted: &str, origin: Option<&str>) {
        self.add(format!("`{at}`{} must be {wanted}", from(origin)));
    }

    pub(crate) fn no_kind(&mut self, at: &str, kinds: &BTreeMap<String, Shape>) {
        self.add(format!("`{at}` needs a `kind`, one of: {}", list(kinds.keys())));
    }

    pub(crate) fn unknown_kind(&mut self, at: &str, kind: &str, kinds: &BTreeMap<String, Shape>) {
        let advice = match nearest(kind, kinds.keys()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("known kinds: {}", list(kinds.keys())),
        };
        self.add(format!("`{at}.kind` is {kind:?}, which is not known; {advice}"));
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [only] => f.write_str(only),
            several => {
                write!(f, "{} things to mend", several.len())?;
                several.iter().try_for_each(|problem| write!(f, "\n- {problem}"))
            }
        }
    }
}

/// Does the pattern match this path?
fn matches(pattern: &str, path: &str) -> bool {
    let (mut names, mut wanted) = (path.split('.'), pattern.split('.'));
    let is_meant =
        wanted.all(|wanted| names.next().is_some_and(|name| wanted == "*" || wanted == name));
    is_meant && names.next().is_none()
}

fn from(origin: Option<&str>) -> String {
    origin.map_or_else(String::new, |origin| format!(" in {origin}"))
}

fn list<'a>(keys: impl Iterator<Item = &'a String>) -> String {
    keys.map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
}

/// The same key in another section.
fn elsewhere(key: &str) -> Option<String> {
    Settings::keys().into_keys().find(|path| path.rsplit('.').next() == Some(key))
}

/// The known key that was probably meant: at most every third letter differs.
fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let far = |near: &String| strsim::damerau_levenshtein(key, near);
    let best = known.min_by_key(|near| far(near))?;
    (far(best) <= (best.chars().count() / 3).max(1)).then_some(best)
}
