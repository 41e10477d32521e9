//! What operators see of the cluster, and what they do with its sessions, from any node.
//!
//! Each node lists its own sessions. Nodes that cannot be asked are named: an answer without them would
//! look complete.

use std::error::Error as _;
use std::ops::RangeInclusive;
use std::sync::Arc;

use cluster::{Peer, SessionLocation};
use futures_util::future::{join, join_all};
use ownership::Incarnation;
use protocol::SessionId;
use store::Lease;
use telemetry::Readiness;
use tenants::Tenants;

use crate::node::Node;
use crate::routing::{CallProblem, NodeState, call_end, call_list, call_state, call_tenants};
use crate::session_summary::{SessionPage, SessionQuery, SessionSummary};
use crate::sessions_here::{self, EndOutcome};
use crate::short_id::{ShortId, Target};
use crate::sleeping::{self, Search, SleepingPage, SleepingQuery};
use crate::takeover::{end_ownerless, until_claimed};
use crate::tenants_here::{self, TenantFigures};

/// The most lookups of a session whose owner changes meanwhile.
const LOOKS: usize = 3;

/// What operators see of the cluster. Cheap to clone.
#[derive(Clone)]
pub struct Overview(Arc<Node>);

/// A node, as operators see it.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSummary {
    /// The name.
    pub name: Arc<str>,
    /// One run of the process: 16 hexadecimal digits.
    pub incarnation: String,
    /// The address for its peers; empty in a cluster of one.
    pub address: Arc<str>,
    /// The number of its sessions; of another node, when its lease was last read.
    pub sessions: u64,
    /// Whether it releases its sessions.
    pub is_draining: bool,
    /// The names of the nodes with which it has a link.
    pub linked: Vec<Arc<str>>,
    /// Whether it is the node that was asked.
    pub is_this: bool,
    /// The version of its program, if it told.
    pub version: Option<String>,
    /// Why it is not ready; empty if it is; `None` if it did not tell.
    pub reasons: Option<Vec<String>>,
}

/// A node that could not be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unasked {
    /// The name of the node.
    pub node: Arc<str>,
    /// Why.
    pub reason: &'static str,
}

/// Some sessions of the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// The sessions in the order of their short ids, each with the name of its node.
    pub sessions: Vec<(Arc<str>, SessionSummary)>,
    /// The last one, if further ones follow.
    pub next: Option<ShortId>,
    /// The nodes whose sessions are missing.
    pub unasked: Vec<Unasked>,
}

/// A session that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The short id.
    pub id: ShortId,
    /// The tenant.
    pub tenant: Arc<str>,
    /// The name of the node that ended it.
    pub node: Arc<str>,
}

/// Why a session was not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndProblem {
    /// There is no such session, or it has ended already.
    Unknown,
    /// Several sessions have short ids that begin so.
    Ambiguous,
    /// The end was not confirmed: the session may have ended. Ask again.
    Unconfirmed,
    /// No node that could be asked has the session, and these could not be asked.
    Unasked(Vec<Unasked>),
    /// No node has the session, and the store was not searched for it to the end.
    Unsearched,
}

impl Overview {
    pub(crate) fn new(node: &Arc<Node>) -> Self {
        Self(Arc::clone(node))
    }

    /// Lets operators at other nodes see whether this node is ready. The first call counts.
    pub fn show_readiness(&self, readiness: Readiness) {
        let _ = self.0.readiness.set(readiness);
    }

    /// Lets operators at other nodes see the settings of this node's tenants. The first call counts.
    pub fn show_tenants(&self, tenants: Tenants) {
        let _ = self.0.tenants.set(tenants);
    }

