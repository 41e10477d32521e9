//! Streamable HTTP: `/{tenant}/mcp`, for 2025-03-26 and every revision with a handshake since.
//!
//! POST carries one message (or a batch, where the session's revision has them), GET opens or
//! resumes a stream, DELETE ends the session. The session's own revision decides the form of the
//! answer; the version header is only checked to be a known one (VER-02, VER-03, VER-04). Nothing
//! here has a timeout once a session has the request: the session owns the timeouts.

use actix_http::header::{self, HeaderName, HeaderValue};
use actix_http::{Method, Response, StatusCode};
use actors::{Answer, Opened, Refusal, ReplyEvent, ReplyStream};
use budget::GRANULE_BYTES;
use bytes::{BufMut, Bytes, BytesMut};
use fairness::{compute, is_long};
use protocol::{
    Body as Posted, ErrorCode, Message, Mirrored, Rejection, RequestId, Revision, SessionId,
};
use telemetry::Outcome;

use crate::accept::is_json;
use crate::audited::Dispatched;
use crate::body::Body;
use crate::drain::Present;
use crate::exchange::Exchange;
use crate::front_request::{FrontRequest, Service};
use crate::permissions::NotPermitted;
use crate::refusal::Refused;
use crate::route::Endpoint;
use crate::sse_body::SseBody;

/// The value of `Allow` (GET-02).
const ALLOW: &str = "GET, POST, DELETE";

/// Answers one request.
pub(crate) async fn answer(
    service: &Service,
    request: &mut FrontRequest<'_>,
) -> Result<Response<Body>, Refused> {
    match *request.method {
        Method::POST => post(service, request).await,
        Method::GET => get(service, request).await,
        Method::DELETE => delete(service, request).await,
        _ => Err(Refused::method(ALLOW)),
    }
}

async fn post(
    service: &Service,
    request: &mut FrontRequest<'_>,
) -> Result<Response<Body>, Refused> {
    if !request.heads.content_type.is_some_and(is_json) {
        return Err(Refused::content_type());
    }
    if !(request.heads.accept.json() && request.heads.accept.events()) {
        return Err(Refused::accept("both application/json and text/event-stream"));
    }
    let Some(session) = request.heads.session else {
        // Boxed: most requests are of a session, and each would reserve memory for it.
        return Box::pin(post_initialize(service, request)).await;
    };
    let raw = service.collect(request).await?;
    let again = raw.clone();
    let mut body = request.parse(raw).await?;
    request.exchange.posted(&mut body, Some(&request.head.headers));
    if let Some(initialize) = initialize_in(&body) {
        return Err(Refused::initialize_in_session().of(initialize));
    }
    check_version(request).map_err(|refused| refused.of(only_id(&body)))?;
    let session = SessionId::parse(session).ok_or(Refusal::UnknownSession)?;
    request.exchange.of_session(&session);
    match service.take_tokens(request, &mut body).await {
        Ok(()) => {}
        Err(limited) if limited.id().is_some() => {
            return Ok(answer_with_error(request, &limited.into_rejection()));
        }
        Err(limited) => return Err(limited.into()),
    }
    let body = match service.permitted(request, body, &again) {
        Ok(body) => body,
        Err(NotPermitted::Needs(scopes, id)) => {
            return Err(service.step_up(request, Endpoint::Mcp, &scopes).of(id));
        }
        // Any other status than 200 ends some clients.
        Err(NotPermitted::Refused(rejection)) if rejection.id.is_some() => {
            return Ok(answer_with_error(request, &rejection));
        }
        Err(NotPermitted::Refused(rejection)) => return Err(Refused::not_permitted(rejection)),
    };
    let response = match dispatch(service, request, &session, body).await {
        Ok(replies) => {
            let response = await_response(service, request, replies, Some(&session)).await;
            response.map_err(Refused::from)
        }
        Err(refused) => Err(refused),
    };
    // Any status but 200 on a POST in a live session ends some clients. An error that is not the
    // request's fault is therefore sent as its JSON-RPC answer.
    response.or_else(|refused| match refused {
        refused if refused.is_ours() => {
            request.exchange.end_as(Outcome::Error);
            request.exchange.refused(refused.rejection().code.number());
            answer_with_errors(&again, refused)
        }
        refused => Err(refused),
    })
}

/// Sends the body of a POST to its session, when it is recorded and its tokens are there.
async fn dispatch(
    service: &Service,
    request: &mut FrontRequest<'_>,
    session: &SessionId,
    body: Posted,
) -> Result<ReplyStream, Refused> {
    let ticket = service.ready(request, Dispatched::Posted(&body), has_request(&body)).await?;
    let (handle, mirrored) = (service.handle.clone(), mirrored(request));
    let caller = request.caller(session.clone());
    request.dispatch(ticket, move || handle.post(&caller, body, mirrored)).await
}

