//! A simulated cluster: nodes, clients, tools, a network and Redis in one thread. One seed decides
//! all random choices, so that each run can be repeated.
//!
//! The code under test is the product's: [`conversation::Session`], which decides what is sent, and
//! [`ownership::machine::Ownership`], which decides the operations on the store. Everything else is
//! a model: how the actors perform effects, how an ingress finds an owner, leases, links, and a
//! Redis that may lose, delay, repeat and forget commands.

mod balancer;
mod cases;
mod checker;
mod client;
mod dial;
mod faults;
mod ingress;
mod net;
mod owner;
mod plan;
mod process;
mod redis;
mod rng;
mod rules;
mod tools;
mod wire;
mod world;

pub use cases::{Case, cases};
pub use checker::Tally;
pub use plan::Plan;
pub use rules::Rules;

use self::world::World;

/// The result of one run.
#[derive(Debug)]
pub struct Run {
    /// The seed that reproduces the run.
    pub seed: u64,
    /// The first promise that was broken.
    pub broken: Option<String>,
    /// The counts of what happened.
    pub tally: Tally,
    /// A digest of all events of the run.
    pub digest: u64,
    /// The events of the run, one a line, if tracing was requested.
    pub trace: Vec<String>,
}

/// Runs a plan under a seed and under these rules.
pub fn run(seed: u64, plan: Plan, rules: Rules, tracing: bool) -> Run {
    let mut world = World::new(seed, plan, rules, tracing);
    world.run();
    let trace = world.trace.take().unwrap_or_default();
    Run {
        seed,
        broken: world.checker.broken.take(),
        tally: world.checker.tally,
        digest: world.digest,
        trace,
    }
}

/// Runs the random plan of a seed.
pub fn run_seed(seed: u64, rules: Rules, tracing: bool) -> Run {
    run(seed, Plan::random(seed), rules, tracing)
}
