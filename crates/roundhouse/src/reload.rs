//! Applies changed tenants of the settings file while the node runs.
//!
//! The file is compared by content at an interval: an editor replaces it, and Kubernetes changes a
//! symbolic link above it. `SIGHUP` has it read at once. A file with a problem changes nothing. Of a
//! good one the tenants are applied; a change of any other setting is named and waits for a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use actors::Handle;
use backends::Backend;
use budget::Budget;
use telemetry::Readiness;
use tenants::Tenant;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::advice::Advice;
use crate::homes;
use crate::metrics::{RELOADS_APPLIED, RELOADS_REFUSED};
use crate::plan::{Base, Named, Plan, Shared};
use crate::settings::{BackendSettings, Problems, Reading, Settings, TenantSettings};

/// Shown by `/readyz` while the file has a problem.
const REMARK: &str = "the settings file has problems; the node goes on with the former settings";

/// Most keys that a log line names.
const KEYS_SHOWN_MAX: usize = 20;

/// Where the settings come from, and how they are read.
pub(crate) struct SettingsSource {
    file: PathBuf,
    /// The digest of the file before it was read for the first time.
    digests: Digests,
    read: Arc<dyn Fn() -> Result<Reading, Problems> + Send + Sync>,
}

impl SettingsSource {
    /// This file, which `read` reads, and has not read yet.
    pub(crate) fn new(
        file: PathBuf,
        read: Arc<dyn Fn() -> Result<Reading, Problems> + Send + Sync>,
    ) -> Self {
        Self { digests: digests([file.clone()]), file, read }
    }
}

/// What a node needs to read its settings again.
pub(crate) struct Reloading {
    source: SettingsSource,
    mounted: Named,
    natives: Named,
    digests: Digests,
}

impl Reloading {
    /// For settings with these tenants, before the files that they name are read.
    pub(crate) fn new(
        source: SettingsSource,
        tenants: &BTreeMap<String, TenantSettings>,
        mounted: Named,
        natives: Named,
    ) -> Self {
        let mut digests = digests(all_env_files(tenants));
        digests.extend(source.digests.clone());
        Self { source, mounted, natives, digests }
    }
}

/// The tenants of a running node, and what they are made of.
pub(crate) struct Reload {
    reloading: Reloading,
    /// The settings with which the node was started, and the tenants that were applied last.
    settings: Settings,
    tenants: tenants::Tenants,
    backends: backends::Backends,
    shared: Shared,
    bodies: Budget,
    handle: Handle,
    readiness: Readiness,
    /// The files as they were when they were read last.
    digests: Digests,
    /// The files as they were when they were applied last: one of them may have changed together with
    /// settings that were refused.
    applied: Digests,
    /// How many tenants were removed.
    removals: u64,
    advice: Advice,
}

/// One removal of a tenant.
#[derive(Clone, Debug, PartialEq)]
struct Removal {
    tenant: String,
    /// Differs from that of a later removal of the same tenant.
    number: u64,
}

/// Digests of files, by which their contents are compared. `None`: the file cannot be read.
type Digests = BTreeMap<PathBuf, Option<u64>>;

/// Reads the digests of these files. Blocks.
fn digests(files: impl IntoIterator<Item = PathBuf>) -> Digests {
    let digest = |path: PathBuf| {
        let content = std::fs::read(&path).ok();
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        (path, content.map(|content| hasher.hash_one(content)))
    };
    files.into_iter().map(digest).collect()
}

/// The files with variables for the servers of these tenants.
fn all_env_files(tenants: &BTreeMap<String, TenantSettings>) -> Vec<PathBuf> {
    tenants.values().flat_map(env_files).map(Path::to_owned).collect()
}

/// The files with variables of the tenant's servers.
fn env_files(tenant: &TenantSettings) -> impl Iterator<Item = &Path> {
    tenant.backends.values().filter_map(|backend| match backend {
        BackendSettings::Stdio(stdio) if stdio.env_file.as_os_str().is_empty() => None,
        BackendSettings::Stdio(stdio) => Some(&*stdio.env_file),
        BackendSettings::Native(_) => None,
    })
}

