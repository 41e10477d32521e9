//! A cluster in a world without time: nodes, clients, tools, a network and Redis in one
//! thread, moved by one seed, so that whatever goes wrong goes wrong again.
//!
//! What is under test is real: [`conversation::Session`], which decides what is said, and
//! [`ownership::machine::Ownership`], which decides what is done about a session's ownership.
//! What surrounds them is a model: what the actors do with effects, how an ingress finds
//! an owner, leases, links, and a Redis that may lose, delay, repeat and forget.

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

/// What came of one run.
#[derive(Debug)]
pub struct Run {
    /// The seed that makes it again.
    pub seed: u64,
    /// The first promise that was broken.
    pub broken: Option<String>,
    /// What happened.
    pub tally: Tally,
    /// A digest of everything that happened.
    pub digest: u64,
    /// What happened, line by line, where it was asked for.
    pub trace: Vec<String>,
}

/// Runs what the seed makes of a plan, by these rules.
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

/// Runs what a seed makes go wrong.
pub fn run_seed(seed: u64, rules: Rules, tracing: bool) -> Run {
    run(seed, Plan::random(seed), rules, tracing)
}
