//! The plan of a node: settings that were checked, and nothing started.
//!
//! [`Plan::of`] reports all problems of the settings at once. It opens no socket and starts no
//! server; [`crate::assemble`] does. With stdio backends it starts a process that finds out which
//! protections the machine grants them, and that has ended when it returns.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use backends::http::HttpBackend;
use backends::sandbox::{Protections, Sandbox};
use backends::stdio::{Children, RunAs, StdioBackend, StdioSettings};
use backends::{Backend, Backends};
use catalog::{Catalog, Members, Pinning, TenantPins};
use store::Store;
use telemetry::TenantLabels;
use tenants::{Tenant, Tenants, name_of_host};

use crate::certificates::{self, Certificates};
use crate::homes::{Home, StateDir};
use crate::node_variables::NodeVariables;
use crate::pins::{self, PinRecords};
use crate::records::Records;
use crate::reload::Reloading;
use crate::sandbox::Machine;
use crate::secrets::Secrets;
use crate::settings::{BackendSettings, Problems, Settings, TenantSettings, read_http};
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
    pub(crate) pin_records: PinRecords,
}

/// Everything that a node needs to start.
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    /// `settings.cluster`, its files read.
    pub(crate) cluster: cluster::Settings,
    pub(crate) tenants: Tenants,
    pub(crate) backends: Backends,
    /// The backends of tenants that are catalogs.
    pub(crate) catalogs: BTreeMap<String, Arc<Catalog>>,
    /// The pins of tenants with backends of the settings, which sessions with catalogs follow.
    pub(crate) pins: BTreeMap<String, TenantPins>,
    pub(crate) pin_records: PinRecords,
    pub(crate) children: Children,
    /// What this machine grants to stdio servers.
    pub(crate) protections: Protections,
    /// What an operator should change, though the node starts without it.
    pub(crate) findings: Problems,
    /// What depends on the environment of this process, and which the node warns of when it starts.
    /// A check in another environment would find something else.
    pub(crate) remarks: Vec<String>,
    /// The home directories that the servers need.
    pub(crate) homes: Vec<Home>,
    pub(crate) budgets: Budgets,
    /// The tenants with metrics of their own.
    pub(crate) tenant_labels: TenantLabels,
    pub(crate) store: Arc<dyn Store>,
    /// Whether other nodes can reach the records of the store. Otherwise they are in the memory of
    /// this process.
    pub(crate) store_is_shared: bool,
    /// The certificates for clients; `None` if the listener has no TLS.
    pub(crate) certificates: Option<Certificates>,
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
        certificates::check_names(&settings.front.tls, &mut problems);
        let certificates = match &base {
            Base::Start { .. } => certificates::read(&settings.front.tls, &mut problems),
            // Its certificates are read again by themselves: one that cannot be used stops nothing.
            Base::Running(_) => certificates::read(&settings.front.tls, &mut Problems::default()),
        };
        let unusable = programs::unusable(&settings, &problems);
        let variables = NodeVariables::of_process();
        let (children, budgets, store, pin_records) = match base {
            Base::Start { store } => {
                catalog::register_all();
                let limits = settings.node.children.clone();
                let children = Children::new(limits, guard, variables.all());
                (children, Budgets::of(&settings), store, PinRecords::default())
            }
            Base::Running(Shared { children, budgets, store, pin_records }) => {
                (children, budgets, Some(store), pin_records)
            }
        };
        let state_dir = StateDir::choose(&settings.node.state_dir, &variables);
        problems.ok_or_add(state_dir.check());
        let mut homes = Vec::new();
        let default_sandbox = settings.node.sandbox;
        let secrets = Secrets::of(&settings);
        let kinds = Kinds {
            natives,
            settings: &settings,
            pin_records: &pin_records,
            children: &children,
            machine: &machine,
            default_sandbox,
            budgets: &budgets,
            secrets: &secrets,
            variables: &variables,
            pass_env: &settings.node.pass_env,
            start_secs: settings.sessions.session.start_secs,
            state_dir: &state_dir,
        };
        let mut tenants = Vec::new();
        let mut backends = Vec::new();
        let (mut catalogs, mut pins) = (BTreeMap::new(), BTreeMap::new());
        for (name, written) in &settings.tenants {
            let tenant = problems.ok_or_add(with_secret(name, &written.tenant, &secrets));
            let Some(tenant) = tenant else { continue };
            match Tenant::new(name, &tenant) {
                Ok(tenant) => {
                    let mut exchanging =
                        written.backends.iter().filter(|(_, backend)| backend.exchanges_tokens());
                    let first = exchanging.next().map(|(backend, _)| backend);
                    if let Some(backend) = first.filter(|_| tenant.access.oauth().is_none()) {
                        let at = format!("tenants.{name}.backends.{backend}.credential.grant");
                        problems.add_in(&at, without_tokens(name, &at));
                    }
                    let mut linking =
                        written.backends.iter().filter(|(_, backend)| backend.links_accounts());
                    if let Some((backend, _)) =
                        linking.next().filter(|_| settings.front.public_url.is_none())
                    {
                        let at = format!("tenants.{name}.backends.{backend}.credential.grant");
                        problems.add_in(&at, without_pages(&at));
                    }
                    tenants.push(Tenant { exchanges_tokens: first.is_some(), ..tenant });
                }
                Err(all) => {
                    let at = format!("tenants.{name}");
                    all.iter().for_each(|wrong| problems.add_in(&at, wrong.to_string()));
                }
            }
            match backend_of(name, written, mounted.get(name), &kinds, &mut homes) {
                Ok(served) => {
                    backends.push((Arc::from(name.as_str()), served.backend));
                    catalogs.extend(served.catalog.map(|catalog| (name.clone(), catalog)));
                    pins.extend(served.pins.map(|of_tenant| (name.clone(), of_tenant)));
                }
                Err(all) => all.into_iter().for_each(|problem| problems.add(problem)),
            }
        }
        let has_public_url = settings.front.public_url.is_some();
        for tenant in tenants.iter().filter(|tenant| lacks_url(tenant, has_public_url)) {
            problems.add_in(&format!("tenants.{}.auth", tenant.name), without_url(&tenant.name));
        }
        for (at, problem) in hosts_of_others(&tenants, &settings.front.own_hosts()) {
            problems.add_in(&at, problem);
        }
        if let Some(read) = &certificates {
            certificates::warn(&settings, &read.pairs, &tenants, &mut problems);
        }
        if settings.tenants.is_empty() {
            let folder = &settings.node.tenants_dir;
            let text = match folder.as_os_str().is_empty() {
                true => "there is no tenant; write one, as in [tenants.acme]".to_owned(),
                false => format!(
                    "there is no tenant; write one, as in {} or [tenants.acme]",
                    folder.join("acme.toml").display()
                ),
            };
            problems.add_consequence("tenants", text);
        }
        settings.front.problems().iter().for_each(|wrong| problems.add(wrong.to_string()));
        settings.admin.problems().into_iter().for_each(|wrong| problems.add(wrong));
        settings.log.problems().iter().for_each(|wrong| problems.add(wrong.to_string()));
        settings.audit.problems().iter().for_each(|wrong| problems.add(wrong.to_string()));
        if settings.otlp.is_on() && !settings.otlp.headers_file.as_os_str().is_empty() {
            let (file, headers) = (&settings.otlp.headers_file, &mut settings.otlp.headers);
            problems.ok_or_add(files::add_variables("otlp.headers_file", file, headers));
        }
        if settings.otlp.is_on() && !settings.otlp.ca_file.as_os_str().is_empty() {
            let ca = files::text("otlp.ca_file", &settings.otlp.ca_file);
            settings.otlp.ca = problems.ok_or_add(ca).unwrap_or_default();
        }
        if settings.audit.to == audit::To::Otlp && !settings.otlp.is_on() {
            problems.add(audit::Error::NoCollector.to_string());
        }
        settings.otlp.problems().iter().for_each(|wrong| problems.add(wrong.to_string()));
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
        let remarks = remarks(&settings, &variables, &state_dir, &homes);
        Ok(Self {
            settings,
            cluster,
            tenants,
            backends,
            catalogs,
            pins,
            pin_records,
            children,
            protections: machine.for_all(),
            findings: found,
            remarks,
            homes,
            budgets,
            tenant_labels,
            store: records.store,
            store_is_shared: records.shared,
            certificates,
            reloading: None,
        })
    }
}

