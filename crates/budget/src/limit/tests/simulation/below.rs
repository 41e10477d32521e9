//! Clusters whose clients send far less than the limit: no request is refused, and none waits longer than
//! an interval.

use super::*;

/// A cluster with random arrivals, on a network that loses no message.
fn quiet(rate: Rate, demands: &[f64], fault: Fault, seed: u64) -> Cluster {
    let mut cluster = Cluster::new(rate, demands, fault, 0, 0x9e37_79b9 * (seed + 1));
    cluster.delay = 20;
    cluster.activity = Some(|_, _| 1.0);
    cluster
}

/// Runs for a minute. Requests may be refused in these ranges of time only.
#[track_caller]
fn check(mut cluster: Cluster, except: &[(u64, u64)]) -> Cluster {
    cluster.run(60_000);
    let refused: Vec<_> = cluster
        .refused
        .iter()
        .filter(|(at, _)| !except.iter().any(|(from, to)| (from..to).contains(&at)))
        .collect();
    let asked = cluster.admitted.iter().sum::<u32>() as usize + cluster.refused.len();
    assert!(
        refused.is_empty(),
        "{} of {asked} refused, at {:?}: {:?} {:?} {:?}",
        refused.len(),
        &refused[..refused.len().min(8)],
        cluster.rates,
        cluster.demands,
        cluster.fault
    );
    assert!(cluster.waited.iter().all(|(_, waited)| *waited <= 100), "{:?}", cluster.waited);
    cluster
}

/// Rates with a burst of one second, and demands far below them.
fn far_below() -> Vec<(f64, Vec<f64>)> {
    vec![
        (100_000.0, vec![1.0, 1.0, 1.0]),
        (100_000.0, vec![3.0, 0.0, 0.0]),
        (1_000.0, vec![0.2, 0.3, 150.0]),
        (200.0, vec![0.5, 40.0, 0.5, 5.0, 0.1]),
        (20.0, vec![0.33, 0.33, 0.33]),
        (20.0, vec![1.0, 0.0, 0.0]),
        (20.0, vec![0.1, 1.5]),
    ]
}

fn of(per_sec: f64) -> Rate {
    Rate { per_sec, burst: per_sec }
}

#[test]
fn nothing_is_refused_far_below_a_limit() {
    for (per_sec, demands) in far_below() {
        for seed in 0..4 {
            check(quiet(of(per_sec), &demands, Fault::None, seed), &[]);
        }
    }
}

/// A limit with whole tokens: shares are not divided, and the owner keeps what is not needed.
#[test]
fn nothing_is_refused_far_below_a_low_limit() {
    for (per_sec, burst) in [(9.0, 9.0), (5.0, 10.0), (1.0, 20.0)] {
        for demands in [[0.1; 3], [0.3, 0.0, 0.0], [0.05, 0.2, 0.05]] {
            for seed in 0..3 {
                let demands = demands.map(|demand| demand * per_sec / 4.0);
                check(quiet(Rate { per_sec, burst }, &demands, Fault::None, seed), &[]);
            }
        }
    }
}

#[test]
fn idle_times_and_sudden_requests_below_a_limit_cost_nothing() {
    for per_sec in [20.0, 200.0, 1_000.0] {
        for seed in 0..6 {
            // Each node is idle for most of the time; then it has many requests in 100 ms.
            let demands = [per_sec / 4.0; 3];
            let mut cluster = quiet(of(per_sec), &demands, Fault::None, seed);
            cluster.activity = Some(|at, node| match (at + 2_700 * node as u64) % 8_000 {
                0..100 => 2.0,
                100..1_000 => 0.1,
                _ => 0.0,
            });
            check(cluster, &[]);
        }
    }
}

#[test]
fn a_node_that_starts_or_becomes_the_owner_below_a_limit_costs_nothing() {
    for (per_sec, demands) in far_below() {
        for node in 0..demands.len() {
            for seed in 0..2 {
                let from = 20_000 + 137 * seed;
                check(quiet(of(per_sec), &demands, Fault::Started(from, node), seed), &[]);
            }
        }
    }
}

/// The next owner begins without tokens: what the nodes keep has to suffice until it has some.
#[test]
fn a_killed_owner_below_a_limit_costs_tokens_for_a_second_at_most() {
    for (per_sec, demands) in far_below() {
        for node in 0..demands.len() {
            for seed in 0..2 {
                let from = 20_000 + 137 * seed;
                let cluster = quiet(of(per_sec), &demands, Fault::Killed(from, node), seed);
                check(cluster, &[(from, from + 1_500)]);
            }
        }
    }
}

/// Nodes read the settings one after the other. When a rate falls, the tokens that they have of the former
/// one are none of the new one, and the owner has none until the nodes have reported.
#[test]
fn a_changed_rate_costs_tokens_for_half_a_second_at_most_if_it_falls() {
    for rates in [[20.0, 1_000.0, 20.0], [1_000.0, 20.0, 100_000.0], [9.0, 20.0, 9.0]] {
        for seed in 0..6 {
            let mut cluster = quiet(of(rates[0]), &[0.3, 0.6, 0.1], Fault::None, seed);
            cluster.rates.push((20_000, of(rates[1])));
            cluster.rates.push((40_000, of(rates[2])));
            let falls = (1..3).filter(|at| rates[*at] < rates[at - 1]);
            let ranges: Vec<_> =
                falls.map(|at| 20_000 * at as u64).map(|at| (at, at + 500)).collect();
            check(cluster, &ranges);
        }
    }
}

/// A part of the rate stays with nodes that ask for little, so that their requests do not wait either.
#[test]
fn a_node_with_little_demand_does_not_wait_while_another_has_much() {
    for seed in 0..6 {
        let mut cluster = quiet(of(1_000.0), &[0.0, 200.0, 300.0], Fault::None, seed);
        // One request in 1.9 s, so that the node is not idle.
        cluster.activity = Some(|at, node| match node {
            1 => f64::from(at % 1_900 == 0),
            _ => 1.0,
        });
        let cluster = check(cluster, &[]);
        let waited: Vec<_> = cluster.waited.iter().filter(|(node, _)| *node == 1).collect();
        assert!(waited.len() <= 1, "only the first one: {waited:?}");
    }
}
