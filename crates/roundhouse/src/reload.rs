//! Applies changed tenants while the node runs.
//!
//! The files of the settings are compared by content at an interval: an editor replaces a file, and
//! Kubernetes changes a symbolic link above it. `SIGHUP` has them read at once. If there is a problem,
//! nothing changes. Otherwise the tenants and the credentials of operators are applied; a change of any other setting is named and
//! waits for a restart.

mod changes;
mod pins_in_use;
mod watched;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use actors::Handle;
use backends::Backend;
use budget::Budget;
use catalog::Catalog;
use front::AdminCredentials;
use telemetry::Readiness;
use tenants::Tenant;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::changes::{Changes, warn_of_other_changes};
use self::pins_in_use::PinsInUse;
use self::watched::Watched;
use crate::advice::Advice;
use crate::certificates::CertificateRequests;
use crate::descriptors::{self, Descriptors};
use crate::homes;
use crate::metrics::{RELOADS_APPLIED, RELOADS_REFUSED};
use crate::plan::{Base, Named, Plan, Shared};
use crate::settings::{Digests, Problems, Reading, Settings};

/// Shown by `/readyz` while the settings have a problem.
const REMARK: &str =
    "the settings have problems; the node goes on with the former ones; see the log";

/// Most attempts to read settings whose files change meanwhile. The next interval follows.
const READS_MAX: usize = 3;

/// Where the settings come from, and how they are read.
pub(crate) struct SettingsSource {
    file: Option<PathBuf>,
    read: Read,
    /// The contents from which the settings of the start were read.
    digests: Digests,
}

type Read = Arc<dyn Fn() -> Result<Reading, Problems> + Send + Sync>;

impl SettingsSource {
    /// The source of these settings, which `read` has read; `None` if they are in no file.
    pub(crate) fn new(file: Option<PathBuf>, read: Read, start: &Reading) -> Option<Self> {
        let has_folder = !start.settings.node.tenants_dir.as_os_str().is_empty();
        let digests = start.digests.clone();
        (file.is_some() || has_folder).then_some(Self { file, read, digests })
    }
}

/// What a node needs to read its settings again.
pub(crate) struct Reloading {
    source: SettingsSource,
    mounted: Named,
    natives: Named,
    /// The files of the settings that were read last, and their contents.
    watched: Watched,
    digests: Digests,
}

impl Reloading {
    /// For these settings, before the files that their tenants name are read.
    pub(crate) fn new(
        source: SettingsSource,
        settings: &Settings,
        mounted: Named,
        natives: Named,
    ) -> Self {
        let watched = Watched::new(source.file.clone(), settings);
        let mut digests = source.digests.clone();
        digests.extend(watched.digests_of_named());
        Self { source, mounted, natives, watched, digests }
    }
}

/// The tenants of a running node, and what they are made of.
pub(crate) struct Reload {
    reloading: Reloading,
    /// The settings with which the node was started, and the tenants that were applied last.
    settings: Settings,
    tenants: tenants::Tenants,
    backends: backends::Backends,
    /// Those of the backends that are catalogs.
    catalogs: BTreeMap<String, Arc<Catalog>>,
    pins: PinsInUse,
    shared: Shared,
    bodies: Budget,
    handle: Handle,
    readiness: Readiness,
    operators: AdminCredentials,
    /// The files as they were applied last. Those of `reloading` are the ones that were read last: they
    /// differ if settings were refused.
    applied: Digests,
    /// How many tenants were removed.
    removals: u64,
    advice: Advice,
    /// `None` if clients have no TLS.
    certificates: Option<CertificateRequests>,
}

/// One removal of a tenant.
#[derive(Clone, Debug, PartialEq)]
struct Removal {
    tenant: String,
    /// Differs from that of a later removal of the same tenant.
    number: u64,
}

impl Reload {
    /// Reloads the settings of a node that was planned like this.
    pub(crate) fn new(
        reloading: Reloading,
        plan: &Plan,
        bodies: Budget,
        handle: Handle,
        readiness: Readiness,
        certificates: Option<CertificateRequests>,
        operators: AdminCredentials,
    ) -> Self {
        Self {
            applied: reloading.digests.clone(),
            reloading,
            settings: plan.settings.clone(),
            tenants: plan.tenants.clone(),
            backends: plan.backends.clone(),
            catalogs: plan.catalogs.clone(),
            pins: PinsInUse::new(plan.pins.clone()),
            shared: Shared {
                children: plan.children.clone(),
                budgets: plan.budgets.clone(),
                store: Arc::clone(&plan.store),
                pin_records: plan.pin_records.clone(),
            },
            bodies,
            handle,
            readiness,
            operators,
            removals: 0,
            advice: Advice::of(plan),
            certificates,
        }
    }

