//! The memory store keeps every promise, and keeps nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::contract::World;

/// A memory store whose time is moved by hand.
struct Bench {
    store: Memory,
    clock: Arc<AtomicU64>,
}

impl Bench {
    fn new() -> Self {
        let clock = Arc::new(AtomicU64::new(1));
        let hand = Arc::clone(&clock);
        let store = Memory::with_clock(move || Duration::from_millis(hand.load(Ordering::SeqCst)));
        Self { store, clock }
    }
}

#[async_trait::async_trait]
impl World for Bench {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn pass(&self, time: Duration) {
        self.clock.fetch_add(millis(time), Ordering::SeqCst);
    }
}

crate::contract!(Bench::new());
