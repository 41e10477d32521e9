//! Seals what links save, for the record: an upstream session can be used by who knows its id.
//!
//! The key is made from the cluster's secret, and the seal is of one session: copied into the record of
//! another session, it does not open.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use protocol::SessionId;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};

/// The use of the key.
const PURPOSE: &[u8] = b"roundhouse saved links 1";

/// Seals what links save, and opens it.
pub(crate) struct LinkSeal {
    /// The present key, then former ones.
    keys: Vec<LessSafeKey>,
    random: SystemRandom,
}

impl LinkSeal {
    /// Seals with the first of these secrets, and opens with any. Without a secret, the key is one of this
    /// process: no other process carries on its links.
    pub(crate) fn new(secrets: &[Box<[u8]>]) -> Self {
        let random = SystemRandom::new();
        let mut keys: Vec<_> = secrets.iter().filter_map(|secret| key(secret)).collect();
        let mut own = [0; 32];
        if keys.is_empty() && random.fill(&mut own).is_ok() {
            keys.extend(key(&own));
        }
        Self { keys, random }
    }

    /// Seals the state of a session's link as text; `None` if the system gave no random number.
    pub(crate) fn seal(&self, session: &SessionId, state: &[u8]) -> Option<String> {
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).ok()?;
        let mut sealed = state.to_vec();
        let key = self.keys.first()?;
        let aad = Aad::from(session.as_str().as_bytes());
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed).ok()?;
        sealed.splice(..0, nonce);
        Some(STANDARD_NO_PAD.encode(sealed))
    }

    /// Opens what was sealed for a session; `None` if it was sealed with another secret or for another
    /// session.
    pub(crate) fn open(&self, session: &SessionId, text: &str) -> Option<Bytes> {
        let sealed = STANDARD_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN)?;
        self.keys.iter().find_map(|key| {
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            let mut state = sealed.to_vec();
            let aad = Aad::from(session.as_str().as_bytes());
            let opened = key.open_in_place(nonce, aad, &mut state).ok()?;
            Some(Bytes::copy_from_slice(opened))
        })
    }
}

fn key(secret: &[u8]) -> Option<LessSafeKey> {
    let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let derived = hmac::sign(&secret, PURPOSE);
    UnboundKey::new(&CHACHA20_POLY1305, derived.as_ref()).ok().map(LessSafeKey::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal(secrets: &[&str]) -> LinkSeal {
        let secrets: Vec<_> = secrets.iter().map(|secret| secret.as_bytes().into()).collect();
        LinkSeal::new(&secrets)
    }

    #[test]
    fn a_state_opens_with_its_secret_and_for_its_session_only() {
        let session = |id| SessionId::parse(id).unwrap();
        let (one, other) = (session("one"), session("other"));
        let sealed = seal(&["old"]).seal(&one, b"upstream-session-id").unwrap();
        let opened = |secrets: &[&str], session| seal(secrets).open(session, &sealed);
        assert_eq!(opened(&["old"], &one).unwrap(), &b"upstream-session-id"[..]);
        assert_eq!(opened(&["new", "old"], &one).unwrap(), &b"upstream-session-id"[..]);
        assert_eq!(opened(&["new"], &one), None);
        assert_eq!(opened(&[], &one), None);
        assert_eq!(opened(&["old"], &other), None);
        let bytes = STANDARD_NO_PAD.decode(&sealed).unwrap();
        assert!(!bytes.windows(8).any(|part| part == b"upstream"));
        assert_eq!(seal(&["old"]).open(&one, ""), None);
        let again = seal(&["old"]).seal(&one, b"upstream-session-id").unwrap();
        assert_ne!(again, sealed, "each has a nonce of its own");
    }
}
