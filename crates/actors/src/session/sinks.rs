//! The unfinished connections of a session.

use conversation::SinkId;
use thin_vec::ThinVec;

use crate::reply::Sink;

/// The unfinished connections of a session. Few: the session bounds them.
#[derive(Default)]
pub(super) struct Sinks(ThinVec<Sink>);

impl Sinks {
    /// Adds a sink and marks it as taken: the session may start its request now.
    pub(super) fn push(&mut self, mut sink: Sink) {
        sink.take();
        if self.0.is_empty() {
            // Most sessions have one sink at a time.
            self.0.reserve_exact(1);
        }
        self.0.push(sink);
    }

    pub(super) fn get(&self, id: SinkId) -> Option<&Sink> {
        self.0.iter().find(|sink| sink.id == id)
    }

    pub(super) fn take(&mut self, id: SinkId) -> Option<Sink> {
        let index = self.0.iter().position(|sink| sink.id == id)?;
        Some(self.0.swap_remove(index))
    }

    /// Removes and returns the sinks that match.
    pub(super) fn take_if(&mut self, is_taken: impl Fn(&Sink) -> bool) -> Sinks {
        let (taken, kept) = std::mem::take(&mut self.0).into_iter().partition(is_taken);
        self.0 = kept;
        Self(taken)
    }

    /// Whether any sink matches.
    pub(super) fn any(&self, is_so: impl Fn(&Sink) -> bool) -> bool {
        self.0.iter().any(is_so)
    }

    /// Drops the sinks whose reader has left, and calls `left` with the id of each.
    pub(super) fn drop_left(&mut self, mut left: impl FnMut(SinkId)) {
        self.0.retain(|sink| {
            let has_left = sink.is_left();
            if has_left {
                left(sink.id);
            }
            !has_left
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Releases memory that an idle session does not need.
    pub(super) fn shrink(&mut self) {
        if self.0.is_empty() {
            self.0 = ThinVec::new();
        }
    }
}

impl IntoIterator for Sinks {
    type Item = Sink;
    type IntoIter = thin_vec::IntoIter<Sink>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
