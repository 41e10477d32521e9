//! The front over real connections.
//!
//! The integration tests of this crate are one program, so that it is compiled and linked once.

mod access_log;
mod admin;
mod edge;
mod http_sse;
mod kit;
mod limits;
mod pages;
mod places;
mod sessions;
mod stdio;
mod strict;
