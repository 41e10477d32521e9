//! A node with a scripted server, and a client that reads what it is told.
pub(crate) mod between;
pub(crate) mod forgetful;
pub(crate) mod nodes;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actors::{
    Answer, Caller, Care, Frame, Handle, NodeParts, Opened, PAYLOAD_VERSIONS, Refusal, ReplyEvent,
    ReplyStream, Settings,
};
use backends::{Backend, Backends, EventSender, Link, LinkEvent, LinkLimits, ServerEnd};
use bytes::Bytes;
use cluster::{Cluster, Membership};
use protocol::{Body, Message, Method, Notification, Request, RequestId, Response, SessionId};
use store::{Memory, Store};
use tenants::{Principal, Tenant};
use tokio::sync::Notify;

/// How long a test waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// A server whose tools are named after what they do.
#[derive(Default)]
pub(crate) struct Script {
    /// Links that were opened.
    pub(crate) opened: AtomicUsize,
    /// Links whose session has not let go.
    pub(crate) live: Arc<AtomicUsize>,
    /// What `later` waits for.
    pub(crate) gate: Arc<Notify>,
    /// Told each time a request is heard.
    pub(crate) heard: Arc<Notify>,
    /// How many requests of clients were heard.
    pub(crate) requests: Arc<AtomicUsize>,
    /// How many of them call a tool.
    pub(crate) calls: AtomicUsize,
    /// A sender of every link.
    pub(crate) senders: Mutex<Vec<EventSender>>,
    /// Whether links open; the first so many, if not all.
    pub(crate) mute_from: Option<usize>,
    /// From which link on opening one panics.
    pub(crate) panics_from: Option<usize>,
}

/// The backend that follows the script.
pub(crate) struct Scripted(pub(crate) Arc<Script>);

