//! Writes the audit records of a thread.

use std::future::poll_fn;
use std::task::Poll;

use audit::Recorder;
use tokio::time::{MissedTickBehavior, interval};

use crate::held_dispatch::go_on;

/// Writes the records of this thread, and lets the requests go on whose records are written, or cannot be
/// written in time.
pub(crate) fn perform_records(recorder: &Recorder) {
    let Some(every) = recorder.perform_interval() else { return };
    let recorder = recorder.clone();
    actix_rt::spawn(async move {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        poll_fn(|context| {
            loop {
                let (task_waits, message_waits) = (recorder.perform(context), go_on(&recorder));
                // Nearly always the records were written at once, and no timer is needed.
                if !(task_waits || message_waits) || ticks.poll_tick(context).is_pending() {
                    return Poll::<()>::Pending;
                }
            }
        })
        .await;
    });
}
