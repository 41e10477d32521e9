//! The protocol of ownership under everything that a seed can make go wrong.
use tests::simulation::{self, Plan, Rules};

#[test]
fn seeds() {
    let from: u64 = std::env::var("FROM").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let n: u64 = std::env::var("SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(100);
    let mut bad = 0;
    for seed in from..from + n {
        let run = simulation::run_seed(seed, Rules::default(), false);
        if let Some(b) = run.broken {
            bad += 1;
            if bad <= 30 {
                println!("{seed}: {b}");
            }
        }
    }
    println!("{bad} of {n}");
}

#[test]
fn cases() {
    for case in simulation::cases() {
        let mut bad = 0;
        let mut text = String::new();
        let mut excused = 0;
        for seed in 0..20 {
            let run = simulation::run(seed, case.plan.clone(), Rules::default(), false);
            excused += run.tally.excused;
            if let Some(b) = run.broken {
                bad += 1;
                text = format!("{seed}: {b}");
            }
        }
        println!("{:>2} {}: {bad} bad, {excused} excused {text}", case.number, case.name);
    }
}

#[test]
fn one() {
    let seed: u64 = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let case = std::env::var("CASE").ok();
    let run = match case {
        None => simulation::run_seed(seed, Rules::default(), true),
        Some(n) => {
            let plan =
                simulation::cases().into_iter().find(|c| c.name.starts_with(&n)).unwrap().plan;
            simulation::run(seed, plan, Rules::default(), true)
        }
    };
    for l in &run.trace {
        println!("{l}");
    }
    println!("{:?} {:?}", run.broken, run.tally);
}

#[test]
fn quiet() {
    let run = simulation::run(1, Plan::quiet(), Rules::default(), true);
    println!("{:?} {:?}", run.broken, run.tally);
}
