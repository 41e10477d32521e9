//! The tools: their names, their arguments, and their functions.

mod content;
mod conversation;
mod probes;
mod record;
mod schemas;

use std::sync::{Arc, LazyLock};

use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(crate) use self::content::PNG;
use crate::ask::Stop;
use crate::session::Session;
use crate::{Context, Everything};

/// The tools of every session, in the order of their list. The first one needs no arguments and
/// never fails.
static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
    let mut tools = content::tools();
    tools.extend(conversation::tools());
    tools.extend(schemas::tools());
    tools.extend(probes::tools());
    tools.extend(record::tools());
    tools
});

/// The tool that `rh_toggle_tool` adds.
static DYNAMIC: LazyLock<Tool> =
    LazyLock::new(|| tool("rh_dynamic", "Exists only after rh_toggle_tool", json!({})));

pub(crate) fn list(session: &Session) -> Vec<Tool> {
    let mut tools = TOOLS.clone();
    if session.has_dynamic_tool() {
        tools.push(DYNAMIC.clone());
    }
    tools
}

pub(crate) async fn call(
    server: &Everything,
    request: CallToolRequestParams,
    context: Context,
) -> Result<CallToolResult, ErrorData> {
    let call =
        Call { server, context, arguments: Value::Object(request.arguments.unwrap_or_default()) };
    match run(&request.name, call).await {
        Ok(result) => Ok(result),
        Err(Stop::Failed(why)) => Ok(CallToolResult::error(vec![ContentBlock::text(why)])),
        Err(Stop::Refused(error)) => Err(error),
        Err(Stop::Cancelled) => {
            server.session.count_cancelled();
            // This error is not sent: a cancelled request is not answered (CAN-01).
            Err(ErrorData::internal_error("the call was cancelled", None))
        }
    }
}

async fn run(name: &str, call: Call<'_>) -> Outcome {
    match name {
        "test_simple_text" => content::simple_text(),
        "test_image_content" => content::image(),
        "test_audio_content" => content::audio(),
        "test_embedded_resource" => content::embedded_resource(),
        "test_multiple_content_types" => content::multiple(),
        "test_error_handling" => content::error(),
        "test_tool_with_logging" => conversation::with_logging(call).await,
        "test_tool_with_progress" => conversation::with_progress(call).await,
        "test_sampling" => conversation::sampling(call).await,
        "test_elicitation" => conversation::elicitation(call).await,
        "test_elicitation_sep1034_defaults" => schemas::defaults(call).await,
        "test_elicitation_sep1330_enums" => schemas::enums(call).await,
        "test_reconnection" => conversation::reconnection(call).await,
        "json_schema_2020_12_tool" => schemas::contact(&call),
        "test_custom_header" => schemas::custom_header(&call),
        "rh_record" | "rh_record_again" => record::run(call).await,
        "rh_dynamic" if call.server.session.has_dynamic_tool() => text("dynamic"),
        _ => match probes::run(name, call).await {
            Some(outcome) => outcome,
            None => {
                let message = format!("unknown tool: {name}");
                Err(Stop::Refused(ErrorData::invalid_params(message, None)))
            }
        },
    }
}

/// One call of a tool.
struct Call<'a> {
    server: &'a Everything,
    context: Context,
    arguments: Value,
}

impl Call<'_> {
    fn session(&self) -> &Session {
        &self.server.session
    }

    /// The arguments in the type of the tool. Wrong arguments are a failure of the tool, so that a
    /// model can read the reason (TOOL-04).
    fn arguments<T: DeserializeOwned>(&self) -> Result<T, Stop> {
        T::deserialize(&self.arguments)
            .map_err(|error| Stop::Failed(format!("invalid arguments: {error}")))
    }
}

type Outcome = Result<CallToolResult, Stop>;

fn text(text: impl Into<String>) -> Outcome {
    content(vec![ContentBlock::text(text)])
}

fn content(blocks: Vec<ContentBlock>) -> Outcome {
    Ok(CallToolResult::success(blocks))
}

/// A tool with these `properties` as arguments. An argument is required if its description begins
/// with "Required".
fn tool(name: &'static str, description: &'static str, properties: Value) -> Tool {
    let required: Vec<&String> = properties
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, schema)| {
            schema["description"].as_str().is_some_and(|text| text.starts_with("Required"))
        })
        .map(|(name, _)| name)
        .collect();
    let mut schema = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    with_schema(name, description, schema)
}

fn with_schema(name: &'static str, description: &'static str, schema: Value) -> Tool {
    let Value::Object(schema) = schema else { return Tool::default() };
    Tool::new(name, description, Arc::<JsonObject>::new(schema))
}

fn read_only(tool: Tool) -> Tool {
    tool.with_annotations(ToolAnnotations::new().read_only(true).open_world(false))
}
