//! The time of a record as text. A second is converted once.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;

/// The bytes of a time up to its milliseconds: `2026-09-24T12:10:24.`.
const SECOND_BYTES: usize = 20;

/// Writes times in UTC, as RFC 3339 has them, with milliseconds.
#[derive(Debug)]
pub(crate) struct Clock {
    second: Option<u64>,
    text: [u8; SECOND_BYTES],
}

impl Default for Clock {
    fn default() -> Self {
        Self { second: None, text: [b'0'; SECOND_BYTES] }
    }
}

impl Clock {
    /// Appends the time.
    pub(crate) fn write(&mut self, out: &mut Vec<u8>, at: SystemTime) {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let second = since.as_secs();
        if self.second != Some(second) {
            self.second = Some(second);
            self.text = text_of(second);
        }
        let millis = since.subsec_millis();
        out.extend_from_slice(&self.text);
        out.extend_from_slice(&[digit(millis / 100), digit(millis / 10), digit(millis), b'Z']);
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
            let mut out = Vec::new();
            clock.write(&mut out, UNIX_EPOCH + Duration::from_millis(millis));
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }
}