/// The answer to a request of a session that is refused.
fn answer_with_error(request: &mut FrontRequest<'_>, rejection: &Rejection) -> Response<Body> {
    request.exchange.end_as(Outcome::Error);
    request.exchange.refused(rejection.code.number());
    json(protocol::Response::rejecting(rejection).raw().clone())
}

/// A POST without a session: an `initialize`, or an error of the client.
async fn post_initialize(
    service: &Service,
    request: &mut FrontRequest<'_>,
) -> Result<Response<Body>, Refused> {
    let raw = service.collect_initialize(request).await?;
    let mut body = request.parse(raw.clone()).await?;
    request.exchange.posted(&mut body, Some(&request.head.headers));
    check_version(request).map_err(|refused| refused.of(only_id(&body)))?;
    let initialize = match body {
        Posted::One(Message::Request(initialize))
            if initialize.method == protocol::Method::Initialize =>
        {
            initialize
        }
        other => return Err(Refused::no_session().of(only_id(&other))),
    };
    let id = Some(initialize.id.clone());
    let handle = service.creating_handle(request).map_err(|refused| refused.of(id.clone()))?;
    let message = Message::Request(initialize);
    let (credential, exchange) = (&request.credential, &mut *request.exchange);
    service.limits.admit_message(request.tenant, credential, &message, exchange, None).await?;
    let allowed = service.limits.check_sessions(request.tenant, exchange).await;
    // Counted while what follows waits, until the node has the session.
    let pending = allowed.map_err(|over| Refused::from(over).of(id.clone()))?;
    let body = Posted::One(message);
    let body = service.permitted_or_refused(request, Endpoint::Mcp, body, &raw)?;
    let Posted::One(Message::Request(initialize)) = body else { return Err(Refused::no_session()) };
    let recorded = request.record(Dispatched::Request(&initialize)).await;
    recorded.map_err(|refused| refused.of(id.clone()))?;
    if let Err(refused) = service.exchange(request).await {
        return Ok(answer_with_error(request, refused.of(id).rejection()));
    }
    let initialize = initialize.with_tokens(request.tokens());
    request.set_dispatched();
    let Opened { session, replies } = handle
        .initialize(request.tenant, &request.credential.principal, initialize, mirrored(request))
        .await?;
    drop(pending);
    request.exchange.of_session(&session);
    service.check_opened(request, Endpoint::Mcp, &session)?;
    Ok(await_response(service, request, replies, Some(&session)).await?)
}

async fn get(service: &Service, request: &mut FrontRequest<'_>) -> Result<Response<Body>, Refused> {
    if !request.heads.accept.events() {
        return Err(Refused::accept("text/event-stream"));
    }
    let session = session_of(request)?;
    check_version(request)?;
    let after = request.heads.last_event_id.filter(|id| !id.is_empty()).map(str::to_owned);
    request.exchange.of_session(&session);
    if request.credential.grant.as_ref().is_some_and(|grant| grant.denies_all()) {
        return Err(Refused::kept_out());
    }
    service.limits.admit_stream(request.tenant, &request.credential, request.exchange).await?;
    // For what the session sends without a request; without it the session has an earlier one.
    service.exchange_for_later(request).await;
    let replies = service.handle.listen(&request.caller(session), after);
    Ok(await_response(service, request, replies, None).await?)
}

async fn delete(
    service: &Service,
    request: &mut FrontRequest<'_>,
) -> Result<Response<Body>, Refused> {
    let session = session_of(request)?;
    check_version(request)?;
    request.exchange.of_session(&session);
    // The session ends also if the server cannot be told.
    let ticket = service.ready(request, Dispatched::EndOfSession, false).await?;
    let (handle, caller) = (service.handle.clone(), request.caller(session));
    let replies = request.dispatch(ticket, move || handle.delete(&caller)).await?;
    Ok(await_response(service, request, replies, None).await?)
}

/// The session that a GET or a DELETE names (SES-05, GET-08).
fn session_of(request: &FrontRequest<'_>) -> Result<SessionId, Refused> {
    let named = request.heads.session.ok_or_else(Refused::no_session)?;
    Ok(SessionId::parse(named).ok_or(Refusal::UnknownSession)?)
}

/// VER-03. Clients of the first two revisions send no version (VER-05).
fn check_version(request: &FrontRequest<'_>) -> Result<(), Refused> {
    match request.heads.version {
        Some(version) if Revision::named(version).is_none() => Err(Refused::version()),
        _ => Ok(()),
    }
}

