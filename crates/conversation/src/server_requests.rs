//! The server requests without an answer: sampling, elicitation, roots, and the session's own
//! pings.
//!
//! Each gets an id of the session that carries the owner tag. An answer can therefore never reach
//! another request, and exactly one answer reaches the server.

use bytes::Bytes;
use protocol::{ErrorCode, Method, Notification, Request, RequestId, payload};
use thin_vec::ThinVec;

use crate::Millis;
use crate::checkpoint::OpenServerRequest;
use crate::earliest::Earliest;
use crate::entry::ServerRequestId;
use crate::exchange::{PostId, Route};
use crate::handshake::Handshake;
use crate::log::Log;
use crate::step_context::StepContext;

/// The open server requests of a session; bounded by `server_requests_max`.
pub(crate) struct ServerRequests {
    open: ThinVec<ServerRequest>,
    /// The number of the next one.
    next: u64,
}

/// A request to the client without an answer.
pub(crate) struct ServerRequest {
    pub(crate) id: ServerRequestId,
    pub(crate) method: Method,
    /// The id that the server gave it; `None` for the session's own ping.
    pub(crate) id_of_server: Option<RequestId>,
    pub(crate) route: Route,
    deadline: Millis,
    /// Its stream and its entry, once it is in the log.
    logged: Option<(u64, u64)>,
}

impl ServerRequest {
    /// The stream of the log that it was sent on.
    pub(crate) fn stream(&self) -> Option<u64> {
        self.logged.map(|(stream, _)| stream)
    }
}

