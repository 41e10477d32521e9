//! Tools for behaviour that the conformance suite does not check.

use std::time::Duration;

use rmcp::model::{
    CallToolResult, ContentBlock, LoggingLevel, ResourceUpdatedNotification,
    ResourceUpdatedNotificationParam, ServerNotification, Tool, ToolListChangedNotification,
};
use serde::Deserialize;
use serde_json::json;

use super::conversation::told;
use super::{Call, Outcome, read_only, text, tool};
use crate::ask::{self, Stop};
use crate::resources::WATCHED;

/// The most steps of one call; more are refused.
pub(super) const STEPS_MAX: u32 = 100_000;
/// The largest text that one call may request; a larger one is refused.
pub(super) const BIG_BYTES_MAX: usize = 64 << 20;

pub(super) fn tools() -> Vec<Tool> {
    let number = |text| json!({ "type": "integer", "minimum": 0, "description": text });
    vec![
        read_only(tool("rh_echo", "Answers with its arguments", json!({}))),
        tool(
            "rh_count",
            "Counts to n, with a notification of progress and a log line for each number",
            json!({
                "n": number("Required. How far"),
                "interval_ms": number("Time between two numbers"),
            }),
        ),
        tool(
            "rh_sleep",
            "Answers after a time",
            json!({ "ms": number("Required. After what time") }),
        ),
        read_only(tool(
            "rh_read_only_slow",
            "Answers after a time and changes nothing, so it may be run again",
            json!({ "ms": number("Required. After what time") }),
        )),
        tool(
            "rh_ask",
            "Asks the user one question after another",
            json!({ "times": number("Required. How many questions") }),
        ),
        tool("rh_roots", "Answers with the client's roots", json!({})),
        tool("rh_touch_resource", "Notifies a subscriber that the resource changed", json!({})),
        tool("rh_toggle_tool", "Adds the tool rh_dynamic, or removes it", json!({})),
        tool("rh_cancelled", "Answers how many calls were cancelled so far", json!({})),
        tool("rh_env", "Answers with the names of the environment variables", json!({})),
        tool("rh_pid", "Answers with the process id", json!({})),
        tool("rh_crash", "Ends the process, or panics if it shares one", json!({})),
        read_only(tool(
            "rh_big",
            "Answers with a long text",
            json!({ "bytes": number("Required. How long") }),
        )),
    ]
}

/// `None` if there is no such tool.
pub(super) async fn run(name: &str, call: Call<'_>) -> Option<Outcome> {
    Some(match name {
        "rh_echo" => echo(call),
        "rh_count" => count(call).await,
        "rh_sleep" | "rh_read_only_slow" => sleep(call).await,
        "rh_ask" => ask_times(call).await,
        "rh_roots" => roots(call).await,
        "rh_touch_resource" => touch(call).await,
        "rh_toggle_tool" => toggle(call).await,
        "rh_cancelled" => text(call.session().cancelled().to_string()),
        "rh_env" => env(&call),
        "rh_pid" => text(std::process::id().to_string()),
        "rh_crash" => crash(&call),
        "rh_big" => big(&call),
        _ => return None,
    })
}

fn echo(call: Call<'_>) -> Outcome {
    let mut result = CallToolResult::success(vec![ContentBlock::text(call.arguments.to_string())]);
    result.structured_content = Some(call.arguments);
    Ok(result)
}

async fn count(call: Call<'_>) -> Outcome {
    #[derive(Deserialize)]
    struct Arguments {
        n: u32,
        #[serde(default)]
        interval_ms: u64,
    }
    let Arguments { n, interval_ms } = call.arguments()?;
    within("n", n, STEPS_MAX)?;
    for number in 1..=n {
        ask::pause(&call.context, Duration::from_millis(interval_ms)).await?;
        ask::progress(&call.context, f64::from(number), f64::from(n)).await?;
        let line = json!({ "count": number });
        ask::log(call.session(), &call.context, LoggingLevel::Info, line).await?;
    }
    text(format!("counted to {n}"))
}

async fn sleep(call: Call<'_>) -> Outcome {
    #[derive(Deserialize)]
    struct Arguments {
        ms: u64,
    }
    let Arguments { ms } = call.arguments()?;
    ask::pause(&call.context, Duration::from_millis(ms)).await?;
    text(format!("slept {ms} ms"))
}

async fn ask_times(call: Call<'_>) -> Outcome {
    #[derive(Deserialize)]
    struct Arguments {
        times: u32,
    }
    let Arguments { times } = call.arguments()?;
    within("times", times, STEPS_MAX)?;
    let schema = json!({
        "type": "object",
        "properties": { "answer": { "type": "string" } },
        "required": ["answer"],
    });
    let mut answers = Vec::new();
    for question in 1..=times {
        let message = format!("Question {question}");
        let answer = ask::elicit(&call.context, &message, schema.clone()).await?;
        answers.push(told(&answer));
    }
    text(answers.join("\n"))
}

async fn roots(call: Call<'_>) -> Outcome {
    text(ask::roots(&call.context).await?.join("\n"))
}

async fn touch(call: Call<'_>) -> Outcome {
    if !call.session().watches(WATCHED) {
        return text("no client is subscribed to the resource");
    }
    let updated = ResourceUpdatedNotificationParam::new(WATCHED);
    let updated = ResourceUpdatedNotification::new(updated);
    ask::notify(&call.context, ServerNotification::ResourceUpdatedNotification(updated)).await?;
    text("touched")
}

async fn toggle(call: Call<'_>) -> Outcome {
    let is_there = call.session().toggle_dynamic_tool();
    let changed = ToolListChangedNotification::default();
    ask::notify(&call.context, ServerNotification::ToolListChangedNotification(changed)).await?;
    text(if is_there { "rh_dynamic is there" } else { "rh_dynamic is gone" })
}

/// In a shared process, a client must not see the names of environment variables.
fn env(call: &Call<'_>) -> Outcome {
    if !call.server.is_program {
        return Err(Stop::Failed("rh_env needs the server to run as a program".into()));
    }
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let mut names: Vec<_> = names.collect();
    names.sort();
    text(names.join("\n"))
}

fn crash(call: &Call<'_>) -> Outcome {
    if call.server.is_program {
        std::process::abort();
    }
    panic!("rh_crash was called");
}

fn big(call: &Call<'_>) -> Outcome {
    #[derive(Deserialize)]
    struct Arguments {
        bytes: usize,
    }
    let Arguments { bytes } = call.arguments()?;
    within("bytes", bytes, BIG_BYTES_MAX)?;
    text("x".repeat(bytes))
}

pub(super) fn within<T: PartialOrd + std::fmt::Display>(
    name: &str,
    asked: T,
    max: T,
) -> Result<(), Stop> {
    if asked <= max {
        return Ok(());
    }
    Err(Stop::Failed(format!("invalid arguments: `{name}` is at most {max}")))
}
