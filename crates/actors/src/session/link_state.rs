//! The state of a session's link to its tenant's server.

use std::task::{Context, Poll};

use backends::{Link, LinkEvent, SendError};
use conversation::Event;
use protocol::Message;

/// The state of a session's link to its tenant's server.
#[derive(Default)]
pub(super) enum LinkState {
    /// No link is open.
    #[default]
    Down,
    /// The link accepts messages.
    Up(Link),
    /// The link accepts no more messages. The messages that the server sent before are still read.
    Closing(Link),
}

impl LinkState {
    /// Sends a message. A message for which the link has no room is returned as an event. If no
    /// link is open, or the link is closing, the message is dropped: the session is notified of the
    /// end of the link.
    pub(super) fn send(&mut self, message: Message) -> Option<Event> {
        let Self::Up(link) = self else { return None };
        match link.sender.send(message.clone()) {
            Ok(()) => None,
            Err(SendError::Full) => Some(Event::Unsent { message }),
            Err(SendError::Down) => {
                // The remaining messages of the server are handled first, its final response
                // included.
                if let Self::Up(link) = std::mem::take(self) {
                    *self = Self::Closing(link);
                }
                None
            }
        }
    }

    /// Closes the link for good: what it has saved is not used again.
    pub(super) fn end(&mut self) {
        match std::mem::take(self) {
            Self::Down => {}
            Self::Up(link) | Self::Closing(link) => link.end(),
        }
    }

    /// Polls for the next event of the link. `seal` seals what the link saves.
    pub(super) fn poll_event(
        &mut self,
        context: &mut Context<'_>,
        seal: impl Fn(&[u8]) -> Option<String>,
    ) -> Poll<Event> {
        let (link, is_closing) = match self {
            Self::Down => return Poll::Pending,
            Self::Up(link) => (link, false),
            Self::Closing(link) => (link, true),
        };
        let reason = match link.events.poll_next(context) {
            Poll::Ready(Some(LinkEvent::Up)) => return Poll::Ready(Event::LinkUp),
            Poll::Ready(Some(LinkEvent::Message { message, about })) => {
                return Poll::Ready(Event::ServerMessage { message, about, position: None });
            }
            Poll::Ready(Some(LinkEvent::Positioned { message, about, position })) => {
                let position = Box::new(position);
                return Poll::Ready(match message {
                    Some(message) => {
                        Event::ServerMessage { message, about, position: Some(position) }
                    }
                    None => Event::ServerAdvanced { about, position },
                });
            }
            Poll::Ready(Some(LinkEvent::Returned { request })) => {
                return Poll::Ready(Event::ServerReturned { request });
            }
            Poll::Ready(Some(LinkEvent::StateLost)) => return Poll::Ready(Event::ServerStateLost),
            // An empty one is none: what cannot be sealed is not kept.
            Poll::Ready(Some(LinkEvent::Saved { state })) => {
                let sealed = if state.is_empty() { None } else { seal(&state) };
                let state = sealed.unwrap_or_default().into();
                return Poll::Ready(Event::LinkSaved { state });
            }
            Poll::Pending if !is_closing => return Poll::Pending,
            Poll::Ready(Some(LinkEvent::RoomWanted)) => {
                return Poll::Ready(Event::ServerRoomWanted);
            }
            Poll::Ready(Some(LinkEvent::Retired)) => return Poll::Ready(Event::ServerRetired),
            Poll::Ready(Some(LinkEvent::Down { reason })) => reason,
            Poll::Ready(None) | Poll::Pending => "the server is gone".to_owned(),
        };
        *self = Self::Down;
        Poll::Ready(Event::LinkDown { reason })
    }
}
