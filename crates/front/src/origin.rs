//! The `Origin` and `Host` checks (SEC-01, SEC-02, SEC-03).
//!
//! They prevent a foreign page, also one whose name was rebound to this machine's address, from
//! reaching this server through a client's browser. Neither is authentication.

use crate::client_address::TrustedProxies;
use crate::cors::AllowedHeaders;
use crate::{Error, Settings, route};

/// The allowed origins and hosts, read from the settings once.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    /// The listener is on loopback, so local pages and local names are allowed.
    loopback: bool,
    /// In lower case, without the default port of the scheme.
    origins: Vec<String>,
    /// In lower case; empty if `Host` is not checked.
    hosts: Vec<String>,
}

impl Gate {
    /// The gate of these settings.
    pub(crate) fn new(settings: &Settings) -> Result<Self, Error> {
        let mut origins = Vec::new();
        for written in &settings.allowed_origins {
            let origin = origin_of(written).filter(|(_, path)| path.is_empty());
            match origin {
                Some((origin, _)) => origins.push(origin),
                None if written == "null" => origins.push(written.clone()),
                None => {
                    return Err(Error::Setting {
                        setting: "front.allowed_origins",
                        written: written.clone(),
                        remedy: tenants::origin_remedy(written),
                    });
                }
            }
        }
        let loopback = settings.listen.ip().is_loopback();
        let mut hosts: Vec<String> =
            settings.allowed_hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        let looks_at_hosts = loopback || !hosts.is_empty();
        if let Some(url) = &settings.public_url {
            let (origin, _) = origin_of(url).ok_or_else(|| bad_public_url(url))?;
            if looks_at_hosts {
                hosts.extend(origin.split_once("://").map(|(_, host)| host.to_owned()));
            }
            origins.push(origin);
        }
        Ok(Self { loopback, origins, hosts })
    }

    /// Is a page of this origin allowed, here or by the tenant's own list?
    pub(crate) fn allows_origin(&self, origin: &str, tenants_own: &[String]) -> bool {
        let listed = |known: &String| known.eq_ignore_ascii_case(origin);
        (self.loopback && is_loopback_origin(origin))
            || self.origins.iter().any(listed)
            || tenants_own.iter().any(listed)
    }

    /// Does this server answer for this host name? Every browser sends one.
    pub(crate) fn allows_host(&self, host: Option<&str>) -> bool {
        if !self.loopback && self.hosts.is_empty() {
            return host.is_none_or(|host| split_port(host).is_some());
        }
        let Some(host) = host else { return false };
        let name = split_port(host).map(|(name, _)| name);
        let is_name = |wanted: &str| name.is_some_and(|name| name.eq_ignore_ascii_case(wanted));
        (self.loopback && name.is_some_and(is_loopback_name))
            || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host) || is_name(known))
    }
}

impl Settings {
    /// The host names that are the node's own, in lower case, without ports.
    pub fn own_hosts(&self) -> Vec<String> {
        let loopback = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        let name = |host: &String| split_port(host).map(|(name, _)| name.to_ascii_lowercase());
        let written = self.allowed_hosts.iter().filter_map(name);
        written.chain(self.public_host()).chain(loopback).collect()
    }

    /// The host of `public_url`, in lower case, without its port.
    pub fn public_host(&self) -> Option<String> {
        let (origin, _) = origin_of(self.public_url.as_deref()?)?;
        split_port(origin.split_once("://")?.1).map(|(name, _)| name.to_owned())
    }

