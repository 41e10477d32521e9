//! Where spans and metrics are sent, and how many.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hyper::Uri;
use serde::{Deserialize, Serialize};

/// `[otlp]`: the collector that gets spans and metrics by OTLP, over HTTP.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct OtlpSettings {
    /// The URL of the collector, to which `/v1/traces`, `/v1/metrics` and `/v1/logs` are appended. Empty: nothing
    /// is traced, and nothing is sent.
    pub endpoint: String,
    /// A file with a line `NAME=value` for each header that the collector wants, for example
    /// `authorization=Bearer …`. Empty for none.
    pub headers_file: PathBuf,
    /// The headers in that file.
    #[serde(skip)]
    pub headers: BTreeMap<String, String>,
    /// A file with the certificates, as PEM, that vouch for the collector of an `https:` endpoint. Empty:
    /// those of the system do.
    pub ca_file: PathBuf,
    /// The text of that file.
    #[serde(skip)]
    pub ca: String,
    /// The name of the service in all that is sent.
    pub service_name: String,
    /// One of this many messages begins a trace, by chance: 1 for all of them. 0: none.
    pub traces_one_in: u32,
    /// Whether a client decides by the flag in its `traceparent` if its message is traced. Of messages
    /// without a `traceparent` the share above is traced.
    pub trust_sampled: bool,
    /// Most spans that wait for the collector. A further one is dropped and counted.
    pub queue_max: usize,
    /// Most spans in one request to the collector.
    pub batch_max: usize,
    /// How long spans are collected before they are sent, in milliseconds.
    pub batch_ms: u64,
    /// How long a request to the collector may take, in milliseconds. Then its spans are lost, and counted.
    pub timeout_ms: u64,
    /// The interval at which metrics are sent, in seconds. 0: they are not sent.
    pub metrics_secs: u64,
}

impl Default for OtlpSettings {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            headers_file: PathBuf::new(),
            headers: BTreeMap::new(),
            ca_file: PathBuf::new(),
            ca: String::new(),
            service_name: "roundhouse".to_owned(),
            traces_one_in: 100,
            trust_sampled: false,
            queue_max: 4_096,
            batch_max: 512,
            batch_ms: 2_000,
            timeout_ms: 5_000,
            metrics_secs: 30,
        }
    }
}

/// What is wrong with these settings.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum OtlpProblem {
    /// The endpoint is not the URL of a collector.
    #[error(
        "`otlp.endpoint` is {0:?}, which is not the URL of a collector; write http:// or https://, its \
         host and its port, as in \"http://127.0.0.1:4318\", without a user, a query or a fragment"
    )]
    Endpoint(String),
    /// The endpoint has the path that is appended.
    #[error("`otlp.endpoint` is {0:?}; leave out {1}, which is appended to it")]
    Path(String, &'static str),
    /// A number that must not be 0.
    #[error("`{0}` is 0; write a number above 0")]
    Zero(&'static str),
    /// The batch is larger than the queue.
    #[error("`otlp.batch_max` is above `otlp.queue_max`; write at most {0}")]
    Batch(usize),
    /// A header that HTTP does not have.
    #[error(
        "`otlp.headers_file` has a header {0:?} that cannot be sent; its name has letters, digits and \
         `-`, and its value visible ASCII characters and blanks"
    )]
    Header(String),
    /// A file that is not used.
    #[error(
        "`otlp.ca_file` is set, and `otlp.endpoint` has no https:; write https:, or remove `otlp.ca_file`"
    )]
    Authority,
    /// No name.
    #[error("`otlp.service_name` is empty; write a name, as in \"roundhouse\"")]
    Name,
}

/// The paths of OTLP over HTTP.
const PATHS: [&str; 3] = ["/v1/traces", "/v1/metrics", "/v1/logs"];

impl OtlpSettings {
    /// Whether there is a collector.
    pub fn is_on(&self) -> bool {
        !self.endpoint.is_empty()
    }

