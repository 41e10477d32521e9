//! The effects of a session, event by event.
//!
//! The integration tests of this crate are one program, so that it is compiled and linked once.

mod asked_elsewhere;
mod budget;
mod calls;
mod cancelling;
mod carried_on;
mod life;
mod posted_again;
mod properties;
mod replaced_servers;
mod restore;
mod results;
mod saved_state;
mod scenario;
mod streams;
mod world;
