//! A handler's way to the client.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use protocol::{Message, Method, Notification, Request, RequestId, Response, SessionId};
use serde::Serialize;
use thin_vec::ThinVec;
use tokio::sync::oneshot;

use super::Error;
use crate::{EventSender, Gone, LinkEvent};

/// Most questions to one client that may wait for an answer; a further one fails.
const ASKED_MAX: usize = 64;

/// What the calls of one session share.
pub(super) struct Line {
    pub(super) session: SessionId,
    sender: EventSender,
    /// Few, and nearly always none.
    asked: Mutex<ThinVec<Asked>>,
    questions: AtomicU64,
}

/// A question to the client, and who waits for its answer.
type Asked = (RequestId, oneshot::Sender<Response>);

impl Line {
    pub(super) fn new(session: SessionId, sender: EventSender) -> Arc<Self> {
        Arc::new(Self { session, sender, asked: Mutex::default(), questions: AtomicU64::new(1) })
    }

    fn asked(&self) -> MutexGuard<'_, ThinVec<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the client's response to the request that waits for it. Else drops the response.
    pub(super) fn answered(&self, response: Response) {
        if let Some(waiting) = response.id.as_ref().and_then(|id| self.closed(id)) {
            let _ = waiting.send(response);
        }
    }

    /// A question is not open any more; who waited for its answer, if it was.
    fn closed(&self, id: &RequestId) -> Option<oneshot::Sender<Response>> {
        let mut asked = self.asked();
        let index = asked.iter().position(|(open, _)| open == id)?;
        Some(asked.swap_remove(index).1)
    }

    /// The session is over: no question will be answered.
    pub(super) fn end(&self) {
        let unanswered = std::mem::take(&mut *self.asked());
        drop(unanswered);
    }
}

/// Reaches the client of one session. Cheap to clone.
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

    /// Whose client it is.
    pub fn session(&self) -> &SessionId {
        &self.line.session
    }

    /// Sends a notification; `params` is JSON text. It goes where the answer to the
    /// call goes, and before it. Waits while the session has no room.
    pub async fn notify(
        &self,
        method: impl Into<Method>,
        params: Option<&[u8]>,
    ) -> Result<(), Gone> {
        self.send(Notification::new(method.into(), params).into()).await
    }

    /// Tells how far the call has come. Says nothing when the client did not ask for
    /// it, which is no error (PRG-01). `progress` must rise from one to the next.
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

    /// Asks the client something and waits for its answer: the JSON text of the
    /// result, or its error. The session bounds the wait: it answers for a client that
    /// does not. When the future is dropped, the client is told that the answer is no
    /// longer wanted.
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
        match answered.ok_or_else(|| Error::internal("the session is over"))?.outcome() {
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
            return Err(Error::internal("too many questions to the client wait for an answer"));
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

/// A question that the client has not answered. Dropped while open, it is withdrawn.
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
        // Without room the notification is dropped. The only effect: the client keeps a
        // request open whose response is not read.
        let _ = self.peer.line.sender.try_send(self.peer.event(withdrawn.into()));
    }
}
