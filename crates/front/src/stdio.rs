//! stdio: one session over one pair of pipes, a JSON-RPC message a line (STD-01).
//!
//! Only MCP messages are written, each once and whole (STD-02). A line that is not a message gets
//! an error without an id, since a pipe has no status.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use actors::{Answer, Caller, Frame, Handle, HandshakeSummary, Opened, ReplyEvent, ReplyStream};
use bytes::{Bytes, BytesMut};
use protocol::{
    Body, ErrorCode, Line, LineSplitter, Message, Method, Rejection, Request, RequestId,
};
use telemetry::{Outcome, Spanned};
use tenants::{Principal, Tenant, Tenants};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt};

use crate::Reporting;
use crate::audit_reading::{cancelled_id, final_response};
use crate::audited::Dispatched;
use crate::authentication::Credential;
use crate::exchange::{Exchange, Exchanges};
use crate::limits::Limits;
use crate::record_performing::perform_records;
use crate::refusal::Refused;
use crate::streamable_http::no_answer;
use crate::unanswered::{Handling, Unanswered};

/// Serves one client of `tenant` over a pair of pipes until the session ends or the client closes
/// its end. After that, requests in flight may finish within `grace`; then they are dropped with
/// the session. A line longer than `line_bytes_max` is answered with an error and skipped. Call
/// it on an actix arbiter: the session runs there.
pub async fn serve_stdio(
    handle: &Handle,
    tenant: &Arc<Tenant>,
    line_bytes_max: usize,
    grace: Duration,
    mut stdin: impl AsyncRead + Unpin,
    stdout: impl AsyncWrite + Unpin,
    reporting: &Reporting,
) -> io::Result<()> {
    let exchanges = Exchanges::new(reporting, &Tenants::new([Tenant::clone(tenant)])).for_worker();
    perform_records(exchanges.recorder());
    let principal = Principal::anonymous();
    let mut output = Output { stdout, buffer: BytesMut::new() };
    let Opened { session, mut replies } = match handle.connect(tenant, &principal).await {
        Ok(opened) => opened,
        Err(refusal) => {
            output.write_line(&error(&Refused::from(refusal).into_rejection()));
            return output.flush().await;
        }
    };
    let caller = Caller { tenant: Arc::clone(tenant), principal, session, tokens: None };
    let mut lines = LineSplitter::new(line_bytes_max);
    // One thread serves this client.
    let limits = Limits::new(handle.limits(), 1);
    let mut pending =
        PendingRequests { exchanges, limits, handshake: None, requests: Unanswered::default() };
    loop {
        tokio::select! {
            line = next_line(&mut stdin, &mut lines) => match line? {
                Some(Line::Whole(line)) => {
                    let may_trace = pending.exchanges.may_trace();
                    let handled = handle_line(handle, &caller, line, &mut pending, &mut output);
                    Spanned::new(pin!(handled), may_trace).await;
                }
                Some(Line::TooLong(_)) => output.write_line(&too_long(line_bytes_max)),
                None => break,
            },
            event = replies.next() => match event {
                Some(event) => write_event(event, &mut pending, &mut output),
                None => return output.flush().await,
            },
        }
        output.flush().await?;
    }
    let _ = tokio::time::timeout(grace, finish(&mut replies, &mut pending, &mut output)).await;
    output.flush().await
}

/// The next line that is not blank; `None` at the end of the input. A last line without a line
/// feed counts: its sender closed the pipe after writing it. Cancellation-safe: the future may be
/// dropped at any await and the function called again.
async fn next_line(
    stdin: &mut (impl AsyncRead + Unpin),
    lines: &mut LineSplitter,
) -> io::Result<Option<Line>> {
    loop {
        match lines.next_line() {
            Some(Line::Whole(line)) => {
                if let Some(line) = without_blanks(line) {
                    return Ok(Some(Line::Whole(line)));
                }
            }
            Some(too_long) => return Ok(Some(too_long)),
            None if stdin.read_buf(lines.room()).await? == 0 => {
                return Ok(lines.take_unended().and_then(without_blanks).map(Line::Whole));
            }
            None => {}
        }
    }
}

/// The line without trailing white space; `None` if nothing is left.
fn without_blanks(mut line: Bytes) -> Option<Bytes> {
    line.truncate(line.trim_ascii_end().len());
    (!line.is_empty()).then_some(line)
}

