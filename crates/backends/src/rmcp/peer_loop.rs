//! Sends the messages of one call at a time to the client.
//!
//! `rmcp` creates a [`Peer`] only together with a loop, which does not record which call sent a
//! message. So each running call has a peer and a loop of its own, and every message of the loop
//! belongs to that call. A peer loop is reused for later calls, because a service may keep the
//! peer. Messages between two calls belong to none.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, GetMeta, JsonRpcMessage,
    NumberOrString, ProgressToken, ServerConfig, ServerJsonRpcMessage, ServerNotification,
    ServerRequest, ServerResult,
};
use ::rmcp::service::{NotificationContext, RequestContext, RunningService};
use ::rmcp::transport::Transport;
use ::rmcp::{ErrorData, Peer, RoleServer, Service};
use futures_util::FutureExt as _;
use protocol::{Message, RequestId, Response};
use tokio::sync::Notify;

use super::read;
use crate::{EventSender, Gone, LinkEvent, metrics};

/// Maximum number of server requests of one peer loop that have no response, or whose response
/// the service has not received; a further one fails.
const SERVER_REQUESTS_MAX: usize = 64;
/// Maximum number of queued notifications to the service; a further one is dropped.
const NOTIFICATIONS_MAX: usize = 64;

/// One peer with its loop, and the call that has it.
pub(super) struct PeerLoop<S: Service<RoleServer>> {
    /// Ends the loop when it is dropped.
    running: RunningService<RoleServer, NotificationService<S>>,
    shared: Arc<Shared>,
}

impl<S: Service<RoleServer>> PeerLoop<S> {
    /// Must be called from within a tokio runtime.
    pub(super) fn open(number: usize, service: &Arc<S>, sender: EventSender) -> Self {
        let shared = Arc::new(Shared { number, state: Mutex::default(), arrived: Notify::new() });
        let transport = PeerTransport { shared: Arc::clone(&shared), sender };
        let notification_service = NotificationService(Arc::clone(service));
        // The client's info is left out here, since `rmcp` would log it.
        let running = ::rmcp::service::serve_directly(notification_service, transport, None);
        Self { running, shared }
    }

    pub(super) fn peer(&self) -> &Peer<RoleServer> {
        self.running.peer()
    }

    /// Sets the request to which further messages belong; `None` for no request.
    pub(super) fn assign_request(&self, about: Option<RequestId>) {
        self.shared.state().about = about;
    }

    /// Enqueues a notification of the client for the service.
    pub(super) fn enqueue_notification(&self, notification: ClientNotification) {
        let mut state = self.shared.state();
        if state.notifications.len() < NOTIFICATIONS_MAX {
            state.notifications.push_back(ClientJsonRpcMessage::notification(notification));
            drop(state);
            self.shared.arrived.notify_one();
        }
    }

    /// Enqueues the client's response to server request `number`. A response to no open request is
    /// dropped.
    pub(super) fn enqueue_response(&self, number: i64, response: &Response) {
        let mut state = self.shared.state();
        if state.open_requests.remove(&number).is_none() {
            return;
        }
        let id = NumberOrString::Number(number);
        state.responses.push_back(match read::answer(response) {
            Ok(result) => JsonRpcMessage::response(result, id),
            Err(error) => JsonRpcMessage::error(error, Some(id)),
        });
        drop(state);
        self.shared.arrived.notify_one();
    }

    /// The progress token that `rmcp` gave server request `number`.
    pub(super) fn progress_token(&self, number: i64) -> Option<ProgressToken> {
        self.shared.state().open_requests.get(&number).cloned()
    }
}

/// The id of server request `number` of a peer loop for the client. `rmcp` numbers the requests of
/// each peer loop from 0.
fn encode_request_id(peer_loop: usize, number: i64) -> String {
    format!("rmcp-{peer_loop}-{number}")
}

/// The peer loop and the number of the server request with this id.
pub(super) fn decode_request_id(name: &str) -> Option<(usize, i64)> {
    let (peer_loop, number) = name.strip_prefix("rmcp-")?.split_once('-')?;
    Some((peer_loop.parse().ok()?, number.parse().ok()?))
}

/// The state that a [`PeerLoop`] and its transport share.
struct Shared {
    number: usize,
    state: Mutex<SharedState>,
    /// Notifies the loop of queued messages.
    arrived: Notify,
}

#[derive(Default)]
struct SharedState {
    about: Option<RequestId>,
    /// The progress tokens of server requests without a response, by number.
    open_requests: HashMap<i64, ProgressToken>,
    responses: VecDeque<ClientJsonRpcMessage>,
    notifications: VecDeque<ClientJsonRpcMessage>,
}

