//! Requests of the server's to the client: sampling, elicitation, roots.
//!
//! Each gets an id of ours that carries the tag of the owner, so that an answer can never reach
//! another question, and exactly one answer reaches the server.

use bytes::Bytes;
use protocol::{
    ErrorCode, Message, Method, Notification, Rejection, Request, RequestId, Response, downgrade,
    payload,
};

use crate::carried::OpenServerRequest;
use crate::exchange::{CallId, Form};
use crate::entry::{EntryKind, ServerRequestId};
use crate::session::{Session, StepContext};
use crate::stream::{Route, Waiting};
use crate::{Effect, Fact, Millis};

/// A request to the client that has no answer yet.
pub(crate) struct ServerRequest {
    id: ServerRequestId,
    method: Method,
    /// The id that the server gave it; none for a ping of our own.
    theirs: Option<RequestId>,
    route: Route,
    pub(crate) deadline: Millis,
    /// Its stream and its entry, once it is in the log.
    logged: Option<(u64, u64)>,
}

impl Session {
    /// Takes a request of the server for the client.
    pub(crate) fn receive_request(
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
            self.refuse_server_request(context, request.id.clone(), code, &message);
            return;
        }
        let (bytes, most) = (request.raw().len(), self.limits.message_bytes_max);
        if bytes > most {
            let message = format!(
                "the request has {bytes} bytes, more than the {most} of sessions.message_bytes_max"
            );
            self.refuse_server_request(context, request.id.clone(), ErrorCode::Refused, &message);
            return;
        }
        let route = self.route(about);
        if !self.may_go(route) {
            let message = "the client can be asked only while a request of its own is in flight";
            self.refuse_server_request(context, request.id.clone(), ErrorCode::Refused, message);
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
        let server_request = self.add_server_request(
            request.method.clone(),
            Some(request.id.clone()),
            route,
            deadline,
        );
        let data = Message::from(request.with_id(request_id(server_request))).line();
        self.deliver_waiting(
            context,
            route,
            Waiting { data, server_request: Some(server_request), early: false },
        );
    }

