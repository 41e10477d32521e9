//! The pages for people, and the blocks of code in them.
//!
//! The line before a block is a comment, which a reader does not see, and which says how the test
//! checks the block: `<!-- test: run in first -->`. [`Context`] lists what it may say.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use tests::tools;

/// The pages that are checked, beside those in `docs/`.
const OTHERS: [&str; 5] =
    ["README.md", "CONTRIBUTING.md", "deploy/README.md", "loadtest/README.md", "tests/README.md"];

/// How a block is checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Context {
    /// `run in GROUP`: the blocks of a group of a page run one after another, in one shell and in
    /// a folder that looks like a clone. The group `operator` has a running node besides.
    Run { group: String },
    /// `background in GROUP, until: TEXT`: a command that keeps running. The next blocks of the
    /// group run when it has printed the text. A later background command of the group, or the end
    /// of the group, stops it.
    Background { group: String, until: String },
    /// `printed in GROUP`: the group prints these lines. `…` stands for any text within a line.
    Printed { group: String },
    /// `file PATH in GROUP`: the block is written into this file before the group runs. Settings
    /// are checked as well, unless the words end with `, checked by the group`: its commands write what they
    /// need beside them.
    File { path: String, group: String, is_checked: bool },
    /// `compared with PATH in GROUP`: the file has this content after the group has run.
    Compared { path: String, group: String },
    /// `check`: `roundhouse check` accepts the block. `check with cluster`: it does so with
    /// a store and an address for peers, which other parts of the file name.
    Check { in_cluster: bool },
    /// `part of PATH`: the file has these lines in this order. `…` stands for any text.
    PartOf { path: String },
    /// `tested by NAME`: the test of this name in `crates` reads the block and checks it.
    TestedBy { test: String },
    /// `promql`: Prometheus can read the expression.
    Promql,
    /// `picture`: a drawing, or a form of a name, for the reader.
    Picture,
    /// `not run: REASON`.
    NotRun { reason: String },
}

/// A block between two lines of three backticks.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) page: String,
    /// The line of the page on which the block begins.
    pub(crate) line: usize,
    pub(crate) language: String,
    pub(crate) context: Context,
    pub(crate) text: String,
}

impl Block {
    /// The page and the line, for errors.
    pub(crate) fn place(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }
}

/// The paths of all pages, from the root of the repository.
pub(crate) fn pages() -> Result<Vec<String>> {
    let mut pages: Vec<String> = OTHERS.map(str::to_owned).into();
    for entry in fs::read_dir(tools::root().join("docs"))? {
        let name = entry?.file_name().into_string().ok().context("a name is not UTF-8")?;
        if name.ends_with(".md") {
            pages.push(format!("docs/{name}"));
        }
    }
    pages.sort();
    Ok(pages)
}

pub(crate) fn read(page: &str) -> Result<String> {
    fs::read_to_string(tools::root().join(page)).context(page.to_owned())
}

/// The blocks of all pages.
pub(crate) fn blocks() -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    for page in pages()? {
        blocks.extend(blocks_of(&page, &read(&page)?)?);
    }
    Ok(blocks)
}

/// The blocks of one page.
pub(crate) fn blocks_of(page: &str, text: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut before = "";
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else {
            before = line;
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        let place = format!("{page}:{}", index + 1);
        let mut text = String::new();
        loop {
            let (_, line) = lines.next().with_context(|| format!("{place}: the block is open"))?;
            if line.trim() == "```" {
                break;
            }
            text.push_str(line.get(indent..).unwrap_or_default());
            text.push('\n');
        }
        let context =
            before.trim().strip_prefix("<!-- test: ").and_then(|c| c.strip_suffix(" -->"));
        let context = context.with_context(|| {
            format!(
                "{place}: the line before the block is no `<!-- test: … -->`, see tests/tests/docs"
            )
        })?;
        let context = parse(context).with_context(|| place.clone())?;
        let language = language.to_owned();
        blocks.push(Block { page: page.to_owned(), line: index + 1, language, context, text });
        before = "";
    }
    Ok(blocks)
}

fn parse(words: &str) -> Result<Context> {
    let group = |text: &str| -> Result<String> {
        ensure!(text.chars().all(|c| c.is_ascii_lowercase()), "{text:?} is no name of a group");
        Ok(text.to_owned())
    };
    if let Some(rest) = words.strip_prefix("run in ") {
        return Ok(Context::Run { group: group(rest)? });
    }
    if let Some(rest) = words.strip_prefix("background in ") {
        let (name, until) = rest.split_once(", until: ").context("`until: TEXT` is missing")?;
        return Ok(Context::Background { group: group(name)?, until: until.to_owned() });
    }
    if let Some(rest) = words.strip_prefix("printed in ") {
        return Ok(Context::Printed { group: group(rest)? });
    }
    let in_group = |rest: &str| -> Result<(String, String)> {
        let (path, name) = rest.split_once(" in ").context("`in GROUP` is missing")?;
        Ok((path.to_owned(), group(name)?))
    };
    if let Some(rest) = words.strip_prefix("file ") {
        let by_group = rest.strip_suffix(", checked by the group");
        let (path, group) = in_group(by_group.unwrap_or(rest))?;
        return Ok(Context::File { path, group, is_checked: by_group.is_none() });
    }
    if let Some(rest) = words.strip_prefix("compared with ") {
        let (path, group) = in_group(rest)?;
        return Ok(Context::Compared { path, group });
    }
    if let Some(path) = words.strip_prefix("part of ") {
        return Ok(Context::PartOf { path: path.to_owned() });
    }
    if let Some(test) = words.strip_prefix("tested by ") {
        return Ok(Context::TestedBy { test: test.to_owned() });
    }
    if let Some(reason) = words.strip_prefix("not run: ") {
        return Ok(Context::NotRun { reason: reason.to_owned() });
    }
    match words {
        "check" => Ok(Context::Check { in_cluster: false }),
        "check with cluster" => Ok(Context::Check { in_cluster: true }),
        "promql" => Ok(Context::Promql),
        "picture" => Ok(Context::Picture),
        _ => bail!("`test: {words}` is no context that the test knows"),
    }
}

/// Does the text have the fragments of the pattern in their order? `…` is between fragments.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
    let mut rest = text;
    pattern.split('…').all(|fragment| {
        let found = rest.find(fragment);
        rest = found.map_or("", |at| &rest[at + fragment.len()..]);
        found.is_some()
    })
}
