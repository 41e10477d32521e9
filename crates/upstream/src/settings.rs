//! The settings of an upstream server.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;
use protocol::Revision;
use serde::{Deserialize, Serialize};

use crate::credential::{CredentialSetting, CredentialSettings};
use crate::networks::Networks;
use crate::url::{Url, UrlProblem};

/// Headers by name. Their values may be secrets, so `Debug` has the names only.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Headers(BTreeMap<String, String>);

impl Deref for Headers {
    type Target = BTreeMap<String, String>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Headers {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// An MCP server that is reached over HTTP.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSettings {
    /// The URL of its MCP endpoint.
    pub url: String,
    /// Headers that each request to it has, such as a credential.
    #[serde(default)]
    pub headers: Headers,
    /// How the node gets the token with which it authenticates there.
    #[serde(default)]
    pub credential: CredentialSettings,
    /// Networks in CIDR notation in which it may be, in addition to the public internet.
    #[serde(default)]
    pub allow_networks: Vec<IpNet>,
    /// The revision of MCP that it is asked for. Without it, it is asked for that of each client, or for the
    /// newest stable one if the client has a later one.
    #[serde(default)]
    pub revision: Option<String>,
    /// Its sessions have a state that clients rely on: if it has lost one, the client's session ends, or, of
    /// a session with several servers, the tools of this one fail.
    #[serde(default)]
    pub stateful: bool,
    /// How long a new connection may take until requests can be sent on it.
    #[serde(default = "default_connect_ms")]
    pub connect_ms: u64,
    /// How long it may send nothing while a request waits for its response, in seconds.
    #[serde(default = "default_silence_secs")]
    pub silence_secs: u64,
    /// Largest message that it may send.
    #[serde(default = "default_message_bytes_max")]
    pub message_bytes_max: usize,
    /// Most connections to it of this node. A half of them is for streams that sessions keep open, an
    /// eighth for messages without an answer, the rest for requests.
    #[serde(default = "default_connections_max")]
    pub connections_max: usize,
}

/// Prints neither the URL, whose path may be secret, nor values of headers.
impl fmt::Debug for HttpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSettings").field("headers", &self.headers).finish_non_exhaustive()
    }
}

fn default_connect_ms() -> u64 {
    5_000
}

fn default_silence_secs() -> u64 {
    300
}

fn default_message_bytes_max() -> usize {
    16 << 20
}

fn default_connections_max() -> usize {
    1_000
}

/// Fewest connections: at least one of each share.
const CONNECTIONS_MIN: usize = 8;

/// Headers that this crate sets itself, or that belong to one connection.
const RESERVED: [&str; 15] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "keep-alive",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What is wrong with a setting. No text has a value that may be secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The URL.
    #[error("`url` {0}")]
    Url(UrlProblem),
    /// The URL has an address that is not permitted.
    #[error(
        "`url` has an address that is not public; if the server is meant to be there, write its network \
         into `allow_networks`, as in [\"10.0.0.0/8\"]"
    )]
    Address,
    /// A header's name.
    #[error("`headers` has the name {0:?}, which is not one of a header")]
    HeaderName(String),
    /// A header that is not for settings.
    #[error("`headers` has {0:?}, which the node sets itself; remove it")]
    HeaderReserved(String),
    /// A header's value.
    #[error(
        "`headers.{0}` has a character that headers cannot have, such as a line end; remove it"
    )]
    HeaderValue(String),
    /// A revision that does not exist, or that the node does not know.
    #[error("`revision` is {0:?}; write one of {known}", known = Revision::NAMES.join(", "))]
    Revision(String),
    /// The credential.
    #[error("{0}")]
    Credential(CredentialSetting),
    /// Too few connections.
    #[error("`connections_max` is {0}; write at least 8")]
    Connections(usize),
    /// A duration or a size that lets nothing through.
    #[error("`{0}` is 0; write at least 1")]
    Zero(&'static str),
}

