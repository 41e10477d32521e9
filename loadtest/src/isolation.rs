//! The command `tenants`: the latency of the calls of quiet tenants, alone and beside the floods of
//! another tenant, for each kind of backend, on one node and on a cluster of three behind nginx.
//!
//! The nodes and the quiet tenants' clients and servers have the first core; the flooding tenant's
//! clients and servers, Redis and nginx have the last one. Nodes have a lower priority than the clients and servers
//! on their core, and the flood has a lower one than Redis and nginx: these stand for other machines. Both cores are
//! [interrupted often](crate::interrupts). Nodes are started anew for each flood. Times in which a core was
//! [slow](crate::core_speed) are left out.

mod backends;
mod flood;
mod machine;
mod quiet;

use std::fmt::{self, Display, Formatter};
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;

use self::backends::Kind;
use self::flood::Flood;
use self::machine::Machine;
use self::quiet::{Callers, Times};
use crate::core_speed::SlowTimes;
use crate::interrupts::Interrupts;

/// The p99 that is allowed beside a flood, if twice the quiet one is less.
const ALLOWED_MIN: Duration = Duration::from_millis(10);
/// The duration of a flood before the calls beside it are measured.
const BEFORE: Duration = Duration::from_secs(1);

/// The part of the calls of a client that may be left out. If it is more, a flood is not judged.
const LEFT_OUT_MAX: f64 = 0.5;

/// The arguments of `tenants`.
#[derive(Args)]
pub(crate) struct Tenants {
    /// A number of nodes. Without this option: one, and three behind nginx.
    #[arg(long)]
    nodes: Vec<usize>,
    /// A kind of backend of the tenant with the flood. Without this option: all.
    #[arg(long)]
    kind: Vec<Kind>,
    /// A flood. Without this option: all that its kind of backend can make.
    #[arg(long)]
    flood: Vec<Flood>,
    /// The duration of each measurement, in seconds.
    #[arg(long, default_value_t = 4.0)]
    secs: f64,
    /// Makes every run short, and judges none: a check that all floods work.
    #[arg(long)]
    smoke: bool,
}

impl Tenants {
    /// Measures, and prints a line for each flood. Fails if one slows the calls of another tenant more
    /// than is allowed.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        if has_autogroups() {
            writeln!(
                std::io::stderr(),
                "kernel.sched_autogroup_enabled is 1: the kernel shares cores between sessions of processes, which \
                 each of three nodes has, and each stdio server of a single node if this runs in a terminal; set it to \
                 0 for this measurement"
            )?;
        }
        let interrupts = Interrupts::start().inspect_err(|error| {
            let _shown = writeln!(
                std::io::stderr(),
                "{error:#}: each program that shares a core may keep it for up to 4 ms, so the figures of three \
                 nodes are those of the kernel, and it is not known when a core is slow; run this as root, or with \
                 CAP_SYS_NICE"
            );
        });
        let mut interrupts = interrupts.unwrap_or_default();
        let counts = if self.nodes.is_empty() { &[1, 3][..] } else { &self.nodes };
        let mut bad = 0;
        for count in counts {
            bad += self.on(*count, &mut interrupts)?;
        }
        ensure!(
            bad == 0 || self.smoke,
            "{bad} floods slowed another tenant too much, or were not judged since a core was slow"
        );
        Ok(())
    }

    /// Returns how many floods slowed another tenant too much, or were not judged.
    fn on(&self, nodes: usize, interrupts: &mut Interrupts) -> anyhow::Result<usize> {
        let mut out = std::io::stdout().lock();
        let columns = Kind::ALL.map(|kind| format!("{:>22}", kind.name())).concat();
        writeln!(out, "ms: p50 / p99 / max of the calls of quiet tenants, by kind of backend")?;
        writeln!(out, "{:<7} {:<20} {:>9} {:>9} {columns}", "", "flood", "done", "left out")?;
        let quiet = self.measure(&Machine::start(nodes)?, interrupts)?;
        writeln!(out, "{nodes} nodes {:<20} {:>9} {quiet}", "none", "")?;
        let mut bad = 0;
        for kind in Kind::ALL.into_iter().filter(|kind| is_chosen(&self.kind, kind)) {
            for flood in kind.floods().iter().filter(|flood| is_chosen(&self.flood, flood)) {
                let machine = Machine::start(nodes)?;
                let running = flood.start(kind, &machine, self.smoke);
                let name = format!("{} {}", kind.name(), flood.name());
                running.wait(if self.smoke { Duration::ZERO } else { BEFORE }, &name)?;
                let beside = self.measure(&machine, interrupts);
                let done = running.end()?;
                let beside = beside.with_context(|| format!("beside {name}"))?;
                let is_over = std::iter::zip(&quiet.times, &beside.times)
                    .any(|(quiet, beside)| beside.at(99) > ALLOWED_MIN.max(quiet.at(99) * 2));
                let verdict = match (quiet.is_known() && beside.is_known(), is_over) {
                    (false, _) => "UNKNOWN",
                    (true, true) => "OVER",
                    (true, false) => "ok",
                };
                bad += usize::from(verdict != "ok");
                writeln!(out, "{nodes} nodes {name:<20} {done:>9} {beside}  {verdict}")?;
            }
        }
        Ok(bad)
    }

    fn measure(&self, machine: &Machine, interrupts: &mut Interrupts) -> anyhow::Result<Measured> {
        let secs = if self.smoke { 0.1 } else { self.secs };
        let calls = Callers::call(machine, Duration::from_secs_f64(secs))?;
        let slow = interrupts.take_slow_times()?;
        // A short run may have no other calls.
        let slow = if self.smoke { SlowTimes::default() } else { slow };
        let times: Vec<_> = calls.iter().map(|calls| calls.times_but(&slow, ALLOWED_MIN)).collect();
        let left_out = std::iter::zip(&calls, &times)
            .map(|(calls, times)| 1.0 - times.count() as f64 / calls.count() as f64)
            .fold(0.0, f64::max);
        Ok(Measured { times, left_out })
    }
}

/// The calls of all quiet tenants.
struct Measured {
    /// One for each kind of backend.
    times: Vec<Times>,
    /// The largest part of the calls of one of them that was left out.
    left_out: f64,
}

impl Measured {
    fn is_known(&self) -> bool {
        self.left_out <= LEFT_OUT_MAX
    }
}

impl Display for Measured {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
        write!(formatter, "{:>7.0} % ", self.left_out * 100.0)?;
        for times in &self.times {
            let told = [50, 99, 100].map(|percent| ms(times.at(percent))).join(" / ");
            write!(formatter, "{told:>22}")?;
        }
        Ok(())
    }
}

/// Whether the kernel shares cores between sessions of processes. Priorities count within a session only.
fn has_autogroups() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled")
        .is_ok_and(|setting| setting.trim() == "1")
}

fn is_chosen<T: PartialEq>(chosen: &[T], one: &T) -> bool {
    chosen.is_empty() || chosen.contains(one)
}
