//! One client session of the handshake revisions, as a pure state machine.
//!
//! [`Session::step`] takes an [`Event`] and the current time and appends the
//! [`Effect`]s the caller must perform. It never waits and never reads a clock.
//!
//! The machine is told in parts: the handshake and the link (`handshake`), what the
//! client posts (`posting`), what the server says (`hearing`), what the server asks
//! (`asking`), the streams (`stream`), coming back to them (`resume`), and time (`deadlines`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use protocol::payload::LogLevel;
use protocol::{ClientCapabilities, InitializeParams, RequestId, Response, Revision};
use serde::{Deserialize, Serialize};

use crate::asking::Ask;
use crate::exchange::{Call, Exchange, Form};
use crate::gate::Gated;
use crate::handover::Leaving;
use crate::handshake::ServerLink;
use crate::log::Log;
use crate::mirroring::Mirroring;
use crate::state::State;
use crate::stream::{Attachment, Stream, Tombstone, Waiting};
use crate::{Answer, Cause, Effect, Emitter, Ending, Event, Limits, Millis, Refusal, SinkId};

/// What a session is born with.
#[derive(Clone, Debug)]
pub struct Birth {
    /// Its bounds.
    pub limits: Arc<Limits>,
    /// Who emits its events: random, and never used before.
    pub emitter: Emitter,
    /// Where its jitter comes from: any number.
    pub seed: u64,
    /// The one pipe of a duplex transport (HTTP+SSE, stdio), open already; none for Streamable HTTP.
    pub duplex: Option<SinkId>,
    /// Which tool calls may be run again when their owner was lost.
    pub rerun: Rerun,
    /// How long the server may have nothing to do before it is stopped, in seconds; none
    /// for as long as the session lasts. The next request starts it again.
    pub idle_stop_secs: Option<u64>,
}

/// Which tool calls may be run again when the node that worked on them was lost, and
/// nobody knows whether they were done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rerun {
    /// Those of tools that say so: `readOnlyHint` or `idempotentHint`.
    #[default]
    Annotated,
    /// All: every tool of this server can be called twice.
    Always,
    /// None.
    Never,
}

/// One client session.
pub struct Session {
    pub(crate) limits: Arc<Limits>,
    pub(crate) emitter: Emitter,
    /// Who emitted before, newest first; at most `FORMER_MAX`.
    pub(crate) former: Vec<Emitter>,
    pub(crate) seed: u64,
    pub(crate) duplex: Option<SinkId>,
    pub(crate) duplex_keepalive_at: Millis,
    pub(crate) phase: Phase,
    /// When something last happened.
    pub(crate) touched: Millis,
    pub(crate) client: Option<Box<Client>>,
    pub(crate) link: ServerLink,
    pub(crate) exchanges: Vec<Exchange>,
    pub(crate) calls: Vec<Call>,
    pub(crate) next_call: u64,
    pub(crate) streams: BTreeMap<u64, Stream>,
    pub(crate) finished: VecDeque<Tombstone>,
    pub(crate) attachments: Vec<Attachment>,
    pub(crate) log: Log,
    pub(crate) asks: Vec<Ask>,
    pub(crate) next_ask: u64,
    /// Messages for a standalone stream that nobody has opened; bounded by `waiting_max`.
    pub(crate) waiting: VecDeque<Waiting>,
    /// Requests that were ended without the server's answer, which may still come;
    /// bounded, the oldest goes.
    pub(crate) ghosts: VecDeque<RequestId>,
    pub(crate) level: Option<LogLevel>,
    pub(crate) subscriptions: BTreeSet<Box<str>>,
    pub(crate) mirroring: Mirroring,
    /// What must outlive this owner.
    pub(crate) state: State,
    /// Answers that wait until what they say is held.
    pub(crate) gated: Vec<Gated>,
    /// The node wants to give the session up.
    pub(crate) leaving: Option<Leaving>,
    /// Tools that may be run again; bounded, and learned from lists that pass.
    pub(crate) harmless: BTreeSet<Box<str>>,
    pub(crate) rerun: Rerun,
    pub(crate) idle_stop_secs: Option<u64>,
}

/// What a session holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests of the client's without a last word.
    pub exchanges: usize,
    /// Requests to the client without an answer.
    pub asks: usize,
    /// Connections that listen to a stream.
    pub attachments: usize,
    /// Streams of which something can be replayed.
    pub streams: usize,
    /// Messages that wait for a stream.
    pub waiting: usize,
    /// Entries of the log that can be replayed.
    pub events: usize,
}

