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
const ASKED_MAX: usize = 64;

/// The state that the calls of one session share.
pub(super) struct Line {
    pub(super) session: SessionId,
    sender: EventSender,
    /// Server requests without a response. Nearly always empty.
    asked: Mutex<ThinVec<Asked>>,
    questions: AtomicU64,
}

/// The id of a server request, and the receiver of its response.
type Asked = (RequestId, oneshot::Sender<Response>);

impl Line {
    pub(super) fn new(session: SessionId, sender: EventSender) -> Arc<Self> {
        Arc::new(Self { session, sender, asked: Mutex::default(), questions: AtomicU64::new(1) })
    }

    fn asked(&self) -> MutexGuard<'_, ThinVec<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the client's response to the server request that waits for it. Drops a response
    /// without one.
    pub(super) fn answered(&self, response: Response) {
        if let Some(waiting) = response.id.as_ref().and_then(|id| self.closed(id)) {
            let _ = waiting.send(response);
        }
    }

    /// Removes a server request. Returns the sender of its response, if it was open.
    fn closed(&self, id: &RequestId) -> Option<oneshot::Sender<Response>> {
        let mut asked = self.asked();
        let index = asked.iter().position(|(open, _)| open == id)?;
        Some(asked.swap_remove(index).1)
    }

    /// Fails all server requests: the session has ended.
    pub(super) fn end(&self) {
        let unanswered = std::mem::take(&mut *self.asked());
        drop(unanswered);
    }
}

/// Sends messages to the client of one session. Cheap to clone.
#[derive(Clone)]
pub struct Peer {
    line: Arc<Line>,
    request: Option<Request>,
}

impl Peer {
    pub(super) fn about(line: Arc<Line>, request: Request) -> Self {
        Self { line, request: Some(request) }
    }

    pub(super) fn apart(line: Arc<Line>) -> Self {
        Self { line, request: None }
    }

    /// The session of the client.
    pub fn session(&self) -> &SessionId {
        &self.line.session
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
        let (answer, mut question) = self.enrol()?;
        let request = Request::new(question.id.clone(), method.into(), params);
        let sent = self.send(request.into()).await;
        let answered = match sent {
            Ok(()) => answer.await.ok(),
            Err(Gone) => None,
        };
        question.open = false;
        match answered.ok_or_else(|| Error::internal("the session has ended"))?.outcome() {
            Ok(result) => Ok(result),
            Err(error) => Err(Error::from_object(&error)),
        }
    }

    fn enrol(&self) -> Result<(oneshot::Receiver<Response>, Question<'_>), Error> {
        let number = self.line.questions.fetch_add(1, Ordering::Relaxed);
        let id = RequestId::from(format!("native-{number}"));
        let (sender, answer) = oneshot::channel();
        let mut asked = self.line.asked();
        if asked.len() >= ASKED_MAX {
            return Err(Error::internal("too many requests to the client have no response yet"));
        }
        asked.push((id.clone(), sender));
        drop(asked);
        Ok((answer, Question { peer: self, id, open: true }))
    }

    fn event(&self, message: Message) -> LinkEvent {
        let about = self.request.as_ref().map(|request| request.id.clone());
        LinkEvent::Message { message, about }
    }

    async fn send(&self, message: Message) -> Result<(), Gone> {
        self.line.sender.send(self.event(message)).await
    }
}

/// A server request that the client has not answered. Cancelled if it is dropped while open.
struct Question<'a> {
    peer: &'a Peer,
    id: RequestId,
    open: bool,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        if !self.open || self.peer.line.closed(&self.id).is_none() {
            return;
        }
        let params = format!(r#"{{"requestId":{}}}"#, self.id.to_json());
        let withdrawn = Notification::new(Method::Cancelled, Some(params.as_bytes()));
        // The notification is dropped if the queue is full. The client then keeps a request open
        // whose response is not read.
        let _ = self.peer.line.sender.try_send(self.peer.event(withdrawn.into()));
    }
}
