//! The public keys of an issuer (RFC 7517), and for which algorithms each may be used.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Most keys of one issuer that are used; further ones are left out.
const KEYS_MAX: usize = 64;

const RSA: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

/// The keys of an issuer that can verify a signature.
#[derive(Debug, Default)]
pub(crate) struct KeySet(Vec<SigningKey>);

#[derive(Debug)]
struct SigningKey {
    id: Option<String>,
    /// The algorithms that this key is for. Those of one key belong to one family.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// Why no key of a set verifies a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoKey {
    /// The set does not have the key. The issuer may have a new one.
    Unknown,
    /// The key is not for the algorithm that the token names.
    OtherAlgorithm,
}

impl KeySet {
    /// Reads a set. Members that this program cannot use are left out, as RFC 7517 asks for.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Written<'a> {
            #[serde(borrow)]
            keys: Vec<&'a RawValue>,
        }
        let written: Written<'_> = serde_json::from_slice(text)?;
        let keys = written.keys.into_iter().filter_map(|key| SigningKey::read(key.get()));
        Ok(Self(keys.take(KEYS_MAX).collect()))
    }

    /// The number of keys.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The key that verifies a token with this header. The key decides which algorithms count, and
    /// not the token (RFC 8725, section 3.1).
    pub(crate) fn find(&self, header: &Header) -> Result<&DecodingKey, NoKey> {
        let allows = |key: &&SigningKey| key.algorithms.contains(&header.alg);
        let Some(id) = &header.kid else {
            // Without an id only one key can be meant.
            let mut fit = self.0.iter().filter(allows);
            return match (fit.next(), fit.next()) {
                (Some(only), None) => Ok(&only.key),
                (None, _) => Err(NoKey::OtherAlgorithm),
                _ => Err(NoKey::Unknown),
            };
        };
        let mut named = self.0.iter().filter(|key| key.id.as_ref() == Some(id)).peekable();
        if named.peek().is_none() {
            return Err(NoKey::Unknown);
        }
        named.find(allows).map(|found| &found.key).ok_or(NoKey::OtherAlgorithm)
    }
}

