//! Reads a request's headers in one pass.
//!
//! A header that decides something may occur once: two readers could each use a different one of
//! two, so the request is refused. The HTTP layer itself enforces this for `Content-Length`,
//! `Transfer-Encoding` and `Host`.

use std::fmt;

use actix_http::header::{self, HeaderMap};

use crate::accept::Accept;

/// The headers that the front uses. Names are compared without case (SES-13).
#[derive(Default)]
pub(crate) struct Heads<'a> {
    pub(crate) accept: Accept,
    pub(crate) authorization: Authorization<'a>,
    pub(crate) content_encoding: Option<&'a str>,
    pub(crate) content_length: Option<u64>,
    pub(crate) content_type: Option<&'a str>,
    pub(crate) expect: Option<&'a str>,
    /// `Sec-Fetch-Site`: how the page whose browser sends the request relates to this server.
    pub(crate) fetch_site: Option<&'a str>,
    pub(crate) host: Option<&'a str>,
    pub(crate) last_event_id: Option<&'a str>,
    pub(crate) origin: Option<&'a str>,
    pub(crate) preflight_headers: Option<&'a str>,
    pub(crate) session: Option<&'a str>,
    /// `traceparent`: the first that is text, which has no effect but in records.
    pub(crate) traceparent: Option<&'a str>,
    pub(crate) version: Option<&'a str>,
    /// The `Mcp-*` headers that mirror a body, as received; at most as many as the HTTP layer
    /// accepts.
    pub(crate) mirrored: Vec<(&'a str, &'a [u8])>,
}

impl fmt::Debug for Heads<'_> {
    /// The values may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heads").finish_non_exhaustive()
    }
}

/// The header `Authorization`. It has no meaning at an open endpoint, so what is wrong with it is no
/// reason to refuse a request there.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Authorization<'a> {
    /// There is none.
    #[default]
    Absent,
    /// Its value, which may have any characters that a header may have.
    Present(&'a str),
    /// There are several, or its value is not UTF-8.
    Unreadable,
}

/// Why the headers were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault<'a> {
    /// Their names and values are longer together than the limit.
    TooLarge,
    /// A header that may occur once occurred twice.
    Twice(&'a str),
    /// A header's value contains characters other than visible ASCII and blanks.
    NotText(&'a str),
}

impl<'a> Heads<'a> {
    /// Reads headers with at most `bytes_max` bytes of names and values.
    pub(crate) fn read(headers: &'a HeaderMap, bytes_max: usize) -> Result<Self, Fault<'a>> {
        let mut heads = Self::default();
        let mut bytes = 0;
        for (name, value) in headers {
            let name = name.as_str();
            bytes += name.len() + value.len();
            let slot = match name {
                "content-encoding" => &mut heads.content_encoding,
                "expect" => &mut heads.expect,
                "sec-fetch-site" => &mut heads.fetch_site,
                "content-type" => &mut heads.content_type,
                "host" => &mut heads.host,
                "origin" => &mut heads.origin,
                "mcp-session-id" => &mut heads.session,
                "mcp-protocol-version" => &mut heads.version,
                "last-event-id" => &mut heads.last_event_id,
                "access-control-request-headers" => &mut heads.preflight_headers,
                "accept" => {
                    heads.accept.add(value.to_str().unwrap_or_default());
                    continue;
                }
                "authorization" => {
                    // Tokens are long, and this reads many bytes at once. `authentication`
                    // judges the characters.
                    let text = std::str::from_utf8(value.as_bytes());
                    heads.authorization = match (&heads.authorization, text) {
                        (Authorization::Absent, Ok(text)) => Authorization::Present(text),
                        _ => Authorization::Unreadable,
                    };
                    continue;
                }
                "traceparent" => {
                    heads.traceparent = heads.traceparent.or(value.to_str().ok());
                    continue;
                }
                "content-length" => {
                    heads.content_length = value.to_str().ok().and_then(|text| text.parse().ok());
                    continue;
                }
                _ if name.starts_with("mcp-") => {
                    heads.mirrored.push((name, value.as_bytes()));
                    continue;
                }
                _ => continue,
            };
            if slot.is_some() {
                return Err(Fault::Twice(name));
            }
            *slot = Some(value.to_str().map_err(|_| Fault::NotText(name))?);
        }
        if bytes > bytes_max { Err(Fault::TooLarge) } else { Ok(heads) }
    }

    /// The origin, if there is exactly one; for a response to headers that were refused.
    pub(crate) fn origin_alone(headers: &'a HeaderMap) -> Option<&'a str> {
        let mut origins = headers.get_all(header::ORIGIN);
        let origin = origins.next()?.to_str().ok()?;
        origins.next().is_none().then_some(origin)
    }
}

#[cfg(test)]
mod tests {
    use actix_http::header::{HeaderName, HeaderValue};

    use super::*;

    fn map(headers: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        map
    }

    #[test]
    fn names_are_found_in_every_case() {
        let map = map(&[("MCP-Session-Id", "s"), ("mcp-PROTOCOL-version", "v"), ("Origin", "o")]);
        let heads = Heads::read(&map, 1_000).unwrap();
        assert_eq!((heads.session, heads.version, heads.origin), (Some("s"), Some("v"), Some("o")));
    }

    #[test]
    fn a_deciding_header_may_come_once() {
        for name in ["mcp-session-id", "content-type", "origin", "last-event-id"] {
            let map = map(&[(name, "a"), (name, "a")]);
            assert_eq!(Heads::read(&map, 1_000).unwrap_err(), Fault::Twice(name));
        }
        let twice = map(&[("accept", "application/json"), ("accept", "text/event-stream")]);
        assert!(Heads::read(&twice, 1_000).unwrap().accept.events());
    }

    #[test]
    fn values_beyond_ascii_are_refused_and_only_where_they_matter() {
        assert_eq!(
            Heads::read(&map(&[("last-event-id", "größe")]), 1_000).unwrap_err(),
            Fault::NotText("last-event-id")
        );
        assert!(Heads::read(&map(&[("x-other", "größe")]), 1_000).is_ok());
    }

    #[test]
    fn a_head_has_a_greatest_size() {
        let map = map(&[("x-other", "0123456789")]);
        assert!(Heads::read(&map, 17).is_ok());
        assert_eq!(Heads::read(&map, 16).unwrap_err(), Fault::TooLarge);
    }
}
