//! Messages of the tenant's server: responses, notifications, and where each belongs.

use bytes::Bytes;
use protocol::{
    Message, Method, Notification, RequestId, Response, downgrade, header_params, payload,
};

use crate::exchange::Exchange;
use crate::session::{Session, StepContext};
use crate::stream::Route;
use crate::{Effect, Fact};

impl Session {
    pub(crate) fn receive_message(
        &mut self,
        context: &mut StepContext<'_>,
        message: Message,
        about: Option<&RequestId>,
    ) {
        match message {
            Message::Response(response) => self.receive_response(context, &response),
            Message::Request(request) => self.receive_request(context, &request, about),
            Message::Notification(notification) => {
                self.receive_notification(context, &notification, about)
            }
        }
    }

    fn receive_response(&mut self, context: &mut StepContext<'_>, response: &Response) {
        let id = response.id.as_ref();
        let Some(index) = self.exchanges.iter().position(|e| Some(&e.id) == id) else {
            if !self.receive_own_response(context, response) {
                // A second response, or one to a cancelled request: no exchange waits for it.
                self.unanswered.retain(|ended| Some(&ended.id) != id);
                context.effects.push(Effect::Tell(Fact::Stray));
            }
            return;
        };
        if self.exchanges[index].method == Method::Initialize {
            context.effects.push(Effect::Tell(Fact::Stray));
            return;
        }
        let exchange = self.exchanges.swap_remove(index);
        if let Ok(result) = response.outcome() {
            self.note_success(&exchange);
            if exchange.method == Method::ToolsList {
                self.learn_of_tools(&header_params::tools(&result));
            }
        }
        let data = self.for_client(&exchange.method, response);
        let most = self.limits.message_bytes_max;
        if data.len() > most {
            let error = too_large(&exchange.id, data.len(), most);
            self.settle_taken(context, exchange, error.raw().clone(), false);
            return;
        }
        self.settle_taken(context, exchange, data, response.is_result());
    }

    /// What a success changes in the session.
    fn note_success(&mut self, exchange: &Exchange) {
        match (&exchange.method, &exchange.uri) {
            (Method::Subscribe, Some(uri)) => {
                let subscribed = self.subscribed.get_or_insert_default();
                self.versions.changed |= subscribed.insert(uri.clone());
            }
            (Method::Unsubscribe, Some(uri)) => {
                let Some(subscribed) = &mut self.subscribed else { return };
                self.versions.changed |= subscribed.remove(uri);
                if subscribed.is_empty() {
                    self.subscribed = None;
                }
            }
            _ => {}
        }
    }

    /// The response as a client of this revision may see it, on one line.
    fn for_client(&self, method: &Method, response: &Response) -> Bytes {
        let downgraded = response
            .outcome()
            .ok()
            .and_then(|result| downgrade::result_for_client(self.revision(), method, &result))
            .map(|result| response.with_result(&result));
        Message::from(downgraded.unwrap_or_else(|| response.clone())).line()
    }

    /// Gives the final response to a request that was taken off the list.
    pub(crate) fn settle_taken(
        &mut self,
        context: &mut StepContext<'_>,
        mut exchange: Exchange,
        data: Bytes,
        result: bool,
    ) {
        if let Some(held) = exchange.progress.as_mut().and_then(|pace| pace.last_held()) {
            // The last progress is never dropped (PRG-05).
            self.deliver(context, Route::Call(exchange.call), held, false);
        }
        self.touched = context.now;
        self.link.used = context.now;
        let millis = context.now.0.saturating_sub(exchange.began.0);
        self.final_response(context, exchange.call, Some(&exchange.id), data);
        context.effects.push(Effect::Tell(Fact::Settled { id: exchange.id, result, millis }));
    }

