//! Small faults in the code that decides, each of which the simulation must find.
//!
//! Each fault of the lists in `conversation` and `ownership` is selected in turn. The schedules run
//! first, under a few seeds each, then seeds in order, until a promise is broken or the code
//! panics. A fault that is not found fails the test: the checker does not check what the fault
//! breaks.
//!
//! `MUTANTS=one,two cargo test --profile simulation -p simulation --features mutants --test mutants -- --nocapture`
//! runs only these.

#![cfg(feature = "mutants")]
#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::{env, fmt, fs, thread};

use simulation::{Case, Rules};

/// A fault must be found by a schedule, or within so many seeds.
const SEEDS: u64 = 2_000;
/// Seeds that each schedule is run under.
const SEEDS_OF_A_CASE: u64 = 3;
/// The number of faults that are searched at a time.
const THREADS: usize = 2;

/// Faults that are not found yet, each with the missing check. They run only if they are named. A
/// fault leaves this list when the checker finds it.
const GAPS: &[(&str, &str)] = &[
    ("resume_what_was_lost", "a hole after a double loss is hidden by the excuse of that loss"),
    ("ownership.claim_trusts_its_own_state", "a state that a claim finds newer than the owner's"),
];

/// The schedule or seed that found a fault.
enum Found {
    Case(&'static str, u64, String),
    Seed(u64, String),
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Case(name, seed, how) => write!(f, "case {name:?} under {seed}: {how}"),
            Self::Seed(seed, how) => write!(f, "seed {seed}: {how}"),
        }
    }
}

fn mutants() -> impl Iterator<Item = (&'static str, &'static str)> {
    conversation::MUTANTS.iter().chain(ownership::MUTANTS).copied()
}

/// The broken promise or the panic of a run, if there is one.
fn wrong(run: impl FnOnce() -> simulation::Run) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(run) => run.broken,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Some(format!("panicked: {}", text.unwrap_or("?")))
        }
    }
}

/// Runs schedules and seeds with a fault until one of them finds it.
fn find(name: &'static str, cases: &[Case]) -> Option<Found> {
    conversation::select_mutant(Some(name));
    let rules = Rules::default();
    for seed in 0..SEEDS_OF_A_CASE {
        for case in cases {
            let run = || simulation::run(seed, case.plan.clone(), rules, false);
            if let Some(how) = wrong(run) {
                return Some(Found::Case(case.name, seed, how));
            }
        }
    }
    (0..SEEDS).find_map(|seed| {
        let how = wrong(|| simulation::run_seed(seed, rules, false))?;
        // If the seed fails without the fault too, it has found another fault.
        conversation::select_mutant(None);
        let without = wrong(|| simulation::run_seed(seed, rules, false));
        conversation::select_mutant(Some(name));
        without.is_none().then_some(Found::Seed(seed, how))
    })
}

#[test]
fn each_fault_is_found_by_a_schedule_or_a_seed() {
    let chosen = env::var("MUTANTS").unwrap_or_default();
    let chosen: Vec<_> = chosen.split(',').filter(|name| !name.is_empty()).collect();
    let is_gap = |name: &str| GAPS.iter().any(|(gap, _)| *gap == name);
    let wanted = |(name, _): &(&str, &str)| {
        if chosen.is_empty() { !is_gap(name) } else { chosen.contains(name) }
    };
    let mutants: Vec<_> = mutants().filter(wanted).collect();
    assert!(!chosen.is_empty() || mutants.len() >= 50, "only {} faults", mutants.len());
    let cases = simulation::cases();
    let (next, table) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let search = || {
        while let Some((name, what)) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
            let began = Instant::now();
            let found = find(name, &cases);
            let how = found.as_ref().map_or("NOT FOUND".to_owned(), Found::to_string);
            println!("{name} ({} ms): {how}", began.elapsed().as_millis());
            table.lock().unwrap_or_else(PoisonError::into_inner).push((*name, *what, found));
        }
        conversation::select_mutant(None);
    };
    thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(search))));
    let table = table.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut missed = String::new();
    for (name, what, found) in &table {
        if found.is_none() {
            missed += &format!("  {name}: {what}\n");
        }
    }
    assert!(missed.is_empty(), "not found by a schedule or by {SEEDS} seeds:\n{missed}");
}

/// Prints one run with the fault `MUTANTS`: the run of `SEED`, or that of the `CASE` whose name
/// begins so under that seed.
#[test]
#[ignore = "prints one run; name it by MUTANTS, SEED and CASE"]
fn one() {
    let named = env::var("MUTANTS").unwrap_or_default();
    conversation::select_mutant(mutants().map(|(name, _)| name).find(|name| *name == named));
    let seed = env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let run = match env::var("CASE") {
        Err(_) => simulation::run_seed(seed, Rules::default(), true),
        Ok(name) => {
            let mut cases = simulation::cases().into_iter();
            let case = cases.find(|case| case.name.starts_with(&name)).expect("a case");
            simulation::run(seed, case.plan, Rules::default(), true)
        }
    };
    run.trace.iter().for_each(|line| println!("{line}"));
    println!("{:?}\n{:?}", run.broken, run.tally);
}

#[test]
fn without_a_fault_nothing_is_found() {
    conversation::select_mutant(None);
    for case in simulation::cases() {
        for seed in 0..SEEDS_OF_A_CASE {
            let run = simulation::run(seed, case.plan.clone(), Rules::default(), false);
            assert_eq!(run.broken, None, "{} under {seed}", case.name);
        }
    }
}

#[test]
fn each_fault_stands_once_in_the_sources_and_in_a_list() {
    let listed: Vec<&str> = mutants().map(|(name, _)| name).collect();
    let mut named = Vec::new();
    for package in ["conversation", "ownership"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates").join(package);
        named_in(&folder.join("src"), &mut named);
    }
    let unique: BTreeSet<&str> = named.iter().map(String::as_str).collect();
    assert_eq!(unique.len(), named.len(), "a fault stands in two places: {named:?}");
    assert_eq!(unique, listed.iter().copied().collect());
    assert_eq!(unique.len(), listed.len(), "a fault is listed twice: {listed:?}");
    assert!(listed.len() >= 30);
}

/// The names of the faults in all sources of a folder.
fn named_in(folder: &Path, named: &mut Vec<String>) {
    let entries = fs::read_dir(folder).expect("the folder of the sources");
    let paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    for path in paths {
        if path.is_dir() {
            named_in(&path, named);
        } else {
            let text = fs::read_to_string(&path).expect("a source");
            let names = text.split("mutant!(\"").skip(1).filter_map(|rest| rest.split('"').next());
            named.extend(names.map(str::to_owned));
        }
    }
}
