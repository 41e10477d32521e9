//! What an operator may set about the side that faces clients.

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// The listener for clients and its bounds.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where clients are listened to; port 0 takes any free one. On a loopback address
    /// only local names are taken in `Host` and local pages in `Origin` (SEC-03, SEC-04).
    pub listen: SocketAddr,
    /// The URL under which clients reach this node or the balancer before it, as in
    /// `https://mcp.example.com`. Its origin and host are allowed.
    pub public_url: Option<String>,
    /// Origins that may use every tenant's endpoint, as in `https://app.example.com`; a
    /// request with any other is answered 403 (SEC-01). `null` must be listed to be taken.
    pub allowed_origins: Vec<String>,
    /// Host names, with or without port, that `Host` may carry; any other is answered 403.
    /// Empty on a listener that is not on loopback: `Host` is not looked at.
    pub allowed_hosts: Vec<String>,
    /// Largest request body; a larger one is answered 413, and at most this much of it is kept.
    pub body_bytes_max: usize,
    /// Most bytes of all bodies together that have begun to arrive and are not complete; at
    /// the bound a body that needs more is answered 503 with `Retry-After`.
    pub bodies_bytes_max: usize,
    /// Largest sum of the lengths of a request's header names and values; a larger one is
    /// answered 431. More than 96 headers, or a head of more than 128 KiB, always is.
    pub header_bytes_max: usize,
    /// Most open connections a worker; at the bound no further one is accepted until one
    /// closes, and clients wait in the kernel's queue.
    pub connections_max: usize,
    /// How long an idle connection is kept for its next request, in seconds; then it is closed.
    pub keep_alive_secs: u64,
    /// How long a client may take to send the head of a connection's first request, in
    /// seconds; then it is answered 408 and the connection closed.
    pub head_timeout_secs: u64,
    /// How long a client may take to send a body, in seconds; then it is answered 408 and
    /// the connection closed.
    pub body_timeout_secs: u64,
    /// How long a client may leave what was sent to it unread or unconfirmed, in seconds;
    /// then its connection is reset. So neither a client that stopped reading nor a machine
    /// that vanished keeps a connection. Only on Linux.
    pub write_timeout_secs: u32,
    /// Threads that serve clients; 0 for one a core.
    pub workers: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            public_url: None,
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            body_bytes_max: 4 << 20,
            bodies_bytes_max: 256 << 20,
            header_bytes_max: 32 << 10,
            connections_max: 25_000,
            keep_alive_secs: 75,
            head_timeout_secs: 10,
            body_timeout_secs: 30,
            write_timeout_secs: 60,
            workers: 0,
        }
    }
}

/// The listener for operators.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdminSettings {
    /// Where `/metrics`, `/healthz` and `/readyz` are served; port 0 takes any free one.
    /// It asks nobody who they are: keep it where only operators and machines come.
    pub listen: SocketAddr,
}

impl Default for AdminSettings {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9090)) }
    }
}
