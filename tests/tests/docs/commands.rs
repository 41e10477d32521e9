//! `docs/commands.md`: the help texts of the program, written by it. And the commands that other
//! pages mention.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use tests::tools;

use crate::pages;

const PAGE: &str = "docs/commands.md";

/// The beginning of the part that is written by the test.
const BEGIN: &str = "<!-- begin: help of the program -->\n";
const END: &str = "<!-- end: help of the program -->\n";

/// The output of `roundhouse WORDS --help`.
fn help(words: &[&str]) -> Result<String> {
    let output = Command::new(tools::built("roundhouse")).args(words).arg("--help").output()?;
    ensure!(output.status.success(), "{words:?} has no help");
    Ok(String::from_utf8(output.stdout)?)
}

/// The names of the commands, as the help lists them.
fn names() -> Result<Vec<String>> {
    let help = help(&[])?;
    let list = help.split("\nCommands:\n").nth(1).context("the help lists no commands")?;
    let list = list.split("\n\n").next().unwrap_or_default();
    // Further lines of a description are indented further.
    let names = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names = names.filter(|name| !name.is_empty() && *name != "help");
    Ok(names.map(str::to_owned).collect())
}

/// Compares the page with the program, or writes it again.
pub(crate) fn compare() -> Result<()> {
    let names = names()?;
    ensure!(names.len() >= 5, "only {names:?} were found");
    let mut expected = String::new();
    for words in [vec![]].into_iter().chain(names.iter().map(|name| vec![name.as_str()])) {
        let title = std::iter::once("roundhouse").chain(words.iter().copied()).collect::<Vec<_>>();
        let help = help(&words)?;
        let text: Vec<&str> = help.lines().map(str::trim_end).collect();
        expected.push_str(&format!(
            "## `{}`\n\n<!-- test: picture -->\n```\n{}\n```\n\n",
            title.join(" "),
            text.join("\n").trim_end()
        ));
    }
    let page = pages::read(PAGE)?;
    let (head, rest) = page.split_once(BEGIN).context("the page has no begin")?;
    let (written, tail) = rest.split_once(END).context("the page has no end")?;
    if std::env::var_os("UPDATE").is_some() {
        let page = format!("{head}{BEGIN}{expected}{END}{tail}");
        return Ok(fs::write(tools::root().join(PAGE), page)?);
    }
    ensure!(
        written == expected,
        "{PAGE} is stale; run UPDATE=1 cargo nextest run -p tests --test docs commands_page"
    );
    Ok(())
}

/// A command that begins with a path of this repository, or with `cargo`.
fn check_scripts(code: &str) -> Result<()> {
    let words: Vec<&str> = code.split_whitespace().collect();
    let root = tools::root();
    let is_script =
        |word: &&&str| ["tests/", "deploy/"].iter().any(|folder| word.starts_with(folder));
    if let Some(script) = words.first().filter(is_script) {
        let path = script.split("::").next().unwrap_or_default();
        let is_pattern = path.contains(['*', '<', '{']) || path.ends_with(".rs");
        ensure!(is_pattern || root.join(path).exists(), "there is no {path}");
    }
    let after = |option: &str| {
        words.iter().position(|word| *word == option).and_then(|at| words.get(at + 1))
    };
    if words.len() < 2 || !words.contains(&"cargo") {
        return Ok(());
    }
    let Some(package) = after("-p").filter(|package| **package != "CRATE") else { return Ok(()) };
    let folders = ["crates/", "tests/", "tests/servers/", ""];
    let folder = match *package {
        "tests" => Some(root.join("tests")),
        package => folders.iter().map(|f| root.join(f).join(package)).find(|f| f.is_dir()),
    };
    let folder = folder.with_context(|| format!("there is no package {package}"))?;
    for (option, tests) in [("--test", "tests"), ("--bench", "benches")] {
        let Some(name) = after(option).filter(|name| **name != "NAME") else { continue };
        let files = [format!("{name}.rs"), format!("{name}/main.rs")];
        let is_there = files.iter().any(|file| folder.join(tests).join(file).exists());
        ensure!(is_there, "{package} has no {tests}/{name}");
    }
    Ok(())
}

/// Each inline `roundhouse COMMAND --option` of a page exists, and so does what an inline `cargo`
/// command names, and each script of this repository.
pub(crate) fn check_mentions() -> Result<()> {
    let names = names()?;
    let mut mentions = 0;
    for page in pages::pages()? {
        let text = pages::read(&page)?;
        for code in text.split('`').skip(1).step_by(2) {
            check_scripts(code).with_context(|| format!("{page}: `{code}`"))?;
            let Some(rest) = code.strip_prefix("roundhouse ") else { continue };
            // What is behind `--` belongs to the server.
            let rest = rest.split(" -- ").next().unwrap_or_default();
            let Some(name) = rest.split([' ', '\n']).next() else { continue };
            if name.starts_with(|c: char| !c.is_ascii_lowercase()) {
                continue;
            }
            ensure!(names.iter().any(|known| known == name), "{page}: `{code}`: no such command");
            let help = help(&[name])?;
            for option in rest.split([' ', '\n']).filter(|word| word.starts_with("--")) {
                ensure!(help.contains(option), "{page}: `{code}`: {name} has no {option}");
            }
            mentions += 1;
        }
    }
    ensure!(mentions >= 10, "only {mentions} mentions were found");
    Ok(())
}
