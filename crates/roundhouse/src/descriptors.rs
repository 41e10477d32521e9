//! How many connections the limit of descriptors allows.
//!
//! Each connection of a client is a descriptor, and so is everything else that a node must still be
//! able to open: connections of operators, of the store, of peers and to servers, and the pipes of child
//! processes. Clients get what is left. This file decides, and widens the kernel's table; `program` raises the limit.

use rustix::process::{Resource, getrlimit};

use crate::settings::{BackendSettings, Settings};

/// Descriptors of the node itself: standard streams, listeners, timers, files that are read.
const OWN: usize = 32;
/// Connections of operators.
const OPERATORS: usize = front::ADMIN_CONNECTIONS_MAX;
/// Connections to the store, and files of its certificates.
const STORE: usize = 16;
/// Links to and from peers, and connections of strangers to the port for peers.
const PEERS: usize = 192;
/// What each thread that serves clients has open besides connections.
const OF_A_WORKER: usize = 4;
/// The pipes of a child process, and the descriptor by which its end is noticed.
const OF_A_CHILD: usize = 4;
/// The idle connections to a server over HTTP that are kept.
const OF_A_POOL: usize = backends::http::IDLE_MAX;

/// The descriptors of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptors {
    /// The limit of the process.
    limit: usize,
    /// What must be kept for everything but connections of clients.
    others: usize,
    workers: usize,
    /// Connections a worker that the settings ask for.
    wanted: usize,
    /// Connections a worker that are in force.
    allowed: usize,
    children_max: usize,
    /// Connections to servers over HTTP.
    upstream: usize,
}

/// The limit of descriptors that this process has, or can raise its limit to.
pub(crate) fn limit_of_process() -> usize {
    let limit = getrlimit(Resource::Nofile);
    limit.maximum.or(limit.current).map_or(usize::MAX, |limit| limit as usize)
}

/// The limit of descriptors in force.
pub(crate) fn current_limit() -> usize {
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize)
}

impl Descriptors {
    /// Shares out this limit under these settings.
    pub(crate) fn of(limit: usize, settings: &Settings) -> Self {
        let workers = settings.front.worker_count();
        let wanted = settings.front.connections_max;
        let is_stdio = |backend: &BackendSettings| matches!(backend, BackendSettings::Stdio(_));
        let has_children =
            settings.tenants.values().any(|tenant| tenant.backends.values().any(is_stdio));
        let children_max = if has_children { settings.node.children.children_max } else { 0 };
        let connections_max = |backend: &BackendSettings| match backend {
            BackendSettings::Http(http) => http.http.connections_max.saturating_add(OF_A_POOL),
            _ => 0,
        };
        let backends = settings.tenants.values().flat_map(|tenant| tenant.backends.values());
        let upstream = backends.map(connections_max).fold(0, usize::saturating_add);
        let peers = if settings.cluster.peers.listen.is_empty() { 0 } else { PEERS };
        let of_workers = workers.saturating_mul(OF_A_WORKER);
        let fixed = (OWN + OPERATORS + STORE + peers).saturating_add(of_workers);
        let of_servers = children_max.saturating_mul(OF_A_CHILD).saturating_add(upstream);
        let others = fixed.saturating_add(of_servers);
        // If servers may use more than there is, clients keep half of what they share.
        let left = limit.saturating_sub(others).max(limit.saturating_sub(fixed) / 2);
        let allowed = wanted.min(front::places_within(left / workers.max(1))).max(1);
        Self { limit, others, workers, wanted, allowed, children_max, upstream }
    }

    /// Most connections of a worker.
    pub(crate) fn connections_max(&self) -> usize {
        self.allowed
    }

    /// Most connections of all workers.
    pub(crate) fn connections_total(&self) -> usize {
        self.allowed.saturating_mul(self.workers)
    }

    /// What must be kept if a worker has so many connections, and closes others for new ones.
    fn reserve(&self, connections: usize) -> usize {
        let headroom = front::connections_headroom(connections);
        self.others.saturating_add(self.workers.saturating_mul(headroom))
    }

    /// About as many descriptors as the settings let the node have open, at most its limit.
    fn total(&self) -> usize {
        let total = self.connections_total().saturating_add(self.reserve(self.allowed));
        total.min(self.limit)
    }

