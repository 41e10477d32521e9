//! Applies [`LineLimit`] to the lines of level `info` and above, and reports how many were left
//! out. An event without a subscriber, or below the configured level, does not reach this code.

use std::collections::hash_map::RandomState;
use std::fmt::{self, Write as _};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::line_limit::{Key, LeftOut, LineLimit, Sample, Verdict};
use crate::metrics;

/// The `name` of an event whose caller limits its lines itself:
/// `info!(name: LIMITED_BY_CALLER, …)`. The limit by call site does not apply to it.
pub const LIMITED_BY_CALLER: &str = "limited by caller";

/// The fields by which the lines of one call site are counted separately.
const TENANT_FIELDS: [&str; 2] = ["tenant", "backend"];

/// How long lines that were left out may wait until their number is logged.
const REPORT_WITHIN: Duration = Duration::from_secs(5);

/// Longest message that a report repeats, in bytes; a longer one is cut.
const MESSAGE_BYTES_MAX: usize = 256;

/// The limit of this process, once logging is set up.
static LIMITER: OnceLock<Arc<Limiter>> = OnceLock::new();

/// Logs now how many lines were left out, for a process that is about to end. Otherwise their
/// number is logged within five seconds.
pub fn report_left_out() {
    if let Some(limiter) = LIMITER.get() {
        limiter.report();
    }
}

/// The layer of a subscriber that leaves lines out.
pub(crate) struct LimitLayer(Arc<Limiter>);

impl LimitLayer {
    /// A layer with this limit, and the state that it shares with the thread that reports.
    pub(crate) fn new(limit: LineLimit) -> (Self, Arc<Limiter>) {
        let limiter = Arc::new(Limiter {
            limit: Mutex::new(limit),
            left_out: Condvar::new(),
            hasher: RandomState::new(),
        });
        (Self(Arc::clone(&limiter)), limiter)
    }
}

impl<S: Subscriber> Layer<S> for LimitLayer {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        *metadata.level() > Level::INFO
            || metadata.name() == LIMITED_BY_CALLER
            || self.0.admits(event, Instant::now())
    }
}

/// What the layer shares with the thread that reports.
pub(crate) struct Limiter {
    limit: Mutex<LineLimit>,
    /// Notified when a line was left out and none was waiting for a report.
    left_out: Condvar,
    hasher: RandomState,
}

impl Limiter {
    /// Starts the thread that reports for the rest of the process. It sleeps while no line is left
    /// out.
    pub(crate) fn start(limiter: Arc<Self>) -> io::Result<()> {
        let reporting = Arc::clone(&limiter);
        std::thread::Builder::new().name("log-limit".into()).spawn(move || {
            loop {
                reporting.wait_for_left_out();
                std::thread::sleep(REPORT_WITHIN);
                reporting.report();
            }
        })?;
        // Set up at most once: a second subscriber was refused before.
        let _ = LIMITER.set(limiter);
        Ok(())
    }

    fn admits(&self, event: &Event<'_>, now: Instant) -> bool {
        let metadata = event.metadata();
        let mut tenant = TenantHash(None, &self.hasher);
        event.record(&mut tenant);
        let site = metadata.callsite();
        let key = match tenant.0 {
            Some(tenant) => Key::Tenant(site, tenant),
            None => Key::Site(site),
        };
        let verdict = self.lock().admit(key, now);
        let Verdict::LeaveOut { is_first, needs_sample } = verdict else { return true };
        metrics::LINES_LEFT_OUT.inc();
        if let Some(key) = needs_sample {
            // The fields of the event are formatted while other threads may log.
            let sample = sample(event);
            self.lock().add_sample(&key, sample);
        }
        if is_first {
            self.left_out.notify_one();
        }
        false
    }

    fn wait_for_left_out(&self) {
        let waiting = self.left_out.wait_while(self.lock(), |limit| !limit.has_left_out());
        drop(waiting.unwrap_or_else(PoisonError::into_inner));
    }

