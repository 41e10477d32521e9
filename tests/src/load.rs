//! Clients that use a cluster as real clients do: calls, streams, server requests, and resumes at
//! other nodes, also after cuts by the clients themselves. The history records all observations.
//!
//! A client never repeats a POST without any byte of an answer, because current client libraries
//! do not repeat it either. The clients send requests with ids of deleted sessions later, to every
//! node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::chance::Chance;
use crate::history::{Asked, Content, History, Key, What};
use crate::mcp::{Client, is_response};
use crate::nodes::Balancer;
use crate::sse::Events;

/// How long a client waits for the head of an answer, or the next event of a stream. This is
/// longer than a node holds a request that it cannot serve yet.
const PATIENCE: Duration = Duration::from_secs(40);
/// How many times a client resumes a stream before it gives up.
const RESUMES_MAX: usize = 20;
/// The maximum time before a resume, even if the server requests a longer time.
const RETRY_MS_MAX: u64 = 1_000;
/// The revisions in the proportions of real use; each session has one of them.
const REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-11-25", "2025-03-26"];

/// The running clients.
#[derive(Debug)]
pub struct Load {
    clients: JoinSet<()>,
    is_over: Arc<AtomicBool>,
}

impl Load {
    /// Starts this number of clients. Each has one session at a time.
    pub fn start(clients: u64, seed: u64, balancer: &Arc<Balancer>, history: &History) -> Self {
        Self::start_at(ONE, clients, seed, balancer, history)
    }

    /// As [`Load::start`], with the tools of these servers.
    pub fn start_at(
        servers: Servers,
        clients: u64,
        seed: u64,
        balancer: &Arc<Balancer>,
        history: &History,
    ) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for number in 0..clients {
            let load_client = LoadClient {
                name: format!("c{number}"),
                servers,
                client: Client::new("", REVISIONS[0]),
                listener: None,
                is_quiet: false,
                deleted: Vec::new(),
                keys: 0,
                chance: Chance::new(seed.wrapping_mul(1_000).wrapping_add(number)),
                balancer: Arc::clone(balancer),
                history: history.clone(),
                is_over: Arc::clone(&is_over),
            };
            tasks.spawn(load_client.work());
        }
        Self { clients: tasks, is_over }
    }

    /// Lets every client finish its current work.
    pub async fn finish(mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(client) = self.clients.join_next().await {
            client.expect("a client panicked");
        }
    }
}

/// The tools that clients call.
#[derive(Clone, Copy, Debug)]
pub struct Servers {
    /// What stands before the names of the tools of each server.
    pub prefixes: &'static [&'static str],
    /// Whether clients call a tool whose server then reports one change of its list for each call.
    pub report_changes: bool,
}

/// One server, without a prefix.
const ONE: Servers = Servers { prefixes: &[""], report_changes: true };

/// One client.
struct LoadClient {
    name: String,
    servers: Servers,
    client: Client,
    listener: Option<JoinHandle<()>>,
    is_quiet: bool,
    /// Ids of sessions that this client has ended.
    deleted: Vec<String>,
    keys: u64,
    chance: Chance,
    balancer: Arc<Balancer>,
    history: History,
    is_over: Arc<AtomicBool>,
}

/// How one connection of a stream ended.
enum Ended {
    FinalResponse,
    Cut,
    CutByUs,
    Silent,
}

/// The position of a client in a stream.
struct StreamPosition {
    key: Key,
    cursor: Option<String>,
    retry_ms: u64,
}

impl LoadClient {
    async fn work(mut self) {
        while !self.is_over.load(Ordering::Relaxed) {
            if self.client.session.is_none() && !self.enter().await {
                sleep(Duration::from_millis(100)).await;
                continue;
            }
            match self.chance.between(0, 99) {
                0..=39 => self.call(0, 0).await,
                40..=59 => self.count("rh_record").await,
                60..=74 => self.count("rh_record_again").await,
                // The revision 2025-03-26 has no elicitation.
                75..=86 if self.client.revision.as_str() > "2025-03-26" => {
                    let asks = self.chance.between(1, 3);
                    self.call(asks, 3).await;
                }
                87..=90 => self.set_level().await,
                91..=94 if self.servers.report_changes => self.toggle().await,
                95..=97 => self.cancel().await,
                98..=99 => self.leave().await,
                _ => self.call(0, 0).await,
            }
        }
        self.leave().await;
        for session in std::mem::take(&mut self.deleted) {
            for node in 0..self.balancer.count() {
                self.try_deleted(&session, node).await;
            }
        }
    }

