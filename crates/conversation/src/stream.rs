//! A stream of the log, the tombstone of one that has ended, and the requests of both.

use protocol::RequestId;

use crate::Millis;
use crate::entry::{NewStreamRequest, Rerunnable};
use crate::exchange::PostId;
use crate::resumable::{Resumable, StreamPosition};

/// A stream of the log.
pub(crate) struct Stream {
    /// The requests that it answers; empty for a standalone stream.
    pub(crate) requests: Vec<StreamRequest>,
    /// The POST it belongs to, while that has open requests.
    pub(crate) post: Option<PostId>,
    /// The number of its newest entry that can be sent.
    pub(crate) last: u64,
    /// The number of its newest entry that was trimmed; 0 for none.
    pub(crate) trimmed: u64,
    pub(crate) closed: bool,
    /// Was a server request sent on it, for any of its requests?
    pub(crate) sent_server_request: bool,
}

impl Stream {
    pub(crate) fn new(number: u64, requests: Vec<StreamRequest>, post: Option<PostId>) -> Self {
        Self { requests, post, last: number, trimmed: 0, closed: false, sent_server_request: false }
    }

    /// A stream as its first entry opens it.
    pub(crate) fn opened(
        number: u64,
        new_requests: &[NewStreamRequest],
        post: Option<PostId>,
    ) -> Self {
        let request = |new_request: &NewStreamRequest| StreamRequest {
            rerun: new_request.rerun.clone(),
            resumable: new_request.resumable.clone(),
            ..StreamRequest::new(new_request.id.clone(), 0)
        };
        Self::new(number, new_requests.iter().map(request).collect(), post)
    }

    /// Notes that a request has its final response, or needs none.
    pub(crate) fn settle(&mut self, id: &RequestId, number: u64) {
        if let Some(request) = self.requests.iter_mut().find(|request| request.id == *id) {
            *request = StreamRequest::new(id.clone(), number);
        }
    }

    /// A request's stream at the server was read so far. Returns whether this stream answers it.
    pub(crate) fn note_position(&mut self, read: &StreamPosition) -> bool {
        let is_named = |request: &&mut StreamRequest| {
            Some(&request.id) == read.about.as_ref() && !request.is_settled()
        };
        let request = self.requests.iter_mut().find(is_named);
        let resumable = request.and_then(|request| request.resumable.as_mut());
        resumable.map(|resumable| resumable.position = Some(read.position.clone())).is_some()
    }

    pub(crate) fn is_standalone(&self) -> bool {
        self.requests.is_empty()
    }

    pub(crate) fn answers(&self, id: &RequestId) -> bool {
        self.requests.iter().any(|request| request.id == *id)
    }
}

/// The tombstone of a stream that cannot be replayed any more.
pub(crate) struct Tombstone {
    pub(crate) stream: u64,
    pub(crate) last: u64,
    pub(crate) requests: Vec<StreamRequest>,
    /// Since when; it is dropped after `replay_secs`.
    pub(crate) ended_at: Millis,
}

impl Tombstone {
    /// Reduces a stream to what its client may still resume.
    pub(crate) fn of(number: u64, stream: Stream, now: Millis) -> Self {
        let Stream { last, mut requests, .. } = stream;
        requests.iter_mut().for_each(|request| {
            *request = StreamRequest::new(request.id.clone(), request.final_response)
        });
        Self { stream: number, last, requests, ended_at: now }
    }

    pub(crate) fn answers(&self, id: &RequestId) -> bool {
        self.requests.iter().any(|request| request.id == *id)
    }
}

/// A request that a stream answers.
#[derive(Clone)]
pub(crate) struct StreamRequest {
    pub(crate) id: RequestId,
    /// The number of its final response, or of its cancellation; 0 before there is one.
    pub(crate) final_response: u64,
    /// The request itself, while another owner might have to run it again.
    pub(crate) rerun: Option<Rerunnable>,
    /// Its newest progress at a former owner, if the log does not hold that any more.
    pub(crate) progress: Option<f64>,
    /// How the next owner may wait for its response.
    pub(crate) resumable: Option<Box<Resumable>>,
}

impl StreamRequest {
    pub(crate) fn new(id: RequestId, final_response: u64) -> Self {
        Self { id, final_response, rerun: None, progress: None, resumable: None }
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.final_response != 0
    }
}