    fn refuse_server_request(
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
        if self.server_requests.len() >= self.limits.server_requests_max {
            let most = self.limits.server_requests_max;
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

    fn add_server_request(
        &mut self,
        method: Method,
        theirs: Option<RequestId>,
        route: Route,
        deadline: Millis,
    ) -> ServerRequestId {
        let id = ServerRequestId {
            owner_tag: self.log.owner_tags.current(),
            number: self.next_server_request,
        };
        self.next_server_request += 1;
        self.server_requests.push(ServerRequest {
            id,
            method,
            theirs,
            route,
            deadline,
            logged: None,
        });
        id
    }

    /// Does the server wait for an answer?
    pub(crate) fn has_asks(&self) -> bool {
        self.server_requests.iter().any(|server_request| server_request.theirs.is_some())
    }

    /// Is this question waiting for its answer?
    pub(crate) fn is_open(&self, id: ServerRequestId) -> bool {
        self.server_requests.iter().any(|server_request| server_request.id == id)
    }

    /// The call that a question is for, if that is known.
    pub(crate) fn call_of_server_request(&self, id: ServerRequestId) -> Option<CallId> {
        let server_request =
            self.server_requests.iter().find(|server_request| server_request.id == id)?;
        match server_request.route {
            Route::Call(call) => Some(call),
            Route::Standalone => None,
        }
    }

    /// A question is in the log now.
    pub(crate) fn note_logged(&mut self, id: ServerRequestId, stream: u64, number: u64) {
        if let Some(server_request) =
            self.server_requests.iter_mut().find(|server_request| server_request.id == id)
        {
            server_request.logged = Some((stream, number));
        }
    }

    /// What the log must know when a question is no longer open.
    fn note_closed(&mut self, context: &StepContext<'_>, server_request: &ServerRequest) {
        if let Some((stream, _)) = server_request.logged {
            self.log.push(
                stream,
                EntryKind::Answered { server_request: server_request.id },
                context.now,
            );
        }
    }

    /// The questions that are in the log and open.
    pub(crate) fn open_asks(&self) -> impl Iterator<Item = OpenServerRequest> {
        self.server_requests.iter().filter_map(|server_request| {
            let (stream, number) = server_request.logged?;
            Some((server_request.id, stream, number))
        })
    }

    /// Withdraws a request of a former owner's server: that server is gone and cannot receive the
    /// response.
    pub(crate) fn withdraw_lost(
        &mut self,
        context: &mut StepContext<'_>,
        (server_request, number, _): OpenServerRequest,
    ) {
        self.log.push(number, EntryKind::Answered { server_request }, context.now);
        let data = withdrawal(server_request, "its asker was lost");
        if self.streams.get(number).is_some_and(|stream| !stream.closed) {
            self.write_event(context, number, data);
        } else {
            self.deliver(context, Route::Standalone, data, false);
        }
    }

    /// The server request that an id of ours names, whether or not it is still open. Which
    /// requests a former owner sent is not known any more, so any of its ids may be one.
    fn ask_named(&self, id: &RequestId) -> Option<ServerRequestId> {
        let RequestId::String(text) = id else { return None };
        let server_request = ServerRequestId::parse(text)?;
        let run = self.log.owner_tags.run(server_request.owner_tag)?;
        (run.end.is_some() || (1..self.next_server_request).contains(&server_request.number))
            .then_some(server_request)
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
        let same =
            |id: ServerRequestId| mutant!("answer_another_question") && id.number == named.number;
        let asked =
            |server_request: &ServerRequest| server_request.id == named || same(server_request.id);
        let Some(index) = self.server_requests.iter().position(asked) else {
            context.effects.push(Effect::Tell(Fact::Stray));
            return Ok(());
        };
        let server_request = self.server_requests.swap_remove(index);
        self.note_closed(context, &server_request);
        if let Route::Call(call) = server_request.route {
            let silent_at = context.now.plus(self.limits.request_secs * 1_000);
            let ours = self.exchanges.iter_mut().filter(|exchange| exchange.call == call);
            ours.for_each(|exchange| exchange.silent_at = silent_at);
        }
        if let Some(theirs) = server_request.theirs {
            let for_server = response
                .outcome()
                .ok()
                .and_then(|result| {
                    downgrade::result_for_server(
                        self.link.revision,
                        &server_request.method,
                        &result,
                    )
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
        let named =
            |server_request: &ServerRequest| server_request.theirs.as_ref() == Some(&theirs);
        let Some(index) = self.server_requests.iter().position(named) else { return };
        let server_request = self.server_requests.swap_remove(index);
        self.withdraw(context, &server_request, "the server cancelled it");
    }

    /// The client took too long: the server gets an error, the client a cancellation.
    pub(crate) fn server_request_deadlines(&mut self, context: &mut StepContext<'_>) {
        while let Some(index) = self
            .server_requests
            .iter()
            .position(|server_request| server_request.deadline <= context.now)
        {
            let server_request = self.server_requests.swap_remove(index);
            self.withdraw(context, &server_request, "it took too long");
            if let Some(theirs) = server_request.theirs {
                let secs = self.limits.ask_secs;
                let message = format!("the client did not answer within {secs} s");
                self.refuse_server_request(context, theirs, ErrorCode::Refused, &message);
            }
        }
    }

    /// Withdraws every open server request: nothing here takes the answers any more.
    pub(crate) fn drop_asks(&mut self, context: &mut StepContext<'_>, reason: &str) {
        for server_request in std::mem::take(&mut self.server_requests) {
            self.withdraw(context, &server_request, reason);
        }
    }

    /// Tells the client that a server request is no longer open.
    fn withdraw(
        &mut self,
        context: &mut StepContext<'_>,
        server_request: &ServerRequest,
        reason: &str,
    ) {
        if server_request.theirs.is_none() {
            return;
        }
        self.note_closed(context, server_request);
        self.deliver(context, server_request.route, withdrawal(server_request.id, reason), false);
    }

    /// Pings the client on a standalone stream (PING-02). The response is not evaluated: the ping
    /// serves to send data on the connection.
    pub(crate) fn ping_client(&mut self, context: &mut StepContext<'_>, stream: u64) {
        if self.server_requests.len() >= self.limits.server_requests_max || !self.is_live() {
            return;
        }
        let deadline = context.now.plus(self.limits.ask_secs * 1_000);
        let server_request =
            self.add_server_request(Method::Ping, None, Route::Standalone, deadline);
        let ping = Request::new(request_id(server_request), Method::Ping, None);
        self.write_event(context, stream, ping.raw().clone());
    }
}

/// The notification that a server request is no longer open.
fn withdrawal(server_request: ServerRequestId, reason: &str) -> Bytes {
    let params = serde_json::json!({ "requestId": server_request.to_string(), "reason": reason });
    let notification = Notification::new(Method::Cancelled, Some(params.to_string().as_bytes()));
    notification.raw().clone()
}

fn request_id(server_request: ServerRequestId) -> RequestId {
    RequestId::from(server_request.to_string())
}
