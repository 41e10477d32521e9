//! The places of a worker for connections of clients.
//!
//! When all places are taken, a connection is closed for each new one: of the holder with most
//! connections, the one that is idle for longest. Clients that keep connections without using them
//! then keep no client out, and cost no other tenant its connections. A connection that serves a
//! request is not closed, unless its body has waited for memory of its tenant for a while.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use crate::closing_order::{Open, Rank, closing_order};
use crate::head_timeout::{HeadProgress, Rest};
use crate::metrics::{Closed, count_closed};

/// The connections beyond its places that a worker accepts while it closes others. With all of them
/// taken, further clients wait in the kernel's queue.
///
/// Each closed connection ends in a later run of the worker. A flood of 3,000 new connections a
/// second brings 30 in the 10 ms that a run of a busy worker takes, so with few more than that every
/// client would wait behind the flood. Each needs a descriptor, so a worker with few places has few.
pub fn connections_headroom(places: usize) -> usize {
    (places / 8).clamp(8, 64)
}

/// The most places for which so many descriptors are enough, with the connections beyond them.
pub fn places_within(descriptors: usize) -> usize {
    // Of nine parts of the sum eight are places, rounded in favour of these.
    let places = descriptors.saturating_sub((descriptors / 9).clamp(8, 64));
    let is_enough = places + connections_headroom(places) <= descriptors;
    if is_enough { places } else { places.saturating_sub(1) }
}

/// The interval at which a worker without free places looks for connections to close, if the last
/// search found all that could be closed.
const LOOK: Duration = Duration::from_millis(50);

/// The time for which the result of a search is used. Then other holders may have most connections.
const FOUND_AGE_MAX: Duration = Duration::from_millis(500);

/// How long a connection must have been idle until it is closed: a new one is about to send its
/// first request. This and the next bound do not protect connections of a holder with many.
const IDLE_MIN: Duration = Duration::from_millis(100);

/// A connection of which a part of a head has arrived is closed only at this age.
const HALF_HEAD_MIN: Duration = Duration::from_secs(1);

/// So long after a body has waited for memory first, it is refused and its connection closed if it still waits:
/// usually a moment is enough. Of a long one the node does not notice if the client goes away, so clients that
/// open new connections all the time would have all places otherwise.
const BODY_MIN: Duration = Duration::from_secs(1);

/// The part of the open connections that one search finds to close. A search looks at every
/// connection, which costs little for each that it finds. A larger part would be less fair: new
/// connections change which holder has most.
const FOUND_PART: usize = 8;

/// The places of one worker. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Places(Rc<Inner>);

struct Inner {
    max: usize,
    next: Cell<u64>,
    open: RefCell<HashMap<u64, Rc<HeadProgress>>>,
    /// The connections to close next according to the last search.
    found: RefCell<VecDeque<Found>>,
    /// The last search, and whether it found more than it kept.
    searched: Cell<Option<(Instant, bool)>>,
    is_watched: Cell<bool>,
}

/// A connection to close, and how it waited when it was found.
type Found = (Weak<HeadProgress>, (Rest, Instant));

/// A place; free again when it is dropped.
pub(crate) struct Place {
    places: Places,
    number: u64,
}

impl Places {
    /// `max` free places.
    pub(crate) fn new(max: usize) -> Self {
        Self(Rc::new(Inner {
            max: max.max(1),
            next: Cell::new(0),
            open: RefCell::default(),
            found: RefCell::default(),
            searched: Cell::new(None),
            is_watched: Cell::new(false),
        }))
    }

    /// A place for a new connection. If none is free, another connection is closed.
    pub(crate) fn take(&self, connection: &Rc<HeadProgress>) -> Place {
        let number = self.0.next.get();
        self.0.next.set(number + 1);
        self.0.open.borrow_mut().insert(number, Rc::clone(connection));
        if self.excess() > 0 {
            self.close_idle(1);
            self.watch();
        }
        Place { places: self.clone(), number }
    }

