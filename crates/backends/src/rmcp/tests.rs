#![expect(deprecated, reason = "rmcp deprecates logging, which the handshake revisions have")]

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelledNotificationParam,
    ContentBlock, CustomRequest, ElicitResult, LoggingLevel, LoggingMessageNotificationParam,
    ProgressNotificationParam, ServerRequest,
};
use ::rmcp::service::{NotificationContext, RequestContext};
use ::rmcp::{ErrorData, Peer, ServerHandler};
use protocol::{Notification, Request, RequestId, Response};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::*;
use crate::LinkEvent;

#[derive(Default)]
struct Seen {
    dropped: AtomicUsize,
    cancelled: AtomicUsize,
    initialized: AtomicUsize,
    told_cancelled: AtomicUsize,
    progress: AtomicUsize,
    go: Notify,
}

/// A service whose tools are named by their effects.
#[derive(Clone, Default)]
struct TestService(Arc<Seen>);

struct CountsDrop(Arc<Seen>);

impl Drop for CountsDrop {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl ServerHandler for TestService {
    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let seen = Arc::clone(&self.0);
        let _held = CountsDrop(Arc::clone(&seen));
        match &*request.name {
            "panic" => panic!("as told"),
            "panic later" => {
                tokio::task::yield_now().await;
                panic!("as told");
            }
            "hang" => pending().await,
            "wait" => seen.go.notified().await,
            "until cancelled" => {
                context.ct.cancelled().await;
                seen.cancelled.fetch_add(1, Ordering::Relaxed);
            }
            "log" => {
                for _ in 0..3 {
                    log(&context.peer, &request.name).await;
                    tokio::task::yield_now().await;
                }
            }
            "log from a task" => {
                let peer = context.peer.clone();
                tokio::spawn(async move { log(&peer, "task").await }).await.unwrap();
            }
            "progress" => {
                let token = context.meta.get_progress_token().unwrap();
                let progress = ProgressNotificationParam::new(token, 1.0);
                context.peer.notify_progress(progress).await.unwrap();
            }
            "keep the peer" => {
                let peer = context.peer.clone();
                tokio::spawn(async move {
                    seen.go.notified().await;
                    log(&peer, "later").await;
                });
            }
            "ask" => return ask(&context.peer).await,
            "meta" => {
                let meta = serde_json::to_string(&context.meta).unwrap();
                return Ok(text_result(meta));
            }
            _ => return Err(ErrorData::invalid_params("unknown tool", Some(json!({ "a": 1 })))),
        }
        Ok(text_result(request.name))
    }

    async fn on_initialized(&self, _: NotificationContext<RoleServer>) {
        self.0.initialized.fetch_add(1, Ordering::Relaxed);
    }

    async fn on_cancelled(
        &self,
        _: CancelledNotificationParam,
        _: NotificationContext<RoleServer>,
    ) {
        self.0.told_cancelled.fetch_add(1, Ordering::Relaxed);
    }

    async fn on_progress(
        &self,
        progress: ProgressNotificationParam,
        _: NotificationContext<RoleServer>,
    ) {
        assert!(matches!(progress.progress_token.0, ::rmcp::model::NumberOrString::Number(_)));
        self.0.progress.fetch_add(1, Ordering::Relaxed);
    }
}

fn text_result(text: impl Into<String>) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}

async fn log(peer: &Peer<RoleServer>, text: &str) {
    let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(text));
    peer.notify_logging_message(message).await.unwrap();
}

async fn ask(peer: &Peer<RoleServer>) -> Result<CallToolResponse, ErrorData> {
    let question = CustomRequest::new("elicitation/create", Some(json!({ "message": "?" })));
    match peer.send_request(ServerRequest::CustomRequest(question)).await {
        Ok(::rmcp::model::ClientResult::ElicitResult(ElicitResult { content, .. })) => {
            Ok(text_result(content.unwrap_or_default().to_string()))
        }
        Ok(other) => Ok(text_result(format!("{other:?}"))),
        Err(::rmcp::ServiceError::McpError(error)) => Err(error),
        Err(error) => Ok(text_result(error.to_string())),
    }
}

/// A link to an [`TestService`] service, and what the service has recorded.
struct Open {
    link: Link,
    seen: Arc<Seen>,
}

impl Open {
    async fn new() -> Self {
        let seen = Arc::new(Seen::default());
        let service = TestService(Arc::clone(&seen));
        let backend = RmcpBackend::new(move |_| service.clone());
        let mut link = backend.open(&SessionId::parse("session").unwrap());
        assert!(matches!(link.events.next().await, Some(LinkEvent::Up)));
        Self { link, seen }
    }

    /// A link after the handshake.
    async fn initialized() -> Self {
        let mut open = Self::new().await;
        open.send(1, "initialize", initialize("2025-11-25"));
        open.answer(1).await;
        open.notify("notifications/initialized", json!({}));
        open
    }

    fn send(&self, id: i64, method: &str, params: Value) {
        let params = params.to_string();
        let request = Request::new(id.into(), method.into(), Some(params.as_bytes()));
        self.link.sender.send(request.into()).unwrap();
    }

