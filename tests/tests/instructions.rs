//! The number of instructions for each step of a call, counted by callgrind and compared with
//! `tests/micro/instructions.txt`. The load of the machine does not change them as it changes
//! times, so a change that makes a call more expensive is detected when it is made.
//!
//! `UPDATE=1 cargo test -p tests --test instructions` writes the file again.

#![expect(clippy::print_stdout, reason = "the figures are what it is run for")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};

/// The maximum difference from the stored count, in percent, under the same toolchain. It applies
/// in both directions, since a gain that is not stored can be lost undetected.
const APART_PERCENT: u64 = 3;
/// A difference of so many instructions is no fault, whatever percentage it is: two builds of one
/// source, in different folders, were measured to differ by 9 of 276 instructions, and by 12 of 601.
const APART: u64 = 15;
/// The maximum increase over the stored count under another compiler, C library or kind of
/// processor, in percent. Such a difference is not a fault of the code, and the test must not fail
/// for it; but none of them makes a call a quarter more expensive.
const FOREIGN_PERCENT: u64 = 25;
/// The repetitions of the two runs whose difference is counted. Both runs include the start, the
/// preparation and the first use of everything.
const COUNTS: [u64; 2] = [500, 2_500];

/// The counts of one toolchain, in the form of the file.
#[derive(Debug, PartialEq)]
struct Kept {
    toolchain: String,
    counts: BTreeMap<String, u64>,
}

impl Kept {
    fn path() -> PathBuf {
        root().join("tests/micro/instructions.txt")
    }

    fn read(text: &str) -> Result<Self> {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let mut toolchain = String::new();
        let mut counts = BTreeMap::new();
        for line in lines {
            let (name, value) = line.split_once(char::is_whitespace).context("no value")?;
            match name {
                "toolchain" => toolchain = value.trim().to_owned(),
                _ => drop(counts.insert(name.to_owned(), value.trim().parse()?)),
            }
        }
        Ok(Self { toolchain, counts })
    }

    fn write(&self) -> String {
        let mut text =
            "# Instructions that one repetition of each work takes; tests/tests/instructions.rs\n\
             # compares. To write them anew: UPDATE=1 cargo test -p tests --test instructions\n\n"
                .to_owned();
        let _written = writeln!(text, "toolchain {}\n", self.toolchain);
        for (name, count) in &self.counts {
            let _written = writeln!(text, "{name:<32} {count:>8}");
        }
        text
    }
}

/// The faults of the counts, a line each.
fn faults(kept: &Kept, counted: &Kept) -> Vec<String> {
    let is_foreign = kept.toolchain != counted.toolchain;
    let judge = |name: &String| {
        let (was, is) = match (kept.counts.get(name), counted.counts.get(name)) {
            (Some(was), Some(is)) => (*was, *is),
            (None, _) => return Some(format!("{name} is not kept")),
            (_, None) => return Some(format!("{name} is kept, but it does not exist")),
        };
        let percent = if is_foreign { FOREIGN_PERCENT } else { APART_PERCENT };
        let is_apart = is.abs_diff(was) > APART && is.abs_diff(was) * 100 > was * percent;
        let is_dearer = is_apart && is > was;
        let is_cheaper = is_apart && is < was && !is_foreign;
        let change = (is as f64 / was as f64 - 1.0) * 100.0;
        (is_dearer || is_cheaper)
            .then(|| format!("{name} takes {is} instructions, not {was}: {change:+.1} %"))
    };
    let mut names: Vec<&String> = kept.counts.keys().chain(counted.counts.keys()).collect();
    names.sort();
    names.dedup();
    names.into_iter().filter_map(judge).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is above")
}

fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name} does not start"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} fails: {complaint}");
    Ok(String::from_utf8(output.stdout)?)
}

/// The compiler, the C library (which allocates and copies) and the kind of processor (which
/// selects the algorithms to search and to copy).
fn toolchain() -> Result<String> {
    let told = output(Command::new("rustc").arg("-vV"))?;
    let told = |key: &str| told.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let release = told("release:").context("rustc has no release")?;
    let host = told("host:").context("rustc has no host")?;
    let library = output(Command::new("getconf").arg("GNU_LIBC_VERSION"))
        .map_or_else(|_| "another C library".to_owned(), |text| text.trim().to_owned());
    #[cfg(target_arch = "x86_64")]
    let vectors = if is_x86_feature_detected!("avx2") { "avx2" } else { "sse2" };
    #[cfg(not(target_arch = "x86_64"))]
    let vectors = "its own vectors";
    Ok(format!("rustc {release}, {host}, {library}, {vectors}"))
}

