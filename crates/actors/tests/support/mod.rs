//! A node with a scripted server, and a client that reads its replies.
pub(crate) mod lossy_store;
pub(crate) mod nodes;
pub(crate) mod proxy;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::available_parallelism;
use std::time::Duration;

use actors::{
    Answer, Caller, Care, Frame, Handle, NodeParts, Opened, PAYLOAD_VERSIONS, Refusal, ReplyEvent,
    ReplyStream, SessionBytes, Settings,
};
use backends::{Backend, Backends, EventSender, Link, LinkEvent, LinkLimits, ServerEnd};
use bytes::Bytes;
use cluster::{Cluster, Membership};
use protocol::{Body, Message, Method, Notification, Request, RequestId, Response, SessionId};
use store::{Memory, Store};
use tenants::{Principal, Tenant};
use tokio::sync::Notify;

/// How long a test waits for an expected event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// A server whose tools are named after their behaviour.
#[derive(Default)]
pub(crate) struct Script {
    /// The number of links that were opened.
    pub(crate) opened: AtomicUsize,
    /// The number of links whose session has not dropped them.
    pub(crate) live: Arc<AtomicUsize>,
    /// The signal for which `later` waits.
    pub(crate) gate: Arc<Notify>,
    /// Notified for each request that is received.
    pub(crate) received: Arc<Notify>,
    /// The number of requests of clients.
    pub(crate) requests: Arc<AtomicUsize>,
    /// The number of these requests that call a tool.
    pub(crate) calls: AtomicUsize,
    /// A sender of every link.
    pub(crate) senders: Mutex<Vec<EventSender>>,
    /// The number of the first link that is never established, if any.
    pub(crate) silent_from: Option<usize>,
    /// The number of the first link whose opening panics, if any.
    pub(crate) panics_from: Option<usize>,
    /// Whether the server declares that it reports changes of its list of tools.
    pub(crate) reports_tools: bool,
}

/// The backend that follows the script.
pub(crate) struct Scripted(pub(crate) Arc<Script>);

impl Backend for Scripted {
    fn open(&self, _session: &SessionId) -> Link {
        let (link, end) = Link::pair(LinkLimits::default());
        let number = self.0.opened.fetch_add(1, Ordering::SeqCst);
        assert!(self.0.panics_from.is_none_or(|from| number < from), "a panic of the script");
        self.0.senders.lock().unwrap().push(end.sender());
        if self.0.silent_from.is_none_or(|from| number < from) {
            tokio::spawn(serve(Arc::clone(&self.0), end));
        }
        link
    }
}