    /// Everything that is wrong with the settings of origins, hosts and proxies: each must be written
    /// so that a request can match it. The server checks the same at its start; this method is for a
    /// caller that checks earlier.
    pub fn problems(&self) -> Vec<Error> {
        let only = |change: &dyn Fn(&mut Self)| {
            let mut only = Self { listen: self.listen, ..Self::default() };
            change(&mut only);
            let gate = Gate::new(&only).err();
            let proxies = || TrustedProxies::new(&only).err();
            gate.or_else(proxies).or_else(|| AllowedHeaders::new(&only).err())
        };
        let url = only(&|only| only.public_url.clone_from(&self.public_url));
        let origins = self.allowed_origins.iter();
        let origins =
            origins.map(|origin| only(&|only| only.allowed_origins = vec![origin.clone()]));
        let proxies = self.trusted_proxies.iter();
        let proxies = proxies.map(|proxy| only(&|only| only.trusted_proxies = vec![proxy.clone()]));
        let endpoint = self.public_url.as_ref().filter(|_| url.is_none()).and_then(|written| {
            let base = without_endpoint(written)?;
            let remedy = format!(
                "it ends with the path of an endpoint, and each tenant has its own; write {base:?}"
            );
            Some(Error::Setting { setting: "front.public_url", written: written.clone(), remedy })
        });
        let headers = self.cors_headers.iter();
        let headers = headers.map(|name| only(&|only| only.cors_headers = vec![name.clone()]));
        let all = [url, endpoint].into_iter().chain(origins).chain(proxies).chain(headers);
        all.flatten().collect()
    }
}

/// The URL without the path of an endpoint, `/{tenant}/mcp`, if it ends with one.
fn without_endpoint(url: &str) -> Option<&str> {
    let before = |url: &str| url.rfind('/');
    let url = url.trim_end_matches('/');
    let start = before(&url[..before(url)?])?;
    route::find(&url[start..]).map(|_| &url[..start])
}

/// The origin of the public URL, and its path without a slash at the end; `None` if there is none.
pub(crate) fn origin_and_path(settings: &Settings) -> Result<Option<(String, String)>, Error> {
    let Some(url) = &settings.public_url else { return Ok(None) };
    let (origin, path) = origin_of(url).ok_or_else(|| bad_public_url(url))?;
    Ok(Some((origin, path.trim_end_matches('/').to_owned())))
}

fn bad_public_url(written: &str) -> Error {
    Error::Setting {
        setting: "front.public_url",
        written: written.to_owned(),
        remedy: "write an http or https URL without user, query and wildcard, as in \
                 \"https://mcp.example.com\""
            .into(),
    }
}

/// Splits a URL without query into its origin, as browsers write it, and its path.
fn origin_of(url: &str) -> Option<(String, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let scheme = scheme.to_ascii_lowercase();
    let (host, port) = split_port(authority)?;
    let odd = |byte: u8| !byte.is_ascii_graphic() || matches!(byte, b'@' | b'*' | b'?' | b'#');
    if scheme.is_empty() || host.is_empty() || url.bytes().any(odd) {
        return None;
    }
    let implied = matches!((&*scheme, port), ("http", Some("80")) | ("https", Some("443")));
    let authority = if implied { host } else { authority };
    Some((format!("{scheme}://{}", authority.to_ascii_lowercase()), path))
}

fn is_loopback_origin(origin: &str) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.and_then(split_port).is_some_and(|(name, _)| is_loopback_name(name))
}

fn is_loopback_name(name: &str) -> bool {
    matches!(name, "127.0.0.1" | "[::1]") || name.eq_ignore_ascii_case("localhost")
}

/// Splits `name:port`; `None` if the text after the colon is not a port.
pub(crate) fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    match authority.rsplit_once(':') {
        // The colon belongs to a bracketed IPv6 address.
        Some((_, rest)) if rest.ends_with(']') => Some((authority, None)),
        Some((name, port)) => is_port(port).then_some((name, Some(port))),
        None => Some((authority, None)),
    }
}

