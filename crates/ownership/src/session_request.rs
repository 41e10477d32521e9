//! A client's request to its session, as it is sent to the owner.

use conversation::{Event, SinkId};
use protocol::{Body, Message, Mirrored, RequestId, TraceContext, UpstreamTokens};

/// A request of a client's connection.
#[derive(Clone, Debug)]
pub enum SessionRequest {
    /// A POST.
    Post {
        /// The message or batch.
        body: Body,
        /// The headers that mirror the body.
        mirrored: Option<Box<Mirrored>>,
        /// A former owner may have received it.
        again: bool,
    },
    /// A GET: the client opens a stream.
    Listen {
        /// `Last-Event-ID`.
        after: Option<String>,
    },
    /// A DELETE: the client ends the session.
    Delete,
}

impl SessionRequest {
    /// The event for the session. `forwarded`: another node forwarded the request.
    pub fn event(self, sink: SinkId, forwarded: bool) -> Event {
        match self {
            Self::Post { body, mirrored, again } => {
                Event::Posted { sink, body, mirrored, again, forwarded }
            }
            Self::Listen { after } => Event::Listened { sink, after },
            Self::Delete => Event::Deleted { sink },
        }
    }

    /// The bytes of its messages.
    pub fn body_bytes(&self) -> usize {
        match self {
            Self::Post { body, .. } => body.bytes(),
            Self::Listen { .. } | Self::Delete => 0,
        }
    }

    /// Where the only request of a POST is in a trace.
    pub fn trace(&self) -> Option<&TraceContext> {
        match self {
            Self::Post { body: Body::One(Message::Request(request)), .. } => {
                request.trace.as_deref()
            }
            _ => None,
        }
    }

    /// Moves the only request of a POST within its trace.
    pub fn set_trace(&mut self, trace: Option<Box<TraceContext>>) {
        if let Self::Post { body: Body::One(Message::Request(request)), .. } = self {
            request.trace = trace;
        }
    }

    /// The tokens for upstream servers that its requests have, if any has some.
    pub fn tokens(&self) -> Option<&UpstreamTokens> {
        fn of(message: &Message) -> Option<&UpstreamTokens> {
            match message {
                Message::Request(request) => request.tokens.as_ref(),
                _ => None,
            }
        }
        // The requests of a batch have the same.
        match self {
            Self::Post { body: Body::One(message), .. } => of(message),
            Self::Post { body: Body::Batch(members), .. } => members.iter().flatten().find_map(of),
            _ => None,
        }
    }

    /// Gives its requests these tokens for upstream servers.
    pub fn set_tokens(&mut self, tokens: &UpstreamTokens) {
        let set = |message: &mut Message| {
            if let Message::Request(request) = message {
                request.tokens = Some(tokens.clone());
            }
        };
        match self {
            Self::Post { body: Body::One(message), .. } => set(message),
            Self::Post { body: Body::Batch(members), .. } => {
                members.iter_mut().flatten().for_each(set)
            }
            Self::Listen { .. } | Self::Delete => {}
        }
    }

    /// The requests that wait for a final response.
    pub fn requests(&self) -> Vec<RequestId> {
        let id = |message: &Message| match message {
            Message::Request(request) => Some(request.id.clone()),
            Message::Notification(_) | Message::Response(_) => None,
        };
        match self {
            Self::Post { body: Body::One(message), .. } => id(message).into_iter().collect(),
            Self::Post { body: Body::Batch(members), .. } => {
                members.iter().flatten().filter_map(id).collect()
            }
            Self::Listen { .. } | Self::Delete => Vec::new(),
        }
    }
}
