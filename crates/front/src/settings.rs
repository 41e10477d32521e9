//! The settings of the listeners for clients and operators.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;

use budget::{Budget, ShareLimits};
use serde::{Deserialize, Serialize};
use tenants::KeyDigest;

use crate::{AdminAddress, AdminCredentialSettings, TlsSettings, admin_credentials};

/// The listener for clients and its bounds.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Address of the listener for clients; port 0 takes any free one. On a loopback address only
    /// local names are accepted in `Host` and local pages in `Origin` (SEC-03, SEC-04).
    pub listen: SocketAddr,
    /// The URL under which clients reach this node or its balancer, as in
    /// `https://mcp.example.com`. Its origin and host are allowed.
    pub public_url: Option<String>,
    /// Origins that may use every tenant's endpoint, as in `https://app.example.com`; a request
    /// with any other is answered 403 (SEC-01). `null` is allowed only if it is listed.
    pub allowed_origins: Vec<String>,
    /// Request headers that pages may send, beside those of MCP. Tracing libraries send the default
    /// ones unasked; the node ignores them.
    pub cors_headers: Vec<String>,
    /// Host names, with or without port, that `Host` may carry; any other is answered 403. Empty
    /// on a listener that is not on loopback: `Host` is not checked.
    pub allowed_hosts: Vec<String>,
    /// Largest request body; a larger one is answered 413, and at most this much of it is kept.
    pub body_bytes_max: usize,
    /// Largest body of a POST without a session, which is `initialize` or a mistake; a larger one
    /// is answered 413 with an error that names this setting. Leaves room for the client's icons.
    /// At most `body_bytes_max` counts.
    pub initialize_body_bytes_max: usize,
    /// Most bytes of all unfinished bodies together, of which each tenant has a share that is
    /// reserved for it: twice `body_bytes_max`, but all tenants together at most half of this. At a
    /// tenant's bound its slowest body is answered 408 to make room, or else a body that needs more
    /// 503 with `Retry-After`. `tenants.*.limits.bodies_bytes_max` bounds each tenant.
    pub bodies_bytes_max: usize,
    /// Largest sum of the lengths of a request's header names and values; a larger one is
    /// answered 431. More than 96 headers, or a head of more than 128 KiB, always is.
    pub header_bytes_max: usize,
    /// Most open connections a worker, as far as the limit of descriptors allows. At the limit
    /// an idle connection of the tenant with most connections is closed for each new one; if none is
    /// idle, clients wait in the kernel's queue.
    pub connections_max: usize,
    /// Most open connections of one address (of IPv6, one network of 64 bits); a further one is
    /// answered 429 and closed. At most half of all connections counts. Addresses that are private
    /// or in `trusted_proxies` have no such limit. 0 for none.
    pub connections_per_address_max: usize,
    /// Sessions that clients of one address (of IPv6, one network of 64 bits) may create each
    /// second, after `sessions_per_address_burst`; a further `initialize` is answered 429 with
    /// `Retry-After`. 0 for no limit. Does not apply where the address is not known.
    pub sessions_per_address_per_sec: u32,
    /// Sessions that clients of one address may create at once.
    pub sessions_per_address_burst: u32,
    /// Proxies in front of the node, as addresses, networks (`10.0.0.0/8`) or `"private"` for all
    /// private addresses. The address of a client is then the last one in `X-Forwarded-For` that is
    /// none of theirs. Any other client can write that header itself.
    pub trusted_proxies: Vec<String>,
    /// How long an idle connection is kept for its next request, and a new one for its first, in seconds; then it
    /// is closed. A new one is kept for at least `head_timeout_secs`. 0: each is closed after its response.
    pub keep_alive_secs: u64,
    /// How long a client may take to send a request's head, in seconds from its first byte; then it is
    /// answered 408 and the connection closed. So long may a TLS handshake take as well, from its first
    /// byte. At least 1.
    pub head_timeout_secs: u64,
    /// How long a client may take to send a body, in seconds, with all waits of the node; then it
    /// is answered 408 and the connection closed.
    pub body_timeout_secs: u64,
    /// Least average rate of a body in bytes per second, once it has taken `body_grace_secs`; a
    /// slower one is answered 408 and the connection closed. The time in which it waits for memory of
    /// its tenant or for other long messages does not count. 0 for no limit.
    pub body_bytes_per_sec_min: u64,
    /// How long a body may take at any rate, in seconds.
    pub body_grace_secs: u64,
    /// How long data sent to a client may stay unread or unacknowledged, in seconds; then its
    /// connection is reset. So neither a client that stopped reading nor a machine that vanished
    /// keeps a connection. Only on Linux.
    pub write_timeout_secs: u32,
    /// Threads that serve clients; 0 for one a core.
    pub workers: usize,
    /// `[front.tls]`: the certificates for clients. Without them clients have no TLS.
    pub tls: TlsSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            public_url: None,
            allowed_origins: Vec::new(),
            cors_headers: ["traceparent", "tracestate", "baggage"].map(str::to_owned).into(),
            allowed_hosts: Vec::new(),
            body_bytes_max: 4 << 20,
            initialize_body_bytes_max: 128 << 10,
            bodies_bytes_max: 256 << 20,
            header_bytes_max: 32 << 10,
            connections_max: 25_000,
            connections_per_address_max: 5_000,
            sessions_per_address_per_sec: 20,
            sessions_per_address_burst: 2_000,
            trusted_proxies: Vec::new(),
            keep_alive_secs: 75,
            head_timeout_secs: 10,
            body_timeout_secs: 30,
            body_bytes_per_sec_min: 16 << 10,
            body_grace_secs: 5,
            write_timeout_secs: 60,
            workers: 0,
            tls: TlsSettings::default(),
        }
    }
}