/// Writes replies to the client until no request is pending.
async fn finish<W: AsyncWrite + Unpin>(
    replies: &mut ReplyStream,
    pending: &mut PendingRequests,
    output: &mut Output<W>,
) -> io::Result<()> {
    while !pending.requests.is_empty() {
        let Some(event) = replies.next().await else { break };
        write_event(event, pending, output);
        output.flush().await?;
    }
    Ok(())
}

/// Posts one line to the session.
async fn handle_line<W>(
    handle: &Handle,
    caller: &Caller,
    line: Bytes,
    pending: &mut PendingRequests,
    output: &mut Output<W>,
) {
    let mut exchange = pending.exchanges.begin_line(&caller.tenant);
    exchange.received(line.len());
    exchange.of_session(&caller.session);
    let mut body = match protocol::parse(line, &protocol::Limits::default()) {
        Ok(body) => body,
        Err(rejection) => {
            exchange.refused(rejection.code.number());
            exchange.end_as(Outcome::Refused);
            return output.write_line(&error(&rejection));
        }
    };
    exchange.posted(&mut body, None);
    let client = Credential::anonymous();
    let admitted = pending.limits.admit(&caller.tenant, &client, &mut body, &mut exchange).await;
    if let Err(limited) = admitted {
        let rejection = limited.into_rejection();
        exchange.refused(rejection.code.number());
        exchange.end_as(Outcome::Refused);
        // Nothing is answered to a notification.
        if rejection.id.is_none() && rejection.code == ErrorCode::Refused {
            return;
        }
        return output.write_line(&error(&rejection));
    }
    let recorded = match exchange.audited() {
        Some(audited) => {
            let dispatched = Dispatched::Posted(&body);
            let recorded = Box::pin(audited.record(&caller.tenant, dispatched, None)).await;
            if recorded.is_ok() {
                audited.set_dispatched();
            }
            recorded
        }
        None => Ok(()),
    };
    let ids = pending.add_requests(&body, &mut exchange);
    if let Err(held) = recorded {
        return refuse(Refused::unrecorded(held), &ids, pending, output);
    }
    match handle.post(caller, body, None).next().await {
        Some(ReplyEvent::Answer(Answer::Accepted)) => {
            // The session counts its requests from now on.
            for id in &ids {
                pending.requests.with_id(id).for_each(Exchange::release);
            }
            exchange.release();
            exchange.end(Outcome::Accepted);
        }
        // Each request gets its own final response, also where all were refused together.
        Some(ReplyEvent::Answer(Answer::Refused(refusal))) => {
            exchange.end(Outcome::Refused);
            refuse(Refused::from(refusal), &ids, pending, output)
        }
        Some(ReplyEvent::Answer(Answer::Json(message))) => write_message(&message, pending, output),
        Some(_) | None => refuse(Refused::from(no_answer()), &ids, pending, output),
    }
}

fn refuse<W>(
    refused: Refused,
    ids: &[RequestId],
    pending: &mut PendingRequests,
    output: &mut Output<W>,
) {
    let rejection = refused.into_rejection();
    if ids.is_empty() || rejection.id.is_some() {
        output.write_line(&error(&rejection));
    }
    for id in ids {
        // Of several with this id, the one of the refused line.
        if let Some(mut exchange) = pending.requests.take_newest(id) {
            exchange.refused(rejection.code.number());
            exchange.end(Outcome::Error);
        }
        if rejection.id.is_none() {
            output.write_line(&error(&rejection.clone().of(Some(id.clone()))));
        }
    }
}

/// Writes a message of the session. Cursors and comments are left out: a pipe cannot be resumed.
fn write_event<W>(event: ReplyEvent, pending: &mut PendingRequests, output: &mut Output<W>) {
    if let ReplyEvent::Frame(Frame::Message { data, .. }) = event {
        write_message(&data, pending, output);
    }
}

fn write_message<W>(message: &Bytes, pending: &mut PendingRequests, output: &mut Output<W>) {
    if let Some((id, _, code)) = final_response(message)
        && let Some(mut exchange) = pending.requests.take_answered(&id, code)
    {
        exchange.of_handshake(pending.handshake.as_ref());
        exchange.answered(message);
        exchange.sent(message.len());
    }
    output.write_line(message);
}

