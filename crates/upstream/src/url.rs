//! The URL of an upstream server. Its path and its query may hold secrets, so `Debug` and `Display` have
//! the origin only.

use std::fmt;
use std::net::IpAddr;

use hyper::Uri;

/// Why a text is no URL of an upstream server. No text has a part of the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlProblem {
    /// It cannot be parsed.
    #[error("is not a URL; write one as in \"https://mcp.example.com/mcp\"")]
    Malformed,
    /// Another scheme.
    #[error("has neither `https:` nor `http:`; write one as in \"https://mcp.example.com/mcp\"")]
    Scheme,
    /// A user or a password.
    #[error("has a user or a password; remove them, and write the credential into `headers`")]
    Credentials,
    /// A fragment, which is never sent.
    #[error("has a fragment (`#`), which no server receives; remove it")]
    Fragment,
}

/// The URL of an upstream server.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    uri: Uri,
    origin: Box<str>,
}

impl Url {
    /// Reads a URL.
    pub fn parse(text: &str) -> Result<Self, UrlProblem> {
        let parsed = url::Url::parse(text).map_err(|_| UrlProblem::Malformed)?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(UrlProblem::Scheme);
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(UrlProblem::Credentials);
        }
        if parsed.fragment().is_some() {
            return Err(UrlProblem::Fragment);
        }
        let uri = parsed.as_str().parse().map_err(|_| UrlProblem::Malformed)?;
        Ok(Self { uri, origin: parsed.origin().ascii_serialization().into() })
    }

    /// The URL to which a redirect leads; `None` if that is another origin, or no URL.
    pub(crate) fn redirected(&self, location: &str) -> Option<Self> {
        let base = url::Url::parse(&self.uri.to_string()).ok()?;
        let target = Self::parse(base.join(location).ok()?.as_str()).ok()?;
        (target.origin == self.origin).then_some(target)
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The path, without a slash at its end.
    pub(crate) fn path(&self) -> &str {
        self.uri.path().trim_end_matches('/')
    }

    /// The URL without its query, which may have a secret.
    pub(crate) fn without_query(&self) -> String {
        match self.uri.path() {
            "/" => self.origin.to_string(),
            path => format!("{}{path}", self.origin),
        }
    }

    /// Scheme, host and port.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The host, if it is an address and no name.
    pub fn address(&self) -> Option<IpAddr> {
        address_of(&self.uri)
    }

    /// Whether the connection is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }
}

/// The host of a URI, if it is an address and no name.
pub(crate) fn address_of(uri: &Uri) -> Option<IpAddr> {
    uri.host()?.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({})", self.origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_scheme_of_http_and_no_credentials() {
        let check = |text: &str, expected: UrlProblem| assert_eq!(Url::parse(text), Err(expected));
        check("mcp.example.com", UrlProblem::Malformed);
        check("ftp://example.com/mcp", UrlProblem::Scheme);
        check("https://user@example.com/mcp", UrlProblem::Credentials);
        check("https://:password@example.com/mcp", UrlProblem::Credentials);
        check("https://example.com/mcp#a", UrlProblem::Fragment);
        assert!(Url::parse("https://example.com").unwrap().is_encrypted());
    }

    #[test]
    fn no_path_and_no_query_is_printed() {
        let url = Url::parse("https://example.com:8443/hunter2/mcp?key=hunter2").unwrap();
        assert_eq!(url.to_string(), "https://example.com:8443");
        assert!(!format!("{url:?}").contains("hunter2"));
    }

    #[test]
    fn a_host_that_is_an_address_is_found_in_every_notation() {
        let address = |text: &str| Url::parse(text).unwrap().address().map(|a| a.to_string());
        assert_eq!(address("http://127.0.0.1:80/"), Some("127.0.0.1".into()));
        assert_eq!(address("http://2130706433/"), Some("127.0.0.1".into()));
        assert_eq!(address("http://0x7f.1/"), Some("127.0.0.1".into()));
        assert_eq!(address("http://[::1]:80/"), Some("::1".into()));
        assert_eq!(address("http://localhost/"), None);
    }

    // holds: SEC-20
    #[test]
    fn a_redirect_is_followed_within_the_origin_only() {
        let url = Url::parse("https://example.com/mcp").unwrap();
        let to = |location: &str| url.redirected(location).map(|url| url.uri().to_string());
        assert_eq!(to("/mcp/"), Some("https://example.com/mcp/".into()));
        assert_eq!(to("https://example.com:443/x"), Some("https://example.com/x".into()));
        for other in [
            "http://example.com/mcp",
            "https://example.com:8443/mcp",
            "https://other.example.com/mcp",
            "//other.example.com/mcp",
            "https://user@example.com/mcp",
            "file:///etc/passwd",
        ] {
            assert_eq!(to(other), None, "{other}");
        }
    }
}
