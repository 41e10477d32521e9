//! The page of a report: the runs, the machine and the results. A reader needs no source code.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{LeftOut, Report, number, plot};
use crate::compare::{Compared, Spread};
use crate::figures::Figures;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:900px;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;width:100%;font-size:14px}th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #ddd}\
th:nth-child(1),td:nth-child(1){text-align:left}svg{width:100%;margin:1rem 0;font:13px system-ui,sans-serif}\
svg .t{font-weight:600;font-size:15px}svg .n{text-anchor:end}code{background:#f3f3f3;padding:0 .2rem}.note{color:#555}";

/// The description of each scenario, in the order of the page.
const SCENARIOS: [(&str, &str); 12] = [
    (
        "calls",
        "Each connection has a session of its own and calls a tool that echoes its arguments. It sends the next call when the last one is answered.",
    ),
    (
        "calls-at-a-rate",
        "The same at a fixed rate, at any speed of the server. Latency is counted from the time when a call was due, so it includes the wait for the previous call.",
    ),
    ("forwarded-calls", "The same as `calls`, each call at a node that does not own its session."),
    ("churn", "Each session is opened, lists the tools once, and ends: four requests a session."),
    (
        "progress",
        "Calls whose tool reports progress on an SSE stream before it answers. A call is counted when all its events and its answer have arrived.",
    ),
    ("progress-apart", "The same with a pause between events, so that each is written separately."),
    ("hold", "Sessions that each hold one open GET stream on which nothing happens."),
    ("hold-idle", "Sessions that are open and idle: no stream, no connection."),
    (
        "resume",
        "All streams with a call in progress are cut at the same time, and resume with their last event id.",
    ),
    (
        "tenants",
        "One tenant calls a hundred times a second: first alone, then while another tenant calls as fast as it can.",
    ),
    ("start", "The time from the start of a process until it prints its URL."),
    ("chaos", "Calls through a balancer while nodes are killed and restarted in turn."),
];

/// The complete page.
pub(super) fn page(report: &Report) -> String {
    let machine = &report.machine;
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Roundhouse load test</title><style>{STYLE}</style><h1>Load test</h1>\
         <p>Run as <code>{}</code> on {} ({} cores, Linux {}).</p>\
         <p class=\"note\">CPU is the time that the scheduler counted for the server's processes, in user and kernel \
         mode, including children. Other work on the machine changes rates and latencies much; it changes ratios of \
         runs in turns far less.</p>",
        text(&report.command),
        text(&machine.cpu),
        machine.cores,
        text(&machine.kernel)
    );
    for (scenario, told) in SCENARIOS {
        let runs = runs_of(report, scenario);
        if !runs.is_empty() {
            section(&mut page, scenario, told, &runs);
        }
    }
    compared(&mut page, &report.compared);
    left_out(&mut page, &report.left_out);
    page + "</html>\n"
}

fn compared(page: &mut String, all: &[Compared]) {
    if all.is_empty() {
        return;
    }
    *page += "<h2>Ratios</h2><p>Servers took turns, several times. Each round gives a ratio: what \
        the server needs or does, divided by what its base does. The median of the rounds, and the \
        least and the most in brackets.</p>\
        <table><tr><th>server<th>base<th>scenario<th>server CPU<th>done per s";
    for one in all {
        let spread = |spread: Option<Spread>| spread.map_or("–".to_owned(), |s| s.to_string());
        let _ = write!(
            page,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}",
            text(&one.server),
            text(&one.base),
            text(&one.scenario),
            spread(one.cpu),
            spread(one.rate)
        );
    }
    *page += "</table>";
}

fn left_out(page: &mut String, all: &[LeftOut]) {
    if all.is_empty() {
        return;
    }
    *page += "<h2>Left out</h2><ul>";
    for LeftOut { scenario, server, why } in all {
        let (server, why) = (text(server), text(why));
        let _ = write!(page, "<li>{server}, of {scenario}: {why}</li>");
    }
    *page += "</ul>";
}

/// A plot that can be used outside of the page.
pub(super) struct Plot {
    /// The name of its file, without the extension.
    pub(super) name: String,
    pub(super) svg: String,
}

/// Every plot of the page.
pub(super) fn plots(report: &Report) -> Vec<Plot> {
    SCENARIOS
        .iter()
        .flat_map(|(scenario, _)| of_scenario(scenario, &runs_of(report, scenario)))
        .collect()
}

