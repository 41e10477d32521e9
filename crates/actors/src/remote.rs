//! Sessions that live on another node: a call is carried there, and what is told comes
//! back, so that a connection cannot see where its session is.
//!
//! The owner judges a call as if it had come to its own front. A call is forwarded once
//! and never from there again, and it is sent a second time only where it is certain that
//! nothing was done, or where doing it twice does no harm.

mod call;
mod forwarding;
mod serving;
mod told;
mod wire;

pub(crate) use call::{Call, Errand};
pub(crate) use forwarding::Forwarding;
pub(crate) use serving::Serving;

/// What every call and every reply begins with. Nodes of another version do not
/// understand each other, and say so instead of guessing.
const VERSION: u8 = 1;
