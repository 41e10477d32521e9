//! Events of the client: it posts requests, notifications, responses and batches, opens streams,
//! and deletes its session.

use protocol::{
    Body, ErrorCode, Message, Method, Mirrored, Notification, Rejection, Request, RequestId,
    Response, downgrade, payload,
};

use super::Parts;
use crate::exchange::{Exchange, Form, Route};
use crate::handshake::Client;
use crate::step_context::StepContext;
use crate::{Answer, Cause, Fact, Refusal, SinkId};

/// The result of a POST.
enum Posted {
    /// It holds no request.
    Accepted {
        /// The entry that the log must hold before the client is answered.
        through: u64,
    },
    /// Its requests will be answered.
    Called,
}

impl Parts {
    /// The client deleted the session.
    pub(crate) fn on_deleted(&mut self, context: &mut StepContext<'_>, sink: SinkId) {
        self.lifecycle.stay_awake();
        self.lifecycle.answer_when_ended(context, sink);
        self.end_session(context, Cause::Deleted);
    }

    /// The client opened a GET stream, perhaps to resume one after an event.
    pub(crate) fn on_listened(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        after: Option<&str>,
    ) {
        self.lifecycle.stay_awake();
        self.lifecycle.note_activity(context.now);
        if self.lifecycle.takes_nothing() {
            context.refuse_sink(sink, Refusal::Moved);
            return;
        }
        self.resuming().open_or_resume(context, sink, after);
        // A listening client expects messages of the server. The link is therefore opened if
        // links are kept open anyway, or if the server can send notifications.
        let is_kept =
            context.setup.idle_stop_secs.is_none() || !self.persisted.subscriptions().is_empty();
        let stays = self.handshake.is_live() && self.lifecycle.leaving().is_none();
        if is_kept && stays && self.streams.has_listeners() {
            self.link.open_link(context);
        }
    }

    /// The client posted a message or a batch.
    pub(crate) fn on_posted(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        body: Body,
        mirrored: Option<&Mirrored>,
        again: bool,
    ) {
        self.lifecycle.stay_awake();
        self.lifecycle.note_activity(context.now);
        if self.handshake.is_new() {
            self.take_first_message(context, sink, body, mirrored);
            return;
        }
        if self.lifecycle.takes_nothing() {
            context.refuse_sink(sink, Refusal::Moved);
            return;
        }
        let before = self.streams.log().newest();
        let posted = match body {
            Body::One(message) => self.take_message(context, sink, message, mirrored, again),
            Body::Batch(members) => self.take_batch(context, sink, members, again),
        };
        match posted {
            Ok(Posted::Accepted { through }) => {
                // The store holds the change before the client is answered.
                let newest = self.streams.log().newest();
                let through = if newest > before { newest } else { through };
                let through = if mutant!("accept_before_the_append") { 0 } else { through };
                self.answering().answer_when_held(context, sink, Answer::Accepted, through);
            }
            Ok(Posted::Called) if context.is_duplex() => {
                context.answer_sink(sink, Answer::Accepted)
            }
            Ok(Posted::Called) => {}
            Err(rejection) => context.refuse_sink(sink, Refusal::Rejected(rejection)),
        }
    }

    /// The first message, which must be `initialize` (RPC-07).
    fn take_first_message(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        body: Body,
        mirrored: Option<&Mirrored>,
    ) {
        match self.begin_handshake(context, sink, body, mirrored) {
            Ok(()) if context.is_duplex() => context.answer_sink(sink, Answer::Accepted),
            Ok(()) => {}
            Err(rejection) => {
                context.refuse_sink(sink, Refusal::Rejected(rejection));
                if !context.is_duplex() {
                    self.end_session(context, Cause::HandshakeFailed);
                }
            }
        }
    }

    fn begin_handshake(
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
        if request.method == Method::Ping && context.is_duplex() {
            // A client may ping before anything else (PING-01).
            let pong = Response::result(request.id.clone(), b"{}");
            context.write_duplex(pong.raw().clone());
            return Ok(());
        }
        if request.method != Method::Initialize {
            let id = Some(request.id.clone());
            return Err(invalid("the first request of a session is `initialize`").of(id));
        }
        let client = Client::read(context, &message, request, mirrored)?;
        self.handshake.begin_initialize(client);
        let post = self.answering().open_post(context, sink, 1, false);
        if let Some(post) = self.posts.post_mut(post)
            && let Form::Held { upgrade_at, .. } = &mut post.form
        {
            *upgrade_at = context.now.plus(context.limits().keepalive_secs * 1_000);
        }
        self.posts.add_exchange(Exchange::initialize(request.id.clone(), post, context.now));
        self.link.open_link(context);
        Ok(())
    }

