//! The report, for people and for programs: a table, JSON, and a page with plots.

mod page;
mod plot;

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use crate::compare::Compared;
use crate::figures::Figures;

/// All results of one invocation.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    /// The command line.
    pub(crate) command: String,
    pub(crate) runs: Vec<Figures>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) compared: Vec<Compared>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) left_out: Vec<LeftOut>,
}

/// A server that was left out of a scenario.
#[derive(Debug, Serialize)]
pub(crate) struct LeftOut {
    pub(crate) scenario: String,
    pub(crate) server: String,
    pub(crate) why: String,
}

/// The machine of the measurement.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
}

impl Machine {
    fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpu = read("/proc/cpuinfo")
            .lines()
            .find_map(|line| {
                line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name.to_owned())
            })
            .unwrap_or_else(|| "unknown".to_owned());
        // Not the cores of this process, which may be pinned to one.
        let cores = read("/proc/cpuinfo").lines().filter(|l| l.starts_with("processor")).count();
        let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
        Self { cpu, cores, kernel }
    }
}

impl Report {
    /// A report without results.
    pub(crate) fn new() -> Self {
        let command = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
        Self {
            machine: Machine::this(),
            command: format!("loadtest {command}"),
            runs: Vec::new(),
            compared: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// The summary that is printed.
    pub(crate) fn table(&self) -> String {
        let mut table = format!(
            "{:<10} {:<24} {:>9} {:>7} {:>10} {:>9} {:>9} {:>9} {:>9}\n",
            "scenario", "server", "done", "failed", "per s", "µs CPU", "p50 ms", "p99 ms", "max ms"
        );
        for run in &self.runs {
            // Writing to a string cannot fail.
            let _ = writeln!(table, "{}", row(run));
            for (name, value) in &run.more {
                let _ = writeln!(table, "{:>36} {name} = {}", "", number(*value));
            }
            for (kind, count) in &run.failures {
                let _ = writeln!(table, "{:>36} failed {count} times: {kind}", "");
            }
        }
        for compared in &self.compared {
            let _ = writeln!(table, "{compared}");
        }
        table
    }

    /// Writes the report to a folder: JSON for programs, a page for people, and each plot as a
    /// separate file for use in other documents.
    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("report.json"), serde_json::to_string_pretty(self)?)?;
        std::fs::write(folder.join("report.html"), page::page(self))?;
        for plot in page::plots(self) {
            std::fs::write(folder.join(plot.name + ".svg"), plot.svg)?;
        }
        Ok(())
    }
}

fn row(run: &Figures) -> String {
    let millis = |micros: Option<u64>| {
        micros.map_or("–".to_owned(), |micros| format!("{:.2}", micros as f64 / 1_000.0))
    };
    let latency = run.latency.as_ref();
    format!(
        "{:<10} {:<24} {:>9} {:>7} {:>10} {:>9} {:>9} {:>9} {:>9}",
        run.scenario,
        run.target,
        run.done,
        run.failed,
        if run.per_sec > 0.0 { number(run.per_sec) } else { "–".to_owned() },
        run.cpu_micros.map_or("–".to_owned(), number),
        millis(latency.map(|latency| latency.p50)),
        millis(latency.map(|latency| latency.p99)),
        millis(latency.map(|latency| latency.max)),
    )
}

/// Formats a number with about three significant digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