/// How far the session has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Nothing was posted.
    Unborn,
    /// `initialize` waits for its answer.
    Shaking,
    /// `initialize` is answered, `initialized` not yet said.
    Answered,
    /// The handshake is done.
    Live,
    /// Nothing more will come of it.
    Over,
}

/// What the handshake told about the client, and about the server it speaks with.
pub(crate) struct Client {
    pub(crate) revision: Revision,
    pub(crate) capabilities: ClientCapabilities,
    /// The parameters of its `initialize`, for every further handshake with the server.
    pub(crate) params: Bytes,
    pub(crate) server_lists: Vec<protocol::Method>,
    pub(crate) server_has_tools: bool,
}

impl Client {
    /// What an `initialize` told.
    pub(crate) fn of(asked: InitializeParams, revision: Revision, params: &Bytes) -> Self {
        Self {
            revision,
            capabilities: asked.capabilities,
            params: protocol::with_protocol_version(params, revision.asked_of_servers()),
            server_lists: Vec::new(),
            server_has_tools: false,
        }
    }
}

/// One step: its time, and what comes of it.
pub(crate) struct Turn<'a> {
    pub(crate) now: Millis,
    pub(crate) effects: &'a mut Vec<Effect>,
}

impl Session {
    /// A session that nobody has spoken in.
    pub fn new(birth: Birth, now: Millis) -> Self {
        let Birth { limits, emitter, seed, duplex, rerun, idle_stop_secs } = birth;
        Self {
            duplex_keepalive_at: now.plus(limits.keepalive_secs * 1_000),
            limits,
            emitter,
            former: Vec::new(),
            seed: seed | 1,
            duplex,
            phase: Phase::Unborn,
            touched: now,
            client: None,
            link: ServerLink::default(),
            exchanges: Vec::new(),
            calls: Vec::new(),
            next_call: 1,
            streams: BTreeMap::new(),
            finished: VecDeque::new(),
            attachments: Vec::new(),
            log: Log::new(),
            asks: Vec::new(),
            next_ask: 1,
            waiting: VecDeque::new(),
            ghosts: VecDeque::new(),
            level: None,
            subscriptions: BTreeSet::new(),
            mirroring: Mirroring::default(),
            state: State::default(),
            gated: Vec::new(),
            leaving: None,
            harmless: BTreeSet::new(),
            rerun,
            idle_stop_secs,
        }
    }

    /// Takes what happened, and appends what is to be done about it, in order.
    pub fn step(&mut self, now: Millis, event: Event, effects: &mut Vec<Effect>) {
        let mut turn = Turn { now, effects };
        if self.is_over() {
            answer_after_the_end(&mut turn, &event);
            return;
        }
        match event {
            Event::Posted { sink, body, mirrored, again } => {
                self.touched = now;
                self.posted(&mut turn, sink, body, mirrored.as_deref(), again);
            }
            Event::Listened { sink, after } => {
                self.touched = now;
                self.listened(&mut turn, sink, after.as_deref());
            }
            Event::Deleted { sink } => {
                turn.effects.push(Effect::Answer { sink, answer: Answer::Ended });
                self.end(&mut turn, Cause::Deleted);
            }
            Event::SinkClosed { sink } => self.sink_closed(&mut turn, sink),
            Event::LinkUp => self.link_up(&mut turn),
            Event::Said { message, about } => self.heard(&mut turn, message, about.as_ref()),
            Event::Unsent { message } => self.unsent(&mut turn, message),
            Event::LinkDown { reason } => self.link_down(&mut turn, &reason),
            Event::Appended { through } => self.acknowledged(&mut turn, through),
            Event::Saved { version } => self.was_saved(&mut turn, version),
            Event::Reclaimed { emitter } => self.reclaimed(emitter),
            Event::HandOver { at_once } => self.hand_over(&mut turn, at_once),
            Event::DeadlinePassed => self.deadline_passed(&mut turn),
            Event::Stopping => self.end(&mut turn, Cause::Stopping),
        }
        self.trim(&mut turn);
        self.hand_over_if_done(&mut turn);
        self.save_if_changed(&mut turn);
        turn.effects.extend(self.log.hand_out());
    }

    /// What it holds now, each within its bound.
    pub fn load(&self) -> Load {
        Load {
            exchanges: self.exchanges.len(),
            asks: self.asks.len(),
            attachments: self.attachments.len(),
            streams: self.streams.len(),
            waiting: self.waiting.len(),
            events: self.log.len(),
        }
    }

    /// Is it over?
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// How many requests of the client's have no last word yet.
    pub fn exchanges(&self) -> usize {
        self.exchanges.len()
    }

