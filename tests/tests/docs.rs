//! Runs every command and checks every snippet of the pages for people, and what else the pages
//! state that can be compared with the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use pages::{Block, Context};
use tests::prometheus::promtool;
use tests::tools;

#[path = "docs/commands.rs"]
mod commands;
#[path = "docs/links.rs"]
mod links;
#[path = "docs/pages.rs"]
mod pages;
#[path = "docs/shell.rs"]
mod shell;
#[path = "docs/symptoms.rs"]
mod symptoms;

/// The most blocks of commands that are not run.
const NOT_RUN_MAX: usize = 10;

#[test]
fn every_block_of_every_page_says_how_it_is_checked() -> Result<()> {
    let mut not_run = Vec::new();
    for block in pages::blocks()? {
        let allowed: &[&str] = match &block.context {
            Context::Run { .. } | Context::Background { .. } => &["sh"],
            Context::Printed { .. } | Context::Picture => &[""],
            Context::File { .. } => &["toml", "json", "js"],
            Context::Compared { .. } | Context::Check { .. } => &["toml"],
            Context::PartOf { .. } => &["rust", "nginx", ""],
            Context::TestedBy { test } => {
                let place = block.place();
                ensure!(has_test(&tools::root().join("crates"), test)?, "{place}: no test {test}");
                &["toml", "yaml"]
            }
            Context::Promql => &["promql"],
            Context::NotRun { reason } => {
                ensure!(reason.len() > 10, "{}: give a reason", block.place());
                not_run.push(block.place());
                &["sh", "toml", "rust", "yaml"]
            }
        };
        let fits = allowed.contains(&block.language.as_str());
        ensure!(fits, "{}: {:?} for a block of {:?}", block.place(), block.context, block.language);
    }
    ensure!(not_run.len() <= NOT_RUN_MAX, "too many blocks are not run: {not_run:?}");
    Ok(())
}

/// Has a file below this folder a test of this name?
fn has_test(folder: &Path, test: &str) -> Result<bool> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_found = if path.is_dir() {
            has_test(&path, test)?
        } else {
            path.extension().is_some_and(|extension| extension == "rs")
                && fs::read_to_string(&path)?.contains(&format!("fn {test}("))
        };
        if is_found {
            return Ok(true);
        }
    }
    Ok(false)
}

#[test]
fn a_block_without_a_context_or_with_an_unknown_one_is_an_error() {
    for comment in ["", "Text.", "<!-- test: perhaps -->", "<!-- test: run in -->"] {
        let page = format!("{comment}\n```sh\ntrue\n```\n");
        assert!(pages::blocks_of("a.md", &page).is_err(), "{comment:?} is accepted");
    }
    let page = "<!-- test: run in one -->\n```sh\ntrue\n```\n";
    assert_eq!(pages::blocks_of("a.md", page).unwrap()[0].text, "true\n");
}

#[test]
fn the_commands_of_the_first_server_work_and_print_what_the_page_shows() -> Result<()> {
    shell::run_page("docs/first-server.md")
}

#[test]
fn the_commands_of_the_readme_work_and_print_what_the_page_shows() -> Result<()> {
    shell::run_page("README.md")
}

#[test]
fn the_commands_of_the_other_pages_work_and_print_what_the_pages_show() -> Result<()> {
    for page in pages::pages()? {
        if page != "README.md" && page != "docs/first-server.md" {
            shell::run_page(&page)?;
        }
    }
    Ok(())
}

#[test]
fn the_shell_can_read_the_commands_that_are_not_run() -> Result<()> {
    let is_shell = |block: &Block| block.language == "sh";
    for block in pages::blocks()?.into_iter().filter(is_shell) {
        let output = Command::new("bash").args(["-n", "-c", &block.text]).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {said}", block.place());
    }
    Ok(())
}

