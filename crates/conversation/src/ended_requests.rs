//! Requests that are over, for which a late message may still arrive: a response of the server,
//! or a cancellation of the client.
//!
//! Most cancellations are late: their request was just answered. They cost no store write in two
//! cases: the request is among the newest [`ANSWERED_MAX`] that were answered as JSON to a
//! connection of this node, or its stream is still known.

use protocol::RequestId;
use thin_vec::ThinVec;

/// Most remembered requests that ended without the server's answer; the oldest is dropped.
const UNANSWERED_MAX: usize = 64;

/// The number of newest answered requests that are recognised. A late cancellation of an older
/// one costs a store write, and nothing else.
const ANSWERED_MAX: usize = 8;

/// The requests that ended recently.
#[derive(Default)]
pub(crate) struct EndedRequests {
    unanswered: ThinVec<Unanswered>,
    /// Hashes of ids that were answered as JSON, in a circular buffer. If two ids share a hash, a
    /// cancellation may be lost with its owner.
    answered: ThinVec<u32>,
    /// Index of the next hash.
    next: u8,
}

/// A request that ended without the server's answer, which may arrive late.
struct Unanswered {
    id: RequestId,
    /// The client cancelled it and gets no answer; otherwise it timed out.
    by_client: bool,
}

impl EndedRequests {
    /// Restores what another owner saved: the requests that their clients cancelled.
    pub(crate) fn restored(cancelled: &[RequestId]) -> Self {
        let unanswered = |id: &RequestId| Unanswered { id: id.clone(), by_client: true };
        Self { unanswered: cancelled.iter().map(unanswered).collect(), ..Self::default() }
    }

    /// Adds a request that ended here and that the server may still answer.
    pub(crate) fn expect_late_response(&mut self, id: &RequestId, by_client: bool) {
        if let Some(known) = self.unanswered.iter_mut().find(|known| known.id == *id) {
            known.by_client |= by_client;
            return;
        }
        if self.unanswered.len() >= UNANSWERED_MAX {
            self.unanswered.remove(0);
        }
        self.unanswered.push(Unanswered { id: id.clone(), by_client });
    }

    /// The server sent its late response.
    pub(crate) fn note_late_response(&mut self, id: Option<&RequestId>) {
        self.unanswered.retain(|ended| Some(&ended.id) != id);
    }

    /// Did this request end without the server's answer?
    pub(crate) fn is_unanswered(&self, id: &RequestId) -> bool {
        self.unanswered.iter().any(|ended| ended.id == *id)
    }

    /// Did the client cancel this request?
    pub(crate) fn is_cancelled(&self, id: &RequestId) -> bool {
        self.unanswered.iter().any(|ended| ended.by_client && ended.id == *id)
    }

    /// Adds a request that was answered as JSON on a connection to this node.
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

    /// Is this one of the newest requests that were answered?
    pub(crate) fn is_answered(&self, id: &RequestId) -> bool {
        self.answered.contains(&hash(id))
    }
}

/// FNV-1a, which takes a few instructions for an id.
fn hash(id: &RequestId) -> u32 {
    let over = |bytes: &[u8], seed: u32| {
        bytes.iter().fold(seed, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
    };
    match id {
        // Ids are usually counters: the low bits differ, and one multiplication spreads them.
        RequestId::Number(number) => (*number as u32).wrapping_mul(0x9E37_79B1),
        RequestId::String(text) => over(text.as_bytes(), 0x811c_9dc6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_answered_requests_are_recognised() {
        let mut ended = EndedRequests::default();
        let ids: Vec<RequestId> = (0..20_i64).map(RequestId::from).collect();
        ids.iter().for_each(|id| ended.note_answered(id));
        let known = ids.iter().filter(|id| ended.is_answered(id));
        assert_eq!(known.collect::<Vec<_>>(), ids[12..].iter().collect::<Vec<_>>());
        assert_ne!(hash(&7.into()), hash(&"7".into()));
    }

    #[test]
    fn a_request_that_took_too_long_may_be_cancelled_by_its_client_afterwards() {
        let mut ended = EndedRequests::default();
        ended.expect_late_response(&1.into(), false);
        assert!(ended.is_unanswered(&1.into()) && !ended.is_cancelled(&1.into()));
        ended.expect_late_response(&1.into(), true);
        assert!(ended.is_cancelled(&1.into()));
        ended.note_late_response(Some(&1.into()));
        assert!(!ended.is_unanswered(&1.into()));
    }
}
