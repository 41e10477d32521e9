//! Starts a node from its plan, and stops the node in order.
//!
//! The parts start in an order in which the node accepts no client before it can answer, and
//! stop in an order in which no response is cut off.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use actors::{Care, Handle};
use audit::Audit;
use backends::sandbox::Protection;
use budget::Budget;
use cluster::{Cluster, Membership};
use front::{AdminCredentials, Operators, Reporting, Tls};
use store::Store;
use telemetry::{AccessLog, Otlp, Readiness, Traces};

use crate::advice::Advice;
use crate::certificates::{CertificateReload, CertificateRequests};
use crate::descriptors::{self, Descriptors};
use crate::peers::{self, LeaseWatch};
use crate::plan::Plan;
use crate::reload::Reload;
use crate::settings::{BackendSettings, Problems, TenantSettings};
use crate::{Error, homes, metrics, sandbox, watch};

/// How long responses may still be written after their sessions have ended.
const END_GRACE: Duration = Duration::from_secs(2);

/// How long to wait for child processes. Each is killed within its own grace period, so this
/// covers processes that the system does not end; their guards go on after this process.
const CHILDREN: Duration = Duration::from_secs(15);

/// How long to wait until servers over HTTP know that their sessions are over. Otherwise they end them
/// later.
const LINKS: Duration = Duration::from_secs(3);

/// How much longer than a server's start its session waits, in seconds.
const START_MARGIN_SECS: u64 = 2;

/// How much longer than the start of its servers a catalog waits, in seconds.
const CATALOG_MARGIN_SECS: u64 = 1;

/// The interval at which the store removes what has expired.
const SWEEP: Duration = Duration::from_secs(10);

/// The reason in `/readyz` before the node has its first lease.
const WAITING: &str =
    "waiting for the store: it cannot be reached, or has not answered yet; see the log";

impl Plan {
    /// The node's sessions, in this cluster.
    pub(crate) fn handle(&self, membership: Membership, traces: Traces) -> Handle {
        let handle = Handle::new(actors::NodeParts {
            settings: self.settings.sessions.clone(),
            store: Arc::clone(&self.store),
            backends: self.backends.clone(),
            cares: self.cares(),
            membership,
            session_bytes: self.budgets.session_bytes.clone(),
            children: Some(self.budgets.children.clone()),
            store_is_in_process: !self.store_is_shared,
            tenant_sessions_max: self.tenant_sessions_max(),
            tenant_labels: self.tenant_labels.clone(),
            digest_secrets: self.digest_secrets(),
            traces,
        });
        handle.limits().limit_tenants(self.cluster_limits());
        self.children.limit_by(Arc::new(handle.limits().clone()));
        self.children.label_by(self.tenant_labels.clone());
        handle
    }

    /// What each tenant that has limits may have in the whole cluster.
    pub(crate) fn cluster_limits(&self) -> Vec<(Arc<str>, Arc<tenants::ClusterLimits>)> {
        let of = |tenant: Arc<tenants::Tenant>| {
            Some((Arc::clone(&tenant.name), tenant.cluster_limits.clone()?))
        };
        self.tenants.by_name().into_iter().filter_map(of).collect()
    }

    /// The secrets with which records keep digests of clients. The store of a node alone in its memory
    /// needs none.
    fn digest_secrets(&self) -> Vec<Box<[u8]>> {
        let secrets = [&self.cluster.secret, &self.cluster.former_secret];
        let secrets = secrets.into_iter().filter(|secret| !secret.is_empty());
        secrets.map(|secret| secret.as_bytes().into()).collect()
    }

    /// The settings for each tenant's server.
    pub(crate) fn cares(&self) -> HashMap<Arc<str>, Care> {
        let tenants = self.settings.tenants.iter();
        tenants.map(|(name, tenant)| (name.as_str().into(), self.care(tenant))).collect()
    }

    /// How the tenant's sessions supervise their servers.
    fn care(&self, tenant: &TenantSettings) -> Care {
        let mut care = tenant.care;
        care.definition = BackendSettings::definition_of_all(&tenant.backends);
        let own = &self.settings.sessions.session;
        let mut start_secs = None;
        let mut are_stateless = !tenant.backends.is_empty();
        for backend in tenant.backends.values() {
            let BackendSettings::Stdio(stdio) = backend else {
                are_stateless = false;
                continue;
            };
            start_secs = start_secs.max(Some(stdio.program.start_secs.unwrap_or(own.start_secs)));
            are_stateless &= stdio.stateless;
        }
        // The limit of the server, and of a catalog, comes first: it reports the cause with the server's last
        // lines.
        let is_catalog = tenant.backends.len() > 1;
        let margin_secs = START_MARGIN_SECS + if is_catalog { CATALOG_MARGIN_SECS } else { 0 };
        if is_catalog {
            start_secs = start_secs.max(Some(own.start_secs));
        }
        care.start_secs =
            start_secs.map(|secs| secs.saturating_add(margin_secs)).or(care.start_secs);
        // A session leaves all servers of a catalog or none.
        if are_stateless && own.idle_server_secs > 0 {
            care.idle_stop_secs = care.idle_stop_secs.or(Some(own.idle_server_secs));
        }
        care
    }

