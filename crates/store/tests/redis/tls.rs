//! Tests of certificates and passwords, and of the errors about them.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use store::Store;
use store::redis::{Invalid, Redis, Settings};
use tempfile::TempDir;

use crate::fixture::{Session, open, open_with, unavailable};
use crate::server::{Server, shared};

/// The certificate authority of the server and its clients.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        Self { issuer }
    }

    /// A certificate for 127.0.0.1, and its key.
    fn vouch(&self) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).expect("params");
        // With the authority's name, the certificate would be taken for a self-signed one.
        params.distinguished_name.push(DnType::CommonName, "server or client");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        (certificate.pem(), key.serialize_pem())
    }

    /// A directory with the certificate files of a server.
    fn equip(&self) -> TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        let (certificate, key) = self.vouch();
        for (name, text) in [("ca", self.issuer.pem()), ("cert", certificate), ("key", key)] {
            std::fs::write(dir.path().join(name), text).expect("written");
        }
        dir
    }
}

/// Server and client present certificates. The password has characters that URLs escape.
#[tokio::test]
async fn a_store_connects_with_mutual_tls_and_a_password() {
    let authority = Authority::new();
    let server = Server::with_tls(authority.equip(), &["--requirepass", "p@ss/w:rd%"]);
    let (certificate, key) = authority.vouch();
    let url = format!("rediss://:p%40ss%2Fw%3Ard%25@127.0.0.1:{}", server.port);
    let right = Settings {
        ca: authority.issuer.pem(),
        certificate,
        key: key.as_str().into(),
        ..Settings::at(url.clone())
    };
    let store = open_with(right.clone());
    let session = Session::made(&store).await;
    session.append(&store, 1, "a").await.expect("stored");
    assert_eq!(session.log(&store).await, "a");

    let another = Authority::new();
    for wrong in [
        Settings { ca: another.issuer.pem(), ..right.clone() },
        Settings { certificate: String::new(), key: "".into(), ..right.clone() },
        Settings { url: url.replace("p%40ss", "guess").as_str().into(), ..right.clone() },
        Settings { url: url.replace("rediss", "redis").as_str().into(), ..right.clone() },
    ] {
        let store = open_with(Settings { timeout_ms: 300, ..wrong });
        let why = unavailable(store.read(&session.id).await);
        for secret in ["guess", "p@ss", "p%40ss", key.lines().nth(1).expect("a line")] {
            assert!(!why.contains(secret), "{why}");
        }
    }
    let broken = Settings { ca: "-----BEGIN CERTIFICATE-----\nx".into(), ..right };
    assert!(matches!(Redis::open(broken), Err(Invalid::Pem)));
}

/// The error text is that of Redis, which contains no password.
#[tokio::test]
async fn a_wrong_password_is_an_error_that_does_not_quote_it() {
    let store = open(&format!("redis://roundhouse:hunter2@127.0.0.1:{}", shared().port));
    let why = unavailable(store.read(&Session::new().id).await);
    assert!(!why.contains("hunter2"), "{why}");
    assert!(why.to_lowercase().contains("password"), "{why}");
}
