//! Calls of operators between nodes: an operator at one node lists the sessions of all, and ends one
//! wherever it is.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use cluster::{CallError, Peer, Replies};
use prost::Message as _;
use protocol::SessionId;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::OPERATOR_CALLS;
use super::messages::{self, RequestKind};
use super::operator_messages::{
    Amount, CallKind, Doing, End, EndedSession, List, Named, OperatorCall, OperatorReply, Outcome,
    OutcomeKind, Page, ReplyKind, Session, SettingsOfTenant, ShortIds, State, Tenant, Tenants,
};
use crate::metrics;
use crate::node::Node;
use crate::session_summary::{Activity, SessionPage, SessionQuery, SessionSummary};
use crate::sessions_here::{self, END_PATIENCE, EndOutcome, PAGE_MAX};
use crate::short_id::{ShortId, Target};
use crate::tenants_here::{self, Figure, ShownSettings, TenantFigures};

/// How long a peer may take to answer: longer than the end of a session may take.
const ANSWER: Duration = Duration::from_millis(END_PATIENCE.as_millis() as u64 + 1_000);

/// What a node says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeState {
    /// The version of its program.
    pub(crate) version: String,
    /// Why it is not ready; empty if it is; `None` if that is not known.
    pub(crate) reasons: Option<Vec<String>>,
}

impl NodeState {
    /// The state of this node.
    pub(crate) fn of(node: &Node) -> Self {
        let reasons = node.readiness.get().map(|readiness| readiness.reasons());
        Self {
            // All crates of the program have its version.
            version: env!("CARGO_PKG_VERSION").to_owned(),
            reasons: reasons.map(|reasons| reasons.into_iter().map(str::to_owned).collect()),
        }
    }
}

/// Why a peer has not answered a call of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallProblem {
    /// It runs a program without such calls.
    OlderProgram,
    /// It did not answer in time, or its link broke.
    NoAnswer,
}

/// Lists sessions of a peer.
pub(crate) async fn call_list(
    peer: &Peer,
    query: &SessionQuery,
) -> Result<SessionPage, CallProblem> {
    let list = List {
        tenant: query.tenant.as_deref().map(str::to_owned),
        after: query.after.map(|after| after.0),
        limit: query.limit.try_into().unwrap_or(u32::MAX),
    };
    match call(peer, CallKind::List(list)).await? {
        ReplyKind::Page(Page { sessions, has_more }) => {
            let sessions = sessions.into_iter().map(SessionSummary::from).collect();
            Ok(SessionPage { sessions, has_more })
        }
        _ => Err(CallProblem::NoAnswer),
    }
}

/// Ends a session of a peer.
pub(crate) async fn call_end(
    peer: &Peer,
    target: &Target,
    tenant: Option<&str>,
) -> Result<EndOutcome, CallProblem> {
    let named = match target {
        Target::Id(session) => Named::Id(session.as_str().to_owned()),
        Target::Short(range) => Named::Short(ShortIds { from: *range.start(), to: *range.end() }),
    };
    let end = End { tenant: tenant.map(str::to_owned), named: Some(named) };
    let ReplyKind::Outcome(Outcome { kind: Some(kind) }) = call(peer, CallKind::End(end)).await?
    else {
        return Err(CallProblem::NoAnswer);
    };
    Ok(match kind {
        OutcomeKind::Ended(EndedSession { id, tenant }) => {
            EndOutcome::Ended { id: ShortId(id), tenant: tenant.into() }
        }
        OutcomeKind::NotHere(()) => EndOutcome::NotHere,
        OutcomeKind::Ambiguous(()) => EndOutcome::Ambiguous,
        OutcomeKind::Unconfirmed(()) => EndOutcome::Unconfirmed,
    })
}

/// Asks a peer what it says of itself.
pub(crate) async fn call_state(peer: &Peer) -> Result<NodeState, CallProblem> {
    match call(peer, CallKind::State(())).await? {
        ReplyKind::State(State { version, knows, reasons }) => {
            Ok(NodeState { version, reasons: knows.then_some(reasons) })
        }
        _ => Err(CallProblem::NoAnswer),
    }
}