impl Settings {
    /// How many threads serve clients.
    pub fn worker_count(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
        if self.workers == 0 { cores() } else { self.workers }
    }

    /// The memory for unfinished bodies, shared by these tenants; each with its maximum, if it has
    /// one of its own.
    pub fn body_budget(
        &self,
        tenants: impl IntoIterator<Item = (Arc<str>, Option<usize>)>,
    ) -> Budget {
        Budget::new(self.bodies_bytes_max, self.body_shares(tenants))
    }

    /// The bounds of these tenants, for unfinished bodies; each with its maximum, if it has one of
    /// its own.
    pub fn body_shares(
        &self,
        tenants: impl IntoIterator<Item = (Arc<str>, Option<usize>)>,
    ) -> Vec<(Arc<str>, ShareLimits)> {
        let tenants: Vec<_> = tenants.into_iter().collect();
        let (count, total) = (tenants.len(), self.bodies_bytes_max);
        let min = self.body_bytes_max.saturating_mul(2);
        let limits = |(name, max)| (name, ShareLimits::of_one(total, count, min, max));
        tenants.into_iter().map(limits).collect()
    }
}

/// The listener for operators.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdminSettings {
    /// Where `/metrics`, `/healthz` and `/readyz` are served: an address and a port, of which 0
    /// takes any free one, or `unix:` and the path of a socket. A port serves them to every client
    /// that reaches it: allow only operators and their machines. Only the node's own user can
    /// connect to the socket (mode 600), and needs a token only if there is one.
    pub listen: AdminAddress,
    /// Host names, with or without port, that `Host` may carry on a port, besides `localhost` and
    /// IP addresses; any other is answered 403.
    pub allowed_hosts: Vec<String>,
    /// A file that holds a token, which others may not read (mode 600 or 640): a credential with the
    /// role `operate`, whose name in logs is `admin.token_file`. The file is read at the start. A changed
    /// file is applied as changed settings are.
    pub token_file: PathBuf,
    /// The credentials of operators, by name. Without any, and without `token_file`, all requests that
    /// need one are answered 403 on a port, and accepted from every client of a Unix socket.
    pub credentials: BTreeMap<String, AdminCredentialSettings>,
    /// Whether `/metrics` needs a credential.
    pub protect_metrics: bool,
    /// The token in that file.
    #[serde(skip)]
    pub token: Option<AdminToken>,
}

impl AdminSettings {
    /// What is wrong with the credentials. No text has a token.
    pub fn problems(&self) -> Vec<String> {
        admin_credentials::problems(&self.credentials)
    }
}

impl Default for AdminSettings {
    fn default() -> Self {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 9090));
        Self {
            listen: listen.into(),
            allowed_hosts: Vec::new(),
            token_file: PathBuf::new(),
            credentials: BTreeMap::new(),
            protect_metrics: false,
            token: None,
        }
    }
}

/// The token that authorises an operator to change something. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminToken(Arc<str>);

impl AdminToken {
    /// A token that can be sent in a header: visible ASCII, at least one character.
    pub fn new(token: &str) -> Option<Self> {
        let is_visible = token.bytes().all(|byte| byte.is_ascii_graphic());
        (is_visible && !token.is_empty()).then(|| Self(token.into()))
    }

    /// The SHA-256 of the token, by which it is found: how long that takes tells nothing about it.
    pub(crate) fn digest(&self) -> KeyDigest {
        KeyDigest::of(&self.0)
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken(***)")
    }
}