    fn call(&self, id: i64, tool: &str) {
        self.send(id, "tools/call", json!({ "name": tool }));
    }

    fn notify(&self, method: &str, params: Value) {
        let params = params.to_string();
        let notification = Notification::new(method.into(), Some(params.as_bytes()));
        self.link.sender.send(notification.into()).unwrap();
    }

    /// The next message, and the request to which it belongs.
    async fn next_message(&mut self) -> (Value, Option<RequestId>) {
        let next = tokio::time::timeout(Duration::from_secs(10), self.link.events.next());
        match next.await.expect("a message arrives") {
            Some(LinkEvent::Message { message, about }) => {
                (serde_json::from_slice(message.raw()).unwrap(), about)
            }
            other => panic!("{other:?}"),
        }
    }

    async fn answer(&mut self, id: i64) -> Value {
        let (message, about) = self.next_message().await;
        assert_eq!((&message["id"], about), (&json!(id), Some(id.into())), "{message}");
        message
    }

    /// Runs all tasks until none is ready. Asserts that no message is sent meanwhile.
    async fn settle(&mut self) {
        for _ in 0..100 {
            tokio::task::yield_now().await;
            let next = std::pin::pin!(self.link.events.next());
            let polled = futures_util::future::FutureExt::now_or_never(next);
            assert!(polled.is_none(), "{polled:?}");
        }
    }
}

fn initialize(version: &str) -> Value {
    json!({
        "protocolVersion": version,
        "capabilities": { "elicitation": {} },
        "clientInfo": { "name": "test", "version": "1" },
    })
}

#[tokio::test]
async fn the_handshake_selects_the_requested_revision_if_the_service_supports_it() {
    for (asked, agreed) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
        ("DRAFT-2026-v1", "2025-11-25"),
    ] {
        let mut open = Open::new().await;
        open.send(1, "initialize", initialize(asked));
        assert_eq!(open.answer(1).await["result"]["protocolVersion"], agreed, "{asked}");
    }
}

