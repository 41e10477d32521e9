//! What the sessions of a catalog share on a node: equal lists, once in memory, and what operators were
//! told.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use budget::Share;
use protocol::Listed;

use crate::LeftOut;
use crate::failure::Failure;
use crate::list::List;
use crate::machine::{Report, Setup};
use crate::metrics;
use crate::noted_differences::NotedDifferences;
use crate::pins::{Deviation, Difference, Part, Pinning};

/// Most entries that are logged as left out, or as hidden; further ones only count in metrics.
const NOTED_MAX: usize = 500;
/// Shortest time between two log lines about failures of one server.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// How many lists are kept before those are removed that no session has any more.
const LISTS_SWEPT_AT: usize = 256;

/// What the sessions of a catalog share on a node.
pub(crate) struct Shared {
    pub(crate) setup: Arc<Setup>,
    lists: Mutex<Lists>,
    hasher: RandomState,
    noted: Mutex<Noted>,
    differences: Mutex<NotedDifferences>,
    pub(crate) pinning: Pinning,
    /// Whether the settings have another catalog in place of this one.
    is_retired: AtomicBool,
}

/// Lists by hash.
#[derive(Default)]
struct Lists {
    known: HashMap<u64, Weak<List>>,
    swept_at: usize,
}

/// What operators were told.
struct Noted {
    entries: BTreeSet<String>,
    /// By backend: why it is not available, and when a failure was last logged.
    servers: Vec<Server>,
}

#[derive(Default)]
struct Server {
    /// Whether a session had it ready.
    was_ready: bool,
    failure: Option<Failure>,
    logged_at: Option<Instant>,
}

impl Shared {
    pub(crate) fn new(setup: Setup, pinning: Pinning) -> Self {
        let servers = (0..setup.members.len()).map(|_| Server::default()).collect();
        Self {
            differences: Mutex::new(NotedDifferences::new(setup.members.len())),
            setup: Arc::new(setup),
            pinning,
            lists: Mutex::default(),
            hasher: RandomState::new(),
            noted: Mutex::new(Noted { entries: BTreeSet::new(), servers }),
            is_retired: AtomicBool::new(false),
        }
    }

