//! The encoding of the state in the session's record: the whole state as a JSON object, and behind it
//! an object for each difference that was saved later.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::payload::LogLevel;
use protocol::{Method, RequestId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use thin_vec::ThinVec;

use crate::Definition;
use crate::Unreadable;
use crate::journal::{Change, Lengths};
use crate::saved_ids::SavedIds;

/// The format that this version writes. It reads no later one.
const FORMAT: u32 = 1;

/// The usual length of a state without its subscriptions.
const REST_BYTES: usize = 256;

/// The state as it is encoded; or a difference, which has no subscriptions and no ids, but changes of
/// them.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct State<'a> {
    format: u32,
    /// Is the handshake done?
    pub(crate) initialized: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    level: Option<String>,
    /// Borrowed by a session that saves: they may be long.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub(crate) subscriptions: Cow<'a, BTreeSet<Box<str>>>,
    /// The notifications of list changes that the client was promised.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lists: Vec<String>,
    /// The definition of the server that made the last handshake. A version that does not know this
    /// field ignores it, and leaves it out of what it saves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) definition: Option<Definition>,
    /// What the link saved for the next owner. Of a difference: only if it has changed; empty if nothing is
    /// left of it. A version that does not know this field ignores it, as it does the definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) tools: bool,
    /// The ids of requests that were cancelled, and whose cancellation is in no log, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cancelled: Vec<RequestId>,
    /// The ids of requests for which the client got a server request on another stream than their
    /// own, oldest first.
    #[serde(default, rename = "askers", skip_serializing_if = "Vec::is_empty")]
    pub(crate) with_server_requests: Vec<RequestId>,
    /// Of a difference: the changes of the subscriptions and ids, in their order.
    #[serde(default, skip_serializing_if = "<[Change]>::is_empty")]
    pub(crate) changes: Cow<'a, [Change]>,
    /// Was nothing saved yet?
    #[serde(skip)]
    is_unsaved: bool,
    /// The lengths of what was read.
    #[serde(skip)]
    pub(crate) lengths: Lengths,
}

/// The field of every format of the state.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

fn is_empty(subscriptions: &BTreeSet<Box<str>>) -> bool {
    subscriptions.is_empty()
}

impl State<'_> {
    pub(crate) fn new(level: Option<LogLevel>, lists: &[Method]) -> Self {
        Self {
            format: FORMAT,
            level: level.map(|level| level.as_str().to_owned()),
            lists: lists.iter().map(|method| method.as_str().to_owned()).collect(),
            ..Self::default()
        }
    }

    pub(crate) fn encode(&self) -> Arc<[u8]> {
        let uris: usize = self.subscriptions.iter().map(|uri| uri.len() + 3).sum();
        let changes: usize = self.changes.iter().map(Change::encoded_bytes).sum();
        let link = self.link.as_ref().map_or(0, |link| link.len());
        let mut encoded = Vec::with_capacity(uris + changes + link + REST_BYTES);
        // Writing strings and numbers to memory cannot fail.
        let written = serde_json::to_writer(&mut encoded, self);
        if written.is_ok() { encoded.into() } else { Arc::default() }
    }

    /// Reads a state with its differences; none was written before the client sent `initialized`.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        if bytes.is_empty() {
            return Ok(Self { is_unsaved: true, ..Self::default() });
        }
        let mut objects = serde_json::Deserializer::from_slice(bytes).into_iter::<&RawValue>();
        let mut next = || objects.next().transpose().map_err(|_| Unreadable::STATE);
        let whole = next()?.ok_or(Unreadable::STATE)?.get();
        let mut state = Self::read_object(whole)?;
        state.lengths.whole_bytes = whole.len();
        while let Some(difference) = next()? {
            state.apply(Self::read_object(difference.get())?);
            state.lengths.add_difference(difference.get().len());
        }
        Ok(state)
    }

    fn read_object(object: &str) -> Result<Self, Unreadable> {
        // Read first: the rest of a later format is unknown.
        let Format { format } = serde_json::from_str(object).map_err(|_| Unreadable::STATE)?;
        if format > FORMAT {
            return Err(Unreadable::NEWER_STATE);
        }
        let state: Self = serde_json::from_str(object).map_err(|_| Unreadable::STATE)?;
        let level_is_known = state.level.as_deref().is_none_or(|l| LogLevel::named(l).is_some());
        if format == FORMAT && level_is_known { Ok(state) } else { Err(Unreadable::STATE) }
    }

    /// Changes the state as a difference says.
    fn apply(&mut self, difference: State<'_>) {
        self.initialized = difference.initialized;
        self.level = difference.level;
        self.lists = difference.lists;
        self.definition = difference.definition;
        self.tools = difference.tools;
        if let Some(link) = difference.link {
            let link = Some(link).filter(|link| !link.is_empty());
            self.link = link.map(|link| Cow::Owned(link.into_owned()));
        }
        for change in difference.changes.into_owned() {
            match change {
                Change::Subscribed(uri) => drop(self.subscriptions.to_mut().insert(uri)),
                Change::Unsubscribed(uri) => drop(self.subscriptions.to_mut().remove(&uri)),
                Change::Cancelled(id) => add_id(&mut self.cancelled, &id),
                Change::WithServerRequest(id) => add_id(&mut self.with_server_requests, &id),
            }
        }
    }

    pub(crate) fn level(&self) -> Option<LogLevel> {
        self.level.as_deref().and_then(LogLevel::named)
    }

    /// The notifications of list changes that the client was promised; `None` if that was not saved.
    pub(crate) fn promised_lists(&self) -> Option<ThinVec<Method>> {
        let lists = || self.lists.iter().map(|name| Method::from(name.as_str())).collect();
        (!self.is_unsaved).then(lists)
    }
}

/// Adds an id as a session adds it.
fn add_id(ids: &mut Vec<RequestId>, id: &RequestId) {
    let mut saved = SavedIds::restored(std::mem::take(ids).into());
    saved.add_id(id);
    *ids = saved.as_slice().to_vec();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_a_newer_format_is_distinguished_from_a_corrupt_one() {
        let read = |text: &str| State::read(text.as_bytes()).err();
        assert_eq!(read(r#"{"format":1,"initialized":true}"#), None);
        assert_eq!(
            read(r#"{"format":2,"initialized":{"since":7}}"#),
            Some(Unreadable::NEWER_STATE)
        );
        for corrupt in ["{", " ", r#"{"format":0,"initialized":true}"#, r#"{"format":1}"#] {
            assert_eq!(read(corrupt), Some(Unreadable::STATE), "{corrupt}");
        }
        let whole = r#"{"format":1,"initialized":true}"#;
        assert_eq!(read(&format!("{whole}{whole}")), None);
        for corrupt in
            ["{", "7", r#"{"format":1}"#, r#"{"format":1,"initialized":true,"changes":[{"x":1}]}"#]
        {
            assert_eq!(read(&format!("{whole}{corrupt}")), Some(Unreadable::STATE), "{corrupt}");
        }
        let newer = r#"{"format":2}"#;
        assert_eq!(read(&format!("{whole}{newer}")), Some(Unreadable::NEWER_STATE));
    }
}
