//! A session at its owner: the [`Session`] and the [`Ownership`] of the product, and the model that
//! connects them with their connections and the tenant's server.

mod keeping;
mod peers;
mod server;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use conversation::{
    Answer, Cause, Effect, Ending, Event, Frame, Limits, Millis, OwnerTag, Refusal, Rerun, Saved,
    Session, SessionSetup, SinkId,
};
use ownership::machine::{Acquired, Ownership};
use ownership::{Claimed, Digest, Error, Incarnation, Owner, Record, RecordStatus, State, Token};
use protocol::{Body, Message, Request, RequestId, Revision, SessionId};

use super::client::{self, ClientEvent, ConnId};
use super::net::{Call, Peer, PeerReply};
use super::process::Purpose;
use super::redis::{Answer as RedisAnswer, Command, TTL};
use super::tools::{Did, Instance};
use super::world::{Happening, Timer, World};

/// How often a new session checks whether its node may act, in milliseconds.
const STORE_POLL: u64 = 20;

/// How long a new session waits for its record, in milliseconds.
const CREATE_MS: u64 = 10_000;

/// How long a draining node still forwards requests after the drain time, in milliseconds.
const END_GRACE: u64 = 10_000;

/// How long a DELETE waits until the end of its session is written, in milliseconds.
const END_PATIENCE: u64 = 10_000;

/// A connection that a session writes to.
#[derive(Clone, Copy, Debug)]
struct Sink {
    id: SinkId,
    from: Incarnation,
    conn: ConnId,
    attachment: u64,
}

/// A session at its owner.
pub(super) struct Owned {
    session: Session,
    ownership: Option<Ownership>,
    /// The owner's token and node.
    pub(super) owner: Owner,
    sinks: Vec<Sink>,
    instance: Option<Instance>,
    /// An operation of the ownership is under way.
    busy: bool,
    /// Events that the session has not processed yet.
    following: VecDeque<Event>,
    /// Effects that wait for the record.
    held: Vec<Effect>,
    created_at: u64,
    creating: Option<Record>,
    /// The time of its timer.
    armed: Option<u64>,
    pub(super) over: bool,
    /// The generations in which the record became its own.
    acquired: Acquired,
    /// The connection that created the session, and the request of its client.
    begun_by: Option<(ConnId, Request)>,
}

impl World {
    // ---- Creating ----

    /// A session is created here.
    pub(super) fn create_session(&mut self, at: Incarnation, conn: ConnId, request: Request) {
        let (token, id) = (Token::first(self.random()), self.random() % 0x1_0000);
        let lease_generation = self.lease_generation_of(at);
        let Some(process) = self.processes.get(&at) else { return };
        if process.lease.is_doubted() && self.is_begun_since(conn, CREATE_MS) {
            let request = client::ClientRequest::Begin(request);
            let session = None;
            self.after(STORE_POLL, Happening::Arrives { at, conn, session, request });
            return;
        }
        let Some(lease_generation) = lease_generation.filter(|_| !process.draining) else {
            let refused = Answer::Refused(Refusal::Unavailable);
            self.answer_client(conn, ClientEvent::Answer(refused));
            return;
        };
        let (slot, failover_generation) = (process.slot, process.generation(self.now).number);
        let acquired = Acquired { lease_generation, failover_generation };
        let name = format!("s{:04x}-n{slot}", self.new_session(id));
        let Some(id) = SessionId::parse(&name) else { return };
        self.keep_new_session(at, conn, id.clone(), request.clone());
        let setup = self.setup(token);
        let now = self.clock_of(at);
        let mut owned = Owned {
            session: Session::new(setup, now),
            ownership: None,
            owner: Owner { token, node: at },
            sinks: Vec::new(),
            instance: None,
            busy: false,
            following: VecDeque::new(),
            held: Vec::new(),
            created_at: self.now,
            creating: None,
            armed: None,
            over: false,
            acquired,
            begun_by: Some((conn, request.clone())),
        };
        let sink = self.new_sink(at);
        owned.sinks.push(Sink { id: sink, from: at, conn, attachment: 1 });
        let body = Body::One(Message::Request(request));
        let event = Event::Posted { sink, body, mirrored: None, again: false, forwarded: false };
        owned.following.push_back(event);
        self.live(at, &id, owned);
    }

    fn setup(&mut self, token: Token) -> SessionSetup {
        let limits = Limits {
            idle_secs: 3_000,
            sleep_after_secs: self.plan.sleep_secs,
            ask_secs: 12,
            request_secs: 40,
            log_events_max: self.plan.log_events,
            // Most states are saved as differences.
            whole_state_bytes_max: 0,
            ..Limits::default()
        };
        SessionSetup {
            limits: Arc::new(limits),
            owner_tag: OwnerTag(token.random),
            seed: self.random(),
            duplex: None,
            rerun: Rerun::default(),
            start_secs: None,
            idle_stop_secs: None,
        }
    }

