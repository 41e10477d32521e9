//! Requests without an answer, each with what ends with its answer. It decides which of them an answer is for.
//!
//! A client may use an id twice. The session answers such requests in a known order: first, in the order in which they
//! were sent, those that it does not send to the server (pings, requests that are refused, and each request with the id
//! of one that is in flight), then the one that it has sent. A cancelled request has no answer.

use protocol::{ErrorCode, Message, Method, Rejection, Request, RequestId};
use telemetry::Outcome;

use crate::audit_reading::cancelled_id;

/// How a session handles a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handling {
    /// It sends the request to the server, unless it refuses it.
    Sent,
    /// It answers a ping at once.
    Ping,
    /// The front has refused the request: the session answers with the error of this code at once.
    Refused(i32),
}

impl Handling {
    /// How a session handles a request that the front has not refused.
    pub(crate) fn of(request: &Request) -> Self {
        if request.method == Method::Ping { Self::Ping } else { Self::Sent }
    }

    /// Whether an answer of this kind is for such a request while one with its id is in flight.
    fn is_answered_by(self, code: Option<i32>) -> bool {
        match self {
            Self::Sent => code == Some(ErrorCode::InvalidRequest.number()),
            Self::Ping => code.is_none(),
            Self::Refused(error) => code == Some(error),
        }
    }
}

/// The requests without an answer, in the order in which they were sent.
#[derive(Debug)]
pub(crate) struct Unanswered<T> {
    requests: Vec<UnansweredRequest<T>>,
    /// Whether one of them had its answer: the session has accepted them.
    has_answers: bool,
    /// Whether no answer follows.
    is_complete: bool,
}

#[derive(Debug)]
struct UnansweredRequest<T> {
    id: RequestId,
    handling: Handling,
    is_cancelled: bool,
    /// What ends with the answer; `None` if nothing does.
    of: Option<T>,
}

impl<T> Default for Unanswered<T> {
    fn default() -> Self {
        Self { requests: Vec::new(), has_answers: false, is_complete: false }
    }
}

impl<T> Unanswered<T> {
    /// Adds a request.
    pub(crate) fn add(&mut self, id: &RequestId, handling: Handling, of: Option<T>) {
        self.requests.push(UnansweredRequest { id: id.clone(), handling, is_cancelled: false, of });
    }

    /// Adds the member of a batch that was refused, if it has an id.
    pub(crate) fn add_refused(&mut self, rejection: &Rejection) {
        if let Some(id) = &rejection.id {
            self.add(id, Handling::Refused(rejection.code.number()), None);
        }
    }

    /// Notes a cancellation of a request by its client. Other messages are ignored.
    pub(crate) fn note_cancelled(&mut self, message: &Message) {
        let Message::Notification(notification) = message else { return };
        if let Some(at) = cancelled_id(notification).and_then(|id| self.in_flight(&id)) {
            self.requests[at].is_cancelled = true;
        }
    }

    /// Removes the request that is cancelled with this id.
    pub(crate) fn take_cancelled(&mut self, id: &RequestId) -> Option<T> {
        let at = self.in_flight(id)?;
        self.requests.remove(at).of
    }

    fn in_flight(&self, id: &RequestId) -> Option<usize> {
        self.requests.iter().position(|request| {
            request.id == *id && request.handling == Handling::Sent && !request.is_cancelled
        })
    }

    /// Removes the request that an answer with this id is for. `code`: that of the error, if it is one.
    pub(crate) fn take_answered(&mut self, id: &RequestId, code: Option<i32>) -> Option<T> {
        let mut same = self.requests.iter().enumerate().filter(|(_, request)| request.id == *id);
        let (first, of_first) = same.next()?;
        let at = match same.next() {
            Some((at, next))
                if of_first.handling == Handling::Sent && next.handling.is_answered_by(code) =>
            {
                at
            }
            _ => first,
        };
        self.has_answers = true;
        self.requests.remove(at).of
    }

    /// Removes the first request with this id.
    pub(crate) fn take_first(&mut self, id: &RequestId) -> Option<T> {
        let at = self.requests.iter().position(|request| request.id == *id)?;
        self.requests.remove(at).of
    }

    /// Removes the newest request with this id.
    pub(crate) fn take_newest(&mut self, id: &RequestId) -> Option<T> {
        let at = self.requests.iter().rposition(|request| request.id == *id)?;
        self.requests.remove(at).of
    }

    /// The number of requests without an answer.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Removes requests, from the oldest one on, up to the first with whose answer something ends.
    pub(crate) fn take_oldest(&mut self) -> Option<T> {
        while !self.requests.is_empty() {
            let of = self.requests.remove(0).of;
            if of.is_some() {
                return of;
            }
        }
        None
    }

    /// All requests, with whose answers something ends.
    pub(crate) fn into_all(self) -> impl Iterator<Item = (RequestId, Handling, T)> {
        let requests = self.requests.into_iter();
        requests.filter_map(|request| Some((request.id, request.handling, request.of?)))
    }

