//! The connections of a session that are not finished, or not read to their end.

use std::sync::Arc;

use budget::Share;
use conversation::{Ending, SinkId};
use thin_vec::ThinVec;

use crate::reply::{ReplyQueue, Sink};

/// With more finished streams than this, they are not looked at after each event.
const UNREAD_CHECKED_MAX: usize = 4;

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
            // Only when it would grow, so that each stream is looked at a few times at most.
            if self.unread.len() == self.unread.capacity() {
                self.unread.retain(|queue| queue.is_charged());
            }
            self.unread.push(unread);
        }
    }

    /// The number of streams that are open.
    pub(super) fn count_open(&self) -> usize {
        self.open.iter().filter(|sink| sink.is_open()).count()
    }

    /// Removes and returns the sinks that match.
    pub(super) fn take_if(&mut self, is_taken: impl Fn(&Sink) -> bool) -> ThinVec<Sink> {
        let (taken, kept) = std::mem::take(&mut self.open).into_iter().partition(is_taken);
        self.open = kept;
        taken
    }

    /// Cuts the streams that hold at least `bounds.0` unread bytes, of which the log keeps every
    /// event from `bounds.1` on. Calls `cut` with the id of each that was not finished. Returns
    /// whether any was cut.
    pub(super) fn cut_unread(
        &mut self,
        bounds: (usize, u64),
        share: &Share,
        mut cut: impl FnMut(SinkId),
    ) -> bool {
        let (from, first_kept) = bounds;
        let mut any = false;
        self.unread.retain(|queue| {
            let is_cut = queue.cut_unread(from, first_kept, share);
            any |= is_cut;
            !is_cut && queue.is_charged()
        });
        self.open.retain(|sink| {
            let is_cut = sink.cut_unread(from, first_kept, share);
            if is_cut {
                any = true;
                cut(sink.id);
            }
            !is_cut
        });
        any
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
        if self.unread.len() <= UNREAD_CHECKED_MAX {
            self.unread.retain(|queue| queue.is_charged());
        }
        if self.unread.is_empty() {
            self.unread = ThinVec::new();
        }
    }
}
