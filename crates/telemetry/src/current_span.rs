//! The span in which a thread works now: the lines that it logs have the ids of it. It is set only while a
//! message that is traced is worked on.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::{Format, SpanRef};

thread_local! {
    static CURRENT: Cell<Option<SpanRef>> = const { Cell::new(None) };
}

/// The span in which this thread works now, if that is traced.
pub fn current_span() -> Option<SpanRef> {
    CURRENT.get()
}

/// Sets the span of the future that is polled now, until it is over. Do so only within [`Spanned`]: else the
/// thread keeps the span.
pub fn set_current_span(at: Option<SpanRef>) {
    CURRENT.set(at);
}

/// Has this thread work in a span until the result is dropped. Without a span nothing changes.
pub fn enter_span(at: Option<SpanRef>) -> EnteredSpan {
    EnteredSpan { before: at.map(|at| CURRENT.replace(Some(at))), of_thread: PhantomData }
}

/// The thread works in a span until this is dropped.
#[derive(Debug)]
#[must_use = "the span is left at once"]
pub struct EnteredSpan {
    before: Option<Option<SpanRef>>,
    /// It must be dropped by the thread that made it.
    of_thread: PhantomData<*const ()>,
}

impl Drop for EnteredSpan {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            CURRENT.set(before);
        }
    }
}

/// A future that keeps the current span of its own, also from one poll to the next.
#[derive(Debug)]
pub struct Spanned<F> {
    work: F,
    /// Boxed, since few futures have one.
    at: Option<Box<SpanRef>>,
    is_on: bool,
}

impl<F> Spanned<F> {
    /// A future that begins without a span. `is_on`: it may get one.
    pub fn new(work: F, is_on: bool) -> Self {
        Self { work, at: None, is_on }
    }

    /// A future that goes on in the span in which this thread works now, perhaps on another thread.
    pub fn of_current(work: F) -> Self {
        let at = current_span().map(Box::new);
        Self { work, is_on: at.is_some(), at }
    }
}

impl<F: Future + Unpin> Future for Spanned<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.is_on {
            return Pin::new(&mut self.work).poll(context);
        }
        let at = self.at.as_deref().copied();
        // Restored also when the work panics.
        let entered = EnteredSpan { before: Some(CURRENT.replace(at)), of_thread: PhantomData };
        let outcome = Pin::new(&mut self.work).poll(context);
        if current_span() != at {
            self.at = current_span().map(Box::new);
        }
        drop(entered);
        outcome
    }
}

/// Writes events as the inner format does, and adds the ids of the current span.
pub(crate) struct WithSpan<E> {
    pub(crate) inner: E,
    pub(crate) format: Format,
}

impl<S, N, E> FormatEvent<S, N> for WithSpan<E>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    E: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Some(at) = current_span() else {
            return self.inner.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.inner.format_event(context, Writer::new(&mut line), event)?;
        append_ids(&mut line, self.format, at)?;
        writer.write_str(&line)
    }
}

/// Adds the ids of a span to a whole line.
fn append_ids(line: &mut String, format: Format, SpanRef { trace, span }: SpanRef) -> fmt::Result {
    let end = match format {
        Format::Text => "\n",
        Format::Json => "}\n",
    };
    let Some(length) = line.strip_suffix(end).map(str::len) else { return Ok(()) };
    line.truncate(length);
    match format {
        Format::Text => writeln!(line, " trace_id={trace} span_id={span:016x}"),
        Format::Json => {
            writeln!(line, ",\"trace_id\":\"{trace}\",\"span_id\":\"{span:016x}\"}}")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn, ready};
    use std::task::Waker;

    use super::*;
    use crate::TraceId;

    const AT: Option<SpanRef> = Some(SpanRef { trace: TraceId(1), span: 2 });

    fn poll<F: Future + Unpin>(work: &mut F) -> Poll<F::Output> {
        Pin::new(work).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_future_keeps_its_span_and_the_thread_does_not() {
        let mut first = true;
        let work = poll_fn(move |_| {
            if std::mem::take(&mut first) {
                assert_eq!(current_span(), None);
                set_current_span(AT);
                return Poll::Pending;
            }
            Poll::Ready(current_span())
        });
        let mut work = Spanned::new(work, true);
        assert!(poll(&mut work).is_pending());
        assert_eq!(current_span(), None, "the thread works in no span");
        assert_eq!(poll(&mut work), Poll::Ready(AT));
        assert_eq!(current_span(), None);
    }

    #[test]
    fn work_goes_on_in_the_span_in_which_it_was_begun_also_at_another_thread() {
        let entered = enter_span(AT);
        let mut work = Spanned::of_current(Box::pin(async { current_span() }));
        let none = Spanned::of_current(ready(()));
        drop(entered);
        assert_eq!(current_span(), None);
        assert!(none.is_on);
        let found = std::thread::spawn(move || poll(&mut work)).join().unwrap();
        assert_eq!(found, Poll::Ready(AT));
        assert!(!Spanned::of_current(pending::<()>()).is_on);
    }

    #[test]
    fn a_panic_within_a_span_leaves_it() {
        let mut work = Spanned::new(
            poll_fn(|_| -> Poll<()> {
                set_current_span(AT);
                panic!("as a test")
            }),
            true,
        );
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| poll(&mut work)));
        assert!(unwound.is_err());
        assert_eq!(current_span(), None);
    }

    #[test]
    fn the_ids_are_the_last_fields_of_a_line() {
        let check = |line: &str, format, wanted: &str| {
            let mut line = line.to_owned();
            append_ids(&mut line, format, AT.unwrap()).unwrap();
            assert_eq!(line, wanted);
        };
        let (trace, span) = ("00000000000000000000000000000001", "0000000000000002");
        check("a b=1\n", Format::Text, &format!("a b=1 trace_id={trace} span_id={span}\n"));
        let json = format!("{{\"a\":1,\"trace_id\":\"{trace}\",\"span_id\":\"{span}\"}}\n");
        check("{\"a\":1}\n", Format::Json, &json);
    }
}
