//! An MCP server over its standard streams that costs as little as possible, since the
//! measurement is about the node in front of it.

use std::io::{BufRead as _, Write as _};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::servers::TOOLS;

#[derive(Deserialize)]
struct Message {
    id: Option<Value>,
    method: String,
    #[serde(default)]
    params: Value,
}

/// Answers until its input ends.
pub(crate) fn serve() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let Message { id, method, params } = serde_json::from_str(&line?)?;
        // Notifications get no response.
        let Some(id) = id else { continue };
        let result = match method.as_str() {
            "initialize" => json!({
                "protocolVersion": params["protocolVersion"],
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "child", "version": "1.0.0" },
            }),
            "tools/list" => serde_json::from_slice(TOOLS)?,
            "tools/call" if params["name"] == "count" => counted(&params, &mut out)?,
            "tools/call" => text(&params["arguments"]["message"]),
            _ => json!({}),
        };
        writeln!(out, "{}", json!({ "jsonrpc": "2.0", "id": id, "result": result }))?;
        out.flush()?;
    }
    Ok(())
}

fn counted(params: &Value, out: &mut impl std::io::Write) -> anyhow::Result<Value> {
    let token = &params["_meta"]["progressToken"];
    let times = params["arguments"]["n"].as_u64().unwrap_or_default();
    let interval = params["arguments"]["interval_ms"].as_u64().unwrap_or_default();
    for number in 1..=times {
        std::thread::sleep(Duration::from_millis(interval));
        let progress = json!({ "progressToken": token, "progress": number });
        let method = "notifications/progress";
        writeln!(out, "{}", json!({ "jsonrpc": "2.0", "method": method, "params": progress }))?;
        out.flush()?;
    }
    Ok(text(&json!(format!("counted to {times}"))))
}

fn text(text: &Value) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}
