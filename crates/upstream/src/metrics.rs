//! Metrics of exchanges with upstream servers.

use std::sync::LazyLock;

use prometheus::{IntCounterVec, IntGauge};
use telemetry::register;

use crate::CredentialProblem;

/// Exchanges that ended; `outcome` is one of [`OUTCOMES`].
static EXCHANGES: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_upstream_exchanges_total",
        "HTTP exchanges with upstream servers, by outcome.",
        &["outcome"],
    )
});

/// Exchanges that have not ended.
pub(crate) static OPEN: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_upstream_exchanges_open",
        "HTTP exchanges with upstream servers that have not ended, streams included.",
    )
});

/// An answer of the server, with any content.
pub(crate) const ANSWERED: &str = "answered";
/// A status below 500 that is an error.
pub(crate) const REFUSED: &str = "refused";
/// A status from 500 on.
pub(crate) const FAILED: &str = "failed";

/// Requests for tokens that ended; `grant` is one of [`GRANTS`], `outcome` one of [`TOKEN_OUTCOMES`].
static TOKENS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_upstream_token_requests_total",
        "Requests to authorization servers for tokens for upstream servers, by grant and outcome.",
        &["grant", "outcome"],
    )
});

/// A token for the node itself.
pub(crate) const CLIENT_CREDENTIALS: &str = "client_credentials";

/// A token for a user.
pub(crate) const TOKEN_EXCHANGE: &str = "token_exchange";

/// A token for a user who has linked an account.
pub(crate) const AUTHORIZATION_CODE: &str = "authorization_code";

const GRANTS: [&str; 3] = [CLIENT_CREDENTIALS, TOKEN_EXCHANGE, AUTHORIZATION_CODE];

const ISSUED: &str = "issued";

const TOKEN_OUTCOMES: [&str; 6] =
    [ISSUED, "refused", "unavailable", "not_permitted", "invalid", "not_linked"];

pub(crate) fn count_token(grant: &'static str, problem: Option<&CredentialProblem>) {
    let outcome = problem.map_or(ISSUED, |problem| problem.label());
    TOKENS.with_label_values(&[grant, outcome]).inc();
}

const OUTCOMES: [&str; 12] = [
    ANSWERED,
    REFUSED,
    FAILED,
    "not_permitted",
    "unreachable",
    "held_back",
    "busy",
    "lost",
    "timed_out",
    "invalid",
    "redirected",
    "no_token",
];

pub(crate) fn count(outcome: &'static str) {
    EXCHANGES.with_label_values(&[outcome]).inc();
}

/// Registers every metric with the value zero, so that a rate includes the first event.
pub fn register_all() {
    LazyLock::force(&OPEN);
    for outcome in OUTCOMES {
        EXCHANGES.with_label_values(&[outcome]);
    }
    for grant in GRANTS {
        for outcome in TOKEN_OUTCOMES {
            TOKENS.with_label_values(&[grant, outcome]);
        }
    }
}

/// An exchange that has not ended.
pub(crate) struct Open;

impl Open {
    pub(crate) fn new() -> Self {
        OPEN.inc();
        Self
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.dec();
    }
}
