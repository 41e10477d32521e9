//! What spans say of messages: the names of OpenTelemetry's semantic conventions for MCP.
//!
//! No span has a payload, a session id or the URI of a resource. A name that a client chose is short.

use protocol::{Method, Notification, Request, TraceContext, payload};
use telemetry::{Before, Label, Side, Span, SpanRef, TraceId, Traces};

/// Begins the span of a request; `None` if nothing is traced.
pub fn begin_request_span(
    traces: &Traces,
    side: Side,
    request: &Request,
    before: Before<'_>,
) -> Option<Span> {
    if !traces.is_on() {
        return None;
    }
    let target = target_of(request);
    let mut span = begin(traces, side, "", &request.method, target.as_ref(), before)?;
    span.set("jsonrpc.request.id", Label::of(request.id.to_json().trim_matches('"')).into_string());
    Some(span)
}

/// Begins the span of a notification that a client sends; `None` if nothing is traced.
pub fn begin_notification_span(
    traces: &Traces,
    notification: &Notification,
    before: Before<'_>,
) -> Option<Span> {
    begin(traces, Side::Server, "", &notification.method, None, before)
}

/// Begins the span of the owner of a request that another node forwarded.
pub(crate) fn begin_owner_span(
    traces: &Traces,
    request: Option<&Request>,
    trace: &TraceContext,
) -> Option<Span> {
    // The node with the client's connection may trace where this one does not.
    if !traces.is_on() {
        return None;
    }
    let before = Before { parent: Some(position(trace)), ..Before::default() };
    match request {
        Some(request) => {
            let target = target_of(request);
            begin(traces, Side::Internal, "owner ", &request.method, target.as_ref(), before)
        }
        // The rest of a stream, after its owner was lost.
        None => traces.begin(Side::Internal, "owner resume".to_owned(), before),
    }
}

/// The span in which a request is.
pub(crate) fn position(trace: &TraceContext) -> SpanRef {
    SpanRef { trace: TraceId(trace.trace), span: trace.span }
}

fn begin(
    traces: &Traces,
    side: Side,
    prefix: &str,
    method: &Method,
    target: Option<&Label>,
    before: Before<'_>,
) -> Option<Span> {
    let named = method.known_name().map_or_else(|| Label::of(method.as_str()), Label::Known);
    let name = match target {
        Some(target) => format!("{prefix}{} {}", named.as_str(), target.as_str()),
        None => format!("{prefix}{}", named.as_str()),
    };
    let mut span = traces.begin(side, name, before)?;
    span.set("mcp.method.name", named.into_string());
    match (method, target) {
        (Method::ToolsCall, Some(tool)) => {
            span.set("gen_ai.operation.name", "execute_tool");
            span.set("gen_ai.tool.name", tool.as_str().to_owned());
        }
        (_, Some(prompt)) => span.set("gen_ai.prompt.name", prompt.as_str().to_owned()),
        (_, None) => {}
    }
    Some(span)
}

/// The tool or the prompt that a request names.
fn target_of(request: &Request) -> Option<Label> {
    match request.method {
        Method::ToolsCall => request.tool_name().map(|name| Label::of(&name)),
        Method::PromptsGet => {
            let name = request.params().and_then(|params| payload::name_of(&params));
            name.map(|name| Label::of(&name))
        }
        _ => None,
    }
}
