//! CORS: what browsers allow pages to do here. Only pages of the origins that the origin check
//! allows may use an endpoint (CORS-05). A page of any other origin may read why it was refused, and
//! nothing else.

use actix_http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_http::{Response, StatusCode};
use tenants::Tenant;

use crate::body::Body;
use crate::{Error, Settings};

/// Request headers that pages may send, whatever they ask for (CORS-02, CORS-03).
const ALLOWED: &str = "content-type, authorization, accept, mcp-session-id, \
     mcp-protocol-version, last-event-id, mcp-method, mcp-name";

/// Response headers that pages may read (CORS-04).
const EXPOSED: &str = "Mcp-Session-Id, MCP-Protocol-Version, WWW-Authenticate, Retry-After, \
                       RateLimit, RateLimit-Policy, Allow";

/// Most requested names of the `Mcp-*` family that are allowed; further ones are left out. A call
/// has at most as many mirrored parameters as the HTTP layer accepts headers.
const REQUESTED_MAX: usize = 64;

/// How long a browser may cache a preflight's answer, in seconds. Chromium caches none longer.
const MAX_AGE_SECS: u32 = 7_200;

/// The request headers that the operator lets pages send, beside those of MCP.
#[derive(Clone, Debug)]
pub(crate) struct AllowedHeaders(Vec<HeaderName>);

impl AllowedHeaders {
    /// The headers of these settings.
    pub(crate) fn new(settings: &Settings) -> Result<Self, Error> {
        let read = |written: &String| match HeaderName::from_bytes(written.as_bytes()) {
            Ok(name) if name.as_str() != "*" => Ok(name),
            _ => Err(Error::Setting {
                setting: "front.cors_headers",
                written: written.clone(),
                remedy: "write the name of a header, as in x-request-id; there is no wildcard"
                    .to_owned(),
            }),
        };
        settings.cors_headers.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// The names for a tenant's endpoint.
    pub(crate) fn names<'a>(&'a self, tenant: Option<&'a Tenant>) -> impl Iterator<Item = &'a str> {
        let tenants_own = tenant.into_iter().flat_map(|tenant| &tenant.cors_headers);
        self.0.iter().map(HeaderName::as_str).chain(tenants_own.map(String::as_str))
    }
}

/// Answers `OPTIONS` (CORS-01): a preflight, or a request for the allowed methods. Pages may send the
/// `configured` headers as well.
pub(crate) fn preflight<'a>(
    methods: &'static str,
    requested: Option<&str>,
    configured: impl Iterator<Item = &'a str>,
) -> Response<Body> {
    let mut response = Response::with_body(StatusCode::NO_CONTENT, Body::Empty);
    let headers = response.headers_mut();
    headers.insert(header::ALLOW, HeaderValue::from_static(methods));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(methods));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed_headers(requested, configured));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(MAX_AGE_SECS));
    response
}

/// The headers that are always allowed, the configured ones, and the requested ones of the `Mcp-*`
/// family. A wildcard
/// does not cover `Authorization`, and CORS has no pattern for a family (CORS-03).
fn allowed_headers<'a>(
    requested: Option<&str>,
    configured: impl Iterator<Item = &'a str>,
) -> HeaderValue {
    let mut allowed = ALLOWED.to_owned();
    for name in configured {
        allowed.push_str(", ");
        allowed.push_str(name);
    }
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

    fn of(requested: Option<&str>) -> HeaderValue {
        allowed_headers(requested, std::iter::empty())
    }

    #[test]
    fn the_configured_headers_are_names_and_each_tenant_adds_its_own() {
        let settings = |names: &[&str]| Settings {
            cors_headers: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Settings::default()
        };
        for wrong in ["*", "", "a b", "größe"] {
            let error = AllowedHeaders::new(&settings(&[wrong])).unwrap_err().to_string();
            assert!(error.starts_with("`front.cors_headers` is"), "{error}");
        }
        let allowed = AllowedHeaders::new(&settings(&["X-Request-ID"])).unwrap();
        let tenant =
            tenants::Settings { cors_headers: vec!["x-own".into()], ..tenants::Settings::open() };
        let tenant = Tenant::new("a", &tenant).unwrap();
        let names: Vec<_> = allowed.names(Some(&tenant)).collect();
        assert_eq!(names, ["x-request-id", "x-own"]);
        assert_eq!(allowed.names(None).count(), 1);
    }

    #[test]
    fn the_mcp_family_is_allowed_as_requested_and_strangers_are_not() {
        let allowed = of(Some("Mcp-Param-Region, X-Evil, mcp-name,, b@d,Last-Event-ID"));
        let allowed = allowed.to_str().unwrap();
        assert_eq!(allowed, format!("{ALLOWED}, mcp-param-region"));
        assert_eq!(of(None).to_str().unwrap(), ALLOWED);
    }

    #[test]
    fn a_preflight_is_not_answered_with_more_names_than_a_call_has() {
        let many: Vec<_> = (0..3_000).map(|n| format!("mcp-param-{n}")).collect();
        let allowed = of(Some(&many.join(",")));
        assert_eq!(allowed.to_str().unwrap().matches("mcp-param-").count(), 64);
    }
}
