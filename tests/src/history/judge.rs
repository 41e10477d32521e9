//! Reads a history and says what in it must never happen.
//!
//! Pure: entries in, a verdict out. What each rule notices is shown at the end by histories
//! that break it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use super::{Asked, Entry, Key, Says, What};

/// How long after a fault a connection to that node may still break by it, in milliseconds.
const AFTERMATH_MS: u64 = 3_000;

/// How long what a killed process had sent may take to be read, in milliseconds.
const ON_ITS_WAY_MS: u64 = 10;

/// Most violations that a report shows in full.
const SHOWN_MAX: usize = 12;

/// Something that must never happen.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// Which rule it breaks.
    pub rule: &'static str,
    /// The request it is about.
    pub key: Key,
    /// What was seen.
    pub seen: String,
}

/// What a history amounts to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Faults by kill.
    pub kills: usize,
    /// Requests sent.
    pub requests: usize,
    /// Last words that were results.
    pub results: usize,
    /// Last words that were errors.
    pub errors: usize,
    /// Events with a message, last words included, on streams.
    pub events: usize,
    /// Resumes.
    pub resumes: usize,
    /// Calls that went with their ingress, before any byte of an answer or any id.
    pub lost_with_ingress: usize,
    /// From an owner's SIGKILL to the next event of a stream of its, on the same client
    /// connection, in milliseconds; sorted.
    pub gaps: Vec<u64>,
}

/// Whether a history is one that may happen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// What must never happen, in the order of the rules.
    pub violations: Vec<Violation>,
    /// How much happened.
    pub figures: Figures,
    /// What was seen of each request with a violation, for the report.
    stories: BTreeMap<Key, Vec<String>>,
}

impl Verdict {
    /// Violations of a rule.
    pub fn of(&self, rule: &str) -> usize {
        self.violations.iter().filter(|violation| violation.rule == rule).count()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = &self.figures;
        writeln!(
            f,
            "{} kills, {} requests ({} results, {} errors, {} lost with their ingress), {} events, \
             {} resumes; lost {}, doubled {}, violations {}",
            figures.kills,
            figures.requests,
            figures.results,
            figures.errors,
            figures.lost_with_ingress,
            figures.events,
            figures.resumes,
            self.of("lost"),
            self.of("doubled"),
            self.violations.len(),
        )?;
        let gap = |percent| figures.gaps.get(figures.gaps.len().saturating_sub(1) * percent / 100);
        if let (Some(median), Some(p99)) = (gap(50), gap(99)) {
            let streams = figures.gaps.len();
            writeln!(
                f,
                "{streams} streams lost their owner and kept their connection: median {median} ms, \
                 p99 {p99} ms from the kill to the next event"
            )?;
        }
        for violation in self.violations.iter().take(SHOWN_MAX) {
            writeln!(f, "- {}: {} ({})", violation.rule, violation.seen, violation.key)?;
            for line in self.stories.get(&violation.key).into_iter().flatten() {
                writeln!(f, "      {line}")?;
            }
        }
        Ok(())
    }
}

/// All that is known of one request.
#[derive(Default)]
struct Request<'a> {
    asked: Asked,
    session: &'a str,
    lines: Vec<&'a Entry>,
    runs: Vec<u32>,
    is_sent: bool,
}

/// Judges a whole history.
pub fn judge(entries: &[Entry]) -> Verdict {
    let mut verdict = Verdict::default();
    let mut requests: BTreeMap<&str, Request<'_>> = BTreeMap::new();
    for entry in entries {
        count(entry, &mut verdict.figures);
        let (key, run) = match &entry.what {
            What::Sent { key, .. } => (key, None),
            What::Ran { key, process } => (key, Some(*process)),
            What::Event { on, .. }
            | What::Word { on, .. }
            | What::Cut { on, .. }
            | What::Resumed { on, .. }
            | What::Refused { on, .. }
            | What::Gone { on, .. }
            | What::Dropped { on }
            | What::GaveUp { on } => (on, None),
            What::Fault { .. } => continue,
        };
        let request = requests.entry(key).or_default();
        if let What::Sent { asked, .. } = entry.what {
            (request.asked, request.session, request.is_sent) = (asked, &entry.session, true);
        }
        match run {
            Some(process) => request.runs.push(process),
            None => request.lines.push(entry),
        }
    }
    for (key, request) in &requests {
        let found = Rules { key, request, entries }.all();
        if !found.is_empty() {
            let story = request.lines.iter().map(|entry| format!("{} {:?}", entry.at, entry.what));
            verdict.stories.insert((*key).to_owned(), story.collect());
        }
        verdict.violations.extend(found);
    }
    verdict.violations.extend(ids(entries));
    verdict.figures.gaps = gaps(entries, &requests);
    verdict
}

