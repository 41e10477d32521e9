//! The handshake with the client, and the link to the tenant's server with its own handshake.
//!
//! The client's revision is negotiated here; the server is asked for the same and may
//! answer another. When a link is lost, the next request opens a new one, on which the
//! handshake, the log level and the subscriptions are sent again.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    Body, ErrorCode, InitializeParams, InitializeResult, Message, Method, Mirrored, Notification,
    Rejection, Request, RequestId, Response, Revision,
};
use thin_vec::ThinVec;

use crate::exchange::{Call, CallId, Exchange, Form};
use crate::session::{Client, Phase, Session, StepContext};
use crate::{Answer, Cause, Effect, Millis, Refusal, SinkId};

/// Shortest wait before a server that failed again is started again, in milliseconds; it doubles
/// each time.
const BACKOFF_MIN_MS: u64 = 500;
/// Longest such wait, in milliseconds.
const BACKOFF_MAX_MS: u64 = 30_000;
/// A link that lasted this long, in milliseconds, makes up for earlier failures.
const STEADY_MS: u64 = 30_000;
/// Notifications kept for a server that is being started; the oldest go beyond it.
/// Requests are bounded by `exchanges_max`.
const QUEUE_MAX: usize = 256;

/// The link to the tenant's server, as the session sees it.
pub(crate) struct ServerLink {
    state: State,
    /// Revision that the server answered.
    pub(crate) revision: Revision,
    /// What waits until the link is up.
    queue: ThinVec<Message>,
    /// Requests that wait until it is known whether they may run a second time. Each is
    /// an exchange, so they are bounded as those are.
    pub(crate) undecided: ThinVec<Request>,
    /// When a request was last taken or settled.
    pub(crate) used: Millis,
    failures: u32,
    /// Requests of our own to the server, by number.
    next_own: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// There is none; one may be opened from `again_at` on.
    Down { again_at: Millis },
    /// Asked for.
    Opening { until: Millis },
    /// Up, and its `initialize` unanswered.
    Initializing { until: Millis },
    /// In use.
    Up { since: Millis },
}

impl Default for ServerLink {
    fn default() -> Self {
        Self {
            state: State::Down { again_at: Millis(0) },
            revision: Revision::NEWEST_STABLE,
            queue: ThinVec::new(),
            undecided: ThinVec::new(),
            used: Millis(0),
            failures: 0,
            next_own: 1,
        }
    }
}

impl ServerLink {
    /// Lets go of the link.
    pub(crate) fn close(&mut self, context: &mut StepContext<'_>) {
        if !matches!(self.state, State::Down { .. }) {
            self.state = State::Down { again_at: context.now };
            context.effects.push(Effect::CloseLink);
        }
        self.queue.clear();
        self.undecided.clear();
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    /// Is there none, and nothing that waits for one?
    pub(crate) fn is_down(&self) -> bool {
        matches!(self.state, State::Down { .. }) && self.queue.is_empty()
    }

    /// Since when nothing was asked of the server, while it is up.
    pub(crate) fn idle_since(&self) -> Option<Millis> {
        match self.state {
            State::Up { since } => Some(since.max(self.used)),
            _ => None,
        }
    }

    /// When something is to be done about it.
    pub(crate) fn deadline(&self) -> Option<Millis> {
        match self.state {
            State::Down { again_at } => (!self.queue.is_empty()).then_some(again_at),
            State::Opening { until } | State::Initializing { until } => Some(until),
            State::Up { .. } => None,
        }
    }

    /// Takes back a request that the server has not been sent yet.
    pub(crate) fn unqueue(&mut self, id: &RequestId) -> bool {
        let waiting = self.queue.len() + self.undecided.len();
        self.queue.retain(|message| !matches!(message, Message::Request(r) if r.id == *id));
        self.undecided.retain(|request| request.id != *id);
        self.queue.len() + self.undecided.len() < waiting
    }

    fn backoff(&self) -> u64 {
        match self.failures {
            0 => 0,
            failures => (BACKOFF_MIN_MS << (failures - 1).min(16)).min(BACKOFF_MAX_MS),
        }
    }
}

/// A request of our own, which no client ever sees the answer of.
const OWN_PREFIX: &str = "roundhouse:";

impl Session {
    /// The first message: it must be `initialize` (RPC-07).
    pub(crate) fn begin(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        body: Body,
        mirrored: Option<&Mirrored>,
    ) {
        match self.greeted(context, sink, body, mirrored) {
            Ok(()) if self.duplex.is_some() => {
                context.effects.push(Effect::Answer { sink, answer: Answer::Accepted });
            }
            Ok(()) => {}
            Err(rejection) => {
                let answer = Answer::Refused(Refusal::Rejected(rejection));
                context.effects.push(Effect::Answer { sink, answer });
                if self.duplex.is_none() {
                    self.end(context, Cause::NotBorn);
                }
            }
        }
    }

