//! One live session: its actor and what the actor is made of.
//!
//! The machine of `conversation` decides what happens next in the session, and that of `ownership`
//! what happens next in the store. The actor passes events to the first and performs the effects;
//! its log writer performs the operations of the second.

mod actor;
mod deferred;
mod effects;
mod handle;
mod leaving;
mod life;
mod link_state;
mod local_reply;
mod log_writer;
mod message;
mod pump;
mod record;
mod sinks;
mod start;

pub(crate) use self::handle::{HandleState, SessionHandle, StopRequest};
pub(crate) use self::local_reply::LocalReply;
use self::message::SessionMessage;
pub(crate) use self::start::{ClaimedSession, NewSession, create_session, restore_session};
