//! The proof by which two nodes show each other that they know the cluster's secret, without
//! revealing it.
//!
//! The caller proves itself first, so that an unauthenticated caller receives no proof. A proof
//! covers both greetings completely and differs by role: a recorded proof cannot be replayed, and a
//! greeting cannot be changed on the way.

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::frame::Greeting;

/// The length of a nonce.
pub(crate) const NONCE_BYTES: usize = 16;

/// The end that sends the proof.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    Caller,
    Callee,
}

/// The proof of `role` in the handshake with these greetings.
pub(crate) fn prove(secret: &str, role: Role, caller: &Greeting, callee: &Greeting) -> Bytes {
    Bytes::copy_from_slice(&digest(secret, role, caller, callee).finalize().into_bytes())
}

/// Verifies the proof of `role` in the handshake with these greetings, in constant time.
pub(crate) fn holds(
    proof: &[u8],
    secret: &str,
    role: Role,
    caller: &Greeting,
    callee: &Greeting,
) -> bool {
    let whole = caller.nonce.len() == NONCE_BYTES && callee.nonce.len() == NONCE_BYTES;
    whole && digest(secret, role, caller, callee).verify_slice(proof).is_ok()
}

fn digest(secret: &str, role: Role, caller: &Greeting, callee: &Greeting) -> Hmac<Sha256> {
    let mut digest = <Hmac<Sha256> as KeyInit>::new_from_slice(secret.as_bytes())
        .unwrap_or_else(|_| unreachable!("a key may have any length"));
    digest.update(match role {
        Role::Caller => b"roundhouse peer link 4, caller",
        Role::Callee => b"roundhouse peer link 4, callee",
    });
    // A program that announces no versions does not know these fields. An attacker who removes them
    // from both greetings gains at most the older of two versions that both nodes read.
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

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_proof_holds_for_one_secret_role_and_handshake() {
        let (caller, callee) = (greeting(1, 1), greeting(2, 2));
        let proof = prove("secret", Role::Caller, &caller, &callee);
        assert!(holds(&proof, "secret", Role::Caller, &caller, &callee));

        assert!(!holds(&proof, "other", Role::Caller, &caller, &callee));
        assert!(!holds(&proof, "secret", Role::Callee, &caller, &callee));
        assert!(!holds(&proof, "secret", Role::Caller, &callee, &caller));
        assert!(!holds(&proof, "secret", Role::Caller, &caller, &greeting(2, 3)));
        assert!(!holds(&proof, "secret", Role::Caller, &greeting(3, 1), &callee));
        let slower = Greeting { ping_ms: 60_000, ..caller.clone() };
        assert!(!holds(&proof, "secret", Role::Caller, &slower, &callee));
        let elsewhere = Greeting { address: "b-node:7070".into(), ..callee.clone() };
        assert!(!holds(&proof, "secret", Role::Caller, &caller, &elsewhere));
        let newer = Greeting { newest_version: 4, ..caller.clone() };
        assert!(!holds(&proof, "secret", Role::Caller, &newer, &callee));
        let silent = Greeting { newest_version: 0, ..caller.clone() };
        assert!(!holds(&proof, "secret", Role::Caller, &silent, &callee));
        let watches = Greeting { watches: true, ..caller.clone() };
        assert!(!holds(&proof, "secret", Role::Caller, &watches, &callee));
        assert!(!holds(&proof[..31], "secret", Role::Caller, &caller, &callee));
        assert!(!holds(b"", "secret", Role::Caller, &caller, &callee));
    }

    #[test]
    fn a_nonce_that_is_too_short_proves_nothing() {
        let (caller, mut callee) = (greeting(1, 1), greeting(2, 2));
        callee.nonce = Bytes::new();
        let proof = prove("secret", Role::Caller, &caller, &callee);
        assert!(!holds(&proof, "secret", Role::Caller, &caller, &callee));
    }
}
