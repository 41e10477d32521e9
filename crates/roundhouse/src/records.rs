//! Where session records are kept: what `store.url` names, opened.

use std::sync::Arc;

use store::{Memory, Store};

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

    /// What the settings name, or what is wrong with them. The URL may carry a password, so
    /// only its scheme is repeated.
    pub(crate) fn open(settings: &StoreSettings) -> Result<Self, String> {
        match settings.url.split_once(':') {
            Some(("memory", "")) => Ok(Self { store: Arc::new(Memory::default()), shared: false }),
            // Redis says itself what is wrong with its URL, and repeats nothing of it.
            Some((scheme, _)) if scheme.starts_with("redis") => {
                let redis = store::redis::Redis::open(store::redis::Settings::at(&*settings.url))
                    .map_err(|invalid| format!("`store.url`: {invalid}"))?;
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
