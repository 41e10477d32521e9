//! What the client posts: requests, notifications, answers to what it was asked, and batches of
//! them.

use protocol::{
    Body, ErrorCode, Message, Method, Mirrored, Notification, ProgressToken, Rejection, Request,
    RequestId, Response,
    payload::{self, LogLevel},
};

use crate::exchange::{CallId, Exchange, Pace};
use crate::session::{Phase, Session, StepContext};
use crate::{Answer, Effect, Refusal, SinkId};

/// Most requests remembered that ended without the server's answer.
const UNANSWERED_MAX: usize = 64;

impl Session {
    pub(crate) fn posted(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        body: Body,
        mirrored: Option<&Mirrored>,
        again: bool,
    ) {
        if self.phase == Phase::New {
            self.begin(context, sink, body, mirrored);
            return;
        }
        if self.takes_nothing() {
            context.effects.push(Effect::Answer { sink, answer: Answer::Refused(Refusal::Moved) });
            return;
        }
        let before = self.log.next();
        let posted = match body {
            Body::One(message) => self.posted_one(context, sink, message, mirrored, again),
            Body::Batch(members) => self.posted_batch(context, sink, members, again),
        };
        let answer = match posted {
            Ok(Posted::Accepted { through }) => {
                // What it changed is in the store before the client is answered.
                let wrote = self.log.next() > before;
                let through = if wrote { self.log.next() - 1 } else { through };
                let through = if mutant!("accept_before_the_append") { 0 } else { through };
                self.answer_when_held(context, sink, Answer::Accepted, through);
                return;
            }
            Ok(Posted::Called) if self.duplex.is_some() => Answer::Accepted,
            Ok(Posted::Called) => return,
            Err(rejection) => Answer::Refused(Refusal::Rejected(rejection)),
        };
        context.effects.push(Effect::Answer { sink, answer });
    }

    fn posted_one(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        message: Message,
        mirrored: Option<&Mirrored>,
        again: bool,
    ) -> Result<Posted, Rejection> {
        if self.revision().has_mirrored_headers() && self.duplex.is_none() {
            Mirrored::check(mirrored, &message, None)?;
            if let Message::Request(request) = &message
                && request.method == Method::ToolsCall
                && ((again && self.rejoin(context, sink, &request.id))
                    || !self.check_params(sink, request, mirrored, again)?)
            {
                return Ok(Posted::Called);
            }
        }
        match message {
            Message::Request(request) => {
                self.refuse_initialize(&request)?;
                self.take_post(context, sink, request, again);
                Ok(Posted::Called)
            }
            Message::Notification(notification) => {
                let through = self.take_notification(context, notification);
                Ok(Posted::Accepted { through })
            }
            Message::Response(response) => {
                self.answered(context, &response)?;
                Ok(Posted::Accepted { through: 0 })
            }
        }
    }

    /// Takes a request that was posted alone.
    pub(crate) fn take_post(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        request: Request,
        again: bool,
    ) {
        if again && !mutant!("never_rejoin") && self.rejoin(context, sink, &request.id) {
            return;
        }
        let call = self.new_call(context, sink, 1, false);
        if again && !mutant!("take_again_as_new") {
            self.take_again(context, call, request);
        } else {
            self.take_request(context, call, request);
        }
    }

