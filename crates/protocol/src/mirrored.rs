//! The headers of DRAFT-2026-v1 that mirror the body: `Mcp-Method`, `Mcp-Name`, `Mcp-Param-*`.

/// The mirrored headers of one POST, as they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirrored {
    /// `Mcp-Method`.
    pub method: Option<String>,
    /// `Mcp-Name`.
    pub name: Option<String>,
    /// `Mcp-Param-{name}` headers: the name in lower case, and the value.
    pub params: Vec<(String, String)>,
}
