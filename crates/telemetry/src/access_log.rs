//! The access log: one line an exchange, on standard error with the other lines of the log.
//!
//! The threads that serve clients decide whether a record is written, and put it into a bounded
//! queue. One thread writes the lines. If standard error is not read, the queue fills and records
//! are left out, counted and reported; no request waits.

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::access_line;
use crate::access_queue::AccessQueue;
use crate::access_rate::{ErrorRate, SampleRate};
use crate::metrics::{ACCESS_LEFT_OUT, LeftOut};
use crate::{ExchangeRecord, Format, Settings};

/// Most records that wait for the writer: 160,000 a second, with the time below.
const QUEUE_MAX: usize = 8_192;

/// How long the writer collects records before it writes them together.
const COLLECT: Duration = Duration::from_millis(20);

/// A write to standard error has at least this many bytes, if there are so many.
const WRITE_BYTES: usize = 32 << 10;

/// The least time between two reports of records that were left out.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// How long the writer sleeps if there is nothing to write or to report.
const SLEEP_MAX: Duration = Duration::from_secs(3_600);

/// The access log of this process, once logging is set up.
static OF_PROCESS: OnceLock<AccessLog> = OnceLock::new();

/// Which exchanges get a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// None.
    Off,
    /// Those that ended with an error or were refused.
    Errors,
    /// The same, and samples of the others.
    Sampled,
    /// All.
    All,
}

/// Takes the records of exchanges. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct AccessLog(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    access: Access,
    samples: SampleRate,
    errors: ErrorRate,
    queue: AccessQueue,
    /// Records left out since the last report, by reason.
    left_out: [AtomicU64; 2],
    format: Format,
    writing: Mutex<Writing>,
}

/// What the writer keeps between two rounds.
#[derive(Debug, Default)]
struct Writing {
    records: Vec<ExchangeRecord>,
    reported_at: Option<Instant>,
}

impl AccessLog {
    /// An access log that takes nothing.
    pub fn off() -> Self {
        Self(None)
    }

    /// The access log of this process. It takes nothing before [`crate::init`], and in a program
    /// that embeds a node and sets up logging itself.
    pub fn of_process() -> Self {
        OF_PROCESS.get().cloned().unwrap_or_default()
    }

    /// A log under these settings whose records stay in its queue until [`AccessLog::take_all`].
    pub fn collecting(settings: &Settings) -> Self {
        let access = settings.access;
        Self((access != Access::Off).then(|| {
            Arc::new(Shared {
                access,
                samples: SampleRate::new(settings.access_samples_per_sec),
                errors: ErrorRate::new(settings.access_errors_per_sec),
                queue: AccessQueue::new(QUEUE_MAX),
                left_out: Default::default(),
                format: settings.format,
                writing: Mutex::default(),
            })
        }))
    }

    /// Whether records are taken. If not, there is no need to make one.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Takes a record, unless the settings leave it out. Never waits for the writer.
    pub fn add(&self, record: ExchangeRecord) {
        let Some(shared) = &self.0 else { return };
        let now_ms = || {
            let since = record.ended_at.duration_since(UNIX_EPOCH).unwrap_or_default();
            since.as_millis() as u64
        };
        let is_taken = match (shared.access, record.outcome.is_error()) {
            (Access::All, _) => true,
            (Access::Errors | Access::Sampled, true) => {
                let takes = shared.errors.takes(record.tenant.as_ref(), now_ms());
                if !takes {
                    shared.leave_out(LeftOut::Rate);
                }
                takes
            }
            (Access::Sampled, false) => shared.samples.takes(now_ms()),
            (Access::Errors, false) | (Access::Off, _) => false,
        };
        if is_taken && !shared.queue.add(record) {
            shared.leave_out(LeftOut::Full);
        }
    }

    /// All records that were taken and not written.
    pub fn take_all(&self) -> Vec<ExchangeRecord> {
        let mut records = Vec::new();
        if let Some(shared) = &self.0 {
            shared.queue.take_all(&mut records);
        }
        records
    }

    /// Starts the thread that writes for the rest of the process. It sleeps while there is nothing
    /// to write.
    pub(crate) fn start(settings: &Settings) -> io::Result<()> {
        let log = Self::collecting(settings);
        std::sync::LazyLock::force(&ACCESS_LEFT_OUT);
        if let Some(shared) = log.0.clone() {
            let writing = std::thread::Builder::new().name("access-log".into());
            writing.spawn(move || shared.write_forever())?;
        }
        // Set up at most once: a second subscriber was refused before.
        let _ = OF_PROCESS.set(log);
        Ok(())
    }
}

