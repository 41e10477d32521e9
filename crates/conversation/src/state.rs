//! What of a session must outlive its owner and is in no log: written into its record
//! before whoever changed it is told so.

use bytes::Bytes;
use protocol::payload::LogLevel;
use protocol::{Method, RequestId};
use serde::{Deserialize, Serialize};

use crate::session::{Client, Phase, Session, Turn};
use crate::{Effect, Emitter};

/// Most former emitters that are known; the oldest is forgotten, and its ids are unknown then.
pub(crate) const FORMER_MAX: usize = 16;

/// How far the state is written.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// What was handed out last.
    pub(crate) version: u64,
    /// What the record holds.
    saved: u64,
    /// Something has changed since.
    changed: bool,
}

/// The state, as it is written down.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Written {
    initialized: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subscriptions: Vec<Box<str>>,
    /// What the server tells of when it changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lists: Vec<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    tools: bool,
}

impl Session {
    /// The newest state and its version, for a record that is written anew.
    pub fn saved(&self) -> (u64, Bytes) {
        (self.state.version, self.written())
    }

    /// Something changed that must outlive this owner.
    pub(crate) fn note_change(&mut self) {
        self.state.changed = self.duplex.is_none();
    }

    /// The version that holds everything that has changed so far.
    pub(crate) fn version(&self) -> u64 {
        self.state.version + u64::from(self.state.changed)
    }

    /// Does the record hold this version?
    pub(crate) fn is_saved(&self, version: u64) -> bool {
        self.state.saved >= version
    }

    pub(crate) fn save_if_changed(&mut self, turn: &mut Turn<'_>) {
        if !std::mem::take(&mut self.state.changed) || self.is_over() {
            return;
        }
        self.state.version += 1;
        let (version, state) = self.saved();
        turn.effects.push(Effect::Save { version, state });
    }

    pub(crate) fn was_saved(&mut self, turn: &mut Turn<'_>, version: u64) {
        self.state.saved = self.state.saved.max(version);
        self.open_gates(turn);
    }

    /// The node has claimed the session from itself; what is in the log stays as it is.
    pub(crate) fn reclaimed(&mut self, emitter: Emitter) {
        self.former.insert(0, std::mem::replace(&mut self.emitter, emitter));
        self.former.truncate(FORMER_MAX);
    }

    /// Has this owner, or one before it, emitted under this?
    pub(crate) fn knows(&self, emitter: Emitter) -> bool {
        emitter == self.emitter || self.former.contains(&emitter)
    }

    /// Did `one` emit only after `other` had stopped?
    pub(crate) fn is_after(&self, one: Emitter, other: Emitter) -> bool {
        let newest_first = || std::iter::once(&self.emitter).chain(&self.former);
        let place = |of: Emitter| newest_first().position(|emitter| *emitter == of);
        match (place(one), place(other)) {
            (Some(one), Some(other)) => one < other,
            (one, other) => one.is_some() && other.is_none(),
        }
    }

    fn written(&self) -> Bytes {
        let lists = self.server_lists().iter().map(|method| method.as_str().to_owned()).collect();
        let written = Written {
            initialized: self.is_live(),
            level: self.level.map(|level| level.as_str().to_owned()),
            subscriptions: self.subscriptions.iter().cloned().collect(),
            lists,
            tools: self.client.as_ref().is_some_and(|client| client.server_has_tools),
        };
        // Plain values can always be written.
        serde_json::to_vec(&written).unwrap_or_default().into()
    }

    /// Takes over what a former owner wrote. False for what no owner writes.
    pub(crate) fn take_over_state(&mut self, version: u64, bytes: &[u8]) -> bool {
        let written = match bytes {
            [] => Written::default(),
            bytes => match serde_json::from_slice(bytes) {
                Ok(written) => written,
                Err(_) => return false,
            },
        };
        self.state = State { version, saved: version, changed: false };
        self.phase = if written.initialized { Phase::Live } else { Phase::Answered };
        self.level = written.level.as_deref().and_then(LogLevel::named);
        self.subscriptions = written.subscriptions.into_iter().collect();
        if let Some(Client { server_lists, server_has_tools, .. }) = self.client.as_deref_mut() {
            *server_lists = written.lists.iter().map(|list| Method::from(list.as_str())).collect();
            *server_has_tools = written.tools;
        }
        true
    }
}

/// Does running it twice change nothing, whatever the server?
pub(crate) fn is_harmless(method: &Method) -> bool {
    matches!(
        method,
        Method::Ping
            | Method::ToolsList
            | Method::SetLevel
            | Method::Subscribe
            | Method::Unsubscribe
    ) || matches!(
        method.as_str(),
        "prompts/list"
            | "prompts/get"
            | "resources/list"
            | "resources/read"
            | "resources/templates/list"
            | "completion/complete"
    )
}

/// The id of a question of ours: who asked it, and its number.
pub(crate) fn read_ask_id(id: &RequestId) -> Option<(Emitter, u64)> {
    let RequestId::String(text) = id else { return None };
    let (emitter, number) = text.split_once('-')?;
    let number = number.parse().ok().filter(|number: &u64| *number > 0)?;
    let emitter = crate::entry::emitter(emitter)?;
    (**text == *format!("{emitter}-{number}")).then_some((emitter, number))
}
