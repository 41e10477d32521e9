//! Paths: `/{tenant}/mcp`, `/{tenant}/sse` and `/{tenant}/messages`; at the host of a tenant the same
//! without its name.

use actix_http::{RequestHead, header};

/// The endpoint after the tenant's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// Streamable HTTP.
    Mcp = 0,
    /// HTTP+SSE: the stream.
    Sse = 1,
    /// HTTP+SSE: the messages of clients.
    Messages = 2,
}

impl Endpoint {
    /// The name, for labels and logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mcp => "mcp",
            Self::Sse => "sse",
            Self::Messages => "messages",
        }
    }

    /// The endpoint for which a client asks for tokens: that which it is configured with.
    pub(crate) fn protected(self) -> Self {
        match self {
            Self::Mcp => Self::Mcp,
            Self::Sse | Self::Messages => Self::Sse,
        }
    }

    fn named(name: &str) -> Option<Self> {
        match name {
            "mcp" => Some(Self::Mcp),
            "sse" => Some(Self::Sse),
            "messages" => Some(Self::Messages),
            _ => None,
        }
    }

    /// The methods that pages may use, for preflights.
    pub(crate) fn methods(self) -> &'static str {
        match self {
            Self::Mcp => "GET, POST, DELETE, OPTIONS",
            Self::Sse => "GET, OPTIONS",
            Self::Messages => "POST, OPTIONS",
        }
    }
}

/// Where the metadata of a protected resource is, before the path of the resource (RFC 9728).
pub(crate) const METADATA: &str = "/.well-known/oauth-protected-resource";

/// Where the metadata of an issuer is (RFC 8414).
pub(crate) const SERVER_METADATA: &str = "/.well-known/oauth-authorization-server";

/// A document that every client may read before it has a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Document {
    /// The metadata of the endpoint.
    Resource,
    /// The metadata of the issuer, for clients that look for it here.
    Issuer,
}

/// The document that a path names, and the path of the endpoint that it is about, without that of the
/// public URL.
pub(crate) fn find_document<'a>(path: &'a str, public_path: &str) -> Option<(Document, &'a str)> {
    let (document, rest) = match path.strip_prefix(METADATA) {
        Some(rest) => (Document::Resource, rest),
        None => (Document::Issuer, path.strip_prefix(SERVER_METADATA)?),
    };
    let is_path = rest.is_empty() || rest.starts_with('/');
    let within = rest.strip_prefix(public_path).filter(|within| within.starts_with('/'));
    is_path.then(|| (document, within.unwrap_or(rest)))
}

/// A page of a browser that links an account at an upstream server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkPage<'a> {
    /// The link with this id.
    Open(&'a str),
    /// The browser has signed in at the issuer of the tenant.
    SignedIn,
    /// The user has agreed at the authorization server.
    Agreed,
}

/// The tenant and the page that a path names, with the path of the public URL or without.
pub(crate) fn find_link<'a>(path: &'a str, public_path: &str) -> Option<(&'a str, LinkPage<'a>)> {
    let within = path.strip_prefix(public_path).filter(|within| within.starts_with('/'));
    let (tenant, rest) = within.unwrap_or(path).strip_prefix('/')?.split_once('/')?;
    let page = match rest.strip_prefix("link/")? {
        "signed-in" => LinkPage::SignedIn,
        "agreed" => LinkPage::Agreed,
        id if !id.is_empty() && !id.contains('/') => LinkPage::Open(id),
        _ => return None,
    };
    Some((tenant, page))
}

/// The tenant and the endpoint that a path names. Nothing is decoded: no tenant's name needs it,
/// and each path then has one spelling.
pub(crate) fn find(path: &str) -> Option<(&str, Endpoint)> {
    let (tenant, endpoint) = path.strip_prefix('/')?.split_once('/')?;
    Some((tenant, Endpoint::named(endpoint)?))
}

/// The endpoint that a path names at the host of a tenant.
pub(crate) fn find_at_host(path: &str) -> Option<Endpoint> {
    Endpoint::named(path.strip_prefix('/')?)
}

/// The host that a request names, with a port or without, in lower case.
pub(crate) fn host_named(head: &RequestHead) -> Option<String> {
    let authority = head.uri.authority().map(|authority| authority.as_str());
    let named = || head.headers.get(header::HOST)?.to_str().ok();
    Some(authority.or_else(named)?.to_ascii_lowercase())
}

/// The same, if the path has no tenant, since the host names it.
pub(crate) fn host_of_tenant(head: &RequestHead) -> Option<String> {
    find_at_host(head.uri.path())?;
    host_named(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_one_spelling() {
        assert_eq!(find("/acme/mcp"), Some(("acme", Endpoint::Mcp)));
        assert_eq!(find("/acme/sse"), Some(("acme", Endpoint::Sse)));
        assert_eq!(find("/acme/messages"), Some(("acme", Endpoint::Messages)));
        for path in
            ["", "/", "/acme", "/acme/", "/acme/mcp/", "//acme/mcp", "/acme/MCP", "acme/mcp"]
        {
            assert_eq!(find(path), None, "{path}");
        }
        let resource = |rest| Some((Document::Resource, rest));
        assert_eq!(find_document(METADATA, "/base"), resource(""));
        let path = format!("{METADATA}/base/acme/mcp");
        assert_eq!(find_document(&path, "/base"), resource("/acme/mcp"));
        assert_eq!(find_document(&path, ""), resource("/base/acme/mcp"));
        assert_eq!(find_document(&format!("{METADATA}s"), ""), None);
        let issuer = Some((Document::Issuer, "/mcp"));
        assert_eq!(find_document(&format!("{SERVER_METADATA}/mcp"), ""), issuer);
        let open = Some(("acme", LinkPage::Open("x1")));
        assert_eq!(find_link("/acme/link/x1", ""), open);
        assert_eq!(find_link("/base/acme/link/x1", "/base"), open);
        assert_eq!(find_link("/acme/link/agreed", ""), Some(("acme", LinkPage::Agreed)));
        for path in ["/acme/link", "/acme/link/", "/acme/link/x/y", "/link/x", "/acme/mcp"] {
            assert_eq!(find_link(path, ""), None, "{path}");
        }
        assert_eq!(find_at_host("/mcp"), Some(Endpoint::Mcp));
        for path in ["", "/", "mcp", "/mcp/", "//mcp", "/acme/mcp", "/MCP"] {
            assert_eq!(find_at_host(path), None, "{path}");
        }
    }
}
