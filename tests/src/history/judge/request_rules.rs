//! The rules for one request: the observations of its client, and the number of its runs.

use std::collections::BTreeSet;

use super::super::{Content, What};
use super::faults::Faults;
use super::{HOLD_MS, Request, Violation};

/// The maximum time between two entries of a request, in milliseconds: the request was held for
/// the maximum time, and the machine was busy.
const HELD_MS_MAX: u64 = 27_500;

/// The rules for one request.
pub(super) struct RequestRules<'a> {
    pub(super) key: &'a str,
    pub(super) request: &'a Request<'a>,
    pub(super) faults: &'a Faults,
    /// The processes that may have worked on it.
    pub(super) owners: &'a [u32],
    /// The calls that have no result and may still run at their owner.
    pub(super) orphans: &'a BTreeSet<&'a str>,
    /// The log lines, by call and number, that came on another stream than that of their call.
    pub(super) astray: &'a BTreeSet<(&'a str, u64)>,
}

impl RequestRules<'_> {
    /// All violations of these rules.
    pub(super) fn all(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        if self.request.is_sent {
            self.order(&mut found);
            self.final_responses(&mut found);
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

    /// Each number comes once, in order, on the stream to which it belongs.
    fn order(&self, found: &mut Vec<Violation>) {
        let (mut progress, mut logged) = (0, 0);
        let mut ended = false;
        let mut has_event = false;
        let mut asked = BTreeSet::new();
        for entry in &self.request.lines {
            let content = match &entry.what {
                What::Event { content, .. } => content,
                What::FinalResponse { is_error, id, .. } => {
                    ended = true;
                    // Progress can be lost if it came while no connection waited, before there was
                    // a stream.
                    let is_alone = progress == 0
                        && id.is_none()
                        && self.faults.lost_link(self.request.sent, entry.at);
                    if !is_error && progress != self.request.asked.count && !is_alone {
                        let seen = format!("a result after number {progress}");
                        found.push(self.violation("lost", seen));
                    }
                    continue;
                }
                _ => continue,
            };
            if ended {
                found.push(self.violation("after the final response", format!("{content:?}")));
            }
            if let Some(of) = content.of().filter(|of| *of != self.key) {
                // A server that runs as a process does not name the call of a log message. If
                // several calls run, the message goes to the newest one, even if it belongs to a
                // call that its client waits for no more.
                if !matches!(content, Content::Log { .. }) || !self.orphans.contains(of.as_str()) {
                    found.push(self.violation("wrong stream", format!("{content:?}")));
                }
                continue;
            }
            // Progress can be lost if it came while no connection waited, before there was a
            // stream.
            let begins_late = !has_event && self.faults.lost_link(self.request.sent, entry.at);
            has_event = true;
            match content {
                Content::Log { .. } if self.request.asked.is_quiet => {
                    found.push(self.violation("forgotten level", format!("{content:?}")));
                }
                Content::Progress { number, .. } if begins_late => progress = *number,
                Content::Progress { number, .. } => self.next(&mut progress, *number, found),
                // A second run repeats its log lines; its progress only rises.
                Content::Log { number, .. } if !self.request.asked.may_rerun => {
                    // The lines between came on another stream, where `sessions` and this rule judge them.
                    while self.astray.contains(&(self.key, logged + 1)) {
                        logged += 1;
                    }
                    self.next(&mut logged, *number, found);
                }
                Content::Question { id, .. } if !asked.insert(id) => {
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

    /// There is one final response, and it belongs to this request.
    fn final_responses(&self, found: &mut Vec<Violation>) {
        let mut final_responses = 0;
        let mut is_excused = false;
        for entry in &self.request.lines {
            match &entry.what {
                What::FinalResponse { of, text, .. } => {
                    final_responses += 1;
                    if of != self.key {
                        found.push(
                            self.violation("wrong stream", format!("the response to {of}: {text}")),
                        );
                    }
                }
                What::Dropped { .. } | What::Refused { .. } => is_excused = true,
                What::Gone { .. } => is_excused = true,
                _ => {}
            }
        }
        if final_responses > 1 {
            found.push(self.violation("two final responses", format!("{final_responses}")));
        }
        if final_responses == 0 && !is_excused {
            found.push(self.violation("no final response", "none came"));
        }
    }

    /// An error is a final response only if a result was not promised: the owner had a fault, or
    /// its link broke, while it worked on a call that may not be run again, its server was away, or a
    /// bound was reached.
    fn errors(&self, found: &mut Vec<Violation>) {
        let (mut begun, mut has_asked) = (self.request.sent, self.request.asked.asks);
        // If the client has an event of a stream, it can resume the stream after it.
        let mut has_event = false;
        for entry in &self.request.lines {
            match &entry.what {
                What::Sent { .. } | What::Resumed { .. } => begun = entry.at,
                What::Event { content, .. } => {
                    has_event = true;
                    has_asked |= matches!(content, Content::Question { .. });
                }
                What::FinalResponse { is_error: true, text, .. } => {
                    let may_rerun = self.request.asked.may_rerun && !has_asked;
                    let was_lost = self.faults.lost_owner(self.owners, self.request.sent, entry.at);
                    let was_cut_off =
                        !has_event && self.faults.lost_link(self.request.sent, entry.at);
                    let lost_server = self.request.asked.is_recorded
                        && ["the server `", "upstream server"].iter().any(|it| text.contains(it))
                        && self.faults.lost_server(self.request.sent, entry.at);
                    let is_allowed = ((was_lost || was_cut_off) && !may_rerun)
                        || lost_server
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

    /// The tools answer fast, so a late event was held by a node, and that time is bounded.
    fn hangs(&self, found: &mut Vec<Violation>) {
        for pair in self.request.lines.windows(2) {
            let waited = pair[1].at - pair[0].at;
            if waited > HELD_MS_MAX {
                found.push(self.violation("hang", format!("{waited} ms after {:?}", pair[0].what)));
            }
        }
    }

    /// A connection may end early only if its node had a fault at that time. A client does not
    /// read while it posts its answer to a server request, so it detects a cut of that time later.
    fn cuts(&self, found: &mut Vec<Violation>) {
        let mut asked_at = None;
        for entry in &self.request.lines {
            let (node, since) = match &entry.what {
                What::Event { content, .. } => {
                    asked_at = matches!(content, Content::Question { .. }).then_some(entry.at);
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
                let seen = format!("by node {node}, which had no fault: {:?}", entry.what);
                found.push(self.violation("cut without a fault", seen));
            }
        }
    }

    /// No request of a live session is refused by HTTP status, including resumes and GET streams.
    fn refusals(&self, found: &mut Vec<Violation>) {
        for entry in &self.request.lines {
            if let What::Refused { status, text, .. } = &entry.what {
                found.push(self.violation("refused", format!("{status} {text}")));
            }
        }
    }

    /// A call that may not run again ran at most once, even if its answer was lost.
    fn runs(&self, found: &mut Vec<Violation>) {
        let runs = &self.request.runs;
        if runs.len() > 1 && !self.request.asked.may_rerun {
            found.push(self.violation("ran twice", format!("in processes {runs:?}")));
        }
        let has_result = self
            .request
            .lines
            .iter()
            .any(|entry| matches!(entry.what, What::FinalResponse { is_error: false, .. }));
        if has_result && runs.is_empty() && self.request.asked.is_recorded {
            found.push(self.violation("never ran", "a result without a run"));
        }
    }
}
