//! The attacks of one tenant, by class. Each runs on a thread of its own until it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tests::Node;
use tests::cores::Core;
use tests::mcp::Client;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::remote;

const NEWEST: &str = "2025-11-25";

/// The largest body that a node accepts.
const BODY_MAX: usize = 4 << 20;

/// The pause before a client whose connection was closed connects again: 3,000 connections a second.
/// The kernel queues connections in the order of their arrival, so a node cannot prefer one over a
/// flood of many more.
const RECONNECT: Duration = Duration::from_millis(500);

/// How long a client waits for a hostile server.
const WAIT: Duration = Duration::from_millis(500);

/// What a tenant takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Sessions,
    Bodies,
    Children,
    Descriptors,
    Subscriptions,
    Logs,
    Processes,
    Memory,
    /// A server over HTTP: large lists that change, streams, bodies, and what is no answer.
    RemoteLists,
    RemoteStreams,
    RemoteBodies,
    RemoteRefusals,
    /// The same server, as one of a catalog.
    Catalog,
    /// The same lists, bodies and messages of a process.
    Stdio,
}

impl Class {
    /// Those of clients, and of processes that take what is the machine's.
    pub(crate) const ALL: [Self; 8] = [
        Self::Sessions,
        Self::Bodies,
        Self::Children,
        Self::Descriptors,
        Self::Subscriptions,
        Self::Logs,
        Self::Processes,
        Self::Memory,
    ];
}

/// A running attack.
pub(crate) struct Attack {
    class: Class,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    done: Arc<AtomicU64>,
}

