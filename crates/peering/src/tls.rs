//! Mutual TLS between nodes: authenticates the other end, and encrypts the connection.
//!
//! Each end presents a certificate and accepts only one that the cluster's own authority
//! vouches for. The connecting node also checks that the certificate names the host that it
//! connects to.

use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{Accept, TlsAcceptor, TlsConnector, TlsStream};

use crate::wire::Socket;
use std::fmt;

/// The protocol that peers negotiate.
const ALPN: &[u8] = b"roundhouse-peer/3";

/// The remedy for an untrusted peer.
pub(crate) const REMEDY: &str = "give every node a certificate for its own host that the cluster.tls.ca_file of all vouches for";

/// The certificates and the key that authenticate a node of the cluster. All PEM.
#[derive(Clone, PartialEq)]
pub struct Tls {
    /// Certificates of the authorities that vouch for this cluster's nodes, and for nothing else.
    pub ca: String,
    /// This node's certificate. It names the host to which peers connect, and is valid for client
    /// and server authentication.
    pub certificate: String,
    /// The private key of the certificate.
    pub key: String,
}

/// Omits the key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("ca", &self.ca).finish_non_exhaustive()
    }
}

/// The reason why certificates and key cannot be used; the text names the setting and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(String);

/// The TLS configuration of a node: the authorities that it trusts, and its own certificate.
pub struct Trust {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

impl Trust {
    /// Reads certificates and key. The error names the wrong file.
    pub fn of(tls: &Tls) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in certificates("ca_file", &tls.ca)? {
            roots.add(certificate).map_err(|error| wrong("ca_file", &error))?;
        }
        let roots = Arc::new(roots);
        let chain = certificates("cert_file", &tls.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(tls.key.as_bytes())
            .map_err(|_| wrong("key_file", &"the file contains no key"))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| wrong("ca_file", &error))?;
        let mut accepts = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| wrong("cert_file", &error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|error| wrong("key_file", &error))?;
        accepts.alpn_protocols = vec![ALPN.to_vec()];
        let mut connects = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| wrong("cert_file", &error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| wrong("key_file", &error))?;
        connects.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self { connector: Arc::new(connects).into(), acceptor: Arc::new(accepts).into() })
    }

    /// The connector for outgoing connections.
    pub(crate) fn connector(&self) -> TlsConnector {
        self.connector.clone()
    }

    /// Starts the TLS handshake of an accepted connection.
    pub(crate) fn accept(&self, socket: Socket) -> Accept<Socket> {
        self.acceptor.accept(socket)
    }
}

/// Performs the TLS handshake of a connection to this host.
pub(crate) async fn meet(
    connector: &TlsConnector,
    host: &str,
    socket: Socket,
) -> io::Result<TlsStream<Socket>> {
    // `host` has an IPv6 address in brackets.
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "no name to verify"))?;
    let connected = connector.connect(name, socket).await;
    let stream = connected
        .map_err(|error| explained(error, "this node does not trust the peer's certificate"))?;
    Ok(stream.into())
}

/// Explains the error of a connection that ended before its first byte: the other end judges this
/// node's certificate when this end already counts as connected.
pub(crate) fn explain_early_end(error: io::Error) -> io::Error {
    explained(error, "the peer does not trust this node's certificate")
}

/// Adds the remedy to an error if TLS rejected a certificate.
fn explained(error: io::Error, what: &str) -> io::Error {
    if !is_distrust(&error) {
        return error;
    }
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{what} ({error}); {REMEDY}"))
}

/// Whether TLS failed, and not the connection under it.
pub(crate) fn is_distrust(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<rustls::Error>())
}

fn certificates(file: &str, pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(wrong(file, &"the file contains no certificate")),
    }
}

fn wrong(file: &str, why: &dyn fmt::Display) -> TlsError {
    TlsError(format!(
        "cluster.tls.{file}: {why}; it must be PEM, as ca_file, cert_file and \
                             key_file are, all three or none"
    ))
}
