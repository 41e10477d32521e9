//! Where session records are kept: what `store.url` names, opened.

use std::sync::Arc;

use store::{Memory, Store};

use crate::files;
use crate::settings::StoreSettings;

/// An opened store.
pub(crate) struct Records {
    pub(crate) store: Arc<dyn Store>,
    /// Can other nodes see it? Only then is there anything to join.
    pub(crate) shared: bool,
}

impl Records {
    /// What the embedding program brings; it knows who else has it.
    pub(crate) fn brought(store: Arc<dyn Store>) -> Self {
        Self { store, shared: true }
    }

    /// What the settings name, or what is wrong with them. Reads the files that they name and
    /// connects to nothing. The URL may carry a password, so only its scheme is repeated.
    pub(crate) fn open(settings: &StoreSettings) -> Result<Self, String> {
        match settings.url.0.split_once(':') {
            Some(("memory", "")) => Ok(Self { store: Arc::new(Memory::default()), shared: false }),
            Some((scheme, _)) if scheme.starts_with("redis") => {
                // Redis says itself what is wrong with its settings, and repeats no secret.
                let redis = store::redis::Redis::open(redis(settings, scheme)?)
                    .map_err(|invalid| format!("`store.url` and its like: {invalid}"))?;
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

/// All that Redis wants to know, with what stands in files.
fn redis(written: &StoreSettings, scheme: &str) -> Result<store::redis::Settings, String> {
    if !written.tls.is_empty() && !scheme.starts_with("rediss") {
        return Err(
            "`store.tls` is set, but `store.url` asks for no TLS; begin it with rediss, or leave \
             `store.tls` out"
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