/// The context from which each kind of backend is made.
struct Kinds<'a> {
    natives: &'a Named,
    settings: &'a Settings,
    pin_records: &'a PinRecords,
    children: &'a Children,
    machine: &'a Machine,
    default_sandbox: Sandbox,
    budgets: &'a Budgets,
    secrets: &'a Secrets,
    variables: &'a NodeVariables,
    /// `node.pass_env`.
    pass_env: &'a [String],
    /// `sessions.start_secs`.
    start_secs: u64,
    state_dir: &'a StateDir,
}

impl Kinds<'_> {
    fn open(
        &self,
        tenant: &str,
        issuer: &str,
        name: &str,
        settings: &BackendSettings,
        homes: &mut Vec<Home>,
    ) -> Result<Arc<dyn Backend>, Vec<String>> {
        let at = format!("tenants.{tenant}.backends.{name}");
        match settings {
            BackendSettings::Stdio(stdio) if stdio.program.command.is_empty() => {
                Err(vec![format!("`{at}` has an empty `command`; write the program to run")])
            }
            BackendSettings::Stdio(stdio) => {
                let program =
                    stdio.read(tenant, &at, self.secrets, self.variables, self.pass_env)?;
                let backend = format!("{tenant}/{name}");
                let sandbox = program.sandbox.or(Some(self.default_sandbox));
                let run_as = users::resolve(&program.user)
                    .map_err(|problem| vec![format!("`{at}` {problem}")])?;
                let home = self.home(tenant, &program, run_as.as_ref());
                homes.extend(home.clone());
                let home = home.map(|home| home.path);
                let start_secs = program.start_secs.or(Some(self.start_secs));
                let program = StdioSettings { sandbox, run_as, home, start_secs, ..program };
                let protections = self.machine.protections(&program).clone();
                let children = self.children.clone();
                // Without its shares the tenant would have no bounds.
                let shares = self.budgets.stdio_shares(tenant);
                let shares = shares.ok_or_else(|| uncounted(&at))?;
                let backend =
                    StdioBackend::sharing(backend, program, protections, children, shares);
                Ok(Arc::new(backend))
            }
            BackendSettings::Http(http) => {
                let mut http = read_http(&http.http, tenant, &at, self.secrets)?;
                if settings.links_accounts() {
                    http.credential.sign_in.issuer = issuer.to_owned();
                }
                // Without its share the tenant would have no bound.
                let share =
                    self.budgets.session_bytes.share(tenant).ok_or_else(|| uncounted(&at))?;
                let backend = HttpBackend::new(&share, format!("{tenant}/{name}"), &http);
                let backend = backend.map_err(|all| {
                    all.iter().map(|problem| format!("`{at}`: {problem}")).collect::<Vec<_>>()
                })?;
                Ok(Arc::new(backend))
            }
            BackendSettings::Native(native) => {
                self.native(&native.name).map_err(|problem| vec![format!("`{at}` {problem}")])
            }
        }
    }

    /// The private home of the tenant's servers, unless their settings or their user bring one.
    fn home(&self, tenant: &str, program: &StdioSettings, user: Option<&RunAs>) -> Option<Home> {
        let of_user = user.and_then(|user| user.home.as_ref()).filter(|home| home.is_dir());
        let is_given = program.env.contains_key("HOME") || of_user.is_some();
        (!is_given).then(|| self.state_dir.home(tenant, user))
    }

    fn native(&self, name: &str) -> Result<Arc<dyn Backend>, String> {
        self.natives.get(name).cloned().ok_or_else(|| {
            let known: Vec<_> = self.natives.keys().map(|name| format!("{name:?}")).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            format!("names the handler {name:?}, which this program does not have; it has {known}")
        })
    }
}

