//! Messages and requests that a call sends to the client before it ends.

use std::time::Duration;

use rmcp::model::{
    ClientCapabilities, ClientResult, CreateMessageRequest, CreateMessageRequestParams,
    CustomRequest, ElicitResult, ErrorData, ListRootsRequest, LoggingLevel,
    LoggingMessageNotification, LoggingMessageNotificationParam, ProgressNotification,
    ProgressNotificationParam, SamplingMessage, ServerNotification, ServerRequest,
};
use rmcp::service::{PeerRequestOptions, ServiceError};
use serde_json::{Value, json};

use crate::Context;
use crate::session::Session;

/// The reason why a call ends without its result.
pub(crate) enum Stop {
    /// The client has cancelled the call.
    Cancelled,
    /// The server does not accept the request: a JSON-RPC error.
    Refused(ErrorData),
    /// The tool failed: a result with `isError` (TOOL-05).
    Failed(String),
}

/// Waits, unless the client cancels the call.
pub(crate) async fn pause(context: &Context, duration: Duration) -> Result<(), Stop> {
    tokio::select! {
        () = context.ct.cancelled() => Err(Stop::Cancelled),
        () = tokio::time::sleep(duration) => Ok(()),
    }
}

/// Sends a log message, if the client wants messages of that level.
pub(crate) async fn log(
    session: &Session,
    context: &Context,
    level: LoggingLevel,
    text: impl Into<Value>,
) -> Result<(), Stop> {
    if !session.wants(level) {
        return Ok(());
    }
    let params = LoggingMessageNotificationParam::new(level, text.into()).with_logger("everything");
    let notification = LoggingMessageNotification::new(params);
    notify(context, ServerNotification::LoggingMessageNotification(notification)).await
}

/// Sends progress, if the client requested it (PRG-01).
pub(crate) async fn progress(context: &Context, done: f64, total: f64) -> Result<(), Stop> {
    let Some(token) = context.meta.get_progress_token() else { return Ok(()) };
    let params = ProgressNotificationParam::new(token, done).with_total(total);
    let notification = ProgressNotification::new(params);
    notify(context, ServerNotification::ProgressNotification(notification)).await
}

pub(crate) async fn notify(
    context: &Context,
    notification: ServerNotification,
) -> Result<(), Stop> {
    context.peer.send_notification(notification).await.map_err(|_| Stop::Cancelled)
}

/// Sends a sampling request to the client.
pub(crate) async fn sample(context: &Context, prompt: &str) -> Result<String, Stop> {
    declared(context, "sampling", |client| client.sampling.is_some())?;
    let messages = vec![SamplingMessage::user_text(prompt)];
    let request = CreateMessageRequest::new(CreateMessageRequestParams::new(messages, 100));
    match ask(context, ServerRequest::CreateMessageRequest(request)).await? {
        ClientResult::CreateMessageResult(result) => {
            let text = result.message.content.first().and_then(|block| block.as_text());
            Ok(text.map(|text| text.text.clone()).unwrap_or_default())
        }
        _ => Err(Stop::Failed("the client's answer is not a sampling result".into())),
    }
}

/// Sends an elicitation request to the client. The schema is sent as it is written, which the types
/// of `rmcp` would not allow.
pub(crate) async fn elicit(
    context: &Context,
    message: &str,
    schema: Value,
) -> Result<ElicitResult, Stop> {
    declared(context, "elicitation", |client| client.elicitation.is_some())?;
    let params = json!({ "message": message, "requestedSchema": schema });
    let request = CustomRequest::new("elicitation/create", Some(params));
    match ask(context, ServerRequest::CustomRequest(request)).await? {
        ClientResult::ElicitResult(result) => Ok(result),
        _ => Err(Stop::Failed("the client's answer is not an elicitation result".into())),
    }
}

/// The client's roots.
pub(crate) async fn roots(context: &Context) -> Result<Vec<String>, Stop> {
    declared(context, "roots", |client| client.roots.is_some())?;
    let request = ServerRequest::ListRootsRequest(ListRootsRequest::default());
    match ask(context, request).await? {
        ClientResult::ListRootsResult(result) => {
            Ok(result.roots.into_iter().map(|root| root.uri).collect())
        }
        _ => Err(Stop::Failed("the client's answer is not a list of roots".into())),
    }
}

/// Refuses a request to a client that did not declare the capability (SMP-01, ELI-01, ROOT-01).
fn declared(
    context: &Context,
    what: &str,
    has: impl Fn(&ClientCapabilities) -> bool,
) -> Result<(), Stop> {
    if context.client_capabilities().is_some_and(|client| has(&client)) {
        return Ok(());
    }
    Err(Stop::Failed(format!("the client did not declare the capability `{what}`")))
}

/// A request to the client ends with the call that sent it, and the client is notified (CAN-05).
async fn ask(context: &Context, request: ServerRequest) -> Result<ClientResult, Stop> {
    let options = PeerRequestOptions::no_options();
    let sent = context.peer.send_cancellable_request(request, options).await;
    let mut handle = sent.map_err(|error| Stop::Failed(error.to_string()))?;
    tokio::select! {
        answer = &mut handle.rx => match answer {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(ServiceError::McpError(error))) => {
                Err(Stop::Failed(format!("the client refused: {}", error.message)))
            }
            Ok(Err(error)) => Err(Stop::Failed(error.to_string())),
            Err(_) => Err(Stop::Cancelled),
        },
        () = context.ct.cancelled() => {
            let _ = handle.cancel(Some("the call was cancelled".into())).await;
            Err(Stop::Cancelled)
        }
    }
}
