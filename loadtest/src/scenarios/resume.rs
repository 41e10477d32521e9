//! Streams that are all cut at once and resume at once: the time until all are resumed, the
//! time until each has had a new event, and the number of lost events.
//!
//! Each session has a call in progress that counts slowly, so every stream has a next event.
//! The numbers in the events show whether an event was lost.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use indicatif::ProgressBar;
use tokio::task::JoinSet;

use super::Load;
use crate::figures::{Figures, Stopwatch, Tally};
use crate::mcp::{self, Session, Tool};
use crate::target::Target;
use crate::wire::{Event, Events, Wire};

/// The maximum number of calls that start concurrently. A call has started with its first
/// progress event.
const BEGINNING_MAX: usize = 1_000;
/// The interval between the progress events of a call.
const INTERVAL_MS: u64 = 1_000;
/// The longest time until a resumed stream has a new event. After it, the stream has failed.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn run(
    target: &Target,
    load: &Load,
    bar: &ProgressBar,
) -> anyhow::Result<Figures> {
    bar.set_length(load.sessions as u64 * 2);
    // Each call is still in progress when the last one has started.
    let tool = target.count(load.sessions as u64 / 100 + 60, INTERVAL_MS)?;
    let mut tally = Tally::new()?;
    let cut = begin(target, load.sessions, &tool, bar, &mut tally).await?;
    let watch = Stopwatch::start(target)?;
    let began = Instant::now();
    let mut resuming = JoinSet::new();
    for (number, cut) in cut.into_iter().enumerate() {
        let target = target.clone();
        resuming.spawn(async move {
            let resumed = tokio::time::timeout(PATIENCE, cut.resume(&target, number));
            resumed.await.context("a resumed stream had no new event within 60 s")?
        });
    }
    let (mut all_attached, mut all_live) = (Duration::ZERO, Duration::ZERO);
    let mut lost = 0;
    while let Some(resumed) = resuming.join_next().await {
        match resumed? {
            Ok(back) => {
                tally.took(back.attached - began);
                lost += back.lost;
                all_attached = all_attached.max(back.attached - began);
                all_live = all_live.max(back.live - began);
            }
            Err(error) => tally.failed(&error),
        }
        bar.inc(1);
    }
    let mut figures = watch.stop("resume", tally)?;
    figures.more.extend([
        ("all_attached_secs".to_owned(), all_attached.as_secs_f64()),
        ("all_live_secs".to_owned(), all_live.as_secs_f64()),
        ("events_lost".to_owned(), lost as f64),
    ]);
    Ok(figures)
}

/// A stream that was cut after some of its events.
struct Cut {
    session: Session,
    /// The last event id that was received.
    cursor: Box<str>,
    /// The last number that was received.
    seen: u64,
}

/// A stream that was resumed.
struct Back {
    /// The time of the answer to the resume request.
    attached: Instant,
    /// The time of the first new event, up to [`INTERVAL_MS`] later.
    live: Instant,
    /// The number of events that were not received.
    lost: u64,
}

async fn begin(
    target: &Target,
    sessions: usize,
    tool: &Tool,
    bar: &ProgressBar,
    tally: &mut Tally,
) -> anyhow::Result<Vec<Cut>> {
    let mut open = Vec::with_capacity(sessions);
    let mut beginning = JoinSet::new();
    let mut next = 0;
    while next < sessions || !beginning.is_empty() {
        while next < sessions && beginning.len() < BEGINNING_MAX {
            let (target, tool) = (target.clone(), tool.clone());
            beginning.spawn(async move { listen(&target, &tool, next).await });
            next += 1;
        }
        let Some(begun) = beginning.join_next().await else { break };
        match begun? {
            Ok(one) => open.push(one),
            Err(error) => tally.failed(&error),
        }
        bar.inc(1);
    }
    // The last call has started. All connections close here.
    Ok(open.into_iter().map(|(cut, _wire)| cut).collect())
}

async fn listen(target: &Target, tool: &Tool, number: usize) -> anyhow::Result<(Cut, Wire)> {
    let endpoint = &target.endpoints[number % target.endpoints.len()];
    let source = mcp::source(number / target.endpoints.len());
    let mut wire = Wire::connect(endpoint.address, source).await?;
    let mut session = target.session(endpoint, &mut wire).await?;
    let (_, request) = session.call(tool, true);
    wire.send(request.as_bytes()).await?;
    let head = wire.head().await?;
    ensure!(head.is_stream, "a long call was not answered with a stream");
    let mut events = Events::of(&head);
    let mut cut = Cut { session, cursor: "".into(), seen: 0 };
    while cut.seen == 0 {
        let event = wire.event(&mut events).await?.context("the stream ended")?;
        cut.see(&event);
    }
    Ok((cut, wire))
}

impl Cut {
    /// Records an event. Returns the number of missing events before it.
    fn see(&mut self, event: &Event) -> u64 {
        if let Some(id) = &event.id {
            self.cursor = id.clone();
        }
        let Some(number) = progress_of(event) else { return 0 };
        let missing = number.saturating_sub(self.seen + 1);
        self.seen = number;
        missing
    }

    /// Resumes the stream at another endpoint, and waits for the first new event.
    async fn resume(mut self, target: &Target, number: usize) -> anyhow::Result<Back> {
        let endpoint = &target.endpoints[(number + 1) % target.endpoints.len()];
        let session = self.session.at(endpoint);
        let source = mcp::source(number / target.endpoints.len());
        let mut wire = Wire::connect(endpoint.address, source).await?;
        wire.send(session.get(Some(&self.cursor)).as_bytes()).await?;
        let head = wire.head().await?;
        ensure!(head.status == 200, "a resume was answered {}", head.status);
        let attached = Instant::now();
        let mut events = Events::of(&head);
        let before = self.seen;
        let mut lost = 0;
        while self.seen == before {
            let event = wire.event(&mut events).await?.context("a resumed stream ended")?;
            lost += self.see(&event);
        }
        Ok(Back { attached, live: Instant::now(), lost })
    }
}

/// The number that a progress notification reports.
pub(super) fn progress_of(event: &Event) -> Option<u64> {
    let at = memchr::memmem::find(&event.data, b"\"progress\":")? + "\"progress\":".len();
    let rest = event.data[at..].trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}
