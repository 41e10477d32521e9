//! Keeps spare children of a backend: started in advance, and without a message so far.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::process;
use super::program::Program;

/// The interval at which missing spare children are started again: those that exited while they
/// waited, and those for which there was no room.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Starts spare children until the node stops, or the backend is retired.
pub(super) async fn keep(program: Arc<Program>) {
    loop {
        if program.retired.is_cancelled() {
            return;
        }
        let closing = program.children.closing();
        for _ in program.waiting.spares()..program.settings.warm {
            let started = tokio::select! {
                started = process::start_spare(&program) => started,
                // It may wait for its turn.
                () = closing.cancelled() => return,
                () = program.retired.cancelled() => return,
            };
            if started.is_err() {
                break;
            }
        }
        let wanted = timeout(CHECK_INTERVAL, program.spares_wanted.notified());
        tokio::select! {
            () = closing.cancelled() => return,
            () = program.retired.cancelled() => return,
            _ = wanted => {}
        }
    }
}
