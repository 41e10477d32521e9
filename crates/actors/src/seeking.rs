//! Finds the node that has a session, and claims a session that no node has.
//!
//! The node that receives a request for the session claims it. A node that leaves, or that
//! joined a moment ago, has another node claim it instead. On one node there is one claim of a
//! session at a time: further requests for the session wait for that claim, so that the session
//! is never restored twice here.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cluster::{Cause, Error, Peer, SessionLocation};
use conversation::{Refusal, Unreadable};
use ownership::location::{self, Claimant, Location};
use ownership::machine::{Acquired, Stabilisation};
use protocol::{Revision, SessionId};
use store::{Claimed, Owner, Record, Token};
use tenants::Principal;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::clock::{self, Seldom};
use crate::handle::Node;
use crate::metrics::{self, Failure};
use crate::registry::{Found, Slot};
use crate::session_handle;
use crate::session_start::{self, ClaimedSession};

/// Most sessions that are claimed at once; a request for a further one is refused as unavailable.
const CLAIMS_MAX: usize = 4_096;
/// How long a claim may take: longer than the store's own patience.
const CLAIM_PATIENCE: Duration = Duration::from_secs(10);
/// How long a session that is just leaving is waited for.
const LEAVING_PATIENCE: Duration = Duration::from_secs(2);
/// How often a session is looked for that changes hands meanwhile.
const LOOKS: usize = 3;

/// Where a session is.
#[derive(Debug)]
pub(crate) enum Place {
    /// On this node, in its registry.
    Here,
    /// On another.
    There(Peer),
    /// Nowhere, and this node takes no session up: any more, or for now. Another may.
    Nowhere,
    /// Nowhere, and this node has no room for it. Another may.
    Full,
    /// Nowhere: the store holds the end of the session, which was the caller's, or nothing of it.
    Gone,
}

/// Who comes for a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) principal: &'a Principal,
}

/// The outcome of a claim. Cheap to clone: every waiter gets it.
type ClaimOutcome = Result<(), Refusal>;
type Waiting = watch::Receiver<Option<ClaimOutcome>>;

