//! `[tenants.X.backends.Y]`: one MCP server of a tenant, by kind.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::shape::Shape;

/// One MCP server of a tenant.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum BackendSettings {
    /// A program that speaks MCP over its standard input and output.
    Stdio(StdioSettings),
    /// A handler that is part of this program.
    Native(NativeSettings),
}

/// `kind = "stdio"`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct StdioSettings {
    /// The program.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment.
    pub env: BTreeMap<String, String>,
}

/// `kind = "native"`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct NativeSettings {
    /// Which handler: `everything`, or one that the embedding program registered.
    pub name: String,
}

impl BackendSettings {
    pub(crate) fn shapes() -> BTreeMap<String, Shape> {
        BTreeMap::from([
            ("stdio".into(), Shape::of(&StdioSettings::default())),
            ("native".into(), Shape::of(&NativeSettings::default())),
        ])
    }
}
