//! The state that must outlive the owner and is in no log: the log level, the subscriptions, and
//! ids of requests; and which version of it the store holds.
//!
//! A request may be posted again to the next owner if a node holds it for a lost owner, or if it
//! was answered as JSON. The next owner must know its cancellation first, so the ids of cancelled
//! requests are saved before the notification is acknowledged.
//!
//! A server request is sent on the stream of the call that it is for. If that call has no stream,
//! since its connection is lost and no event was sent, the server request is sent on the client's
//! GET stream. No log then has which call it was for. The next owner must not run that call
//! again, or the client would get the server request twice. The ids of such calls are therefore
//! saved before the server request is sent.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::payload::LogLevel;
use protocol::{ErrorCode, RequestId};

use crate::handshake::Handshake;
use crate::journal::{Change, Journal, Lengths, StateChange};
use crate::saved_ids::SavedIds;
use crate::sparse::Sparse;
use crate::state::State;
use crate::step_context::StepContext;
use crate::subscriptions::Subscriptions;
use crate::{Effect, Limits};

/// The saved state of a session, and its versions.
#[derive(Default)]
pub(crate) struct Persisted {
    /// The log level that the client set.
    level: Option<LogLevel>,
    /// The resources that the client has subscribed to; bounded by `subscriptions_max`.
    subscriptions: Sparse<Subscriptions>,
    ids: Sparse<Ids>,
    /// The state changed since it was saved last.
    is_changed: bool,
    /// What the link saved has changed since the state was saved last.
    is_link_changed: bool,
    /// What changed, if the state is long.
    journal: Sparse<Journal>,
    /// The version that was saved last.
    newest: u64,
    /// The newest version that the record holds.
    held: u64,
}

/// The ids of requests in a state.
#[derive(Default)]
struct Ids {
    /// Requests that were cancelled, and whose cancellation is in no log.
    cancelled: SavedIds,
    /// Requests for which the client got a server request on another stream than their own.
    with_server_requests: SavedIds,
}

impl Persisted {
    /// As another owner saved it.
    pub(crate) fn restored(state: State<'_>, version: u64, limits: &Limits) -> Self {
        let level = state.level().filter(|_| !mutant!("restore_no_level"));
        let State { subscriptions, cancelled, with_server_requests, .. } = state;
        let has_ids = !cancelled.is_empty() || !with_server_requests.is_empty();
        let ids = has_ids.then(|| Ids {
            cancelled: SavedIds::restored(cancelled.into()),
            with_server_requests: SavedIds::restored(with_server_requests.into()),
        });
        let journal = Journal::new(limits, state.lengths);
        Self {
            level,
            subscriptions: if subscriptions.is_empty() {
                Sparse::default()
            } else {
                Sparse::new(subscriptions.into_owned().into_iter().collect())
            },
            ids: Sparse::from_option(ids),
            is_changed: false,
            is_link_changed: false,
            journal: Sparse::from_option(journal),
            newest: version,
            held: version,
        }
    }

    /// A part of the saved state has changed.
    pub(crate) fn note_change(&mut self, is_changed: bool) {
        self.is_changed |= is_changed;
    }

    /// What the link saved has changed.
    pub(crate) fn note_link_change(&mut self, is_changed: bool) {
        self.is_changed |= is_changed;
        self.is_link_changed |= is_changed;
    }

    pub(crate) fn level(&self) -> Option<LogLevel> {
        self.level
    }

    pub(crate) fn set_level(&mut self, level: LogLevel) {
        self.is_changed |= self.level != Some(level);
        self.level = Some(level);
    }

    pub(crate) fn subscriptions(&self) -> &BTreeSet<Box<str>> {
        static NONE: BTreeSet<Box<str>> = BTreeSet::new();
        self.subscriptions.get().map_or(&NONE, Subscriptions::uris)
    }

    /// The length of all URIs of subscriptions, and of a long state as its owner keeps it, encoded.
    pub(crate) fn bytes(&self) -> usize {
        self.subscription_bytes() + self.journal.get().map_or(0, Journal::bytes)
    }

    fn subscription_bytes(&self) -> usize {
        self.subscriptions.get().map_or(0, Subscriptions::bytes)
    }

