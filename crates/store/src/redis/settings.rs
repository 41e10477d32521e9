//! The settings of the store in Redis.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use super::address::Target;

/// The longest window in which appends are batched, in milliseconds.
const APPEND_WINDOW_MS_MAX: u64 = 100;

/// How to reach Redis, and how long to wait for it. The URL, the passwords and the certificates
/// are not serialised: the code that reads the settings sets them field by field.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The URL of Redis. One of
    /// `redis://[user:password@]host[:port][/db]`,
    /// `redis+cluster://[user:password@]host[:port][,host[:port]…]` and
    /// `redis+sentinel://[user:password@]host[:port][,host[:port]…]/master[/db]`,
    /// or the same with `rediss` in front for TLS. What is not a letter, a digit or one
    /// of `-._~` in a user or password is written `%xx`.
    #[serde(skip)]
    pub url: Secret,
    /// The user to log in as, if the URL has none.
    pub user: String,
    /// The user's password, without `%xx`.
    #[serde(skip)]
    pub password: Secret,
    /// The prefix of the keys of this installation. Two installations with different prefixes
    /// can share a Redis.
    pub prefix: String,
    /// Timeout of a connect, TLS handshake and login included.
    pub connect_timeout_ms: u64,
    /// Timeout of an operation, retries included. After it the outcome is unknown. Must be
    /// below the lease of a node: otherwise one lost answer costs the lease.
    pub timeout_ms: u64,
    /// Pause before the second attempt to connect; it doubles with each attempt. Up to half of
    /// it is left out at random.
    pub reconnect_ms_min: u64,
    /// Longest pause between two attempts to connect.
    pub reconnect_ms_max: u64,
    /// Maximum number of commands in one write to a server. Further commands wait for the
    /// answers to it.
    pub batch_commands_max: usize,
    /// Maximum length of a write, beyond which no further command is added to it.
    pub batch_bytes_max: usize,
    /// Maximum number of writes in flight to one server. Further ones wait, up to their timeout.
    pub in_flight_max: usize,
    /// How long an append to a session's log may wait for others, to be written with them. It
    /// waits only at an average of 2.5 to 15 appends in such a window. 0 disables the wait. At
    /// most 100.
    pub append_window_ms: u64,
    /// Certificates of the authorities to trust, as PEM. The system's if empty.
    #[serde(skip)]
    pub ca: String,
    /// The client certificate, as PEM, if Redis requires one.
    #[serde(skip)]
    pub certificate: String,
    /// The certificate's key, as PEM.
    #[serde(skip)]
    pub key: Secret,
    /// The user to log in as at Sentinels, if they require it. [`Self::user`] is for Redis.
    pub sentinel_user: String,
    /// The password for Sentinels.
    #[serde(skip)]
    pub sentinel_password: Secret,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            url: Secret("redis://127.0.0.1:6379".into()),
            user: String::new(),
            password: Secret::default(),
            prefix: "rh".into(),
            connect_timeout_ms: 1_000,
            timeout_ms: 1_000,
            reconnect_ms_min: 20,
            reconnect_ms_max: 1_000,
            batch_commands_max: 256,
            batch_bytes_max: 1 << 20,
            in_flight_max: 1_024,
            append_window_ms: 5,
            ca: String::new(),
            certificate: String::new(),
            key: Secret::default(),
            sentinel_user: String::new(),
            sentinel_password: Secret::default(),
        }
    }
}

impl Settings {
    /// The default settings with this URL.
    pub fn at(url: impl Into<String>) -> Self {
        Self { url: Secret(url.into()), ..Self::default() }
    }

    /// Validates the settings and parses the URL.
    pub(super) fn target(&self) -> Result<Target, Invalid> {
        if self.prefix.is_empty() || !self.prefix.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(Invalid::Prefix);
        }
        let bounds = [self.batch_commands_max, self.batch_bytes_max, self.in_flight_max];
        if bounds.contains(&0) || self.timeout_ms == 0 || self.connect_timeout_ms == 0 {
            return Err(Invalid::Zero);
        }
        if self.append_window_ms > APPEND_WINDOW_MS_MAX {
            return Err(Invalid::AppendWindow);
        }
        if self.certificate.is_empty() != self.key.0.is_empty() {
            return Err(Invalid::Identity);
        }
        let mut target = Target::parse(&self.url.0).map_err(Invalid::Url)?;
        let own = Login { user: self.user.clone(), password: self.password.clone() };
        if own != Login::default() {
            if target.login != Login::default() {
                return Err(Invalid::Login);
            }
            target.login = own;
        }
        Ok(target)
    }

    /// The login at Sentinels.
    pub(super) fn sentinel_login(&self) -> Login {
        Login { user: self.sentinel_user.clone(), password: self.sentinel_password.clone() }
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }
}

/// Text that is neither printed nor serialised.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "hidden" })
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.0.is_empty() { "" } else { "***" })
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

/// Why settings are invalid. Never contains part of a secret.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// The URL cannot be parsed.
    #[error("the URL of redis is invalid: {0}")]
    Url(&'static str),
    /// The login is set twice, and one would be ignored.
    #[error("the login of redis is set both in its URL and beside it; remove one")]
    Login,
    /// The prefix could collide with the rest of a key.
    #[error("the prefix of redis keys is empty or has characters other than letters and digits")]
    Prefix,
    /// A bound or timeout with which no command could be sent.
    #[error("a bound or timeout of redis is zero; remove it to use the default")]
    Zero,
    /// The append window would delay events too long.
    #[error(
        "the append window of redis is longer than {APPEND_WINDOW_MS_MAX} ms, which would delay \
         every event of a stream; lower it"
    )]
    AppendWindow,
    /// A client certificate without its key, or the reverse.
    #[error("the client certificate for redis and its key must be set together")]
    Identity,
    /// A certificate or the key cannot be parsed.
    #[error("a certificate or the key for redis is not valid PEM")]
    Pem,
}

/// A user and password.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: Secret,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_rejected() {
        let invalid = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.target().expect_err("refused").to_string()
        };
        assert!(invalid(|s| s.prefix = "a:b".into()).contains("prefix"));
        assert!(invalid(|s| s.batch_bytes_max = 0).contains("zero"));
        assert!(invalid(|s| s.append_window_ms = 101).contains("append window"));
        assert!(invalid(|s| s.key = "key".into()).contains("certificate"));
        assert!(invalid(|s| s.url = "http://:secret@h".into()).contains("scheme"));
        assert!(Settings::default().target().is_ok());
        assert!(
            invalid(|s| {
                s.url = "redis://me@h".into();
                s.password = "secret".into();
            })
            .contains("beside")
        );
    }

    #[test]
    fn a_user_and_an_unescaped_password_may_be_set_beside_the_url() {
        let settings = Settings {
            user: "me".into(),
            password: "p@ss/w:rd%".into(),
            ..Settings::at("redis://h")
        };
        let login = settings.target().unwrap().login;
        assert_eq!(login, Login { user: "me".into(), password: "p@ss/w:rd%".into() });
    }

    #[test]
    fn a_secret_is_not_printed() {
        let mut settings = Settings::at("redis://me:hunter2@h");
        settings.key = "hunter2".into();
        settings.password = "hunter2".into();
        settings.sentinel_password = "hunter2".into();
        assert!(!format!("{settings:?} {:?}", settings.target()).contains("hunter2"));
    }
}
