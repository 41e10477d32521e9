//! One session with an upstream server, as a pure state machine of the Streamable HTTP transport, and of
//! the older HTTP+SSE for servers that have only that.
//!
//! Messages of the session and events of exchanges go in, effects come out. It has no clock: an effect
//! that must wait carries the time to wait.

mod calls;
mod effect;
mod failures;
mod ids;
mod listening;
mod phase;
mod saved;

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use protocol::{
    InitializeResult, Message, Method, Notification, Position, Request, RequestId, Response,
    payload,
};

use self::calls::{Calls, Next};
pub use self::effect::Effect;
use self::failures::{failure_response, refused};
pub use self::ids::ExchangeId;
use self::ids::{CallId, with_request_id};
use self::listening::Listening;
use self::phase::{Phase, Purpose, Transport};
use self::saved::Saved;
use crate::exchange::{Exchange, ExchangeEvent, HeaderText, Verb};

/// Most messages that wait until the server has accepted `notifications/initialized`. A session sends
/// fewer; with more, the link ends.
const WAITING_MAX: usize = 1_024;

const SESSION_GONE: &str = "the upstream server has ended its session";

/// One session with an upstream server.
#[derive(Debug)]
pub struct Machine {
    phase: Phase,
    session: Option<HeaderText>,
    revision: Option<HeaderText>,
    exchanges: HashMap<ExchangeId, Purpose>,
    calls: Calls,
    listening: Listening,
    /// The messages that wait until `notifications/initialized` is accepted.
    waiting: Vec<Message>,
    /// The node's own requests that restore log level and subscriptions. Other requests wait for their
    /// responses: each is sent on a connection of its own, and could be performed first.
    restoring: Vec<RequestId>,
    /// `initialize` as it was sent, until it is accepted.
    initialize: Bytes,
    /// What [`Effect::Save`] has once the session is confirmed.
    state: Option<Bytes>,
    /// Another machine began the session: it has used ids of requests that this one does not know.
    is_carried_on: bool,
    is_probing: bool,
    /// Requests that were answered 400, until the ping shows whether the session still exists. The session
    /// that sends requests bounds them.
    doubted: Vec<(CallId, Request, ExchangeEvent)>,
    transport: Transport,
    next: u64,
    /// Makes the ids of the node's own requests differ from those of other nodes.
    tag: u64,
}

impl Machine {
    /// A session whose `initialize` is still to come. `tag` differs from that of other machines.
    pub fn new(tag: u64) -> Self {
        Self {
            phase: Phase::Opening(None),
            session: None,
            revision: None,
            exchanges: HashMap::new(),
            calls: Calls::default(),
            listening: Listening::default(),
            waiting: Vec::new(),
            restoring: Vec::new(),
            initialize: Bytes::new(),
            state: None,
            is_carried_on: false,
            is_probing: false,
            doubted: Vec::new(),
            transport: Transport::Streamable,
            next: 0,
            tag,
        }
    }

    /// Carries a session on that another machine confirmed and saved, after these positions of its streams
    /// and of requests in flight. `None` if the state is of another version.
    pub fn carry_on(
        tag: u64,
        state: &[u8],
        positions: &[(Option<RequestId>, Position)],
    ) -> Option<Self> {
        let Saved { session, revision, result } = Saved::read(state)?;
        let mut listening = Listening::default();
        let mut streams = Vec::new();
        for (about, position) in positions {
            match about {
                None => listening.continue_after(saved::cursor(session.as_ref(), position)),
                Some(own) => streams.extend(saved::resumed(own.clone(), position)),
            }
        }
        let phase = Phase::Carried { result, streams };
        let is_carried_on = true;
        Some(Self { phase, session, revision, listening, is_carried_on, ..Self::new(tag) })
    }

    /// The session sends a message to the server.
    pub fn send(&mut self, message: Message, effects: &mut Vec<Effect>) {
        match (&self.phase, &message) {
            (Phase::Down, _) => {}
            (Phase::Opening(_), Message::Request(request))
                if request.method == Method::Initialize =>
            {
                self.phase = Phase::Opening(Some(request.id.clone()));
                self.send_now(message, effects);
            }
            (Phase::Carried { .. }, Message::Request(request))
                if request.method == Method::Initialize =>
            {
                let id = request.id.clone();
                self.answer_initialize(id, effects);
            }
            // The server has it from the machine that confirmed the session.
            (Phase::Ready, Message::Notification(notification))
                if notification.method == Method::Initialized => {}
            (Phase::Answered, Message::Notification(notification))
                if notification.method == Method::Initialized =>
            {
                self.phase = Phase::Confirming;
                let verb = Verb::Note(message.raw().clone());
                self.start(Purpose::Confirm, verb, Duration::ZERO, effects);
            }
            // The server may refuse what comes before it has accepted the notification.
            (Phase::Confirming | Phase::Ready, _) if self.waiting.len() >= WAITING_MAX => {
                self.end("the upstream server does not confirm its session", effects);
            }
            (Phase::Confirming, _) => self.waiting.push(message),
            (Phase::Ready, Message::Request(request))
                if !self.restoring.is_empty() && !restores(request) =>
            {
                self.waiting.push(message);
            }
            _ => self.send_now(message, effects),
        }
    }

