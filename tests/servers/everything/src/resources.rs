//! The resources.

use rmcp::ErrorData;
use rmcp::model::{ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use serde_json::json;

use crate::tools::PNG;

/// The resource that can be watched and touched.
pub(crate) const WATCHED: &str = "test://watched-resource";
/// The template of the resources that are not listed (RES-05).
pub(crate) const TEMPLATE: &str = "test://template/{id}/data";

const TEXT: &str = "test://static-text";
const BINARY: &str = "test://static-binary";

pub(crate) fn list() -> Vec<Resource> {
    vec![
        Resource::new(TEXT, "Static text")
            .with_description("A text that never changes.")
            .with_mime_type("text/plain"),
        Resource::new(BINARY, "Static binary")
            .with_description("An image of one pixel.")
            .with_mime_type("image/png"),
        Resource::new(WATCHED, "Watched resource")
            .with_description("A text whose subscribers are notified when it is touched.")
            .with_mime_type("text/plain"),
    ]
}

pub(crate) fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new(TEMPLATE, "Data by id")
            .with_description("Some data for any id.")
            .with_mime_type("application/json"),
    ]
}

pub(crate) fn read(uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let contents = match uri {
        TEXT => ResourceContents::text("This is the content of the static text resource.", uri),
        BINARY => ResourceContents::blob(PNG, uri).with_mime_type("image/png"),
        WATCHED => ResourceContents::text("Watched resource content", uri),
        _ => match template_id(uri) {
            Some(id) => templated(uri, id),
            None => return Err(unknown(uri)),
        },
    };
    Ok(ReadResourceResult::new(vec![contents]))
}

fn template_id(uri: &str) -> Option<&str> {
    let id = uri.strip_prefix("test://template/")?.strip_suffix("/data")?;
    (!id.is_empty() && !id.contains('/')).then_some(id)
}

fn templated(uri: &str, id: &str) -> ResourceContents {
    let text = json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") });
    ResourceContents::text(text.to_string(), uri).with_mime_type("application/json")
}

/// A URI without a scheme is not a URI (RES-09); any other URI is not found (RES-02).
fn unknown(uri: &str) -> ErrorData {
    let scheme = uri.split_once(':').map_or("", |(scheme, _)| scheme);
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let uri = json!({ "uri": uri });
    if is_scheme {
        ErrorData::resource_not_found("resource not found", Some(uri))
    } else {
        ErrorData::invalid_params("the uri has no scheme", Some(uri))
    }
}
