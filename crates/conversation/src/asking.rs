//! Requests of the server's to the client: sampling, elicitation, roots.
//!
//! Each gets an id of ours that carries the emitter, so that an answer can never reach
//! another question, and exactly one answer reaches the server.

use protocol::{
    ErrorCode, Message, Method, Notification, Rejection, Request, RequestId, Response, downgrade,
    payload,
};

use crate::exchange::Form;
use crate::log::{Mark, What};
use crate::session::{Session, Turn};
use crate::state::read_ask_id;
use crate::stream::Route;
use crate::{Effect, Emitter, Fact, Millis};

/// A request to the client that has no answer yet.
pub(crate) struct Ask {
    /// Who asked it.
    pub(crate) emitter: Emitter,
    pub(crate) number: u64,
    /// The logged stream that it was asked on, if any.
    pub(crate) stream: Option<u64>,
    method: Method,
    /// The id that the server gave it; none for a ping of our own.
    theirs: Option<RequestId>,
    route: Route,
    pub(crate) deadline: Millis,
}

impl Session {
    /// The server asks the client for something.
    pub(crate) fn asked(
        &mut self,
        turn: &mut Turn<'_>,
        request: &Request,
        about: Option<&RequestId>,
    ) {
        if request.method == Method::Ping {
            turn.effects.push(Effect::Send(Response::result(request.id.clone(), b"{}").into()));
            return;
        }
        if let Err((code, message)) = self.may_ask(request) {
            self.refuse_ask(turn, request.id.clone(), code, &message);
            return;
        }
        let route = self.route(about);
        if !self.may_go(route) {
            let message = "the client can be asked only while a request of its own is in flight";
            self.refuse_ask(turn, request.id.clone(), ErrorCode::Refused, message);
            return;
        }
        let deadline = turn.now.plus(self.limits.ask_secs * 1_000);
        self.hold_off_silence(route, deadline);
        let params = request.params().unwrap_or_default();
        let request = match downgrade::request_for_client(self.revision(), &request.method, &params)
        {
            Some(params) => request.with_params(&params),
            None => request.clone(),
        };
        let number =
            self.new_ask(request.method.clone(), Some(request.id.clone()), route, deadline);
        let data = Message::from(request.with_id(self.ask_id(number))).line();
        self.deliver_marked(turn, route, data, false, Mark::Ask(number));
    }

    fn refuse_ask(&self, turn: &mut Turn<'_>, id: RequestId, code: ErrorCode, message: &str) {
        let error = Response::error(Some(id), code.number(), message, None);
        turn.effects.push(Effect::Send(error.into()));
    }

    /// Did the client declare that it can be asked this (RPC-12, ROOT-01, SMP-01, SMP-02, ELI-01)?
    fn may_ask(&self, request: &Request) -> Result<(), (ErrorCode, String)> {
        let Some(client) = &self.client else {
            return Err((ErrorCode::Refused, "there is no client yet".to_owned()));
        };
        if !self.is_shaken() {
            let message = "`initialize` is not answered yet; ask nothing before".to_owned();
            return Err((ErrorCode::InvalidRequest, message));
        }
        let (revision, capabilities) = (client.revision, &client.capabilities);
        let params = request.params().unwrap_or_default();
        let declared = match request.method {
            // A program that echoes is no client.
            Method::Initialize => false,
            Method::RootsList => capabilities.roots(),
            Method::CreateMessage => {
                let tools = payload::sampling_uses_tools(&params);
                let context =
                    payload::sampling_uses_context(&params) && revision.has_sampling_tools();
                capabilities.sampling()
                    && (!tools || (revision.has_sampling_tools() && capabilities.sampling_tools()))
                    && (!context || capabilities.sampling_context())
            }
            Method::Elicit if !revision.has_elicitation() => false,
            Method::Elicit => match payload::elicitation_mode(&params) {
                payload::ElicitationMode::Form => capabilities.elicitation_form(),
                payload::ElicitationMode::Url => {
                    revision.has_elicitation_modes() && capabilities.elicitation_url()
                }
            },
            _ => true,
        };
        if !declared {
            let message =
                format!("the client did not declare that it takes this `{}`", request.method);
            return Err((ErrorCode::MethodNotFound, message));
        }
        if self.asks.len() >= self.limits.asks_max {
            let most = self.limits.asks_max;
            return Err((
                ErrorCode::Refused,
                format!("the client has {most} questions open, its most"),
            ));
        }
        Ok(())
    }

