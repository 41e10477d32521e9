//! Several servers as one, for one session, as a pure state machine.
//!
//! [`Machine::step`] takes an [`Event`] and the current time and appends the [`Effect`]s that the caller
//! must perform. It never waits and never reads a clock. To the session the machine is a server; to the
//! servers it is the session. It passes messages on with their bytes, and changes only names, and the ids
//! and tokens of what servers send.

mod carried;
mod servers;

pub(crate) use self::carried::Carried;

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    ErrorCode, Listed, Message, Method, Notification, Request, RequestId, Response, payload,
};

use crate::LeftOut;
use crate::approval::Approval;
use crate::child::{Child, START_WAIT_MS, State};
use crate::failure::Failure;
use crate::in_flight::{Asked, InFlight, error};
use crate::list::{List, Reading};
use crate::member::Members;
use crate::paging::{self, Cursor};
use crate::pins::{Difference, Pinned};
use crate::resources::{self, Origins, Place};
use crate::routes::{self, Route};
use crate::waiting::{Until, Waiting, WaitingRequests};

/// How long a server may take to send all pages of a list, in milliseconds.
const LIST_MS: u64 = 10_000;
/// How long after the session's last message servers that failed are started again by time, in
/// milliseconds. Later the next message starts them.
const RETRY_MS: u64 = 600_000;
/// Most bytes of the lists of all servers.
const LISTS_BYTES_MAX: usize = 16 << 20;
/// Most bytes of the instructions of all servers together.
const INSTRUCTIONS_BYTES_MAX: usize = 16 << 10;
/// The prefix of the ids of the machine's own requests.
const OWN_PREFIX: &str = "roundhouse:catalog:";

/// What happens to a machine.
#[derive(Debug)]
pub(crate) enum Event {
    /// The session sends a message.
    Session(Message),
    /// The link to a server is up.
    ChildUp(usize),
    /// A server sends a message; `about` is the request to which it belongs, if the link knows it.
    ChildMessage { child: usize, message: Message, about: Option<RequestId> },
    /// The link to a server is lost, or could not be opened.
    ChildDown { child: usize, reason: String },
    /// The link to a server has saved this for the next owner.
    ChildSaved { child: usize, state: Bytes },
    /// A server has not run a request, and has lost its session; its link goes down.
    ChildReturned { child: usize, request: Request },
    /// A server has lost a state that clients rely on; its link goes down.
    ChildStateLost(usize),
    /// The link to a server had no room for a message.
    Unsent { child: usize, message: Message },
    /// Other definitions are approved.
    Pins(Arc<[Pinned]>),
    /// A timer has fired.
    Time,
}

/// What the caller must do.
pub(crate) enum Effect {
    /// Open the link to a server.
    Open(usize),
    /// Close the link to a server. It sends nothing more.
    Close(usize),
    /// Send a message to a server.
    ToChild(usize, Message),
    /// Send a message to the session, which belongs to the request `about`.
    ToSession { message: Message, about: Option<RequestId> },
    /// A list was read. The caller may replace it by an equal one.
    ListRead { child: usize, listed: Listed, list: Arc<List> },
    /// Report something to operators.
    Report(Report),
}

/// What operators should know.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// An entry of a server's list is not offered.
    LeftOut { child: usize, listed: Listed, name: Box<str>, why: LeftOut },
    /// A definition of a server is not the approved one.
    Differs { child: usize, difference: Difference },
    /// A request for a tool or a prompt was refused: its definition is not the approved one.
    Withheld { child: usize },
    /// Another server's resource with this URI is offered instead.
    Hidden { child: usize, uri: Box<str> },
    /// A server is not available.
    Down { child: usize, failure: Failure, was_ready: bool },
    /// A server is available, perhaps again.
    Ready { child: usize, is_first: bool },
    /// The state of a server's link is not kept for the next owner.
    NotKept { child: usize },
    /// A server did not send a list.
    NoList { child: usize, listed: Listed },
    /// A message of a server belongs to nothing, and was dropped.
    Stray { child: usize },
}

/// What does not change while a session lasts.
pub(crate) struct Setup {
    /// The name of the catalog for clients: the tenant's.
    pub(crate) name: Arc<str>,
    pub(crate) members: Members,
    /// How long the start of a server may take, in milliseconds.
    pub(crate) start_ms: u64,
}

