//! Polls a handler's futures while the session polls the link's events.
//!
//! A call whose future is ready at the first poll is answered in that poll, without a task or a
//! wake-up. Only a pending future is added to the set of concurrent futures.

use std::collections::HashMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use fairness::{PollElsewhere, is_long};
use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use protocol::{ErrorCode, Message, Method, Notification, Request, RequestId, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::peer::ClientChannel;
use super::{Boxed, CALLS_MAX, Call, Error, Info, Notice, Served};
use crate::link::{Engine, EventReceiver};
use crate::{LinkEvent, ServerEnd, metrics};

/// The handler's side of one link.
pub(super) struct InPlace {
    served: Arc<dyn Served>,
    channel: Arc<ClientChannel>,
    end: ServerEnd,
    receiver: EventReceiver,
    /// Allocated when a call is not answered at once, to save memory in idle sessions.
    in_flight: Option<Box<InFlight>>,
    /// What ends the session, once a long message was handled.
    over: Option<Arc<Over>>,
    is_up: bool,
    /// Whether the next poll begins with new messages, so that neither new nor running calls
    /// starve.
    new_first: bool,
}

/// The calls and notifications that the handler has not finished.
#[derive(Default)]
struct InFlight {
    running: FuturesUnordered<Abortable<Place>>,
    /// The running calls that can be cancelled.
    calls: HashMap<RequestId, AbortHandle>,
}

impl InPlace {
    pub(super) fn new(
        served: Arc<dyn Served>,
        channel: Arc<ClientChannel>,
        end: ServerEnd,
        receiver: EventReceiver,
    ) -> Self {
        let (in_flight, over) = (None, None);
        Self { served, channel, end, receiver, in_flight, over, is_up: false, new_first: false }
    }

    /// Handles messages of the session until one is answered at once.
    fn poll_new(&mut self, context: &mut Context<'_>) -> Option<Response> {
        while let Poll::Ready(Some(message)) = self.end.poll_receive(context) {
            let answer = match message {
                Message::Request(request) => self.on_request(request, context),
                Message::Notification(notification) => self.on_notification(notification, context),
                Message::Response(response) => {
                    self.channel.on_response(response);
                    None
                }
            };
            if answer.is_some() {
                return answer;
            }
        }
        None
    }

    fn on_request(&mut self, request: Request, context: &mut Context<'_>) -> Option<Response> {
        match request.method {
            Method::Initialize => return Some(self.answer_initialize(&request)),
            Method::Ping => return Some(Response::result(request.id, b"{}")),
            _ if self.in_flight() >= CALLS_MAX => {
                let code = ErrorCode::Refused.number();
                let busy = Error::new(code, "too many calls at once; try again later");
                return Some(busy.answering(request.id));
            }
            _ => {}
        }
        let (id, bytes) = (request.id.clone(), request.raw().len());
        let call = Call { request, channel: Arc::clone(&self.channel) };
        let work = Work::Call(id.clone(), Arc::clone(&self.served).call(call));
        match self.start_work(work, bytes, context) {
            Started::Done(answer) => answer,
            Started::Running(handle) => {
                self.in_flight.get_or_insert_default().calls.insert(id, handle);
                None
            }
        }
    }

    fn on_notification(
        &mut self,
        notification: Notification,
        context: &mut Context<'_>,
    ) -> Option<Response> {
        if notification.method == Method::Cancelled {
            self.on_cancelled(&notification);
        } else if self.in_flight() < CALLS_MAX {
            let bytes = notification.raw().len();
            let notice = Notice { notification, channel: Arc::clone(&self.channel) };
            let work = Work::Notice(Arc::clone(&self.served).notified(notice));
            self.start_work(work, bytes, context);
        }
        None
    }

    /// Cancels a call. Its future is dropped when the running futures are polled next, in this
    /// same poll.
    fn on_cancelled(&mut self, notification: &Notification) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params {
            request_id: RequestId,
        }
        let params = notification.params().unwrap_or_default();
        let Ok(params) = serde_json::from_slice::<Params>(&params) else { return };
        let calls = self.in_flight.as_mut().map(|in_flight| &mut in_flight.calls);
        if let Some(handle) = calls.and_then(|calls| calls.remove(&params.request_id)) {
            handle.abort();
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight.as_ref().map_or(0, |in_flight| in_flight.running.len())
    }

    /// Starts the work for a message of so many bytes.
    fn start_work(&mut self, work: Work, bytes: usize, context: &mut Context<'_>) -> Started {
        let share = if is_long(bytes) { self.end.share() } else { None };
        let mut running = match share {
            None => Place::Here(Running { work, _over: None }),
            Some(share) => {
                let new = || Arc::new(Over(Arc::clone(&self.served), Arc::clone(&self.channel)));
                let over = Some(Arc::clone(self.over.get_or_insert_with(new)));
                let running = Running { work, _over: over };
                Place::Elsewhere(PollElsewhere::new(share.tenant(), running))
            }
        };
        if let Poll::Ready(answer) = Pin::new(&mut running).poll(context) {
            return Started::Done(answer);
        }
        let (handle, registration) = AbortHandle::new_pair();
        let running = Abortable::new(running, registration);
        self.in_flight.get_or_insert_default().running.push(running);
        Started::Running(handle)
    }

    /// Polls the running futures until a call is answered.
    fn poll_running(&mut self, context: &mut Context<'_>) -> Option<Response> {
        while let Some(in_flight) = &mut self.in_flight {
            let Poll::Ready(ended) = in_flight.running.poll_next_unpin(context) else { break };
            let Some(ended) = ended else {
                self.in_flight = None;
                break;
            };
            // An aborted call gets no response (CAN-02), and neither does a notification.
            if let Ok(Some(response)) = ended {
                if let Some(id) = &response.id {
                    in_flight.calls.remove(id);
                }
                return Some(response);
            }
        }
        None
    }

    fn answer_initialize(&self, request: &Request) -> Response {
        let info = catch_unwind(AssertUnwindSafe(|| self.served.info()));
        match info.map_err(|_| panicked()).and_then(|info| initialize_result(request, &info)) {
            Ok(result) => Response::result(request.id.clone(), &result),
            Err(error) => error.answering(request.id.clone()),
        }
    }
}

impl Engine for InPlace {
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

impl Drop for InPlace {
    fn drop(&mut self) {
        self.in_flight = None;
        self.channel.fail_open_requests();
        if self.over.is_none() {
            close(&self.served, &self.channel);
        }
    }
}

/// Tells the handler that the session has ended.
fn close(served: &Arc<dyn Served>, channel: &ClientChannel) {
    if catch_unwind(AssertUnwindSafe(|| served.closed(&channel.session))).is_err() {
        tracing::error!(session = ?channel.session, "native handler panicked at the end of a session");
    }
}

/// Tells the handler that the session has ended when neither the link nor any of its futures is left: another
/// thread may still poll some of these when the link is dropped.
struct Over(Arc<dyn Served>, Arc<ClientChannel>);

impl Drop for Over {
    fn drop(&mut self) {
        close(&self.0, &self.1);
    }
}

enum Started {
    Done(Option<Response>),
    Running(AbortHandle),
}

enum Work {
    Call(RequestId, Boxed<Result<Bytes, Error>>),
    Notice(Boxed<()>),
}

/// Where the handler works. It reads a long message on another thread.
enum Place {
    Here(Running),
    Elsewhere(PollElsewhere<Running>),
}

impl Future for Place {
    type Output = Option<Response>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Here(running) => Pin::new(running).poll(context),
            Self::Elsewhere(running) => Pin::new(running).poll(context),
        }
    }
}

