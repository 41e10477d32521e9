//! TLS 1.3 between nodes: encrypts a connection, and with certificates also authenticates its ends.
//!
//! With certificates (`cluster.tls`) each end presents one and accepts only one that the cluster's
//! own authority vouches for. The connecting node also checks that the certificate names the host
//! that it connects to. Without them the called end presents a key of its process
//! ([`crate::process_key`]), and the handshake inside TLS authenticates both ends.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, Connection, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::encrypted::Encrypted;
use crate::process_key;
use crate::protection::Protection;
use crate::socket::Socket;
use crate::wire::Wire;

/// The protocol that peers with certificates negotiate.
const ALPN: &[u8] = b"roundhouse-peer/3";

/// The remedy for an untrusted peer.
const REMEDY: &str = "give every node a certificate for its own host that the cluster.tls.ca_file of all vouches for";

/// The remedy for a failed TLS handshake of a node without certificates.
const REMEDY_WITHOUT_CERTIFICATES: &str = "set cluster.tls on all nodes or on none";

/// The name of a called end without certificates. It is neither sent nor verified.
const UNUSED_NAME: &str = "peer.invalid";

/// The label of the keying material that proofs cover (RFC 8446, section 7.5).
const EXPORTER_LABEL: &[u8] = b"EXPORTER-roundhouse-peer-link";

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

/// The TLS configuration of a node.
pub struct Trust {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
    /// Whether certificates authenticate the ends.
    has_certificates: bool,
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
        Ok(Self::new(connects, accepts, true))
    }

    /// Makes a key for this process. It encrypts, and authenticates no node: a shared secret does.
    pub fn with_process_key() -> Result<Self, TlsError> {
        let (connects, accepts) = process_key::configurations().map_err(|why| {
            TlsError(format!("no key for encrypted links could be made: {why}; start it again"))
        })?;
        Ok(Self::new(connects, accepts, false))
    }

    fn new(connects: ClientConfig, accepts: ServerConfig, has_certificates: bool) -> Self {
        let (connector, acceptor) = (Arc::new(connects).into(), Arc::new(accepts).into());
        Self { connector, acceptor, has_certificates }
    }

    /// Whether certificates authenticate the ends.
    pub(crate) fn has_certificates(&self) -> bool {
        self.has_certificates
    }

    /// Performs the TLS handshake of a connection to this host.
    pub(crate) async fn connect(
        &self,
        host: &str,
        socket: Socket,
    ) -> io::Result<(Wire, Protection)> {
        // Without certificates the name is not used, and a host may have a form that is no name for
        // TLS, as `node_1`. `host` has an IPv6 address in brackets.
        let host = if self.has_certificates { host } else { UNUSED_NAME };
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "no name to verify"))?;
        let connected = self.connector.connect(name, socket).await;
        let (socket, session) =
            connected.map_err(|error| self.explain_failure(error))?.into_inner();
        self.encrypted(socket, session.into())
    }

    /// Performs the TLS handshake of an accepted connection.
    pub(crate) async fn accept(&self, socket: Socket) -> io::Result<(Wire, Protection)> {
        let (socket, session) = self.acceptor.accept(socket).await?.into_inner();
        self.encrypted(socket, session.into())
    }

    fn encrypted(&self, socket: Socket, session: Connection) -> io::Result<(Wire, Protection)> {
        let exporter = session
            .export_keying_material([0; 32], EXPORTER_LABEL, None)
            .map_err(io::Error::other)?;
        let protection = match self.has_certificates {
            true => Protection::Certificates { exporter },
            false => Protection::Secret { exporter },
        };
        Ok((Wire::Tls(Box::new(Encrypted::new(socket, session))), protection))
    }

    /// The remedy for a failed TLS handshake.
    pub(crate) fn remedy(&self) -> &'static str {
        if self.has_certificates { REMEDY } else { REMEDY_WITHOUT_CERTIFICATES }
    }

    fn explain_failure(&self, error: io::Error) -> io::Error {
        let what = match self.has_certificates {
            true => "this node does not trust the peer's certificate",
            false => "TLS failed",
        };
        self.explained(error, what)
    }

    /// Explains the error of a connection that ended before its first byte: the other end judges
    /// this node's certificate when this end already counts as connected.
    pub(crate) fn explain_early_end(&self, error: io::Error) -> io::Error {
        self.explained(error, "the peer does not trust this node's certificate")
    }

    /// Adds the remedy to an error if TLS failed, and not the connection under it.
    fn explained(&self, error: io::Error, what: &str) -> io::Error {
        if !is_distrust(&error) {
            return error;
        }
        let text = format!("{what} ({error}); {}", self.remedy());
        io::Error::new(io::ErrorKind::PermissionDenied, text)
    }
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
