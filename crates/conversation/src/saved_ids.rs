//! A bounded list of request ids that is part of a session's saved state.

use protocol::RequestId;
use thin_vec::ThinVec;

/// Most ids that are kept; the oldest is dropped. The length of an id is limited (`protocol`:
/// 1,024 bytes), so a list adds at most 64 KiB to the saved state.
const IDS_MAX: usize = 64;

/// Each id once, oldest first. Ids are kept for as long as the session lasts, up to
/// [`IDS_MAX`]: a client does not use an id twice.
#[derive(Default)]
pub(crate) struct SavedIds(ThinVec<RequestId>);

impl SavedIds {
    /// Restores the ids that another owner saved.
    pub(crate) fn restored(ids: ThinVec<RequestId>) -> Self {
        Self(ids)
    }

    pub(crate) fn as_slice(&self) -> &[RequestId] {
        &self.0
    }

    pub(crate) fn contains(&self, id: &RequestId) -> bool {
        self.0.contains(id)
    }

    /// Adds an id. Returns whether that changes the saved state.
    pub(crate) fn add_id(&mut self, id: &RequestId) -> bool {
        if self.contains(id) {
            return false;
        }
        if self.0.len() >= IDS_MAX {
            self.0.remove(0);
        }
        self.0.push(id.clone());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_kept_once_and_the_oldest_is_dropped() {
        let mut saved = SavedIds::default();
        for number in 0..100_i64 {
            assert!(saved.add_id(&number.into()));
            assert!(!saved.add_id(&number.into()));
        }
        let kept: Vec<RequestId> = (36..100_i64).map(RequestId::from).collect();
        assert_eq!(saved.as_slice(), kept);
    }
}