/// Asks a peer for the figures of its tenants.
pub(crate) async fn call_tenants(peer: &Peer) -> Result<Vec<TenantFigures>, CallProblem> {
    match call(peer, CallKind::Tenants(())).await? {
        ReplyKind::Tenants(Tenants { tenants }) => {
            Ok(tenants.into_iter().map(TenantFigures::from).collect())
        }
        _ => Err(CallProblem::NoAnswer),
    }
}

async fn call(peer: &Peer, kind: CallKind) -> Result<ReplyKind, CallProblem> {
    if peer.payload_version().is_some_and(|version| version < OPERATOR_CALLS) {
        return Err(CallProblem::OlderProgram);
    }
    let call = RequestKind::Operator(OperatorCall { kind: Some(kind) });
    let mut calling = peer.call(messages::encode(&messages::Request::from(call)));
    let reply = poll_fn(|context| calling.poll_next(context));
    match timeout(ANSWER, reply).await {
        Ok(Some(Ok(reply))) => {
            let reply = OperatorReply::decode(reply).ok().and_then(|reply| reply.kind);
            reply.ok_or(CallProblem::NoAnswer)
        }
        _ => Err(CallProblem::NoAnswer),
    }
}

/// Handles a call of an operator at another node, which has judged the operator's credential. `None`
/// for a call that no node sends.
pub(super) fn serve(node: &Arc<Node>, call: OperatorCall) -> Option<Box<dyn Replies>> {
    let node = Arc::clone(node);
    let answering = match call.kind? {
        CallKind::List(List { tenant, after, limit }) => {
            let limit = usize::try_from(limit).ok()?.min(PAGE_MAX);
            let (tenant, after) = (tenant.map(Into::into), after.map(ShortId));
            let query = SessionQuery { tenant, after, limit };
            spawn(async move { ReplyKind::Page(sessions_here::list(&node, query).await.into()) })
        }
        CallKind::End(End { tenant, named }) => {
            let target = match named? {
                Named::Id(session) => Target::Id(SessionId::parse(&session)?),
                Named::Short(ShortIds { from, to }) => Target::Short(from..=to),
            };
            let tenant = tenant.map(Into::into);
            spawn(async move {
                let outcome = sessions_here::end(&node, target, tenant).await;
                ReplyKind::Outcome(Outcome { kind: Some(outcome.into()) })
            })
        }
        CallKind::State(()) => {
            let NodeState { version, reasons } = NodeState::of(&node);
            let knows = reasons.is_some();
            let state = State { version, knows, reasons: reasons.unwrap_or_default() };
            spawn(async move { ReplyKind::State(state) })
        }
        CallKind::Tenants(()) => spawn(async move {
            let tenants = tenants_here::list(&node).into_iter().map(Tenant::from).collect();
            ReplyKind::Tenants(Tenants { tenants })
        }),
    };
    metrics::SERVED.inc();
    Some(Box::new(Answering(Some(answering))))
}

/// Spawns work that is aborted when the peer no longer waits for it.
fn spawn(work: impl Future<Output = ReplyKind> + Send + 'static) -> AbortOnDropHandle<ReplyKind> {
    AbortOnDropHandle::new(tokio::spawn(work))
}

/// The only reply to a call.
struct Answering(Option<AbortOnDropHandle<ReplyKind>>);

impl Replies for Answering {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        let Some(answering) = &mut self.0 else { return Poll::Ready(None) };
        let answer = ready!(Pin::new(answering).poll(context));
        self.0 = None;
        // After a panic, which was logged, the reply has no kind.
        let kind = answer.ok();
        Poll::Ready(Some(Ok(messages::encode(&OperatorReply { kind }))))
    }

    fn is_over(&self) -> bool {
        self.0.is_none()
    }
}

impl From<EndOutcome> for OutcomeKind {
    fn from(outcome: EndOutcome) -> Self {
        match outcome {
            EndOutcome::Ended { id, tenant } => {
                Self::Ended(EndedSession { id: id.0, tenant: tenant.to_string() })
            }
            EndOutcome::NotHere => Self::NotHere(()),
            EndOutcome::Ambiguous => Self::Ambiguous(()),
            EndOutcome::Unconfirmed => Self::Unconfirmed(()),
        }
    }
}