    /// A batch (BAT-01 to BAT-05): each request is an exchange of its own; the answer is
    /// an array, or one stream with all final responses.
    fn posted_batch(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        members: Vec<Result<Message, Rejection>>,
        again: bool,
    ) -> Result<Posted, Rejection> {
        if !self.revision().has_batches() {
            let message =
                format!("revision {} has no batches; send messages one by one", self.revision());
            return Err(Rejection::new(ErrorCode::InvalidRequest, message));
        }
        for member in &members {
            if let Ok(Message::Request(request)) = member {
                self.refuse_initialize(request).map_err(|rejection| rejection.of(None))?;
            }
        }
        let wants_answer = |member: &Result<Message, Rejection>| {
            matches!(member, Ok(Message::Request(_)) | Err(_))
        };
        let open = members.iter().filter(|member| wants_answer(member)).count();
        // A batch is answered as one, so any of its requests tells where.
        let known = |member: &Result<Message, Rejection>| match member {
            Ok(Message::Request(request)) => self.rejoin(context, sink, &request.id),
            _ => false,
        };
        let joined = again && members.iter().any(known);
        let call = (open > 0 && !joined).then(|| self.new_call(context, sink, open, true));
        let mut through = 0;
        for member in members {
            match (member, call) {
                (Ok(Message::Request(request)), Some(call)) if again => {
                    self.take_again(context, call, request);
                }
                (Ok(Message::Request(request)), Some(call)) => {
                    self.take_request(context, call, request);
                }
                (Ok(Message::Notification(notification)), _) => {
                    through = self.take_notification(context, notification).max(through);
                }
                (Ok(Message::Response(response)), _) => {
                    // An answer to nothing spoils nothing beside it.
                    let _stray = self.answered(context, &response);
                }
                (Err(rejection), Some(call)) => {
                    let error = Response::rejecting(&rejection);
                    self.final_response(context, call, error.id.as_ref(), error.raw().clone());
                }
                (Ok(Message::Request(_)) | Err(_), None) => {}
            }
        }
        Ok(if open > 0 { Posted::Called } else { Posted::Accepted { through } })
    }

    /// A session is initialized once (SES-11).
    fn refuse_initialize(&self, request: &Request) -> Result<(), Rejection> {
        if request.method != Method::Initialize {
            return Ok(());
        }
        let message = "the session is initialized already, and `initialize` cannot be part of a batch; \
                       begin a new session without a session id";
        Err(Rejection::new(ErrorCode::InvalidRequest, message).of(Some(request.id.clone())))
    }

    /// Takes a request of the client's. It gets exactly one final response,
    /// or none when the client cancels it.
    pub(crate) fn take_request(
        &mut self,
        context: &mut StepContext<'_>,
        call: CallId,
        request: Request,
    ) {
        if request.method == Method::Ping {
            // Either side's pings are answered here (PING-04).
            let pong = Response::result(request.id, b"{}");
            self.final_response(context, call, pong.id.as_ref(), pong.raw().clone());
            return;
        }
        if let Some(request) = self.begin_exchange(context, call, request) {
            self.send(context, request.into());
        }
    }

    /// Begins the exchange of a request that is sent then; none where it got an error.
    pub(crate) fn begin_exchange(
        &mut self,
        context: &mut StepContext<'_>,
        call: CallId,
        request: Request,
    ) -> Option<Request> {
        match self.admit(context, call, &request) {
            Ok(exchange) => {
                self.exchanges.push(exchange);
                self.link.used = context.now;
                Some(request)
            }
            Err((code, message)) => {
                let error = Response::error(Some(request.id), code.number(), &message, None);
                self.final_response(context, call, error.id.as_ref(), error.raw().clone());
                None
            }
        }
    }

