//! A certificate with its key, and what the certificate says: its hosts, and its end.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// A certificate, its intermediate certificates and its key. Cheap to clone.
#[derive(Clone)]
pub struct CertificatePair(Arc<Inner>);

struct Inner {
    key: Arc<CertifiedKey>,
    /// In lower case; `*.` at the start stands for one label.
    hosts: Vec<String>,
    addresses: Vec<IpAddr>,
    ends: i64,
}

/// Why a certificate and a key cannot be used. The text repeats nothing of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// The first text has no certificate that can be read.
    #[error(
        "holds no certificate that can be read; write PEM: the certificate, and behind it its \
         intermediate certificates"
    )]
    Certificate,
    /// The second text has no key that can be used.
    #[error(
        "holds no key that can be used; write PEM without a passphrase: an RSA key of at least 2048 \
         bits, an ECDSA key (P-256 or P-384) or an Ed25519 key"
    )]
    Key,
    /// The key is not that of the first certificate.
    #[error(
        "is not the key of this certificate; write the file that was issued with it, and the \
         certificate of the host first in the chain"
    )]
    Mismatch,
}

impl CertificatePair {
    /// Reads a chain and a key, both PEM.
    pub fn read(chain: &str, key: &str) -> Result<Self, PairError> {
        let chain = CertificateDer::pem_slice_iter(chain.as_bytes());
        let chain: Vec<_> = chain.collect::<Result<_, _>>().map_err(|_| PairError::Certificate)?;
        let first = chain.first().ok_or(PairError::Certificate)?;
        let (_, certificate) = parse_x509_certificate(first).map_err(|_| PairError::Certificate)?;
        let (mut hosts, mut addresses) = (Vec::new(), Vec::new());
        let names = certificate.subject_alternative_name().map_err(|_| PairError::Certificate)?;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::DNSName(host) => hosts.push(host.to_ascii_lowercase()),
                GeneralName::IPAddress(bytes) => addresses.extend(address(bytes)),
                _ => {}
            }
        }
        let ends = certificate.validity().not_after.timestamp();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| PairError::Key)?;
        let provider = ring::default_provider();
        let key = provider.key_provider.load_private_key(key).map_err(|_| PairError::Key)?;
        let key = CertifiedKey::new(chain, key);
        match key.keys_match() {
            Ok(()) => {}
            Err(rustls::Error::InconsistentKeys(_)) => return Err(PairError::Mismatch),
            Err(_) => return Err(PairError::Certificate),
        }
        Ok(Self(Arc::new(Inner { key: Arc::new(key), hosts, addresses, ends })))
    }

    /// The host names in the certificate, in lower case; `*.` at the start stands for one label.
    pub fn hosts(&self) -> &[String] {
        &self.0.hosts
    }

    /// When the certificate ends, in seconds since 1970.
    pub fn ends(&self) -> i64 {
        self.0.ends
    }

    /// Whether the certificate is for this address.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.0.addresses.contains(&address)
    }

    /// What a handshake needs.
    pub(crate) fn key(&self) -> &Arc<CertifiedKey> {
        &self.0.key
    }
}

impl fmt::Debug for CertificatePair {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificatePair").field("hosts", &self.0.hosts).finish_non_exhaustive()
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}
