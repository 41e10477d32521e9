//! What the tests are told with: nodes, tools, raw HTTP, and a wire that can be cut.
//!
//! Nothing here knows how the product works inside; it is started as a program and met on
//! its sockets. The SSE reader is written anew on purpose, so that a mistake in the
//! product's codec cannot hide in its own mirror.

pub mod chance;
pub mod chaos;
pub mod check;
pub mod conformance;
pub mod deployment;
pub mod history;
pub mod load;
pub mod mcp;
pub mod metrics;
pub mod monitor;
pub mod node;
pub mod nodes;
pub mod partition;
pub mod processes;
pub mod program;
pub mod prometheus;
pub mod proxy;
pub mod raw;
pub mod recorded;
pub mod redis;
pub mod restless;
pub mod sse;
pub mod tools;

pub use node::{Node, Setup};
