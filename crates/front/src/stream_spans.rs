//! The spans of requests over HTTP+SSE that are traced, from their POSTs to their answers.
//!
//! A POST is answered with a 202, and the answer to its request takes the stream of the session. If that stream is at
//! this node, the span ends with the answer. Threads share this: a POST may be of another one than the stream.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use actors::ReplyStream;
use protocol::{Body as Posted, Message, RequestId, SessionId};
use telemetry::{ExchangeRecord, Outcome, Span};

use crate::audit_reading::{cancelled_id, final_response};
use crate::served_session::note_served;
use crate::server_span::{TracedRequest, end};
use crate::unanswered::Unanswered;

/// Most requests of a session whose spans wait for answers. At this bound the span of the oldest one ends as one
/// of a message that was accepted.
const WAITING_MAX: usize = 64;

/// The streams of HTTP+SSE at this node. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamSpans(Arc<Mutex<HashMap<SessionId, Arc<Waiting>>>>);

/// The requests of one session that wait for answers.
#[derive(Debug, Default)]
struct Waiting {
    /// Their number, so that most messages of a stream take no lock.
    count: AtomicUsize,
    requests: Mutex<Unanswered<WaitingSpan>>,
}

#[derive(Debug)]
struct WaitingSpan {
    span: Span,
    /// That of the POST.
    record: Box<ExchangeRecord>,
}

impl WaitingSpan {
    fn end(self, outcome: Outcome, code: Option<i32>) {
        end(self.span, &self.record, outcome, code);
    }
}

impl Waiting {
    fn with<T>(&self, change: impl FnOnce(&mut Unanswered<WaitingSpan>) -> T) -> T {
        // Each change is whole.
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut requests);
        self.count.store(requests.len(), Ordering::Relaxed);
        changed
    }
}

impl StreamSpans {
    /// The stream of this session is at this node.
    pub(crate) fn open(&self, session: &SessionId) -> SpansOfStream {
        let waiting = Arc::<Waiting>::default();
        self.streams(|streams| streams.insert(session.clone(), Arc::clone(&waiting)));
        SpansOfStream { all: self.clone(), session: session.clone(), waiting }
    }

    /// Keeps the spans of requests that are about to be dispatched. `Err` with them if the stream is at another
    /// node.
    pub(crate) fn keep(
        &self,
        session: &SessionId,
        requests: Vec<TracedRequest>,
        record: &ExchangeRecord,
    ) -> Result<KeptSpans, Vec<TracedRequest>> {
        let Some(waiting) = self.waiting(session) else { return Err(requests) };
        let mut ids = Vec::with_capacity(requests.len());
        for TracedRequest { id, handling, span } in requests {
            let kept = WaitingSpan { span, record: Box::new(record.clone()) };
            let oldest = waiting.with(|requests| {
                let is_full = requests.len() >= WAITING_MAX;
                let oldest = if is_full { requests.take_oldest() } else { None };
                requests.add(&id, handling, Some(kept));
                oldest
            });
            oldest.into_iter().for_each(|oldest| oldest.end(Outcome::Accepted, None));
            ids.push(id);
        }
        Ok(KeptSpans { waiting, ids })
    }

    /// Ends the spans of requests that a message or a batch cancels: they get no answer.
    pub(crate) fn end_cancelled(&self, session: &SessionId, body: &Posted) {
        let messages = match body {
            Posted::One(message) => std::slice::from_ref(message).iter().collect(),
            Posted::Batch(members) => members.iter().flatten().collect::<Vec<_>>(),
        };
        for message in messages {
            let Message::Notification(notification) = message else { continue };
            if let Some(id) = cancelled_id(notification)
                && let Some(waiting) = self.waiting(session)
                && let Some(cancelled) = waiting.with(|requests| requests.take_cancelled(&id))
            {
                cancelled.end(Outcome::Cancelled, None);
            }
        }
    }

    fn waiting(&self, session: &SessionId) -> Option<Arc<Waiting>> {
        self.streams(|streams| streams.get(session).cloned())
    }

