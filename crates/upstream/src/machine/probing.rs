//! Whether the server still knows the session: some answer 400 and not 404 for one that they do not know.

use protocol::Request;

use super::ids::CallId;
use crate::exchange::ExchangeEvent;

/// A ping after a refusal with 400, and the requests that wait for what becomes of it.
#[derive(Debug, Default)]
pub(super) struct Probing {
    is_under_way: bool,
    /// Requests that were answered 400. The session that sends requests bounds them.
    doubted: Vec<(CallId, Request, ExchangeEvent)>,
}

impl Probing {
    pub(super) fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    /// The ping is sent.
    pub(super) fn begin(&mut self) {
        self.is_under_way = true;
    }

    /// Keeps a request that was refused like this, until it is known why.
    pub(super) fn doubt(&mut self, id: CallId, request: Request, refusal: ExchangeEvent) {
        self.doubted.push((id, request, refusal));
    }

    /// The request with this id was cancelled.
    pub(super) fn cancel(&mut self, own: Option<&protocol::RequestId>) {
        self.doubted.retain(|(id, ..)| Some(&id.own) != own);
    }

    /// The ping has its answer. Returns the requests that waited for it.
    pub(super) fn end(&mut self) -> Vec<(CallId, Request, ExchangeEvent)> {
        self.is_under_way = false;
        std::mem::take(&mut self.doubted)
    }
}
