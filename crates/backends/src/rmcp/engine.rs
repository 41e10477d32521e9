//! Polls a service's futures while the session polls the link's events.
//!
//! A call whose future is ready at the first poll is answered in that poll, without a task or a
//! wake-up. Only a pending future is added to the set of concurrent futures.

use std::collections::HashMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::rmcp::model::{
    ClientNotification, ClientRequest, InitializeRequestParams, NumberOrString, ProtocolVersion,
    ServerResult,
};
use ::rmcp::service::RequestContext;
use ::rmcp::{ErrorData, Peer, RoleServer, Service};
use fairness::{PollElsewhere, is_long};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use protocol::{ErrorCode, Message, Notification, Request, RequestId, Response};
use tokio_util::sync::CancellationToken;

use super::CALLS_MAX;
use super::peer_loop::{self, PeerLoop, panicked};
use super::read::{self, DecodedRequest};
use crate::link::{Engine, EventReceiver};
use crate::{LinkEvent, ServerEnd};

/// The service's side of one link.
pub(super) struct InPlace<S: Service<RoleServer>> {
    service: Arc<S>,
    end: ServerEnd,
    receiver: EventReceiver,
    running: FuturesUnordered<Running>,
    /// The running calls that can be cancelled, with their serial numbers.
    calls: HashMap<RequestId, (u64, CancellationToken)>,
    /// As many as the maximum of concurrent calls so far; at most `CALLS_MAX`.
    peer_loops: Vec<PeerLoop<S>>,
    /// The peer loops without a call. The last one is taken first.
    free: Vec<usize>,
    serials: u64,
    /// Cancelled when the session ends.
    over: CancellationToken,
    is_up: bool,
    /// Whether the next poll begins with new messages, so that neither new nor running calls
    /// starve.
    new_first: bool,
}

impl<S: Service<RoleServer>> InPlace<S> {
    pub(super) fn new(service: S, end: ServerEnd, receiver: EventReceiver) -> Self {
        Self {
            service: Arc::new(service),
            end,
            receiver,
            running: FuturesUnordered::new(),
            calls: HashMap::new(),
            peer_loops: Vec::new(),
            free: Vec::new(),
            serials: 0,
            over: CancellationToken::new(),
            is_up: false,
            new_first: false,
        }
    }

    /// Handles messages of the session until one is answered at once.
    fn poll_new(&mut self, context: &mut Context<'_>) -> Option<Response> {
        while let Poll::Ready(Some(message)) = self.end.poll_receive(context) {
            let answer = match message {
                Message::Request(request) => self.on_request(&request, context),
                Message::Notification(notification) => {
                    self.on_notification(&notification);
                    None
                }
                Message::Response(response) => {
                    self.on_response(&response);
                    None
                }
            };
            if answer.is_some() {
                return answer;
            }
        }
        None
    }

    fn on_request(&mut self, request: &Request, context: &mut Context<'_>) -> Option<Response> {
        // A long one is read on another thread, which polls the service as well.
        let share = if is_long(request.raw().len()) { self.end.share() } else { None };
        let call = match share {
            Some(share) => Asked::Long(request.clone(), share.tenant().clone()),
            None => match read::request(request) {
                Ok(decoded) => Asked::Short(decoded),
                Err(error) => return Some(error_response(&request.id, &error)),
            },
        };
        if self.running.len() >= CALLS_MAX {
            let (code, busy) = (ErrorCode::Refused, "too many calls at once; try again later");
            return Some(Response::error(Some(request.id.clone()), code.number(), busy, None));
        }
        let mut call = self.start_call(request, call);
        if let Poll::Ready(ended) = Pin::new(&mut call).poll(context) {
            self.release_peer_loop(&ended);
            return Some(ended.answer);
        }
        self.calls.insert(call.id.clone(), (call.serial, call.token.clone()));
        self.running.push(call);
        None
    }

    fn start_call(&mut self, request: &Request, asked: Asked) -> Running {
        let peer_loop = self.take_peer_loop();
        self.peer_loops[peer_loop].assign_request(Some(request.id.clone()));
        let peer = self.peer_loops[peer_loop].peer().clone();
        let token = self.over.child_token();
        let mut context = RequestContext::new(read::id(&request.id), peer);
        // The service may cancel its own token, which does not cancel the call.
        context.ct = token.child_token();
        let service = Arc::clone(&self.service);
        let id = request.id.clone();
        let work = match asked {
            Asked::Short(decoded) => {
                Place::Here(Answering { id, future: Box::pin(serve(service, decoded, context)) })
            }
            Asked::Long(request, tenant) => {
                let future: Boxed = Box::pin(async move {
                    let decoded = read::request(&request)?;
                    serve(service, decoded, context).await
                });
                Place::Elsewhere(PollElsewhere::new(&tenant, Answering { id, future }))
            }
        };
        self.serials += 1;
        Running { id: request.id.clone(), serial: self.serials, peer_loop, token, work }
    }

