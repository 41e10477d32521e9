//! Checks the rules of "What never happens" in `docs/architecture.md`: reads every manifest and
//! every source of the workspace.
//!
//! Tests may break many of these rules. So code behind `#[cfg(test)]` and files of tests are left
//! out if a rule is about the product.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

#[path = "workspace/structure.rs"]
mod structure;

/// Longest source file, in lines. A longer file has more than one job.
const LINES_MAX: usize = 600;

/// The fixture server, which the product mounts as its demo: its name, and its folder.
const FIXTURE: (&str, &str) = ("everything", "tests/servers/everything");

/// One Rust file of the workspace.
struct Source {
    /// The path from the workspace's root, with `/`.
    path: String,
    text: String,
}

impl Source {
    /// The crate of the product to which it belongs: one under `crates/`, or the fixture server.
    fn package(&self) -> Option<&str> {
        let (fixture, folder) = FIXTURE;
        if self.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')) {
            return Some(fixture);
        }
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    // The contract tests of every store are tests, although they are in the crate of the stores.
    fn is_for_tests(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let is_named = ["tests.rs", "contract.rs", "interleavings.rs"].contains(&name);
        let folders = ["/tests/", "/benches/", "/contract/"];
        is_named || name.ends_with("_tests.rs") || folders.iter().any(|f| self.path.contains(f))
    }

    /// The numbered lines of the product, without tests and comments.
    fn product(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = if self.is_for_tests() { 0 } else { tests_begin(&self.text) };
        let text = &self.text[..end];
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// The lines of the product that contain one of these words.
    fn says(&self, words: &[&str]) -> Vec<String> {
        let found = self.product().filter(|(_, line)| words.iter().any(|word| holds(line, word)));
        found.map(|(number, line)| format!("{}:{number}: {}", self.path, line.trim())).collect()
    }
}

/// The position of the module of tests that ends a file. A line such as `mod tests;`, whose module
/// is another file, is not such a position.
fn tests_begin(text: &str) -> usize {
    let mut modules = text.match_indices("\n#[cfg(test)]\nmod ");
    let has_body = |(at, found): &(usize, &str)| {
        text[at + found.len()..].lines().next().is_some_and(|line| line.ends_with('{'))
    };
    modules.find(has_body).map_or(text.len(), |(at, _)| at)
}

/// Does the line contain the word, not as a part of a longer one?
fn holds(line: &str, word: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let starts = !word.starts_with(in_word) || !before.is_some_and(in_word);
        let ends = !word.ends_with(in_word) || !after.is_some_and(in_word);
        starts && ends
    })
}

fn root() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")
}

fn sources() -> Result<Vec<Source>> {
    let root = root()?;
    let mut paths = Vec::new();
    for folder in ["crates", "tests", "loadtest"] {
        collect(&root.join(folder), &mut paths)?;
    }
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path)?;
        let path = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
        Ok(Source { path, text })
    };
    let sources = paths.into_iter().map(read).collect::<Result<Vec<_>>>()?;
    ensure!(sources.len() > 50, "only {} sources found; looked in the wrong place", sources.len());
    Ok(sources)
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Installed tools and build outputs are not part of the workspace.
        if name.starts_with('.') || name == "target" || name == "node_modules" {
            continue;
        }
        if path.is_dir() {
            collect(&path, paths)?;
        } else if name.ends_with(".rs") {
            paths.push(path);
        }
    }
    Ok(())
}

/// Fails with every line that contains one of `words`, except in sources that `allowed` accepts.
#[track_caller]
fn no_source_says(words: &[&str], allowed: impl Fn(&Source) -> bool) {
    let sources = sources().unwrap();
    let products = sources.iter().filter(|source| source.package().is_some());
    let found: Vec<String> =
        products.filter(|source| !allowed(source)).flat_map(|source| source.says(words)).collect();
    assert!(found.is_empty(), "{words:?} is not permitted here:\n{}", found.join("\n"));
}

