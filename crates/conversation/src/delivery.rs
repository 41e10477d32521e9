//! Delivers the server's messages to the client: with the answer to a POST, on a standalone
//! stream, or later.

use bytes::Bytes;
use protocol::{RequestId, Response};

use crate::answering::{Answering, Upgraded};
use crate::checkpoint::OpenServerRequest;
use crate::entry::{Mark, ServerRequestId};
use crate::exchange::{Exchange, PostId, Route};
use crate::server_requests::{ServerRequest, ServerRequests, withdrawal};
use crate::step_context::StepContext;
use crate::waiting::{Waiting, WaitingMessages};
use crate::{Fact, Frame};

/// The parts of a session that deliver messages to the client.
pub(crate) struct Delivery<'a> {
    pub(crate) answering: Answering<'a>,
    pub(crate) server_requests: &'a mut ServerRequests,
    pub(crate) waiting: &'a mut WaitingMessages,
}

impl Delivery<'_> {
    /// The route of a message that names no request: with the request that the link relates it
    /// to; else with the only request in flight; else on a standalone stream; else with the
    /// newest request.
    pub(crate) fn route_of(&self, about: Option<&RequestId>) -> Route {
        let Answering { posts, streams, handshake, .. } = &self.answering;
        if let Some(id) = about {
            let named = posts.exchange(id);
            return named.map_or(Route::Standalone, |exchange| Route::Post(exchange.post));
        }
        match posts.exchanges() {
            [] => Route::Standalone,
            [only] => Route::Post(only.post),
            _ if streams.newest_standalone().is_some()
                && handshake.revision().has_standalone_requests() =>
            {
                Route::Standalone
            }
            several => {
                let newest = several.iter().max_by_key(|exchange| exchange.post);
                newest.map_or(Route::Standalone, |exchange| Route::Post(exchange.post))
            }
        }
    }

    /// May a server request use this route (GET-06)?
    pub(crate) fn takes_server_requests(&self, context: &StepContext<'_>, route: Route) -> bool {
        if self.answering.handshake.revision().has_standalone_requests() || context.is_duplex() {
            return true;
        }
        match route {
            Route::Post(post) => self.answering.posts.takes_server_requests(post),
            Route::Standalone => false,
        }
    }

    /// Delivers a message, now or as soon as there is a route; drops one that is too large.
    /// `early` ones may be sent before the client sent `initialized` (RPC-11).
    pub(crate) fn deliver_message(
        &mut self,
        context: &mut StepContext<'_>,
        route: Route,
        data: Bytes,
        early: bool,
    ) {
        if data.len() > context.limits().message_bytes_max {
            context.count_fact(Fact::Dropped);
            return;
        }
        self.deliver_waiting(
            context,
            route,
            Waiting { data, server_request: None, early, position: None },
        );
    }

    /// As [`Delivery::deliver_message`], for a message of any size, which may be a server request.
    pub(crate) fn deliver_waiting(
        &mut self,
        context: &mut StepContext<'_>,
        route: Route,
        message: Waiting,
    ) {
        let may_be_sent = message.early || self.answering.handshake.is_live();
        if context.is_duplex() {
            if may_be_sent {
                context.write_duplex(message.data);
            } else {
                self.waiting.push_message(context, message);
            }
            return;
        }
        match route {
            Route::Post(post) => match self.answering.upgrade_for_message(context, post) {
                Some(Upgraded::Stream(stream)) => self.write_waiting(context, stream, message),
                Some(Upgraded::Sink(sink)) => {
                    context.write_frame(sink, Frame::Message { id: None, data: message.data });
                }
                None => self.deliver_waiting(context, Route::Standalone, message),
            },
            Route::Standalone => match self.answering.streams.newest_standalone() {
                Some(stream) if may_be_sent => self.write_waiting(context, stream, message),
                _ => self.waiting.push_message(context, message),
            },
        }
    }

    /// Writes a server request or any other message to a stream's log.
    fn write_waiting(&mut self, context: &StepContext<'_>, stream: u64, message: Waiting) {
        let Waiting { data, server_request, position, .. } = message;
        let streams = &mut *self.answering.streams;
        if let Some(position) = position {
            streams.note_read(None, *position);
        }
        // A message that was withdrawn meanwhile is no server request any more.
        let Some(server_request) = server_request.filter(|id| self.server_requests.is_open(*id))
        else {
            streams.write_event(context, stream, data, Mark::Plain);
            return;
        };
        let mark = Mark::ServerRequest(server_request);
        let number = streams.write_event(context, stream, data, mark);
        if streams.get(stream).is_some() {
            self.server_requests.note_logged(server_request, stream, number);
        }
        if streams.is_standalone(stream) {
            self.save_requests_of(context, server_request);
        }
    }

    /// Sends a server request on the GET stream, and saves the ids of the requests that it is
    /// for. It is sent once the record holds these ids, so that the next owner knows them before
    /// the client receives it.
    #[cold]
    fn save_requests_of(&mut self, context: &StepContext<'_>, server_request: ServerRequestId) {
        let Some(post) = self.server_requests.post_of(server_request) else { return };
        let Answering { posts, persisted, .. } = &mut self.answering;
        for exchange in posts.exchanges().iter().filter(|exchange| exchange.post == post) {
            persisted.save_sent_server_request(&exchange.id);
        }
        self.answering.hold_back_newest(context);
    }

    /// Sends the messages that waited for a standalone stream, as far as they may be sent now.
    pub(crate) fn send_waiting(&mut self, context: &mut StepContext<'_>) {
        if !context.is_duplex() && self.answering.streams.newest_standalone().is_none() {
            return;
        }
        let is_live = self.answering.handshake.is_live();
        for message in self.waiting.take_all() {
            if is_live || message.early {
                self.deliver_waiting(context, Route::Standalone, message);
            } else {
                self.waiting.put_message_back(message);
            }
        }
    }

    /// A connection waits for a POST again. Moves the server requests for that POST there, which
    /// had no route to the client and wait for a standalone stream.
    pub(crate) fn send_waiting_to_post(&mut self, context: &mut StepContext<'_>, post: PostId) {
        let server_requests = &*self.server_requests;
        let is_for_post = |message: &Waiting| {
            message.server_request.and_then(|id| server_requests.post_of(id)) == Some(post)
        };
        for message in self.waiting.take_matching(is_for_post) {
            self.deliver_waiting(context, Route::Post(post), message);
        }
    }

    /// Gives the final response to a request that was removed from the list.
    pub(crate) fn settle_exchange(
        &mut self,
        context: &mut StepContext<'_>,
        mut exchange: Exchange,
        data: Bytes,
        is_result: bool,
    ) {
        if let Some(held) = exchange.progress.as_mut().and_then(|pace| pace.last_held()) {
            // The last progress is never dropped (PRG-05).
            self.deliver_message(context, Route::Post(exchange.post), held, false);
        }
        self.answering.posts.note_use(context.now);
        let millis = context.now.0.saturating_sub(exchange.began.0);
        self.answering.final_response(context, exchange.post, Some(&exchange.id), data);
        context.count_fact(Fact::Settled { id: exchange.id, result: is_result, millis });
    }

    /// Gives an error as the final response to a request that was removed from the list.
    pub(crate) fn settle_with_error(
        &mut self,
        context: &mut StepContext<'_>,
        exchange: Exchange,
        error: &Response,
    ) {
        self.settle_exchange(context, exchange, error.raw().clone(), false);
    }

    /// Gives every request in flight an error as its final response.
    pub(crate) fn settle_all_with_error(
        &mut self,
        context: &mut StepContext<'_>,
        error: &impl Fn(RequestId) -> Response,
    ) {
        for exchange in self.answering.posts.take_all_exchanges() {
            let error = error(exchange.id.clone());
            self.settle_with_error(context, exchange, &error);
        }
    }

    /// Writes to the log that a server request is no longer open, if the log has it.
    pub(crate) fn note_answered(&mut self, context: &StepContext<'_>, request: &ServerRequest) {
        if let Some(stream) = request.stream() {
            self.answering.streams.write_answered(context, stream, request.id);
        }
    }

    /// Notifies the client that a server request is no longer open.
    pub(crate) fn withdraw_request(
        &mut self,
        context: &mut StepContext<'_>,
        request: &ServerRequest,
        reason: &str,
    ) {
        if request.id_of_server.is_none() {
            return;
        }
        self.note_answered(context, request);
        self.deliver_message(context, request.route, withdrawal(request.id, reason), false);
    }

    /// Withdraws every open server request: this owner accepts no response any more.
    pub(crate) fn withdraw_all_requests(&mut self, context: &mut StepContext<'_>, reason: &str) {
        for request in self.server_requests.take_all() {
            self.withdraw_request(context, &request, reason);
        }
    }

    /// Withdraws a server request of a former owner: its server has ended and cannot receive the
    /// response.
    pub(crate) fn withdraw_of_former_owner(
        &mut self,
        context: &mut StepContext<'_>,
        (server_request, number, _): OpenServerRequest,
    ) {
        let streams = &mut *self.answering.streams;
        streams.write_answered(context, number, server_request);
        let data = withdrawal(server_request, "its sender was lost");
        if streams.get(number).is_some_and(|stream| !stream.closed) {
            streams.write_event(context, number, data, Mark::Plain);
        } else {
            self.deliver_message(context, Route::Standalone, data, false);
        }
    }
}
