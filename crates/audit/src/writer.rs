//! The thread that writes what threads that serve clients do not write themselves. It repeats a write
//! until it succeeds, so that records keep their order and none is lost while the node runs.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::entry::{Entry, Kind};
use crate::line;
use crate::metrics::{FAILING, LeftOut, RECORDS, WRITES_FAILED};
use crate::output::{Output, Rest};
use crate::queue::{Batch, Queue};
use crate::shared::{Next, Shared, lock};
use crate::sink::Sink;

/// The waits between two attempts of a write that failed.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// The least time between two reports of records that were left out, or of writes that fail.
const REPORT_EVERY: Duration = Duration::from_secs(5);
const REPORT_FAILURE_EVERY: Duration = Duration::from_secs(60);

/// How long a write is repeated while the node stops.
const CLOSING_MAX: Duration = Duration::from_secs(1);

/// How long the writer sleeps if there is nothing to write or to report.
const SLEEP_MAX: Duration = Duration::from_secs(3_600);

/// The node stops, and the destination takes nothing.
struct GivesUp;

/// Writes until the log is closed.
pub(crate) fn run(shared: &Shared) {
    let mut writer = Writer {
        shared,
        queues: Vec::new(),
        batches: Vec::new(),
        reported_at: None,
        failure_reported_at: None,
        closing_since: None,
    };
    loop {
        let at_most = if shared.has_left_out() { REPORT_EVERY } else { SLEEP_MAX };
        let next = shared.wait_for_work(at_most);
        if writer.write_all(next).is_err() || next == Next::Close {
            break;
        }
    }
    shared.set_closed();
}

struct Writer<'a> {
    shared: &'a Shared,
    queues: Vec<Arc<Queue>>,
    batches: Vec<(Arc<Queue>, Batch)>,
    reported_at: Option<Instant>,
    failure_reported_at: Option<Instant>,
    /// When a write failed while the node stops.
    closing_since: Option<Instant>,
}

impl Writer<'_> {
    /// Writes what all threads have, and lets the calls go on that waited for it.
    fn write_all(&mut self, next: Next) -> Result<(), GivesUp> {
        let shared = self.shared;
        let mut output = lock(&shared.output);
        let Some(Output { sink, rest, .. }) = &mut *output else { return Ok(()) };
        if let Some(Rest { queue, batch, done }) = rest.take() {
            self.write(sink, &batch.bytes, done)?;
            self.finish(sink, [(queue, batch)])?;
        }
        let mut queues = std::mem::take(&mut self.queues);
        shared.queues(&mut queues);
        let mut batches = std::mem::take(&mut self.batches);
        batches.extend(queues.drain(..).filter_map(|queue| {
            let batch = queue.take()?;
            Some((queue, batch))
        }));
        self.queues = queues;
        shared.show_waiting();
        for (_, batch) in &batches {
            self.write(sink, &batch.bytes, 0)?;
        }
        if !batches.is_empty() {
            self.finish(sink, batches.drain(..))?;
        }
        self.batches = batches;
        self.report(sink, next)
    }

    /// Lets the calls go on whose records are written.
    fn finish(
        &mut self,
        sink: &mut Sink,
        batches: impl IntoIterator<Item = (Arc<Queue>, Batch)>,
    ) -> Result<(), GivesUp> {
        self.attempt(sink, false, |sink| sink.sync())?;
        self.shared.set_written();
        batches.into_iter().for_each(|(queue, batch)| queue.finish(batch));
        Ok(())
    }

    /// Writes whole lines, of which so many bytes are written already.
    fn write(&mut self, sink: &mut Sink, lines: &[u8], mut done: usize) -> Result<(), GivesUp> {
        let is_within_line = |done: usize| done > 0 && lines[done - 1] != b'\n';
        if !is_within_line(done) {
            self.attempt(sink, false, |sink| sink.prepare(lines.len()))?;
        }
        while done < lines.len() {
            done += self.attempt(sink, is_within_line(done), |sink| sink.write(&lines[done..]))?;
        }
        Ok(())
    }

    /// Repeats an attempt until it succeeds, or the node stops.
    fn attempt<T>(
        &mut self,
        sink: &mut Sink,
        is_within_line: bool,
        mut attempt: impl FnMut(&mut Sink) -> io::Result<T>,
    ) -> Result<T, GivesUp> {
        let mut wait = RETRY_MIN;
        loop {
            match attempt(sink) {
                Ok(done) => {
                    if self.shared.set_failing(false) {
                        FAILING.set(0);
                        tracing::info!("audit records are written again");
                    }
                    return Ok(done);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => self.report_failure(&error),
            }
            if self.shared.wait_to_retry(wait) == Next::Close {
                let since = *self.closing_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= CLOSING_MAX {
                    return Err(GivesUp);
                }
                std::thread::sleep(RETRY_MIN);
            }
            wait = (wait * 2).min(RETRY_MAX);
            // If it cannot be opened, the next attempt fails again, and says why.
            let _ = sink.reopen(is_within_line);
        }
    }

    fn report_failure(&mut self, error: &io::Error) {
        WRITES_FAILED.inc();
        FAILING.set(1);
        let is_new = self.shared.set_failing(true);
        let is_due = self.failure_reported_at.is_none_or(|at| at.elapsed() >= REPORT_FAILURE_EVERY);
        if is_new || is_due {
            self.failure_reported_at = Some(Instant::now());
            tracing::error!(
                %error,
                when_full = ?self.shared.settings.when_full,
                "audit records cannot be written; make room, or repair what `audit.to` names"
            );
        }
    }

    /// Writes how many records of each tenant were left out.
    fn report(&mut self, sink: &mut Sink, next: Next) -> Result<(), GivesUp> {
        let is_due = self.reported_at.is_none_or(|at| at.elapsed() >= REPORT_EVERY);
        if !self.shared.has_left_out() || !(is_due || next == Next::Close) {
            return Ok(());
        }
        self.reported_at = Some(Instant::now());
        self.shared.begin_report();
        let (mut lines, mut clock) = (Vec::new(), Clock::default());
        let mut records = 0;
        for share in self.shared.all_shares() {
            for reason in LeftOut::ALL {
                let count = share.take_left_out(reason);
                if count == 0 {
                    continue;
                }
                let (reason, count) = (Some(reason.as_str()), Some(count));
                let entry = Entry { reason, count, ..Entry::default() };
                clock.write(&mut lines, Instant::now());
                let tenant = Some(&*share.tenant).filter(|tenant| !tenant.is_empty());
                let place = line::place(&self.shared.node, tenant);
                line::write(&mut lines, Kind::LeftOut, &place, None, &entry);
                records += 1;
            }
        }
        self.write(sink, &lines, 0)?;
        self.attempt(sink, false, |sink| sink.sync())?;
        RECORDS[Kind::LeftOut as usize].inc_by(records);
        Ok(())
    }
}