/// The headers that mirror the body, if any were sent. The session's revision decides whether
/// they must be correct (HDR-21).
fn mirrored(request: &FrontRequest<'_>) -> Option<Box<Mirrored>> {
    Mirrored::from_headers(request.heads.mirrored.iter().copied())
}

/// If the body has an `initialize`: its id, if it is not part of a batch (SES-11, BAT-02).
fn initialize_in(body: &Posted) -> Option<Option<RequestId>> {
    let is_initialize = |message: &Message| match message {
        Message::Request(request) => request.method == protocol::Method::Initialize,
        _ => false,
    };
    let there = match body {
        Posted::One(message) => is_initialize(message),
        Posted::Batch(members) => members.iter().flatten().any(is_initialize),
    };
    there.then(|| only_id(body))
}

/// Whether the body has a request for the tenant's server. The session answers a ping.
pub(crate) fn has_request(body: &Posted) -> bool {
    let is_request = |message: &Message| match message {
        Message::Request(request) => request.method != protocol::Method::Ping,
        _ => false,
    };
    match body {
        Posted::One(message) => is_request(message),
        Posted::Batch(members) => members.iter().flatten().any(is_request),
    }
}

/// The id of the one request that was posted.
fn only_id(body: &Posted) -> Option<RequestId> {
    match body {
        Posted::One(Message::Request(request)) => Some(request.id.clone()),
        _ => None,
    }
}

/// Waits for the first reply and builds the response from it.
async fn await_response(
    service: &Service,
    request: &mut FrontRequest<'_>,
    mut replies: ReplyStream,
    session: Option<&SessionId>,
) -> Result<Response<Body>, Refusal> {
    let first = replies.next().await;
    request.exchange.served(&replies);
    match first {
        Some(ReplyEvent::Answer(answer)) => {
            let answer = visible(request, answer).await;
            note_answer(request.exchange, &answer);
            let response = response_of(answer, session)?;
            request.accepted();
            Ok(charged(response, &replies))
        }
        Some(ReplyEvent::Open { welcome, .. }) => {
            request.accepted();
            let exchange = request.exchange.take();
            let body = SseBody::new(
                replies,
                Present::new(&service.drain),
                exchange,
                service.validity(request),
            );
            Ok(events(body, session.filter(|_| welcome)))
        }
        // The session left this node before it answered.
        Some(ReplyEvent::Moved) => Err(Refusal::Moved),
        Some(ReplyEvent::LeaseLost { .. }) => Err(Refusal::Unavailable),
        Some(ReplyEvent::Frame(_) | ReplyEvent::Abort) | None => Err(no_answer()),
    }
}

/// The refusal for a session that ended its replies without an answer: an internal error.
pub(crate) fn no_answer() -> Refusal {
    Refusal::Rejected(Rejection::new(ErrorCode::InternalError, "the server failed to answer"))
}

/// Charges a large answer to the tenant's share while its client reads it, with the tenant's permits.
fn charged(response: Response<Body>, replies: &ReplyStream) -> Response<Body> {
    match response.body() {
        Body::Whole(pieces) if pieces.len() >= GRANULE_BYTES => {}
        _ => return response,
    }
    response.map_body(|_, body| match body {
        Body::Whole(pieces) => {
            let pieces = pieces.charged(|bytes| replies.charge(bytes));
            Body::Whole(pieces.of_tenant(replies.tenant()))
        }
        other => other,
    })
}

/// The answer as its client may see it. A long one is read on another thread.
async fn visible(request: &FrontRequest<'_>, answer: Answer) -> Answer {
    let Some(grant) = &request.credential.grant else { return answer };
    match answer {
        Answer::Json(message) if is_long(message.len()) => {
            let grant = grant.clone();
            let filtered = compute(&request.tenant.name, move || grant.filter(message));
            Answer::Json(filtered.await)
        }
        Answer::Json(message) => Answer::Json(grant.filter(message)),
        Answer::Array(messages) => {
            Answer::Array(messages.into_iter().map(|message| grant.filter(message)).collect())
        }
        other => other,
    }
}

fn note_answer(exchange: &mut Exchange, answer: &Answer) {
    match answer {
        Answer::Json(message) | Answer::Welcome(message) => exchange.answered(message),
        Answer::Array(messages) => {
            messages.iter().for_each(|message| exchange.answered(message));
            exchange.answered_completely();
        }
        Answer::Nothing => exchange.end(Outcome::Cancelled),
        // Their statuses say it.
        Answer::Accepted | Answer::Ended | Answer::Refused(_) => {}
    }
}

