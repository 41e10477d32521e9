//! The links of the pages: each leads to a file of the repository and to a heading in it, or to
//! another site.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use tests::tools;

use crate::pages;

pub(crate) fn check_all() -> Result<()> {
    let mut wrong = Vec::new();
    let mut links = 0;
    for page in pages::pages()? {
        let text = pages::read(&page)?;
        for target in targets(&text) {
            links += 1;
            if let Err(why) = check(&page, &text, target) {
                wrong.push(format!("{page}: {target}: {why}"));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(links > 100, "only {links} links were found");
    Ok(())
}

/// The targets of `[text](target)` to this repository.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.contains(char::is_whitespace))
}

fn check(page: &str, text: &str, target: &str) -> Result<()> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    let file = tools::root().join(folder).join(path);
    let text = if path.is_empty() {
        text.to_owned()
    } else {
        ensure!(file.exists(), "no such file");
        if anchor.is_empty() {
            return Ok(());
        }
        fs::read_to_string(&file).context("not a text")?
    };
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    ensure!(headings.any(|line| anchor_of(line) == anchor), "no such heading");
    Ok(())
}

/// The anchor that is made of a heading: letters, digits, `-` and `_` in lower case.
fn anchor_of(heading: &str) -> String {
    let title = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