/// What the environment of this process lacks for the servers.
fn remarks(
    settings: &Settings,
    variables: &NodeVariables,
    state_dir: &StateDir,
    homes: &[Home],
) -> Vec<String> {
    // A command line that brings its own home brings all variables.
    if homes.is_empty() {
        return Vec::new();
    }
    let mut remarks = Vec::new();
    remarks.extend(state_dir.warning.clone());
    remarks.extend(variables.withheld(&settings.node.pass_env));
    remarks.extend(variables.not_set("node.pass_env", &settings.node.pass_env));
    for (tenant, written) in &settings.tenants {
        for (name, backend) in &written.backends {
            let BackendSettings::Stdio(stdio) = backend else { continue };
            let key = format!("tenants.{tenant}.backends.{name}.pass_env");
            remarks.extend(variables.not_set(&key, &stdio.pass_env));
        }
    }
    remarks
}

/// The settings of a tenant with its secret in place of the reference to it.
fn with_secret(
    name: &str,
    written: &tenants::Settings,
    secrets: &Secrets,
) -> Result<tenants::Settings, String> {
    let mut settings = written.clone();
    let secret = &mut settings.oauth.client_secret;
    let key = format!("tenants.{name}.oauth.client_secret");
    if let Some(resolved) = secrets.value(name, &key, secret.expose())? {
        *secret = resolved.into();
    }
    Ok(settings)
}