#[tokio::test]
async fn the_service_receives_the_end_of_the_handshake() {
    let mut open = Open::initialized().await;
    open.settle().await;
    assert_eq!(open.seen.initialized.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn invalid_parameters_are_refused_as_such() {
    let mut open = Open::initialized().await;
    for (method, params) in [
        ("tools/call", json!({ "nam": "x" })),
        ("tools/call", json!({ "name": "x", "arguments": [] })),
        ("tools/list", json!({ "cursor": 1 })),
        ("logging/setLevel", json!({ "level": "loud" })),
        ("prompts/get", json!({})),
    ] {
        open.send(2, method, params);
        assert_eq!(open.answer(2).await["error"]["code"], -32602, "{method}");
    }
    open.send(2, "no/such", json!({}));
    assert_eq!(open.answer(2).await["error"]["code"], -32601);
}

#[tokio::test]
async fn an_error_keeps_its_data() {
    let mut open = Open::initialized().await;
    open.call(2, "nope");
    let error = json!({ "code": -32602, "message": "unknown tool", "data": { "a": 1 } });
    assert_eq!(open.answer(2).await["error"], error);
}

#[tokio::test]
async fn the_context_has_the_metadata() {
    let mut open = Open::initialized().await;
    let params = json!({ "name": "meta", "_meta": { "progressToken": 7, "x": "y" } });
    open.send(2, "tools/call", params);
    let text = &open.answer(2).await["result"]["content"][0]["text"];
    assert_eq!(text, r#"{"progressToken":7,"x":"y"}"#);
}

#[tokio::test]
async fn messages_of_concurrent_calls_belong_to_their_calls() {
    let mut open = Open::initialized().await;
    for id in 2..6 {
        open.call(id, "log");
    }
    let mut counts = [0; 6];
    for _ in 0..16 {
        let (message, about) = open.next_message().await;
        let Some(RequestId::Number(about)) = about else { panic!("{message}") };
        counts[about as usize] += 1;
        // The answer is the final response.
        let is_answer = counts[about as usize] == 4;
        assert_eq!(message["id"] == about, is_answer, "{message}");
    }
    assert_eq!(counts, [0, 0, 4, 4, 4, 4]);
}

#[tokio::test]
async fn messages_of_a_task_of_a_call_belong_to_the_call() {
    let mut open = Open::initialized().await;
    open.call(1, "wait");
    open.call(2, "log from a task");
    assert_eq!(open.next_message().await.1, Some(2.into()));
    open.answer(2).await;
}

#[tokio::test]
async fn messages_after_a_call_belong_to_none() {
    let mut open = Open::initialized().await;
    open.call(2, "keep the peer");
    open.answer(2).await;
    open.seen.go.notify_one();
    let (message, about) = open.next_message().await;
    assert_eq!((message["params"]["data"].as_str(), about), (Some("later"), None));
}

#[tokio::test]
async fn progress_carries_the_clients_token() {
    let mut open = Open::initialized().await;
    open.send(2, "tools/call", json!({ "name": "progress", "_meta": { "progressToken": "t" } }));
    let (message, about) = open.next_message().await;
    assert_eq!((message["params"]["progressToken"].as_str(), about), (Some("t"), Some(2.into())));
    open.answer(2).await;
}

#[tokio::test]
async fn concurrent_server_requests_get_their_own_responses() {
    let mut open = Open::initialized().await;
    open.call(2, "ask");
    open.call(3, "ask");
    let (first, first_about) = open.next_message().await;
    let (second, second_about) = open.next_message().await;
    assert_ne!(first["id"], second["id"]);
    assert_ne!(
        first["params"]["_meta"]["progressToken"],
        second["params"]["_meta"]["progressToken"]
    );
    assert_ne!(first_about, second_about);
    // The later request is answered first.
    for (question, about) in [(second, second_about), (first, first_about)] {
        let Some(RequestId::Number(call)) = about else { panic!() };
        let id = RequestId::from(question["id"].as_str().unwrap());
        let result = json!({ "action": "accept", "content": { "call": call } }).to_string();
        let answer = Response::result(id, result.as_bytes());
        open.link.sender.send(answer.clone().into()).unwrap();
        // A second response to one request is dropped.
        open.link.sender.send(answer.into()).unwrap();
        let text = open.answer(call).await["result"]["content"][0]["text"].clone();
        assert_eq!(text, json!({ "call": call }).to_string());
    }
    open.settle().await;
}

#[tokio::test]
async fn an_error_of_the_client_reaches_the_call_that_sent_the_request() {
    let mut open = Open::initialized().await;
    open.call(2, "ask");
    let (question, _) = open.next_message().await;
    let id = RequestId::from(question["id"].as_str().unwrap());
    open.link.sender.send(Response::error(Some(id), -1, "no", None).into()).unwrap();
    assert_eq!(open.answer(2).await["error"], json!({ "code": -1, "message": "no" }));
}

#[tokio::test]
async fn progress_of_a_server_request_reaches_the_service_with_its_own_token() {
    let mut open = Open::initialized().await;
    open.call(2, "ask");
    let (question, _) = open.next_message().await;
    let token = &question["params"]["_meta"]["progressToken"];
    open.notify("notifications/progress", json!({ "progressToken": token, "progress": 1 }));
    open.settle().await;
    assert_eq!(open.seen.progress.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_service_is_notified_of_a_cancelled_call_which_is_not_answered() {
    let mut open = Open::initialized().await;
    open.call(2, "until cancelled");
    open.settle().await;
    open.notify("notifications/cancelled", json!({ "requestId": 2, "reason": "enough" }));
    open.settle().await;
    assert_eq!(open.seen.cancelled.load(Ordering::Relaxed), 1);
    assert_eq!(open.seen.told_cancelled.load(Ordering::Relaxed), 1);
    // The id is free again.
    open.call(2, "log");
    for _ in 0..3 {
        assert_eq!(open.next_message().await.1, Some(2.into()));
    }
    open.answer(2).await;
}

#[tokio::test]
async fn a_panic_is_answered_and_does_not_affect_other_calls() {
    let mut open = Open::initialized().await;
    open.call(2, "wait");
    for tool in ["panic", "panic later"] {
        open.call(3, tool);
        assert_eq!(open.answer(3).await["error"]["code"], -32603);
    }
    open.seen.go.notify_one();
    assert_eq!(open.answer(2).await["result"]["content"][0]["text"], "wait");
}

#[tokio::test]
async fn a_factory_that_panics_ends_only_its_link() {
    let backend = RmcpBackend::new(|_| -> TestService { panic!("as told") });
    let mut link = backend.open(&SessionId::parse("session").unwrap());
    assert!(matches!(link.events.next().await, Some(LinkEvent::Down { .. })));
    assert!(link.events.next().await.is_none());
}

#[tokio::test]
async fn too_many_calls_at_once_are_refused() {
    let mut open = Open::initialized().await;
    for id in 0..CALLS_MAX as i64 {
        open.call(id, "hang");
        open.settle().await;
    }
    open.call(1000, "log");
    assert_eq!(open.answer(1000).await["error"]["code"], -32000);
}

#[tokio::test]
async fn a_dropped_link_ends_every_loop_and_future() {
    let mut open = Open::initialized().await;
    open.call(2, "hang");
    open.call(3, "until cancelled");
    open.settle().await;
    let seen = open.seen;
    let service = Arc::downgrade(&seen);
    drop(open.link);
    assert_eq!(seen.dropped.load(Ordering::Relaxed), 2);
    drop(seen);
    let gone = async {
        while service.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("the loops end");
}

#[test]
fn the_id_of_a_server_request_decodes_to_its_peer_loop_and_number() {
    assert_eq!(peer_loop::decode_request_id("rmcp-3-17"), Some((3, 17)));
    for name in ["rmcp-3", "rmcp-x-1", "native-1", "", "rmcp-1-"] {
        assert_eq!(peer_loop::decode_request_id(name), None, "{name}");
    }
}
