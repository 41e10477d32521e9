//! What an operator says about Redis.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use super::address::Target;

/// Longest window in which appends wait for each other, in milliseconds.
const APPEND_WINDOW_MS_MAX: u64 = 100;

/// How to reach Redis, and how long to wait for it. The URL, the passwords and the certificates
/// are not serialised: the code that reads the settings sets them field by field.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it is. One of
    /// `redis://[user:password@]host[:port][/db]`,
    /// `redis+cluster://[user:password@]host[:port][,host[:port]…]` and
    /// `redis+sentinel://[user:password@]host[:port][,host[:port]…]/master[/db]`,
    /// or the same with `rediss` in front for TLS. What is not a letter, a digit or one
    /// of `-._~` in a user or password is written `%xx`.
    #[serde(skip)]
    pub url: Secret,
    /// Who to be at Redis, where the URL does not say it.
    pub user: String,
    /// The user's password, as it is.
    #[serde(skip)]
    pub password: Secret,
    /// What the keys of this installation begin with; two of them share a Redis by
    /// differing in it.
    pub prefix: String,
    /// Longest wait for a connection, TLS and password included.
    pub connect_timeout_ms: u64,
    /// Longest wait for an answer, repetitions included. Then the outcome is unknown.
    /// Keep it below a node's lease, or one lost answer costs the lease.
    pub timeout_ms: u64,
    /// Wait before the second attempt to connect; it doubles from there. Half of it, up
    /// to all of it, is random.
    pub reconnect_ms_min: u64,
    /// Longest wait between two attempts to connect.
    pub reconnect_ms_max: u64,
    /// Most commands that are written to one server at once. What is more waits for their
    /// answers.
    pub batch_commands_max: usize,
    /// From how many bytes on no further command is written at once with others.
    pub batch_bytes_max: usize,
    /// Most requests that await one server. Further ones wait, up to their timeout.
    pub in_flight_max: usize,
    /// How long an append to a session's log may wait for others, to be written with them. It
    /// waits only while 2.5 to 15 come in such a time, on average; 0: never. At most
    /// 100.
    pub append_window_ms: u64,
    /// Certificates of those who may vouch for Redis, as PEM. The system's if empty.
    #[serde(skip)]
    pub ca: String,
    /// The certificate to show to Redis, as PEM, if it asks for one.
    #[serde(skip)]
    pub certificate: String,
    /// The certificate's key, as PEM.
    #[serde(skip)]
    pub key: Secret,
    /// Who to be at Sentinels, if they ask. The other user is for Redis itself.
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
    /// The defaults, for this URL.
    pub fn at(url: impl Into<String>) -> Self {
        Self { url: Secret(url.into()), ..Self::default() }
    }

    /// Where Redis is, if everything is right.
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

    /// Who to be at Sentinels.
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

/// Text that is never printed, nor written out with the settings it is in.
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

/// What is wrong with the settings. Never holds a piece of a secret.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// The URL cannot be read.
    #[error("the URL of redis is not right: {0}")]
    Url(&'static str),
    /// Two users or passwords, of which one would be ignored.
    #[error("a user or password of redis stands both in its URL and beside it; keep one")]
    Login,
    /// The prefix could collide with the rest of a key.
    #[error("the prefix of redis keys has other characters than letters and digits, or none")]
    Prefix,
    /// A bound that lets nothing through.
    #[error("a bound or timeout of redis is zero; leave it out to have its default")]
    Zero,
    /// Events would be late.
    #[error(
        "the append window of redis is longer than {APPEND_WINDOW_MS_MAX} ms; every event of a \
         stream waits up to that long"
    )]
    AppendWindow,
    /// Half an identity.
    #[error("a certificate for redis needs its key, and a key its certificate")]
    Identity,
    /// Certificates or key cannot be read.
    #[error("the certificates or the key for redis are not PEM")]
    Pem,
}

/// Who to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: Secret,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_at_once() {
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
    fn a_user_may_stand_beside_the_url_with_a_password_as_it_is() {
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