    fn greeted(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        body: Body,
        mirrored: Option<&Mirrored>,
    ) -> Result<(), Rejection> {
        let Body::One(message) = body else {
            return Err(invalid("`initialize` cannot be part of a batch; send it alone"));
        };
        let Message::Request(request) = &message else {
            return Err(invalid("the first message of a session is `initialize`"));
        };
        let id = Some(request.id.clone());
        if request.method == Method::Ping && self.duplex.is_some() {
            // A client may ping before anything else (PING-01).
            let pong = Response::result(request.id.clone(), b"{}");
            self.tell_duplex(context, pong.raw().clone());
            return Ok(());
        }
        if request.method != Method::Initialize {
            return Err(invalid("the first request of a session is `initialize`").of(id));
        }
        let params = request.params().unwrap_or_default();
        let asked = InitializeParams::read(&params).map_err(|r| r.of(id.clone()))?;
        let most = self.limits.initialize_bytes_max;
        let kept = protocol::kept_initialize_params(&params, most).ok_or_else(|| {
            let message = format!(
                "`protocolVersion`, `capabilities` and `clientInfo` together are longer than \
                 {most} bytes (sessions.initialize_bytes_max); send less, or raise it"
            );
            Rejection::new(ErrorCode::InvalidParams, message).of(id)
        })?;
        let revision = Revision::negotiate(&asked.protocol_version);
        if revision.has_mirrored_headers() && self.duplex.is_none() {
            Mirrored::check(mirrored, &message, None)?;
        }
        self.client = Some(Box::new(Client {
            revision,
            capabilities: asked.capabilities,
            params: Arc::from(&kept[..]),
            server_lists: ThinVec::new(),
            server_has_tools: false,
        }));
        self.phase = Phase::Initializing;
        let call = self.new_call(context, sink, 1, false);
        if let Some(Call { form: Form::Held { upgrade_at, .. }, .. }) = self.calls.last_mut() {
            *upgrade_at = context.now.plus(self.limits.keepalive_secs * 1_000);
        }
        let never = Millis(u64::MAX);
        self.exchanges.push(Exchange {
            id: request.id.clone(),
            method: Method::Initialize,
            call,
            uri: None,
            progress: None,
            raw: None,
            began: context.now,
            // The link's own deadline ends it.
            silent_at: never,
            ends_at: never,
        });
        self.open_link(context);
        Ok(())
    }

    /// A new POST with requests.
    pub(crate) fn new_call(
        &mut self,
        context: &StepContext<'_>,
        sink: SinkId,
        open: usize,
        batch: bool,
    ) -> CallId {
        let wait = if self.revision().has_priming() {
            self.limits.sse_after_ms
        } else {
            // A stream without priming cannot be resumed before its first message, so it is
            // begun only to keep the connection alive.
            self.limits.keepalive_secs * 1_000
        };
        let form = match self.duplex {
            Some(_) => Form::Duplex,
            None => Form::Held { upgrade_at: context.now.plus(wait), answers: Vec::new() },
        };
        self.add_call(Some(sink), open, batch, form)
    }

    pub(crate) fn add_call(
        &mut self,
        sink: Option<SinkId>,
        open: usize,
        batch: bool,
        form: Form,
    ) -> CallId {
        let id = CallId(self.next_call);
        self.next_call += 1;
        self.calls.push(Call { id, sink, open, batch, gated: false, forwarded: false, form });
        id
    }

    /// Hands a message to the server, or keeps it until there is one.
    pub(crate) fn send(&mut self, context: &mut StepContext<'_>, message: Message) {
        match self.link.state {
            State::Up { .. } => context.effects.push(Effect::Send(message)),
            // A server that is not connected gets nothing now; the handshake will send what
            // matters.
            State::Down { .. } if !matches!(message, Message::Request(_)) => {}
            _ => {
                let is_request = matches!(message, Message::Request(_));
                if self.link.queue.len() >= QUEUE_MAX + self.limits.exchanges_max && !is_request {
                    context.effects.push(Effect::Tell(crate::Fact::Dropped));
                    return;
                }
                self.link.queue.push(message);
                self.open_link(context);
            }
        }
    }

