//! The rules for a whole session: its GET stream, and its end.

use std::collections::BTreeMap;

use super::super::{Content, Entry, Key, What};
use super::faults::Faults;
use super::{HOLD_MS, Violation, may_still_run};

/// How long a message for a GET stream may take after the call that caused it, in milliseconds: a
/// take-over after a node's death, and a second for the client to reconnect.
const UNDER_WAY_MS: u64 = 5_000;

/// The state of one session.
#[derive(Default)]
struct Session<'a> {
    listener: Option<&'a Key>,
    /// The times when its GET stream was open, from and to.
    open: Vec<(u64, u64)>,
    /// The times of messages of tools on that stream.
    heard: Vec<u64>,
    /// The times when calls that announce a change were sent, and when their result came.
    announced: Vec<(u64, u64)>,
    pending: BTreeMap<&'a Key, u64>,
    /// When the calls that ask, and have neither a stream nor a response yet, were sent.
    asking: BTreeMap<&'a str, u64>,
    /// A call without a result may still run.
    has_orphan: bool,
    /// The time of its deletion, if that is certain.
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
        session.has_orphan |= may_still_run(&entry.what);
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
                // If Redis does not answer while a request is held, no node knows whether the
                // session ended.
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
                // A log line and a question name no request. They come here if two requests run because
                // the client waits for one of them no more, and log lines also after their call's result.
                // A question also comes here if the link to the owner broke before its call had a stream:
                // the call has no connection then, until the ingress sends it again.
                let is_due = match content {
                    Content::Log { .. } | Content::Other(_) => true,
                    Content::Question { of, .. } => {
                        let earliest = entry.at.saturating_sub(UNDER_WAY_MS);
                        let sent = session.asking.get(of.as_str());
                        let has_lost_link = sent
                            .is_some_and(|sent| faults.lost_link(earliest.max(*sent), entry.at));
                        session.has_orphan || has_lost_link
                    }
                    Content::Progress { .. } => false,
                };
                if !is_due {
                    say("wrong stream", format!("{content:?} on the GET stream"));
                }
                if matches!(content, Content::Other(text) if text.contains(ANNOUNCED)) {
                    session.heard.push(entry.at);
                }
            }
            What::Event { on, .. } => _ = session.asking.remove(on.as_str()),
            What::Sent { key, asked } => {
                if asked.announces {
                    session.pending.insert(key, entry.at);
                }
                if asked.asks {
                    session.asking.insert(key, entry.at);
                }
            }
            What::FinalResponse { on, is_error, .. } => {
                session.asking.remove(on.as_str());
                let sent = session.pending.remove(on).filter(|_| !is_error);
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

/// The text of the message that the tools send to a GET stream.
const ANNOUNCED: &str = "tools/list_changed";

impl Session<'_> {
    /// The messages that the GET stream lacks, counted since its first message.
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

    /// The message was sent while no GET stream was open, and its owner had a fault.
    fn is_excused(&self, sent: u64, final_response: u64, faults: &Faults) -> bool {
        let listened = self.open.iter().any(|(from, to)| *from <= sent && *to >= final_response);
        !listened && faults.lost_owner(&[], sent, final_response + UNDER_WAY_MS)
    }
}
