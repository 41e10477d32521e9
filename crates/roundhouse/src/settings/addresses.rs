//! Addresses of listeners: an IP address or a host name, and a port.

use std::net::{SocketAddr, ToSocketAddrs as _};

use front::AdminAddress;

/// The address of the listener for clients that this text names. The error says what to write.
pub(crate) fn listen(written: &str) -> Result<SocketAddr, String> {
    parse(written, "127.0.0.1:8080", "0.0.0.0:8080")
}

/// The same for the listener for operators, which may also be a Unix socket.
pub(crate) fn admin(written: &str) -> Result<AdminAddress, String> {
    match written.strip_prefix("unix:") {
        Some(path) if path.starts_with('/') => Ok(AdminAddress::Unix(path.into())),
        Some(_) => Err("is not an absolute path behind `unix:`; write one, as in \
                        \"unix:/run/roundhouse/admin.sock\""
            .into()),
        None if written.starts_with('/') => {
            Err(format!("is a path; write `unix:` before it: \"unix:{written}\""))
        }
        None => parse(written, "127.0.0.1:9090", "0.0.0.0:9090").map(AdminAddress::Tcp),
    }
}

/// Resolves a host name with the machine's resolver, once. Of several addresses the first of IPv4
/// is taken, or else the first.
fn parse(written: &str, local: &str, any: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = written.parse() {
        return Ok(address);
    }
    let (host, port) = split(written, local, any)?;
    let found = (host, port).to_socket_addrs().map_err(|error| {
        format!(
            "names the host {host:?}, which has no address on this machine ({error}); write an IP \
             address, as in \"{local}\""
        )
    })?;
    let found: Vec<SocketAddr> = found.collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| format!("names a host without an address; write \"{local}\""))
}

/// Splits an address into host and port. The error is the rest of a sentence about the value, and
/// says what to write.
fn split<'a>(written: &'a str, local: &str, any: &str) -> Result<(&'a str, u16), String> {
    let both = format!("\"{local}\" (this machine only) or \"{any}\" (every interface)");
    if written.is_empty() {
        return Err(format!("is empty; write {both}"));
    }
    if written.contains("://") {
        return Err(format!("is a URL; write an address and a port only, as in \"{local}\""));
    }
    if written.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("has no host; write {}", both.replace(port_of(local), written)));
    }
    let (host, port) = match written.rsplit_once(':') {
        Some((host, _)) if host.contains(':') && !host.ends_with(']') => {
            return Err("is an IPv6 address without brackets; write it as in \"[::1]:8080\"".into());
        }
        Some((host, port)) => (host, port),
        None => {
            let port = port_of(local);
            return Err(format!("has no port; write one, as in \"{written}:{port}\""));
        }
    };
    let Ok(number) = port.parse() else {
        return Err(format!("has the port {port:?}; write a number from 0 to 65535"));
    };
    if host.is_empty() {
        return Err(format!("has no host; write {}", both.replace(port_of(local), port)));
    }
    Ok((host, number))
}

fn port_of(address: &str) -> &str {
    address.rsplit(':').next().unwrap_or_default()
}

/// Checks an address at which peers listen or are reached: a host and a port. Does not resolve it.
pub(crate) fn check_peer(written: &str) -> Result<(), String> {
    if written.parse::<SocketAddr>().is_ok() {
        return Ok(());
    }
    match split(written, "10.0.0.4:7070", "0.0.0.0:7070") {
        Ok(_) => Ok(()),
        Err(_) if written.starts_with(':') => {
            Err(format!("has no host; write the address of this node, as in \"10.0.0.4{written}\""))
        }
        Err(wrong) => Err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_an_ip_address_or_a_host_name_with_a_port() {
        assert_eq!(listen("127.0.0.1:1").unwrap().to_string(), "127.0.0.1:1");
        assert_eq!(listen("[::1]:0").unwrap().to_string(), "[::1]:0");
        assert!(listen("localhost:8080").unwrap().ip().is_loopback());
        assert!(matches!(admin("unix:/run/a.sock"), Ok(AdminAddress::Unix(_))));
        assert!(matches!(admin("localhost:0"), Ok(AdminAddress::Tcp(_))));
        check_peer("node-1.example:7070").unwrap();
    }

    #[test]
    fn another_text_is_refused_with_what_to_write() {
        for (written, wanted) in [
            (":8081", "has no host; write \"127.0.0.1:8081\" (this machine only)"),
            ("8081", "or \"0.0.0.0:8081\" (every interface)"),
            ("localhost", "has no port; write one, as in \"localhost:8080\""),
            ("localhost:http", "has the port \"http\""),
            ("127.0.0.1:99999", "from 0 to 65535"),
            ("::1:8080", "as in \"[::1]:8080\""),
            ("http://localhost:8080", "is a URL"),
            ("", "is empty"),
            ("no-such-host.invalid:1", "which has no address on this machine"),
        ] {
            let refusal = listen(written).unwrap_err();
            assert!(refusal.contains(wanted), "{written}: {refusal}");
        }
        assert!(admin("unix:a.sock").unwrap_err().contains("absolute path"));
        assert!(admin("/run/a.sock").unwrap_err().contains("\"unix:/run/a.sock\""));
        assert!(check_peer(":7070").unwrap_err().contains("\"10.0.0.4:7070\""));
    }
}
