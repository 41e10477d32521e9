//! Tools with special schemas: of their arguments, or of a form.

use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::{Value, json};

use super::conversation::told;
use super::{Call, Outcome, text, tool, with_schema};
use crate::ask;

pub(super) fn tools() -> Vec<Tool> {
    vec![
        tool(
            "test_elicitation_sep1034_defaults",
            "Asks with a form whose fields have defaults",
            json!({}),
        ),
        tool(
            "test_elicitation_sep1330_enums",
            "Asks with a form of every kind of choice",
            json!({}),
        ),
        with_schema(
            "json_schema_2020_12_tool",
            "Has an input schema with the keywords of JSON Schema 2020-12",
            contact_schema(),
        ),
        tool(
            "test_custom_header",
            "Takes an argument that is mirrored in a header",
            json!({
                "value": {
                    "type": "string",
                    "description": "Required. Mirrored in Mcp-Param-Value",
                    "x-mcp-header": "Value",
                },
            }),
        ),
    ]
}

fn contact_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {
                    "street": { "type": "string" },
                    "city": { "type": "string" },
                },
            },
        },
        "properties": {
            "name": { "type": "string" },
            "address": { "$ref": "#/$defs/address" },
            "contactMethod": { "type": "string", "enum": ["phone", "email"] },
            "phone": { "type": "string" },
            "email": { "type": "string" },
        },
        "allOf": [{ "anyOf": [{ "required": ["phone"] }, { "required": ["email"] }] }],
        "if": {
            "properties": { "contactMethod": { "const": "phone" } },
            "required": ["contactMethod"],
        },
        "then": { "required": ["phone"] },
        "else": { "required": ["email"] },
        "additionalProperties": false,
    })
}

pub(super) fn contact(call: &Call<'_>) -> Outcome {
    text(format!("JSON Schema 2020-12 tool called with: {}", call.arguments))
}

pub(super) fn custom_header(call: &Call<'_>) -> Outcome {
    #[derive(Deserialize)]
    struct Arguments {
        value: String,
    }
    text(call.arguments::<Arguments>()?.value)
}

pub(super) async fn defaults(call: Call<'_>) -> Outcome {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "description": "User name", "default": "John Doe" },
            "age": { "type": "integer", "description": "User age", "default": 30 },
            "score": { "type": "number", "description": "User score", "default": 95.5 },
            "status": {
                "type": "string",
                "description": "User status",
                "enum": ["active", "inactive", "pending"],
                "default": "active",
            },
            "verified": { "type": "boolean", "description": "Is verified", "default": true },
        },
        "required": [],
    });
    fill_in(call, "Please review the form and change what is wrong", schema).await
}

pub(super) async fn enums(call: Call<'_>) -> Outcome {
    let titled = |titles: [&str; 3]| {
        let choice = |(number, title)| json!({ "const": format!("value{number}"), "title": title });
        (1..).zip(titles).map(choice).collect::<Value>()
    };
    let schema = json!({
        "type": "object",
        "properties": {
            "untitledSingle": { "type": "string", "enum": ["option1", "option2", "option3"] },
            "titledSingle": {
                "type": "string",
                "oneOf": titled(["First Option", "Second Option", "Third Option"]),
            },
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {
                "type": "array",
                "items": { "type": "string", "enum": ["option1", "option2", "option3"] },
            },
            "titledMulti": {
                "type": "array",
                "items": { "anyOf": titled(["First Choice", "Second Choice", "Third Choice"]) },
            },
        },
        "required": [],
    });
    fill_in(call, "Please choose", schema).await
}

async fn fill_in(call: Call<'_>, message: &str, schema: Value) -> Outcome {
    let answer = ask::elicit(&call.context, message, schema).await?;
    text(format!("Elicitation completed: {}", told(&answer)))
}
