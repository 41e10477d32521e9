//! TLS for nodes that share a secret and have no certificates.
//!
//! The called end presents a raw public key (RFC 7250) that its process has made at the start. No
//! end checks whose key it is: the proofs that follow inside TLS cover keying material of the TLS
//! session, so they hold only between the two ends of one session that both know the secret.

use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, PeerIncompatible, ServerConfig, SignatureScheme,
};

/// The protocol that peers with a secret alone negotiate.
const ALPN: &[u8] = b"roundhouse-peer-secret/1";

/// The configurations of connecting and accepting, with a new key.
pub(crate) fn configurations() -> Result<(ClientConfig, ServerConfig), Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut accepts = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(new_key(&provider)?)));
    accepts.alpn_protocols = vec![ALPN.to_vec()];
    // A link lasts for hours: a session that is resumed would save nothing.
    accepts.session_storage = Arc::new(NoServerSessionStorage {});
    accepts.send_tls13_tickets = 0;
    let verifier = AcceptsAnyKey(provider.signature_verification_algorithms);
    let mut connects = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    connects.alpn_protocols = vec![ALPN.to_vec()];
    connects.resumption = Resumption::disabled();
    connects.enable_sni = false;
    Ok((connects, accepts))
}

fn new_key(provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, Error> {
    let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
        .map_err(|_| Error::FailedToGetRandomBytes)?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.as_ref().to_vec()));
    let key = provider.key_provider.load_private_key(key)?;
    let public = key.public_key().ok_or_else(|| Error::General("the key is not public".into()))?;
    let public = CertificateDer::from(public.to_vec());
    Ok(Arc::new(CertifiedKey::new(vec![public], key)))
}

/// Accepts the key of any process, and checks that the other end has signed the TLS handshake with
/// it.
///
/// This alone would let a man in the middle terminate TLS. It is safe for one reason: a connection
/// is used only after the proofs of `handshake.rs`, which cover the keying material that both ends
/// export from their TLS session. A man in the middle has two sessions with different material, so
/// a proof that it relays from one to the other does not hold, and it cannot make one without the
/// secret. Do not use this verifier for any other connection.
#[derive(Debug)]
struct AcceptsAnyKey(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AcceptsAnyKey {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