impl Backend for Scripted {
    fn open(&self, _session: &SessionId) -> Link {
        let (link, end) = Link::pair(LinkLimits::default());
        let number = self.0.opened.fetch_add(1, Ordering::SeqCst);
        assert!(self.0.panics_from.is_none_or(|from| number < from), "the script says so");
        self.0.senders.lock().unwrap().push(end.sender());
        if self.0.mute_from.is_none_or(|from| number < from) {
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
            let result = br#"{"protocolVersion":"2025-11-25","capabilities":{"logging":{}},"serverInfo":{"name":"s","version":"1"}}"#;
            say(&end, Response::result(request.id, result)).await;
            continue;
        }
        script.requests.fetch_add(1, Ordering::SeqCst);
        if request.method == Method::ToolsCall {
            script.calls.fetch_add(1, Ordering::SeqCst);
        }
        script.heard.notify_one();
        match tool(&request).as_str() {
            "hang" => {}
            "die" => {
                end.sender().down("it died");
                break;
            }
            // Lets go of its end, while somebody can still speak for it.
            "deafen" => break,
            "ask" => {
                if let Some(token) = request.progress_token() {
                    let token = token.to_json();
                    let params = format!(r#"{{"progressToken":{token},"progress":1}}"#);
                    let progress = Notification::new(Method::Progress, Some(params.as_bytes()));
                    let said = LinkEvent::Message {
                        message: progress.into(),
                        about: Some(request.id.clone()),
                    };
                    let _ = end.send(said).await;
                }
                let question = Request::new(7.into(), Method::RootsList, None);
                let said = LinkEvent::Message {
                    message: question.into(),
                    about: Some(request.id.clone()),
                };
                let _ = end.send(said).await;
                while let Some(heard) = end.receive().await {
                    let Message::Response(answer) = heard else { continue };
                    let answer = answer.outcome().unwrap_or_else(|error| error);
                    say(&end, Response::result(request.id, &answer)).await;
                    break;
                }
            }
            "large" | "huge" => {
                if tool(&request) == "large" {
                    script.gate.notified().await;
                }
                let bytes = if tool(&request) == "large" { LARGE } else { HUGE };
                let result = format!(r#"{{"text":"{}"}}"#, "x".repeat(bytes));
                say(&end, Response::result(request.id, result.as_bytes())).await;
            }
            "later" => {
                script.gate.notified().await;
                say(&end, Response::result(request.id, b"{\"late\":true}")).await;
            }
            "steps" => {
                for number in 0..STEPS {
                    tell(&end, &request.id, number).await;
                }
                script.gate.notified().await;
                say(&end, Response::result(request.id, b"{\"done\":true}")).await;
            }
            "medium" => {
                let result = format!(r#"{{"text":"{}"}}"#, "x".repeat(MEDIUM_BYTES));
                say(&end, Response::result(request.id, result.as_bytes())).await;
            }
            "flood" => {
                for number in 0..FLOOD {
                    tell(&end, &request.id, number).await;
                }
                say(&end, Response::result(request.id, b"{\"done\":true}")).await;
            }
            _ => say(&end, Response::result(request.id, b"{\"ok\":true}")).await,
        }
    }
    script.live.fetch_sub(1, Ordering::SeqCst);
}

/// The bytes of what `large` answers once the gate opens: more than a log keeps for long and
/// than a connection may have waiting, by their defaults.
pub(crate) const LARGE: usize = 10 << 20;

/// The bytes of what `huge` answers: more than any message may have, by the default.
pub(crate) const HUGE: usize = 17 << 20;

/// How many notifications `steps` sends before it waits for the gate.
pub(crate) const STEPS: usize = 3;

/// How much text `large` returns, in bytes.
pub(crate) const MEDIUM_BYTES: usize = 300_000;

/// How many notifications `flood` sends.
pub(crate) const FLOOD: usize = 100;

fn tool(request: &Request) -> String {
    let params = request.params().unwrap_or_default();
    let value: serde_json::Value = serde_json::from_slice(&params).unwrap_or_default();
    value["name"].as_str().unwrap_or_default().to_owned()
}

async fn say(end: &ServerEnd, response: Response) {
    let _ = end.send(LinkEvent::Message { message: response.into(), about: None }).await;
}

async fn tell(end: &ServerEnd, about: &RequestId, number: usize) {
    let params = format!(r#"{{"level":"info","data":{number}}}"#);
    let notification = Notification::new(Method::LogMessage, Some(params.as_bytes()));
    let said = LinkEvent::Message { message: notification.into(), about: Some(about.clone()) };
    let _ = end.send(said).await;
}

/// A node with one tenant.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) handle: Handle,
    pub(crate) script: Arc<Script>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) principal: Principal,
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

    /// As `on`, with a script that other nodes follow, too.
    pub(crate) fn sharing(settings: Settings, script: Arc<Script>, store: Arc<dyn Store>) -> Self {
        let membership = Cluster::alone(Arc::clone(&store));
        Self::member(settings, Care::default(), script, store, membership)
    }

    /// A node on its own, with this care for its server.
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
        let backend: Arc<dyn Backend> = Arc::new(Scripted(Arc::clone(&script)));
        let backends = Backends::new([("acme".into(), backend)]);
        let cares = [("acme".into(), care)].into();
        let store_of_node = Arc::clone(&store);
        let handle =
            Handle::new(NodeParts { settings, store: store_of_node, backends, cares, membership });
        Self {
            handle,
            script,
            store,
            tenant: tenant("acme", 100_000),
            principal: Principal::anonymous(),
        }
    }

    /// Posts an `initialize`.
    pub(crate) async fn begin(&self) -> Result<Opened, Refusal> {
        self.begin_in("2025-11-25").await
    }

    async fn begin_in(&self, revision: &str) -> Result<Opened, Refusal> {
        let params = format!(
            r#"{{"protocolVersion":"{revision}","capabilities":{{"roots":{{}}}},"clientInfo":{{"name":"c","version":"1"}}}}"#
        );
        let request = Request::new(0.into(), Method::Initialize, Some(params.as_bytes()));
        self.handle.initialize(&self.tenant, &self.principal, request, None).await
    }

    /// A session that is ready for calls.
    pub(crate) async fn session(&self) -> Caller {
        self.session_in("2025-11-25").await
    }

    pub(crate) async fn session_in(&self, revision: &str) -> Caller {
        let opened = self.begin_in(revision).await.unwrap();
        let caller = self.caller(&opened.session);
        let told = all(opened.replies).await;
        assert!(matches!(&told[..], [ReplyEvent::Answer(Answer::Welcome(_))]), "{told:?}");
        let initialized = Notification::new(Method::Initialized, None);
        let replies = self.handle.post(&caller, Body::One(initialized.into()), None);
        let told = all(replies).await;
        assert!(matches!(&told[..], [ReplyEvent::Answer(Answer::Accepted)]), "{told:?}");
        caller
    }

    pub(crate) fn caller(&self, session: &SessionId) -> Caller {
        Caller {
            tenant: Arc::clone(&self.tenant),
            principal: self.principal.clone(),
            session: session.clone(),
        }
    }

    /// Posts a call.
    pub(crate) fn call(&self, caller: &Caller, id: i64, tool: &str) -> ReplyStream {
        self.handle.post(caller, call(id, tool), None)
    }

    /// Is the tool's answer what the client is told?
    pub(crate) async fn works(&self, caller: &Caller, id: i64) {
        let told = all(self.call(caller, id, "echo")).await;
        let [ReplyEvent::Answer(Answer::Json(json))] = &told[..] else { panic!("{told:?}") };
        assert_eq!(text(json), format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"ok":true}}}}"#));
    }

    /// Waits until so many requests were heard.
    pub(crate) async fn heard(&self, requests: usize) {
        until(|| self.script.requests.load(Ordering::SeqCst) >= requests).await;
    }

    /// Waits until no session lives here.
    pub(crate) async fn is_empty(&self) {
        until(|| self.handle.sessions() == 0).await;
        until(|| self.script.live.load(Ordering::SeqCst) == 0).await;
    }
}