    /// Answers `initialize` in a session that another machine began, and requests its streams on.
    fn answer_initialize(&mut self, id: RequestId, effects: &mut Vec<Effect>) {
        let Phase::Carried { result, streams } = std::mem::replace(&mut self.phase, Phase::Ready)
        else {
            return;
        };
        let message = Response::result(id.clone(), &result).into();
        effects.push(Effect::Deliver { message, about: Some(id), position: None });
        self.listen(Duration::ZERO, effects);
        for (id, cursor) in streams {
            let purpose = Purpose::Call(id.clone());
            let verb = Verb::Resume(cursor.clone());
            let exchange = self.start(purpose, verb, Duration::ZERO, effects);
            self.calls.add_resumed(id, exchange, cursor);
        }
    }

    fn send_now(&mut self, message: Message, effects: &mut Vec<Effect>) {
        match message {
            Message::Request(request) => {
                if restores(&request) {
                    self.restoring.push(request.id.clone());
                }
                let wire = self.on_wire(&request);
                let tokens = request.tokens.clone();
                let id = CallId { own: request.id.clone(), wire: wire.id.clone(), tokens };
                let raw = wire.raw().clone();
                if matches!(self.phase, Phase::Opening(_)) {
                    self.initialize = raw.clone();
                }
                let (purpose, verb) = match self.transport {
                    Transport::Older(_) => (Purpose::OlderCall(id.clone()), Verb::Note(raw)),
                    _ => (Purpose::Call(id.clone()), Verb::Request(raw)),
                };
                let exchange = self.start(purpose, verb, Duration::ZERO, effects);
                self.calls.add(id, exchange, Some(request));
            }
            Message::Notification(notification) if notification.method == Method::Cancelled => {
                self.cancel(&notification, effects);
            }
            message => {
                let raw = message.raw().clone();
                self.start(
                    Purpose::Note { behind: None },
                    Verb::Note(raw),
                    Duration::ZERO,
                    effects,
                );
            }
        }
    }

    /// The request as the server gets it. A server may be a node as well, whose own requests begin with the
    /// same prefix; so those of this node have other ids there. So have all in a session that another machine
    /// began: that one may have sent a request with the same id, which may run again.
    fn on_wire(&self, request: &Request) -> Request {
        let is_own = |id: &RequestId| matches!(id, RequestId::String(id) if id.starts_with(RequestId::OWN_PREFIX));
        match self.is_carried_on || is_own(&request.id) {
            true => request.with_id(self.own_id()),
            false => request.clone(),
        }
    }

    fn own_id(&self) -> RequestId {
        RequestId::from(format!("rh-{:016x}-{}", self.tag, self.next))
    }

    /// Cancels a request. It gets no response, so its exchange may never end.
    fn cancel(&mut self, notification: &Notification, effects: &mut Vec<Effect>) {
        let params = notification.params().unwrap_or_default();
        let own = payload::cancelled_request_id(&params);
        if own.as_ref().is_some_and(|own| self.drop_waiting(own)) {
            return;
        }
        let wire = own.as_ref().and_then(|own| self.calls.on_wire(own)).cloned();
        // It is sent on a connection of its own.
        let behind = wire.as_ref().and_then(|wire| self.calls.unopened(wire));
        let renamed = wire.as_ref().filter(|wire| Some(*wire) != own.as_ref());
        let raw = match renamed.and_then(|wire| with_request_id(&params, wire)) {
            Some(params) => Notification::new(Method::Cancelled, Some(&params)).raw().clone(),
            None => notification.raw().clone(),
        };
        self.start(Purpose::Note { behind }, Verb::Note(raw), Duration::ZERO, effects);
        self.doubted.retain(|(id, ..)| Some(&id.own) != own.as_ref());
        if let Some(wire) = wire {
            self.release(&wire, effects);
        }
    }