    /// The URL for this path of OTLP.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint.trim_end_matches('/'))
    }

    /// Everything that is wrong. Without a collector nothing is.
    pub fn problems(&self) -> Vec<OtlpProblem> {
        if !self.is_on() {
            return Vec::new();
        }
        let mut problems = Vec::new();
        let is_url = self.endpoint.parse::<Uri>().is_ok_and(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https"))
                && uri.authority().is_some_and(|at| !at.as_str().contains('@'))
                && uri.host().is_some_and(|host| !host.is_empty())
                && uri.query().is_none()
        });
        if !is_url || self.endpoint.contains('#') {
            problems.push(OtlpProblem::Endpoint(without_user(&self.endpoint)));
        } else if let Some(path) =
            PATHS.iter().find(|path| self.endpoint.trim_end_matches('/').ends_with(*path))
        {
            problems.push(OtlpProblem::Path(self.endpoint.clone(), path));
        }
        for (key, is_zero) in [
            ("otlp.queue_max", self.queue_max == 0),
            ("otlp.batch_max", self.batch_max == 0),
            ("otlp.batch_ms", self.batch_ms == 0),
            ("otlp.timeout_ms", self.timeout_ms == 0),
        ] {
            if is_zero {
                problems.push(OtlpProblem::Zero(key));
            }
        }
        if self.batch_max > self.queue_max {
            problems.push(OtlpProblem::Batch(self.queue_max));
        }
        if !self.ca_file.as_os_str().is_empty() && !self.endpoint.starts_with("https:") {
            problems.push(OtlpProblem::Authority);
        }
        if self.service_name.is_empty() {
            problems.push(OtlpProblem::Name);
        }
        let odd = self.headers.iter().filter(|(name, value)| {
            let named = hyper::header::HeaderName::from_bytes(name.as_bytes());
            named.is_err() || hyper::header::HeaderValue::from_str(value).is_err()
        });
        problems.extend(odd.map(|(name, _)| OtlpProblem::Header(name.clone())));
        problems
    }
}

/// A URL without the user and the password that it should not have.
fn without_user(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => {
            format!("{}***{}", &url[..scheme + 3], &url[at..])
        }
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mistake_is_named_with_its_key() {
        let on =
            || OtlpSettings { endpoint: "http://127.0.0.1:4318/".into(), ..Default::default() };
        assert_eq!(OtlpSettings::default().problems(), []);
        assert_eq!(on().problems(), []);
        assert_eq!(on().url("/v1/traces"), "http://127.0.0.1:4318/v1/traces");
        let check = |settings: OtlpSettings, text: &str| {
            let problems = settings.problems();
            assert!(problems.iter().any(|p| p.to_string().contains(text)), "{problems:?}");
        };
        for endpoint in ["collector:4318", "ftp://a", "http://", "http://a?b=c", "nonsense"] {
            check(OtlpSettings { endpoint: endpoint.into(), ..on() }, "`otlp.endpoint` is");
        }
        check(
            OtlpSettings { endpoint: "http://a:1/v1/traces".into(), ..on() },
            "leave out /v1/traces",
        );
        check(OtlpSettings { queue_max: 0, ..on() }, "`otlp.queue_max` is 0");
        check(OtlpSettings { timeout_ms: 0, ..on() }, "`otlp.timeout_ms` is 0");
        check(OtlpSettings { batch_max: 5_000, ..on() }, "write at most 4096");
        check(OtlpSettings { service_name: String::new(), ..on() }, "`otlp.service_name`");
        check(OtlpSettings { ca_file: "ca.pem".into(), ..on() }, "`otlp.ca_file` is set");
        let headers = BTreeMap::from([("a b".to_owned(), "x".to_owned())]);
        check(OtlpSettings { headers, ..on() }, "a header \"a b\"");
    }

    #[test]
    fn a_password_in_the_endpoint_is_not_repeated() {
        let endpoint = "http://user:hunter2@collector:4318".to_owned();
        let problems = OtlpSettings { endpoint, ..Default::default() }.problems();
        let text = problems[0].to_string();
        assert!(text.contains("http://***@collector:4318") && !text.contains("hunter2"), "{text}");
    }
}