/// Whether clients of the tenant cannot find its issuer: no URL of the endpoint is known.
fn lacks_url(tenant: &Tenant, has_public_url: bool) -> bool {
    tenant.access.oauth().is_some() && !has_public_url && tenant.hosts.is_empty()
}

fn without_url(tenant: &str) -> String {
    format!(
        "`tenants.{tenant}.auth` has `oauth`, and no URL of the endpoint is known, by which clients find \
         the issuer and tokens name the endpoint; write `front.public_url`, as in \
         \"https://mcp.example.com\", or `tenants.{tenant}.hosts`"
    )
}

/// Why the backend at this key cannot be used.
fn uncounted(at: &str) -> Vec<String> {
    vec![format!("`{at}` cannot be counted: the node has no share for its tenant; restart it")]
}

fn without_tokens(tenant: &str, at: &str) -> String {
    format!(
        "`{at}` needs tokens of users, and the clients of the tenant have none; write \
         `tenants.{tenant}.auth = \"oauth\"`, or another grant"
    )
}

fn without_pages(at: &str) -> String {
    format!(
        "`{at}` is \"authorization_code\", and users cannot open the pages on which they link their accounts; \
         write `front.public_url`, as in \"https://mcp.example.com\""
    )
}

/// The hosts of tenants that are another tenant's too, or the node's own: the place of each, and the
/// problem.
fn hosts_of_others(tenants: &[Tenant], own: &[String]) -> Vec<(String, String)> {
    let mut owners = BTreeMap::new();
    let mut found = Vec::new();
    for tenant in tenants {
        let name = &tenant.name;
        for host in &tenant.hosts {
            if own.iter().any(|own| own == name_of_host(host)) {
                let problem = format!(
                    "`tenants.{name}.hosts` has {host:?}, which is a name of the node (of loopback, \
                     `front.public_url` or `front.allowed_hosts`); give the tenant a name of its own"
                );
                found.push((format!("tenants.{name}.hosts"), problem));
            }
            let (other, written) = match owners.insert(name_of_host(host), (name, host)) {
                Some((other, written)) if other != name || written == host => (other, written),
                _ => continue,
            };
            let problem = format!(
                "`tenants.{name}.hosts` has {host:?}, which `tenants.{other}.hosts` has too, as {written:?}; \
                 a host is one tenant's at every port, so remove it from one of them"
            );
            found.push((format!("tenants.{name}.hosts"), problem));
        }
    }
    found
}

