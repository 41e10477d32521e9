use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;

fn limits((name, min, max): &(&str, usize, usize)) -> (Arc<str>, ShareLimits) {
    ((*name).into(), ShareLimits { min: *min, max: *max })
}

fn budget(max: usize, tenants: &[(&str, usize, usize)]) -> Budget {
    Budget::new(max, tenants.iter().map(limits))
}

/// A budget that may be exceeded.
fn notifying(max: usize, tenants: &[(&str, usize, usize)]) -> Budget {
    Budget::notifying(max, tenants.iter().map(limits), || {})
}

fn share(budget: &Budget, tenant: &str) -> Share {
    budget.share(tenant).expect("it is named")
}

#[test]
fn a_tenant_takes_what_is_free_but_never_the_minimum_of_another() {
    let budget = budget(100, &[("a", 20, 100), ("b", 20, 100)]);
    let (a, b) = (share(&budget, "a"), share(&budget, "b"));
    assert_eq!(a.take(81).unwrap_err(), Exhausted);
    let all_of_a = a.take(80).unwrap();
    assert!(!a.is_exceeded());
    assert!(a.take(1).is_err());
    let minimum_of_b = b.take(20).unwrap();
    assert!(b.take(1).is_err());
    drop(all_of_a);
    assert!(b.take(60).is_ok());
    drop(minimum_of_b);
    assert_eq!((budget.used(), budget.committed()), (0, 40));
}

#[test]
fn the_maximum_of_a_tenant_holds_while_the_rest_is_free() {
    let budget = budget(100, &[("a", 0, 50)]);
    let mut held = share(&budget, "a").take(50).unwrap();
    assert!(held.try_set(51).is_err());
    assert_eq!(held.amount(), 50, "a refusal changes nothing");
    assert!(budget.unnamed_share("unknown").take(50).is_ok(), "the rest is there for others");
}

#[test]
fn what_is_held_already_may_exceed_the_share_and_notifies() {
    let notified = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&notified);
    let limits = ShareLimits { min: 0, max: 10 };
    let budget = Budget::notifying(100, [("a".into(), limits)], move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let mut held = Held::nothing(&share(&budget, "a"));
    held.set(10);
    assert_eq!(notified.load(Ordering::Relaxed), 0);
    assert!(budget.exceeded().is_empty());
    held.set(12);
    assert_eq!(notified.load(Ordering::Relaxed), 1);
    assert_eq!(budget.exceeded()[0].excess(), 2);
    held.set(5);
    assert_eq!(share(&budget, "a").excess(), 0);
}

#[test]
fn above_the_total_a_tenant_within_its_minimum_has_no_excess() {
    let budget = notifying(100, &[("a", 30, 100), ("b", 30, 100)]);
    let (mut a, mut b) = (Held::nothing(&share(&budget, "a")), Held::nothing(&share(&budget, "b")));
    a.set(90);
    b.set(20);
    assert_eq!(share(&budget, "a").excess(), 20, "30 are kept for b");
    assert_eq!(share(&budget, "b").excess(), 0);
    b.set(31);
    assert_eq!(share(&budget, "b").excess(), 1);
}

#[test]
fn what_a_tenant_records_above_its_maximum_is_not_taken_from_the_others() {
    let budget = notifying(100, &[("a", 0, 50), ("b", 0, 50)]);
    let mut a = Held::nothing(&share(&budget, "a"));
    a.set(5_000);
    assert_eq!((share(&budget, "a").excess(), budget.committed()), (4_950, 50));
    assert!(share(&budget, "b").take(50).is_ok());
    a.set(10);
    assert_eq!(budget.committed(), 10);
}

#[test]
fn minima_that_exceed_the_total_are_reduced_in_proportion() {
    let budget = budget(100, &[("a", 100, 100), ("b", 100, 100)]);
    assert_eq!((share(&budget, "a").min(), share(&budget, "b").min()), (50, 50));
    assert_eq!(budget.committed(), 100);
}

