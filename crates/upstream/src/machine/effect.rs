//! The effects of a machine, which its caller performs.

use bytes::Bytes;
use protocol::header_params::Invalid;
use protocol::{Message, Position, Request, RequestId};

use super::ids::ExchangeId;
use crate::exchange::Exchange;

/// What the caller of the machine has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Begin this exchange, and pass its events in.
    Start(ExchangeId, Exchange),
    /// Nothing more is expected of this exchange: cut it after a grace period, and call
    /// [`Machine::forget`].
    Release(ExchangeId),
    /// Pass a message of the server on.
    Deliver {
        /// The message.
        message: Message,
        /// The request that it belongs to, if the transport shows that.
        about: Option<RequestId>,
        /// How far the stream was read with it.
        position: Option<Position>,
    },
    /// A stream was read so far, and no message came.
    Advance {
        /// The request that the stream belongs to, if any.
        about: Option<RequestId>,
        /// How far the stream was read.
        position: Position,
    },
    /// The server does not know the session, so it has not run this request. [`Self::Down`] follows.
    Return(Request),
    /// These tools of the server are left out of its lists: their annotations for headers are invalid.
    LeftOut(Vec<(String, Invalid)>),
    /// The session can be carried on with this state, which is secret.
    Save(Bytes),
    /// The session with the server is over. The text is for clients.
    Down(String),
}

/// The last message that is delivered carries how far its stream was read, so that both are kept together.
pub(super) fn note_position(
    effects: &mut Vec<Effect>,
    before: usize,
    about: Option<RequestId>,
    read: Position,
) {
    let delivered = effects.iter_mut().skip(before).rev().find_map(|effect| match effect {
        Effect::Deliver { position, .. } => Some(position),
        _ => None,
    });
    match delivered {
        Some(position) => *position = Some(read),
        None => effects.push(Effect::Advance { about, position: read }),
    }
}
