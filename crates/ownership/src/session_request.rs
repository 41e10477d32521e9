//! What a client asks of its session, on its way to the owner.

use conversation::{Event, SinkId};
use protocol::{Body, Message, Mirrored, RequestId};

/// What a connection comes for.
#[derive(Clone, Debug)]
pub enum SessionRequest {
    /// The client posted something.
    Post {
        /// What.
        body: Body,
        /// The headers that mirror it.
        mirrored: Option<Box<Mirrored>>,
        /// A former owner may have taken it.
        again: bool,
    },
    /// The client opens a stream.
    Listen {
        /// `Last-Event-ID`.
        after: Option<String>,
    },
    /// The client ends the session.
    Delete,
}

impl SessionRequest {
    /// What happens to the session. `forwarded`: it came through another node.
    pub fn event(self, sink: SinkId, forwarded: bool) -> Event {
        match self {
            Self::Post { body, mirrored, again } => {
                Event::Posted { sink, body, mirrored, again, forwarded }
            }
            Self::Listen { after } => Event::Listened { sink, after },
            Self::Delete => Event::Deleted { sink },
        }
    }

    /// Are there requests in it?
    pub fn asks(&self) -> bool {
        let is_request = |message: &Message| matches!(message, Message::Request(_));
        match self {
            Self::Post { body: Body::One(message), .. } => is_request(message),
            Self::Post { body: Body::Batch(members), .. } => {
                members.iter().flatten().any(is_request)
            }
            Self::Listen { .. } | Self::Delete => false,
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
