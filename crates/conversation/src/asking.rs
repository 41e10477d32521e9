//! Requests of the server's to the client: sampling, elicitation, roots.
//!
//! Each gets an id of ours that carries the tag of the owner, so that an answer can never reach
//! another question, and exactly one answer reaches the server.

use bytes::Bytes;
use protocol::{
    ErrorCode, Message, Method, Notification, Rejection, Request, RequestId, Response, downgrade,
    payload,
};

use crate::carried::OpenAsk;
use crate::exchange::{CallId, Form};
use crate::log::{AskId, What};
use crate::session::{Session, StepContext};
use crate::stream::{Route, Waiting};
use crate::{Effect, Fact, Millis};

/// A request to the client that has no answer yet.
pub(crate) struct Ask {
    id: AskId,
    method: Method,
    /// The id that the server gave it; none for a ping of our own.
    theirs: Option<RequestId>,
    route: Route,
    pub(crate) deadline: Millis,
    /// Its stream and its entry, once it is in the log.
    logged: Option<(u64, u64)>,
}

impl Session {
    /// The server asks the client for something.
    pub(crate) fn asked(
        &mut self,
        context: &mut StepContext<'_>,
        request: &Request,
        about: Option<&RequestId>,
    ) {
        if request.method == Method::Ping {
            context.effects.push(Effect::Send(Response::result(request.id.clone(), b"{}").into()));
            return;
        }
        if let Err((code, message)) = self.may_ask(request) {
            self.refuse_ask(context, request.id.clone(), code, &message);
            return;
        }
        let (bytes, most) = (request.raw().len(), self.limits.message_bytes_max);
        if bytes > most {
            let message = format!(
                "the request has {bytes} bytes, more than the {most} of sessions.message_bytes_max"
            );
            self.refuse_ask(context, request.id.clone(), ErrorCode::Refused, &message);
            return;
        }
        let route = self.route(about);
        if !self.may_go(route) {
            let message = "the client can be asked only while a request of its own is in flight";
            self.refuse_ask(context, request.id.clone(), ErrorCode::Refused, message);
            return;
        }
        let deadline = context.now.plus(self.limits.ask_secs * 1_000);
        self.hold_off_silence(route, deadline);
        let params = request.params().unwrap_or_default();
        let request = match downgrade::request_for_client(self.revision(), &request.method, &params)
        {
            Some(params) => request.with_params(&params),
            None => request.clone(),
        };
        let ask = self.new_ask(request.method.clone(), Some(request.id.clone()), route, deadline);
        let data = Message::from(request.with_id(request_id(ask))).line();
        self.deliver_waiting(context, route, Waiting { data, ask: Some(ask), early: false });
    }

    fn refuse_ask(
        &self,
        context: &mut StepContext<'_>,
        id: RequestId,
        code: ErrorCode,
        message: &str,
    ) {
        let error = Response::error(Some(id), code.number(), message, None);
        context.effects.push(Effect::Send(error.into()));
    }

