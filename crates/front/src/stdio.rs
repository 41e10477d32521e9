//! stdio: one session over one pair of pipes, a JSON-RPC message a line (STD-01).
//!
//! Nothing but MCP is written, and nothing is written twice or half (STD-02). A line that
//! is no message is answered with an error without an id, since a pipe has no status.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use actors::{Answer, Caller, Frame, Handle, Opened, Refusal, ReplyEvent, ReplyStream};
use bytes::{Bytes, BytesMut};
use protocol::{Body, ErrorCode, Message, Method, Notification, Rejection, RequestId};
use serde::Deserialize;
use tenants::{Principal, Tenant};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::lines::{Line, Lines};
use crate::refusal::Refused;
use crate::streamable_http::no_answer;

/// Serves one client of `tenant` over a pair of pipes until the session ends or the client
/// closes its end; then requests in flight may go on for `grace`, and are dropped with the
/// session after it. A line of more than `line_bytes_max` is answered with an error and
/// skipped. Call it on an actix arbiter: the session lives there.
pub async fn serve_stdio(
    handle: &Handle,
    tenant: &Arc<Tenant>,
    line_bytes_max: usize,
    grace: Duration,
    stdin: impl AsyncRead + Unpin,
    stdout: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let principal = Principal::anonymous();
    let mut voice = Voice { stdout, buffer: BytesMut::new() };
    let Opened { session, mut replies } = match handle.connect(tenant, &principal).await {
        Ok(opened) => opened,
        Err(refusal) => {
            voice.say(&error(&Refused::from(refusal).into_rejection()));
            return voice.flush().await;
        }
    };
    let caller = Caller { tenant: Arc::clone(tenant), principal, session };
    let mut lines = Lines::new(stdin, line_bytes_max);
    let mut waiting = Waiting::default();
    loop {
        tokio::select! {
            line = lines.next() => match line? {
                Some(Line::Whole(line)) => hear(handle, &caller, line, &mut waiting, &mut voice).await,
                Some(Line::TooLong) => voice.say(&too_long(line_bytes_max)),
                None => break,
            },
            told = replies.next() => match told {
                Some(told) => pass_on(told, &mut waiting, &mut voice),
                None => return voice.flush().await,
            },
        }
        voice.flush().await?;
    }
    let _ = tokio::time::timeout(grace, finish(&mut replies, &mut waiting, &mut voice)).await;
    voice.flush().await
}

/// Passes on what comes until nobody waits for an answer any more.
async fn finish<W: AsyncWrite + Unpin>(
    replies: &mut ReplyStream,
    waiting: &mut Waiting,
    voice: &mut Voice<W>,
) -> io::Result<()> {
    while !waiting.0.is_empty() {
        let Some(told) = replies.next().await else { break };
        pass_on(told, waiting, voice);
        voice.flush().await?;
    }
    Ok(())
}

/// Brings one line to the session.
async fn hear<W>(
    handle: &Handle,
    caller: &Caller,
    line: Bytes,
    waiting: &mut Waiting,
    voice: &mut Voice<W>,
) {
    let body = match protocol::parse(line, &protocol::Limits::default()) {
        Ok(body) => body,
        Err(rejection) => return voice.say(&error(&rejection)),
    };
    let ids = waiting.posted(&body);
    let told = match handle.post(caller, body, None).await {
        Ok(mut replies) => replies.next().await,
        Err(refusal) => Some(ReplyEvent::Answer(Answer::Refused(refusal))),
    };
    match told {
        Some(ReplyEvent::Answer(Answer::Accepted)) => {}
        // Each request gets its answer, also where all were refused together.
        Some(ReplyEvent::Answer(Answer::Refused(refusal))) => refuse(refusal, &ids, waiting, voice),
        Some(ReplyEvent::Answer(Answer::Json(message))) => {
            pass_on_message(&message, waiting, voice)
        }
        Some(_) | None => refuse(no_answer(), &ids, waiting, voice),
    }
}

fn refuse<W>(refusal: Refusal, ids: &[RequestId], waiting: &mut Waiting, voice: &mut Voice<W>) {
    let rejection = Refused::from(refusal).into_rejection();
    if ids.is_empty() || rejection.id.is_some() {
        voice.say(&error(&rejection));
    }
    for id in ids {
        if waiting.0.remove(id) && rejection.id.is_none() {
            voice.say(&error(&rejection.clone().of(Some(id.clone()))));
        }
    }
}

/// Writes what the session says; cursors and comments are for streams that can be cut.
fn pass_on<W>(told: ReplyEvent, waiting: &mut Waiting, voice: &mut Voice<W>) {
    if let ReplyEvent::Frame(Frame::Message { data, .. }) = told {
        pass_on_message(&data, waiting, voice);
    }
}

fn pass_on_message<W>(message: &Bytes, waiting: &mut Waiting, voice: &mut Voice<W>) {
    if let Ok(Message::Response(response)) = Message::parse(message.clone())
        && let Some(id) = &response.id
    {
        waiting.0.remove(id);
    }
    voice.say(message);
}

/// The requests that have no answer yet: no more than the session takes in flight, since
/// those it refuses are answered at once.
#[derive(Default)]
struct Waiting(HashSet<RequestId>);

impl Waiting {
    /// Notes the requests of a body; their ids.
    fn posted(&mut self, body: &Body) -> Vec<RequestId> {
        let messages = match body {
            Body::One(message) => std::slice::from_ref(message).iter().collect(),
            Body::Batch(members) => members.iter().flatten().collect::<Vec<_>>(),
        };
        let mut ids = Vec::new();
        for message in messages {
            match message {
                Message::Request(request) => ids.push(request.id.clone()),
                // A cancelled request is not answered, so nobody waits for it (CAN-01).
                Message::Notification(told) => {
                    if let Some(id) = cancelled_id(told) {
                        self.0.remove(&id);
                    }
                }
                Message::Response(_) => {}
            }
        }
        self.0.extend(ids.iter().cloned());
        ids
    }
}

/// The request that a notification cancels.
fn cancelled_id(told: &Notification) -> Option<RequestId> {
    #[derive(Deserialize)]
    struct Params {
        #[serde(rename = "requestId")]
        id: RequestId,
    }
    let params = told.params().filter(|_| told.method == Method::Cancelled)?;
    serde_json::from_slice::<Params>(&params).ok().map(|params| params.id)
}

/// The pipe to the client. What is said waits here until it is flushed, which happens
/// before anything more is read: no more than the answers to one line, or one message.
struct Voice<W> {
    stdout: W,
    buffer: BytesMut,
}

impl<W> Voice<W> {
    fn say(&mut self, message: &[u8]) {
        self.buffer.extend_from_slice(message);
        self.buffer.extend_from_slice(b"\n");
    }
}

impl<W: AsyncWrite + Unpin> Voice<W> {
    async fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.stdout.write_all(&self.buffer).await?;
        self.buffer.clear();
        self.stdout.flush().await
    }
}

fn too_long(bytes_max: usize) -> Bytes {
    let message = format!("the line is longer than {bytes_max} bytes, and was skipped");
    error(&Rejection::new(ErrorCode::InvalidRequest, message))
}

fn error(rejection: &Rejection) -> Bytes {
    protocol::Response::rejecting(rejection).raw().clone()
}
