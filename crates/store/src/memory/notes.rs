//! The notes of a store in memory: bytes that belong to no session, and that expire.

use std::collections::HashMap;

use bytes::Bytes;

use crate::NoteKey;

/// Most notes. At the bound those that have expired are removed, and then no other one is written.
pub(super) const NOTES_MAX: usize = 65_536;

/// The notes, and when each expires, in milliseconds.
#[derive(Default)]
pub(super) struct Notes(HashMap<NoteKey, (u64, Bytes)>);

/// There are too many notes.
#[derive(Debug)]
pub(super) struct Full;

impl Notes {
    pub(super) fn find(&self, key: &NoteKey, now: u64) -> Option<Bytes> {
        let (_, note) = self.0.get(key).filter(|(end, _)| now < *end)?;
        Some(note.clone())
    }

    pub(super) fn put(
        &mut self,
        key: NoteKey,
        note: Bytes,
        end: u64,
        now: u64,
    ) -> Result<(), Full> {
        if self.0.len() >= NOTES_MAX && !self.0.contains_key(&key) {
            self.0.retain(|_, (end, _)| now < *end);
            if self.0.len() >= NOTES_MAX {
                return Err(Full);
            }
        }
        self.0.insert(key, (end, note));
        Ok(())
    }

    pub(super) fn take(&mut self, key: &NoteKey, now: u64) -> Option<Bytes> {
        self.0.remove(key).filter(|(end, _)| now < *end).map(|(_, note)| note)
    }
}
