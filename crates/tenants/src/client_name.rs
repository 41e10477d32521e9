//! The names of principals, which identify each client at an endpoint.

use crate::Principal;

/// A client, by what its credential says. Each kind has a prefix, and no URL has a space, so the names
/// of no two clients are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientName<'a> {
    /// The clients whose keys have this subject.
    Key {
        /// The subject.
        subject: &'a str,
    },
    /// The client whose tokens have this subject.
    Subject {
        /// The issuer of the tokens.
        issuer: &'a str,
        /// The subject.
        subject: &'a str,
    },
    /// The client whose tokens have this id of a client, and no subject.
    Client {
        /// The issuer of the tokens.
        issuer: &'a str,
        /// The id.
        id: &'a str,
    },
}

impl<'a> ClientName<'a> {
    /// The principal of this client.
    pub fn principal(self) -> Principal {
        match self {
            Self::Key { subject } => Principal::named(&format!("key:{subject}")),
            Self::Subject { issuer, subject } => {
                Principal::named(&format!("sub:{issuer} {subject}"))
            }
            Self::Client { issuer, id } => Principal::named(&format!("client:{issuer} {id}")),
        }
    }

    /// Reads the name of a principal; `None` for the anonymous one.
    pub fn read(principal: &'a str) -> Option<Self> {
        let (kind, rest) = principal.split_once(':')?;
        if kind == "key" {
            return Some(Self::Key { subject: rest });
        }
        let (issuer, name) = rest.split_once(' ')?;
        match kind {
            "sub" => Some(Self::Subject { issuer, subject: name }),
            "client" => Some(Self::Client { issuer, id: name }),
            _ => None,
        }
    }

    /// What credentials the client has: `key` or `token`.
    pub fn credential(self) -> &'static str {
        match self {
            Self::Key { .. } => "key",
            Self::Subject { .. } | Self::Client { .. } => "token",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_made() {
        let issuer = "https://i.example/a:b";
        for name in [
            ClientName::Key { subject: "sub:x" },
            ClientName::Subject { issuer, subject: "a b: c" },
            ClientName::Client { issuer, id: " x" },
        ] {
            assert_eq!(ClientName::read(name.principal().name()), Some(name));
        }
        assert_eq!(ClientName::read(Principal::anonymous().name()), None);
        assert_eq!(ClientName::read("sub:no-space"), None);
    }
}
