use std::fs;
use std::future::poll_fn;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;

use super::*;
use crate::RequestName;

fn settings(file: &Path) -> Settings {
    // A busy machine must not refuse a call.
    Settings { to: To::File, file: file.into(), hold_ms: 60_000, ..Settings::default() }
}

fn start(settings: &Settings) -> Audit {
    Audit::start(settings, "n1", TenantLabels::default()).unwrap()
}

fn entry(method: &str) -> Entry<'_> {
    Entry { method: Some(method), ..Entry::default() }
}

fn records(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Runs this on a thread with ticks, beside the task that wakes calls.
fn run<T>(recorder: &Recorder, work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let recorder = recorder.clone();
    local.block_on(&runtime, async move {
        tick::install();
        tokio::task::spawn_local(async move {
            let mut ticks = tokio::time::interval(recorder.perform_interval().unwrap());
            poll_fn(|context| {
                while recorder.perform(context) && ticks.poll_tick(context).is_ready() {}
                Poll::<()>::Pending
            })
            .await;
        });
        work.await
    })
}

async fn begin(recorder: &Recorder, tenant: &Arc<str>, entry: &Entry<'_>) -> Result<Ticket, Held> {
    recorder.admit_in_time(Kind::Begin, tenant, entry).await
}

async fn call(recorder: &Recorder, tenant: &str) -> Result<(), Held> {
    let tenant = Arc::from(tenant);
    let ticket = begin(recorder, &tenant, &entry("tools/call")).await?;
    recorder.written(ticket).await
}

#[test]
fn a_call_goes_on_when_its_record_is_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit");
    let audit = start(&settings(&file));
    let recorder = audit.recorder();
    run(&recorder, async {
        for count in 1..50 {
            call(&recorder, "acme").await.unwrap();
            assert_eq!(records(&file).len(), count);
        }
    });
    recorder.end(&"acme".into(), &entry("tools/call"));
    audit.close();
    let records = records(&file);
    assert_eq!(records.len(), 50);
    assert_eq!((&records[0]["kind"], &records[49]["kind"]), (&"begin".into(), &"end".into()));
    assert_eq!((&records[0]["tenant"], &records[0]["node"]), (&"acme".into(), &"n1".into()));
}

#[test]
fn records_of_a_tick_need_no_other_thread() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit");
    let settings = settings(&file);
    let sink = Sink::open(&settings, "n1").unwrap();
    // No writer runs.
    let shared = Shared::new(&settings, "n1", TenantLabels::default(), Some(sink));
    let recorder = Recorder(Some(Arc::new(shared).add_queue()));
    run(&recorder, async {
        let (one, two) = tokio::join!(call(&recorder, "acme"), call(&recorder, "other"));
        assert_eq!((one, two), (Ok(()), Ok(())));
        recorder.end(&"acme".into(), &entry("tools/call"));
        assert_eq!(records(&file).len(), 2, "an end alone is no reason to write");
        call(&recorder, "acme").await.unwrap();
    });
    let kinds: Vec<_> = records(&file).iter().map(|record| record["kind"].clone()).collect();
    assert_eq!(kinds, ["begin", "begin", "end", "begin"]);
}

