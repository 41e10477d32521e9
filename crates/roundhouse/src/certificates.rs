//! The certificates for clients: reads the files of `[front.tls]`, and finds what an operator should
//! change.

mod reload;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use front::{
    CertificatePair, CertificatePairs, DEFAULT_PAIR, PairError, PairSettings, TlsSettings,
};
use tenants::{Tenant, name_of_host};
use time::OffsetDateTime;

use crate::files;
use crate::settings::{Digests, Problems, Settings};

pub(crate) use self::reload::{CertificateReload, CertificateRequests};

/// How long before the end of a certificate a warning names it.
const ENDS_SOON: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// The key of the table of a certificate.
fn table_of(name: &str) -> String {
    match name {
        DEFAULT_PAIR => "front.tls".to_owned(),
        name => format!("front.tls.certificates.{name}"),
    }
}

/// All pairs of files, with the names of their certificates; the default one first.
fn pairs_of(settings: &TlsSettings) -> impl Iterator<Item = (&str, PairSettings)> {
    let TlsSettings { cert_file, key_file, certificates } = settings;
    let default = PairSettings { cert_file: cert_file.clone(), key_file: key_file.clone() };
    let named = certificates.iter().filter(|(name, _)| *name != DEFAULT_PAIR);
    let named = named.map(|(name, pair)| (name.as_str(), pair.clone()));
    std::iter::once((DEFAULT_PAIR, default)).chain(named)
}

/// Reads one certificate and its key. Blocks.
fn read_pair(name: &str, files: &PairSettings) -> Result<CertificatePair, String> {
    let at = table_of(name);
    let text = |key: &str, path: &Path| match path.as_os_str().is_empty() {
        true => Err(format!("`{at}.{key}` is not set; write the path of a PEM file")),
        false => files::text(&format!("{at}.{key}"), path),
    };
    let PairSettings { cert_file, key_file } = files;
    let (chain, key) = (text("cert_file", cert_file)?, text("key_file", key_file)?);
    let pair = CertificatePair::read(&chain, &key).map_err(|why| {
        let (key, file) = match why {
            PairError::Certificate => ("cert_file", cert_file),
            PairError::Key | PairError::Mismatch => ("key_file", key_file),
        };
        format!("`{at}.{key}`: {}: {why}", file.display())
    })?;
    if name != DEFAULT_PAIR && pair.hosts().is_empty() {
        return Err(format!(
            "`{at}.cert_file`: {}: names no host, by which it would be chosen; have it issued with the \
             host as a subject alternative name",
            cert_file.display()
        ));
    }
    Ok(pair)
}

/// The certificates of a node, as they were read.
pub(crate) struct Certificates {
    pub(crate) pairs: CertificatePairs,
    /// Their files, before they were read.
    digests: Digests,
}

/// Adds a problem if the name of a certificate is reserved.
pub(crate) fn check_names(settings: &TlsSettings, problems: &mut Problems) {
    if settings.certificates.contains_key(DEFAULT_PAIR) {
        problems.add(format!(
            "`front.tls.certificates.{DEFAULT_PAIR}` has the name of the certificate of \
             `front.tls.cert_file`; choose another name"
        ));
    }
}

/// Reads all certificates. Adds a problem for each that cannot be used. Blocks.
pub(crate) fn read(settings: &TlsSettings, problems: &mut Problems) -> Option<Certificates> {
    if !settings.is_on() {
        return None;
    }
    let digests = digests_of(files_of(settings));
    let (mut default, mut named) = (None, BTreeMap::new());
    for (name, files) in pairs_of(settings) {
        let Some(pair) = problems.ok_or_add(read_pair(name, &files)) else { continue };
        match name {
            DEFAULT_PAIR => default = Some(pair),
            name => drop(named.insert(name.to_owned(), pair)),
        }
    }
    Some(Certificates { pairs: CertificatePairs { default: default?, named }, digests })
}

fn files_of(settings: &TlsSettings) -> Vec<PathBuf> {
    pairs_of(settings).flat_map(|(_, files)| [files.cert_file, files.key_file]).collect()
}

/// Blocks.
fn digests_of(files: Vec<PathBuf>) -> Digests {
    Digests::of(files.into_iter().map(|file| (file, files::BYTES_MAX)))
}

