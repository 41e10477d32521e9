//! A request of the client's until its final response, and the POST that waits for it.

use bytes::Bytes;
use protocol::{Method, RequestId};

use crate::pace::Pace;
use crate::{Millis, SinkId};

/// A request of the client's that has no final response yet.
pub(crate) struct Exchange {
    pub(crate) id: RequestId,
    pub(crate) method: Method,
    /// The POST that waits for it.
    pub(crate) post: PostId,
    /// What a successful `resources/subscribe` or `unsubscribe` is about.
    pub(crate) uri: Option<Box<str>>,
    pub(crate) progress: Option<Box<Pace>>,
    /// The request itself, until the log holds it or it has its final response. It is written to
    /// the log because the next owner may have to run it again.
    pub(crate) raw: Option<Bytes>,
    pub(crate) began: Millis,
    /// When it counts as hung, unless a sign of life comes first.
    pub(crate) silent_at: Millis,
    /// When it is over whatever happens.
    pub(crate) ends_at: Millis,
}

impl Exchange {
    /// The client's `initialize`. The deadline of the link to the server ends it.
    pub(crate) fn initialize(id: RequestId, post: PostId, now: Millis) -> Self {
        let never = Millis(u64::MAX);
        Self {
            id,
            method: Method::Initialize,
            post,
            uri: None,
            progress: None,
            raw: None,
            began: now,
            silent_at: never,
            ends_at: never,
        }
    }

    pub(crate) fn deadline(&self) -> Millis {
        self.silent_at.min(self.ends_at)
    }
}

/// Names one POST that holds requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PostId(pub(crate) u64);

/// A POST whose requests have not all got their final response.
pub(crate) struct Post {
    pub(crate) id: PostId,
    /// The POST's connection; none when the client went away, which cancels nothing (POST-16).
    pub(crate) sink: Option<SinkId>,
    /// Requests without a final response.
    pub(crate) open: usize,
    pub(crate) is_batch: bool,
    /// Does it change what must survive its owner?
    pub(crate) changes_state: bool,
    /// Does another node carry the answer to the client?
    pub(crate) is_forwarded: bool,
    pub(crate) form: Form,
}

impl Post {
    /// The stream that its answer has become.
    pub(crate) fn stream(&self) -> Option<u64> {
        match self.form {
            Form::Stream(number) => Some(number),
            Form::Held { .. } | Form::Unlogged | Form::Duplex => None,
        }
    }

    /// When its answer becomes a stream because nothing was sent until then.
    pub(crate) fn upgrade_at(&self) -> Option<Millis> {
        match self.form {
            Form::Held { upgrade_at, .. } => self.sink.map(|_| upgrade_at),
            Form::Stream(_) | Form::Unlogged | Form::Duplex => None,
        }
    }
}

/// The final response to a request, or the error for a batch member that was none.
pub(crate) struct FinalResponse {
    pub(crate) id: Option<RequestId>,
    pub(crate) data: Bytes,
}

/// What the POST's answer has become.
pub(crate) enum Form {
    /// Nothing was sent yet: it is JSON if no other message is to be sent before the final responses.
    Held { upgrade_at: Millis, answers: Vec<FinalResponse> },
    /// A stream of the log, by its number.
    Stream(u64),
    /// An SSE stream outside the log, which cannot be resumed: a slow `initialize`.
    Unlogged,
    /// The one pipe of a duplex transport.
    Duplex,
}

/// Where a message of the server's goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Route {
    /// With the answer to a POST.
    Post(PostId),
    /// On a standalone stream.
    Standalone,
}