impl Shared {
    /// Locks also a poisoned mutex: no code panics while it holds it.
    fn state(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces id and progress token of a server request by ones that no other peer loop uses.
    fn replace_id(
        &self,
        request: &mut ServerRequest,
        id: &NumberOrString,
    ) -> Result<String, SendFailure> {
        let NumberOrString::Number(number) = *id else { return Err(SendFailure::Unreadable) };
        let mut state = self.state();
        if state.open_requests.len() + state.responses.len() >= SERVER_REQUESTS_MAX {
            return Err(SendFailure::TooManyRequests);
        }
        let meta = request.get_meta_mut();
        let token = meta.get_progress_token();
        let token = token.unwrap_or(ProgressToken(NumberOrString::Number(number)));
        let name = encode_request_id(self.number, number);
        meta.set_progress_token(ProgressToken(NumberOrString::String(name.as_str().into())));
        state.open_requests.insert(number, token);
        Ok(name)
    }

    /// Converts a message to the one that the client gets.
    fn convert_message(&self, message: ServerJsonRpcMessage) -> Result<Message, SendFailure> {
        let message = match message {
            JsonRpcMessage::Request(mut request) => {
                let name = self.replace_id(&mut request.request, &request.id)?;
                ServerJsonRpcMessage::request(request.request, NumberOrString::String(name.into()))
            }
            JsonRpcMessage::Notification(mut notification) => {
                if let ServerNotification::CancelledNotification(cancelled) =
                    &mut notification.notification
                    && let Some(NumberOrString::Number(number)) = cancelled.params.request_id
                {
                    self.state().open_requests.remove(&number);
                    let name =
                        NumberOrString::String(encode_request_id(self.number, number).into());
                    cancelled.params.request_id = Some(name);
                }
                JsonRpcMessage::Notification(notification)
            }
            // A peer loop gets no requests, so it sends no responses.
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {
                return Err(SendFailure::Unreadable);
            }
        };
        let raw = serde_json::to_vec(&message).map_err(|_| SendFailure::Unreadable)?;
        Message::parse(raw.into()).map_err(|_| SendFailure::Unreadable)
    }
}

/// Why a message was not sent to the client.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendFailure {
    #[error(transparent)]
    Gone(#[from] Gone),
    #[error("too many requests to the client have no response yet")]
    TooManyRequests,
    #[error("the message is not one that a server may send")]
    Unreadable,
}

/// The transport of a peer's loop.
struct PeerTransport {
    shared: Arc<Shared>,
    sender: EventSender,
}

impl Transport<RoleServer> for PeerTransport {
    type Error = SendFailure;

    /// Sends the message in this call if the queue has room, so that messages stay in order.
    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = Result<(), SendFailure>> + Send + 'static {
        let waits = self.shared.convert_message(message).and_then(|message| {
            let about = self.shared.state().about.clone();
            Ok(self.sender.try_send(LinkEvent::Message { message, about })?)
        });
        let sender = self.sender.clone();
        async move {
            match waits? {
                None => Ok(()),
                Some(event) => Ok(sender.send(event).await?),
            }
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            let next = {
                let mut state = self.shared.state();
                state.responses.pop_front().or_else(|| state.notifications.pop_front())
            };
            if next.is_some() {
                return next;
            }
            // A message that is enqueued before the wait leaves a permit.
            self.shared.arrived.notified().await;
        }
    }

    async fn close(&mut self) -> Result<(), SendFailure> {
        Ok(())
    }
}

/// Passes notifications to the service. [`super::engine`] passes requests to it directly.
struct NotificationService<S>(Arc<S>);

impl<S: Service<RoleServer>> Service<RoleServer> for NotificationService<S> {
    async fn handle_request(
        &self,
        _: ClientRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<ServerResult, ErrorData> {
        Err(ErrorData::internal_error("a peer loop takes no requests", None))
    }

    async fn handle_notification(
        &self,
        notification: ClientNotification,
        context: NotificationContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let handled = self.0.handle_notification(notification, context);
        AssertUnwindSafe(handled).catch_unwind().await.unwrap_or_else(|_| Err(panicked()))
    }

    fn get_info(&self) -> ServerConfig {
        ServerConfig::default()
    }
}

/// Counts and logs a panic. The panic hook has printed the panic itself.
pub(super) fn panicked() -> ErrorData {
    metrics::NATIVE_PANICS.inc();
    tracing::error!("rmcp service panicked; its call is answered with an error");
    ErrorData::internal_error("the server failed", None)
}
