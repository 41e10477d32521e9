//! Decides which log lines are written: a token bucket for each call site, and for each tenant at
//! a call site. Counts the lines that are left out. Has no clock and writes nothing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tracing::Level;
use tracing::callsite::Identifier;

/// Most buckets that are kept. At this bound, buckets that are full again are removed first. If
/// none is, a tenant's lines share the bucket of their call site with those of other tenants.
const BUCKETS_MAX: usize = 1_024;

/// Most buckets of call sites without a tenant. A program has fewer call sites; at this bound all
/// further ones share one bucket.
const SITES_MAX: usize = 4 * BUCKETS_MAX;

/// The lines that share a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// The lines of a call site.
    Site(Identifier),
    /// The lines of a call site that name this tenant or backend, by its hash.
    Tenant(Identifier, u64),
    /// The lines of all other call sites, at the bound.
    Others,
}

impl Key {
    /// The key for lines of the same call site of all tenants.
    fn of_all_tenants(&self) -> Self {
        match self {
            Self::Tenant(site, _) => Self::Site(site.clone()),
            other => other.clone(),
        }
    }
}

/// A line that stands for those left out since the last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) level: Level,
    /// The module and the line number of the call site.
    pub(crate) site: String,
    pub(crate) message: String,
    /// The tenant or backend that the line names.
    pub(crate) tenant: Option<String>,
}

/// How many lines like `sample` were left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) lines: u64,
    pub(crate) sample: Sample,
}

/// What is to be done with a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Write,
    /// Not written, and counted. `is_first`: no line was waiting for a report before.
    LeaveOut {
        is_first: bool,
    },
}

struct Bucket {
    /// When the bucket will be full again.
    full_at: Instant,
    left_out: Option<Box<LeftOut>>,
}

/// The buckets of all call sites.
pub(crate) struct LineLimit {
    /// The time after which one more line may be written.
    interval: Duration,
    /// How far ahead of the clock [`Bucket::full_at`] may be.
    ahead_max: Duration,
    buckets: HashMap<Key, Bucket>,
    has_left_out: bool,
}

impl LineLimit {
    /// Writes `per_sec` lines a second for each key, and up to `burst` at once. Both are above 0.
    pub(crate) fn new(per_sec: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / per_sec.max(1);
        Self {
            interval,
            ahead_max: interval * burst.max(1),
            buckets: HashMap::new(),
            has_left_out: false,
        }
    }

    /// Decides about one line. Calls `sample` for the first line of a bucket that is left out.
    pub(crate) fn admit(
        &mut self,
        key: Key,
        now: Instant,
        sample: impl FnOnce() -> Sample,
    ) -> Verdict {
        let key = self.key_within_bounds(key, now);
        let bucket = self.buckets.entry(key).or_insert(Bucket { full_at: now, left_out: None });
        let full_at = bucket.full_at.max(now) + self.interval;
        if full_at - now <= self.ahead_max {
            bucket.full_at = full_at;
            return Verdict::Write;
        }
        match &mut bucket.left_out {
            Some(left_out) => left_out.lines += 1,
            none => *none = Some(Box::new(LeftOut { lines: 1, sample: sample() })),
        }
        Verdict::LeaveOut { is_first: !std::mem::replace(&mut self.has_left_out, true) }
    }

    /// Whether lines were left out since the last report.
    pub(crate) fn has_left_out(&self) -> bool {
        self.has_left_out
    }

    /// Takes the counts of the lines that were left out since the last report.
    pub(crate) fn take_left_out(&mut self) -> Vec<LeftOut> {
        if !std::mem::take(&mut self.has_left_out) {
            return Vec::new();
        }
        self.buckets.values_mut().filter_map(|bucket| Some(*bucket.left_out.take()?)).collect()
    }

    fn key_within_bounds(&mut self, key: Key, now: Instant) -> Key {
        if self.buckets.len() < BUCKETS_MAX || self.buckets.contains_key(&key) {
            return key;
        }
        // A full bucket decides as a new one does.
        self.buckets.retain(|_, bucket| bucket.full_at > now || bucket.left_out.is_some());
        if self.buckets.len() < BUCKETS_MAX {
            return key;
        }
        let key = key.of_all_tenants();
        let has_room = self.buckets.len() < SITES_MAX;
        if has_room || self.buckets.contains_key(&key) { key } else { Key::Others }
    }
}

