//! Who emitted which entries of the log.
//!
//! Each owner emits a run of numbers without a hole, and the next one goes on where what
//! was held of it ends. After a double fault a number may be another owner's than a
//! client remembers, so an event is known by emitter *and* number, never by one alone.

use thin_vec::ThinVec;

use crate::{Emitter, EventId};

/// Most emitters remembered beyond those of replayable entries; the oldest is forgotten,
/// and its ids are unknown then. The record keeps as many.
const EMITTERS_MAX: usize = 17;

/// All emitters known, oldest first, each with the first number that is its own.
pub(crate) struct Emitters {
    /// Those before; hardly any session has one.
    former: ThinVec<(Emitter, u64)>,
    /// Who emits now.
    current: (Emitter, u64),
}

/// The numbers of one emitter: `from` is its first, `end` the first that is not its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Run {
    /// Its place in the order of emitters.
    pub(crate) rank: usize,
    pub(crate) from: u64,
    /// None for who emits now.
    pub(crate) end: Option<u64>,
}

impl Emitters {
    pub(crate) fn new(emitter: Emitter) -> Self {
        Self { former: ThinVec::new(), current: (emitter, 1) }
    }

    /// Those of a log that was read. `seen` holds each emitter there with its first
    /// number, in order; `former` names those before `emitter`, newest first; `next` is
    /// the first number that `emitter` will emit.
    pub(crate) fn restored(
        seen: Vec<(Emitter, u64)>,
        former: &[Emitter],
        emitter: Emitter,
        next: u64,
    ) -> Self {
        let mut all = seen;
        all.retain(|(other, _)| *other != emitter);
        all.push((emitter, next));
        for other in former.iter().take(EMITTERS_MAX) {
            if all.iter().any(|(known, _)| known == other) {
                continue;
            }
            // Nothing of it is left, so its run is empty: it ends where the next newer begins.
            let newer = former.iter().take_while(|newer| *newer != other).last();
            let index = newer.and_then(|newer| all.iter().position(|(known, _)| known == newer));
            let index = index.unwrap_or(all.len() - 1);
            all.insert(index, (*other, all[index].1));
        }
        // It was put at the end, and nothing behind it.
        all.pop();
        Self { former: all.into(), current: (emitter, next) }
    }

    /// Who emits now.
    pub(crate) fn current(&self) -> Emitter {
        self.current.0
    }

    /// Who emitted this entry.
    pub(crate) fn of(&self, number: u64) -> Emitter {
        if self.current.1 <= number {
            return self.current.0;
        }
        self.at(self.rank_of(number)).map_or(Emitter(0), |(emitter, _)| emitter)
    }

    /// The id of one entry of a stream.
    pub(crate) fn id(&self, stream: u64, number: u64) -> EventId {
        EventId { stream, emitter: self.of(number), number }
    }

    /// From now on another one emits. What lies below `floor` needs no emitter any more.
    pub(crate) fn succeed(&mut self, emitter: Emitter, next: u64, floor: u64) {
        if self.current() == emitter {
            return;
        }
        self.former.push(std::mem::replace(&mut self.current, (emitter, next)));
        while self.former.len() >= EMITTERS_MAX && self.starts_by(1, floor) {
            self.former.remove(0);
        }
    }

    /// The numbers of an emitter; none for one that is not known.
    pub(crate) fn run(&self, emitter: Emitter) -> Option<Run> {
        let rank = self.all().position(|(known, _)| known == emitter)?;
        let (_, from) = self.at(rank)?;
        Some(Run { rank, from, end: self.at(rank + 1).map(|(_, from)| from) })
    }

    /// The rank of whoever emitted this entry.
    pub(crate) fn rank_of(&self, number: u64) -> usize {
        if self.current.1 <= number {
            return self.former.len();
        }
        self.former.iter().rposition(|(_, from)| *from <= number).unwrap_or(0)
    }

    /// All, oldest first.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Emitter, u64)> {
        self.former.iter().copied().chain([self.current])
    }

    fn at(&self, rank: usize) -> Option<(Emitter, u64)> {
        self.all().nth(rank)
    }

    fn starts_by(&self, rank: usize, number: u64) -> bool {
        self.at(rank).is_some_and(|(_, from)| from <= number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Emitter = Emitter(0xa);
    const B: Emitter = Emitter(0xb);
    const C: Emitter = Emitter(0xc);
    const D: Emitter = Emitter(0xd);

    #[test]
    fn an_owner_of_whom_nothing_is_left_keeps_its_place_and_has_no_numbers() {
        let emitters = Emitters::restored(vec![(A, 1), (C, 5)], &[C, B, A], D, 9);
        assert_eq!(emitters.all().collect::<Vec<_>>(), [(A, 1), (B, 5), (C, 5), (D, 9)]);
        assert_eq!(emitters.of(4), A);
        assert_eq!(emitters.of(5), C);
        assert_eq!(emitters.current(), D);
        let lost = emitters.run(B).unwrap();
        assert_eq!((lost.from, lost.end), (5, Some(5)));
        let known = emitters.run(C).unwrap();
        assert_eq!((known.from, known.end), (5, Some(9)));
        assert_eq!(emitters.run(Emitter(1)), None);
    }

    #[test]
    fn with_an_empty_log_all_former_owners_are_known_in_their_order() {
        let emitters = Emitters::restored(vec![], &[C, B, A], D, 1);
        assert_eq!(emitters.all().collect::<Vec<_>>(), [(A, 1), (B, 1), (C, 1), (D, 1)]);
        assert_eq!(emitters.of(1), D);
    }

    #[test]
    fn who_succeeds_itself_often_forgets_only_what_cannot_be_replayed() {
        let mut emitters = Emitters::new(A);
        for number in 0..40 {
            emitters.succeed(Emitter(100 + number), 10 + number, 30);
        }
        assert!(emitters.all().count() < 25);
        assert_eq!(emitters.of(30), Emitter(120));
    }
}
