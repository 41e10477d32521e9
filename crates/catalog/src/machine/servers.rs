//! The machine's side towards its servers: their starts, their ends, and what they send.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    ErrorCode, InitializeParams, InitializeResult, Listed, Message, Method, Notification, Request,
    RequestId, Response, Revision, ServerCapabilities, initialize_result, payload,
};

use super::{
    Effect, INSTRUCTIONS_BYTES_MAX, Initialize, LISTS_BYTES_MAX, Machine, OWN_PREFIX, Report,
};
use super::{answer, error};
use crate::child::{Child, State, changed_list};
use crate::failure::{self, Failure};
use crate::pins::Pinned;
use crate::saved::ServerState;
use crate::waiting::Until;

/// Most links to resources that are kept of one result.
const LINKS_MAX: usize = 64;

/// The subject of an own request, as its id says.
enum Own {
    Initialize,
    List(Listed),
    /// The response is ignored.
    Other,
}

impl Machine {
    /// Opens the links to servers whose wait is over.
    pub(super) fn open_due(&mut self, now: u64, effects: &mut Vec<Effect>) {
        for (at, child) in self.children.iter_mut().enumerate() {
            if matches!(child.state, State::Down { again_at } if again_at <= now) {
                child.state = State::Opening { until: now.saturating_add(self.setup.start_ms) };
                effects.push(Effect::Open(at));
            }
        }
    }

    /// A server that is down is opened again at this time: until then no link can reach it.
    pub(crate) fn hold_back(&mut self, child: usize, until: u64) {
        let child = &mut self.children[child];
        if matches!(child.state, State::Down { .. }) && !child.is_lost() {
            child.state = State::Down { again_at: until };
        }
    }

    /// Starts a server anew that has no request of the session, none at it, no list being read, no subscription.
    pub(crate) fn restart_if_idle(&mut self, now: u64, child: usize, effects: &mut Vec<Effect>) {
        let is_idle = self.in_flight.has_none_of(child) && self.asked.has_none_of(child);
        let server = &mut self.children[child];
        let is_idle = is_idle && !server.is_reading_any();
        if is_idle && server.is_ready() && server.subscriptions.is_empty() {
            server.begin_anew(now);
            self.is_unsaved = true;
            effects.push(Effect::Close(child));
            self.open_due(now, effects);
        }
    }

    pub(super) fn on_child_up(&mut self, child: usize, effects: &mut Vec<Effect>) {
        if let State::Opening { until } = self.children[child].state {
            self.children[child].state = State::Open { until };
            self.initialize_child(child, effects);
        }
    }

    /// Sends `initialize` to a server whose link is up, once the session has sent its own.
    pub(super) fn initialize_child(&mut self, child: usize, effects: &mut Vec<Effect>) {
        let (State::Open { until }, Some(params)) =
            (self.children[child].state, self.client.clone())
        else {
            return;
        };
        let (request, id) = self.own_id(&Method::Initialize);
        self.children[child].state = State::Initializing { until, request };
        let message = Request::new(id, Method::Initialize, Some(&params));
        effects.push(Effect::ToChild(child, message.into()));
    }

    /// The number and the id of a new request of the machine itself.
    pub(super) fn own_id(&mut self, method: &Method) -> (u64, RequestId) {
        self.next_own += 1;
        let id = format!("{OWN_PREFIX}{}:{}", method.as_str(), self.next_own);
        (self.next_own, RequestId::from(id))
    }

    pub(super) fn send_own(
        &mut self,
        child: usize,
        method: Method,
        params: Option<&[u8]>,
    ) -> Effect {
        let (_, id) = self.own_id(&method);
        Effect::ToChild(child, Request::new(id, method, params).into())
    }

    /// A server has answered `initialize`.
    fn on_initialized(
        &mut self,
        now: u64,
        child: usize,
        response: &Response,
        effects: &mut Vec<Effect>,
    ) {
        let result = response.outcome();
        let read = result.as_ref().ok().and_then(|result| InitializeResult::read(result).ok());
        let (Ok(result), Some(read)) = (&result, read) else {
            effects.push(Effect::Close(child));
            let failure = Failure::of_initialize(response);
            return self.on_child_down(now, child, &failure, effects);
        };
        let is_first = !self.children[child].is_settled;
        let difference = self.children[child].note_ready(now, result, &read, &self.pins[child]);
        effects.push(Effect::Report(Report::Ready { child, is_first }));
        let differs = |difference| Effect::Report(Report::Differs { child, difference });
        effects.extend(difference.map(differs));
        if self.is_initialized {
            let initialized = Notification::new(Method::Initialized, None);
            effects.push(Effect::ToChild(child, initialized.into()));
        }
        if let Some(level) = self.level.clone().filter(|_| read.capabilities.logging()) {
            let set = self.send_own(child, Method::SetLevel, Some(&level));
            effects.push(set);
        }
        for uri in self.children[child].subscriptions.clone() {
            let params = serde_json::json!({ "uri": uri }).to_string();
            let subscribe = self.send_own(child, Method::Subscribe, Some(params.as_bytes()));
            effects.push(subscribe);
        }
        // A link that is carried on leads to the session that the client knows.
        if matches!(self.initialize, Initialize::Answered) && !self.children[child].is_carried {
            self.tell_changes(now, child, effects);
        }
        self.settle_initialize(now, effects);
        self.resume(now, Until::Started(child), effects);
        self.resume(now, Until::AllStarted, effects);
    }

