//! The machines against simpler ones, and in simulated clusters.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

mod simulation;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A bucket that adds its tokens millisecond by millisecond.
struct Naive {
    per_ms: f64,
    max: f64,
    level: f64,
    at: u64,
}

impl Naive {
    fn go_to(&mut self, at: u64) {
        while self.at < at {
            self.level = (self.level + self.per_ms).min(self.max);
            self.at += 1;
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(u32),
    Change(f64, f64),
    Add(f64),
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let step = prop_oneof![
        4 => (1_u32..20).prop_map(Step::Take),
        1 => (0.0..500.0, 0.0..50.0).prop_map(|(rate, max)| Step::Change(rate, max)),
        1 => (-20.0..20.0).prop_map(Step::Add),
    ];
    (0_u64..200, step)
}

proptest! {
    #[test]
    fn a_bucket_gives_what_a_naive_one_gives(steps in prop::collection::vec(step(), 1..60)) {
        let mut naive = Naive { per_ms: 0.1, max: 10.0, level: 10.0, at: 0 };
        let mut bucket = Bucket::new(100.0, 10.0, 10.0, Duration::ZERO);
        let mut at = 0;
        for (pause, step) in steps {
            at += pause;
            naive.go_to(at);
            match step {
                Step::Take(most) => {
                    let taken = bucket.take(most, ms(at));
                    // Of two sums that differ by their rounding, one may reach a whole token first.
                    prop_assert!(taken == 0 || f64::from(taken) <= naive.level + 1e-6);
                    prop_assert!(taken == most || f64::from(taken) + 1.0 > naive.level - 1e-6);
                    naive.level -= f64::from(taken);
                }
                Step::Change(rate, max) => {
                    bucket.change(rate, max, ms(at));
                    (naive.per_ms, naive.max) = (rate / 1_000.0, max);
                    naive.level = naive.level.min(max);
                }
                Step::Add(tokens) => {
                    bucket.add(tokens, ms(at));
                    naive.level = (naive.level + tokens).min(naive.max);
                }
            }
            prop_assert!((bucket.level(ms(at)) - naive.level).abs() < 1e-6);
        }
    }

    #[test]
    fn a_division_is_fair_and_complete(
        total in 0.0..1_000.0,
        demands in prop::collection::vec(0.0..500.0, 1..8),
    ) {
        let parts = divide(total, &demands);
        let sum: f64 = demands.iter().sum();
        prop_assert!((parts.iter().sum::<f64>() - total).abs() < 1e-6);
        for (part, demand) in parts.iter().zip(&demands) {
            if sum <= total {
                prop_assert!(*part >= demand - 1e-6, "{parts:?}");
            } else {
                prop_assert!(*part <= demand + 1e-6, "{parts:?}");
                // No other part is larger than one that is not met.
                let is_met = *part >= demand - 1e-6;
                prop_assert!(is_met || parts.iter().all(|other| *other <= part + 1e-6), "{parts:?}");
            }
        }
    }

    #[test]
    fn a_node_that_leaves_changes_the_owner_of_its_limits_only(
        hash: u64,
        nodes in prop::collection::hash_set(any::<u64>(), 2..10),
        leaver in any::<prop::sample::Index>(),
    ) {
        let nodes: Vec<u64> = nodes.into_iter().collect();
        let leaver = nodes[leaver.index(nodes.len())];
        let before = owner_of(hash, nodes.iter().copied()).unwrap();
        let after = owner_of(hash, nodes.iter().copied().filter(|node| *node != leaver)).unwrap();
        prop_assert_eq!(after != before, leaver == before);
    }
}

#[test]
fn nodes_own_about_the_same_number_of_limits() {
    let mut owned = [0; 3];
    for limit in 0..3_000_u64 {
        owned[owner_of(limit, 0..3).unwrap() as usize] += 1;
    }
    assert!(owned.iter().all(|owned| (900..1_100).contains(owned)), "{owned:?}");
}

#[test]
fn a_node_alone_has_the_burst_and_then_the_rate() {
    let rate = Rate { per_sec: 2.0, burst: 3.0 };
    let mut node = RateOfNode::alone(rate, Duration::ZERO);
    for _ in 0..3 {
        assert_eq!(node.take(1, 1, Duration::ZERO), Ok(1));
    }
    assert_eq!(node.take(1, 1, Duration::ZERO), Err(Refused::Over(ms(500))));
    assert_eq!(node.take(1, 1, ms(400)), Err(Refused::Over(ms(100))));
    assert_eq!(node.take(1, 1, ms(500)), Ok(1));
    assert!(node.report(ms(500)).is_none());
    assert!(!node.is_forgettable(ms(2_400)) && node.is_forgettable(ms(2_500)));
}

#[test]
fn a_node_without_a_share_waits_and_then_has_its_part() {
    let rate = Rate { per_sec: 30.0, burst: 30.0 };
    let mut node = RateOfNode::new(rate, 3, Duration::ZERO);
    assert_eq!(node.take(1, 1, Duration::ZERO), Ok(1), "the part of one interval");
    assert_eq!(node.take(1, 1, Duration::ZERO), Err(Refused::Wait));
    let report = node.report(ms(1)).unwrap();
    assert!(!report.had_share && !report.is_last && report.demand > 0.0);
    let mut admitted = 0;
    for at in (300..10_300).step_by(10) {
        match node.take(1, 1, ms(at)) {
            Ok(taken) => admitted += taken,
            Err(refused) => assert!(matches!(refused, Refused::Over(_)), "{refused:?}"),
        }
    }
    assert!((95..=113).contains(&admitted), "{admitted}");
}

#[test]
fn a_count_is_never_exceeded_while_shares_are_valid() {
    let members = [0, 1, 2].map(|node| Member { node, is_linked: true });
    let mut owner = CountOwner::new(Duration::ZERO);
    let mut nodes = [0, 1, 2].map(|_| CountOfNode::new(10, 3, Duration::ZERO));
    let mut most = 0;
    for at in (0..3_000).step_by(10) {
        for (index, node) in nodes.iter_mut().enumerate() {
            // The first node wants all, the others little.
            if index == 0 || at % 100 == index as u64 * 10 {
                let _ = node.take(ms(at));
            }
            if at % 100 == 30 * index as u64 {
                let Some(report) = node.report(ms(at)) else { continue };
                let grant = owner.report(index as u64, report, 10, &members, ms(at));
                node.grant(grant, ms(at), ms(at));
            }
        }
        if at > 1_500 && at % 50 == 0 {
            nodes[(at / 50 % 3) as usize].give_back(ms(at));
        }
        most = most.max(nodes.iter().map(CountOfNode::held).sum::<u64>());
    }
    assert_eq!(most, 10);
}

#[test]
fn the_last_one_goes_to_each_node_that_asks_by_turns() {
    let members = [0, 1].map(|node| Member { node, is_linked: true });
    let mut owner = CountOwner::new(Duration::ZERO);
    let mut nodes = [0, 1].map(|_| CountOfNode::new(1, 2, Duration::ZERO));
    let mut taken = [0, 0];
    for at in (0..4_000).step_by(50) {
        for (index, node) in nodes.iter_mut().enumerate() {
            if node.held() > 0 {
                node.give_back(ms(at));
            }
            taken[index] += u32::from(node.take(ms(at)).is_ok());
            if let Some(report) = node.report(ms(at)) {
                let grant = owner.report(index as u64, report, 1, &members, ms(at));
                node.grant(grant, ms(at), ms(at));
            }
        }
        assert!(nodes.iter().map(CountOfNode::held).sum::<u64>() <= 1);
    }
    assert!(taken.iter().all(|taken| *taken > 10), "{taken:?}");
}

/// Two nodes with requests far below the rate; those of one become few.
#[test]
fn a_node_that_asked_for_little_has_tokens_while_the_limit_is_not_used_up() {
    let rate = Rate { per_sec: 1_000.0, burst: 1_000.0 };
    let members = [0, 1].map(|node| Member { node, is_linked: true });
    let mut owner = RateOwner::new(rate, Duration::ZERO);
    let mut nodes = [0, 1].map(|_| RateOfNode::new(rate, 2, Duration::ZERO));
    for at in (0..20_000).step_by(10) {
        for (index, node) in nodes.iter_mut().enumerate() {
            let asks = match index {
                0 => at % 50 == 0,
                _ => at < 1_000 || at % 300 == 0,
            };
            if asks {
                let taken = node.take(1, 1, ms(at));
                assert!(matches!(taken, Ok(1) | Err(Refused::Wait)), "{at} {index} {taken:?}");
            }
            if at % 100 == 0
                && let Some(report) = node.report(ms(at))
            {
                let grant = owner.report(index as u64, report, rate, &members, ms(at));
                node.grant(grant, ms(at), ms(at));
            }
        }
    }
}

/// The owner of a limit is lost. A node without a share gets its clients, and reports to the next owner
/// before the nodes that have the tokens.
#[test]
fn the_first_report_to_the_next_owner_gets_no_second_burst() {
    let rate = Rate { per_sec: 60.0, burst: 60.0 };
    let members = [0, 1, 2].map(|node| Member { node, is_linked: true });
    let mut membership = Membership::default();
    membership.note(&members, ms(0));
    membership.note(&members[..2], ms(5_000));
    assert!(membership.has_changed(ms(5_010)) && !membership.has_changed(ms(6_100)));
    let report = |had_share, applied| {
        let (demand, level, is_last) = (100.0, 0.0, false);
        Report { demand, level, had_share, is_last, applied }
    };
    let mut owner = RateOwner::after_loss(rate, ms(5_010));
    let mut tokens = 0.0;
    let mut grant = |from, report, at| {
        let grant = owner.report(from, report, rate, &members[..2], ms(at));
        tokens += grant.tokens;
        grant.number
    };
    let number = grant(0, report(false, 0), 5_010);
    grant(1, report(true, 7), 5_080);
    for at in [5_110, 5_210, 5_310] {
        grant(0, report(true, number), at);
    }
    assert!(tokens <= 10.0, "{tokens}");
    // If none had a share, the burst is there when all have had the time to report.
    let mut owner = RateOwner::after_loss(rate, ms(5_010));
    let mut grant = |report, at| owner.report(0, report, rate, &members[..2], ms(at));
    let first = grant(report(false, 0), 5_010);
    let second = grant(report(true, first.number), 5_220);
    assert!(first.tokens <= 6.0 && first.tokens + second.tokens >= 40.0, "{first:?} {second:?}");
}

/// Two nodes have used the burst of a limit. The next owner is a node that starts then, or one that another
/// joins again.
#[test]
fn a_node_that_joins_owns_a_limit_without_a_second_burst() {
    let rate = Rate { per_sec: 60.0, burst: 60.0 };
    let members = [0, 1, 2].map(|node| Member { node, is_linked: true });
    let (mut started, mut alone) = (Membership::default(), Membership::default());
    started.note(&members, ms(5_000));
    alone.note(&members[..1], ms(0));
    assert!(!alone.has_changed(ms(100)), "no other node had limits");
    alone.note(&members[..2], ms(5_000));
    for membership in [&started, &alone] {
        assert!(membership.has_changed(ms(5_010)) && !membership.has_changed(ms(6_100)));
    }
    // As in the program, the owner begins by what the membership says.
    let mut owner = match started.has_changed(ms(5_010)) {
        true => RateOwner::after_loss(rate, ms(5_010)),
        false => RateOwner::new(rate, ms(5_010)),
    };
    let report =
        |had_share| Report { demand: 100.0, level: 0.0, had_share, is_last: false, applied: 0 };
    let first = owner.report(2, report(false), rate, &members, ms(5_010));
    let second = owner.report(0, report(true), rate, &members, ms(5_080));
    assert!(first.tokens + second.tokens <= 10.0, "{first:?} {second:?}");
}

#[test]
fn an_unused_limit_is_kept_until_the_tokens_that_it_lacks_are_there() {
    let rate = Rate { per_sec: 100.0 / 3_600.0, burst: 100.0 };
    let members = [Member { node: 0, is_linked: true }];
    let mut owner = RateOwner::new(rate, ms(0));
    let report =
        |level, is_last| Report { demand: 1.0, level, had_share: false, is_last, applied: 1 };
    let share = owner.report(0, report(0.0, false), rate, &members, ms(0));
    assert_eq!(owner.full_in(ms(100)), None, "a node has a share");
    owner.report(0, report(share.tokens - 1.0, true), rate, &members, ms(200));
    assert!(owner.full_in(ms(200)).unwrap() < Duration::from_secs(37));
    assert!(!owner.is_forgettable(ms(30_000)) && owner.is_forgettable(ms(40_000)));
}

#[test]
fn tokens_above_a_smaller_most_are_given_back_once() {
    let mut bucket = Bucket::new(10.0, 500.0, 500.0, Duration::ZERO);
    bucket.change_and_add(1.0, 100.0, -400.0, Duration::ZERO);
    assert_eq!(bucket.level(Duration::ZERO), 100.0);
    bucket.change_and_add(1.0, 300.0, 150.0, Duration::ZERO);
    assert_eq!(bucket.level(Duration::ZERO), 250.0);
}

#[test]
fn tokens_of_a_lost_share_are_not_there_twice() {
    let rate = Rate { per_sec: 100.0, burst: 100.0 };
    let members = [0, 1].map(|node| Member { node, is_linked: true });
    let mut owner = RateOwner::new(rate, Duration::ZERO);
    let report = |demand, level, applied| Report {
        demand,
        level,
        had_share: false,
        is_last: false,
        applied,
    };
    let mut ask = |node, report| owner.report(node, report, rate, &members, Duration::ZERO);
    let first = ask(0, report(10.0, 0.0, 0));
    let other = ask(1, report(2_000.0, 0.0, 0));
    let lost = ask(0, report(10.0, first.tokens, first.number));
    assert!(lost.tokens < 0.0, "{lost:?}");
    let taken = ask(1, report(2_000.0, other.tokens, other.number));
    // The node still has what the lost share took away.
    let again = ask(0, report(10.0, first.tokens, first.number));
    let last = ask(1, report(2_000.0, other.tokens + taken.tokens, taken.number));
    let shares = [first, other, taken, again, last];
    let all: f64 = shares.into_iter().map(|share| share.tokens).sum();
    assert!(all <= rate.burst + 0.01, "{all}");
}

#[test]
fn the_demand_after_an_idle_time_is_that_of_the_requests_that_wait() {
    let rate = Rate { per_sec: 20.0, burst: 20.0 };
    let mut node = RateOfNode::new(rate, 3, Duration::ZERO);
    let _ = node.take(1, 1, Duration::ZERO);
    node.report(ms(100)).unwrap();
    for at in 1..100 {
        node.report(ms(100 * at));
    }
    (0..5).for_each(|_| assert_eq!(node.take(1, 1, ms(10_000)), Err(Refused::Wait)));
    let asked = node.report(ms(10_001)).unwrap().demand * INTERVAL.as_secs_f64();
    assert!(asked >= 5.0, "{asked}");
}

#[test]
fn what_is_charged_later_may_begin_until_the_cluster_has_nothing_left() {
    let rate = Rate { per_sec: 20.0, burst: 1_000.0 };
    let members = [0, 1].map(|node| Member { node, is_linked: true });
    let mut owner = RateOwner::new(rate, Duration::ZERO);
    let mut nodes = [0, 1].map(|_| RateOfNode::new(rate, 2, Duration::ZERO));
    let mut allowed = Vec::new();
    for at in (0..60_000).step_by(100) {
        // All is charged at the first node, and asked for at the second one.
        if at < 6_000 {
            nodes[0].charge(40.0, ms(at));
        }
        allowed.push(nodes[1].allows(ms(at)).is_ok());
        for (index, node) in nodes.iter_mut().enumerate() {
            let Some(report) = node.report(ms(at)) else { continue };
            let grant = owner.report(index as u64, report, rate, &members, ms(at));
            node.grant(grant, ms(at), ms(at));
        }
    }
    let is_allowed = |at: usize| allowed[at / 100];
    assert!(is_allowed(1_000) && !is_allowed(3_500), "{allowed:?}");
    // The debt is the burst at most, which takes 50 s.
    assert!(!is_allowed(40_000) && is_allowed(59_900), "{allowed:?}");
}
