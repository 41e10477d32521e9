//! Events of the tenant's server: its link opens and closes, and it sends responses,
//! notifications, and requests to the client.

use bytes::Bytes;
use protocol::{
    ErrorCode, InitializeResult, Message, Method, Notification, Position, Request, RequestId,
    Response, Revision, downgrade, header_params, payload,
};

use super::Parts;
use crate::Definition;
use crate::exchange::{Exchange, Form, Route};
use crate::handshake::Handshake;
use crate::mirroring::Parked;
use crate::server_link::OwnResponse;
use crate::server_requests::request_id;
use crate::step_context::StepContext;
use crate::waiting::Waiting;
use crate::{Answer, Cause, Fact, Refusal};

impl Parts {
    /// The link is opened to a server with this definition.
    pub(crate) fn on_backend_chosen(&mut self, definition: Option<Definition>, is_replaced: bool) {
        if self.handshake.note_backend(definition, is_replaced) {
            // The tools of the former server say nothing about those of this one.
            self.tools.forget_tools();
        }
    }

    /// The link is open.
    pub(crate) fn on_link_up(&mut self, context: &mut StepContext<'_>) {
        self.link.begin_handshake(context, self.handshake.client());
    }

    /// The link is closed. The requests in flight on it get no response, so they end here
    /// (STD-05).
    pub(crate) fn on_link_down(&mut self, context: &mut StepContext<'_>, reason: &str) {
        let Some((message, was_up)) = self.link.note_lost(context.now, reason) else { return };
        self.delivery().withdraw_all_requests(context, "the server ended");
        // A request that came while the link of a former owner was to be carried on has not been sent.
        let unsent = self.link.take_unsent();
        let is_begun_anew = was_up || !unsent.is_empty();
        unsent.into_iter().for_each(|request| self.on_server_returned(request));
        let mut returned = Vec::new();
        while let Some(mut exchange) = self.posts.take_exchange(|e| e.returned.is_some()) {
            let request = exchange.returned.take();
            returned.push((exchange, request));
        }
        self.fail_link(context, &|id| internal_error(id, &message));
        if is_begun_anew {
            self.link.retry_at_once_after_first_failure(context.now);
        }
        for (exchange, request) in returned {
            self.posts.add_exchange(exchange);
            request.into_iter().for_each(|request| self.link.send_or_queue(context, *request));
        }
    }

    /// The server does not know its session any more, and has not run this request.
    pub(crate) fn on_server_returned(&mut self, request: Request) {
        let exchange = self.posts.exchange_mut(&request.id).filter(|e| !e.was_returned);
        if let Some(exchange) = exchange {
            exchange.was_returned = true;
            exchange.returned = Some(Box::new(request));
        }
    }

    /// The link has to be opened, or was not opened in time.
    pub(super) fn open_link_or_time_out(&mut self, context: &mut StepContext<'_>) {
        if self.link.open_or_time_out(context) {
            let secs = context.setup.start_secs;
            let message = format!("the server did not answer `initialize` within {secs} s");
            self.fail_link(context, &|id| internal_error(id, &message));
        }
    }

    /// The handshake with the server failed, or the link is closed: each request that waits for
    /// the server gets `error`.
    fn fail_link(&mut self, context: &mut StepContext<'_>, error: &impl Fn(RequestId) -> Response) {
        self.link.note_failure(context.now);
        self.forget_saved_link();
        self.mirroring.fail_parked(context, error);
        self.delivery().settle_all_with_error(context, error);
        if self.handshake.is_initializing() {
            self.end_session(context, Cause::HandshakeFailed);
        }
    }

    /// The link did not accept a message: its sender gets an error, if it waits for an answer.
    pub(crate) fn on_unsent(&mut self, context: &mut StepContext<'_>, message: Message) {
        let Message::Request(request) = message else {
            context.count_fact(Fact::Dropped);
            return;
        };
        let Some(exchange) = self.posts.take_exchange(|exchange| exchange.id == request.id) else {
            return;
        };
        let text = "the server does not keep up with its messages; try again later";
        let error = Response::error(Some(request.id), crate::REFUSED, text, None);
        self.delivery().settle_with_error(context, exchange, &error);
    }