    /// Removes a request that was not sent.
    fn drop_waiting(&mut self, id: &RequestId) -> bool {
        let before = self.waiting.len();
        let is =
            |message: &Message| matches!(message, Message::Request(request) if request.id == *id);
        self.waiting.retain(|message| !is(message));
        self.waiting.len() < before
    }

    /// An event of an exchange.
    pub fn on_event(
        &mut self,
        exchange: ExchangeId,
        event: ExchangeEvent,
        effects: &mut Vec<Effect>,
    ) {
        let purpose = match event.is_last() {
            true => self.exchanges.remove(&exchange),
            false => self.exchanges.get(&exchange).cloned(),
        };
        let Some(purpose) = purpose.filter(|_| self.phase != Phase::Down) else { return };
        if event == ExchangeEvent::SessionGone {
            if let Purpose::Call(id) | Purpose::OlderCall(id) = &purpose {
                effects.extend(self.calls.take_unanswered(&id.wire).map(Effect::Return));
            }
            self.lose_session(effects);
            return;
        }
        match purpose {
            Purpose::Call(id) => self.on_call_event(&id, event, effects),
            Purpose::Released(id) => self.deliver(event, Some(&id), effects),
            Purpose::Confirm => self.on_confirm_event(&event, effects),
            Purpose::Note { .. } => self.probe_if_refused(&event, effects),
            Purpose::Listen => self.on_listen_event(event, effects),
            Purpose::OlderStream => self.on_older_event(event, effects),
            Purpose::OlderCall(id) => self.on_older_call_event(&id, event, effects),
            Purpose::Probe => {
                if matches!(event, ExchangeEvent::Refused { status: 400, .. }) {
                    self.lose_session(effects);
                } else if event.is_last() {
                    self.is_probing = false;
                    for (id, _, refusal) in std::mem::take(&mut self.doubted) {
                        self.fail(&id, refusal, effects);
                    }
                }
            }
        }
    }

    /// A released exchange was cut.
    pub fn forget(&mut self, exchange: ExchangeId) {
        self.exchanges.remove(&exchange);
    }

    /// The exchange that ends the session at the server, if it has one.
    pub fn delete(&self) -> Option<(ExchangeId, Exchange)> {
        let session = self.session.clone().filter(|_| self.phase != Phase::Down)?;
        let revision = self.revision.clone();
        let after = Duration::ZERO;
        let session = Some(session);
        let (verb, to, tokens, behind) = (Verb::Delete, None, None, None);
        let exchange = Exchange { verb, session, revision, after, to, tokens, behind };
        Some((ExchangeId(self.next), exchange))
    }

    fn on_call_event(&mut self, id: &CallId, event: ExchangeEvent, effects: &mut Vec<Effect>) {
        let is_initialize = self.phase == Phase::Opening(Some(id.own.clone()));
        if let ExchangeEvent::Opened(session) = &event
            && is_initialize
        {
            self.session.clone_from(session);
        }
        self.probe_if_refused(&event, effects);
        if self.is_probing
            && matches!(event, ExchangeEvent::Refused { status: 400, .. })
            && let Some(request) = self.calls.take_unanswered(&id.wire)
        {
            self.doubted.push((id.clone(), request, event));
            return;
        }
        match self.calls.on_event(&id.wire, &event) {
            Next::Nothing => self.deliver(event, Some(id), effects),
            Next::Resume { cursor, after } => {
                let purpose = Purpose::Call(id.clone());
                let exchange = self.start(purpose, Verb::Resume(cursor), after, effects);
                self.calls.note_exchange(&id.wire, exchange);
            }
            Next::Fail if is_initialize && self.falls_back(&event) => {
                let refusal = Box::new(event);
                let initialize = std::mem::take(&mut self.initialize);
                self.transport = Transport::Falling { id: id.clone(), initialize, refusal };
                let verb = Verb::Listen(None);
                self.start(Purpose::OlderStream, verb, Duration::ZERO, effects);
            }
            Next::Fail => self.fail(id, event, effects),
        }
    }

    fn fail(&mut self, id: &CallId, event: ExchangeEvent, effects: &mut Vec<Effect>) {
        let response = failure_response(&id.own, event);
        let about = Some(id.own.clone());
        effects.push(Effect::Deliver { message: response.into(), about, position: None });
        self.note_restored(&id.own, effects);
    }

