//! One client session of the handshake revisions, as a pure state machine.
//!
//! [`Session::step`] takes an [`Event`] and the current time and appends the
//! [`Effect`]s the caller must perform. It never waits and never reads a clock.
//!
//! The parts of the machine: the handshake and the link (`handshake`), what the
//! client posts (`posting`), messages of the server (`server_messages`), its requests to the
//! client (`server_requests`), the streams (`stream`), resumes (`resume`), and time (`deadlines`).

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use protocol::payload::LogLevel;
use protocol::{ClientCapabilities, Response, Revision};
use serde::{Deserialize, Serialize};
use thin_vec::ThinVec;

use crate::cancelled::Cancelled;
use crate::ending::EndState;
use crate::exchange::{Call, Exchange, Form};
use crate::gate::{Gated, HeldBack};
use crate::handshake::ServerLink;
use crate::kept::Kept;
use crate::leaving::Leaving;
use crate::log::Log;
use crate::mirroring::Mirroring;
use crate::posting::Unanswered;
use crate::rerun::Tools;
use crate::saved_ids::SavedIds;
use crate::server_requests::ServerRequest;
use crate::state::Versions;
use crate::stream::{Attachment, Tombstone, Waiting};
use crate::streams::Streams;
use crate::{Answer, Cause, Effect, Ending, Event, Limits, Millis, OwnerTag, Refusal, SinkId};

/// What a session is made of.
#[derive(Clone, Debug)]
pub struct SessionSetup {
    /// Its bounds.
    pub limits: Arc<Limits>,
    /// The tag of its owner's events: random, and never used before.
    pub owner_tag: OwnerTag,
    /// Where its jitter comes from: any number.
    pub seed: u64,
    /// Which tool calls may be run again when it is not known whether they were run before.
    pub rerun: Rerun,
    /// After how long without a request the link to the server is closed, in seconds;
    /// none to keep it. A session whose link is kept does not sleep.
    pub idle_stop_secs: Option<u64>,
    /// The one pipe of a duplex transport (HTTP+SSE, stdio), open already; none for Streamable
    /// HTTP.
    pub duplex: Option<SinkId>,
}

/// Which tool calls may be run a second time. Requests that only read always may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rerun {
    /// Those of tools that are annotated as read-only or idempotent.
    #[default]
    Annotated,
    /// All.
    Always,
    /// None.
    Never,
}

/// One client session. Nearly all are quiet nearly always, so what is mostly empty takes
/// no more than a pointer.
pub struct Session {
    pub(crate) limits: Arc<Limits>,
    seed: u64,
    pub(crate) rerun: Rerun,
    pub(crate) idle_stop_secs: Option<u64>,
    pub(crate) duplex: Option<SinkId>,
    pub(crate) phase: Phase,
    /// When something last happened.
    pub(crate) touched: Millis,
    pub(crate) client: Option<Box<Client>>,
    pub(crate) link: ServerLink,
    pub(crate) exchanges: ThinVec<Exchange>,
    pub(crate) calls: ThinVec<Call>,
    pub(crate) next_call: u64,
    pub(crate) streams: Streams,
    pub(crate) finished: ThinVec<Tombstone>,
    pub(crate) attachments: ThinVec<Attachment>,
    pub(crate) log: Log,
    pub(crate) server_requests: ThinVec<ServerRequest>,
    pub(crate) next_server_request: u64,
    /// Messages for a standalone stream that the client has not opened; bounded by
    /// `waiting_max`. They are in no log: no client has received them, and they are lost with
    /// this owner.
    pub(crate) waiting: ThinVec<Waiting>,
    /// Requests that were ended without the server's answer, which may still come;
    /// bounded, the oldest goes.
    pub(crate) unanswered: ThinVec<Unanswered>,
    /// Results whose way to their client may be lost; bounded, the oldest goes.
    pub(crate) kept: ThinVec<Kept>,
    pub(crate) cancelled: Cancelled,
    pub(crate) askers: SavedIds,
    pub(crate) level: Option<LogLevel>,
    /// None while there are none.
    #[allow(clippy::box_collection, reason = "a pointer while there is none")]
    pub(crate) subscribed: Option<Box<BTreeSet<Box<str>>>>,
    pub(crate) mirroring: Mirroring,
    pub(crate) versions: Versions,
    /// Answers that wait until what they stand for is held.
    pub(crate) gated: ThinVec<Gated>,
    pub(crate) held_back: HeldBack,
    pub(crate) tools: Tools,
    /// Why the session is about to leave, or has left, its owner.
    pub(crate) leaving: Option<Leaving>,
    /// How far its end has come in the store, and the DELETEs that wait for it.
    pub(crate) end_state: EndState,
}

