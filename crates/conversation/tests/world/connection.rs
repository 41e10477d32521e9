//! One connection of a client, as a test records it.

use bytes::Bytes;
use conversation::{Answer, EventId, Frame, Millis};

/// The record of one connection.
#[derive(Default, Debug)]
pub(crate) struct Connection {
    pub(crate) answer: Option<Answer>,
    pub(crate) open: bool,
    pub(crate) frames: Vec<Frame>,
    pub(crate) finished: bool,
    /// Whether the node that has the client's connection must continue at another owner.
    pub(crate) moved: bool,
    /// The event to resume the stream after, according to its head.
    pub(crate) at: Option<EventId>,
    /// The message that was posted on it.
    pub(crate) body: Option<String>,
    pub(crate) gone: bool,
    /// When it was opened.
    pub(crate) since: Millis,
}

impl Connection {
    /// The messages that the connection received, in order.
    pub(crate) fn messages(&self) -> Vec<String> {
        let text = |data: &Bytes| String::from_utf8(data.to_vec()).unwrap();
        match &self.answer {
            Some(Answer::Json(data) | Answer::Welcome(data)) => vec![text(data)],
            Some(Answer::Array(all)) => all.iter().map(text).collect(),
            _ => self
                .frames
                .iter()
                .filter_map(|frame| match frame {
                    Frame::Message { data, .. } => Some(text(data)),
                    _ => None,
                })
                .collect(),
        }
    }

    /// Whether it received a message without an event id, after which no stream can be resumed.
    pub(crate) fn is_unlogged(&self) -> bool {
        self.frames.iter().any(|frame| matches!(frame, Frame::Message { id: None, .. }))
    }

    /// The last event id that the connection received.
    pub(crate) fn cursor(&self) -> Option<EventId> {
        self.frames.iter().rev().find_map(|frame| match frame {
            Frame::Cursor { id, .. } | Frame::Message { id: Some(id), .. } => Some(*id),
            _ => None,
        })
    }
}