/// What serves a tenant.
struct Served {
    backend: Arc<dyn Backend>,
    /// The same, if it is one.
    catalog: Option<Arc<Catalog>>,
    /// Those of backends of the settings.
    pins: Option<TenantPins>,
}

/// What serves a tenant: its only backend, or a catalog of all.
fn backend_of(
    tenant: &str,
    written: &TenantSettings,
    mounted: Option<&Arc<dyn Backend>>,
    kinds: &Kinds<'_>,
    homes: &mut Vec<Home>,
) -> Result<Served, Vec<String>> {
    let mut all = written.backends.iter();
    match (mounted, all.next(), all.next()) {
        (Some(mounted), None, _) => {
            Ok(Served { backend: Arc::clone(mounted), catalog: None, pins: None })
        }
        (None, None, _) => Err(vec![format!(
            "`tenants.{tenant}.backends` has no backend; write one, as in \
             [tenants.{tenant}.backends.main]"
        )]),
        (None, Some((name, backend)), None) if backend.member().is_plain() => {
            let issuer = &written.tenant.oauth.issuer;
            let backend = kinds.open(tenant, issuer, name, backend, homes)?;
            // For sessions with a former catalog.
            Ok(Served { backend, catalog: None, pins: Some(pins::off(written)) })
        }
        (None, ..) => catalog_of(tenant, written, kinds, homes),
        (Some(_), ..) => Err(vec![format!(
            "`tenants.{tenant}.backends` has a backend, and the program brings one for this tenant; \
             remove it"
        )]),
    }
}

/// The backends of a tenant as one.
fn catalog_of(
    tenant: &str,
    written: &TenantSettings,
    kinds: &Kinds<'_>,
    homes: &mut Vec<Home>,
) -> Result<Served, Vec<String>> {
    let mut wrong = Vec::new();
    let member = |(name, backend): (&'_ String, &'_ BackendSettings)| {
        (name.clone(), backend.member().clone())
    };
    let settings: Vec<_> = written.backends.iter().map(member).collect();
    let members = Members::new(settings.iter().map(|(name, member)| (name.as_str(), member)));
    let members = members.map_err(|all| {
        let at = |name: &str| format!("tenants.{tenant}.backends.{name}");
        wrong.extend(all.iter().map(|(name, text)| format!("`{}` {text}", at(name))));
    });
    let mut backends = Vec::new();
    for (name, backend) in &written.backends {
        match kinds.open(tenant, &written.tenant.oauth.issuer, name, backend, homes) {
            Ok(backend) => backends.push(backend),
            Err(all) => wrong.extend(all),
        }
    }
    let pins = pins::of_tenant(kinds.settings, tenant, written);
    let pins = pins.map_err(|all| wrong.extend(all));
    let start_secs = written.start_secs_max().unwrap_or_default().max(kinds.start_secs);
    let (Ok(members), Ok(pins), true) = (members, pins, wrong.is_empty()) else {
        return Err(wrong);
    };
    let start = Duration::from_secs(start_secs.saturating_add(1));
    let pinning = Pinning { pins: pins.clone(), observer: kinds.pin_records.observer() };
    let catalog = Arc::new(Catalog::new(tenant, members, backends, start, pinning));
    let backend = Arc::clone(&catalog) as Arc<dyn Backend>;
    Ok(Served { backend, catalog: Some(catalog), pins: Some(pins) })
}