/// Counts how often a task is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn the_task_of_a_thread_is_woken_for_each_batch_that_the_writer_wrote() {
    let audit = Audit::collecting(&Settings { hold_ms: 50, ..Settings::default() });
    let (recorder, other) = (audit.recorder(), audit.recorder());
    let queue = Arc::clone(recorder.0.as_ref().unwrap());
    let wakes = Arc::new(Wakes::default());
    let waker = Arc::clone(&wakes).into();
    let woken = || wakes.0.swap(0, Ordering::Relaxed);
    // Nothing is written at once, so each tick is left to the writer.
    let tick = || {
        let ticket = recorder.begin(&"acme".into(), &entry("tools/call")).unwrap();
        assert!(!recorder.perform(&Context::from_waker(&waker)), "no task waits");
        ticket
    };
    tick();
    woken();
    let first = tick();
    assert_eq!(woken(), 1, "a record is to be written");
    let batch = queue.take().unwrap();
    let second = tick();
    woken();
    queue.finish(batch);
    assert_eq!(woken(), 1);
    recorder.perform(&Context::from_waker(&waker));
    let now = Instant::now;
    assert_eq!(recorder.outcome(first, now), Some(Ok(())));
    assert_eq!(recorder.outcome(second, now), None);
    assert!(!other.is_written(first) && other.outcome(first, now).is_none());
    assert!(recorder.has_made(second) && !other.has_made(second));
    let over = now() + Duration::from_millis(100);
    assert_eq!(recorder.outcome(second, || over), Some(Err(Held)));
    queue.finish(queue.take().unwrap());
    assert_eq!(woken(), 1);
    assert!(recorder.is_written(second));
    // Nothing waits for an end.
    recorder.perform(&Context::from_waker(&waker));
    recorder.end(&"acme".into(), &entry("tools/call"));
    queue.finish(queue.take().unwrap());
    assert_eq!(woken(), 0);
}

#[test]
fn a_begin_is_not_earlier_than_an_end_before_it_in_the_tick() {
    let recorder = Audit::collecting(&Settings::default()).recorder();
    let tenant = "acme".into();
    // A thread without a task has no ticks.
    let perform = || recorder.perform(&Context::from_waker(Waker::noop()));
    perform();
    let began = Instant::now();
    let end = Entry { at: Some(began + Duration::from_millis(900)), ..entry("second") };
    recorder.begin(&tenant, &entry("first")).unwrap();
    recorder.end(&tenant, &end);
    recorder.begin(&tenant, &entry("third")).unwrap();
    let taken = recorder.take_all();
    perform();
    recorder.begin(&tenant, &entry("fourth")).unwrap();
    let taken = [taken, recorder.take_all()].concat();
    let lines = taken.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let records = lines.map(|line| serde_json::from_slice::<Value>(line).unwrap());
    let times: Vec<_> = records.map(|record| record["time"].as_str().unwrap().to_owned()).collect();
    assert!(times[0] < times[1] && times[1] == times[2] && times[3] < times[1], "{times:?}");
}

#[test]
fn the_task_of_a_thread_is_woken_for_a_record_that_the_writer_took_within_its_tick() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(&folder.path().join("audit"));
    let sink = Sink::open(&settings, "n1").unwrap();
    // No writer runs.
    let shared = Shared::new(&settings, "n1", TenantLabels::default(), Some(sink));
    let recorder = Recorder(Some(Arc::new(shared).add_queue()));
    let queue = Arc::clone(recorder.0.as_ref().unwrap());
    let wakes = Arc::new(Wakes::default());
    let waker = Arc::clone(&wakes).into();
    recorder.perform(&Context::from_waker(&waker));
    let ticket = recorder.begin(&"acme".into(), &entry("tools/call")).unwrap();
    let batch = queue.take().unwrap();
    recorder.perform(&Context::from_waker(&waker));
    assert!(!recorder.is_written(ticket));
    wakes.0.store(0, Ordering::Relaxed);
    queue.finish(batch);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    assert!(recorder.is_written(ticket));
}

#[test]
fn a_line_that_the_disk_took_in_part_is_completed_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit");
    // A write beyond the limit is answered with this signal, which ends a process without a handler.
    let full = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::clone(&full)).unwrap();
    let audit = start(&settings(&file));
    let recorder = audit.recorder();
    run(&recorder, async {
        call(&recorder, "acme").await.unwrap();
        let unlimited = getrlimit(Resource::Fsize);
        let bytes = fs::metadata(&file).unwrap().len() + 20;
        setrlimit(Resource::Fsize, Rlimit { current: Some(bytes), ..unlimited }).unwrap();
        let mut held = std::pin::pin!(call(&recorder, "acme"));
        poll_fn(|context| {
            let call = held.as_mut().poll(context);
            assert!(call.is_pending() || !full.load(Ordering::Relaxed), "its record is not there");
            context.waker().wake_by_ref();
            if full.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        assert_eq!(fs::metadata(&file).unwrap().len(), bytes);
        setrlimit(Resource::Fsize, unlimited).unwrap();
        held.await.unwrap();
        call(&recorder, "acme").await.unwrap();
    });
    assert_eq!(records(&file).len(), 3);
}

#[test]
fn a_thread_without_ticks_and_without_a_task_that_wakes_is_served_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit");
    let audit = start(&Settings { sync: true, ..settings(&file) });
    let recorder = audit.recorder();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for _ in 0..20 {
            call(&recorder, "acme").await.unwrap();
        }
    });
    assert_eq!(records(&file).len(), 20);
}

