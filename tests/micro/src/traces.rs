//! What tracing adds to a call: the decision, which each call pays, and the spans of a call that is traced,
//! without their queue.

use std::hint::black_box;
use std::time::Duration;

use bytes::Bytes;
use protocol::{Body, Limits, Message, Request, TraceParent};
use telemetry::{
    Before, DurationLabel, DurationNames, Durations, OtlpSettings, Side, Span, SpanRef, TraceId,
    Traces,
};

/// A call whose client has a trace.
const TRACED: &[u8] = br#"{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello there"},"_meta":{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","progressToken":17}}}"#;

/// The decision at a node that traces nothing.
pub(crate) fn off() -> Box<dyn FnMut()> {
    decide(Traces::default())
}

/// The decision at a node that traces one of very many calls, and none of these.
pub(crate) fn not_taken() -> Box<dyn FnMut()> {
    decide(Traces::discarding(&OtlpSettings { traces_one_in: u32::MAX, ..Default::default() }))
}

fn decide(traces: Traces) -> Box<dyn FnMut()> {
    Box::new(move || {
        let traces = black_box(&traces);
        black_box(traces.takes_by_chance() || traces.trusts_sampled());
    })
}

/// A call that is traced: its context is read, and its two spans are made, with the attributes that they
/// have; the server gets the second.
pub(crate) fn taken() -> Box<dyn FnMut()> {
    let traces = Traces::discarding(&OtlpSettings { traces_one_in: 1, ..Default::default() });
    let call = match protocol::parse(Bytes::from_static(TRACED), &Limits::default()) {
        Ok(Body::One(Message::Request(call))) => call,
        other => panic!("{other:?}"),
    };
    Box::new(move || {
        assert!(traces.takes_by_chance());
        let (parent, _) = black_box(&call).trace_parent().expect("a parent");
        let parent = SpanRef { trace: TraceId(parent.trace), span: parent.span };
        let ingress = span(&traces, Side::Server, &call, parent);
        let link = span(&traces, Side::Client, &call, ingress.at());
        let at = link.at();
        let parent = TraceParent { trace: at.trace.0, span: at.span, is_sampled: true };
        black_box(call.with_trace_parent(&parent));
    })
}

fn span(traces: &Traces, side: Side, call: &Request, parent: SpanRef) -> Span {
    let before = Before { parent: Some(parent), ..Before::default() };
    let name = call.tool_name().expect("a tool");
    let mut span = traces.begin(side, format!("tools/call {name}"), before).expect("a span");
    span.set("mcp.method.name", "tools/call");
    span.set("gen_ai.operation.name", "execute_tool");
    span.set("gen_ai.tool.name", name.into_owned());
    span.set("jsonrpc.request.id", call.id.to_json());
    span.set("roundhouse.tenant", "acme");
    span.set("roundhouse.node", "n1");
    span
}

/// The histogram of durations that each call is in.
pub(crate) fn duration() -> Box<dyn FnMut()> {
    let label = |name, values| DurationLabel { name, attribute: name, values };
    let durations = Durations::of(DurationNames {
        name: "micro_seconds",
        convention: "micro",
        help: "Nothing.",
        labels: [label("a", &["x", "y"]), label("b", &["", "z"])],
    });
    let observer = durations.observer();
    Box::new(move || observer.observe(black_box([1, 0]), black_box(Duration::from_micros(1_234))))
}
