//! The places of a worker for connections of clients.
//!
//! When all places are taken, the connection that is idle for longest is closed for each new one.
//! Clients that keep connections without using them then keep no client out. A connection that
//! serves a request is never closed.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use crate::head_timeout::{HeadProgress, Rest};
use crate::metrics::{Closed, count_closed};

/// Connections beyond the places of a worker that it accepts while it closes others. With all of
/// them taken, further clients wait in the kernel's queue.
pub const HEADROOM: usize = 8;

/// The interval at which a worker without free places looks for connections to close, if the last
/// search found all that could be closed.
const LOOK: Duration = Duration::from_millis(50);

/// How long a connection must have been idle until it is closed: a new one is about to send its
/// first request.
const IDLE_MIN: Duration = Duration::from_millis(100);

/// A connection of which a part of a head has arrived is closed only at this age.
const HALF_HEAD_MIN: Duration = Duration::from_secs(1);

/// How many connections one search finds, as a part of the open ones, and at least. A search looks
/// at every connection, which costs little for each that it finds.
const FOUND_PART: usize = 8;
const FOUND_MIN: usize = 32;

/// The places of one worker. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Places(Rc<Inner>);

struct Inner {
    max: usize,
    next: Cell<u64>,
    open: RefCell<HashMap<u64, Rc<HeadProgress>>>,
    /// Connections that were the longest idle ones at the last search, the oldest first.
    found: RefCell<VecDeque<(Weak<HeadProgress>, Instant)>>,
    searched: Cell<Option<Instant>>,
    is_watched: Cell<bool>,
}

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
                match places.excess() {
                    0 => break,
                    excess => places.close_idle(excess),
                }
            }
            places.0.is_watched.set(false);
        });
    }

    fn close_idle(&self, count: usize) {
        for _ in 0..count {
            let Some(connection) = self.longest_idle() else { return };
            connection.close();
            count_closed(Closed::Idle);
        }
    }

    fn longest_idle(&self) -> Option<Rc<HeadProgress>> {
        loop {
            let Some((connection, since)) = self.0.found.borrow_mut().pop_front() else {
                if !self.search() {
                    return None;
                }
                continue;
            };
            let connection = connection.upgrade();
            let is_unchanged = |connection: &Rc<HeadProgress>| {
                connection.rest().is_some_and(|(_, at)| at == since)
            };
            if let Some(connection) = connection.filter(is_unchanged) {
                return Some(connection);
            }
        }
    }

    /// Finds the connections that are idle for longest, and after them those with a part of a head.
    fn search(&self) -> bool {
        let now = Instant::now();
        if self.0.searched.get().is_some_and(|at| now.saturating_duration_since(at) < LOOK) {
            return false;
        }
        let open = self.0.open.borrow();
        let resting = |wanted: Rest, age: Duration| {
            let rests = |connection: &Rc<HeadProgress>| match connection.rest() {
                Some((rest, since)) if rest == wanted && now - since >= age => {
                    Some((Rc::downgrade(connection), since))
                }
                _ => None,
            };
            let mut found = open.values().filter_map(rests).collect::<Vec<_>>();
            found.sort_unstable_by_key(|(_, since)| *since);
            found
        };
        let found_max = (open.len() / FOUND_PART).max(FOUND_MIN);
        let mut found = resting(Rest::Idle, IDLE_MIN);
        if found.len() <= found_max {
            found.extend(resting(Rest::HalfHead, HALF_HEAD_MIN));
        }
        // With more to close, the next search need not wait. Otherwise clients that connect again
        // and again would keep others waiting.
        self.0.searched.set((found.len() <= found_max).then_some(now));
        found.truncate(found_max);
        let is_any = !found.is_empty();
        *self.0.found.borrow_mut() = found.into();
        is_any
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.0.open.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