#[test]
fn calls_have_different_ids_on_each_thread() {
    let settings = Settings::default();
    let audit = Audit::collecting(&settings);
    let other = Audit::collecting(&settings).recorder();
    let (one, two) = (audit.recorder(), audit.recorder());
    let ids = [&one, &one, &two, &two, &other].map(Recorder::next_call);
    let distinct: std::collections::HashSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len());
}

#[test]
fn a_log_that_is_off_makes_nothing() {
    let audit = start(&Settings::default());
    let recorder = audit.recorder();
    assert!(!audit.is_on() && !recorder.is_on() && recorder.perform_interval().is_none());
    recorder.refused(&"acme".into(), &entry("x"));
    audit.close();
}

#[test]
fn with_block_a_call_is_refused_in_time_while_the_disk_is_full_and_goes_on_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit");
    std::os::unix::fs::symlink("/dev/full", &file).unwrap();
    let audit = start(&Settings { hold_ms: 100, ..settings(&file) });
    let readiness = Readiness::default();
    audit.report_to(readiness.clone());
    let recorder = audit.recorder();
    run(&recorder, async {
        let began = Instant::now();
        assert_eq!(call(&recorder, "acme").await, Err(Held));
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(100) && took < Duration::from_secs(5), "{took:?}");
        assert_eq!(readiness.reasons().len(), 1);
        fs::remove_file(&file).unwrap();
        while call(&recorder, "acme").await.is_err() {}
    });
    assert!(readiness.reasons().is_empty());
    // The record of the call that was refused is there as well.
    assert!(records(&file).len() >= 2);
}

#[test]
fn with_drop_a_call_goes_on_while_the_disk_is_full_and_the_gap_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit");
    std::os::unix::fs::symlink("/dev/full", &file).unwrap();
    let bounded = Settings {
        tenant_queue_records_max: 3,
        when_full: WhenFull::Drop,
        hold_ms: 100,
        ..settings(&file)
    };
    let audit = start(&bounded);
    let recorder = audit.recorder();
    run(&recorder, async {
        for _ in 0..10 {
            call(&recorder, "acme").await.unwrap();
        }
        // Another tenant has its own part of the queue.
        call(&recorder, "other").await.unwrap();
    });
    fs::remove_file(&file).unwrap();
    audit.close();
    let records = records(&file);
    let of = |tenant: &str, kind: &str| {
        records.iter().filter(|r| r["tenant"] == tenant && r["kind"] == kind).count()
    };
    let gap = records.iter().find(|record| record["kind"] == "left_out").unwrap();
    assert_eq!((of("acme", "begin"), of("other", "begin")), (3, 1), "{records:?}");
    assert_eq!(
        (&gap["tenant"], &gap["reason"], &gap["count"]),
        (&"acme".into(), &"full".into(), &7.into())
    );
}

