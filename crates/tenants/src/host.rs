//! Checks the host names at which a tenant's endpoint is served.

use crate::Error;

/// Most bytes of a host name (RFC 1035, section 2.3.4).
const LENGTH_MAX: usize = 253;

/// Whether this is a host name as a client sends it, without a port.
pub(crate) fn check(tenant: &str, written: &str) -> Result<(), Error> {
    let is_label = |label: &str| {
        let in_label = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
        !label.is_empty() && label.len() <= 63 && label.bytes().all(in_label)
    };
    if written.len() <= LENGTH_MAX && written.split('.').all(is_label) {
        return Ok(());
    }
    let form = "write the name alone, as in \"acme.example.com\"";
    let remedy = if written.contains('*') {
        "there is no wildcard; list each name"
    } else if written.contains("://") || written.contains('/') {
        "leave out the scheme and the path"
    } else if written.contains(':') {
        "leave out the port: the endpoint is served at every port of the name"
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
    fn a_host_is_a_name_alone_in_lower_case() {
        for written in ["acme.example.com", "localhost", "a-b.c_d.example", "10.0.0.1"] {
            assert_eq!(check("t", written), Ok(()), "{written}");
        }
        for (written, wanted) in [
            ("", "write the name alone"),
            ("a..b", "write the name alone"),
            (".example.com", "write the name alone"),
            ("größe.example", "write the name alone"),
            ("*.example.com", "there is no wildcard"),
            ("https://a.example", "leave out the scheme"),
            ("a.example/mcp", "leave out the scheme and the path"),
            ("a.example:8080", "leave out the port"),
            ("A.example", "in lower case"),
        ] {
            let refusal = check("t", written).unwrap_err().to_string();
            assert!(refusal.contains(wanted), "{written}: {refusal}");
        }
    }
}
