//! The means to watch a cluster: the page of metrics, the rules with their runbook, and the
//! dashboard. The tests compare them with the sources, with each other, and with a real Prometheus
//! and a cluster with faults.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::prometheus::promtool;
use tests::{metrics, tools};

#[path = "watching/hard_minute.rs"]
mod hard_minute;

/// The names of metrics in the sources: the strings in a `metrics.rs`.
fn in_sources() -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(tools::root().join("crates"))? {
        let path = entry?.path().join("src/metrics.rs");
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let quoted = text.split('"').skip(1).step_by(2);
        names.extend(quoted.filter(|word| metrics::is_ours(word)).map(str::to_owned));
    }
    ensure!(names.len() > 30, "only {} metrics found", names.len());
    Ok(names)
}

#[test]
fn every_metric_of_the_sources_stands_in_the_page_and_no_other() -> Result<()> {
    let (sources, page) = (in_sources()?, metrics::page()?);
    let page: BTreeSet<_> = page.into_keys().collect();
    let missing: Vec<_> = sources.difference(&page).collect();
    let gone: Vec<_> = page.difference(&sources).collect();
    ensure!(missing.is_empty(), "docs/metrics.md has no row for {missing:?}");
    ensure!(gone.is_empty(), "docs/metrics.md has rows for {gone:?}, which no metrics.rs names");
    Ok(())
}

#[test]
fn a_metric_is_named_as_prometheus_expects() -> Result<()> {
    for (name, metric) in metrics::page()? {
        let fits = match metric.kind.as_str() {
            "counter" => name.ends_with("_total"),
            "histogram" => name.ends_with("_seconds") || name.ends_with("_bytes"),
            "gauge" => !name.ends_with("_total"),
            other => anyhow::bail!("{name}: there is no type {other}"),
        };
        let base = !["_milliseconds", "_ms", "_minutes", "_kilobytes"]
            .iter()
            .any(|unit| name.contains(unit));
        ensure!(fits && base, "{name} is no name for a {}", metric.kind);
    }
    Ok(())
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(tools::root().join(path)).context(path.to_owned())
}

#[test]
fn every_alert_says_what_it_is_and_has_its_place_in_the_runbook() -> Result<()> {
    let (rules, runbook) = (read("deploy/prometheus/rules.yml")?, read("docs/runbook.md")?);
    let mut alerts = Vec::new();
    for rule in rules.split("- alert: ").skip(1) {
        let name = rule.lines().next().context("no name")?.trim();
        for key in ["expr: ", "severity: ", "summary: \"", "description: \""] {
            ensure!(rule.contains(key), "{name} has no {key:?}");
        }
        let link = format!("runbook_url: docs/runbook.md#{}\n", name.to_lowercase());
        ensure!(rule.contains(&link), "{name} has no {link:?}");
        alerts.push(name);
    }
    let sections: Vec<_> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    ensure!(alerts == sections, "in rules.yml: {alerts:?}\nin runbook.md: {sections:?}");
    Ok(())
}

#[test]
fn prometheus_finds_nothing_wrong_with_its_configuration() -> Result<()> {
    promtool(&["check", "config"], &tools::root().join("deploy/prometheus/prometheus.yml"))
}

#[test]
fn alerts_go_off_where_they_should_and_nowhere_else() -> Result<()> {
    let rules = tools::root().join("deploy/prometheus/rules.yml");
    let scenario = read("tests/tests/watching/rules.yml")?;
    let file = tempfile::NamedTempFile::new()?;
    fs::write(&file, scenario.replace("RULES", &rules.display().to_string()))?;
    promtool(&["test", "rules"], file.path())
}

/// The dashboards: file, title and variables.
const DASHBOARDS: [(&str, &str, &[&str]); 2] = [
    ("deploy/grafana/cluster.json", "Cluster", &["datasource", "node"]),
    ("deploy/grafana/tenant.json", "Tenant", &["datasource", "tenant", "node"]),
];

fn dashboard(file: &str) -> Result<Value> {
    Ok(serde_json::from_str(&read(file)?)?)
}

