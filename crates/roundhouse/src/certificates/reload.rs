//! Replaces certificates whose files change while the node runs.
//!
//! The files are compared by content at the interval of all settings, also if the settings file is the
//! same, and at once when the settings are read again. A certificate that cannot be used leaves the former
//! one in its place, and neither stops nor is stopped by other changes.

use std::collections::BTreeMap;
use std::time::Duration;

use front::{CertificatePair, CertificatePairs, DEFAULT_PAIR, Tls, TlsSettings};
use telemetry::Readiness;
use tokio::sync::watch;

use super::{Certificates, digests_of, ended, files_of, pairs_of, read_pair};
use crate::metrics;
use crate::settings::Digests;

/// Shown by `/readyz` while the files of a certificate cannot be used.
const REMARK: &str = "files of a certificate for clients cannot be used; the node goes on with the \
                      former certificate; see the log";

/// Shown by `/readyz` while clients get a certificate that has ended.
const ENDED_REMARK: &str =
    "a certificate for clients has ended, and clients refuse it; renew it; see the log";

/// Most attempts to read files that do not fit together, and the time between two of them: a tool that
/// renews a certificate writes one file after the other.
const READS_MAX: usize = 3;
const READ_AGAIN: Duration = Duration::from_millis(300);

/// The certificates of a running node.
pub(crate) struct CertificateReload {
    tls: Tls,
    settings: TlsSettings,
    pairs: CertificatePairs,
    /// The files as they were read last.
    digests: Digests,
    /// The certificates that could not be replaced, each with the reason that was logged.
    refused: BTreeMap<String, String>,
    /// The certificates that have ended, each with what was logged.
    ended: BTreeMap<String, String>,
    readiness: Readiness,
    asked: watch::Receiver<TlsSettings>,
    /// `node.reload_secs`.
    interval_secs: u64,
}

/// Has a node read its certificates again.
#[derive(Clone)]
pub(crate) struct CertificateRequests(watch::Sender<TlsSettings>);

impl CertificateRequests {
    /// Has them read again, by these settings.
    pub(crate) fn read_again(&self, settings: &TlsSettings) {
        self.0.send_replace(settings.clone());
    }
}

/// What was read: the certificates, and the reason for each that could not be read.
type Read = (BTreeMap<String, CertificatePair>, BTreeMap<String, String>);

impl CertificateReload {
    /// For certificates that were read with these settings.
    pub(crate) fn new(
        tls: Tls,
        read: Certificates,
        settings: TlsSettings,
        interval_secs: u64,
        readiness: Readiness,
    ) -> (Self, CertificateRequests) {
        let (requests, asked) = watch::channel(settings.clone());
        let Certificates { pairs, digests } = read;
        let (refused, ended) = (BTreeMap::new(), BTreeMap::new());
        let mut reload =
            Self { tls, settings, pairs, digests, refused, ended, readiness, asked, interval_secs };
        reload.report_ended();
        (reload, CertificateRequests(requests))
    }

    /// Replaces certificates until the last `CertificateRequests` is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            let is_asked = tokio::select! {
                changed = self.asked.changed() => match changed {
                    Ok(()) => true,
                    Err(_) => return,
                },
                () = interval(self.interval_secs) => false,
            };
            if is_asked {
                self.settings = self.asked.borrow_and_update().clone();
            }
            let files = files_of(&self.settings);
            let digests = tokio::task::spawn_blocking(move || digests_of(files)).await;
            let Ok(digests) = digests else { continue };
            if is_asked || digests != self.digests {
                self.digests = digests;
                self.read_again().await;
            }
            self.report_ended();
        }
    }

    async fn read_again(&mut self) {
        let mut attempts = 0;
        let (mut read, refused) = loop {
            attempts += 1;
            let settings = self.settings.clone();
            let done = tokio::task::spawn_blocking(move || read_each(&settings)).await;
            let Ok((read, refused)) = done else { return };
            if refused.is_empty() || attempts == READS_MAX {
                break (read, refused);
            }
            tokio::time::sleep(READ_AGAIN).await;
        };
        let default = read.remove(DEFAULT_PAIR).unwrap_or_else(|| self.pairs.default.clone());
        for (name, pair) in &self.pairs.named {
            if refused.contains_key(name) {
                read.insert(name.clone(), pair.clone());
            }
        }
        self.pairs = CertificatePairs { default, named: read };
        self.tls.replace(self.pairs.clone());
        self.report(refused);
    }

    /// Logs each certificate once that ends, or had ended when it was read.
    fn report_ended(&mut self) {
        let ended = ended(&self.settings, &self.pairs);
        for (name, text) in &ended {
            if self.ended.get(name) != Some(text) {
                tracing::error!(certificate = name, "certificate has ended: {text}");
            }
        }
        self.readiness.remark(ENDED_REMARK, !ended.is_empty());
        self.ended = ended;
    }

    fn report(&mut self, refused: BTreeMap<String, String>) {
        for (name, why) in &refused {
            if self.refused.get(name) != Some(why) {
                tracing::error!(
                    certificate = name,
                    "certificate not replaced; the node goes on with the former one, if there is one: {why}"
                );
            }
        }
        for name in self.refused.keys().filter(|name| !refused.contains_key(*name)) {
            tracing::info!(certificate = name, "the files of a certificate can be used again");
        }
        self.readiness.remark(REMARK, !refused.is_empty());
        metrics::count_certificates_read(refused.is_empty());
        metrics::show_refused_certificates(refused.keys().map(String::as_str));
        self.refused = refused;
    }
}

async fn interval(secs: u64) {
    match secs {
        0 => std::future::pending().await,
        secs => tokio::time::sleep(Duration::from_secs(secs)).await,
    }
}

/// Reads each certificate by itself. Blocks.
fn read_each(settings: &TlsSettings) -> Read {
    let mut read = Read::default();
    for (name, files) in pairs_of(settings) {
        match read_pair(name, &files) {
            Ok(pair) => drop(read.0.insert(name.to_owned(), pair)),
            Err(why) => drop(read.1.insert(name.to_owned(), why)),
        }
    }
    read
}
