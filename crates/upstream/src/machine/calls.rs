//! The requests that wait for a response of the upstream server, and how their streams are resumed.

use std::collections::HashMap;
use std::time::Duration;

use protocol::{Message, Method, Notification, Request, RequestId, payload};

use super::ids::{CallId, ExchangeId};
use crate::exchange::{ExchangeEvent, HeaderText};

/// How long to wait before a stream is resumed whose server did not say it.
const RETRY: Duration = Duration::from_secs(1);
/// Shortest wait, also if the server says less.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// Longest wait.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Most failed tries one after another. A server that ends a stream without an error may do so any
/// number of times.
const TRIES_MAX: u32 = 5;

/// Most bytes of requests that are kept until the server begins to answer. The others get an error if the
/// server does not know the session.
const KEPT_BYTES_MAX: usize = 256 << 10;

/// The requests without a response, by their ids at the server. The session that sends them bounds them.
#[derive(Debug, Default)]
pub(super) struct Calls(HashMap<RequestId, Call>);

#[derive(Debug)]
struct Call {
    id: CallId,
    exchange: ExchangeId,
    /// The request as the session sent it, until the server begins to answer.
    request: Option<Request>,
    /// Its response may be a list of tools.
    lists_tools: bool,
    /// The server has refused its headers once.
    is_second: bool,
    /// The last event id of its stream.
    cursor: Option<HeaderText>,
    retry: Duration,
    /// Failed tries since the last event.
    failures: u32,
}

/// What follows from an event of a request's exchange.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    Nothing,
    /// The rest of the stream is requested.
    Resume {
        cursor: HeaderText,
        after: Duration,
    },
    /// The request gets an error.
    Fail,
}

/// The wait that a server asks for, within bounds.
pub(super) fn retry_of(retry_ms: u64) -> Duration {
    Duration::from_millis(retry_ms).clamp(RETRY_MIN, RETRY_MAX)
}

/// The wait after this many failures one after another.
pub(super) fn backoff(retry: Duration, failures: u32) -> Duration {
    retry.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(RETRY_MAX).max(retry)
}

impl Calls {
    pub(super) fn add(&mut self, id: CallId, exchange: ExchangeId, request: Option<Request>) {
        let wire = id.wire.clone();
        let kept = self.0.values().filter_map(|call| call.request.as_ref());
        let kept: usize = kept.map(|request| request.raw().len()).sum();
        let lists_tools =
            request.as_ref().is_none_or(|request| request.method == Method::ToolsList);
        let request = request.filter(|request| kept + request.raw().len() <= KEPT_BYTES_MAX);
        let (is_second, cursor, retry, failures) = (false, None, RETRY, 0);
        let call = Call { id, exchange, request, lists_tools, is_second, cursor, retry, failures };
        self.0.insert(wire, call);
    }

    /// Adds a request whose stream another machine has read up to this event.
    pub(super) fn add_resumed(&mut self, id: CallId, exchange: ExchangeId, cursor: HeaderText) {
        let wire = id.wire.clone();
        self.add(id, exchange, None);
        if let Some(call) = self.0.get_mut(&wire) {
            call.cursor = Some(cursor);
        }
    }

    /// The id at the server of a request of the session that waits for its response.
    pub(super) fn on_wire(&self, own: &RequestId) -> Option<&RequestId> {
        // Mostly the same id.
        let same = self.0.get_key_value(own).filter(|(_, call)| call.id.own == *own);
        let wire = same.or_else(|| self.0.iter().find(|(_, call)| call.id.own == *own));
        wire.map(|(wire, _)| wire)
    }