    /// The link to a server is lost, or its start failed.
    pub(super) fn on_child_down(
        &mut self,
        now: u64,
        child: usize,
        failure: &Failure,
        effects: &mut Vec<Effect>,
    ) {
        if matches!(self.children[child].state, State::Down { .. }) {
            return;
        }
        let was_ready = self.children[child].is_ready();
        let had = Listed::ALL.map(|listed| self.children[child].has_list(listed));
        self.is_unsaved |= self.children[child].saved != ServerState::Anew;
        let is_awaited = self.is_awaited(child);
        self.children[child].note_down(now, failure, is_awaited);
        let reason = &*self.children[child].failure.for_clients();
        let report =
            Report::Down { child, failure: self.children[child].failure.clone(), was_ready };
        effects.push(Effect::Report(report));
        let text =
            format!("the server `{}` ended while it worked on this: {reason}", self.name(child));
        for id in self.in_flight.take_of(child) {
            answer(effects, id.clone(), error(id, ErrorCode::InternalError, &text));
        }
        for id in self.asked.take_of(child) {
            let params = serde_json::json!({ "requestId": id, "reason": "the server ended" });
            let params = params.to_string();
            let cancelled = Notification::new(Method::Cancelled, Some(params.as_bytes()));
            effects.push(Effect::ToSession { message: cancelled.into(), about: None });
        }
        // Its session may be lost only, and requests wait for it.
        self.open_due(now, effects);
        if was_ready && matches!(self.initialize, Initialize::Answered) {
            for listed in Listed::ALL.into_iter().filter(|listed| had[*listed as usize]) {
                self.tell_change(now, child, listed, effects);
            }
        }
        self.settle_initialize(now, effects);
        self.resume(now, Until::Started(child), effects);
        self.resume(now, Until::AllStarted, effects);
        self.resume(now, Until::Listed, effects);
    }

    /// The client is to read the lists that this server has.
    fn tell_changes(&mut self, now: u64, child: usize, effects: &mut Vec<Effect>) {
        for listed in Listed::ALL {
            if self.children[child].has_list(listed) {
                self.tell_change(now, child, listed, effects);
            }
        }
    }

    /// Other definitions are approved from now on. What was read was compared with the former ones.
    pub(super) fn on_pins(&mut self, now: u64, pins: Arc<[Pinned]>, effects: &mut Vec<Effect>) {
        let former = std::mem::replace(&mut self.pins, pins);
        // Before the client has its answer, it has no list.
        let has_lists = matches!(self.initialize, Initialize::Answered);
        for child in 0..self.children.len() {
            if former[child] != self.pins[child] {
                for listed in [Listed::Tool, Listed::Prompt] {
                    if let Some(reading) = self.children[child].reading(listed) {
                        reading.has_former_pins = true;
                    }
                }
            }
            if has_lists && former[child] != self.pins[child] {
                for listed in [Listed::Tool, Listed::Prompt] {
                    if self.children[child].has_list(listed) {
                        self.tell_change(now, child, listed, effects);
                    }
                }
            }
        }
    }

    fn tell_change(&mut self, now: u64, child: usize, listed: Listed, effects: &mut Vec<Effect>) {
        // Resources and templates have one notification.
        if self.children[child].note_changed(now, listed) && listed != Listed::Template {
            let message = Notification::new(listed.changed(), None).into();
            effects.push(Effect::ToSession { message, about: None });
        }
    }

