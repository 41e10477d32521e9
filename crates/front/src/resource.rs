//! An endpoint as a protected resource of OAuth: its URLs, its metadata, and what a challenge says of it
//! (SEC-09 to SEC-12).
//!
//! The URLs come from the settings, and from a request only the host and the port at which it came.
//! The audiences of tokens come from the settings alone.

use actix_http::header::{self, HeaderValue};
use actix_http::{Method, Response, StatusCode};
use bytes::Bytes;
use serde::Serialize;
use tenants::{OauthRules, Tenant};

use crate::body::Body;
use crate::origin::origin_and_path;
use crate::refusal::Refused;
use crate::route::{Endpoint, METADATA};
use crate::{Error, Settings};

/// How long a client or a cache may keep the metadata, in seconds.
const METADATA_AGE: &str = "max-age=300";

/// Where clients reach the endpoints of a node.
#[derive(Clone, Debug)]
pub(crate) struct PublicUrls {
    /// The origin of `front.public_url`, if that is set.
    origin: Option<String>,
    /// The path of `front.public_url`, without a slash at its end.
    path: String,
}

impl PublicUrls {
    /// The URLs of these settings.
    pub(crate) fn new(settings: &Settings) -> Result<Self, Error> {
        Ok(match origin_and_path(settings)? {
            Some((origin, path)) => Self { origin: Some(origin), path },
            None => Self { origin: None, path: String::new() },
        })
    }

    /// The path under which a proxy serves this node; empty if there is none.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Where the pages are on which users of a tenant link accounts, before their names; `None` without a
    /// public URL.
    pub(crate) fn links(&self, tenant: &str) -> Option<String> {
        Some(format!("{}{}/{tenant}/link/", self.origin.as_ref()?, self.path))
    }

    /// The URL of an endpoint of a tenant: by its path, or at this host of it, with a port or without.
    fn url(&self, tenant: &str, endpoint: Endpoint, host: Option<&str>) -> Option<Url> {
        let endpoint = endpoint.name();
        Some(match host {
            Some(host) => {
                let scheme = self.scheme_of_hosts();
                let usual = if scheme == "https" { ":443" } else { ":80" };
                let host = host.strip_suffix(usual).unwrap_or(host);
                Url { origin: format!("{scheme}://{host}"), path: format!("/{endpoint}") }
            }
            None => Url {
                origin: self.origin.clone()?,
                path: format!("{}/{tenant}/{endpoint}", self.path),
            },
        })
    }

    /// Hosts of tenants are served as the public URL is.
    fn scheme_of_hosts(&self) -> &str {
        let scheme = self.origin.as_deref().and_then(|origin| origin.split_once("://"));
        scheme.map_or("https", |(scheme, _)| scheme)
    }

    /// The audiences of which a token for this tenant must have one.
    pub(crate) fn audiences(&self, tenant: &Tenant, rules: &OauthRules) -> Vec<String> {
        if !rules.audiences.is_empty() {
            return rules.audiences.clone();
        }
        let hosts = rules.hosts.iter().map(|host| Some(host.as_str())).chain([None]);
        let urls = hosts.flat_map(|host| {
            [Endpoint::Mcp, Endpoint::Sse].map(|endpoint| self.url(&tenant.name, endpoint, host))
        });
        urls.flatten().map(|url| url.whole()).collect()
    }

    /// Where the metadata of the endpoint of a request is. Without a public URL an endpoint is not known by
    /// its path: then that at the tenant's first host.
    pub(crate) fn metadata_url(
        &self,
        tenant: &Tenant,
        endpoint: Endpoint,
        host: Option<&str>,
    ) -> Option<String> {
        let first = || tenant.hosts.first().filter(|_| self.origin.is_none()).map(String::as_str);
        let host = host.or_else(first);
        let url = self.url(&tenant.name, endpoint.protected(), host)?;
        Some(format!("{}{METADATA}{}", url.origin, url.path))
    }

    /// Answers a request for the metadata of an endpoint (RFC 9728). Any page may read it.
    pub(crate) fn metadata(
        &self,
        tenant: &Tenant,
        rules: &OauthRules,
        endpoint: Endpoint,
        host: Option<&str>,
    ) -> Option<Response<Body>> {
        let resource = self.url(&tenant.name, endpoint, host)?.whole();
        let of_rules = tenant.permissions.as_ref().map(|permissions| permissions.scopes());
        let scopes = rules.scopes.union(&of_rules.unwrap_or_default());
        let metadata = Metadata {
            resource: &resource,
            authorization_servers: [&rules.issuer],
            bearer_methods_supported: ["header"],
            scopes_supported: scopes.iter().collect(),
            resource_name: &tenant.name,
        };
        let body = Bytes::from(serde_json::to_vec(&metadata).ok()?);
        let mut response = Response::with_body(StatusCode::OK, Body::whole(body));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(METADATA_AGE));
        Some(response)
    }
}

/// Redirects a client of 2025-03-26 to the metadata of the issuer: that revision has clients look
/// for it at the server (SEC-15).
pub(crate) fn to_issuer(rules: &OauthRules) -> Option<Response<Body>> {
    let target = identity::server_metadata_url(&rules.issuer);
    let mut response = Response::with_body(StatusCode::TEMPORARY_REDIRECT, Body::Empty);
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_str(&target).ok()?);
    Some(response)
}

