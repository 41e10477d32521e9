//! Reaches tenants' MCP servers wherever they run.
//!
//! A [`Backend`] opens [`Link`]s, one for each session: a live pipe of JSON-RPC
//! messages, whose two halves are a [`LinkSender`] and [`LinkEvents`].

pub mod guard;
mod link;
mod metrics;
pub mod native;
pub mod rmcp;
pub mod stdio;

pub use link::{
    Backend, Backends, EventSender, Gone, Link, LinkEvent, LinkEvents, LinkLimits, LinkSender,
    SendError, ServerEnd,
};