/// Adds a warning for everything that makes clients refuse the certificates, and for each key that
/// other users can read.
pub(crate) fn warn(
    settings: &Settings,
    pairs: &CertificatePairs,
    tenants: &[Tenant],
    problems: &mut Problems,
) {
    let tls = &settings.front.tls;
    for (name, files) in pairs_of(tls) {
        let key = format!("{}.key_file", table_of(name));
        if let Some(text) = files::warning_of_open_key(&key, &files.key_file) {
            problems.warn(text);
        }
    }
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    for (name, pair) in pairs.all().filter(|(_, pair)| !has_ended(pair, now)) {
        let Some(when) = warning_of_end(pair.ends(), now) else { continue };
        problems.warn(format!("{} {when}; {RENEW}", the_certificate(tls, name)));
    }
    let remedy = "clients refuse the connection; have a certificate issued for it, and name its files in \
                  [front.tls.certificates.NAME]";
    if let Some(url) = &settings.front.public_url {
        if url.to_ascii_lowercase().starts_with("http://") {
            problems.warn(format!(
                "`front.public_url` is {url:?}, but clients are served over TLS (`front.tls`); write \
                 \"https://...\""
            ));
        }
        let host = settings.front.public_host();
        if let Some(host) = host.filter(|host| !pairs.cover(host)) {
            problems.warn(format!(
                "`front.public_url` has the host {host:?}, which no certificate of `front.tls` is for; \
                 {remedy}"
            ));
        }
    }
    for tenant in tenants {
        for host in tenant.hosts.iter().filter(|host| !pairs.cover(name_of_host(host))) {
            problems.warn(format!(
                "`tenants.{}.hosts` has {host:?}, which no certificate of `front.tls` is for; {remedy}",
                tenant.name
            ));
        }
    }
}

/// The remedy for a certificate that ends.
const RENEW: &str = "renew it: the node reads changed files again";

/// A certificate, with the key and the file that it was read from.
fn the_certificate(settings: &TlsSettings, name: &str) -> String {
    let files = pairs_of(settings).find(|(other, _)| *other == name).map(|(_, files)| files);
    let file = files.unwrap_or_default().cert_file;
    format!("`{}.cert_file`: {}: the certificate", table_of(name), file.display())
}

/// Whether no client accepts the certificate any more. `now` is the time since 1970.
fn has_ended(pair: &CertificatePair, now: Duration) -> bool {
    pair.ends() < now.as_secs().cast_signed()
}

/// The certificates that have ended, by name, each with a text for operators. A node serves them all the
/// same: one that does not start serves no other host either. `check` refuses them.
pub(crate) fn ended(settings: &TlsSettings, pairs: &CertificatePairs) -> BTreeMap<String, String> {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let ended = pairs.all().filter(|(_, pair)| has_ended(pair, now));
    let text = |(name, pair): (&str, &CertificatePair)| {
        let (certificate, when) = (the_certificate(settings, name), date(pair.ends()));
        let why = "clients refuse every connection that gets it";
        (name.to_owned(), format!("{certificate} ended on {when}, and {why}; {RENEW}"))
    };
    ended.map(text).collect()
}

/// Says when a certificate ends, if that is soon or over. `now` is the time since 1970.
fn warning_of_end(ends: i64, now: Duration) -> Option<String> {
    let left = ends.saturating_sub(now.as_secs().cast_signed());
    if left >= ENDS_SOON.as_secs().cast_signed() {
        return None;
    }
    let verb = if left < 0 { "ended" } else { "ends" };
    Some(format!("{verb} on {}", date(ends)))
}

/// The day of a time in seconds since 1970, in UTC.
fn date(seconds: i64) -> String {
    OffsetDateTime::from_unix_timestamp(seconds)
        .map_or_else(|_| "a day beyond the calendar".to_owned(), |time| time.date().to_string())
}

/// The certificates for people, a line each.
pub(crate) fn summary(pairs: &CertificatePairs) -> String {
    let line = |(name, pair): (&str, &CertificatePair)| {
        let hosts = pair.hosts().join(", ");
        let hosts = if hosts.is_empty() { "no host".to_owned() } else { hosts };
        format!("certificate {name}: for {hosts}, ends on {}\n", date(pair.ends()))
    };
    pairs.all().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_ends_within_two_weeks_or_has_ended_is_named_with_the_day() {
        let day = 24 * 60 * 60;
        // 2026-01-01.
        let now = 1_767_225_600;
        let warning = |ends: i64| warning_of_end(ends, Duration::from_secs(1_767_225_600));
        assert_eq!(warning(now + 14 * day), None);
        assert_eq!(warning(now + 14 * day - 1).as_deref(), Some("ends on 2026-01-14"));
        assert_eq!(warning(now - 1).as_deref(), Some("ended on 2025-12-31"));
        assert_eq!(warning(i64::MIN).as_deref(), Some("ended on a day beyond the calendar"));
    }
}