    /// The most sessions of each tenant.
    pub(crate) fn tenant_sessions_max(&self) -> HashMap<Arc<str>, usize> {
        let tenants = self.tenants.by_name().into_iter();
        tenants.map(|tenant| (Arc::clone(&tenant.name), tenant.sessions_max)).collect()
    }

    /// `settings.front`, with no more connections than the limit of descriptors allows. The table of descriptors has room
    /// for these then.
    fn front_settings(&self) -> front::Settings {
        let descriptors = Descriptors::of(descriptors::current_limit(), &self.settings);
        for warning in descriptors.warnings() {
            tracing::warn!("{warning}");
        }
        tracing::info!("{}", descriptors.summary());
        descriptors.widen_table();
        let connections_max = descriptors.connections_max();
        front::Settings { connections_max, ..self.settings.front.clone() }
    }

    /// The memory for bodies that have not arrived completely.
    fn body_budget(&self) -> Budget {
        self.settings.front.body_budget(self.settings.body_maxima())
    }

    /// Applies changes of the settings while the node runs, if it has a file.
    fn reload(
        &mut self,
        handle: &Handle,
        bodies: Budget,
        readiness: &Readiness,
        certificates: Option<CertificateRequests>,
        operators: AdminCredentials,
    ) -> Option<Reload> {
        let reloading = self.reloading.take()?;
        let (handle, readiness) = (handle.clone(), readiness.clone());
        Some(Reload::new(reloading, self, bodies, handle, readiness, certificates, operators))
    }

    /// The TLS of the listener for clients, and what replaces its certificates.
    fn tls(&mut self, readiness: &Readiness) -> Result<Option<ServedTls>, Problems> {
        let Some(read) = self.certificates.take() else { return Ok(None) };
        let tls = Tls::new(read.pairs.clone()).map_err(|error| {
            Problems::one(format!("TLS for clients cannot be set up: {error}; start it again"))
        })?;
        let (settings, secs) = (self.settings.front.tls.clone(), self.settings.node.reload_secs);
        let reload = CertificateReload::new(tls.clone(), read, settings, secs, readiness.clone());
        Ok(Some(ServedTls { tls, reload }))
    }

    /// Where the exchanges of this node are reported.
    pub(crate) fn reporting(
        &self,
        cluster: &Cluster,
        traces: Traces,
    ) -> Result<Reporting, audit::Error> {
        let node = self.name_in(cluster);
        let access_log = AccessLog::of_process();
        let labels = self.tenant_labels.clone();
        let collector = self.settings.otlp.clone();
        let settings = audit::Settings { collector, ..self.settings.audit.clone() };
        let audit = Audit::start(&settings, &node, labels.clone())?;
        self.pin_records.write_to(audit.recorder());
        Ok(Reporting { access_log, node, labels, audit, traces })
    }

    /// The name of the node for operators.
    pub(crate) fn name_in(&self, cluster: &Cluster) -> Arc<str> {
        let named = cluster.name();
        if named.is_empty() { self.settings.node_name().into() } else { named }
    }

    /// Ends the child processes that no session has, and waits until none is left and servers over HTTP
    /// know that their sessions are over, or until the time limit.
    pub(crate) async fn wait_for_children(&self) {
        self.children.close();
        self.backends.links_ended(LINKS).await;
        if tokio::time::timeout(CHILDREN, self.children.stopped()).await.is_err() {
            tracing::warn!(
                left = self.children.count(),
                "child processes did not end in time; their guards go on killing them"
            );
        }
    }

    /// Prepares the directory of the servers' cgroups, for a node that starts. A plan alone changes
    /// nothing of the machine: `check` makes one as well.
    fn prepare_cgroups(&self) -> Result<(), Problems> {
        let folder = &self.settings.node.cgroup;
        if folder.as_os_str().is_empty() || !self.protections.grants(Protection::Cgroup) {
            return Ok(());
        }
        backends::stdio::prepare_cgroups(folder)
            .map_err(|reason| Problems::one(sandbox::unusable_cgroup(&reason)))
    }

    /// Prepares the machine for the tenants' servers, and logs what separates them and what an operator
    /// should change.
    pub(crate) fn prepare_servers(&self) -> Result<(), Problems> {
        self.prepare_cgroups()?;
        homes::create(&self.homes)?;
        self.protections.show();
        let (granted, refused) = (self.protections.granted(), self.protections.refused());
        if sandbox::stdio_backends(&self.settings).next().is_some() {
            tracing::info!(granted, refused, "protections of stdio servers on this machine");
        }
        Advice::of(self).log();
        Ok(())
    }

    /// How long requests in flight may take after a stop was requested.
    pub(crate) fn drain(&self) -> Duration {
        Duration::from_secs(self.settings.node.drain_secs)
    }