    fn admit(
        &mut self,
        context: &StepContext<'_>,
        call: CallId,
        request: &Request,
    ) -> Result<Exchange, (ErrorCode, String)> {
        let refuse = |code, message: &str| Err((code, message.to_owned()));
        if !self.is_initialized() {
            return refuse(
                ErrorCode::InvalidRequest,
                "`initialize` is not answered yet; wait for it",
            );
        }
        let same = |exchange: &Exchange| exchange.id == request.id;
        let ended = |unanswered: &Unanswered| unanswered.id == request.id;
        if self.exchanges.iter().any(same) || self.unanswered.iter().any(ended) {
            return refuse(
                ErrorCode::InvalidRequest,
                "a request with this id is in flight; use each id once in a session",
            );
        }
        if self.exchanges.len() >= self.limits.exchanges_max {
            let most = self.limits.exchanges_max;
            let message = format!(
                "the session has {most} requests in flight, its most; wait for some to end"
            );
            return Err((ErrorCode::Refused, message));
        }
        let mut uri = None;
        match request.method {
            Method::SetLevel => {
                let level = request.params().and_then(|params| payload::log_level_of(&params));
                let level = level.ok_or_else(|| {
                    let message = format!("`level` must be one of {}", LogLevel::NAMES.join(", "));
                    (ErrorCode::InvalidParams, message)
                })?;
                self.versions.changed |= self.level != Some(level);
                self.level = Some(level);
            }
            Method::Subscribe | Method::Unsubscribe => {
                uri = request.params().and_then(|params| payload::resource_uri_of(&params));
                let Some(uri) = &uri else {
                    return refuse(ErrorCode::InvalidParams, "`uri` must be a string");
                };
                if request.method == Method::Subscribe {
                    self.check_room_for(uri)?;
                }
                let full = self.subscriptions().len() >= self.limits.subscriptions_max;
                if full && request.method == Method::Subscribe {
                    let message =
                        "the session has as many subscriptions as it may; unsubscribe some";
                    return refuse(ErrorCode::Refused, message);
                }
            }
            _ => {}
        }
        if matches!(request.method, Method::SetLevel | Method::Subscribe | Method::Unsubscribe) {
            self.calls.iter_mut().filter(|other| other.id == call).for_each(|c| c.gated = true);
        }
        let token = request.progress_token();
        if let Some(ProgressToken::String(text)) = &token
            && text.len() > RequestId::BYTES_MAX
        {
            let message = format!("`progressToken` is longer than {} bytes", RequestId::BYTES_MAX);
            return Err((ErrorCode::InvalidParams, message));
        }
        let pace = |token: ProgressToken| Box::new(Pace::new(token, &self.limits, context.now));
        Ok(Exchange {
            id: request.id.clone(),
            method: request.method.clone(),
            call,
            uri: uri.map(Into::into),
            progress: token.map(pace),
            raw: self.keep(request),
            began: context.now,
            silent_at: context.now.plus(self.limits.request_secs * 1_000),
            ends_at: context.now.plus(self.limits.request_max_secs * 1_000),
        })
    }

    /// May the client subscribe to this resource, by the bytes that it takes? Subscriptions
    /// that the server has yet to confirm count.
    fn check_room_for(&self, uri: &str) -> Result<(), (ErrorCode, String)> {
        let most = self.limits.subscription_uri_bytes_max;
        if uri.len() > most {
            let message = format!(
                "`uri` is longer than {most} bytes (sessions.subscription_uri_bytes_max); \
                 subscribe to a shorter one"
            );
            return Err((ErrorCode::InvalidParams, message));
        }
        if self.subscriptions().contains(uri) {
            return Ok(());
        }
        let asked = self.exchanges.iter().filter(|e| e.method == Method::Subscribe);
        let asked = asked.filter_map(|exchange| exchange.uri.as_deref());
        let bytes: usize =
            self.subscriptions().iter().map(|uri| &**uri).chain(asked).map(str::len).sum();
        let most = self.limits.subscriptions_bytes_max;
        if bytes + uri.len() > most {
            let message = format!(
                "the URIs that the session is subscribed to would be longer than {most} bytes \
                 together (sessions.subscriptions_bytes_max); unsubscribe some"
            );
            return Err((ErrorCode::Refused, message));
        }
        Ok(())
    }

    /// Takes a notification. Returns the entry that it stands on, if any.
    fn take_notification(
        &mut self,
        context: &mut StepContext<'_>,
        notification: Notification,
    ) -> u64 {
        match notification.method {
            Method::Initialized => {
                self.initialized(context, notification);
            }
            Method::Cancelled => {
                let id =
                    notification.params().and_then(|params| payload::cancelled_request_id(&params));
                if let Some(id) = id {
                    self.cancelled(context, &id, notification);
                    // Were the cancellation lost with this owner, the next one would run the
                    // request again. It may come twice, and the entry that holds it may stem
                    // from the first time, so everything in the log is waited for.
                    return self.log.next() - 1;
                }
            }
            _ => self.send(context, notification.into()),
        }
        0
    }