    fn take_peer_loop(&mut self) -> usize {
        if let Some(free) = self.free.pop() {
            return free;
        }
        let number = self.peer_loops.len();
        let peer_loop = PeerLoop::open(number, &self.service, self.end.sender());
        if let Some(client) = self.peer_loops.first().and_then(|first| first.peer().peer_info()) {
            peer_loop.peer().set_peer_info((*client).clone());
        }
        self.peer_loops.push(peer_loop);
        number
    }

    fn release_peer_loop(&mut self, ended: &Ended) {
        self.peer_loops[ended.peer_loop].assign_request(None);
        self.free.push(ended.peer_loop);
        // Ends tasks of the call that still run.
        ended.token.cancel();
    }

    /// Polls the running futures until a call is answered.
    fn poll_running(&mut self, context: &mut Context<'_>) -> Option<Response> {
        while !self.running.is_empty() {
            let Poll::Ready(Some(ended)) = self.running.poll_next_unpin(context) else { break };
            self.release_peer_loop(&ended);
            // A call that is not in `calls` was cancelled and gets no response (CAN-01).
            // Another call may have its id by now.
            if self.calls.get(&ended.id).is_some_and(|(serial, _)| *serial == ended.serial) {
                self.calls.remove(&ended.id);
                return Some(ended.answer);
            }
        }
        None
    }

    fn on_notification(&mut self, notification: &Notification) {
        let Some(mut notification) = read::notification(notification) else { return };
        let mut peer_loop = 0;
        match &mut notification {
            ClientNotification::CancelledNotification(cancelled) => {
                let id = cancelled.params.request_id.as_ref().map(request_id);
                if let Some((_, token)) = id.and_then(|id| self.calls.remove(&id)) {
                    token.cancel();
                }
            }
            // The progress tokens of server requests were replaced, so they are restored here.
            ClientNotification::ProgressNotification(progress) => {
                if let NumberOrString::String(name) = &progress.params.progress_token.0
                    && let Some((sender, number)) = peer_loop::decode_request_id(name)
                    && let Some(token) = self
                        .peer_loops
                        .get(sender)
                        .and_then(|peer_loop| peer_loop.progress_token(number))
                {
                    progress.params.progress_token = token;
                    peer_loop = sender;
                }
            }
            _ => {}
        }
        if let Some(peer_loop) = self.peer_loops.get(peer_loop) {
            peer_loop.enqueue_notification(notification);
        }
    }

    fn on_response(&self, response: &Response) {
        if let Some(RequestId::String(name)) = &response.id
            && let Some((peer_loop, number)) = peer_loop::decode_request_id(name)
            && let Some(peer_loop) = self.peer_loops.get(peer_loop)
        {
            peer_loop.enqueue_response(number, response);
        }
    }
}

impl<S: Service<RoleServer>> Engine for InPlace<S> {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        if !self.is_up {
            self.is_up = true;
            return Poll::Ready(Some(LinkEvent::Up));
        }
        if let Some(event) = self.receiver.pop() {
            return Poll::Ready(Some(event));
        }
        self.new_first = !self.new_first;
        let old = if self.new_first { None } else { self.poll_running(context) };
        // Futures that are added here must be polled here too, to register their wakers.
        let answer = old.or_else(|| self.poll_new(context)).or_else(|| self.poll_running(context));
        match answer {
            Some(response) => {
                let about = response.id.clone();
                let event = LinkEvent::Message { message: response.into(), about };
                // Messages that a call has sent precede its response.
                Poll::Ready(Some(self.receiver.push_and_pop(event)))
            }
            None => self.receiver.poll_next(context),
        }
    }
}

impl<S: Service<RoleServer>> Drop for InPlace<S> {
    fn drop(&mut self) {
        self.over.cancel();
        self.running.clear();
    }
}

type Boxed = Pin<Box<dyn Future<Output = Result<ServerResult, ErrorData>> + Send>>;

/// A request of the client.
#[expect(
    clippy::large_enum_variant,
    reason = "most requests are short, and a box would be an allocation for each"
)]
enum Asked {
    Short(DecodedRequest),
    /// A long one, which is not read yet, and its tenant.
    Long(Request, Arc<str>),
}

