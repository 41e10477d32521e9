//! The nodes that hold leases, as this node last read them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use peering::Limits;
use store::Lease;
use tokio::sync::Notify;

use crate::link::PeerLink;
use crate::metrics;
use store::Incarnation;

/// The most nodes that are kept. The leases of further nodes are read each time they are needed.
const MEMBERS_MAX: usize = 1_024;

/// Leases and links of other nodes, refreshed with each renewal.
pub(crate) struct Members {
    limits: Limits,
    state: Mutex<State>,
    /// How many known nodes were forgotten, and the waiters for the next one.
    forgotten: Arc<(AtomicU64, Notify)>,
}

#[derive(Default)]
struct State {
    leases: HashMap<Incarnation, Lease>,
    /// A link to each of them. A refresh drops the links that are not established and whose node
    /// has no lease.
    links: HashMap<Incarnation, Arc<PeerLink>>,
}

impl Members {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, state: Mutex::default(), forgotten: Arc::default() }
    }

    /// Stores the leases that are live now. Returns the links to nodes that hold no lease and were
    /// not draining.
    pub(crate) fn refresh(&self, leases: Vec<Lease>) -> Vec<Arc<PeerLink>> {
        metrics::NODES.set(i64::try_from(leases.len()).unwrap_or(i64::MAX));
        let leases = leases.into_iter().take(MEMBERS_MAX).map(|lease| (lease.incarnation, lease));
        let mut state = self.state();
        state.leases = leases.collect();
        let State { leases, links } = &mut *state;
        links.retain(|node, link| leases.contains_key(node) || !link.calls.is_down());
        let mut without = Vec::new();
        for (node, link) in links {
            match leases.get(node) {
                Some(lease) => link.is_departing.store(lease.draining, Ordering::Relaxed),
                None if link.is_departing.load(Ordering::Relaxed) => {}
                None => without.push(link.clone()),
            }
        }
        without
    }

    /// Whether a lease of this incarnation is known.
    pub(crate) fn knows(&self, incarnation: Incarnation) -> bool {
        self.state().leases.contains_key(&incarnation)
    }

    /// The name of a node whose lease is known.
    pub(crate) fn name_of(&self, incarnation: Incarnation) -> Option<Arc<str>> {
        self.state().leases.get(&incarnation).map(|lease| Arc::clone(&lease.name))
    }

    /// Whether this is the current link to a node whose lease is known.
    pub(crate) fn keeps(&self, link: &Arc<PeerLink>) -> bool {
        let state = self.state();
        let kept = state.links.get(&link.incarnation).is_some_and(|kept| Arc::ptr_eq(kept, link));
        kept && state.leases.contains_key(&link.incarnation)
    }

    /// Forgets a node that is dead or whose lease is no longer valid.
    pub(crate) fn forget(&self, incarnation: Incarnation) {
        let mut state = self.state();
        let was_known = state.leases.remove(&incarnation).is_some();
        state.links.remove(&incarnation);
        drop(state);
        // Each lookup of a session of a dead node forgets that node again.
        if was_known {
            let (count, waiters) = &*self.forgotten;
            count.fetch_add(1, Ordering::Release);
            waiters.notify_waiters();
        }
    }

    /// How many known nodes have been forgotten so far.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.0.load(Ordering::Acquire)
    }

    /// Returns when more than `than` nodes have been forgotten.
    pub(crate) fn until_more_forgotten(
        &self,
        than: u64,
    ) -> impl Future<Output = ()> + Send + 'static {
        let forgotten = self.forgotten.clone();
        async move {
            let (count, waiters) = &*forgotten;
            let next = waiters.notified();
            if count.load(Ordering::Acquire) <= than {
                next.await;
            }
        }
    }

    /// The link to a node whose lease is known.
    pub(crate) fn link_to(&self, incarnation: Incarnation) -> Option<Arc<PeerLink>> {
        let mut state = self.state();
        let address = state.leases.get(&incarnation)?.address.clone();
        Some(self.link(&mut state, incarnation, address))
    }

    /// The link to the node that holds this lease, which was just read.
    pub(crate) fn link_by(&self, lease: Lease) -> Arc<PeerLink> {
        let mut state = self.state();
        let link = self.link(&mut state, lease.incarnation, lease.address.clone());
        if state.leases.len() < MEMBERS_MAX {
            state.leases.insert(lease.incarnation, lease);
        }
        link
    }

    /// The links to all known nodes except this one.
    pub(crate) fn links_to_others(&self, own: Incarnation) -> Vec<Arc<PeerLink>> {
        let mut state = self.state();
        let others: Vec<_> = state
            .leases
            .values()
            .filter(|lease| lease.incarnation != own && !lease.address.is_empty())
            .map(|lease| (lease.incarnation, lease.address.clone()))
            .collect();
        others.into_iter().map(|(node, address)| self.link(&mut state, node, address)).collect()
    }

    /// Whether this holds for the link to each known node except this one; `None` where there is none.
    pub(crate) fn all_links(
        &self,
        own: Incarnation,
        holds: impl Fn(Option<&Arc<PeerLink>>) -> bool,
    ) -> bool {
        let state = self.state();
        let mut others = state.leases.keys().filter(|node| **node != own);
        others.all(|node| holds(state.links.get(node)))
    }

    pub(crate) fn leases(&self) -> Vec<Lease> {
        self.state().leases.values().cloned().collect()
    }

    fn link(
        &self,
        state: &mut State,
        incarnation: Incarnation,
        address: Arc<str>,
    ) -> Arc<PeerLink> {
        let make = || Arc::new(PeerLink::new(incarnation, address, self.limits));
        state.links.entry(incarnation).or_insert_with(make).clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
