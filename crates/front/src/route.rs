//! Paths: `/{tenant}/mcp`, `/{tenant}/sse` and `/{tenant}/messages`; at the host of a tenant the same
//! without its name.

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
        assert_eq!(find_at_host("/mcp"), Some(Endpoint::Mcp));
        for path in ["", "/", "mcp", "/mcp/", "//mcp", "/acme/mcp", "/MCP"] {
            assert_eq!(find_at_host(path), None, "{path}");
        }
    }
}
