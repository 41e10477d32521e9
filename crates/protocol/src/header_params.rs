//! The `x-mcp-header` annotations of tools: which arguments a client of DRAFT-2026-v1
//! mirrors in `Mcp-Param-*` headers (HDR-11, HDR-13..HDR-16).

use bytes::Bytes;
use memchr::memmem::Finder;

use crate::raw::{self, Edits, Needle, Object};

/// Maximum number of annotations of one tool. HTTP servers accept few more headers than this, so
/// a tool with more could not be called; it is invalid.
const ANNOTATIONS_MAX: usize = 64;

/// The annotation's keyword in a parameter's schema.
const KEYWORD: &str = "x-mcp-header";
static MENTIONED: Needle = Needle::new(|| Finder::new(KEYWORD));

/// The annotated arguments of one tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderParams(Vec<HeaderParam>);

/// One annotated argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderParam {
    /// The header's name after `Mcp-Param-`, as the tool's author wrote it. Compared without
    /// regard to case.
    pub header: String,
    /// The argument's name.
    pub argument: String,
}

impl HeaderParam {
    /// Whether it can be part of a header's name by RFC 9110. The draft permits other characters as well.
    pub(crate) fn is_token(&self) -> bool {
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        self.header.bytes().all(is_token)
    }
}

/// Why a tool's annotations are invalid. Such a tool must not be listed to a client (HDR-16).
/// The text names the parameter, for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The annotation is not a string, or an empty one.
    #[error("x-mcp-header of parameter `{0}` must be a non-empty string")]
    Nameless(String),
    /// The annotation cannot be part of a header's name.
    #[error("x-mcp-header of parameter `{0}` must be visible ASCII without space and colon")]
    Unspeakable(String),
    /// Only numbers, strings and booleans fit into a header.
    #[error("x-mcp-header annotates parameter `{0}`, whose type is not number, string or boolean")]
    NotPrimitive(String),
    /// Two arguments have the same header. Names of headers are compared without regard to case.
    #[error("x-mcp-header of parameter `{0}` is used by another parameter, perhaps in other case")]
    Twice(String),
    /// More annotations than a request can have headers.
    #[error("the tool has more than {ANNOTATIONS_MAX} x-mcp-header parameters")]
    TooMany,
}

impl HeaderParams {
    /// Reads the annotations of a tool's `inputSchema`, given as JSON text. The draft does not
    /// define them for nested properties, so only top-level properties are read (HDR-14).
    pub fn read(input_schema: &[u8]) -> Result<Self, Invalid> {
        if !raw::may_hold(input_schema, &MENTIONED) {
            return Ok(Self::default());
        }
        let properties = Object::read(input_schema).and_then(|schema| schema.object("properties"));
        let mut read: Vec<HeaderParam> = Vec::new();
        for (argument, schema) in properties.map(|object| object.members).unwrap_or_default() {
            let Some(header) = header_of(&argument, schema.get())? else { continue };
            if read.iter().any(|other| other.header.eq_ignore_ascii_case(&header)) {
                return Err(Invalid::Twice(argument.into_owned()));
            }
            if read.len() == ANNOTATIONS_MAX {
                return Err(Invalid::TooMany);
            }
            read.push(HeaderParam { header, argument: argument.into_owned() });
        }
        Ok(Self(read))
    }

    /// The annotated arguments, in the schema's order.
    pub fn iter(&self) -> impl Iterator<Item = &HeaderParam> {
        self.0.iter()
    }

    /// The bytes that they occupy, roughly.
    pub fn bytes(&self) -> usize {
        let bytes = |param: &HeaderParam| param.header.len() + param.argument.len();
        self.0.iter().map(|param| size_of::<HeaderParam>() + bytes(param)).sum()
    }

    /// Whether the tool has no annotation.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The annotation of one parameter, if it has one.
fn header_of(argument: &str, schema: &str) -> Result<Option<String>, Invalid> {
    let Some(schema) = Object::read(schema.as_bytes()) else { return Ok(None) };
    if schema.get(KEYWORD).is_none() {
        return Ok(None);
    }
    let header: String = schema
        .read_as(KEYWORD)
        .filter(|header: &String| !header.is_empty())
        .ok_or_else(|| Invalid::Nameless(argument.to_owned()))?;
    // The draft excludes only space and colon, but no header can contain a control character.
    if !header.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':') {
        return Err(Invalid::Unspeakable(argument.to_owned()));
    }
    if !is_primitive(&schema) {
        return Err(Invalid::NotPrimitive(argument.to_owned()));
    }
    Ok(Some(header))
}

