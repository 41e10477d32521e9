//! Decides which log lines are written: a token bucket for each call site, and for each tenant at
//! a call site. Counts the lines that are left out. Has no clock and writes nothing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tracing::Level;
use tracing::callsite::Identifier;

/// Most buckets that are kept. At this bound, buckets that are full again are removed first. If
/// none is, a tenant's lines share the bucket of their call site with those of other tenants.
const BUCKETS_MAX: usize = 1_024;

/// The least time between two searches for buckets that are full again. A search visits all buckets, and
/// every thread that logs waits meanwhile: without this time each line of a flood would cause one.
const SEARCH_INTERVAL: Duration = Duration::from_millis(100);

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
    /// Not written, and counted.
    LeaveOut {
        /// No line was waiting for a report before.
        is_first: bool,
        /// The bucket that has no sample yet: pass it to [`LineLimit::add_sample`].
        needs_sample: Option<Key>,
    },
}

struct Bucket {
    /// When the bucket will be full again.
    full_at: Instant,
    /// Lines that were left out since the last report.
    left_out: u64,
    sample: Option<Box<Sample>>,
}

/// The buckets of all call sites.
pub(crate) struct LineLimit {
    /// The time after which one more line may be written.
    interval: Duration,
    /// How far ahead of the clock [`Bucket::full_at`] may be.
    ahead_max: Duration,
    buckets: HashMap<Key, Bucket>,
    /// When buckets may be searched for those that are full again; `None` before the first search.
    next_search: Option<Instant>,
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
            next_search: None,
            has_left_out: false,
        }
    }

    /// Decides about one line.
    pub(crate) fn admit(&mut self, key: Key, now: Instant) -> Verdict {
        let key = self.key_within_bounds(key, now);
        let new = Bucket { full_at: now, left_out: 0, sample: None };
        let bucket = self.buckets.entry(key.clone()).or_insert(new);
        let full_at = bucket.full_at.max(now) + self.interval;
        if full_at - now <= self.ahead_max {
            bucket.full_at = full_at;
            return Verdict::Write;
        }
        bucket.left_out += 1;
        Verdict::LeaveOut {
            is_first: !std::mem::replace(&mut self.has_left_out, true),
            needs_sample: bucket.sample.is_none().then_some(key),
        }
    }

    /// Adds the sample for the lines of a bucket that are left out. Lines without one wait for the next
    /// report.
    pub(crate) fn add_sample(&mut self, key: &Key, sample: Sample) {
        if let Some(bucket) = self.buckets.get_mut(key)
            && bucket.left_out > 0
        {
            bucket.sample.get_or_insert(Box::new(sample));
        }
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
        let mut all = Vec::new();
        for bucket in self.buckets.values_mut().filter(|bucket| bucket.left_out > 0) {
            match bucket.sample.take() {
                Some(sample) => {
                    let lines = std::mem::take(&mut bucket.left_out);
                    all.push(LeftOut { lines, sample: *sample });
                }
                // Another thread is about to add it.
                None => self.has_left_out = true,
            }
        }
        all
    }

    fn key_within_bounds(&mut self, key: Key, now: Instant) -> Key {
        if self.buckets.len() < BUCKETS_MAX || self.buckets.contains_key(&key) {
            return key;
        }
        if self.next_search.is_none_or(|next| now >= next) {
            self.next_search = Some(now + SEARCH_INTERVAL);
            // A full bucket decides as a new one does.
            self.buckets.retain(|_, bucket| bucket.full_at > now || bucket.left_out > 0);
            if self.buckets.len() < BUCKETS_MAX {
                return key;
            }
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

    /// Admits one line, as the layer does.
    fn admit(limit: &mut LineLimit, key: Key, now: Instant) -> Verdict {
        let verdict = limit.admit(key, now);
        if let Verdict::LeaveOut { needs_sample: Some(key), .. } = &verdict {
            limit.add_sample(key, sample());
        }
        verdict
    }

    /// Admits `lines` lines at one time; returns how many are written.
    fn write(limit: &mut LineLimit, key: &Key, now: Instant, lines: usize) -> usize {
        let verdicts = (0..lines).map(|_| admit(limit, key.clone(), now));
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
    fn the_first_line_left_out_since_a_report_is_marked_and_asks_for_the_sample() {
        let (mut limit, now) = (LineLimit::new(1, 1), Instant::now());
        let key = Key::Site(site(1));
        let left_out = |is_first, needs_sample| Verdict::LeaveOut { is_first, needs_sample };
        assert_eq!(limit.admit(key.clone(), now), Verdict::Write);
        assert_eq!(limit.admit(key.clone(), now), left_out(true, Some(key.clone())));
        assert_eq!(limit.admit(key.clone(), now), left_out(false, Some(key.clone())));
        assert!(limit.take_left_out().is_empty(), "the sample is not there yet");
        assert!(limit.has_left_out());
        limit.add_sample(&key, sample());
        assert_eq!(limit.admit(key.clone(), now), left_out(false, None));
        assert_eq!(limit.take_left_out(), [LeftOut { lines: 3, sample: sample() }]);
        assert!(!limit.has_left_out());
        limit.add_sample(&key, sample());
        assert_eq!(limit.admit(key.clone(), now), left_out(true, Some(key)), "for new lines only");
    }

    #[test]
    fn a_flood_of_tenants_causes_at_most_ten_searches_a_second() {
        let (mut limit, now) = (LineLimit::new(100, 20), Instant::now());
        let one = site(1);
        // The last line finds no bucket that is full again. A bucket with one line is so after 10 ms.
        for tenant in 0..=BUCKETS_MAX as u64 {
            admit(&mut limit, Key::Tenant(one.clone(), tenant), now);
        }
        write(&mut limit, &Key::Site(one.clone()), now, 20);
        let newcomer = Key::Tenant(one.clone(), 1 << 40);
        let soon = now + SEARCH_INTERVAL / 2;
        assert_eq!(write(&mut limit, &newcomer, soon, 30), 5, "shares a bucket: no search");
        assert_eq!(write(&mut limit, &newcomer, now + SEARCH_INTERVAL, 30), 20);
        assert!(limit.buckets.len() < 10, "{}", limit.buckets.len());
    }

    #[test]
    fn buckets_are_bounded_and_no_line_is_unlimited_at_the_bound() {
        let (mut limit, now) = (LineLimit::new(10, 20), Instant::now());
        let one = site(1);
        for tenant in 0..10_000 {
            admit(&mut limit, Key::Tenant(one.clone(), tenant), now);
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
