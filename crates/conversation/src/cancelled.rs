//! Cancellations that no log entry holds: of requests that were not (or not yet) a stream here.
//!
//! A request that a node holds for an owner it cannot reach, or that is answered as JSON,
//! is posted again to the next owner. Its cancellation must be there before it, so the ids
//! are part of the state that is saved before the notification is acknowledged. Most
//! cancellations are late: their request was just answered. Those cost no store write, as
//! long as the request is among the newest [`ANSWERED_MAX`] that were answered as JSON to a
//! connection of this node's own, or its stream is still known.

use protocol::RequestId;
use thin_vec::ThinVec;

use crate::exchange::{CallId, Form};
use crate::posting::Unanswered;
use crate::saved_ids::SavedIds;
use crate::session::Session;

/// How many of the newest answered requests are recognised. A late cancellation of an older
/// one costs a store write, and nothing else.
const ANSWERED_MAX: usize = 8;

/// The cancelled ids of a session, and what tells late cancellations from early ones.
#[derive(Default)]
pub(crate) struct Cancelled {
    kept: SavedIds,
    /// Hashes of ids that were answered as JSON, in a ring. Two ids of one hash only make a
    /// cancellation less durable than it might be.
    answered: ThinVec<u32>,
    /// Where in the ring the next one goes.
    next: u8,
}

impl Cancelled {
    /// As another owner saved them.
    pub(crate) fn restored(kept: SavedIds) -> Self {
        Self { kept, ..Self::default() }
    }

    pub(crate) fn ids(&self) -> &[RequestId] {
        self.kept.as_slice()
    }

    /// Notes that a request has its final response, as JSON, at a connection of this node's own.
    pub(crate) fn note_answered(&mut self, id: &RequestId) {
        let at = usize::from(self.next);
        self.next = (self.next + 1) % ANSWERED_MAX as u8;
        if let Some(oldest) = self.answered.get_mut(at) {
            *oldest = hash(id);
            return;
        }
        if self.answered.is_empty() {
            self.answered.reserve_exact(ANSWERED_MAX);
        }
        self.answered.push(hash(id));
    }
}

/// FNV-1a, which costs a few instructions for an id.
fn hash(id: &RequestId) -> u32 {
    let over = |bytes: &[u8], seed: u32| {
        bytes.iter().fold(seed, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
    };
    match id {
        // Clients count: the low bits differ, and one multiplication spreads them.
        RequestId::Number(number) => (*number as u32).wrapping_mul(0x9E37_79B1),
        RequestId::String(text) => over(text.as_bytes(), 0x811c_9dc6),
    }
}

impl Session {
    /// Was this request cancelled, here or at a former owner?
    pub(crate) fn is_cancelled(&self, id: &RequestId) -> bool {
        let ended = |ended: &Unanswered| ended.by_client && ended.id == *id;
        self.unanswered.iter().any(ended) || self.cancelled.kept.contains(id)
    }

    /// Keeps a cancelled id for the next owner; the notification is acknowledged once the
    /// record holds it. A duplex session has no next owner.
    pub(crate) fn keep_cancelled(&mut self, id: &RequestId) {
        if self.duplex.is_none() && !mutant!("forget_a_cancellation") {
            self.versions.changed |= self.cancelled.kept.keep(id);
        }
    }

    /// As [`Session::keep_cancelled`], for a request in flight: unless its stream's log says so.
    pub(crate) fn keep_cancelled_call(&mut self, call: CallId, id: &RequestId) {
        let mut calls = self.calls.iter();
        if !calls.any(|other| other.id == call && matches!(other.form, Form::Stream(_))) {
            self.keep_cancelled(id);
        }
    }

    /// As [`Session::keep_cancelled`], for a request that is not in flight: unless it has
    /// been here, and is over.
    pub(crate) fn keep_cancelled_early(&mut self, id: &RequestId) {
        let is_over = {
            let streams = self.streams.iter().map(|(_, stream)| &stream.requests);
            let mut known =
                streams.chain(self.finished.iter().map(|tombstone| &tombstone.requests));
            self.unanswered.iter().any(|ended| ended.id == *id)
                || self.cancelled.answered.contains(&hash(id))
                || known.any(|requests| requests.iter().any(|owed| owed.id == *id))
        };
        if !is_over {
            self.keep_cancelled(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_answered_requests_are_recognised() {
        let mut cancelled = Cancelled::default();
        let ids: Vec<RequestId> = (0..20_i64).map(RequestId::from).collect();
        ids.iter().for_each(|id| cancelled.note_answered(id));
        let known = ids.iter().filter(|id| cancelled.answered.contains(&hash(id)));
        assert_eq!(known.collect::<Vec<_>>(), ids[12..].iter().collect::<Vec<_>>());
        assert_ne!(hash(&7.into()), hash(&"7".into()));
    }
}
