//! One limit at this node, which its threads share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use budget::limit::{CountOfNode, Grant, Rate, RateOfNode, Refused};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::wire::LimitReport;

/// A thread takes the tokens of so much time at once, so that it does not ask for each request.
const BATCH: Duration = Duration::from_millis(5);

/// A rate at this node.
#[derive(Debug)]
pub struct RateEntry {
    pub(super) id: u128,
    pub(super) tenant: u64,
    /// Whether it is of one client or key, and not of the whole tenant.
    pub(super) is_of_client: bool,
    /// The tenant's name and the kind of the limit, for metrics.
    shown: (Arc<str>, &'static str),
    /// `None` once it was forgotten.
    state: Mutex<Option<RateOfNode>>,
    wanted: Arc<Notify>,
}

/// What a thread gets of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// So many tokens.
    Tokens(u32),
    /// None.
    Refused(Refused),
    /// The entry was forgotten: there is a new one, or none.
    Forgotten,
}

impl RateEntry {
    pub(super) fn new(
        id: u128,
        (tenant, is_of_client): (u64, bool),
        shown: (Arc<str>, &'static str),
        state: RateOfNode,
        wanted: &Arc<Notify>,
    ) -> Self {
        let (state, wanted) = (Mutex::new(Some(state)), Arc::clone(wanted));
        Self { id, tenant, is_of_client, shown, state, wanted }
    }

    /// Takes tokens for what is done already, also those that are not there.
    pub(super) fn charge(&self, tokens: f64, now: Duration) {
        if let Some(state) = self.state().as_mut() {
            state.charge(tokens, now);
        }
    }

    /// Whether there are tokens for what is charged later. `None`: the entry was forgotten.
    pub fn allows(&self, now: Duration) -> Option<Result<(), Refused>> {
        let mut guard = self.state();
        let state = guard.as_mut()?;
        let allowed = state.allows(now);
        if allowed.is_err() && state.wants_share() {
            drop(guard);
            self.wanted.notify_one();
        }
        Some(allowed)
    }

    /// The tenant, the kind of the limit, and the part of it that is used at this node.
    pub(super) fn used(&self, now: Duration) -> Option<(Arc<str>, &'static str, f64)> {
        let used = self.state().as_mut()?.used(now);
        Some((Arc::clone(&self.shown.0), self.shown.1, used))
    }

    /// Takes a token for a request, and others for the next ones of the thread. `asked` requests have
    /// asked since the last time, with this one. `threads` take from the rate.
    pub fn take(&self, asked: u32, unused: u32, threads: usize, now: Duration) -> Taken {
        let mut guard = self.state();
        let Some(state) = guard.as_mut() else { return Taken::Forgotten };
        state.give_back(unused, now);
        let batch = state.per_sec(now) * BATCH.as_secs_f64() / threads.max(1) as f64;
        match state.take((batch as u32).max(1), asked, now) {
            Ok(tokens) => Taken::Tokens(tokens),
            Err(refused) => {
                if state.wants_share() {
                    drop(guard);
                    self.wanted.notify_one();
                }
                Taken::Refused(refused)
            }
        }
    }

    /// When there may be a token again.
    pub fn retry_after(&self) -> Duration {
        self.state().as_ref().map_or(Duration::ZERO, RateOfNode::retry_after)
    }

    pub(super) fn change(&self, rate: Rate, nodes: usize, now: Duration) {
        if let Some(state) = self.state().as_mut()
            && state.rate() != rate
        {
            state.change(rate, nodes, now);
        }
    }

    pub(super) fn update(&self, nodes: usize, now: Duration) {
        if let Some(state) = self.state().as_mut() {
            state.change(state.rate(), nodes, now);
        }
    }

    /// Forgets the entry if nothing is lost with it. Returns whether it did.
    pub(super) fn forget(&self, now: Duration) -> bool {
        let mut state = self.state();
        if state.as_ref().is_some_and(|state| state.is_forgettable(now)) {
            *state = None;
        }
        state.is_none()
    }

    pub(super) fn wants_share(&self) -> bool {
        self.state().as_ref().is_some_and(RateOfNode::wants_share)
    }

    pub(super) fn report(&self, now: Duration) -> Option<LimitReport> {
        let mut state = self.state();
        let state = state.as_mut()?;
        let Rate { per_sec, burst } = state.rate();
        Some(LimitReport::new((self.id, self.tenant), state.report(now)?, per_sec, burst))
    }

    pub(super) fn grant(&self, grant: Grant, reported_at: Duration, now: Duration) {
        if let Some(state) = self.state().as_mut() {
            state.grant(grant, reported_at, now);
        }
    }

    fn state(&self) -> MutexGuard<'_, Option<RateOfNode>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A count at this node.
#[derive(Debug)]
pub struct CountEntry {
    pub(super) id: u128,
    pub(super) tenant: u64,
    /// The tenant's name and the kind of the limit, for metrics.
    shown: (Arc<str>, &'static str),
    /// When the clock of the node's limits began.
    started: Instant,
    /// `None` once it was forgotten.
    state: Mutex<Option<CountOfNode>>,
    /// See [`PendingSession`].
    pending: AtomicUsize,
    wanted: Arc<Notify>,
}

/// One of what a count limits. Dropping it gives it back.
#[derive(Debug)]
pub struct Counted(Arc<CountEntry>);

impl Drop for Counted {
    fn drop(&mut self) {
        let now = self.0.started.elapsed();
        if let Some(state) = self.0.state().as_mut() {
            state.give_back(now);
        }
    }
}

/// One of a limit of sessions, for a session that is to be created. The registry of the node counts sessions;
/// until it has this one, it counts here. Dropping it ends that.
#[derive(Debug)]
pub struct PendingSession(Arc<CountEntry>);

impl Drop for PendingSession {
    fn drop(&mut self) {
        // What the node holds is set in the next interval: the registry may have the session now.
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CountEntry {
    pub(super) fn new(
        id: u128,
        tenant: u64,
        shown: (Arc<str>, &'static str),
        (state, started): (CountOfNode, Instant),
        wanted: &Arc<Notify>,
    ) -> Self {
        let (state, wanted) = (Mutex::new(Some(state)), Arc::clone(wanted));
        Self { id, tenant, shown, started, state, pending: AtomicUsize::new(0), wanted }
    }

    /// Takes one for what is there already, also if the limit is reached.
    pub(super) fn hold(self: &Arc<Self>, now: Duration) -> Counted {
        if let Some(state) = self.state().as_mut() {
            state.set_held(state.held() + 1, now);
        }
        Counted(Arc::clone(self))
    }

    /// The tenant, the kind of the limit, and the part of it that is used at this node.
    pub(super) fn used(&self) -> Option<(Arc<str>, &'static str, f64)> {
        let used = self.state().as_ref().map(|state| state.held() as f64 / state.max() as f64)?;
        Some((Arc::clone(&self.shown.0), self.shown.1, used))
    }

    /// Takes one. `None`: the entry was forgotten.
    pub fn take(self: &Arc<Self>, now: Duration) -> Option<Result<Counted, Refused>> {
        let taken = self.ask(now, CountOfNode::take)?;
        Some(taken.map(|()| Counted(Arc::clone(self))))
    }

    /// Takes one for a session, which the registry counts once it is there. `None`: the entry was forgotten.
    pub fn take_pending(
        self: &Arc<Self>,
        now: Duration,
    ) -> Option<Result<PendingSession, Refused>> {
        // Before it is asked for: what the node holds may be set at any time.
        self.pending.fetch_add(1, Ordering::Relaxed);
        let pending = PendingSession(Arc::clone(self));
        let taken = self.ask(now, CountOfNode::take)?;
        Some(taken.map(|()| pending))
    }

    /// How many are taken for sessions that are to be created.
    pub(super) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    fn ask(
        &self,
        now: Duration,
        ask: impl FnOnce(&mut CountOfNode, Duration) -> Result<(), Refused>,
    ) -> Option<Result<(), Refused>> {
        let mut guard = self.state();
        let state = guard.as_mut()?;
        let taken = ask(state, now);
        if taken == Err(Refused::Wait) && state.wants_share() {
            drop(guard);
            self.wanted.notify_one();
        }
        Some(taken)
    }

    pub(super) fn set_held(&self, held: u64, now: Duration) {
        if let Some(state) = self.state().as_mut() {
            state.set_held(held, now);
        }
    }

    pub(super) fn change(&self, max: u64, nodes: usize, now: Duration) {
        if let Some(state) = self.state().as_mut() {
            state.change(max, nodes, now);
        }
    }

    pub(super) fn update(&self, nodes: usize, now: Duration) {
        if let Some(state) = self.state().as_mut() {
            state.change(state.max(), nodes, now);
        }
    }

    /// Forgets the entry if nothing is lost with it. Returns whether it did.
    pub(super) fn forget(&self, now: Duration) -> bool {
        let mut state = self.state();
        if state.as_ref().is_some_and(|state| state.is_forgettable(now)) {
            *state = None;
        }
        state.is_none()
    }

    pub(super) fn wants_share(&self) -> bool {
        self.state().as_ref().is_some_and(CountOfNode::wants_share)
    }

    pub(super) fn report(&self, now: Duration) -> Option<LimitReport> {
        let mut state = self.state();
        let state = state.as_mut()?;
        let report = state.report(now)?;
        Some(LimitReport::new((self.id, self.tenant), report, 0.0, state.max() as f64))
    }

    pub(super) fn grant(&self, grant: Grant, reported_at: Duration, now: Duration) {
        if let Some(state) = self.state().as_mut() {
            state.grant(grant, reported_at, now);
        }
    }

    fn state(&self) -> MutexGuard<'_, Option<CountOfNode>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
