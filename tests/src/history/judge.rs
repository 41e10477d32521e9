//! Checks a history for events that must never happen.
//!
//! Pure: the input is entries, the output is a verdict. The tests at the end have histories that
//! break each rule.

mod event_ids;
mod faults;
mod request_rules;
mod sessions;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use self::faults::Faults;
pub use self::faults::{SERVER_BACK, SERVER_ENDS};
use self::request_rules::RequestRules;
use super::{Asked, Content, Entry, Key, What};

/// The minimum time after which an error may be the final response to a request that cannot be
/// served yet: `hold_ms`, less the differences of clocks and timers, in milliseconds.
const HOLD_MS: u64 = 24_500;

/// The maximum number of requests that one node may lose when it is asked to stop and the balancer
/// is not informed: the requests in the queue of the listener that it closed.
const STOP_LOSES_MAX: usize = 5;

/// How long after its start a node may claim the sessions of other nodes, in milliseconds: it
/// waits for 3,000, and its start takes some time.
const SETTLED_MS: u64 = 3_300;

/// The maximum time to read the bytes that a killed process had sent, in milliseconds.
const ON_ITS_WAY_MS: u64 = 10;

/// The minimum number of times of which a median is judged. The median of one or two is their
/// longest, which has a limit of its own.
const MEDIAN_OF_MIN: usize = 5;

/// How long before a request the report of a violation begins, in milliseconds.
const SHOWN_BEFORE_MS: u64 = 2_000;

/// The maximum number of violations that a report shows in full.
const SHOWN_MAX: usize = 12;

/// An event that must never happen.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// The rule that it breaks.
    pub rule: &'static str,
    /// The request with the violation.
    pub key: Key,
    /// The observation that breaks the rule.
    pub seen: String,
}

/// The counts and times of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Nodes killed with SIGKILL.
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
    /// Connections that ended early and that the client did not cut.
    pub cuts: usize,
    /// Requests with the id of a deleted session.
    pub tried_again: usize,
    /// The times of calls whose tool answers at once, in milliseconds; sorted.
    pub waits: Vec<u64>,
    /// Calls lost with their ingress, before any byte of an answer or any id.
    pub lost_with_ingress: usize,
    /// One element for each kill, in order.
    pub silences: Vec<Silences>,
}

/// How long the streams of a killed owner were silent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Silences {
    /// Another node ran for longer than [`SETTLED_MS`]: it could claim sessions at once.
    pub had_heir: bool,
    /// The times from the SIGKILL to the next event of each stream on the same client connection,
    /// in milliseconds; sorted. Each is reduced by the time in which a second run repeats events
    /// that the first run had reported.
    pub gaps: Vec<u64>,
}

impl Figures {
    /// The gaps after all kills, sorted; or only those after kills when another node could claim
    /// sessions at once.
    pub fn gaps(&self, with_heir: bool) -> Vec<u64> {
        let kills = self.silences.iter().filter(|kill| kill.had_heir || !with_heir);
        let mut gaps: Vec<u64> = kills.flat_map(|kill| kill.gaps.iter().copied()).collect();
        gaps.sort_unstable();
        gaps
    }
}

/// The result of the check of a history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The violations, in the order of the rules.
    pub violations: Vec<Violation>,
    /// The counts and times of the history.
    pub figures: Figures,
    /// The observations of each request with a violation, for the report.
    scenarios: BTreeMap<Key, Vec<String>>,
}

impl Verdict {
    /// Fails unless streams of killed owners continued and calls were answered within these
    /// limits: half of them within `median_ms`, if they are at least [`MEDIAN_OF_MIN`], and all of
    /// them within `longest_ms`. The median of the streams includes only those that another node
    /// could claim at once.
    pub fn in_time(&self, median_ms: u64, longest_ms: u64) -> anyhow::Result<()> {
        let (gaps, waits) = (self.figures.gaps(false), &self.figures.waits);
        for (times, all) in [(&self.figures.gaps(true), &gaps), (waits, waits)] {
            let median = times.get(times.len() / 2).copied().unwrap_or_default();
            let longest = all.last().copied().unwrap_or_default();
            let kills = &self.figures.silences;
            let seen = || format!("silent after each kill, in ms: {kills:?}");
            anyhow::ensure!(
                times.len() < MEDIAN_OF_MIN || median <= median_ms,
                "a median of {median}, not {median_ms}; {}",
                seen()
            );
            anyhow::ensure!(
                longest <= longest_ms,
                "longest {longest}, not {longest_ms}; {}",
                seen()
            );
        }
        Ok(())
    }

    /// The number of violations of a rule.
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

/// The entries and the runs of one request.
#[derive(Default)]
struct Request<'a> {
    asked: Asked,
    session: &'a str,
    lines: Vec<&'a Entry>,
    runs: Vec<u32>,
    is_sent: bool,
    /// The time of the request.
    sent: u64,
}

impl Request<'_> {
    /// The time of its final response.
    fn final_response(&self) -> Option<u64> {
        let final_response =
            self.lines.iter().find(|line| matches!(line.what, What::FinalResponse { .. }))?;
        Some(final_response.at)
    }
}

