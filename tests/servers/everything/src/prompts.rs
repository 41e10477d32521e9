//! The prompts.

use rmcp::ErrorData;
use rmcp::model::{
    ContentBlock, GetPromptResult, JsonObject, Prompt, PromptArgument, PromptMessage,
    ResourceContents, Role,
};

use crate::tools::PNG;

pub(crate) const SIMPLE: &str = "test_simple_prompt";
pub(crate) const WITH_ARGUMENTS: &str = "test_prompt_with_arguments";
pub(crate) const WITH_RESOURCE: &str = "test_prompt_with_embedded_resource";
pub(crate) const WITH_IMAGE: &str = "test_prompt_with_image";

pub(crate) fn list() -> Vec<Prompt> {
    let required =
        |name: &str, text| PromptArgument::new(name).with_description(text).with_required(true);
    let with_arguments =
        vec![required("arg1", "First test argument"), required("arg2", "Second test argument")];
    let with_resource = vec![required("resourceUri", "URI of the resource to embed")];
    vec![
        Prompt::new(SIMPLE, Some("A prompt without arguments"), None),
        Prompt::new(WITH_ARGUMENTS, Some("A prompt with two arguments"), Some(with_arguments)),
        Prompt::new(WITH_RESOURCE, Some("A prompt with a resource in it"), Some(with_resource)),
        Prompt::new(WITH_IMAGE, Some("A prompt with an image in it"), None),
    ]
}

pub(crate) fn get(name: &str, arguments: Option<JsonObject>) -> Result<GetPromptResult, ErrorData> {
    let arguments = arguments.unwrap_or_default();
    let argument = |name: &str| {
        arguments.get(name).and_then(|value| value.as_str()).ok_or_else(|| {
            let message = format!("argument `{name}` is missing or not a string");
            ErrorData::invalid_params(message, None)
        })
    };
    let messages = match name {
        SIMPLE => vec![text("This is a simple prompt for testing.")],
        WITH_ARGUMENTS => {
            let (first, second) = (argument("arg1")?, argument("arg2")?);
            vec![text(format!("Prompt with arguments: arg1='{first}', arg2='{second}'"))]
        }
        WITH_RESOURCE => {
            let uri = argument("resourceUri")?;
            let embedded = ResourceContents::text("Embedded resource content for testing.", uri);
            let resource = PromptMessage::new(Role::User, ContentBlock::resource(embedded));
            vec![resource, text("Please process the embedded resource above.")]
        }
        WITH_IMAGE => {
            let image = PromptMessage::new(Role::User, ContentBlock::image(PNG, "image/png"));
            vec![image, text("Please analyze the image above.")]
        }
        _ => return Err(ErrorData::invalid_params(format!("unknown prompt: {name}"), None)),
    };
    Ok(GetPromptResult::new(messages))
}

fn text(text: impl Into<String>) -> PromptMessage {
    PromptMessage::new_text(Role::User, text)
}
