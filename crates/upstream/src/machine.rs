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
mod mirroring;
mod phase;
mod probing;
mod saved;
mod wire;

use std::time::Duration;

use bytes::Bytes;
use protocol::{
    ErrorCode, InitializeResult, Message, Method, Notification, Position, Request, RequestId,
    Response, Revision, payload,
};

use self::calls::{Calls, Next};
pub use self::effect::Effect;
use self::failures::{failure_response, refused};
pub use self::ids::ExchangeId;
use self::ids::{CallId, renamed, restores};
use self::listening::Listening;
use self::mirroring::{Mirroring, Parked};
use self::phase::{Phase, Purpose, Transport};
use self::probing::Probing;
use self::saved::Saved;
use self::wire::Wire;
use crate::exchange::{Exchange, ExchangeEvent, HeaderText, Verb};

/// Most messages that wait until the server has accepted `notifications/initialized`. A session sends
/// fewer; with more, the link ends.
const WAITING_MAX: usize = 1_024;

const SESSION_GONE: &str = "the upstream server has ended its session";

/// One session with an upstream server.
#[derive(Debug)]
pub struct Machine {
    phase: Phase,
    wire: Wire,
    mirroring: Mirroring,
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
    probing: Probing,
    transport: Transport,
}

impl Machine {
    /// A session whose `initialize` is still to come. `tag` differs from that of other machines.
    pub fn new(tag: u64) -> Self {
        Self {
            phase: Phase::Opening(None),
            wire: Wire::new(tag),
            mirroring: Mirroring::default(),
            calls: Calls::default(),
            listening: Listening::default(),
            waiting: Vec::new(),
            restoring: Vec::new(),
            initialize: Bytes::new(),
            state: None,
            probing: Probing::default(),
            transport: Transport::Streamable,
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
        let wire = Wire::carry_on(tag, session, revision);
        Some(Self { phase, wire, listening, ..Self::new(tag) })
    }

    /// Asks the server for this revision, and not for the one that its session asks for.
    pub fn asking_for(mut self, revision: Option<Revision>) -> Self {
        self.mirroring = Mirroring::asking_for(revision);
        self.mirroring.note_revision(self.wire.revision());
        self
    }

    /// The bytes that it keeps of the tools of the server, and of calls that wait for these.
    pub fn bytes(&self) -> usize {
        self.mirroring.bytes()
    }

    /// The session sends a message to the server.
    pub fn send(&mut self, message: Message, effects: &mut Vec<Effect>) {
        match (&self.phase, &message) {
            (Phase::Down, _) => {}
            (Phase::Opening(_), Message::Request(request))
                if request.method == Method::Initialize =>
            {
                self.phase = Phase::Opening(Some(request.id.clone()));
                let initialize = self.mirroring.initialize_of(request);
                self.send_request(initialize, false, effects);
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
                let (wire, mirroring) = (&mut self.wire, &self.mirroring);
                wire.send(Purpose::Confirm, Verb::Note, &message, mirroring, effects);
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
            let exchange = self.wire.start(purpose, verb, None, Duration::ZERO, effects);
            self.calls.add_resumed(id, exchange, cursor);
        }
    }

    fn send_now(&mut self, message: Message, effects: &mut Vec<Effect>) {
        match message {
            Message::Request(request) if self.mirroring.has_to_read(&request) => {
                self.park(request, false, effects);
            }
            Message::Request(request) => self.send_request(request, false, effects),
            Message::Notification(notification) if notification.method == Method::Cancelled => {
                self.cancel(&notification, effects);
            }
            message => {
                let purpose = Purpose::Note { behind: None };
                self.wire.send(purpose, Verb::Note, &message, &self.mirroring, effects);
            }
        }
    }

    /// Sends a request; `is_second`: the server has refused the headers of an earlier one.
    fn send_request(&mut self, request: Request, is_second: bool, effects: &mut Vec<Effect>) {
        let wire = match is_second {
            true => renamed(&request, self.wire.own_id()),
            false => self.wire.on_wire(&request),
        };
        let id = CallId::of(&request, &wire);
        let message = Message::from(wire);
        let mirrored = match self.mirroring.headers(&message) {
            Ok(mirrored) => mirrored,
            Err(too_long) => {
                let code = ErrorCode::InvalidParams.number();
                let error = Response::error(Some(id.own), code, &too_long.to_string(), None);
                let (about, position) = (Some(request.id), None);
                effects.push(Effect::Deliver { message: error.into(), about, position });
                return;
            }
        };
        if restores(&request) {
            self.restoring.push(request.id.clone());
        }
        let raw = message.raw().clone();
        if matches!(self.phase, Phase::Opening(_)) {
            self.initialize = raw.clone();
        }
        let (purpose, verb) = match self.transport {
            Transport::Older => (Purpose::OlderCall(id.clone()), Verb::Note(raw)),
            _ => (Purpose::Call(id.clone()), Verb::Request(raw)),
        };
        let exchange = self.wire.start(purpose, verb, mirrored, Duration::ZERO, effects);
        let wire = id.wire.clone();
        self.calls.add(id, exchange, Some(request));
        if is_second {
            self.calls.note_second(&wire);
        }
    }

    /// Keeps a call until the server's tools are listed.
    fn park(&mut self, request: Request, is_second: bool, effects: &mut Vec<Effect>) {
        self.mirroring.park(request, is_second);
        if !self.mirroring.is_reading() {
            self.read_tools(None, effects);
        }
    }

    fn read_tools(&mut self, cursor: Option<String>, effects: &mut Vec<Effect>) {
        let id = self.wire.own_id();
        let params = cursor.map(|cursor| serde_json::json!({ "cursor": cursor }).to_string());
        let params = params.as_ref().map(|params| params.as_bytes());
        let list = Request::new(id.clone(), Method::ToolsList, params);
        self.mirroring.begin_page(id.clone());
        let (wire, mirroring) = (&mut self.wire, &self.mirroring);
        wire.send(Purpose::Tools(id), Verb::Request, &list.into(), mirroring, effects);
    }

    fn on_tools_event(
        &mut self,
        exchange: ExchangeId,
        id: &RequestId,
        event: ExchangeEvent,
        effects: &mut Vec<Effect>,
    ) {
        self.probe_if_refused(&event, effects);
        let (is_last, mut page) = (event.is_last(), None);
        if let ExchangeEvent::Event { messages, .. } = event {
            page = messages.iter().find_map(|message| match message {
                Message::Response(response) if response.id.as_ref() == Some(id) => {
                    Some(response.clone())
                }
                _ => None,
            });
            // What else comes on this stream is not requested again.
            let others = ExchangeEvent::Event { messages, id: None, retry_ms: None };
            self.deliver(others, None, effects);
        }
        if !self.mirroring.awaits_page(id) || (page.is_none() && !is_last) {
            return;
        }
        if !is_last {
            effects.push(Effect::Release(exchange));
        }
        match self.mirroring.end_page(page.as_ref()) {
            Some(cursor) => self.read_tools(Some(cursor), effects),
            None => {
                for Parked { request, is_second } in self.mirroring.take_parked() {
                    self.send_request(request, is_second, effects);
                }
            }
        }
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
        let notification =
            match renamed.and_then(|wire| payload::with_cancelled_request_id(&params, wire)) {
                Some(params) => Notification::new(Method::Cancelled, Some(&params)),
                None => notification.clone(),
            };
        let (purpose, notification) = (Purpose::Note { behind }, notification.into());
        self.wire.send(purpose, Verb::Note, &notification, &self.mirroring, effects);
        self.probing.cancel(own.as_ref());
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
        self.waiting.len() < before || self.mirroring.drop_parked(id)
    }

    /// An event of an exchange.
    pub fn on_event(
        &mut self,
        exchange: ExchangeId,
        event: ExchangeEvent,
        effects: &mut Vec<Effect>,
    ) {
        let purpose = self.wire.purpose(exchange, event.is_last());
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
            Purpose::Tools(id) => self.on_tools_event(exchange, &id, event, effects),
            Purpose::Probe => {
                if matches!(event, ExchangeEvent::Refused { status: 400, .. }) {
                    self.lose_session(effects);
                } else if event.is_last() {
                    for (id, _, refusal) in self.probing.end() {
                        self.fail(&id, refusal, effects);
                    }
                }
            }
        }
    }

    /// A released exchange was cut.
    pub fn forget(&mut self, exchange: ExchangeId) {
        self.wire.forget(exchange);
    }

    /// The exchange that ends the session at the server, if it has one.
    pub fn delete(&self) -> Option<(ExchangeId, Exchange)> {
        self.wire.delete().filter(|_| self.phase != Phase::Down)
    }

    fn on_call_event(&mut self, id: &CallId, event: ExchangeEvent, effects: &mut Vec<Effect>) {
        let is_initialize = self.phase == Phase::Opening(Some(id.own.clone()));
        if let ExchangeEvent::Opened(session) = &event
            && is_initialize
        {
            self.wire.note_session(session.clone());
        }
        if self.mirroring.is_refused(&event)
            && let Some(request) = self.calls.take_first(&id.wire)
        {
            // The list has changed since it was read. The server has not run the call.
            self.mirroring.forget_tools();
            return self.park(request, true, effects);
        }
        self.probe_if_refused(&event, effects);
        if self.probing.is_under_way()
            && matches!(event, ExchangeEvent::Refused { status: 400, .. })
            && let Some(request) = self.calls.take_unanswered(&id.wire)
        {
            self.probing.doubt(id.clone(), request, event);
            return;
        }
        match self.calls.on_event(&id.wire, &event) {
            Next::Nothing => self.deliver(event, Some(id), effects),
            Next::Resume { cursor, after } => {
                let purpose = Purpose::Call(id.clone());
                let exchange = self.wire.start(purpose, Verb::Resume(cursor), None, after, effects);
                self.calls.note_exchange(&id.wire, exchange);
            }
            Next::Fail if is_initialize && self.falls_back(&event) => {
                let refusal = Box::new(event);
                let initialize = std::mem::take(&mut self.initialize);
                self.transport = Transport::Falling { id: id.clone(), initialize, refusal };
                let verb = Verb::Listen(None);
                self.wire.start(Purpose::OlderStream, verb, None, Duration::ZERO, effects);
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
                self.transport = Transport::Older;
                self.wire.send_to(url);
                let purpose = Purpose::OlderCall(id.clone());
                let exchange = self.wire.start(purpose, verb, None, Duration::ZERO, effects);
                self.calls.add(id, exchange, None);
            }
            (Transport::Falling { id, refusal, .. }, event) if event.is_last() => {
                let (id, refusal) = (id.clone(), ExchangeEvent::clone(refusal));
                self.fail(&id, refusal, effects);
            }
            (Transport::Older, event) if event.is_last() => {
                self.end("the upstream server closed its stream", effects);
            }
            (Transport::Older, event) => self.deliver(event, None, effects),
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
        self.wire.start(Purpose::Listen, verb, None, after, effects);
    }

    /// Some servers answer 400 and not 404 for a session that they do not know. So after a 400 the
    /// session is pinged: if that is answered 400 as well, the session is gone.
    fn probe_if_refused(&mut self, event: &ExchangeEvent, effects: &mut Vec<Effect>) {
        let is_refused = matches!(event, ExchangeEvent::Refused { status: 400, .. });
        let may_be_lost = self.wire.session().is_some() && self.phase == Phase::Ready;
        if is_refused && may_be_lost && !self.probing.is_under_way() {
            self.probing.begin();
            let ping = Request::new(self.wire.own_id(), Method::Ping, None);
            let (wire, mirroring) = (&mut self.wire, &self.mirroring);
            wire.send(Purpose::Probe, Verb::Request, &ping.into(), mirroring, effects);
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
                    let Some(message) = self.calls.with_own_token(message) else { continue };
                    self.mirroring.note_message(&message);
                    let about = about.map(|id| id.own.clone());
                    effects.push(Effect::Deliver { message, about, position: None });
                }
            }
        }
        let read = id.filter(|_| matches!(self.transport, Transport::Streamable));
        let session = self.wire.session();
        // A request that has its response is not resumed.
        let is_over = about.is_some_and(|about| self.calls.on_wire(&about.own).is_none());
        let read = read.filter(|_| !is_over).and_then(|id| saved::position(session, about, &id));
        if let Some(read) = read {
            effect::note_position(effects, before, about.map(|id| id.own.clone()), read);
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
        let Some(wire) = wire else { return };
        let lists_tools = self.mirroring.is_on() && self.calls.lists_tools(&wire);
        let Some(id) = self.release(&wire, effects) else { return };
        if lists_tools {
            response = self.mirroring.read_list(response, effects);
        }
        if response.id.as_ref() != Some(&id) {
            response = response.with_id(id.clone());
        }
        if self.phase == Phase::Opening(Some(id.clone())) {
            let result = response.outcome().ok();
            let read = result.and_then(|result| InitializeResult::read(&result).ok());
            let revision = read.map(|read| read.protocol_version);
            self.wire.note_revision(revision.and_then(|name| HeaderText::visible(name.as_bytes())));
            self.mirroring.note_revision(self.wire.revision());
            self.phase = Phase::Answered;
            self.initialize = Bytes::new();
            let result = response.outcome().unwrap_or_default();
            self.state = Saved::encode(self.wire.session(), self.wire.revision(), &result);
        }
        let (about, position) = (Some(id.clone()), None);
        effects.push(Effect::Deliver { message: response.into(), about, position });
        self.note_restored(&id, effects);
    }

    /// Nothing more is expected for this request. Returns its id at the session, if it waited for a
    /// response.
    fn release(&mut self, wire: &RequestId, effects: &mut Vec<Effect>) -> Option<RequestId> {
        let (id, exchange) = self.calls.take(wire)?;
        if self.wire.set_purpose(exchange, Purpose::Released(id.clone())) {
            effects.push(Effect::Release(exchange));
        }
        Some(id.own)
    }

    /// The server does not know the session. Requests that it has not run for that are returned.
    fn lose_session(&mut self, effects: &mut Vec<Effect>) {
        let doubted = self.probing.end().into_iter().map(|(_, request, _)| request);
        effects.extend(doubted.map(Effect::Return));
        let unsent =
            std::mem::take(&mut self.waiting).into_iter().filter_map(|waiting| match waiting {
                Message::Request(request) => Some(Effect::Return(request)),
                _ => None,
            });
        effects.extend(unsent);
        let parked = self.mirroring.take_parked().into_iter().map(|parked| parked.request);
        effects.extend(parked.map(Effect::Return));
        self.end(SESSION_GONE, effects);
    }

    fn end(&mut self, reason: &str, effects: &mut Vec<Effect>) {
        self.phase = Phase::Down;
        effects.push(Effect::Down(reason.to_owned()));
    }
}

#[cfg(test)]
mod tests;