/// The program to count, built alone in the release profile: in a build with other programs, its
/// dependencies would have other features.
fn build() -> Result<PathBuf> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).args(["build", "--quiet", "--release", "--package", "micro"]);
    cargo.args(["--bin", "instructions", "--message-format", "json-render-diagnostics"]);
    // Flags for another processor, or another compiler, would produce other instructions.
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
    // An incremental build inlines less, which was measured as 2.6 % more of a call.
    cargo.env("CARGO_INCREMENTAL", "0");
    let told = output(&mut cargo)?;
    let built = told.lines().filter_map(|line| serde_json::from_str(line).ok());
    let executable = |line: serde_json::Value| line["executable"].as_str().map(PathBuf::from);
    let mut programs = built.filter_map(executable);
    programs.next().context("cargo names no program")
}

/// The number of instructions of a run with this number of repetitions, from start to end.
fn run(program: &Path, name: &str, count: u64) -> Result<u64> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("out");
    let mut valgrind = Command::new("valgrind");
    // The environment must not change how the program allocates, copies or searches.
    valgrind.env_clear().envs(env::var_os("PATH").map(|path| ("PATH", path)));
    valgrind.args(["--quiet", "--tool=callgrind"]);
    valgrind.arg(format!("--callgrind-out-file={}", out.display()));
    valgrind.arg(program).args([name, &count.to_string()]).current_dir(folder.path());
    output(&mut valgrind).context("tests/setup installs valgrind")?;
    let text = fs::read_to_string(out)?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals:"));
    Ok(total.context("callgrind has no totals")?.trim().parse()?)
}

/// The number of instructions of one repetition.
fn count(program: &Path, name: &str) -> Result<u64> {
    let [few, many] = COUNTS;
    let more = run(program, name, many)?.checked_sub(run(program, name, few)?);
    let each = more.context("more repetitions take less")? / (many - few);
    ensure!(each > 0, "{name} does nothing");
    Ok(each)
}

#[test]
fn no_step_of_a_call_has_become_dearer_or_cheaper_unnoticed() -> Result<()> {
    let program = build()?;
    let mut counted = Kept { toolchain: toolchain()?, counts: BTreeMap::new() };
    for work in &micro::WORKS {
        counted.counts.insert(work.name.to_owned(), count(&program, work.name)?);
    }
    println!("{}", counted.write());
    if env::var_os("UPDATE").is_some() {
        fs::write(Kept::path(), counted.write())?;
        return Ok(());
    }
    let kept = Kept::read(&fs::read_to_string(Kept::path())?)?;
    if kept.toolchain != counted.toolchain {
        println!("kept with {}; only a large increase is a fault", kept.toolchain);
    }
    let faults = faults(&kept, &counted);
    ensure!(
        faults.is_empty(),
        "{}\nIf this is intended, give the reason in the commit, with the counts of UPDATE=1 cargo test -p tests --test instructions.",
        faults.join("\n")
    );
    Ok(())
}

fn one(toolchain: &str, count: u64) -> Kept {
    Kept { toolchain: toolchain.into(), counts: [("a/b".to_owned(), count)].into() }
}

#[test]
fn a_count_may_move_a_little_in_both_directions_and_no_further() {
    for (was, counts) in [(1_000, [969, 970, 1_030, 1_031]), (200, [184, 185, 215, 216])] {
        let kept = one("this", was);
        for (count, is_fault) in counts.into_iter().zip([true, false, false, true]) {
            assert_eq!(faults(&kept, &one("this", count)).len(), usize::from(is_fault), "{count}");
        }
    }
}

#[test]
fn under_another_toolchain_only_a_count_far_above_is_a_fault() {
    let kept = one("this", 1_000);
    for (count, is_fault) in [(500, false), (1_250, false), (1_251, true)] {
        assert_eq!(faults(&kept, &one("that", count)).len(), usize::from(is_fault), "{count}");
    }
}

#[test]
fn work_that_is_not_kept_and_counts_without_work_are_faults() -> Result<()> {
    let kept = one("this", 1_000);
    let none = Kept { toolchain: "this".into(), counts: BTreeMap::new() };
    assert_eq!(faults(&kept, &none).len(), 1);
    assert_eq!(faults(&none, &kept).len(), 1);
    assert_eq!(Kept::read(&kept.write())?, kept);
    Ok(())
}
