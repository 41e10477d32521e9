//! What operators do with the sessions on this node: list them, and end one.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use conversation::{Answer, Event, Refusal};
use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::ReplyEvent;
use crate::node::Node;
use crate::principal_digest::PrincipalDigests;
use crate::session::{LocalReply, SessionHandle};
use crate::session_summary::{Activity, SessionPage, SessionQuery, SessionSummary};
use crate::short_id::{ShortId, Target};

/// Most sessions of one page.
pub const PAGE_MAX: usize = 1_000;

/// How long sessions may take to tell what they do. A session that is being recorded, or whose mailbox
/// is full, is listed without that.
const TELL: Duration = Duration::from_millis(500);

/// How long the end of a session may take to be stored.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(4);

/// The pause before a request is repeated that a full mailbox refused.
const AGAIN: Duration = Duration::from_millis(20);

/// The outcome of a request to end a session.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum EndOutcome {
    /// The session has ended, and the store holds its end.
    Ended { id: ShortId, tenant: Arc<str> },
    /// There is no such session.
    NotHere,
    /// Several sessions have short ids that begin so. None was ended.
    Ambiguous,
    /// The session may have ended: its end was not confirmed.
    Unconfirmed,
}

/// Lists the sessions on this node.
pub(crate) async fn list(node: &Arc<Node>, query: SessionQuery) -> SessionPage {
    let searched = Arc::clone(node);
    // A node has very many sessions, and hashes the id of each.
    let found = tokio::task::spawn_blocking(move || find_page(&searched, &query)).await;
    let Ok((found, has_more)) = found else { return SessionPage::default() };
    let digests = &node.context.digests;
    let sessions =
        found.into_iter().map(async |(id, session)| summary(id, &session, digests).await);
    SessionPage { sessions: join_all(sessions).await, has_more }
}

/// The first sessions of a page, and whether further ones follow. Blocks.
fn find_page(node: &Node, query: &SessionQuery) -> (BTreeMap<ShortId, Arc<SessionHandle>>, bool) {
    let SessionQuery { tenant, after, limit } = query;
    let is_wanted =
        |session: &SessionHandle| tenant.as_ref().is_none_or(|tenant| session.tenant() == tenant);
    let limit = (*limit).min(PAGE_MAX);
    let (mut page, mut has_more) = (BTreeMap::new(), false);
    for session in node.registry.collect(is_wanted) {
        let id = ShortId::of(&session.session);
        if after.is_some_and(|after| id <= after) {
            continue;
        }
        page.insert(id, session);
        if page.len() > limit {
            page.pop_last();
            has_more = true;
        }
    }
    (page, has_more)
}

async fn summary(
    id: ShortId,
    session: &SessionHandle,
    digests: &PrincipalDigests,
) -> SessionSummary {
    let handshake = session.handshake();
    let principal = session.principal();
    let client = handshake.and_then(|handshake| handshake.client.as_ref());
    SessionSummary {
        id,
        tenant: Arc::clone(session.tenant()),
        principal: Some(principal)
            .filter(|principal| !principal.is_anonymous())
            .and_then(|p| digests.shown(p)),
        revision: handshake.map_or("", |handshake| handshake.revision.as_str()).to_owned(),
        client: client.map_or("", |client| client.as_str()).to_owned(),
        activity: activity(session).await,
    }
}

async fn activity(session: &SessionHandle) -> Option<Activity> {
    let (sender, told) = oneshot::channel();
    session.ask_activity(sender);
    timeout(TELL, told).await.ok()?.ok()
}

/// Ends a session that is on this node, as a DELETE of its client would.
pub(crate) async fn end(node: &Arc<Node>, target: Target, tenant: Option<Arc<str>>) -> EndOutcome {
    let is_tenants = move |session: &SessionHandle| {
        tenant.as_ref().is_none_or(|tenant| session.tenant() == tenant)
    };
    let searched = Arc::clone(node);
    let found = tokio::task::spawn_blocking(move || match target {
        Target::Id(session) => {
            let found = searched.registry.get(&session).into_iter();
            found.filter(|session| is_tenants(session)).collect()
        }
        Target::Short(range) => {
            let is_named = |session: &SessionHandle| {
                is_tenants(session) && range.contains(&ShortId::of(&session.session).0)
            };
            searched.registry.collect(is_named)
        }
    });
    match &*found.await.unwrap_or_default() {
        [] => EndOutcome::NotHere,
        [session] => end_one(node, session).await,
        _ => EndOutcome::Ambiguous,
    }
}

async fn end_one(node: &Node, session: &Arc<SessionHandle>) -> EndOutcome {
    let until = Instant::now() + END_PATIENCE;
    loop {
        let ending = session.send_request(node.context.bounds, |sink| Event::Deleted { sink });
        let refusal = match ending {
            Ok(queue) => {
                let mut reply = LocalReply::new(queue, Arc::clone(session));
                let first = poll_fn(|context| reply.poll_next(context));
                match tokio::time::timeout_at(until, first).await {
                    Ok(Some(ReplyEvent::Answer(Answer::Ended))) => {
                        let id = ShortId::of(&session.session);
                        return EndOutcome::Ended { id, tenant: Arc::clone(session.tenant()) };
                    }
                    Ok(Some(ReplyEvent::Answer(Answer::Refused(refusal)))) => refusal,
                    Ok(Some(ReplyEvent::Moved)) => Refusal::Moved,
                    _ => return EndOutcome::Unconfirmed,
                }
            }
            Err(refusal) => refusal,
        };
        match refusal {
            // The caller looks for it at its next owner.
            Refusal::Moved | Refusal::UnknownSession => return EndOutcome::NotHere,
            Refusal::Busy if Instant::now() < until => sleep(AGAIN).await,
            _ => return EndOutcome::Unconfirmed,
        }
    }
}