/// Several servers as one, for one session.
pub(crate) struct Machine {
    setup: Arc<Setup>,
    children: Vec<Child>,
    /// The approved definitions, by server.
    pins: Arc<[Pinned]>,
    /// The parameters of the session's `initialize`.
    client: Option<Bytes>,
    initialize: Initialize,
    /// The session has sent `initialized`.
    is_initialized: bool,
    /// The result of the session's `initialize`, without instructions.
    promised: Option<Bytes>,
    /// Requests that a former owner sent to servers whose links are not carried on.
    orphans: Vec<RequestId>,
    /// What is saved for the next owner has changed.
    is_unsaved: bool,
    /// The parameters of the session's last `logging/setLevel`.
    level: Option<Bytes>,
    in_flight: InFlight,
    asked: Asked,
    waiting: WaitingRequests,
    /// Resources of which results of tools had links.
    links: Origins,
    /// The number of the next own request.
    next_own: u64,
    /// When the session last sent a message.
    used_at: u64,
}

/// The session's `initialize`.
enum Initialize {
    Missing,
    /// It waits for the servers. `answer_by`: it is answered then if a server is ready.
    Pending {
        id: RequestId,
        answer_by: u64,
    },
    Answered,
}

impl Machine {
    /// A machine whose servers are being started.
    pub(crate) fn new(
        setup: Arc<Setup>,
        pins: Arc<[Pinned]>,
        now: u64,
        effects: &mut Vec<Effect>,
    ) -> Self {
        let mut machine = Self::unopened(setup, pins, now);
        machine.open_due(now, effects);
        machine
    }

    fn unopened(setup: Arc<Setup>, pins: Arc<[Pinned]>, now: u64) -> Self {
        let children = (0..setup.members.len()).map(|_| Child::new()).collect();
        Self {
            setup,
            children,
            pins,
            client: None,
            initialize: Initialize::Missing,
            is_initialized: false,
            promised: None,
            orphans: Vec::new(),
            is_unsaved: false,
            level: None,
            in_flight: InFlight::default(),
            asked: Asked::default(),
            waiting: WaitingRequests::default(),
            links: Origins::default(),
            next_own: 0,
            used_at: now,
        }
    }

