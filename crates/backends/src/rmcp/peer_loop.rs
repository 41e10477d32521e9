//! A way for one call at a time to reach the client.
//!
//! `rmcp` makes a [`Peer`] only together with a loop that carries out what the peer
//! asks for, and forgets which call asked. So each call that runs gets a peer and a
//! loop for itself: what comes out of the loop belongs to the call. A peer loop outlives its
//! call and is given to the next one, because a service may keep the peer; what it
//! says between two calls belongs to none.

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

/// Most questions of one peer loop that wait for an answer, or whose answer waits for the
/// service; a further one fails.
const ASKED_MAX: usize = 64;
/// Most notifications that wait for the service; a further one is dropped.
const NOTIFICATIONS_MAX: usize = 64;

/// One peer, its loop, and whose it is.
pub(super) struct PeerLoop<S: Service<RoleServer>> {
    /// Ends the loop when it is dropped.
    running: RunningService<RoleServer, Listener<S>>,
    held: Arc<Held>,
}

impl<S: Service<RoleServer>> PeerLoop<S> {
    /// Has to be called from within a tokio runtime.
    pub(super) fn open(number: usize, service: &Arc<S>, sender: EventSender) -> Self {
        let held = Arc::new(Held { number, state: Mutex::default(), arrived: Notify::new() });
        let wire = Wire { held: Arc::clone(&held), sender };
        let listener = Listener(Arc::clone(service));
        // The client's introduction is left out here, since `rmcp` would log it.
        let running = ::rmcp::service::serve_directly(listener, wire, None);
        Self { running, held }
    }

    pub(super) fn peer(&self) -> &Peer<RoleServer> {
        self.running.peer()
    }

    /// From now on, or never more, what is said belongs to this request.
    pub(super) fn belongs_to(&self, about: Option<RequestId>) {
        self.held.state().about = about;
    }

    /// Lets the service hear a notification of the client's.
    pub(super) fn notified(&self, notification: ClientNotification) {
        let mut state = self.held.state();
        if state.notifications.len() < NOTIFICATIONS_MAX {
            state.notifications.push_back(ClientJsonRpcMessage::notification(notification));
            drop(state);
            self.held.arrived.notify_one();
        }
    }

    /// Hears the client's answer to question `number`; one to no question is dropped.
    pub(super) fn answered(&self, number: i64, response: &Response) {
        let mut state = self.held.state();
        if state.asked.remove(&number).is_none() {
            return;
        }
        let id = NumberOrString::Number(number);
        state.answers.push_back(match read::answer(response) {
            Ok(result) => JsonRpcMessage::response(result, id),
            Err(error) => JsonRpcMessage::error(error, Some(id)),
        });
        drop(state);
        self.held.arrived.notify_one();
    }

    /// The token that `rmcp` gave question `number`.
    pub(super) fn token(&self, number: i64) -> Option<ProgressToken> {
        self.held.state().asked.get(&number).cloned()
    }
}

/// The name under which the client sees question `number` of a peer loop; `rmcp` counts the
/// questions of each peer loop from 0.
fn name(peer_loop: usize, number: i64) -> String {
    format!("rmcp-{peer_loop}-{number}")
}

/// The peer loop and the number of a question.
pub(super) fn question(name: &str) -> Option<(usize, i64)> {
    let (peer_loop, number) = name.strip_prefix("rmcp-")?.split_once('-')?;
    Some((peer_loop.parse().ok()?, number.parse().ok()?))
}

/// What a peer loop and its loop share.
struct Held {
    number: usize,
    state: Mutex<State>,
    /// Tells the loop that there is something to hear.
    arrived: Notify,
}

#[derive(Default)]
struct State {
    about: Option<RequestId>,
    /// The questions that have no answer yet, and their progress tokens.
    asked: HashMap<i64, ProgressToken>,
    answers: VecDeque<ClientJsonRpcMessage>,
    notifications: VecDeque<ClientJsonRpcMessage>,
}

impl Held {
    /// Nothing panics under this lock, so a poisoned one is as good as any.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a question one that no other peer loop can have asked.
    fn rename(&self, request: &mut ServerRequest, id: &NumberOrString) -> Result<String, NotSaid> {
        let NumberOrString::Number(number) = *id else { return Err(NotSaid::Unreadable) };
        let mut state = self.state();
        if state.asked.len() + state.answers.len() >= ASKED_MAX {
            return Err(NotSaid::TooManyQuestions);
        }
        let meta = request.get_meta_mut();
        let token = meta.get_progress_token();
        let token = token.unwrap_or(ProgressToken(NumberOrString::Number(number)));
        let name = name(self.number, number);
        meta.set_progress_token(ProgressToken(NumberOrString::String(name.as_str().into())));
        state.asked.insert(number, token);
        Ok(name)
    }

    /// The message as the client gets it.
    fn message(&self, message: ServerJsonRpcMessage) -> Result<Message, NotSaid> {
        let message = match message {
            JsonRpcMessage::Request(mut asked) => {
                let name = self.rename(&mut asked.request, &asked.id)?;
                ServerJsonRpcMessage::request(asked.request, NumberOrString::String(name.into()))
            }
            JsonRpcMessage::Notification(mut told) => {
                if let ServerNotification::CancelledNotification(cancelled) = &mut told.notification
                    && let Some(NumberOrString::Number(number)) = cancelled.params.request_id
                {
                    self.state().asked.remove(&number);
                    let name = NumberOrString::String(name(self.number, number).into());
                    cancelled.params.request_id = Some(name);
                }
                JsonRpcMessage::Notification(told)
            }
            // A peer loop is never asked anything, so it has nothing to answer.
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {
                return Err(NotSaid::Unreadable);
            }
        };
        let raw = serde_json::to_vec(&message).map_err(|_| NotSaid::Unreadable)?;
        Message::parse(raw.into()).map_err(|_| NotSaid::Unreadable)
    }
}

/// Why the client does not hear something.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotSaid {
    #[error(transparent)]
    Gone(#[from] Gone),
    #[error("too many questions to the client wait for an answer")]
    TooManyQuestions,
    #[error("the message is none that a server may send")]
    Unreadable,
}

/// What a loop takes for its transport.
struct Wire {
    held: Arc<Held>,
    sender: EventSender,
}

impl Transport<RoleServer> for Wire {
    type Error = NotSaid;

    /// Says it at once where there is room, so that nothing overtakes it.
    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = Result<(), NotSaid>> + Send + 'static {
        let waits = self.held.message(message).and_then(|message| {
            let about = self.held.state().about.clone();
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
                let mut state = self.held.state();
                state.answers.pop_front().or_else(|| state.notifications.pop_front())
            };
            if next.is_some() {
                return next;
            }
            // What arrives in between leaves a permit.
            self.held.arrived.notified().await;
        }
    }

    async fn close(&mut self) -> Result<(), NotSaid> {
        Ok(())
    }
}

/// Passes notifications on to the service. Requests take a shorter way.
struct Listener<S>(Arc<S>);

impl<S: Service<RoleServer>> Service<RoleServer> for Listener<S> {
    async fn handle_request(
        &self,
        _: ClientRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<ServerResult, ErrorData> {
        Err(ErrorData::internal_error("a lane takes no requests", None))
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

/// The panic itself has gone to the panic hook.
pub(super) fn panicked() -> ErrorData {
    metrics::NATIVE_PANICS.inc();
    tracing::error!("an rmcp service panicked");
    ErrorData::internal_error("the server failed", None)
}