/// What a session holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests of the client's without a final response.
    pub exchanges: usize,
    /// Requests to the client without an answer.
    pub server_requests: usize,
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
    New,
    /// `initialize` waits for its answer.
    Initializing,
    /// `initialize` is answered, `initialized` has not come yet.
    Answered,
    /// The handshake is done.
    Live,
    /// Nothing more will come of it.
    Over,
}

/// What the handshake established about the client, and about the server it speaks with.
pub(crate) struct Client {
    pub(crate) revision: Revision,
    pub(crate) capabilities: ClientCapabilities,
    /// What is kept of the parameters of its `initialize`, for every handshake with the server.
    pub(crate) params: Arc<[u8]>,
    pub(crate) server_lists: ThinVec<protocol::Method>,
    pub(crate) server_has_tools: bool,
}

/// The context of one step of a session: its time, and the effects so far.
pub(crate) struct StepContext<'a> {
    pub(crate) now: Millis,
    pub(crate) effects: &'a mut Vec<Effect>,
}

impl Session {
    /// A session without any messages yet.
    pub fn new(setup: SessionSetup, now: Millis) -> Self {
        let SessionSetup { limits, owner_tag, seed, rerun, idle_stop_secs, duplex } = setup;
        Self {
            limits,
            seed: seed | 1,
            rerun,
            idle_stop_secs,
            duplex,
            phase: Phase::New,
            touched: now,
            client: None,
            link: ServerLink::default(),
            exchanges: ThinVec::new(),
            calls: ThinVec::new(),
            next_call: 1,
            streams: Streams::default(),
            finished: ThinVec::new(),
            attachments: ThinVec::new(),
            log: Log::new(owner_tag),
            server_requests: ThinVec::new(),
            next_server_request: 1,
            waiting: ThinVec::new(),
            unanswered: ThinVec::new(),
            kept: ThinVec::new(),
            cancelled: Cancelled::default(),
            askers: SavedIds::default(),
            level: None,
            subscribed: None,
            mirroring: Mirroring::default(),
            versions: Versions::default(),
            gated: ThinVec::new(),
            held_back: HeldBack::default(),
            tools: Tools::default(),
            leaving: None,
            end_state: EndState::default(),
        }
    }

    /// Takes what happened, and appends what is to be done about it, in order.
    pub fn step(&mut self, now: Millis, event: Event, effects: &mut Vec<Effect>) {
        let mut context = StepContext { now, effects };
        if self.is_over() {
            self.answer_after_the_end(&mut context, &event);
            return;
        }
        if matches!(event, Event::Posted { .. } | Event::Listened { .. } | Event::Deleted { .. }) {
            self.stay_awake();
        }
        match event {
            Event::Posted { sink, body, mirrored, again, forwarded } => {
                self.touched = now;
                self.posted(&mut context, sink, body, mirrored.as_deref(), again);
                if forwarded {
                    let posted = self.calls.iter_mut().filter(|call| call.sink == Some(sink));
                    posted.for_each(|call| call.forwarded = true);
                }
            }
            Event::Listened { sink, after } => {
                self.touched = now;
                self.listened(&mut context, sink, after.as_deref());
            }
            Event::Deleted { sink } => {
                self.answer_when_ended(&mut context, sink);
                self.end(&mut context, Cause::Deleted);
            }
            Event::SinkClosed { sink } => self.sink_closed(&mut context, sink),
            Event::LinkUp => self.link_up(&mut context),
            Event::ServerMessage { message, about } => {
                self.receive_message(&mut context, message, about.as_ref())
            }
            Event::Unsent { message } => self.unsent(&mut context, message),
            Event::LinkDown { reason } => self.link_down(&mut context, &reason),
            Event::Appended { .. } if mutant!("append_wakes_nobody") => {}
            Event::Appended { through } => self.acknowledged(&mut context, through),
            Event::Saved { version } => {
                self.versions.held = self.versions.held.max(version);
                self.acknowledged(&mut context, self.log.acknowledged());
            }
            Event::Reclaimed { owner_tag } => {
                let (next, floor) = (self.log.next(), self.log.first());
                self.log.owner_tags.succeed(owner_tag, next, floor);
            }
            Event::HandOver { at_once } => self.hand_over(&mut context, at_once),
            Event::DeadlinePassed => self.deadline_passed(&mut context),
            Event::Stopping => self.end(&mut context, Cause::Stopping),
            // It has not ended, so no DELETE waits.
            Event::Ended { .. } => {}
        }
        self.finish_step(&mut context);
    }

