//! All findings about the settings, reported together.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value as Json;

use super::finding::{Finding, Place, Places, Severity, keys_in};
use super::shape::{Shape, join};
use super::unfit::Unfit;
use super::{Settings, environment, values};

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

/// The findings about settings, one line each, with the place of each. A value is repeated only if
/// it cannot be a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    findings: Vec<Finding>,
    places: Places,
    /// How many of the findings are those of reading; `None` while the settings are read.
    of_reading: Option<usize>,
}

impl std::error::Error for Problems {}

impl Problems {
    /// A single problem.
    pub fn one(problem: impl Into<String>) -> Self {
        let mut problems = Self::default();
        problems.add(problem);
        problems
    }

    /// All findings: errors first, each in the order of the file, then of the environment.
    pub fn findings(&self) -> Vec<&Finding> {
        let mut all: Vec<_> = self.findings.iter().collect();
        all.sort_by(|one, other| one.order().cmp(&other.order()));
        all
    }

    /// The texts of all findings, without their places.
    pub fn lines(&self) -> Vec<String> {
        self.findings().into_iter().map(|finding| finding.text.clone()).collect()
    }

    /// Adds a problem. Its place is that of the first key in backticks that is written. A problem
    /// with a key that could not be read is a consequence of that, and left out.
    pub(crate) fn add(&mut self, problem: impl Into<String>) {
        self.add_as(Severity::Error, problem.into());
    }

    /// The same, with the place of the table `at` if the problem names no key.
    pub(crate) fn add_in(&mut self, at: &str, problem: impl Into<String>) {
        let text = problem.into();
        if keys_in(&text).next().is_some() {
            self.add(text);
        } else {
            let place = self.places.nearest(at).cloned();
            self.add_at_place(place, text);
        }
    }

    /// Adds a warning, with its place as at [`Problems::add`].
    pub(crate) fn warn(&mut self, warning: impl Into<String>) {
        self.add_as(Severity::Warning, warning.into());
    }

    fn add_as(&mut self, severity: Severity, text: String) {
        let keys: Vec<String> = keys_in(&text).map(str::to_owned).collect();
        let written = keys.iter().find(|key| self.places.of(key).is_some());
        match written.or(keys.first()).cloned() {
            Some(key) if is_about(self.of_reading(), &key) => {}
            Some(key) => self.push(severity, &key, text),
            None => self.add_at(severity, None, text, Vec::new()),
        }
    }

    /// Adds a problem of this key.
    pub(crate) fn add_about(&mut self, key: &str, text: impl Into<String>) {
        self.push(Severity::Error, key, text.into());
    }

    /// The same, unless another finding is the cause.
    pub(crate) fn add_consequence(&mut self, key: &str, text: impl Into<String>) {
        if !self.has_about(key) {
            self.add_about(key, text);
        }
    }

    /// The same for a warning.
    pub(crate) fn warn_about(&mut self, key: &str, text: impl Into<String>) {
        if !self.has_about(key) {
            self.push(Severity::Warning, key, text.into());
        }
    }

    fn push(&mut self, severity: Severity, key: &str, text: String) {
        let named = || keys_in(&text).find_map(|key| self.places.nearest(key));
        let place = self.places.nearest(key).or_else(named).cloned();
        self.add_at(severity, place, text, vec![key.to_owned()]);
    }

    pub(super) fn add_at_place(&mut self, place: Option<Place>, text: String) {
        self.add_at(Severity::Error, place, text, Vec::new());
    }

    /// Adds a problem because of which nothing is known of `key`.
    pub(super) fn add_unreadable(&mut self, key: &str, place: Option<Place>, text: String) {
        self.add_at(Severity::Error, place, text, vec![key.to_owned()]);
    }

    pub(super) fn warn_at_place(&mut self, place: Option<Place>, text: String) {
        self.add_at(Severity::Warning, place, text, Vec::new());
    }

