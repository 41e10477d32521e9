//! Replaces payload content that an older revision does not have.
//!
//! Every function returns `None` if nothing has to change. If the revision has all content, or
//! the text cannot contain such content, the text is not parsed. Malformed text stays as it is:
//! its receiver reports the error.

mod elicitation;
mod url_error;

use bytes::Bytes;
use memchr::memmem::Finder;

pub use self::url_error::error_without_urls;
use crate::raw::{self, Edits, Needle, Object, may_hold, quoted};
use crate::{Method, Revision};

/// Converts a result of the server for a client of this revision (TOOL-09, PRM-03): audio
/// becomes a note in text, and a resource link a text with its URI. Every revision has images
/// and embedded resources.
pub fn result_for_client(revision: Revision, method: &Method, result: &[u8]) -> Option<Bytes> {
    if !may_hold_newer_content(revision, result) {
        return None;
    }
    let object = Object::read(result)?;
    let mut edits = Edits::default();
    match method {
        Method::ToolsCall => {
            for block in raw::elements(object.get("content")?)? {
                edit_block(revision, result, block.get(), &mut edits);
            }
        }
        Method::PromptsGet => {
            for message in raw::elements(object.get("messages")?)? {
                let message = Object::read(message.get().as_bytes());
                if let Some(block) = message.as_ref().and_then(|message| message.get("content")) {
                    edit_block(revision, result, block, &mut edits);
                }
            }
        }
        _ => {}
    }
    edits.apply(result)
}

/// Converts the parameters of a server request for a client of this revision. Forms keep the
/// fields that the revision has (ELI-02). A sampling message with several blocks of content
/// becomes several messages (SMP-04). Tools in sampling and elicitation by URL cannot be
/// converted; the session refuses them.
pub fn request_for_client(revision: Revision, method: &Method, params: &[u8]) -> Option<Bytes> {
    match method {
        Method::Elicit if !revision.has_elicitation_modes() => elicitation::older_form(params),
        Method::CreateMessage if !revision.has_sampling_tools() => single_blocks(revision, params),
        _ => None,
    }
}

/// Converts a result of the client for a server of this revision (SMP-04). The texts of several
/// blocks of content are joined. Without a text, the first block that the revision has is used.
pub fn result_for_server(revision: Revision, method: &Method, result: &[u8]) -> Option<Bytes> {
    if *method != Method::CreateMessage || revision.has_sampling_tools() {
        return None;
    }
    let object = Object::read(result)?;
    let content = object.get("content")?;
    let mut edits = Edits::default();
    match blocks(content) {
        Some(blocks) => {
            edits.replace(result, content, one_block(revision, &blocks));
        }
        None => edit_block(revision, result, content, &mut edits),
    }
    edits.apply(result)
}

fn may_hold_newer_content(revision: Revision, json: &[u8]) -> bool {
    static RESOURCE_LINK: Needle = Needle::new(|| Finder::new("resource_link"));
    static AUDIO: Needle = Needle::new(|| Finder::new("audio"));
    !revision.has_resource_links()
        && (may_hold(json, &RESOURCE_LINK) || !revision.has_audio() && may_hold(json, &AUDIO))
}

fn edit_block(revision: Revision, whole: &[u8], block: &str, edits: &mut Edits) {
    if let Some(text) = older_block(revision, block) {
        edits.replace(whole, block, text);
    }
}

/// The replacement of a block of content that the revision does not have.
fn older_block(revision: Revision, block: &str) -> Option<String> {
    let block = Object::read(block.as_bytes())?;
    let member = |key| block.read_as::<String>(key);
    let text = match member("type")?.as_str() {
        "audio" if !revision.has_audio() => {
            let kind = member("mimeType").unwrap_or_else(|| "of unknown type".to_owned());
            format!("[audio left out: {kind}; only newer revisions of MCP have it]")
        }
        "resource_link" if !revision.has_resource_links() => {
            let uri = member("uri").unwrap_or_default();
            match member("title").or_else(|| member("name")) {
                Some(name) => format!("[resource: {name}] {uri}"),
                None => format!("[resource] {uri}"),
            }
        }
        _ => return None,
    };
    Some(text_block(&text, block.get("annotations")))
}

fn text_block(text: &str, annotations: Option<&str>) -> String {
    let text = quoted(text);
    let mut members = vec![("type", "\"text\""), ("text", text.as_str())];
    members.extend(annotations.map(|annotations| ("annotations", annotations)));
    raw::object(members)
}

/// Splits messages of `sampling/createMessage` so that each has a single block of content.
fn single_blocks(revision: Revision, params: &[u8]) -> Option<Bytes> {
    let object = Object::read(params)?;
    let mut edits = Edits::default();
    for message in raw::elements(object.get("messages")?)? {
        let Some(read) = Object::read(message.get().as_bytes()) else { continue };
        let Some(content) = read.get("content") else { continue };
        let Some(blocks) = blocks(content) else {
            edit_block(revision, params, content, &mut edits);
            continue;
        };
        let says = |block: &str| {
            let older = older_block(revision, block);
            let content = older.as_deref().unwrap_or(block);
            let members = read.members.iter().map(|(key, value)| match &**key {
                "content" => ("content", content),
                key => (key, value.get()),
            });
            raw::object(members)
        };
        let mut messages: Vec<_> = blocks.into_iter().map(says).collect();
        if messages.is_empty() {
            messages.push(says(&text_block("", None)));
        }
        edits.replace(params, message.get(), messages.join(","));
    }
    edits.apply(params)
}

fn one_block(revision: Revision, blocks: &[&str]) -> String {
    if let [block] = blocks {
        return older_block(revision, block).unwrap_or_else(|| (*block).to_owned());
    }
    let texts: Vec<String> = blocks.iter().filter_map(|block| text_of(block)).collect();
    if !texts.is_empty() {
        return text_block(&texts.join("\n"), None);
    }
    let known = |block: &&&str| {
        let kind = Object::read(block.as_bytes()).and_then(|block| block.read_as::<String>("type"));
        matches!(kind.as_deref(), Some("image" | "audio"))
    };
    match blocks.iter().find(known) {
        Some(block) => older_block(revision, block).unwrap_or_else(|| (*block).to_owned()),
        None => text_block("", None),
    }
}

/// The elements of an array of objects.
fn blocks(content: &str) -> Option<Vec<&str>> {
    let blocks: Vec<_> = raw::elements(content)?.into_iter().map(|block| block.get()).collect();
    blocks.iter().all(|block| block.starts_with('{')).then_some(blocks)
}

fn text_of(block: &str) -> Option<String> {
    let block = Object::read(block.as_bytes())?;
    let is_text = block.read_as::<String>("type")? == "text";
    block.read_as("text").filter(|_| is_text)
}

#[cfg(test)]
mod tests;