#[test]
fn the_settings_of_the_pages_are_accepted() -> Result<()> {
    let mut checked = 0;
    for block in pages::blocks()? {
        let Context::Check { in_cluster } = block.context else { continue };
        let mut env = vec![("ROUNDHOUSE__CLUSTER__SECRET", "s".repeat(32))];
        if in_cluster {
            env.push(("ROUNDHOUSE__STORE__URL", "redis://10.0.0.9:6379".to_owned()));
            env.push(("ROUNDHOUSE__CLUSTER__LISTEN", "10.0.0.4:7070".to_owned()));
        }
        shell::check(&block, &block.text, &env)?;
        checked += 1;
    }
    ensure!(checked >= 5, "only {checked} snippets");
    Ok(())
}

#[test]
fn the_json_of_the_pages_is_json() -> Result<()> {
    for block in pages::blocks()?.into_iter().filter(|block| block.language == "json") {
        serde_json::from_str::<serde_json::Value>(&block.text).with_context(|| block.place())?;
    }
    Ok(())
}

#[test]
fn the_code_of_the_pages_is_code_of_the_files_that_they_name() -> Result<()> {
    for block in pages::blocks()? {
        let Context::PartOf { path } = &block.context else { continue };
        let file = fs::read_to_string(tools::root().join(path)).context(path.clone())?;
        let mut lines = file.lines();
        for wanted in block.text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let found = lines.any(|line| pages::fits(wanted, line.trim()));
            ensure!(found, "{}: {path} has no line, or not in this order: {wanted}", block.place());
        }
    }
    Ok(())
}

#[test]
fn the_queries_of_the_pages_are_queries_of_metrics_that_exist() -> Result<()> {
    let metrics: BTreeSet<String> = tests::metrics::page()?.into_keys().collect();
    for block in pages::blocks()?.iter().filter(|block| block.context == Context::Promql) {
        let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
        let words = block.text.split(|c: char| !is_of_name(c));
        for name in words.filter(|word| word.starts_with("roundhouse_")) {
            ensure!(metrics.contains(name), "{}: there is no metric {name}", block.place());
        }
        let rule = serde_json::json!({ "groups": [{ "name": "docs", "rules": [
            { "record": "docs:query", "expr": block.text },
        ]}]});
        let file = tempfile::NamedTempFile::new()?;
        fs::write(file.path(), rule.to_string())?;
        promtool(&["check", "rules"], file.path()).with_context(|| block.place())?;
    }
    Ok(())
}

#[test]
fn every_link_of_the_pages_leads_to_a_file_and_a_heading() -> Result<()> {
    links::check_all()
}

#[test]
fn the_commands_page_has_the_help_of_every_command() -> Result<()> {
    commands::compare()
}

#[test]
fn the_pages_name_only_commands_and_options_that_exist() -> Result<()> {
    commands::check_mentions()
}

#[tokio::test]
async fn what_clients_are_told_stands_in_the_table_of_symptoms() -> Result<()> {
    symptoms::check().await
}

#[test]
fn the_concepts_have_at_most_200_lines() -> Result<()> {
    let lines = pages::read("docs/concepts.md")?.lines().count();
    ensure!(lines <= 200, "docs/concepts.md has {lines} lines");
    Ok(())
}

/// Grafana reads the dashboards from the folder that the provisioning names.
#[test]
fn grafana_is_provisioned_with_the_dashboards_that_are_there() -> Result<()> {
    let folder = tools::root().join("deploy/grafana");
    let page = pages::read("docs/first-server.md")?;
    for (kind, variable) in
        [("datasources", "PROMETHEUS_URL"), ("dashboards", "ROUNDHOUSE_DASHBOARDS")]
    {
        let file = Path::new("provisioning").join(kind).join("roundhouse.yml");
        let text = fs::read_to_string(folder.join(file))?;
        ensure!(text.contains(&format!("${variable}\n")) && page.contains(&format!("{variable}=")));
    }
    for name in ["cluster.json", "tenant.json"] {
        let text = fs::read_to_string(folder.join(name))?;
        let dashboard: serde_json::Value = serde_json::from_str(&text)?;
        let variables = dashboard["templating"]["list"].as_array().context("no variables")?;
        let asks = variables.iter().any(|variable| variable["type"] == "datasource");
        ensure!(asks && dashboard.get("__inputs").is_none(), "{name} cannot be provisioned");
    }
    Ok(())
}