async fn serve(script: Arc<Script>, mut end: ServerEnd) {
    script.live.fetch_add(1, Ordering::SeqCst);
    let _ = end.send(LinkEvent::Up).await;
    while let Some(message) = end.receive().await {
        let Message::Request(request) = message else { continue };
        if request.method == Method::Initialize {
            let tools = if script.reports_tools { r#""tools":{"listChanged":true},"# } else { "" };
            let result = format!(
                r#"{{"protocolVersion":"2025-11-25","capabilities":{{{tools}"logging":{{}}}},"serverInfo":{{"name":"s","version":"1"}}}}"#
            );
            send_response(&end, Response::result(request.id, result.as_bytes())).await;
            continue;
        }
        script.requests.fetch_add(1, Ordering::SeqCst);
        if request.method == Method::ToolsCall {
            script.calls.fetch_add(1, Ordering::SeqCst);
        }
        script.received.notify_one();
        match tool(&request).as_str() {
            "hang" => {}
            "die" => {
                end.sender().down("it died");
                break;
            }
            // Drops its end, while a sender still exists.
            "close_link" => break,
            "ask" => {
                if let Some(token) = request.progress_token() {
                    let token = token.to_json();
                    let params = format!(r#"{{"progressToken":{token},"progress":1}}"#);
                    let progress = Notification::new(Method::Progress, Some(params.as_bytes()));
                    let sent = LinkEvent::Message {
                        message: progress.into(),
                        about: Some(request.id.clone()),
                    };
                    let _ = end.send(sent).await;
                }
                let question = Request::new(7.into(), Method::RootsList, None);
                let sent = LinkEvent::Message {
                    message: question.into(),
                    about: Some(request.id.clone()),
                };
                let _ = end.send(sent).await;
                while let Some(received) = end.receive().await {
                    let Message::Response(answer) = received else { continue };
                    let answer = answer.outcome().unwrap_or_else(|error| error);
                    send_response(&end, Response::result(request.id, &answer)).await;
                    break;
                }
            }
            "large" | "huge" => {
                if tool(&request) == "large" {
                    script.gate.notified().await;
                }
                let bytes = if tool(&request) == "large" { LARGE } else { HUGE };
                let result = format!(r#"{{"text":"{}"}}"#, "x".repeat(bytes));
                send_response(&end, Response::result(request.id, result.as_bytes())).await;
            }
            "later" => {
                script.gate.notified().await;
                send_response(&end, Response::result(request.id, b"{\"late\":true}")).await;
            }
            "steps" => {
                for number in 0..STEPS {
                    send_log_message(&end, &request.id, number).await;
                }
                script.gate.notified().await;
                send_response(&end, Response::result(request.id, b"{\"done\":true}")).await;
            }
            "streamed" => {
                send_log_message(&end, &request.id, 0).await;
                let result = format!(r#"{{"text":"{}"}}"#, "x".repeat(MEDIUM_BYTES));
                send_response(&end, Response::result(request.id, result.as_bytes())).await;
            }
            "medium" => {
                let result = format!(r#"{{"text":"{}"}}"#, "x".repeat(MEDIUM_BYTES));
                send_response(&end, Response::result(request.id, result.as_bytes())).await;
            }
            "flood" => {
                for number in 0..FLOOD {
                    send_log_message(&end, &request.id, number).await;
                }
                send_response(&end, Response::result(request.id, b"{\"done\":true}")).await;
            }
            _ => send_response(&end, Response::result(request.id, b"{\"ok\":true}")).await,
        }
    }
    script.live.fetch_sub(1, Ordering::SeqCst);
}

/// The size of the result of `large`, in bytes: above the default bounds of a log and of a
/// connection's queue.
pub(crate) const LARGE: usize = 10 << 20;

/// The size of the result of `huge`, in bytes: above the default bound of a message.
pub(crate) const HUGE: usize = 17 << 20;

/// The number of notifications that `steps` sends before it waits for the gate.
pub(crate) const STEPS: usize = 3;

/// The size of the result of `medium`, in bytes.
pub(crate) const MEDIUM_BYTES: usize = 300_000;

/// The number of notifications that `flood` sends.
pub(crate) const FLOOD: usize = 100;

fn tool(request: &Request) -> String {
    let params = request.params().unwrap_or_default();
    let value: serde_json::Value = serde_json::from_slice(&params).unwrap_or_default();
    value["name"].as_str().unwrap_or_default().to_owned()
}

async fn send_response(end: &ServerEnd, response: Response) {
    let _ = end.send(LinkEvent::Message { message: response.into(), about: None }).await;
}

async fn send_log_message(end: &ServerEnd, about: &RequestId, number: usize) {
    let params = format!(r#"{{"level":"info","data":{number}}}"#);
    let notification = Notification::new(Method::LogMessage, Some(params.as_bytes()));
    let sent = LinkEvent::Message { message: notification.into(), about: Some(about.clone()) };
    let _ = end.send(sent).await;
}

/// The last message of a call that was answered, as JSON or as a stream.
pub(crate) fn final_response(events: &[ReplyEvent]) -> String {
    match events.last() {
        Some(ReplyEvent::Answer(Answer::Json(json))) => text(json),
        _ => messages(events).last().expect("a final response").1.clone(),
    }
}

/// Gives each thread for long messages other work, until the returned value is dropped. One test at a time does.
pub(crate) fn occupy_threads_of_long_messages() -> impl Sized {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (begun, has_begun) = mpsc::channel();
    let occupy = |_| {
        let (held, hold) = mpsc::channel::<()>();
        let begun = begun.clone();
        let computing = fairness::compute(&"busy".into(), move || {
            begun.send(()).expect("the test waits");
            hold.recv().expect_err("nothing is sent");
        });
        has_begun.recv().expect("the thread begins");
        (held, computing)
    };
    let threads = available_parallelism().map_or(1, usize::from);
    ((0..threads).map(occupy).collect::<Vec<_>>(), turn)
}

/// A node with one tenant.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) handle: Handle,
    pub(crate) script: Arc<Script>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) principal: Principal,
    pub(crate) session_bytes: SessionBytes,
    pub(crate) backends: Backends,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Settings::default(), Script::default())
    }

    pub(crate) fn with(settings: Settings, script: Script) -> Self {
        Self::on(settings, script, Arc::new(Memory::default()))
    }

    pub(crate) fn on(settings: Settings, script: Script, store: Arc<dyn Store>) -> Self {
        Self::sharing(settings, Arc::new(script), store)
    }

    /// As `on`, with a script that other nodes share.
    pub(crate) fn sharing(settings: Settings, script: Arc<Script>, store: Arc<dyn Store>) -> Self {
        let membership = Cluster::alone(Arc::clone(&store));
        Self::member(settings, Care::default(), script, store, membership)
    }

    /// A cluster of one with these settings for its server.
    pub(crate) fn caring(settings: Settings, care: Care) -> Self {
        let store: Arc<dyn Store> = Arc::new(Memory::default());
        let membership = Cluster::alone(Arc::clone(&store));
        Self::member(settings, care, Arc::default(), store, membership)
    }

    /// A node of the cluster that uses this store.
    pub(crate) async fn joined(
        settings: Settings,
        store: Arc<dyn Store>,
        peers: cluster::Settings,
    ) -> Self {
        let membership = Cluster::join(peers, Arc::clone(&store), PAYLOAD_VERSIONS).await.unwrap();
        Self::member(settings, Care::default(), Arc::default(), store, membership)
    }

    pub(crate) fn member(
        settings: Settings,
        care: Care,
        script: Arc<Script>,
        store: Arc<dyn Store>,
        membership: Membership,
    ) -> Self {
        let cares = [("acme".into(), care)].into();
        Self::assemble(settings, cares, script, (store, membership), SessionBytes::unlimited())
    }

    /// A cluster of one with this budget for the bytes of its sessions.
    pub(crate) fn bounded(settings: Settings, care: Care, bytes: SessionBytes) -> Self {
        let store: Arc<dyn Store> = Arc::new(Memory::default());
        let membership = Cluster::alone(Arc::clone(&store));
        let cares = [("acme".into(), care)].into();
        Self::assemble(settings, cares, Arc::default(), (store, membership), bytes)
    }

    /// A cluster of one with these tenants; the first one is the tenant of the world.
    pub(crate) fn of_tenants(settings: Settings, names: &[&str]) -> Self {
        let store: Arc<dyn Store> = Arc::new(Memory::default());
        let membership = Cluster::alone(Arc::clone(&store));
        let cares = names.iter().map(|name| (Arc::from(*name), Care::default())).collect();
        let bytes = SessionBytes::unlimited();
        Self::assemble(settings, cares, Arc::default(), (store, membership), bytes)
    }

    fn assemble(
        settings: Settings,
        cares: HashMap<Arc<str>, Care>,
        script: Arc<Script>,
        (store, membership): (Arc<dyn Store>, Membership),
        session_bytes: SessionBytes,
    ) -> Self {
        let backend: Arc<dyn Backend> = Arc::new(Scripted(Arc::clone(&script)));
        let backends = Backends::new([("acme".into(), backend)]);
        let tenant_sessions_max = cares.keys().map(|name| (Arc::clone(name), usize::MAX)).collect();
        let handle = Handle::new(NodeParts {
            settings,
            store: Arc::clone(&store),
            backends: backends.clone(),
            cares,
            membership,
            session_bytes: session_bytes.clone(),
            children: None,
            store_is_in_process: false,
            tenant_sessions_max,
            tenant_labels: telemetry::TenantLabels::default(),
            digest_secrets: Vec::new(),
            traces: telemetry::Traces::default(),
        });
        Self {
            handle,
            script,
            store,
            tenant: tenant("acme", 100_000),
            principal: Principal::anonymous(),
            session_bytes,
            backends,
        }
    }

    /// Posts an `initialize`.
    pub(crate) async fn initialize(&self) -> Result<Opened, Refusal> {
        self.initialize_in("2025-11-25").await
    }

    async fn initialize_in(&self, revision: &str) -> Result<Opened, Refusal> {
        let params = format!(
            r#"{{"protocolVersion":"{revision}","capabilities":{{"roots":{{}}}},"clientInfo":{{"name":"c","version":"1"}}}}"#
        );
        let request = Request::new(0.into(), Method::Initialize, Some(params.as_bytes()));
        self.handle.initialize(&self.tenant, &self.principal, request, None).await
    }

    /// Creates a session that is ready for calls.
    pub(crate) async fn session(&self) -> Caller {
        self.session_in("2025-11-25").await
    }

    pub(crate) async fn session_in(&self, revision: &str) -> Caller {
        let opened = self.initialize_in(revision).await.unwrap();
        let caller = self.caller(&opened.session);
        let events = receive_all(opened.replies).await;
        assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Welcome(_))]), "{events:?}");
        let initialized = Notification::new(Method::Initialized, None);
        let replies = self.handle.post(&caller, Body::One(initialized.into()), None);
        let events = receive_all(replies).await;
        assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Accepted)]), "{events:?}");
        caller
    }

    pub(crate) fn caller(&self, session: &SessionId) -> Caller {
        Caller {
            tenant: Arc::clone(&self.tenant),
            principal: self.principal.clone(),
            session: session.clone(),
            tokens: None,
        }
    }

    /// Posts a call.
    pub(crate) fn call(&self, caller: &Caller, id: i64, tool: &str) -> ReplyStream {
        self.handle.post(caller, call(id, tool), None)
    }

    /// Checks that a call returns the tool's answer.
    pub(crate) async fn check_call(&self, caller: &Caller, id: i64) {
        let events = receive_all(self.call(caller, id, "echo")).await;
        let [ReplyEvent::Answer(Answer::Json(json))] = &events[..] else { panic!("{events:?}") };
        assert_eq!(text(json), format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"ok":true}}}}"#));
    }

    /// Waits until this number of requests was received.
    pub(crate) async fn wait_for_requests(&self, requests: usize) {
        wait_until(|| self.script.requests.load(Ordering::SeqCst) >= requests).await;
    }

    /// Waits until no session is on this node.
    pub(crate) async fn wait_until_empty(&self) {
        wait_until(|| self.handle.sessions() == 0).await;
        wait_until(|| self.script.live.load(Ordering::SeqCst) == 0).await;
    }
}

