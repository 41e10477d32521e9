//! CORS: what browsers allow pages to do here. Only pages of the origins that the origin check
//! allows get these headers (CORS-05).

use actix_http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_http::{Response, StatusCode};

use crate::body::Body;

/// Request headers that pages may send, whatever they ask for (CORS-02, CORS-03).
const ALLOWED: &str = "content-type, authorization, accept, mcp-session-id, \
     mcp-protocol-version, last-event-id, mcp-method, mcp-name";

/// Response headers that pages may read (CORS-04).
const EXPOSED: &str = "Mcp-Session-Id, MCP-Protocol-Version, WWW-Authenticate, Retry-After, Allow";

/// Most requested names of the `Mcp-*` family that are allowed; further ones are left out. A call
/// has at most as many mirrored parameters as the HTTP layer accepts headers.
const REQUESTED_MAX: usize = 64;

/// How long a browser may cache a preflight's answer, in seconds. Chromium caches none longer.
const MAX_AGE_SECS: u32 = 7_200;

/// Answers `OPTIONS` (CORS-01): a preflight, or a request for the allowed methods.
pub(crate) fn preflight(methods: &'static str, requested: Option<&str>) -> Response<Body> {
    let mut response = Response::with_body(StatusCode::NO_CONTENT, Body::Empty);
    let headers = response.headers_mut();
    headers.insert(header::ALLOW, HeaderValue::from_static(methods));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(methods));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed_headers(requested));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(MAX_AGE_SECS));
    response
}

/// The headers that are always allowed, and the requested ones of the `Mcp-*` family. A wildcard
/// does not cover `Authorization`, and CORS has no pattern for a family (CORS-03).
fn allowed_headers(requested: Option<&str>) -> HeaderValue {
    let mut allowed = ALLOWED.to_owned();
    let mut added = 0;
    for name in requested.unwrap_or_default().split(',') {
        let Ok(name) = HeaderName::from_bytes(name.trim().as_bytes()) else { continue };
        let known = || ALLOWED.split(", ").any(|known| known == name.as_str());
        if added < REQUESTED_MAX && name.as_str().starts_with("mcp-") && !known() {
            added += 1;
            allowed.push_str(", ");
            allowed.push_str(name.as_str());
        }
    }
    HeaderValue::from_str(&allowed).unwrap_or(HeaderValue::from_static(ALLOWED))
}

/// Lets the requesting page read the response, also an error (CORS-04, CORS-05).
pub(crate) fn expose(headers: &mut HeaderMap, origin: &str) {
    if let Ok(origin) = HeaderValue::from_str(origin) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    }
}

/// Makes caches keep a separate answer for each origin.
pub(crate) fn vary(headers: &mut HeaderMap) {
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mcp_family_is_allowed_as_requested_and_strangers_are_not() {
        let allowed =
            allowed_headers(Some("Mcp-Param-Region, X-Evil, mcp-name,, b@d,Last-Event-ID"));
        let allowed = allowed.to_str().unwrap();
        assert_eq!(allowed, format!("{ALLOWED}, mcp-param-region"));
        assert_eq!(allowed_headers(None).to_str().unwrap(), ALLOWED);
    }

    #[test]
    fn a_preflight_is_not_answered_with_more_names_than_a_call_has() {
        let many: Vec<_> = (0..3_000).map(|n| format!("mcp-param-{n}")).collect();
        let allowed = allowed_headers(Some(&many.join(",")));
        assert_eq!(allowed.to_str().unwrap().matches("mcp-param-").count(), 64);
    }
}
