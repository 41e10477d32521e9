//! Permits for the steps of handshakes: in each tick of a worker's event loop one step is permitted.
//!
//! A step computes for many times as long as a call, and a flood of clients can cause hundreds at
//! once. With permits a call waits for at most one step in each tick, however many clients connect. A
//! worker without calls spends all of its time on handshakes. Clients' addresses get permits one after
//! another, so an address with many handshakes does not delay those of others.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use fairness::FairQueue;

use crate::client_address::AddressKey;

/// The address that a step is charged to, if it is known.
type Client = Option<AddressKey>;

/// The permits of one worker. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct HandshakePermits(Rc<RefCell<Queue>>);

/// The permits of one connection.
pub(crate) struct HandshakePermit {
    permits: HandshakePermits,
    client: Client,
    waiting: Option<Rc<Waiting>>,
}

struct Waiting {
    is_given: Cell<bool>,
    task: RefCell<Waker>,
}

/// The connections that wait.
#[derive(Default)]
struct Queue {
    /// The permit of this tick is given.
    is_given: bool,
    /// Clients' addresses get permits one after another. The number of the worker's connections bounds it.
    waiting: FairQueue<Client, Weak<Waiting>>,
}

impl HandshakePermits {
    /// The permits of a connection of this client.
    pub(crate) fn of(&self, client: Client) -> HandshakePermit {
        HandshakePermit { permits: self.clone(), client, waiting: None }
    }

    /// Gives a permit in each tick, until no connection waits for one.
    fn give(&self) {
        let permits = self.clone();
        actix_rt::spawn(async move {
            loop {
                // All other tasks that are ready run, and sockets are polled.
                tokio::task::yield_now().await;
                let Some(next) = permits.next() else { return };
                next.is_given.set(true);
                next.task.borrow().wake_by_ref();
            }
        });
    }

    /// The next connection that is still open. If there is none, the permit is free.
    fn next(&self) -> Option<Rc<Waiting>> {
        let mut queue = self.0.borrow_mut();
        let next = queue.waiting.find_next(|waiting| waiting.upgrade());
        queue.is_given = next.is_some();
        next
    }
}

impl HandshakePermit {
    /// Ready when the connection may take a step.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(waiting) = &self.waiting {
            if !waiting.is_given.get() {
                waiting.task.borrow_mut().clone_from(context.waker());
                return Poll::Pending;
            }
            self.waiting = None;
            return Poll::Ready(());
        }
        let mut queue = self.permits.0.borrow_mut();
        if !queue.is_given {
            queue.is_given = true;
            drop(queue);
            self.permits.give();
            return Poll::Ready(());
        }
        let task = RefCell::new(context.waker().clone());
        let waiting = Rc::new(Waiting { is_given: Cell::new(false), task });
        queue.waiting.add(self.client, Rc::downgrade(&waiting));
        self.waiting = Some(Rc::clone(&waiting));
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn client(number: u8) -> Client {
        Some(AddressKey::of_peer([198, 51, 100, number].into()))
    }

    #[actix_rt::test]
    async fn one_connection_has_a_permit_in_each_tick_and_every_one_gets_it() {
        let permits = HandshakePermits::default();
        let (steps, ticks) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let connections: Vec<_> = (0..100)
            .map(|number| {
                let (mut permit, steps) = (permits.of(client(number % 7)), Rc::clone(&steps));
                actix_rt::spawn(async move {
                    // One that is closed while it waits has no permit, and delays no other.
                    if number % 10 == 9 {
                        let _ = poll_fn(|context| Poll::Ready(permit.poll(context))).await;
                        return;
                    }
                    poll_fn(|context| permit.poll(context)).await;
                    steps.set(steps.get() + 1);
                })
            })
            .collect();
        while steps.get() < 90 {
            let before = steps.get();
            tokio::task::yield_now().await;
            ticks.set(ticks.get() + 1);
            assert!(steps.get() <= before + 2, "{} steps in a tick", steps.get() - before);
            assert!(ticks.get() < 1_000);
        }
        for connection in connections {
            connection.await.unwrap();
        }
        assert!(ticks.get() >= 45, "{} ticks", ticks.get());
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert!(!permits.0.borrow().is_given, "the permit is not free again");
    }
}
