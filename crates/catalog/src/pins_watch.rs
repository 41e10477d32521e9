//! The pins of a tenant, as one session follows them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::watch;

use crate::pins::{Pinned, TenantPins};

type Receiver = watch::Receiver<Arc<[Pinned]>>;

/// Ready when the pins have changed, with the receiver; `None` if no change can come any more.
type Changed = Pin<Box<dyn Future<Output = Option<Receiver>> + Send>>;

/// Follows the pins of a tenant.
pub(crate) struct PinsWatch {
    /// `None` once no change can come.
    changed: Option<Changed>,
    current: Arc<[Pinned]>,
}

impl PinsWatch {
    pub(crate) fn new(pins: &TenantPins) -> Self {
        let mut receiver = pins.subscribe();
        let current = Arc::clone(&receiver.borrow_and_update());
        Self { changed: Some(changed(receiver)), current }
    }

    /// The pins that were seen last.
    pub(crate) fn current(&self) -> Arc<[Pinned]> {
        Arc::clone(&self.current)
    }

    /// Waits for other pins.
    pub(crate) fn poll_changed(&mut self, context: &mut Context<'_>) -> Poll<Arc<[Pinned]>> {
        let Some(waiting) = &mut self.changed else { return Poll::Pending };
        let Poll::Ready(receiver) = waiting.as_mut().poll(context) else { return Poll::Pending };
        self.changed = None;
        let Some(mut receiver) = receiver else { return Poll::Pending };
        self.current = Arc::clone(&receiver.borrow_and_update());
        self.changed = Some(changed(receiver));
        Poll::Ready(Arc::clone(&self.current))
    }
}

fn changed(mut receiver: Receiver) -> Changed {
    Box::pin(async move { receiver.changed().await.is_ok().then_some(receiver) })
}
