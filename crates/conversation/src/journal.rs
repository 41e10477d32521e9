//! How a long state is saved: its changes one by one, and all of it from time to time.
//!
//! A session may have 256 KiB of subscriptions. If each change wrote all of them, a short request
//! would cause a long write, again and again.

use std::sync::Arc;

use protocol::RequestId;
use serde::{Deserialize, Serialize};

use crate::Limits;

/// The fewest differences after which a whole state is saved again: some changes are longer than the
/// state that they change.
const DIFFERENCES_MIN: usize = 4;

/// The usual length of the encoding of a change without its text.
const REST_BYTES: usize = 24;

/// What a session saves of its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateChange {
    /// The whole state.
    Whole(Arc<[u8]>),
    /// What follows the state of the version before: the new state is that one with these bytes
    /// behind it.
    Difference(Arc<[u8]>),
}

/// One change of the subscriptions or ids of a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change {
    Subscribed(Box<str>),
    Unsubscribed(Box<str>),
    Cancelled(RequestId),
    WithServerRequest(RequestId),
}

impl Change {
    /// About how long it is when it is encoded.
    pub(crate) fn encoded_bytes(&self) -> usize {
        REST_BYTES
            + match self {
                Self::Subscribed(uri) | Self::Unsubscribed(uri) => uri.len(),
                Self::Cancelled(_) | Self::WithServerRequest(_) => 0,
            }
    }
}

/// The changes of a long state since it was saved last.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    lengths: Lengths,
    changes: Vec<Change>,
}

/// The lengths of a saved state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lengths {
    /// The length of the state when all of it was saved last.
    pub(crate) whole_bytes: usize,
    /// The length of the differences that were saved since.
    pub(crate) difference_bytes: usize,
    /// The number of these differences.
    pub(crate) differences: usize,
}

impl Lengths {
    /// A difference of this length was added.
    pub(crate) fn add_difference(&mut self, bytes: usize) {
        self.difference_bytes += bytes;
        self.differences += 1;
    }
}

impl Journal {
    /// The journal of a saved state; `None` for a state that is saved whole each time.
    pub(crate) fn new(limits: &Limits, lengths: Lengths) -> Option<Self> {
        let bytes = lengths.whole_bytes + lengths.difference_bytes;
        let is_long = bytes > limits.whole_state_bytes_max;
        is_long.then(|| Self { lengths, changes: Vec::new() })
    }

    pub(crate) fn note(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// The changes to save as a difference; `None` if the whole state is due. A reader of a state
    /// therefore reads about twice its length at most, and a change causes about three times its
    /// length of writes.
    pub(crate) fn take_changes(&mut self) -> Option<Vec<Change>> {
        let Lengths { whole_bytes, difference_bytes, differences } = self.lengths;
        let is_due = difference_bytes >= whole_bytes && differences >= DIFFERENCES_MIN;
        (!is_due).then(|| std::mem::take(&mut self.changes))
    }

    /// A difference of this length was saved.
    pub(crate) fn note_difference(&mut self, bytes: usize) {
        self.lengths.add_difference(bytes);
    }

    /// The length of the encoded state, with its differences.
    pub(crate) fn bytes(&self) -> usize {
        self.lengths.whole_bytes + self.lengths.difference_bytes
    }

    /// Has the state differences since it was saved whole?
    pub(crate) fn has_differences(&self) -> bool {
        self.lengths.differences > 0
    }
}
