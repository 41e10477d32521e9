//! The session's view of the link to the tenant's server: its state, and the messages that wait
//! for it.
//!
//! When a link is lost, the next request opens a new one, on which the handshake, the log
//! level and the subscriptions are sent again.

use protocol::{Message, Method, Notification, Request, RequestId, Revision};
use thin_vec::ThinVec;

use crate::earliest::Earliest;
use crate::ended_requests::EndedRequests;
use crate::handshake::Client;
use crate::step_context::StepContext;
use crate::{Effect, Fact, Millis};

/// Shortest wait before a server that failed again is started again, in milliseconds; it doubles
/// each time.
const BACKOFF_MIN_MS: u64 = 500;
/// Longest such wait, in milliseconds.
const BACKOFF_MAX_MS: u64 = 30_000;
/// A link that lasted this long, in milliseconds, resets the wait after failures.
const STEADY_MS: u64 = 30_000;
/// Notifications kept for a server that is being started; at the limit the oldest are dropped.
/// Requests are bounded by `exchanges_max`.
const QUEUE_MAX: usize = 256;

/// The prefix of the ids of the session's own requests, whose answers no client receives.
const OWN_PREFIX: &str = RequestId::OWN_PREFIX;

/// The link to the tenant's server.
pub(crate) struct ServerLink {
    state: State,
    /// The revision in the server's answer.
    revision: Revision,
    /// The messages that wait until the link is up.
    queue: ThinVec<Message>,
    /// Requests that wait until it is known whether they may run a second time. Each is an
    /// exchange, so `exchanges_max` bounds them.
    undecided: ThinVec<Request>,
    /// Stays at its maximum.
    failures: u8,
    /// The server is to be left as soon as it is idle.
    is_retired: bool,
    /// The next link goes on where that of a former owner was.
    carries_on: bool,
    /// The number of the session's next own request to the server. 32 bits are more than a session sends.
    next_own: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// There is no link; one may be opened from `again_at` on.
    Down { again_at: Millis },
    /// Requested.
    Opening { until: Millis },
    /// Up, and its `initialize` unanswered.
    Initializing { until: Millis },
    /// In use.
    Up { since: Millis },
}

/// The subject of a response to the session's own request.
pub(crate) enum OwnResponse {
    /// The server's `initialize`, which the session waits for.
    Initialize,
    /// A page of its tools.
    ToolsList,
    /// Any other; the response is ignored.
    Other,
}

