//! A stream of the log, what is remembered of one that has ended, and the requests of both.

use protocol::RequestId;

use crate::Millis;
use crate::entry::{Opening, Rerunnable};
use crate::exchange::PostId;

/// A stream of the log.
pub(crate) struct Stream {
    /// The requests it answers; none for a standalone stream.
    pub(crate) requests: Vec<Owed>,
    /// The POST it belongs to, while that has open requests.
    pub(crate) post: Option<PostId>,
    /// The number of its newest entry that can be sent.
    pub(crate) last: u64,
    /// The number of its newest entry that was trimmed; 0 for none.
    pub(crate) trimmed: u64,
    pub(crate) closed: bool,
    /// Was a server request of any of its requests sent on it?
    pub(crate) asked: bool,
}

impl Stream {
    pub(crate) fn new(number: u64, requests: Vec<Owed>, post: Option<PostId>) -> Self {
        Self { requests, post, last: number, trimmed: 0, closed: false, asked: false }
    }

    /// A stream as its first entry opens it.
    pub(crate) fn opened(number: u64, openings: &[Opening], post: Option<PostId>) -> Self {
        let owed = |opening: &Opening| Owed {
            rerun: opening.rerun.clone(),
            ..Owed::new(opening.id.clone(), 0)
        };
        Self::new(number, openings.iter().map(owed).collect(), post)
    }

    /// Notes that a request has its final response, or needs none.
    pub(crate) fn settle(&mut self, id: &RequestId, number: u64) {
        if let Some(owed) = self.requests.iter_mut().find(|owed| owed.id == *id) {
            *owed = Owed::new(id.clone(), number);
        }
    }

    pub(crate) fn is_standalone(&self) -> bool {
        self.requests.is_empty()
    }

    pub(crate) fn answers(&self, id: &RequestId) -> bool {
        self.requests.iter().any(|owed| owed.id == *id)
    }
}

/// What is remembered of a stream when nothing of it can be replayed any more.
pub(crate) struct Tombstone {
    pub(crate) stream: u64,
    pub(crate) last: u64,
    pub(crate) requests: Vec<Owed>,
    /// Since when: it is forgotten after `replay_secs`.
    pub(crate) ended_at: Millis,
}

impl Tombstone {
    /// Forgets a stream but for what its client may still ask for.
    pub(crate) fn of(number: u64, stream: Stream, now: Millis) -> Self {
        let Stream { last, mut requests, .. } = stream;
        requests.iter_mut().for_each(|owed| (owed.rerun, owed.progress) = (None, None));
        Self { stream: number, last, requests, ended_at: now }
    }

    pub(crate) fn answers(&self, id: &RequestId) -> bool {
        self.requests.iter().any(|owed| owed.id == *id)
    }
}

/// A request that a stream answers.
#[derive(Clone)]
pub(crate) struct Owed {
    pub(crate) id: RequestId,
    /// The number of its final response, or of its cancellation; 0 before there is one.
    pub(crate) final_response: u64,
    /// The request itself, while another owner might have to run it again.
    pub(crate) rerun: Option<Rerunnable>,
    /// How far its progress had come at a former owner, where the log does not say any more.
    pub(crate) progress: Option<f64>,
}

impl Owed {
    pub(crate) fn new(id: RequestId, final_response: u64) -> Self {
        Self { id, final_response, rerun: None, progress: None }
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.final_response != 0
    }
}