    /// Answers the session's `initialize` if it need not wait any more.
    pub(super) fn settle_initialize(&mut self, now: u64, effects: &mut Vec<Effect>) {
        let Initialize::Pending { id, answer_by } = &self.initialize else { return };
        let is_starting = self.children.iter().any(Child::is_starting);
        let is_ready = self.children.iter().any(Child::is_ready);
        if is_starting && !(is_ready && *answer_by <= now) {
            return;
        }
        let id = id.clone();
        if !is_ready {
            // The session closes the link then.
            self.initialize = Initialize::Missing;
            let text = self.none_available();
            return answer(effects, id.clone(), error(id, ErrorCode::InternalError, &text));
        }
        self.initialize = Initialize::Answered;
        let result = self.initialize_result(self.instructions().as_deref());
        self.promised = Some(self.initialize_result(None));
        self.is_unsaved = true;
        answer(effects, id.clone(), Response::result(id, &result).into());
    }

    fn none_available(&self) -> String {
        const SHOWN_MAX: usize = 5;
        let all = self.children.iter().enumerate().take(SHOWN_MAX);
        let reasons =
            all.map(|(at, child)| format!("`{}`: {}", self.name(at), child.failure.for_clients()));
        format!(
            "none of the {} servers of this endpoint could be started: {}",
            self.children.len(),
            reasons.collect::<Vec<_>>().join("; ")
        )
    }

    /// What the servers offer together. Of servers that are not ready it is not known what they offer, and
    /// a promise cannot be made later; so everything is promised then.
    fn initialize_result(&self, instructions: Option<&str>) -> Bytes {
        let ready = self.children.iter().filter(|child| child.is_ready());
        let is_complete = ready.clone().count() == self.children.len();
        let capabilities = match is_complete {
            true => ready
                .fold(ServerCapabilities::default(), |all, child| all.joined(child.capabilities)),
            false => ServerCapabilities::all(),
        };
        let params = self.client.as_deref().unwrap_or_default();
        let asked = InitializeParams::read(params).map(|params| params.protocol_version);
        let revision = asked.ok().and_then(|asked| Revision::named(&asked));
        let info = (&*self.setup.name, env!("CARGO_PKG_VERSION"));
        let revision = revision.unwrap_or(Revision::NEWEST_STABLE);
        initialize_result(revision, capabilities, info, instructions)
    }

    fn instructions(&self) -> Option<String> {
        let mut all = String::new();
        for (at, child) in self.children.iter().enumerate().filter(|(_, child)| child.is_ready()) {
            let Some(text) = &child.instructions else { continue };
            let part = format!("# {}\n\n{}\n\n", self.name(at), text.trim());
            if all.len() + part.len() <= INSTRUCTIONS_BYTES_MAX {
                all += &part;
            }
        }
        Some(all.trim_end().to_owned()).filter(|all| !all.is_empty())
    }

    /// A server has sent a response: to a request of the session, or to one of the machine itself.
    pub(super) fn on_response(
        &mut self,
        now: u64,
        child: usize,
        response: &Response,
        effects: &mut Vec<Effect>,
    ) {
        let Some(id) = &response.id else { return stray(effects, child) };
        let Some(at) = self.in_flight.take(child, id) else {
            return match own_of(id) {
                Some(own) => self.on_own_response(now, child, own, response, effects),
                None => stray(effects, child),
            };
        };
        if let (Some(uri), Ok(_)) = (&at.resource, response.outcome()) {
            let subscriptions = &mut self.children[child].subscriptions;
            match at.method {
                Some(Method::Subscribe) => drop(subscriptions.insert(uri.clone())),
                _ => drop(subscriptions.remove(uri)),
            }
        }
        if let (None | Some(Method::ToolsCall), Ok(result)) = (&at.method, response.outcome()) {
            for uri in payload::resource_links(&result, LINKS_MAX) {
                self.links.note(now, uri, child);
            }
        }
        let response = match self.children.len() {
            1 => response.clone(),
            _ => failure::with_server(response, self.name(child)),
        };
        answer(effects, id.clone(), response.into());
    }

    fn on_own_response(
        &mut self,
        now: u64,
        child: usize,
        (own, number): (Own, u64),
        response: &Response,
        effects: &mut Vec<Effect>,
    ) {
        match own {
            Own::Initialize => match self.children[child].state {
                State::Initializing { request, .. } if request == number => {
                    self.on_initialized(now, child, response, effects);
                }
                _ => stray(effects, child),
            },
            Own::List(listed) => {
                let reading = self.children[child].reading(listed);
                match reading.is_some_and(|reading| reading.request == number) {
                    true => self.on_page(now, child, listed, response, effects),
                    false => stray(effects, child),
                }
            }
            Own::Other => {}
        }
    }

