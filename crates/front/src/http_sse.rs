//! HTTP+SSE of 2024-11-05: `GET /{tenant}/sse` opens the one stream of a session, and `POST
//! /{tenant}/messages?session=<id>` sends a message to the session. The response to a POST is
//! written to the stream; the session ends with the stream (OLD-04). Streams cannot be resumed
//! (OLD-10), and no header of a later revision is required (OLD-09).

use actix_http::{Method, Response, StatusCode};
use actors::{Answer, Opened, Refusal, ReplyEvent};
use protocol::{Body as Posted, SessionId};

use crate::accept::is_json;
use crate::audited::Dispatched;
use crate::body::Body;
use crate::drain::Present;
use crate::front_request::{FrontRequest, Service};
use crate::refusal::Refused;
use crate::route::Endpoint;
use crate::sse_body::SseBody;
use crate::stream_spans::KeptSpans;
use crate::streamable_http::{events, has_request, no_answer};

/// Opens a session and its stream (OLD-01). Any other method gets 405: a client that probes with
/// a POST then falls back to this transport (OLD-07).
pub(crate) async fn open(
    service: &Service,
    request: &mut FrontRequest<'_>,
) -> Result<Response<Body>, Refused> {
    if *request.method != Method::GET {
        return Err(Refused::method("GET"));
    }
    if !request.heads.accept.events() {
        return Err(Refused::accept("text/event-stream"));
    }
    if request.credential.grant.as_ref().is_some_and(|grant| !grant.may_open()) {
        return Err(Refused::kept_out());
    }
    let handle = service.creating_handle(request)?;
    service.limits.admit_stream(request.tenant, &request.credential, request.exchange).await?;
    let pending = service.limits.check_sessions(request.tenant, request.exchange).await?;
    let principal = &request.credential.principal;
    let opened = handle.connect_counted(request.tenant, principal, pending).await?;
    let Opened { session, replies } = opened;
    service.check_opened(request, Endpoint::Sse, &session)?;
    request.accepted();
    // OLD-02: a path without an origin, so the client posts to this origin. A session id needs no
    // escaping.
    let (base, tenant) = (service.urls.path(), &request.tenant.name);
    let path = match request.is_at_host {
        true => "/messages".to_owned(),
        false => format!("{base}/{tenant}/messages"),
    };
    let endpoint = format!("{path}?session={}", session.as_str());
    request.exchange.of_session(&session);
    let (exchange, spans) = (request.exchange.take(), service.stream_spans.open(&session));
    let body =
        SseBody::new(replies, Present::new(&service.drain), exchange, service.validity(request));
    Ok(events(body.with_endpoint(&endpoint, spans), None))
}

/// Receives a client's message. A 202 only means that the session accepted the message (OLD-03).
pub(crate) async fn post(
    service: &Service,
    request: &mut FrontRequest<'_>,
) -> Result<Response<Body>, Refused> {
    if *request.method != Method::POST {
        return Err(Refused::method("POST"));
    }
    if !request.heads.content_type.is_some_and(is_json) {
        return Err(Refused::content_type());
    }
    // Before the body is read: without a session no message can be accepted.
    let session = session_in(request.query)?;
    request.exchange.of_session(&session);
    let raw = service.collect(request).await?;
    let mut body = request.parse(raw.clone()).await?;
    request.exchange.posted(&mut body, Some(&request.head.headers));
    // A status: the answer to a request goes to another connection.
    service.take_tokens(request, &mut body).await?;
    let body = service.permitted_or_refused(request, Endpoint::Sse, body, &raw)?;
    request.exchange.answered_elsewhere(&body);
    service.stream_spans.end_cancelled(&session, &body);
    let spans = request.exchange.give_spans(&body, &session, &service.stream_spans);
    let accepted = dispatch(service, request, session, body, spans.as_ref()).await;
    if let (Err(refused), Some(spans)) = (&accepted, spans) {
        spans.refuse(refused.status(), refused.rejection().code.number());
    }
    accepted
}

/// Sends a message to its session.
async fn dispatch(
    service: &Service,
    request: &mut FrontRequest<'_>,
    session: SessionId,
    body: Posted,
    spans: Option<&KeptSpans>,
) -> Result<Response<Body>, Refused> {
    let ticket =
        service.ready(request, Dispatched::AnsweredElsewhere(&body), has_request(&body)).await?;
    let (handle, caller) = (service.handle.clone(), request.caller(session));
    let mut replies = request.dispatch(ticket, move || handle.post(&caller, body, None)).await?;
    let first = replies.next().await;
    request.exchange.served(&replies);
    if let Some(spans) = spans {
        spans.served(&replies);
    }
    match first {
        Some(ReplyEvent::Answer(Answer::Refused(refusal))) => Err(refusal.into()),
        Some(ReplyEvent::Answer(Answer::Accepted)) => {
            request.accepted();
            Ok(Response::with_body(StatusCode::ACCEPTED, Body::Empty))
        }
        // The session answers on the connection of the POST, so it is one of Streamable HTTP.
        Some(ReplyEvent::Answer(_) | ReplyEvent::Open { .. }) => {
            Err(Refusal::UnknownSession.into())
        }
        Some(_) | None => Err(no_answer().into()),
    }
}

/// The session that the endpoint event named. A request without a session id is refused (OLD-04).
fn session_in(query: &str) -> Result<SessionId, Refused> {
    let named = query.split('&').find_map(|pair| pair.strip_prefix("session="));
    Ok(named.and_then(SessionId::parse).ok_or(Refusal::UnknownSession)?)
}
