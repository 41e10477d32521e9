//! The speed of a core, found by work that is always the same.
//!
//! The host of a virtual machine, or a processor that is too hot, may slow a core to a tenth for a tenth of a second.
//! Latencies of that time tell nothing about the servers, and it is enough to decide a p99.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A core is slow if the work takes more than so many times as long as at the core's fastest.
const SLOW: u32 = 3;

/// The work: pieces of a few microseconds each, without a system call, and with registers only.
const PIECES: usize = 4;
const ROUNDS: u32 = 2_000;

/// Slow times with less between them are one.
const GAP: Duration = Duration::from_millis(20);

/// The time since the machine started, the same for all processes.
pub(crate) fn since_boot() -> Duration {
    clock_gettime(ClockId::Monotonic).try_into().unwrap_or_default()
}

/// Finds out whether a core is slow.
#[derive(Default)]
pub(crate) struct CoreSpeed {
    /// The shortest time that the work took.
    fastest: Option<Duration>,
}

impl CoreSpeed {
    /// Whether the core of this thread is slow now. The thread must have a higher priority than all others there.
    pub(crate) fn is_slow(&mut self) -> bool {
        self.judge(work())
    }

    fn judge(&mut self, took: Duration) -> bool {
        let fastest = self.fastest.map_or(took, |fastest| fastest.min(took));
        self.fastest = Some(fastest);
        took > fastest * SLOW
    }
}

/// Returns how long the work took, without its slowest piece: an interrupt makes one piece longer.
fn work() -> Duration {
    let mut times = [(); PIECES].map(|()| {
        let began = Instant::now();
        let mut number = 88_172_645_463_325_252_u64;
        for _ in 0..ROUNDS {
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
        }
        black_box(number);
        began.elapsed()
    });
    times.sort();
    times[..PIECES - 1].iter().sum()
}

/// When a core was slow: times in order, none of which overlap. All are [since boot](since_boot).
#[derive(Debug, Default)]
pub(crate) struct SlowTimes(Vec<(Duration, Duration)>);

impl SlowTimes {
    /// Adds a core's slow times. `found`: when it was found to be slow, in order; it is measured at least once in
    /// each `interval`.
    ///
    /// A slow time begins after the measurement before it. As long as it lasted, the core may need afterwards to do
    /// what was left undone: so it ends that much later.
    pub(crate) fn add_core(&mut self, found: &[Duration], interval: Duration) {
        for slow in found.chunk_by(|one, next| *next - *one < GAP) {
            let (Some(first), Some(last)) = (slow.first(), slow.last()) else { continue };
            let begin = first.saturating_sub(interval);
            self.0.push((begin, *last + (*last - begin)));
        }
        self.0.sort();
        self.0.dedup_by(|next, one| {
            let is_same = next.0 <= one.1;
            if is_same {
                one.1 = one.1.max(next.1);
            }
            is_same
        });
    }

    /// The part of the time between these in which a core was slow.
    pub(crate) fn within(&self, begin: Duration, end: Duration) -> Duration {
        let parts = self.0.iter();
        parts.map(|(slow, fast)| (*fast).min(end).saturating_sub((*slow).max(begin))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_core_is_slow_beside_its_fastest_time() {
        let mut core = CoreSpeed::default();
        let judged = [20, 10, 30, 31, 120, 11].map(|ms| core.judge(MS(ms)));
        assert_eq!(judged, [false, false, false, true, true, false]);
    }

    #[test]
    fn a_slow_time_ends_when_the_core_has_caught_up() {
        let mut slow = SlowTimes::default();
        slow.add_core(&[100, 105, 120, 300].map(MS), MS(5));
        slow.add_core(&[], MS(5));
        let within = |begin, end| slow.within(MS(begin), MS(end));
        assert_eq!([within(0, 95), within(90, 96), within(144, 200)], [0, 1, 1].map(MS));
        assert_eq!([within(145, 295), within(304, 310), within(305, 310)], [0, 1, 0].map(MS));
        assert_eq!(within(0, 400), MS(50 + 10));
    }

    #[test]
    fn a_time_in_which_two_cores_are_slow_counts_once() {
        let mut slow = SlowTimes::default();
        slow.add_core(&[100, 200].map(MS), MS(5));
        slow.add_core(&[102, 150, 198].map(MS), MS(5));
        assert_eq!(slow.0, [(95, 107), (145, 155), (193, 205)].map(|(a, b)| (MS(a), MS(b))));
    }
}