    /// The revision that was negotiated; before that, the one that counts as assumed.
    pub fn revision(&self) -> Revision {
        self.client.as_ref().map_or(Revision::ASSUMED, |client| client.revision)
    }

    /// Is the handshake done?
    pub(crate) fn is_live(&self) -> bool {
        self.phase == Phase::Live
    }

    /// Is `initialize` answered?
    pub(crate) fn is_shaken(&self) -> bool {
        self.phase >= Phase::Answered
    }

    /// What to notify of when the client may have missed something.
    pub(crate) fn server_lists(&self) -> Vec<protocol::Method> {
        self.client.as_ref().map(|client| client.server_lists.clone()).unwrap_or_default()
    }

    /// How long a client is to wait before it comes back: `retry_ms`, up to a quarter
    /// more or less, so that clients cut together do not come back together.
    pub(crate) fn retry(&mut self) -> u32 {
        // xorshift64: any spread will do.
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        let quarter = u64::from(self.limits.retry_ms / 4);
        let around = self.seed % (quarter * 2 + 1);
        u32::try_from(u64::from(self.limits.retry_ms) - quarter + around).unwrap_or(u32::MAX)
    }

    fn sink_closed(&mut self, turn: &mut Turn<'_>, sink: SinkId) {
        if self.duplex == Some(sink) {
            self.end(turn, Cause::Disconnected);
            return;
        }
        self.gated.retain(|gated| gated.sink != sink);
        let mut calls = self.calls.iter();
        if self.phase == Phase::Shaking && calls.any(|call| call.sink == Some(sink)) {
            // Nobody will ever learn this session's id.
            self.end(turn, Cause::NotBorn);
            return;
        }
        // A disconnect is not a cancellation (POST-16): what runs goes on.
        self.calls
            .iter_mut()
            .filter(|call| call.sink == Some(sink))
            .for_each(|call| call.sink = None);
        let attached = self.attachments.len();
        self.attachments.retain(|attachment| attachment.sink != sink);
        if self.attachments.len() < attached {
            self.touched = turn.now;
            self.bury_deserted(turn.now);
        }
    }

    /// Ends the session: whoever waits is told, whoever listens is let go (SES-08).
    pub(crate) fn end(&mut self, turn: &mut Turn<'_>, cause: Cause) {
        let abort = cause == Cause::Stopping && self.revision().reopens_only_after_abort();
        let ending = if abort { Ending::Abort } else { Ending::Proper };
        let words = match cause {
            Cause::Stopping => "the node is stopping; try again",
            _ => "the session has ended",
        };
        self.fail_parked(turn, &|id| Response::error(Some(id), crate::REFUSED, words, None));
        for exchange in std::mem::take(&mut self.exchanges) {
            let error = Response::error(Some(exchange.id), crate::REFUSED, words, None);
            self.last_word_now(turn, exchange.call, error.raw().clone());
        }
        for Attachment { sink, open, .. } in std::mem::take(&mut self.attachments) {
            if !open {
                turn.effects.push(Effect::Open { sink, welcome: false, at: None });
            }
            turn.effects.push(Effect::Finish { sink, ending });
        }
        if let Some(sink) = self.duplex.filter(|_| cause != Cause::Disconnected) {
            turn.effects.push(Effect::Finish { sink, ending: Ending::Proper });
        }
        self.link.close(turn);
        self.phase = Phase::Over;
        turn.effects.push(Effect::Over { cause });
    }

    /// As `last_word`, but past the log: the session will not be there to replay it.
    fn last_word_now(&mut self, turn: &mut Turn<'_>, call: crate::exchange::CallId, data: Bytes) {
        let form = self.calls.iter().find(|other| other.id == call).map(|call| &call.form);
        let Some(Form::Stream(stream)) = form else {
            self.last_word(turn, call, None, data);
            return;
        };
        let stream = *stream;
        let Some(attachment) = self.attachment(stream) else { return };
        let sink = attachment.sink;
        if !std::mem::replace(&mut attachment.open, true) {
            turn.effects.push(Effect::Open { sink, welcome: false, at: None });
        }
        let frame = crate::Frame::Message { id: None, data };
        turn.effects.push(Effect::Write { sink, frame });
    }
}

/// Whoever comes too late is told so; nothing else matters any more.
fn answer_after_the_end(turn: &mut Turn<'_>, event: &Event) {
    let (Event::Posted { sink, .. } | Event::Listened { sink, .. } | Event::Deleted { sink }) =
        event
    else {
        return;
    };
    let answer = Answer::Refused(Refusal::UnknownSession);
    turn.effects.push(Effect::Answer { sink: *sink, answer });
}