fn runs_of<'a>(report: &'a Report, scenario: &str) -> Vec<&'a Figures> {
    report.runs.iter().filter(|run| run.scenario == scenario).collect()
}

fn of_scenario(scenario: &str, runs: &[&Figures]) -> Vec<Plot> {
    let mut plots = Vec::new();
    let mut add = |name: &str, svg: Option<String>| {
        plots.extend(svg.map(|svg| Plot { name: format!("{scenario}-{name}"), svg }));
    };
    let values = |value: &dyn Fn(&Figures) -> Option<f64>| -> Vec<(String, f64)> {
        runs.iter().filter_map(|run| Some((text(&run.target), value(run)?))).collect()
    };
    add("cpu", plot::bars("Server CPU for each operation", "µs", &values(&|run| run.cpu_micros)));
    if matches!(scenario, "calls" | "churn" | "progress") {
        add("rate", plot::bars("Operations", "1/s", &values(&|run| Some(run.per_sec))));
    }
    add("latency", plot::latencies("Latency", runs));
    for name in names(runs) {
        let (title, unit) = titled(name);
        add(name, plot::bars(&title, unit, &values(&|run| run.more.get(name).copied())));
    }
    plots
}

/// The names of the figures that only this scenario has.
fn names<'a>(runs: &[&'a Figures]) -> BTreeSet<&'a String> {
    runs.iter().flat_map(|run| run.more.keys()).collect()
}

fn section(page: &mut String, scenario: &str, told: &str, runs: &[&Figures]) {
    let _ = write!(page, "<h2>{}</h2><p>{told}</p>", scenario.replace('-', " "));
    for plot in of_scenario(scenario, runs) {
        *page += &plot.svg;
    }
    table(page, runs, &names(runs));
}

fn table(page: &mut String, runs: &[&Figures], names: &BTreeSet<&String>) {
    *page +=
        "<table><tr><th>server<th>done<th>failed<th>per s<th>CPU µs<th>p50 ms<th>p99 ms<th>max ms";
    for name in names {
        let (title, unit) = titled(name);
        let _ = write!(page, "<th>{title}, {unit}");
    }
    for run in runs {
        let millis = |micros: u64| number(micros as f64 / 1_000.0);
        let latency = run.latency.as_ref();
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
        let _ = write!(
            page,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
            text(&run.target),
            run.done,
            run.failed,
            or_none((run.per_sec > 0.0).then(|| number(run.per_sec))),
            or_none(run.cpu_micros.map(number)),
            or_none(latency.map(|latency| millis(latency.p50))),
            or_none(latency.map(|latency| millis(latency.p99))),
            or_none(latency.map(|latency| millis(latency.max))),
        );
        for name in names {
            let _ =
                write!(page, "<td>{}", or_none(run.more.get(*name).map(|value| number(*value))));
        }
    }
    *page += "</table>";
    for run in runs {
        for (kind, count) in &run.failures {
            let _ = write!(
                page,
                "<p class=\"note\">{}: failed {count} times: {}</p>",
                text(&run.target),
                text(kind)
            );
        }
    }
}

/// A figure's name in words, and its unit.
fn titled(name: &str) -> (String, &'static str) {
    let (title, unit) = match name {
        "all_attached_secs" => ("Time until all streams were resumed", "s"),
        "all_live_secs" => ("Time until all streams had a new event", "s"),
        "cpu_micros_event" => ("Server CPU for each event", "µs"),
        "events_per_sec" => ("Events each second", "1/s"),
        "held" => ("Sessions held", "count"),
        "idle_cpu_percent" => ("CPU while all sessions are idle", "% of a core"),
        "longest_wait_secs" => ("Longest wait between two events", "s"),
        "noisy_calls_per_sec" => ("Calls of the noisy tenant", "1/s"),
        "open_cpu_micros_each" => ("Server CPU to open a session", "µs"),
        "p99_alone_micros" => ("p99 of the quiet tenant, alone", "µs"),
        "p99_beside_micros" => ("p99 of the quiet tenant, beside the noisy one", "µs"),
        "redis_cpu_micros" => ("Redis CPU for each operation", "µs"),
        "redis_cpu_micros_event" => ("Redis CPU for each event", "µs"),
        "rss_kib_each" => ("Memory of each session", "KiB"),
        other => return (text(&other.replace('_', " ")), "count"),
    };
    (title.to_owned(), unit)
}

/// Escapes text for HTML.
fn text(raw: &str) -> String {
    raw.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