    /// Logs how many lines were left out since the last report, a line for each call site and
    /// tenant.
    pub(crate) fn report(&self) {
        let all = self.lock().take_left_out();
        all.iter().for_each(write_report);
    }

    /// No code panics under this lock.
    fn lock(&self) -> MutexGuard<'_, LineLimit> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs a report at the level of the lines that it stands for: a level that shows them shows it.
fn write_report(LeftOut { lines, sample }: &LeftOut) {
    macro_rules! write_at {
        ($level:ident) => {
            tracing::$level!(
                name: LIMITED_BY_CALLER,
                target: "telemetry",
                lines,
                like = sample.message,
                site = sample.site,
                of = sample.tenant,
                "{lines} more lines like this were left out; `log.lines_per_sec` is the limit"
            )
        };
    }
    match sample.level {
        Level::ERROR => write_at!(error),
        Level::WARN => write_at!(warn),
        _ => write_at!(info),
    }
}

fn sample(event: &Event<'_>) -> Sample {
    let metadata = event.metadata();
    let mut texts = Texts::default();
    event.record(&mut texts);
    Sample {
        level: *metadata.level(),
        site: format!("{}:{}", metadata.target(), metadata.line().unwrap_or_default()),
        message: texts.message,
        tenant: texts.tenant,
    }
}

/// Hashes the first field of [`TENANT_FIELDS`].
struct TenantHash<'a>(Option<u64>, &'a RandomState);

impl Visit for TenantHash<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.0.is_none() && TENANT_FIELDS.contains(&field.name()) {
            let mut hashing = Hashing(self.1.build_hasher());
            // Hashing cannot fail.
            let _ = write!(hashing, "{value:?}");
            self.0 = Some(hashing.0.finish());
        }
    }
}

/// Hashes what is written.
struct Hashing<H>(H);

impl<H: Hasher> fmt::Write for Hashing<H> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// The texts of an event that a report repeats.
#[derive(Default)]
struct Texts {
    message: String,
    tenant: Option<String>,
}

impl Visit for Texts {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let is_tenant = self.tenant.is_none() && TENANT_FIELDS.contains(&field.name());
        if field.name() != "message" && !is_tenant {
            return;
        }
        let mut text = format!("{value:?}");
        text.truncate(text.floor_char_boundary(MESSAGE_BYTES_MAX));
        if is_tenant {
            self.tenant = Some(text);
        } else {
            self.message = text;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::subscriber::with_default;
    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::{fmt, registry};

    use super::*;

    /// Keeps what was logged.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Log {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    impl Log {
        fn lines(&self) -> Vec<String> {
            let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
            text.lines().map(str::to_owned).collect()
        }
    }

    /// Runs `act` with 10 lines a second and a burst of 20; returns the lines, in both formats.
    fn logged(act: impl Fn(&Limiter)) -> [Vec<String>; 2] {
        let (text, json) = (Log::default(), Log::default());
        let (layer, limiter) = LimitLayer::new(LineLimit::new(10, 20));
        let format = fmt::layer().with_ansi(false).with_writer(text.clone());
        with_default(registry().with(format).with(layer), || act(&limiter));
        let (layer, limiter) = LimitLayer::new(LineLimit::new(10, 20));
        let format = fmt::layer().json().flatten_event(true).with_writer(json.clone());
        with_default(registry().with(format).with(layer), || act(&limiter));
        [text.lines(), json.lines()]
    }

