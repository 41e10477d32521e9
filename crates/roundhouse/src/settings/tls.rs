//! A `tls` table: the files that prove to a peer who we are, and to us who it is.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use store::redis::Secret;

use crate::files;

/// Files of certificates and keys, as PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsSettings {
    /// Certificates of those who may vouch for the other end.
    pub ca_file: PathBuf,
    /// The certificate that is shown to the other end.
    pub cert_file: PathBuf,
    /// Its key.
    pub key_file: PathBuf,
}

/// What was in the files. Empty where there is none.
#[derive(Debug, Default)]
pub(crate) struct Pem {
    pub(crate) ca: String,
    pub(crate) certificate: String,
    pub(crate) key: Secret,
}

impl TlsSettings {
    /// Is nothing written?
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the files. `at` is the table, to be named where one cannot be read.
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
