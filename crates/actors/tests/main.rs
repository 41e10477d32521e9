//! Tests of sessions, handles and nodes, with test stores and test peers.
//!
//! The integration tests of this crate are one program, so that it is compiled and linked once.

mod cluster;
mod connections;
mod draining;
mod failovers;
mod handover;
mod late_claims;
mod overview;
mod peers;
mod replaced_backends;
mod results;
mod session_bytes;
mod sessions;
mod store_trouble;
mod support;
mod takeover;
mod tombstones;
mod unreadable;