#[test]
fn with_block_a_tenant_at_its_bound_waits_and_others_have_room() {
    let bounded = Settings { tenant_queue_records_max: 2, hold_ms: 50, ..Settings::default() };
    let audit = Audit::collecting(&bounded);
    let recorder = audit.recorder();
    run(&recorder, async {
        let begin = async |tenant: &str| begin(&recorder, &tenant.into(), &entry("x")).await;
        for _ in 0..2 {
            begin("acme").await.unwrap();
        }
        assert_eq!(begin("acme").await, Err(Held));
        begin("other").await.unwrap();
        // A call that is over has room: it began within the bound.
        recorder.end(&"acme".into(), &entry("end"));
        let (waiting, _) = tokio::join!(begin("acme"), async {
            assert_eq!(recorder.take_all().iter().filter(|byte| **byte == b'\n').count(), 4);
        });
        waiting.unwrap();
    });
}

#[test]
fn with_block_a_call_that_waits_for_another_thread_is_refused_in_time() {
    let bounded = Settings { tenant_queue_records_max: 1, hold_ms: 50, ..Settings::default() };
    let audit = Audit::collecting(&bounded);
    let [one, other] = [0, 1].map(|_| audit.recorder());
    run(&other, async {
        begin(&other, &"acme".into(), &entry("x")).await.unwrap();
        // The other thread counts the record at the end of its tick.
        tokio::task::yield_now().await;
    });
    run(&one, async {
        // The task of this thread has seen that nothing waits.
        tokio::task::yield_now().await;
        let held = async { begin(&one, &"acme".into(), &entry("x")).await };
        let began = Instant::now();
        let held = tokio::time::timeout(Duration::from_secs(10), held).await;
        assert_eq!(held, Ok(Err(Held)));
        // A wait that nothing ended is looked at again when the timeout is over.
        let took = began.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
    });
}

#[test]
fn a_flood_of_refusals_is_cut_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit");
    let audit = start(&Settings { refusals_per_sec: 5, ..settings(&file) });
    let recorder = audit.recorder();
    for _ in 0..1_000 {
        recorder.refused(&"acme".into(), &entry("tools/call"));
        recorder.sign_in_failed(&"other".into(), &entry(""));
    }
    audit.close();
    let records = records(&file);
    for (tenant, kind) in [("acme", "refused"), ("other", "sign_in_failed")] {
        let of_tenant = || records.iter().filter(|record| record["tenant"] == tenant);
        let written = of_tenant().filter(|record| record["kind"] == kind).count() as u64;
        let left: u64 = of_tenant().filter_map(|record| record["count"].as_u64()).sum();
        assert!((5..100).contains(&written), "{written}");
        assert_eq!(written + left, 1_000);
    }
}

#[test]
fn many_threads_lose_no_record_while_the_file_is_rotated() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit");
    let rotating = Settings { file_bytes_max: 8 << 10, files_max: 1_000, ..settings(&file) };
    let audit = start(&rotating);
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let recorder = audit.recorder();
            std::thread::spawn(move || {
                run(&recorder, async {
                    for number in 0..500 {
                        let request = format!("{thread}-{number}");
                        let entry =
                            Entry { request: Some(RequestName::Text(&request)), ..entry("x") };
                        let ticket = begin(&recorder, &"acme".into(), &entry).await.unwrap();
                        if number % 50 == 0 {
                            recorder.written(ticket).await.unwrap();
                        }
                    }
                });
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    audit.close();
    let mut ids = std::collections::HashSet::new();
    let mut files = 0;
    for file in fs::read_dir(folder.path()).unwrap() {
        files += 1;
        for record in records(&file.unwrap().path()) {
            assert!(ids.insert(record["request"].as_str().unwrap().to_owned()));
        }
    }
    assert_eq!(ids.len(), 2_000);
    assert!(files > 5, "{files}");
}

#[test]
fn an_end_is_written_though_nothing_follows_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit");
    let audit = start(&settings(&file));
    let recorder = audit.recorder();
    // The writer sleeps, or has just written.
    for (count, pause) in [(1, 50), (2, 0), (3, 5), (4, 50)] {
        std::thread::sleep(Duration::from_millis(pause));
        recorder.end(&"acme".into(), &entry("x"));
        let until = Instant::now() + Duration::from_secs(10);
        while records(&file).len() < count {
            assert!(Instant::now() < until, "the end is not written");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
