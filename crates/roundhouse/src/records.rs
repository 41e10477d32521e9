//! Opens the store that `store.url` names.

use std::sync::Arc;

use store::redis::Invalid;
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
                let redis = redis(settings, scheme)?;
                let redis = store::redis::Redis::open(redis.clone())
                    .map_err(|why| invalid(&why, &redis))?;
                Ok(Self { store: Arc::new(redis), shared: true })
            }
            Some((scheme, _)) => Err(format!(
                "`store.url` has the scheme `{scheme}`, which is not served; write \"memory:\" for a \
                 single node, or the URL of a Redis, as in \"redis://127.0.0.1:6379\""
            )),
            None => {
                Err("`store.url` is not a URL; write \"memory:\" for a single node, or the URL \
                         of a Redis, as in \"redis://127.0.0.1:6379\""
                    .into())
            }
        }
    }
}

/// What is wrong with settings that the Redis client refuses, with their keys. Repeats no value,
/// which may be a secret.
fn invalid(why: &Invalid, redis: &store::redis::Settings) -> String {
    match why {
        Invalid::Url(why) => format!(
            "`store.url` is not the URL of a Redis: {why}; write it as in \
             \"redis://127.0.0.1:6379\", \"redis+cluster://host:6379\" or \
             \"redis+sentinel://host:26379/master\""
        ),
        Invalid::Login => "`store.url` has a user or a password, and `store.user` or \
                           `store.password` is set, too; remove one of them"
            .into(),
        Invalid::Prefix => format!(
            "`store.prefix` is {:?}; write letters and digits only, at least one",
            redis.prefix
        ),
        Invalid::Zero => {
            let zero = [
                ("batch_commands_max", redis.batch_commands_max as u64),
                ("batch_bytes_max", redis.batch_bytes_max as u64),
                ("in_flight_max", redis.in_flight_max as u64),
                ("timeout_ms", redis.timeout_ms),
                ("connect_timeout_ms", redis.connect_timeout_ms),
            ];
            let zero = zero.iter().find(|(_, value)| *value == 0);
            let key = zero.map_or("timeout_ms", |(key, _)| key);
            format!("`store.{key}` is 0, with which no command can be sent; write at least 1")
        }
        Invalid::AppendWindow => format!(
            "`store.append_window_ms` is {}, which would delay every event of a stream; write at \
             most 100",
            redis.append_window_ms
        ),
        Invalid::Identity => "`store.tls.cert_file` and `store.tls.key_file` need each other; \
                              write both or neither"
            .into(),
        Invalid::Pem => "`store.tls` names a file that is not valid PEM; write certificates and a \
                         key as PEM (-----BEGIN …)"
            .into(),
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
