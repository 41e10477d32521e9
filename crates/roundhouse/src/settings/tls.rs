//! A `tls` table: the files with which two ends authenticate each other.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use store::redis::Secret;

use crate::files;

/// Files of certificates and keys, as PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsSettings {
    /// Certificates of the authorities that sign the other end's certificate.
    pub ca_file: PathBuf,
    /// The certificate that is sent to the other end.
    pub cert_file: PathBuf,
    /// The key of that certificate.
    pub key_file: PathBuf,
}

/// The contents of the files; empty for a file that is not configured.
#[derive(Debug, Default)]
pub(crate) struct Pem {
    pub(crate) ca: String,
    pub(crate) certificate: String,
    pub(crate) key: Secret,
}

impl TlsSettings {
    /// Is no file configured?
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the files. `at` names the table in an error.
    pub(crate) fn read(&self, at: &str) -> Result<Pem, String> {
        let text = |key: &str, path: &Path| match path.as_os_str().is_empty() {
            true => Ok(String::new()),
            false => files::text(&format!("{at}.{key}"), path),
        };
        Ok(Pem {
            ca: text("ca_file", &self.ca_file)?,
            certificate: text("cert_file", &self.cert_file)?,
            key: text("key_file", &self.key_file)?.into(),
        })
    }
}
