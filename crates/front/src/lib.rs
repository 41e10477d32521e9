//! Speaks HTTP and stdio with clients.
//!
//! One file a transport; what they share stands beside them. Nothing here knows what a
//! session will answer: it is asked through [`actors::Handle`], and what comes back is put
//! into statuses, heads and bodies.

mod error;
mod server;
mod settings;
mod stdio;

pub use error::Error;
pub use server::{Running, serve};
pub use settings::{AdminSettings, Settings};
pub use stdio::serve_stdio;
