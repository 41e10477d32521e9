//! Reads a history and says what in it must never happen.
//!
//! Pure: entries in, a verdict out. What each rule notices is shown at the end by histories
//! that break it.

mod faults;
mod sessions;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use self::faults::Faults;
use super::{Asked, Entry, Key, Says, What};

/// How long a request is held that cannot be served yet (`hold_ms`), in milliseconds, less
/// what clocks and timers differ by; then an error may be its final response.
const HOLD_MS: u64 = 24_500;

/// Longest time without anything of a request, in milliseconds: it was held for as long as it
/// may be, and the machine was busy.
const HELD_MS_MAX: u64 = 27_500;

/// Most requests that one node may lose by being asked to stop, while no balancer was told:
/// those that waited in the queue of the listener that it closed.
const STOP_LOSES_MAX: usize = 5;

/// How long after its start a node may claim the sessions of others, in milliseconds: it waits
/// for 3,000 and takes a moment to start.
const SETTLED_MS: u64 = 3_300;

/// How long what a killed process had sent may take to be read, in milliseconds.
const ON_ITS_WAY_MS: u64 = 10;

/// How long before a request the report of a violation begins, in milliseconds.
const SHOWN_BEFORE_MS: u64 = 2_000;

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
    /// Final responses that were results.
    pub results: usize,
    /// Final responses that were errors.
    pub errors: usize,
    /// Events with a message, final responses included, on streams.
    pub events: usize,
    /// Resumes.
    pub resumes: usize,
    /// Connections that ended early and not by the client's doing.
    pub cuts: usize,
    /// Requests with the id of a deleted session.
    pub tried_again: usize,
    /// How long calls took that a tool answers at once, in milliseconds; sorted.
    pub waits: Vec<u64>,
    /// Calls that went with their ingress, before any byte of an answer or any id.
    pub lost_with_ingress: usize,
    /// What was killed, in order.
    pub silences: Vec<Silences>,
}

/// How long the streams of a killed owner were silent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Silences {
    /// Another node ran for longer than [`SETTLED_MS`]: it could claim sessions at once.
    pub had_heir: bool,
    /// From the SIGKILL to the next event of each stream on the same client connection, in
    /// milliseconds; sorted.
    pub gaps: Vec<u64>,
}

impl Figures {
    /// The gaps after all kills, sorted; or those after kills where another node could claim
    /// sessions at once.
    pub fn gaps(&self, with_heir: bool) -> Vec<u64> {
        let kills = self.silences.iter().filter(|kill| kill.had_heir || !with_heir);
        let mut gaps: Vec<u64> = kills.flat_map(|kill| kill.gaps.iter().copied()).collect();
        gaps.sort_unstable();
        gaps
    }
}

/// Whether a history is one that may happen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// What must never happen, in the order of the rules.
    pub violations: Vec<Violation>,
    /// How much happened.
    pub figures: Figures,
    /// What was seen of each request with a violation, for the report.
    scenarios: BTreeMap<Key, Vec<String>>,
}

impl Verdict {
    /// Fails unless streams of killed owners went on as soon as is promised, and calls were
    /// answered in that time: half of them in `median_ms`, all of them in `longest_ms`. The
    /// median is of streams that another node could claim at once.
    pub fn in_time(&self, median_ms: u64, longest_ms: u64) -> anyhow::Result<()> {
        let (gaps, waits) = (self.figures.gaps(false), &self.figures.waits);
        for (times, all) in [(&self.figures.gaps(true), &gaps), (waits, waits)] {
            let median = times.get(times.len() / 2).copied().unwrap_or_default();
            let longest = all.last().copied().unwrap_or_default();
            anyhow::ensure!(median <= median_ms, "a median of {median} ms, not {median_ms}");
            anyhow::ensure!(longest <= longest_ms, "the longest is {longest} ms, not {longest_ms}");
        }
        Ok(())
    }

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
             {} resumes, {} cuts, {} deleted ids tried again; lost {}, doubled {}, violations {}",
            figures.kills,
            figures.requests,
            figures.results,
            figures.errors,
            figures.lost_with_ingress,
            figures.events,
            figures.resumes,
            figures.cuts,
            figures.tried_again,
            self.of("lost"),
            self.of("doubled"),
            self.violations.len(),
        )?;
        for with_heir in [false, true] {
            let gaps = figures.gaps(with_heir);
            let gap = |percent| gaps.get(gaps.len().saturating_sub(1) * percent / 100);
            if let (Some(median), Some(p99)) = (gap(50), gap(99)) {
                let streams = gaps.len();
                let which = if with_heir { "; another node could claim at once" } else { "" };
                writeln!(
                    f,
                    "{streams} streams lost their owner and kept their connection{which}: median \
                     {median} ms, p99 {p99} ms from the kill to the next event"
                )?;
            }
        }
        if let Some(longest) = figures.waits.last() {
            let median = figures.waits[figures.waits.len() / 2];
            let calls = figures.waits.len();
            writeln!(
                f,
                "{calls} calls that take no time: median {median} ms, longest {longest} ms"
            )?;
        }
        for violation in self.violations.iter().take(SHOWN_MAX) {
            writeln!(f, "- {}: {} ({})", violation.rule, violation.seen, violation.key)?;
            for line in self.scenarios.get(&violation.key).into_iter().flatten() {
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
    /// When.
    sent: u64,
}

impl Request<'_> {
    /// When its final response came.
    fn word(&self) -> Option<u64> {
        let word = self.lines.iter().find(|line| matches!(line.what, What::Word { .. }))?;
        Some(word.at)
    }
}

