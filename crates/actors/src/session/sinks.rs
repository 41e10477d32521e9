//! The connections of a session that are not finished, or not read to their end.

use std::sync::Arc;

use budget::Share;
use conversation::{Ending, SinkId};
use thin_vec::ThinVec;

use crate::reply::{ReplyQueue, Sink};

/// The connections of a session that are not finished, or not read to their end. Few of the first:
/// the session bounds them. The second are bounded by the connections of the session's clients.
#[derive(Default)]
pub(super) struct Sinks {
    open: ThinVec<Sink>,
    /// The finished streams whose readers have yet to read bytes that are charged.
    unread: ThinVec<Arc<ReplyQueue>>,
}

impl Sinks {
    /// Adds a sink and marks it as taken: the session may start its request now.
    pub(super) fn push(&mut self, mut sink: Sink) {
        sink.take();
        if self.open.is_empty() {
            // Most sessions have one sink at a time.
            self.open.reserve_exact(1);
        }
        self.open.push(sink);
    }

    pub(super) fn get(&self, id: SinkId) -> Option<&Sink> {
        self.open.iter().find(|sink| sink.id == id)
    }

    pub(super) fn take(&mut self, id: SinkId) -> Option<Sink> {
        let index = self.open.iter().position(|sink| sink.id == id)?;
        Some(self.open.swap_remove(index))
    }

    /// Finishes a stream.
    pub(super) fn finish(&mut self, id: SinkId, ending: Ending) {
        let Some(sink) = self.take(id) else { return };
        if let Some(unread) = sink.finish(ending) {
            self.unread.retain(|queue| queue.is_charged());
            self.unread.push(unread);
        }
    }

    /// Removes and returns the sinks that match.
    pub(super) fn take_if(&mut self, is_taken: impl Fn(&Sink) -> bool) -> ThinVec<Sink> {
        let (taken, kept) = std::mem::take(&mut self.open).into_iter().partition(is_taken);
        self.open = kept;
        taken
    }

    /// Cuts the streams that hold at least `from` unread bytes, and calls `cut` with the id of each.
    pub(super) fn cut_unread(&mut self, from: usize, share: &Share, mut cut: impl FnMut(SinkId)) {
        self.unread.retain(|queue| !queue.cut_unread(from, share) && queue.is_charged());
        self.open.retain(|sink| {
            let is_cut = sink.cut_unread(from, share);
            if is_cut {
                cut(sink.id);
            }
            !is_cut
        });
    }

    /// Whether any sink matches.
    pub(super) fn any(&self, is_so: impl Fn(&Sink) -> bool) -> bool {
        self.open.iter().any(is_so)
    }

    /// Drops the sinks whose reader has left, and calls `left` with the id of each.
    pub(super) fn drop_left(&mut self, mut left: impl FnMut(SinkId)) {
        self.open.retain(|sink| {
            let has_left = sink.is_left();
            if has_left {
                left(sink.id);
            }
            !has_left
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Releases memory that an idle session does not need.
    pub(super) fn shrink(&mut self) {
        if self.open.is_empty() {
            self.open = ThinVec::new();
        }
        self.unread.retain(|queue| queue.is_charged());
        if self.unread.is_empty() {
            self.unread = ThinVec::new();
        }
    }
}