/// Number, string or boolean (HDR-11), perhaps nullable: a null argument has no header.
/// `integer` is a number.
fn is_primitive(schema: &Object<'_>) -> bool {
    let primitive =
        |name: &String| matches!(name.as_str(), "number" | "integer" | "string" | "boolean");
    match (schema.read_as::<String>("type"), schema.read_as::<Vec<String>>("type")) {
        (Some(name), _) => primitive(&name),
        (None, Some(names)) => {
            names.iter().any(primitive)
                && names.iter().all(|name| primitive(name) || name.as_str() == "null")
        }
        (None, None) => false,
    }
}

/// The members of one page of a `tools/list` result that Roundhouse reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolsPage {
    /// The tools that have a name, in the list's order.
    pub tools: Vec<Tool>,
    /// The cursor of the next page, if there is one.
    pub next_cursor: Option<String>,
}

/// The members of one tool that Roundhouse reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// Which of its arguments are mirrored in headers.
    pub header_params: Result<HeaderParams, Invalid>,
    /// Whether its author declares that a call changes nothing.
    pub is_read_only: bool,
    /// Whether its author declares that a second equal call has no further effect.
    pub is_idempotent: bool,
}

/// Reads the JSON text of a `tools/list` result; malformed tools are left out.
pub fn tools(result: &[u8]) -> ToolsPage {
    let Some(page) = Object::read(result) else { return ToolsPage::default() };
    let tools = page.get("tools").and_then(raw::elements).unwrap_or_default();
    ToolsPage {
        tools: tools.iter().filter_map(|tool| read_tool(tool.get())).collect(),
        next_cursor: page.read_as("nextCursor"),
    }
}

fn read_tool(tool: &str) -> Option<Tool> {
    let tool = Object::read(tool.as_bytes())?;
    let annotations = tool.object("annotations");
    let hints = |key| annotations.as_ref().is_some_and(|annotations| annotations.is_true(key));
    Some(Tool {
        name: tool.read_as("name")?,
        header_params: HeaderParams::read(tool.get("inputSchema").unwrap_or_default().as_bytes()),
        is_read_only: hints("readOnlyHint"),
        is_idempotent: hints("idempotentHint"),
    })
}

