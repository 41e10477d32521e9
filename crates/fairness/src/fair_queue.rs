//! A queue whose keys take turns. It reads no clock and knows no thread.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// What waits, by key. Keys get turns one after another, so a key with many entries does not delay those
/// of others. Its caller bounds the number of entries.
#[derive(Debug)]
pub struct FairQueue<K, W> {
    /// No key without an entry in `order`, and none that has nothing waiting.
    waiting: HashMap<K, VecDeque<W>>,
    order: VecDeque<K>,
}

impl<K, W> Default for FairQueue<K, W> {
    fn default() -> Self {
        Self { waiting: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash, W> FairQueue<K, W> {
    /// Appends an entry to those of its key.
    pub fn add(&mut self, key: K, waiting: W) {
        match self.waiting.get_mut(&key) {
            Some(of_key) => of_key.push_back(waiting),
            None => {
                self.order.push_back(key.clone());
                self.waiting.insert(key, VecDeque::from([waiting]));
            }
        }
    }

    /// The next entry: of each key after the other, the one that has waited for longest.
    pub fn take_next(&mut self) -> Option<W> {
        self.find_next(Some)
    }

    /// The next entry of which this makes something. Those of which it makes nothing are removed, and take no turn.
    pub fn find_next<T>(&mut self, mut make: impl FnMut(W) -> Option<T>) -> Option<T> {
        while let Some(key) = self.order.pop_front() {
            let of_key = self.waiting.get_mut(&key)?;
            let next = std::iter::from_fn(|| of_key.pop_front()).find_map(&mut make);
            if of_key.is_empty() {
                self.waiting.remove(&key);
            } else {
                self.order.push_back(key);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_get_turns_one_after_another_however_many_entries_one_has() {
        let mut queue = FairQueue::default();
        (0..5).for_each(|number| queue.add("a", ("a", number)));
        queue.add("b", ("b", 0));
        queue.add("c", ("c", 0));
        let mut given = Vec::new();
        given.extend(queue.take_next());
        // An entry that comes while another one of its key waits is not overtaken by those of others.
        queue.add("b", ("b", 1));
        given.extend(std::iter::from_fn(|| queue.take_next()));
        let expected =
            [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("a", 2), ("a", 3), ("a", 4)];
        assert_eq!(given, expected);
        assert!(queue.is_empty() && queue.waiting.is_empty());
    }

    #[test]
    fn entries_of_which_nothing_is_made_take_no_turn() {
        let mut queue = FairQueue::default();
        for number in 0..10 {
            queue.add("a", ("a", number));
            queue.add("b", ("b", number));
        }
        queue.add("c", ("c", 0));
        // Only every fourth one of "a" still waits, and none of "c".
        let live = |(key, number): (&'static str, i32)| {
            (key == "b" || key == "a" && number % 4 == 3).then_some((key, number))
        };
        let taken: Vec<_> = std::iter::from_fn(|| queue.find_next(live)).take(4).collect();
        assert_eq!(taken, [("a", 3), ("b", 0), ("a", 7), ("b", 1)]);
        assert_eq!(std::iter::from_fn(|| queue.find_next(live)).count(), 8);
        assert!(queue.is_empty());
    }
}
