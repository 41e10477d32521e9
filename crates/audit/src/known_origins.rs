//! The texts of the origins that a thread recorded last. A session usually sends many requests, and its
//! digest, its client and its endpoint are the same in each record.

use crate::entry::SessionOrigin;
use crate::line;

/// So many sets of places there are. The id of a session decides its set.
const SETS: usize = 256;

/// The most origins that a set has. A further one takes the place of another, so the sessions of a thread that are
/// fewer than half of all places nearly always have one each.
const WAYS: usize = 4;

/// Of longer origins no text is kept, so that a thread keeps at most half a megabyte.
const BYTES_MAX: usize = 512;

/// The texts.
#[derive(Default)]
pub(crate) struct KnownOrigins {
    /// Empty, or [`SETS`] sets.
    sets: Vec<[Option<Known>; WAYS]>,
    /// The way that the next origin takes if its set has no free one.
    next: usize,
    /// The last origin that was too long.
    long: Option<Known>,
}

/// An origin, whose key and text are next to each other: each further place in memory is one more that may not be in a
/// cache.
struct Known {
    hash: u64,
    endpoint: &'static str,
    /// The length of the session's id, which is at the beginning.
    session_bytes: usize,
    /// Where the text begins, behind the name of the client.
    text_at: usize,
    bytes: Box<[u8]>,
}

impl KnownOrigins {
    /// The text of this origin, which is made if it is not known.
    pub(crate) fn find(&mut self, origin: &SessionOrigin<'_>) -> &[u8] {
        if self.sets.is_empty() {
            self.sets.resize_with(SETS, Default::default);
        }
        let hash = hash(origin.session);
        let set = &mut self.sets[hash as usize % SETS];
        let is_here = |known: &Option<Known>| known.as_ref().is_some_and(|k| k.is(hash, origin));
        let way = match set.iter().position(is_here) {
            Some(way) => way,
            None => {
                let made = Known::new(hash, origin);
                if made.bytes.len() > BYTES_MAX {
                    return self.long.insert(made).text();
                }
                let way = set.iter().position(Option::is_none).unwrap_or(self.next);
                self.next = (way + 1) % WAYS;
                set[way] = Some(made);
                way
            }
        };
        set[way].as_ref().map_or(&[], Known::text)
    }
}

impl Known {
    #[cold]
    fn new(hash: u64, origin: &SessionOrigin<'_>) -> Self {
        let SessionOrigin { session, client, endpoint, .. } = *origin;
        let text = line::origin(&origin.parts());
        let bytes = [session.as_bytes(), client.as_bytes(), &text].concat().into();
        let (session_bytes, text_at) = (session.len(), session.len() + client.len());
        Self { hash, endpoint, session_bytes, text_at, bytes }
    }

    fn is(&self, hash: u64, origin: &SessionOrigin<'_>) -> bool {
        let SessionOrigin { session, client, endpoint, .. } = *origin;
        self.hash == hash
            && self.session_bytes == session.len()
            && self.bytes[..self.session_bytes] == *session.as_bytes()
            && self.bytes[self.session_bytes..self.text_at] == *client.as_bytes()
            && self.endpoint == endpoint
    }

    fn text(&self) -> &[u8] {
        &self.bytes[self.text_at..]
    }
}

/// A number of a session. Its id is random, so both ends of it are enough.
fn hash(session: &str) -> u64 {
    let bytes = session.as_bytes();
    let word = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let ends = word(bytes.first_chunk()) ^ word(bytes.last_chunk()).rotate_left(32);
    // The golden ratio spreads what differs over the upper bits.
    ends.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::HashSet;

    use super::*;
    use crate::{Origin, SessionDigest};

    thread_local! {
        static MADE: Cell<usize> = const { Cell::new(0) };
    }

    fn of_client(name: &str) -> Origin<'_> {
        MADE.set(MADE.get() + 1);
        Origin { subject: Some(name), ..Origin::default() }
    }

    /// The text, and whether it was made now.
    fn find(known: &mut KnownOrigins, session: &str, client: &str) -> (Vec<u8>, bool) {
        let before = MADE.get();
        let text = known.find(&SessionOrigin { session, client, endpoint: "mcp", of_client });
        (text.to_vec(), MADE.get() > before)
    }

    #[test]
    fn an_origin_is_made_once_and_not_taken_for_another() {
        let mut known = KnownOrigins::default();
        let mut texts = HashSet::new();
        // Those with the same ends share a set.
        for session in ["abcdefgh-1-abcdefgh", "abcdefgh-2-abcdefgh", "s", ""] {
            for client in ["ada", "bob"] {
                let (text, is_made) = find(&mut known, session, client);
                assert!(is_made && texts.insert(text.clone()), "{session} {client}");
                assert_eq!(find(&mut known, session, client), (text, false));
            }
        }
    }

    #[test]
    fn a_full_set_takes_a_further_origin_in_place_of_one() {
        let mut known = KnownOrigins::default();
        let session = |number: usize| format!("abcdefgh-{number}-abcdefgh");
        for number in 0..=WAYS {
            assert!(find(&mut known, &session(number), "ada").1);
            assert!(!find(&mut known, &session(number), "ada").1);
        }
        // One has taken the place of the oldest.
        for number in (0..=WAYS).rev() {
            assert_eq!(find(&mut known, &session(number), "ada").1, number == 0, "{number}");
        }
    }

    #[test]
    fn a_long_origin_is_not_kept() {
        let mut known = KnownOrigins::default();
        let client = "x".repeat(BYTES_MAX);
        let (text, _) = find(&mut known, "s", &client);
        assert_eq!(find(&mut known, "s", &client), (text, true));
    }

    #[test]
    fn the_sessions_of_half_of_all_places_have_one_each() {
        let mut known = KnownOrigins::default();
        let sessions: Vec<_> = (0..SETS * WAYS / 2)
            .map(|number| format!("{:?}", SessionDigest::of(&number.to_string())))
            .collect();
        for session in &sessions {
            find(&mut known, session, "ada");
        }
        let made = sessions.iter().filter(|session| find(&mut known, session, "ada").1).count();
        assert!(made < sessions.len() / 10, "{made}");
    }
}