    /// Can a request to the client go this way (GET-06)?
    fn may_go(&self, route: Route) -> bool {
        if self.revision().has_standalone_requests() || self.duplex.is_some() {
            return true;
        }
        let Route::Call(call) = route else { return false };
        let call = self.calls.iter().find(|other| other.id == call);
        call.is_some_and(|call| call.sink.is_some() || matches!(call.form, Form::Stream(_)))
    }

    /// While the client is asked something, the request that it is asked for is not hung.
    fn hold_off_silence(&mut self, route: Route, deadline: Millis) {
        let Route::Call(call) = route else { return };
        let silent_at = deadline.plus(self.limits.request_secs * 1_000);
        let ours = self.exchanges.iter_mut().filter(|exchange| exchange.call == call);
        ours.for_each(|exchange| exchange.silent_at = exchange.silent_at.max(silent_at));
    }

    fn new_ask(
        &mut self,
        method: Method,
        theirs: Option<RequestId>,
        route: Route,
        deadline: Millis,
    ) -> u64 {
        let number = self.next_ask;
        self.next_ask += 1;
        let emitter = self.emitter;
        self.asks.push(Ask { emitter, number, stream: None, method, theirs, route, deadline });
        number
    }

    fn ask_id(&self, number: u64) -> RequestId {
        RequestId::from(format!("{}-{number}", self.emitter))
    }

    /// Notes on which logged stream a question went out.
    pub(crate) fn note_asked(&mut self, number: u64, stream: u64) {
        let asked = |ask: &&mut Ask| ask.number == number && ask.emitter == self.emitter;
        self.asks.iter_mut().filter(asked).for_each(|ask| ask.stream = Some(stream));
    }

    /// What an id of ours names, whether or not the question is still open.
    fn asked_by_us(&self, id: &RequestId) -> Option<(Emitter, u64)> {
        let (emitter, number) = read_ask_id(id)?;
        let is_known = if emitter == self.emitter {
            number < self.next_ask
        } else {
            // How many questions a former owner had asked is not known; it had asked some.
            self.former.contains(&emitter)
        };
        is_known.then_some((emitter, number))
    }

    /// The client answered something (SMP-05, ELI-03). An answer to a question that is no
    /// longer open is taken and dropped; one to a question never asked is refused (POST-09).
    pub(crate) fn answered(
        &mut self,
        turn: &mut Turn<'_>,
        response: &Response,
    ) -> Result<(), Rejection> {
        let Some(id) = &response.id else { return Ok(()) };
        let (emitter, number) = self.asked_by_us(id).ok_or_else(|| {
            let message = "the response answers no request of this session";
            Rejection::new(ErrorCode::InvalidRequest, message)
        })?;
        let named = |ask: &Ask| ask.number == number && ask.emitter == emitter;
        let Some(index) = self.asks.iter().position(named) else {
            turn.effects.push(Effect::Tell(Fact::Stray));
            return Ok(());
        };
        let ask = self.asks.swap_remove(index);
        if let Some(stream) = ask.stream {
            let answered = What::Answered { ask: ask.number };
            self.log.push(stream, ask.emitter, answered, turn.now);
        }
        if let Route::Call(call) = ask.route {
            let silent_at = turn.now.plus(self.limits.request_secs * 1_000);
            let ours = self.exchanges.iter_mut().filter(|exchange| exchange.call == call);
            ours.for_each(|exchange| exchange.silent_at = silent_at);
        }
        if let Some(theirs) = ask.theirs {
            let for_server = response
                .outcome()
                .ok()
                .and_then(|result| {
                    downgrade::result_for_server(self.link.revision, &ask.method, &result)
                })
                .map(|result| response.with_result(&result));
            let response = for_server.unwrap_or_else(|| response.clone()).with_id(theirs);
            self.send(turn, response.into());
        }
        Ok(())
    }