    fn clock_of(&self, at: Incarnation) -> Millis {
        Millis(self.processes.get(&at).map_or(0, |process| process.clock(self.now)))
    }

    fn new_sink(&mut self, at: Incarnation) -> SinkId {
        let Some(process) = self.processes.get_mut(&at) else { return SinkId(0) };
        process.next_sink += 1;
        SinkId(process.next_sink)
    }

    /// This number, or the next one that no session had before.
    fn new_session(&mut self, mut number: u64) -> u64 {
        while !self.session_numbers.insert(number) {
            number += 1;
        }
        number
    }

    /// A number that no instance of a tenant's server had before: it distinguishes their payloads.
    fn new_instance(&mut self) -> u64 {
        let mut number = self.random() % 1_000_000;
        while !self.instances.insert(number) {
            number += 1;
        }
        number
    }

    /// The session that a connection created.
    pub(super) fn new_session_of(&self, at: Incarnation, conn: ConnId) -> Option<SessionId> {
        let process = self.processes.get(&at)?;
        let by = |owned: &Owned| owned.begun_by.as_ref().is_some_and(|(by, _)| *by == conn);
        let created = process.sessions.iter().find(|(_, owned)| by(owned));
        created.map(|(session, _)| session.clone())
    }

    /// The record of a new session was created, or cannot be.
    pub(super) fn created(&mut self, at: Incarnation, id: &SessionId, came: Result<(), Error>) {
        let Some(mut owned) = self.take(at, id) else { return };
        let Some(record) = owned.creating.clone() else { return self.put(at, id, owned) };
        match came {
            Ok(()) => {
                owned.creating = None;
                let now = self.clock_of(at).0;
                let ttl = Duration::from_millis(self.plan.ttl);
                let ownership = Ownership::new(id.clone(), record, owned.acquired, ttl, now);
                owned.ownership = Some(ownership);
                for effect in std::mem::take(&mut owned.held) {
                    self.perform(at, id, &mut owned, effect);
                }
                self.live(at, id, owned);
            }
            Err(Error::Unavailable(_)) if self.now < owned.created_at + CREATE_MS => {
                self.put(at, id, owned);
                let create = Command::Create(id.clone(), record);
                self.send_for(at, create, Purpose::Create(id.clone()));
            }
            Err(_) => {
                let refused = PeerReply::Answer(Answer::Refused(Refusal::Unavailable));
                for sink in std::mem::take(&mut owned.sinks) {
                    self.say(at, sink, refused.clone());
                }
            }
        }
    }

    /// This node has claimed the session.
    pub(super) fn adopt(
        &mut self,
        at: Incarnation,
        id: &SessionId,
        claimed: Claimed,
        acquired: Acquired,
    ) {
        let Claimed { record, log } = claimed;
        self.checker.adopted(self.now, id, record.owner);
        self.checker.note_heard_claim(record.owner.token);
        let now = self.clock_of(at);
        let Some(revision) = Revision::named(&record.revision) else { return };
        let saved = Saved {
            revision,
            initialize: record.initialize.clone(),
            state: record.state.bytes.to_bytes(),
            version: record.state.version,
            former: record.former.iter().map(|token| OwnerTag(token.random)).collect(),
            log: log.clone(),
        };
        let mut effects = Vec::new();
        let setup = self.setup(record.owner.token);
        let session = match Session::restore(setup, saved, now, &mut effects) {
            Ok(session) => session,
            Err(unreadable) => {
                self.checker.breaks(format!("{} is unreadable: {unreadable:?}", id.as_str()));
                return;
            }
        };
        let owner = record.owner;
        let ttl = Duration::from_millis(self.plan.ttl);
        let ownership = Ownership::new(id.clone(), record, acquired, ttl, now.0);
        let mut owned = Owned {
            session,
            ownership: Some(ownership),
            owner,
            sinks: Vec::new(),
            instance: None,
            busy: false,
            following: VecDeque::new(),
            held: Vec::new(),
            created_at: self.now,
            creating: None,
            armed: None,
            over: false,
            acquired,
            begun_by: None,
        };
        for effect in effects {
            self.perform(at, id, &mut owned, effect);
        }
        if self.processes.get(&at).is_some_and(|process| process.draining) {
            owned.following.push_back(Event::HandOver { at_once: false });
        }
        self.live(at, id, owned);
    }

