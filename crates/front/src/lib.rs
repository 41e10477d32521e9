//! Serves clients over HTTP and stdio.
//!
//! One file for each transport; the shared parts are beside them. The front does not know what a
//! session will answer. It sends requests through [`actors::Handle`] and turns the replies into
//! statuses, headers and bodies.

mod accept;
mod admin;
mod body;
mod connection;
mod cors;
mod drain;
mod error;
mod front;
mod front_request;
mod head_timeout;
mod heads;
mod http_sse;
mod metrics;
mod origin;
mod refusal;
mod route;
mod server;
mod settings;
mod sse_body;
mod stdio;
mod streamable_http;

pub use error::Error;
pub use server::{Running, serve};
pub use settings::{AdminSettings, AdminToken, Settings};
pub use stdio::serve_stdio;