/// Writes the records that wait, for a process that is about to end.
pub fn flush_access_log() {
    if let Some(AccessLog(Some(shared))) = OF_PROCESS.get() {
        shared.write();
    }
}

impl Shared {
    fn leave_out(&self, reason: LeftOut) {
        ACCESS_LEFT_OUT[reason as usize].inc();
        if self.left_out[reason as usize].fetch_add(1, Ordering::Relaxed) == 0 {
            self.queue.wake();
        }
    }

    fn write_forever(&self) {
        loop {
            let has_left_out = self.left_out.iter().any(|left| left.load(Ordering::Relaxed) > 0);
            self.queue.wait(if has_left_out { REPORT_EVERY } else { SLEEP_MAX });
            std::thread::sleep(COLLECT);
            self.write();
        }
    }

    /// Writes all records that wait, and reports what was left out.
    fn write(&self) {
        // Held by the thread that writes, and at the end of the process.
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.queue.take_all(&mut writing.records);
        let mut lines = String::new();
        for record in writing.records.drain(..) {
            access_line::write(&mut lines, &record, self.format);
            if lines.len() >= WRITE_BYTES {
                write_out(&mut lines);
            }
        }
        write_out(&mut lines);
        if writing.reported_at.is_none_or(|at| at.elapsed() >= REPORT_EVERY) && self.report() {
            writing.reported_at = Some(Instant::now());
        }
    }

    /// Reports what was left out since the last report. Returns whether there was anything.
    fn report(&self) -> bool {
        let [above_rate, queue_full] =
            [0, 1].map(|reason: usize| self.left_out[reason].swap(0, Ordering::Relaxed));
        if above_rate + queue_full == 0 {
            return false;
        }
        tracing::warn!(
            above_rate,
            queue_full,
            "exchanges were left out of the access log; `log.access_errors_per_sec` limits the \
             errors of each tenant, and the queue is full if standard error is not read"
        );
        true
    }
}

/// Writes whole lines at once, so that no other line of the log comes in between.
fn write_out(lines: &mut String) {
    // Nothing can be done if standard error is closed.
    let _ = io::stderr().lock().write_all(lines.as_bytes());
    lines.clear();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;

    fn log(access: Access) -> AccessLog {
        let settings = Settings {
            access,
            access_samples_per_sec: 20,
            access_errors_per_sec: 5,
            ..Settings::default()
        };
        AccessLog::collecting(&settings)
    }

    fn record(tenant: &str, outcome: Outcome) -> ExchangeRecord {
        ExchangeRecord {
            tenant: Some(tenant.into()),
            outcome,
            status: 200,
            ..ExchangeRecord::begun("POST", "mcp", &"n".into())
        }
    }

    /// How many of 100 results and 100 errors of each of two tenants at one time are taken.
    #[track_caller]
    fn check(access: Access, results: usize, errors: usize) {
        let log = log(access);
        for tenant in ["a", "b"] {
            for outcome in [Outcome::Result, Outcome::Error] {
                (0..100).for_each(|_| log.add(record(tenant, outcome)));
            }
        }
        let records = log.take_all();
        let errors_taken = records.iter().filter(|record| record.outcome.is_error()).count();
        assert_eq!((records.len() - errors_taken, errors_taken), (results, errors), "{access:?}");
    }

    #[test]
    fn each_setting_takes_what_it_says() {
        check(Access::Off, 0, 0);
        check(Access::Errors, 0, 10);
        check(Access::Sampled, 2, 10);
        check(Access::All, 200, 200);
        assert!(!AccessLog::default().is_on() && !log(Access::Off).is_on());
    }

    #[test]
    fn a_full_queue_leaves_records_out_and_counts_them() {
        let log = log(Access::All);
        let before = ACCESS_LEFT_OUT[LeftOut::Full as usize].get();
        (0..QUEUE_MAX + 7).for_each(|_| log.add(record("a", Outcome::Result)));
        assert_eq!(ACCESS_LEFT_OUT[LeftOut::Full as usize].get() - before, 7);
        assert_eq!(log.take_all().len(), QUEUE_MAX);
    }
}
