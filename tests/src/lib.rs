//! Shared parts of the tests: nodes, tools, raw HTTP, and connections that can be cut.
//!
//! Nothing here uses internal code of the product: the product is started as a program and reached
//! at its sockets. The SSE reader is a separate implementation. With the codec of the product, the
//! same mistake in writer and reader would not be found.

pub mod audit_log;
pub mod chance;
pub mod chaos;
pub mod check;
pub mod collector;
pub mod conformance;
pub mod cores;
pub mod defined_server;
pub mod deployment;
mod excerpt;
pub mod headers_server;
pub mod history;
pub mod http_servers;
pub mod issuers;
pub mod load;
pub mod mcp;
pub mod metrics;
pub mod monitor;
pub mod node;
pub mod nodes;
pub mod partition;
mod ports;
pub mod processes;
pub mod program;
pub mod prometheus;
pub mod proxy;
pub mod raw;
pub mod recorded;
pub mod redis;
pub mod registry;
pub mod restless;
pub mod sdk_server;
pub mod spans;
pub mod sse;
pub mod tls;
pub mod tools;
pub mod upstream;

pub use node::{Node, Setup};