    /// The server confirmed a subscription.
    pub(crate) fn subscribe(&mut self, uri: Box<str>) {
        if !self.subscriptions().contains(&uri) {
            self.note(|| Change::Subscribed(uri.clone()));
            self.subscriptions.get_or_insert_with(Subscriptions::default).add_uri(uri);
        }
    }

    /// The server confirmed that a subscription has ended.
    pub(crate) fn unsubscribe(&mut self, uri: &str) {
        let Some(subscriptions) = self.subscriptions.get_mut() else { return };
        if !subscriptions.remove_uri(uri) {
            return;
        }
        if subscriptions.uris().is_empty() {
            self.subscriptions.clear();
        }
        self.note(|| Change::Unsubscribed(uri.into()));
    }

    /// Did the client subscribe to this resource, or to one that it is part of (RES-06)?
    pub(crate) fn is_subscribed(&self, uri: &str) -> bool {
        self.subscriptions().iter().any(|subscribed| uri.starts_with(&**subscribed))
    }

    /// May the client subscribe to this resource? `pending` are the URIs of the subscriptions
    /// that the server has yet to confirm; their bytes count.
    pub(crate) fn check_subscription<'a>(
        &self,
        limits: &Limits,
        uri: &str,
        pending: impl Iterator<Item = &'a str>,
    ) -> Result<(), (ErrorCode, String)> {
        let most = limits.subscription_uri_bytes_max;
        if uri.len() > most {
            let message = format!(
                "`uri` is longer than {most} bytes (sessions.subscription_uri_bytes_max); \
                 subscribe to a shorter one"
            );
            return Err((ErrorCode::InvalidParams, message));
        }
        self.check_subscription_bytes(limits, uri, pending)?;
        if self.subscriptions().len() >= limits.subscriptions_max {
            let message = "the session has as many subscriptions as it may; unsubscribe some";
            return Err((ErrorCode::Refused, message.to_owned()));
        }
        Ok(())
    }

    fn check_subscription_bytes<'a>(
        &self,
        limits: &Limits,
        uri: &str,
        pending: impl Iterator<Item = &'a str>,
    ) -> Result<(), (ErrorCode, String)> {
        if self.subscriptions().contains(uri) {
            return Ok(());
        }
        let bytes = self.subscription_bytes() + pending.map(str::len).sum::<usize>();
        let most = limits.subscriptions_bytes_max;
        if bytes + uri.len() > most {
            let message = format!(
                "the URIs that the session is subscribed to would be longer than {most} bytes \
                 together (sessions.subscriptions_bytes_max); unsubscribe some"
            );
            return Err((ErrorCode::Refused, message));
        }
        Ok(())
    }

    /// Was this request cancelled? Only for cancellations that no log holds.
    pub(crate) fn is_cancelled(&self, id: &RequestId) -> bool {
        self.ids.get().is_some_and(|ids| ids.cancelled.contains(id))
    }

    /// Saves the id of a cancelled request for the next owner; the notification is acknowledged
    /// once the record holds it. A duplex session has no next owner.
    pub(crate) fn save_cancelled(&mut self, context: &StepContext<'_>, id: &RequestId) {
        if !context.is_duplex() && !mutant!("forget_a_cancellation") {
            let ids = self.ids.get_or_insert_with(Ids::default);
            if ids.cancelled.add_id(id) {
                self.note(|| Change::Cancelled(id.clone()));
            }
        }
    }

    /// Did the client get a server request for this request on another stream than its own?
    pub(crate) fn has_sent_server_request(&self, id: &RequestId) -> bool {
        self.ids.get().is_some_and(|ids| ids.with_server_requests.contains(id))
    }

    /// Saves the id of a request for which the client is sent a server request on another stream.
    pub(crate) fn save_sent_server_request(&mut self, id: &RequestId) {
        let ids = self.ids.get_or_insert_with(Ids::default);
        if ids.with_server_requests.add_id(id) {
            self.note(|| Change::WithServerRequest(id.clone()));
        }
    }

    /// The subscriptions or the ids have changed.
    fn note(&mut self, change: impl FnOnce() -> Change) {
        self.is_changed = true;
        if let Some(journal) = self.journal.get_mut() {
            journal.note(change());
        }
    }

    /// The version with everything that has changed so far.
    pub(crate) fn version(&self, context: &StepContext<'_>, handshake: &Handshake) -> u64 {
        self.newest + u64::from(self.is_to_be_saved(context.is_duplex(), handshake))
    }

    /// The newest version that the record holds.
    pub(crate) fn held_version(&self) -> u64 {
        self.held
    }

    /// The record holds this version.
    pub(crate) fn note_saved(&mut self, version: u64) {
        self.held = self.held.max(version);
    }

    /// Does the record hold everything that has changed so far?
    pub(crate) fn is_held(&self, is_duplex: bool, handshake: &Handshake) -> bool {
        self.held >= self.newest + u64::from(self.is_to_be_saved(is_duplex, handshake))
    }

    /// Saves what has changed, once for each step. A duplex session lasts as long as its
    /// connection, so nothing of it is saved.
    pub(crate) fn save(&mut self, context: &mut StepContext<'_>, handshake: &Handshake) {
        if self.is_to_be_saved(context.is_duplex(), handshake) {
            self.is_changed = false;
            self.newest += 1;
            let change = self.change(context.limits(), handshake);
            context.effects.push(Effect::Save { version: self.newest, change });
        }
    }

    /// What is to be saved: all of a short state, what changed of a long one.
    fn change(&mut self, limits: &Limits, handshake: &Handshake) -> StateChange {
        let is_link_changed = std::mem::take(&mut self.is_link_changed);
        let changes = self.journal.get_mut().and_then(Journal::take_changes);
        if let Some(changes) = changes {
            let mut difference = self.without_collections(handshake);
            difference.link = is_link_changed.then(|| saved_link(handshake).unwrap_or_default());
            difference.changes = changes.into();
            let encoded = difference.encode();
            if let Some(journal) = self.journal.get_mut() {
                journal.note_difference(encoded.len());
            }
            return StateChange::Difference(encoded);
        }
        let whole = self.saved(handshake).1;
        let lengths = Lengths { whole_bytes: whole.len(), ..Lengths::default() };
        self.journal = Sparse::from_option(Journal::new(limits, lengths));
        StateChange::Whole(whole)
    }

    /// Saves the whole state if differences were saved: a node of the version before reads no
    /// differences, and may be the next owner.
    pub(crate) fn save_whole(&mut self) {
        if self.journal.get().is_some_and(Journal::has_differences) {
            self.journal.clear();
            self.is_changed = true;
        }
    }

    fn is_to_be_saved(&self, is_duplex: bool, handshake: &Handshake) -> bool {
        self.is_changed && handshake.is_initialized() && !handshake.is_over() && !is_duplex
    }

    /// The newest state and its version.
    pub(crate) fn saved(&self, handshake: &Handshake) -> (u64, Arc<[u8]>) {
        let mut state = self.without_collections(handshake);
        state.link = saved_link(handshake);
        state.subscriptions = Cow::Borrowed(self.subscriptions());
        if let Some(ids) = self.ids.get() {
            state.cancelled = ids.cancelled.as_slice().to_vec();
            state.with_server_requests = ids.with_server_requests.as_slice().to_vec();
        }
        (self.newest, state.encode())
    }

    fn without_collections<'a>(&self, handshake: &Handshake) -> State<'a> {
        let mut state = State::new(self.level, &handshake.promised_lists());
        state.definition = handshake.definition();
        state.initialized = handshake.is_live();
        state.tools = handshake.server_has_tools();
        state
    }
}

fn saved_link(handshake: &Handshake) -> Option<Cow<'_, str>> {
    handshake.saved_link().map(|state| Cow::Borrowed(&**state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_subscribed_to_with_what_it_is_part_of() {
        let mut persisted = Persisted::default();
        persisted.subscribe("file:///a/".into());
        assert!(persisted.is_subscribed("file:///a/b"));
        assert!(!persisted.is_subscribed("file:///b"));
        persisted.unsubscribe("file:///a/");
        assert!(persisted.subscriptions().is_empty());
    }

    #[test]
    fn subscriptions_that_are_not_confirmed_count_against_the_bytes() {
        let limits = Limits { subscriptions_bytes_max: 10, ..Limits::default() };
        let mut persisted = Persisted::default();
        persisted.subscribe("aaaa".into());
        let check = |pending: &[&'static str]| {
            persisted.check_subscription(&limits, "cccc", pending.iter().copied()).is_ok()
        };
        assert!(check(&[]));
        assert!(!check(&["bbb"]));
    }
}