/// The names under `[dependencies]`, without the dependencies of tests and builds.
fn dependencies(package: &str) -> Result<BTreeSet<String>> {
    let folder = if package == FIXTURE.0 { FIXTURE.1.into() } else { format!("crates/{package}") };
    let manifest = root()?.join(folder).join("Cargo.toml");
    let text = fs::read_to_string(&manifest).with_context(|| manifest.display().to_string())?;
    let section = text.lines().skip_while(|line| line.trim() != "[dependencies]").skip(1);
    let section = section.take_while(|line| !line.starts_with('['));
    let names = section.filter_map(|line| line.split(['.', ' ', '=']).next());
    Ok(names.filter(|name| !name.is_empty() && !name.starts_with('#')).map(Into::into).collect())
}

/// The table of the crates in `docs/architecture.md`: each with its permitted dependencies.
fn charters() -> Result<BTreeMap<String, BTreeSet<String>>> {
    let page = fs::read_to_string(root()?.join("docs/architecture.md"))?;
    let mut charters = BTreeMap::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, _, may] = cells[..] else { continue };
        let may = may.split(',').map(str::trim).filter(|name| *name != "–").map(Into::into);
        charters.insert(name.trim_matches('`').to_owned(), may.collect());
    }
    Ok(charters)
}

#[test]
fn every_crate_depends_on_what_the_architecture_page_says() -> Result<()> {
    let charters = charters()?;
    let mut packages = BTreeSet::new();
    for entry in fs::read_dir(root()?.join("crates"))? {
        packages.insert(entry?.file_name().to_string_lossy().into_owned());
    }
    ensure!(
        charters.keys().eq(&packages),
        "the page names {:?}, not {packages:?}",
        charters.keys()
    );
    // The page states that the fixture depends on no crate of the product.
    packages.insert(FIXTURE.0.into());
    let fixture = (FIXTURE.0.to_owned(), BTreeSet::new());
    for (package, may) in charters.iter().chain([(&fixture.0, &fixture.1)]) {
        let ours: BTreeSet<_> = dependencies(package)?.intersection(&packages).cloned().collect();
        ensure!(ours == *may, "`{package}` depends on {ours:?}, but the page has {may:?}");
    }
    Ok(())
}

#[test]
fn the_pure_crates_have_no_runtime_no_clock_no_socket_and_no_lock() -> Result<()> {
    let pure = ["protocol", "conversation", "ownership"];
    for package in pure {
        for runtime in ["tokio", "tokio-util", "actix", "actix-rt", "actix-web", "futures-util"] {
            ensure!(!dependencies(package)?.contains(runtime), "`{package}` depends on {runtime}");
        }
    }
    let words = [
        "async",
        ".await",
        "tokio",
        "actix",
        "std::thread",
        "std::net",
        "std::io",
        "Instant",
        "SystemTime",
        "Mutex",
        "RwLock",
        "Condvar",
    ];
    // The store's error names the type of an I/O error, and performs no I/O.
    let is_error = |source: &Source| source.path == "crates/ownership/src/error.rs";
    no_source_says(&words, |source| {
        !pure.contains(&source.package().unwrap_or_default()) || is_error(source)
    });
    Ok(())
}

#[test]
fn only_protocol_names_a_revision() {
    let words = ["Revision::V2024_11_05", "Revision::V2025_03_26", "Revision::V2025_06_18"];
    let more = ["Revision::V2025_11_25", "Revision::Draft2026V1", "2024-11-05", "2025-03-26"];
    let rest = ["2025-06-18", "2025-11-25", "DRAFT-2026-v1"];
    let words: Vec<&str> = words.into_iter().chain(more).chain(rest).collect();
    // The fixture stands for a server of another project: it uses the revisions of rmcp.
    no_source_says(&words, |source| matches!(source.package(), Some("protocol" | "everything")));
}

#[test]
fn only_the_front_names_http_statuses() {
    no_source_says(&["StatusCode"], |source| source.package() == Some("front"));
}