    fn take_message(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        message: Message,
        mirrored: Option<&Mirrored>,
        again: bool,
    ) -> Result<Posted, Rejection> {
        if self.handshake.revision().has_mirrored_headers() && !context.is_duplex() {
            Mirrored::check(mirrored, &message, None)?;
            if let Message::Request(request) = &message
                && request.method == Method::ToolsCall
                && ((again && self.rejoin_request(context, sink, &request.id))
                    || !self.mirroring.check_params(context, sink, request, mirrored, again)?)
            {
                return Ok(Posted::Called);
            }
        }
        match message {
            Message::Request(request) => {
                check_not_initialize(&request)?;
                self.take_lone_request(context, sink, request, again);
                Ok(Posted::Called)
            }
            Message::Notification(notification) => {
                let through = self.take_notification(context, notification);
                Ok(Posted::Accepted { through })
            }
            Message::Response(response) => {
                self.take_response(context, &response)?;
                Ok(Posted::Accepted { through: 0 })
            }
        }
    }

    /// Accepts a request that was posted alone.
    pub(super) fn take_lone_request(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        request: Request,
        again: bool,
    ) {
        if again && !mutant!("never_rejoin") && self.rejoin_request(context, sink, &request.id) {
            return;
        }
        let post = self.answering().open_post(context, sink, 1, false);
        if again && !mutant!("take_again_as_new") {
            self.admission().take_again(context, post, request);
        } else {
            self.admission().take_request(context, post, request);
        }
    }

    /// Attaches a POST that was sent again to the stream or POST that already answers its
    /// request. Returns false if there is none.
    fn rejoin_request(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        id: &RequestId,
    ) -> bool {
        self.resuming().rejoin_request(context, sink, id)
            || self.mirroring.take_over_parked(context, sink, id)
    }

    /// A batch (BAT-01 to BAT-05): each request is an exchange of its own. The answer is an
    /// array, or one stream with all final responses.
    fn take_batch(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        members: Vec<Result<Message, Rejection>>,
        again: bool,
    ) -> Result<Posted, Rejection> {
        let revision = self.handshake.revision();
        if !revision.has_batches() {
            let message = format!("revision {revision} has no batches; send messages one by one");
            return Err(Rejection::new(ErrorCode::InvalidRequest, message));
        }
        for member in &members {
            if let Ok(Message::Request(request)) = member {
                check_not_initialize(request).map_err(|rejection| rejection.of(None))?;
            }
        }
        let wants_answer = |member: &Result<Message, Rejection>| {
            matches!(member, Ok(Message::Request(_)) | Err(_))
        };
        let open = members.iter().filter(|member| wants_answer(member)).count();
        // A batch is answered as a whole, so any of its requests decides.
        let rejoins = |member: &Result<Message, Rejection>| match member {
            Ok(Message::Request(request)) => self.rejoin_request(context, sink, &request.id),
            _ => false,
        };
        let is_joined = again && members.iter().any(rejoins);
        let post =
            (open > 0 && !is_joined).then(|| self.answering().open_post(context, sink, open, true));
        let mut through = 0;
        for member in members {
            match (member, post) {
                (Ok(Message::Request(request)), Some(post)) if again => {
                    self.admission().take_again(context, post, request);
                }
                (Ok(Message::Request(request)), Some(post)) => {
                    self.admission().take_request(context, post, request);
                }
                (Ok(Message::Notification(notification)), _) => {
                    through = self.take_notification(context, notification).max(through);
                }
                (Ok(Message::Response(response)), _) => {
                    // An invalid response does not affect the other members.
                    let _stray = self.take_response(context, &response);
                }
                (Err(rejection), Some(post)) => {
                    let error = Response::rejecting(&rejection);
                    self.answering().final_error(context, post, &error);
                }
                (Ok(Message::Request(_)) | Err(_), None) => {}
            }
        }
        Ok(if open > 0 { Posted::Called } else { Posted::Accepted { through } })
    }