pub(crate) fn tenant(name: &str, sessions_max: usize) -> Arc<Tenant> {
    Arc::new(Tenant { name: name.into(), allowed_origins: Vec::new(), sessions_max })
}

pub(crate) fn call(id: i64, tool: &str) -> Body {
    let params = format!(r#"{{"name":"{tool}"}}"#);
    Body::One(Request::new(id.into(), Method::ToolsCall, Some(params.as_bytes())).into())
}

/// The refusal that is the whole reply.
pub(crate) async fn refusal(replies: ReplyStream) -> Refusal {
    let events = all(replies).await;
    match &events[..] {
        [ReplyEvent::Answer(Answer::Refused(refusal))] => refusal.clone(),
        other => panic!("{other:?}"),
    }
}

/// Everything that a connection is told.
pub(crate) async fn all(mut replies: ReplyStream) -> Vec<ReplyEvent> {
    let mut told = Vec::new();
    while let Some(next) = next(&mut replies).await {
        told.push(next);
    }
    told
}

/// The next thing, or a failed test.
pub(crate) async fn next(replies: &mut ReplyStream) -> Option<ReplyEvent> {
    tokio::time::timeout(PATIENCE, replies.next()).await.expect("nothing was told in time")
}

/// The messages among what was told, with their event ids.
pub(crate) fn messages(told: &[ReplyEvent]) -> Vec<(Option<String>, String)> {
    let message = |told: &ReplyEvent| match told {
        ReplyEvent::Frame(Frame::Message { id, data }) => {
            Some((id.map(|id| id.to_string()), text(data)))
        }
        _ => None,
    };
    told.iter().filter_map(message).collect()
}

pub(crate) fn text(bytes: &Bytes) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Lets everything else run until something is so.
pub(crate) async fn until(is: impl Fn() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    waited.await.expect("it did not come to be in time");
}
