//! Accepts requests of the client: new ones, and ones that may have been run already.
//!
//! A request that may have been run already runs again if that does no harm; otherwise it gets an
//! error. If that depends on the server's list of tools, the request waits for the list.

use protocol::payload::{self, LogLevel};
use protocol::{ErrorCode, Message, Method, ProgressToken, Request, RequestId, Response};

use crate::answering::Answering;
use crate::delivery::Delivery;
use crate::entry::{EntryKind, Mark};
use crate::exchange::{Exchange, Form, PostId};
use crate::log::Log;
use crate::mirroring::Mirroring;
use crate::pace::Pace;
use crate::server_link::ServerLink;
use crate::step_context::StepContext;
use crate::stream::StreamRequest;
use crate::tools::Verdict;

/// The error text for a request that no node can answer any more.
const LOST: &str = "the node that worked on this was lost; whether it was done is not known";

/// The error text for a request that was ended here before its client posted it again.
const TIMED_OUT: &str = "the server took too long; the request was cancelled";

/// The parts of a session that accept a new request.
pub(crate) struct Admission<'a> {
    pub(crate) delivery: Delivery<'a>,
    pub(crate) link: &'a mut ServerLink,
    pub(crate) mirroring: &'a mut Mirroring,
    /// Does the session's tenant keep as many bytes as it may?
    pub(crate) is_budget_exhausted: bool,
}

/// The code and the text of the error with which a request is refused.
type RequestError = (ErrorCode, String);