impl HttpSettings {
    /// Settings with this URL, and defaults for the rest.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            headers: Headers::default(),
            credential: CredentialSettings::default(),
            allow_networks: Vec::new(),
            revision: None,
            stateful: false,
            connect_ms: default_connect_ms(),
            silence_secs: default_silence_secs(),
            message_bytes_max: default_message_bytes_max(),
            connections_max: default_connections_max(),
        }
    }

    pub(crate) fn connect(&self) -> Duration {
        Duration::from_millis(self.connect_ms)
    }

    pub(crate) fn silence(&self) -> Duration {
        Duration::from_secs(self.silence_secs)
    }

    pub(crate) fn networks(&self) -> Networks {
        Networks::new(&self.allow_networks)
    }

    /// The revision that the server is asked for.
    pub(crate) fn revision(&self) -> Option<Revision> {
        self.revision.as_deref().and_then(Revision::named)
    }

    /// Everything that is wrong with these settings, or what they mean.
    pub(crate) fn read(&self) -> Result<(Url, HeaderMap), Vec<Problem>> {
        let mut problems = Vec::new();
        let url = Url::parse(&self.url).map_err(Problem::Url);
        let url = url.and_then(|url| match url.address() {
            Some(address) if !self.networks().permit(address) => Err(Problem::Address),
            _ => Ok(url),
        });
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers.iter() {
            match header(name, value) {
                Ok(header) => headers.extend([header]),
                Err(problem) => problems.push(problem),
            }
        }
        if let Some(name) = &self.revision
            && Revision::named(name).is_none()
        {
            problems.push(Problem::Revision(name.clone()));
        }
        let has_header = headers.contains_key(AUTHORIZATION);
        let credential = self.credential.problems(&self.networks(), has_header);
        problems.extend(credential.into_iter().map(Problem::Credential));
        if self.connections_max < CONNECTIONS_MIN {
            problems.push(Problem::Connections(self.connections_max));
        }
        let zero = [
            ("connect_ms", self.connect_ms == 0),
            ("silence_secs", self.silence_secs == 0),
            ("message_bytes_max", self.message_bytes_max == 0),
        ];
        problems.extend(zero.iter().filter(|(_, zero)| *zero).map(|(key, _)| Problem::Zero(key)));
        match url {
            Ok(url) if problems.is_empty() => Ok((url, headers)),
            Ok(_) => Err(problems),
            Err(problem) => {
                problems.insert(0, problem);
                Err(problems)
            }
        }
    }
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), Problem> {
    let parsed = name.parse::<HeaderName>();
    let parsed = parsed.map_err(|_| Problem::HeaderName(name.to_owned()))?;
    if RESERVED.contains(&parsed.as_str()) {
        return Err(Problem::HeaderReserved(name.to_owned()));
    }
    let value = HeaderValue::from_str(value);
    let mut value = value.map_err(|_| Problem::HeaderValue(name.to_owned()))?;
    value.set_sensitive(true);
    Ok((parsed, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_printed() {
        let mut settings = HttpSettings::new("https://example.com/hunter2");
        settings.headers.insert("Authorization".into(), "Bearer hunter2".into());
        let printed = format!("{settings:?}");
        assert!(printed.contains("Authorization") && !printed.contains("hunter2"), "{printed}");
    }

    #[test]
    fn every_problem_is_found_at_once_and_none_has_a_secret() {
        let mut settings = HttpSettings::new("ftp://example.com/hunter2");
        settings.headers.insert("a b".into(), "x".into());
        settings.headers.insert("Host".into(), "x".into());
        settings.headers.insert("X-Key".into(), "hunter2\n".into());
        settings.connections_max = 7;
        settings.connect_ms = 0;
        settings.revision = Some("2026-01-01".into());
        let problems = settings.read().unwrap_err();
        let text: Vec<_> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(problems.len(), 7, "{text:?}");
        assert!(!text.concat().contains("hunter2"), "{text:?}");
        assert!(text.concat().contains("2025-11-25, DRAFT-2026-v1"), "{text:?}");
    }

    // holds: SEC-20
    #[test]
    fn an_address_in_the_url_needs_a_permission() {
        let mut settings = HttpSettings::new("http://[::ffff:169.254.169.254]/");
        assert_eq!(settings.read().unwrap_err(), [Problem::Address]);
        settings.allow_networks.push("169.254.169.254/32".parse().unwrap());
        assert!(settings.read().is_ok());
    }
}