/// Checks a whole history.
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
            | What::FinalResponse { on, .. }
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
    // A cancelled call runs until its server knows of that.
    let is_over = |what: &What| may_still_run(what) || matches!(what, What::Dropped { .. });
    let is_orphan = |request: &Request<'_>| request.lines.iter().any(|line| is_over(&line.what));
    let orphans: BTreeSet<_> =
        requests.iter().filter(|(_, request)| is_orphan(request)).map(|(key, _)| *key).collect();
    let astray: BTreeSet<_> = entries.iter().filter_map(|entry| astray(&entry.what)).collect();
    for (key, request) in &requests {
        let owners = owners(request, &requests);
        let (faults, owners, orphans, astray) = (&faults, &owners, &orphans, &astray);
        let found = RequestRules { key, request, faults, owners, orphans, astray }.all();
        if !found.is_empty() {
            let mut scenario = scenario(entries, request, owners);
            for of in others(request, key) {
                scenario.push(format!("of {of}:"));
                let of_it = entries.iter().filter(|entry| concerns(&entry.what, of));
                scenario.extend(of_it.map(|entry| format!("{} {:?}", entry.at, entry.what)));
            }
            verdict.scenarios.insert((*key).to_owned(), scenario);
        }
        verdict.violations.extend(found);
    }
    verdict.violations.extend(event_ids::all(entries));
    verdict.violations.extend(sessions::all(entries, &faults));
    verdict.violations.extend(stops(entries, &faults));
    verdict.figures.silences = silences(entries, &requests);
    verdict.figures.waits = waits(&requests);
    verdict
}

/// The call and the number of a log line that came on another stream than that of its call.
fn astray(what: &What) -> Option<(&str, u64)> {
    match what {
        What::Event { on, content: Content::Log { of, number }, .. } if on != of => {
            Some((of, *number))
        }
        _ => None,
    }
}

/// Whether a call may still run at its owner when its client observes this: the connection was lost, or
/// an error says that the result is not known.
fn may_still_run(what: &What) -> bool {
    matches!(what, What::Gone { .. } | What::FinalResponse { is_error: true, .. })
}

/// The observations of a request, and the faults shortly before it and during it.
fn scenario(entries: &[Entry], request: &Request<'_>, owners: &[u32]) -> Vec<String> {
    let ends = request.lines.last().map_or(request.sent, |last| last.at);
    let around = request.sent.saturating_sub(SHOWN_BEFORE_MS)..=ends;
    let is_shown = |entry: &&Entry| match entry.what {
        What::Fault { .. } => around.contains(&entry.at),
        _ => request.lines.iter().any(|line| std::ptr::eq(*line, *entry)),
    };
    let lines =
        entries.iter().filter(is_shown).map(|entry| format!("{} {:?}", entry.at, entry.what));
    let owners = format!("possible owners: processes {owners:?}");
    lines.chain([owners]).collect()
}

/// The other calls whose messages came on the streams of a request.
fn others<'a>(request: &Request<'a>, key: &str) -> BTreeSet<&'a str> {
    let of = |line: &&'a Entry| match &line.what {
        What::Event { content, .. } => content.of().map(String::as_str),
        What::FinalResponse { of, .. } => Some(of.as_str()),
        _ => None,
    };
    request.lines.iter().filter_map(of).filter(|of| *of != key).collect()
}

/// Whether an observation is of this call: of its client, or one of its runs.
fn concerns(what: &What, of: &str) -> bool {
    match what {
        What::Sent { key, .. } | What::Ran { key, .. } => key == of,
        What::Event { on, .. }
        | What::FinalResponse { on, .. }
        | What::Cut { on, .. }
        | What::Resumed { on, .. }
        | What::Refused { on, .. }
        | What::Gone { on, .. }
        | What::Broke { on, .. }
        | What::Dropped { on }
        | What::GaveUp { on } => on == of,
        _ => false,
    }
}

/// The processes that may have worked on a request: those that ran it, or else those that ran the
/// last earlier request of its session.
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

/// A node that is asked to stop may lose at most [`STOP_LOSES_MAX`] requests.
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

/// The times of calls whose tool answers at once.
fn waits(requests: &BTreeMap<&str, Request<'_>>) -> Vec<u64> {
    let is_quick = |asked: &Asked| asked.is_recorded && asked.count == 0 && !asked.asks;
    let quick = requests.values().filter(|request| is_quick(&request.asked));
    let mut waits: Vec<_> =
        quick.filter_map(|request| Some(request.final_response()? - request.sent)).collect();
    waits.sort_unstable();
    waits
}

/// How long the streams of killed owners were silent, if their ingress still ran.
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
            // Bytes that were in transit when the owner was killed do not come from the next
            // owner.
            let killed = entry.at + ON_ITS_WAY_MS;
            let started = request.lines.iter().any(|line| {
                line.at <= killed && matches!(line.what, What::Event { id: Some(_), .. })
            });
            let next = request.lines.iter().find(|line| line.at > killed);
            if let Some(next) = next.filter(|_| started)
                && matches!(next.what, What::Event { .. } | What::FinalResponse { .. })
                && let Some(repeated) = repeats_for(request, process, killed)
            {
                gaps.push((next.at - entry.at).saturating_sub(repeated));
            }
        }
        gaps.sort_unstable();
        kills.push(Silences { had_heir, gaps });
    }
    kills
}

/// How long the run after this process' run repeats progress that the client has already seen and
/// that is not sent again: as long as the first run took for it. `None` if that is not known,
/// because the killed run was itself a repetition.
fn repeats_for(request: &Request<'_>, process: u32, killed: u64) -> Option<u64> {
    let run = request.runs.iter().position(|run| *run == process)?;
    if run + 1 == request.runs.len() {
        return Some(0);
    }
    let is_progress =
        |line: &&&Entry| matches!(line.what, What::Event { content: Content::Progress { .. }, .. });
    let seen = request.lines.iter().filter(|line| line.at <= killed).rfind(is_progress);
    (run == 0).then(|| seen.map_or(0, |seen| seen.at - request.sent))
}

fn count(entry: &Entry, figures: &mut Figures) {
    match &entry.what {
        What::Sent { .. } => figures.requests += 1,
        What::Event { .. } => figures.events += 1,
        What::FinalResponse { id, is_error, .. } => {
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

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