impl Attack {
    /// Starts an attack on this core.
    /// `listener` is where the tenant `remote` has its server.
    pub(crate) fn start(
        class: Class,
        node: &Node,
        core: Core,
        listener: std::net::TcpListener,
    ) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let done = Arc::<AtomicU64>::default();
        let target = Target { base: node.base.clone(), done: Arc::clone(&done) };
        let thread = std::thread::spawn(move || {
            core.enter().expect("a core of this machine");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                tokio::select! {
                    () = target.attack(class, listener) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { class, stop: Some(stop), thread: Some(thread), done }
    }

    /// Stops the attack. Returns how much it did.
    pub(crate) fn end(mut self) -> Result<u64> {
        self.join()?;
        Ok(self.done.load(Ordering::Relaxed))
    }

    fn join(&mut self) -> Result<()> {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join).transpose();
        ended.map(drop).map_err(|_| anyhow::anyhow!("the attack {:?} panicked", self.class))
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

/// The node that is attacked.
#[derive(Clone)]
struct Target {
    base: String,
    /// How many things the attack did: requests, bytes or connections.
    done: Arc<AtomicU64>,
}

impl Target {
    fn note(&self, done: usize) {
        self.done.fetch_add(done as u64, Ordering::Relaxed);
    }

    async fn attack(self, class: Class, listener: std::net::TcpListener) {
        let mut tasks = JoinSet::new();
        match class {
            Class::Sessions => {
                let batch = initialize("hostile", "").repeat(16);
                self.floods(&mut tasks, 32, &batch);
                // Some complete the handshake, so that they are not the first to be ended.
                (0..2).for_each(|_| drop(tasks.spawn(self.clone().open_sessions("hostile"))));
            }
            Class::Bodies => {
                (0..66).for_each(|_| drop(tasks.spawn(self.clone().send_silent_body())));
                (0..4).for_each(|_| drop(tasks.spawn(self.clone().send_large_bodies())));
            }
            Class::Children => {
                (0..4).for_each(|_| drop(tasks.spawn(self.clone().restart_servers())));
                self.floods(&mut tasks, 4, &initialize("greedy", "").repeat(4));
            }
            Class::Descriptors => {
                (0..1_500).for_each(|n| drop(tasks.spawn(self.clone().hold_connection(n))));
            }
            Class::Subscriptions => {
                (0..4).for_each(|_| drop(tasks.spawn(self.clone().subscribe())));
            }
            Class::Logs => {
                self.use_tools(&mut tasks, &["stderr", "junk"], 3);
                // Each is refused with a line once the tenant has as many servers as it may.
                self.floods(&mut tasks, 4, &initialize("greedy", "").repeat(4));
            }
            Class::Processes => self.use_tools(&mut tasks, &["forks", "memory"], 2),
            Class::Memory => {
                let tools = ["notify", "small", "line", "deaf", "big"];
                self.use_tools(&mut tasks, &tools, 2);
                let pad = "x".repeat(12 << 10);
                self.floods(&mut tasks, 8, &initialize("hostile", &pad));
                (0..8).for_each(|_| drop(tasks.spawn(self.clone().leave_results_unread())));
            }
            Class::RemoteLists => self.use_remotes(&mut tasks, listener, "remote", &[]),
            Class::RemoteStreams => {
                self.use_remotes(&mut tasks, listener, "remote", remote::STREAMS);
            }
            Class::RemoteBodies => {
                self.use_remotes(&mut tasks, listener, "remote", remote::BODIES);
            }
            Class::RemoteRefusals => {
                // The name of this tenant's server leads to an address that is not permitted.
                (0..4).for_each(|_| drop(tasks.spawn(self.clone().open_sessions("rebound"))));
                self.use_remotes(&mut tasks, listener, "remote", remote::REFUSALS);
            }
            Class::Catalog => {
                let tools = &["bad__large_events", "bad__dense", "bad__large"];
                self.use_remotes(&mut tasks, listener, "catalog", tools);
            }
            Class::Stdio => {
                let tools = &["big", "dense", "big", "dense", "large_events"];
                (0..6).for_each(|_| drop(tasks.spawn(self.clone().use_lists("greedy", tools))));
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    fn address(&self) -> &str {
        self.base.strip_prefix("http://").unwrap_or(&self.base)
    }

    fn mcp(&self, tenant: &str) -> String {
        format!("{}/{tenant}/mcp", self.base)
    }

    async fn connect(&self) -> TcpStream {
        loop {
            match TcpStream::connect(self.address()).await {
                Ok(stream) => return stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    async fn open(&self, tenant: &str) -> Client {
        loop {
            match Client::open(self.mcp(tenant), NEWEST).await {
                Ok(client) => return client.keeping_connections(),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Sends the same requests again and again, and reads all answers.
    fn floods(&self, tasks: &mut JoinSet<()>, connections: usize, batch: &[u8]) {
        let batch: Arc<[u8]> = batch.into();
        for _ in 0..connections {
            tasks.spawn(self.clone().flood(Arc::clone(&batch)));
        }
    }

    async fn flood(self, batch: Arc<[u8]>) {
        loop {
            let (mut from, mut to) = self.connect().await.into_split();
            let write = async { while to.write_all(&batch).await.is_ok() {} };
            let read = async {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(length @ 1..) = from.read(&mut buffer).await {
                    self.note(length);
                }
            };
            tokio::select! { () = write => {}, () = read => {} }
        }
    }

    async fn open_sessions(self, tenant: &'static str) {
        loop {
            self.open(tenant).await;
            self.note(1);
        }
    }

    /// Sends nearly all of the largest body, then nothing.
    async fn send_silent_body(self) {
        loop {
            let mut stream = self.connect().await;
            let head = head("hostile", Some("x"), BODY_MAX);
            let sent = stream.write_all(head.as_bytes()).await;
            if sent.is_ok() && stream.write_all(&vec![b' '; BODY_MAX - 10]).await.is_ok() {
                self.note(1);
                let _ = stream.read(&mut [0; 1]).await;
            }
        }
    }

    /// Posts calls with the largest body, one after the other.
    async fn send_large_bodies(self) {
        let client = self.open("hostile").await;
        let text = "x".repeat(BODY_MAX - 1_000);
        let call = client.call("test_simple_text", json!({ "text": text })).to_string();
        loop {
            let _ = client.send_bytes(call.clone()).await;
            self.note(1);
        }
    }

    /// Makes the node start and stop processes.
    async fn restart_servers(self) {
        loop {
            let client = self.open("greedy").await;
            let _ = client.delete().await;
            self.note(1);
        }
    }

    /// Keeps a connection: without a byte, within a head, or after an answer.
    async fn hold_connection(self, number: usize) {
        loop {
            let mut stream = self.connect().await;
            let sent: &[u8] = match number % 3 {
                0 => b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n",
                1 => b"GET /nowh",
                _ => b"",
            };
            let _ = stream.write_all(sent).await;
            self.note(1);
            let mut buffer = [0; 4096];
            while let Ok(1..) = stream.read(&mut buffer).await {}
            tokio::time::sleep(RECONNECT).await;
        }
    }

    /// Subscribes to as many bytes as a session may have, and takes that back, again and again.
    async fn subscribe(self) {
        loop {
            let client = self.open("hostile").await;
            let Some(session) = client.session.clone() else { continue };
            let mut batch = Vec::new();
            for method in ["resources/subscribe", "resources/unsubscribe"] {
                for n in 0..31 {
                    let uri = format!("test://template/{n}{}/data", "u".repeat(8_000));
                    let body = client.message(method, json!({ "uri": uri })).to_string();
                    batch.extend_from_slice(&post("hostile", Some(&session), &body));
                }
            }
            // New sessions from time to time: until then each keeps what it has.
            let flood = self.clone().flood(batch.into());
            let _ = tokio::time::timeout(Duration::from_millis(300), flood).await;
        }
    }

    /// Uses tools of the tenant's server, each in so many sessions.
    fn use_tools(&self, tasks: &mut JoinSet<()>, tools: &[&'static str], sessions: usize) {
        for tool in tools {
            (0..sessions).for_each(|_| drop(tasks.spawn(self.clone().use_tool(tool))));
        }
    }

    async fn use_tool(self, tool: &'static str) {
        loop {
            let client = self.open("greedy").await;
            let used = client.tool(tool, json!({})).await.context(tool);
            self.note(usize::from(used.is_ok()));
            // A stream that no client reads, for what the server sends.
            let _stream = client.get(None).await;
            let mut failures = 0;
            let argument = "x".repeat(1 << 20);
            while failures < 3 {
                // The server reads none of these, or answers them.
                let call = client.call("any", json!({ "text": argument }));
                let sent = tokio::time::timeout(Duration::from_millis(200), client.send(call));
                failures += usize::from(matches!(sent.await, Ok(Err(_))));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// Uses a hostile server over HTTP, from several clients.
    fn use_remotes(
        &self,
        tasks: &mut JoinSet<()>,
        listener: std::net::TcpListener,
        tenant: &'static str,
        tools: &'static [&'static str],
    ) {
        tasks.spawn(async move { drop(remote::serve(listener).await) });
        (0..12).for_each(|_| drop(tasks.spawn(self.clone().use_lists(tenant, tools))));
    }

    /// Uses a hostile server, with more calls at a time than it answers. Without tools it is asked for
    /// its list instead.
    async fn use_lists(self, tenant: &'static str, tools: &'static [&'static str]) {
        loop {
            let client = self.open(tenant).await;
            let _listed = tokio::time::timeout(WAIT, client.request("tools/list", json!({}))).await;
            let _stream = client.get(None).await;
            for _ in 0..4 {
                let mut calls = JoinSet::new();
                for number in 0..7 {
                    let twin = client.twin();
                    let call = match tools.get(number % tools.len().max(1)) {
                        Some(tool) => client.call(tool, json!({})),
                        None => client.message("tools/list", json!({})),
                    };
                    calls.spawn(async move { tokio::time::timeout(WAIT, twin.send(call)).await });
                }
                let answers = calls.join_all().await;
                self.note(answers.iter().filter(|answer| matches!(answer, Ok(Ok(_)))).count());
            }
            let _ended = tokio::time::timeout(WAIT, client.delete()).await;
        }
    }

    /// Asks for large results, and reads none.
    async fn leave_results_unread(self) {
        loop {
            let client = self.open("hostile").await;
            let Some(session) = client.session.clone() else { continue };
            let text = "x".repeat(1 << 20);
            let call = client.call("rh_echo", json!({ "text": text })).to_string();
            let bytes = post("hostile", Some(&session), &call);
            let mut held = Vec::new();
            for _ in 0..16 {
                let mut stream = self.connect().await;
                let sent = tokio::time::timeout(Duration::from_secs(1), stream.write_all(&bytes));
                self.note(usize::from(matches!(sent.await, Ok(Ok(())))));
                held.push(stream);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// The head of a POST.
fn head(tenant: &str, session: Option<&str>, length: usize) -> String {
    let session = session.map_or_else(String::new, |id| format!("Mcp-Session-Id: {id}\r\n"));
    format!(
        "POST /{tenant}/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\n{session}Content-Length: {length}\r\n\r\n"
    )
}

fn post(tenant: &str, session: Option<&str>, body: &str) -> Vec<u8> {
    [head(tenant, session, body.len()).as_bytes(), body.as_bytes()].concat()
}

fn initialize(tenant: &str, pad: &str) -> Vec<u8> {
    let info: Value = json!({ "name": "flood", "version": "1", "title": pad });
    let params = json!({ "protocolVersion": NEWEST, "capabilities": {}, "clientInfo": info });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    post(tenant, None, &body.to_string())
}