    /// The request with this id has its response.
    fn note_restored(&mut self, id: &RequestId, effects: &mut Vec<Effect>) {
        let before = self.restoring.len();
        self.restoring.retain(|restoring| restoring != id);
        if before > 0 && self.restoring.is_empty() {
            self.send_waiting(effects);
        }
    }

    fn send_waiting(&mut self, effects: &mut Vec<Effect>) {
        for message in std::mem::take(&mut self.waiting) {
            self.send(message, effects);
        }
    }

    /// Whether a server that refuses `initialize` like this may have the older HTTP+SSE (OLD-08).
    fn falls_back(&self, event: &ExchangeEvent) -> bool {
        matches!(event, ExchangeEvent::Refused { status: 400 | 404 | 405, .. })
            && self.transport == Transport::Streamable
    }

    fn on_older_event(&mut self, event: ExchangeEvent, effects: &mut Vec<Effect>) {
        match (&self.transport, event) {
            (Transport::Falling { id, initialize, .. }, ExchangeEvent::Endpoint(url)) => {
                let (id, verb) = (id.clone(), Verb::Note(initialize.clone()));
                self.transport = Transport::Older(url);
                let purpose = Purpose::OlderCall(id.clone());
                let exchange = self.start(purpose, verb, Duration::ZERO, effects);
                self.calls.add(id, exchange, None);
            }
            (Transport::Falling { id, refusal, .. }, event) if event.is_last() => {
                let (id, refusal) = (id.clone(), ExchangeEvent::clone(refusal));
                self.fail(&id, refusal, effects);
            }
            (Transport::Older(_), event) if event.is_last() => {
                self.end("the upstream server closed its stream", effects);
            }
            (Transport::Older(_), event) => self.deliver(event, None, effects),
            _ => {}
        }
    }

    fn on_older_call_event(
        &mut self,
        id: &CallId,
        event: ExchangeEvent,
        effects: &mut Vec<Effect>,
    ) {
        let is_refused = matches!(event, ExchangeEvent::Refused { .. } | ExchangeEvent::Failed(_));
        if is_refused && self.calls.take(&id.wire).is_some() {
            self.fail(id, event, effects);
        }
    }

    fn on_confirm_event(&mut self, event: &ExchangeEvent, effects: &mut Vec<Effect>) {
        match event {
            ExchangeEvent::Refused { status, .. } => self.end(&refused(*status), effects),
            ExchangeEvent::Failed(failure) => self.end(&failure.to_string(), effects),
            _ => {
                self.phase = Phase::Ready;
                if self.transport == Transport::Streamable {
                    effects.extend(self.state.take().map(Effect::Save));
                    self.listen(Duration::ZERO, effects);
                }
                self.send_waiting(effects);
            }
        }
    }

    fn on_listen_event(&mut self, event: ExchangeEvent, effects: &mut Vec<Effect>) {
        let again = self.listening.on_event(&event);
        self.deliver(event, None, effects);
        if let Some(after) = again {
            self.listen(after, effects);
        }
    }

    fn listen(&mut self, after: Duration, effects: &mut Vec<Effect>) {
        let verb = Verb::Listen(self.listening.cursor().cloned());
        self.start(Purpose::Listen, verb, after, effects);
    }

    /// Some servers answer 400 and not 404 for a session that they do not know. So after a 400 the
    /// session is pinged: if that is answered 400 as well, the session is gone.
    fn probe_if_refused(&mut self, event: &ExchangeEvent, effects: &mut Vec<Effect>) {
        let is_refused = matches!(event, ExchangeEvent::Refused { status: 400, .. });
        if is_refused && self.session.is_some() && !self.is_probing && self.phase == Phase::Ready {
            self.is_probing = true;
            let ping = Request::new(self.own_id(), Method::Ping, None);
            let verb = Verb::Request(ping.raw().clone());
            self.start(Purpose::Probe, verb, Duration::ZERO, effects);
        }
    }

    /// Passes the messages of an event on. A response counts only if its request waits for one.
    fn deliver(&mut self, event: ExchangeEvent, about: Option<&CallId>, effects: &mut Vec<Effect>) {
        let ExchangeEvent::Event { messages, id, .. } = event else { return };
        let before = effects.len();
        for message in messages {
            match message {
                Message::Response(response) => self.deliver_response(response, about, effects),
                message => {
                    let about = about.map(|id| id.own.clone());
                    effects.push(Effect::Deliver { message, about, position: None });
                }
            }
        }
        let read = id.filter(|_| matches!(self.transport, Transport::Streamable));
        let session = self.session.as_ref();
        if let Some(read) = read.and_then(|id| saved::position(session, about, &id)) {
            self.note_position(about, read, before, effects);
        }
    }

