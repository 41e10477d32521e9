//! Performs what the machine of one session decides, while the session polls the link: opens the links of
//! the servers, and moves messages between them and the session.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use backends::{Engine, LatestTokens, Link, LinkEvent, SavedLink, SendError, ServerEnd};
use budget::Share;
use bytes::Bytes;
use fairness::{Computing, compute};
use protocol::{Listed, SessionId};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

use crate::charged::Charged;
use crate::list::List;
use crate::machine::{Carried, Effect, Event, Machine, Report};
use crate::metrics::UNAVAILABLE;
use crate::pins_watch::PinsWatch;
use crate::positions::{Positions, Read};
use crate::saved::{Saved, ServerState, position_of_server};
use crate::shared::Shared;
use crate::slots::{Slot, Slots};

/// Most events of servers that one poll handles without one for the session. Then the thread does other
/// work first: a server that floods the link with messages to be dropped delays no other session.
const STEPS_MAX: usize = 64;

/// The client that a link is for.
pub(crate) struct Client {
    pub(crate) session: SessionId,
    /// Its digest.
    pub(crate) principal: Option<[u8; 32]>,
    /// Its tokens for upstream servers, if one of the servers needs them.
    pub(crate) tokens: Option<LatestTokens>,
}

/// The servers of one session.
pub(crate) struct Fan {
    slots: Arc<Slots>,
    shared: Arc<Shared>,
    client: Client,
    end: ServerEnd,
    /// `None` until the first poll, and while another thread steps it.
    machine: Option<Machine>,
    /// What a former owner's link has saved, and its requests in flight, until the first poll.
    carried: Option<Carried>,
    /// A step with a long message, which another thread runs. Nothing else is handled meanwhile.
    long_step: Option<LongStep>,
    servers: Vec<Server>,
    /// The server that is polled first: each in turn, so that none starves the others.
    next: usize,
    /// Events for the session, of one step of the machine.
    events: VecDeque<LinkEvent>,
    positions: Positions,
    pins: PinsWatch,
    /// What the machine keeps, but for lists that sessions share.
    charged: Charged,
    /// The state that the session has.
    saved: Bytes,
    timer: Option<(u64, Pin<Box<Sleep>>)>,
    begin: Instant,
    /// A server has to be opened again, for which the settings have another one.
    is_outdated: bool,
    /// The link is down: no other node carries its servers on.
    is_over: bool,
}

/// A step of the machine on another thread.
struct LongStep {
    stepped: Computing<(Machine, Vec<Effect>)>,
    /// How far the stream of its message was read.
    read: Option<Read>,
}

/// One server of the session.
#[derive(Default)]
struct Server {
    link: Option<Link>,
    /// It was opened before.
    is_known: bool,
    /// The number of the first backend that it was opened to.
    first: Option<u64>,
    /// The link is one to a later backend. Another node may still have the first one, so it is not carried on there.
    is_of_later: bool,
    /// Its backend was retired, and it keeps nothing between two requests.
    is_retired: bool,
    is_unavailable: Option<Unavailable>,
}

impl Server {
    /// Closes the link for good: no other node carries it on.
    fn end_link(&mut self) {
        self.link.take().into_iter().for_each(Link::end);
    }
}

/// A link that is dropped leaves the sessions with its servers to the next owner of the client's session.
impl Drop for Fan {
    fn drop(&mut self) {
        let is_over = self.is_over || self.end.is_ended();
        // What a later backend's link has saved is not kept, so no other node carries it on.
        let ends = self.servers.iter_mut().filter(|server| is_over || server.is_of_later);
        ends.for_each(Server::end_link);
    }
}

/// Counts a server as unavailable while it exists.
struct Unavailable;

impl Unavailable {
    fn new() -> Self {
        UNAVAILABLE.inc();
        Self
    }
}

impl Drop for Unavailable {
    fn drop(&mut self) {
        UNAVAILABLE.dec();
    }
}

impl Fan {
    pub(crate) fn new(
        slots: Arc<Slots>,
        shared: Arc<Shared>,
        client: Client,
        end: ServerEnd,
    ) -> Self {
        let servers = (0..slots.len()).map(|_| Server::default()).collect();
        let pins = PinsWatch::new(&shared.pinning.pins);
        Self {
            slots,
            shared,
            client,
            end,
            machine: None,
            long_step: None,
            servers,
            carried: None,
            next: 0,
            events: VecDeque::new(),
            positions: Positions::default(),
            pins,
            charged: Charged::default(),
            saved: Bytes::new(),
            timer: None,
            begin: Instant::now(),
            is_outdated: false,
            is_over: false,
        }
    }