/// Removes the tools with invalid annotations from a `tools/list` result (HDR-16). Returns also
/// why each was removed. Every other tool keeps its bytes. `None` if all tools are valid.
pub fn without_invalid_tools(result: &[u8]) -> Option<(Bytes, Vec<(String, Invalid)>)> {
    if !raw::may_hold(result, &MENTIONED) {
        return None;
    }
    let page = Object::read(result)?;
    let list = page.get("tools")?;
    let (mut kept, mut dropped) = (Vec::new(), Vec::new());
    for tool in raw::elements(list)? {
        match read_tool(tool.get()) {
            Some(Tool { name, header_params: Err(why), .. }) => dropped.push((name, why)),
            _ => kept.push(tool.get()),
        }
    }
    if dropped.is_empty() {
        return None;
    }
    let mut edits = Edits::default();
    edits.replace(result, list, raw::array(kept));
    edits.apply(result).map(|edited| (edited, dropped))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(properties: &str) -> Result<Vec<(String, String)>, Invalid> {
        let schema = format!(r#"{{"type":"object","properties":{properties}}}"#);
        let params = HeaderParams::read(schema.as_bytes())?;
        Ok(params.iter().map(|param| (param.header.clone(), param.argument.clone())).collect())
    }

    fn read_one(annotation: &str, schema_type: &str) -> Result<Vec<(String, String)>, Invalid> {
        read(&format!(r#"{{"p":{{"type":{schema_type},"x-mcp-header":{annotation}}}}}"#))
    }

    #[test]
    fn numbers_strings_and_booleans_may_be_annotated_and_nothing_else() {
        let primitive = ["number", "integer", "string", "boolean"].map(|name| format!("{name:?}"));
        for schema_type in primitive.iter().map(String::as_str).chain([r#"["string","null"]"#]) {
            assert_eq!(
                read_one(r#""Region""#, schema_type),
                Ok(vec![("Region".into(), "p".into())])
            );
        }
        for schema_type in [r#""object""#, r#""array""#, r#""null""#, r#"["string","array"]"#, "7"]
        {
            let refused = Err(Invalid::NotPrimitive("p".into()));
            assert_eq!(read_one(r#""Region""#, schema_type), refused, "{schema_type}");
        }
        let untyped = r#"{"p":{"x-mcp-header":"A"}}"#;
        assert_eq!(read(untyped), Err(Invalid::NotPrimitive("p".into())));
    }

    #[test]
    fn a_name_is_visible_ascii_without_space_and_colon() {
        for name in ["Region", "My(Param)", "x", "a-b_c.d", "!#$%&'*+"] {
            assert!(read_one(&raw::quoted(name), r#""string""#).is_ok(), "{name}");
        }
        for name in ["two words", "a:b", "größe", "a\r\nX-Evil", "a\tb", "\u{7f}"] {
            let refused = Err(Invalid::Unspeakable("p".into()));
            assert_eq!(read_one(&raw::quoted(name), r#""string""#), refused, "{name:?}");
        }
        for name in [r#""""#, "7", "null", "true", "[]"] {
            assert_eq!(read_one(name, r#""string""#), Err(Invalid::Nameless("p".into())), "{name}");
        }
    }

    // holds: HDR-15
    #[test]
    fn two_parameters_cannot_share_a_header_in_any_case() {
        let twice = r#"{"a":{"type":"string","x-mcp-header":"Region"},"b":{"type":"number","x-mcp-header":"REGION"}}"#;
        assert_eq!(read(twice), Err(Invalid::Twice("b".into())));
    }

    #[test]
    fn more_annotations_than_a_request_has_headers_are_refused() {
        let many = |count: usize| {
            let names: Vec<_> = (0..count)
                .map(|n| format!(r#""p{n}":{{"type":"string","x-mcp-header":"H{n}"}}"#))
                .collect();
            read(&format!("{{{}}}", names.join(",")))
        };
        assert_eq!(many(64).map(|read| read.len()), Ok(64));
        assert_eq!(many(65), Err(Invalid::TooMany));
    }

    #[test]
    fn schemas_without_annotation_or_sense_annotate_nothing() {
        for schema in ["{}", "", "[]", "true", r#"{"properties":["x-mcp-header"]}"#] {
            assert_eq!(HeaderParams::read(schema.as_bytes()), Ok(HeaderParams::default()));
        }
        let nested =
            r#"{"o":{"type":"object","properties":{"x":{"type":"string","x-mcp-header":"X"}}}}"#;
        assert_eq!(read(nested), Ok(vec![]));
        let escaped = r#"{"p":{"type":"string","x-mcp-heade\u0072":"X"}}"#;
        assert_eq!(read(escaped), Ok(vec![("X".into(), "p".into())]));
    }

    const LIST: &str = r#"{ "tools": [ {"name":"good","inputSchema":{"properties":{"p": {"type":"string","x-mcp-header":"P"}}},"x":1.0} ,
        {"name":"bad","inputSchema":{"properties":{"p":{"type":"array","x-mcp-header":"P"}}}},
        { "name" : "plain", "inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true,"idempotentHint":1}}], "nextCursor":"c2", "_meta":{"k":0} }"#;

    #[test]
    fn a_page_tells_names_annotations_hints_and_the_next_cursor() {
        let page = tools(LIST.as_bytes());
        let names: Vec<_> = page.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["good", "bad", "plain"]);
        assert_eq!(page.tools[1].header_params, Err(Invalid::NotPrimitive("p".into())));
        assert!(page.tools[2].is_read_only && !page.tools[2].is_idempotent);
        assert_eq!(page.next_cursor.as_deref(), Some("c2"));
    }

    #[test]
    fn malformed_pages_are_empty_and_nameless_tools_are_left_out() {
        for page in ["", "[]", "{}", r#"{"tools":{}}"#, r#"{"tools":[1,{"name":7}]}"#] {
            assert_eq!(tools(page.as_bytes()), ToolsPage::default(), "{page}");
        }
    }

    #[test]
    fn an_invalid_tool_is_dropped_and_the_others_keep_their_bytes() {
        let (edited, dropped) = without_invalid_tools(LIST.as_bytes()).expect("one is invalid");
        assert_eq!(dropped, [("bad".to_owned(), Invalid::NotPrimitive("p".into()))]);
        let expected = r#"{ "tools": [{"name":"good","inputSchema":{"properties":{"p": {"type":"string","x-mcp-header":"P"}}},"x":1.0},{ "name" : "plain", "inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true,"idempotentHint":1}}], "nextCursor":"c2", "_meta":{"k":0} }"#;
        assert_eq!(edited, expected);
        assert_eq!(without_invalid_tools(&edited), None);
        assert_eq!(without_invalid_tools(br#"{"tools":[{"name":"t"}]}"#), None);
    }
}