    /// How many connections there are beyond the places.
    fn excess(&self) -> usize {
        self.0.open.borrow().len().saturating_sub(self.0.max)
    }

    /// How many connections are being closed.
    fn closing(&self) -> usize {
        self.0.open.borrow().values().filter(|connection| connection.is_closing()).count()
    }

    /// Closes idle connections for as long as there are too many: one may become idle only later.
    fn watch(&self) {
        if self.0.is_watched.replace(true) {
            return;
        }
        let places = self.clone();
        // It ends when places are free again, at the latest when the worker's connections end.
        actix_rt::spawn(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                if places.excess() == 0 {
                    break;
                }
                places.close_idle(places.excess().saturating_sub(places.closing()));
            }
            places.0.is_watched.set(false);
        });
    }

    fn close_idle(&self, count: usize) {
        for _ in 0..count {
            let Some(connection) = self.next_to_close() else { return };
            connection.close();
            count_closed(Closed::Idle);
        }
    }

    fn next_to_close(&self) -> Option<Rc<HeadProgress>> {
        let now = Instant::now();
        let is_old = |at| now.saturating_duration_since(at) >= FOUND_AGE_MAX;
        if self.0.searched.get().is_none_or(|(at, _)| is_old(at)) {
            self.0.found.borrow_mut().clear();
        }
        loop {
            let Some((connection, rest)) = self.0.found.borrow_mut().pop_front() else {
                if !self.search(now) {
                    return None;
                }
                continue;
            };
            let connection = connection.upgrade();
            if let Some(connection) = connection.filter(|found| found.rest() == Some(rest)) {
                return Some(connection);
            }
        }
    }

    /// Finds the connections to close next.
    fn search(&self, now: Instant) -> bool {
        let last = self.0.searched.get();
        if last.is_some_and(|(at, is_more)| !is_more && now.saturating_duration_since(at) < LOOK) {
            return false;
        }
        let open = self.0.open.borrow();
        let connections =
            open.values().filter(|connection| !connection.is_closing()).collect::<Vec<_>>();
        let found_max = (connections.len() / FOUND_PART).max(1);
        let order = closing_order(
            connections
                .iter()
                .map(|connection| Open { holder: connection.holder(), rank: rank(connection, now) })
                .collect(),
        );
        // With more to close, the next search need not wait. Otherwise clients that connect again
        // and again would keep others waiting.
        self.0.searched.set(Some((now, order.len() > found_max)));
        let found = order.into_iter().take(found_max).filter_map(|index| {
            let connection = connections[index];
            Some((Rc::downgrade(connection), connection.rest()?))
        });
        let found = found.collect::<VecDeque<_>>();
        let is_any = !found.is_empty();
        *self.0.found.borrow_mut() = found;
        is_any
    }
}

