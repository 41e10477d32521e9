//! Connects sessions to their tenants' MCP servers.
//!
//! A [`Backend`] opens one [`Link`] for each session. A link carries JSON-RPC messages in both
//! directions; its two halves are a [`LinkSender`] and [`LinkEvents`].

pub mod guard;
pub mod http;
mod link;
mod metrics;
pub mod native;
pub mod rmcp;
pub mod sandbox;
pub mod stdio;

pub use link::{
    Backend, Backends, Engine, EventReceiver, EventSender, Exchanging, Gone, LatestTokens, Link,
    LinkEvent, LinkEvents, LinkLimits, LinkSender, SavedLink, SendError, ServerEnd,
};