    /// Applies changes until it is dropped.
    pub(crate) async fn run(mut self) {
        let Ok(mut hangups) = signal(SignalKind::hangup()) else {
            tracing::error!("the system refused a handler of SIGHUP; restart the node for changes");
            return;
        };
        let (ended, mut have_ended) = mpsc::channel::<Removal>(1);
        let mut leaving = BTreeMap::new();
        loop {
            let is_asked = tokio::select! {
                _ = hangups.recv() => true,
                () = self.interval() => false,
                Some(removal) = have_ended.recv() => {
                    self.forget(&removal, &mut leaving);
                    continue;
                }
            };
            if !is_asked && !self.have_files_changed().await {
                continue;
            }
            match self.apply(&mut leaving).await {
                Ok(removed) => {
                    self.readiness.remark(REMARK, false);
                    RELOADS_APPLIED.inc();
                    for removal in removed {
                        self.end_tenant(removal, ended.clone(), &mut leaving);
                    }
                }
                Err(problems) => {
                    self.readiness.remark(REMARK, true);
                    RELOADS_REFUSED.inc();
                    tracing::error!(
                        "the settings were not applied; the node goes on with the former ones: \
                         {problems}"
                    );
                }
            }
            // Also if the settings were refused: a certificate stops nothing, and nothing stops it.
            if let Some(certificates) = &self.certificates {
                certificates.read_again(&self.settings.front.tls);
            }
        }
    }

    async fn interval(&self) {
        match self.settings.node.reload_secs {
            0 => std::future::pending().await,
            secs => tokio::time::sleep(Duration::from_secs(secs)).await,
        }
    }

    /// Reads the settings and applies their tenants. Returns the tenants that were removed.
    async fn apply(
        &mut self,
        leaving: &mut BTreeMap<String, Leaving>,
    ) -> Result<Vec<Removal>, Problems> {
        let Reading { settings: new, problems, .. } = self.read().await?;
        warn_of_other_changes(&self.settings, &new);
        let settings = self.settings.with_tenants_of(new);
        let naming = self.shared.budgets.name_added(&settings);
        let plan = self.plan(settings.clone(), problems).await?;
        homes::create(&plan.homes)?;
        naming.keep();
        let is_rotated = |file: &Path| self.applied.is_changed_in(&self.reloading.digests, file);
        let changes = Changes::between(&self.settings, &settings, is_rotated);

        let mut removed = Vec::new();
        for name in &changes.removed {
            let found = (self.tenants.find(name), self.backends.of(name));
            let (Some(tenant), Some(backend)) = found else { continue };
            self.removals += 1;
            let tenant = Tenant { is_leaving: true, ..Tenant::clone(&tenant) };
            let (number, ending) = (self.removals, JoinSet::new());
            leaving.insert(name.clone(), Leaving { tenant, backend, number, ending });
            removed.push(Removal { tenant: name.clone(), number: self.removals });
        }
        leaving.retain(|name, _| !settings.tenants.contains_key(name));
        self.divide(&plan);
        let catalogs = self.catalogs_of(&plan, &changes);
        let kept = |name: &Arc<str>, new| match catalogs.get(&**name) {
            Some(catalog) => Arc::clone(catalog) as Arc<dyn Backend>,
            None => {
                let kept = self.backends.of(name).filter(|_| !changes.has_new_backend(name));
                kept.unwrap_or(new)
            }
        };
        let planned = plan.tenants.by_name().into_iter().filter_map(|tenant| {
            let new = plan.backends.of(&tenant.name)?;
            Some((Arc::clone(&tenant.name), kept(&tenant.name, new)))
        });
        let planned: Vec<_> = planned.collect();
        let left = leaving.values().map(|l| (Arc::clone(&l.tenant.name), Arc::clone(&l.backend)));
        // The backends first: a tenant that clients can find has its backend.
        self.backends.replace(planned.into_iter().chain(left));
        self.catalogs = catalogs;
        self.pins.replace(&plan.pins, |tenant| changes.has_new_backend(tenant));
        self.handle.replace_cares(plan.cares());
        self.show_tenants(plan.tenants.by_name().iter().map(|t| Tenant::clone(t)), leaving);
        self.operators.replace(&plan.settings.admin);
        self.backends.start_in_advance();
        Advice::of(&plan).replace(&mut self.advice);
        changes.log();
        self.applied.clone_from(&self.reloading.digests);
        self.settings = settings;
        Ok(removed)
    }

    async fn have_files_changed(&self) -> bool {
        let watched = self.reloading.watched.clone();
        let digests = blocking(move || Ok(watched.digests())).await;
        digests.is_ok_and(|digests| digests != self.reloading.digests)
    }

    /// Reads the settings, and which contents they were read from.
    async fn read(&mut self) -> Result<Reading, Problems> {
        let source = &self.reloading.source;
        let (file, read) = (source.file.clone(), Arc::clone(&source.read));
        let (reading, watched, digests) = blocking(move || read_unchanged(&file, &*read)).await?;
        self.reloading.watched = watched;
        self.reloading.digests = digests;
        Ok(reading)
    }