    /// Notes that the settings have another catalog in place of this one.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Relaxed)
    }

    /// The list that sessions share, equal to this one. It is charged to the tenant once.
    pub(crate) fn share(&self, list: Arc<List>, share: Option<&Share>) -> Arc<List> {
        // Long lists are read and compared without the lock, for which other sessions wait.
        let hash = self.hasher.hash_one(&*list);
        let known = lock(&self.lists).known.get(&hash).and_then(Weak::upgrade);
        let equal = known.filter(|known| *known == list);
        let mut lists = lock(&self.lists);
        let shared = equal.unwrap_or_else(|| {
            lists.known.insert(hash, Arc::downgrade(&list));
            list
        });
        if lists.known.len() > lists.swept_at.max(LISTS_SWEPT_AT) {
            lists.known.retain(|_, list| list.strong_count() > 0);
            lists.swept_at = 2 * lists.known.len();
        }
        drop(lists);
        share.inspect(|share| shared.charge_to(share));
        shared
    }

    /// Logs and counts a report of a session.
    pub(crate) fn report(&self, report: Report) {
        match report {
            Report::LeftOut { child, listed, name, why } => {
                metrics::LEFT_OUT.with_label_values(&[why.label()]).inc();
                if why != LeftOut::Denied {
                    let what = singular(listed);
                    self.note(child, &format!("{what} {name:?} is left out: {}", why.text()));
                }
            }
            Report::Differs { child, difference } => self.report_difference(child, difference),
            Report::Withheld { .. } => metrics::WITHHELD.inc(),
            Report::Hidden { child, uri } => {
                let uri: String = uri.chars().take(100).collect();
                let text = format!("resource {uri:?} is left out: another server has this URI");
                self.note(child, &text);
            }
            Report::Down { child, failure, was_ready } => {
                metrics::FAILURES.inc();
                if self.is_logged(child, Some(&failure)) {
                    let (tenant, server) = self.names(child);
                    let reason = failure.reason;
                    tracing::warn!(
                        tenant, server, was_ready, %reason,
                        "a server of a catalog is not available; sessions keep the others"
                    );
                }
            }
            Report::Ready { child, is_first } => {
                let mut noted = lock(&self.noted);
                let server = &mut noted.servers[child];
                server.was_ready = true;
                let was_down = server.failure.take().is_some();
                drop(noted);
                if was_down && !is_first {
                    let (tenant, server) = self.names(child);
                    tracing::info!(tenant, server, "a server of a catalog is available again");
                }
            }
            Report::NotKept { child } => {
                let text = "a session with it is not carried on by other nodes: what all servers \
                            together need for that is too long";
                self.note(child, text);
            }
            Report::NoList { child, listed } => {
                metrics::LISTS_FAILED.inc();
                if self.is_logged(child, None) {
                    let (tenant, server) = self.names(child);
                    let method = listed.method();
                    tracing::warn!(tenant, server, %method, "a server of a catalog did not send a list");
                }
            }
            Report::Stray { .. } => metrics::STRAY.inc(),
        }
    }

    /// Reports a definition that is not the approved one, once.
    fn report_difference(&self, child: usize, difference: Difference) {
        let now = Instant::now();
        if !lock(&self.differences).is_new(now, child, &difference) {
            return;
        }
        let Difference { part, name, approved, found, is_refused } = &difference;
        metrics::count_difference(approved.is_some(), *is_refused);
        let (tenant, server) = self.names(child);
        let (what, approved) = (part.as_str(), approved.map(|approved| approved.to_string()));
        tracing::warn!(
            tenant, server, what, name, approved, %found, is_refused,
            "a definition of a server is not the pinned one; review it, and run `roundhouse pin {tenant}`"
        );
        let of_what = match part {
            Part::Instructions => "instructions".to_owned(),
            Part::Entry(_) => format!("{what} {name:?}"),
        };
        let effect = if *is_refused { "left out" } else { "offered, though it differs" };
        let why = if approved.is_some() { "not the pinned one" } else { "not pinned" };
        let text = format!("`{server}`: {of_what} is {effect}: its definition is {why}");
        let mut noted = lock(&self.noted);
        if noted.entries.len() < NOTED_MAX {
            noted.entries.insert(text);
        }
        drop(noted);
        (self.pinning.observer)(Deviation {
            tenant: Arc::clone(&self.setup.name),
            backend: Arc::clone(&self.setup.members.get(child).name),
            difference,
        });
    }

    /// The servers that have neither been ready nor failed.
    pub(crate) fn starting(&self) -> Vec<Arc<str>> {
        let noted = lock(&self.noted);
        let servers = noted.servers.iter().enumerate();
        let starting = servers.filter(|(_, server)| !server.was_ready && server.failure.is_none());
        starting.map(|(at, _)| Arc::clone(&self.setup.members.get(at).name)).collect()
    }

    /// What an operator should know: which servers are not available, and what is not offered.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let noted = lock(&self.noted);
        let down = noted.servers.iter().enumerate().filter_map(|(at, server)| {
            let reason = server.failure.as_ref()?.for_clients();
            Some(format!("`{}`: not available: {reason}", self.setup.members.get(at).name))
        });
        down.chain(noted.entries.iter().cloned()).collect()
    }

    fn names(&self, child: usize) -> (&str, &str) {
        (&self.setup.name, &self.setup.members.get(child).name)
    }

    /// Logs a text about an entry once.
    fn note(&self, child: usize, text: &str) {
        let (tenant, server) = self.names(child);
        let mut noted = lock(&self.noted);
        let is_new =
            noted.entries.len() < NOTED_MAX && noted.entries.insert(format!("`{server}`: {text}"));
        let is_last = is_new && noted.entries.len() == NOTED_MAX;
        drop(noted);
        if is_new {
            tracing::warn!(tenant, server, "{text}");
        }
        if is_last {
            tracing::warn!(tenant, "further entries that are left out only count in the metric");
        }
    }

    /// Whether a failure of a server is logged, or one was a moment ago. Keeps the reason.
    fn is_logged(&self, child: usize, failure: Option<&Failure>) -> bool {
        let mut noted = lock(&self.noted);
        let server = &mut noted.servers[child];
        if let Some(failure) = failure {
            server.failure = Some(failure.clone());
        }
        let is_due = server.logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL);
        if is_due {
            server.logged_at = Some(Instant::now());
        }
        is_due
    }
}

fn singular(listed: Listed) -> &'static str {
    match listed {
        Listed::Tool => "tool",
        Listed::Prompt => "prompt",
        Listed::Resource => "resource",
        Listed::Template => "resource template",
    }
}

/// Locks also a poisoned mutex: no code panics while it holds one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