/// Digits only: `parse` alone accepts a sign.
fn is_port(port: &str) -> bool {
    port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(listen: &str, change: impl FnOnce(&mut Settings)) -> Gate {
        let mut settings = Settings { listen: listen.parse().unwrap(), ..Settings::default() };
        change(&mut settings);
        Gate::new(&settings).unwrap()
    }

    #[test]
    fn a_loopback_listener_allows_only_local_pages_on_any_port() {
        let gate = gate("127.0.0.1:0", |_| {});
        for local in [
            "http://localhost",
            "https://localhost:6274",
            "http://127.0.0.1:3000",
            "http://[::1]:1",
            "http://[::1]",
        ] {
            assert!(gate.allows_origin(local, &[]), "{local}");
        }
        for foreign in [
            "http://evil.example",
            "http://localhost.evil.example",
            "http://evil.example:80",
            "http://localhost:80@evil.example",
            "http://localhost:evil",
            "file://localhost",
            "http://127.0.0.1.evil.example",
            "null",
            "",
            "localhost",
            "http://localhost/",
        ] {
            assert!(!gate.allows_origin(foreign, &[]), "{foreign}");
        }
    }

    #[test]
    fn listed_origins_are_taken_and_null_only_where_it_is_written() {
        let gate = gate("0.0.0.0:0", |settings| {
            settings.allowed_origins = vec!["https://App.example.com:443".into(), "null".into()];
            settings.public_url = Some("https://mcp.example.com/base/".into());
        });
        for listed in ["https://app.example.com", "https://mcp.example.com", "null"] {
            assert!(gate.allows_origin(listed, &[]), "{listed}");
        }
        assert!(!gate.allows_origin("http://localhost", &[]), "the listener is not local");
        assert!(!gate.allows_origin("http://app.example.com", &[]), "the scheme differs");
        assert!(gate.allows_origin("https://t.example", &["https://t.example".into()]));
    }

    #[test]
    fn a_loopback_listener_answers_to_local_names_only() {
        let gate = gate("[::1]:0", |settings| settings.allowed_hosts = vec!["box.lan".into()]);
        for ours in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "box.lan:9"] {
            assert!(gate.allows_host(Some(ours)), "{ours}");
        }
        for foreign in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "localhost:+80",
            "",
            ":80",
        ] {
            assert!(!gate.allows_host(Some(foreign)), "{foreign}");
        }
        assert!(!gate.allows_host(None));
    }

    #[test]
    fn elsewhere_hosts_are_looked_at_only_where_some_are_listed() {
        let any = gate("0.0.0.0:0", |_| {});
        assert!(any.allows_host(Some("any.example")) && any.allows_host(Some("[::1]:80")));
        assert!(!any.allows_host(Some("any.example:+80")), "this is no port");
        let strict = gate("0.0.0.0:0", |settings| {
            settings.allowed_hosts = vec!["mcp.example.com:8443".into()];
            settings.public_url = Some("https://public.example.com".into());
        });
        assert!(strict.allows_host(Some("mcp.example.com:8443")));
        assert!(strict.allows_host(Some("public.example.com")));
        for foreign in ["mcp.example.com", "mcp.example.com:1", "localhost", "any.example"] {
            assert!(!strict.allows_host(Some(foreign)), "{foreign}");
        }
    }

    #[test]
    fn what_can_match_nothing_is_refused_at_the_start() {
        for written in ["app.example.com", "https://app.example.com/", "https://*.example.com", "*"]
        {
            let settings =
                Settings { allowed_origins: vec![written.into()], ..Settings::default() };
            assert!(Gate::new(&settings).is_err(), "{written}");
        }
        let settings = Settings { public_url: Some("mcp".into()), ..Settings::default() };
        assert!(Gate::new(&settings).unwrap_err().to_string().contains("public_url"));
    }

    #[test]
    fn everything_that_is_wrong_with_origins_hosts_and_proxies_is_found_at_once() {
        let settings = Settings {
            public_url: Some("https://mcp.example.com/base/acme/mcp/".into()),
            allowed_origins: vec!["*".into(), "https://a.example".into(), "https://b/".into()],
            trusted_proxies: vec!["everyone".into()],
            ..Settings::default()
        };
        let problems: Vec<_> = settings.problems().iter().map(ToString::to_string).collect();
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert!(problems[0].ends_with("write \"https://mcp.example.com/base\""), "{problems:?}");
        assert!(problems[1].contains("there is no wildcard"), "{problems:?}");
        assert!(problems[2].contains("slash at its end"), "{problems:?}");
        assert!(problems[3].contains("`front.trusted_proxies`"), "{problems:?}");
    }

    #[test]
    fn a_public_url_may_have_a_path() {
        let at = |url: &str| {
            let settings = Settings { public_url: Some(url.into()), ..Settings::default() };
            origin_and_path(&settings).unwrap().unwrap().1
        };
        assert_eq!(at("https://a.example"), "");
        assert_eq!(at("https://a.example/"), "");
        assert_eq!(at("https://a.example/gate/way/"), "/gate/way");
    }
}
