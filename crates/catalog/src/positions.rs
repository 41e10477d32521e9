//! How far the streams of servers were read, with what became of the messages that were read last.
//!
//! A position is part of the event that delivers its message, so that the session keeps both together. A
//! message that the client does not get has its position in an event of its own.

use std::collections::{BTreeMap, VecDeque};

use backends::LinkEvent;
use protocol::{Message, Position, RequestId};

use crate::child::changed_list;
use crate::machine::Machine;
use crate::saved::position_of_catalog;

/// A stream of a server was read so far.
pub(crate) struct Read {
    pub(crate) child: usize,
    /// The request that the stream belongs to.
    pub(crate) about: Option<RequestId>,
    pub(crate) position: Position,
}

/// The positions that are not in an event yet, by server: those of streams without a request, while the
/// client is to be told of a change of lists later. Such a position would stand for the change.
#[derive(Default)]
pub(crate) struct Positions(BTreeMap<usize, Position>);

impl Positions {
    /// Adds a position to the event that `events` has of the message that was read last.
    pub(crate) fn note_read(
        &mut self,
        machine: &Machine,
        events: &mut VecDeque<LinkEvent>,
        Read { child, about, position }: Read,
    ) {
        let Some(position) = position_of_catalog(child, &position) else { return };
        match about {
            Some(id) if !machine.has_call(child, &id) => {}
            None if machine.holds_change(child) => drop(self.0.insert(child, position)),
            about => {
                let is_it = |of: &Option<RequestId>| about.is_none() || *of == about;
                let at = events.iter().rposition(
                    |event| matches!(event, LinkEvent::Message { about, .. } if is_it(about)),
                );
                add(events, at, about, position);
            }
        }
    }

    /// Adds the positions that waited for the notification of a change, which `events` has now.
    pub(crate) fn release(&mut self, machine: &Machine, events: &mut VecDeque<LinkEvent>) {
        let due = self.0.extract_if(.., |child, _| !machine.holds_change(*child));
        for (_, position) in due.collect::<Vec<_>>() {
            let is_change = |message: &Message| match message {
                Message::Notification(notification) => changed_list(&notification.method).is_some(),
                _ => false,
            };
            let at = events.iter().rposition(
                |event| matches!(event, LinkEvent::Message { message, .. } if is_change(message)),
            );
            add(events, at, None, position);
        }
    }

    /// The server has lost its streams.
    pub(crate) fn forget(&mut self, child: usize) {
        self.0.remove(&child);
    }
}

/// Adds a position to the message at this index, or behind all if there is none. A message of a stream
/// without a request is none of a request's.
fn add(
    events: &mut VecDeque<LinkEvent>,
    at: Option<usize>,
    about: Option<RequestId>,
    position: Position,
) {
    let message = match at.and_then(|at| events.get(at)) {
        Some(LinkEvent::Message { message, .. }) => Some(message.clone()),
        _ => None,
    };
    let positioned = LinkEvent::Positioned { message, about, position };
    match at.and_then(|at| events.get_mut(at)) {
        Some(event) => *event = positioned,
        None => events.push_back(positioned),
    }
}