    /// What ends with the answers to requests with this id.
    pub(crate) fn with_id<'a>(
        &'a mut self,
        id: &'a RequestId,
    ) -> impl Iterator<Item = &'a mut T> + 'a {
        let same = self.requests.iter_mut().filter(move |request| request.id == *id);
        same.filter_map(|request| request.of.as_mut())
    }

    /// Notes that no answer follows: each request without one was cancelled.
    pub(crate) fn set_complete(&mut self) {
        self.is_complete = true;
    }

    /// Whether each request has its answer.
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether nothing ends with an answer that is still to come.
    pub(crate) fn ends_nothing(&self) -> bool {
        self.requests.iter().all(|request| request.of.is_none())
    }

    /// What has no answer at the end of an exchange with this outcome, and the outcome of each: that of the exchange
    /// may be of other requests.
    pub(crate) fn at_end(self, of_exchange: Outcome) -> impl Iterator<Item = (T, Outcome)> {
        let Self { requests, has_answers, is_complete } = self;
        let is_of_answers =
            matches!(of_exchange, Outcome::Result | Outcome::ToolError | Outcome::Error);
        let of_others = is_of_answers && has_answers;
        let is_accepted = has_answers || matches!(of_exchange, Outcome::Streamed | Outcome::Broken);
        requests.into_iter().filter_map(move |request| {
            let outcome = match request.is_cancelled && is_accepted {
                true => Outcome::Cancelled,
                false if of_others && is_complete => Outcome::Cancelled,
                false if of_others => Outcome::Streamed,
                false => of_exchange,
            };
            Some((request.of?, outcome))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Handling::{Ping, Refused, Sent};

    const IN_FLIGHT: Option<i32> = Some(-32600);
    const INVALID: Option<i32> = Some(-32602);

    /// The requests with one id that answers with these codes are for, in their order.
    #[track_caller]
    fn check(handlings: &[Handling], answers: &[Option<i32>], expected: &[usize]) {
        let (id, mut unanswered) = (RequestId::from(1), Unanswered::default());
        for (at, handling) in handlings.iter().enumerate() {
            unanswered.add(&id, *handling, Some(at));
        }
        let found: Vec<_> =
            answers.iter().filter_map(|code| unanswered.take_answered(&id, *code)).collect();
        assert_eq!(found, expected, "{handlings:?} {answers:?}");
    }

    #[test]
    fn an_answer_is_for_the_request_that_the_session_answers_with_it() {
        check(&[Sent, Sent, Sent], &[IN_FLIGHT, IN_FLIGHT, None], &[1, 2, 0]);
        check(&[Sent, Sent, Sent], &[INVALID, IN_FLIGHT, None], &[0, 2, 1]);
        check(&[Sent, Sent], &[IN_FLIGHT, IN_FLIGHT], &[1, 0]);
        check(&[Ping, Sent], &[None, None], &[0, 1]);
        check(&[Sent, Ping], &[None, None], &[1, 0]);
        check(&[Sent, Ping, Sent], &[None, IN_FLIGHT, INVALID], &[1, 2, 0]);
        check(&[Sent, Refused(-32602)], &[INVALID, None], &[1, 0]);
        check(&[Refused(-32602), Sent], &[INVALID, INVALID], &[0, 1]);
        check(&[Sent], &[IN_FLIGHT], &[0]);
        check(&[Sent], &[None, None], &[0]);
    }

    #[test]
    fn a_request_without_an_answer_has_an_outcome_of_its_own() {
        let cancel =
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
        let cancel = Message::parse(cancel.into()).unwrap();
        let check = |has_answers: bool, is_complete: bool, of_exchange, expected: [Outcome; 2]| {
            let mut unanswered = Unanswered::default();
            for id in 1..=3 {
                unanswered.add(&RequestId::from(id), Sent, Some(id));
            }
            unanswered.note_cancelled(&cancel);
            if has_answers {
                unanswered.take_answered(&RequestId::from(3), None);
            } else {
                unanswered.take_first(&RequestId::from(3));
            }
            if is_complete {
                unanswered.set_complete();
            }
            let left: Vec<_> = unanswered.at_end(of_exchange).collect();
            assert_eq!(left, [(1, expected[0]), (2, expected[1])], "{of_exchange:?}");
        };
        let cancelled = Outcome::Cancelled;
        check(true, true, Outcome::Result, [cancelled, cancelled]);
        // Clients resume a stream that ends in order.
        check(true, false, Outcome::Result, [cancelled, Outcome::Streamed]);
        check(true, false, Outcome::Error, [cancelled, Outcome::Streamed]);
        check(true, false, Outcome::Left, [cancelled, Outcome::Left]);
        check(false, false, Outcome::Broken, [cancelled, Outcome::Broken]);
        // The session may not have accepted the batch.
        check(false, false, Outcome::Error, [Outcome::Error, Outcome::Error]);
        check(false, false, Outcome::Refused, [Outcome::Refused, Outcome::Refused]);
        check(false, false, Outcome::Left, [Outcome::Left, Outcome::Left]);
    }
}
