//! Writes the tombstones of sessions that ended at this node again, each time that the store may
//! have lost them. [`ownership::tombstones`] decides which are due.

use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use conversation::Millis;
use futures_util::future::join_all;
use ownership::tombstones::{self, Due, KeepOutcome, RETRY_MS, Tombstone};
use protocol::SessionId;
use store::Error;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::clock;
use crate::node_context::NodeContext;

/// The tombstones of this node, shared by its sessions.
#[derive(Default)]
pub(crate) struct NodeTombstones {
    kept: Mutex<tombstones::Tombstones>,
    /// Notified when a tombstone was added that the store does not hold, or may have lost since.
    unwritten: Notify,
}

impl NodeTombstones {
    /// Adds a tombstone. `generation` returns the failover generation of a session. It is called
    /// last: a failover that is observed later makes this tombstone due anyway.
    pub(crate) fn add(
        &self,
        tombstone: Tombstone,
        now: Millis,
        generation: impl FnOnce(&SessionId) -> u64,
    ) {
        let mut tombstones = self.kept();
        let kept = tombstones.keep_tombstone(tombstone, now.0);
        let is_due = tombstones.is_newest_due(generation);
        drop(tombstones);
        if kept == (KeepOutcome::InsteadOfOldest { is_first: true }) {
            tracing::warn!(
                "tombstones dropped: too many sessions ended at once; a failover may restore some"
            );
        }
        if is_due {
            self.unwritten.notify_one();
        }
    }

    fn kept(&self) -> MutexGuard<'_, tombstones::Tombstones> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the due tombstones after each failover of the store, and after each added tombstone that
/// the store does not hold, until the node is gone.
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

/// Writes the due tombstones. Returns whether all are written.
async fn write_due(node: &NodeContext) -> bool {
    let (mut from, mut all_written) = (0, true);
    loop {
        let now = clock::now();
        let generation = |session: &_| node.lease_snapshot(session).failover_generation;
        let due = node.tombstones.kept().due_tombstones(from, now.0, generation);
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
                tracing::warn!(?session, %error, "tombstone was written too late");
            }
            node.tombstones.kept().tombstone_written(number, generation);
            true
        });
        all_written &= join_all(writing).await.into_iter().all(|is_written| is_written);
    }
}