impl Admission<'_> {
    /// Accepts a request of the client. It gets exactly one final response, or none if the client
    /// cancels it.
    pub(crate) fn take_request(
        &mut self,
        context: &mut StepContext<'_>,
        post: PostId,
        request: Request,
    ) {
        if request.method == Method::Ping {
            // The session itself answers pings, of either side (PING-04).
            let pong = Response::result(request.id, b"{}");
            let answering = &mut self.delivery.answering;
            answering.final_response(context, post, pong.id.as_ref(), pong.raw().clone());
            return;
        }
        if let Some(request) = self.begin_exchange(context, post, request) {
            self.link.send_or_queue(context, request);
        }
    }

    /// Accepts a request that may have been run already. It was accepted once, so the budget does not
    /// refuse it.
    pub(crate) fn take_again(
        &mut self,
        context: &mut StepContext<'_>,
        post: PostId,
        request: Request,
    ) {
        self.is_budget_exhausted = false;
        let answering = &mut self.delivery.answering;
        let Answering { ended, persisted, .. } = answering;
        if ended.is_cancelled(&request.id) || persisted.is_cancelled(&request.id) {
            // Its client has cancelled it since.
            answering.no_final_response(context, post, &request.id);
            return;
        }
        if ended.is_unanswered(&request.id) {
            let error = Response::error(Some(request.id), crate::REFUSED, TIMED_OUT, None);
            answering.final_error(context, post, &error);
            return;
        }
        // A second run would send its server request a second time.
        let verdict = if persisted.has_sent_server_request(&request.id) {
            Verdict::No
        } else {
            answering.tools.verdict(context, &request)
        };
        self.take_judged(context, post, request, verdict);
    }

    fn take_judged(
        &mut self,
        context: &mut StepContext<'_>,
        post: PostId,
        request: Request,
        verdict: Verdict,
    ) {
        match verdict {
            Verdict::No => {
                self.delivery.answering.final_error(context, post, &lost(&request.id));
            }
            Verdict::Yes => self.take_request(context, post, request),
            Verdict::Unknown => {
                if let Some(request) = self.begin_exchange(context, post, request) {
                    // The list of tools is read first. The request is kept as an unsent one is.
                    self.link.add_undecided(request);
                    self.mirroring.read_tools(context, self.link);
                }
            }
        }
    }

    /// The list of tools was read, as far as possible: runs each request that waited for it, or
    /// answers it with an error.
    pub(crate) fn decide_undecided(&mut self, context: &mut StepContext<'_>) {
        for request in self.link.take_undecided() {
            let Answering { tools, posts, .. } = &mut self.delivery.answering;
            if tools.verdict(context, &request) == Verdict::Yes {
                self.link.send_or_queue(context, request);
                continue;
            }
            if let Some(exchange) = posts.take_exchange(|exchange| exchange.id == request.id) {
                self.delivery.settle_with_error(context, exchange, &lost(&request.id));
            }
        }
    }

    /// Settles a stream of the log whose owner was lost: every request without a final
    /// response runs again, or gets one.
    /// `has_open_server_request`: the client was sent one that has no answer.
    pub(crate) fn settle_stream(
        &mut self,
        context: &mut StepContext<'_>,
        number: u64,
        has_open_server_request: bool,
    ) {
        let Answering { streams, posts, .. } = &mut self.delivery.answering;
        let Some(stream) = streams.get(number) else { return };
        let (sent_server_request, is_batch) =
            (stream.sent_server_request, stream.requests.len() > 1);
        let open: Vec<StreamRequest> =
            stream.requests.iter().filter(|request| !request.is_settled()).cloned().collect();
        if open.is_empty() {
            streams.close_stream(context, number);
            return;
        }
        let post = posts.add_post(None, open.len(), is_batch, Form::Stream(number));
        streams.set_post(number, post);
        for request in open {
            if !has_open_server_request && self.resume_at_server(context, number, post, &request) {
                continue;
            }
            self.settle_restored_request(context, number, post, request, sent_server_request);
        }
    }

    /// Waits for the response to a request that a former owner sent, if the link can request the rest of the
    /// server's stream. Returns false if it cannot.
    fn resume_at_server(
        &mut self,
        context: &StepContext<'_>,
        number: u64,
        post: PostId,
        request: &StreamRequest,
    ) -> bool {
        let Answering { persisted, streams, posts, .. } = &mut self.delivery.answering;
        let is_asked = persisted.has_sent_server_request(&request.id);
        let resumable = request.resumable.as_ref().filter(|_| self.link.carries_on() && !is_asked);
        let Some((resumable, position)) = resumable.and_then(|r| Some((r, r.position.clone()?)))
        else {
            return false;
        };
        let (limits, now) = (context.limits(), context.now);
        let progress = resumable.token.clone().map(|token| {
            let sent = last_progress(streams.log(), number, &token);
            let mut pace = Pace::new(token, limits, now);
            let sent = request.progress.into_iter().chain(sent);
            sent.for_each(|progress| pace.raise_to(progress));
            Box::new(pace)
        });
        posts.add_exchange(Exchange {
            id: request.id.clone(),
            method: resumable.method(),
            post,
            uri: None,
            progress,
            raw: None,
            trace: None,
            position: Some(Box::new(position)),
            returned: None,
            was_returned: false,
            began: now,
            silent_at: now.plus(limits.request_secs * 1_000),
            ends_at: now.plus(limits.request_max_secs * 1_000),
        });
        posts.note_use(now);
        true
    }

    /// Settles one request of a stream whose owner was lost. `sent_server_request` is whether the
    /// client was sent a server request on the stream.
    fn settle_restored_request(
        &mut self,
        context: &mut StepContext<'_>,
        number: u64,
        post: PostId,
        request: StreamRequest,
        sent_server_request: bool,
    ) {
        let StreamRequest { id, rerun, progress, .. } = request;
        let Answering { persisted, streams, tools, .. } = &self.delivery.answering;
        // A second run would send its server request a second time.
        let sent_server_request = sent_server_request || persisted.has_sent_server_request(&id);
        let rerun = rerun.filter(|_| !sent_server_request || mutant!("ask_again"));
        let rerun = rerun.and_then(|rerun| Some((rerun.request()?, rerun.sure)));
        let Some((request, sure)) = rerun else {
            if !mutant!("say_nothing_of_what_is_lost") {
                let answering = &mut self.delivery.answering;
                answering.final_response(context, post, Some(&id), lost(&id).raw().clone());
            }
            return;
        };
        let token = request.progress_token();
        let sent = token.and_then(|token| last_progress(streams.log(), number, &token));
        let progress = progress.into_iter().chain(sent);
        let progress = progress.reduce(f64::max);
        let verdict = match tools.verdict(context, &request) {
            // The last owner had the list of tools that this one would have to request.
            Verdict::Unknown if sure => Verdict::Yes,
            verdict => verdict,
        };
        self.take_judged(context, post, request, verdict);
        if !mutant!("progress_begins_anew") {
            self.raise_progress(&id, progress);
        }
    }

    /// The progress of a request that runs again must rise above what was sent already.
    fn raise_progress(&mut self, id: &RequestId, progress: Option<f64>) {
        let exchange = self.delivery.answering.posts.exchange_mut(id);
        if let Some((pace, progress)) = exchange.and_then(|e| e.progress.as_mut()).zip(progress) {
            pace.raise_to(progress);
        }
    }

    /// Begins the exchange of a request and returns the request, to be sent; `None` if it got an
    /// error.
    fn begin_exchange(
        &mut self,
        context: &mut StepContext<'_>,
        post: PostId,
        request: Request,
    ) -> Option<Request> {
        match self.admit_request(context, post, &request) {
            Ok(exchange) => {
                self.delivery.answering.posts.add_exchange(exchange);
                self.delivery.answering.posts.note_use(context.now);
                Some(request)
            }
            Err((code, message)) => {
                let error = Response::error(Some(request.id), code.number(), &message, None);
                self.delivery.answering.final_error(context, post, &error);
                None
            }
        }
    }

    fn admit_request(
        &mut self,
        context: &StepContext<'_>,
        post: PostId,
        request: &Request,
    ) -> Result<Exchange, RequestError> {
        self.check_in_flight(context, request)?;
        let uri = self.admit_change(context, post, request)?;
        let token = request.progress_token();
        if let Some(ProgressToken::String(text)) = &token
            && text.len() > RequestId::BYTES_MAX
        {
            let message = format!("`progressToken` is longer than {} bytes", RequestId::BYTES_MAX);
            return Err((ErrorCode::InvalidParams, message));
        }
        let limits = context.limits();
        Ok(Exchange {
            id: request.id.clone(),
            method: request.method.clone(),
            post,
            uri,
            progress: token.map(|token| Box::new(Pace::new(token, limits, context.now))),
            raw: self.delivery.answering.tools.raw_to_keep(context, request),
            trace: request.trace.clone(),
            position: None,
            returned: None,
            was_returned: false,
            began: context.now,
            silent_at: context.now.plus(limits.request_secs * 1_000),
            ends_at: context.now.plus(limits.request_max_secs * 1_000),
        })
    }

    /// May one more request be in flight, and may this one?
    fn check_in_flight(
        &self,
        context: &StepContext<'_>,
        request: &Request,
    ) -> Result<(), RequestError> {
        let Answering { handshake, posts, ended, .. } = &self.delivery.answering;
        if !handshake.is_initialized() {
            let message = "`initialize` is not answered yet; wait for it";
            return Err((ErrorCode::InvalidRequest, message.to_owned()));
        }
        if posts.exchange(&request.id).is_some() || ended.is_unanswered(&request.id) {
            let message =
                "a request with this id is in flight; use each id once in a session".to_owned();
            return Err((ErrorCode::InvalidRequest, message));
        }
        if self.is_budget_exhausted {
            let message = "the tenant's sessions keep as many bytes as they may on this node \
                           (tenants.*.limits.session_bytes_max); try again later";
            return Err((ErrorCode::Refused, message.to_owned()));
        }
        let most = context.limits().exchanges_max;
        if posts.exchanges().len() >= most {
            let message = format!(
                "the session has {most} requests in flight, the maximum; wait for some to end"
            );
            return Err((ErrorCode::Refused, message));
        }
        Ok(())
    }

    /// Checks a request that changes the saved state; its POST is answered once the store has
    /// acknowledged that. Returns the resource that a subscription is about.
    fn admit_change(
        &mut self,
        context: &StepContext<'_>,
        post: PostId,
        request: &Request,
    ) -> Result<Option<Box<str>>, RequestError> {
        let Answering { persisted, posts, .. } = &mut self.delivery.answering;
        let mut subscribed = None;
        match request.method {
            Method::SetLevel => {
                let level = request.params().and_then(|params| payload::log_level_of(&params));
                let level = level.ok_or_else(|| {
                    let message = format!("`level` must be one of {}", LogLevel::NAMES.join(", "));
                    (ErrorCode::InvalidParams, message)
                })?;
                persisted.set_level(level);
            }
            Method::Subscribe | Method::Unsubscribe => {
                let uri = request.params().and_then(|params| payload::resource_uri_of(&params));
                let Some(uri) = uri else {
                    return Err((ErrorCode::InvalidParams, "`uri` must be a string".to_owned()));
                };
                if request.method == Method::Subscribe {
                    let pending = posts.exchanges().iter();
                    let pending = pending.filter(|e| e.method == Method::Subscribe);
                    let pending = pending.filter_map(|exchange| exchange.uri.as_deref());
                    persisted.check_subscription(context.limits(), &uri, pending)?;
                }
                subscribed = Some(uri.into());
            }
            _ => return Ok(None),
        }
        if let Some(post) = posts.post_mut(post) {
            post.changes_state = true;
        }
        Ok(subscribed)
    }
}

/// The highest progress with a token that a stream's log holds.
fn last_progress(log: &Log, stream: u64, token: &ProgressToken) -> Option<f64> {
    let sent = log.replay(stream, 0).filter_map(|(_, what)| {
        let EntryKind::Event { data, mark: Mark::Plain } = what else { return None };
        let Ok(Message::Notification(notification)) = Message::parse(data.clone()) else {
            return None;
        };
        let about = payload::progress_of(&notification.params()?)?;
        (notification.method == Method::Progress && about.0 == *token).then_some(about.1)
    });
    sent.reduce(f64::max)
}

fn lost(id: &RequestId) -> Response {
    Response::error(Some(id.clone()), crate::REFUSED, LOST, None)
}
