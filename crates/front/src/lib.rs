//! Speaks HTTP and stdio with clients.
//!
//! One file a transport; what they share stands beside them. Nothing here knows what a
//! session will answer: it is asked through [`actors::Handle`], and what comes back is put
//! into statuses, heads and bodies.

mod accept;
mod admin;
mod asked;
mod body;
mod connection;
mod cors;
mod drain;
mod error;
mod front;
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