#[test]
fn only_roundhouse_reads_files_and_the_environment() {
    let words = ["std::env", "std::fs", "tokio::fs", "env::var", "env::vars_os", "File::open"];
    no_source_says(&words, |source| match source.package() {
        // The fixture is a separate program.
        Some("roundhouse" | "everything") => true,
        // The audit file, which it appends to and rotates.
        Some("audit") => source.path.ends_with("/src/file.rs") || source.path.ends_with("/sink.rs"),
        // The time that the kernel counts for a thread.
        Some("fairness") => source.path.ends_with("/ready_time.rs"),
        // The file of its Unix socket, which it creates and removes.
        Some("front") => source.path.ends_with("/admin_address.rs"),
        // Processes, namespaces and cgroups are files of the kernel.
        Some("backends") => ["/src/guard.rs", "/src/guard/", "/src/stdio/"]
            .iter()
            .any(|place| source.path.contains(place)),
        _ => false,
    });
}

#[test]
fn only_actors_has_actors() -> Result<()> {
    no_source_says(&["Actor for", "actix::Actor"], |source| source.package() == Some("actors"));
    for package in charters()?.keys().map(String::as_str).chain([FIXTURE.0]) {
        if package == "actors" {
            continue;
        }
        ensure!(!dependencies(package)?.contains("actix"), "`{package}` depends on actix");
    }
    Ok(())
}

#[test]
fn nothing_is_sent_into_a_mailbox_or_channel_without_a_bound() {
    let words = ["do_send", "unbounded", "unbounded_channel", "UnboundedSender", "mpsc::channel()"];
    no_source_says(&words, |_| false);
}

