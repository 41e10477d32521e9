//! How a session's messages are put on the wire: the exchanges that have not ended, what each has of the
//! session, and the ids of requests.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use protocol::{Message, Mirrored, Request, RequestId};

use super::effect::Effect;
use super::ids::{ExchangeId, renamed};
use super::mirroring::Mirroring;
use super::phase::Purpose;
use crate::exchange::{Exchange, HeaderText, Verb};
use crate::url::Url;

/// Begins exchanges.
#[derive(Debug)]
pub(super) struct Wire {
    session: Option<HeaderText>,
    revision: Option<HeaderText>,
    /// Where messages are sent, if not to the URL of the settings.
    to: Option<Url>,
    exchanges: HashMap<ExchangeId, Purpose>,
    next: u64,
    /// Makes the ids of the node's own requests differ from those of other nodes.
    tag: u64,
    /// Another machine began the session: it has used ids of requests that this one does not know.
    is_carried_on: bool,
}

impl Wire {
    pub(super) fn new(tag: u64) -> Self {
        Self {
            session: None,
            revision: None,
            to: None,
            exchanges: HashMap::new(),
            next: 0,
            tag,
            is_carried_on: false,
        }
    }

    /// Of a session that another machine began.
    pub(super) fn carry_on(
        tag: u64,
        session: Option<HeaderText>,
        revision: Option<HeaderText>,
    ) -> Self {
        Self { session, revision, is_carried_on: true, ..Self::new(tag) }
    }

    pub(super) fn session(&self) -> Option<&HeaderText> {
        self.session.as_ref()
    }

    pub(super) fn note_session(&mut self, session: Option<HeaderText>) {
        self.session = session;
    }

    pub(super) fn revision(&self) -> Option<&HeaderText> {
        self.revision.as_ref()
    }

    pub(super) fn note_revision(&mut self, revision: Option<HeaderText>) {
        self.revision = revision;
    }

    /// Sends further messages to this URL.
    pub(super) fn send_to(&mut self, url: Url) {
        self.to = Some(url);
    }

    pub(super) fn start(
        &mut self,
        purpose: Purpose,
        verb: Verb,
        mirrored: Option<Box<Mirrored>>,
        after: Duration,
        effects: &mut Vec<Effect>,
    ) -> ExchangeId {
        let id = ExchangeId(self.next);
        self.next += 1;
        let (tokens, behind) = match &purpose {
            Purpose::Call(id) | Purpose::OlderCall(id) => (id.tokens.clone(), None),
            Purpose::Note { behind } => (None, *behind),
            _ => (None, None),
        };
        self.exchanges.insert(id, purpose);
        let exchange = Exchange { tokens, behind, ..self.exchange(verb, mirrored, after) };
        effects.push(Effect::Start(id, exchange));
        id
    }

    /// Sends a message that is no call: its headers are short.
    pub(super) fn send(
        &mut self,
        purpose: Purpose,
        verb: fn(Bytes) -> Verb,
        message: &Message,
        mirroring: &Mirroring,
        effects: &mut Vec<Effect>,
    ) {
        let mirrored = mirroring.headers(message).unwrap_or_default();
        self.start(purpose, verb(message.raw().clone()), mirrored, Duration::ZERO, effects);
    }

    fn exchange(&self, verb: Verb, mirrored: Option<Box<Mirrored>>, after: Duration) -> Exchange {
        let (session, revision) = (self.session.clone(), self.revision.clone());
        let to = self.to.clone();
        Exchange { verb, session, revision, mirrored, after, to, tokens: None, behind: None }
    }

    /// The exchange that ends the session at the server, if it has one.
    pub(super) fn delete(&self) -> Option<(ExchangeId, Exchange)> {
        self.session.as_ref()?;
        let exchange = self.exchange(Verb::Delete, None, Duration::ZERO);
        Some((ExchangeId(self.next), Exchange { to: None, ..exchange }))
    }

    /// What an exchange is for. It has ended if this is its last event.
    pub(super) fn purpose(&mut self, exchange: ExchangeId, is_last: bool) -> Option<Purpose> {
        match is_last {
            true => self.exchanges.remove(&exchange),
            false => self.exchanges.get(&exchange).cloned(),
        }
    }

    /// Gives an exchange another purpose. Returns false if it has ended.
    pub(super) fn set_purpose(&mut self, exchange: ExchangeId, purpose: Purpose) -> bool {
        let Some(former) = self.exchanges.get_mut(&exchange) else { return false };
        *former = purpose;
        true
    }

    /// An exchange was cut.
    pub(super) fn forget(&mut self, exchange: ExchangeId) {
        self.exchanges.remove(&exchange);
    }

    /// The request as the server gets it. A server may be a node as well, whose own requests begin with the
    /// same prefix; so those of this node have other ids there. So have all in a session that another machine
    /// began: that one may have sent a request with the same id, which may run again.
    pub(super) fn on_wire(&self, request: &Request) -> Request {
        let is_own = |id: &RequestId| matches!(id, RequestId::String(id) if id.starts_with(RequestId::OWN_PREFIX));
        match self.is_carried_on || is_own(&request.id) {
            true => renamed(request, self.own_id()),
            false => request.clone(),
        }
    }

    /// The id of the next exchange's request, if that is the node's own.
    pub(super) fn own_id(&self) -> RequestId {
        RequestId::from(format!("rh-{:016x}-{}", self.tag, self.next))
    }
}