fn rank(connection: &HeadProgress, now: Instant) -> Option<Rank<Instant>> {
    let (rest, since) = connection.rest()?;
    let age = now.saturating_duration_since(since);
    Some(match rest {
        Rest::Idle if age >= IDLE_MIN => Rank::Idle(since),
        Rest::HalfHead if age >= HALF_HEAD_MIN => Rank::HalfHead(since),
        Rest::Body if age >= BODY_MIN => Rank::Body(since),
        Rest::Body => return None,
        Rest::Idle | Rest::HalfHead => Rank::New(since),
    })
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.0.open.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_headroom_is_a_part_of_the_places_within_bounds() {
        let headrooms = [0, 60, 400, 25_000].map(connections_headroom);
        assert_eq!(headrooms, [8, 8, 50, 64]);
        for places in 1..2_000 {
            let descriptors = places + connections_headroom(places);
            assert!(places_within(descriptors) >= places, "{places}");
            let places = places_within(descriptors);
            assert!(places + connections_headroom(places) <= descriptors, "{places}");
        }
    }

    #[actix_rt::test]
    async fn a_flood_of_new_connections_closes_as_many_idle_ones_without_a_pause() {
        let places = Places::new(512);
        let idle: Vec<_> = (0..512).map(|_| HeadProgress::new()).collect();
        let mut taken: Vec<_> = idle.iter().map(|connection| places.take(connection)).collect();
        let is_closed = |connection: &Rc<HeadProgress>| connection.rest().is_none();
        assert!(!idle.iter().any(is_closed));
        tokio::time::sleep(IDLE_MIN).await;
        for closed in 1..=256 {
            taken.push(places.take(&HeadProgress::new()));
            assert_eq!(idle.iter().filter(|connection| is_closed(connection)).count(), closed);
        }
    }

    #[actix_rt::test]
    async fn a_flood_of_new_connections_closes_none_of_a_tenant_that_has_few() {
        let places = Places::new(64);
        let few = [HeadProgress::new(), HeadProgress::new()];
        let tenant = Arc::from("few");
        few.iter().for_each(|connection| connection.set_holder(&tenant));
        let mut taken: Vec<_> = few.iter().map(|connection| places.take(connection)).collect();
        tokio::time::sleep(IDLE_MIN).await;
        let flood: Vec<_> = (0..94).map(|_| HeadProgress::new()).collect();
        taken.extend(flood.iter().map(|connection| places.take(connection)));
        assert!(!few.iter().any(|connection| connection.is_closing()));
        assert!(flood[..32].iter().all(|connection| connection.is_closing()));
    }

    #[actix_rt::test]
    async fn a_body_that_waits_for_memory_for_long_makes_room_and_an_idle_connection_stays() {
        let places = Places::new(16);
        let few = HeadProgress::new();
        few.set_holder(&Arc::from("few"));
        let bodies: Vec<_> = (0..15).map(|_| HeadProgress::new_serving()).collect();
        let of_bodies = bodies.iter().chain([&few]).map(|connection| places.take(connection));
        let mut taken: Vec<_> = of_bodies.collect();
        let mut waits: Vec<_> =
            bodies.iter().map(|connection| connection.wait_for_room()).collect();
        taken.push(places.take(&HeadProgress::new()));
        assert!(!bodies.iter().any(|connection| connection.is_closing()), "they wait for a moment");
        tokio::time::sleep(BODY_MIN).await;
        // This one has got its memory.
        drop(waits.pop());
        taken.extend((0..8).map(|_| places.take(&HeadProgress::new())));
        let closing = bodies.iter().filter(|connection| connection.is_closing()).count();
        assert!(closing >= 8, "{closing}");
        assert!(!few.is_closing() && !bodies[14].is_closing());
    }

    #[actix_rt::test]
    async fn a_search_does_not_decide_what_is_closed_much_later() {
        let places = Places::new(16);
        let held_by = |tenant: &str, count: usize| {
            let tenant = Arc::from(tenant);
            let connection = |_| {
                let connection = HeadProgress::new();
                connection.set_holder(&tenant);
                (places.take(&connection), connection)
            };
            (0..count).map(connection).collect::<Vec<_>>()
        };
        let is_closing = |held: &(Place, Rc<HeadProgress>)| held.1.is_closing();
        let mut first = held_by("first", 9);
        let second = held_by("second", 7);
        tokio::time::sleep(IDLE_MIN).await;
        // The search finds two of `first`, and one is closed.
        let new = held_by("new", 1);
        assert_eq!(first.iter().filter(|held| is_closing(held)).count(), 1);
        first.retain(|held| !is_closing(held));
        tokio::time::sleep(FOUND_AGE_MAX).await;
        first.truncate(1);
        let more = held_by("second", 8);
        assert!(!first.iter().chain(&new).any(is_closing));
        assert_eq!(second.iter().chain(&more).filter(|held| is_closing(held)).count(), 1);
    }
}
