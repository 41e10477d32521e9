//! `roundhouse check --start`: starts the servers of each tenant once, as a session would, lists their
//! tools, and stops them.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backends::{Backend, Link, LinkEvent, LinkSender};
use protocol::{Message, Method, Notification, Request, RequestId, Response, Revision, SessionId};
use serde_json::json;
use tokio::time::timeout;

use crate::plan::Plan;
use crate::settings::{BackendSettings, Settings};

/// Most pages of tools that are read of a server.
const PAGES_MAX: usize = 100;

/// The reason for a program that sends `initialize`, which no server does.
const SENT_BACK: &str =
    "sent our own `initialize` back; it is not an MCP server: check `command` and `args`";

/// The result for all tenants.
pub(crate) struct Started {
    /// A line for each tenant.
    pub(crate) text: String,
    pub(crate) failed: usize,
}

/// Starts the servers one after another: several at once would slow each other down. Each start may
/// take as long as that of a session.
pub(crate) async fn start_each(plan: &Plan) -> Started {
    let mut started = Started { text: String::new(), failed: 0 };
    for tenant in plan.tenants.by_name() {
        let Some(backend) = plan.backends.of(&tenant.name) else { continue };
        let of_users = Skipped::of(&plan.settings, &tenant.name);
        for name in &of_users.backends {
            // Writing into a string cannot fail.
            let _ = writeln!(
                started.text,
                "tenant {}: backend {name}: not started: it needs a token of a user",
                tenant.name
            );
        }
        if of_users.are_all {
            continue;
        }
        let (secs, key) = start_secs(&plan.settings, &tenant.name);
        let begin = Instant::now();
        let outcome = match timeout(Duration::from_secs(secs), tools(&backend)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("did not answer within {secs} s (`{key}`)")),
        };
        let secs = begin.elapsed().as_secs_f64();
        let remarks = backend.remarks();
        // Writing into a string cannot fail.
        let _ = match outcome {
            Ok(Tools { server, names }) => {
                let count = names.len();
                let names = if names.is_empty() { "none".into() } else { names.join(", ") };
                writeln!(
                    started.text,
                    "tenant {}: started in {secs:.1} s ({server}), tools: {count} ({names})",
                    tenant.name
                )
            }
            Err(why) => {
                started.failed += 1;
                writeln!(started.text, "tenant {}: failed after {secs:.1} s: {why}", tenant.name)
            }
        };
        for remark in &remarks {
            let _ = writeln!(started.text, "tenant {}: {remark}", tenant.name);
        }
    }
    plan.wait_for_children().await;
    started
}

/// The backends of a tenant that need a token of a user, which a check has not.
struct Skipped<'a> {
    backends: Vec<&'a str>,
    /// Whether the tenant has no other.
    are_all: bool,
}

impl<'a> Skipped<'a> {
    fn of(settings: &'a Settings, tenant: &str) -> Self {
        let all = || settings.tenants.get(tenant).into_iter().flat_map(|tenant| &tenant.backends);
        let skipped = all().filter(|(_, backend)| backend.exchanges_tokens());
        let backends: Vec<_> = skipped.map(|(name, _)| name.as_str()).collect();
        Self { are_all: !backends.is_empty() && backends.len() == all().count(), backends }
    }
}

/// How long a start of the tenant's server may take, and the key of that setting.
fn start_secs(settings: &Settings, tenant: &str) -> (u64, String) {
    let backends = settings.tenants.get(tenant).into_iter().flat_map(|t| &t.backends);
    let own = backends.filter_map(|(name, backend)| match backend {
        BackendSettings::Stdio(stdio) => Some((name, stdio.program.start_secs?)),
        BackendSettings::Http(_) | BackendSettings::Native(_) => None,
    });
    let mut own =
        own.map(|(name, secs)| (secs, format!("tenants.{tenant}.backends.{name}.start_secs")));
    let of_all = || (settings.sessions.session.start_secs, "sessions.start_secs".to_owned());
    let (secs, key) = own.next_back().unwrap_or_else(of_all);
    (secs.max(1), key)
}

