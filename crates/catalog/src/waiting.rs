//! Requests of the session that wait in the catalog: for the starts of servers, or for lists.

use protocol::{Listed, Request, RequestId};

/// Most requests that wait. Further ones are refused.
const REQUESTS_MAX: usize = 1_024;
/// Most bytes of the requests that wait. Further ones are refused. A single one may be longer.
const BYTES_MAX: usize = 8 << 20;

/// A request that waits.
pub(crate) struct Waiting {
    pub(crate) request: Request,
    pub(crate) until: Until,
    /// A server has returned it before.
    pub(crate) was_returned: bool,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Until {
    /// The start of this server.
    Started(usize),
    /// The starts of all servers, for a bounded time.
    AllStarted,
    /// The lists that are being read.
    Listed,
    /// This list of this server, which says whether the request may be sent there.
    ListOf(usize, Listed),
}

/// The requests of a session that wait, in their order.
#[derive(Default)]
pub(crate) struct WaitingRequests {
    all: Vec<Waiting>,
    bytes: usize,
}

impl WaitingRequests {
    /// Adds a request, or returns its id if as much waits as may.
    pub(crate) fn add(&mut self, waiting: Waiting) -> Result<(), RequestId> {
        let bytes = waiting.request.raw().len();
        let is_full =
            self.all.len() >= REQUESTS_MAX || self.bytes.saturating_add(bytes) > BYTES_MAX;
        if is_full && !self.all.is_empty() {
            return Err(waiting.request.id);
        }
        self.add_in_flight(waiting);
        Ok(())
    }

    /// Adds a request that a server has returned. It was in flight, and the number of these bounds it.
    pub(crate) fn add_in_flight(&mut self, waiting: Waiting) {
        self.bytes += waiting.request.raw().len();
        self.all.push(waiting);
    }

    /// Removes the request with this id.
    pub(crate) fn remove(&mut self, id: &RequestId) {
        self.take_if(|waiting| waiting.request.id == *id);
    }

    /// Removes those that fulfil a condition, and returns them.
    pub(crate) fn take_if(&mut self, is_it: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let taken: Vec<_> = self.all.extract_if(.., |waiting| is_it(waiting)).collect();
        self.bytes -= taken.iter().map(|waiting| waiting.request.raw().len()).sum::<usize>();
        taken
    }

    pub(crate) fn any(&self, is_it: impl Fn(&Waiting) -> bool) -> bool {
        self.all.iter().any(is_it)
    }

    /// The bytes of all requests that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use protocol::Method;

    use super::*;

    fn waiting(id: i64, bytes: usize) -> Waiting {
        let params = format!("{{\"a\":\"{}\"}}", "x".repeat(bytes));
        let request = Request::new(id.into(), Method::ToolsCall, Some(params.as_bytes()));
        Waiting { request, until: Until::AllStarted, was_returned: false }
    }

    #[test]
    fn so_many_requests_and_bytes_wait_and_no_more() {
        let mut all = WaitingRequests::default();
        assert!(all.add(waiting(0, 2 * BYTES_MAX)).is_ok(), "a single one may be longer");
        assert!(all.add(waiting(1, 10)).is_err());
        all.remove(&0.into());
        assert_eq!(all.bytes(), 0);
        let added = (0..3_000).filter(|id| all.add(waiting(*id, 10)).is_ok()).count();
        assert_eq!(added, REQUESTS_MAX);
        let taken = all.take_if(|waiting| waiting.request.id != RequestId::from(7));
        assert_eq!(
            (taken.len(), all.any(|waiting| waiting.until == Until::AllStarted)),
            (1_023, true)
        );
        assert_eq!(all.bytes(), waiting(7, 10).request.raw().len());
    }
}
