//! The plan of a node: settings that were checked, and nothing started.
//!
//! [`Plan::of`] reports all problems of the settings at once. It opens no socket and starts no
//! server; [`crate::assemble`] does. With stdio backends it starts a process that finds out which
//! protections the machine grants them, and that has ended when it returns.

use std::collections::BTreeMap;
use std::sync::Arc;

use backends::sandbox::{Protections, Sandbox};
use backends::stdio::{Children, StdioBackend, StdioSettings};
use backends::{Backend, Backends};
use store::Store;
use telemetry::TenantLabels;
use tenants::{Tenant, Tenants};

use crate::records::Records;
use crate::reload::Reloading;
use crate::sandbox::Machine;
use crate::settings::{BackendSettings, Problems, Settings, TenantSettings};
use crate::shares::Budgets;
use crate::{bounds, files, guard, programs, sandbox, users};

/// Backends by name.
pub(crate) type Named = BTreeMap<String, Arc<dyn Backend>>;

/// The handlers that every node has.
#[cfg(feature = "demo")]
pub(crate) fn built_in() -> Named {
    let demo = backends::rmcp::RmcpBackend::new(|_session| everything::Everything::new());
    Named::from([(crate::demo::HANDLER.to_owned(), Arc::new(demo) as Arc<dyn Backend>)])
}

/// The handlers that every node has: none, without the feature `demo`.
#[cfg(not(feature = "demo"))]
pub(crate) fn built_in() -> Named {
    Named::new()
}

/// What a plan begins with.
pub(crate) enum Base {
    /// Nothing runs yet. A store of the embedding program replaces the one that settings name.
    Start { store: Option<Arc<dyn Store>> },
    /// A node runs, and only its tenants change.
    Running(Shared),
}

/// What the tenants of a running node share, also those that come later.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) children: Children,
    pub(crate) budgets: Budgets,
    pub(crate) store: Arc<dyn Store>,
}

/// Everything that a node needs to start.
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    /// `settings.cluster`, its files read.
    pub(crate) cluster: cluster::Settings,
    pub(crate) tenants: Tenants,
    pub(crate) backends: Backends,
    pub(crate) children: Children,
    /// What this machine grants to stdio servers.
    pub(crate) protections: Protections,
    /// What an operator should change, though the node starts without it.
    pub(crate) findings: Problems,
    pub(crate) budgets: Budgets,
    /// The tenants with metrics of their own.
    pub(crate) tenant_labels: TenantLabels,
    pub(crate) store: Arc<dyn Store>,
    /// Whether other nodes can reach the records of the store. Otherwise they are in the memory of
    /// this process.
    pub(crate) store_is_shared: bool,
    /// How the node reads its settings again; `None` if it does not.
    pub(crate) reloading: Option<Reloading>,
}

