//! The texts of the origins that a thread recorded last. A session usually sends many requests, and its
//! digest, its client and its endpoint are the same in each record.

use crate::entry::{KnownOrigin, Origin};

/// The most origins that are known. At most one of the sessions that share a place is.
const PLACES: usize = 1_024;

/// Of longer origins no text is kept, so that a thread keeps at most half a megabyte.
const BYTES_MAX: usize = 512;

/// What decides the text of an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OriginKey<'a> {
    /// The whole id, which no record has.
    pub(crate) session: &'a str,
    pub(crate) client: &'a str,
    pub(crate) endpoint: &'static str,
}

/// The texts.
#[derive(Default)]
pub(crate) struct KnownOrigins {
    /// Empty, or of [`PLACES`] places.
    places: Vec<Option<Known>>,
}

/// An origin, whose key and text are next to each other: each further place in memory is one more that may not be in a
/// cache.
struct Known {
    endpoint: &'static str,
    /// The length of the session's id, which is at the beginning.
    session_bytes: usize,
    origin: KnownOrigin,
}

impl KnownOrigins {
    /// The text of this origin, which is made if it is not known.
    pub(crate) fn find<'a>(
        &mut self,
        key: OriginKey<'_>,
        origin: impl FnOnce() -> Origin<'a>,
    ) -> KnownOrigin {
        if self.places.is_empty() {
            self.places.resize_with(PLACES, || None);
        }
        let place = &mut self.places[place(key.session)];
        match place {
            Some(known) if known.is(key) => known.origin.clone(),
            _ => {
                let origin = KnownOrigin::new(&[key.session, key.client], &origin());
                if origin.bytes.len() <= BYTES_MAX {
                    let (endpoint, session_bytes) = (key.endpoint, key.session.len());
                    *place = Some(Known { endpoint, session_bytes, origin: origin.clone() });
                }
                origin
            }
        }
    }
}

impl Known {
    fn is(&self, OriginKey { session, client, endpoint }: OriginKey<'_>) -> bool {
        let (own_session, own_client) = self.origin.key().split_at(self.session_bytes);
        own_session == session.as_bytes()
            && own_client == client.as_bytes()
            && self.endpoint == endpoint
    }
}

/// The place of a session. Its id is random, so both ends of it are enough.
fn place(session: &str) -> usize {
    let bytes = session.as_bytes();
    let word = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let ends = word(bytes.first_chunk()) ^ word(bytes.last_chunk()).rotate_left(32);
    // The golden ratio spreads what differs over the upper bits.
    (ends.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % PLACES
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::SessionDigest;

    fn find(known: &mut KnownOrigins, session: &str, client: &str) -> (KnownOrigin, bool) {
        let mut is_made = false;
        let key = OriginKey { session, client, endpoint: "mcp" };
        let text = known.find(key, || {
            is_made = true;
            let session = Some(SessionDigest::of(session));
            Origin { subject: Some(client), session, ..Origin::default() }
        });
        (text, is_made)
    }

    #[test]
    fn an_origin_is_made_once_and_not_taken_for_another() {
        let mut known = KnownOrigins::default();
        let mut texts = HashSet::new();
        // Sessions with the same ends share a place.
        for session in ["abcdefgh-1-abcdefgh", "abcdefgh-2-abcdefgh", "s", ""] {
            for client in ["ada", "bob"] {
                let (text, is_made) = find(&mut known, session, client);
                assert!(is_made && texts.insert(text.text().to_owned()), "{session} {client}");
                let (again, is_made) = find(&mut known, session, client);
                assert!(!is_made && again.text() == text.text());
            }
        }
    }

    #[test]
    fn a_long_origin_is_not_kept() {
        let mut known = KnownOrigins::default();
        let client = "x".repeat(BYTES_MAX);
        for _ in 0..2 {
            assert!(find(&mut known, "s", &client).1);
        }
    }

    #[test]
    fn sessions_are_spread_over_all_places() {
        let sessions = (0..PLACES).map(|number| SessionDigest::of(&number.to_string()));
        let places: HashSet<_> = sessions.map(|digest| place(&format!("{digest:?}"))).collect();
        // Of random numbers 63 % are different.
        assert!(places.len() > PLACES / 2, "{}", places.len());
    }
}
