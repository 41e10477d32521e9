//! The order in which connections are closed when a worker has no free place. It reads no clock,
//! and closes nothing.
//!
//! Each connection has a holder: a tenant, or none. The holder with most connections gives up one
//! first, until all have the same number. A holder with few connections therefore loses none while
//! another one has many.

use std::collections::HashMap;
use std::hash::Hash;

/// A holder with more than this part of the open connections has so many that its new connections
/// may be closed as well. Otherwise a flood of new ones would leave only those of others to close.
const LARGE_PART: usize = 4;

/// How willingly a holder gives up a connection: the smallest rank is closed first. `S` is the time
/// since which the connection waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank<S> {
    /// No byte of a request has arrived for long enough.
    Idle(S),
    /// A part of a head has arrived, and the rest has been due for long enough.
    HalfHead(S),
    /// A part of a body has arrived, and waits for memory of its tenant for long enough.
    Body(S),
    /// The connection waits for a request or for a part of one, but only for a short time.
    New(S),
}

/// An open connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open<H, S> {
    pub(crate) holder: H,
    /// `None` while the connection serves a request, or waits for memory for a short time.
    pub(crate) rank: Option<Rank<S>>,
}

/// The connections to close, as indexes of `open`, the first one first. With `c` connections of a
/// holder, the one that the holder gives up as its number `i`, counted from 0, has the level
/// `c - i`. The highest level is closed first, and of one level the smallest rank.
pub(crate) fn closing_order<H: Hash + Eq, S: Copy + Ord>(open: Vec<Open<H, S>>) -> Vec<usize> {
    let open_count = open.len();
    let mut holders = HashMap::<H, Held<S>>::new();
    for (index, connection) in open.into_iter().enumerate() {
        let held = holders.entry(connection.holder).or_default();
        held.count += 1;
        held.waiting.extend(connection.rank.map(|rank| (rank, index)));
    }
    let mut leveled = Vec::new();
    for mut held in holders.into_values() {
        if held.count * LARGE_PART <= open_count {
            held.waiting.retain(|(rank, _)| !matches!(rank, Rank::New(_)));
        }
        held.waiting.sort_unstable();
        let levels = (0..=held.count).rev();
        leveled.extend(levels.zip(held.waiting));
    }
    leveled.sort_unstable_by_key(|(level, waiting)| (std::cmp::Reverse(*level), *waiting));
    leveled.into_iter().map(|(_, (_, index))| index).collect()
}

/// What one holder has.
struct Held<S> {
    /// All of its connections.
    count: usize,
    /// Those that serve no request.
    waiting: Vec<(Rank<S>, usize)>,
}

impl<S> Default for Held<S> {
    fn default() -> Self {
        Self { count: 0, waiting: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Connection = (char, Option<Rank<u32>>);

    fn order(open: &[Connection]) -> Vec<usize> {
        closing_order(open.iter().map(|(holder, rank)| Open { holder, rank: *rank }).collect())
    }

    fn idle(holder: char, since: u32) -> Connection {
        (holder, Some(Rank::Idle(since)))
    }

    #[track_caller]
    fn check(open: &[Connection], expected: &[usize]) {
        assert_eq!(order(open), expected, "{open:?}");
    }

    #[test]
    fn the_holder_with_most_connections_gives_up_one_first() {
        // `a` has been idle for longest, and `b` has more.
        check(&[idle('a', 0), idle('b', 2), idle('b', 1), idle('b', 3)], &[2, 1, 0, 3]);
    }

    #[test]
    fn with_equal_numbers_the_longest_idle_connection_is_closed_first() {
        check(&[idle('a', 3), idle('b', 1), idle('a', 4), idle('b', 2)], &[1, 0, 3, 2]);
    }

    #[test]
    fn connections_that_serve_requests_count_and_are_not_closed() {
        check(&[('a', None), ('a', None), idle('a', 9), idle('b', 1)], &[2, 3]);
        check(&[('a', None), ('a', None)], &[]);
    }

    #[test]
    fn a_holder_gives_up_idle_connections_before_half_heads() {
        let half = ('a', Some(Rank::HalfHead(1)));
        check(&[half, idle('a', 2), idle('b', 0)], &[1, 2, 0]);
        check(&[half, half, idle('b', 0)], &[0, 2, 1]);
    }

    #[test]
    fn a_holder_gives_up_what_never_was_a_request_before_a_body_and_a_body_before_what_is_new() {
        let (half, body) = (('a', Some(Rank::HalfHead(3))), ('a', Some(Rank::Body(1))));
        let new = ('a', Some(Rank::New(0)));
        check(&[new, body, half, idle('a', 4)], &[3, 2, 1, 0]);
        check(&[body, body, ('a', None), idle('b', 0)], &[0, 1, 3]);
    }

    #[test]
    fn small_tenants_lose_nothing_while_one_holder_has_many_half_heads() {
        let mut open = vec![idle('a', 0), idle('b', 1), idle('c', 2), idle('c', 3)];
        open.extend((0..100).map(|since| ('-', Some(Rank::HalfHead(since)))));
        let expected = (4..102).collect::<Vec<_>>();
        assert_eq!(order(&open)[..98], expected);
    }

    #[test]
    fn new_connections_are_closed_only_if_their_holder_has_a_large_part() {
        let new = ('-', Some(Rank::New(5)));
        let one_each = "abcdef".chars().zip(0..).map(|(holder, since)| idle(holder, since));
        let mut open = one_each.collect::<Vec<_>>();
        open.extend([new, new]);
        assert_eq!(order(&open), [0, 1, 2, 3, 4, 5]);
        open.push(new);
        assert_eq!(order(&open), [6, 7, 0, 1, 2, 3, 4, 5, 8]);
    }

    fn ranks() -> impl Strategy<Value = Option<Rank<u32>>> {
        prop_oneof![
            Just(None),
            (0..50u32).prop_map(|since| Some(Rank::Idle(since))),
            (0..50u32).prop_map(|since| Some(Rank::HalfHead(since))),
            (0..50u32).prop_map(|since| Some(Rank::Body(since))),
            (0..50u32).prop_map(|since| Some(Rank::New(since))),
        ]
    }

    proptest! {
        /// Closes one connection after the other, and compares each with what was left to close.
        #[test]
        fn each_closed_connection_is_one_of_the_holder_with_most(
            open in prop::collection::vec((prop::char::range('a', 'e'), ranks()), 0..60)
        ) {
            let order = order(&open);
            let count_of = |left: &[usize], holder| {
                left.iter().filter(|index| open[**index].0 == holder).count()
            };
            let mut left = (0..open.len()).collect::<Vec<_>>();
            for (at, closed) in order.iter().enumerate() {
                let (holder, rank) = open[*closed];
                for other in &order[at..] {
                    let (others, its) = (count_of(&left, open[*other].0), count_of(&left, holder));
                    prop_assert!(its >= others, "{holder} has {its}, {others} remain");
                    prop_assert!(its > others || rank <= open[*other].1);
                }
                left.retain(|index| index != closed);
            }
            // What is never closed serves a request, or is new.
            let is_kept = |index: &usize| matches!(open[*index].1, None | Some(Rank::New(_)));
            prop_assert!(left.iter().all(is_kept));
        }
    }
}
