//! Reads metrics from `docs/metrics.md`, and from `/metrics` of nodes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use crate::tools;

/// One metric. A label whose values are not listed has no values here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metric {
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// The labels, each with its values.
    pub labels: BTreeMap<String, BTreeSet<String>>,
}

/// The rows of the page, by the name of the metric.
pub fn page() -> Result<BTreeMap<String, Metric>> {
    let page = std::fs::read_to_string(tools::root().join("docs/metrics.md"))?;
    let mut rows = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, unit, labels, meaning] = cells[..] else {
            anyhow::bail!("not five cells: {line}");
        };
        ensure!(!unit.is_empty() && !meaning.is_empty(), "an empty cell: {line}");
        let name = name.trim_matches('`').to_owned();
        let metric = Metric { kind: kind.to_owned(), labels: labels_of(labels)? };
        ensure!(rows.insert(name, metric).is_none(), "twice: {line}");
    }
    Ok(rows)
}

/// `key`: `value`, `value`; `key`: `value`
fn labels_of(cell: &str) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut labels = BTreeMap::new();
    for label in cell.split(';').filter(|_| cell != "–") {
        let mut words = label.split('`').skip(1).step_by(2).map(str::to_owned);
        let key = words.next().with_context(|| format!("no label in {label:?}"))?;
        labels.insert(key, words.collect());
    }
    Ok(labels)
}

/// Whether a metric is one of the node, and not of its process. Those that OpenTelemetry's conventions
/// name begin as they do.
pub fn is_ours(name: &str) -> bool {
    ["roundhouse_", "mcp_server_"].iter().any(|prefix| name.starts_with(prefix))
}

/// Adds the metrics of a node to those of other nodes, without the metrics of its process.
pub fn add_scraped(text: &str, all: &mut BTreeMap<String, Metric>) -> Result<()> {
    let mut name = String::new();
    for line in text.lines() {
        if let Some(said) = line.strip_prefix("# TYPE ") {
            let (metric, kind) = said.split_once(' ').context("no type")?;
            name = metric.to_owned();
            if is_ours(&name) {
                all.entry(name.clone()).or_default().kind = kind.to_owned();
            }
        } else if let Some(metric) = all.get_mut(&name)
            && let Some((_, rest)) = line.split_once('{')
        {
            let labels = rest.split_once('}').context("labels do not end")?.0;
            for label in labels.split(',').filter(|label| !label.is_empty()) {
                let (key, value) = label.split_once('=').context("no value")?;
                if key != "le" {
                    let values = metric.labels.entry(key.to_owned()).or_default();
                    values.insert(value.trim_matches('"').to_owned());
                }
            }
        }
    }
    Ok(())
}
