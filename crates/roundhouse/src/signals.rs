//! Being asked to stop. The first SIGINT or SIGTERM stops in order, a second one at once.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Node;

/// What a process is expected to answer that was stopped by SIGINT.
const INTERRUPTED: i32 = 130;

/// Within this time a signal is the same one told twice: wrappers such as `timeout` and `npm`
/// pass on what the terminal has told the whole process group already.
const DOUBLED: Duration = Duration::from_millis(500);

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

    /// Waits for the first one and then stops the node. False where the node ended before.
    pub(crate) async fn stop_in_order(mut self, mut node: Node) -> bool {
        tokio::select! {
            () = self.next() => {}
            () = node.ended() => return false,
        }
        tracing::info!("stopping; once more stops at once");
        self.unless_again(node.stop()).await;
        true
    }

    /// Waits for `work`; another signal ends the process at once. Servers that still run
    /// are ended by their guards.
    pub(crate) async fn unless_again<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            done = work => done,
            () = self.again() => {
                tracing::warn!("stopped at once");
                std::process::exit(INTERRUPTED)
            }
        }
    }

    /// The next one that is not the last one told twice.
    async fn again(&mut self) {
        let doubled = tokio::time::sleep(DOUBLED);
        tokio::pin!(doubled);
        loop {
            tokio::select! {
                () = &mut doubled => break self.next().await,
                () = self.next() => {}
            }
        }
    }
}