/// Judges a whole history.
pub fn judge(entries: &[Entry]) -> Verdict {
    let mut verdict = Verdict::default();
    let mut requests: BTreeMap<&str, Request<'_>> = BTreeMap::new();
    let faults = Faults::of(entries);
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
            | What::Broke { on, .. }
            | What::Listens { on, .. }
            | What::Dropped { on }
            | What::GaveUp { on } => (on, None),
            What::Deleted { .. } | What::TriedAgain { .. } | What::Fault { .. } => continue,
        };
        let request = requests.entry(key).or_default();
        if let What::Sent { asked, .. } = entry.what {
            (request.asked, request.session, request.is_sent) = (asked, &entry.session, true);
            request.sent = entry.at;
        }
        match run {
            Some(process) => request.runs.push(process),
            None => request.lines.push(entry),
        }
    }
    let is_orphan =
        |request: &Request<'_>| request.lines.iter().any(|l| matches!(l.what, What::Gone { .. }));
    let orphans: BTreeSet<_> =
        requests.iter().filter(|(_, request)| is_orphan(request)).map(|(key, _)| *key).collect();
    for (key, request) in &requests {
        let owners = owners(request, &requests);
        let rules = Rules { key, request, faults: &faults, owners: &owners, orphans: &orphans };
        let found = rules.all();
        if !found.is_empty() {
            verdict.scenarios.insert((*key).to_owned(), scenario(entries, request, &owners));
        }
        verdict.violations.extend(found);
    }
    verdict.violations.extend(ids(entries));
    verdict.violations.extend(sessions::all(entries, &faults));
    verdict.violations.extend(stops(entries, &faults));
    verdict.figures.silences = silences(entries, &requests);
    verdict.figures.waits = waits(&requests);
    verdict
}

/// What was seen of a request, and what was done to nodes shortly before and meanwhile.
fn scenario(entries: &[Entry], request: &Request<'_>, owners: &[u32]) -> Vec<String> {
    let ends = request.lines.last().map_or(request.sent, |last| last.at);
    let around = request.sent.saturating_sub(SHOWN_BEFORE_MS)..=ends;
    let is_shown = |entry: &&Entry| match entry.what {
        What::Fault { .. } => around.contains(&entry.at),
        _ => request.lines.iter().any(|line| std::ptr::eq(*line, *entry)),
    };
    let lines =
        entries.iter().filter(is_shown).map(|entry| format!("{} {:?}", entry.at, entry.what));
    let owners = format!("its owner, as far as is known: processes {owners:?}");
    lines.chain([owners]).collect()
}

/// The processes that may have worked on a request: those that ran it, else the one that
/// last ran something for its session before.
fn owners(request: &Request<'_>, requests: &BTreeMap<&str, Request<'_>>) -> Vec<u32> {
    if !request.runs.is_empty() {
        return request.runs.clone();
    }
    let of_session = requests.values().filter(|other| {
        other.session == request.session && !other.session.is_empty() && other.sent <= request.sent
    });
    let last = of_session.filter(|other| !other.runs.is_empty()).max_by_key(|other| other.sent);
    last.map_or_else(Vec::new, |last| last.runs.clone())
}

