//! An issuer that signs tokens, for measurements. Its keys are made at its start. `openssl` makes that of
//! RSA, since `ring` makes none.

use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{
    self, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RsaKeyPair,
};
use serde_json::{Value, json};

/// How long a token is valid.
const VALID: Duration = Duration::from_hours(24);

/// The name of the issuer. Nothing is there.
pub(crate) const ISSUER: &str = "https://issuer.example";

/// The node at whose tenant `demo` the tokens are valid.
pub(crate) const PUBLIC_URL: &str = "https://mcp.example";

/// One algorithm, with the key of the issuer.
pub(crate) enum Signer {
    Rs256(Box<RsaKeyPair>),
    Es256(Box<EcdsaKeyPair>),
    Ed25519(Ed25519KeyPair),
}

impl Signer {
    /// RSA of 2,048 bits.
    pub(crate) fn rs256() -> Self {
        let openssl = Command::new("openssl")
            .args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"])
            .stderr(Stdio::null())
            .output();
        let pem = openssl.expect("`openssl`, which makes the RSA key, is installed").stdout;
        let pem = String::from_utf8(pem).expect("PEM");
        let base64: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let key = STANDARD.decode(base64).expect("PEM");
        Self::Rs256(Box::new(RsaKeyPair::from_pkcs8(&key).expect("an RSA key in PKCS 8")))
    }

    pub(crate) fn es256() -> Self {
        let (random, curve) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let key = EcdsaKeyPair::generate_pkcs8(curve, &random).expect("randomness");
        let key = EcdsaKeyPair::from_pkcs8(curve, key.as_ref(), &random).expect("the same key");
        Self::Es256(Box::new(key))
    }

    pub(crate) fn ed25519() -> Self {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("randomness");
        Self::Ed25519(Ed25519KeyPair::from_pkcs8(key.as_ref()).expect("the same key"))
    }

    pub(crate) fn algorithm(&self) -> &'static str {
        match self {
            Self::Rs256(_) => "RS256",
            Self::Es256(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
        }
    }

    /// A token as issuers make them: with RS256 it has 823 bytes.
    pub(crate) fn token(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
        let head = json!({ "alg": self.algorithm(), "typ": "at+jwt", "kid": self.algorithm() });
        let claims = json!({
            "sub": "f3b1c0de-7a55-4a43-9a0e-0d6b2a1f4c11",
            "client_id": "https://client.example/metadata/client.json",
            "scope": "mcp tools:read tools:write",
            "jti": "0b3e6f3a-5a0c-4d9c-8b59-0d6b2a1f4c11",
            "groups": ["staff", "editors"],
            "iss": ISSUER,
            "aud": format!("{PUBLIC_URL}/demo/mcp"),
            "iat": now.as_secs(),
            "exp": (now + VALID).as_secs(),
        });
        let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let signed = format!("{}.{}", part(&head), part(&claims));
        let signature = URL_SAFE_NO_PAD.encode(self.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    fn sign(&self, text: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Rs256(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&signature::RSA_PKCS1_SHA256, &random, text, &mut signature)
                    .expect("a key of this kind");
                signature
            }
            Self::Es256(key) => key.sign(&random, text).expect("randomness").as_ref().to_vec(),
            Self::Ed25519(key) => key.sign(text).as_ref().to_vec(),
        }
    }

    /// The public key as a JWK.
    pub(crate) fn jwk(&self) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let mut jwk = match self {
            Self::Rs256(key) => {
                let PublicKeyComponents::<Vec<u8>> { n, e } = key.public().into();
                json!({ "kty": "RSA", "n": text(&n), "e": text(&e) })
            }
            Self::Es256(key) => {
                // A point that is not compressed: a byte, and two coordinates of 32.
                let (x, y) = key.public_key().as_ref()[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "x": text(x), "y": text(y) })
            }
            Self::Ed25519(key) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": text(key.public_key().as_ref()) })
            }
        };
        jwk["kid"] = self.algorithm().into();
        jwk["alg"] = self.algorithm().into();
        jwk["use"] = "sig".into();
        jwk
    }
}