/// Lets every page read a document that is no secret, also where the server allows no page.
pub(crate) fn public(method: &Method, mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    if *method != Method::OPTIONS {
        return response;
    }
    let mut answer = Response::with_body(StatusCode::NO_CONTENT, Body::Empty);
    let headers = answer.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET"));
    // Clients send the revision with each request.
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("mcp-protocol-version, accept, content-type"),
    );
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
    answer
}

/// Refuses another method than GET at a document.
pub(crate) fn only_get(method: &Method) -> Result<(), Refused> {
    match *method {
        Method::GET | Method::HEAD | Method::OPTIONS => Ok(()),
        _ => Err(Refused::method("GET")),
    }
}

/// A URL in two parts, between which the path of its metadata is inserted.
struct Url {
    origin: String,
    path: String,
}

impl Url {
    fn whole(self) -> String {
        self.origin + &self.path
    }
}

#[derive(Serialize)]
struct Metadata<'a> {
    resource: &'a str,
    authorization_servers: [&'a str; 1],
    bearer_methods_supported: [&'a str; 1],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scopes_supported: Vec<&'a str>,
    resource_name: &'a str,
}

#[cfg(test)]
mod tests {
    use tenants::{OauthSettings, Settings as TenantSettings};

    use super::*;

    fn urls(public_url: Option<&str>) -> PublicUrls {
        let public_url = public_url.map(str::to_owned);
        PublicUrls::new(&Settings { public_url, ..Settings::default() }).unwrap()
    }

    fn tenant(hosts: &[&str]) -> Tenant {
        let oauth =
            OauthSettings { issuer: "https://i.example/a".into(), ..OauthSettings::default() };
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        let settings = TenantSettings {
            auth: Some("oauth".into()),
            oauth,
            hosts,
            ..TenantSettings::default()
        };
        Tenant::new("acme", &settings).unwrap()
    }

    #[test]
    fn the_metadata_is_inserted_before_the_path() {
        let (urls, tenant) = (urls(Some("https://mcp.example.com/base/")), tenant(&[]));
        assert_eq!(
            urls.metadata_url(&tenant, Endpoint::Mcp, None).unwrap(),
            "https://mcp.example.com/.well-known/oauth-protected-resource/base/acme/mcp"
        );
        assert_eq!(
            urls.metadata_url(&tenant, Endpoint::Messages, Some("acme.example.com")).unwrap(),
            "https://acme.example.com/.well-known/oauth-protected-resource/sse"
        );
        let at_host = |public_url| {
            let urls = self::urls(public_url);
            urls.metadata_url(&tenant, Endpoint::Mcp, Some("h.example:8080")).unwrap()
        };
        let path = "h.example:8080/.well-known/oauth-protected-resource/mcp";
        assert_eq!(at_host(None), format!("https://{path}"));
        assert_eq!(at_host(Some("http://n.example")), format!("http://{path}"));
        assert_eq!(self::urls(None).metadata_url(&tenant, Endpoint::Mcp, None), None);
        let with_ports = self::tenant(&["a.example:8443"]);
        assert_eq!(
            self::urls(None).metadata_url(&with_ports, Endpoint::Mcp, None).unwrap(),
            "https://a.example:8443/.well-known/oauth-protected-resource/mcp"
        );
        let with_hosts = self::tenant(&["a.example", "b.example"]);
        assert_eq!(
            self::urls(None).metadata_url(&with_hosts, Endpoint::Mcp, None).unwrap(),
            "https://a.example/.well-known/oauth-protected-resource/mcp"
        );
        assert_eq!(
            urls.metadata_url(&with_hosts, Endpoint::Mcp, None).unwrap(),
            "https://mcp.example.com/.well-known/oauth-protected-resource/base/acme/mcp"
        );
    }

    #[test]
    fn the_audiences_are_the_urls_of_the_endpoint_or_the_written_ones() {
        let tenant = tenant(&["acme.example.com"]);
        let rules = OauthRules::clone(tenant.access.oauth().unwrap());
        let all = urls(Some("https://mcp.example.com")).audiences(&tenant, &rules);
        assert_eq!(
            all,
            [
                "https://acme.example.com/mcp",
                "https://acme.example.com/sse",
                "https://mcp.example.com/acme/mcp",
                "https://mcp.example.com/acme/sse",
            ]
        );
        assert_eq!(urls(None).audiences(&tenant, &rules).len(), 2);
        let with_ports = self::tenant(&["a.example:8443", "b.example:443", "b.example:80"]);
        let of_ports = with_ports.access.oauth().unwrap();
        let of_mcp = |public_url| {
            let mut urls = urls(public_url).audiences(&with_ports, of_ports);
            urls.retain(|url| url.ends_with("/mcp"));
            urls
        };
        let secure =
            ["https://a.example:8443/mcp", "https://b.example/mcp", "https://b.example:80/mcp"];
        assert_eq!(of_mcp(None), secure);
        let plain =
            ["http://a.example:8443/mcp", "http://b.example:443/mcp", "http://b.example/mcp"];
        assert_eq!(of_mcp(Some("http://n.example"))[..3], plain);
        let rules = OauthRules { audiences: vec!["api://acme".into()], ..rules };
        assert_eq!(urls(None).audiences(&tenant, &rules), ["api://acme"]);
    }

    #[test]
    fn the_metadata_of_an_issuer_with_a_path_is_found() {
        let response = to_issuer(&OauthRules::of_issuer("https://i.example/a/")).unwrap();
        let location = response.headers().get(header::LOCATION).unwrap();
        assert_eq!(location, "https://i.example/.well-known/oauth-authorization-server/a");
    }
}