/// The claims that are under way. At most [`CLAIMS_MAX`].
#[derive(Default)]
pub(crate) struct Claims(Mutex<HashMap<SessionId, Waiting>>);

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    /// Finds a session for a caller. Where it is nowhere it is claimed and goes on here,
    /// unless it is not the caller's: then it is unknown, and nothing was done.
    ///
    /// [`Refusal::Unavailable`] may be something else a moment later. `fresh`: nothing that
    /// is remembered is believed.
    pub(crate) async fn seek(
        self: &Arc<Self>,
        tenant: &str,
        principal: &Principal,
        session: &SessionId,
        fresh: bool,
    ) -> Result<Place, Refusal> {
        let identity = Identity { tenant, principal };
        let mut fresh = fresh;
        for _ in 0..LOOKS {
            if self.is_here(identity, session).await? {
                return Ok(Place::Here);
            }
            // In a statement of its own, so that the lock is not held while waiting.
            let under_way = self.claims.lock().get(session).cloned();
            let waiting = match under_way {
                Some(waiting) => waiting,
                None => match self.locate(session, fresh).await? {
                    Located::There(peer) => return Ok(Place::There(peer)),
                    Located::Ended(record) if is_theirs(identity, &record) => {
                        return Ok(Place::Gone);
                    }
                    Located::Unknown => return Ok(Place::Gone),
                    Located::Ended(_) => return Err(Refusal::UnknownSession),
                    Located::Ownerless(record, cause) => {
                        self.check(identity, &record)?;
                        if self.claimant(session, cause) == Claimant::Another {
                            return Ok(Place::Nowhere);
                        }
                        match self.begin_claim(principal, session, *record, cause)? {
                            Some(waiting) => waiting,
                            None => continue,
                        }
                    }
                },
            };
            match wait(waiting).await {
                Ok(()) => {}
                Err(Refusal::Moved) => fresh = true,
                Err(Refusal::TooManySessions) => return Ok(Place::Full),
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Unavailable)
    }

    /// Who is to take up a session that has no owner?
    fn claimant(&self, session: &SessionId, cause: Cause) -> Claimant {
        let is_stable = self.lease_snapshot(session).stabilisation == Stabilisation::Done;
        let (is_leaving, has_taker) = (self.is_departing(), self.taker(0).is_some());
        location::claimant(cause, is_leaving, is_stable, has_taker, location::Rules::default())
    }

    /// Is the session here, for this caller? One that is just leaving is waited for.
    async fn is_here(&self, identity: Identity<'_>, session: &SessionId) -> Result<bool, Refusal> {
        let until = tokio::time::Instant::now() + LEAVING_PATIENCE;
        loop {
            let gone = self.registry.gone();
            tokio::pin!(gone);
            gone.as_mut().enable();
            let handle = match self.registry.find(identity.tenant, identity.principal, session) {
                Found::Here(handle) => handle,
                Found::Foreign => return Err(Refusal::UnknownSession),
                Found::Absent => return Ok(false),
            };
            match handle.state() {
                session_handle::HandleState::Open => return Ok(true),
                session_handle::HandleState::Over => return Err(Refusal::UnknownSession),
                session_handle::HandleState::Leaving => {}
            }
            drop(handle);
            if tokio::time::timeout_at(until, gone).await.is_err() {
                return Err(Refusal::Unavailable);
            }
        }
    }

    /// Whose is it not learns nothing of it (SES-04).
    fn check(&self, identity: Identity<'_>, record: &Record) -> Result<(), Refusal> {
        // A duplex session ended with its connection; only its tombstone is missing.
        if is_theirs(identity, record) && !record.initialize.is_empty() {
            Ok(())
        } else {
            Err(Refusal::UnknownSession)
        }
    }

    async fn locate(&self, session: &SessionId, fresh: bool) -> Result<Located, Refusal> {
        let Some(cluster) = self.cluster() else { return self.locate_alone(session).await };
        match cluster.locate(session, fresh).await {
            Ok(SessionLocation::There(peer)) => Ok(Located::There(peer)),
            Ok(SessionLocation::Here(record)) => Ok(Located::Ownerless(record, Cause::Own)),
            Ok(SessionLocation::Ownerless(record, cause)) => Ok(Located::Ownerless(record, cause)),
            Ok(SessionLocation::Ended(record)) => Ok(Located::Ended(record)),
            Ok(SessionLocation::Unknown) => Ok(Located::Unknown),
            Err(error) => {
                tracing::warn!(?session, %error, "a session could not be located");
                Err(Refusal::Unavailable)
            }
        }
    }

    /// Locates a session for a node on its own: one that sleeps, or that the node owns and does
    /// not hold in memory. A session of another node or of a former incarnation of this one is
    /// unknown here: without leases this node cannot determine whether that owner is alive.
    async fn locate_alone(&self, session: &SessionId) -> Result<Located, Refusal> {
        let record = self.store.read(session).await.map_err(|error| {
            tracing::warn!(?session, %error, "a session could not be looked up");
            Refusal::Unavailable
        })?;
        let Some(record) = record else { return Ok(Located::Unknown) };
        let cause = match location::of_record(&record, self.incarnation()) {
            Location::Ownerless(cause) => cause,
            Location::Here => Cause::Own,
            Location::Ended => return Ok(Located::Ended(Box::new(record))),
            Location::At(_) => return Err(Refusal::UnknownSession),
        };
        Ok(Located::Ownerless(Box::new(record), cause))
    }

    /// Begins to claim a session, or joins who has begun. `None`: it is here meanwhile.
    fn begin_claim(
        self: &Arc<Self>,
        principal: &Principal,
        session: &SessionId,
        record: Record,
        cause: Cause,
    ) -> Result<Option<Waiting>, Refusal> {
        let mut claims = self.claims.lock();
        let full = claims.len() >= CLAIMS_MAX;
        let entry = match claims.entry(session.clone()) {
            Entry::Occupied(under_way) => return Ok(Some(under_way.get().clone())),
            Entry::Vacant(entry) => entry,
        };
        // A claim is forgotten only after its session is known, so looking here, under the
        // lock, misses none.
        if self.registry.knows(session) {
            return Ok(None);
        }
        if full {
            metrics::not_taken_over(Failure::NoRoom);
            return Err(Refusal::Unavailable);
        }
        let (tell, waiting) = watch::channel(None);
        entry.insert(waiting.clone());
        drop(claims);
        let under_way = UnderWay { node: Arc::clone(self), session: session.clone() };
        let principal = principal.clone();
        // By a task of its own: a caller that goes away leaves no claim half done.
        tokio::spawn(async move {
            let claim = under_way.node.take_up(&under_way.session, principal, &record, cause);
            let outcome = timeout(CLAIM_PATIENCE, claim).await.unwrap_or_else(|_| {
                metrics::not_taken_over(Failure::NotNow);
                Err(Refusal::Unavailable)
            });
            drop(under_way);
            // The send fails where no request waits for the claim any more.
            let _ = tell.send(Some(outcome));
        });
        Ok(Some(waiting))
    }

    /// Claims a session and lets it go on here.
    async fn take_up(
        self: &Arc<Self>,
        session: &SessionId,
        principal: Principal,
        record: &Record,
        cause: Cause,
    ) -> ClaimOutcome {
        let began = Instant::now();
        // What this node could not serve is left to one that can.
        let revision = Revision::named(&record.revision);
        let (Some(revision), Some(_)) = (revision, self.backends.of(&record.tenant)) else {
            metrics::not_taken_over(Failure::Unreadable);
            tracing::error!(
                ?session, tenant = %record.tenant, revision = %record.revision,
                "this node does not know a session's tenant or revision"
            );
            return Err(Refusal::Unavailable);
        };
        if self.claimant(session, cause) == Claimant::ThisForAnother && self.can_leave() {
            return self.pass_on(session, record).await;
        }
        let slot = match self.take_slot_for_restored(record) {
            Ok(slot) => slot,
            // No other node may claim it until this node has given it up.
            Err(Refusal::TooManySessions) if cause == Cause::Own && self.can_leave() => {
                return self.pass_on(session, record).await;
            }
            Err(refusal) => return Err(refusal),
        };
        let (claimed, acquired) = self.claim(session, record).await?;
        let token = claimed.record.owner.token;
        let claim = ClaimedSession {
            session: session.clone(),
            principal,
            revision,
            claimed,
            acquired,
            slot,
        };
        let (tell, told) = oneshot::channel();
        let node = Arc::clone(self);
        let is_begun = self.arbiters.spawn(move || {
            // The send fails where the claim has timed out. The session is restored all the
            // same, and the next request finds it.
            let _ = tell.send(session_start::restore_session(&node, claim));
        });
        match told.await {
            Ok(Ok(())) => {
                metrics::taken_over(cause);
                metrics::TAKEOVER_SECONDS.observe(began.elapsed().as_secs_f64());
                tracing::info!(?session, ?cause, "a session was taken up");
                return Ok(());
            }
            Ok(Err(error @ Unreadable::Corrupt(_))) => {
                metrics::not_taken_over(Failure::Unreadable);
                return Err(self.end_corrupt(session, token, error).await);
            }
            Ok(Err(error)) => tracing::error!(?session, %error, "a session cannot be taken up"),
            Err(_) => tracing::error!(?session, is_begun, "no thread takes a claimed session"),
        }
        metrics::not_taken_over(Failure::Unreadable);
        // Another node may know better.
        let released = self.settings.lifetimes().released.into();
        let at = self.lease_snapshot(session).primary;
        if let Err(error) = self.store.release(session, token, at, released).await {
            tracing::warn!(?session, %error, "a session that cannot be served is not released");
        }
        Err(Refusal::Unavailable)
    }

    /// Ends a session that no node can go on with, so that its client opens another one. What
    /// cannot be written is claimed and tried again with the next request.
    async fn end_corrupt(&self, session: &SessionId, token: Token, error: Unreadable) -> Refusal {
        static LOGGED: Seldom = Seldom::new();
        if LOGGED.may_log(clock::now()) {
            tracing::error!(?session, %error, "a session was ended: it cannot be restored");
        }
        let tombstone = self.settings.lifetimes().ended.into();
        match self.store.end(session, token, tombstone).await {
            Ok(()) | Err(store::Error::Ended | store::Error::Missing) => Refusal::UnknownSession,
            Err(_) => Refusal::Unavailable,
        }
    }

    /// Claims a session whose record names this node, and releases it at once: this node drains or
    /// is full, and no other node may claim the session before. The next owner ends the pending
    /// requests with an error, or runs them again.
    async fn pass_on(&self, session: &SessionId, record: &Record) -> ClaimOutcome {
        let (claimed, _) = self.claim(session, record).await?;
        let token = claimed.record.owner.token;
        let lasts = self.settings.lifetimes().released.into();
        let at = self.lease_snapshot(session).primary;
        if let Err(error) = self.store.release(session, token, at, lasts).await {
            tracing::warn!(?session, %error, "a session was not passed on; it is tried again");
            return Err(Refusal::Unavailable);
        }
        metrics::RELEASED.inc();
        tracing::info!(?session, "a session was passed on");
        Err(Refusal::Moved)
    }

    fn take_slot_for_restored(&self, record: &Record) -> Result<Slot, Refusal> {
        let slot = self.registry.take_slot_for_restored(&record.tenant, self.settings.sessions_max);
        // A client that has a session is never told to come back later: another node is asked
        // to take it up, and the request is held meanwhile.
        slot.inspect_err(|_| metrics::not_taken_over(Failure::NoRoom))
    }

    /// Claims a session.
    async fn claim(
        &self,
        session: &SessionId,
        record: &Record,
    ) -> Result<(Claimed, Acquired), Refusal> {
        let lease_generation = self.valid_lease_generation().ok_or(Refusal::Unavailable)?;
        let acquired = Acquired {
            lease_generation,
            failover_generation: self.lease_snapshot(session).failover_generation,
        };
        let ttl = self.settings.record_ttl();
        let outcome = match self.cluster() {
            Some(cluster) => cluster.claim(session, record, ttl).await,
            None => self.claim_alone(session, record).await,
        };
        match outcome {
            Ok(claimed) => Ok((claimed, acquired)),
            Err(Error::Taken) => {
                metrics::not_taken_over(Failure::Taken);
                Err(Refusal::Moved)
            }
            Err(error) => {
                metrics::not_taken_over(Failure::NotNow);
                tracing::warn!(?session, %error, "a session was not claimed");
                Err(Refusal::Unavailable)
            }
        }
    }

    async fn claim_alone(&self, session: &SessionId, record: &Record) -> Result<Claimed, Error> {
        let random = getrandom::u64()
            .map_err(|error| Error::Settings(format!("the system has no random bits: {error}")))?;
        let new = Owner { token: record.owner.token.next(random), node: self.incarnation() };
        let expected = location::expected(record);
        let claim = self.store.claim(session, expected, new, None, self.settings.record_ttl());
        claim.await.map_err(|error| match error {
            store::Error::Unavailable(_) => Error::Store(error),
            _ => Error::Taken,
        })
    }
}

/// Where a session is that is not here.
enum Located {
    There(Peer),
    Ownerless(Box<Record>, Cause),
    /// It has ended: this is its tombstone.
    Ended(Box<Record>),
    /// The store holds nothing of it.
    Unknown,
}

fn is_theirs(identity: Identity<'_>, record: &Record) -> bool {
    *record.tenant == *identity.tenant && record.principal.0 == identity.principal.digest()
}

/// A claim of this node's that is under way. Forgotten when it is over, however it ends.
struct UnderWay {
    node: Arc<Node>,
    session: SessionId,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.node.claims.lock().remove(&self.session);
    }
}

async fn wait(mut waiting: Waiting) -> ClaimOutcome {
    match waiting.wait_for(Option::is_some).await {
        Ok(outcome) => outcome.clone().unwrap_or(Err(Refusal::Unavailable)),
        // The task that claimed the session was dropped without an outcome.
        Err(_) => Err(Refusal::Unavailable),
    }
}
