//! The owners of the log's entries.
//!
//! Each owner writes a range of numbers without a hole, and the next one continues after the last
//! entry that the store held. After a double fault a number may belong to another owner than a
//! client remembers. An event is therefore identified by owner tag *and* number.

use thin_vec::ThinVec;

use crate::{EventId, OwnerTag};

/// Most owner tags besides those of replayable entries; the oldest is dropped, and its event ids
/// are then unknown. The record keeps as many.
const OWNER_TAGS_MAX: usize = 17;

/// All known owner tags, oldest first, each with its first number.
pub(crate) struct OwnerTags {
    /// The former ones; few sessions have any.
    former: ThinVec<(OwnerTag, u64)>,
    /// The current owner.
    current: (OwnerTag, u64),
}

/// The numbers of one owner tag: from `from`, up to but not including `end`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Run {
    /// Its position in the order of owner tags.
    pub(crate) rank: usize,
    pub(crate) from: u64,
    /// `None` for the current owner.
    pub(crate) end: Option<u64>,
}

impl OwnerTags {
    pub(crate) fn new(owner_tag: OwnerTag) -> Self {
        Self { former: ThinVec::new(), current: (owner_tag, 1) }
    }

    /// The owner tags of a restored log. `seen` holds each tag of the log with its first number,
    /// in order; `former` the tags before `owner_tag`, newest first; `next` is the first number
    /// that `owner_tag` will write.
    pub(crate) fn restored(
        seen: Vec<(OwnerTag, u64)>,
        former: &[OwnerTag],
        owner_tag: OwnerTag,
        next: u64,
    ) -> Self {
        let mut all = seen;
        all.retain(|(other, _)| *other != owner_tag);
        all.push((owner_tag, next));
        for other in former.iter().take(OWNER_TAGS_MAX) {
            if all.iter().any(|(known, _)| known == other) {
                continue;
            }
            // It has no entry left, so its range is empty: it ends where the next one begins.
            let newer = former.iter().take_while(|newer| *newer != other).last();
            let index = newer.and_then(|newer| all.iter().position(|(known, _)| known == newer));
            let index = index.unwrap_or(all.len() - 1);
            all.insert(index, (*other, all[index].1));
        }
        // It was added at the end, and has no entry.
        all.pop();
        Self { former: all.into(), current: (owner_tag, next) }
    }

    /// The current owner.
    pub(crate) fn current(&self) -> OwnerTag {
        self.current.0
    }

    /// The owner that wrote this entry.
    pub(crate) fn of(&self, number: u64) -> OwnerTag {
        if self.current.1 <= number {
            return self.current.0;
        }
        self.at(self.rank_of(number)).map_or(OwnerTag(0), |(owner_tag, _)| owner_tag)
    }

    /// The id of one entry of a stream.
    pub(crate) fn id(&self, stream: u64, number: u64) -> EventId {
        EventId { stream, owner_tag: self.of(number), number }
    }

    /// Another owner writes from now on. Entries below `floor` need no owner tag any more.
    pub(crate) fn succeed(&mut self, owner_tag: OwnerTag, next: u64, floor: u64) {
        if self.current() == owner_tag {
            return;
        }
        self.former.push(std::mem::replace(&mut self.current, (owner_tag, next)));
        while self.former.len() >= OWNER_TAGS_MAX && self.starts_by(1, floor) {
            self.former.remove(0);
        }
    }

    /// The numbers of an owner tag; `None` if it is unknown.
    pub(crate) fn run(&self, owner_tag: OwnerTag) -> Option<Run> {
        let rank = self.all().position(|(known, _)| known == owner_tag)?;
        let (_, from) = self.at(rank)?;
        Some(Run { rank, from, end: self.at(rank + 1).map(|(_, from)| from) })
    }

    /// The rank of the owner that wrote this entry.
    pub(crate) fn rank_of(&self, number: u64) -> usize {
        if self.current.1 <= number {
            return self.former.len();
        }
        self.former.iter().rposition(|(_, from)| *from <= number).unwrap_or(0)
    }

    /// All, oldest first.
    pub(crate) fn all(&self) -> impl Iterator<Item = (OwnerTag, u64)> {
        self.former.iter().copied().chain([self.current])
    }

    fn at(&self, rank: usize) -> Option<(OwnerTag, u64)> {
        self.all().nth(rank)
    }

    fn starts_by(&self, rank: usize, number: u64) -> bool {
        self.at(rank).is_some_and(|(_, from)| from <= number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: OwnerTag = OwnerTag(0xa);
    const B: OwnerTag = OwnerTag(0xb);
    const C: OwnerTag = OwnerTag(0xc);
    const D: OwnerTag = OwnerTag(0xd);

    #[test]
    fn an_owner_of_whom_nothing_is_left_keeps_its_place_and_has_no_numbers() {
        let owner_tags = OwnerTags::restored(vec![(A, 1), (C, 5)], &[C, B, A], D, 9);
        assert_eq!(owner_tags.all().collect::<Vec<_>>(), [(A, 1), (B, 5), (C, 5), (D, 9)]);
        assert_eq!(owner_tags.of(4), A);
        assert_eq!(owner_tags.of(5), C);
        assert_eq!(owner_tags.current(), D);
        let lost = owner_tags.run(B).unwrap();
        assert_eq!((lost.from, lost.end), (5, Some(5)));
        let known = owner_tags.run(C).unwrap();
        assert_eq!((known.from, known.end), (5, Some(9)));
        assert_eq!(owner_tags.run(OwnerTag(1)), None);
    }

    #[test]
    fn with_an_empty_log_all_former_owners_are_known_in_their_order() {
        let owner_tags = OwnerTags::restored(vec![], &[C, B, A], D, 1);
        assert_eq!(owner_tags.all().collect::<Vec<_>>(), [(A, 1), (B, 1), (C, 1), (D, 1)]);
        assert_eq!(owner_tags.of(1), D);
    }

    #[test]
    fn an_owner_that_often_succeeds_itself_drops_only_tags_without_replayable_entries() {
        let mut owner_tags = OwnerTags::new(A);
        for number in 0..40 {
            owner_tags.succeed(OwnerTag(100 + number), 10 + number, 30);
        }
        assert!(owner_tags.all().count() < 25);
        assert_eq!(owner_tags.of(30), OwnerTag(120));
    }
}
