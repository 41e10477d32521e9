//! Sends messages of a handler to the client.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use protocol::{Message, Method, Notification, Request, RequestId, Response, SessionId};
use serde::Serialize;
use thin_vec::ThinVec;
use tokio::sync::oneshot;

use super::Error;
use crate::{EventSender, Gone, LinkEvent};

/// Maximum number of server requests to one client without a response; a further one fails.
const SERVER_REQUESTS_MAX: usize = 64;

/// The state that the calls of one session share.
pub(super) struct ClientChannel {
    pub(super) session: SessionId,
    sender: EventSender,
    /// Server requests without a response. Nearly always empty.
    open_requests: Mutex<ThinVec<OpenRequest>>,
    next_request: AtomicU64,
}

/// The id of a server request, and the receiver of its response.
type OpenRequest = (RequestId, oneshot::Sender<Response>);

impl ClientChannel {
    pub(super) fn new(session: SessionId, sender: EventSender) -> Arc<Self> {
        Arc::new(Self {
            session,
            sender,
            open_requests: Mutex::default(),
            next_request: AtomicU64::new(1),
        })
    }

    fn open_requests(&self) -> MutexGuard<'_, ThinVec<OpenRequest>> {
        self.open_requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the client's response to the server request that waits for it. Drops a response
    /// without one.
    pub(super) fn on_response(&self, response: Response) {
        if let Some(waiting) = response.id.as_ref().and_then(|id| self.take_open_request(id)) {
            let _ = waiting.send(response);
        }
    }

    /// Removes a server request. Returns the sender of its response, if it was open.
    fn take_open_request(&self, id: &RequestId) -> Option<oneshot::Sender<Response>> {
        let mut open = self.open_requests();
        let index = open.iter().position(|(open_id, _)| open_id == id)?;
        Some(open.swap_remove(index).1)
    }

    /// Fails all server requests: the session has ended.
    pub(super) fn fail_open_requests(&self) {
        let unanswered = std::mem::take(&mut *self.open_requests());
        drop(unanswered);
    }
}

/// Sends messages to the client of one session. Cheap to clone.
#[derive(Clone)]
pub struct Peer {
    channel: Arc<ClientChannel>,
    request: Option<Request>,
}

impl Peer {
    pub(super) fn for_request(channel: Arc<ClientChannel>, request: Request) -> Self {
        Self { channel, request: Some(request) }
    }

    pub(super) fn without_request(channel: Arc<ClientChannel>) -> Self {
        Self { channel, request: None }
    }

    /// The session of the client.
    pub fn session(&self) -> &SessionId {
        &self.channel.session
    }

    /// Sends a notification; `params` is JSON text. It is sent on the stream of the call's
    /// response, before the response. Waits while the queue to the session is full.
    pub async fn notify(
        &self,
        method: impl Into<Method>,
        params: Option<&[u8]>,
    ) -> Result<(), Gone> {
        self.send(Notification::new(method.into(), params).into()).await
    }

    /// Sends the progress of the call. Sends nothing if the client did not request progress,
    /// which is not an error (PRG-01). `progress` must increase with each call.
    pub async fn progress(
        &self,
        progress: f64,
        total: Option<f64>,
        message: Option<&str>,
    ) -> Result<(), Gone> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            progress_token: RequestId,
            progress: f64,
            #[serde(skip_serializing_if = "Option::is_none")]
            total: Option<f64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            message: Option<&'a str>,
        }
        let Some(progress_token) = self.request.as_ref().and_then(Request::progress_token) else {
            return Ok(());
        };
        let params = Params { progress_token, progress, total, message };
        match serde_json::to_vec(&params) {
            Ok(params) => self.notify(Method::Progress, Some(&params)).await,
            Err(_) => Ok(()),
        }
    }

    /// Sends a request to the client and waits for its response: the JSON text of the result, or
    /// the error. The session bounds the wait: it answers for a client that does not. If the
    /// future is dropped, the client gets a `notifications/cancelled`.
    pub async fn ask(
        &self,
        method: impl Into<Method>,
        params: Option<&[u8]>,
    ) -> Result<Bytes, Error> {
        let (answer, mut guard) = self.register_request()?;
        let request = Request::new(guard.id.clone(), method.into(), params);
        let sent = self.send(request.into()).await;
        let answered = match sent {
            Ok(()) => answer.await.ok(),
            Err(Gone) => None,
        };
        guard.is_open = false;
        match answered.ok_or_else(|| Error::internal("the session has ended"))?.outcome() {
            Ok(result) => Ok(result),
            Err(error) => Err(Error::from_object(&error)),
        }
    }

    fn register_request(&self) -> Result<(oneshot::Receiver<Response>, RequestGuard<'_>), Error> {
        let number = self.channel.next_request.fetch_add(1, Ordering::Relaxed);
        let id = RequestId::from(format!("native-{number}"));
        let (sender, answer) = oneshot::channel();
        let mut open = self.channel.open_requests();
        if open.len() >= SERVER_REQUESTS_MAX {
            return Err(Error::internal("too many requests to the client have no response yet"));
        }
        open.push((id.clone(), sender));
        drop(open);
        Ok((answer, RequestGuard { peer: self, id, is_open: true }))
    }

    fn event(&self, message: Message) -> LinkEvent {
        let about = self.request.as_ref().map(|request| request.id.clone());
        LinkEvent::Message { message, about }
    }

    async fn send(&self, message: Message) -> Result<(), Gone> {
        self.channel.sender.send(self.event(message)).await
    }
}

/// A server request that the client has not answered. Cancelled if it is dropped while open.
struct RequestGuard<'a> {
    peer: &'a Peer,
    id: RequestId,
    is_open: bool,
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        if !self.is_open || self.peer.channel.take_open_request(&self.id).is_none() {
            return;
        }
        let params = format!(r#"{{"requestId":{}}}"#, self.id.to_json());
        let cancelled = Notification::new(Method::Cancelled, Some(params.as_bytes()));
        // The notification is dropped if the queue is full. The client then keeps a request open
        // whose response is not read.
        let _ = self.peer.channel.sender.try_send(self.peer.event(cancelled.into()));
    }
}
