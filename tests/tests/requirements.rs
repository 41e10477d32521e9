//! Checks `docs/requirements.md`: its last column must match the markers of the tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// The tests that hold each requirement, by its id.
type Holders = BTreeMap<String, Vec<String>>;

#[test]
fn the_table_of_requirements_says_what_the_tests_say() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let mut holders = Holders::new();
    for folder in ["crates", "tests", "loadtest"] {
        for file in sources(&root.join(folder))? {
            let text = fs::read_to_string(&file)?;
            let place = file.strip_prefix(root)?.display().to_string();
            collect(&place, &text, &mut holders)?;
        }
    }
    let path = root.join("docs/requirements.md");
    let page = fs::read_to_string(&path)?;
    let expected = rewritten(&page, &mut holders)?;
    ensure!(holders.is_empty(), "markers name requirements that the table lacks: {holders:?}");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, expected)?;
        return Ok(());
    }
    ensure!(
        page == expected,
        "docs/requirements.md is stale; run UPDATE=1 cargo test -p tests --test requirements"
    );
    Ok(())
}

#[test]
fn a_marker_counts_for_the_next_function_only() -> Result<()> {
    let text =
        "// holds: AB-01, AB-02\n#[test]\n/// Why.\nasync fn it_is_so() {\n}\nfn other() {}\n";
    let mut holders = Holders::new();
    collect("a/src/b.rs", text, &mut holders)?;
    let held = vec!["`it_is_so` (a/src/b.rs)".to_owned()];
    ensure!(holders == [("AB-01".into(), held.clone()), ("AB-02".into(), held)].into());
    ensure!(collect("a", "// holds: AB-01\nstruct Not;\nfn it() {}", &mut holders).is_err());
    ensure!(collect("a", "// holds: AB-1\nfn it() {}", &mut holders).is_err());
    Ok(())
}

#[test]
fn a_row_is_held_or_explained() -> Result<()> {
    let row = |held: &str| format!("| AB-01 | A | it | {held} |\n");
    let mut held = Holders::from([("AB-01".into(), vec!["`x` (a)".into()])]);
    ensure!(rewritten(&row("not ours: so"), &mut held)? == row("`x` (a)"));
    ensure!(held.is_empty());
    ensure!(rewritten(&row("not ours: so"), &mut held)? == row("not ours: so"));
    ensure!(rewritten(&row("`x` (a)"), &mut held).is_err());
    Ok(())
}

/// All Rust sources below a folder, in a stable order.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && !name.starts_with('.') && name != "target" && name != "node_modules"
            {
                folders.push(path);
            } else if name.ends_with(".rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Adds the markers of one file.
fn collect(place: &str, text: &str, holders: &mut Holders) -> Result<()> {
    let mut pending: Vec<String> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(ids) = line.strip_prefix("// holds:") {
            for id in ids.split(',').map(str::trim) {
                ensure!(is_id(id), "{place}:{}: {id:?} is no requirement id", number + 1);
                pending.push(id.to_owned());
            }
        } else if pending.is_empty() || line.is_empty() || is_between(line) {
            continue;
        } else if let Some(name) = function(line) {
            for id in pending.drain(..) {
                holders.entry(id).or_default().push(format!("`{name}` ({place})"));
            }
        } else {
            bail!("{place}:{}: a `holds:` marker belongs above a test function", number + 1);
        }
    }
    ensure!(pending.is_empty(), "{place}: a `holds:` marker is at the end of the file");
    Ok(())
}

/// Whether a line may be between a marker and its function.
fn is_between(line: &str) -> bool {
    // An attribute may have several lines; the last one closes the bracket.
    line.starts_with("//") || line.starts_with("#[") || line.ends_with(")]") || line == "]"
}

/// The name of the function that a line begins.
fn function(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let line = line.strip_prefix("async ").unwrap_or(line);
    line.strip_prefix("fn ")?.split(['(', '<']).next()
}

fn is_id(text: &str) -> bool {
    text.split_once('-').is_some_and(|(group, number)| {
        group.bytes().all(|byte| byte.is_ascii_uppercase())
            && !group.is_empty()
            && number.len() == 2
            && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// The page with its last column according to the markers; removes the markers that it uses.
fn rewritten(page: &str, holders: &mut Holders) -> Result<String> {
    let mut out = String::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let row = cells.len() == 6 && is_id(cells[1]);
        match row.then(|| holders.remove(cells[1])).flatten() {
            Some(tests) => {
                let [_, id, revisions, short, ..] = cells[..] else { unreachable!() };
                out += &format!("| {id} | {revisions} | {short} | {} |\n", tests.join("; "));
            }
            None => {
                ensure!(
                    !row || cells[4].starts_with("not ours: ") || cells[4].starts_with("open: "),
                    "{} is neither held by a test nor explained in docs/requirements.md",
                    cells[1]
                );
                out += line;
                out.push('\n');
            }
        }
    }
    Ok(out)
}