    /// Starts the node, calls `started`, and runs until `stop` is ready. Call it within an
    /// actix system.
    pub(crate) async fn run(
        mut self,
        started: impl FnOnce(&front::Running),
        stop: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        self.prepare_servers()?;
        self.findings.forget_places();
        let readiness = Readiness::waiting_for("starting");
        // Probes are answered from now on: a node that waits for its store is alive and not ready.
        let served_tls = self.tls(&readiness)?;
        let operators = Operators::serve(&self.settings.admin, readiness.clone())?
            .with_tls(served_tls.as_ref().map(|served| served.tls.clone()));
        let credentials = operators.credentials();
        let mut stop = pin!(stop);
        readiness.hold(WAITING);
        let joined = tokio::select! {
            joined = peers::join(&self.cluster, &self.store) => Some(joined),
            () = &mut stop => None,
        };
        readiness.clear(WAITING);
        let membership = match joined {
            Some(Ok(membership)) => membership,
            Some(Err(error)) => {
                operators.stop().await;
                return Err(error.into());
            }
            None => {
                operators.stop().await;
                return Ok(());
            }
        };
        let cluster = membership.cluster().clone();
        let otlp = match Otlp::start(&self.settings.otlp, &self.name_in(&cluster)) {
            Ok(otlp) => otlp,
            Err(error) => {
                cluster.leave().await;
                operators.stop().await;
                return Err(error.into());
            }
        };
        let reporting = match self.reporting(&cluster, otlp.traces()) {
            Ok(reporting) => reporting,
            Err(error) => {
                cluster.leave().await;
                operators.stop().await;
                stop_otlp(otlp).await;
                return Err(error.into());
            }
        };
        reporting.audit.report_to(readiness.clone());
        // Closed when everything else has ended.
        let _closing = reporting.audit.closing();
        let handle = self.handle(membership, otlp.traces());
        handle.overview().show_readiness(readiness.clone());
        handle.overview().show_tenants(self.tenants.clone());
        let watching_lease = LeaseWatch::start(&cluster, &readiness);
        let bodies = self.body_budget();
        let running = operators.serve_clients(
            &self.front_settings(),
            handle.clone(),
            &self.tenants,
            bodies.clone(),
            &reporting,
        );
        let running = match running {
            Ok(running) => running,
            Err(failed) => {
                let (error, operators) = *failed;
                cluster.leave().await;
                operators.stop().await;
                stop_otlp(otlp).await;
                return Err(error.into());
            }
        };
        metrics::show();
        self.backends.start_in_advance();
        let watching = actix_rt::spawn(watch::store(
            Arc::clone(&self.store),
            readiness.clone(),
            cluster.is_alone(),
        ));
        let sweeping = actix_rt::spawn(sweep(Arc::clone(&self.store)));
        let (certificates, requests) = served_tls.map(|served| served.reload).unzip();
        // The certificates are read again also in a node without a settings file.
        let renewing = certificates.map(|reload| actix_rt::spawn(reload.run()));
        let reload = self.reload(&handle, bodies, &readiness, requests.clone(), credentials);
        let reloading = reload.map(|reload| actix_rt::spawn(reload.run()));
        let showing = watch::children(self.budgets.children.clone(), self.tenant_labels.clone());
        let showing = actix_rt::spawn(showing);
        readiness.clear("starting");
        started(&running);
        let dead = tokio::select! {
            () = &mut stop => false,
            () = cluster.marked_dead() => true,
        };
        readiness.hold("stopping");
        reloading.into_iter().chain(renewing).for_each(|reloading| reloading.abort());
        running.drain();
        if dead {
            // Other nodes already own its sessions: this node must not send anything more.
            running.stop(Duration::ZERO).await;
            // The end of the process does not wait for the collector.
            std::thread::spawn(move || otlp.stop());
            return Err(Error::MarkedDead);
        }
        if cluster.is_alone() {
            handle.stop(self.drain()).await;
        } else {
            // Clients are served until their balancer has moved them to other nodes.
            let unused = tokio::time::timeout(self.drain(), running.wait_until_unused());
            let _ = tokio::join!(handle.drain(self.drain()), unused);
            handle.close();
            handle.drain(Duration::ZERO).await;
        }
        running.stop(END_GRACE).await;
        // The final responses of peers' clients were sent over the links.
        drop(watching_lease);
        cluster.leave().await;
        self.wait_for_children().await;
        stop_otlp(otlp).await;
        sweeping.abort();
        showing.abort();
        watching.abort();
        Ok(())
    }
}

/// The TLS of the listener for clients.
struct ServedTls {
    tls: Tls,
    reload: (CertificateReload, CertificateRequests),
}

/// Sends the last spans and metrics. On a thread of its own: it waits for the collector, which may not answer.
pub(crate) async fn stop_otlp(otlp: Otlp) {
    let _ = tokio::task::spawn_blocking(move || otlp.stop()).await;
}

async fn sweep(store: Arc<dyn Store>) {
    let mut next = tokio::time::interval(SWEEP);
    loop {
        next.tick().await;
        if let Err(error) = store.sweep().await {
            tracing::warn!(%error, "removing expired records failed; retrying at the next interval");
        }
    }
}
