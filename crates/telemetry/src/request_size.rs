//! How many records a collector takes at once, found by what it refuses.

use std::time::{Duration, Instant};

/// For so long fewer records are sent after a refusal. Then the collector may take as many as before.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The number of records of a request.
#[derive(Debug)]
pub(crate) struct RequestSize {
    /// The number if nothing was refused.
    max: usize,
    /// The number now.
    now: usize,
    refused: Option<Refused>,
}

/// What is known since a refusal.
#[derive(Clone, Copy, Debug)]
struct Refused {
    since: Instant,
    /// So many records fit.
    fits: usize,
    /// So many did not.
    too_many: usize,
}

impl RequestSize {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, now: max, refused: None }
    }

    /// The most records of the next request.
    pub(crate) fn records_max(&self) -> usize {
        self.now
    }

    /// Notes that the collector has taken so many records.
    pub(crate) fn taken(&mut self, count: usize, at: Instant) {
        match self.refused {
            Some(refused) if at.duration_since(refused.since) >= REMEMBERED => {
                (self.now, self.refused) = (self.max, None);
            }
            Some(refused) if count == self.now => self.search(Refused { fits: count, ..refused }),
            _ => {}
        }
    }

    /// Notes that so many records were too many. Returns whether fewer can be sent.
    pub(crate) fn refused(&mut self, count: usize, at: Instant) -> bool {
        if count <= 1 {
            return false;
        }
        let before = self.refused.filter(|refused| refused.fits < count);
        let new = Refused { since: at, fits: 0, too_many: count };
        self.search(before.map_or(new, |refused| Refused { too_many: count, ..refused }));
        true
    }

    /// Goes on in the middle.
    fn search(&mut self, refused: Refused) {
        self.now = refused.fits.midpoint(refused.too_many).max(1);
        self.refused = Some(refused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends requests to a collector that takes so many records at once. Returns how many it refused.
    fn send(size: &mut RequestSize, takes: usize, requests: usize, at: Instant) -> usize {
        let refused = (0..requests).filter(|_| {
            let count = size.records_max();
            let is_refused = count > takes;
            match is_refused {
                true => assert!(size.refused(count, at)),
                false => size.taken(count, at),
            }
            is_refused
        });
        refused.count()
    }

    #[test]
    fn the_largest_request_that_is_taken_is_found() {
        for takes in [1, 2, 3, 7, 100, 511] {
            let (mut size, now) = (RequestSize::new(512), Instant::now());
            assert!(send(&mut size, takes, 20, now) < 18, "{takes}");
            assert_eq!(size.records_max(), takes);
            assert_eq!(send(&mut size, takes, 100, now), 0, "{takes}");
        }
    }

    #[test]
    fn a_refusal_counts_for_a_minute() {
        let (mut size, now) = (RequestSize::new(512), Instant::now());
        send(&mut size, 2, 20, now);
        let later = now + REMEMBERED - Duration::from_millis(1);
        assert_eq!(send(&mut size, 512, 5, later), 0);
        assert!(size.records_max() < 512);
        assert_eq!(send(&mut size, 512, 5, now + REMEMBERED), 0);
        assert_eq!(size.records_max(), 512);
    }

    #[test]
    fn one_record_that_is_too_large_cannot_be_divided() {
        assert!(!RequestSize::new(512).refused(1, Instant::now()));
    }
}
