//! The sessions that no node has, as operators see them: those that sleep in the store, and those whose node
//! ended without releasing them.
//!
//! The store has no list of them: pages of all its sessions are read, and those that a live node owns are left
//! out. Each request reads a bounded number of pages.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ownership::Incarnation;
use protocol::SessionId;
use store::{Error, Presence, Record, RecordStatus, ScanCursor};
use tokio::time::Instant;

use crate::handshake_summary::HandshakeSummary;
use crate::node::Node;
use crate::short_id::ShortId;

/// About how many entries of the store are looked at for one page of it.
const SCAN: usize = 500;

/// The most records that are read at once. One has some hundred bytes, and seldom many more.
const READS: usize = 32;

/// How long a request goes on reading pages. One that needs longer returns what it has.
const PATIENCE: Duration = Duration::from_secs(3);

/// The sessions without a node to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SleepingQuery {
    /// Those of this tenant only.
    pub tenant: Option<Arc<str>>,
    /// Where the former page ended.
    pub after: ScanCursor,
    /// About so many: the last page of the store that is read may have some more.
    pub limit: usize,
}

/// A session without a node. It has no secret of the session's client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SleepingSession {
    /// The short id.
    pub id: ShortId,
    /// The tenant.
    pub tenant: Arc<str>,
    /// The negotiated revision.
    pub revision: String,
    /// The name and the version that the client gave; empty if it gave none.
    pub client: String,
    /// Whether its node released it, and has not ended with it.
    pub is_released: bool,
}

/// Some of the sessions without a node, in the order of their short ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SleepingPage {
    /// The sessions.
    pub sessions: Vec<SleepingSession>,
    /// Where further ones may follow.
    pub next: Option<ScanCursor>,
    /// The records that could not be read.
    pub unread: usize,
}

/// The outcome of a search by short ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    /// The only session.
    Found(SessionId),
    /// The store has none.
    Nothing,
    /// It has several.
    Ambiguous,
    /// The store has too many sessions to look at all of them, or did not answer.
    Unfinished,
}

/// Lists sessions without a node.
pub(crate) async fn list(node: &Node, query: SleepingQuery) -> Result<SleepingPage, Error> {
    let until = Instant::now() + PATIENCE;
    let SleepingQuery { tenant, after, limit } = query;
    let mut owners = Owners { node, live: HashMap::new() };
    let (mut page, mut from) = (SleepingPage::default(), after);
    loop {
        let scanned = node.context.store.scan(from, limit.min(SCAN)).await?;
        for sessions in scanned.sessions.chunks(READS) {
            let records = sessions.iter().map(|session| node.context.store.read(session));
            for (session, record) in sessions.iter().zip(join_all(records).await) {
                match record {
                    Ok(Some(record)) => {
                        let is_wanted = tenant.as_ref().is_none_or(|one| *one == record.tenant);
                        if is_wanted && owners.have_lost(&record).await? {
                            page.sessions.push(summary(session, &record));
                        }
                    }
                    Ok(None) => {}
                    Err(_) => page.unread += 1,
                }
            }
        }
        page.next = scanned.next;
        match scanned.next {
            Some(next) if page.sessions.len() < limit && Instant::now() < until => from = next,
            _ => break,
        }
    }
    page.sessions.sort_by_key(|session| session.id);
    page.sessions.dedup_by_key(|session| session.id);
    Ok(page)
}

/// Finds a session of the store that has not ended, by its short id or by a part of that, and by its tenant.
pub(crate) async fn find(node: &Node, range: &RangeInclusive<u64>, tenant: Option<&str>) -> Search {
    let is_wanted = |record: &Record| {
        let is_tenants = tenant.is_none_or(|tenant| *record.tenant == *tenant);
        is_tenants && record.status != RecordStatus::Ended
    };
    let until = Instant::now() + PATIENCE;
    let (mut found, mut from) = (None, ScanCursor::default());
    loop {
        let Ok(scanned) = node.context.store.scan(from, SCAN).await else {
            return Search::Unfinished;
        };
        for session in scanned.sessions {
            if !range.contains(&ShortId::of(&session).0) || found.as_ref() == Some(&session) {
                continue;
            }
            if Instant::now() >= until {
                return Search::Unfinished;
            }
            let Ok(record) = node.context.store.read(&session).await else {
                return Search::Unfinished;
            };
            if !record.is_some_and(|record| is_wanted(&record)) {
                continue;
            }
            if found.is_some() {
                return Search::Ambiguous;
            }
            found = Some(session);
        }
        let is_whole = range.start() == range.end();
        match (scanned.next, found) {
            (_, Some(session)) if is_whole => return Search::Found(session),
            (None, Some(session)) => return Search::Found(session),
            (None, None) => return Search::Nothing,
            (Some(_), _) if Instant::now() >= until => return Search::Unfinished,
            (Some(next), so_far) => (from, found) = (next, so_far),
        }
    }
}

/// Which owners of records are live nodes, as far as one request has asked.
struct Owners<'a> {
    node: &'a Node,
    live: HashMap<Incarnation, bool>,
}

impl Owners<'_> {
    /// Whether the session has not ended, and no live node has it.
    async fn have_lost(&mut self, record: &Record) -> Result<bool, Error> {
        match record.status {
            RecordStatus::Ended => Ok(false),
            RecordStatus::Released => Ok(true),
            RecordStatus::Owned => Ok(!self.is_live(record.owner.node).await?),
        }
    }

    async fn is_live(&mut self, owner: Incarnation) -> Result<bool, Error> {
        if owner == self.node.context.cluster.incarnation() {
            return Ok(true);
        }
        if let Some(is_live) = self.live.get(&owner) {
            return Ok(*is_live);
        }
        let presence = self.node.context.store.presence(owner).await?;
        let is_live = matches!(presence, Presence::Live(_));
        self.live.insert(owner, is_live);
        Ok(is_live)
    }
}

fn summary(session: &SessionId, record: &Record) -> SleepingSession {
    let revision = protocol::Revision::named(&record.revision);
    let handshake = revision.and_then(|one| HandshakeSummary::read(one, &record.initialize));
    let client = handshake.and_then(|handshake| handshake.client);
    SleepingSession {
        id: ShortId::of(session),
        tenant: Arc::clone(&record.tenant),
        revision: record.revision.to_string(),
        client: client.map_or_else(String::new, |client| client.as_str().to_owned()),
        is_released: record.status == RecordStatus::Released,
    }
}