    /// The server sent a message with which its stream was read so far.
    pub(crate) fn on_positioned_message(
        &mut self,
        context: &mut StepContext<'_>,
        message: Message,
        about: Option<&RequestId>,
        position: Box<Position>,
    ) {
        if about.is_some() {
            self.on_server_advanced(context, about, position);
            return self.on_server_message(context, message, about);
        }
        let before = self.waiting.newest();
        self.on_server_message(context, message, about);
        if self.waiting.newest() == before {
            self.on_server_advanced(context, about, position);
        } else if !context.is_duplex() {
            // Another owner gets it again, unless the client does first.
            self.waiting.note_position(position);
        }
    }

    /// A stream of the server was read so far.
    pub(crate) fn on_server_advanced(
        &mut self,
        context: &StepContext<'_>,
        about: Option<&RequestId>,
        position: Box<Position>,
    ) {
        if context.is_duplex() {
            return;
        }
        let Some(id) = about else {
            // A position in the log would stand for the messages that wait, too.
            return match self.waiting.has_position() {
                true => self.waiting.note_position(position),
                false => self.streams.note_read(None, *position),
            };
        };
        let Some(exchange) = self.posts.exchange_mut(id) else { return };
        exchange.position = Some(position.clone());
        let post = exchange.post;
        // Otherwise the entry that opens the stream has it.
        if self.posts.post(post).is_some_and(|post| post.stream().is_some()) {
            self.streams.note_read(about.cloned(), *position);
        }
    }

    /// The server sent a message; `about` is the client's request that it belongs to, if the link
    /// knows it.
    pub(crate) fn on_server_message(
        &mut self,
        context: &mut StepContext<'_>,
        message: Message,
        about: Option<&RequestId>,
    ) {
        match message {
            Message::Response(response) => self.receive_response(context, &response),
            Message::Request(request) => self.receive_request(context, &request, about),
            Message::Notification(notification) => {
                self.receive_notification(context, &notification, about)
            }
        }
    }

    fn receive_response(&mut self, context: &mut StepContext<'_>, response: &Response) {
        let id = response.id.as_ref();
        let is_settled = |e: &Exchange| Some(&e.id) == id && e.method != Method::Initialize;
        let Some(exchange) = self.posts.take_exchange(is_settled) else {
            return self.receive_other_response(context, response);
        };
        if let Ok(result) = response.outcome() {
            self.note_success(&exchange);
            if exchange.method == Method::ToolsList {
                self.tools.learn_page(context, &header_params::tools(&result));
            }
        }
        let data = response_for_client(&self.handshake, &exchange.method, response);
        let most = context.limits().message_bytes_max;
        if data.len() > most {
            let error = too_large(&exchange.id, data.len(), most);
            self.delivery().settle_with_error(context, exchange, &error);
            return;
        }
        self.delivery().settle_exchange(context, exchange, data, response.is_result());
    }

    /// No exchange waits for this response: it answers a request of the session itself, it is a
    /// second one, or its request was ended.
    fn receive_other_response(&mut self, context: &mut StepContext<'_>, response: &Response) {
        let id = response.id.as_ref();
        if id.is_some_and(|id| self.posts.exchange(id).is_some()) {
            // The link's own handshake answers the client's `initialize`.
            return context.count_fact(Fact::Stray);
        }
        match self.link.own_response(id) {
            Some(OwnResponse::Initialize) => self.receive_initialize_response(context, response),
            Some(OwnResponse::ToolsList) => self.receive_tools(context, response),
            Some(OwnResponse::Other) => {}
            None => {
                self.ended.note_late_response(id);
                context.count_fact(Fact::Stray);
            }
        }
    }

    /// The changes of a session after a successful response.
    fn note_success(&mut self, exchange: &Exchange) {
        match (&exchange.method, &exchange.uri) {
            (Method::Subscribe, Some(uri)) => self.persisted.subscribe(uri.clone()),
            (Method::Unsubscribe, Some(uri)) => self.persisted.unsubscribe(uri),
            _ => {}
        }
    }

