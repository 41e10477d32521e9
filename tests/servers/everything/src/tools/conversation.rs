//! Tools that send messages or requests to the client before they answer.

use std::time::Duration;

use rmcp::model::{ElicitResult, ElicitationAction, LoggingLevel, Tool};
use serde::Deserialize;
use serde_json::json;

use super::{Call, Outcome, text, tool};
use crate::ask;

const STEP: Duration = Duration::from_millis(50);
/// Long enough for a gateway to close the stream and for the client to resume it.
const ABSENCE: Duration = Duration::from_millis(300);

pub(super) fn tools() -> Vec<Tool> {
    vec![
        tool("test_tool_with_logging", "Logs three messages while it runs", json!({})),
        tool("test_tool_with_progress", "Sends progress three times", json!({})),
        tool(
            "test_sampling",
            "Asks the client's model",
            json!({ "prompt": { "type": "string", "description": "Required. The prompt" } }),
        ),
        tool(
            "test_elicitation",
            "Asks the client's user for a name and an address",
            json!({ "message": { "type": "string", "description": "Required. The message" } }),
        ),
        tool("test_reconnection", "Takes so long that a client may lose its stream", json!({})),
    ]
}

pub(super) async fn with_logging(call: Call<'_>) -> Outcome {
    let log = async |text| ask::log(call.session(), &call.context, LoggingLevel::Info, text).await;
    log("Tool execution started").await?;
    ask::pause(&call.context, STEP).await?;
    log("Tool processing data").await?;
    ask::pause(&call.context, STEP).await?;
    log("Tool execution completed").await?;
    text("Tool with logging executed successfully")
}

pub(super) async fn with_progress(call: Call<'_>) -> Outcome {
    for done in [0.0, 50.0, 100.0] {
        if done > 0.0 {
            ask::pause(&call.context, STEP).await?;
        }
        ask::progress(&call.context, done, 100.0).await?;
    }
    text("Tool with progress executed successfully")
}

pub(super) async fn sampling(call: Call<'_>) -> Outcome {
    #[derive(Deserialize)]
    struct Arguments {
        prompt: String,
    }
    let Arguments { prompt } = call.arguments()?;
    let answer = ask::sample(&call.context, &prompt).await?;
    text(format!("LLM response: {answer}"))
}

pub(super) async fn elicitation(call: Call<'_>) -> Outcome {
    #[derive(Deserialize)]
    struct Arguments {
        message: String,
    }
    let Arguments { message } = call.arguments()?;
    let schema = json!({
        "type": "object",
        "properties": {
            "username": { "type": "string", "description": "User's response" },
            "email": { "type": "string", "description": "User's email address" },
        },
        "required": ["username", "email"],
    });
    let answer = ask::elicit(&call.context, &message, schema).await?;
    text(format!("User response: {}", told(&answer)))
}

pub(super) async fn reconnection(call: Call<'_>) -> Outcome {
    ask::pause(&call.context, ABSENCE).await?;
    text("Reconnection test completed")
}

/// The action of the user, in the format that the conformance suite expects.
pub(super) fn told(answer: &ElicitResult) -> String {
    let action = match answer.action {
        ElicitationAction::Accept => "accept",
        ElicitationAction::Decline => "decline",
        // The type permits other actions, the revisions do not.
        _ => "cancel",
    };
    let content = answer.content.clone().unwrap_or_else(|| json!({}));
    format!("action={action}, content={content}")
}