    /// Did the client declare that it can be asked this (RPC-12, ROOT-01, SMP-01, SMP-02, ELI-01)?
    fn may_ask(&self, request: &Request) -> Result<(), (ErrorCode, String)> {
        let Some(client) = &self.client else {
            return Err((ErrorCode::Refused, "there is no client yet".to_owned()));
        };
        if !self.is_initialized() {
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
                let uses_context =
                    payload::sampling_uses_context(&params) && revision.has_sampling_tools();
                capabilities.sampling()
                    && (!tools || (revision.has_sampling_tools() && capabilities.sampling_tools()))
                    && (!uses_context || capabilities.sampling_context())
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
    ) -> AskId {
        let id = AskId { owner_tag: self.log.owner_tags.current(), number: self.next_ask };
        self.next_ask += 1;
        self.asks.push(Ask { id, method, theirs, route, deadline, logged: None });
        id
    }

    /// Does the server wait for an answer?
    pub(crate) fn has_asks(&self) -> bool {
        self.asks.iter().any(|ask| ask.theirs.is_some())
    }

    /// Is this question waiting for its answer?
    pub(crate) fn is_open(&self, id: AskId) -> bool {
        self.asks.iter().any(|ask| ask.id == id)
    }

    /// The call that a question is for, if that is known.
    pub(crate) fn asking_call(&self, id: AskId) -> Option<CallId> {
        let ask = self.asks.iter().find(|ask| ask.id == id)?;
        match ask.route {
            Route::Call(call) => Some(call),
            Route::Standalone => None,
        }
    }

    /// A question is in the log now.
    pub(crate) fn note_logged(&mut self, id: AskId, stream: u64, number: u64) {
        if let Some(ask) = self.asks.iter_mut().find(|ask| ask.id == id) {
            ask.logged = Some((stream, number));
        }
    }

    /// What the log must know when a question is no longer open.
    fn note_closed(&mut self, context: &StepContext<'_>, ask: &Ask) {
        if let Some((stream, _)) = ask.logged {
            self.log.push(stream, What::Answered { ask: ask.id }, context.now);
        }
    }

    /// The questions that are in the log and open.
    pub(crate) fn open_asks(&self) -> impl Iterator<Item = OpenAsk> {
        self.asks.iter().filter_map(|ask| {
            let (stream, number) = ask.logged?;
            Some((ask.id, stream, number))
        })
    }

    /// Withdraws what a former owner's server asked: nobody would take the answer.
    pub(crate) fn withdraw_lost(
        &mut self,
        context: &mut StepContext<'_>,
        (ask, number, _): OpenAsk,
    ) {
        self.log.push(number, What::Answered { ask }, context.now);
        let data = withdrawal(ask, "its asker was lost");
        if self.streams.get(number).is_some_and(|stream| !stream.closed) {
            self.write_event(context, number, data);
        } else {
            self.deliver(context, Route::Standalone, data, false);
        }
    }

    /// The ask that an id of ours names, whether or not it is still open. What a former
    /// owner asked is not known any more, so it may have asked anything.
    fn ask_named(&self, id: &RequestId) -> Option<AskId> {
        let RequestId::String(text) = id else { return None };
        let ask = AskId::parse(text)?;
        let run = self.log.owner_tags.run(ask.owner_tag)?;
        (run.end.is_some() || (1..self.next_ask).contains(&ask.number)).then_some(ask)
    }

    /// The client answered something (SMP-05, ELI-03). An answer to a question that is no
    /// longer open is taken and dropped; one to a question never asked is refused (POST-09).
    pub(crate) fn answered(
        &mut self,
        context: &mut StepContext<'_>,
        response: &Response,
    ) -> Result<(), Rejection> {
        let Some(id) = &response.id else { return Ok(()) };
        let named = self.ask_named(id).ok_or_else(|| {
            let message = "the response answers no request of this session";
            Rejection::new(ErrorCode::InvalidRequest, message)
        })?;
        let same = |id: AskId| mutant!("answer_another_question") && id.number == named.number;
        let asked = |ask: &Ask| ask.id == named || same(ask.id);
        let Some(index) = self.asks.iter().position(asked) else {
            context.effects.push(Effect::Tell(Fact::Stray));
            return Ok(());
        };
        let ask = self.asks.swap_remove(index);
        self.note_closed(context, &ask);
        if let Route::Call(call) = ask.route {
            let silent_at = context.now.plus(self.limits.request_secs * 1_000);
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
            self.send(context, response.into());
        }
        Ok(())
    }

    /// The server no longer wants an answer (CAN-05).
    pub(crate) fn ask_cancelled(&mut self, context: &mut StepContext<'_>, params: &[u8]) {
        let Some(theirs) = payload::cancelled_request_id(params) else { return };
        let named = |ask: &Ask| ask.theirs.as_ref() == Some(&theirs);
        let Some(index) = self.asks.iter().position(named) else { return };
        let ask = self.asks.swap_remove(index);
        self.withdraw(context, &ask, "the server cancelled it");
    }

    /// The client took too long: the server gets an error, the client a cancellation.
    pub(crate) fn ask_deadlines(&mut self, context: &mut StepContext<'_>) {
        while let Some(index) = self.asks.iter().position(|ask| ask.deadline <= context.now) {
            let ask = self.asks.swap_remove(index);
            self.withdraw(context, &ask, "it took too long");
            if let Some(theirs) = ask.theirs {
                let secs = self.limits.ask_secs;
                let message = format!("the client did not answer within {secs} s");
                self.refuse_ask(context, theirs, ErrorCode::Refused, &message);
            }
        }
    }

    /// Withdraws every open server request: nothing here takes the answers any more.
    pub(crate) fn drop_asks(&mut self, context: &mut StepContext<'_>, reason: &str) {
        for ask in std::mem::take(&mut self.asks) {
            self.withdraw(context, &ask, reason);
        }
    }

    /// Tells the client that a server request is no longer open.
    fn withdraw(&mut self, context: &mut StepContext<'_>, ask: &Ask, reason: &str) {
        if ask.theirs.is_none() {
            return;
        }
        self.note_closed(context, ask);
        self.deliver(context, ask.route, withdrawal(ask.id, reason), false);
    }

    /// Pings the client on a standalone stream (PING-02). What it answers matters to nobody;
    /// that the connection carries it does.
    pub(crate) fn ping_client(&mut self, context: &mut StepContext<'_>, stream: u64) {
        if self.asks.len() >= self.limits.asks_max || !self.is_live() {
            return;
        }
        let deadline = context.now.plus(self.limits.ask_secs * 1_000);
        let ask = self.new_ask(Method::Ping, None, Route::Standalone, deadline);
        let ping = Request::new(request_id(ask), Method::Ping, None);
        self.write_event(context, stream, ping.raw().clone());
    }
}

/// The notification that a server request is no longer open.
fn withdrawal(ask: AskId, reason: &str) -> Bytes {
    let params = serde_json::json!({ "requestId": ask.to_string(), "reason": reason });
    let notification = Notification::new(Method::Cancelled, Some(params.to_string().as_bytes()));
    notification.raw().clone()
}

fn request_id(ask: AskId) -> RequestId {
    RequestId::from(ask.to_string())
}
