//! The bounded queue from a session to one connection of its client, and the timer that keeps an
//! idle connection alive.

mod keep_alive;
mod queue;

pub(crate) use self::keep_alive::KeepAliveTimer;
pub(crate) use self::queue::{Bounds, ReplyQueue, Sink, Wrote};