    /// The last message of an event carries how far the stream was read, so that both are kept together.
    fn note_position(
        &self,
        about: Option<&CallId>,
        read: Position,
        before: usize,
        effects: &mut Vec<Effect>,
    ) {
        // A request that has its response is not resumed.
        if about.is_some_and(|about| self.calls.on_wire(&about.own).is_none()) {
            return;
        }
        let delivered = effects.iter_mut().skip(before).rev().find_map(|effect| match effect {
            Effect::Deliver { position, .. } => Some(position),
            _ => None,
        });
        match delivered {
            Some(position) => *position = Some(read),
            None => {
                let about = about.map(|id| id.own.clone());
                effects.push(Effect::Advance { about, position: read });
            }
        }
    }

    fn deliver_response(
        &mut self,
        mut response: Response,
        about: Option<&CallId>,
        effects: &mut Vec<Effect>,
    ) {
        // An error without an id is about the one request of its exchange.
        let wire = response.id.clone().or_else(|| about.map(|about| about.wire.clone()));
        let Some(id) = wire.and_then(|wire| self.release(&wire, effects)) else { return };
        if response.id.as_ref() != Some(&id) {
            response = response.with_id(id.clone());
        }
        if self.phase == Phase::Opening(Some(id.clone())) {
            let result = response.outcome().ok();
            let read = result.and_then(|result| InitializeResult::read(&result).ok());
            let revision = read.map(|read| read.protocol_version);
            self.revision = revision.and_then(|name| HeaderText::visible(name.as_bytes()));
            self.phase = Phase::Answered;
            self.initialize = Bytes::new();
            let result = response.outcome().unwrap_or_default();
            self.state = Saved::encode(self.session.as_ref(), self.revision.as_ref(), &result);
        }
        let (about, position) = (Some(id.clone()), None);
        effects.push(Effect::Deliver { message: response.into(), about, position });
        self.note_restored(&id, effects);
    }

    /// Nothing more is expected for this request. Returns its id at the session, if it waited for a
    /// response.
    fn release(&mut self, wire: &RequestId, effects: &mut Vec<Effect>) -> Option<RequestId> {
        let (id, exchange) = self.calls.take(wire)?;
        if let Some(purpose) = self.exchanges.get_mut(&exchange) {
            *purpose = Purpose::Released(id.clone());
            effects.push(Effect::Release(exchange));
        }
        Some(id.own)
    }

    fn start(
        &mut self,
        purpose: Purpose,
        verb: Verb,
        after: Duration,
        effects: &mut Vec<Effect>,
    ) -> ExchangeId {
        let id = ExchangeId(self.next);
        self.next += 1;
        let (tokens, behind) = match &purpose {
            Purpose::Call(id) | Purpose::OlderCall(id) => (id.tokens.clone(), None),
            Purpose::Note { behind } => (None, *behind),
            _ => (None, None),
        };
        self.exchanges.insert(id, purpose);
        let (session, revision) = (self.session.clone(), self.revision.clone());
        let to = match &self.transport {
            Transport::Older(url) => Some(url.clone()),
            _ => None,
        };
        let exchange = Exchange { verb, session, revision, after, to, tokens, behind };
        effects.push(Effect::Start(id, exchange));
        id
    }

    /// The server does not know the session. Requests that it has not run for that are returned.
    fn lose_session(&mut self, effects: &mut Vec<Effect>) {
        let doubted = std::mem::take(&mut self.doubted).into_iter().map(|(_, request, _)| request);
        effects.extend(doubted.map(Effect::Return));
        let unsent =
            std::mem::take(&mut self.waiting).into_iter().filter_map(|waiting| match waiting {
                Message::Request(request) => Some(Effect::Return(request)),
                _ => None,
            });
        effects.extend(unsent);
        self.end(SESSION_GONE, effects);
    }

    fn end(&mut self, reason: &str, effects: &mut Vec<Effect>) {
        self.phase = Phase::Down;
        effects.push(Effect::Down(reason.to_owned()));
    }
}

/// Whether a request is the node's own, and restores what a client has set in an earlier session.
fn restores(request: &Request) -> bool {
    let is_own =
        matches!(&request.id, RequestId::String(id) if id.starts_with(RequestId::OWN_PREFIX));
    is_own && matches!(request.method, Method::SetLevel | Method::Subscribe)
}

#[cfg(test)]
mod tests;