fn response_of(answer: Answer, session: Option<&SessionId>) -> Result<Response<Body>, Refusal> {
    Ok(match answer {
        Answer::Json(message) => json(message),
        // SES-01.
        Answer::Welcome(message) => with_session_id(json(message), session),
        // POST-08.
        Answer::Accepted => Response::with_body(StatusCode::ACCEPTED, Body::Empty),
        Answer::Array(messages) => json(array(&messages)),
        // CAN-01: a stream without events answers a cancelled request.
        Answer::Nothing => {
            let mut response = Response::with_body(StatusCode::OK, Body::Empty);
            put_event_headers(&mut response);
            response
        }
        // SES-07.
        Answer::Ended => Response::with_body(StatusCode::NO_CONTENT, Body::Empty),
        Answer::Refused(refusal) => return Err(refusal),
    })
}

/// An SSE response; `welcome` is the id of a session that was just created.
pub(crate) fn events(body: SseBody, welcome: Option<&SessionId>) -> Response<Body> {
    let mut response = Response::with_body(StatusCode::OK, Body::Events(body));
    put_event_headers(&mut response);
    with_session_id(response, welcome)
}

/// No proxy or cache may hold back, change or repeat events (POST-17).
fn put_event_headers(response: &mut Response<Body>) {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    let cache = HeaderValue::from_static("no-cache, no-transform");
    headers.insert(header::CACHE_CONTROL, cache);
    let buffering = HeaderName::from_static("x-accel-buffering");
    headers.insert(buffering, HeaderValue::from_static("no"));
}

fn json(message: Bytes) -> Response<Body> {
    let mut response = Response::with_body(StatusCode::OK, Body::whole(message));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn with_session_id(mut response: Response<Body>, session: Option<&SessionId>) -> Response<Body> {
    if let Some(id) = session.and_then(|id| HeaderValue::from_str(id.as_str()).ok()) {
        response.headers_mut().insert(HeaderName::from_static("mcp-session-id"), id);
    }
    response
}

/// A JSON array of JSON texts (BAT-04).
fn array(members: &[Bytes]) -> Bytes {
    let bytes = members.iter().map(|member| member.len() + 1).sum::<usize>() + 2;
    let mut array = BytesMut::with_capacity(bytes);
    array.put_u8(b'[');
    for (index, member) in members.iter().enumerate() {
        if index > 0 {
            array.put_u8(b',');
        }
        array.put_slice(member);
    }
    array.put_u8(b']');
    array.freeze()
}

/// The node's fault as the answer to each posted request. The other messages of the body were not
/// accepted, which only a status can express.
fn answer_with_errors(raw: &Bytes, refused: Refused) -> Result<Response<Body>, Refused> {
    let error = |message: &Message| match message {
        Message::Request(request) => {
            let rejection = refused.rejection();
            let rejection = Rejection::new(rejection.code, rejection.message.clone());
            Some(protocol::Response::rejecting(&rejection.of(Some(request.id.clone()))))
        }
        _ => None,
    };
    match protocol::parse(raw.clone(), &protocol::Limits::default())? {
        Posted::One(message) => error(&message).map(|error| json(error.raw().clone())),
        Posted::Batch(members) => {
            let errors: Vec<Bytes> =
                members.iter().flatten().filter_map(error).map(|e| e.raw().clone()).collect();
            (!errors.is_empty()).then(|| json(array(&errors)))
        }
    }
    .ok_or(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(refusal: Refusal, posted: &'static str, status: u16, body: &str) {
        let answer =
            answer_with_errors(&Bytes::from_static(posted.as_bytes()), Refused::from(refusal));
        let response = answer.unwrap_or_else(Refused::into_response);
        assert_eq!(response.status().as_u16(), status);
        let Body::Whole(mut sent) = response.into_body() else { panic!("{posted}") };
        let sent = sent.next_piece().unwrap();
        assert!(sent.starts_with(body.as_bytes()), "{sent:?}");
    }

    #[test]
    fn a_fault_of_ours_is_the_answer_to_every_request_that_was_posted() {
        let ping = r#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#;
        let error = r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32000,"#;
        check(Refusal::Busy, ping, 200, error);
        check(Refusal::Unavailable, ping, 200, error);
        let batch =
            r#"[{"jsonrpc":"2.0","id":"a","method":"ping"},7,{"jsonrpc":"2.0","method":"x"}]"#;
        check(Refusal::Busy, batch, 200, &format!("[{error}"));
        check(no_answer(), ping, 200, r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32603,"#);
    }

    #[test]
    fn what_asks_for_nothing_is_refused_with_a_status() {
        let error = r#"{"jsonrpc":"2.0","error":{"code":-32000,"#;
        check(Refusal::Unavailable, r#"{"jsonrpc":"2.0","method":"x"}"#, 503, error);
        check(Refusal::Unavailable, r#"[{"jsonrpc":"2.0","method":"x"}]"#, 503, error);
    }
}