    /// Gives the kernel's table of descriptors the size that the node may need. The kernel doubles a table that is full,
    /// and the thread that opens the next descriptor waits meanwhile for all cores (`synchronize_rcu`): for about 10 ms
    /// on a busy machine, during which a thread that serves clients does nothing else (decision 0078). Blocks for as
    /// long, unless the table has the size.
    pub(crate) fn widen_table(&self) {
        let last = i32::try_from(self.total()).unwrap_or(i32::MAX) - 1;
        // The table does not shrink when the descriptor is closed.
        if let Err(error) = rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), last) {
            tracing::warn!(
                %error,
                descriptors = self.total(),
                "the table of descriptors was not widened, so it grows while clients wait; see that the kernel's \
                 fs.nr_open allows as many, and that memory is free"
            );
        }
    }

    /// What is in force, for people.
    pub(crate) fn summary(&self) -> String {
        let Self { limit, workers, allowed, .. } = self;
        let reserve = self.reserve(*allowed);
        let total = allowed.saturating_mul(*workers);
        format!(
            "connections: at most {total} ({workers} workers with {allowed} each); descriptors: \
             {limit}, of which {reserve} are kept for other uses"
        )
    }

    /// What the limit does not allow, and the remedy.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let Self { limit, workers, wanted, allowed, children_max, upstream, .. } = self;
        let reserve = self.reserve(*allowed);
        let needed = wanted.saturating_mul(*workers).saturating_add(self.reserve(*wanted));
        let mut warnings = Vec::new();
        if allowed < wanted {
            warnings.push(format!(
                "`front.connections_max` is {wanted} for each of {workers} workers, but the limit \
                 of {limit} descriptors allows {allowed}; raise the limit (LimitNOFILE of systemd, \
                 `ulimit -n`) to {needed}, or lower `front.connections_max`"
            ));
        }
        if reserve > *limit && *upstream > 0 {
            warnings.push(format!(
                "the backends of kind `http` may have {upstream} connections, and `node.children_max` \
                 is {children_max}, but the limit of descriptors is {limit}; raise it to {needed}, or \
                 lower `connections_max` of the backends"
            ));
        } else if reserve > *limit {
            warnings.push(format!(
                "`node.children_max` is {children_max}, and each child process needs {OF_A_CHILD} \
                 descriptors, but the limit is {limit}; raise it to {needed}, or lower \
                 `node.children_max`"
            ));
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Environment;

    fn descriptors(limit: usize, text: &str) -> Descriptors {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("roundhouse.toml");
        std::fs::write(&file, format!("[front]\nworkers = 2\n{text}")).unwrap();
        let settings = Settings::read(Some(&file), &Environment::of([])).unwrap();
        Descriptors::of(limit, &settings)
    }

    const STDIO: &str = "[tenants.a.backends.b]\nkind = 'stdio'\ncommand = 'x'\n";

    #[test]
    fn a_high_limit_changes_nothing() {
        let high = descriptors(1 << 20, STDIO);
        assert_eq!(high.connections_max(), 25_000);
        assert!(high.warnings().is_empty());
        assert!(high.summary().contains("at most 50000 (2 workers with 25000 each)"));
        assert!(high.summary().contains("4312 are kept"), "{}", high.summary());
        assert_eq!(high.total(), 50_000 + 4_312);
    }

    #[test]
    fn a_low_limit_leaves_room_for_everything_else() {
        let low = descriptors(300, "");
        assert_eq!(low.connections_max(), (300 - 32 - 128 - 16 - 2 * 4) / 2 - 8);
        assert_eq!(low.total(), 300);
        let [only] = &low.warnings()[..] else { panic!("one warning") };
        assert!(only.contains("`front.connections_max`") && only.contains("to 50312"), "{only}");
        let joined = descriptors(1_000, "[cluster]\nlisten = '127.0.0.1:0'\n");
        let half = (1_000 - 32 - 128 - 16 - 192 - 2 * 4) / 2;
        assert_eq!(joined.connections_max(), front::places_within(half));
        assert_eq!(descriptors(10, "").connections_max(), 1);
    }

    #[test]
    fn the_limit_of_the_warning_is_enough() {
        for wanted in [63, 64, 400, 511, 600, 25_000] {
            let settings = format!("connections_max = {wanted}\n");
            let low = descriptors(200, &settings);
            let warning = low.warnings().concat();
            let needed = warning
                .split_once("`ulimit -n`) to ")
                .and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
            let needed = needed.expect(&warning);
            let enough = descriptors(needed, &settings);
            assert_eq!(enough.connections_max(), wanted, "{warning}");
            assert!(enough.warnings().is_empty(), "{:?}", enough.warnings());
        }
    }

    #[test]
    fn child_processes_take_at_most_half_of_what_clients_could_have() {
        let some = descriptors(4_096, STDIO);
        let half_of = |limit: usize| (limit - 32 - 128 - 16 - 2 * 4) / 2 / 2;
        assert_eq!(some.connections_max(), front::places_within(half_of(4_096)));
        let few = descriptors(1_024, STDIO);
        assert_eq!(few.connections_max(), front::places_within(half_of(1_024)));
        assert!(few.warnings()[1].contains("`node.children_max` is 1000"), "{:?}", few.warnings());
    }
}
