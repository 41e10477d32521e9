//! From settings to running parts, and back to nothing in order.
//!
//! [`Plan::of`] finds everything that is wrong before anything is started; [`Plan::run`]
//! starts the parts and, once asked to stop, ends them in the order in which nobody is
//! cut off in mid-sentence.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actors::Handle;
use backends::rmcp::RmcpBackend;
use backends::stdio::{Children, StdioBackend};
use backends::{Backend, Backends};
use everything::Everything;
use store::Store;
use telemetry::Readiness;
use tenants::{Tenant, Tenants};

use crate::settings::{BackendSettings, Problems, Settings, TenantSettings};
use crate::{demo, guard};

/// How long responses may still be written after their sessions have ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How long child processes are waited for. Each is killed within its own grace, so this
/// is for what the system does not let die; the guards go on without us.
const CHILDREN: Duration = Duration::from_secs(15);

/// How often the store is asked to forget what has expired.
const SWEEP: Duration = Duration::from_secs(10);

/// Backends by name.
pub(crate) type Named = BTreeMap<String, Arc<dyn Backend>>;

/// The handlers that every node has.
pub(crate) fn built_in() -> Named {
    let everything = RmcpBackend::new(|_session| Everything::new());
    Named::from([(demo::HANDLER.to_owned(), Arc::new(everything) as Arc<dyn Backend>)])
}

/// Everything that a node needs, found right and not started.
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) tenants: Tenants,
    backends: Backends,
    children: Children,
    store: Arc<dyn Store>,
}

impl Plan {
    /// What these settings ask for. `mounted` are backends of tenants that the embedding
    /// program brings itself, `natives` those that settings may name.
    pub(crate) fn of(
        settings: Settings,
        mounted: &Named,
        natives: &Named,
    ) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        let mut tenants = Vec::new();
        let children = Children::new(
            settings.node.children.clone(),
            guard::of_this_program(),
            std::env::vars_os(),
        );
        let kinds = Kinds { natives, children: &children };
        let mut backends = Vec::new();
        for (name, written) in &settings.tenants {
            match Tenant::new(name, &written.tenant) {
                Ok(tenant) => tenants.push(tenant),
                Err(wrong) => wrong.iter().for_each(|wrong| problems.add(wrong.to_string())),
            }
            match only_backend(name, written, mounted.get(name), &kinds) {
                Ok(backend) => backends.push((Arc::from(name.as_str()), backend)),
                Err(problem) => problems.add(problem),
            }
        }
        if settings.tenants.is_empty() {
            problems.add("there is no tenant; write one, as in [tenants.acme]");
        }
        let store = open_store(&settings.store.url);
        match store {
            Ok(store) => problems.or(Self {
                settings,
                tenants: Tenants::new(tenants),
                backends: Backends::new(backends),
                children,
                store,
            }),
            Err(problem) => {
                problems.add(problem);
                Err(problems)
            }
        }
    }

    /// The node's sessions.
    pub(crate) fn handle(&self) -> Handle {
        Handle::new(self.settings.sessions.clone(), Arc::clone(&self.store), self.backends.clone())
    }

    /// Waits until no child process is left, or for as long as makes sense.
    pub(crate) async fn bury(&self) {
        if tokio::time::timeout(CHILDREN, self.children.stopped()).await.is_err() {
            tracing::warn!(left = self.children.count(), "child processes do not end");
        }
    }

    /// How long requests in flight may go on once the node was asked to stop.
    pub(crate) fn drain(&self) -> Duration {
        Duration::from_secs(self.settings.node.drain_secs)
    }

    /// Starts the node, calls `started`, and runs until `stop` is ready. Call it within an
    /// actix system.
    pub(crate) async fn run(
        self,
        started: impl FnOnce(&front::Running),
        stop: impl Future<Output = ()>,
    ) -> Result<(), front::Error> {
        let readiness = Readiness::waiting_for("starting");
        let handle = self.handle();
        let running = front::serve(
            &self.settings.front,
            &self.settings.admin,
            handle.clone(),
            self.tenants.clone(),
            readiness.clone(),
        )?;
        let sweeping = actix_rt::spawn(sweep(Arc::clone(&self.store)));
        readiness.clear("starting");
        started(&running);
        stop.await;
        readiness.hold("stopping");
        running.drain();
        handle.stop(self.drain()).await;
        running.stop(LAST_WORDS).await;
        self.bury().await;
        sweeping.abort();
        Ok(())
    }
}

/// What each kind of backend is made from.
struct Kinds<'a> {
    natives: &'a Named,
    children: &'a Children,
}

impl Kinds<'_> {
    fn open(&self, name: &str, settings: &BackendSettings) -> Result<Arc<dyn Backend>, String> {
        match settings {
            BackendSettings::Stdio(stdio) if stdio.command.is_empty() => {
                Err("has an empty `command`; write the program to run".into())
            }
            BackendSettings::Stdio(stdio) => {
                Ok(Arc::new(StdioBackend::new(name, stdio.clone(), self.children.clone())))
            }
            BackendSettings::Native(native) => self.native(&native.name),
        }
    }

    fn native(&self, name: &str) -> Result<Arc<dyn Backend>, String> {
        self.natives.get(name).cloned().ok_or_else(|| {
            let known: Vec<_> = self.natives.keys().map(|name| format!("{name:?}")).collect();
            let known = known.join(", ");
            format!("names the handler {name:?}, which this program does not have; it has {known}")
        })
    }
}

fn only_backend(
    tenant: &str,
    written: &TenantSettings,
    mounted: Option<&Arc<dyn Backend>>,
    kinds: &Kinds<'_>,
) -> Result<Arc<dyn Backend>, String> {
    let mut all = written.backends.iter();
    match (mounted, all.next(), all.next()) {
        (Some(mounted), None, _) => Ok(Arc::clone(mounted)),
        (None, Some((name, backend)), None) => kinds
            .open(&format!("{tenant}/{name}"), backend)
            .map_err(|problem| format!("`tenants.{tenant}.backends.{name}` {problem}")),
        (None, None, _) => Err(format!(
            "tenant `{tenant}` has no backend; write one, as in [tenants.{tenant}.backends.main]"
        )),
        _ => Err(format!(
            "tenant `{tenant}` has more than one backend, which is not served yet; keep one of \
             them, or give each a tenant of its own"
        )),
    }
}

// The URL may carry a password, so only its scheme is repeated.
fn open_store(url: &str) -> Result<Arc<dyn Store>, String> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Arc::new(store::Memory::default())),
        Some((scheme, _)) => Err(format!(
            "`store.url` has the scheme `{scheme}`, which is not served yet; write \"memory:\""
        )),
        None => Err("`store.url` is not a URL; write \"memory:\"".into()),
    }
}

async fn sweep(store: Arc<dyn Store>) {
    let mut next = tokio::time::interval(SWEEP);
    loop {
        next.tick().await;
        if let Err(error) = store.sweep().await {
            tracing::warn!(%error, "the store could not be swept; it is tried again");
        }
    }
}
