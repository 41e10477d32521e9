//! The texts of the origins that a thread recorded last. A session usually sends many requests, and its
//! digest, its client and its endpoint are the same in each record.

use crate::entry::SessionOrigin;
use crate::line;

/// So many sets of places there are. The id of a session decides its set.
const SETS: usize = 256;

/// The most origins that a set has. A further one takes the place of another: of the sessions of a thread that are a
/// quarter of all places or fewer, nearly each keeps its own.
const WAYS: usize = 4;

/// Of longer origins only the last one is kept, so that a thread keeps about 0.6 MB at most.
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
        let set = set_of(hash);
        let is_here = |place: &Option<Known>| place.iter().any(|known| known.is(hash, origin));
        let place = match self.sets[set].iter().position(is_here) {
            Some(way) => &self.sets[set][way],
            None if is_here(&self.long) => &self.long,
            None => self.keep(Known::new(hash, origin)),
        };
        place.as_ref().map_or(&[], Known::text)
    }

    /// Keeps an origin, and returns its place.
    #[cold]
    fn keep(&mut self, made: Known) -> &Option<Known> {
        if made.bytes.len() > BYTES_MAX {
            self.long = Some(made);
            return &self.long;
        }
        let set = &mut self.sets[set_of(made.hash)];
        let way = set.iter().position(Option::is_none).unwrap_or(self.next);
        self.next = (way + 1) % WAYS;
        set[way] = Some(made);
        &set[way]
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
            && self.bytes[..self.session_bytes] == *session.as_bytes()
            && self.bytes[self.session_bytes..self.text_at] == *client.as_bytes()
            && self.endpoint == endpoint
    }

    fn text(&self) -> &[u8] {
        &self.bytes[self.text_at..]
    }
}

/// A number of a session. Its id begins with a random number, and ends with the tag of its node.
fn hash(session: &str) -> u64 {
    let bytes = session.as_bytes();
    let word = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let ends = word(bytes.first_chunk()) ^ word(bytes.last_chunk()).rotate_left(32);
    // The golden ratio spreads what differs over the upper half.
    ends.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

fn set_of(hash: u64) -> usize {
    hash as usize % SETS
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

    fn origin<'a>(session: &'a str, client: &'a str, endpoint: &'static str) -> SessionOrigin<'a> {
        SessionOrigin { session, client, endpoint, of_client }
    }

    /// The text, and whether it was made now.
    fn find(known: &mut KnownOrigins, origin: &SessionOrigin<'_>) -> (Vec<u8>, bool) {
        let before = MADE.get();
        let text = known.find(origin).to_vec();
        let is_made = MADE.get() > before;
        assert_eq!(text, line::origin(&origin.parts()).to_vec(), "{origin:?}");
        (text, is_made)
    }

    fn is_made(known: &mut KnownOrigins, session: &str) -> bool {
        find(known, &origin(session, "ada", "mcp")).1
    }

    #[test]
    fn an_origin_is_made_once_and_not_taken_for_another() {
        let mut known = KnownOrigins::default();
        let mut texts = HashSet::new();
        let all = [
            ("s", "ada", "mcp"),
            ("s", "ada", "messages"),
            // Those that are shorter than eight bytes share a set, as those with the same ends do.
            ("sad", "a", "mcp"),
            ("", "ada", "mcp"),
            ("abcdefgh-1-abcdefgh", "ada", "mcp"),
            ("abcdefgh-1-abcdefgh", "bob", "mcp"),
            ("abcdefgh-2-abcdefgh", "bob", "mcp"),
        ];
        for (session, client, endpoint) in all {
            let origin = origin(session, client, endpoint);
            let (text, is_made) = find(&mut known, &origin);
            assert!(is_made && texts.insert(text.clone()), "{origin:?}");
            assert_eq!(find(&mut known, &origin), (text, false));
        }
    }

    #[test]
    fn a_full_set_takes_further_origins_in_place_of_the_oldest() {
        let mut known = KnownOrigins::default();
        let session = |number: usize| format!("abcdefgh-{number}-abcdefgh");
        for number in 0..WAYS + 2 {
            assert!(is_made(&mut known, &session(number)));
            assert!(!is_made(&mut known, &session(number)));
        }
        for number in (0..WAYS + 2).rev() {
            assert_eq!(is_made(&mut known, &session(number)), number < 2, "{number}");
        }
    }

    #[test]
    fn of_long_origins_the_last_one_is_kept() {
        let mut known = KnownOrigins::default();
        let client = "x".repeat(BYTES_MAX);
        for session in ["s", "t", "s"] {
            let origin = origin(session, &client, "mcp");
            assert!(find(&mut known, &origin).1);
            assert!(!find(&mut known, &origin).1);
        }
        assert!(known.sets.iter().flatten().all(Option::is_none));
    }

    #[test]
    fn as_many_sessions_as_a_quarter_of_all_places_keep_their_own() {
        let mut known = KnownOrigins::default();
        let sessions: Vec<_> = (0..SETS * WAYS / 4)
            .map(|number| format!("{:?}-0a1b2c3d", SessionDigest::of(&number.to_string())))
            .collect();
        for session in &sessions {
            is_made(&mut known, session);
        }
        let made = sessions.iter().filter(|session| is_made(&mut known, session)).count();
        assert!(made * 100 <= sessions.len(), "{made}");
    }
}
