//! The streams of a session, by number.
//!
//! Nearly every session has no stream, or the one that its client listens to. A tree would
//! allocate eleven places with the first.

use std::collections::VecDeque;

use crate::resumable::StreamPosition;
use crate::sparse::Sparse;
use crate::stream::Stream;

/// Streams in the order of their numbers, in which they are opened; the oldest are dropped first.
/// An empty table is a null pointer. Bounded by the entries of the log.
#[derive(Default)]
pub(crate) struct StreamTable(Sparse<VecDeque<(u64, Stream)>>);

impl StreamTable {
    pub(crate) fn len(&self) -> usize {
        self.0.get().map_or(0, |all| all.len())
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Stream> {
        let all = self.0.get()?;
        let index = all.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        all.get(index).map(|(_, stream)| stream)
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Stream> {
        let all = self.0.get_mut()?;
        let index = all.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        all.get_mut(index).map(|(_, stream)| stream)
    }

    /// Takes a stream, in the place of any that has its number.
    pub(crate) fn insert(&mut self, number: u64, stream: Stream) {
        let all = self.0.get_or_insert_with(|| VecDeque::with_capacity(1));
        match all.binary_search_by_key(&number, |(number, _)| *number) {
            Ok(index) => all[index].1 = stream,
            Err(index) => all.insert(index, (number, stream)),
        }
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<Stream> {
        let all = self.0.get_mut()?;
        let index = all.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        let (_, stream) = all.remove(index)?;
        if all.is_empty() {
            self.0.clear();
        }
        Some(stream)
    }

    /// A request's stream at the server was read so far, if one of the streams that `may` allows answers
    /// the request.
    pub(crate) fn note_position(&mut self, read: &StreamPosition, may: impl Fn(u64) -> bool) {
        let streams = self.0.get_mut().into_iter().flat_map(|all| all.iter_mut().rev());
        let mut allowed = streams.filter(|(number, _)| may(*number));
        let _is_found = allowed.any(|(_, stream)| stream.note_position(read));
    }

    /// All, oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &Stream)> {
        self.0
            .get()
            .into_iter()
            .flat_map(|all| all.iter())
            .map(|(number, stream)| (*number, stream))
    }
}

impl FromIterator<(u64, Stream)> for StreamTable {
    fn from_iter<I: IntoIterator<Item = (u64, Stream)>>(all: I) -> Self {
        let mut table = Self::default();
        all.into_iter().for_each(|(number, stream)| table.insert(number, stream));
        table
    }
}
