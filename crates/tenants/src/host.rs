//! The hosts at which a tenant's endpoint is served: a name, and the port that clients write, if it is not
//! the usual one. A name is one tenant's at every port; the port is in URLs of the endpoint.

use std::num::NonZeroU16;

use crate::Error;

/// Most bytes of a host name (RFC 1035, section 2.3.4).
const LENGTH_MAX: usize = 253;

/// The name of a host, without its port.
pub fn name_of_host(host: &str) -> &str {
    host.split_once(':').map_or(host, |(name, _)| name)
}

/// Whether this is a host as a client sends it: a name, and a port or none.
pub(crate) fn check(tenant: &str, written: &str) -> Result<(), Error> {
    let is_label = |label: &str| {
        let in_label = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
        !label.is_empty() && label.len() <= 63 && label.bytes().all(in_label)
    };
    let (host, port) = written.split_once(':').unzip();
    let host = host.unwrap_or(written);
    let is_port =
        |port: &str| port.parse().is_ok_and(|number: NonZeroU16| *port == *number.to_string());
    let is_name = host.len() <= LENGTH_MAX && host.split('.').all(is_label);
    if is_name && port.is_none_or(is_port) {
        return Ok(());
    }
    let form = "write the name alone, as in \"acme.example.com\", or with a port";
    let remedy = if written.contains('*') {
        "there is no wildcard; list each name"
    } else if written.contains("://") || written.contains('/') {
        "leave out the scheme and the path"
    } else if is_name {
        "write the port as a number from 1 to 65535, as in \"acme.example.com:8443\""
    } else if written.bytes().any(|byte| byte.is_ascii_uppercase()) {
        "write it in lower case"
    } else {
        form
    };
    Err(Error::Host { name: tenant.into(), written: written.into(), remedy })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_in_lower_case_with_a_port_or_without() {
        let names = ["acme.example.com", "localhost", "a-b.c_d.example", "10.0.0.1"];
        for written in names {
            let with_port = format!("{written}:8443");
            assert_eq!(
                (check("t", written), check("t", &with_port)),
                (Ok(()), Ok(())),
                "{written}"
            );
            assert_eq!((name_of_host(written), name_of_host(&with_port)), (written, written));
        }
        for (written, wanted) in [
            ("", "write the name alone"),
            ("a..b", "write the name alone"),
            (".example.com", "write the name alone"),
            ("größe.example", "write the name alone"),
            ("*.example.com", "there is no wildcard"),
            ("https://a.example", "leave out the scheme"),
            ("a.example/mcp", "leave out the scheme and the path"),
            ("a.example:", "write the port as a number"),
            ("a.example:0", "write the port as a number"),
            ("a.example:0443", "write the port as a number"),
            ("a.example:65536", "write the port as a number"),
            ("a.example:+80", "write the port as a number"),
            (":8443", "write the name alone"),
            ("[::1]:8443", "write the name alone"),
            ("A.example", "in lower case"),
        ] {
            let refusal = check("t", written).unwrap_err().to_string();
            assert!(refusal.contains(wanted), "{written}: {refusal}");
        }
    }
}
