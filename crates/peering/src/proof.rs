//! The proof by which two nodes show each other that they know the cluster's secret, without
//! revealing it.
//!
//! The caller proves itself first, so that an unauthenticated caller receives no proof. A proof
//! covers both greetings completely and differs by role: a recorded proof cannot be replayed, and a
//! greeting cannot be changed on the way. It also covers keying material of the TLS session, so it
//! holds only between the two ends of one session.
//!
//! A program that knows the proof over TLS marks its nonce. Programs before it have nonces without
//! the mark, and a proof of their form. As every form covers both nonces, an attacker between two
//! nodes cannot remove the mark: both nodes detect a connection without TLS that should have it.
//! TLS 1.3 marks `ServerHello.random` for the same reason (RFC 8446, section 4.1.3).

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::frame::Greeting;
use crate::protection::Protection;

/// The length of a nonce.
const NONCE_BYTES: usize = 16;

/// The last bytes of the nonce of a program that knows the proof over TLS.
const TLS_MARK: &[u8; 4] = b"TLS1";

/// The end that sends the proof.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    Caller,
    Callee,
}

/// What the proofs of one handshake cover.
#[derive(Clone, Copy)]
pub(crate) struct Transcript<'a> {
    pub(crate) caller: &'a Greeting,
    pub(crate) callee: &'a Greeting,
    pub(crate) protection: &'a Protection,
}

/// A new nonce, with the mark.
pub(crate) fn new_nonce() -> Result<Bytes, getrandom::Error> {
    let mut nonce = [0; NONCE_BYTES];
    let (random, mark) = nonce.split_at_mut(NONCE_BYTES - TLS_MARK.len());
    getrandom::fill(random)?;
    mark.copy_from_slice(TLS_MARK);
    Ok(Bytes::copy_from_slice(&nonce))
}

/// Whether the program that sent a greeting knows the proof over TLS. One in 2^32 nonces of an older
/// program has the mark by chance; then the handshake fails and the next attempt succeeds.
pub(crate) fn knows_tls(greeting: &Greeting) -> bool {
    greeting.nonce.len() == NONCE_BYTES && greeting.nonce.ends_with(TLS_MARK)
}