/// How long the streams of killed owners were silent where their ingress lived.
fn gaps(entries: &[Entry], requests: &BTreeMap<&str, Request<'_>>) -> Vec<u64> {
    let mut gaps = Vec::new();
    for entry in entries {
        let What::Fault { what: "SIGKILL", process, .. } = entry.what else { continue };
        for request in requests.values().filter(|request| request.runs.contains(&process)) {
            // What was on its way when the owner died is not its successor's.
            let killed = entry.at + ON_ITS_WAY_MS;
            let started = request.lines.iter().any(|line| {
                line.at <= killed && matches!(line.what, What::Event { id: Some(_), .. })
            });
            let next = request.lines.iter().find(|line| line.at > killed);
            if let Some(next) = next.filter(|_| started)
                && matches!(next.what, What::Event { .. } | What::Word { .. })
            {
                gaps.push(next.at - entry.at);
            }
        }
    }
    gaps.sort_unstable();
    gaps
}

fn count(entry: &Entry, figures: &mut Figures) {
    match &entry.what {
        What::Sent { .. } => figures.requests += 1,
        What::Event { .. } => figures.events += 1,
        What::Word { id, is_error, .. } => {
            figures.events += usize::from(id.is_some());
            *(if *is_error { &mut figures.errors } else { &mut figures.results }) += 1;
        }
        What::Resumed { .. } => figures.resumes += 1,
        What::Gone { .. } => figures.lost_with_ingress += 1,
        What::Fault { what: "SIGKILL", .. } => figures.kills += 1,
        _ => {}
    }
}

/// The rules that look at one request.
struct Rules<'a> {
    key: &'a str,
    request: &'a Request<'a>,
    entries: &'a [Entry],
}

impl Rules<'_> {
    fn all(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        if self.request.is_sent {
            self.order(&mut found);
            self.words(&mut found);
            self.refusals(&mut found);
        }
        self.runs(&mut found);
        found
    }

    fn violation(&self, rule: &'static str, seen: impl Into<String>) -> Violation {
        Violation { rule, key: self.key.to_owned(), seen: seen.into() }
    }

    /// Each number comes once, in order, on the stream it belongs to.
    fn order(&self, found: &mut Vec<Violation>) {
        let (mut progress, mut logged) = (0, 0);
        let mut ended = false;
        let mut asked = BTreeSet::new();
        for entry in &self.request.lines {
            let says = match &entry.what {
                What::Event { says, .. } => says,
                What::Word { is_error, .. } => {
                    ended = true;
                    if !is_error && progress != self.request.asked.count {
                        let seen = format!("a result after {progress} numbers");
                        found.push(self.violation("lost", seen));
                    }
                    continue;
                }
                _ => continue,
            };
            if ended {
                found.push(self.violation("after the last word", format!("{says:?}")));
            }
            if says.of().is_some_and(|of| of != self.key) {
                found.push(self.violation("wrong stream", format!("{says:?}")));
                continue;
            }
            match says {
                Says::Log { .. } if self.request.asked.is_quiet => {
                    found.push(self.violation("forgotten level", format!("{says:?}")));
                }
                Says::Progress { number, .. } => self.next(&mut progress, *number, found),
                // A second run logs anew; its progress only rises.
                Says::Log { number, .. } if !self.request.asked.may_rerun => {
                    self.next(&mut logged, *number, found);
                }
                Says::Question { id, .. } if !asked.insert(id) => {
                    found.push(self.violation("doubled", format!("question {id}")));
                }
                _ => {}
            }
        }
    }

    fn next(&self, last: &mut u64, number: u64, found: &mut Vec<Violation>) {
        let rule = match number {
            _ if number == *last + 1 => None,
            _ if number > *last + 1 => Some("lost"),
            _ if number == *last => Some("doubled"),
            _ => Some("reordered"),
        };
        if let Some(rule) = rule {
            found.push(self.violation(rule, format!("{number} after {last}")));
        }
        *last = number.max(*last);
    }

    /// One last word, and it is this request's.
    fn words(&self, found: &mut Vec<Violation>) {
        let mut words = 0;
        let mut is_excused = false;
        for entry in &self.request.lines {
            match &entry.what {
                What::Word { of, text, .. } => {
                    words += 1;
                    if of != self.key {
                        found.push(
                            self.violation("wrong stream", format!("the word of {of}: {text}")),
                        );
                    }
                }
                What::Dropped { .. } | What::Refused { .. } => is_excused = true,
                What::Gone { node, .. } => {
                    is_excused = true;
                    if !self.was_struck(*node, entry.at) {
                        let seen = format!("cut by node {node}, to which nothing was done");
                        found.push(self.violation("cut without a fault", seen));
                    }
                }
                _ => {}
            }
        }
        if words > 1 {
            found.push(self.violation("two last words", format!("{words}")));
        }
        if words == 0 && !is_excused {
            found.push(self.violation("no last word", "none came"));
        }
    }

    /// A fault of this node explains a connection that broke now.
    fn was_struck(&self, node: usize, at: u64) -> bool {
        self.entries.iter().any(|entry| match entry.what {
            What::Fault { node: struck, .. } => {
                struck.is_none_or(|struck| struck == node)
                    && entry.at <= at
                    && at - entry.at <= AFTERMATH_MS
            }
            _ => false,
        })
    }

    /// Nothing in a live session is refused by status.
    fn refusals(&self, found: &mut Vec<Violation>) {
        for entry in &self.request.lines {
            if let What::Refused { status, text, .. } = &entry.what {
                found.push(self.violation("refused", format!("{status} {text}")));
            }
        }
    }

    /// What may not run again ran at most once, also where its answer was lost.
    fn runs(&self, found: &mut Vec<Violation>) {
        let runs = &self.request.runs;
        if runs.len() > 1 && !self.request.asked.may_rerun {
            found.push(self.violation("ran twice", format!("in processes {runs:?}")));
        }
        let has_result = self
            .request
            .lines
            .iter()
            .any(|entry| matches!(entry.what, What::Word { is_error: false, .. }));
        if has_result && runs.is_empty() && self.request.asked.is_recorded {
            found.push(self.violation("never ran", "a result without a run"));
        }
    }
}

