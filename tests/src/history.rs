//! The observations of every client and the runs of every tool, recorded while they happen.
//!
//! [`History::judge`] (in [`judge`]) checks the history afterwards, as Jepsen does. Nothing here
//! waits, decides or connects.

pub mod judge;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::Value;

pub use self::judge::{Figures, Silences, Verdict};

/// Identifies one request of one client in the whole history. A recording tool writes it down at
/// each run; progress of the request carries it as its token.
pub type Key = String;

/// One line of a history.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Milliseconds since the history began.
    pub at: u64,
    /// The session of the entry; empty for the cluster as a whole.
    pub session: String,
    /// What happened.
    pub what: What,
}

/// The parameters of a request that the judge needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The number to which the tool counts; each number is an event.
    pub count: u64,
    /// The tool sends a request to the client first, so the call is never run again.
    pub asks: bool,
    /// The tool sends one message to the session's GET stream.
    pub announces: bool,
    /// The tool records each run.
    pub is_recorded: bool,
    /// The tool declares that the call may run again.
    pub may_rerun: bool,
    /// The client has set a log level that excludes the log lines of the tool.
    pub is_quiet: bool,
}

/// What happened.
#[expect(missing_docs, reason = "each variant's sentence names its fields")]
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A client posted a request.
    Sent { key: Key, asked: Asked },
    /// An event came on the stream of `on`: its id, and its content.
    Event { on: Key, id: Option<String>, content: Content },
    /// A final response came in place of the one of `on`.
    FinalResponse { on: Key, id: Option<String>, of: Key, is_error: bool, text: String },
    /// The connection ended without a final response. `by_client`: the client of the test cut it.
    Cut { on: Key, after: Option<String>, by_client: bool, node: usize },
    /// A GET stream is open at a node, from its beginning or after an event.
    Listens { on: Key, node: usize },
    /// A client resumes at another node after an event.
    Resumed { on: Key, after: String, node: usize },
    /// A refusal by HTTP status, in place of a stream, a final response or an acceptance.
    Refused { on: Key, status: u16, text: String },
    /// No byte of an answer came: the ingress ended, and the client does not repeat the request.
    Gone { on: Key, node: usize },
    /// A connection broke without an answer, and the client repeats the request.
    Broke { on: Key, node: usize },
    /// The result of a DELETE of the session; `None`: its connection broke.
    Deleted { node: usize, status: Option<u16> },
    /// The result of a request with the id of a deleted session, and the time that it took.
    TriedAgain { node: usize, status: Option<u16>, took_ms: u64 },
    /// The client has cancelled the request; no final response is due.
    Dropped { on: Key },
    /// The client has reached its time limit.
    GaveUp { on: Key },
    /// A tool ran.
    Ran { key: Key, process: u32 },
    /// A fault of a node and its process, or of all nodes (`None`).
    Fault { node: Option<usize>, what: &'static str, process: u32 },
}

/// The content of an event.
#[expect(missing_docs, reason = "each variant's sentence names its fields")]
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Progress of a request.
    Progress { of: Key, number: u64 },
    /// A log line of a request.
    Log { of: Key, number: u64 },
    /// A request of the server to the client, by its id, and the call that caused it.
    Question { of: Key, id: String },
    /// Any other message, unchanged.
    Other(String),
}

impl Content {
    /// The content of a message that is not a final response.
    pub fn read(message: &Value) -> Self {
        let params = &message["params"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        match message["method"].as_str() {
            Some("notifications/progress") => {
                let of = text(&params["progressToken"]).unwrap_or_default();
                // Progress of our tools is a whole number.
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let number = params["progress"].as_f64().unwrap_or(0.0) as u64;
                Self::Progress { of, number }
            }
            Some("notifications/message") if params["data"]["key"].is_string() => Self::Log {
                of: text(&params["data"]["key"]).unwrap_or_default(),
                number: params["data"]["count"].as_u64().unwrap_or(0),
            },
            Some("elicitation/create") => Self::Question {
                of: text(&params["message"]).unwrap_or_default(),
                id: message["id"].to_string(),
            },
            _ => Self::Other(message.to_string()),
        }
    }

    /// The request to whose stream the content belongs, if there is one.
    pub fn of(&self) -> Option<&Key> {
        match self {
            Self::Progress { of, .. } | Self::Log { of, .. } | Self::Question { of, .. } => {
                Some(of)
            }
            Self::Other(_) => None,
        }
    }
}

/// A history that several tasks write at the same time. Clones share it.
#[derive(Clone, Debug)]
pub struct History {
    began: Instant,
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl Default for History {
    fn default() -> Self {
        Self { began: Instant::now(), entries: Arc::default() }
    }
}

impl History {
    /// Adds an entry.
    pub fn note(&self, session: &str, what: What) {
        let at = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let entry = Entry { at, session: session.to_owned(), what };
        self.entries.lock().expect("a writer panicked").push(entry);
    }

    /// Adds the runs that tools recorded: a line for each run, with its key and its process.
    pub fn add_runs(&self, lines: &str) {
        for line in lines.lines() {
            if let Some((key, process)) = line.split_once(' ') {
                let process = process.trim().parse().unwrap_or(0);
                self.note("", What::Ran { key: key.to_owned(), process });
            }
        }
    }

    /// All entries so far.
    pub fn entries(&self) -> Vec<Entry> {
        self.entries.lock().expect("a writer panicked").clone()
    }

    /// Checks the entries so far.
    pub fn judge(&self) -> Verdict {
        judge::judge(&self.entries())
    }
}