    /// Accepts a notification. Returns the entry that it depends on, if any.
    fn take_notification(
        &mut self,
        context: &mut StepContext<'_>,
        notification: Notification,
    ) -> u64 {
        match notification.method {
            Method::Initialized => self.take_initialized(context, notification),
            Method::Cancelled => {
                let params = notification.params();
                let id = params.and_then(|params| payload::cancelled_request_id(&params));
                if let Some(id) = id {
                    self.cancel_request(context, &id, notification);
                    // If the cancellation were lost with this owner, the next one would run the
                    // request again. The cancellation may be sent twice, and its entry may be
                    // from the first time, so the answer waits for the whole log.
                    return self.streams.log().newest();
                }
            }
            _ => self.link.send_or_queue(context, notification),
        }
        0
    }

    /// The client sent `initialized`: sends the messages that waited for that.
    fn take_initialized(&mut self, context: &mut StepContext<'_>, notification: Notification) {
        if self.handshake.note_initialized() {
            self.persisted.note_change(true);
            self.delivery().send_waiting(context);
            if self.link.is_up() {
                // Otherwise it is sent at the end of the handshake with the server.
                self.link.send_or_queue(context, notification);
            }
        }
    }

    /// The client cancels a request (CAN-01). Unknown and finished requests, and `initialize`,
    /// are not cancelled (CAN-02).
    fn cancel_request(
        &mut self,
        context: &mut StepContext<'_>,
        id: &RequestId,
        notification: Notification,
    ) {
        self.kept.forget_result(id);
        if self.mirroring.cancel_parked(context, id) {
            self.persisted.save_cancelled(context, id);
            return;
        }
        match self.posts.exchange(id).map(|exchange| &exchange.method) {
            None => {
                // A lost owner may have had it: it may yet be posted here, perhaps a second time.
                self.note_early_cancellation(context, id);
                return;
            }
            Some(Method::Initialize) => return,
            Some(_) => {}
        }
        if mutant!("cancel_only_at_the_server") {
            return self.link.send_or_queue(context, notification);
        }
        let Some(exchange) = self.posts.take_exchange(|exchange| exchange.id == *id) else {
            return;
        };
        let stream = self.posts.post(exchange.post).and_then(|post| post.stream());
        if stream.is_none() {
            // The log does not hold the cancellation.
            self.persisted.save_cancelled(context, id);
        }
        if !self.link.unqueue(id) {
            self.ended.expect_late_response(id, true);
            self.link.send_or_queue(context, notification);
        }
        self.posts.note_use(context.now);
        self.answering().no_final_response(context, exchange.post, id);
    }

    /// The client cancelled a request that is not in flight. Its id is saved, unless the request
    /// was here and is over.
    fn note_early_cancellation(&mut self, context: &StepContext<'_>, id: &RequestId) {
        let is_over = self.ended.is_unanswered(id)
            || self.ended.is_answered(id)
            || self.streams.knows_request(id);
        if !is_over {
            self.persisted.save_cancelled(context, id);
        }
        self.ended.expect_late_response(id, true);
    }

    /// The client answered a server request (SMP-05, ELI-03). An answer to one that is no longer
    /// open is accepted and dropped; an answer to a request that was never sent is refused
    /// (POST-09).
    fn take_response(
        &mut self,
        context: &mut StepContext<'_>,
        response: &Response,
    ) -> Result<(), Rejection> {
        let Some(id) = &response.id else { return Ok(()) };
        let named = self.server_requests.id_named_by(self.streams.log(), id);
        let named =
            named.ok_or_else(|| invalid("the response answers no request of this session"))?;
        let Some(request) = self.server_requests.take_answered(named) else {
            context.count_fact(Fact::Stray);
            return Ok(());
        };
        self.delivery().note_answered(context, &request);
        if let Route::Post(post) = request.route {
            let silent_at = context.now.plus(context.limits().request_secs * 1_000);
            self.posts.restart_silence(post, silent_at);
        }
        if let Some(id_of_server) = request.id_of_server {
            let revision = self.link.revision();
            let result = response.outcome().ok();
            let for_server = result
                .and_then(|result| downgrade::result_for_server(revision, &request.method, &result))
                .map(|result| response.with_result(&result));
            let response = for_server.unwrap_or_else(|| response.clone()).with_id(id_of_server);
            self.link.send_or_queue(context, response);
        }
        Ok(())
    }
}

/// A session is initialized once (SES-11).
fn check_not_initialize(request: &Request) -> Result<(), Rejection> {
    if request.method != Method::Initialize {
        return Ok(());
    }
    let message = "the session is initialized already, and `initialize` cannot be part of a batch; \
                   begin a new session without a session id";
    Err(invalid(message).of(Some(request.id.clone())))
}

fn invalid(message: &str) -> Rejection {
    Rejection::new(ErrorCode::InvalidRequest, message)
}