impl ServerRequests {
    pub(crate) fn new() -> Self {
        Self { open: ThinVec::new(), next: 1 }
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Are the maximum of requests open?
    pub(crate) fn is_full(&self, context: &StepContext<'_>) -> bool {
        self.open.len() >= context.limits().server_requests_max
    }

    /// Opens a request and assigns its id.
    pub(crate) fn add_request(
        &mut self,
        context: &StepContext<'_>,
        log: &Log,
        method: Method,
        id_of_server: Option<RequestId>,
        route: Route,
    ) -> ServerRequestId {
        let id = ServerRequestId { owner_tag: log.owner_tags().current(), number: self.next };
        self.next += 1;
        let deadline = context.in_secs(context.limits().ask_secs);
        self.open.push(ServerRequest { id, method, id_of_server, route, deadline, logged: None });
        id
    }

    /// Does the server wait for an answer?
    pub(crate) fn has_any_of_server(&self) -> bool {
        self.open.iter().any(|request| request.id_of_server.is_some())
    }

    pub(crate) fn is_open(&self, id: ServerRequestId) -> bool {
        self.open.iter().any(|request| request.id == id)
    }

    /// The POST that a request is for, if known.
    pub(crate) fn post_of(&self, id: ServerRequestId) -> Option<PostId> {
        match self.open.iter().find(|request| request.id == id)?.route {
            Route::Post(post) => Some(post),
            Route::Standalone => None,
        }
    }

    /// The log contains the request now.
    pub(crate) fn note_logged(&mut self, id: ServerRequestId, stream: u64, number: u64) {
        if let Some(request) = self.open.iter_mut().find(|request| request.id == id) {
            request.logged = Some((stream, number));
        }
    }

    /// The open requests that the log contains.
    pub(crate) fn logged_requests(&self) -> impl Iterator<Item = OpenServerRequest> {
        self.open.iter().filter_map(|request| {
            let (stream, number) = request.logged?;
            Some((request.id, stream, number))
        })
    }

    /// The server request that an id of the session names, open or not. The requests of a former
    /// owner are not known any more, so any of its ids may be one.
    pub(crate) fn id_named_by(&self, log: &Log, id: &RequestId) -> Option<ServerRequestId> {
        let RequestId::String(text) = id else { return None };
        let named = ServerRequestId::parse(text)?;
        let run = log.owner_tags().run(named.owner_tag)?;
        (run.end.is_some() || (1..self.next).contains(&named.number)).then_some(named)
    }

    /// Removes the request that the client has answered.
    pub(crate) fn take_answered(&mut self, id: ServerRequestId) -> Option<ServerRequest> {
        let is_same = |other: ServerRequestId| {
            mutant!("answer_another_question") && other.number == id.number
        };
        self.take_first(|request| request.id == id || is_same(request.id))
    }

    /// Removes the request that the server cancelled.
    pub(crate) fn take_cancelled(&mut self, id_of_server: &RequestId) -> Option<ServerRequest> {
        self.take_first(|request| request.id_of_server.as_ref() == Some(id_of_server))
    }

    /// Removes a request that the client did not answer in time.
    pub(crate) fn take_late(&mut self, now: Millis) -> Option<ServerRequest> {
        self.take_first(|request| request.deadline <= now)
    }

    fn take_first(&mut self, matches: impl Fn(&ServerRequest) -> bool) -> Option<ServerRequest> {
        let index = self.open.iter().position(matches)?;
        Some(self.open.swap_remove(index))
    }

    pub(crate) fn take_all(&mut self) -> ThinVec<ServerRequest> {
        std::mem::take(&mut self.open)
    }

    pub(crate) fn note_deadlines(&self, earliest: &mut Earliest) {
        for request in &self.open {
            earliest.add_deadline(request.deadline);
        }
    }

    /// May the server send this to the client? Not without the client's capability for it
    /// (RPC-12, ROOT-01, SMP-01, SMP-02, ELI-01).
    pub(crate) fn check_request(
        &self,
        context: &StepContext<'_>,
        handshake: &Handshake,
        request: &Request,
    ) -> Result<(), (ErrorCode, String)> {
        let Some(client) = handshake.client() else {
            return Err((ErrorCode::Refused, "there is no client yet".to_owned()));
        };
        // A program that sends back what it receives takes this error for its response to `initialize`, so
        // that the client gets the text.
        if request.method == Method::Initialize {
            let message = "the server sent `initialize` itself, or sent ours back: it is not an MCP server, \
                           or its standard output is its input; check its command";
            return Err((ErrorCode::InvalidRequest, message.to_owned()));
        }
        if !handshake.is_initialized() {
            let message = "`initialize` is not answered yet; send no request before".to_owned();
            return Err((ErrorCode::InvalidRequest, message));
        }
        let (revision, capabilities) = (client.revision, &client.capabilities);
        let params = request.params().unwrap_or_default();
        let is_declared = match request.method {
            Method::RootsList => capabilities.roots(),
            Method::CreateMessage => {
                let tools = payload::sampling_uses_tools(&params);
                let uses_context =
                    payload::sampling_uses_context(&params) && revision.has_sampling_tools();
                capabilities.sampling()
                    && (!tools || (revision.has_sampling_tools() && capabilities.sampling_tools()))
                    && (!uses_context || capabilities.sampling_context())
            }
            Method::Elicit if !revision.has_elicitation() => false,
            Method::Elicit => match payload::elicitation_mode(&params) {
                payload::ElicitationMode::Form => capabilities.elicitation_form(),
                payload::ElicitationMode::Url => {
                    revision.has_elicitation_modes() && capabilities.elicitation_url()
                }
            },
            _ => true,
        };
        if !is_declared {
            let message =
                format!("the client did not declare that it takes this `{}`", request.method);
            return Err((ErrorCode::MethodNotFound, message));
        }
        if self.is_full(context) {
            let most = context.limits().server_requests_max;
            return Err((
                ErrorCode::Refused,
                format!("the client has {most} unanswered server requests, the maximum"),
            ));
        }
        Ok(())
    }
}

/// The notification that a server request is no longer open.
pub(crate) fn withdrawal(id: ServerRequestId, reason: &str) -> Bytes {
    let params = serde_json::json!({ "requestId": id.to_string(), "reason": reason });
    let notification = Notification::new(Method::Cancelled, Some(params.to_string().as_bytes()));
    notification.raw().clone()
}

/// The id that the client gets.
pub(crate) fn request_id(id: ServerRequestId) -> RequestId {
    RequestId::from(id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_context::step_of_part;
    use crate::{Limits, OwnerTag};

    #[test]
    fn an_id_names_a_request_only_of_an_owner_and_a_number_that_were() {
        let (mut requests, log) = (ServerRequests::new(), Log::new(OwnerTag(7)));
        step_of_part(Limits::default(), Millis(0), |context| {
            let route = Route::Standalone;
            let id = requests.add_request(context, &log, Method::RootsList, None, route);
            assert_eq!(requests.id_named_by(&log, &request_id(id)), Some(id));
            let other_number = ServerRequestId { number: 2, ..id };
            let other_owner = ServerRequestId { owner_tag: OwnerTag(8), ..id };
            assert_eq!(requests.id_named_by(&log, &request_id(other_number)), None);
            assert_eq!(requests.id_named_by(&log, &request_id(other_owner)), None);
            assert!(requests.take_answered(id).is_some());
            assert_eq!(requests.id_named_by(&log, &request_id(id)), Some(id), "it was one");
        });
    }
}