impl Plan {
    /// The plan for these settings. `mounted` are backends of tenants that the embedding program
    /// brings, `natives` the backends that settings may name. `problems` are those of reading the
    /// settings.
    pub(crate) fn of(
        mut settings: Settings,
        mounted: &Named,
        natives: &Named,
        base: Base,
        mut problems: Problems,
    ) -> Result<Self, Problems> {
        let guard = guard::of_this_program();
        let machine = Machine::probe(&settings, guard.as_ref());
        sandbox::check(&settings, &machine, &mut problems);
        for (key, path) in [
            ("cluster.tls.key_file", &settings.cluster.tls.key_file),
            ("store.tls.key_file", &settings.store.tls.key_file),
        ] {
            files::warning_of_open_key(key, path).into_iter().for_each(|text| problems.warn(text));
        }
        let unusable = programs::unusable(&settings, &problems);
        let (children, budgets, store) = match base {
            Base::Start { store } => {
                let settings = &settings;
                let variables = std::env::vars_os();
                let children = Children::new(settings.node.children.clone(), guard, variables);
                (children, Budgets::of(settings), store)
            }
            Base::Running(Shared { children, budgets, store }) => (children, budgets, Some(store)),
        };
        let default_sandbox = settings.node.sandbox;
        let kinds = Kinds {
            natives,
            children: &children,
            machine: &machine,
            default_sandbox,
            budgets: &budgets,
        };
        let mut tenants = Vec::new();
        let mut backends = Vec::new();
        for (name, written) in &settings.tenants {
            match Tenant::new(name, &written.tenant) {
                Ok(tenant) => tenants.push(tenant),
                Err(all) => {
                    let at = format!("tenants.{name}");
                    all.iter().for_each(|wrong| problems.add_in(&at, wrong.to_string()));
                }
            }
            let backend =
                problems.ok_or_add(only_backend(name, written, mounted.get(name), &kinds));
            backends.extend(backend.map(|backend| (Arc::from(name.as_str()), backend)));
        }
        if settings.tenants.is_empty() {
            problems
                .add_consequence("tenants", "there is no tenant; write one, as in [tenants.acme]");
        }
        settings.front.problems().iter().for_each(|wrong| problems.add(wrong.to_string()));
        settings.log.problems().iter().for_each(|wrong| problems.add(wrong.to_string()));
        if !settings.admin.token_file.as_os_str().is_empty() {
            let token = files::token("admin.token_file", &settings.admin.token_file);
            settings.admin.token = problems.ok_or_add(token);
        }
        let cluster = settings.cluster.read(&mut problems);
        bounds::check(&settings, &cluster, &mut problems);
        let brought = store.is_some();
        let records = match store {
            Some(store) => Some(Records::brought(store)),
            None => problems.ok_or_add(Records::open(&settings.store)),
        };
        let shared = records.as_ref().is_some_and(|records| records.shared);
        let is_member = !cluster.listen.is_empty();
        if is_member && !shared {
            problems.add_consequence(
                "store.url",
                "`cluster.listen` is set, but `store.url` names no store that other nodes can reach; \
                 write one, as in `store.url = \"redis://127.0.0.1:6379\"`, or leave \
                 `cluster.listen` out",
            );
        } else if shared && !is_member && !brought {
            problems.warn_about(
                "store.url",
                "`store.url` names a store that nodes can share, but this node is on its own: no \
                 other node may use that store with the same `store.prefix`; for a cluster write \
                 `cluster.listen` and `cluster.secret` on every node, and for a single node that \
                 keeps its sessions in Redis ignore this warning",
            );
        }
        let (Some(records), false) = (records, problems.has_errors()) else {
            unusable.into_iter().for_each(|(key, text)| problems.add_consequence(&key, text));
            return Err(problems);
        };
        let mut found = problems.clone();
        unusable.iter().for_each(|(key, text)| found.add_consequence(key, text));
        let (tenants, backends) = (Tenants::new(tenants), Backends::new(backends));
        let names = tenants.by_name().into_iter().map(|tenant| Arc::clone(&tenant.name));
        let tenant_labels = TenantLabels::new(names, settings.node.tenant_metrics_max);
        Ok(Self {
            settings,
            cluster,
            tenants,
            backends,
            children,
            protections: machine.for_all(),
            findings: found,
            budgets,
            tenant_labels,
            store: records.store,
            store_is_shared: records.shared,
            reloading: None,
        })
    }
}

/// The context from which each kind of backend is made.
struct Kinds<'a> {
    natives: &'a Named,
    children: &'a Children,
    machine: &'a Machine,
    default_sandbox: Sandbox,
    budgets: &'a Budgets,
}

impl Kinds<'_> {
    fn open(
        &self,
        tenant: &str,
        name: &str,
        settings: &BackendSettings,
    ) -> Result<Arc<dyn Backend>, String> {
        let at = format!("tenants.{tenant}.backends.{name}");
        match settings {
            BackendSettings::Stdio(stdio) if stdio.program.command.is_empty() => {
                Err(format!("`{at}` has an empty `command`; write the program to run"))
            }
            BackendSettings::Stdio(stdio) => {
                let (backend, program) = (format!("{tenant}/{name}"), stdio.read(&at)?);
                let sandbox = program.sandbox.or(Some(self.default_sandbox));
                let run_as =
                    users::resolve(&program.user).map_err(|problem| format!("`{at}` {problem}"))?;
                let program = StdioSettings { sandbox, run_as, ..program };
                let protections = self.machine.protections(&program).clone();
                let children = self.children.clone();
                let shares = self.budgets.stdio_shares(tenant);
                let backend =
                    StdioBackend::sharing(backend, program, protections, children, shares);
                Ok(Arc::new(backend))
            }
            BackendSettings::Native(native) => {
                self.native(&native.name).map_err(|problem| format!("`{at}` {problem}"))
            }
        }
    }

    fn native(&self, name: &str) -> Result<Arc<dyn Backend>, String> {
        self.natives.get(name).cloned().ok_or_else(|| {
            let known: Vec<_> = self.natives.keys().map(|name| format!("{name:?}")).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
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
        (None, Some((name, backend)), None) => kinds.open(tenant, name, backend),
        (None, None, _) => Err(format!(
            "`tenants.{tenant}.backends` has no backend; write one, as in \
             [tenants.{tenant}.backends.main]"
        )),
        _ => Err(format!(
            "`tenants.{tenant}.backends` has more than one backend, which is not served yet; keep \
             one of them, or give each a tenant of its own"
        )),
    }
}