    // ---- Running ----

    fn take(&mut self, at: Incarnation, id: &SessionId) -> Option<Owned> {
        self.processes.get_mut(&at)?.sessions.remove(id)
    }

    fn put(&mut self, at: Incarnation, id: &SessionId, owned: Owned) {
        if let Some(process) = self.processes.get_mut(&at) {
            process.sessions.insert(id.clone(), owned);
        }
    }

    /// Passes an event to a session.
    fn happened(&mut self, at: Incarnation, id: &SessionId, event: Event) {
        let Some(mut owned) = self.take(at, id) else { return };
        owned.following.push_back(event);
        self.live(at, id, owned);
    }

    /// Whether the node may act for the session now.
    fn may_act(&self, at: Incarnation, id: &SessionId, owned: &mut Owned) -> bool {
        if !self.rules.acts_by_lease {
            return true;
        }
        match &mut owned.ownership {
            Some(ownership) => self.lease_snapshot(at, id).is_some_and(|snapshot| {
                ownership.observe(snapshot.failover_generation);
                ownership.may_act(snapshot.lease_generation, || snapshot)
            }),
            None => self.lease_generation_of(at).is_some(),
        }
    }

    /// Processes all events, performs the operations of the ownership, and sets the timer.
    fn live(&mut self, at: Incarnation, id: &SessionId, mut owned: Owned) {
        while owned.creating.is_none() && !owned.over && self.may_act(at, id, &mut owned) {
            let now = self.clock_of(at);
            let due = owned.session.deadline().is_some_and(|deadline| deadline <= now);
            let event = match owned.following.pop_front() {
                Some(event) => event,
                None if due => Event::DeadlinePassed,
                None => break,
            };
            let mut effects = Vec::new();
            owned.session.step(now, event, &mut effects);
            if owned.ownership.is_none() && effects.iter().any(Effect::needs_record) {
                self.create(at, id, &mut owned, effects);
                break;
            }
            for effect in effects {
                self.perform(at, id, &mut owned, effect);
            }
            if owned.over && owned.ownership.is_none() {
                // The session never had a record.
                self.retry_those_of(at, id);
                return;
            }
        }
        self.operate(at, id, &mut owned);
        self.arm(at, id, &mut owned);
        self.put(at, id, owned);
    }

    fn create(&mut self, at: Incarnation, id: &SessionId, owned: &mut Owned, held: Vec<Effect>) {
        let record = Record {
            owner: owned.owner,
            former: Vec::new(),
            tenant: "acme".into(),
            principal: Digest([1; 32]),
            revision: owned.session.revision().as_str().to_owned().into(),
            initialize: owned.session.initialize(),
            state: State::default(),
            status: RecordStatus::Owned,
        };
        owned.held = held;
        owned.creating = Some(record.clone());
        let create = Command::Create(id.clone(), record);
        self.send_for(at, create, Purpose::Create(id.clone()));
    }

    fn arm(&mut self, at: Incarnation, id: &SessionId, owned: &mut Owned) {
        let now = self.clock_of(at).0;
        let awake = owned.creating.is_none() && !owned.over && self.may_act(at, id, owned);
        let deadline = owned.session.deadline().map(|at| at.0).filter(|_| awake);
        let ownership =
            owned.ownership.as_ref().and_then(Ownership::wake_at).filter(|_| !owned.busy);
        let Some(next) = deadline.into_iter().chain(ownership).min() else { return };
        if owned.armed.is_some_and(|armed| armed <= next && armed > now) {
            return;
        }
        owned.armed = Some(next.max(now + 1));
        let wait = next.saturating_sub(now) * 101 / 100 + 1;
        self.after(wait, Happening::Rings(at, Timer::Session(id.clone())));
    }

    /// The timer of the session fired, or its node may act again.
    pub(super) fn look_after(&mut self, at: Incarnation, id: &SessionId) {
        let Some(mut owned) = self.take(at, id) else { return };
        owned.armed = None;
        self.live(at, id, owned);
    }

    pub(super) fn look_after_all(&mut self, at: Incarnation) {
        let Some(process) = self.processes.get(&at) else { return };
        let sessions: Vec<SessionId> = process.sessions.keys().cloned().collect();
        for session in sessions {
            self.look_after(at, &session);
        }
    }

    // ---- Effects of the session ----

