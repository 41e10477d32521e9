//! `roundhouse check --start`: starts the servers of each tenant once, as a session would, lists their
//! tools, and stops them.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backends::Backend;
use bytes::Bytes;
use protocol::Listed;
use serde_json::json;
use tokio::time::timeout;

use crate::asked_server::AskedServer;
use crate::plan::Plan;
use crate::settings::{BackendSettings, Settings};

/// How often the check looks whether all servers are ready.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How much longer the check waits for the servers of a catalog, which find out by themselves that a start is too long.
const SLACK: Duration = Duration::from_secs(2);

/// How long the tools of a catalog may take whose servers are ready.
const LIST: Duration = Duration::from_secs(15);

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
        let outcome = match timeout(Duration::from_secs(secs), Asked::open(&backend)).await {
            Ok(Ok(asked)) => asked.tools_of_all(begin + Duration::from_secs(secs) + SLACK).await,
            Ok(Err(why)) => Err(why),
            Err(_) => Err(format!("did not answer within {secs} s (`{key}`)")),
        };
        let took = begin.elapsed().as_secs_f64();
        let mut remarks = backend.remarks();
        if outcome.is_ok() {
            let late = backend.starting().into_iter();
            remarks
                .extend(late.map(|name| format!("`{name}`: not ready within {secs} s (`{key}`)")));
        }
        // Writing into a string cannot fail.
        let _ = match outcome {
            Ok(Tools { server, names }) => {
                let count = names.len();
                let names = if names.is_empty() { "none".into() } else { names.join(", ") };
                writeln!(
                    started.text,
                    "tenant {}: started in {took:.1} s ({server}), tools: {count} ({names})",
                    tenant.name
                )
            }
            Err(why) => {
                started.failed += 1;
                writeln!(started.text, "tenant {}: failed after {took:.1} s: {why}", tenant.name)
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

/// How long a start of the tenant's slowest server may take, and the key of that setting.
pub(crate) fn start_secs(settings: &Settings, tenant: &str) -> (u64, String) {
    let of_all = || (settings.sessions.session.start_secs, "sessions.start_secs".to_owned());
    let backends = settings.tenants.get(tenant).into_iter().flat_map(|t| &t.backends);
    let of_each = backends.map(|(name, backend)| match backend {
        BackendSettings::Stdio(stdio) => stdio.program.start_secs.map_or_else(of_all, |own| {
            (own, format!("tenants.{tenant}.backends.{name}.start_secs"))
        }),
        BackendSettings::Http(_) | BackendSettings::Native(_) => of_all(),
    });
    let (secs, key) = of_each.max().unwrap_or_else(of_all);
    (secs.max(1), key)
}

/// The name and version of a server, and its tools.
struct Tools {
    server: String,
    names: Vec<String>,
}

/// The server, or all servers of a catalog, with the tools that it has shown.
struct Asked<'a> {
    backend: &'a dyn Backend,
    server: AskedServer,
    pages: Vec<Bytes>,
}

impl<'a> Asked<'a> {
    async fn open(backend: &'a Arc<dyn Backend>) -> Result<Self, String> {
        let backend = &**backend;
        let mut server = AskedServer::open(backend, "roundhouse check", json!({})).await?;
        match server.list(Listed::Tool).await {
            Ok(pages) => Ok(Self { backend, server, pages }),
            Err(why) => {
                server.end();
                Err(why)
            }
        }
    }

    /// The tools, also of servers that become ready until this time: a catalog answers before its slowest servers.
    async fn tools_of_all(mut self, until: Instant) -> Result<Tools, String> {
        if !self.backend.starting().is_empty() {
            match self.list_again(until).await {
                Ok(pages) => self.pages = pages,
                Err(why) => {
                    self.server.end();
                    return Err(why);
                }
            }
        }
        let welcome = serde_json::from_slice(self.server.welcome());
        let welcome: serde_json::Value = welcome.unwrap_or_default();
        self.server.end();
        let text = |path| welcome.pointer(path).and_then(serde_json::Value::as_str).unwrap_or("?");
        let server = format!("{} {}", text("/serverInfo/name"), text("/serverInfo/version"));
        let tools = self.pages.iter().flat_map(|page| protocol::header_params::tools(page).tools);
        Ok(Tools { server, names: tools.map(|tool| tool.name).collect() })
    }

    /// The tools when each server is ready or has failed, or at this time.
    async fn list_again(&mut self, until: Instant) -> Result<Vec<Bytes>, String> {
        while !self.backend.starting().is_empty() && Instant::now() < until {
            if let Ok(ended) = timeout(LOOK_AGAIN, self.server.ignore()).await {
                return Err(ended);
            }
        }
        let late = |_| format!("did not list its tools within {} s", LIST.as_secs());
        timeout(LIST, self.server.list(Listed::Tool)).await.map_err(late)?
    }
}