#[test]
fn nothing_is_left_open_in_the_sources() -> Result<()> {
    // The words are in halves, so that this file does not contain them.
    let words = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"], ["todo", "!("], ["unimplemented", "!("]];
    let words = words.map(|halves| halves.concat());
    for source in sources()? {
        for (number, line) in source.text.lines().enumerate() {
            let found = words.iter().find(|word| holds(line, word));
            ensure!(found.is_none(), "{}:{}: {line}", source.path, number + 1);
        }
    }
    Ok(())
}

#[test]
fn no_file_is_too_long() -> Result<()> {
    for source in sources()? {
        let lines = source.text.lines().count();
        ensure!(lines <= LINES_MAX, "{} has {lines} lines, above {LINES_MAX}", source.path);
    }
    Ok(())
}

/// Words that hide which part of the system acts: a node, a client, an owner, a caller.
#[test]
fn comments_and_texts_of_the_product_name_their_subjects() -> Result<()> {
    let hidden = ["whoever", "nobody", "somebody", "anybody", "anyone", "everybody", "everyone"];
    let is_product = |source: &&Source| {
        let is_tests = source.path.ends_with("tests.rs") || source.path.contains("/tests/");
        source.package().is_some() && source.path.contains("/src/") && !is_tests
    };
    let mut found = Vec::new();
    for source in sources()?.iter().filter(is_product) {
        let text = &source.text[..tests_begin(&source.text)];
        for (number, line) in (1..).zip(text.lines()) {
            if hidden.iter().any(|word| holds(&line.to_lowercase(), word)) {
                found.push(format!("{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    ensure!(found.is_empty(), "name what acts, a node or a client:\n{}", found.join("\n"));
    Ok(())
}

/// A test file that neither its `main.rs` nor its manifest names would never run.
#[test]
fn every_file_of_a_test_program_is_a_module_of_it() -> Result<()> {
    let sources = sources()?;
    let mains = sources.iter().filter(|source| source.path.ends_with("/tests/main.rs"));
    for main in mains {
        let folder = main.path.trim_end_matches("main.rs");
        let manifest = root()?.join(folder).with_file_name("Cargo.toml");
        let manifest = fs::read_to_string(&manifest).with_context(|| folder.to_owned())?;
        for source in &sources {
            let Some(module) = source.path.strip_prefix(folder).filter(|path| *path != "main.rs")
            else {
                continue;
            };
            let module = module.split('/').next().unwrap_or_default().trim_end_matches(".rs");
            let is_module = main.text.lines().any(|line| line == format!("mod {module};"));
            let is_program = manifest.contains(&format!("path = \"tests/{module}.rs\""));
            ensure!(
                is_module || is_program,
                "{} does not declare `mod {module};`: its tests never run",
                main.path
            );
        }
    }
    Ok(())
}

#[test]
fn no_file_names_a_path_of_one_machine() -> Result<()> {
    let root = root()?;
    let listed = std::process::Command::new("git").arg("ls-files").current_dir(root).output()?;
    // Without git (in a source archive) there are no files to commit.
    let listed = String::from_utf8(listed.stdout)?;
    let words = [["/wo", "rk/"], ["/ro", "ot/"], ["/Us", "ers/"], ["/fa", "rm/"]];
    let words = words.map(|halves| halves.concat());
    for path in listed.lines() {
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        for (number, line) in text.lines().enumerate() {
            let found = words.iter().find(|word| line.contains(word.as_str()));
            ensure!(found.is_none(), "{path}:{}: {line}", number + 1);
        }
    }
    Ok(())
}

/// Commit subjects must have this form from this day on.
const SUBJECTS_SINCE: &str = "2026-11-24T05:43:00Z";

#[test]
fn commit_subjects_name_their_area_and_are_short() -> Result<()> {
    let since = format!("--since={SUBJECTS_SINCE}");
    let mut git = std::process::Command::new("git");
    let logged = git.args(["log", &since, "--format=%s"]).current_dir(root()?).output();
    // Without git (in a source archive) there is no commit to check.
    let Ok(logged) = logged else { return Ok(()) };
    let logged = String::from_utf8(logged.stdout)?;
    let wrong: Vec<_> = logged.lines().filter(|subject| !is_commit_subject(subject)).collect();
    ensure!(
        wrong.is_empty(),
        "not `area: imperative` of at most 72 characters:\n{}",
        wrong.join("\n")
    );
    Ok(())
}

/// Is it `area: imperative`, or `area, area: imperative`, of at most 72 characters?
fn is_commit_subject(subject: &str) -> bool {
    let Some((areas, rest)) = subject.split_once(": ") else { return false };
    let is_area = |area: &str| {
        !area.is_empty() && area.chars().all(|c| c.is_alphanumeric() || "_-./".contains(c))
    };
    let begins = rest.chars().next().is_some_and(char::is_lowercase);
    subject.chars().count() <= 72 && areas.split(", ").all(is_area) && begins
}

#[test]
fn a_commit_subject_has_areas_and_an_imperative() {
    assert!(is_commit_subject("docs/metrics.md: name the unit of each histogram"));
    assert!(is_commit_subject("cluster, actors: pass the lease in"));
    for wrong in ["Lints", "notes that were behind", "cluster: ", "cluster: Fix it", "a b: fix it"]
    {
        assert!(!is_commit_subject(wrong), "{wrong}");
    }
    assert!(!is_commit_subject(&format!("cluster: {}", "x".repeat(64))));
}

#[test]
fn every_file_says_first_what_it_is() -> Result<()> {
    for source in sources()?.iter().filter(|source| !source.is_for_tests()) {
        ensure!(source.text.starts_with("//! "), "{} does not begin with `//! `", source.path);
    }
    Ok(())
}

#[test]
fn a_module_of_tests_in_another_file_does_not_end_the_product() {
    let text = "a\n#[cfg(test)]\nmod tests;\nb\n#[cfg(test)]\nmod more {\n}\n";
    assert_eq!(&text[..tests_begin(text)], "a\n#[cfg(test)]\nmod tests;\nb");
    assert_eq!(tests_begin("a\n"), 2);
}

#[test]
fn a_word_is_found_only_as_a_whole() {
    assert!(holds("use std::env;", "std::env"));
    assert!(!holds("use std::environment;", "std::env"));
    assert!(!holds("fn asynchronous()", "async"));
    assert!(holds("x.await?", ".await"));
}
