//! Handles SIGINT and SIGTERM. The first signal stops the node in order, a second one at once.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Node;

/// The exit code that is expected of a process that SIGINT stopped.
const INTERRUPTED: i32 = 130;

/// Within this time a second signal counts as the same one. Wrappers such as `timeout` and `npm`
/// forward a signal that the terminal has already sent to the whole process group.
const DOUBLED: Duration = Duration::from_millis(500);

/// The signals that stop the process.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Held so that `SIGHUP` does not end the process. A node with a settings file reads it then.
    _hangup: Option<Signal>,
}

impl Signals {
    /// From now on these signals no longer end the process by default.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            _hangup: None,
        })
    }

    /// The same; and `SIGHUP`, which a closed terminal sends as well, does not end the process.
    pub(crate) fn of_server() -> io::Result<Self> {
        Ok(Self { _hangup: Some(signal(SignalKind::hangup())?), ..Self::new()? })
    }

    /// Waits for the next signal.
    pub(crate) async fn next_signal(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Waits for the first signal and then stops the node. Returns false if the node ended
    /// before.
    pub(crate) async fn stop_in_order(mut self, mut node: Node) -> bool {
        tokio::select! {
            () = self.next_signal() => {}
            () = node.wait_until_ended() => return false,
        }
        tracing::info!("stopping in order; a second signal ends the process at once");
        self.unless_again(node.stop()).await;
        true
    }

    /// Waits for `work`; another signal ends the process at once. The guards then end the servers
    /// that still run.
    pub(crate) async fn unless_again<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            done = work => done,
            () = self.again() => {
                tracing::warn!("process ended at once by a second signal");
                std::process::exit(INTERRUPTED)
            }
        }
    }

    /// Waits for a signal that is not a repetition of the last one.
    async fn again(&mut self) {
        let doubled = tokio::time::sleep(DOUBLED);
        tokio::pin!(doubled);
        loop {
            tokio::select! {
                () = &mut doubled => break self.next_signal().await,
                () = self.next_signal() => {}
            }
        }
    }
}