    fn note(&self, what: What) {
        self.history.note(self.client.session.as_deref().unwrap_or_default(), what);
    }

    fn key(&mut self) -> Key {
        self.keys += 1;
        format!("{}-{}", self.name, self.keys)
    }

    /// Opens a session; returns whether that succeeded. If the ingress fails meanwhile, the client
    /// does not know whether the session exists, and it tries again.
    async fn enter(&mut self) -> bool {
        let revision = self.chance.pick(&REVISIONS);
        self.client = Client::new("", revision);
        self.is_quiet = false;
        let key = self.key();
        let params = self.client.introduction(json!({ "elicitation": {} }));
        let message = request(&key, "initialize", params);
        let asked = Asked { may_rerun: true, ..Asked::default() };
        let Some((node, response)) = self.begin(&key, &message, asked).await else {
            return false;
        };
        let session = response.headers().get("mcp-session-id").and_then(|id| id.to_str().ok());
        let session = session.map(str::to_owned);
        if !self.read_answer(key.clone(), node, response, 0).await {
            return false;
        }
        self.client.session = session;
        let message = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        self.accepted(&key, &message).await;
        if self.client.session.is_some() && self.chance.is(50) {
            let key = self.key();
            let listener = self.listen(key);
            self.listener = Some(tokio::spawn(listener));
        }
        self.client.session.is_some()
    }

    /// Ends the session.
    async fn leave(&mut self) {
        if let Some(listener) = self.listener.take() {
            listener.abort();
        }
        let Some(session) = self.client.session.clone() else { return };
        let (node, status) = match self.ask(Method::DELETE, None, None).await {
            Ok((node, response)) => (node, Some(response.status().as_u16())),
            Err(node) => (node, None),
        };
        self.note(What::Deleted { node, status });
        self.client.session = None;
        if let Some(before) = self.deleted.last().cloned() {
            let node = self.balancer.next();
            self.try_deleted(&before, node).await;
        }
        if status == Some(204) {
            self.deleted.push(session);
        }
    }

