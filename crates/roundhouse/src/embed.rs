//! Roundhouse as a library: tenants in, a running node out.

use std::io;
use std::sync::Arc;

use backends::Backend;
use backends::native::{Handler, NativeBackend};
use backends::rmcp::RmcpBackend;
use store::Store;

use crate::plan::{self, Base, Named, Plan};
use crate::reload::{Reloading, SettingsSource};
use crate::settings::{Problems, Reading, TenantSettings, addresses};
use crate::signals::Signals;
use crate::{Node, Settings};

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings cannot be used.
    #[error(transparent)]
    Settings(#[from] Problems),
    /// The front cannot listen.
    #[error(transparent)]
    Front(#[from] front::Error),
    /// The cluster cannot be joined.
    #[error("the cluster cannot be joined")]
    Cluster(#[from] cluster::Error),
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] audit::Error),
    /// Spans and metrics cannot be sent.
    #[error(transparent)]
    Otlp(#[from] telemetry::OtlpError),
    /// Other nodes marked this process dead; a new one may start at once.
    #[error("other nodes marked this process dead; start it again")]
    MarkedDead,
    /// The system refused a thread or a signal handler.
    #[error("the system refused the node a thread or a signal handler")]
    System(#[from] io::Error),
    /// The node's thread ended before it had started; the log has the reason.
    #[error("the node stopped during its start; see its log")]
    Died,
}

/// Builds a node. Nothing is bound or started before [`Roundhouse::start`].
#[derive(Default)]
pub struct Roundhouse {
    settings: Settings,
    mounted: Named,
    natives: Named,
    store: Option<Arc<dyn Store>>,
    source: Option<SettingsSource>,
    problems: Problems,
}

impl Roundhouse {
    /// A node without tenants, on the default addresses: loopback, ports 8080 and 9090.
    pub fn new() -> Self {
        Self::default()
    }

    /// A node with these settings, as [`Settings::read`] returns them.
    pub fn from_settings(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Applies changes of these settings' tenants while the node runs, if they have a source.
    pub(crate) fn reloading(self, source: Option<SettingsSource>) -> Self {
        Self { source, ..self }
    }

    /// Serves `backend` as the tenant `name` to every client that can reach the listener.
    pub fn open_tenant(self, name: &str, backend: impl Backend) -> Self {
        self.tenant(name, tenants::Settings::open(), backend)
    }

    /// Serves `backend` as the tenant `name`, under its own settings.
    pub fn tenant(mut self, name: &str, tenant: tenants::Settings, backend: impl Backend) -> Self {
        let written = TenantSettings { tenant, ..TenantSettings::default() };
        self.settings.tenants.insert(name.into(), written);
        self.mounted.insert(name.into(), Arc::new(backend));
        self
    }

    /// Registers `backend` under a name that settings can refer to: `kind = "native"`, `name =
    /// "<name>"`.
    pub fn handler(mut self, name: &str, backend: impl Backend) -> Self {
        self.natives.insert(name.into(), Arc::new(backend));
        self
    }

    /// Keeps session records in this store instead of the one in the settings. Nodes of one
    /// cluster share a store.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Address of the listener for clients, as in `127.0.0.1:8080`; port 0 takes any free one. A
    /// host name is resolved at once.
    pub fn listen(mut self, address: &str) -> Self {
        match addresses::listen(address) {
            Ok(address) => self.settings.front.listen = address,
            Err(why) => self.problems.add(format!("`listen` is {address:?}, which {why}")),
        }
        self
    }

    /// Address of the listener for operators, as in `127.0.0.1:9090`, where port 0 takes any free
    /// one, or a Unix socket, as in `unix:/run/roundhouse/admin.sock`.
    pub fn admin(mut self, address: &str) -> Self {
        match addresses::admin(address) {
            Ok(address) => self.settings.admin.listen = address,
            Err(why) => self.problems.add(format!("`admin` is {address:?}, which {why}")),
        }
        self
    }

    /// Takes any free loopback ports for clients and operators, so that tests can run several
    /// nodes on one machine.
    pub fn on_free_ports(self) -> Self {
        self.listen("127.0.0.1:0").admin("127.0.0.1:0")
    }

    /// Starts the node on its own threads. Both addresses are bound when it returns.
    pub async fn start(self) -> Result<Node, Error> {
        Node::start(self.plan()?).await
    }

    /// Starts the node and runs it until the process receives SIGINT or SIGTERM.
    pub async fn serve(self) -> Result<(), Error> {
        let stop = Signals::new()?;
        let node = self.start().await?;
        if stop.stop_in_order(node).await { Ok(()) } else { Err(Error::MarkedDead) }
    }

    /// A node with settings that were read, and with what was found to be wrong with them.
    pub(crate) fn from_reading(reading: Reading) -> Self {
        let Reading { settings, problems, .. } = reading;
        Self { settings, problems, ..Self::default() }
    }

    pub(crate) fn plan(self) -> Result<Plan, Problems> {
        let mut natives = plan::built_in();
        natives.extend(self.natives);
        let reloading = self.source.map(|source| {
            Reloading::new(source, &self.settings, self.mounted.clone(), natives.clone())
        });
        let base = Base::Start { store: self.store };
        let plan = Plan::of(self.settings, &self.mounted, &natives, base, self.problems)?;
        Ok(Plan { reloading, ..plan })
    }
}

/// A backend that runs in this process: the handler answers its requests.
pub fn native(handler: impl Handler) -> NativeBackend {
    NativeBackend::new(handler)
}

/// A backend that runs in this process: the factory makes a service for each session.
pub fn rmcp<S>(factory: impl Fn() -> S + Send + Sync + 'static) -> RmcpBackend
where
    S: ::rmcp::Service<::rmcp::RoleServer>,
{
    RmcpBackend::new(move |_session| factory())
}
