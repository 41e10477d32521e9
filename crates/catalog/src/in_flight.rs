//! Requests that have not ended: those of the session at a server, and those of servers at the client.

use std::collections::HashMap;

use bytes::Bytes;
use protocol::{Message, Method, ProgressToken, Request, RequestId, Response, downgrade, payload};

/// Most requests of the session that are in flight. Sessions have a bound of their own, which is lower
/// unless an operator raises it.
const REQUESTS_MAX: usize = 4_096;
/// Most requests of one server that the client has not answered.
const ASKED_MAX: usize = 64;

/// The requests of the session, by id: each is at one server.
#[derive(Default)]
pub(crate) struct InFlight(HashMap<RequestId, AtServer>);

/// A request that is at a server.
pub(crate) struct AtServer {
    pub(crate) child: usize,
    /// `None` for a request that a former owner sent.
    pub(crate) method: Option<Method>,
    /// The resource that the request is about, where it subscribes to one.
    pub(crate) resource: Option<Box<str>>,
    token: Option<ProgressToken>,
    /// A server has returned it before, and was sent it once more.
    was_returned: bool,
}

impl InFlight {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether no request is at this server.
    pub(crate) fn has_none_of(&self, child: usize) -> bool {
        self.0.values().all(|at| at.child != child)
    }

    /// Whether one more request fits.
    pub(crate) fn has_room(&self) -> bool {
        self.0.len() < REQUESTS_MAX
    }

    /// Adds a request that is sent to a server. `was_returned`: a server did not run it, and it is sent once
    /// more.
    pub(crate) fn add(&mut self, child: usize, request: &Request, was_returned: bool) {
        let (method, token) = (request.method.clone(), request.progress_token());
        let resource = match method {
            Method::Subscribe | Method::Unsubscribe => {
                request.params().and_then(|params| payload::resource_uri_of(&params))
            }
            _ => None,
        };
        let (method, resource) = (Some(method), resource.map(Into::into));
        let at = AtServer { child, method, resource, token, was_returned };
        self.0.insert(request.id.clone(), at);
    }

    /// Adds a request that a former owner sent, and whose response the link waits for.
    pub(crate) fn add_resumed(&mut self, child: usize, id: RequestId) {
        let (method, resource, token) = (None, None, None);
        self.0.insert(id, AtServer { child, method, resource, token, was_returned: false });
    }

    /// Removes a request that this server has returned; `None` if it has returned it before.
    pub(crate) fn take_returned(&mut self, child: usize, id: &RequestId) -> Option<AtServer> {
        let may = self.0.get(id).is_some_and(|at| at.child == child && !at.was_returned);
        may.then(|| self.0.remove(id)).flatten()
    }

    /// The server at which a request is.
    pub(crate) fn child_of(&self, id: &RequestId) -> Option<usize> {
        self.0.get(id).map(|at| at.child)
    }

    /// Whether the request is at this server.
    pub(crate) fn is_at(&self, child: usize, id: &RequestId) -> bool {
        self.child_of(id) == Some(child)
    }

    /// The request that is at this server, if it is the only one.
    pub(crate) fn only_at(&self, child: usize) -> Option<&RequestId> {
        let mut all = self.0.iter().filter(|(_, at)| at.child == child).map(|(id, _)| id);
        let first = all.next();
        first.filter(|_| all.next().is_none())
    }

    /// Whether a request with this token is at this server, or `about` is one that a former owner sent: its
    /// token is not known here.
    pub(crate) fn has_token(
        &self,
        child: usize,
        token: &ProgressToken,
        about: Option<&RequestId>,
    ) -> bool {
        let resumed = about.and_then(|id| self.0.get(id));
        resumed.is_some_and(|at| at.child == child && at.method.is_none())
            || self.0.values().any(|at| at.child == child && at.token.as_ref() == Some(token))
    }

    /// Removes a request that this server has answered; `None` if it is not at this server.
    pub(crate) fn take(&mut self, child: usize, id: &RequestId) -> Option<AtServer> {
        self.is_at(child, id).then(|| self.0.remove(id)).flatten()
    }

