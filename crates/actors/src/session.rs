//! One session: its actor and the parts of the actor.
//!
//! The state machine of `conversation` decides the next effects in the session, and that of
//! `ownership` the next operation on the store. The actor passes events to the first and performs
//! the effects; its log writer performs the operations of the second.

mod actor;
mod deferred;
mod effects;
mod handle;
mod leaving;
mod life;
mod link_state;
mod local_reply;
mod log_writer;
mod long_step;
mod machine;
mod message;
mod pump;
mod record;
mod relief;
mod server_calls;
mod server_request_spans;
mod session_spans;
mod sinks;
mod start;

pub(crate) use self::handle::{HandleState, SessionHandle, StopRequest};
pub(crate) use self::local_reply::LocalReply;
use self::message::SessionMessage;
pub(crate) use self::relief::Relief;
pub(crate) use self::start::{ClaimedSession, NewSession, Opener, create_session, restore_session};