impl From<SessionPage> for Page {
    fn from(SessionPage { sessions, has_more }: SessionPage) -> Self {
        Self { sessions: sessions.into_iter().map(Session::from).collect(), has_more }
    }
}

impl From<SessionSummary> for Session {
    fn from(summary: SessionSummary) -> Self {
        let SessionSummary { id, tenant, principal, revision, client, activity } = summary;
        let activity = activity.map(|Activity { at_node_secs, idle_secs, requests, streams }| {
            Doing { at_node_secs, idle_secs, requests, streams }
        });
        Self { id: id.0, tenant: tenant.to_string(), principal, revision, client, activity }
    }
}

impl From<Session> for SessionSummary {
    fn from(session: Session) -> Self {
        let Session { id, tenant, principal, revision, client, activity } = session;
        let activity = activity.map(|Doing { at_node_secs, idle_secs, requests, streams }| {
            Activity { at_node_secs, idle_secs, requests, streams }
        });
        Self { id: ShortId(id), tenant: tenant.into(), principal, revision, client, activity }
    }
}

impl From<TenantFigures> for Tenant {
    fn from(figures: TenantFigures) -> Self {
        let TenantFigures { tenant, sessions, session_bytes, stored_bytes, children, settings } =
            figures;
        let settings = settings.map(|ShownSettings { auth, keys, hosts, is_leaving }| {
            SettingsOfTenant { auth, keys, hosts, is_leaving }
        });
        let amount = |Figure { used, max }| Amount { used, max };
        Self {
            name: tenant.to_string(),
            sessions: amount(sessions),
            session_bytes: amount(session_bytes),
            stored_bytes,
            children: amount(children),
            settings,
        }
    }
}

impl From<Tenant> for TenantFigures {
    fn from(tenant: Tenant) -> Self {
        let Tenant { name, sessions, session_bytes, stored_bytes, children, settings } = tenant;
        let settings = settings.map(|SettingsOfTenant { auth, keys, hosts, is_leaving }| {
            ShownSettings { auth, keys, hosts, is_leaving }
        });
        let figure = |Amount { used, max }| Figure { used, max };
        Self {
            tenant: name.into(),
            sessions: figure(sessions),
            session_bytes: figure(session_bytes),
            stored_bytes,
            children: figure(children),
            settings,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> SessionSummary {
        SessionSummary {
            id: ShortId(0x0123_4567_89ab_cdef),
            tenant: "acme".into(),
            principal: Some(7),
            revision: "2025-11-25".into(),
            client: "inspector/2.1".into(),
            activity: Some(Activity { at_node_secs: 4, idle_secs: 3, requests: 2, streams: 1 }),
        }
    }

    #[test]
    fn a_page_arrives_as_it_was_sent() {
        let sparse = SessionSummary { principal: None, activity: None, ..summary() };
        for sent in [summary(), sparse] {
            assert_eq!(SessionSummary::from(Session::from(sent.clone())), sent);
        }
    }

    #[test]
    fn figures_of_a_tenant_arrive_as_they_were_sent() {
        let sent = TenantFigures {
            tenant: "acme".into(),
            sessions: Figure { used: 1, max: Some(2) },
            session_bytes: Figure { used: 3, max: None },
            stored_bytes: 4,
            children: Figure { used: 5, max: Some(6) },
            settings: Some(ShownSettings {
                auth: vec!["keys".into()],
                keys: Some(7),
                hosts: vec!["acme.example.com".into()],
                is_leaving: true,
            }),
        };
        assert_eq!(TenantFigures::from(Tenant::from(sent.clone())), sent);
    }

    #[test]
    fn a_reply_of_another_program_is_no_answer() {
        let refused =
            messages::Reply { kind: Some(messages::ReplyKind::Refused(6)), ..Default::default() };
        let reply = OperatorReply::decode(messages::encode(&refused)).unwrap();
        assert_eq!(reply.kind, None);
    }
}