    /// A server has sent a page of a list.
    fn on_page(
        &mut self,
        now: u64,
        child: usize,
        listed: Listed,
        response: &Response,
        effects: &mut Vec<Effect>,
    ) {
        let used: usize = self.children.iter().map(Child::list_bytes).sum();
        let setup = self.setup.clone();
        let Some(reading) = self.children[child].reading(listed) else { return };
        let left = LISTS_BYTES_MAX.saturating_sub(used - reading.bytes());
        let next = match response.outcome() {
            Ok(result) => {
                let pinned = &self.pins[child];
                reading.add_page(&setup.members, pinned, child, listed, &result, left)
            }
            // A server need not have each list of a capability.
            Err(error) if is_unknown_method(&error) => Ok(None),
            Err(_) => Err(()),
        };
        match next {
            Ok(Some(cursor)) => {
                let params = serde_json::json!({ "cursor": cursor }).to_string();
                let (number, id) = self.own_id(&listed.method());
                if let Some(reading) = self.children[child].reading(listed) {
                    reading.request = number;
                }
                let next = Request::new(id, listed.method(), Some(params.as_bytes()));
                effects.push(Effect::ToChild(child, next.into()));
            }
            Ok(None) => self.end_list(now, child, listed, effects),
            Err(()) => self.fail_list(now, child, listed, effects),
        }
    }

    fn end_list(&mut self, now: u64, child: usize, listed: Listed, effects: &mut Vec<Effect>) {
        let Some((list, reported)) = self.children[child].end_reading(listed) else { return };
        effects.push(Effect::ListRead { child, listed, list });
        for (name, why) in reported.left_out {
            effects.push(Effect::Report(Report::LeftOut { child, listed, name, why }));
        }
        for difference in reported.differences {
            effects.push(Effect::Report(Report::Differs { child, difference }));
        }
        if reported.has_former_pins {
            // Nothing is answered by former pins. Only operators change them, so a server cannot hold the
            // answer back.
            self.children[child].forget_list(listed);
            return self.read_list(now, child, listed, effects);
        }
        self.resume(now, Until::Listed, effects);
        if reported.is_outdated {
            self.children[child].forget_list(listed);
            self.tell_change(now, child, listed, effects);
        }
    }

    fn fail_list(&mut self, now: u64, child: usize, listed: Listed, effects: &mut Vec<Effect>) {
        self.children[child].fail_list(now, listed);
        effects.push(Effect::Report(Report::NoList { child, listed }));
        self.resume(now, Until::Listed, effects);
    }

    /// The server need not send the list any more.
    fn cancel_reading(&mut self, child: usize, listed: Listed, effects: &mut Vec<Effect>) {
        let Some(reading) = self.children[child].reading(listed) else { return };
        let id = format!("{OWN_PREFIX}{}:{}", listed.method(), reading.request);
        let params =
            serde_json::json!({ "requestId": id, "reason": "it took too long" }).to_string();
        let cancelled = Notification::new(Method::Cancelled, Some(params.as_bytes()));
        effects.push(Effect::ToChild(child, cancelled.into()));
    }

    /// A server sends the client a request.
    pub(super) fn on_asked(
        &mut self,
        child: usize,
        request: &Request,
        about: Option<RequestId>,
        effects: &mut Vec<Effect>,
    ) {
        if request.method == Method::Ping {
            let pong = Response::result(request.id.clone(), b"{}");
            return effects.push(Effect::ToChild(child, pong.into()));
        }
        let about = self.about(child, about);
        match self.asked.add(child, request) {
            Ok(request) => effects.push(Effect::ToSession { message: request.into(), about }),
            Err(_full) => {
                let text = "too many requests of this server wait for the client; try again later";
                let refused = error(request.id.clone(), ErrorCode::Refused, text);
                effects.push(Effect::ToChild(child, refused));
            }
        }
    }

