//! Permits for the short messages of a stream, and for the short pieces of a body.

use std::sync::Arc;

use crate::{SHORT_BYTES, TickPermit};

/// How many short messages of a stream, or short pieces of a body, are handled with one permit. A message takes about
/// 10 µs: in its session, at the node of the client, and for the log. A piece takes less.
const MESSAGES: usize = 8;

/// Counts the short messages of one stream, or the short pieces of one body. Every few of them need a permit, also if
/// they arrive one by one: one that sends them without an end would take all of a thread's time otherwise.
#[derive(Debug, Default)]
pub struct MessagePermits {
    /// Since the last permit for short ones.
    handled: usize,
}

impl MessagePermits {
    /// Waits for a permit if the next message needs one. Cancel safe.
    pub async fn next(&mut self, tenant: &Arc<str>) {
        if self.handled >= MESSAGES {
            TickPermit::of(tenant).await;
            self.handled = 0;
        }
    }

    /// Waits until a piece of a body with so many bytes may be handled, and notes it if it is short. One that is not
    /// needs a permit of its own. Cancel safe.
    pub async fn next_piece(&mut self, tenant: &Arc<str>, bytes: usize) {
        if bytes > SHORT_BYTES {
            TickPermit::of(tenant).await;
        } else {
            self.next(tenant).await;
            self.note_handled();
        }
    }

    /// Notes that a message is handled.
    pub fn note_handled(&mut self) {
        self.handled += 1;
    }

    /// Notes that a message is handled which takes as long as several short ones.
    pub fn note_answered(&mut self) {
        self.handled = MESSAGES;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use tokio::task::{LocalSet, yield_now};

    use super::*;

    #[tokio::test]
    async fn streams_with_messages_all_the_time_share_the_permits_of_the_ticks() {
        const STREAMS: usize = 64;
        let handled = Rc::new(Cell::new(0));
        let streams = LocalSet::new();
        for _ in 0..STREAMS {
            let handled = Rc::clone(&handled);
            streams.spawn_local(async move {
                let (tenant, mut permits) = ("a".into(), MessagePermits::default());
                loop {
                    permits.next(&tenant).await;
                    permits.note_handled();
                    handled.set(handled.get() + 1);
                    // The next message arrives by itself.
                    yield_now().await;
                }
            });
        }
        let ticks = 1_000;
        streams
            .run_until(async {
                for _ in 0..ticks {
                    yield_now().await;
                }
            })
            .await;
        let (handled, free) = (handled.get(), STREAMS * MESSAGES);
        assert!(handled <= free + 2 * ticks * MESSAGES, "{handled}");
        assert!(handled >= free + ticks / 2, "{handled}");
    }
}