    /// A message of the server as the session gets it: progress has the token of the session. `None` for progress of
    /// an earlier run of a request that was sent once more.
    pub(super) fn with_own_token(&self, message: Message) -> Option<Message> {
        let Message::Notification(notification) = &message else { return Some(message) };
        let is_renamed = self.0.values().any(|call| call.id.progress.is_some());
        if notification.method != Method::Progress || !is_renamed {
            return Some(message);
        }
        let progress = notification.params();
        let token = progress.as_ref().and_then(|params| Some(payload::progress_of(params)?.0));
        let Some((params, token)) = progress.zip(token) else { return Some(message) };
        match self.0.get(&token).and_then(|call| call.id.progress.as_ref()) {
            Some(own) => {
                let params = payload::with_progress_token(&params, own)?;
                Some(Notification::new(Method::Progress, Some(&params)).into())
            }
            None if self.0.values().any(|call| call.id.progress.as_ref() == Some(&token)) => None,
            None => Some(message),
        }
    }

    /// The exchange of a request that the server has not begun to answer.
    pub(super) fn unopened(&self, wire: &RequestId) -> Option<ExchangeId> {
        let call = self.0.get(wire)?;
        call.cursor.is_none().then_some(call.exchange)
    }

    /// The stream is requested again by this exchange.
    pub(super) fn note_exchange(&mut self, id: &RequestId, exchange: ExchangeId) {
        if let Some(call) = self.0.get_mut(id) {
            call.exchange = exchange;
        }
    }

    /// The server has refused the headers of a first request in place of which this one is sent.
    pub(super) fn note_second(&mut self, id: &RequestId) {
        if let Some(call) = self.0.get_mut(id) {
            call.is_second = true;
        }
    }

    /// Removes a call whose headers the server refuses, if it may be sent once more.
    pub(super) fn take_first(&mut self, wire: &RequestId) -> Option<Request> {
        let call = self.0.get(wire).filter(|call| !call.is_second)?;
        let is_call = |request: &Request| request.method == Method::ToolsCall;
        call.request.as_ref().filter(|request| is_call(request))?;
        self.take_unanswered(wire)
    }

    /// Whether the response to a request may be a list of tools.
    pub(super) fn lists_tools(&self, wire: &RequestId) -> bool {
        self.0.get(wire).is_some_and(|call| call.lists_tools)
    }

    /// Removes a request, and returns its ids and its exchange.
    pub(super) fn take(&mut self, wire: &RequestId) -> Option<(CallId, ExchangeId)> {
        self.0.remove(wire).map(|call| (call.id, call.exchange))
    }

    /// Removes a request that the server has not begun to answer, if it was kept.
    pub(super) fn take_unanswered(&mut self, wire: &RequestId) -> Option<Request> {
        let request = self.0.get_mut(wire)?.request.take()?;
        self.0.remove(wire);
        Some(request)
    }

    pub(super) fn on_event(&mut self, id: &RequestId, event: &ExchangeEvent) -> Next {
        let Some(call) = self.0.get_mut(id) else { return Next::Nothing };
        let is_failure = match event {
            ExchangeEvent::Opened(_) => {
                call.request = None;
                return Next::Nothing;
            }
            ExchangeEvent::SessionGone => return Next::Nothing,
            ExchangeEvent::Event { id, retry_ms, .. } => {
                call.cursor = id.clone().or(call.cursor.take());
                call.retry = retry_ms.map_or(call.retry, retry_of);
                call.failures = 0;
                return Next::Nothing;
            }
            ExchangeEvent::Ended => false,
            ExchangeEvent::Failed(failure) if failure.is_transient() => true,
            // 409: a former owner's connection still has the stream.
            ExchangeEvent::Refused { status: 409 | 429 | 500.., .. } => true,
            _ => return self.fail(id),
        };
        call.failures += u32::from(is_failure);
        match call.cursor.clone() {
            Some(cursor) if call.failures <= TRIES_MAX => {
                Next::Resume { cursor, after: backoff(call.retry, call.failures) }
            }
            _ => self.fail(id),
        }
    }

    fn fail(&mut self, id: &RequestId) -> Next {
        self.0.remove(id);
        Next::Fail
    }
}
