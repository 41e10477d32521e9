//! `[tenants.X.backends.Y]`: one MCP server of a tenant, by kind.

use std::collections::BTreeMap;

use backends::stdio::StdioSettings;
use serde::{Deserialize, Serialize};

use super::shape::Shape;

/// One MCP server of a tenant.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum BackendSettings {
    /// A program that serves MCP over its standard input and output.
    Stdio(StdioSettings),
    /// A handler that is part of this program.
    Native(NativeSettings),
}

/// `kind = "native"`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NativeSettings {
    /// The name of the handler: `everything`, with the feature `demo`, or one that the embedding
    /// program registers.
    pub name: String,
}

impl BackendSettings {
    pub(crate) fn shapes() -> BTreeMap<String, Shape> {
        BTreeMap::from([
            ("stdio".into(), Shape::of(&stdio())),
            ("native".into(), Shape::of(&NativeSettings::default())),
        ])
    }
}

/// The defaults of a `stdio` backend. Its command has no default, and an empty one is refused.
pub(crate) fn stdio() -> StdioSettings {
    StdioSettings::new("", [""; 0])
}