    /// The figures of the tenants, of each node that could be asked, in the order of the nodes' names.
    pub async fn tenants(&self) -> (Vec<(Arc<str>, Vec<TenantFigures>)>, Vec<Unasked>) {
        let leases = self.peers();
        let of_peers = leases.iter().map(async |lease| match self.peer(lease) {
            Ok(peer) => call_tenants(&peer).await.map_err(|problem| unasked(lease, problem)),
            Err(unasked) => Err(unasked),
        });
        let of_peers = join_all(of_peers).await;
        let mut nodes = vec![(self.name(), tenants_here::list(&self.0))];
        let mut all_unasked = Vec::new();
        for (lease, figures) in leases.into_iter().zip(of_peers) {
            match figures {
                Ok(figures) => nodes.push((lease.name, figures)),
                Err(unasked) => all_unasked.push(unasked),
            }
        }
        nodes.sort_by(|(one, _), (other, _)| one.cmp(other));
        (nodes, all_unasked)
    }

    /// The name of this node.
    pub fn name(&self) -> Arc<str> {
        self.0.context.cluster.name()
    }

    /// The nodes of the cluster, ordered by name, and those that did not tell their state.
    pub async fn nodes(&self) -> (Vec<NodeSummary>, Vec<Unasked>) {
        let cluster = &self.0.context.cluster;
        let leases = self.peers();
        let states = leases.iter().map(async |lease| match self.peer(lease) {
            Ok(peer) => call_state(&peer).await.map_err(|problem| unasked(lease, problem)),
            Err(unasked) => Err(unasked),
        });
        let states = join_all(states).await;
        let own = NodeState::of(&self.0);
        let own_lease =
            cluster.nodes().into_iter().find(|l| l.incarnation == cluster.incarnation());
        let mut nodes = vec![NodeSummary {
            name: cluster.name(),
            incarnation: cluster.incarnation().to_string(),
            address: cluster.address().into(),
            sessions: self.0.registry.sessions() as u64,
            is_draining: self.0.registry.is_departing(),
            linked: own_lease.map_or_else(Vec::new, |lease| self.names(&lease.linked)),
            is_this: true,
            version: Some(own.version),
            reasons: own.reasons,
        }];
        let mut all_unasked = Vec::new();
        for (lease, state) in leases.into_iter().zip(states) {
            let state = state.map_err(|unasked| all_unasked.push(unasked)).ok();
            nodes.push(NodeSummary {
                linked: self.names(&lease.linked),
                name: lease.name,
                incarnation: lease.incarnation.to_string(),
                address: lease.address,
                sessions: lease.load,
                is_draining: lease.draining,
                is_this: false,
                version: state.as_ref().map(|state| state.version.clone()),
                reasons: state.and_then(|state| state.reasons),
            });
        }
        nodes.sort_by(|one, other| {
            (&one.name, &one.incarnation).cmp(&(&other.name, &other.incarnation))
        });
        (nodes, all_unasked)
    }

    fn names(&self, nodes: &[Incarnation]) -> Vec<Arc<str>> {
        let mut names: Vec<_> =
            nodes.iter().map(|node| self.0.context.cluster.name_of(*node)).collect();
        names.sort_unstable();
        names
    }

    /// Lists sessions of all nodes.
    pub async fn sessions(&self, query: SessionQuery) -> Listing {
        let limit = query.limit.clamp(1, sessions_here::PAGE_MAX);
        let query = SessionQuery { limit, ..query };
        let leases = self.peers();
        let of_peers = leases.iter().map(async |lease| match self.peer(lease) {
            Ok(peer) => call_list(&peer, &query).await.map_err(|problem| unasked(lease, problem)),
            Err(unasked) => Err(unasked),
        });
        let here = sessions_here::list(&self.0, query.clone());
        let (here, of_peers) = join(here, join_all(of_peers)).await;
        let mut listing = Listing::default();
        let mut has_more = here.has_more;
        let mut add = |node: &Arc<str>, page: SessionPage| {
            has_more |= page.has_more;
            let named = page.sessions.into_iter().map(|session| (Arc::clone(node), session));
            listing.sessions.extend(named);
        };
        add(&self.name(), here);
        for (lease, page) in leases.iter().zip(of_peers) {
            match page {
                Ok(page) => add(&lease.name, page),
                Err(unasked) => listing.unasked.push(unasked),
            }
        }
        listing.sessions.sort_by_key(|(_, session)| session.id);
        has_more |= listing.sessions.len() > limit;
        listing.sessions.truncate(limit);
        let last = listing.sessions.last().map(|(_, session)| session.id);
        listing.next = last.filter(|_| has_more);
        listing
    }

