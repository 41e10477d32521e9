//! Connections that remember whether the server has answered on them, and whether that was read.
//!
//! A server may close an idle connection while a request is on its way: that says nothing about whether it
//! can be reached.
//!
//! The kernel frees what was not read of a connection when it is closed, which takes up to 1 ms for some
//! megabytes. So a thread of lower priority closes connections with a response that was not read to its end.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use fairness::compute;
use hyper::http::Extensions;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};

/// Most connections of the process that wait to be closed by another thread. Further ones are closed at once.
const CLOSING_MAX: usize = 256;

/// The connections that wait to be closed by another thread.
static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// What was answered on a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answered(Arc<State>);

#[derive(Debug, Default)]
struct State {
    has_answered: AtomicBool,
    /// The tenant whose response was not read to its end.
    unread: Mutex<Option<Arc<str>>>,
}

impl State {
    fn unread(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answered {
    /// Notes an answer for this tenant, which has these extensions. Its body is not read.
    pub(crate) fn note(extensions: &Extensions, tenant: &Arc<str>) {
        if let Some(Self(state)) = extensions.get() {
            state.has_answered.store(true, Ordering::Relaxed);
            *state.unread() = Some(Arc::clone(tenant));
        }
    }

    /// Notes that the body of the answer was read to its end.
    pub(crate) fn note_read(extensions: &Extensions) {
        if let Some(Self(state)) = extensions.get() {
            *state.unread() = None;
        }
    }

    /// Whether an error occurred on a connection on which the server had answered before.
    pub(crate) fn before(error: &hyper_util::client::legacy::Error) -> bool {
        let mut extensions = Extensions::new();
        let Some(connected) = error.connect_info() else { return false };
        connected.get_extras(&mut extensions);
        let answered = extensions.get::<Self>();
        answered.is_some_and(|Self(state)| state.has_answered.load(Ordering::Relaxed))
    }
}

/// A connection.
pub(crate) struct Tracked<T: Send + 'static> {
    /// There until this value is dropped.
    inner: Option<T>,
    answered: Answered,
}

impl<T: Send + 'static> Tracked<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self { inner: Some(inner), answered: Answered::default() }
    }

    fn inner(&mut self) -> &mut T {
        self.inner.as_mut().expect("a connection is there until it is dropped")
    }
}

impl<T: Send + 'static> Drop for Tracked<T> {
    fn drop(&mut self) {
        let Some(tenant) = self.answered.0.unread().take() else { return };
        let inner = self.inner.take();
        if CLOSING.fetch_add(1, Ordering::Relaxed) >= CLOSING_MAX {
            CLOSING.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let closing = Closing(inner);
        // Nothing waits for it: the thread drops the connection instead of calling this.
        drop(compute(&tenant, move || drop(closing)));
    }
}

/// A connection that another thread closes.
struct Closing<T>(Option<T>);

impl<T> Drop for Closing<T> {
    fn drop(&mut self) {
        CLOSING.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T: Connection + Send + 'static> Connection for Tracked<T> {
    fn connected(&self) -> Connected {
        let inner = self.inner.as_ref().expect("a connection is there until it is dropped");
        inner.connected().extra(self.answered.clone())
    }
}

impl<T: Read + Unpin + Send + 'static> Read for Tracked<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(self.inner()).poll_read(context, buffer)
    }
}

impl<T: Write + Unpin + Send + 'static> Write for Tracked<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.inner()).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.inner()).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.inner()).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.as_ref().is_some_and(Write::is_write_vectored)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.inner()).poll_write_vectored(context, buffers)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use super::*;

    /// Says on which thread it is dropped.
    struct Says(mpsc::Sender<ThreadId>);

    impl Drop for Says {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().id());
        }
    }

    #[test]
    fn another_thread_closes_a_connection_whose_response_was_not_read() {
        let (sender, dropped) = mpsc::channel();
        let here = thread::current().id();
        for is_read in [false, true] {
            let tracked = Tracked::new(Says(sender.clone()));
            let mut extensions = Extensions::new();
            extensions.insert(tracked.answered.clone());
            Answered::note(&extensions, &"a".into());
            if is_read {
                Answered::note_read(&extensions);
            }
            drop(tracked);
            let by = dropped.recv_timeout(Duration::from_secs(10)).unwrap();
            assert_eq!(by == here, is_read);
        }
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while CLOSING.load(Ordering::Relaxed) > 0 {
            assert!(std::time::Instant::now() < until, "a place was not given back");
            thread::yield_now();
        }
    }
}
