//! The limits of one session, each with what happens at it.

use serde::{Deserialize, Serialize};

/// Limits and timeouts of one session.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// How long a call may wait for its first message before its answer becomes an SSE stream
    /// (revisions with priming), in milliseconds.
    pub sse_after_ms: u64,
    /// The interval of keep-alive comments on an open stream, in seconds; also how long until an
    /// answer becomes a stream in revisions without priming.
    pub keepalive_secs: u64,
    /// How long a client waits before it resumes a stream (`retry`), in
    /// milliseconds; each stream gets a value within a quarter of it.
    pub retry_ms: u32,
    /// How long the handshake with the tenant's server may take, its start included,
    /// in seconds. Then `initialize`, or what waited for a restart, gets an error.
    pub start_secs: u64,
    /// How long a request may wait for a message of the server (response, progress, server
    /// request), in seconds. Then it is cancelled and gets an error.
    pub request_secs: u64,
    /// How long a request may take in any case, in seconds.
    pub request_max_secs: u64,
    /// How long the client may take to answer a server request, in seconds. Then the server gets
    /// an error and the client a cancellation.
    pub ask_secs: u64,
    /// How long a session may be without stream, exchange or message, in seconds. Then it ends.
    pub idle_secs: u64,
    /// How long a session may be without stream, exchange or message after its client closed its last
    /// standalone stream, in seconds. Then it ends: clients that are alive open the stream again
    /// within seconds. 0: `idle_secs` applies.
    pub vanished_secs: u64,
    /// How long the server must have got no request to be stopped when another session needs a server
    /// and the tenant has as many as it may, in seconds. 0 for never.
    pub idle_server_secs: u64,
    /// After how long without stream, exchange or message a session leaves memory, in seconds;
    /// the next request restores it. 0 for never. Only if its link may be closed.
    pub sleep_after_secs: u64,
    /// How long a session may wait for its client's `initialized`, in seconds.
    pub handshake_secs: u64,
    /// How often the client is pinged on its standalone stream, in seconds; 0 for never (PING-02).
    pub ping_secs: u64,
    /// The maximum age of one connection of a stream, in seconds; then the connection is ended
    /// and its client resumes (revisions with priming; SSE-05). 0 for no maximum.
    pub stream_secs: u64,
    /// Most requests of the client in flight; a further one gets an error.
    pub exchanges_max: usize,
    /// Most requests to the client that wait for an answer; a further one gets an error.
    pub server_requests_max: usize,
    /// Most standalone GET streams; at the limit the one that was idle longest is closed.
    pub standalone_max: usize,
    /// Most resources a client may subscribe to; a further one gets an error.
    pub subscriptions_max: usize,
    /// Longest URI of a subscription, in bytes; a longer one gets an error (-32602).
    pub subscription_uri_bytes_max: usize,
    /// Most bytes of all subscribed URIs together; one that does not fit gets an error (-32000).
    pub subscriptions_bytes_max: usize,
    /// A saved state of at most this many bytes is always saved whole; of a longer one, mostly what
    /// changed. No setting: a smaller one saves no write, and a larger one makes writes longer.
    #[serde(skip)]
    pub whole_state_bytes_max: usize,
    /// Most bytes of `initialize` parameters that are kept: protocol version, capabilities and
    /// client info, without icons if they do not fit. If the rest is longer, `initialize` gets an
    /// error (-32602).
    pub initialize_bytes_max: usize,
    /// Most messages kept for a client without a stream for them; the oldest is dropped.
    pub waiting_max: usize,
    /// Most bytes of those messages; the oldest are dropped. A single message may be larger.
    pub waiting_bytes_max: usize,
    /// Most events kept for replay; the oldest are dropped.
    pub log_events_max: usize,
    /// Most bytes of events kept for replay; the oldest are dropped. Events that the store has
    /// not acknowledged, or that are younger than `hold_ms`, stay for up to `message_bytes_max`
    /// more: then the oldest are dropped too.
    pub log_bytes_max: usize,
    /// Largest message of a server that is forwarded, in bytes. A larger response becomes an
    /// error that names this limit, a larger server request is refused, and a larger notification
    /// is dropped.
    pub message_bytes_max: usize,
    /// Most results kept for requests whose connection to another node was lost, each for
    /// `hold_ms`; the oldest are dropped.
    pub kept_results_max: usize,
    /// Most bytes of those results; the oldest are dropped.
    pub kept_results_bytes_max: usize,
    /// How long a final response may wait for the store, in milliseconds; then it is sent
    /// without an event id. Not read from the settings: a node sets it to its own `hold_ms`.
    #[serde(skip)]
    pub hold_ms: u64,
    /// How long the events of a finished stream are kept for replay, in seconds.
    pub replay_secs: u64,
    /// Progress notifications of one request that are forwarded at once; beyond them at most
    /// `progress_per_sec`, always the latest (PRG-05).
    pub progress_burst: u32,
    /// See `progress_burst`.
    pub progress_per_sec: u32,
}

impl Limits {
    /// Most bytes that the log ever holds: `log_bytes_max`, and one message of the largest
    /// allowed size.
    pub fn log_bytes_most(&self) -> usize {
        self.log_bytes_max.saturating_add(self.message_bytes_max)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sse_after_ms: 250,
            keepalive_secs: 15,
            retry_ms: 2_000,
            start_secs: 60,
            request_secs: 300,
            request_max_secs: 3_600,
            ask_secs: 600,
            idle_secs: 1_800,
            vanished_secs: 600,
            idle_server_secs: 300,
            sleep_after_secs: 0,
            handshake_secs: 60,
            ping_secs: 0,
            stream_secs: 0,
            exchanges_max: 64,
            server_requests_max: 64,
            standalone_max: 4,
            subscriptions_max: 1_000,
            subscription_uri_bytes_max: 8 << 10,
            subscriptions_bytes_max: 256 << 10,
            whole_state_bytes_max: 4 << 10,
            initialize_bytes_max: 16 << 10,
            waiting_max: 64,
            waiting_bytes_max: 4 << 20,
            log_events_max: 1_024,
            log_bytes_max: 4 << 20,
            message_bytes_max: 16 << 20,
            kept_results_max: 64,
            kept_results_bytes_max: 16 << 20,
            hold_ms: 25_000,
            replay_secs: 300,
            progress_burst: 100,
            progress_per_sec: 100,
        }
    }
}