/// The pending requests. At most as many as the session accepts in flight, since a refused
/// request is answered at once.
struct PendingRequests {
    exchanges: Exchanges,
    /// The limits of the tenant.
    limits: Limits,
    /// The handshake that the client asked for, for the access log.
    handshake: Option<HandshakeSummary>,
    requests: Unanswered<Exchange>,
}

impl PendingRequests {
    /// Adds the requests of a body and returns their ids. The exchange of a single request goes on
    /// until its response.
    fn add_requests(&mut self, body: &Body, exchange: &mut Exchange) -> Vec<RequestId> {
        exchange.of_handshake(self.handshake.as_ref());
        let members = match body {
            Body::One(Message::Request(request)) => {
                if request.method == Method::Initialize {
                    self.handshake = HandshakeSummary::of_request(request);
                }
                return vec![self.add_request(request, exchange.take())];
            }
            Body::One(message) => {
                self.end_cancelled(message);
                return Vec::new();
            }
            Body::Batch(members) => members,
        };
        let mut ids = Vec::new();
        for member in members {
            match member {
                Ok(Message::Request(request)) => {
                    let split = exchange.split(&request.id);
                    ids.push(self.add_request(request, split));
                }
                Ok(message) => self.end_cancelled(message),
                // The session answers with its error.
                Err(rejection) => {
                    let Some(id) = &rejection.id else { continue };
                    let handling = Handling::Refused(rejection.code.number());
                    self.requests.add(id, handling, Some(exchange.split(id)));
                    ids.push(id.clone());
                }
            }
        }
        ids
    }

    fn add_request(&mut self, request: &Request, exchange: Exchange) -> RequestId {
        self.requests.add(&request.id, Handling::of(request), Some(exchange));
        request.id.clone()
    }

    /// A cancelled request gets no response, so it is no longer pending (CAN-01).
    fn end_cancelled(&mut self, message: &Message) {
        if let Message::Notification(notification) = message
            && let Some(id) = cancelled_id(notification)
            && let Some(mut cancelled) = self.requests.take_cancelled(&id)
        {
            cancelled.end(Outcome::Cancelled);
        }
    }
}

/// The pipe to the client. Lines are buffered until the next flush, which happens before anything
/// more is read. The buffer holds at most the answers to one line, or one message.
struct Output<W> {
    stdout: W,
    buffer: BytesMut,
}

impl<W> Output<W> {
    fn write_line(&mut self, message: &[u8]) {
        self.buffer.extend_from_slice(message);
        self.buffer.extend_from_slice(b"\n");
    }
}

impl<W: AsyncWrite + Unpin> Output<W> {
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

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: &[u8], bytes_max: usize, piece: usize) -> Vec<Option<String>> {
        let (mut write, mut pipe) = tokio::io::duplex(piece);
        let text = text.to_vec();
        let writer = async move {
            write.write_all(&text).await.unwrap();
        };
        let reader = async {
            let mut lines = LineSplitter::new(bytes_max);
            let mut read = Vec::new();
            while let Some(line) = next_line(&mut pipe, &mut lines).await.unwrap() {
                read.push(match line {
                    Line::Whole(line) => Some(String::from_utf8_lossy(&line).into_owned()),
                    Line::TooLong(_) => None,
                });
            }
            read
        };
        futures_util::future::join(writer, reader).await.1
    }

    #[actix_rt::test]
    async fn lines_are_the_same_however_the_pipe_cuts_them() {
        let text = b"{\"a\":1}\n\n  \r\n{\"b\":2}\r\n0123456789012345\n{\"c\":3}\nlast";
        let expected = ["{\"a\":1}", "{\"b\":2}", "", "{\"c\":3}", "last"]
            .map(|line| (!line.is_empty()).then(|| line.to_owned()));
        for piece in 1..64 {
            assert_eq!(read(text, 12, piece).await, expected, "pieces of {piece}");
        }
    }

    #[actix_rt::test]
    async fn a_line_without_end_is_reported_once_and_not_kept() {
        let endless = vec![b'x'; 1 << 20];
        assert_eq!(read(&endless, 1_000, 64 << 10).await, [None]);
    }
}
