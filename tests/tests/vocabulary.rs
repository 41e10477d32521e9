//! Checks the words in `docs/glossary.md`: each is defined in the file that it names, and the
//! words that it replaced are not used. Checks the entry points in `docs/architecture.md` as well.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Replaced names of types and modules; the glossary has the names in use.
const REPLACED: &[&str] = &[
    "Beat",
    "Bell",
    "Birth",
    "Census",
    "Course",
    "Door",
    "Draft",
    "Ear",
    "Emitter",
    "Enrolled",
    "Errand",
    "Inflow",
    "Keeper",
    "Lane",
    "Letter",
    "Mouth",
    "Newborn",
    "Party",
    "Passage",
    "Pen",
    "Seat",
    "Standing",
    "Story",
    "Tenure",
    "Told",
    "Turn",
    "Visit",
    "Voice",
    "Whereabouts",
    "bell",
    "birth",
    "census",
    "ear",
    "emitter",
    "enrolled",
    "inflow",
    "mouth",
    "newborn",
    "seat",
    "stories",
    "story",
    "tenure",
    "whereabouts",
];

/// Permitted uses of these names with another meaning, or before a rename: a file, and the word.
const ALLOWED: &[(&str, &str)] = &[
    // The trait of the `syn` parser.
    ("tests/tests/workspace/structure.rs", "Visit"),
    // The trait for the fields of an event.
    ("crates/telemetry/src/limit_layer.rs", "Visit"),
];

fn root() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    Ok(root.context("the workspace has a root")?.to_owned())
}

/// Name and path of each link in a table of the glossary: [`Name`](../path).
fn links(glossary: &str) -> Vec<(&str, &str)> {
    let rows = glossary.lines().filter(|line| line.starts_with("| ") && line.contains("](../"));
    rows.filter_map(|row| {
        let (_, link) = row.rsplit_once("[`")?;
        let (name, path) = link.split_once("`](../")?;
        Some((name, path.split(')').next()?))
    })
    .collect()
}

fn defines(text: &str, name: &str) -> bool {
    let kinds = ["struct", "enum", "trait", "type"];
    words(text).windows(2).any(|pair| kinds.contains(&pair[0].1) && pair[1].1 == name)
}

/// Each word of the code with the number of its line, without comments and doc comments.
fn words(text: &str) -> Vec<(usize, &str)> {
    let lines = (1..).zip(text.lines());
    let code = lines.filter(|(_, line)| !line.trim_start().starts_with("//"));
    code.flat_map(|(number, line)| {
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.filter(|word| !word.is_empty()).map(move |word| (number, word))
    })
    .collect()
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
            rust_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

#[test]
fn each_term_is_defined_where_the_glossary_says() -> Result<()> {
    let root = root()?;
    let glossary = fs::read_to_string(root.join("docs/glossary.md"))?;
    let links = links(&glossary);
    ensure!(links.len() >= 45, "only {} terms were read", links.len());
    for (name, path) in links {
        let text = fs::read_to_string(root.join(path)).with_context(|| path.to_owned())?;
        ensure!(defines(&text, name), "{path} does not define {name}: correct docs/glossary.md");
    }
    Ok(())
}

/// "Where to begin reading" in `docs/architecture.md` names functions, each with its file.
#[test]
fn each_entry_point_is_where_the_architecture_page_says() -> Result<()> {
    let root = root()?;
    let page = fs::read_to_string(root.join("docs/architecture.md"))?;
    let (_, section) = page.split_once("## Where to begin reading").context("the section")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut links = 0;
    for link in section.split("[`").skip(1) {
        let (name, rest) = link.split_once("`](../").context("a link to a file")?;
        let path = rest.split(')').next().unwrap_or_default();
        let function = name.rsplit("::").next().unwrap_or_default();
        let text = fs::read_to_string(root.join(path)).with_context(|| path.to_owned())?;
        let words = words(&text);
        let is_there = words.windows(2).any(|pair| pair[0].1 == "fn" && pair[1].1 == function);
        ensure!(is_there, "{path} has no function {function}: correct docs/architecture.md");
        links += 1;
    }
    ensure!(links >= 20, "only {links} entry points were read");
    Ok(())
}

#[test]
fn what_was_renamed_has_its_new_name_everywhere() -> Result<()> {
    let root = root()?;
    let mut files = Vec::new();
    for folder in ["crates", "tests", "loadtest"] {
        rust_files(&root.join(folder), &mut files)?;
    }
    let mut found = Vec::new();
    for file in files {
        let path = file.strip_prefix(&root)?.to_string_lossy().into_owned();
        if path == "tests/tests/vocabulary.rs" {
            continue;
        }
        let text = fs::read_to_string(&file)?;
        for (number, word) in words(&text) {
            if REPLACED.contains(&word) && !ALLOWED.contains(&(path.as_str(), word)) {
                found.push(format!("{path}:{number}: {word}"));
            }
        }
    }
    ensure!(found.is_empty(), "see docs/glossary.md for the word in use:\n{}", found.join("\n"));
    Ok(())
}

#[test]
fn a_definition_is_told_from_a_mention() {
    assert!(defines("/// What.\npub(crate) struct Token {", "Token"));
    assert!(!defines("/// A struct Token.\nlet token: Token = struct_token();", "Token"));
}