    /// Plans a node with these settings, which has what the running node has.
    async fn plan(&self, settings: Settings, problems: Problems) -> Result<Plan, Problems> {
        let (mounted, natives) = (self.reloading.mounted.clone(), self.reloading.natives.clone());
        let shared = self.shared.clone();
        blocking(move || {
            let plan = Plan::of(settings, &mounted, &natives, Base::Running(shared), problems)?;
            // An added tenant may have the first child processes.
            Descriptors::of(descriptors::current_limit(), &plan.settings).widen_table();
            Ok(plan)
        })
        .await
    }

    /// Divides what tenants share anew among those of this plan.
    fn divide(&self, plan: &Plan) {
        self.shared.budgets.divide(&plan.settings);
        self.bodies.divide(plan.settings.front.body_shares(plan.settings.body_maxima()));
        self.handle.divide_sessions(plan.tenant_sessions_max());
        self.handle.limits().limit_tenants(plan.cluster_limits());
    }

    /// The catalogs of the tenants from now on: the former ones as far as they stay.
    fn catalogs_of(&self, plan: &Plan, changes: &Changes) -> BTreeMap<String, Arc<Catalog>> {
        let kept = |(name, planned): (&String, &Arc<Catalog>)| {
            let former = self.catalogs.get(name).filter(|_| !changes.has_new_backend(name));
            let catalog = match (former, changes.backends_replaced(name)) {
                (None, _) => Arc::clone(planned),
                (Some(former), None) => Arc::clone(former),
                (Some(former), Some(names)) => Arc::new(former.replacing(names, planned)),
            };
            (name.clone(), catalog)
        };
        plan.catalogs.iter().map(kept).collect()
    }

    fn show_tenants(
        &self,
        tenants: impl Iterator<Item = Tenant>,
        leaving: &BTreeMap<String, Leaving>,
    ) {
        self.tenants.replace(tenants.chain(leaving.values().map(|l| l.tenant.clone())));
    }

    /// Ends the sessions of a removed tenant, and then reports it to `ended`.
    fn end_tenant(
        &self,
        removal: Removal,
        ended: mpsc::Sender<Removal>,
        leaving: &mut BTreeMap<String, Leaving>,
    ) {
        let Some(Leaving { ending, .. }) = leaving.get_mut(&removal.tenant) else { return };
        let handle = self.handle.clone();
        let grace = Duration::from_secs(self.settings.node.drain_secs);
        ending.spawn_local(async move {
            handle.end_tenant(&removal.tenant, grace).await;
            // An error means that the node stops.
            let _ = ended.send(removal).await;
        });
    }

    /// Drops what is left of a removed tenant, unless the settings have it again.
    fn forget(&self, removal: &Removal, leaving: &mut BTreeMap<String, Leaving>) {
        let Removal { tenant, number } = removal;
        if leaving.get(tenant).is_none_or(|leaving| leaving.number != *number) {
            return;
        }
        leaving.remove(tenant);
        let all = self.tenants.by_name();
        let serving = all.iter().filter(|other| *other.name != **tenant);
        let serving: Vec<Tenant> = serving.map(|other| Tenant::clone(other)).collect();
        self.tenants.replace(serving.iter().cloned());
        let backend = |t: &Tenant| Some((Arc::clone(&t.name), self.backends.of(&t.name)?));
        self.backends.replace(serving.iter().filter_map(backend).collect::<Vec<_>>());
        self.shared.budgets.remove(tenant);
        self.bodies.remove(tenant);
        self.handle.forget_tenant(tenant);
        tracing::info!(tenant, "removed a tenant");
    }
}

/// A removed tenant whose sessions have not ended.
struct Leaving {
    tenant: Tenant,
    backend: Arc<dyn Backend>,
    number: u64,
    /// Ends the sessions of the tenant, until this is dropped: those of a tenant that comes back stay.
    ending: JoinSet<()>,
}

/// Reads the settings until no file changes meanwhile: a file that is removed while its folder is read
/// would be a problem. Returns the files with their contents before they were read. Blocks.
fn read_unchanged(
    file: &Option<PathBuf>,
    read: &dyn Fn() -> Result<Reading, Problems>,
) -> Result<(Reading, Watched, Digests), Problems> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let reading = read()?;
        let watched = Watched::new(file.clone(), &reading.settings);
        if watched.digests_of_settings() == reading.digests || attempts == READS_MAX {
            let mut digests = reading.digests.clone();
            digests.extend(watched.digests_of_named());
            return Ok((reading, watched, digests));
        }
    }
}

/// Runs this where it may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problems> + Send + 'static,
) -> Result<T, Problems> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Problems::one("reading the settings failed; see the log")))
}