/// The name and version of a server, and its tools.
struct Tools {
    server: String,
    names: Vec<String>,
}

async fn tools(backend: &Arc<dyn Backend>) -> Result<Tools, String> {
    let session = SessionId::parse("check").ok_or("no session id")?;
    let mut opened = Opened { link: backend.open(&session), next_id: 0 };
    let tools = opened.list_tools().await;
    opened.link.end();
    tools
}

/// A link whose server is asked one request after another.
struct Opened {
    link: Link,
    next_id: i64,
}

impl Opened {
    /// Opens a session with the server, and lists its tools.
    async fn list_tools(&mut self) -> Result<Tools, String> {
        let params = json!({
            "protocolVersion": Revision::NEWEST_STABLE.as_str(),
            "capabilities": {},
            "clientInfo": { "name": "roundhouse check", "version": env!("CARGO_PKG_VERSION") },
        });
        let result = self.call(Method::Initialize, Some(params)).await?;
        let result: serde_json::Value = serde_json::from_slice(&result).unwrap_or_default();
        let text = |path| result.pointer(path).and_then(serde_json::Value::as_str).unwrap_or("?");
        let server = format!("{} {}", text("/serverInfo/name"), text("/serverInfo/version"));
        self.send(Message::Notification(Notification::new(Method::Initialized, None)))?;
        let mut names = Vec::new();
        if result.pointer("/capabilities/tools").is_none() {
            return Ok(Tools { server, names });
        }
        let mut cursor: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let params = cursor.map(|cursor| json!({ "cursor": cursor }));
            let page = protocol::header_params::tools(&self.call(Method::ToolsList, params).await?);
            names.extend(page.tools.into_iter().map(|tool| tool.name));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        Ok(Tools { server, names })
    }

    fn sender(&self) -> &LinkSender {
        &self.link.sender
    }

    fn send(&self, message: Message) -> Result<(), String> {
        self.sender().send(message).map_err(|error| error.to_string())
    }

    /// Sends a request and waits for its response. Requests of the server are refused, and other
    /// messages ignored.
    async fn call(
        &mut self,
        method: Method,
        params: Option<serde_json::Value>,
    ) -> Result<bytes::Bytes, String> {
        self.next_id += 1;
        let id = RequestId::from(self.next_id);
        let name = method.as_str().to_owned();
        let params = params.map(|params| params.to_string());
        let request = Request::new(id.clone(), method, params.as_deref().map(str::as_bytes));
        self.send(Message::Request(request))?;
        while let Some(event) = self.link.events.next().await {
            let event = match event {
                LinkEvent::Positioned { message: Some(message), about, .. } => {
                    LinkEvent::Message { message, about }
                }
                event => event,
            };
            match event {
                LinkEvent::Message { message: Message::Response(response), .. }
                    if response.id.as_ref() == Some(&id) =>
                {
                    return response.outcome().map_err(|error| {
                        format!(
                            "answered `{name}` with the error {}",
                            String::from_utf8_lossy(&error)
                        )
                    });
                }
                LinkEvent::Message { message: Message::Request(request), .. } => {
                    if request.method == Method::Initialize {
                        return Err(SENT_BACK.to_owned());
                    }
                    let refused = Response::error(Some(request.id), -32601, "not supported", None);
                    self.send(Message::Response(refused))?;
                }
                LinkEvent::Down { reason } => return Err(reason),
                LinkEvent::Up
                | LinkEvent::Message { .. }
                | LinkEvent::Positioned { .. }
                | LinkEvent::Saved { .. }
                | LinkEvent::Returned { .. }
                | LinkEvent::StateLost
                | LinkEvent::RoomWanted
                | LinkEvent::Retired => {}
            }
        }
        Err("the server ended".into())
    }
}
