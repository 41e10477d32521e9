//! Brings a session's log entries into the store, in order and without a hole.
//!
//! At most one batch is under way; what comes meanwhile goes with the next one. Entries
//! are kept until the store has acknowledged them, so whatever happened to a batch, it is
//! sent again, which is always safe. The session bounds what is kept: it raises the floor
//! when too much waits, and what lies below the floor is not sent any more.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use conversation::Millis;
use protocol::SessionId;
use store::{Appended, Batch, Error, Record, Store};

use crate::metrics;

/// The wait after a first failure; it doubles with each further one.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// The longest wait between two attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

type Attempt = Pin<Box<dyn Future<Output = Result<Appended, Error>> + Send>>;

/// What came of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrote {
    /// Everything up to this number is held.
    Through(u64),
    /// The session is another node's, or over: nothing more may be written.
    Deposed,
}

/// The one writer of a session's log.
pub(crate) struct LogWriter {
    store: Arc<dyn Store>,
    session: SessionId,
    /// What the session is, for a store that forgot it.
    record: Box<Record>,
    ttl: Duration,
    /// Not acknowledged yet, oldest first.
    unheld: VecDeque<Bytes>,
    /// The number of the first of `unheld`, or of the next entry.
    first: u64,
    floor: u64,
    attempt: Option<Attempt>,
    failures: u32,
    /// The store has forgotten the session.
    forgotten: bool,
    refresh_at: Millis,
    refresh: bool,
}

impl LogWriter {
    /// The writer of a session that the store has just been told of.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        session: SessionId,
        record: Box<Record>,
        ttl: Duration,
        now: Millis,
    ) -> Self {
        Self {
            store,
            session,
            record,
            ttl,
            unheld: VecDeque::new(),
            // An empty log takes only what begins at the floor; the first entry is number one.
            first: 1,
            floor: 1,
            attempt: None,
            failures: 0,
            forgotten: false,
            refresh_at: refresh_at(now, ttl),
            refresh: false,
        }
    }

    /// Takes entries to write. To be followed by `poll`.
    pub(crate) fn push(&mut self, first: u64, floor: u64, entries: Vec<Bytes>) {
        if self.unheld.is_empty() && !entries.is_empty() {
            self.first = first;
        }
        // Nothing but a raised floor is news for the store as well.
        self.refresh |= entries.is_empty();
        self.unheld.extend(entries);
        self.floor = self.floor.max(floor);
    }

    /// Lets the store know that the session lives, where it has not heard of it for long.
    /// To be followed by `poll` where it answers yes.
    pub(crate) fn is_due(&mut self, now: Millis) -> bool {
        let due = self.refresh_at <= now;
        if due {
            self.refresh_at = refresh_at(now, self.ttl);
            self.refresh = true;
        }
        due
    }

    /// Goes on writing. Ready each time the store has acknowledged something.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Wrote> {
        loop {
            if self.attempt.is_none() {
                if self.unheld.is_empty() && !self.refresh {
                    return Poll::Pending;
                }
                self.attempt = Some(self.start());
            }
            let Some(attempt) = &mut self.attempt else { return Poll::Pending };
            let Poll::Ready(came) = attempt.as_mut().poll(context) else { return Poll::Pending };
            self.attempt = None;
            if let Some(wrote) = self.take(came) {
                return Poll::Ready(wrote);
            }
        }
    }

    /// The next attempt: everything that is not acknowledged, after a wait if the last one failed.
    fn start(&mut self) -> Attempt {
        // What lies below the floor is not replayable, so nobody misses it.
        while self.first < self.floor && self.unheld.pop_front().is_some() {
            self.first += 1;
        }
        if self.unheld.is_empty() {
            self.first = self.first.max(self.floor);
        }
        if self.forgotten {
            // What was acknowledged is gone; the log begins anew.
            self.floor = self.first;
        }
        self.refresh = false;
        let batch = Batch {
            session: self.session.clone(),
            token: self.record.owner.token,
            first: self.first,
            floor: self.floor,
            entries: self.unheld.iter().cloned().collect(),
            ttl: self.ttl,
        };
        let record = self.forgotten.then(|| (*self.record).clone());
        let (store, wait) = (Arc::clone(&self.store), self.backoff());
        Box::pin(async move {
            if let Some(wait) = wait {
                tokio::time::sleep(wait).await;
            }
            match record {
                Some(record) => store.reassert(record, batch).await,
                None => store.append(batch).await,
            }
        })
    }

    fn backoff(&self) -> Option<Duration> {
        let doublings = self.failures.checked_sub(1)?;
        Some(BACKOFF_MIN.saturating_mul(1 << doublings.min(10)).min(BACKOFF_MAX))
    }

    /// Takes what the store answered.
    fn take(&mut self, came: Result<Appended, Error>) -> Option<Wrote> {
        let error = match came {
            Ok(appended) => {
                self.failures = 0;
                self.forgotten = false;
                return self.acknowledge(appended.through?);
            }
            Err(error) => error,
        };
        metrics::LOG_RETRIES.inc();
        tracing::warn!(session = ?self.session, %error, "the log was not written");
        match error {
            Error::Fenced(owner) if !self.record.came_after(owner.token) => {
                return Some(Wrote::Deposed);
            }
            Error::Ended | Error::Released => return Some(Wrote::Deposed),
            Error::Fenced(_) | Error::Missing => self.forgotten = true,
            Error::Hole { last } => {
                let next = last.map_or(0, |last| last.saturating_add(1));
                if next < self.first {
                    // What is missing was acknowledged once; the log begins anew after it.
                    self.floor = self.first;
                }
            }
            Error::Unavailable(_) | Error::MarkedDead { .. } | Error::LeaseGone => {}
        }
        self.failures = self.failures.saturating_add(1);
        self.refresh = true;
        None
    }

    fn acknowledge(&mut self, through: u64) -> Option<Wrote> {
        let held = through.checked_sub(self.first)?.saturating_add(1);
        let held = usize::try_from(held).unwrap_or(usize::MAX).min(self.unheld.len());
        if held == 0 {
            return None;
        }
        self.unheld.drain(..held);
        if self.unheld.is_empty() {
            // An idle session keeps no buffer.
            self.unheld = VecDeque::new();
        }
        self.first += held as u64;
        metrics::LOG_ENTRIES.inc_by(held as u64);
        Some(Wrote::Through(self.first - 1))
    }
}