    /// A server sends a notification.
    pub(super) fn on_told(
        &mut self,
        now: u64,
        child: usize,
        notification: &Notification,
        about: Option<RequestId>,
        effects: &mut Vec<Effect>,
    ) {
        let params = notification.params().unwrap_or_default();
        let message: Message = match &notification.method {
            Method::Progress => {
                let token = payload::progress_of(&params).map(|(token, _)| token);
                let is_of = |token| self.in_flight.has_token(child, &token, about.as_ref());
                match token.is_some_and(is_of) {
                    true => notification.clone().into(),
                    false => return stray(effects, child),
                }
            }
            Method::Cancelled => {
                let id = payload::cancelled_request_id(&params);
                let id = id.and_then(|id| self.asked.withdraw(child, &id));
                let params = id.and_then(|id| payload::with_cancelled_request_id(&params, &id));
                match params {
                    Some(params) => Notification::new(Method::Cancelled, Some(&params)).into(),
                    None => return stray(effects, child),
                }
            }
            Method::ResourceUpdated => {
                let uri = payload::resource_uri_of(&params);
                match uri.is_some_and(|uri| self.is_subscribed(child, &uri)) {
                    true => notification.clone().into(),
                    false => return stray(effects, child),
                }
            }
            Method::LogMessage => {
                match payload::with_logger_of(&params, &self.setup.members.get(child).name) {
                    Some(params) => Notification::new(Method::LogMessage, Some(&params)).into(),
                    None => return stray(effects, child),
                }
            }
            method => match changed_list(method) {
                Some(listed) => {
                    // Before the client has its answer it has read nothing.
                    if matches!(self.initialize, Initialize::Answered) {
                        self.tell_change(now, child, listed, effects);
                        if listed == Listed::Resource {
                            self.tell_change(now, child, Listed::Template, effects);
                        }
                    }
                    return;
                }
                None => notification.clone().into(),
            },
        };
        let about = match about.is_some() || notification.method == Method::LogMessage {
            true => self.about(child, about),
            false => None,
        };
        effects.push(Effect::ToSession { message, about });
    }

    /// The request to which a message of a server belongs: the one that the link names, if it is at this
    /// server, or else the only one that is. The session knows the requests of all servers only together.
    fn about(&self, child: usize, about: Option<RequestId>) -> Option<RequestId> {
        let named = about.filter(|id| self.in_flight.is_at(child, id));
        named.or_else(|| self.in_flight.only_at(child).cloned())
    }

    /// The link to a server had no room for a message.
    pub(super) fn on_unsent(
        &mut self,
        now: u64,
        child: usize,
        message: Message,
        effects: &mut Vec<Effect>,
    ) {
        let Message::Request(request) = message else { return stray(effects, child) };
        match own_of(&request.id) {
            Some((Own::Initialize, _)) => {
                effects.push(Effect::Close(child));
                let failure = Failure::new("it does not keep up with its messages");
                self.on_child_down(now, child, &failure, effects);
            }
            Some((Own::List(listed), _)) => self.fail_list(now, child, listed, effects),
            Some((Own::Other, _)) => {}
            None => {
                if self.in_flight.take(child, &request.id).is_some() {
                    let text = "the server does not keep up with its messages; try again later";
                    let id = request.id.clone();
                    answer(effects, request.id, error(id, ErrorCode::Refused, text));
                }
            }
        }
    }

    /// Performs what is due by time.
    pub(super) fn on_time(&mut self, now: u64, effects: &mut Vec<Effect>) {
        self.is_unsaved |= self.links.take_due(now);
        for child in 0..self.children.len() {
            if self.children[child].start_until().is_some_and(|until| until <= now) {
                effects.push(Effect::Close(child));
                let secs = self.setup.start_ms / 1_000;
                let failure =
                    Failure::new(format!("it did not answer `initialize` within {secs} s"));
                self.on_child_down(now, child, &failure, effects);
            }
            for listed in Listed::ALL {
                let is_late = |reading: &mut crate::list::Reading| reading.until <= now;
                if self.children[child].reading(listed).is_some_and(is_late) {
                    self.cancel_reading(child, listed, effects);
                    self.fail_list(now, child, listed, effects);
                }
                if self.children[child].take_due_change(now, listed) && listed != Listed::Template {
                    let message = Notification::new(listed.changed(), None).into();
                    effects.push(Effect::ToSession { message, about: None });
                }
            }
        }
        self.open_due(now, effects);
        self.settle_initialize(now, effects);
        self.resume(now, Until::AllStarted, effects);
    }
}

/// A message of a server belongs to nothing.
fn stray(effects: &mut Vec<Effect>, child: usize) {
    effects.push(Effect::Report(Report::Stray { child }));
}

/// The subject and the number of an own request, by its id.
fn own_of(id: &RequestId) -> Option<(Own, u64)> {
    let RequestId::String(text) = id else { return None };
    let (method, number) = text.strip_prefix(OWN_PREFIX)?.rsplit_once(':')?;
    let method = Method::from(method);
    let own = match Listed::of(&method) {
        Some(listed) => Own::List(listed),
        None if method == Method::Initialize => Own::Initialize,
        None => Own::Other,
    };
    Some((own, number.parse().ok()?))
}

fn is_unknown_method(error: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Code {
        code: i64,
    }
    let code = serde_json::from_slice::<Code>(error);
    code.is_ok_and(|error| error.code == i64::from(ErrorCode::MethodNotFound.number()))
}
