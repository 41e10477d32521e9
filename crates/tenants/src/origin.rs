//! Checks allowed origins: each must have the form that a browser sends in `Origin` (SEC-01).

use crate::Error;

/// Whether a browser's `Origin` can equal this text.
pub(crate) fn check(tenant: &str, written: &str) -> Result<(), Error> {
    let is_origin = written.split_once("://").is_some_and(|(scheme, authority)| {
        is_scheme(scheme) && is_authority(authority) && !is_implied(scheme, authority)
    });
    // Sandboxed pages send `null`; an operator that lists it allows such pages.
    if is_origin || written == "null" {
        return Ok(());
    }
    let remedy = remedy(written);
    Err(Error::Origin { name: tenant.into(), written: written.into(), remedy })
}

/// What to write instead of an origin that no browser sends.
pub fn remedy(written: &str) -> String {
    let form = "write scheme, host and port only, as in \"https://app.example.com\"";
    if written.contains('*') {
        return "there is no wildcard; list each origin, as in \"https://app.example.com\"".into();
    }
    let Some((scheme, rest)) = written.split_once("://") else {
        return "write the scheme before it, as in \"https://app.example.com\"".into();
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if authority.contains('@') || authority.is_empty() {
        return form.into();
    }
    let bare = format!("{scheme}://{authority}").to_ascii_lowercase();
    if path == "/" {
        return format!("leave out the slash at its end: {bare:?}");
    }
    if !path.is_empty() {
        return format!("leave out the path: {bare:?}");
    }
    if written != bare {
        return format!("write it in lower case, as browsers do: {bare:?}");
    }
    if is_implied(scheme, authority) {
        let host = split_port(authority).0;
        return format!("leave out the port, as browsers do: \"{scheme}://{host}\"");
    }
    form.into()
}

/// The default port of a scheme, which browsers leave out.
fn is_implied(scheme: &str, authority: &str) -> bool {
    matches!((scheme, split_port(authority).1), ("http", Some("80")) | ("https", Some("443")))
}

fn is_scheme(scheme: &str) -> bool {
    scheme.starts_with(|first: char| first.is_ascii_lowercase())
        && scheme.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'+' | b'-' | b'.'))
}

// An `Origin` never has upper case, a path, a user or a wildcard, so a rule with one of them would
// match no request.
fn is_authority(authority: &str) -> bool {
    let (host, port) = split_port(authority);
    let in_host = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_');
    let host_fits = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(in_host),
    };
    host_fits && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_browser_sends_is_an_origin() {
        for written in [
            "https://app.example.com",
            "http://localhost:3000",
            "https://[::1]:8443",
            "http://[::1]",
            "vscode-webview://abc123",
            "null",
        ] {
            assert_eq!(check("t", written), Ok(()), "{written}");
        }
    }

    #[test]
    fn what_no_browser_sends_is_refused() {
        for written in [
            "*",
            "app.example.com",
            "https://app.example.com/",
            "https://*.example.com",
            "https://App.example.com",
            "https://user@app.example.com",
            "https://app.example.com:",
            "https://app.example.com:99999",
            "https://",
            "https://app.example.com:443",
            "",
        ] {
            assert!(check("t", written).is_err(), "{written}");
        }
    }

    #[test]
    fn a_refused_origin_comes_with_what_to_write() {
        for (written, wanted) in [
            ("*", "there is no wildcard"),
            ("https://*.example.com", "there is no wildcard"),
            ("https://a.example/", "leave out the slash at its end: \"https://a.example\""),
            ("https://a.example/x", "leave out the path: \"https://a.example\""),
            ("https://A.example", "in lower case, as browsers do: \"https://a.example\""),
            ("https://a.example:443", "leave out the port, as browsers do: \"https://a.example\""),
            ("a.example", "write the scheme before it"),
            ("https://u@a.example", "scheme, host and port only"),
        ] {
            let refusal = check("t", written).unwrap_err().to_string();
            assert!(refusal.contains(wanted), "{written}: {refusal}");
        }
    }
}