/// The panels of all dashboards, each with its expressions.
fn panels() -> Result<Vec<(String, Vec<String>)>> {
    let expressions = |panel: &Value| {
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.filter_map(|target| Some(target["expr"].as_str()?.to_owned())).collect()
    };
    let mut all = Vec::new();
    for (file, _, _) in DASHBOARDS {
        let dashboard = dashboard(file)?;
        let panels = dashboard["panels"].as_array().context("no panels")?;
        let panels = panels.iter().filter(|panel| panel["type"] != "row");
        all.extend(panels.map(|panel| (panel["title"].to_string(), expressions(panel))));
    }
    Ok(all)
}

#[test]
fn every_panel_can_be_read_without_asking_anybody() -> Result<()> {
    DASHBOARDS.into_iter().try_for_each(|(file, title, names)| {
        check_dashboard(&dashboard(file)?, title, names).with_context(|| file.to_owned())
    })
}

fn check_dashboard(dashboard: &Value, title: &str, expected: &[&str]) -> Result<()> {
    ensure!(dashboard["title"] == title && dashboard["uid"].is_string(), "no title or uid");
    ensure!(dashboard["schemaVersion"].as_u64() >= Some(36), "older than Grafana 10");
    let variables = dashboard["templating"]["list"].as_array().context("no variables")?;
    let names: Vec<_> = variables.iter().map(|variable| &variable["name"]).collect();
    ensure!(names == expected, "{names:?}");
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeMap::new());
    for panel in dashboard["panels"].as_array().context("no panels")? {
        let title = panel["title"].as_str().filter(|title| !title.is_empty());
        let title = title.with_context(|| format!("no title: {panel}"))?;
        ensure!(ids.insert(panel["id"].as_u64().context("no id")?), "{title}: its id is taken");
        let place = &panel["gridPos"];
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| place[side].as_u64().unwrap_or(99));
        ensure!(w > 0 && h > 0 && x + w <= 24, "{title} is outside the page: {place}");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            let under = taken.insert(cell, title);
            ensure!(under.is_none(), "{title} overlaps {under:?}");
        }
        if panel["type"] == "row" {
            continue;
        }
        ensure!(panel["description"].as_str().is_some_and(|text| text.len() > 10), "{title}");
        ensure!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title} has no unit");
        let targets = panel["targets"].as_array().filter(|targets| !targets.is_empty());
        let targets = targets.with_context(|| format!("{title} shows nothing"))?;
        for shown in targets.iter().chain([panel]) {
            ensure!(shown["datasource"]["uid"] == "${datasource}", "{title} has another source");
        }
        for target in targets {
            ensure!(target["refId"].is_string() && target["legendFormat"].is_string(), "{title}");
        }
    }
    Ok(())
}

#[test]
fn what_is_drawn_or_warned_of_is_measured_and_what_is_measured_is_drawn() -> Result<()> {
    let page = metrics::page()?;
    let named = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let words = words.filter(|word| metrics::is_ours(word));
        let base = |word: &str| match page.contains_key(word) {
            true => word.to_owned(),
            false => word.trim_end_matches("_bucket").trim_end_matches("_count").to_owned(),
        };
        words.map(base).collect()
    };
    let drawn = named(&panels()?.into_iter().flat_map(|(_, shown)| shown).collect::<String>());
    let warned = named(&read("deploy/prometheus/rules.yml")?);
    let known: BTreeSet<_> = page.into_keys().collect();
    let unknown: Vec<_> = drawn.union(&warned).filter(|name| !known.contains(*name)).collect();
    ensure!(unknown.is_empty(), "no node measures {unknown:?}");
    let hidden: Vec<_> = known.difference(&drawn).collect();
    ensure!(hidden.is_empty(), "no panel shows {hidden:?}");
    Ok(())
}

#[test]
fn links_of_the_pages_lead_somewhere() -> Result<()> {
    for page in ["docs/metrics.md", "docs/runbook.md"] {
        let text = read(page)?;
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            let file = if file.is_empty() { page.trim_start_matches("docs/") } else { file };
            let path = Path::new("docs").join(file);
            ensure!(tools::root().join(&path).exists(), "{page} links to {link}");
            if !section.is_empty() {
                let there = read(&path.to_string_lossy())?;
                let anchor = |line: &str| line.trim_start_matches(['#', ' ']).to_lowercase();
                let headings = there.lines().filter(|line| line.starts_with('#')).map(anchor);
                let mut anchors = headings.map(|heading| heading.replace(' ', "-"));
                ensure!(anchors.any(|anchor| anchor == section), "{page} links to {link}");
            }
        }
    }
    Ok(())
}