    /// The server answered `initialize`.
    fn receive_initialize_response(&mut self, context: &mut StepContext<'_>, response: &Response) {
        let answered = match response.outcome() {
            Ok(result) => {
                InitializeResult::read(&result).map(|read| (result, read)).map_err(|_| {
                    let message = "the server's answer to `initialize` is invalid";
                    Response::error(None, ErrorCode::InternalError.number(), message, None)
                })
            }
            Err(_) => Err(error_for_client(&self.handshake, response)),
        };
        let (result, read) = match answered {
            Ok(answered) => answered,
            Err(error) => {
                self.link.close_link(context);
                self.fail_link(context, &|id| error.with_id(id));
                return;
            }
        };
        let revision = Revision::named(&read.protocol_version);
        let revision = revision.unwrap_or(Revision::NEWEST_STABLE);
        self.link.complete_handshake(context.now, revision);
        let is_changed = self.handshake.note_server(&read.capabilities);
        self.persisted.note_change(is_changed);
        let changed_lists = self.handshake.take_changed_lists(&read.capabilities);
        if self.handshake.is_initializing() {
            let result = protocol::with_protocol_version(&result, self.handshake.revision());
            self.answer_initialize(context, &result);
        } else {
            self.send_state(context);
            for list in changed_lists {
                self.deliver_standalone(context, &Notification::new(list, None));
            }
        }
        self.link.send_queue(context);
        self.reread_tools(context);
    }

    /// Answers the client's `initialize`: the session begins.
    fn answer_initialize(&mut self, context: &mut StepContext<'_>, result: &Bytes) {
        self.handshake.note_answered();
        self.lifecycle.note_activity(context.now);
        let exchange = self.posts.take_exchange(|e| e.method == Method::Initialize);
        let Some(Exchange { id, post: post_id, .. }) = exchange else { return };
        let response = Response::result(id, result);
        let Some(post) = self.posts.post(post_id) else { return };
        if let (Form::Held { .. }, Some(sink)) = (&post.form, post.sink) {
            self.posts.take_post(post_id);
            context.answer_sink(sink, Answer::Welcome(response.raw().clone()));
        } else {
            self.answering().final_response(context, post_id, None, response.raw().clone());
        }
    }

    /// Sends the saved state to a new server.
    fn send_state(&mut self, context: &mut StepContext<'_>) {
        if self.handshake.is_live() {
            context.send_to_server(Notification::new(Method::Initialized, None));
        }
        if let Some(level) = self.persisted.level() {
            let params = serde_json::json!({ "level": level.as_str() }).to_string();
            self.link.send_own(context, Method::SetLevel, Some(params.as_bytes()));
        }
        for uri in self.persisted.subscriptions() {
            let params = serde_json::json!({ "uri": uri }).to_string();
            self.link.send_own(context, Method::Subscribe, Some(params.as_bytes()));
        }
    }

    /// Lists the server's tools, in revisions where their parameters are mirrored.
    fn reread_tools(&mut self, context: &mut StepContext<'_>) {
        let mirrors = self.handshake.revision().has_mirrored_headers() && !context.is_duplex();
        if mirrors && self.handshake.server_has_tools() {
            self.mirroring.reread_tools(context, &mut self.link);
        }
    }

    /// The server answered with a page of its tools.
    fn receive_tools(&mut self, context: &mut StepContext<'_>, response: &Response) {
        if !self.mirroring.is_reading() {
            return;
        }
        let page = response.outcome().ok().map(|result| header_params::tools(&result));
        let cursor = page.and_then(|mut page| {
            self.tools.learn_page(context, &page);
            let cursor = page.next_cursor.take();
            if self.handshake.revision().has_mirrored_headers() {
                self.mirroring.learn_page(page);
            }
            cursor
        });
        if self.mirroring.read_next_page(context, &mut self.link, cursor) {
            return;
        }
        self.admission().decide_undecided(context);
        for parked in self.mirroring.take_parked() {
            let Parked { sink, request, mirrored, again, .. } = parked;
            let mirrored = mirrored.as_ref();
            match self.mirroring.check_params(context, sink, &request, mirrored, again) {
                Ok(_) => self.take_lone_request(context, sink, request, again),
                Err(rejection) => context.refuse_sink(sink, Refusal::Rejected(rejection)),
            }
        }
    }

