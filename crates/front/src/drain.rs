//! Whether clients are asked to close their connections to this server, and whether requests
//! still use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// How long no request may have arrived before the server counts as unused. The pause is longer
/// once the balancer sends no more requests here, and shorter while the balancer still does.
const QUIET: Duration = Duration::from_secs(1);

/// State that the responses of a server share.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    begun: AtomicBool,
    /// Requests that are being answered and streams that are open.
    present: AtomicUsize,
    /// Counts every request; wraps around.
    came: AtomicUsize,
    left: Notify,
}

impl Drain {
    /// Asks clients to close their connections from now on. Returns whether they were asked
    /// before.
    pub(crate) fn begin_drain(&self) -> bool {
        self.begun.swap(true, Ordering::Relaxed)
    }

    /// Are clients asked to close their connections?
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Ready when no request or stream is open and none has arrived for [`QUIET`].
    pub(crate) async fn over(&self) {
        loop {
            let left = self.left.notified();
            let came = self.came.load(Ordering::Acquire);
            if self.present.load(Ordering::Acquire) > 0 {
                left.await;
                continue;
            }
            tokio::time::sleep(QUIET).await;
            if self.came.load(Ordering::Acquire) == came {
                return;
            }
        }
    }
}

/// A request or stream that uses the server until this guard is dropped.
#[derive(Debug)]
pub(crate) struct Present(Arc<Drain>);

impl Present {
    /// Counts one more request or stream.
    pub(crate) fn new(drain: &Arc<Drain>) -> Self {
        drain.came.fetch_add(1, Ordering::AcqRel);
        drain.present.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(drain))
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        if self.0.present.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.left.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    /// Returns when the drain is over, in milliseconds, where `callers` arrive and leave after
    /// these delays.
    async fn check(callers: &[(u64, u64)], over: u64) {
        let drain = Arc::new(Drain::default());
        let began = Instant::now();
        let visitors = callers.iter().map(|&(after, stays)| {
            let drain = Arc::clone(&drain);
            tokio::spawn(async move {
                sleep(Duration::from_millis(after)).await;
                let present = Present::new(&drain);
                sleep(Duration::from_millis(stays)).await;
                drop(present);
            })
        });
        let visitors: Vec<_> = visitors.collect();
        drain.over().await;
        let millis = began.elapsed().as_millis() as u64;
        // Tokio's timer may fire a millisecond late.
        assert!((over..over + 10).contains(&millis), "over after {millis} ms");
        visitors.into_iter().for_each(|visitor| visitor.abort());
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_is_over_when_no_request_is_open_and_none_has_arrived_for_a_moment() {
        check(&[], 1_000).await;
        check(&[(0, 5_000)], 6_000).await;
        check(&[(0, 5_000), (5_500, 10)], 7_000).await;
        check(&[(500, 10), (900, 20), (1_800, 200)], 3_000).await;
        check(&[(0, 10), (5, 3_000)], 4_005).await;
    }
}
