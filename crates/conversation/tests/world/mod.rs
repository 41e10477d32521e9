//! The environment of one session: a log that acknowledges on command, connections that record the
//! frames that they receive, and a server that records its messages.
//!
//! Every effect is checked against the invariants of all effects, in every test.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use conversation::{
    Answer, Cause, Effect, Ending, Event, EventId, Frame, Limits, Millis, OwnerTag, Refusal, Rerun,
    Saved, Session, SessionSetup, SinkId, StateChange,
};
use protocol::{Message, Method, Mirrored, Notification, Request, RequestId, Response};

mod connection;

pub(crate) use connection::Connection;

pub(crate) struct World {
    pub(crate) session: Session,
    pub(crate) now: Millis,
    pub(crate) connections: BTreeMap<SinkId, Connection>,
    /// The messages that the server received, in order.
    pub(crate) sent: Vec<Message>,
    pub(crate) link_open: bool,
    /// How often a link was closed for good.
    pub(crate) links_ended: usize,
    pub(crate) over: Option<Cause>,
    /// The session has been notified that its end is written.
    end_reported: bool,
    /// Whether the log acknowledges at once.
    pub(crate) prompt_log: bool,
    next_sink: u64,
    pub(crate) limits: Limits,
    pub(crate) rerun: Rerun,
    pub(crate) idle_stop_secs: Option<u64>,
    /// Every entry up to this number was appended.
    pub(crate) appended: u64,
    pub(crate) acknowledged: u64,
    /// The writes in flight to the log and the record, in order.
    pending: VecDeque<Batch>,
    /// The entries of the log.
    pub(crate) held: BTreeMap<u64, Bytes>,
    /// Every entry that the log ever had. The first part of the key counts how often the log was
    /// empty when the owner changed: numbers begin again then.
    pub(crate) history: BTreeMap<(u32, u64), Bytes>,
    emptied: u32,
    steps: u32,
    /// The state in the record, and its version.
    pub(crate) state: (u64, Arc<[u8]>),
    /// The length of each change that was saved.
    pub(crate) saves: Vec<usize>,
    /// The params of `initialize`.
    initialize: String,
    /// The tag of this owner, and those of former ones, newest first.
    pub(crate) owner_tag: OwnerTag,
    pub(crate) former: Vec<OwnerTag>,
    /// Every event id that was sent, with its payload.
    sent_events: HashMap<EventId, Bytes>,
    /// Every payload that was sent, with its stream.
    stream_of: HashMap<Bytes, u64>,
}

/// What the store has executed.
enum Held {
    Through(u64),
    State(u64),
}

/// One write that the store has not acknowledged.
enum Batch {
    Append { first: u64, floor: u64, entries: Vec<Bytes> },
    Save { version: u64, change: StateChange },
}

impl World {
    pub(crate) fn new(limits: Limits) -> Self {
        Self::with(limits, Rerun::Annotated, None)
    }

    pub(crate) fn with(limits: Limits, rerun: Rerun, idle_stop_secs: Option<u64>) -> Self {
        let setup = SessionSetup {
            limits: Arc::new(limits.clone()),
            owner_tag: OwnerTag(0xfeed),
            seed: 7,
            rerun,
            start_secs: None,
            idle_stop_secs,
            duplex: None,
        };
        let world = Self::of(Session::new(setup, Millis(0)), limits);
        Self { rerun, idle_stop_secs, ..world }
    }

    pub(crate) fn duplex(limits: Limits) -> Self {
        let pipe = SinkId(0);
        let setup = SessionSetup {
            limits: Arc::new(limits.clone()),
            owner_tag: OwnerTag(0xfeed),
            seed: 7,
            rerun: Rerun::Annotated,
            start_secs: None,
            idle_stop_secs: None,
            duplex: Some(pipe),
        };
        let mut world = Self::of(Session::new(setup, Millis(0)), limits);
        world.connections.insert(pipe, Connection { open: true, ..Connection::default() });
        world
    }

    fn of(session: Session, limits: Limits) -> Self {
        Self {
            limits,
            rerun: Rerun::Annotated,
            idle_stop_secs: None,
            pending: VecDeque::new(),
            held: BTreeMap::new(),
            history: BTreeMap::new(),
            emptied: 0,
            steps: 0,
            state: (0, Arc::default()),
            saves: Vec::new(),
            initialize: String::new(),
            owner_tag: OwnerTag(0xfeed),
            former: Vec::new(),
            session,
            now: Millis(0),
            connections: BTreeMap::new(),
            sent: Vec::new(),
            link_open: false,
            links_ended: 0,
            over: None,
            end_reported: false,
            prompt_log: true,
            next_sink: 1,
            appended: 0,
            acknowledged: 0,
            sent_events: HashMap::new(),
            stream_of: HashMap::new(),
        }
    }

