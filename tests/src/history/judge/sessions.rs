//! The rules that look at a whole session: its GET stream, and its end.

use std::collections::BTreeMap;

use super::super::{Content, Entry, Key, What};
use super::faults::Faults;
use super::{HOLD_MS, Violation};

/// How long a message for a GET stream may be under way after the call that caused it, in
/// milliseconds: a take-over after a death, and a second for the client to come back.
const UNDER_WAY_MS: u64 = 5_000;

/// What is known of one session.
#[derive(Default)]
struct Session<'a> {
    listener: Option<&'a Key>,
    /// When its GET stream was open, from and to.
    open: Vec<(u64, u64)>,
    /// When a message of a tool came on it.
    heard: Vec<u64>,
    /// When calls that tell it something were sent, and had their result.
    announced: Vec<(u64, u64)>,
    pending: BTreeMap<&'a Key, u64>,
    /// When it was deleted, and that is certain.
    ended: Option<u64>,
    last: u64,
}

pub(super) fn all(entries: &[Entry], faults: &Faults) -> Vec<Violation> {
    let mut sessions: BTreeMap<&str, Session<'_>> = BTreeMap::new();
    let mut found = Vec::new();
    for entry in entries.iter().filter(|entry| !entry.session.is_empty()) {
        let session = sessions.entry(&entry.session).or_default();
        let mut say = |rule, seen: String| {
            found.push(Violation { rule, key: entry.session.clone(), seen });
        };
        match &entry.what {
            What::Deleted { node, status } => {
                match status {
                    Some(204) => session.ended = Some(entry.at),
                    Some(503) => {}
                    None if faults.breaks(*node, entry.at..=entry.at) => {}
                    _ => say("delete", format!("{status:?} of node {node}")),
                }
                continue;
            }
            What::TriedAgain { node, status, took_ms } => {
                // Where Redis cannot be asked for as long as requests are held, none knows.
                let is_beyond = *took_ms >= HOLD_MS;
                match (status, session.ended) {
                    (Some(404), _) | (_, None) => {}
                    (Some(503), _) if is_beyond => {}
                    (None, _) if faults.breaks(*node, entry.at..=entry.at) => {}
                    (_, Some(ended)) if faults.forgot(ended) => {}
                    _ => say("deleted lives", format!("{status:?} of node {node}")),
                }
                continue;
            }
            What::Listens { on, .. } => {
                session.listener = Some(on);
                session.open.push((entry.at, u64::MAX));
            }
            What::Cut { on, .. } if session.listener == Some(on) => {
                session.open.last_mut().into_iter().for_each(|open| open.1 = entry.at);
            }
            What::Event { on, content, .. } if session.listener == Some(on) => {
                // A log line names no request: where two run, for one was lost with its
                // client's connection, and after the result of its call, it comes here.
                if content.of().is_some() && !matches!(content, Content::Log { .. }) {
                    say("wrong stream", format!("{content:?} on the GET stream"));
                }
                if matches!(content, Content::Other(text) if text.contains(ANNOUNCED)) {
                    session.heard.push(entry.at);
                }
            }
            What::Sent { key, asked } if asked.announces => {
                session.pending.insert(key, entry.at);
            }
            What::FinalResponse { on, is_error: false, .. } => {
                let sent = session.pending.remove(on);
                session.announced.extend(sent.map(|sent| (sent, entry.at)));
            }
            _ => {}
        }
        session.last = entry.at;
    }
    for (id, session) in &sessions {
        found.extend(session.lost(faults).map(|seen| Violation {
            rule: "lost",
            key: (*id).to_owned(),
            seen,
        }));
    }
    found
}

/// What a message says that our tools have a GET stream told.
const ANNOUNCED: &str = "tools/list_changed";

impl Session<'_> {
    /// What a listener should have had since its first message and did not.
    fn lost(&self, faults: &Faults) -> Option<String> {
        let first = *self.heard.first()?;
        let due = self.announced.iter().filter(|(sent, final_response)| {
            *sent > first
                && final_response + UNDER_WAY_MS <= self.last
                && !self.is_excused(*sent, *final_response, faults)
        });
        let (due, heard) = (due.count(), self.heard.len() - 1);
        (heard < due)
            .then(|| format!("{heard} messages on the GET stream since {first}, {due} due"))
    }

    /// Told while nobody listened, and kept in the memory of an owner that was struck.
    fn is_excused(&self, sent: u64, final_response: u64, faults: &Faults) -> bool {
        let listened = self.open.iter().any(|(from, to)| *from <= sent && *to >= final_response);
        !listened && faults.lost_owner(&[], sent, final_response + UNDER_WAY_MS)
    }
}
