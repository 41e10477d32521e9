//! `[store]`: where session records are kept, and the timeouts of the store.

use std::path::PathBuf;

use serde::{Deserialize, Serialize, Serializer};
use store::redis::Secret;

use super::TlsSettings;

/// `[store]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct StoreSettings {
    /// Where session records are kept. `memory:` keeps them in this process, for a single node;
    /// `redis://`, `redis+cluster://` and `redis+sentinel://` (`rediss` for TLS) keep them where
    /// every node can read them. The URL may hold a password, so only its scheme is ever printed.
    #[serde(serialize_with = "scheme")]
    pub url: Secret,
    /// The password of `user` at Redis.
    pub password: Secret,
    /// A file with this password.
    pub password_file: PathBuf,
    /// The password for Sentinels.
    pub sentinel_password: Secret,
    /// A file with this password.
    pub sentinel_password_file: PathBuf,
    /// The authority that signs Redis' certificate, and this node's own certificate, if the URL
    /// demands TLS.
    pub tls: TlsSettings,
    /// The other settings of the connection to Redis. The fields above override them.
    #[serde(flatten)]
    pub redis: store::redis::Settings,
}

impl StoreSettings {
    /// Whether the records are in the memory of this process.
    pub(crate) fn is_in_process(&self) -> bool {
        self.url.0 == "memory:"
    }
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            url: "memory:".into(),
            password: Secret::default(),
            password_file: PathBuf::new(),
            sentinel_password: Secret::default(),
            sentinel_password_file: PathBuf::new(),
            tls: TlsSettings::default(),
            redis: store::redis::Settings::default(),
        }
    }
}

impl StoreSettings {
    /// The scheme of the URL, which holds no secret: `memory`, `redis` or another.
    pub(crate) fn kind(&self) -> String {
        self.url.0.split_once(':').map_or_else(String::new, |(scheme, _)| scheme.to_owned())
    }

    /// Whether this is a Redis that any process that reaches it may use: neither the URL nor
    /// another key has a password.
    pub(crate) fn is_open_redis(&self) -> bool {
        let Some((scheme, rest)) = self.url.0.split_once("://") else { return false };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let in_url = authority
            .rsplit_once('@')
            .and_then(|(userinfo, _)| userinfo.split_once(':'))
            .is_some_and(|(_, password)| !password.is_empty());
        let beside = !self.password.0.is_empty() || !self.password_file.as_os_str().is_empty();
        scheme.starts_with("redis") && !in_url && !beside
    }
}

fn scheme<S: Serializer>(url: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
    match url.0.split_once(':') {
        Some((scheme, "")) => serializer.serialize_str(&format!("{scheme}:")),
        Some((scheme, _)) => serializer.serialize_str(&format!("{scheme}:***")),
        None => url.serialize(serializer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redis_is_open_if_no_key_has_a_password() {
        let is_open = |url: &str| {
            StoreSettings { url: url.into(), ..StoreSettings::default() }.is_open_redis()
        };
        for url in ["redis://h", "rediss://h:6379/0", "redis+sentinel://h/m", "redis://user@h"] {
            assert!(is_open(url), "{url}");
        }
        for url in ["memory:", "redis://:p@h", "redis+cluster://u:p@a,b:7/x@y"] {
            assert!(!is_open(url), "{url}");
        }
        let mut settings = StoreSettings { url: "redis://h".into(), ..StoreSettings::default() };
        settings.password_file = "/etc/password".into();
        assert!(!settings.is_open_redis());
    }

    #[test]
    fn no_secret_is_ever_shown() {
        let settings = StoreSettings {
            url: "redis://:hunter2@h".into(),
            password: "hunter2".into(),
            sentinel_password: "hunter2".into(),
            ..StoreSettings::default()
        };
        let written = serde_json::to_string(&settings).unwrap();
        assert!(!format!("{settings:?} {written}").contains("hunter2"), "{written}");
        assert!(written.contains("redis:***"), "{written}");
    }
}
