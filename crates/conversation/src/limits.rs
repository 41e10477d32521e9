//! The bounds of one session, each with what happens at it.

use serde::{Deserialize, Serialize};

/// Bounds and waits of one session.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// How long a call may stay silent before its answer becomes an SSE stream
    /// (revisions with priming), in milliseconds.
    pub sse_after_ms: u64,
    /// How often an open stream is kept alive by a comment, in seconds; also after how
    /// long an answer becomes a stream in revisions without priming.
    pub keepalive_secs: u64,
    /// What a client is told to wait before it comes back to a stream, in
    /// milliseconds; each stream gets a value within a quarter of it.
    pub retry_ms: u32,
    /// How long the handshake with the tenant's server may take, its start included,
    /// in seconds. Then `initialize`, or what waited for a restart, gets an error.
    pub start_secs: u64,
    /// How long a request may go without any sign of life (response, progress, a
    /// question to the client), in seconds. Then it is cancelled and gets an error.
    pub request_secs: u64,
    /// How long a request may take whatever happens, in seconds.
    pub request_max_secs: u64,
    /// How long the client may take to answer a request of the server's, in seconds.
    /// Then the server gets an error and the client a cancellation.
    pub ask_secs: u64,
    /// How long a session may lie without stream, exchange or message, in seconds. Then it is over.
    pub idle_secs: u64,
    /// After how long without stream, exchange or message a session leaves memory, to be
    /// woken by the next touch, in seconds; 0 for never. Only where its link may be closed.
    pub sleep_after_secs: u64,
    /// How long a session may wait for its client's `initialized`, in seconds.
    pub handshake_secs: u64,
    /// How often the client is pinged on its standalone stream, in seconds; 0 for never (PING-02).
    pub ping_secs: u64,
    /// How long one connection of a stream lives before its client is told to come back
    /// (revisions with priming; SSE-05), in seconds; 0 for as long as it may.
    pub stream_secs: u64,
    /// Most requests of the client's in flight; a further one gets an error.
    pub exchanges_max: usize,
    /// Most requests to the client that wait for an answer; a further one gets an error.
    pub asks_max: usize,
    /// Most standalone GET streams; at the bound the one that was idle longest is closed.
    pub standalone_max: usize,
    /// Most resources a client may subscribe to; a further one gets an error.
    pub subscriptions_max: usize,
    /// Most messages kept for a client that has no stream for them; the oldest goes.
    pub waiting_max: usize,
    /// Most events kept for replay; the oldest go.
    pub log_events_max: usize,
    /// Most bytes of events kept for replay; the oldest go.
    pub log_bytes_max: usize,
    /// How long the events of a finished stream are kept for replay, in seconds.
    pub replay_secs: u64,
    /// Progress notifications of one request that pass at once; beyond them, at most
    /// `progress_per_sec`, of which always the latest (PRG-05).
    pub progress_burst: u32,
    /// See `progress_burst`.
    pub progress_per_sec: u32,
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
            sleep_after_secs: 0,
            handshake_secs: 60,
            ping_secs: 0,
            stream_secs: 0,
            exchanges_max: 64,
            asks_max: 64,
            standalone_max: 4,
            subscriptions_max: 1_000,
            waiting_max: 64,
            log_events_max: 1_024,
            log_bytes_max: 4 << 20,
            replay_secs: 300,
            progress_burst: 100,
            progress_per_sec: 100,
        }
    }
}