    /// Handles an event.
    pub(crate) fn step(&mut self, now: u64, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Session(message) => {
                self.used_at = now;
                self.open_due(now, effects);
                match message {
                    Message::Request(request) => self.on_request(now, request, effects),
                    Message::Notification(notification) => {
                        self.on_notification(notification, effects);
                    }
                    Message::Response(response) => {
                        let revision_of = |child: usize| self.children[child].revision;
                        if let Some((child, answer)) = self.asked.answer(&response, revision_of) {
                            effects.push(Effect::ToChild(child, answer.into()));
                        }
                    }
                }
            }
            Event::ChildUp(child) => self.on_child_up(child, effects),
            Event::ChildMessage { child, message, about } => match message {
                Message::Response(response) => {
                    self.on_response(now, child, &response, effects);
                }
                Message::Request(request) => self.on_asked(child, &request, about, effects),
                Message::Notification(notification) => {
                    self.on_told(now, child, &notification, about, effects);
                }
            },
            Event::ChildDown { child, reason } => {
                self.on_child_down(now, child, &Failure::new(reason), effects);
            }
            Event::ChildSaved { child, state } => self.on_saved(child, state),
            Event::ChildReturned { child, request } => self.on_returned(child, request),
            Event::ChildStateLost(child) => self.children[child].note_state_lost(),
            Event::Unsent { child, message } => self.on_unsent(now, child, message, effects),
            Event::Pins(pins) => self.on_pins(now, pins, effects),
            Event::Time => self.on_time(now, effects),
        }
    }

    /// The bytes that the machine keeps, but for lists that are read to their ends: sessions share those.
    pub(crate) fn kept_bytes(&self) -> usize {
        let children = self.children.iter().map(Child::kept_bytes);
        self.waiting.bytes() + self.links.bytes() + children.sum::<usize>()
    }

    /// Whether no server has a request of the session.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// The time of the next timer.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let children = self.children.iter().filter_map(|child| {
            let retried_until = self.used_at.saturating_add(RETRY_MS);
            let is_retried = |at: u64| at <= retried_until;
            child.deadline(matches!(child.state, State::Down { again_at } if is_retried(again_at)))
        });
        let initialize = match &self.initialize {
            Initialize::Pending { answer_by, .. } if self.children.iter().any(Child::is_ready) => {
                Some(*answer_by)
            }
            _ => None,
        };
        let is_waiting = self.waiting.any(|waiting| waiting.until == Until::AllStarted);
        let started = self.awaited_until().filter(|_| is_waiting);
        children.chain(initialize).chain(started).chain(self.links.save_at()).min()
    }

    /// Until when requests that need all servers wait for those that are being started.
    fn awaited_until(&self) -> Option<u64> {
        let start_ms = self.setup.start_ms;
        self.children.iter().filter_map(|child| child.awaited_until(start_ms)).max()
    }

    fn awaits_starts(&self, now: u64) -> bool {
        self.awaited_until().is_some_and(|until| until > now)
    }

    /// Replaces a list that was read by an equal one.
    pub(crate) fn share_list(&mut self, child: usize, listed: Listed, list: Arc<List>) {
        self.children[child].share_list(listed, list);
    }

    fn name(&self, child: usize) -> &str {
        &self.setup.members.get(child).name
    }

    fn on_request(&mut self, now: u64, request: Request, effects: &mut Vec<Effect>) {
        match &request.method {
            Method::Initialize => {
                self.client = Some(request.params().unwrap_or_default());
                let answer_by = now.saturating_add(START_WAIT_MS);
                self.initialize = Initialize::Pending { id: request.id, answer_by };
                for child in 0..self.children.len() {
                    self.initialize_child(child, effects);
                }
                match self.promised.is_some() {
                    true => self.initialize_again(effects),
                    false => self.settle_initialize(now, effects),
                }
            }
            Method::Ping => empty_result(effects, request.id),
            Method::SetLevel => self.set_level(request, effects),
            method => match Listed::of(method) {
                Some(listed) => self.list(now, request, listed, effects),
                None => self.route(now, request, effects),
            },
        }
    }

    /// Sets the level at each server that sends log messages, now or when it is ready.
    fn set_level(&mut self, request: Request, effects: &mut Vec<Effect>) {
        let params = request.params().unwrap_or_default();
        if payload::log_level_of(&params).is_none() {
            let text = "`logging/setLevel` needs a `level` of the specification";
            let refused = error(request.id.clone(), ErrorCode::InvalidParams, text);
            return answer(effects, request.id, refused);
        }
        for child in 0..self.children.len() {
            if self.children[child].is_ready() && self.children[child].capabilities.logging() {
                let set = self.send_own(child, Method::SetLevel, Some(&params));
                effects.push(set);
            }
        }
        self.level = Some(params);
        empty_result(effects, request.id);
    }

    /// Answers a request for a list, once the lists of all servers that are ready are read.
    fn list(&mut self, now: u64, request: Request, listed: Listed, effects: &mut Vec<Effect>) {
        if self.awaits_starts(now) {
            return self.park(request, Until::AllStarted, effects);
        }
        self.children.iter_mut().for_each(|child| child.note_listed(listed));
        if self.read_lists(now, &[listed], effects) {
            return self.park(request, Until::Listed, effects);
        }
        self.answer_list(request, listed, effects);
    }

    fn answer_list(&mut self, request: Request, listed: Listed, effects: &mut Vec<Effect>) {
        let params = request.params().unwrap_or_default();
        let cursor = match payload::cursor_of(&params).map(|text| Cursor::parse(&text)) {
            None => None,
            Some(Some(cursor)) => Some(cursor),
            Some(None) => return invalid_cursor(effects, request.id),
        };
        let lists = self.children.iter().enumerate();
        let lists =
            lists.map(|(at, child)| (self.name(at), child.list(listed).map(|list| &**list)));
        let lists: Vec<_> = lists.collect();
        let hidden = resources::hidden(listed, &lists);
        let is_offered = |child: usize, name: &str| !hidden.contains(&(child, name));
        match paging::page(listed, &lists, cursor, is_offered) {
            Some(result) => {
                let reports = hidden.iter().map(|(child, uri)| {
                    Effect::Report(Report::Hidden { child: *child, uri: (*uri).into() })
                });
                effects.extend(reports);
                answer(effects, request.id.clone(), Response::result(request.id, &result).into());
            }
            None => invalid_cursor(effects, request.id),
        }
    }

    /// Begins to read the lists that are not known. Returns whether one is being read.
    fn read_lists(&mut self, now: u64, lists: &[Listed], effects: &mut Vec<Effect>) -> bool {
        for child in 0..self.children.len() {
            lists.iter().for_each(|listed| self.read_list(now, child, *listed, effects));
        }
        self.is_reading(lists)
    }

    /// Begins to read a list of a server unless it is known, or was not sent a moment ago.
    fn read_list(&mut self, now: u64, child: usize, listed: Listed, effects: &mut Vec<Effect>) {
        if self.children[child].wants_list(now, listed) {
            let (number, id) = self.own_id(&listed.method());
            let reading = Reading::new(number, now.saturating_add(LIST_MS));
            self.children[child].begin_reading(listed, reading);
            let message = Request::new(id, listed.method(), None);
            effects.push(Effect::ToChild(child, message.into()));
        }
    }

    fn is_reading(&self, lists: &[Listed]) -> bool {
        self.children.iter().any(|child| lists.iter().any(|listed| child.is_reading(*listed)))
    }

    /// Sends a request to the server that it names, or refuses it. The server of a resource is found by the
    /// lists, which are read first.
    fn route(&mut self, now: u64, request: Request, effects: &mut Vec<Effect>) {
        if self.setup.members.len() > 1 && routes::needs_lists(&request) {
            if self.awaits_starts(now) {
                return self.park(request, Until::AllStarted, effects);
            }
            if self.read_lists(now, lists_for(&request), effects) {
                return self.park(request, Until::Listed, effects);
            }
        }
        self.route_by_known_lists(now, request, effects);
    }

    fn route_by_known_lists(&mut self, now: u64, request: Request, effects: &mut Vec<Effect>) {
        let route = match routes::of(&self.setup.members, &request) {
            Route::Uri(uri) => self.route_of_uri(&uri, &request),
            route => route,
        };
        match route {
            Route::To { child, request } => self.send(now, child, request, false, effects),
            Route::Refused { code, text } => {
                answer(effects, request.id.clone(), error(request.id, code, &text));
            }
            // `route_of_uri` returns none.
            Route::Uri(_) => {}
        }
    }

    /// The server that has this resource.
    fn route_of_uri(&self, uri: &str, request: &Request) -> Route {
        let subscribed = self.children.iter().position(|child| child.subscriptions.contains(uri));
        let place = match subscribed {
            Some(child) => Place::Child(child),
            None => resources::place(&self.setup.members, &self.children, &self.links, uri),
        };
        let (code, text) = match place {
            Place::Child(child) => return Route::To { child, request: request.clone() },
            Place::None => {
                let down = self.children.iter().any(|child| !child.is_ready());
                let more = if down { ", and not all of them are available" } else { "" };
                (
                    ErrorCode::InvalidParams,
                    format!("no server of this endpoint has this resource{more}"),
                )
            }
        };
        Route::Refused { code, text }
    }

    /// Sends a request to a server, or keeps it until the server's start is over.
    fn send(
        &mut self,
        now: u64,
        child: usize,
        request: Request,
        was_returned: bool,
        effects: &mut Vec<Effect>,
    ) {
        if self.children[child].is_starting() {
            let until = Until::Started(child);
            return self.keep(Waiting { request, until, was_returned }, effects);
        }
        if let Some(error) = self.children[child].page_required() {
            let response = Response::raw_error(Some(request.id.clone()), error);
            return answer(effects, request.id, response.into());
        }
        let refused = if self.children[child].is_lost() {
            Some(format!(
                "the server `{}` has lost what it kept for this session; open a new session to use it \
                 again",
                self.name(child)
            ))
        } else if !self.children[child].is_ready() {
            let reason = self.children[child].failure.for_clients();
            Some(format!(
                "the server `{}` is not available: {reason}; try again later",
                self.name(child)
            ))
        } else if !self.in_flight.has_room() {
            Some("too many requests are in flight; try again later".to_owned())
        } else {
            let (pinned, of_child) = (&self.pins[child], &self.children[child]);
            match Approval::of(pinned, of_child, now, &request) {
                Approval::Given => None,
                Approval::Awaits(listed) => {
                    self.read_list(now, child, listed, effects);
                    let until = Until::ListOf(child, listed);
                    return self.keep(Waiting { request, until, was_returned }, effects);
                }
                Approval::Refused(why) => {
                    effects.push(Effect::Report(Report::Withheld { child }));
                    Some(format!(
                        "the server `{}` does not offer the {why}; an operator reviews it and runs \
                         `roundhouse pin {}`",
                        self.name(child),
                        self.setup.name
                    ))
                }
                Approval::Unread(why) => Some(format!(
                    "the server `{}` does not offer the {why}; try again later",
                    self.name(child)
                )),
            }
        };
        if let Some(text) = refused {
            let id = request.id.clone();
            return answer(effects, request.id, error(id, ErrorCode::Refused, &text));
        }
        self.in_flight.add(child, &request, was_returned);
        effects.push(Effect::ToChild(child, request.into()));
    }

    fn park(&mut self, request: Request, until: Until, effects: &mut Vec<Effect>) {
        self.keep(Waiting { request, until, was_returned: false }, effects);
    }

    fn keep(&mut self, waiting: Waiting, effects: &mut Vec<Effect>) {
        if let Err(id) = self.waiting.add(waiting) {
            let text = "too many requests wait for servers; try again later";
            answer(effects, id.clone(), error(id, ErrorCode::Refused, text));
        }
    }

    /// Continues with the requests that have waited for this.
    fn resume(&mut self, now: u64, until: Until, effects: &mut Vec<Effect>) {
        let mut waiting = std::mem::take(&mut self.waiting);
        let is_over = |waiting: &Waiting| match (waiting.until, until) {
            (Until::ListOf(child, listed), Until::Listed) => {
                !self.children[child].is_reading(listed)
            }
            (waits_for, until) if waits_for != until => false,
            (Until::Started(child), _) => !self.children[child].is_starting(),
            (Until::AllStarted, _) => !self.awaits_starts(now),
            (Until::Listed, _) => !self.is_reading(lists_for(&waiting.request)),
            (Until::ListOf(..), _) => false,
        };
        let ready = waiting.take_if(is_over);
        self.waiting = waiting;
        for Waiting { request, until, was_returned } in ready {
            match (until, Listed::of(&request.method)) {
                // It has the server's own name already.
                (Until::Started(child) | Until::ListOf(child, _), _) => {
                    self.send(now, child, request, was_returned, effects);
                }
                (Until::AllStarted, Some(listed)) => self.list(now, request, listed, effects),
                (Until::AllStarted, None) => self.route(now, request, effects),
                // What was read is the answer, also if it has changed since: otherwise a server could
                // hold the answer back by changes.
                (Until::Listed, Some(listed)) => self.answer_list(request, listed, effects),
                (Until::Listed, None) => self.route_by_known_lists(now, request, effects),
            }
        }
    }

    /// The session withdraws a request.
    fn cancel(&mut self, notification: Notification, effects: &mut Vec<Effect>) {
        let params = notification.params().unwrap_or_default();
        let Some(id) = payload::cancelled_request_id(&params) else { return };
        self.waiting.remove(&id);
        let Some(child) = self.in_flight.child_of(&id) else { return };
        // A late response is dropped.
        self.in_flight.take(child, &id);
        effects.push(Effect::ToChild(child, notification.into()));
    }

    fn on_notification(&mut self, notification: Notification, effects: &mut Vec<Effect>) {
        match notification.method {
            Method::Cancelled => return self.cancel(notification, effects),
            Method::Progress => {
                let params = notification.params().unwrap_or_default();
                if let Some((child, params)) = self.asked.progress(&params) {
                    let progress = Notification::new(Method::Progress, Some(&params));
                    effects.push(Effect::ToChild(child, progress.into()));
                }
                return;
            }
            Method::Initialized => self.is_initialized = true,
            Method::RootsListChanged => {}
            // What is meant for one server is not for the others.
            _ if self.children.len() > 1 => return,
            _ => {}
        }
        for (child, _) in self.children.iter().enumerate().filter(|(_, child)| child.is_ready()) {
            effects.push(Effect::ToChild(child, notification.clone().into()));
        }
    }
}

/// The lists that a request needs.
fn lists_for(request: &Request) -> &'static [Listed] {
    match Listed::of(&request.method) {
        Some(Listed::Tool) => &[Listed::Tool],
        Some(Listed::Prompt) => &[Listed::Prompt],
        Some(Listed::Resource) => &[Listed::Resource],
        Some(Listed::Template) => &[Listed::Template],
        // Tools name user interfaces, which are resources.
        None => &[Listed::Resource, Listed::Template, Listed::Tool],
    }
}

/// Sends the session the response to a request.
fn answer(effects: &mut Vec<Effect>, id: RequestId, message: Message) {
    effects.push(Effect::ToSession { message, about: Some(id) });
}

fn empty_result(effects: &mut Vec<Effect>, id: RequestId) {
    answer(effects, id.clone(), Response::result(id, b"{}").into());
}

fn invalid_cursor(effects: &mut Vec<Effect>, id: RequestId) {
    let text = "the cursor is none of this endpoint's; list again from the beginning";
    answer(effects, id.clone(), error(id, ErrorCode::InvalidParams, text));
}

#[cfg(test)]
mod tests;