#[test]
fn by_default_a_tenant_may_have_half_and_at_most_half_is_kept_in_minima() {
    let of_one = ShareLimits::of_one;
    assert_eq!(of_one(100, 1, 10, None), ShareLimits { min: 10, max: 100 });
    assert_eq!(of_one(100, 5, usize::MAX, None), ShareLimits { min: 10, max: 50 });
    assert_eq!(of_one(100, 5, 3, Some(1_000)), ShareLimits { min: 3, max: 100 });
    assert_eq!(of_one(100, 2, 40, Some(7)), ShareLimits { min: 7, max: 7 });
}

#[test]
fn a_holder_of_less_than_a_granule_is_charged_for_nothing() {
    assert_eq!(in_granules(GRANULE_BYTES - 1), 0);
    assert_eq!(in_granules(3 * GRANULE_BYTES - 1), 2 * GRANULE_BYTES);
}

proptest! {
    /// For each sequence of takes and releases: no tenant gets more than the rules allow, every
    /// minimum can be taken, and the sums are exact.
    #[test]
    fn the_sums_hold_in_every_order(
        minima in prop::array::uniform3(0_usize..50),
        maxima in prop::array::uniform3(0_usize..150),
        steps in prop::collection::vec((0_usize..3, 0_usize..60, any::<bool>()), 0..60),
    ) {
        let names = ["a", "b", "c"];
        let limits = (0..3).map(|i| (names[i].into(), ShareLimits { min: minima[i], max: maxima[i] }));
        let budget = Budget::new(100, limits);
        let mut held: Vec<Vec<Held>> = vec![Vec::new(), Vec::new(), Vec::new()];
        for (tenant, amount, gives_back) in steps {
            if gives_back {
                held[tenant].pop();
            } else if let Ok(taken) = share(&budget, names[tenant]).take(amount) {
                held[tenant].push(taken);
            }
            prop_assert!(budget.committed() <= 100);
            for (name, held) in names.iter().zip(&held) {
                let share = share(&budget, name);
                let sum: usize = held.iter().map(Held::amount).sum();
                prop_assert_eq!(share.used(), sum);
                prop_assert!(sum <= share.max());
                prop_assert_eq!(share.excess(), 0);
                let rest = share.min().saturating_sub(sum);
                prop_assert!(share.take(rest).is_ok(), "the minimum cannot be had");
            }
        }
        held.clear();
        let minima: usize = budget.shares().iter().map(Share::min).sum();
        prop_assert_eq!((budget.used(), budget.committed()), (0, minima));
    }
}

#[test]
fn a_budget_that_is_divided_anew_takes_nothing_away_and_refuses_until_there_is_room() {
    let budget = budget(100, &[("a", 40, 100)]);
    let a = share(&budget, "a");
    let mut of_a = a.take(90).unwrap();
    budget.divide([("a", 20, 60), ("b", 30, 50)].iter().map(limits));
    let b = share(&budget, "b");
    assert_eq!((a.used(), a.excess(), a.min(), a.max()), (90, 30, 20, 60), "it keeps what it has");
    assert!(a.take(1).is_err(), "it is above its maximum");
    let of_b = b.take(10).unwrap();
    assert!(b.take(1).is_err(), "no more than the total is taken, also within a minimum");
    of_a.set(70);
    assert!(a.take(1).is_err() && b.take(20).is_ok(), "what `a` released is for `b`");
    assert!(b.take(21).is_err(), "the maximum of `a` is not free for others");
    of_a.set(50);
    assert!(a.take(10).is_ok(), "it is below its maximum");
    assert!(b.take(31).is_ok());
    drop((of_a, of_b));
    assert_eq!((budget.used(), budget.committed()), (0, 50));
}

#[test]
fn a_tenant_that_is_gone_has_no_minimum_and_what_it_holds_counts() {
    let budget = budget(100, &[("a", 40, 100), ("b", 40, 50)]);
    let (a, b) = (share(&budget, "a"), share(&budget, "b"));
    let of_b = b.take(10).unwrap();
    budget.divide([("a", 40, 100)].iter().map(limits));
    assert_eq!((b.min(), b.max(), budget.committed()), (0, 50, 50));
    assert!(a.take(90).is_ok() && a.take(91).is_err());
    assert!(budget.remove("b").is_some() && budget.share("b").is_none());
    assert!(a.take(91).is_err(), "what it holds counts");
    drop(of_b);
    assert!(a.take(100).is_ok());
}

