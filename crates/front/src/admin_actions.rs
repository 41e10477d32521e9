//! Performs what operators ask for, each in a task of its own that writes the records too.
//!
//! The connection of an operator may be closed at any time, also for one of a client without a credential. What
//! it asked for is performed and recorded all the same; the connection only waits for the answer.

use std::pin::pin;
use std::time::Duration;

use actix_http::{Method, Response, StatusCode};
use audit::Held;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::admin::{JSON, Operated, ServedClients, drain, json, take_drain_back, text};
use crate::admin_api::{ApiAnswer, ApiRequest, Listed, Performed};
use crate::admin_audit::{About, Operator};
use crate::admin_revocations::{self, Wanted};
use crate::body::Body;

/// How long the record of an action may take that comes before it. Without it the action is not performed.
const BEGIN: Duration = Duration::from_secs(2);

/// When an action ends that was not performed before, from its request on.
const PERFORM: Duration = Duration::from_secs(8);

/// When an action is answered that is performed, from its request on, also if its second record is not written
/// yet. Less than what a connection may take.
const ANSWER: Duration = Duration::from_secs(9);

/// Where the answer to a request goes.
pub(crate) type Answering = oneshot::Sender<Response<Body>>;

/// Has a task perform a request, and waits for its answer.
pub(crate) async fn detached<F>(perform: impl FnOnce(Answering) -> F) -> Response<Body>
where
    F: Future<Output = ()> + 'static,
{
    let (answering, answered) = oneshot::channel();
    actix_rt::spawn(perform(answering));
    answered.await.unwrap_or_else(|_| {
        let why = "the node stops; ask again";
        json(ApiAnswer::error(StatusCode::SERVICE_UNAVAILABLE, why))
    })
}

/// Performs an action of `/v1/…`.
pub(crate) async fn act(
    operated: Operated,
    operator: Operator,
    request: ApiRequest,
    _performed: OwnedSemaphorePermit,
    answering: Answering,
) {
    let Some(ServedClients { handle, tenants, records }) = operated.served.get() else { return };
    let began = Instant::now();
    let (action, object) = (request.action(), request.object());
    let user = request.user();
    let about = About {
        target: &object,
        tenant: user.as_ref().map(|(tenant, _)| tenant),
        subject: user.as_ref().map(|(_, subject)| &**subject),
        ..About::default()
    };
    let begun = timeout_at(began + BEGIN, records.begin(&operator, action, about)).await;
    if begun != Ok(Ok(())) {
        let why = Held.to_string();
        let _ = answering.send(json(ApiAnswer::error(StatusCode::SERVICE_UNAVAILABLE, why)));
        return records.end(&operator, action, about, "not performed").await;
    }
    let listed = Listed { handle, overview: handle.overview(), tenants };
    let performed = timeout_at(began + PERFORM, request.perform(listed)).await;
    let Performed { outcome, ended, answer } = performed.unwrap_or_else(|_| Performed::late());
    let session = ended.as_ref().map(|ended| ended.id);
    let tenant = ended.as_ref().map(|ended| &ended.tenant).or(about.tenant);
    let about = About { tenant, session, ..about };
    let recorded = records.end(&operator, action, about, outcome);
    answer_in_time(began, recorded, json(answer), answering).await;
}

/// Begins a drain, or takes it back.
pub(crate) async fn drain_or_undrain(
    operated: Operated,
    operator: Operator,
    (method, query): (Method, String),
    answering: Answering,
) {
    let Some(ServedClients { handle, records, .. }) = operated.served.get() else { return };
    let action = drain_action(&method);
    // A full disk is a reason to drain: it goes on without a record, and both records together delay the
    // answer no longer than one.
    let began = Instant::now();
    let until = began + records.hold().min(ANSWER);
    let about = About { target: "node", ..About::default() };
    let begun = records.begin(&operator, action, about);
    let _ = timeout_at(began + BEGIN.min(records.hold()), begun).await;
    let response = match method {
        Method::DELETE => take_drain_back(&operated, handle),
        _ => drain(&operated, handle, &query),
    };
    let outcome = response.status();
    let mut ended = pin!(records.end(&operator, action, about, outcome.as_str()));
    // What is not written in time is written later.
    let is_written = timeout_at(until, &mut ended).await.is_ok();
    let _ = answering.send(response);
    if !is_written {
        ended.await;
    }
}

/// The action of a request to `/drain`.
pub(crate) fn drain_action(method: &Method) -> &'static str {
    if *method == Method::DELETE { "undrain" } else { "drain" }
}

/// Revokes clients, or takes that back. Recorded when it is done: a full audit log does not delay that a client
/// is kept out.
pub(crate) async fn revoke(
    operated: Operated,
    operator: Operator,
    (method, action): (Method, &'static str),
    wanted: Wanted,
    answering: Answering,
) {
    let Some(ServedClients { handle, tenants, records }) = operated.served.get() else { return };
    let began = Instant::now();
    let ((status, body), changed) =
        admin_revocations::answer(&method, &wanted, handle, tenants).await;
    let recorded = records.revoked(&operator, action, &wanted, status.as_str(), changed.as_ref());
    let response = text(status, JSON, format!("{body}\n"));
    answer_in_time(began, recorded, response, answering).await;
}

/// Answers when the record is written, or before the connection is closed. The record is written in any case.
async fn answer_in_time(
    began: Instant,
    recorded: impl Future<Output = ()>,
    response: Response<Body>,
    answering: Answering,
) {
    let mut recorded = pin!(recorded);
    let is_written = timeout_at(began + ANSWER, &mut recorded).await.is_ok();
    // An error: the connection has ended.
    let _ = answering.send(response);
    if !is_written {
        recorded.await;
    }
}
