use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;

fn budget(max: usize, tenants: &[(&str, usize, usize)]) -> Budget {
    let limits = |(name, min, max): &(&str, usize, usize)| {
        ((*name).into(), ShareLimits { min: *min, max: *max })
    };
    Budget::new(max, tenants.iter().map(limits), || {})
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
    let budget = Budget::new(100, [("a".into(), limits)], move || {
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
    let budget = budget(100, &[("a", 30, 100), ("b", 30, 100)]);
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
    let budget = budget(100, &[("a", 0, 50), ("b", 0, 50)]);
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
        let budget = Budget::new(100, limits, || {});
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
fn a_tenant_that_is_named_later_has_a_maximum_and_takes_no_minimum_of_others() {
    let limits = ShareLimits { min: 40, max: 100 };
    let budget = Budget::new(100, [("a".into(), limits)], || {});
    assert!(budget.share("b").is_none(), "it is not named yet");
    assert!(budget.add(&"b".into(), 50));
    assert!(!budget.add(&"b".into(), 10));
    assert!(!budget.add(&"a".into(), 10));
    let first = share(&budget, "b").take(45).unwrap();
    assert!(share(&budget, "b").take(6).is_err(), "its shares are one");
    assert!(share(&budget, "a").take(55).is_ok(), "`a` keeps its own share");
    budget.remove("b");
    budget.remove("a");
    assert!(budget.share("b").is_none() && budget.share("a").is_some());
    assert_eq!(budget.committed(), 85, "what it still holds counts");
    drop(first);
    assert_eq!(budget.committed(), 40);
}

#[test]
fn a_tenant_of_the_start_keeps_its_share_also_without_a_minimum() {
    let budget = budget(100, &[("a", 0, 20)]);
    budget.remove("a");
    assert_eq!(share(&budget, "a").max(), 20);
}

#[test]
fn the_share_with_the_largest_excess_is_the_first() {
    let budget = budget(100, &[("a", 10, 40), ("b", 0, 40), ("c", 0, 100), ("d", 0, 100)]);
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