    /// Sends a request with the id of a deleted session.
    async fn try_deleted(&mut self, session: &str, node: usize) {
        let mut client = Client::new(self.balancer.url(node), &self.client.revision);
        client.session = Some(session.to_owned());
        let key = self.key();
        let began = Instant::now();
        let sent = timeout(PATIENCE, client.send(request(&key, "ping", json!({})))).await;
        let is_down = |error: &anyhow::Error| {
            error.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_connect)
        };
        let status = match sent {
            Ok(Err(error)) if is_down(&error) => return,
            Ok(Ok(response)) if response.status() == 502 => None,
            Ok(Ok(response)) => Some(response.status().as_u16()),
            Ok(Err(_)) | Err(_) => None,
        };
        let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.history.note(session, What::TriedAgain { node, status, took_ms });
    }

    async fn ask(
        &mut self,
        method: Method,
        message: Option<&Value>,
        last_event_id: Option<&str>,
    ) -> Result<(usize, Response), usize> {
        ask(&mut self.client, &self.balancer, method, message, last_event_id).await
    }

    async fn post(&mut self, message: &Value) -> Result<(usize, Response), usize> {
        self.ask(Method::POST, Some(message), None).await
    }

    /// A call that may not be run again, up to its final response.
    async fn call(&mut self, asks: u64, count: u64) {
        let (key, message) = self.recorded("rh_record", asks, count, 10);
        let asked = Asked { asks: asks > 0, ..self.asked(count, false) };
        self.exchange(key, message, asked, 0).await;
    }

    /// A call with progress. In 40 % of the calls, the client cuts the connection once or twice.
    async fn count(&mut self, tool: &str) {
        let count = self.chance.between(5, 40);
        let (key, message) = self.recorded(tool, 0, count, 30);
        let asked = self.asked(count, tool == "rh_record_again");
        let cuts = if self.chance.is(40) { self.chance.between(1, 2) } else { 0 };
        self.exchange(key, message, asked, cuts).await;
    }

    fn asked(&self, count: u64, may_rerun: bool) -> Asked {
        let is_quiet = self.is_quiet;
        Asked { count, is_recorded: true, may_rerun, is_quiet, ..Asked::default() }
    }

    fn recorded(&mut self, tool: &str, asks: u64, n: u64, interval_ms: u64) -> (Key, Value) {
        let key = self.key();
        let tool = match self.servers.prefixes {
            [prefix] => format!("{prefix}{tool}"),
            prefixes => format!("{}{tool}", self.chance.pick(prefixes)),
        };
        let arguments = json!({ "key": key, "asks": asks, "n": n, "interval_ms": interval_ms });
        let meta = json!({ "progressToken": key });
        let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
        let message = request(&key, "tools/call", params);
        (key, message)
    }

    async fn set_level(&mut self) {
        let key = self.key();
        let is_quiet = !self.is_quiet;
        let level = if is_quiet { "error" } else { "debug" };
        let message = request(&key, "logging/setLevel", json!({ "level": level }));
        if self.exchange(key, message, Asked::default(), 0).await {
            self.is_quiet = is_quiet;
        } else {
            // The client does not know the log level of the session now, so it ends the session.
            self.leave().await;
        }
    }

    async fn toggle(&mut self) {
        let key = self.key();
        let message = request(&key, "tools/call", json!({ "name": "rh_toggle_tool" }));
        let asked = Asked { announces: true, ..Asked::default() };
        self.exchange(key, message, asked, 0).await;
    }

    /// Begins a stream and cancels its request.
    async fn cancel(&mut self) {
        let (key, message) = self.recorded("rh_record", 0, 1_000, 30);
        let asked = self.asked(1_000, false);
        let Some((_, response)) = self.begin(&key, &message, asked).await else { return };
        self.note(What::Dropped { on: key.clone() });
        let Ok(mut events) = Events::of(response) else { return };
        for _ in 0..3 {
            let _whatever = events.next_within(PATIENCE).await;
        }
        let cancelled = json!({ "requestId": key });
        let method = "notifications/cancelled";
        let message = json!({ "jsonrpc": "2.0", "method": method, "params": cancelled });
        self.accepted(&key, &message).await;
    }

    /// Posts a message that is only accepted (202). Posts it again if no answer came: a second
    /// copy does no harm.
    async fn accepted(&mut self, key: &Key, message: &Value) {
        for _ in 0..RESUMES_MAX {
            let response = match self.post(message).await {
                Ok((_, response)) => response,
                Err(node) => {
                    self.note(What::Broke { on: key.clone(), node });
                    continue;
                }
            };
            if response.status() != 202 {
                self.refused(key, response, "").await;
            }
            return;
        }
    }

    async fn refused(&mut self, key: &Key, response: Response, why: &str) {
        let status = response.status().as_u16();
        let text = response.text().await.unwrap_or_default();
        self.note(What::Refused { on: key.clone(), status, text: format!("{why}{text}") });
        if status == 404 {
            // The session no longer exists, so the client leaves it.
            self.leave().await;
        }
    }

    /// Posts a request; returns the node and the response if its status is 200.
    async fn begin(
        &mut self,
        key: &Key,
        message: &Value,
        asked: Asked,
    ) -> Option<(usize, Response)> {
        self.note(What::Sent { key: key.clone(), asked });
        match self.post(message).await {
            Ok((node, response)) if response.status() == 200 => return Some((node, response)),
            Ok((_, response)) => self.refused(key, response, "").await,
            Err(node) => self.note(What::Gone { on: key.clone(), node }),
        }
        None
    }

    /// Sends a request and reads up to its final response; returns whether that is a result.
    async fn exchange(&mut self, key: Key, message: Value, asked: Asked, cuts: u64) -> bool {
        let Some((node, response)) = self.begin(&key, &message, asked).await else { return false };
        self.read_answer(key, node, response, cuts).await
    }

    /// Reads the answer to a request up to its final response; returns whether that is a result.
    async fn read_answer(&mut self, key: Key, node: usize, response: Response, cuts: u64) -> bool {
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        if kind.is_some_and(|kind| kind.starts_with("application/json")) {
            match response.json::<Value>().await {
                Ok(final_response) => return self.final_response(&key, None, &final_response),
                Err(_) => self.note(What::Gone { on: key, node }),
            }
            return false;
        }
        let position = StreamPosition { key, cursor: None, retry_ms: 500 };
        self.follow(position, node, response, cuts).await
    }

    /// Reads a stream over all its connections.
    async fn follow(
        &mut self,
        mut position: StreamPosition,
        mut node: usize,
        mut response: Response,
        mut cuts: u64,
    ) -> bool {
        for _ in 0..RESUMES_MAX {
            let cut_after = (cuts > 0).then(|| self.chance.between(0, 8));
            let (ended, has_result) = self.read(&mut position, response, cut_after).await;
            let by_client = matches!(ended, Ended::CutByUs);
            let key = position.key.clone();
            match ended {
                Ended::FinalResponse => return has_result,
                Ended::Silent => break,
                Ended::Cut | Ended::CutByUs => {
                    cuts -= u64::from(by_client);
                    let after = position.cursor.clone();
                    self.note(What::Cut { on: key.clone(), after, by_client, node });
                }
            }
            let Some(cursor) = position.cursor.clone() else {
                self.note(What::Gone { on: key, node });
                return false;
            };
            // After a cut by this client it resumes at once, so that the second cut can follow the
            // first.
            if !by_client {
                sleep(Duration::from_millis(position.retry_ms.min(RETRY_MS_MAX))).await;
            }
            let Some(resumed) = self.resume(&key, &cursor).await else { return false };
            (node, response) = resumed;
        }
        self.note(What::GaveUp { on: position.key });
        false
    }

    async fn resume(&mut self, key: &Key, cursor: &str) -> Option<(usize, Response)> {
        for _ in 0..RESUMES_MAX {
            let (node, response) = match self.ask(Method::GET, None, Some(cursor)).await {
                Ok(resumed) => resumed,
                Err(node) => {
                    self.note(What::Broke { on: key.clone(), node });
                    sleep(Duration::from_millis(RETRY_MS_MAX / 4)).await;
                    continue;
                }
            };
            self.note(What::Resumed { on: key.clone(), after: cursor.to_owned(), node });
            if response.status() == 200 {
                return Some((node, response));
            }
            self.refused(key, response, &format!("after {cursor}: ")).await;
            return None;
        }
        self.note(What::GaveUp { on: key.clone() });
        None
    }

    /// Reads one connection: to its final response, its end, or the place where this client cuts
    /// it.
    async fn read(
        &mut self,
        position: &mut StreamPosition,
        response: Response,
        cut_after: Option<u64>,
    ) -> (Ended, bool) {
        let Ok(mut events) = Events::of(response) else { return (Ended::Cut, false) };
        let mut seen = 0;
        loop {
            if position.cursor.is_some() && cut_after.is_some_and(|after| seen >= after) {
                return (Ended::CutByUs, false);
            }
            let block = match events.next_within(PATIENCE).await {
                Ok(Some(Some(block))) => block,
                Ok(None) => return (Ended::Silent, false),
                Ok(Some(None)) | Err(_) => return (Ended::Cut, false),
            };
            position.retry_ms = block.retry.unwrap_or(position.retry_ms);
            position.cursor = block.id.clone().or(position.cursor.take());
            let Some(message) = block.message() else { continue };
            seen += 1;
            if is_response(&message) {
                return (
                    Ended::FinalResponse,
                    self.final_response(&position.key, block.id, &message),
                );
            }
            let content = Content::read(&message);
            let is_question = matches!(content, Content::Question { .. });
            self.note(What::Event { on: position.key.clone(), id: block.id, content });
            if is_question {
                let key = position.key.clone();
                self.accepted(&key, &answer_to(&message)).await;
            }
        }
    }

    fn final_response(&self, key: &Key, id: Option<String>, final_response: &Value) -> bool {
        let is_error = final_response.get("error").is_some();
        let of = final_response["id"].as_str().unwrap_or_default().to_owned();
        let text =
            if is_error { &final_response["error"] } else { &final_response["result"] }.to_string();
        self.note(What::FinalResponse { on: key.clone(), id, of, is_error, text });
        !is_error
    }

    /// Listens on the standalone stream until the session ends.
    fn listen(&self, key: Key) -> impl Future<Output = ()> + use<> {
        let mut client = self.client.twin();
        let (balancer, history) = (Arc::clone(&self.balancer), self.history.clone());
        async move {
            let session = client.session.clone().unwrap_or_default();
            let mut cursor: Option<String> = None;
            loop {
                let asked = ask(&mut client, &balancer, Method::GET, None, cursor.as_deref()).await;
                let (node, response) = match asked {
                    Ok(answered) => answered,
                    Err(node) => {
                        history.note(&session, What::Broke { on: key.clone(), node });
                        sleep(Duration::from_millis(RETRY_MS_MAX / 4)).await;
                        continue;
                    }
                };
                let status = response.status().as_u16();
                let Ok(mut events) = Events::of(response) else {
                    let text = format!("GET after {cursor:?}");
                    history.note(&session, What::Refused { on: key, status, text });
                    return;
                };
                history.note(&session, What::Listens { on: key.clone(), node });
                // The GET stream may be silent for a long time.
                while let Ok(Some(Some(block))) = events.next_within(PATIENCE * 10).await {
                    cursor = block.id.clone().or(cursor);
                    let Some(message) = block.message() else { continue };
                    let content = Content::read(&message);
                    let is_question = matches!(content, Content::Question { .. });
                    history.note(&session, What::Event { on: key.clone(), id: block.id, content });
                    if is_question {
                        let answer = Some(answer_to(&message));
                        for _ in 0..RESUMES_MAX {
                            let post =
                                ask(&mut client, &balancer, Method::POST, answer.as_ref(), None);
                            if post.await.is_ok() {
                                break;
                            }
                        }
                    }
                }
                let (on, after) = (key.clone(), cursor.clone());
                history.note(&session, What::Cut { on, after, by_client: false, node });
                sleep(Duration::from_millis(RETRY_MS_MAX / 2)).await;
            }
        }
    }
}