/// One call that the service has not finished.
struct Running {
    id: RequestId,
    serial: u64,
    peer_loop: usize,
    token: CancellationToken,
    work: Place,
}

/// Where the service works on a call.
enum Place {
    Here(Answering),
    Elsewhere(PollElsewhere<Answering>),
}

/// The work of the service. Its output is the answer.
struct Answering {
    id: RequestId,
    future: Boxed,
}

/// A call that the service has finished.
struct Ended {
    id: RequestId,
    serial: u64,
    peer_loop: usize,
    token: CancellationToken,
    answer: Response,
}

impl Future for Running {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        let polled = match &mut self.work {
            Place::Here(answering) => Pin::new(answering).poll(context),
            Place::Elsewhere(answering) => Pin::new(answering).poll(context),
        };
        polled.map(|answer| Ended {
            id: self.id.clone(),
            serial: self.serial,
            peer_loop: self.peer_loop,
            token: self.token.clone(),
            answer,
        })
    }
}

impl Future for Answering {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response> {
        let polled = catch_unwind(AssertUnwindSafe(|| self.future.as_mut().poll(context)));
        let outcome = polled.unwrap_or_else(|_| Poll::Ready(Err(panicked())));
        outcome.map(|outcome| answer(&self.id, outcome.as_ref().map(serde_json::to_vec)))
    }
}

fn answer(id: &RequestId, outcome: Result<serde_json::Result<Vec<u8>>, &ErrorData>) -> Response {
    match outcome {
        Ok(Ok(result)) => Response::result(id.clone(), &result),
        Ok(Err(_)) => {
            let error = ErrorData::internal_error("the result cannot be written as JSON", None);
            error_response(id, &error)
        }
        Err(error) => error_response(id, error),
    }
}

/// Has the service work on a request.
async fn serve<S: Service<RoleServer>>(
    service: Arc<S>,
    decoded: DecodedRequest,
    mut context: RequestContext<RoleServer>,
) -> Result<ServerResult, ErrorData> {
    context.meta = decoded.meta;
    context.extensions = decoded.extensions;
    match decoded.request {
        ClientRequest::InitializeRequest(asked) => {
            initialize(&*service, asked.params, context).await
        }
        request => service.handle_request(request, context).await,
    }
}

fn error_response(id: &RequestId, error: &ErrorData) -> Response {
    let data = error.data.as_ref().and_then(|data| serde_json::to_vec(data).ok());
    Response::error(Some(id.clone()), error.code.0, &error.message, data.as_deref())
}

fn request_id(id: &NumberOrString) -> RequestId {
    match id {
        NumberOrString::Number(number) => RequestId::Number(*number),
        NumberOrString::String(text) => RequestId::String(text.clone()),
    }
}

/// Handles `initialize` as `rmcp`'s own loop does.
async fn initialize<S: Service<RoleServer>>(
    service: &S,
    mut client: InitializeRequestParams,
    context: RequestContext<RoleServer>,
) -> Result<ServerResult, ErrorData> {
    let peer: Peer<RoleServer> = context.peer.clone();
    peer.set_peer_info(client.clone());
    let request = ClientRequest::InitializeRequest(::rmcp::model::Request::new(client.clone()));
    let ServerResult::InitializeResult(mut server) =
        service.handle_request(request, context).await?
    else {
        return Err(ErrorData::internal_error(
            "the server did not answer `initialize` with its result",
            None,
        ));
    };
    let supported = service.supported_protocol_versions();
    server.protocol_version =
        negotiated(&client.protocol_version, server.protocol_version, &supported)?;
    client.protocol_version = server.protocol_version.clone();
    peer.set_peer_info(client);
    Ok(ServerResult::InitializeResult(server))
}

/// The requested version if the server supports it, otherwise one of the server's.
fn negotiated(
    asked: &ProtocolVersion,
    preferred: ProtocolVersion,
    supported: &[ProtocolVersion],
) -> Result<ProtocolVersion, ErrorData> {
    if asked.has_initialize() && supported.contains(asked) {
        return Ok(asked.clone());
    }
    if preferred.has_initialize() {
        return Ok(preferred);
    }
    let newest = supported.iter().filter(|version| version.has_initialize());
    newest
        .max_by(|one, other| one.as_str().cmp(other.as_str()))
        .cloned()
        .ok_or_else(|| ErrorData::unsupported_protocol_version(asked.clone(), supported))
}