    fn perform(&mut self, at: Incarnation, id: &SessionId, owned: &mut Owned, effect: Effect) {
        match effect {
            Effect::Answer { sink, answer } => {
                let Some(sink) = owned.take_sink(sink) else { return };
                if !matches!(answer, Answer::Refused(Refusal::Moved)) {
                    self.acted(id, owned, "a client was answered");
                }
                self.say(at, sink, PeerReply::Answer(answer));
            }
            Effect::Open { sink, welcome, at: cursor } => {
                let Some(sink) = owned.sink(sink) else { return };
                self.acted(id, owned, "a stream was opened");
                self.say(at, sink, PeerReply::Open { welcome, at: cursor });
            }
            Effect::Write { sink, frame } => {
                let Some(sink) = owned.sink(sink) else { return };
                let owns = self.acted(id, owned, "an event was sent to a client");
                if let Frame::Message { id: Some(event), .. } = &frame
                    && owns
                {
                    self.checker.sent(id, owned.owner.token, *event);
                }
                self.say(at, sink, PeerReply::Frame(frame));
            }
            Effect::Finish { sink, ending } => {
                let Some(sink) = owned.take_sink(sink) else { return };
                if ending != Ending::Moved {
                    self.acted(id, owned, "a stream was ended");
                }
                self.say(at, sink, PeerReply::Finish(ending));
            }
            Effect::OpenLink => {
                let instance = self.new_instance();
                owned.instance = Some(Instance::new(instance));
                let wait = self.rng.between(5, 60);
                let timer = Timer::LinkUp(id.clone(), instance);
                self.after(wait, Happening::Rings(at, timer));
            }
            Effect::CloseLink | Effect::LeaveLink => owned.instance = None,
            Effect::Send(message) => {
                let mut did = Vec::new();
                if let Some(instance) = &mut owned.instance {
                    instance.receive(&message, &mut did);
                }
                self.instance_did(at, id, owned, did);
            }
            Effect::Append { first, floor, entries } => {
                if let Some(ownership) = &mut owned.ownership {
                    ownership.push_entries(first, floor, entries);
                    self.operate(at, id, owned);
                }
            }
            Effect::Save { version, change } => {
                if let Some(ownership) = &mut owned.ownership {
                    ownership.save_state(version, change);
                    self.operate(at, id, owned);
                }
            }
            Effect::Over { cause } => {
                owned.over = true;
                owned.instance = None;
                let name = self.name(at);
                self.note(|| format!("{name} {} is over: {cause:?}", id.as_str()));
                if let Some(ownership) = &mut owned.ownership {
                    match cause {
                        Cause::Moved | Cause::Asleep => ownership.release_session(),
                        _ => ownership.end_session(),
                    }
                }
                if cause == Cause::Deleted {
                    self.checker.begins_to_end(id, at);
                    let patience = Timer::EndPatience(id.clone());
                    self.after(END_PATIENCE, Happening::Rings(at, patience));
                    if !self.rules.ends_before_word {
                        self.end_told(at, owned, true);
                    }
                }
            }
            Effect::Count(_) => {}
        }
    }

    /// Passes the result of its end in the store to the session, which answers its DELETEs.
    fn end_told(&mut self, at: Incarnation, owned: &mut Owned, durable: bool) {
        let (now, mut effects) = (self.clock_of(at), Vec::new());
        owned.session.step(now, Event::Ended { durable }, &mut effects);
        for effect in effects {
            if let Effect::Answer { sink, answer } = effect
                && let Some(sink) = owned.take_sink(sink)
            {
                self.say(at, sink, PeerReply::Answer(answer));
            }
        }
    }

    /// The end of a session was not written in time: its DELETEs no longer wait.
    pub(super) fn end_takes_too_long(&mut self, at: Incarnation, id: &SessionId) {
        let Some(mut owned) = self.take(at, id) else { return };
        if owned.over {
            self.end_told(at, &mut owned, false);
        }
        self.put(at, id, owned);
    }

    fn acted(&mut self, id: &SessionId, owned: &Owned, what: &str) -> bool {
        self.checker.acts(self.now, id, owned.owner, &self.plan, what)
    }

    /// Sends to a connection at this node or at another one.
    fn say(&mut self, at: Incarnation, sink: Sink, reply: PeerReply) {
        let Sink { from, conn, attachment, .. } = sink;
        if from == at {
            self.after(0, Happening::Here { at, conn, attachment, reply });
        } else {
            self.peer_send(at, from, Peer::Reply { conn, attachment, reply });
        }
    }
}

impl Owned {
    fn sink(&self, id: SinkId) -> Option<Sink> {
        self.sinks.iter().find(|sink| sink.id == id).copied()
    }

    fn take_sink(&mut self, id: SinkId) -> Option<Sink> {
        let index = self.sinks.iter().position(|sink| sink.id == id)?;
        Some(self.sinks.remove(index))
    }
}