    /// Goes on where the link of a former owner was. Opens the links that are carried on at once: a session
    /// that ends before the link is polled ends what they have saved, too.
    pub(crate) fn carry_on(mut self, saved: Saved, link: SavedLink) -> Self {
        let mut positions: Vec<Vec<_>> = self.servers.iter().map(|_| Vec::new()).collect();
        let mut calls = Vec::new();
        for (about, position) in link.positions {
            let found = position_of_server(&position);
            let found = found.filter(|(child, _)| *child < positions.len());
            calls.extend(about.clone().map(|id| (found.as_ref().map(|(child, _)| *child), id)));
            if let Some((child, position)) = found {
                positions[child].push((about, position));
            }
        }
        let Client { session, principal, tokens } = &self.client;
        let principal = principal.unwrap_or_default();
        let tokens = || tokens.clone().unwrap_or_else(|| watch::channel(None).1);
        for (child, (state, positions)) in saved.servers.iter().zip(positions).enumerate() {
            let ServerState::Saved(state) = state else { continue };
            let link = SavedLink { state: state.clone(), positions };
            let Slot { backend, number } = self.slots.get(child);
            self.servers[child].link = Some(backend.carry_on(session, &principal, link, &tokens));
            self.servers[child].first = Some(number);
        }
        self.saved = link.state;
        self.carried = Some(Carried { saved, calls });
        self
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Performs the effects of a step, and the steps that follow from them.
    fn perform(&mut self, effects: Vec<Effect>) {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Open(child) if self.servers[child].is_known && self.shared.is_retired() => {
                    self.is_outdated = true;
                }
                Effect::Open(child) => self.open_or_keep(child),
                Effect::Close(child) => self.servers[child].end_link(),
                Effect::ToChild(child, message) => {
                    let Some(link) = &self.servers[child].link else { continue };
                    // A link that is down reports it.
                    if link.sender.send(message.clone()) == Err(SendError::Full) {
                        let mut more = Vec::new();
                        let now = self.now();
                        if let Some(machine) = &mut self.machine {
                            machine.step(now, Event::Unsent { child, message }, &mut more);
                        }
                        effects.extend(more);
                    }
                }
                Effect::ToSession { message, about } => {
                    self.events.push_back(LinkEvent::Message { message, about });
                }
                Effect::ListRead { child, listed, list } => {
                    let share = self.end.share();
                    if let Some(machine) = &mut self.machine {
                        share_list(&self.shared, machine, share.as_ref(), child, listed, list);
                    }
                }
                Effect::Report(report) => {
                    match &report {
                        Report::Down { child, .. } => {
                            self.positions.forget(*child);
                            let server = &mut self.servers[*child];
                            server.link = None;
                            server.is_unavailable.get_or_insert_with(Unavailable::new);
                            self.hold_back(*child);
                        }
                        Report::Ready { child, .. } => self.servers[*child].is_unavailable = None,
                        _ => {}
                    }
                    self.shared.report(report);
                }
            }
        }
    }

    /// Has a server that no link can reach opened again when one can try, instead of after a wait of the machine that
    /// begins only now.
    fn hold_back(&mut self, child: usize) {
        let Some(wait) = self.slots.get(child).backend.held_back_for() else { return };
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let until = self.now().saturating_add(wait_ms).saturating_add(1);
        self.machine.iter_mut().for_each(|machine| machine.hold_back(child, until));
    }

    /// Opens the link to a server, unless it is carried on and thus open.
    fn open_or_keep(&mut self, child: usize) {
        let share = self.end.share();
        if let Some(link) = &self.servers[child].link {
            share.inspect(|share| link.charge_to(share));
            self.servers[child].is_known = true;
            return;
        }
        let Slot { backend, number } = self.slots.get(child);
        let first = *self.servers[child].first.get_or_insert(number);
        let Client { session, principal, tokens } = &self.client;
        let link = match (principal, tokens) {
            (Some(principal), Some(tokens)) => {
                backend.open_with(session, principal, &|| tokens.clone())
            }
            (Some(principal), None) => backend.open_for(session, principal),
            (None, _) => backend.open(session),
        };
        share.inspect(|share| link.charge_to(share));
        self.servers[child] = Server {
            link: Some(link),
            is_known: true,
            first: Some(first),
            is_of_later: number != first,
            is_retired: false,
            is_unavailable: self.servers[child].is_unavailable.take(),
        };
    }

    fn step(&mut self, event: Event) {
        let (now, mut effects) = (self.now(), Vec::new());
        if is_long_step(&event)
            && let Some(machine) = self.machine.take()
        {
            return self.begin_long_step(now, machine, event);
        }
        match &mut self.machine {
            Some(machine) => machine.step(now, event, &mut effects),
            None => {
                let (setup, pins) = (Arc::clone(&self.shared.setup), self.pins.current());
                self.machine = Some(match self.carried.take() {
                    Some(carried) => Machine::carry_on(setup, pins, carried, now, &mut effects),
                    None => Machine::new(setup, pins, now, &mut effects),
                });
            }
        }
        self.stepped(effects);
    }

    /// Steps the machine on another thread, and shares the lists that it reads there.
    fn begin_long_step(&mut self, now: u64, mut machine: Machine, event: Event) {
        let (shared, share) = (Arc::clone(&self.shared), self.end.share());
        let tenant = Arc::clone(&self.shared.setup.name);
        let stepped = compute(&tenant, move || {
            let mut effects = Vec::new();
            machine.step(now, event, &mut effects);
            let mut left = Vec::new();
            for effect in effects {
                match effect {
                    Effect::ListRead { child, listed, list } => {
                        share_list(&shared, &mut machine, share.as_ref(), child, listed, list);
                    }
                    effect => left.push(effect),
                }
            }
            (machine, left)
        });
        self.long_step = Some(LongStep { stepped, read: None });
    }

    /// Waits for the end of a step on another thread, if there is one.
    fn poll_long_step(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(long_step) = &mut self.long_step else { return Poll::Ready(()) };
        let Poll::Ready((machine, effects)) = Pin::new(&mut long_step.stepped).poll(context) else {
            return Poll::Pending;
        };
        let read = self.long_step.take().and_then(|long_step| long_step.read);
        self.machine = Some(machine);
        self.stepped(effects);
        self.note_read(read);
        Poll::Ready(())
    }

    /// Notes how far a server's stream was read, once the step with its message is done.
    fn note_read(&mut self, read: Option<Read>) {
        if let Some(long_step) = &mut self.long_step {
            long_step.read = read;
        } else if let (Some(machine), Some(read)) = (&self.machine, read) {
            self.positions.note_read(machine, &mut self.events, read);
        }
    }

    fn stepped(&mut self, effects: Vec<Effect>) {
        self.perform(effects);
        if !self.shared.is_retired() {
            self.restart_retired();
        }
        if let Some(machine) = &self.machine {
            self.positions.release(machine, &mut self.events);
            self.charged.set(machine.kept_bytes(), || self.end.share());
        }
        // The next link of the session is one to the catalog of the settings.
        if self.is_outdated && self.machine.as_ref().is_none_or(Machine::is_idle) {
            self.is_outdated = false;
            self.is_over = true;
            let mut open = self.slots.all().zip(&self.servers);
            if open.any(|(backend, server)| server.link.is_some() && backend.is_stateful()) {
                self.events.push_back(LinkEvent::StateLost);
            }
            let reason = "the settings of the tenant's servers were changed".to_owned();
            self.events.push_back(LinkEvent::Down { reason });
        }
    }

    /// Starts idle servers anew whose backends have others in their place. If the whole catalog has another one, the
    /// session closes the link to it.
    fn restart_retired(&mut self) {
        let now = self.now();
        for child in 0..self.servers.len() {
            let mut effects = Vec::new();
            if self.servers[child].is_retired
                && let Some(machine) = &mut self.machine
            {
                machine.restart_if_idle(now, child, &mut effects);
                self.perform(effects);
            }
        }
    }

    /// What the next owner needs, if the session does not have it.
    fn take_unsaved(&mut self) -> Option<LinkEvent> {
        let mut reports = Vec::new();
        let state = self.machine.as_mut()?.take_unsaved(&mut reports);
        self.perform(reports);
        let state = state.filter(|state| *state != self.saved)?;
        self.saved = state.clone();
        Some(LinkEvent::Saved { state })
    }

    /// Polls the servers for one event, each first in turn. Also returns how far a stream was read with it.
    fn poll_servers(&mut self, context: &mut Context<'_>) -> Poll<(Event, Option<Read>)> {
        let count = self.servers.len();
        for child in (0..count).map(|step| (self.next + step) % count) {
            let Some(link) = &mut self.servers[child].link else { continue };
            let Poll::Ready(event) = link.events.poll_next(context) else { continue };
            self.next = (child + 1) % count;
            let event = match event {
                Some(LinkEvent::Up) => Event::ChildUp(child),
                Some(LinkEvent::Message { message, about }) => {
                    Event::ChildMessage { child, message, about }
                }
                Some(LinkEvent::Positioned { message, about, position }) => {
                    let read = Read { child, about: about.clone(), position };
                    let message =
                        message.map(|message| Event::ChildMessage { child, message, about });
                    return Poll::Ready((message.unwrap_or(Event::Time), Some(read)));
                }
                Some(LinkEvent::Saved { .. }) if self.servers[child].is_of_later => Event::Time,
                Some(LinkEvent::Saved { state }) => Event::ChildSaved { child, state },
                Some(LinkEvent::Returned { request }) => Event::ChildReturned { child, request },
                Some(LinkEvent::StateLost) => Event::ChildStateLost(child),
                Some(LinkEvent::Down { reason }) => Event::ChildDown { child, reason },
                None => Event::ChildDown { child, reason: "the server is gone".to_owned() },
                Some(LinkEvent::RoomWanted) => {
                    self.events.push_back(LinkEvent::RoomWanted);
                    Event::Time
                }
                Some(LinkEvent::Retired) => {
                    self.servers[child].is_retired = true;
                    // Closing the link ends all servers, also those that keep something.
                    let mut open = self.servers.iter().filter(|server| server.link.is_some());
                    if self.shared.is_retired() && open.all(|server| server.is_retired) {
                        self.events.push_back(LinkEvent::Retired);
                    }
                    Event::Time
                }
            };
            return Poll::Ready((event, None));
        }
        Poll::Pending
    }

    /// Polls the timer of the machine.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let deadline = self.machine.as_ref().and_then(Machine::deadline);
        let Some(deadline) = deadline else {
            self.timer = None;
            return Poll::Pending;
        };
        if self.timer.as_ref().is_none_or(|(at, _)| *at != deadline) {
            let at = self.begin + Duration::from_millis(deadline);
            self.timer = Some((deadline, Box::pin(tokio::time::sleep_until(at))));
        }
        let polled = self.timer.as_mut().map(|(_, sleep)| sleep.as_mut().poll(context));
        match polled {
            Some(Poll::Ready(())) => {
                self.timer = None;
                Poll::Ready(())
            }
            _ => Poll::Pending,
        }
    }
}