    /// Lists sessions that no node has. An error says why the store could not be read.
    pub async fn sleeping(&self, query: SleepingQuery) -> Result<SleepingPage, String> {
        let limit = query.limit.clamp(1, sessions_here::PAGE_MAX);
        let query = SleepingQuery { limit, ..query };
        sleeping::list(&self.0, query).await.map_err(|error| match error.source() {
            Some(cause) => format!("{error} ({cause})"),
            None => error.to_string(),
        })
    }

    /// Ends a session, wherever it is. Its running calls are cancelled at the server. Returns when the
    /// store holds its end.
    pub async fn end_session(
        &self,
        target: Target,
        tenant: Option<Arc<str>>,
    ) -> Result<Ended, EndProblem> {
        match target {
            Target::Id(session) => self.end_by_id(session, tenant).await,
            Target::Short(range) if range.start() == range.end() => {
                self.end_by_short_id(range, tenant).await
            }
            Target::Short(range) => match self.only_one(&range, tenant.clone()).await? {
                Some(id) => self.end_by_short_id(id.0..=id.0, tenant).await,
                None => self.end_in_store(&range, tenant).await,
            },
        }
    }

    /// Ends a session that is on no node.
    async fn end_in_store(
        &self,
        range: &RangeInclusive<u64>,
        tenant: Option<Arc<str>>,
    ) -> Result<Ended, EndProblem> {
        match sleeping::find(&self.0, range, tenant.as_deref()).await {
            Search::Found(session) => self.end_by_id(session, tenant).await,
            Search::Nothing => Err(EndProblem::Unknown),
            Search::Ambiguous => Err(EndProblem::Ambiguous),
            Search::Unfinished => Err(EndProblem::Unsearched),
        }
    }

    async fn end_by_id(
        &self,
        session: SessionId,
        tenant: Option<Arc<str>>,
    ) -> Result<Ended, EndProblem> {
        let node = &self.0;
        let target = Target::Id(session.clone());
        let is_tenants = |of: &str| tenant.as_ref().is_none_or(|tenant| **tenant == *of);
        for _ in 0..LOOKS {
            match sessions_here::end(node, target.clone(), tenant.clone()).await {
                EndOutcome::NotHere => {}
                outcome => return self.outcome(outcome, &self.name()),
            }
            if until_claimed(node, &session).await {
                continue;
            }
            let located = node.context.cluster.locate(&session, true).await;
            match located.map_err(|_| EndProblem::Unconfirmed)? {
                SessionLocation::Unknown | SessionLocation::Ended(_) => {
                    return Err(EndProblem::Unknown);
                }
                SessionLocation::There(peer) => {
                    let name = node.context.cluster.name_of(peer.incarnation());
                    match call_end(&peer, &target, tenant.as_deref()).await {
                        // It has left that node meanwhile.
                        Ok(EndOutcome::NotHere) => {}
                        Ok(outcome) => return self.outcome(outcome, &name),
                        Err(problem) => {
                            let unasked = Unasked { node: name, reason: reason(problem) };
                            return Err(EndProblem::Unasked(vec![unasked]));
                        }
                    }
                }
                SessionLocation::Here(record) => {
                    if !is_tenants(&record.tenant) {
                        return Err(EndProblem::Unknown);
                    }
                    let cause = cluster::Cause::Own;
                    if end_ownerless(node, &session, &record, cause).await.is_ok() {
                        return Ok(self.ended(&session, &record.tenant));
                    }
                }
                SessionLocation::Ownerless(record, cause) => {
                    if !is_tenants(&record.tenant) {
                        return Err(EndProblem::Unknown);
                    }
                    if end_ownerless(node, &session, &record, cause).await.is_ok() {
                        return Ok(self.ended(&session, &record.tenant));
                    }
                }
            }
        }
        Err(EndProblem::Unconfirmed)
    }