/// Who is asked to stop may lose a handful.
fn stops(entries: &[Entry], faults: &Faults) -> Vec<Violation> {
    let mut found = Vec::new();
    for (stopped, from, to) in faults.stops() {
        let is_gone = |entry: &&Entry| {
            let node = match entry.what {
                What::Gone { node, .. } | What::Broke { node, .. } => node,
                _ => return false,
            };
            node == stopped && (from..=to).contains(&entry.at)
        };
        let gone = entries.iter().filter(is_gone).count();
        if gone > STOP_LOSES_MAX {
            let seen = format!("node {stopped} lost {gone} requests by stopping");
            found.push(Violation { rule: "cut without a fault", key: String::new(), seen });
        }
    }
    found
}

/// How long calls took that their tool answers at once.
fn waits(requests: &BTreeMap<&str, Request<'_>>) -> Vec<u64> {
    let is_quick = |asked: &Asked| asked.is_recorded && asked.count == 0 && !asked.asks;
    let quick = requests.values().filter(|request| is_quick(&request.asked));
    let mut waits: Vec<_> =
        quick.filter_map(|request| Some(request.word()? - request.sent)).collect();
    waits.sort_unstable();
    waits
}

/// How long the streams of killed owners were silent where their ingress lived.
fn silences(entries: &[Entry], requests: &BTreeMap<&str, Request<'_>>) -> Vec<Silences> {
    let mut kills = Vec::new();
    let mut started = BTreeMap::new();
    for entry in entries {
        let What::Fault { node: Some(node), what, process } = entry.what else { continue };
        match what {
            "starts" => started.insert(node, entry.at),
            _ => started.remove(&node),
        };
        if what != "SIGKILL" {
            continue;
        }
        let had_heir = started.values().any(|started| entry.at - started > SETTLED_MS);
        let mut gaps = Vec::new();
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
        gaps.sort_unstable();
        kills.push(Silences { had_heir, gaps });
    }
    kills
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
        What::Cut { by_client: false, .. } | What::Broke { .. } => figures.cuts += 1,
        What::TriedAgain { .. } => figures.tried_again += 1,
        What::Fault { what: "SIGKILL", .. } => figures.kills += 1,
        _ => {}
    }
}

/// The rules that look at one request.
struct Rules<'a> {
    key: &'a str,
    request: &'a Request<'a>,
    faults: &'a Faults,
    /// Who may have worked on it.
    owners: &'a [u32],
    /// The calls whose client has gone, and that may go on at their owner.
    orphans: &'a BTreeSet<&'a str>,
}