    fn receive_notification(
        &mut self,
        context: &mut StepContext<'_>,
        notification: &Notification,
        about: Option<&RequestId>,
    ) {
        let params = notification.params().unwrap_or_default();
        match notification.method {
            Method::Progress => self.receive_progress(context, notification, &params),
            Method::Cancelled => self.receive_cancellation(context, &params),
            Method::LogMessage => {
                // Only the level that the client set (LOG-02); before it set one, everything (LOG-03).
                let level = payload::log_level_of(&params);
                let least = self.persisted.level();
                if least.is_none_or(|least| level.is_some_and(|level| level >= least)) {
                    let mut delivery = self.delivery();
                    let route = delivery.route_of(about);
                    delivery.deliver_message(context, route, line(notification), true);
                }
            }
            Method::ResourceUpdated => {
                let uri = payload::resource_uri_of(&params);
                if uri.is_some_and(|uri| self.persisted.is_subscribed(&uri)) {
                    self.deliver_standalone(context, notification);
                }
            }
            // These belong to no request (POST-14).
            Method::ToolsListChanged => {
                self.deliver_standalone(context, notification);
                self.tools.forget_tools();
                self.reread_tools(context);
            }
            Method::PromptsListChanged | Method::ResourcesListChanged => {
                self.deliver_standalone(context, notification);
            }
            _ => {
                let mut delivery = self.delivery();
                let route = delivery.route_of(about);
                delivery.deliver_message(context, route, line(notification), false);
            }
        }
    }

    fn deliver_standalone(&mut self, context: &mut StepContext<'_>, notification: &Notification) {
        self.delivery().deliver_message(context, Route::Standalone, line(notification), false);
    }

    /// Progress is sent with the request whose token it names, and nowhere else (PRG-01, PRG-03).
    fn receive_progress(
        &mut self,
        context: &mut StepContext<'_>,
        notification: &Notification,
        params: &[u8],
    ) {
        let (now, limits) = (context.now, context.limits());
        let progress = payload::progress_of(params);
        let exchange = progress
            .and_then(|(token, progress)| Some((self.posts.exchange_of_token(&token)?, progress)));
        let Some((exchange, progress)) = exchange else {
            context.count_fact(Fact::Stray);
            return;
        };
        exchange.silent_at = now.plus(limits.request_secs * 1_000);
        let post = exchange.post;
        let Some(pace) = &mut exchange.progress else { return };
        let passes = pace.admit(progress, line(notification), limits, now);
        if let Some(data) = passes
            && self.posts.is_reachable(post)
        {
            self.delivery().deliver_message(context, Route::Post(post), data, false);
        }
    }

    /// The server sent a request to the client.
    fn receive_request(
        &mut self,
        context: &mut StepContext<'_>,
        request: &Request,
        about: Option<&RequestId>,
    ) {
        if request.method == Method::Ping {
            context.send_to_server(Response::result(request.id.clone(), b"{}"));
            return;
        }
        let route = match self.check_server_request(context, request, about) {
            Ok(route) => route,
            Err((code, message)) => {
                refuse_server_request(context, request.id.clone(), code, &message);
                return;
            }
        };
        if let Route::Post(post) = route {
            // While the client has to answer a server request, the request that it is for does
            // not time out.
            let limits = context.limits();
            let answered_by = context.now.plus(limits.ask_secs * 1_000);
            self.posts.hold_off_silence(post, answered_by.plus(limits.request_secs * 1_000));
        }
        let params = request.params().unwrap_or_default();
        let revision = self.handshake.revision();
        let request = match downgrade::request_for_client(revision, &request.method, &params) {
            Some(params) => request.with_params(&params),
            None => request.clone(),
        };
        let (method, id) = (request.method.clone(), Some(request.id.clone()));
        let log = self.streams.log();
        let server_request = self.server_requests.add_request(context, log, method, id, route);
        let data = Message::from(request.with_id(request_id(server_request))).line();
        let server_request = Some(server_request);
        let message = Waiting { data, server_request, early: false, position: None };
        self.delivery().deliver_waiting(context, route, message);
    }

