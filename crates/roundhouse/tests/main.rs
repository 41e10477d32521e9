//! The library and the program.
//!
//! The integration tests of this crate are one program, so that it is compiled and linked once.

mod client;
mod cluster;
mod documented;
mod examples;
#[path = "../examples/handler.rs"]
mod handler;
mod node;
#[cfg(feature = "demo")]
mod program;
#[path = "../examples/rmcp_service.rs"]
mod rmcp_service;
