//! Sessions that live on another node: a call is carried there, and what is told comes
//! back, so that a connection cannot see where its session is.
//!
//! The owner judges a call as if it had come to its own front. A call is forwarded once
//! and never from there again. Where its owner is lost, or has no longer got the session,
//! it goes to the next one: as it was where it is certain that nothing was done, else as
//! one that may have been done already. Where another node is to take a session up, it is asked
//! for that first, and gets the call when it has the session.

mod call;

mod opening;
mod reply_codec;
mod routed_request;
mod serving;
mod wire;

pub(crate) use call::Call;
pub(crate) use opening::{connect, open};
pub(crate) use ownership::SessionRequest;
pub(crate) use routed_request::RoutedRequest;
pub(crate) use serving::Serving;

/// What every call and every reply begins with. Nodes of another version do not
/// understand each other, and say so instead of guessing.
const VERSION: u8 = 2;