impl Transcript<'_> {
    /// The proof of `role` in this handshake.
    pub(crate) fn prove(&self, secret: &str, role: Role) -> Bytes {
        Bytes::copy_from_slice(&self.digest(secret, role).finalize().into_bytes())
    }

    /// Verifies the proof of `role` in this handshake, in constant time.
    pub(crate) fn holds(&self, proof: &[u8], secret: &str, role: Role) -> bool {
        let whole = [self.caller, self.callee].iter().all(|end| end.nonce.len() == NONCE_BYTES);
        whole && self.digest(secret, role).verify_slice(proof).is_ok()
    }

    fn digest(&self, secret: &str, role: Role) -> Hmac<Sha256> {
        let Self { caller, callee, protection } = *self;
        let mut digest = <Hmac<Sha256> as KeyInit>::new_from_slice(secret.as_bytes())
            .unwrap_or_else(|_| unreachable!("a key may have any length"));
        let both_know_tls = knows_tls(caller) && knows_tls(callee);
        digest.update(match (role, both_know_tls) {
            (Role::Caller, true) => b"roundhouse peer link 5, caller",
            (Role::Callee, true) => b"roundhouse peer link 5, callee",
            (Role::Caller, false) => b"roundhouse peer link 4, caller",
            (Role::Callee, false) => b"roundhouse peer link 4, callee",
        });
        if both_know_tls {
            let exporter = protection.exporter();
            digest.update(&[u8::from(exporter.is_some())]);
            digest.update(exporter.map_or(&[][..], |exporter| exporter));
        }
        // A program that announces no versions does not know these fields. An attacker who removes
        // them from both greetings gains at most the older of two versions that both nodes read.
        let announce_versions = caller.newest_version > 0 && callee.newest_version > 0;
        for greeting in [caller, callee] {
            digest.update(&greeting.incarnation.to_be_bytes());
            digest.update(&greeting.nonce);
            digest.update(&greeting.ping_ms.to_be_bytes());
            // The length precedes the address, so that no other greeting has the same bytes.
            digest.update(&(greeting.address.len() as u64).to_be_bytes());
            digest.update(greeting.address.as_bytes());
            digest.update(&[u8::from(greeting.watches)]);
            if announce_versions {
                digest.update(&greeting.oldest_version.to_be_bytes());
                digest.update(&greeting.newest_version.to_be_bytes());
            }
        }
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &Protection = &Protection::Plain;

    /// A greeting of a program that does not know the proof over TLS.
    fn greeting(incarnation: u64, nonce: u8) -> Greeting {
        let nonce = Bytes::from(vec![nonce; NONCE_BYTES]);
        let address = "a-node:7070".into();
        Greeting {
            incarnation,
            nonce,
            ping_ms: 300,
            address,
            watches: false,
            oldest_version: 2,
            newest_version: 3,
        }
    }

    /// A greeting of a program that knows the proof over TLS.
    fn marked(incarnation: u64) -> Greeting {
        Greeting { nonce: new_nonce().unwrap(), ..greeting(incarnation, 0) }
    }

    /// Whether a proof of the caller in the first handshake holds in the second.
    fn holds_in(
        (caller, callee, protection): (&Greeting, &Greeting, &Protection),
        (other_caller, other_callee, other): (&Greeting, &Greeting, &Protection),
    ) -> bool {
        let proof = Transcript { caller, callee, protection }.prove("secret", Role::Caller);
        let other = Transcript { caller: other_caller, callee: other_callee, protection: other };
        other.holds(&proof, "secret", Role::Caller)
    }

    #[test]
    fn a_proof_holds_for_one_secret_role_and_handshake() {
        for (caller, callee) in
            [(greeting(1, 1), greeting(2, 2)), (marked(1), marked(2)), (marked(1), greeting(2, 2))]
        {
            let (caller, callee) = (&caller, &callee);
            let transcript = Transcript { caller, callee, protection: PLAIN };
            let proof = transcript.prove("secret", Role::Caller);
            assert!(transcript.holds(&proof, "secret", Role::Caller));
            assert!(!transcript.holds(&proof, "other", Role::Caller));
            assert!(!transcript.holds(&proof, "secret", Role::Callee));
            assert!(!transcript.holds(&proof[..31], "secret", Role::Caller));
            assert!(!transcript.holds(b"", "secret", Role::Caller));

            let whole = (caller, callee, PLAIN);
            assert!(!holds_in(whole, (callee, caller, PLAIN)));
            assert!(!holds_in(whole, (caller, &greeting(2, 3), PLAIN)));
            for changed in [
                Greeting { incarnation: 3, ..caller.clone() },
                Greeting { ping_ms: 60_000, ..caller.clone() },
                Greeting { address: "b-node:7070".into(), ..caller.clone() },
                Greeting { newest_version: 4, ..caller.clone() },
                Greeting { newest_version: 0, ..caller.clone() },
                Greeting { watches: true, ..caller.clone() },
            ] {
                assert!(!holds_in(whole, (&changed, callee, PLAIN)), "{changed:?}");
            }
            let elsewhere = Greeting { address: "b-node:7070".into(), ..callee.clone() };
            assert!(!holds_in(whole, (caller, &elsewhere, PLAIN)));
        }
    }

    #[test]
    fn a_proof_holds_in_one_tls_session_only() {
        let (caller, callee) = (&marked(1), &marked(2));
        let one = &Protection::Secret { exporter: [1; 32] };
        let other = &Protection::Secret { exporter: [2; 32] };
        assert!(holds_in((caller, callee, one), (caller, callee, one)));
        assert!(!holds_in((caller, callee, one), (caller, callee, other)));
        assert!(!holds_in((caller, callee, one), (caller, callee, PLAIN)));
        assert!(!holds_in((caller, callee, PLAIN), (caller, callee, one)));
    }

    #[test]
    fn the_mark_cannot_be_removed_or_added_on_the_way() {
        let marked = [&marked(1), &marked(2)];
        let stripped = marked.map(|end| {
            let mut nonce = end.nonce.to_vec();
            nonce[NONCE_BYTES - 1] ^= 1;
            Greeting { nonce: nonce.into(), ..end.clone() }
        });
        for [caller, callee] in
            [[&stripped[0], marked[1]], [marked[0], &stripped[1]], [&stripped[0], &stripped[1]]]
        {
            assert!(!holds_in((marked[0], marked[1], PLAIN), (caller, callee, PLAIN)));
            assert!(!holds_in((caller, callee, PLAIN), (marked[0], marked[1], PLAIN)));
        }
    }

    #[test]
    fn a_nonce_that_is_too_short_proves_nothing() {
        let (caller, mut callee) = (greeting(1, 1), greeting(2, 2));
        callee.nonce = Bytes::new();
        assert!(!holds_in((&caller, &callee, PLAIN), (&caller, &callee, PLAIN)));
    }

    #[test]
    fn the_proof_of_an_older_program_is_unchanged() {
        let (caller, callee) = (greeting(1, 1), greeting(2, 2));
        let transcript = Transcript { caller: &caller, callee: &callee, protection: PLAIN };
        let proof = transcript.prove("secret", Role::Caller);
        let proof: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(proof, "9df30a56a37b336fabd7e8357891ea1f8a26467d16994512bc5af3473b38de97");
    }
}