    /// Removes all requests that are at this server.
    pub(crate) fn take_of(&mut self, child: usize) -> Vec<RequestId> {
        let ids = self.0.iter().filter(|(_, at)| at.child == child).map(|(id, _)| id.clone());
        let ids: Vec<_> = ids.collect();
        ids.iter().for_each(|id| drop(self.0.remove(id)));
        ids
    }
}

/// The requests of servers that the client has not answered, by the number that stands in their new ids.
#[derive(Default)]
pub(crate) struct Asked {
    open: HashMap<u64, OfServer>,
    next: u64,
}

struct OfServer {
    child: usize,
    id: RequestId,
    method: Method,
    token: Option<ProgressToken>,
}

/// A server has as many unanswered requests as it may.
pub(crate) struct Full;

/// What the ids of the requests begin with.
const ID_PREFIX: &str = "catalog-";

fn id_of(number: u64) -> RequestId {
    RequestId::from(format!("{ID_PREFIX}{number}"))
}

fn number_of(id: &RequestId) -> Option<u64> {
    match id {
        RequestId::String(text) => text.strip_prefix(ID_PREFIX)?.parse().ok(),
        RequestId::Number(_) => None,
    }
}

impl Asked {
    /// Whether the client has answered all requests of this server.
    pub(crate) fn has_none_of(&self, child: usize) -> bool {
        self.open.values().all(|open| open.child != child)
    }

    /// Adds a request of a server, and returns it with an id that no other server has.
    pub(crate) fn add(&mut self, child: usize, request: &Request) -> Result<Request, Full> {
        if self.open.values().filter(|open| open.child == child).count() >= ASKED_MAX {
            return Err(Full);
        }
        self.next += 1;
        let id = id_of(self.next);
        let token = request.progress_token();
        let of_server = OfServer {
            child,
            id: request.id.clone(),
            method: request.method.clone(),
            token: token.clone(),
        };
        self.open.insert(self.next, of_server);
        let request = match token {
            Some(_) => request.with_progress_token(&id),
            None => request.clone(),
        };
        Ok(request.with_id(id))
    }

    /// The client's response, as the server expects it.
    pub(crate) fn answer(
        &mut self,
        response: &Response,
        revision_of: impl Fn(usize) -> protocol::Revision,
    ) -> Option<(usize, Response)> {
        let open = self.open.remove(&number_of(response.id.as_ref()?)?)?;
        let result = response.outcome().ok();
        let result = result.and_then(|result| {
            downgrade::result_for_server(revision_of(open.child), &open.method, &result)
        });
        let response = result.map_or_else(|| response.clone(), |r| response.with_result(&r));
        Some((open.child, response.with_id(open.id)))
    }

    /// The parameters of the client's progress for a request, as the server expects them.
    pub(crate) fn progress(&self, params: &[u8]) -> Option<(usize, Bytes)> {
        let (token, _) = payload::progress_of(params)?;
        let open = self.open.get(&number_of(&token)?)?;
        Some((open.child, payload::with_progress_token(params, open.token.as_ref()?)?))
    }

    /// The server withdraws a request. Returns the id that the session knows.
    pub(crate) fn withdraw(&mut self, child: usize, id: &RequestId) -> Option<RequestId> {
        let is_it = |open: &OfServer| open.child == child && open.id == *id;
        let number = self.open.iter().find(|(_, open)| is_it(open)).map(|(number, _)| *number)?;
        self.open.remove(&number);
        Some(id_of(number))
    }

    /// Removes all requests of this server. Returns the ids that the session knows.
    pub(crate) fn take_of(&mut self, child: usize) -> Vec<RequestId> {
        let of = self.open.iter().filter(|(_, open)| open.child == child);
        let numbers: Vec<u64> = of.map(|(number, _)| *number).collect();
        numbers.iter().for_each(|number| drop(self.open.remove(number)));
        numbers.into_iter().map(id_of).collect()
    }
}

/// An error as the response to a request.
pub(crate) fn error(id: RequestId, code: protocol::ErrorCode, text: &str) -> Message {
    Response::error(Some(id), code.number(), text, None).into()
}