pub(crate) fn tenant(name: &str, sessions_max: usize) -> Arc<Tenant> {
    Arc::new(Tenant::of_peer(name.into(), sessions_max))
}

pub(crate) fn call(id: i64, tool: &str) -> Body {
    let params = format!(r#"{{"name":"{tool}"}}"#);
    Body::One(Request::new(id.into(), Method::ToolsCall, Some(params.as_bytes())).into())
}

/// The refusal that is the whole reply.
pub(crate) async fn refusal(replies: ReplyStream) -> Refusal {
    let events = receive_all(replies).await;
    match &events[..] {
        [ReplyEvent::Answer(Answer::Refused(refusal))] => refusal.clone(),
        other => panic!("{other:?}"),
    }
}

/// Receives all events of a reply stream.
pub(crate) async fn receive_all(mut replies: ReplyStream) -> Vec<ReplyEvent> {
    let mut events = Vec::new();
    while let Some(next) = next(&mut replies).await {
        events.push(next);
    }
    events
}

/// Receives the next event, or fails the test.
pub(crate) async fn next(replies: &mut ReplyStream) -> Option<ReplyEvent> {
    tokio::time::timeout(PATIENCE, replies.next()).await.expect("no event arrived in time")
}

/// The messages among the events, with their event ids.
pub(crate) fn messages(events: &[ReplyEvent]) -> Vec<(Option<String>, String)> {
    let message = |events: &ReplyEvent| match events {
        ReplyEvent::Frame(Frame::Message { id, data }) => {
            Some((id.map(|id| id.to_string()), text(data)))
        }
        _ => None,
    };
    events.iter().filter_map(message).collect()
}

pub(crate) fn text(bytes: &Bytes) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Waits until the condition holds.
pub(crate) async fn wait_until(is: impl Fn() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    waited.await.expect("the condition did not hold in time");
}