#[test]
fn a_tenant_that_comes_back_before_it_is_forgotten_has_one_share() {
    let budget = budget(100, &[("a", 40, 100), ("b", 40, 50)]);
    let of_b = share(&budget, "b").take(10).unwrap();
    budget.divide([("a", 40, 100)].iter().map(limits));
    budget.divide([("a", 40, 100), ("b", 40, 50)].iter().map(limits));
    assert_eq!((share(&budget, "b").used(), budget.committed()), (10, 80));
    drop(of_b);
    assert_eq!(budget.committed(), 80);
}

#[test]
fn a_share_that_was_named_or_used_before_gets_its_bounds_when_the_budget_is_divided() {
    let budget = budget(100, &[("a", 40, 100)]);
    let early = budget.unnamed_share("b");
    let held = early.take(60).unwrap();
    assert!(budget.name(early.clone()) && !budget.name(budget.unnamed_share("b")));
    assert!(!budget.name(budget.unnamed_share("a")));
    budget.divide([("a", 40, 50), ("b", 30, 50)].iter().map(limits));
    assert_eq!((early.min(), early.max(), early.excess()), (30, 50, 10));
    assert_eq!((share(&budget, "a").min(), budget.committed()), (40, 90));
    drop(held);
    assert_eq!(budget.committed(), 70);
}

#[test]
fn new_bounds_that_are_exceeded_notify() {
    let notified = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&notified);
    let tenants = [("a", 0, 100)];
    let budget = Budget::notifying(100, tenants.iter().map(limits), move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let mut held = Held::nothing(&share(&budget, "a"));
    held.set(70);
    budget.divide([("a", 0, 100), ("b", 30, 100)].iter().map(limits));
    assert_eq!(notified.load(Ordering::Relaxed), 0, "both fit");
    budget.divide([("a", 0, 100), ("b", 40, 100)].iter().map(limits));
    assert_eq!((share(&budget, "a").excess(), notified.load(Ordering::Relaxed)), (10, 1));
    budget.divide([("a", 0, 50)].iter().map(limits));
    assert_eq!((share(&budget, "a").excess(), notified.load(Ordering::Relaxed)), (20, 2));
}

#[test]
fn the_sums_hold_while_threads_take_and_release_and_the_budget_is_divided() {
    let budget = budget(1_000, &[("a", 100, 500), ("b", 100, 500)]);
    std::thread::scope(|scope| {
        for tenant in ["a", "b", "a"] {
            let budget = &budget;
            scope.spawn(move || {
                let share = share(budget, tenant);
                for amount in 0..10_000 {
                    let held = share.take(amount % 400);
                    let _ = share.take(amount % 90);
                    drop(held);
                }
            });
        }
        for round in 0..2_000 {
            let limits_of = |name, n: usize| limits(&(name, n % 300, 300 + n % 400));
            budget.divide([limits_of("a", round * 7), limits_of("b", round * 11)]);
        }
    });
    let minima: usize = budget.shares().iter().map(Share::min).sum();
    assert_eq!((budget.used(), budget.committed()), (0, minima));
    let _all = budget.unnamed_share("c").take(1_000 - minima).unwrap();
    assert!(budget.unnamed_share("c").take(1).is_err());
}

#[test]
fn the_share_with_the_largest_excess_is_the_first() {
    let budget = notifying(100, &[("a", 10, 40), ("b", 0, 40), ("c", 0, 100), ("d", 0, 100)]);
    let exceeded =
        || -> Vec<_> { budget.exceeded().iter().map(|share| share.tenant().to_string()).collect() };
    let mut held: Vec<Held> =
        ["a", "b", "c", "d"].map(|name| Held::nothing(&share(&budget, name))).into();
    for (held, amount) in held.iter_mut().zip([41, 45, 10, 5]) {
        held.set(amount);
    }
    assert_eq!(exceeded(), ["b", "a"]);
    // 135 are committed: those above their minimum have to release the 35 that exceed the total.
    held[2].set(25);
    held[3].set(30);
    assert_eq!(exceeded(), ["b", "a", "d", "c"]);
}