/// One call or notification that the handler has not finished. Its output is the response, if any.
struct Running {
    work: Work,
    /// Of a future that another thread polls. Dropped behind it.
    _over: Option<Arc<Over>>,
}

impl Future for Running {
    type Output = Option<Response>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = catch_unwind(AssertUnwindSafe(|| match &mut self.work {
            Work::Call(_, future) => future.as_mut().poll(context).map(Some),
            Work::Notice(future) => future.as_mut().poll(context).map(|()| None),
        }));
        let outcome = match polled {
            Ok(polled) => ready!(polled),
            Err(_) => Some(Err(panicked())),
        };
        Poll::Ready(match (&self.work, outcome) {
            (Work::Call(id, _), Some(Ok(result))) => Some(Response::result(id.clone(), &result)),
            (Work::Call(id, _), Some(Err(error))) => Some(error.answering(id.clone())),
            _ => None,
        })
    }
}

/// Counts and logs a panic. The panic hook has printed the panic itself.
fn panicked() -> Error {
    metrics::NATIVE_PANICS.inc();
    tracing::error!("native handler panicked; its call is answered with an error");
    Error::internal("the server failed")
}

/// The answer to `initialize`, with the requested revision.
fn initialize_result(request: &Request, info: &Info) -> Result<Bytes, Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        #[serde(borrow)]
        protocol_version: &'a RawValue,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct InitializeResult<'a> {
        protocol_version: &'a RawValue,
        capabilities: &'a RawValue,
        server_info: Implementation<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        instructions: Option<&'a str>,
    }
    #[derive(Serialize)]
    struct Implementation<'a> {
        name: &'a str,
        version: &'a str,
    }
    let params = request.params().unwrap_or_default();
    let params: Params<'_> = serde_json::from_slice(&params)
        .map_err(|_| Error::invalid_params("`initialize` needs a `protocolVersion`"))?;
    let capabilities = serde_json::from_str(&info.capabilities)
        .map_err(|_| Error::internal("the server's capabilities are not JSON"))?;
    super::json(&InitializeResult {
        protocol_version: params.protocol_version,
        capabilities,
        server_info: Implementation { name: &info.name, version: &info.version },
        instructions: info.instructions.as_deref(),
    })
}
