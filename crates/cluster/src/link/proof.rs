//! How two nodes show each other that they know the cluster's secret, without telling it.
//!
//! The caller proves itself first, so that a stranger who connects learns nothing. What
//! is proven covers both nonces and both incarnations, and differs by role: nothing that
//! was heard can be said again.

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::frame::Greeting;

/// How long a nonce is.
pub(crate) const NONCE_BYTES: usize = 16;

/// Who proves it.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    Caller,
    Callee,
}

/// The proof of `role` in the meeting of these two.
pub(crate) fn prove(secret: &str, role: Role, caller: &Greeting, callee: &Greeting) -> Bytes {
    Bytes::copy_from_slice(&digest(secret, role, caller, callee).finalize().into_bytes())
}

/// Is it the proof of `role` in the meeting of these two? Takes the same time for all
/// wrong ones.
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
        Role::Caller => b"roundhouse peer link 2, caller",
        Role::Callee => b"roundhouse peer link 2, callee",
    });
    for greeting in [caller, callee] {
        digest.update(&greeting.incarnation.to_be_bytes());
        digest.update(&greeting.nonce);
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(incarnation: u64, nonce: u8) -> Greeting {
        Greeting { incarnation, nonce: Bytes::from(vec![nonce; NONCE_BYTES]), ping_ms: 0 }
    }

    #[test]
    fn a_proof_holds_for_one_secret_role_and_meeting() {
        let (caller, callee) = (greeting(1, 1), greeting(2, 2));
        let proof = prove("secret", Role::Caller, &caller, &callee);
        assert!(holds(&proof, "secret", Role::Caller, &caller, &callee));

        assert!(!holds(&proof, "other", Role::Caller, &caller, &callee));
        assert!(!holds(&proof, "secret", Role::Callee, &caller, &callee));
        assert!(!holds(&proof, "secret", Role::Caller, &callee, &caller));
        assert!(!holds(&proof, "secret", Role::Caller, &caller, &greeting(2, 3)));
        assert!(!holds(&proof, "secret", Role::Caller, &greeting(3, 1), &callee));
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