    /// The server no longer wants an answer (CAN-05).
    pub(crate) fn ask_cancelled(&mut self, turn: &mut Turn<'_>, params: &[u8]) {
        let Some(theirs) = payload::cancelled_request_id(params) else { return };
        let named = |ask: &Ask| ask.theirs.as_ref() == Some(&theirs);
        let Some(index) = self.asks.iter().position(named) else { return };
        let ask = self.asks.swap_remove(index);
        self.withdraw(turn, &ask, "the server cancelled it");
    }

    /// The client took too long: the server gets an error, the client a cancellation.
    pub(crate) fn ask_deadlines(&mut self, turn: &mut Turn<'_>) {
        while let Some(index) = self.asks.iter().position(|ask| ask.deadline <= turn.now) {
            let ask = self.asks.swap_remove(index);
            self.withdraw(turn, &ask, "it took too long");
            if let Some(theirs) = ask.theirs {
                let secs = self.limits.ask_secs;
                let message = format!("the client did not answer within {secs} s");
                self.refuse_ask(turn, theirs, ErrorCode::Refused, &message);
            }
        }
    }

    /// The server is gone: nobody wants the answers.
    pub(crate) fn drop_asks(&mut self, turn: &mut Turn<'_>) {
        for ask in std::mem::take(&mut self.asks) {
            self.withdraw(turn, &ask, "the server ended");
        }
    }

    /// Tells the client that a question is no longer open.
    fn withdraw(&mut self, turn: &mut Turn<'_>, ask: &Ask, reason: &str) {
        if ask.theirs.is_none() {
            return;
        }
        let id = format!("{}-{}", ask.emitter, ask.number);
        let params = serde_json::json!({ "requestId": id, "reason": reason });
        let notification =
            Notification::new(Method::Cancelled, Some(params.to_string().as_bytes()));
        if let Some(stream) = ask.stream {
            // Whoever reads the log need not ask again, nor withdraw it again.
            let answered = What::Answered { ask: ask.number };
            self.log.push(stream, ask.emitter, answered, turn.now);
        }
        self.deliver(turn, ask.route, notification.raw().clone(), false);
    }

    /// A question of a former owner's, whose asker is gone with it: the client is told so.
    pub(crate) fn withdraw_lost(&mut self, turn: &mut Turn<'_>, stream: u64, id: &RequestId) {
        let params = serde_json::json!({ "requestId": id, "reason": "the server was lost" });
        let notification =
            Notification::new(Method::Cancelled, Some(params.to_string().as_bytes()));
        if let Some((emitter, ask)) = read_ask_id(id) {
            self.log.push(stream, emitter, What::Answered { ask }, turn.now);
        }
        self.emit(turn, stream, notification.raw().clone());
    }

    /// Pings the client on a standalone stream (PING-02). What it answers matters to nobody;
    /// that the connection carries it does.
    pub(crate) fn ping_client(&mut self, turn: &mut Turn<'_>, stream: u64) {
        if self.asks.len() >= self.limits.asks_max || !self.is_live() {
            return;
        }
        let deadline = turn.now.plus(self.limits.ask_secs * 1_000);
        let number = self.new_ask(Method::Ping, None, Route::Standalone, deadline);
        let ping = Request::new(self.ask_id(number), Method::Ping, None);
        self.emit_marked(turn, stream, ping.raw().clone(), Mark::Ask(number));
        self.note_asked(number, stream);
    }
}
