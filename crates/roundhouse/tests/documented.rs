//! Compares `docs/configuration.md` with the settings: every key, and its default. With `UPDATE=1`
//! it writes the defaults again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use roundhouse::Settings;

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md")
}

/// The default of each key, as the page writes it.
fn defaults() -> BTreeMap<String, String> {
    let written = |default: serde_json::Value| {
        if default.is_null() { "–".to_owned() } else { format!("`{default}`") }
    };
    Settings::keys().into_iter().map(|(key, default)| (key, written(default))).collect()
}

/// The key, the default and the meaning of a row.
fn row(line: &str) -> Option<(&str, &str, &str)> {
    let (key, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
    let (default, meaning) = rest.split_once(" | ")?;
    Some((key, default, meaning))
}

/// The page with the right defaults, and what cannot be written: rows that are missing or too many.
fn rewritten(page: &str, mut defaults: BTreeMap<String, String>) -> (String, Vec<String>) {
    let (mut text, mut wrong) = (String::new(), Vec::new());
    for line in page.lines() {
        match row(line) {
            None => text.push_str(line),
            Some((key, _, meaning)) => match defaults.remove(key) {
                Some(default) => text.push_str(&format!("| `{key}` | {default} | {meaning}")),
                None => {
                    wrong.push(format!("`{key}` has a row and does not exist, or has two rows"))
                }
            },
        }
        text.push('\n');
    }
    wrong.extend(defaults.keys().map(|key| format!("`{key}` has no row")));
    (text, wrong)
}

#[test]
fn every_key_and_its_default_stand_in_the_configuration_page() {
    let page = std::fs::read_to_string(path()).unwrap();
    let (expected, wrong) = rewritten(&page, defaults());
    assert!(wrong.is_empty(), "docs/configuration.md:\n{}", wrong.join("\n"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path(), expected).unwrap();
        return;
    }
    let differing: Vec<_> = page
        .lines()
        .zip(expected.lines())
        .filter(|(old, new)| old != new)
        .map(|(_, new)| new)
        .collect();
    assert!(
        differing.is_empty(),
        "docs/configuration.md is stale; run UPDATE=1 cargo nextest run -p roundhouse documented, \
         which writes\n{}",
        differing.join("\n")
    );
}

#[test]
fn a_default_is_written_again_and_a_key_without_a_row_is_named() {
    let defaults = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let page = "Text.\n| `a.b` | `1` | What it is. |\n";
    let (text, wrong) = rewritten(page, defaults(&[("a.b", "`2`")]));
    assert_eq!(text, "Text.\n| `a.b` | `2` | What it is. |\n");
    assert!(wrong.is_empty());
    let (_, wrong) = rewritten(page, defaults(&[("a.c", "`2`")]));
    assert_eq!(wrong.len(), 2, "{wrong:?}");
}
