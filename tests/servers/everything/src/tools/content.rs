//! Tools that answer at once, one for each kind of content.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents, Tool};
use serde_json::json;

use super::{Outcome, tool};

/// A PNG of one pixel, in base64.
pub(crate) const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
/// A WAV of no samples, in base64.
const WAV: &str = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=";

pub(super) fn tools() -> Vec<Tool> {
    let tool = |name, description| super::read_only(tool(name, description, json!({})));
    vec![
        tool("test_simple_text", "Answers with a text"),
        tool("test_image_content", "Answers with an image"),
        tool("test_audio_content", "Answers with a sound"),
        tool("test_embedded_resource", "Answers with a resource"),
        tool("test_multiple_content_types", "Answers with a text, an image and a resource"),
        tool("test_error_handling", "Always fails, as a tool fails"),
    ]
}

pub(super) fn simple_text() -> Outcome {
    super::text("This is a simple text response for testing.")
}

pub(super) fn image() -> Outcome {
    super::content(vec![ContentBlock::image(PNG, "image/png")])
}

pub(super) fn audio() -> Outcome {
    super::content(vec![ContentBlock::audio(WAV, "audio/wav")])
}

pub(super) fn embedded_resource() -> Outcome {
    let resource =
        ResourceContents::text("This is an embedded resource content.", "test://embedded-resource");
    super::content(vec![ContentBlock::resource(resource)])
}

pub(super) fn multiple() -> Outcome {
    let json = r#"{"test":"data","value":123}"#;
    let resource = ResourceContents::text(json, "test://mixed-content-resource")
        .with_mime_type("application/json");
    super::content(vec![
        ContentBlock::text("Multiple content types test:"),
        ContentBlock::image(PNG, "image/png"),
        ContentBlock::resource(resource),
    ])
}

pub(super) fn error() -> Outcome {
    let why = "This tool intentionally returns an error for testing";
    Ok(CallToolResult::error(vec![ContentBlock::text(why)]))
}
