//! `[cluster]`: how this node connects to the others, and with which certificate.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use store::redis::Secret;

pub use cluster::Encrypt;

use super::{Problems, TlsSettings, addresses};
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
    /// A file that holds `former_secret` instead.
    pub former_secret_file: PathBuf,
    /// The other settings. The certificates of mutual TLS are read from the files above.
    #[serde(flatten)]
    pub peers: cluster::Settings,
}

impl ClusterSettings {
    /// The settings of the cluster, with the files read and checked. Adds everything that is wrong
    /// to the problems.
    pub(crate) fn read(&self, problems: &mut Problems) -> cluster::Settings {
        let mut settings = self.peers.clone();
        let mut has_files = true;
        // A node on its own has secrets as well: records in Redis have digests that are made with them.
        let written = Secret(settings.secret);
        let secret = files::secret("cluster.secret", &written, &self.secret_file);
        let secret = problems.ok_or_add(secret);
        has_files &= secret.is_some();
        settings.secret = secret.unwrap_or(written).0;
        let former = Secret(settings.former_secret);
        let read = files::secret("cluster.former_secret", &former, &self.former_secret_file);
        settings.former_secret = problems.ok_or_add(read).unwrap_or(former).0;
        // A node on its own reads no other of these files.
        if !settings.listen.is_empty() {
            if !self.tls.is_empty() {
                let pem = problems.ok_or_add(self.tls.read("cluster.tls"));
                has_files &= pem.is_some();
                settings.tls = pem.map(|pem| cluster::Tls {
                    ca: pem.ca,
                    certificate: pem.certificate,
                    key: pem.key.0,
                });
            }
            self.check_addresses(problems);
        }
        for wrong in settings.problems() {
            // A secret in a file that cannot be read is not missing.
            if has_files || !wrong.to_string().contains("`cluster.secret`") {
                problems.add(wrong.to_string());
            }
        }
        settings
    }

    /// Peers must be able to connect to the address that the node announces.
    fn check_addresses(&self, problems: &mut Problems) {
        let (listen, advertise) = (&self.peers.listen, &self.peers.advertise);
        for (key, written) in [("cluster.listen", listen), ("cluster.advertise", advertise)] {
            if !written.is_empty()
                && let Err(why) = addresses::check_peer(written)
            {
                problems.add_about(key, format!("`{key}` is {written:?}, which {why}"));
            }
        }
        let is_wildcard =
            |written: &str| written.parse().is_ok_and(|at: SocketAddr| at.ip().is_unspecified());
        let has_no_port = |written: &str| written.rsplit(':').next() == Some("0");
        if is_wildcard(advertise) {
            problems.add_about(
                "cluster.advertise",
                format!(
                    "`cluster.advertise` is {advertise:?}, to which no peer can connect; write the \
                     address of this machine for its peers, as in \"10.0.0.4:7070\""
                ),
            );
        } else if has_no_port(advertise) {
            problems.add_about(
                "cluster.advertise",
                format!(
                    "`cluster.advertise` is {advertise:?}, to which no peer can connect; write the \
                     port at which peers reach this node"
                ),
            );
        } else if advertise.is_empty() && is_wildcard(listen) {
            problems.add_about(
                "cluster.advertise",
                format!(
                    "`cluster.listen` is {listen:?}, every interface, to which no peer can connect; \
                     write the address of this machine for its peers as `cluster.advertise`, as in \
                     `cluster.advertise = \"10.0.0.4:7070\"`"
                ),
            );
        }
    }
}
