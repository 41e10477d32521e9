//! `[front.tls]`: the files of the certificates for clients.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The certificates for clients, in PEM files. Without `cert_file` the listener has no TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsSettings {
    /// The certificate for clients that name no host, or one that no other certificate names; and
    /// behind it its intermediate certificates.
    pub cert_file: PathBuf,
    /// The key of that certificate, without a passphrase.
    pub key_file: PathBuf,
    /// Further certificates, each for clients that name one of its hosts.
    pub certificates: BTreeMap<String, PairSettings>,
}

/// A certificate and its key, in PEM files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct PairSettings {
    /// The certificate, and behind it its intermediate certificates.
    pub cert_file: PathBuf,
    /// The key of the certificate, without a passphrase.
    pub key_file: PathBuf,
}

impl TlsSettings {
    /// Has the listener TLS?
    pub fn is_on(&self) -> bool {
        *self != Self::default()
    }
}
