//! Verifies the signatures of JWTs with `ring`, the one library of cryptography in this program.
//!
//! `jsonwebtoken` has no back end of its own for `ring`, and takes one like this. Nothing here signs,
//! and no symmetric key is accepted.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use signature_trait::Verifier;

/// Verifies, and signs nothing.
static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: no_signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Has `jsonwebtoken` and the TLS of requests to issuers use `ring`.
pub(crate) fn install() {
    // A second installation fails, and changes nothing.
    let _ = PROVIDER.install_default();
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn no_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    Ok(Box::new(RingVerifier {
        algorithm: *algorithm,
        check: check(*algorithm).ok_or(ErrorKind::UnsupportedAlgorithm)?,
        key: key.clone(),
    }))
}

/// How `ring` verifies an algorithm.
#[derive(Clone, Copy)]
enum Check {
    Rsa(&'static signature::RsaParameters),
    Other(&'static dyn signature::VerificationAlgorithm),
}

fn check(algorithm: Algorithm) -> Option<Check> {
    Some(match algorithm {
        Algorithm::RS256 => Check::Rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Check::Rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Check::Rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Check::Rsa(&signature::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Check::Rsa(&signature::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Check::Rsa(&signature::RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => Check::Other(&signature::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Check::Other(&signature::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Check::Other(&signature::ED25519),
        _ => return None,
    })
}

struct RingVerifier {
    algorithm: Algorithm,
    check: Check,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature_trait::Error> {
        let verified = match (self.check, self.key.kind()) {
            (Check::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Check::Other(algorithm), DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(algorithm, key).verify(message, signature)
            }
            _ => Err(ring::error::Unspecified),
        };
        verified.map_err(|_| signature_trait::Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
