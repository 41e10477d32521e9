//! Opens the store that `store.url` names.

use std::sync::Arc;

use store::{Memory, Store};

use crate::files;
use crate::settings::StoreSettings;

/// An opened store.
pub(crate) struct Records {
    pub(crate) store: Arc<dyn Store>,
    /// Can other nodes reach it? Otherwise there is no cluster to join.
    pub(crate) shared: bool,
}

impl Records {
    /// A store that the embedding program brings. Only that program knows which nodes share it.
    pub(crate) fn brought(store: Arc<dyn Store>) -> Self {
        Self { store, shared: true }
    }

    /// The store that the settings name, or the problems of these settings. Reads the files that
    /// they name and connects to nothing. The URL may carry a password, so only its scheme is
    /// repeated.
    pub(crate) fn open(settings: &StoreSettings) -> Result<Self, String> {
        match settings.url.0.split_once(':') {
            Some(("memory", "")) => Ok(Self { store: Arc::new(Memory::default()), shared: false }),
            Some((scheme, _)) if scheme.starts_with("redis") => {
                // The error of the Redis client names the problem and repeats no secret.
                let redis =
                    store::redis::Redis::open(redis(settings, scheme)?).map_err(|invalid| {
                        format!("`store.url` or another setting of Redis: {invalid}")
                    })?;
                Ok(Self { store: Arc::new(redis), shared: true })
            }
            Some((scheme, _)) => Err(format!(
                "`store.url` has the scheme `{scheme}`, which is not served; write \"memory:\" or a \
                 redis:// URL"
            )),
            None => Err("`store.url` is not a URL; write \"memory:\" or a redis:// URL".into()),
        }
    }
}

/// The settings of the Redis client, with the contents of files.
fn redis(written: &StoreSettings, scheme: &str) -> Result<store::redis::Settings, String> {
    if !written.tls.is_empty() && !scheme.starts_with("rediss") {
        return Err(
            "`store.tls` is set, but the scheme of `store.url` is not for TLS; begin it with rediss, \
             or leave `store.tls` out"
                .into(),
        );
    }
    let pem = written.tls.read("store.tls")?;
    Ok(store::redis::Settings {
        url: written.url.clone(),
        password: files::secret("store.password", &written.password, &written.password_file)?,
        sentinel_password: files::secret(
            "store.sentinel_password",
            &written.sentinel_password,
            &written.sentinel_password_file,
        )?,
        ca: pem.ca,
        certificate: pem.certificate,
        key: pem.key,
        ..written.redis.clone()
    })
}
