//! What every client saw and what every tool did, written down while it happens.
//!
//! [`History::judge`] (in [`judge`]) reads it afterwards, in the manner of Jepsen. Nothing
//! here waits, decides or connects.

pub mod judge;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::Value;

pub use self::judge::{Figures, Silences, Verdict};

/// Names one request of one client, in all that is said of it. A tool that is asked to
/// record writes it down; progress of the request carries it as its token.
pub type Key = String;

/// One line of a history.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Milliseconds since the history began.
    pub at: u64,
    /// The session it is about; empty for the cluster as a whole.
    pub session: String,
    /// What happened.
    pub what: What,
}

/// What a request asks for, as far as the judge must know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// How far the tool counts; each number is an event.
    pub count: u64,
    /// It asks the client something first, so it is never run again.
    pub asks: bool,
    /// It tells the session's GET stream something, once.
    pub announces: bool,
    /// The tool leaves a trace of each run.
    pub is_recorded: bool,
    /// It says of itself that it may be run again.
    pub may_rerun: bool,
    /// The client has asked for no log lines as unimportant as the tool's.
    pub is_quiet: bool,
}

/// What happened.
#[expect(missing_docs, reason = "each variant's sentence names its fields")]
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A client posted a request.
    Sent { key: Key, asked: Asked },
    /// An event came on the stream of `on`: its id, and what it says.
    Event { on: Key, id: Option<String>, content: Content },
    /// A final response came where that of `on` was due.
    FinalResponse { on: Key, id: Option<String>, of: Key, is_error: bool, text: String },
    /// The connection ended without a final response. `by_client`: it was our own doing.
    Cut { on: Key, after: Option<String>, by_client: bool, node: usize },
    /// A GET stream is open at a node, from now on or from an event on.
    Listens { on: Key, node: usize },
    /// A client asks another node for what follows an event.
    Resumed { on: Key, after: String, node: usize },
    /// A refusal by status, where a stream, a final response or an acceptance was due.
    Refused { on: Key, status: u16, text: String },
    /// No byte of an answer came: the ingress went, and the client does not repeat it.
    Gone { on: Key, node: usize },
    /// A connection broke without an answer, and what it was for is repeated.
    Broke { on: Key, node: usize },
    /// How a DELETE of the session was answered; `None`: its connection broke.
    Deleted { node: usize, status: Option<u16> },
    /// How a request with the id of a deleted session was answered, and after what time.
    TriedAgain { node: usize, status: Option<u16>, took_ms: u64 },
    /// The client wants it no more; no final response is due.
    Dropped { on: Key },
    /// The client waited long enough.
    GaveUp { on: Key },
    /// A tool ran.
    Ran { key: Key, process: u32 },
    /// Something was done to a node and its process, or to all nodes (`None`).
    Fault { node: Option<usize>, what: &'static str, process: u32 },
}

/// What an event says.
#[expect(missing_docs, reason = "each variant's sentence names its fields")]
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Progress of a request.
    Progress { of: Key, number: u64 },
    /// A log line of a request.
    Log { of: Key, number: u64 },
    /// A question to the client, by the id of the question, asked by a request.
    Question { of: Key, id: String },
    /// Anything else, as it came.
    Other(String),
}

impl Content {
    /// What a message says; not for final responses.
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

    /// The request whose stream it belongs on, if it belongs to one.
    pub fn of(&self) -> Option<&Key> {
        match self {
            Self::Progress { of, .. } | Self::Log { of, .. } | Self::Question { of, .. } => {
                Some(of)
            }
            Self::Other(_) => None,
        }
    }
}

/// A history that is being written, by many at once. Clones share it.
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
    /// Writes a line.
    pub fn note(&self, session: &str, what: What) {
        let at = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let entry = Entry { at, session: session.to_owned(), what };
        self.entries.lock().expect("a writer panicked").push(entry);
    }

    /// Adds what tools wrote down: a line for each run, its key and its process.
    pub fn add_runs(&self, lines: &str) {
        for line in lines.lines() {
            if let Some((key, process)) = line.split_once(' ') {
                let process = process.trim().parse().unwrap_or(0);
                self.note("", What::Ran { key: key.to_owned(), process });
            }
        }
    }

    /// All that was written so far.
    pub fn entries(&self) -> Vec<Entry> {
        self.entries.lock().expect("a writer panicked").clone()
    }

    /// What is to be said of it.
    pub fn judge(&self) -> Verdict {
        judge::judge(&self.entries())
    }
}
