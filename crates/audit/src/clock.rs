//! The time of a record as text. The clock of the machine is read once a second, and a second is converted
//! once: in between, the monotonic clock says how much later a record is.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;

/// The beginning of a record, up to the end of its time.
const BEGINNING: [u8; 34] = *b"{\"time\":\"0000-00-00T00:00:00.000Z\"";

/// Where the time begins, and where its milliseconds do.
const TIME_AT: usize = 9;
const MILLIS_AT: usize = TIME_AT + SECOND_BYTES;

/// The bytes of a time up to its milliseconds: `2026-09-24T12:10:24.`.
const SECOND_BYTES: usize = 20;

/// How long the clock of the machine is not read again. If it is set, records follow so much later.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Writes times in UTC, as RFC 3339 has them, with milliseconds.
#[derive(Debug)]
pub(crate) struct Clock {
    /// When the clock of the machine was read, and what it showed.
    read: Option<(Instant, Duration)>,
    second: Option<u64>,
    millis: u32,
    beginning: [u8; BEGINNING.len()],
}

impl Default for Clock {
    fn default() -> Self {
        Self { read: None, second: None, millis: 0, beginning: BEGINNING }
    }
}

impl Clock {
    /// Appends the beginning of a record of this time: `{"time":"2026-09-24T12:10:24.012Z"`.
    pub(crate) fn write(&mut self, out: &mut Vec<u8>, at: Instant) {
        let since = self.since_epoch(at);
        self.set(since);
        out.extend_from_slice(&self.beginning);
    }

    fn since_epoch(&mut self, at: Instant) -> Duration {
        if let Some((read, since)) = self.read {
            match at.checked_duration_since(read) {
                Some(later) if later < READ_EVERY => return since + later,
                Some(_) => {}
                None => return since.saturating_sub(read - at),
            }
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Instant::now();
        self.read = Some((now, since));
        since.saturating_sub(now.saturating_duration_since(at))
    }

    fn set(&mut self, since: Duration) {
        let (second, millis) = (since.as_secs(), since.subsec_millis());
        if self.second != Some(second) {
            self.second = Some(second);
            self.beginning[TIME_AT..MILLIS_AT].copy_from_slice(&text_of(second));
        } else if self.millis == millis {
            return;
        }
        self.millis = millis;
        let digits = [digit(millis / 100), digit(millis / 10), digit(millis)];
        self.beginning[MILLIS_AT..MILLIS_AT + digits.len()].copy_from_slice(&digits);
    }
}

fn digit(number: u32) -> u8 {
    b'0' + (number % 10) as u8
}

fn text_of(second: u64) -> [u8; SECOND_BYTES] {
    let at = OffsetDateTime::from(UNIX_EPOCH + Duration::from_secs(second));
    let year = at.year().unsigned_abs();
    let two = |number: u8| [digit(u32::from(number) / 10), digit(u32::from(number))];
    let ([m1, m2], [d1, d2]) = (two(at.month().into()), two(at.day()));
    let ([h1, h2], [n1, n2], [s1, s2]) = (two(at.hour()), two(at.minute()), two(at.second()));
    let [y1, y2, y3, y4] = [year / 1_000, year / 100, year / 10, year].map(digit);
    [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T', h1, h2, b':', n1, n2, b':', s1, s2, b'.']
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_milliseconds_also_in_a_second_that_was_converted_before() {
        let mut clock = Clock::default();
        for (millis, text) in [
            (1_790_251_824_012, "2026-09-24T12:10:24.012Z"),
            (1_790_251_824_987, "2026-09-24T12:10:24.987Z"),
            (0, "1970-01-01T00:00:00.000Z"),
            (1_790_251_825_000, "2026-09-24T12:10:25.000Z"),
        ] {
            clock.set(Duration::from_millis(millis));
            let beginning = format!("{{\"time\":\"{text}\"");
            assert_eq!(str::from_utf8(&clock.beginning), Ok(&*beginning));
        }
    }

    #[test]
    fn the_clock_of_the_machine_is_read_again_after_a_second() {
        let now = Instant::now();
        let known = Duration::from_secs(1_000);
        let mut clock = Clock { read: Some((now, known)), ..Clock::default() };
        let millis = Duration::from_millis;
        assert_eq!(clock.since_epoch(now + millis(999)), known + millis(999));
        assert_eq!(clock.since_epoch(now - millis(5)), known - millis(5));
        assert!(clock.since_epoch(now + millis(1_000)) > known * 1_000, "the present time");
        assert_ne!(clock.read, Some((now, known)));
    }
}