    fn receive_notification(
        &mut self,
        context: &mut StepContext<'_>,
        notification: &Notification,
        about: Option<&RequestId>,
    ) {
        let params = notification.params().unwrap_or_default();
        match notification.method {
            Method::Progress => self.receive_progress(context, notification, &params),
            Method::Cancelled => self.ask_cancelled(context, &params),
            Method::LogMessage => {
                // Only what the client asked for (LOG-02); before it asked, everything (LOG-03).
                let level = payload::log_level_of(&params);
                if self.level.is_none_or(|least| level.is_some_and(|level| level >= least)) {
                    let route = self.route(about);
                    self.deliver(context, route, line(notification), true);
                }
            }
            Method::ResourceUpdated => {
                let uri = payload::resource_uri_of(&params);
                if uri.is_some_and(|uri| self.is_subscribed(&uri)) {
                    self.deliver(context, Route::Standalone, line(notification), false);
                }
            }
            // These belong to no request (POST-14).
            Method::ToolsListChanged => {
                self.deliver(context, Route::Standalone, line(notification), false);
                self.tools.forget();
                self.learn_tools(context);
            }
            Method::PromptsListChanged | Method::ResourcesListChanged => {
                self.deliver(context, Route::Standalone, line(notification), false);
            }
            _ => {
                let route = self.route(about);
                self.deliver(context, route, line(notification), false);
            }
        }
    }

    /// Progress goes to the request whose token it names, and nowhere else (PRG-01, PRG-03).
    fn receive_progress(
        &mut self,
        context: &mut StepContext<'_>,
        notification: &Notification,
        params: &[u8],
    ) {
        let now = context.now;
        let silent_at = now.plus(self.limits.request_secs * 1_000);
        let told = payload::progress_of(params);
        let Some((exchange, progress)) = told.and_then(|(token, progress)| {
            let named =
                |e: &&mut Exchange| e.progress.as_ref().is_some_and(|pace| pace.token == token);
            self.exchanges.iter_mut().find(named).map(|exchange| (exchange, progress))
        }) else {
            context.effects.push(Effect::Tell(Fact::Stray));
            return;
        };
        exchange.silent_at = silent_at;
        let call = exchange.call;
        let Some(pace) = &mut exchange.progress else { return };
        let passes = pace.admit(progress, line(notification), &self.limits, now);
        if let Some(data) = passes
            && self.is_reachable(call)
        {
            self.deliver(context, Route::Call(call), data, false);
        }
    }

    /// Can a call's client still be sent something before its final response?
    fn is_reachable(&self, call: crate::exchange::CallId) -> bool {
        use crate::exchange::Form;
        let call = self.calls.iter().find(|other| other.id == call);
        call.is_some_and(|call| {
            call.sink.is_some() || matches!(call.form, Form::Stream(_) | Form::Duplex)
        })
    }

    /// Where a message goes that names no request: with the request the link says it
    /// belongs to; else with the only one in flight; else on a standalone stream; else
    /// with the newest request.
    pub(crate) fn route(&self, about: Option<&RequestId>) -> Route {
        if let Some(id) = about {
            let named = self.exchanges.iter().find(|exchange| exchange.id == *id);
            return named.map_or(Route::Standalone, |exchange| Route::Call(exchange.call));
        }
        match self.exchanges.as_slice() {
            [] => Route::Standalone,
            [only] => Route::Call(only.call),
            _ if self.newest_standalone().is_some()
                && self.revision().has_standalone_requests() =>
            {
                Route::Standalone
            }
            several => {
                let newest = several.iter().max_by_key(|exchange| exchange.call);
                newest.map_or(Route::Standalone, |exchange| Route::Call(exchange.call))
            }
        }
    }

    /// Did the client subscribe to this resource, or to one that it is part of (RES-06)?
    fn is_subscribed(&self, uri: &str) -> bool {
        self.subscriptions().iter().any(|subscribed| uri.starts_with(&**subscribed))
    }
}

/// What a request gets whose response is larger than a message may be.
fn too_large(id: &RequestId, bytes: usize, most: usize) -> Response {
    let message = format!(
        "the server's response has {bytes} bytes, more than the {most} of sessions.message_bytes_max; \
         raise that bound, or have the server answer with less"
    );
    Response::error(Some(id.clone()), crate::REFUSED, &message, None)
}

fn line(notification: &Notification) -> Bytes {
    Message::from(notification.clone()).line()
}
