//! What the record of a session, and the lists of operators, have of its client: a digest of the principal.
//!
//! The digest also covers the time of the client's last revocation. So a session that was opened before
//! that time is another client's, wherever its record is read, and no list of sessions is needed.

use ring::{digest, hmac};
use store::Digest;
use tenants::Principal;

/// What a digest begins with that is not keyed and covers a time. No name of a principal begins so.
const AFTER: &[u8] = b"revoked:";

/// Makes digests of principals, and recognises them.
pub(crate) struct PrincipalDigests {
    /// The present key, then former ones. Without any, digests are not keyed.
    keys: Vec<hmac::Key>,
    /// The key of the digests that operators see. A digest in a list is none that a record has.
    shown: Option<hmac::Key>,
}

impl PrincipalDigests {
    /// Digests with the first of these secrets; those with the others are recognised.
    pub(crate) fn new(secrets: &[Box<[u8]>]) -> Self {
        // Without a secret there is no peer: the digests of this process are compared with no others.
        let random = ring::rand::SystemRandom::new();
        let shown = match secrets.first() {
            Some(secret) => Some(derived(secret, b"roundhouse principals in lists 1")),
            None => hmac::Key::generate(hmac::HMAC_SHA256, &random).ok(),
        };
        let key = |secret: &[u8]| derived(secret, b"roundhouse digest of principals 1");
        Self { keys: secrets.iter().map(|secret| key(secret)).collect(), shown }
    }

    /// The digest of a principal for operators. Nodes with the same present secret show the same. `None`
    /// if the system gave no random number for a key.
    pub(crate) fn shown(&self, principal: &Principal) -> Option<u64> {
        let digest = hmac::sign(self.shown.as_ref()?, principal.name().as_bytes());
        Some(digest.as_ref().iter().take(8).fold(0, |bits, byte| bits << 8 | u64::from(*byte)))
    }

    /// The digest of a principal that was revoked last at this time. `plain`: a node that reads it may run
    /// the previous program, which knows no key.
    pub(crate) fn make(&self, principal: &Principal, revoked_ms: u64, plain: bool) -> Digest {
        match self.keys.first().filter(|_| !plain) {
            Some(key) => keyed(key, principal, revoked_ms),
            None => unkeyed(principal, revoked_ms),
        }
    }

    /// Whether a record has the digest of this principal, which was revoked last at this time.
    pub(crate) fn is_of(&self, held: Digest, principal: &Principal, revoked_ms: u64) -> bool {
        // A digest in a record is compared with those of the caller's principal, which it does not choose.
        self.keys.iter().any(|key| keyed(key, principal, revoked_ms) == held)
            || unkeyed(principal, revoked_ms) == held
    }
}

/// A key with one use, from a secret that has others.
fn derived(secret: &[u8], purpose: &[u8]) -> hmac::Key {
    let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
    hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&secret, purpose).as_ref())
}

fn keyed(key: &hmac::Key, principal: &Principal, revoked_ms: u64) -> Digest {
    let mut context = hmac::Context::with_key(key);
    context.update(&revoked_ms.to_be_bytes());
    context.update(principal.name().as_bytes());
    read(context.sign().as_ref())
}

/// The digest that the previous program makes, if the principal was never revoked.
fn unkeyed(principal: &Principal, revoked_ms: u64) -> Digest {
    let mut context = digest::Context::new(&digest::SHA256);
    if revoked_ms != 0 {
        context.update(AFTER);
        context.update(&revoked_ms.to_be_bytes());
    }
    context.update(principal.name().as_bytes());
    read(context.finish().as_ref())
}

fn read(bytes: &[u8]) -> Digest {
    let mut digest = [0; 32];
    digest.copy_from_slice(bytes);
    Digest(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digests(secrets: &[&str]) -> PrincipalDigests {
        let secrets: Vec<_> = secrets.iter().map(|secret| secret.as_bytes().into()).collect();
        PrincipalDigests::new(&secrets)
    }

    #[test]
    fn a_digest_is_of_one_principal_one_revocation_and_one_secret() {
        let (ada, bob) = (Principal::named("key:ada"), Principal::named("key:bob"));
        let one = digests(&["one"]);
        for plain in [false, true] {
            let held = one.make(&ada, 5, plain);
            assert!(one.is_of(held, &ada, 5));
            assert!(!one.is_of(held, &bob, 5), "another client");
            assert!(!one.is_of(held, &ada, 6) && !one.is_of(held, &ada, 0), "revoked since");
        }
        let keyed = one.make(&ada, 0, false);
        assert!(!digests(&["two"]).is_of(keyed, &ada, 0));
        assert!(!digests(&[]).is_of(keyed, &ada, 0));
        assert_ne!(keyed.0, ada.digest(), "a reader of the record could try names");
    }

    #[test]
    fn operators_see_a_digest_that_only_nodes_with_the_secret_can_compute() {
        let (ada, bob) = (Principal::named("key:ada"), Principal::named("key:bob"));
        let (one, again, rotated) =
            (digests(&["one"]), digests(&["one"]), digests(&["two", "one"]));
        let shown = one.shown(&ada).unwrap();
        assert_eq!(again.shown(&ada), Some(shown));
        assert_ne!(one.shown(&bob), Some(shown));
        assert_ne!(rotated.shown(&ada), Some(shown), "the present secret counts");
        let first_bits = |digest: [u8; 32]| u64::from_be_bytes(digest[..8].try_into().unwrap());
        assert_ne!(shown, first_bits(ada.digest()), "a reader of the list could try names");
        assert_ne!(shown, first_bits(one.make(&ada, 0, false).0), "a reader of Redis has it");
        let (alone, other) = (digests(&[]), digests(&[]));
        assert_eq!(alone.shown(&ada), alone.shown(&ada));
        assert_ne!(alone.shown(&ada), other.shown(&ada), "each process has a key of its own");
        assert_ne!(alone.shown(&ada), Some(first_bits(ada.digest())));
    }

    #[test]
    fn digests_of_the_previous_program_and_of_a_former_secret_are_recognised() {
        let ada = Principal::named("key:ada");
        let both = digests(&["two", "one"]);
        assert!(both.is_of(digests(&["one"]).make(&ada, 0, false), &ada, 0));
        assert!(both.is_of(Digest(ada.digest()), &ada, 0));
        assert!(!both.is_of(Digest(ada.digest()), &ada, 7), "it is older than the revocation");
        assert_eq!(both.make(&ada, 0, true), Digest(ada.digest()));
    }
}