impl Reload {
    /// Reloads the settings of a node that was planned like this.
    pub(crate) fn new(
        reloading: Reloading,
        plan: &Plan,
        bodies: Budget,
        handle: Handle,
        readiness: Readiness,
    ) -> Self {
        Self {
            digests: reloading.digests.clone(),
            applied: reloading.digests.clone(),
            reloading,
            settings: plan.settings.clone(),
            tenants: plan.tenants.clone(),
            backends: plan.backends.clone(),
            shared: Shared {
                children: plan.children.clone(),
                budgets: plan.budgets.clone(),
                store: Arc::clone(&plan.store),
            },
            bodies,
            handle,
            readiness,
            removals: 0,
            advice: Advice::of(plan),
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
            let digests = read_digests(self.digests.keys().cloned().collect()).await;
            if digests == self.digests && !is_asked {
                continue;
            }
            self.digests = digests;
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
                    let file = self.reloading.source.file.display();
                    tracing::error!(
                        "the settings in {file} were not applied; the node goes on with the former \
                         ones: {problems}"
                    );
                }
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
        let Reading { settings: new, problems } = self.read().await?;
        // The settings file was read after its digest was. So are the others.
        let file = &self.reloading.source.file;
        self.digests.retain(|path, _| path == file);
        self.digests.extend(read_digests(all_env_files(&new.tenants)).await);
        warn_of_other_changes(&self.settings, &new);
        let settings = Settings { tenants: new.tenants, ..self.settings.clone() };
        let naming = self.shared.budgets.name_added(&settings);
        let plan = self.plan(settings.clone(), problems).await?;
        homes::create(&plan.homes)?;
        naming.keep();
        let is_rotated = |file: &Path| self.applied.get(file) != self.digests.get(file);
        let changes = Changes::between(&self.settings.tenants, &settings.tenants, is_rotated);

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
        self.name_in_bodies(&changes.added, &settings);
        self.handle.replace_cares(plan.cares());
        let kept = |name: &Arc<str>, new| {
            let is_changed = changes.added.contains(&**name) || changes.changed.contains(&**name);
            if is_changed { new } else { self.backends.of(name).unwrap_or(new) }
        };
        let planned = plan.tenants.by_name().into_iter().filter_map(|tenant| {
            let new = plan.backends.of(&tenant.name)?;
            Some((Arc::clone(&tenant.name), kept(&tenant.name, new)))
        });
        let planned: Vec<_> = planned.collect();
        let left = leaving.values().map(|l| (Arc::clone(&l.tenant.name), Arc::clone(&l.backend)));
        // The backends first: a tenant that clients can find has its backend.
        self.backends.replace(planned.into_iter().chain(left));
        self.show_tenants(plan.tenants.by_name().iter().map(|t| Tenant::clone(t)), leaving);
        self.backends.start_in_advance();
        Advice::of(&plan).replace(&mut self.advice);
        changes.log();
        self.applied.clone_from(&self.digests);
        self.settings = settings;
        Ok(removed)
    }

    async fn read(&self) -> Result<Reading, Problems> {
        let read = Arc::clone(&self.reloading.source.read);
        blocking(move || read()).await
    }

    /// Plans a node with these settings, which has what the running node has.
    async fn plan(&self, settings: Settings, problems: Problems) -> Result<Plan, Problems> {
        let (mounted, natives) = (self.reloading.mounted.clone(), self.reloading.natives.clone());
        let shared = self.shared.clone();
        blocking(move || Plan::of(settings, &mounted, &natives, Base::Running(shared), problems))
            .await
    }

    fn name_in_bodies(&self, added: &BTreeSet<String>, settings: &Settings) {
        let count = settings.tenants.len();
        for name in added {
            let Some(written) = settings.tenants.get(name) else { continue };
            let limits = &written.tenant.limits;
            let share = settings.front.body_share(count, limits.bodies_bytes_max);
            self.bodies.add(&Arc::from(name.as_str()), share.max);
        }
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

/// The tenants that differ.
#[derive(Debug, Default, PartialEq)]
struct Changes {
    added: BTreeSet<String>,
    changed: BTreeSet<String>,
    removed: BTreeSet<String>,
}

impl Changes {
    fn between(
        old: &BTreeMap<String, TenantSettings>,
        new: &BTreeMap<String, TenantSettings>,
        is_rotated: impl Fn(&Path) -> bool,
    ) -> Self {
        let mut changes = Self::default();
        for (name, written) in new {
            match old.get(name) {
                None => drop(changes.added.insert(name.clone())),
                Some(former) if former != written || env_files(written).any(&is_rotated) => {
                    changes.changed.insert(name.clone());
                }
                Some(_) => {}
            }
        }
        let gone = old.keys().filter(|name| !new.contains_key(*name));
        changes.removed.extend(gone.cloned());
        changes
    }

    fn log(&self) {
        if *self == Self::default() {
            return tracing::info!("the settings file has no changed tenants");
        }
        let names = |names: &BTreeSet<String>| shown(names.iter().map(String::as_str));
        tracing::info!(
            added = names(&self.added),
            changed = names(&self.changed),
            removed = names(&self.removed),
            "applied the tenants of the settings file"
        );
    }
}

fn shown<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(KEYS_SHOWN_MAX);
    let mut text = names.take(KEYS_SHOWN_MAX).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

fn warn_of_other_changes(running: &Settings, new: &Settings) {
    let keys = running.keys_changed_in(new);
    if !keys.is_empty() {
        tracing::warn!(
            "settings that take effect only after a restart of the node were changed: {}",
            shown(keys.iter().map(String::as_str))
        );
    }
}

async fn read_digests(files: Vec<PathBuf>) -> Digests {
    blocking(|| Ok(digests(files))).await.unwrap_or_default()
}

/// Runs this where it may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problems> + Send + 'static,
) -> Result<T, Problems> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Problems::one("reading the settings failed; see the log")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_are_added_changed_and_removed() {
        let tenant = |rerun| {
            let care = actors::Care { idle_stop_secs: rerun, ..actors::Care::default() };
            TenantSettings { care, ..TenantSettings::default() }
        };
        let old = [("a", None), ("b", None), ("c", Some(1))];
        let new = [("b", None), ("c", Some(2)), ("d", None)];
        let [old, new] = [old, new].map(|all| {
            all.into_iter().map(|(name, rerun)| (name.to_owned(), tenant(rerun))).collect()
        });
        let expected = Changes {
            added: ["d".to_owned()].into(),
            changed: ["c".to_owned()].into(),
            removed: ["a".to_owned()].into(),
        };
        assert_eq!(Changes::between(&old, &new, |_| false), expected);
    }

    #[test]
    fn a_long_list_is_cut() {
        let names: Vec<String> = (0..22).map(|number| number.to_string()).collect();
        assert!(shown(names.iter().map(String::as_str)).ends_with("19 and 2 more"));
    }
}