    /// What every step ends with: what it wrote is handed out.
    pub(crate) fn finish_step(&mut self, context: &mut StepContext<'_>) {
        if self.is_over() {
            return;
        }
        self.prepare_to_leave(context);
        self.trim(context);
        // The state first: the owner saves it before it appends the entries that changed with it.
        if mutant!("hand_out_entries_before_the_state") {
            context.effects.extend(self.log.hand_out());
        }
        self.save(context);
        context.effects.extend(self.log.hand_out());
        if mutant!("tell_before_the_append") {
            self.acknowledged(context, self.log.next() - 1);
        }
        self.let_through(context);
        self.leave(context);
        self.give_back();
    }

    /// What a quiet session needs no room for. Nearly all sessions are quiet nearly always,
    /// and room for four exchanges and their calls is as much as a quarter of one.
    fn give_back(&mut self) {
        if self.exchanges.is_empty() {
            self.exchanges = ThinVec::new();
        }
        if self.calls.is_empty() {
            self.calls = ThinVec::new();
        }
        if self.attachments.is_empty() {
            self.attachments = ThinVec::new();
        }
        if self.kept.is_empty() && self.kept.capacity() > 0 {
            self.kept = ThinVec::new();
        }
    }

    /// What it holds now, each within its bound.
    pub fn load(&self) -> Load {
        Load {
            exchanges: self.exchanges.len(),
            server_requests: self.server_requests.len(),
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

    /// Is nothing in flight: no request without its final response, and nothing written down
    /// that is not held yet?
    pub fn is_quiet(&self) -> bool {
        self.has_no_work() && self.gated.is_empty() && self.is_held()
    }

    /// Is everything held that was written down?
    pub(crate) fn is_held(&self) -> bool {
        self.log.is_held() && self.versions.held >= self.version()
    }

    /// How many requests of the client's have no final response yet.
    pub fn exchanges(&self) -> usize {
        self.exchanges.len()
    }

    /// The revision that was negotiated; before that, the one that counts as assumed.
    pub fn revision(&self) -> Revision {
        self.client.as_ref().map_or(Revision::ASSUMED, |client| client.revision)
    }

    /// The params of its `initialize`, for the record: what another owner needs to go on.
    /// Empty where there was none yet, and for a duplex session, which ends with its
    /// connection and is never taken over.
    pub fn initialize(&self) -> Arc<[u8]> {
        let client = self.client.as_ref().filter(|_| self.duplex.is_none());
        client.map(|client| client.params.clone()).unwrap_or_default()
    }

    /// What the client has subscribed to.
    pub(crate) fn subscriptions(&self) -> &BTreeSet<Box<str>> {
        static NONE: BTreeSet<Box<str>> = BTreeSet::new();
        self.subscribed.as_deref().unwrap_or(&NONE)
    }

    /// Is the handshake done?
    pub(crate) fn is_live(&self) -> bool {
        self.phase == Phase::Live
    }

    /// Is `initialize` answered?
    pub(crate) fn is_initialized(&self) -> bool {
        self.phase >= Phase::Answered
    }

    /// What to notify of when the client may have missed something.
    pub(crate) fn server_lists(&self) -> ThinVec<protocol::Method> {
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

    fn sink_closed(&mut self, context: &mut StepContext<'_>, sink: SinkId) {
        if self.duplex == Some(sink) {
            self.end(context, Cause::Disconnected);
            return;
        }
        let mut calls = self.calls.iter();
        if self.phase == Phase::Initializing && calls.any(|call| call.sink == Some(sink)) {
            // The client left before it received the session's id, so no request can name it.
            self.end(context, Cause::NotBorn);
            return;
        }
        self.gated.retain(|gated| gated.sink != sink);
        if mutant!("disconnect_drops_the_call") {
            self.calls.retain(|call| call.sink != Some(sink));
        }
        // A disconnect is not a cancellation (POST-16): what runs goes on.
        self.calls
            .iter_mut()
            .filter(|call| call.sink == Some(sink))
            .for_each(|call| call.sink = None);
        let attached = self.attachments.len();
        self.attachments.retain(|attachment| attachment.sink != sink);
        if self.attachments.len() < attached {
            self.touched = context.now;
            self.close_deserted(context);
        }
    }

    /// Ends the session: open requests get an error, streams are closed (SES-08).
    pub(crate) fn end(&mut self, context: &mut StepContext<'_>, cause: Cause) {
        let abort = cause == Cause::Stopping && self.revision().reopens_only_after_abort();
        let ending = if abort { Ending::Abort } else { Ending::Proper };
        let text = match cause {
            Cause::Stopping => "the node is stopping; try again",
            _ => "the session has ended",
        };
        self.open_gate(context, text);
        self.write_all_unlogged(context);
        self.fail_parked(context, &|id| Response::error(Some(id), crate::REFUSED, text, None));
        for exchange in std::mem::take(&mut self.exchanges) {
            let error = Response::error(Some(exchange.id), crate::REFUSED, text, None);
            self.final_response_now(context, exchange.call, error.raw().clone());
        }
        for Attachment { sink, open, .. } in std::mem::take(&mut self.attachments) {
            if mutant!("end_leaves_streams_open") {
                continue;
            }
            if !open {
                context.effects.push(Effect::Open { sink, welcome: false, at: None });
            }
            context.effects.push(Effect::Finish { sink, ending });
        }
        if let Some(sink) = self.duplex.filter(|_| cause != Cause::Disconnected) {
            context.effects.push(Effect::Finish { sink, ending: Ending::Proper });
        }
        self.link.close(context);
        self.phase = Phase::Over;
        // Ended, it is not handed over any more.
        self.leaving = None;
        context.effects.push(Effect::Over { cause });
    }

    /// As `final_response`, but past the log: the session will not be there to replay it.
    fn final_response_now(
        &mut self,
        context: &mut StepContext<'_>,
        call: crate::exchange::CallId,
        data: Bytes,
    ) {
        let form = self.calls.iter().find(|other| other.id == call).map(|call| &call.form);
        let Some(Form::Stream(stream)) = form else {
            self.final_response(context, call, None, data);
            return;
        };
        let stream = *stream;
        let Some(attachment) = self.attachment(stream) else { return };
        let sink = attachment.sink;
        if !std::mem::replace(&mut attachment.open, true) {
            context.effects.push(Effect::Open { sink, welcome: false, at: None });
        }
        let frame = crate::Frame::Message { id: None, data };
        context.effects.push(Effect::Write { sink, frame });
    }

    /// Answers requests that come after the end. A DELETE waits for what becomes of the end
    /// in the store; nothing else matters any more.
    fn answer_after_the_end(&mut self, context: &mut StepContext<'_>, event: &Event) {
        let lives_on = self.leaving.is_some();
        match event {
            Event::Ended { durable } => self.ended(context, *durable),
            Event::Deleted { sink } if !lives_on => self.answer_when_ended(context, *sink),
            Event::Posted { sink, .. } | Event::Listened { sink, .. } | Event::Deleted { sink } => {
                let refusal = if lives_on { Refusal::Moved } else { Refusal::UnknownSession };
                context
                    .effects
                    .push(Effect::Answer { sink: *sink, answer: Answer::Refused(refusal) });
            }
            _ => {}
        }
    }
}
