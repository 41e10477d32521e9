//! Spans as a collector shows them, and a server that shows the `_meta` that it gets.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::mcp::Client;
use crate::recorded::text;
use crate::{Setup, tools};

/// A client's trace, which its flag says is not recorded.
pub const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
/// A `traceparent` of it.
pub const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// The kind of a span that serves a message.
pub const SERVER: i64 = 2;
/// The kind of a span within the cluster.
pub const INTERNAL: i64 = 1;
/// The kind of a span that waits for the other side.
pub const CLIENT: i64 = 3;

/// A node whose only server shows the `_meta` that it gets.
pub fn traced() -> Setup {
    let script = tools::root().join("tests/servers/traced.py");
    Setup::hosting([tools::python("otlp").display().to_string(), script.display().to_string()])
}

/// A call with this `_meta`.
pub fn call(client: &Client, tool: &str, meta: Value) -> Value {
    client.message("tools/call", json!({ "name": tool, "arguments": {}, "_meta": meta }))
}

/// The `_meta` that the server got.
pub fn received(answer: &Value) -> Result<Value> {
    Ok(serde_json::from_str(text(answer)?)?)
}

/// The trace and the span of a `traceparent` whose flag is set.
pub fn position(meta: &Value) -> Result<(String, String)> {
    let parent = meta["traceparent"].as_str().with_context(|| format!("no parent: {meta}"))?;
    let fields: Vec<_> = parent.split('-').collect();
    ensure!(fields.len() == 4 && fields[3] == "01", "{parent}");
    Ok((fields[1].to_owned(), fields[2].to_owned()))
}

/// The spans of a trace.
pub fn of_trace<'a>(spans: &'a [Value], trace: &str) -> Vec<&'a Value> {
    spans.iter().filter(|span| span["trace"] == trace).collect()
}

/// The only span of this kind.
pub fn only<'a>(spans: &[&'a Value], kind: i64) -> Result<&'a Value> {
    let mut of_kind = spans.iter().filter(|span| span["kind"] == kind);
    let only = of_kind.next().with_context(|| format!("no span of kind {kind}: {spans:#?}"))?;
    ensure!(of_kind.next().is_none(), "several spans of kind {kind}: {spans:#?}");
    Ok(only)
}
