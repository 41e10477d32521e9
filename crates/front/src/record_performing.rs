//! Writes the audit records of a thread.

use std::future::poll_fn;
use std::task::Poll;

use audit::Recorder;
use tokio::time::{MissedTickBehavior, interval};

/// Writes the records of this thread, and lets the requests go on whose records are written, or cannot be
/// written in time.
pub(crate) fn perform_records(recorder: &Recorder) {
    let Some(every) = recorder.perform_interval() else { return };
    let recorder = recorder.clone();
    actix_rt::spawn(async move {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        poll_fn(|context| {
            // Nearly always the records were written at once, and no timer is needed.
            while recorder.perform(context) && ticks.poll_tick(context).is_ready() {}
            Poll::<()>::Pending
        })
        .await;
    });
}
