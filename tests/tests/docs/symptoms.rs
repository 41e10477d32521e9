//! The table "When it fails" of the first server: each message is one that the program gives.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::{Node, Setup, tools};

use crate::pages;

/// Tenants whose servers do not start, each for another reason.
const TENANTS: [(&str, &str); 6] = [
    ("missing", "command = \"no-such-program\""),
    ("forbidden", "command = \"/etc/hostname\""),
    ("dies", "command = \"sh\"\nargs = [\"-c\", \"exit 1\"]"),
    ("silent", "command = \"sleep\"\nargs = [\"100\"]\nstart_secs = 1"),
    ("nowhere", "command = \"cat\"\ncwd = \"/nowhere/at/all\""),
    ("echo", "command = \"cat\""),
];

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;

pub(crate) async fn check() -> Result<()> {
    let page = pages::read("docs/first-server.md")?;
    let section = page.split("## When it fails").nth(1).context("the page has no such section")?;
    let rows = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("|--"));
    let cells: Vec<&str> = rows.filter_map(|row| row.split(" | ").next()).collect();
    let messages: Vec<&str> = cells.iter().flat_map(|cell| quoted(cell)).collect();
    ensure!(messages.len() >= 15, "only {} messages were found", messages.len());

    let (told, log) = told().await?;
    let sources = sources(&tools::root().join("crates"))?;
    for said in &told {
        let listed = messages.iter().any(|message| pages::fits(message, said));
        ensure!(listed, "docs/first-server.md does not have: {said}");
    }
    for message in messages {
        let mut said = told.iter().map(String::as_str).chain(log.lines());
        let is_told = said.any(|said| pages::fits(message, said));
        // The text in the sources has placeholders where the page has `…`.
        ensure!(is_told || sources.contains_all(message), "the program does not say: {message}");
    }
    Ok(())
}

/// The messages in a cell, which are longer than names.
fn quoted(cell: &str) -> Vec<&str> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.filter(|text| text.contains(' ') || text.contains('…')).collect()
}

/// What clients are told by tenants that do not start, and for requests that are wrong; and the
/// log of the node.
async fn told() -> Result<(Vec<String>, String)> {
    let tenants = TENANTS.map(|(name, lines)| {
        format!(
            "[tenants.{name}]\nauth = \"open\"\n[tenants.{name}.backends.main]\n\
             kind = \"stdio\"\n{lines}\n"
        )
    });
    let node = Node::start(&Setup::config(tenants.concat()))?;
    let mut told = Vec::new();
    for (name, _) in TENANTS {
        told.push(post(&node, &format!("/{name}/mcp"), &[]).await?);
    }
    told.push(post(&node, "/echo/mcp/", &[]).await?);
    told.push(post(&node, "/echo/mcp", &[("origin", "https://foreign.example")]).await?);
    told.push(post(&node, "/echo/mcp", &[("host", "foreign.example")]).await?);
    told.push(post(&node, "/echo/mcp", &[("accept", "application/json")]).await?);
    Ok((told, node.output()))
}

/// The message of the error that answers `initialize`.
async fn post(node: &Node, path: &str, headers: &[(&str, &str)]) -> Result<String> {
    let mut post = reqwest::Client::new().post(format!("{}{path}", node.base));
    post = post.header("content-type", "application/json").body(INITIALIZE);
    if !headers.iter().any(|(name, _)| *name == "accept") {
        post = post.header("accept", "application/json, text/event-stream");
    }
    for (name, value) in headers {
        post = post.header(*name, *value);
    }
    let text = post.send().await?.text().await?;
    // A long start is answered with a stream.
    let data = text.lines().filter_map(|line| line.strip_prefix("data:")).next_back();
    let answer: Value = serde_json::from_str(data.unwrap_or(&text)).unwrap_or(json!({}));
    let message = answer["error"]["message"].as_str();
    Ok(message.with_context(|| format!("{path}: no error: {text}"))?.to_owned())
}

/// The sources of the product, with texts that are written on several lines joined.
struct Sources(String);

impl Sources {
    /// Has one source line all parts of the message, in their order?
    fn contains_all(&self, message: &str) -> bool {
        self.0.lines().any(|line| pages::fits(message, line))
    }
}

fn sources(folder: &Path) -> Result<Sources> {
    let mut all = String::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(path)?;
                // A backslash at the end of a line joins it with the next one.
                let mut parts = text.split("\\\n");
                all.push_str(parts.next().unwrap_or_default());
                parts.for_each(|part| all.push_str(part.trim_start()));
            }
        }
    }
    Ok(Sources(all))
}