/// What the client answers to each question of a server.
fn answer_to(question: &Value) -> Value {
    let result = json!({ "action": "accept", "content": { "answer": "yes" } });
    json!({ "jsonrpc": "2.0", "id": question["id"], "result": result })
}

fn request(key: &Key, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": key, "method": method, "params": params })
}

/// Sends a request to the next node; if no process listens there, to the one after it. `Err`: no
/// byte of an answer came.
async fn ask(
    client: &mut Client,
    balancer: &Balancer,
    method: Method,
    message: Option<&Value>,
    last_event_id: Option<&str>,
) -> Result<(usize, Response), usize> {
    let mut node = 0;
    for _ in 0..200 {
        node = balancer.next();
        balancer.url(node).clone_into(&mut client.url);
        let mut request = client.http(method.clone());
        if let Some(message) = message {
            request = request.json(message);
        }
        if let Some(id) = last_event_id {
            request = request.header("Last-Event-ID", id);
        }
        match timeout(PATIENCE, request.send()).await {
            // A balancer that has lost the node. Nothing of an answer has come from it.
            Ok(Ok(response)) if response.status() == 502 => break,
            Ok(Ok(response)) => return Ok((node, response)),
            Ok(Err(error)) if error.is_connect() => sleep(Duration::from_millis(10)).await,
            Ok(Err(_)) | Err(_) => break,
        }
    }
    Err(node)
}