    fn add_at(
        &mut self,
        severity: Severity,
        place: Option<Place>,
        text: String,
        keys: Vec<String>,
    ) {
        let finding = Finding { place, severity, text, keys };
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    /// From now on, findings are those of a plan for the settings that were read.
    pub(super) fn end_reading(&mut self) {
        self.of_reading = Some(self.findings.len());
    }

    fn of_reading(&self) -> &[Finding] {
        let end = self.of_reading.unwrap_or(self.findings.len());
        &self.findings[..end]
    }

    fn has_about(&self, key: &str) -> bool {
        is_about(&self.findings, key)
    }

    /// The value of a result; adds its problem if it is one.
    pub(crate) fn ok_or_add<T>(&mut self, outcome: Result<T, impl fmt::Display>) -> Option<T> {
        outcome.map_err(|wrong| self.add(wrong.to_string())).ok()
    }

    /// Is there a problem that is not a warning?
    pub(crate) fn has_errors(&self) -> bool {
        self.findings.iter().any(|finding| !finding.is_warning())
    }

    /// `value`, if there is no problem. Warnings are no problem.
    pub(crate) fn or<T>(self, value: T) -> Result<T, Self> {
        if self.has_errors() { Err(self) } else { Ok(value) }
    }

    /// The places of keys that were read so far.
    pub(super) fn places(&mut self) -> &mut Places {
        &mut self.places
    }

    /// Releases the places of keys, which only further findings need.
    pub(crate) fn forget_places(&mut self) {
        self.places = Places::default();
    }

    /// The value of a key, as a message repeats it. A value of the environment is never repeated.
    pub(super) fn shown(&self, key: &str, value: &Json) -> String {
        match self.is_from_environment(key) {
            true => "set by this variable to a value".into(),
            false => values::shown(key, value),
        }
    }

    /// Does a variable of the environment set this key?
    pub(crate) fn is_from_environment(&self, key: &str) -> bool {
        matches!(self.places.of(key), Some(Place::Variable(_)))
    }

    pub(super) fn add_unfit(&mut self, path: &[String], unfit: &Unfit) {
        let key = path.iter().fold(String::new(), |at, key| join(&at, key));
        let value = self.shown(&key, &unfit.value);
        let joint = if unfit.what_to_write.starts_with("which") { "," } else { ";" };
        self.add_consequence(&key, format!("`{key}` is {value}{joint} {}", unfit.what_to_write));
    }

    pub(super) fn unknown_key(&mut self, at: &str, key: &str, known: &BTreeMap<String, Shape>) {
        let path = join(at, key);
        if let Some((_, new)) = RENAMED.iter().find(|(old, _)| *old == path) {
            self.add_about(&path, format!("`{path}` is now called `{new}`"));
            return;
        }
        if let Some((_, instead)) = REMOVED.iter().find(|(old, _)| matches(old, &path)) {
            self.add_about(&path, format!("`{path}` is no longer a key: {instead}"));
            return;
        }
        if matches!(self.places.of(&path), Some(Place::Variable(_)))
            && let Some(meant) = environment::key_of_flat_name(&path.replace('.', "_"))
        {
            let variable = environment::variable(&meant);
            self.add_about(
                &path,
                format!(
                    "unknown key `{path}`; write two underscores between the parts of a key: \
                     {variable}"
                ),
            );
            return;
        }
        let near = nearest(key, known.keys()).map(|near| join(at, near));
        let advice = match near.clone().or_else(|| elsewhere(key)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known here: {}", list(known.keys())),
        };
        let place = self.places.nearest(&path).cloned();
        // A key that was meant is not missing.
        let keys = [path.clone()].into_iter().chain(near).collect();
        self.add_at(Severity::Error, place, format!("unknown key `{path}`; {advice}"), keys);
    }

    pub(super) fn wrong_kind(&mut self, at: &str, wanted: &str, value: &Json) {
        let value = self.shown(at, value);
        self.add_about(at, format!("`{at}` is {value}; write {wanted}"));
    }

    pub(super) fn no_kind(&mut self, at: &str, kinds: &BTreeMap<String, Shape>) {
        let key = join(at, "kind");
        let all = kinds.keys().map(|kind| format!("`kind = \"{kind}\"`")).collect::<Vec<_>>();
        self.add_about(&key, format!("`{at}` has no `kind`; write {}", all.join(" or ")));
    }

    pub(super) fn unknown_kind(&mut self, at: &str, kind: &str, kinds: &BTreeMap<String, Shape>) {
        let advice = match nearest(kind, kinds.keys()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("known kinds: {}", list(kinds.keys())),
        };
        let key = join(at, "kind");
        let value = self.shown(&key, &Json::String(kind.into()));
        self.add_about(&key, format!("`{key}` is {value}, which is not known; {advice}"));
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.findings().as_slice() {
            [only] => only.fmt(f),
            several => {
                write!(f, "{} findings:", several.len())?;
                several.iter().try_for_each(|finding| write!(f, "\n- {finding}"))
            }
        }
    }
}

/// Is one of these findings about this key, a table around it, or a key in it?
fn is_about(findings: &[Finding], key: &str) -> bool {
    let is_in = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let errors = findings.iter().filter(|finding| !finding.is_warning());
    let mut keys = errors.flat_map(|finding| &finding.keys);
    keys.any(|known| is_in(known, key) || is_in(key, known))
}

/// Does the pattern match this path?
fn matches(pattern: &str, path: &str) -> bool {
    let (mut names, mut wanted) = (path.split('.'), pattern.split('.'));
    let is_meant =
        wanted.all(|wanted| names.next().is_some_and(|name| wanted == "*" || wanted == name));
    is_meant && names.next().is_none()
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