#[cfg(test)]
mod tests {
    use tracing::callsite::{Callsite, Identifier};
    use tracing::subscriber::Interest;
    use tracing::{Metadata, metadata::Kind};

    use super::*;

    /// A call site: only its address matters.
    struct Site(u8);

    impl Callsite for Site {
        fn set_interest(&self, _: Interest) {}

        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("{} {:?}", self.0, Kind::EVENT)
        }
    }

    fn site(number: u8) -> Identifier {
        // One byte each, so that no two call sites have the same address.
        Identifier(Box::leak(Box::new(Site(number))))
    }

    fn sample() -> Sample {
        Sample { level: Level::WARN, site: "a:1".into(), message: "m".into(), tenant: None }
    }

    /// Admits `lines` lines at one time; returns how many are written.
    fn write(limit: &mut LineLimit, key: &Key, now: Instant, lines: usize) -> usize {
        let verdicts = (0..lines).map(|_| limit.admit(key.clone(), now, sample));
        verdicts.filter(|verdict| *verdict == Verdict::Write).count()
    }

    #[test]
    fn a_thousand_lines_at_once_are_a_burst_and_a_count() {
        let (mut limit, now) = (LineLimit::new(10, 20), Instant::now());
        let key = Key::Site(site(1));
        assert_eq!(write(&mut limit, &key, now, 1_000), 20);
        let left_out = limit.take_left_out();
        assert_eq!(left_out, [LeftOut { lines: 980, sample: sample() }]);
        assert!(limit.take_left_out().is_empty(), "reported once");
    }

    #[test]
    fn after_a_burst_lines_are_written_at_the_rate() {
        let (mut limit, start) = (LineLimit::new(10, 20), Instant::now());
        let key = Key::Site(site(1));
        let written: usize = (0..8_000)
            .map(|millis| write(&mut limit, &key, start + Duration::from_millis(millis), 11))
            .sum();
        assert_eq!(written, 20 + 79);
        let later = start + Duration::from_secs(60);
        assert_eq!(write(&mut limit, &key, later, 100), 20, "full again, and not fuller");
    }

    #[test]
    fn a_tenant_that_floods_a_call_site_hides_no_other_tenant_and_no_other_call_site() {
        let (mut limit, now) = (LineLimit::new(10, 20), Instant::now());
        let (one, other) = (site(1), site(2));
        assert_eq!(write(&mut limit, &Key::Tenant(one.clone(), 1), now, 1_000), 20);
        assert_eq!(write(&mut limit, &Key::Tenant(one.clone(), 2), now, 5), 5);
        assert_eq!(write(&mut limit, &Key::Tenant(other, 1), now, 5), 5);
        assert_eq!(write(&mut limit, &Key::Site(one), now, 5), 5);
    }

    #[test]
    fn the_first_line_left_out_since_a_report_is_marked() {
        let (mut limit, now) = (LineLimit::new(1, 1), Instant::now());
        let key = Key::Site(site(1));
        let admit = |limit: &mut LineLimit| limit.admit(key.clone(), now, sample);
        assert_eq!(admit(&mut limit), Verdict::Write);
        assert_eq!(admit(&mut limit), Verdict::LeaveOut { is_first: true });
        assert_eq!(admit(&mut limit), Verdict::LeaveOut { is_first: false });
        assert!(limit.has_left_out());
        limit.take_left_out();
        assert_eq!(admit(&mut limit), Verdict::LeaveOut { is_first: true });
    }

    #[test]
    fn buckets_are_bounded_and_no_line_is_unlimited_at_the_bound() {
        let (mut limit, now) = (LineLimit::new(10, 20), Instant::now());
        let one = site(1);
        for tenant in 0..10_000 {
            limit.admit(Key::Tenant(one.clone(), tenant), now, sample);
        }
        assert!(limit.buckets.len() <= BUCKETS_MAX + 1, "{}", limit.buckets.len());
        let more = (20_000..21_000).map(|tenant| Key::Tenant(one.clone(), tenant));
        let written: usize = more.map(|key| write(&mut limit, &key, now, 1)).sum();
        assert_eq!(written, 0, "the shared bucket is empty");
        // Once the buckets are full again they make room.
        let later = now + Duration::from_secs(10);
        limit.take_left_out();
        assert_eq!(write(&mut limit, &Key::Tenant(one, 1 << 40), later, 30), 20);
        assert!(limit.buckets.len() < 10, "{}", limit.buckets.len());
    }
}
