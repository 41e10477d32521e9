//! `[store]`: where session records are kept, and how patiently.

use std::path::PathBuf;

use serde::{Deserialize, Serialize, Serializer};
use store::redis::Secret;

use super::TlsSettings;

/// `[store]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct StoreSettings {
    /// Where session records are kept. `memory:` keeps them in this process, for one node;
    /// `redis://`, `redis+cluster://` and `redis+sentinel://` (`rediss` for TLS) where every
    /// node sees them. It may hold a password, so only its scheme is ever shown.
    #[serde(serialize_with = "scheme")]
    pub url: Secret,
    /// The password of `user` at Redis, as it is.
    pub password: Secret,
    /// A file that holds it instead.
    pub password_file: PathBuf,
    /// The password for Sentinels.
    pub sentinel_password: Secret,
    /// A file that holds it instead.
    pub sentinel_password_file: PathBuf,
    /// Who vouches for Redis, and who this node is, where the URL says TLS.
    pub tls: TlsSettings,
    /// The rest of what Redis is talked to with. What is here and in a field above is
    /// taken from above.
    #[serde(flatten)]
    pub redis: store::redis::Settings,
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