    fn streams<T>(&self, of: impl FnOnce(&mut HashMap<SessionId, Arc<Waiting>>) -> T) -> T {
        of(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Spans of one POST that were kept.
pub(crate) struct KeptSpans {
    waiting: Arc<Waiting>,
    ids: Vec<RequestId>,
}

impl KeptSpans {
    /// Notes what the replies to the POST say of the session, for the requests that still wait. The stream began
    /// before the handshake.
    pub(crate) fn served(&self, replies: &ReplyStream) {
        self.waiting.with(|requests| {
            for id in &self.ids {
                let waiting = requests.with_id(id);
                waiting.for_each(|waiting| note_served(&mut waiting.record, replies));
            }
        });
    }

    /// The POST was refused: its requests get no answer on the stream.
    pub(crate) fn refuse(self, status: u16, code: i32) {
        for id in self.ids {
            // Of several with this id, that of this POST.
            if let Some(mut refused) = self.waiting.with(|requests| requests.take_newest(&id)) {
                refused.record.status = status;
                refused.end(Outcome::Refused, Some(code));
            }
        }
    }
}

/// The stream of one session.
#[derive(Debug)]
pub(crate) struct SpansOfStream {
    all: StreamSpans,
    session: SessionId,
    waiting: Arc<Waiting>,
}

impl SpansOfStream {
    /// Ends the span of the request that a message of the stream answers.
    pub(crate) fn passed_on(&self, message: &[u8], replies: &ReplyStream) {
        if self.waiting.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Some((id, outcome, code)) = final_response(message) else { return };
        let answered = self.waiting.with(|requests| requests.take_answered(&id, code));
        if let Some(mut answered) = answered {
            answered.record.owner = replies.owner_name();
            answered.end(outcome, code);
        }
    }

    /// Ends all spans: the stream has ended, and the session with it.
    pub(crate) fn end(&self, outcome: Outcome) {
        while let Some(waiting) = self.waiting.with(Unanswered::take_oldest) {
            waiting.end(outcome, None);
        }
    }
}

impl Drop for SpansOfStream {
    fn drop(&mut self) {
        self.all.streams(|streams| {
            if streams.get(&self.session).is_some_and(|kept| Arc::ptr_eq(kept, &self.waiting)) {
                streams.remove(&self.session);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use telemetry::{Before, OtlpSettings, Side, Traces};

    use super::*;
    use crate::unanswered::Handling;

    fn record() -> ExchangeRecord {
        ExchangeRecord::begun("POST", "messages", &"n1".into())
    }

    fn traced(id: i64) -> Vec<TracedRequest> {
        let traces = Traces::discarding(&OtlpSettings::default());
        let span = traces.begin(Side::Server, "ping".to_owned(), Before::default()).unwrap();
        vec![TracedRequest { id: RequestId::from(id), handling: Handling::Sent, span }]
    }

    #[test]
    fn spans_wait_at_the_node_of_the_stream_and_are_bounded() {
        let (all, session) = (StreamSpans::default(), SessionId::parse("a-session").unwrap());
        let returned = all.keep(&session, traced(1), &record());
        assert_eq!(returned.err().map(|requests| requests.len()), Some(1));
        let stream = all.open(&session);
        let count = || stream.waiting.count.load(Ordering::Relaxed);
        for id in 0..WAITING_MAX as i64 + 9 {
            assert!(all.keep(&session, traced(id), &record()).is_ok());
        }
        assert_eq!(count(), WAITING_MAX);
        let first = stream.waiting.with(|requests| requests.take_first(&RequestId::from(8)));
        assert!(first.is_none(), "the oldest ones have ended");
        let refused = all.keep(&session, traced(500), &record()).ok().unwrap();
        let before = count();
        refused.refuse(404, -32001);
        assert_eq!(count(), before - 1);
        stream.end(Outcome::Left);
        assert_eq!(count(), 0);
        drop(stream);
        assert!(all.keep(&session, traced(1), &record()).is_err(), "the stream has ended");
    }
}
