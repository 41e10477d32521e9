//! Parses the URL of a Redis installation.

use std::fmt;

use super::settings::{Login, Secret};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// Maximum number of addresses in one URL.
const ADDRESSES_MAX: usize = 64;

/// Host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Address {
    /// Parses `host:port`, `[v6]:port` or, if there is a default port, only a host.
    pub(super) fn parse(text: &str, default: Option<u16>) -> Option<Self> {
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']')?;
            (host, rest.strip_prefix(':'))
        } else {
            match text.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        let port = match port {
            Some(port) => port.parse().ok()?,
            None => default?,
        };
        (!host.is_empty()).then(|| Self { host: host.into(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A parsed URL: which servers to connect to, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) shape: Shape,
    pub(super) tls: bool,
    pub(super) login: Login,
    pub(super) db: i64,
}

/// How the primary of a key is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One server keeps all keys.
    Single(Address),
    /// Each of these nodes reports which primary keeps which slots.
    Cluster(Vec<Address>),
    /// Each of these Sentinels reports the address of the master of this name.
    Sentinel { sentinels: Vec<Address>, master: String },
}

impl Target {
    /// Parses a URL. An error text never quotes the URL, which may hold a password.
    pub(super) fn parse(url: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once("://").ok_or("it has no scheme")?;
        let (tls, kind) = match scheme.split_once('+').unwrap_or((scheme, "")) {
            ("redis", kind) => (false, kind),
            ("rediss", kind) => (true, kind),
            _ => return Err("its scheme is neither redis nor rediss"),
        };
        if rest.contains(['?', '#']) {
            return Err("it has a query or a fragment; settings have their own keys");
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (self::login(login)?, hosts),
            None => (Login::default(), authority),
        };
        let default = if kind == "sentinel" { SENTINEL_PORT } else { PORT };
        let mut addresses = addresses(hosts, default)?;
        let (shape, db) = match kind {
            "" if addresses.len() > 1 => {
                return Err("it names several servers; write redis+cluster or redis+sentinel");
            }
            "" => (Shape::Single(addresses.remove(0)), path),
            "cluster" if !path.is_empty() => return Err("a cluster has no databases"),
            "cluster" => (Shape::Cluster(addresses), ""),
            "sentinel" => {
                let (master, db) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err("it does not name the sentinels' master");
                }
                (Shape::Sentinel { sentinels: addresses, master: decode(master)? }, db)
            }
            _ => return Err("its scheme names another kind than cluster or sentinel"),
        };
        let db = if db.is_empty() { Ok(0) } else { db.parse() };
        let db = db.ok().filter(|db| *db >= 0).ok_or("its database is not a number")?;
        Ok(Self { shape, tls, login, db })
    }
}

fn login(text: &str) -> Result<Login, &'static str> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    Ok(Login { user: decode(user)?, password: Secret(decode(password)?) })
}

fn addresses(text: &str, default: u16) -> Result<Vec<Address>, &'static str> {
    let parse = |text| Address::parse(text, Some(default)).ok_or("it has no host, or no port");
    let addresses: Vec<_> = text.split(',').map(parse).collect::<Result<_, _>>()?;
    if addresses.len() > ADDRESSES_MAX { Err("it has too many hosts") } else { Ok(addresses) }
}

/// Decodes `%xx`.
fn decode(text: &str) -> Result<String, &'static str> {
    const WRONG: &str = "it has a % that is not two hexadecimal digits of UTF-8";
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = rest.split_at_checked(2).ok_or(WRONG)?;
        let text = std::str::from_utf8(digits.0).map_err(|_| WRONG)?;
        bytes.push(u8::from_str_radix(text, 16).map_err(|_| WRONG)?);
        rest = digits.1;
    }
    String::from_utf8(bytes).map_err(|_| WRONG)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str, port: u16) -> Address {
        Address { host: host.into(), port }
    }

    #[test]
    fn a_url_of_each_shape_is_parsed() {
        let single = Target::parse("redis://h").expect("read");
        assert_eq!(single.shape, Shape::Single(address("h", 6379)));
        assert_eq!((single.tls, single.db, single.login), (false, 0, Login::default()));

        let single = Target::parse("rediss://me:p%40ss%2F@[::1]:1/3").expect("read");
        assert_eq!(single.shape, Shape::Single(address("::1", 1)));
        assert_eq!((single.tls, single.db), (true, 3));
        assert_eq!(single.login, Login { user: "me".into(), password: "p@ss/".into() });

        let cluster = Target::parse("redis+cluster://:pw@a:1,b").expect("read");
        assert_eq!(cluster.shape, Shape::Cluster(vec![address("a", 1), address("b", 6379)]));
        assert_eq!(cluster.login, Login { user: String::new(), password: "pw".into() });

        let sentinel = Target::parse("rediss+sentinel://a,b:2/mymaster/1").expect("read");
        let sentinels = vec![address("a", 26379), address("b", 2)];
        assert_eq!(sentinel.shape, Shape::Sentinel { sentinels, master: "mymaster".into() });
        assert_eq!((sentinel.tls, sentinel.db), (true, 1));
    }

    #[test]
    fn an_error_about_a_url_does_not_quote_the_url() {
        for url in [
            "",
            "h:1",
            "http://secret@h",
            "redis+other://secret@h",
            "redis://secret@",
            "redis://secret@h:port",
            "redis://secret@h/db",
            "redis://secret@h/-1",
            "redis://secret@a,b",
            "redis://secret@h?x=y",
            "redis://secret%@h",
            "redis://secret%zz@h",
            "redis+cluster://secret@a/1",
            "redis+sentinel://secret@a",
        ] {
            let wrong = Target::parse(url).expect_err(url);
            assert!(!wrong.contains("secret") && !wrong.is_empty(), "{url}: {wrong}");
        }
    }
}
