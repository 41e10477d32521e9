//! Spans of requests. A span is made only for a message that is traced: nothing here costs anything for
//! another one.

use std::fmt;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Link, Span as _, SpanContext, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceState,
    Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, Span as SdkSpan};

use crate::OtlpSettings;

/// Begins spans. Cheap to clone; by default it begins none.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Arc<Tracing>>);

#[derive(Debug)]
struct Tracing {
    tracer: SdkTracer,
    one_in: u32,
    trusts_sampled: bool,
}

/// The id of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub u128);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A span by its ids, also one of another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanRef {
    /// The trace.
    pub trace: TraceId,
    /// The span in it.
    pub span: u64,
}

impl SpanRef {
    fn context(self, state: TraceState) -> SpanContext {
        let Self { trace, span } = self;
        // This node decides by itself what is traced, and has decided so.
        SpanContext::new(trace.0.into(), span.into(), TraceFlags::SAMPLED, true, state)
    }
}

/// The side of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Serves a message of a client.
    Server,
    /// A part of the work within the cluster.
    Internal,
    /// Waits for a server.
    Client,
}

/// Which spans come before a new one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Before<'a> {
    /// The parent. Without one the span begins a trace.
    pub parent: Option<SpanRef>,
    /// The `tracestate` that came with the parent. A malformed one is ignored.
    pub state: Option<&'a str>,
    /// A span that is related otherwise.
    pub link: Option<SpanRef>,
    /// How long ago the span began.
    pub earlier: Duration,
}

impl Traces {
    /// Begins spans of this tracer.
    pub(crate) fn new(tracer: SdkTracer, settings: &OtlpSettings) -> Self {
        let (one_in, trusts_sampled) = (settings.traces_one_in, settings.trust_sampled);
        Self(Some(Arc::new(Tracing { tracer, one_in, trusts_sampled })))
    }

    /// Begins spans that are not sent anywhere, under these settings.
    pub fn discarding(settings: &OtlpSettings) -> Self {
        let provider = SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOn).build();
        Self::new(provider.tracer("roundhouse"), settings)
    }

    /// Whether messages may be traced.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether clients may decide if their messages are traced. Only then the flag in the message has to
    /// be read for [`Traces::takes`].
    pub fn trusts_sampled(&self) -> bool {
        self.0.as_ref().is_some_and(|tracing| tracing.trusts_sampled)
    }

    /// Decides by chance whether a message is traced.
    pub fn takes_by_chance(&self) -> bool {
        match self.0.as_ref().map(|tracing| tracing.one_in) {
            None | Some(0) => false,
            Some(one_in) => fastrand::u32(..one_in) == 0,
        }
    }

    /// Begins a span; `None` if nothing is traced.
    pub fn begin(&self, side: Side, name: String, before: Before<'_>) -> Option<Span> {
        let tracing = self.0.as_ref()?;
        let kind = match side {
            Side::Server => SpanKind::Server,
            Side::Internal => SpanKind::Internal,
            Side::Client => SpanKind::Client,
        };
        let mut builder = tracing.tracer.span_builder(name).with_kind(kind);
        if !before.earlier.is_zero() {
            builder = builder.with_start_time(SystemTime::now() - before.earlier);
        }
        if let Some(link) = before.link {
            let link = Link::with_context(link.context(TraceState::NONE));
            builder = builder.with_links(vec![link]);
        }
        let state = || before.state.and_then(|state| TraceState::from_str(state).ok());
        let context = match before.parent {
            Some(parent) => {
                Context::new().with_remote_span_context(parent.context(state().unwrap_or_default()))
            }
            None => Context::new(),
        };
        Some(Span(Box::new(tracing.tracer.build_with_context(builder, &context))))
    }
}

/// One span. It ends when this is dropped.
pub struct Span(Box<SdkSpan>);

impl Span {
    /// Where this span is.
    pub fn at(&self) -> SpanRef {
        let context = self.0.span_context();
        SpanRef {
            trace: TraceId(u128::from_be_bytes(context.trace_id().to_bytes())),
            span: u64::from_be_bytes(context.span_id().to_bytes()),
        }
    }

    /// Sets an attribute.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        self.0.set_attribute(KeyValue::new(key, value.into()));
    }

    /// Marks the span as failed, with this `error.type`.
    pub fn fail(&mut self, error_type: impl Into<Value>) {
        self.set("error.type", error_type);
        // The text of an error may hold what a server or a client chose.
        self.0.set_status(Status::error(""));
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Span").field(&self.at()).finish()
    }
}
