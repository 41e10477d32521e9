//! Writes the tombstones of sessions that ended at this node anew, each time that the store may
//! have forgotten them. [`ownership::tombstones`] decides which are due.

use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use conversation::Millis;
use futures_util::future::join_all;
use ownership::tombstones::{self, Due, Kept, RETRY_MS, Tombstone};
use protocol::SessionId;
use store::Error;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::clock;
use crate::node_context::NodeContext;

/// The tombstones of this node.
#[derive(Default)]
pub(crate) struct NodeTombstones {
    kept: Mutex<tombstones::Tombstones>,
    /// One was kept that the store does not have, or may have forgotten since.
    unwritten: Notify,
}

impl NodeTombstones {
    /// Keeps one. `generation`: that of the store for a session now. It is asked for last, since
    /// a failover that is seen later is reason to look for this one anyway.
    pub(crate) fn add(
        &self,
        tombstone: Tombstone,
        now: Millis,
        generation: impl FnOnce(&SessionId) -> u64,
    ) {
        let mut tombstones = self.kept();
        let kept = tombstones.keep(tombstone, now.0);
        let is_due = tombstones.is_newest_due(generation);
        drop(tombstones);
        if kept == (Kept::InsteadOfOldest { is_first: true }) {
            tracing::warn!("too many sessions end at once: a failover may bring some back");
        }
        if is_due {
            self.unwritten.notify_one();
        }
    }

    fn kept(&self) -> MutexGuard<'_, tombstones::Tombstones> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the tombstones that are due each time that the store has failed over or a tombstone is
/// added that the store does not have, until the node is gone.
pub(crate) async fn keep_tombstones_written(node: Weak<NodeContext>) {
    let Some((tombstones, mut changes)) =
        node.upgrade().map(|node| (node.tombstones.clone(), node.cluster.changes()))
    else {
        return;
    };
    loop {
        let all_written = match node.upgrade() {
            Some(node) => write_due(&node).await,
            None => return,
        };
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = tombstones.unwritten.notified() => {}
            () = sleep(Duration::from_millis(RETRY_MS)), if !all_written => {}
        }
    }
}

/// Writes the tombstones that are due. Returns whether none is left to be written.
async fn write_due(node: &NodeContext) -> bool {
    let (mut from, mut all_written) = (0, true);
    loop {
        let now = clock::now();
        let generation = |session: &_| node.lease_snapshot(session).failover_generation;
        let due = node.tombstones.kept().due(from, now.0, generation);
        let Some(last) = due.last() else { return all_written };
        from = last.number + 1;
        let writing = due.into_iter().map(async |Due { number, generation, tombstone }| {
            let (record, batch) = tombstone.reassertion(now.0);
            let answer = node.store.reassert(record, batch).await;
            if !tombstones::is_done(&answer) {
                return false;
            }
            if let Err(error) = answer
                && !matches!(error, Error::Ended)
            {
                let session = tombstone.session();
                tracing::warn!(?session, %error, "a session's end was written too late");
            }
            node.tombstones.kept().written(number, generation);
            true
        });
        all_written &= join_all(writing).await.into_iter().all(|is_written| is_written);
    }
}
