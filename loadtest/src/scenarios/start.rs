//! The start of a server: the time until it prints its URL.

use std::time::Instant;

use indicatif::ProgressBar;

use crate::figures::{Figures, Stopwatch, Tally};
use crate::target::Target;
use crate::{ours, target};

/// The number of starts.
const TIMES: u64 = 10;

pub(crate) fn run(target: &Target, bar: &ProgressBar) -> anyhow::Result<Figures> {
    bar.set_length(TIMES);
    let name = target.name.as_str();
    anyhow::ensure!(ours::names().contains(&name), "`start` runs only our own servers");
    let mut tally = Tally::new()?;
    let nothing = target::nowhere(name);
    let watch = Stopwatch::start(&nothing)?;
    for _ in 0..TIMES {
        let began = Instant::now();
        let _started: target::Started = ours::start(name)?;
        tally.done(began);
        bar.inc(1);
    }
    watch.stop("start", tally)
}
