//! A limit that is reached, and the answer to the client.

use std::sync::Arc;
use std::time::Duration;

use actix_http::header::HeaderValue;
use budget::limit::{INTERVAL, Refused as NoToken};
use protocol::{ErrorCode, Rejection};
use tenants::{Per, RateRule};

/// The kinds of limits, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitKind {
    /// A rate of all clients of a tenant together.
    Tenant = 0,
    /// A rate of each client.
    Principal = 1,
    /// A rate of each key.
    Key = 2,
    /// A rate of calls of some tools.
    Tool = 3,
    /// The requests in flight.
    Exchanges = 4,
    /// The sessions.
    Sessions = 5,
    /// The open GET streams.
    Streams = 6,
    /// The bytes of events that are added to logs.
    LogBytes = 7,
}

impl LimitKind {
    pub(crate) const ALL: [Self; 8] = [
        Self::Tenant,
        Self::Principal,
        Self::Key,
        Self::Tool,
        Self::Exchanges,
        Self::Sessions,
        Self::Streams,
        Self::LogBytes,
    ];

    /// The name in metrics; of a count also for its clients.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Principal => "principal",
            Self::Key => "key",
            Self::Tool => "tool",
            Self::Exchanges => "exchanges",
            Self::Sessions => "sessions",
            Self::Streams => "streams",
            Self::LogBytes => "log_bytes",
        }
    }

    /// The kind of a rate.
    pub(crate) fn of(rule: &RateRule) -> Self {
        match rule.per {
            _ if rule.is_of_tools() => Self::Tool,
            Per::Tenant => Self::Tenant,
            Per::Principal => Self::Principal,
            Per::Key => Self::Key,
        }
    }
}

/// A limit that is reached.
#[derive(Clone, Debug)]
pub(crate) struct OverLimit {
    pub(crate) kind: LimitKind,
    /// The name, of which settings allow only characters that need no escape.
    name: Arc<str>,
    /// How many, and in how many seconds if it is a rate.
    quota: (u64, Option<u32>),
    no_token: NoToken,
}

impl OverLimit {
    pub(crate) fn of_rate(rule: &RateRule, no_token: NoToken) -> Self {
        Self {
            kind: LimitKind::of(rule),
            name: Arc::from(&*rule.name),
            quota: (rule.tokens.into(), Some(rule.window_secs)),
            no_token,
        }
    }

    pub(crate) fn of_count(kind: LimitKind, max: u32, no_token: NoToken) -> Self {
        Self { kind, name: kind.name().into(), quota: (max.into(), None), no_token }
    }

    pub(crate) fn of_log_bytes(per_day: u64, no_token: NoToken) -> Self {
        let kind = LimitKind::LogBytes;
        Self { kind, name: kind.name().into(), quota: (per_day, Some(86_400)), no_token }
    }

    /// Whether the next share may have a token for the request.
    pub(crate) fn may_wait(&self) -> bool {
        self.no_token == NoToken::Wait
    }

    /// When the client may try again.
    fn retry_after(&self) -> Duration {
        match self.no_token {
            NoToken::Wait => INTERVAL,
            NoToken::Over(retry_after) => retry_after,
        }
    }

    /// The same in whole seconds, at least one.
    pub(crate) fn retry_after_secs(&self) -> u32 {
        u32::try_from(self.retry_after().as_secs_f64().ceil() as u64).unwrap_or(u32::MAX).max(1)
    }

    /// The JSON-RPC error, without an id.
    pub(crate) fn rejection(&self) -> Rejection {
        let ms = (self.retry_after().as_secs_f64() * 1_000.0).ceil() as u64;
        let (name, (quota, window)) = (&self.name, self.quota);
        let what = match window {
            Some(_) if self.kind == LimitKind::LogBytes => format!("{quota} bytes of events a day"),
            Some(1) => format!("{quota} requests a second"),
            Some(60) => format!("{quota} requests a minute"),
            Some(3_600) => format!("{quota} requests an hour"),
            Some(secs) => format!("{quota} requests in {secs} seconds"),
            None => format!("{quota} at once"),
        };
        let message =
            format!("the limit `{name}` is reached ({what}); try again in {ms} milliseconds");
        let data = format!("{{\"limit\":\"{name}\",\"retryAfterMs\":{ms}}}");
        Rejection::new(ErrorCode::Refused, message).with_data(data)
    }

    /// The values of `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10).
    pub(crate) fn headers(&self) -> Option<(HeaderValue, HeaderValue)> {
        let (name, (quota, window)) = (&self.name, self.quota);
        let unit = match self.kind {
            LimitKind::Exchanges => ";qu=\"concurrent-requests\"",
            LimitKind::LogBytes => ";qu=\"content-bytes\"",
            _ => "",
        };
        let window = window.map(|secs| format!(";w={secs}")).unwrap_or_default();
        let policy = format!("\"{name}\";q={quota}{unit}{window}");
        let limit = format!("\"{name}\";r=0;t={}", self.retry_after_secs());
        Some((HeaderValue::from_str(&policy).ok()?, HeaderValue::from_str(&limit).ok()?))
    }
}
