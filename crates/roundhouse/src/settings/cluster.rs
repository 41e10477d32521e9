//! `[cluster]`: how this node meets the others, and with which certificate.

use serde::{Deserialize, Serialize};

use super::TlsSettings;

/// `[cluster]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct ClusterSettings {
    /// Who may vouch for nodes, and who this one is; nothing for links in the clear.
    pub tls: TlsSettings,
    /// The rest. What mutual TLS takes is read from the files above.
    #[serde(flatten)]
    pub peers: cluster::Settings,
}

impl ClusterSettings {
    /// All of it, files read and found right.
    pub(crate) fn read(&self) -> Result<cluster::Settings, String> {
        let mut settings = self.peers.clone();
        // A node on its own reads nothing of all this.
        if !self.tls.is_empty() && !settings.listen.is_empty() {
            let pem = self.tls.read("cluster.tls")?;
            settings.tls =
                Some(cluster::Tls { ca: pem.ca, certificate: pem.certificate, key: pem.key.0 });
        }
        settings.check().map_err(|error| error.to_string())?;
        Ok(settings)
    }
}