    fn ended(&self, session: &SessionId, tenant: &Arc<str>) -> Ended {
        Ended { id: ShortId::of(session), tenant: Arc::clone(tenant), node: self.name() }
    }

    /// The only session of all nodes whose short id is one of these; `None`: there is none.
    async fn only_one(
        &self,
        range: &RangeInclusive<u64>,
        tenant: Option<Arc<str>>,
    ) -> Result<Option<ShortId>, EndProblem> {
        let after = range.start().checked_sub(1).map(ShortId);
        let listing = self.sessions(SessionQuery { tenant, after, limit: 2 }).await;
        let ids = listing.sessions.iter().map(|(_, session)| session.id);
        let ids: Vec<_> = ids.filter(|id| range.contains(&id.0)).collect();
        match &*ids {
            [_, _, ..] => Err(EndProblem::Ambiguous),
            // There may be another one at these nodes.
            _ if !listing.unasked.is_empty() => Err(EndProblem::Unasked(listing.unasked)),
            [] => Ok(None),
            [id] => Ok(Some(*id)),
        }
    }

    /// Asks all nodes, and then searches the store. `range` has one id.
    async fn end_by_short_id(
        &self,
        range: RangeInclusive<u64>,
        tenant: Option<Arc<str>>,
    ) -> Result<Ended, EndProblem> {
        let target = Target::Short(range.clone());
        match sessions_here::end(&self.0, target.clone(), tenant.clone()).await {
            EndOutcome::NotHere => {}
            outcome => return self.outcome(outcome, &self.name()),
        }
        let leases = self.peers();
        let outcomes = leases.iter().map(async |lease| match self.peer(lease) {
            Ok(peer) => {
                let outcome = call_end(&peer, &target, tenant.as_deref()).await;
                outcome.map_err(|problem| unasked(lease, problem))
            }
            Err(unasked) => Err(unasked),
        });
        let mut all_unasked = Vec::new();
        for (lease, outcome) in leases.iter().zip(join_all(outcomes).await) {
            match outcome {
                Ok(EndOutcome::NotHere) => {}
                Ok(outcome) => return self.outcome(outcome, &lease.name),
                Err(unasked) => all_unasked.push(unasked),
            }
        }
        match all_unasked.is_empty() {
            true => self.end_in_store(&range, tenant).await,
            false => Err(EndProblem::Unasked(all_unasked)),
        }
    }

    fn outcome(&self, outcome: EndOutcome, node: &Arc<str>) -> Result<Ended, EndProblem> {
        match outcome {
            EndOutcome::Ended { id, tenant } => Ok(Ended { id, tenant, node: Arc::clone(node) }),
            EndOutcome::NotHere => Err(EndProblem::Unknown),
            EndOutcome::Ambiguous => Err(EndProblem::Ambiguous),
            EndOutcome::Unconfirmed => Err(EndProblem::Unconfirmed),
        }
    }

    /// The leases of the other nodes.
    fn peers(&self) -> Vec<Lease> {
        let cluster = &self.0.context.cluster;
        let mut leases = cluster.nodes();
        leases.retain(|lease| lease.incarnation != cluster.incarnation());
        leases
    }

    fn peer(&self, lease: &Lease) -> Result<Peer, Unasked> {
        self.0.context.cluster.reachable(lease.incarnation).ok_or_else(|| Unasked {
            node: Arc::clone(&lease.name),
            reason: "there is no link to it; see `roundhouse nodes`",
        })
    }
}

fn unasked(lease: &Lease, problem: CallProblem) -> Unasked {
    Unasked { node: Arc::clone(&lease.name), reason: reason(problem) }
}

fn reason(problem: CallProblem) -> &'static str {
    match problem {
        CallProblem::OlderProgram => "it runs an older program; upgrade it, or ask it itself",
        CallProblem::NoAnswer => "it did not answer in time",
    }
}
