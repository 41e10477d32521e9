//! When the permits of a thread pause, and for how long. It reads no clock.

use std::time::Duration;

/// The time for which permits are given between two pauses, while the thread has its core.
const BUSY: Duration = Duration::from_millis(2);

/// The same while others use it.
const BUSY_BESIDE_OTHERS: Duration = Duration::from_micros(500);

/// The time for which permits are given until the thread's part of its core is judged. A thread that has slept gets
/// the core at once, and may then lose it for several milliseconds, so a shorter time would not tell.
const JUDGED: Duration = Duration::from_millis(8);

/// How a thread shared its core is forgotten when no permit was waited for so long.
const FORGOTTEN: Duration = Duration::from_millis(100);

/// The shortest pause: timers have a granularity of 1 ms.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// The longest one.
const PAUSE_MAX: Duration = Duration::from_millis(4);

/// The CPU time between two pauses, for permits and all else. Other threads that never sleep make pauses as long as they
/// get: a thread with a part `p` of its core uses about `p / (1 + 20p)` of it all the same. At worst, it gives one permit
/// between two pauses.
const CPU_MIN: Duration = Duration::from_micros(250);

/// The pauses of one thread.
///
/// A thread with permits to give is always ready to run. If threads of other nodes or programs with the same priority
/// are always ready on its core too, a call that the thread serves waits for all of them. So pauses grow while the thread
/// has its core for less than half of the time, and shrink again afterwards.
///
/// The threads with a lower priority that [compute](crate::compute) take little from a thread that is always ready, but
/// for up to 4 ms at a time, as long as the kernel lets a thread run. While they compute, each pause has at least the
/// shortest length: the thread leaves them the core by itself, and gets it back when a call arrives.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    /// For how long permits were given since the last pause was due.
    busy: Duration,
    /// The thread's CPU time since the last pause.
    busy_cpu: Duration,
    /// For how long they were given since the thread's part of its core was judged.
    judged: Duration,
    /// The thread's CPU time of that.
    cpu: Duration,
    /// How long each pause is.
    pause: Duration,
}

impl Pacing {
    /// Notes that permits are waited for again, after this time without.
    pub(crate) fn begin_after(&mut self, idle: Duration) {
        if idle >= FORGOTTEN {
            *self = Self::default();
        }
    }

    /// Whether a pause is due after this time too.
    pub(crate) fn is_due(&self, wall: Duration) -> bool {
        let busy_max = if self.pause.is_zero() { BUSY } else { BUSY_BESIDE_OTHERS };
        self.busy + wall >= busy_max
    }

    /// Adds a time for which permits were given without a break, and the thread's CPU time of it.
    pub(crate) fn add(&mut self, wall: Duration, cpu: Duration) {
        self.busy += wall;
        self.busy_cpu += cpu;
        self.judged += wall;
        self.cpu += cpu;
    }

    /// How long no permit is given now that a pause is due. Zero if the thread had little CPU time since the last one.
    pub(crate) fn next_pause(&mut self, is_computing: bool) -> Duration {
        self.busy = Duration::ZERO;
        if self.busy_cpu < CPU_MIN {
            return Duration::ZERO;
        }
        self.busy_cpu = Duration::ZERO;
        if self.judged >= JUDGED {
            self.pause = if self.cpu * 2 < self.judged {
                (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX)
            } else if self.pause > PAUSE_MIN {
                (self.pause * 3 / 4).max(PAUSE_MIN)
            } else {
                Duration::ZERO
            };
            (self.judged, self.cpu) = Default::default();
        }
        if is_computing { self.pause.max(PAUSE_MIN) } else { self.pause }
    }

    /// How long each pause is while nothing is computed.
    #[cfg(test)]
    pub(crate) fn pause(&self) -> Duration {
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// Gives permits for this time with 1 ms of CPU time, and returns the pause behind.
    fn pause(pacing: &mut Pacing, millis: u64, is_computing: bool) -> Duration {
        pacing.add(MS(millis), MS(1));
        pacing.next_pause(is_computing)
    }

    /// The last of four pauses, 2 ms one after the other, at which the part of the core is judged.
    fn with_its_core(pacing: &mut Pacing) -> Duration {
        let pauses = [(); 4].map(|()| pause(pacing, 2, false));
        assert_eq!([pauses[0]; 2], [pauses[1], pauses[2]], "judged too early");
        pauses[3]
    }

    #[test]
    fn pauses_grow_while_others_use_the_core_and_shrink_afterwards() {
        let mut pacing = Pacing::default();
        assert_eq!(with_its_core(&mut pacing), MS(0));
        let grown: Vec<_> = (0..5).map(|_| pause(&mut pacing, 8, false)).collect();
        assert_eq!(grown, [1, 2, 4, 4, 4].map(MS));
        let shrunk: Vec<_> = (0..10).map(|_| with_its_core(&mut pacing)).collect();
        assert_eq!(shrunk[0], MS(3));
        assert!(shrunk.is_sorted_by(|one, next| one >= next), "{shrunk:?}");
        assert_eq!(shrunk[9], MS(0));
    }

    #[test]
    fn pauses_are_due_sooner_while_others_use_the_core() {
        let mut pacing = Pacing::default();
        pacing.add(MS(1), MS(1));
        assert!(!pacing.is_due(Duration::from_micros(999)) && pacing.is_due(MS(1)));
        assert_eq!(pause(&mut pacing, 8, false), MS(1));
        assert!(!pacing.is_due(Duration::from_micros(499)));
        assert!(pacing.is_due(Duration::from_micros(500)));
    }

    #[test]
    fn a_thread_that_has_its_core_at_first_and_waits_then_does_not_have_it() {
        let mut pacing = Pacing::default();
        pacing.add(MS(2), MS(2));
        assert_eq!(pacing.next_pause(false), MS(0));
        pacing.add(MS(14), MS(2));
        assert_eq!(pacing.next_pause(false), MS(1));
    }

    #[test]
    fn there_is_no_pause_before_the_thread_had_some_cpu_time() {
        let mut pacing = Pacing::default();
        (0..3).for_each(|_| _ = pause(&mut pacing, 8, false));
        for expected in [0, 0, 4] {
            pacing.add(MS(20), Duration::from_micros(100));
            assert_eq!(pacing.next_pause(true), MS(expected));
        }
    }

    #[test]
    fn pauses_are_forgotten_when_no_permit_was_waited_for() {
        let mut pacing = Pacing::default();
        assert_eq!(pause(&mut pacing, 8, false), MS(1));
        pacing.begin_after(MS(99));
        assert_eq!(pause(&mut pacing, 2, false), MS(1));
        pacing.begin_after(MS(100));
        assert_eq!(pause(&mut pacing, 2, false), MS(0));
    }

    #[test]
    fn there_is_a_pause_while_something_is_computed() {
        let mut pacing = Pacing::default();
        assert_eq!(pause(&mut pacing, 2, true), MS(1));
        assert_eq!(pause(&mut pacing, 2, true), MS(1));
        assert_eq!(pause(&mut pacing, 2, false), MS(0));
        (0..4).for_each(|_| _ = pause(&mut pacing, 8, false));
        assert_eq!(pause(&mut pacing, 2, true), MS(4));
    }
}
