//! A tool that records each of its runs outside its process. A test can check afterwards which
//! calls ran, and how often, even if processes were killed.
//!
//! It writes only to the file that `EVERYTHING_RECORD` names; a caller cannot choose a file.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Duration;

use rmcp::model::{LoggingLevel, Tool, ToolAnnotations};
use serde::Deserialize;
use serde_json::json;

use super::probes::{BIG_BYTES_MAX, STEPS_MAX, within};
use super::{Call, Outcome, text, tool};
use crate::ask::{self, Stop};

/// The longest key that is recorded, in bytes.
const KEY_BYTES_MAX: usize = 200;

pub(super) fn tools() -> Vec<Tool> {
    let number = |text| json!({ "type": "integer", "minimum": 0, "description": text });
    let arguments = || {
        json!({
            "key": { "type": "string", "description": "Required. The key to record" },
            "asks": number("How many questions to ask the user first"),
            "n": number("How far to count then"),
            "interval_ms": number("Time between two numbers"),
            "ms": number("How long to wait at the end"),
            "bytes": number("How many bytes the answer has besides the key"),
        })
    };
    let hint = ToolAnnotations::new().idempotent(true).open_world(false);
    vec![
        tool("rh_record", "Records its run, then asks and counts", arguments()),
        tool("rh_record_again", "Like rh_record, and may be run again", arguments())
            .with_annotations(hint),
    ]
}

/// Writes one line for each run: the key, and the process of the run.
pub(super) async fn run(call: Call<'_>) -> Outcome {
    #[derive(Deserialize)]
    struct Arguments {
        key: String,
        #[serde(default)]
        asks: u32,
        #[serde(default)]
        n: u32,
        #[serde(default)]
        interval_ms: u64,
        #[serde(default)]
        ms: u64,
        #[serde(default)]
        bytes: usize,
    }
    let Arguments { key, asks, n, interval_ms, ms, bytes } = call.arguments()?;
    within("asks", asks, STEPS_MAX)?;
    within("n", n, STEPS_MAX)?;
    within("bytes", bytes, BIG_BYTES_MAX)?;
    write_down(&key)?;
    let schema = json!({ "type": "object", "properties": { "answer": { "type": "string" } } });
    for _ in 0..asks {
        ask::elicit(&call.context, &key, schema.clone()).await?;
    }
    for number in 1..=n {
        ask::pause(&call.context, Duration::from_millis(interval_ms)).await?;
        ask::progress(&call.context, f64::from(number), f64::from(n)).await?;
        let line = json!({ "key": key, "count": number });
        ask::log(call.session(), &call.context, LoggingLevel::Info, line).await?;
    }
    ask::pause(&call.context, Duration::from_millis(ms)).await?;
    text(key + &"x".repeat(bytes))
}

fn write_down(key: &str) -> Result<(), Stop> {
    let path = std::env::var_os("EVERYTHING_RECORD")
        .ok_or_else(|| Stop::Failed("set EVERYTHING_RECORD to a file".into()))?;
    if key.len() > KEY_BYTES_MAX || key.contains(char::is_whitespace) {
        let why = format!("invalid arguments: `key` is one word of at most {KEY_BYTES_MAX} bytes");
        return Err(Stop::Failed(why));
    }
    // A short write to a file in append mode is atomic, even with other writers.
    let line = format!("{key} {}\n", std::process::id());
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .map_err(|error| Stop::Failed(format!("the run cannot be recorded: {error}")))
}
