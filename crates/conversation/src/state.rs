//! What must outlive the owner and is in no log: the versioned state in the session's record.

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::payload::LogLevel;
use protocol::{Method, RequestId};
use serde::{Deserialize, Serialize};
use thin_vec::ThinVec;

use crate::session::{Session, StepContext};
use crate::{Effect, Unreadable};

/// The format that this version writes. It reads no later one.
const FORMAT: u32 = 1;

/// How far the state is written down, and held.
#[derive(Default)]
pub(crate) struct Versions {
    /// The state changed since it was written down last.
    pub(crate) changed: bool,
    /// The version that was written down last.
    pub(crate) newest: u64,
    /// The newest version that the record holds.
    pub(crate) held: u64,
}

/// The state as it is written down.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct State {
    format: u32,
    /// Is the handshake done?
    pub(crate) initialized: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    level: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) subscriptions: BTreeSet<Box<str>>,
    /// The methods that the server notifies changes of its lists with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lists: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) tools: bool,
    /// The ids of requests that were cancelled, of which no log says so, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cancelled: Vec<RequestId>,
    /// The ids of requests for which the client was asked something on another stream than
    /// their own, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) askers: Vec<RequestId>,
}

/// What every format of the state has.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl State {
    /// Reads a state; none was written before the client sent `initialized`.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        // First: the rest of a later format may be anything.
        let Format { format } = serde_json::from_slice(bytes).map_err(|_| Unreadable::STATE)?;
        if format > FORMAT {
            return Err(Unreadable::NEWER_STATE);
        }
        let state: Self = serde_json::from_slice(bytes).map_err(|_| Unreadable::STATE)?;
        let level_is_known = state.level.as_deref().is_none_or(|l| LogLevel::named(l).is_some());
        if format == FORMAT && level_is_known { Ok(state) } else { Err(Unreadable::STATE) }
    }

    pub(crate) fn level(&self) -> Option<LogLevel> {
        self.level.as_deref().and_then(LogLevel::named)
    }

    pub(crate) fn server_lists(&self) -> ThinVec<Method> {
        self.lists.iter().map(|name| Method::from(name.as_str())).collect()
    }
}

impl Session {
    /// The newest state and its version; [`crate::Effect::Save`] has saved it already,
    /// unless it was never changed.
    pub fn saved(&self) -> (u64, Arc<[u8]>) {
        (self.versions.newest, self.state())
    }

    fn state(&self) -> Arc<[u8]> {
        let state = State {
            format: FORMAT,
            initialized: self.is_live(),
            level: self.level.map(|level| level.as_str().to_owned()),
            subscriptions: self.subscriptions().clone(),
            lists: self.server_lists().iter().map(|method| method.as_str().to_owned()).collect(),
            tools: self.client.as_ref().is_some_and(|client| client.server_has_tools),
            cancelled: self.cancelled.ids().to_vec(),
            askers: self.askers.as_slice().to_vec(),
        };
        // Writing strings and numbers to memory cannot fail.
        serde_json::to_vec(&state).unwrap_or_default().into()
    }

    /// The version that holds everything that has changed so far.
    pub(crate) fn version(&self) -> u64 {
        self.versions.newest + u64::from(self.is_to_be_saved())
    }

    /// Writes down what has changed, once for each step. A duplex session lives as long as
    /// its connection, so nothing of it is kept.
    pub(crate) fn save(&mut self, context: &mut StepContext<'_>) {
        if self.is_to_be_saved() {
            self.versions.changed = false;
            self.versions.newest += 1;
            let (version, state) = self.saved();
            context.effects.push(Effect::Save { version, state });
        }
    }

    fn is_to_be_saved(&self) -> bool {
        self.versions.changed && self.is_initialized() && !self.is_over() && self.duplex.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_a_newer_format_is_told_from_a_corrupt_one() {
        let read = |text: &str| State::read(text.as_bytes()).err();
        assert_eq!(read(r#"{"format":1,"initialized":true}"#), None);
        assert_eq!(
            read(r#"{"format":2,"initialized":{"since":7}}"#),
            Some(Unreadable::NEWER_STATE)
        );
        for corrupt in ["{", r#"{"format":0,"initialized":true}"#, r#"{"format":1}"#] {
            assert_eq!(read(corrupt), Some(Unreadable::STATE), "{corrupt}");
        }
    }
}
