//! How many exchanges the access log takes in a second: samples for the whole node, and errors for
//! each tenant. Has no clock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The parts of a second in which samples are taken, so that they do not all come from its
/// beginning.
const PARTS: u64 = 10;

/// Most tenants whose errors are counted separately; further ones share one count.
const TENANTS_MAX: usize = 1_024;

/// A bound of the samples in a second, for all threads.
#[derive(Debug)]
pub(crate) struct SampleRate {
    per_part: u64,
    /// The number of the part in the upper half, the samples in it in the lower.
    state: AtomicU64,
}

impl SampleRate {
    pub(crate) fn new(per_sec: u32) -> Self {
        Self { per_part: u64::from(per_sec).div_ceil(PARTS), state: AtomicU64::new(0) }
    }

    /// Whether an exchange that ended at this time is a sample.
    pub(crate) fn takes(&self, now_ms: u64) -> bool {
        let part = (now_ms / (1_000 / PARTS)) & u64::from(u32::MAX);
        let next = |state: u64| match state >> 32 == part {
            true if state & u64::from(u32::MAX) >= self.per_part => None,
            true => Some(state + 1),
            false if self.per_part == 0 => None,
            false => Some((part << 32) + 1),
        };
        self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

/// A bound of the errors of each tenant in a second.
#[derive(Debug)]
pub(crate) struct ErrorRate {
    per_sec: u32,
    tenants: Mutex<HashMap<Option<Arc<str>>, Window>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    second: u64,
    errors: u32,
}

impl ErrorRate {
    pub(crate) fn new(per_sec: u32) -> Self {
        Self { per_sec, tenants: Mutex::default() }
    }

    /// Whether an error of this tenant at this time is taken.
    pub(crate) fn takes(&self, tenant: Option<&Arc<str>>, now_ms: u64) -> bool {
        // No code panics under this lock.
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let tenant = tenant.cloned();
        let has_room = tenants.len() < TENANTS_MAX || tenants.contains_key(&tenant);
        let window = tenants.entry(tenant.filter(|_| has_room)).or_default();
        let second = now_ms / 1_000;
        if window.second != second {
            *window = Window { second, errors: 0 };
        }
        window.errors = window.errors.saturating_add(1);
        window.errors <= self.per_sec
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_samples_a_second_are_taken_and_not_all_at_its_beginning() {
        let rate = SampleRate::new(100);
        let taken = |from: u64, to: u64| (from..to).filter(|now| rate.takes(*now)).count();
        // One exchange each millisecond.
        assert_eq!((taken(0, 500), taken(500, 1_000), taken(1_000, 3_000)), (50, 50, 200));
        assert_eq!((0..1_000).filter(|_| rate.takes(5_000)).count(), 10, "at once");
        let none = SampleRate::new(0);
        assert!(!none.takes(0) && !none.takes(1_000));
    }

    #[test]
    fn errors_of_one_tenant_leave_those_of_others() {
        let rate = ErrorRate::new(3);
        let taken = |tenant: Option<&str>, now_ms| {
            let tenant = tenant.map(Arc::from);
            (0..10).filter(|_| rate.takes(tenant.as_ref(), now_ms)).count()
        };
        assert_eq!(
            (taken(Some("a"), 1_000), taken(Some("b"), 1_000), taken(None, 1_999)),
            (3, 3, 3)
        );
        assert_eq!((taken(Some("a"), 1_999), taken(Some("a"), 2_000)), (0, 3));
    }

    #[test]
    fn tenants_are_bounded() {
        let rate = ErrorRate::new(1);
        for tenant in 0..3_000 {
            rate.takes(Some(&Arc::from(tenant.to_string())), 0);
        }
        assert!(rate.tenants.lock().unwrap().len() <= TENANTS_MAX + 1);
    }
}