    /// The client no longer wants an answer (CAN-01). Unknown and finished requests, and
    /// `initialize`, are not cancelled (CAN-02).
    fn cancelled(
        &mut self,
        context: &mut StepContext<'_>,
        id: &RequestId,
        notification: Notification,
    ) {
        self.forget_result(id);
        if self.unpark(context, id) {
            self.keep_cancelled(id);
            return;
        }
        let ours =
            |exchange: &Exchange| exchange.id == *id && exchange.method != Method::Initialize;
        let Some(index) = self.exchanges.iter().position(ours) else {
            if !self.exchanges.iter().any(|exchange| exchange.id == *id) {
                // It may be on its way here, perhaps a second time, from an owner that was lost.
                self.keep_cancelled_early(id);
                self.expect_late_response(id.clone(), true);
            }
            return;
        };
        if mutant!("cancel_only_at_the_server") {
            return self.send(context, notification.into());
        }
        let exchange = self.exchanges.swap_remove(index);
        self.keep_cancelled_call(exchange.call, id);
        if !self.link.unqueue(id) {
            self.expect_late_response(id.clone(), true);
            self.send(context, notification.into());
        }
        self.link.used = context.now;
        self.no_final_response(context, exchange.call, id);
    }

    /// Ends a request without the server's answer and without a final response here: its
    /// client gets that elsewhere.
    pub(crate) fn abandon_request(&mut self, context: &mut StepContext<'_>, id: &RequestId) {
        let Some(index) = self.exchanges.iter().position(|exchange| exchange.id == *id) else {
            return;
        };
        let exchange = self.exchanges.swap_remove(index);
        self.calls.retain(|call| call.id != exchange.call);
        self.cancel_at_server(context, id, "its messages were dropped");
    }

    /// Tells the server that a request is no longer wanted.
    pub(crate) fn cancel_at_server(
        &mut self,
        context: &mut StepContext<'_>,
        id: &RequestId,
        reason: &str,
    ) {
        if self.link.unqueue(id) {
            return;
        }
        self.expect_late_response(id.clone(), false);
        let params = serde_json::json!({ "requestId": id, "reason": reason }).to_string();
        let notification = Notification::new(Method::Cancelled, Some(params.as_bytes()));
        self.send(context, notification.into());
    }

    fn expect_late_response(&mut self, id: RequestId, by_client: bool) {
        if let Some(known) = self.unanswered.iter_mut().find(|known| known.id == id) {
            known.by_client |= by_client;
            return;
        }
        if self.unanswered.len() >= UNANSWERED_MAX {
            self.unanswered.remove(0);
        }
        self.unanswered.push(Unanswered { id, by_client });
    }

    /// The link could not take a message: its sender gets an error, where it waits for an answer.
    pub(crate) fn unsent(&mut self, context: &mut StepContext<'_>, message: Message) {
        let Message::Request(request) = message else {
            context.effects.push(Effect::Tell(crate::Fact::Dropped));
            return;
        };
        let Some(index) = self.exchanges.iter().position(|exchange| exchange.id == request.id)
        else {
            return;
        };
        let exchange = self.exchanges.swap_remove(index);
        let text = "the server does not keep up with its messages; try again later";
        let error = Response::error(Some(request.id), crate::REFUSED, text, None);
        self.settle_taken(context, exchange, error.raw().clone(), false);
    }
}

/// A request that was ended without the server's answer, which may still come.
pub(crate) struct Unanswered {
    pub(crate) id: RequestId,
    /// Its client cancelled it, and wants no answer; otherwise it took too long.
    pub(crate) by_client: bool,
}

/// What became of a POST.
enum Posted {
    /// It asked for nothing.
    Accepted {
        /// The entry that must be in the log before the client is answered.
        through: u64,
    },
    /// Its requests will be answered.
    Called,
}
