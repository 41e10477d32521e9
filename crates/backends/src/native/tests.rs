use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use protocol::{Message, RequestId};
use tokio::sync::Notify;

use super::*;
use crate::LinkEvent;

#[derive(Default)]
struct Inner {
    dropped: AtomicUsize,
    closed: AtomicUsize,
    /// How many futures were dropped when the session ended.
    dropped_before: AtomicUsize,
    received: Mutex<Vec<Method>>,
    go: Notify,
    /// What the method `block` waits for, and where it tells that it has begun.
    blocking: Mutex<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>>,
    asked: Mutex<Option<Result<Bytes, Error>>>,
}

/// A handler whose methods are named by their effects.
#[derive(Clone, Default)]
struct TestHandler(Arc<Inner>);

struct CountsDrop(Arc<Inner>);

impl Drop for CountsDrop {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl Handler for TestHandler {
    fn info(&self) -> Info {
        Info::new("obedient", "1.2.3").capabilities(r#"{"tools":{}}"#).instructions("Be brief.")
    }

    async fn call(&self, call: Call) -> Result<Bytes, Error> {
        match call.method().as_str() {
            "echo" => Ok(call.params().unwrap_or(Bytes::from_static(b"{}"))),
            "fail" => Err(Error::invalid_params("not like this")),
            "panic" => panic!("as told"),
            "hang" => {
                let _held = CountsDrop(Arc::clone(&self.0));
                std::future::pending().await
            }
            "block" => {
                let _held = CountsDrop(Arc::clone(&self.0));
                let (begun, go) = self.0.blocking.lock().unwrap().take().unwrap();
                begun.send(()).unwrap();
                go.recv().unwrap();
                std::future::pending().await
            }
            "local" => {
                let spawned = tokio::task::spawn_local(async {});
                spawned.await.map_err(|_| Error::internal("it was not run"))?;
                Ok(Bytes::from_static(b"{}"))
            }
            "wait" => {
                self.0.go.notified().await;
                Ok(Bytes::from_static(b"{}"))
            }
            "tell" => {
                let peer = call.peer();
                for step in 1..=3 {
                    peer.progress(f64::from(step), Some(3.0), None).await.unwrap();
                }
                peer.notify("notifications/message", Some(br#"{"level":"info"}"#)).await.unwrap();
                Ok(Bytes::from_static(b"{}"))
            }
            "ask" => {
                let answer = call.peer().ask("sampling/createMessage", Some(b"{}")).await;
                *self.0.asked.lock().unwrap() = Some(answer.clone());
                answer
            }
            _ => Err(Error::method_not_found(call.method())),
        }
    }

    async fn notified(&self, notice: Notice) {
        self.0.received.lock().unwrap().push(notice.method().clone());
        if notice.method() == &Method::Initialized {
            notice.peer().notify("notifications/tools/list_changed", None).await.unwrap();
        }
    }

    fn closed(&self, _session: &SessionId) {
        // Its futures are dropped before.
        self.0.dropped_before.store(self.0.dropped.load(Ordering::Acquire), Ordering::Relaxed);
        self.0.closed.fetch_add(1, Ordering::Release);
    }
}

struct Talk {
    handler: TestHandler,
    link: Link,
}

impl Talk {
    async fn begin() -> Self {
        let handler = TestHandler::default();
        let session = SessionId::parse("s").unwrap();
        let mut link = NativeBackend::new(handler.clone()).open(&session);
        assert!(matches!(link.events.next().await, Some(LinkEvent::Up)));
        Self { handler, link }
    }

    fn send(&self, text: &str) {
        self.link.sender.send(Message::parse(Bytes::from(text.to_owned())).unwrap()).unwrap();
    }

    fn request(&self, id: i64, method: &str, params: &str) {
        self.send(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
        ));
    }

    async fn next(&mut self) -> (String, Option<RequestId>) {
        match self.link.events.next().await {
            Some(LinkEvent::Message { message, about }) => {
                (String::from_utf8(message.raw().to_vec()).unwrap(), about)
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Polls until nothing is ready. Whether no event was returned.
    fn is_idle(&mut self) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        self.link.events.poll_next(&mut context).is_pending()
    }
}

#[tokio::test]
async fn initialize_is_answered_from_the_info_with_the_requested_revision() {
    let mut talk = Talk::begin().await;
    talk.request(1, "initialize", r#"{"protocolVersion":"2025-06-18","capabilities":{}}"#);
    let (text, about) = talk.next().await;
    assert_eq!(
        text,
        r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"obedient","version":"1.2.3"},"instructions":"Be brief."}}"#
    );
    assert_eq!(about, Some(1.into()));
}

#[tokio::test]
async fn ping_needs_no_handler() {
    let mut talk = Talk::begin().await;
    talk.request(7, "ping", "{}");
    assert_eq!(talk.next().await.0, r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
}

#[test]
fn a_call_that_is_ready_at_once_is_answered_by_the_next_poll() {
    // Without a runtime, nothing can be spawned.
    let session = SessionId::parse("s").unwrap();
    let mut link = NativeBackend::new(TestHandler::default()).open(&session);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(link.events.poll_next(&mut context).is_ready());
    let request = br#"{"jsonrpc":"2.0","id":1,"method":"echo","params":{"a": 1}}"#;
    link.sender.send(Message::parse(Bytes::from_static(request)).unwrap()).unwrap();
    let std::task::Poll::Ready(Some(LinkEvent::Message { message, .. })) =
        link.events.poll_next(&mut context)
    else {
        panic!("no answer")
    };
    assert_eq!(&message.raw()[..], br#"{"jsonrpc":"2.0","id":1,"result":{"a": 1}}"#);
}

#[tokio::test]
async fn an_error_keeps_its_code_and_message() {
    let mut talk = Talk::begin().await;
    talk.request(1, "fail", "{}");
    assert!(talk.next().await.0.contains(r#""error":{"code":-32602,"message":"not like this"}"#));
}

#[tokio::test]
async fn a_panic_is_an_error_of_that_call_only() {
    let mut talk = Talk::begin().await;
    talk.request(1, "wait", "{}");
    talk.request(2, "panic", "{}");
    assert!(talk.next().await.0.contains(r#""id":2,"error":{"code":-32603"#));
    talk.handler.0.go.notify_one();
    assert_eq!(talk.next().await.1, Some(1.into()));
}

#[tokio::test]
async fn a_cancelled_call_is_dropped_and_never_answered() {
    let mut talk = Talk::begin().await;
    talk.request(1, "hang", "{}");
    assert!(talk.is_idle());
    talk.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#);
    assert!(talk.is_idle());
    assert_eq!(talk.handler.0.dropped.load(Ordering::Relaxed), 1);
    assert!(talk.handler.0.received.lock().unwrap().is_empty());
}

#[tokio::test]
async fn dropping_the_link_drops_every_running_call_and_notifies_the_handler() {
    let mut talk = Talk::begin().await;
    talk.request(1, "hang", "{}");
    talk.request(2, "hang", "{}");
    assert!(talk.is_idle());
    drop(talk.link);
    assert_eq!(talk.handler.0.dropped.load(Ordering::Relaxed), 2);
    assert_eq!(talk.handler.0.closed.load(Ordering::Relaxed), 1);
}

/// Parameters of more than 64 KiB.
fn long_params() -> String {
    format!(r#"{{"text":"{}"}}"#, "x".repeat(70 << 10))
}

#[tokio::test]
async fn a_session_ends_when_the_thread_that_polls_a_long_call_has_done_so() {
    let talk = Talk::begin().await;
    talk.link.charge_to(&budget::Budget::unlimited().unnamed_share("a"));
    let ((begun, has_begun), (go, goes)) = (mpsc::channel(), mpsc::channel());
    *talk.handler.0.blocking.lock().unwrap() = Some((begun, goes));
    talk.request(1, "block", &long_params());
    let Talk { handler, mut link } = talk;
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(link.events.poll_next(&mut context).is_pending());
    tokio::task::spawn_blocking(move || has_begun.recv()).await.unwrap().unwrap();
    drop(link);
    assert_eq!(handler.0.closed.load(Ordering::Acquire), 0, "its call is being polled");
    go.send(()).unwrap();
    let closed = async {
        while handler.0.closed.load(Ordering::Acquire) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), closed).await.unwrap();
    assert_eq!(handler.0.dropped_before.load(Ordering::Relaxed), 1);
    assert_eq!(handler.0.closed.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_long_call_cannot_start_local_tasks_and_fails_alone() {
    let local = tokio::task::LocalSet::new();
    let both = async {
        let mut talk = Talk::begin().await;
        talk.link.charge_to(&budget::Budget::unlimited().unnamed_share("a"));
        talk.request(1, "local", "{}");
        assert!(talk.next().await.0.contains(r#""id":1,"result""#));
        talk.request(2, "local", &long_params());
        assert!(talk.next().await.0.contains(r#""id":2,"error":{"code":-32603"#));
    };
    local.run_until(both).await;
}

#[tokio::test]
async fn messages_of_a_call_precede_its_response_and_name_the_call() {
    let mut talk = Talk::begin().await;
    talk.request(5, "tell", r#"{"_meta":{"progressToken":"p"}}"#);
    for step in 1..=3 {
        let (text, about) = talk.next().await;
        let params = format!(r#""params":{{"progressToken":"p","progress":{step}.0,"total":3.0}}"#);
        assert!(text.contains(&params), "{text}");
        assert_eq!(about, Some(5.into()));
    }
    assert!(talk.next().await.0.contains("notifications/message"));
    assert!(talk.next().await.0.contains(r#""result""#));
}

#[tokio::test]
async fn progress_that_was_not_requested_is_not_sent() {
    let mut talk = Talk::begin().await;
    talk.request(5, "tell", "{}");
    assert!(talk.next().await.0.contains("notifications/message"));
}

#[tokio::test]
async fn a_server_request_is_answered_by_the_clients_response() {
    let mut talk = Talk::begin().await;
    talk.request(9, "ask", "{}");
    let (question, about) = talk.next().await;
    assert!(question.contains(r#""id":"native-1","method":"sampling/createMessage""#));
    assert_eq!(about, Some(9.into()));
    talk.send(r#"{"jsonrpc":"2.0","id":"native-1","result":{"model":"m"}}"#);
    assert_eq!(talk.next().await.0, r#"{"jsonrpc":"2.0","id":9,"result":{"model":"m"}}"#);
}

#[tokio::test]
async fn a_clients_error_reaches_the_call_that_sent_the_request() {
    let mut talk = Talk::begin().await;
    talk.request(9, "ask", "{}");
    talk.next().await;
    talk.send(r#"{"jsonrpc":"2.0","id":"native-1","error":{"code":-1,"message":"no","data":[1]}}"#);
    talk.next().await;
    let asked = talk.handler.0.asked.lock().unwrap().clone().unwrap();
    let data = Some(Bytes::from_static(b"[1]"));
    assert_eq!(asked, Err(Error { code: -1, message: "no".into(), data }));
}

#[tokio::test]
async fn cancelling_a_call_cancels_its_server_request() {
    let mut talk = Talk::begin().await;
    talk.request(9, "ask", "{}");
    talk.next().await;
    talk.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}"#);
    let (text, _) = talk.next().await;
    assert!(text.contains(r#""notifications/cancelled","params":{"requestId":"native-1"}"#));
    // A late response is dropped.
    talk.send(r#"{"jsonrpc":"2.0","id":"native-1","result":{}}"#);
    assert!(talk.is_idle());
}

#[tokio::test]
async fn a_notification_reaches_the_handler_which_may_send_one_of_its_own() {
    let mut talk = Talk::begin().await;
    talk.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    let (text, about) = talk.next().await;
    assert!(text.contains("notifications/tools/list_changed"));
    assert_eq!(about, None);
    assert_eq!(*talk.handler.0.received.lock().unwrap(), [Method::Initialized]);
}

#[tokio::test]
async fn a_call_above_the_maximum_is_refused_and_the_others_continue() {
    let mut talk = Talk::begin().await;
    for id in 0..CALLS_MAX {
        talk.request(id as i64, "hang", "{}");
        assert!(talk.is_idle());
    }
    talk.request(1000, "echo", "{}");
    assert!(talk.next().await.0.contains(r#""id":1000,"error":{"code":-32000"#));
}

#[tokio::test]
async fn a_pending_call_does_not_delay_others() {
    let mut talk = Talk::begin().await;
    talk.request(1, "hang", "{}");
    talk.request(2, "wait", "{}");
    talk.request(3, "echo", "{}");
    assert_eq!(talk.next().await.1, Some(3.into()));
    talk.handler.0.go.notify_one();
    assert_eq!(talk.next().await.1, Some(2.into()));
}