/// Often enough that the record never expires under a session that lives.
fn refresh_at(now: Millis, ttl: Duration) -> Millis {
    now.plus(u64::try_from(ttl.as_millis() / 4).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::future::poll_fn;

    use store::{Digest, Incarnation, Memory, Owner, Standing, State, Token};

    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    fn record() -> Record {
        Record {
            owner: Owner { token: Token::first(7), node: Incarnation(1) },
            former: Vec::new(),
            tenant: "acme".into(),
            principal: Digest([0; 32]),
            revision: Cow::Borrowed("2025-11-25"),
            initialize: Bytes::new(),
            state: State::default(),
            standing: Standing::Owned,
        }
    }

    fn session() -> SessionId {
        SessionId::parse("session").unwrap()
    }

    /// Writes what `write` pushes; how far the store then holds it, and what it holds.
    async fn check(
        is_known: bool,
        write: impl FnOnce(&mut LogWriter),
        through: u64,
        held: &[(u64, &str)],
    ) {
        let store = Arc::new(Memory::default());
        if is_known {
            store.create(&session(), record(), TTL).await.unwrap();
        }
        let shared: Arc<dyn Store> = Arc::clone(&store) as _;
        let mut writer = LogWriter::new(shared, session(), Box::new(record()), TTL, Millis(0));
        write(&mut writer);
        let wrote = poll_fn(|context| writer.poll(context)).await;
        assert_eq!(wrote, Wrote::Through(through));
        assert!(writer.unheld.is_empty() && writer.failures == 0);
        let log = store.read_log(&session()).await.unwrap();
        let log: Vec<_> = log
            .iter()
            .map(|(number, entry)| (*number, std::str::from_utf8(entry).unwrap()))
            .collect();
        assert_eq!(log, held);
    }

    fn entries(names: &[&'static str]) -> Vec<Bytes> {
        names.iter().map(|name| Bytes::from_static(name.as_bytes())).collect()
    }

    #[tokio::test]
    async fn what_came_meanwhile_goes_with_the_next_batch() {
        let write = |writer: &mut LogWriter| {
            writer.push(1, 1, entries(&["a"]));
            writer.push(2, 1, entries(&["b", "c"]));
        };
        check(true, write, 3, &[(1, "a"), (2, "b"), (3, "c")]).await;
    }

    #[tokio::test]
    async fn what_lies_below_the_floor_is_not_sent() {
        let write = |writer: &mut LogWriter| {
            writer.push(1, 1, entries(&["a", "b"]));
            writer.push(3, 3, entries(&["c"]));
        };
        check(true, write, 3, &[(3, "c")]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_forgot_the_session_is_told_again() {
        let write = |writer: &mut LogWriter| writer.push(4, 2, entries(&["d", "e"]));
        check(false, write, 5, &[(4, "d"), (5, "e")]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_that_lost_its_end_begins_anew_after_the_hole() {
        let write = |writer: &mut LogWriter| writer.push(4, 2, entries(&["d"]));
        check(true, write, 4, &[(4, "d")]).await;
    }

    #[tokio::test]
    async fn a_session_that_ended_elsewhere_is_not_written_any_more() {
        let store: Arc<dyn Store> = Arc::new(Memory::default());
        store.create(&session(), record(), TTL).await.unwrap();
        store.end(&session(), record().owner.token, TTL).await.unwrap();
        let mut writer = LogWriter::new(store, session(), Box::new(record()), TTL, Millis(0));
        assert!(!writer.is_due(Millis(10_000)));
        assert!(writer.is_due(Millis(20_000)));
        assert_eq!(poll_fn(|context| writer.poll(context)).await, Wrote::Deposed);
    }
}