    /// Asks for a link if there is none and its time has come.
    pub(crate) fn open_link(&mut self, context: &mut StepContext<'_>) {
        if let State::Down { again_at } = self.link.state
            && again_at <= context.now
        {
            let until = context.now.plus(self.limits.start_secs * 1_000);
            self.link.state = State::Opening { until };
            context.effects.push(Effect::OpenLink);
        }
    }

    /// The link is there: the handshake comes first.
    pub(crate) fn link_up(&mut self, context: &mut StepContext<'_>) {
        let (State::Opening { until }, Some(client)) = (self.link.state, &self.client) else {
            return;
        };
        let asked = client.revision.asked_of_servers();
        let params = protocol::with_protocol_version(&client.params, asked);
        self.link.state = State::Initializing { until };
        self.send_own(context, Method::Initialize, Some(&params));
    }

    /// Sends a request of our own.
    pub(crate) fn send_own(
        &mut self,
        context: &mut StepContext<'_>,
        method: Method,
        params: Option<&[u8]>,
    ) {
        let request = self.own(method, params);
        context.effects.push(Effect::Send(request.into()));
    }

    /// A request of our own.
    pub(crate) fn own(&mut self, method: Method, params: Option<&[u8]>) -> Request {
        let id = RequestId::from(format!("{OWN_PREFIX}{}:{}", method.as_str(), self.link.next_own));
        self.link.next_own += 1;
        Request::new(id, method, params)
    }

    /// Is it the answer to a request of our own? Then it is taken here.
    pub(crate) fn receive_own_response(
        &mut self,
        context: &mut StepContext<'_>,
        response: &Response,
    ) -> bool {
        let Some(RequestId::String(id)) = &response.id else { return false };
        let Some(what) = id.strip_prefix(OWN_PREFIX) else { return false };
        if what.starts_with("initialize:") && matches!(self.link.state, State::Initializing { .. })
        {
            self.shaken(context, response);
        } else if what.starts_with("tools/list:") {
            self.learned_tools(context, response);
        }
        true
    }

    /// The server answered `initialize`.
    fn shaken(&mut self, context: &mut StepContext<'_>, response: &Response) {
        let answered = match response.outcome() {
            Ok(result) => {
                InitializeResult::read(&result).map(|read| (result, read)).map_err(|_| {
                    let message = "the server answered `initialize` with something else";
                    Response::error(None, ErrorCode::InternalError.number(), message, None)
                })
            }
            Err(_) => Err(response.clone()),
        };
        let (result, read) = match answered {
            Ok(answered) => answered,
            Err(error) => {
                self.link.close(context);
                self.handshake_failed(context, |id| error.with_id(id));
                return;
            }
        };
        self.link.state = State::Up { since: context.now };
        self.link.revision =
            Revision::named(&read.protocol_version).unwrap_or(Revision::NEWEST_STABLE);
        let Some(client) = &mut self.client else { return };
        let lists: ThinVec<_> = read.capabilities.list_changed_methods().into();
        let has_tools = read.capabilities.tools();
        // What the first handshake established is saved when the client sends `initialized`.
        self.versions.changed |= self.phase != Phase::Initializing
            && (client.server_lists != lists || client.server_has_tools != has_tools);
        (client.server_lists, client.server_has_tools) = (lists, has_tools);
        if self.phase == Phase::Initializing {
            let result = protocol::with_protocol_version(&result, client.revision);
            self.welcome(context, &result);
        } else {
            self.say_again(context);
        }
        for message in std::mem::take(&mut self.link.queue) {
            context.effects.push(Effect::Send(message));
        }
        self.learn_tools(context);
    }

