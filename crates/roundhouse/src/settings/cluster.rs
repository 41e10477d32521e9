//! `[cluster]`: how this node connects to the others, and with which certificate.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use store::redis::Secret;

pub use cluster::Encrypt;

use super::TlsSettings;
use crate::files;

/// `[cluster]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct ClusterSettings {
    /// The authority that signs the nodes' certificates, and this node's own certificate; empty
    /// for links that are encrypted with the secret.
    pub tls: TlsSettings,
    /// A file that holds `secret` instead.
    pub secret_file: PathBuf,
    /// The other settings. The certificates of mutual TLS are read from the files above.
    #[serde(flatten)]
    pub peers: cluster::Settings,
}

impl ClusterSettings {
    /// The settings of the cluster, with the files read and checked.
    pub(crate) fn read(&self) -> Result<cluster::Settings, String> {
        let mut settings = self.peers.clone();
        // A single node reads none of these files.
        if !settings.listen.is_empty() {
            let written = Secret(settings.secret);
            settings.secret = files::secret("cluster.secret", &written, &self.secret_file)?.0;
        }
        if !self.tls.is_empty() && !settings.listen.is_empty() {
            let pem = self.tls.read("cluster.tls")?;
            settings.tls =
                Some(cluster::Tls { ca: pem.ca, certificate: pem.certificate, key: pem.key.0 });
        }
        settings.check().map_err(|error| error.to_string())?;
        Ok(settings)
    }
}