/// An event id, `<stream>.<emitter>-<number>`.
fn parts(id: &str) -> Option<(u64, &str, u64)> {
    let (stream, rest) = id.split_once('.')?;
    let (emitter, number) = rest.rsplit_once('-')?;
    Some((stream.parse().ok()?, emitter, number.parse().ok()?))
}

/// What ids must be over a whole session: one payload and one place each, rising on a
/// stream, and the numbers of one owner not amid those of another.
fn ids(entries: &[Entry]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut payloads: HashMap<(&str, &str), (&Key, String)> = HashMap::new();
    let mut last: HashMap<&Key, u64> = HashMap::new();
    let mut emitters: BTreeMap<&str, BTreeMap<u64, &str>> = BTreeMap::new();
    for entry in entries {
        let (on, id, payload) = match &entry.what {
            What::Event { on, id: Some(id), says } => (on, id, format!("{says:?}")),
            What::Word { on, id: Some(id), of, text, .. } => (on, id, format!("{of} {text}")),
            _ => continue,
        };
        let mut say = |rule, seen: String| {
            found.push(Violation { rule, key: on.clone(), seen });
        };
        let before = payloads.insert((&entry.session, id), (on, payload.clone()));
        match before {
            Some((other, said)) if said != payload => {
                say("two payloads", format!("{id} says {said} on {other}, and {payload}"));
            }
            Some((other, _)) if other != on => {
                say("wrong stream", format!("{id} came on {other}, too"));
            }
            Some(_) => say("doubled", id.clone()),
            None => {}
        }
        let Some((_, emitter, number)) = parts(id) else {
            say("two payloads", format!("{id} is no id of ours"));
            continue;
        };
        if last.insert(on, number).is_some_and(|last| last > number) {
            say("reordered", format!("{id} after number {:?}", last.get(on)));
        }
        let other = emitters.entry(&entry.session).or_default().insert(number, emitter);
        if let Some(other) = other.filter(|other| *other != emitter) {
            say("two owners", format!("{id}, and number {number} of {other}"));
        }
    }
    for (session, numbers) in emitters {
        let mut done = BTreeSet::new();
        let mut now = "";
        for (number, emitter) in numbers {
            if emitter != now {
                if !done.insert(emitter) {
                    let seen = format!("{emitter} acts again at number {number}, after {now}");
                    let key = session.to_owned();
                    found.push(Violation { rule: "two owners", key, seen });
                }
                now = emitter;
            }
        }
    }
    found
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