/// Whether a step with this event takes milliseconds.
fn is_long_step(event: &Event) -> bool {
    match event {
        Event::ChildMessage { message, .. } | Event::Session(message) => {
            fairness::is_long(message.raw().len())
        }
        _ => false,
    }
}

/// Replaces a list that was read by the one that sessions share.
fn share_list(
    shared: &Shared,
    machine: &mut Machine,
    share: Option<&Share>,
    child: usize,
    listed: Listed,
    list: Arc<List>,
) {
    machine.share_list(child, listed, shared.share(list, share));
}

impl Engine for Fan {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        if self.machine.is_none() && self.long_step.is_none() {
            self.step(Event::Time);
            return Poll::Ready(Some(LinkEvent::Up));
        }
        for _ in 0..STEPS_MAX {
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(Some(event));
            }
            if self.poll_long_step(context).is_pending() {
                return Poll::Pending;
            }
            if !self.events.is_empty() {
                continue;
            }
            // First: no request is judged by former pins.
            if let Poll::Ready(pins) = self.pins.poll_changed(context) {
                self.step(Event::Pins(pins));
            } else if let Poll::Ready(Some(message)) = self.end.poll_receive(context) {
                self.step(Event::Session(message));
            } else if let Poll::Ready((event, read)) = self.poll_servers(context) {
                self.step(event);
                self.note_read(read);
            } else if self.poll_timer(context).is_ready() {
                self.step(Event::Time);
            } else {
                // Servers that are confirmed at the same time are saved together.
                let unsaved = self.take_unsaved();
                return unsaved.map_or(Poll::Pending, |event| Poll::Ready(Some(event)));
            }
        }
        if let Some(event) = self.take_unsaved() {
            return Poll::Ready(Some(event));
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