    /// A session of this revision whose handshake is done.
    pub(crate) fn live(revision: &str, limits: Limits) -> Self {
        Self::live_with(revision, limits, r#"{"sampling":{},"elicitation":{},"roots":{}}"#)
    }

    pub(crate) fn live_with(revision: &str, limits: Limits, capabilities: &str) -> Self {
        Self::new(limits).alive(revision, capabilities)
    }

    /// The same environment when the handshake is done.
    pub(crate) fn alive(self, revision: &str, capabilities: &str) -> Self {
        let mut world = self;
        let sink = world.initialize(revision, capabilities);
        assert!(matches!(world.connections[&sink].answer, Some(Answer::Welcome(_))));
        let mirrored = world.mirrored("notifications/initialized", None);
        world.post_with(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, mirrored);
        world
    }

    /// Posts `initialize` and lets the server answer it.
    pub(crate) fn initialize(&mut self, revision: &str, capabilities: &str) -> SinkId {
        let sink = self.post_initialize(revision, capabilities);
        self.shake();
        sink
    }

    /// Posts `initialize`.
    pub(crate) fn post_initialize(&mut self, revision: &str, capabilities: &str) -> SinkId {
        let params = format!(
            r#"{{"protocolVersion":"{revision}","capabilities":{capabilities},"clientInfo":{{"name":"scenario","version":"1"}}}}"#
        );
        self.initialize.clone_from(&params);
        let request =
            format!(r#"{{"jsonrpc":"2.0","id":"init","method":"initialize","params":{params}}}"#);
        let mirrored = self.mirrored("initialize", None);
        self.post_with(&request, mirrored)
    }

    /// The link opens and the server answers the handshake.
    pub(crate) fn shake(&mut self) {
        self.shake_with(
            r#"{"tools":{"listChanged":true},"resources":{"subscribe":true},"logging":{}}"#,
        );
    }

    /// As [`Self::shake`], with a server of these capabilities.
    pub(crate) fn shake_with(&mut self, capabilities: &str) {
        self.step(Event::LinkUp);
        let Some(Message::Request(request)) = self.sent.last().cloned() else { return };
        assert_eq!(request.method, Method::Initialize);
        let result = format!(
            r#"{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"serverInfo":{{"name":"s","version":"1"}}}}"#
        );
        self.send_from_server(Response::result(request.id, result.as_bytes()));
    }

    fn mirrored(&self, method: &str, name: Option<&str>) -> Option<Box<Mirrored>> {
        let headers = [("mcp-method", Some(method)), ("mcp-name", name)];
        let given = headers.iter().filter_map(|(n, v)| v.map(|v| (*n, v.as_bytes())));
        Mirrored::from_headers(given)
    }

    pub(crate) fn sink(&mut self) -> SinkId {
        let sink = SinkId(self.next_sink);
        self.next_sink += 1;
        let connection = Connection { since: self.now, ..Connection::default() };
        self.connections.insert(sink, connection);
        sink
    }

    pub(crate) fn post(&mut self, text: &str) -> SinkId {
        self.post_with(text, None)
    }

    pub(crate) fn post_with(&mut self, text: &str, mirrored: Option<Box<Mirrored>>) -> SinkId {
        self.post_how(text, mirrored, false, false)
    }

    /// Posts a message that a former owner may have received.
    pub(crate) fn post_again(&mut self, text: &str) -> SinkId {
        self.post_how(text, None, true, false)
    }

    /// Posts through another node.
    pub(crate) fn post_forwarded(&mut self, text: &str) -> SinkId {
        self.post_how(text, None, false, true)
    }

    fn post_how(
        &mut self,
        text: &str,
        mirrored: Option<Box<Mirrored>>,
        again: bool,
        forwarded: bool,
    ) -> SinkId {
        let sink = self.sink();
        self.connections.get_mut(&sink).unwrap().body = Some(text.to_owned());
        let body = protocol::parse(Bytes::from(text.to_owned()), &protocol::Limits::default());
        self.step(Event::Posted { sink, body: body.unwrap(), mirrored, again, forwarded });
        sink
    }

    /// Calls a tool, with the call's id as its progress token.
    pub(crate) fn call(&mut self, id: u64) -> SinkId {
        let request = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"t","_meta":{{"progressToken":{id}}}}}}}"#
        );
        self.post(&request)
    }

    pub(crate) fn listen(&mut self, after: Option<EventId>) -> SinkId {
        self.listen_text(after.map(|id| id.to_string()))
    }

    pub(crate) fn listen_text(&mut self, after: Option<String>) -> SinkId {
        let sink = self.sink();
        self.step(Event::Listened { sink, after });
        sink
    }

    pub(crate) fn hang_up(&mut self, sink: SinkId) {
        let connection = self.connections.get_mut(&sink).unwrap();
        if !connection.finished && !std::mem::replace(&mut connection.gone, true) {
            self.step(Event::SinkClosed { sink });
        }
    }

    pub(crate) fn send_from_server(&mut self, message: impl Into<Message>) {
        self.step(Event::ServerMessage { message: message.into(), about: None, position: None });
    }

    pub(crate) fn send_from_server_about(&mut self, id: u64, message: impl Into<Message>) {
        let about = Some(RequestId::from(id as i64));
        self.step(Event::ServerMessage { message: message.into(), about, position: None });
    }

    pub(crate) fn answer(&mut self, id: u64, text: &str) {
        let result = format!(r#"{{"content":[{{"type":"text","text":"{text}"}}]}}"#);
        self.send_from_server(Response::result((id as i64).into(), result.as_bytes()));
    }

    pub(crate) fn progress(&mut self, id: u64, progress: u64) {
        let params = format!(r#"{{"progressToken":{id},"progress":{progress}}}"#);
        self.send_from_server(Notification::new(Method::Progress, Some(params.as_bytes())));
    }

    /// The server sends a request to the client.
    pub(crate) fn ask(&mut self, id: &str, about: Option<u64>) {
        let params = br#"{"message":"?","requestedSchema":{"type":"object","properties":{}}}"#;
        let request = Request::new(id.into(), Method::Elicit, Some(params));
        let about = about.map(|id| RequestId::from(id as i64));
        self.step(Event::ServerMessage { message: request.into(), about, position: None });
    }

    pub(crate) fn wait(&mut self, millis: u64) {
        let until = self.now.plus(millis);
        while let Some(deadline) = self.session.deadline().filter(|at| *at <= until) {
            self.now = deadline.max(self.now);
            let before = self.session.deadline();
            self.step(Event::DeadlinePassed);
            assert_ne!(self.session.deadline(), before, "a deadline that passed must move");
        }
        self.now = until;
    }

    /// Log and record contain everything that was written.
    pub(crate) fn acknowledge(&mut self) {
        while let Some(batch) = self.pending.pop_front() {
            match self.hold(batch) {
                Held::Through(through) => {
                    self.acknowledged = self.acknowledged.max(through);
                    self.step(Event::Appended { through });
                }
                Held::State(version) => self.step(Event::Saved { version }),
            }
        }
    }

    /// The log contains everything that was written to it, and the record does not.
    pub(crate) fn acknowledge_log(&mut self) {
        let is_append = |batch: &Batch| matches!(batch, Batch::Append { .. });
        let (appends, saves) = std::mem::take(&mut self.pending).into_iter().partition(is_append);
        self.pending = appends;
        self.acknowledge();
        self.pending = saves;
    }

    /// The store executes a write.
    fn hold(&mut self, batch: Batch) -> Held {
        match batch {
            Batch::Append { first, floor, entries } => {
                for (number, entry) in (first..).zip(entries.iter().cloned()) {
                    self.held.insert(number, entry.clone());
                    self.history.insert((self.emptied, number), entry);
                }
                self.held.retain(|number, _| *number >= floor);
                Held::Through(first + entries.len() as u64 - 1)
            }
            Batch::Save { version, change } => {
                assert_eq!(version, self.state.0 + 1, "each version is saved once");
                let bytes = match change {
                    StateChange::Whole(whole) => whole,
                    StateChange::Difference(more) => [&*self.state.1, &*more].concat().into(),
                };
                self.state = (version, bytes);
                Held::State(version)
            }
        }
    }

    /// The owner is lost or has left. The store executed the first `taken` of the writes in
    /// flight. Another owner continues with a new server; every connection is closed.
    pub(crate) fn restore(&mut self, taken: usize) {
        for batch in std::mem::take(&mut self.pending).into_iter().take(taken) {
            self.hold(batch);
        }
        self.former.insert(0, self.owner_tag);
        self.owner_tag = OwnerTag(self.owner_tag.0 + 1);
        let setup = SessionSetup {
            limits: Arc::new(self.limits.clone()),
            owner_tag: self.owner_tag,
            seed: 9,
            rerun: self.rerun,
            start_secs: None,
            idle_stop_secs: self.idle_stop_secs,
            duplex: None,
        };
        let saved = self.saved();
        let newest = (!self.session.is_over()).then(|| self.session.saved());
        self.emptied += u32::from(self.held.is_empty());
        let last = self.held.last_key_value().map_or(0, |(number, _)| *number);
        (self.appended, self.acknowledged) = (last, last);
        (self.over, self.end_reported, self.link_open) = (None, false, false);
        for connection in self.connections.values_mut() {
            connection.gone |= !connection.finished;
        }
        let mut effects = Vec::new();
        self.session = Session::restore(setup, saved, self.now, &mut effects).unwrap();
        if let Some((version, newest)) = newest.filter(|(version, _)| *version == self.state.0) {
            let restored = self.session.saved();
            assert!(
                restored == (version, newest),
                "the restored state is not the one that was saved"
            );
        }
        self.perform_all(effects);
    }

    /// The data of the session in the store.
    pub(crate) fn saved(&self) -> Saved {
        Saved {
            revision: self.session.revision(),
            initialize: self.initialize.as_bytes().into(),
            state: self.state.1.clone(),
            version: self.state.0,
            former: self.former.clone(),
            log: self.held.iter().map(|(number, entry)| (*number, entry.clone())).collect(),
        }
    }

    /// The node claims the session from itself.
    pub(crate) fn reclaim(&mut self) {
        self.former.insert(0, self.owner_tag);
        self.owner_tag = OwnerTag(self.owner_tag.0 + 1);
        self.step(Event::Reclaimed { owner_tag: self.owner_tag });
    }

    pub(crate) fn step(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.session.step(self.now, event, &mut effects);
        self.perform_all(effects);
    }

    fn perform_all(&mut self, effects: Vec<Effect>) {
        let appends = |effect: &Effect| matches!(effect, Effect::Append { .. });
        let mut after = effects.iter().skip_while(|effect| !appends(effect));
        let is_late = after.any(|effect| matches!(effect, Effect::Save { .. }));
        assert!(!is_late, "a state must be saved before the entries that changed with it");
        for effect in effects {
            self.perform(effect);
        }
        // Reading the whole log each time would take most of the time.
        self.steps += 1;
        if self.steps.is_multiple_of(8) && !self.session.is_over() {
            let (known, outline) =
                (self.session.outline(), self.session.replay_buffer().outline().unwrap());
            // A tombstone that expired is still in the log until the log is trimmed.
            let forgotten = |line: &&str| line.contains(" was: ") && !known.contains(*line);
            let outline: Vec<_> = outline.lines().filter(|line| !forgotten(line)).collect();
            assert_eq!(outline, known.lines().collect::<Vec<_>>(), "the log has the same state");
        }
        if self.prompt_log {
            self.acknowledge();
        }
        let ends = self.over.is_some_and(|cause| !matches!(cause, Cause::Asleep | Cause::Moved));
        if ends && self.prompt_log && !std::mem::replace(&mut self.end_reported, true) {
            self.step(Event::Ended { durable: true });
        }
    }

    fn perform(&mut self, effect: Effect) {
        let answers =
            matches!(effect, Effect::Answer { answer: Answer::Refused(_) | Answer::Ended, .. });
        assert!(self.over.is_none() || answers, "no effect follows the end: {effect:?}");
        match effect {
            Effect::Answer { sink, answer } => {
                let connection = self.connection(sink);
                assert!(!connection.open, "an open stream cannot be answered: {answer:?}");
                connection.answer = Some(answer);
                connection.finished = true;
            }
            Effect::Open { sink, at, .. } => {
                let connection = self.connection(sink);
                assert!(!std::mem::replace(&mut connection.open, true), "opened twice");
                connection.at = at;
            }
            Effect::Write { sink, frame } => {
                self.check_sent_event(&frame);
                let connection = self.connection(sink);
                assert!(connection.open, "written before it was opened: {frame:?}");
                connection.frames.push(frame);
            }
            Effect::Save { version, change } => {
                let (StateChange::Whole(bytes) | StateChange::Difference(bytes)) = &change;
                self.saves.push(bytes.len());
                self.pending.push_back(Batch::Save { version, change });
            }
            Effect::Finish { sink, ending } => {
                let connection = self.connection(sink);
                assert!(connection.open, "finished before it was opened");
                connection.moved = ending == Ending::Moved;
                connection.finished = true;
            }
            Effect::OpenLink => assert!(!std::mem::replace(&mut self.link_open, true)),
            Effect::CloseLink => {
                assert!(std::mem::replace(&mut self.link_open, false));
                self.links_ended += 1;
            }
            Effect::LeaveLink => assert!(std::mem::replace(&mut self.link_open, false)),
            Effect::Send(message) => self.sent.push(message),
            Effect::Append { first, floor, entries } => {
                // Entries below the floor may be missing.
                let next = (self.appended + 1).max(floor);
                assert_eq!(first, next, "the log has no hole and no repetition");
                self.appended = first + entries.len() as u64 - 1;
                self.pending.push_back(Batch::Append { first, floor, entries });
            }
            Effect::Over { cause } => self.over = Some(cause),
            Effect::Count(_) => {}
        }
    }

    fn connection(&mut self, sink: SinkId) -> &mut Connection {
        let connection = self.connections.get_mut(&sink).expect("a sink of this test");
        assert!(!connection.finished, "{sink:?} was finished");
        connection
    }

    /// Each id has one payload, each payload one stream, and no id is sent before the log has its
    /// event.
    fn check_sent_event(&mut self, frame: &Frame) {
        let (id, data) = match frame {
            Frame::Message { id: Some(id), data } => (id, Some(data)),
            Frame::Cursor { id, .. } => (id, None),
            _ => return,
        };
        assert!(id.number <= self.acknowledged, "sent before the log has it: {id}");
        let Some(data) = data else { return };
        let sent = self.sent_events.entry(*id).or_insert_with(|| data.clone());
        assert_eq!(sent, data, "one id for two payloads");
        if !data.windows(8).any(|window| window == b"\"params\"")
            && data.ends_with(b"list_changed\"}")
        {
            // The session itself sends it to each client that may have missed a change.
            return;
        }
        let stream = self.stream_of.entry(data.clone()).or_insert(id.stream);
        assert_eq!(*stream, id.stream, "one message on two streams");
    }

    /// The refusal that the connection received.
    pub(crate) fn refusal(&self, sink: SinkId) -> &Refusal {
        match &self.connections[&sink].answer {
            Some(Answer::Refused(refusal)) => refusal,
            other => panic!("not refused: {other:?}"),
        }
    }

    /// The only message that the connection received, as JSON.
    pub(crate) fn json(&self, sink: SinkId) -> serde_json::Value {
        let messages = self.connections[&sink].messages();
        assert_eq!(messages.len(), 1, "{messages:?}");
        serde_json::from_str(&messages[0]).unwrap()
    }

    /// The messages that the connection received, each as its `id`, its progress or its method.
    pub(crate) fn gist(&self, sink: SinkId) -> Vec<String> {
        self.connections[&sink].messages().iter().map(|text| gist(text)).collect()
    }

    /// The requests and notifications that the server received, by method.
    pub(crate) fn sent_methods(&self) -> Vec<String> {
        let method = |message: &Message| match message {
            Message::Request(request) => request.method.to_string(),
            Message::Notification(notification) => notification.method.to_string(),
            Message::Response(response) => format!("response {}", response.id.clone().unwrap()),
        };
        self.sent.iter().map(method).collect()
    }
}

pub(crate) fn accepted(world: &World, sink: SinkId) -> bool {
    world.connections[&sink].answer == Some(Answer::Accepted)
}

fn gist(text: &str) -> String {
    let json: serde_json::Value = serde_json::from_str(text).unwrap();
    if let Some(code) = json["error"]["code"].as_i64() {
        return format!("{} error {code}", json["id"]);
    }
    if json.get("result").is_some() {
        return format!("{} result", json["id"]);
    }
    match json["params"]["progress"].as_u64() {
        Some(progress) => format!("progress {progress}"),
        None => json["method"].as_str().unwrap().to_owned(),
    }
}

/// The newest stable revision.
pub(crate) const NEW: &str = "2025-11-25";

/// A session of the newest stable revision whose handshake is done.
pub(crate) fn live() -> World {
    World::live(NEW, Limits::default())
}

/// The cursor of a stream's connection.
pub(crate) fn cursor(world: &World, sink: SinkId) -> EventId {
    world.connections[&sink].cursor().expect("a cursor")
}
