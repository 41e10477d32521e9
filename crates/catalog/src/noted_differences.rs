//! Which definitions that are not the approved ones were reported: each once, and of one server a bounded
//! number in a time.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use crate::list::ENTRIES_MAX;
use crate::pins::Difference;

/// Most reports about one server at once: one list. Then there is room for one more each second, and further
/// ones are not reported.
const BURST: f64 = ENTRIES_MAX as f64;
/// Most definitions that are known as reported. Then all are forgotten, and those that a server still sends
/// are reported again.
const KNOWN_MAX: usize = 8_192;

/// Which definitions were reported.
pub(crate) struct NotedDifferences {
    hasher: RandomState,
    known: HashSet<u64>,
    /// By server: how many reports there is room for, and when that was computed.
    room: Vec<Option<(f64, Instant)>>,
}

impl NotedDifferences {
    pub(crate) fn new(servers: usize) -> Self {
        Self { hasher: RandomState::new(), known: HashSet::new(), room: vec![None; servers] }
    }

    /// Whether this difference is to be reported.
    pub(crate) fn is_new(&mut self, now: Instant, server: usize, difference: &Difference) -> bool {
        let hash = self.hasher.hash_one((server, difference));
        if self.known.contains(&hash) {
            return false;
        }
        let (room, at) = self.room[server].unwrap_or((BURST, now));
        let room = (room + now.saturating_duration_since(at).as_secs_f64()).min(BURST);
        let has_room = room >= 1.0;
        self.room[server] = Some((if has_room { room - 1.0 } else { room }, now));
        if has_room {
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            self.known.insert(hash);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use protocol::Listed;

    use super::*;
    use crate::Fingerprint;
    use crate::pins::Part;

    fn difference(number: usize) -> Difference {
        Difference {
            part: Part::Entry(Listed::Tool),
            name: "a".into(),
            approved: None,
            found: Fingerprint::of_instructions(&number.to_string()),
            is_refused: false,
        }
    }

    #[test]
    fn each_definition_is_reported_once_and_a_flood_of_them_one_each_second() {
        let (mut noted, now) = (NotedDifferences::new(2), Instant::now());
        assert!(noted.is_new(now, 0, &difference(0)));
        assert!(!noted.is_new(now, 0, &difference(0)));
        assert!(noted.is_new(now, 1, &difference(0)), "of another server");
        let mut later = now;
        let mut reported = |noted: &mut NotedDifferences, from: usize| {
            let all = (from..from + 10_000).filter(|n| noted.is_new(later, 0, &difference(*n)));
            let count = all.count();
            later += Duration::from_secs(3);
            count
        };
        assert_eq!(reported(&mut noted, 1), ENTRIES_MAX - 1);
        assert_eq!(reported(&mut noted, 20_000), 3);
        assert!(noted.is_new(now, 1, &difference(1)), "of another server");
    }
}