    /// May the server send this request to the client, and on which route?
    fn check_server_request(
        &mut self,
        context: &StepContext<'_>,
        request: &Request,
        about: Option<&RequestId>,
    ) -> Result<Route, (ErrorCode, String)> {
        self.server_requests.check_request(context, &self.handshake, request)?;
        let (bytes, most) = (request.raw().len(), context.limits().message_bytes_max);
        if bytes > most {
            let message = format!(
                "the request has {bytes} bytes, more than the {most} of sessions.message_bytes_max"
            );
            return Err((ErrorCode::Refused, message));
        }
        let delivery = self.delivery();
        let route = delivery.route_of(about);
        if !delivery.takes_server_requests(context, route) {
            let message =
                "the server may send a request only while a request of the client is in flight";
            return Err((ErrorCode::Refused, message.to_owned()));
        }
        Ok(route)
    }

    /// The server withdraws its request (CAN-05).
    fn receive_cancellation(&mut self, context: &mut StepContext<'_>, params: &[u8]) {
        let Some(id) = payload::cancelled_request_id(params) else { return };
        if let Some(request) = self.server_requests.take_cancelled(&id) {
            self.delivery().withdraw_request(context, &request, "the server cancelled it");
        }
    }

    /// The client did not answer in time: the server gets an error, the client a cancellation.
    pub(super) fn refuse_late_server_requests(&mut self, context: &mut StepContext<'_>) {
        while let Some(request) = self.server_requests.take_late(context.now) {
            self.delivery().withdraw_request(context, &request, "it took too long");
            if let Some(id) = request.id_of_server {
                let secs = context.limits().ask_secs;
                let message = format!("the client did not answer within {secs} s");
                refuse_server_request(context, id, ErrorCode::Refused, &message);
            }
        }
    }
}

/// Answers a server request with an error.
fn refuse_server_request(
    context: &mut StepContext<'_>,
    id: RequestId,
    code: ErrorCode,
    message: &str,
) {
    context.send_to_server(Response::error(Some(id), code.number(), message, None));
}

/// The response in the form of the client's revision, on one line.
fn response_for_client(handshake: &Handshake, method: &Method, response: &Response) -> Bytes {
    let response = match response.outcome() {
        Ok(result) => {
            let downgraded = downgrade::result_for_client(handshake.revision(), method, &result);
            downgraded.map_or_else(|| response.clone(), |result| response.with_result(&result))
        }
        Err(_) => error_for_client(handshake, response),
    };
    Message::from(response).line()
}

/// The error in a form that the client knows.
fn error_for_client(handshake: &Handshake, response: &Response) -> Response {
    let error = response.outcome().err().filter(|_| !handshake.takes_urls());
    let downgraded = error.and_then(|error| downgrade::error_without_urls(&error));
    match downgraded {
        Some(error) => Response::raw_error(response.id.clone(), &error),
        None => response.clone(),
    }
}

/// The error instead of a response that is larger than a message may be.
fn too_large(id: &RequestId, bytes: usize, most: usize) -> Response {
    let message = format!(
        "the server's response has {bytes} bytes, more than the {most} of sessions.message_bytes_max; \
         raise that bound, or have the server answer with less"
    );
    Response::error(Some(id.clone()), crate::REFUSED, &message, None)
}

fn line(notification: &Notification) -> Bytes {
    Message::from(notification.clone()).line()
}

fn internal_error(id: RequestId, message: &str) -> Response {
    Response::error(Some(id), ErrorCode::InternalError.number(), message, None)
}