impl SigningKey {
    fn read(text: &str) -> Option<Self> {
        let key: Jwk = serde_json::from_str(text).ok()?;
        let common = &key.common;
        if !matches!(common.public_key_use, None | Some(PublicKeyUse::Signature)) {
            return None;
        }
        let operations = common.key_operations.as_ref();
        if operations.is_some_and(|all| !all.contains(&KeyOperations::Verify)) {
            return None;
        }
        let of_type: &[Algorithm] = match &key.algorithm {
            AlgorithmParameters::RSA(_) => RSA,
            AlgorithmParameters::EllipticCurve(ec) => match ec.curve {
                EllipticCurve::P256 => &[Algorithm::ES256],
                EllipticCurve::P384 => &[Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(pair) => match pair.curve {
                EllipticCurve::Ed25519 => &[Algorithm::EdDSA],
                _ => return None,
            },
            // A symmetric key that is published is no secret.
            _ => return None,
        };
        let algorithms = match common.key_algorithm {
            None => of_type.to_vec(),
            Some(only) => {
                let only = only.to_string().parse().ok()?;
                of_type.contains(&only).then(|| vec![only])?
            }
        };
        let id = common.key_id.clone();
        Some(Self { id, algorithms, key: DecodingKey::from_jwk(&key).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RSA_KEY: &str = r#""kty":"RSA","n":"sXchTQ","e":"AQAB""#;

    fn set(keys: &[&str]) -> KeySet {
        KeySet::parse(format!(r#"{{"keys":[{}]}}"#, keys.join(",")).as_bytes()).unwrap()
    }

    fn header(alg: Algorithm, kid: Option<&str>) -> Header {
        Header { kid: kid.map(Into::into), ..Header::new(alg) }
    }

    #[test]
    fn the_key_decides_which_algorithms_count() {
        let any = format!(r#"{{{RSA_KEY},"kid":"any"}}"#);
        let one = format!(r#"{{{RSA_KEY},"kid":"one","alg":"PS256","use":"sig"}}"#);
        let set = set(&[&any, &one]);
        assert_eq!(set.count(), 2);
        assert!(set.find(&header(Algorithm::RS256, Some("any"))).is_ok());
        assert!(set.find(&header(Algorithm::PS512, Some("any"))).is_ok());
        assert!(set.find(&header(Algorithm::PS256, Some("one"))).is_ok());
        for (alg, kid, why) in [
            (Algorithm::RS256, "one", NoKey::OtherAlgorithm),
            (Algorithm::HS256, "any", NoKey::OtherAlgorithm),
            (Algorithm::ES256, "any", NoKey::OtherAlgorithm),
            (Algorithm::RS256, "two", NoKey::Unknown),
        ] {
            assert_eq!(set.find(&header(alg, Some(kid))).unwrap_err(), why, "{alg:?} {kid}");
        }
    }

    #[test]
    fn a_token_without_a_key_id_needs_the_only_key_of_its_algorithm() {
        let ec = r#"{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}"#;
        let one = format!(r#"{{{RSA_KEY},"kid":"one"}}"#);
        let two = format!(r#"{{{RSA_KEY},"kid":"two"}}"#);
        assert!(set(&[&one, ec]).find(&header(Algorithm::RS256, None)).is_ok());
        assert!(set(&[&one, ec]).find(&header(Algorithm::ES256, None)).is_ok());
        let unclear = set(&[&one, &two]);
        assert_eq!(unclear.find(&header(Algorithm::RS256, None)).unwrap_err(), NoKey::Unknown);
        // To fetch the keys again would not help.
        let none = unclear.find(&header(Algorithm::ES256, None)).unwrap_err();
        assert_eq!(none, NoKey::OtherAlgorithm);
    }

    #[test]
    fn keys_of_other_kinds_are_left_out() {
        let left_out = [
            r#"{"kty":"oct","k":"c2VjcmV0","alg":"HS256"}"#,
            r#"{"kty":"OKP","crv":"X25519","x":"AA"}"#,
            r#"{"kty":"EC","crv":"secp256k1","x":"AA","y":"AA"}"#,
            r#"{"kty":"NEW","x":1}"#,
            r#"{"kty":"RSA"}"#,
            &format!(r#"{{{RSA_KEY},"use":"enc"}}"#),
            &format!(r#"{{{RSA_KEY},"alg":"RSA-OAEP"}}"#),
            &format!(r#"{{{RSA_KEY},"alg":"HS256"}}"#),
            &format!(r#"{{{RSA_KEY},"key_ops":["encrypt"]}}"#),
            "7",
        ];
        assert_eq!(set(&left_out).count(), 0);
        assert!(KeySet::parse(b"{}").is_err() && KeySet::parse(b"[]").is_err());
    }

    #[test]
    fn the_curve_of_a_key_decides_and_a_set_is_bounded() {
        let ec = |curve: &str| {
            format!(r#"{{"kty":"EC","crv":"{curve}","x":"AA","y":"AA","kid":"{curve}"}}"#)
        };
        let set_of_two = set(&[&ec("P-256"), &ec("P-384")]);
        for (alg, kid, is_found) in [
            (Algorithm::ES256, "P-256", true),
            (Algorithm::ES384, "P-384", true),
            (Algorithm::ES384, "P-256", false),
            (Algorithm::ES256, "P-384", false),
            (Algorithm::EdDSA, "P-256", false),
        ] {
            assert_eq!(set_of_two.find(&header(alg, Some(kid))).is_ok(), is_found, "{alg:?} {kid}");
        }
        let many = vec![ec("P-256"); KEYS_MAX + 1];
        assert_eq!(set(&many.iter().map(String::as_str).collect::<Vec<_>>()).count(), KEYS_MAX);
    }
}