    /// Answers the client's `initialize`: the session begins.
    fn welcome(&mut self, context: &mut StepContext<'_>, result: &Bytes) {
        self.phase = Phase::Answered;
        self.touched = context.now;
        let Some(index) = self.exchanges.iter().position(|e| e.method == Method::Initialize) else {
            return;
        };
        let Exchange { id, call, .. } = self.exchanges.swap_remove(index);
        let response = Response::result(id, result);
        let Some(index) = self.calls.iter().position(|other| other.id == call) else { return };
        if let (Form::Held { .. }, Some(sink)) = (&self.calls[index].form, self.calls[index].sink) {
            self.calls.swap_remove(index);
            let answer = Answer::Welcome(response.raw().clone());
            context.effects.push(Effect::Answer { sink, answer });
        } else {
            self.final_response(context, call, None, response.raw().clone());
        }
    }

    /// Tells a new server what the old one knew.
    fn say_again(&mut self, context: &mut StepContext<'_>) {
        if self.is_live() {
            let initialized = Notification::new(Method::Initialized, None);
            context.effects.push(Effect::Send(initialized.into()));
        }
        if let Some(level) = self.level {
            let params = serde_json::json!({ "level": level.as_str() }).to_string();
            self.send_own(context, Method::SetLevel, Some(params.as_bytes()));
        }
        for uri in self.subscriptions().clone() {
            let params = serde_json::json!({ "uri": uri }).to_string();
            self.send_own(context, Method::Subscribe, Some(params.as_bytes()));
        }
    }

    /// The handshake with the server failed: each request that waits for the server gets `error`.
    fn handshake_failed(
        &mut self,
        context: &mut StepContext<'_>,
        error: impl Fn(RequestId) -> Response,
    ) {
        self.link.failures += 1;
        let again_at = context.now.plus(self.link.backoff());
        self.link.state = State::Down { again_at };
        self.link.queue.clear();
        self.link.undecided.clear();
        self.fail_parked(context, &error);
        for exchange in std::mem::take(&mut self.exchanges) {
            let error = error(exchange.id.clone());
            self.settle_taken(context, exchange, error.raw().clone(), false);
        }
        if self.phase == Phase::Initializing {
            self.end(context, Cause::NotBorn);
        }
    }

    /// The link is gone. What was in flight on it will not be answered, so it ends here (STD-05).
    pub(crate) fn link_down(&mut self, context: &mut StepContext<'_>, reason: &str) {
        let message = match self.link.state {
            State::Down { .. } => return,
            State::Up { since } => {
                if context.now.0.saturating_sub(since.0) >= STEADY_MS {
                    self.link.failures = 0;
                }
                format!("the server ended while it worked on this: {reason}")
            }
            _ => format!("the server could not be started: {reason}"),
        };
        self.drop_asks(context, "the server ended");
        let was_up = matches!(self.link.state, State::Up { .. });
        self.handshake_failed(context, |id| internal(id, &message));
        if was_up && self.link.failures == 1 {
            // The first time costs no wait.
            self.link.state = State::Down { again_at: context.now };
        }
    }

    /// The link's time is over, or has come.
    pub(crate) fn link_deadline(&mut self, context: &mut StepContext<'_>) {
        if self.link.deadline().is_none_or(|deadline| deadline > context.now) {
            return;
        }
        match self.link.state {
            State::Down { .. } => self.open_link(context),
            State::Opening { .. } | State::Initializing { .. } => {
                let secs = self.limits.start_secs;
                let message = format!("the server did not answer `initialize` within {secs} s");
                self.link.close(context);
                self.handshake_failed(context, |id| internal(id, &message));
            }
            State::Up { .. } => {}
        }
    }

    /// The client sent `initialized`: what waited for that may be sent.
    pub(crate) fn initialized(
        &mut self,
        context: &mut StepContext<'_>,
        notification: Notification,
    ) {
        if self.phase == Phase::Answered {
            self.phase = Phase::Live;
            self.versions.changed = true;
            self.tell_waiting(context);
            if self.link.is_up() {
                // Otherwise the server's own handshake will say so.
                self.send(context, notification.into());
            }
        }
    }

    pub(crate) fn tell_duplex(&mut self, context: &mut StepContext<'_>, data: Bytes) {
        if let Some(sink) = self.duplex {
            let frame = crate::Frame::Message { id: None, data };
            context.effects.push(Effect::Write { sink, frame });
        }
    }
}

fn invalid(message: &str) -> Rejection {
    Rejection::new(ErrorCode::InvalidRequest, message)
}

fn internal(id: RequestId, message: &str) -> Response {
    Response::error(Some(id), ErrorCode::InternalError.number(), message, None)
}
