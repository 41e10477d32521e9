//! One thing that is wrong with the settings, and the place where it is written.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Where a setting is written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A line of the settings file, counted from 1.
    Line(PathBuf, usize),
    /// A variable of the environment.
    Variable(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(file, line) => write!(f, "{}:{line}", file.display()),
            Self::Variable(name) => f.write_str(name),
        }
    }
}

/// Whether a node starts in spite of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The node does not start.
    Error,
    /// The node starts.
    Warning,
}

/// One thing that is wrong, in one line of text that names the key and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The place of the key, or of the table in which the key is missing.
    pub(super) place: Option<Place>,
    pub(super) severity: Severity,
    pub(super) text: String,
    /// The keys that this finding is about. Later checks of the same keys would report
    /// consequences of it.
    pub(super) keys: Vec<String>,
}

impl Finding {
    /// Whether this is a warning.
    pub fn is_warning(&self) -> bool {
        self.severity == Severity::Warning
    }

    /// The place and the text.
    pub fn without_severity(&self) -> String {
        match &self.place {
            Some(place) => format!("{place}: {}", self.text),
            None => self.text.clone(),
        }
    }

    /// The order in which findings are reported: errors first, each in the order of the file, then
    /// of the environment, then those without a place.
    pub(super) fn order(&self) -> impl Ord + use<'_> {
        (self.severity, self.place.is_none(), self.place.as_ref())
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        if self.is_warning() {
            f.write_str("warning: ")?;
        }
        f.write_str(&self.text)
    }
}

/// The place of every key that is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places(BTreeMap<String, Place>);

impl Places {
    pub(super) fn set(&mut self, key: String, place: Place) {
        self.0.insert(key, place);
    }

    /// Where exactly this key is written.
    pub(super) fn of(&self, key: &str) -> Option<&Place> {
        self.0.get(key)
    }

    /// Where the key is written, or the innermost table around it.
    pub(super) fn nearest(&self, key: &str) -> Option<&Place> {
        let tables = std::iter::successors(Some(key), |key| Some(key.rsplit_once('.')?.0));
        tables.filter_map(|key| self.0.get(key)).next()
    }
}

/// The keys that a text names in backticks, as in `front.listen`.
pub(super) fn keys_in(text: &str) -> impl Iterator<Item = &str> {
    let is_key = |word: &&str| {
        let is_part = |part: &str| {
            let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
            !part.is_empty() && part.chars().all(is_letter)
        };
        word.contains('.') && word.split('.').all(is_part)
    };
    text.split('`').skip(1).step_by(2).filter(is_key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_key_is_at_the_line_of_its_table() {
        let mut places = Places::default();
        let line = |line| Place::Line("f".into(), line);
        places.set("tenants".into(), line(3));
        places.set("tenants.a".into(), line(3));
        assert_eq!(places.nearest("tenants.a.auth"), Some(&line(3)));
        assert_eq!(places.nearest("front.listen"), None);
    }

    #[test]
    fn the_keys_of_a_text_are_the_paths_in_backticks() {
        let text = "`a.b` is \"x.y\", unlike `c_d.*` and `x = 1`; see `e.f-g.h`";
        assert_eq!(keys_in(text).collect::<Vec<_>>(), ["a.b", "e.f-g.h"]);
    }
}
