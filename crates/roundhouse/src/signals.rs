//! Being asked to stop. The first SIGINT or SIGTERM stops in order, a second one at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Node;

/// What a process is expected to answer that was stopped by SIGINT.
const INTERRUPTED: i32 = 130;

/// The signals that ask a process to stop.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From now on the process does not die of them by itself.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Waits for the first one and then stops the node.
    pub(crate) async fn stop_in_order(mut self, node: Node) {
        self.next().await;
        tracing::info!("stopping; once more stops at once");
        self.unless_again(node.stop()).await;
    }

    /// Waits for `work`; another signal ends the process at once. Servers that still run
    /// are ended by their guards.
    pub(crate) async fn unless_again<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            done = work => done,
            () = self.next() => {
                tracing::warn!("stopped at once");
                std::process::exit(INTERRUPTED)
            }
        }
    }
}