impl ServerLink {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Down { again_at: Millis(0) },
            revision: Revision::NEWEST_STABLE,
            queue: ThinVec::new(),
            undecided: ThinVec::new(),
            failures: 0,
            is_retired: false,
            carries_on: false,
            next_own: 1,
        }
    }

    /// The revision in the server's answer.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    /// Is there no link, and no message that waits for one?
    pub(crate) fn is_down(&self) -> bool {
        matches!(self.state, State::Down { .. }) && self.queue.is_empty()
    }

    /// The bytes of the messages that wait.
    pub(crate) fn bytes(&self) -> usize {
        let queued = self.queue.iter().map(|message| message.raw().len());
        let undecided = self.undecided.iter().map(|request| request.raw().len());
        queued.sum::<usize>() + undecided.sum::<usize>()
    }

    /// Since when the server got no request, while the link is up. `used_at` is when the session
    /// last accepted, cancelled or settled a request.
    pub(crate) fn idle_since(&self, used_at: Millis) -> Option<Millis> {
        match self.state {
            State::Up { since } => Some(since.max(used_at)),
            _ => None,
        }
    }

    /// The next link goes on where that of a former owner was.
    pub(crate) fn carry_on(&mut self) {
        self.carries_on = true;
    }

    pub(crate) fn carries_on(&self) -> bool {
        self.carries_on
    }

    /// The server that the link leads to is to be left as soon as it is idle.
    pub(crate) fn note_retired(&mut self) {
        self.is_retired = true;
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.is_retired
    }

    /// When the link has to be opened, or times out.
    fn deadline(&self) -> Option<Millis> {
        match self.state {
            State::Down { again_at } => (!self.queue.is_empty()).then_some(again_at),
            State::Opening { until } | State::Initializing { until } => Some(until),
            State::Up { .. } => None,
        }
    }

    pub(crate) fn note_deadline(&self, earliest: &mut Earliest) {
        earliest.add_deadline_if_any(self.deadline());
    }

    /// Sends a message to the server, or keeps it until there is one.
    pub(crate) fn send_or_queue(
        &mut self,
        context: &mut StepContext<'_>,
        message: impl Into<Message>,
    ) {
        let message = message.into();
        match self.state {
            State::Up { .. } => context.send_to_server(message),
            // A server that is not connected gets no message now; the handshake restores its
            // state.
            State::Down { .. } if !matches!(message, Message::Request(_)) => {}
            _ => {
                let is_request = matches!(message, Message::Request(_));
                let most = QUEUE_MAX + context.limits().exchanges_max;
                if self.queue.len() >= most && !is_request {
                    context.count_fact(Fact::Dropped);
                    return;
                }
                self.queue.push(message);
                self.open_link(context);
            }
        }
    }

    /// Requests a link if there is none and the wait is over.
    pub(crate) fn open_link(&mut self, context: &mut StepContext<'_>) {
        if let State::Down { again_at } = self.state
            && again_at <= context.now
        {
            self.state = State::Opening { until: context.in_secs(context.setup.start_secs.into()) };
            self.is_retired = false;
            context.effects.push(Effect::OpenLink);
        }
    }

    /// Closes the link, and drops the messages that wait for it.
    pub(crate) fn close_link(&mut self, context: &mut StepContext<'_>) {
        if !matches!(self.state, State::Down { .. }) {
            self.state = State::Down { again_at: context.now };
            context.effects.push(Effect::CloseLink);
        }
        self.drop_waiting();
    }

    /// Closes the link, and leaves what it has saved to the next owner.
    pub(crate) fn leave_link(&mut self, context: &mut StepContext<'_>) {
        if !matches!(self.state, State::Down { .. }) {
            self.state = State::Down { again_at: context.now };
            context.effects.push(Effect::LeaveLink);
        }
        self.drop_waiting();
    }

    /// As [`Self::close_link`], for a session that ends. What a former owner's link has saved is ended too.
    pub(crate) fn end_link(&mut self, context: &mut StepContext<'_>) {
        if self.carries_on && matches!(self.state, State::Down { .. }) {
            context.effects.extend([Effect::OpenLink, Effect::CloseLink]);
        }
        self.close_link(context);
    }

    fn drop_waiting(&mut self) {
        self.queue.clear();
        self.undecided.clear();
    }

    /// The link is open: sends `initialize`.
    pub(crate) fn begin_handshake(
        &mut self,
        context: &mut StepContext<'_>,
        client: Option<&Client>,
    ) {
        let (State::Opening { until }, Some(client)) = (self.state, client) else { return };
        let asked = client.revision.asked_of_servers();
        let params = protocol::with_protocol_version(&client.params, asked);
        self.carries_on = false;
        self.state = State::Initializing { until };
        self.send_own(context, Method::Initialize, Some(&params));
    }

    /// The server answered `initialize` with this revision: the link is in use.
    pub(crate) fn complete_handshake(&mut self, now: Millis, revision: Revision) {
        self.state = State::Up { since: now };
        self.revision = revision;
    }

    /// Sends the messages that waited for the link.
    pub(crate) fn send_queue(&mut self, context: &mut StepContext<'_>) {
        for message in std::mem::take(&mut self.queue) {
            context.send_to_server(message);
        }
    }

    /// Sends a request of the session itself.
    pub(crate) fn send_own(
        &mut self,
        context: &mut StepContext<'_>,
        method: Method,
        params: Option<&[u8]>,
    ) {
        let request = self.own_request(method, params);
        context.send_to_server(request);
    }

    /// A request of the session itself.
    pub(crate) fn own_request(&mut self, method: Method, params: Option<&[u8]>) -> Request {
        let id = RequestId::from(format!("{OWN_PREFIX}{}:{}", method.as_str(), self.next_own));
        self.next_own = self.next_own.wrapping_add(1);
        Request::new(id, method, params)
    }

    /// The subject of the session's own request with this id; `None` for any other id.
    pub(crate) fn own_response(&self, id: Option<&RequestId>) -> Option<OwnResponse> {
        let Some(RequestId::String(id)) = id else { return None };
        let own = id.strip_prefix(OWN_PREFIX)?;
        let awaits_initialize = matches!(self.state, State::Initializing { .. });
        Some(if own.starts_with("initialize:") && awaits_initialize {
            OwnResponse::Initialize
        } else if own.starts_with("tools/list:") {
            OwnResponse::ToolsList
        } else {
            OwnResponse::Other
        })
    }

    /// Keeps a request until it is known whether it may run a second time.
    pub(crate) fn add_undecided(&mut self, request: Request) {
        self.undecided.push(request);
    }

    pub(crate) fn has_undecided(&self) -> bool {
        !self.undecided.is_empty()
    }

    pub(crate) fn take_undecided(&mut self) -> ThinVec<Request> {
        std::mem::take(&mut self.undecided)
    }

    /// The requests that wait for a link which cannot carry a former owner's on: none of them was sent.
    pub(crate) fn take_unsent(&mut self) -> Vec<Request> {
        if !self.carries_on {
            return Vec::new();
        }
        let queue = std::mem::take(&mut self.queue).into_iter();
        let request = |message| match message {
            Message::Request(request) => Some(request),
            _ => None,
        };
        queue.filter_map(request).collect()
    }

    /// Removes a request that was not sent to the server yet.
    pub(crate) fn unqueue(&mut self, id: &RequestId) -> bool {
        let waiting = self.queue.len() + self.undecided.len();
        self.queue.retain(|message| !matches!(message, Message::Request(r) if r.id == *id));
        self.undecided.retain(|request| request.id != *id);
        self.queue.len() + self.undecided.len() < waiting
    }

    /// Cancels a request that the server may have received.
    pub(crate) fn cancel_request(
        &mut self,
        context: &mut StepContext<'_>,
        ended: &mut EndedRequests,
        id: &RequestId,
        reason: &str,
    ) {
        if self.unqueue(id) {
            return;
        }
        ended.expect_late_response(id, false);
        let params = serde_json::json!({ "requestId": id, "reason": reason }).to_string();
        self.send_or_queue(context, Notification::new(Method::Cancelled, Some(params.as_bytes())));
    }

    /// The handshake failed, or the link is closed: the next one is opened after a wait.
    pub(crate) fn note_failure(&mut self, now: Millis) {
        self.failures = self.failures.saturating_add(1);
        self.carries_on = false;
        self.state = State::Down { again_at: now.plus(self.backoff()) };
        self.drop_waiting();
    }

    /// A link was lost that had been up, or could not be carried on, for the first time: the next one is
    /// opened without a wait.
    pub(crate) fn retry_at_once_after_first_failure(&mut self, now: Millis) {
        if self.failures == 1 {
            self.state = State::Down { again_at: now };
        }
    }

    /// The link is closed. Returns the error text for its requests, and whether it was up; `None`
    /// if that was reported before.
    pub(crate) fn note_lost(&mut self, now: Millis, reason: &str) -> Option<(String, bool)> {
        match self.state {
            State::Down { .. } => None,
            State::Up { since } => {
                if now.0.saturating_sub(since.0) >= STEADY_MS {
                    self.failures = 0;
                }
                Some((format!("the server ended while it worked on this: {reason}"), true))
            }
            State::Opening { .. } | State::Initializing { .. } => {
                Some((format!("the server could not be started: {reason}"), false))
            }
        }
    }

    /// Opens the link if the wait is over. Returns whether it was not up in time and was closed
    /// for that.
    pub(crate) fn open_or_time_out(&mut self, context: &mut StepContext<'_>) -> bool {
        if self.deadline().is_none_or(|deadline| deadline > context.now) {
            return false;
        }
        match self.state {
            State::Down { .. } => {
                self.open_link(context);
                false
            }
            State::Opening { .. } | State::Initializing { .. } => {
                self.close_link(context);
                true
            }
            State::Up { .. } => false,
        }
    }

    fn backoff(&self) -> u64 {
        match self.failures {
            0 => 0,
            failures => (BACKOFF_MIN_MS << (failures - 1).min(16)).min(BACKOFF_MAX_MS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_wait_up_to_a_bound() {
        let mut link = ServerLink::new();
        let mut waits = Vec::new();
        for _ in 0..9 {
            link.note_failure(Millis(0));
            waits.push(link.backoff());
        }
        assert_eq!(waits, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
    }
}
