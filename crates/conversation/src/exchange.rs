//! A request of the client until its final response, and the POST that waits for it.

use bytes::Bytes;
use protocol::{Method, Position, Request, RequestId, TraceContext};

use crate::pace::Pace;
use crate::{Millis, SinkId};

/// A request of the client that has no final response yet.
pub(crate) struct Exchange {
    pub(crate) id: RequestId,
    pub(crate) method: Method,
    /// The POST that waits for it.
    pub(crate) post: PostId,
    /// The resource, if it is a `resources/subscribe` or `unsubscribe`.
    pub(crate) uri: Option<Box<str>>,
    pub(crate) progress: Option<Box<Pace>>,
    /// The request itself, until the log holds it or it has its final response. It is written to
    /// the log because the next owner may have to run it again.
    pub(crate) raw: Option<Bytes>,
    /// Its trace, which goes on where the request runs again.
    pub(crate) trace: Option<Box<TraceContext>>,
    /// How far its stream at the server was read, if the next owner could request the rest.
    pub(crate) position: Option<Box<Position>>,
    /// The request, if the server has returned it: the next link sends it again.
    pub(crate) returned: Option<Box<Request>>,
    /// The server has returned it once. It is sent again once only.
    pub(crate) was_returned: bool,
    pub(crate) began: Millis,
    /// When it times out unless the server sends a message for it first.
    pub(crate) silent_at: Millis,
    /// When it times out in any case.
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
            trace: None,
            position: None,
            returned: None,
            was_returned: false,
            began: now,
            silent_at: never,
            ends_at: never,
        }
    }

    pub(crate) fn deadline(&self) -> Millis {
        self.silent_at.min(self.ends_at)
    }
}

/// The id of one POST that holds requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PostId(pub(crate) u64);

/// A POST with pending requests.
pub(crate) struct Post {
    pub(crate) id: PostId,
    /// The POST's connection; `None` if the client disconnected, which cancels nothing (POST-16).
    pub(crate) sink: Option<SinkId>,
    /// Requests without a final response.
    pub(crate) open: usize,
    pub(crate) is_batch: bool,
    /// Does it change the saved state?
    pub(crate) changes_state: bool,
    /// Does another node forward the answer to the client?
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

    /// When its answer becomes a stream unless a message is sent before.
    pub(crate) fn upgrade_at(&self) -> Option<Millis> {
        match self.form {
            Form::Held { upgrade_at, .. } => self.sink.map(|_| upgrade_at),
            Form::Stream(_) | Form::Unlogged | Form::Duplex => None,
        }
    }
}

/// The final response to a request, or the error for an invalid batch member.
pub(crate) struct FinalResponse {
    pub(crate) id: Option<RequestId>,
    pub(crate) data: Bytes,
}

/// The form of a POST's answer.
pub(crate) enum Form {
    /// Nothing was sent yet: it becomes JSON unless another message precedes the final responses.
    Held { upgrade_at: Millis, answers: Vec<FinalResponse> },
    /// A stream of the log, by its number.
    Stream(u64),
    /// An SSE stream outside the log, which cannot be resumed: a slow `initialize`.
    Unlogged,
    /// The pipe of a duplex transport.
    Duplex,
}

/// The route of a message of the server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Route {
    /// With the answer to a POST.
    Post(PostId),
    /// On a standalone stream.
    Standalone,
}