impl Rules<'_> {
    fn all(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        if self.request.is_sent {
            self.order(&mut found);
            self.words(&mut found);
            self.errors(&mut found);
            self.hangs(&mut found);
        }
        self.refusals(&mut found);
        self.cuts(&mut found);
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
                What::Word { is_error, id, .. } => {
                    ended = true;
                    // Progress that came while no connection waited, before there was a stream.
                    let is_alone = progress == 0
                        && id.is_none()
                        && self.faults.lost_link(self.request.sent, entry.at);
                    if !is_error && progress != self.request.asked.count && !is_alone {
                        let seen = format!("a result after {progress} numbers");
                        found.push(self.violation("lost", seen));
                    }
                    continue;
                }
                _ => continue,
            };
            if ended {
                found.push(self.violation("after the final response", format!("{says:?}")));
            }
            if let Some(of) = says.of().filter(|of| *of != self.key) {
                // A server that is a process does not say to which call a log message belongs:
                // of several it goes to the newest, also that of a call whose client has gone.
                if !matches!(says, Says::Log { .. }) || !self.orphans.contains(of.as_str()) {
                    found.push(self.violation("wrong stream", format!("{says:?}")));
                }
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

    /// One final response, and it is this request's.
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
                What::Gone { .. } => is_excused = true,
                _ => {}
            }
        }
        if words > 1 {
            found.push(self.violation("two final responses", format!("{words}")));
        }
        if words == 0 && !is_excused {
            found.push(self.violation("no final response", "none came"));
        }
    }

    /// An error is a final response only where a result was not promised: the owner was
    /// struck, or its link broke, while it worked on a call that may not be run again, or a
    /// bound was reached.
    fn errors(&self, found: &mut Vec<Violation>) {
        let (mut begun, mut has_asked) = (self.request.sent, self.request.asked.asks);
        // Of a stream that the client has an event of, the next one can be asked for.
        let mut has_event = false;
        for entry in &self.request.lines {
            match &entry.what {
                What::Sent { .. } | What::Resumed { .. } => begun = entry.at,
                What::Event { says, .. } => {
                    has_event = true;
                    has_asked |= matches!(says, Says::Question { .. });
                }
                What::Word { is_error: true, text, .. } => {
                    let may_rerun = self.request.asked.may_rerun && !has_asked;
                    let was_lost = self.faults.lost_owner(self.owners, self.request.sent, entry.at);
                    let was_cut_off =
                        !has_event && self.faults.lost_link(self.request.sent, entry.at);
                    let is_allowed = ((was_lost || was_cut_off) && !may_rerun)
                        || entry.at - begun >= HOLD_MS
                        || self.faults.forgot(self.request.sent);
                    if !is_allowed {
                        found.push(self.violation("error", text.clone()));
                    }
                }
                _ => {}
            }
        }
    }

    /// Nothing of our tools takes long, so whatever comes late was held, which is bounded.
    fn hangs(&self, found: &mut Vec<Violation>) {
        for pair in self.request.lines.windows(2) {
            let waited = pair[1].at - pair[0].at;
            if waited > HELD_MS_MAX {
                found.push(self.violation("hang", format!("{waited} ms after {:?}", pair[0].what)));
            }
        }
    }

    /// A connection that ends early was one to a node that was struck just then. While a client
    /// posts its answer to a question it does not read, so it finds a cut of that time later.
    fn cuts(&self, found: &mut Vec<Violation>) {
        let mut asked_at = None;
        for entry in &self.request.lines {
            let (node, since) = match &entry.what {
                What::Event { says, .. } => {
                    asked_at = matches!(says, Says::Question { .. }).then_some(entry.at);
                    continue;
                }
                What::Cut { by_client: false, node, .. } => {
                    (*node, asked_at.take().unwrap_or(entry.at))
                }
                What::Gone { node, .. } | What::Broke { node, .. } => (*node, entry.at),
                _ => {
                    asked_at = None;
                    continue;
                }
            };
            if !self.faults.breaks(node, since..=entry.at) {
                let seen = format!("by node {node}, to which nothing was done: {:?}", entry.what);
                found.push(self.violation("cut without a fault", seen));
            }
        }
    }

    /// Nothing in a live session is refused by status, resumes and GET streams included.
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

/// An event id, `<stream>.<owner_tag>-<number>`.
fn parts(id: &str) -> Option<(u64, &str, u64)> {
    let (stream, rest) = id.split_once('.')?;
    let (owner_tag, number) = rest.rsplit_once('-')?;
    Some((stream.parse().ok()?, owner_tag, number.parse().ok()?))
}

/// What ids must be over a whole session: one payload and one place each, rising on a
/// stream, and the numbers of one owner not amid those of another.
fn ids(entries: &[Entry]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut payloads: HashMap<(&str, &str), (&Key, String)> = HashMap::new();
    let mut last: HashMap<&Key, u64> = HashMap::new();
    let mut owner_tags: BTreeMap<&str, BTreeMap<u64, &str>> = BTreeMap::new();
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
        let Some((_, owner_tag, number)) = parts(id) else {
            say("two payloads", format!("{id} is no id of ours"));
            continue;
        };
        if last.insert(on, number).is_some_and(|last| last > number) {
            say("reordered", format!("{id} after number {:?}", last.get(on)));
        }
        let other = owner_tags.entry(&entry.session).or_default().insert(number, owner_tag);
        if let Some(other) = other.filter(|other| *other != owner_tag) {
            say("two owners", format!("{id}, and number {number} of {other}"));
        }
    }
    for (session, numbers) in owner_tags {
        let mut done = BTreeSet::new();
        let mut now = "";
        for (number, owner_tag) in numbers {
            if owner_tag != now {
                if !done.insert(owner_tag) {
                    let seen = format!("{owner_tag} acts again at number {number}, after {now}");
                    let key = session.to_owned();
                    found.push(Violation { rule: "two owners", key, seen });
                }
                now = owner_tag;
            }
        }
    }
    found
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