    #[test]
    fn a_thousand_provoked_lines_are_a_burst_and_their_number_in_both_formats() {
        let [text, json] = logged(|limiter| {
            (0..1_000).for_each(|number| tracing::warn!(number, "refused a peer"));
            limiter.report();
        });
        // A few more than the burst: the lines took a while.
        for (lines, field) in [(text, "lines="), (json, "\"lines\":")] {
            assert!((21..40).contains(&lines.len()), "{}", lines.len());
            let report = lines.last().unwrap();
            let left_out = 1_000 - (lines.len() - 1);
            assert!(report.contains(&format!("{left_out} more lines like this")), "{report}");
            assert!(report.contains(&format!("{field}{left_out}")), "{report}");
            assert!(report.contains("refused a peer") && report.contains("WARN"), "{report}");
            assert!(report.contains("telemetry::limit_layer::tests:"), "{report}");
        }
    }

    #[test]
    fn one_tenant_hides_no_line_of_another() {
        let name = String::from("a/main");
        let [text, _] = logged(|limiter| {
            for _ in 0..1_000 {
                tracing::error!(backend = name, "server failed");
            }
            for tenant in ["b", "c"] {
                (0..5).for_each(|_| tracing::info!(%tenant, "session refused"));
            }
            limiter.report();
        });
        let of = |tenant: &str| text.iter().filter(|line| line.contains(tenant)).count();
        assert!(of("backend=\"a/main\"") < 40);
        assert_eq!((of("tenant=b"), of("tenant=c")), (5, 5));
        assert_eq!(of("of=\"a/main\""), 1, "{text:?}");
        assert!(text.last().unwrap().contains("ERROR"), "{text:?}");
    }

    /// A field whose text says whether other threads may log while it is formatted.
    struct Probe<'a>(&'a Limiter);

    impl std::fmt::Debug for Probe<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            if self.0.limit.try_lock().is_err() {
                panic!("formatted while the limit is locked");
            }
            f.write_str("probe")
        }
    }

    #[test]
    fn fields_are_formatted_while_other_threads_may_log() {
        let [text, _] = logged(|limiter| {
            (0..100).for_each(|_| tracing::warn!(backend = ?Probe(limiter), "refused"));
            limiter.report();
        });
        assert!(text.last().unwrap().contains("of=\"probe\""), "{text:?}");
    }

    #[test]
    fn a_caller_with_a_limit_of_its_own_and_lines_for_debugging_are_not_limited() {
        let [text, _] = logged(|_| {
            for _ in 0..100 {
                tracing::info!(name: LIMITED_BY_CALLER, "stderr of a child");
                tracing::debug!("a detail");
            }
        });
        assert_eq!(text.len(), 200);
    }

    /// Sets the subscriber of the process: the thread that reports needs it.
    #[test]
    fn the_number_is_logged_although_no_further_line_follows() {
        let log = Log::default();
        let (layer, limiter) = LimitLayer::new(LineLimit::new(10, 20));
        let format = fmt::layer().with_ansi(false).with_writer(log.clone());
        tracing::subscriber::set_global_default(registry().with(format).with(layer)).unwrap();
        Limiter::start(limiter).unwrap();
        for round in 1..=2 {
            (0..500).for_each(|_| tracing::warn!("accepting failed"));
            let until = Instant::now() + 3 * REPORT_WITHIN;
            let reports = || log.lines().iter().filter(|line| line.contains("more lines")).count();
            while reports() < round {
                assert!(Instant::now() < until, "{:?}", log.lines());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Prints the cost of a line that is left out: `cargo test --release -p telemetry -- --ignored
    /// --nocapture cost`.
    #[test]
    #[ignore = "a measurement"]
    #[allow(clippy::print_stdout)]
    fn the_cost_of_a_line_that_is_left_out() {
        const LINES: u32 = 1_000_000;
        let (layer, _) = LimitLayer::new(LineLimit::new(1, 1));
        let format = fmt::layer().with_ansi(false).with_writer(io::sink);
        with_default(registry().with(format).with(layer), || {
            let (backend, session) = (String::from("acme/main"), "0123abcd");
            let began = Instant::now();
            for _ in 0..LINES {
                tracing::warn!(backend, ?session, reason = "full", "server was not started");
            }
            println!("{} ns a line", (began.elapsed() / LINES).as_nanos());
        });
    }
}
