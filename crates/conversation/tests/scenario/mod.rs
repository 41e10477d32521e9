//! A client that resumes its streams, a server that answers its requests, and the node that has
//! the client's connections when an owner is lost.
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use conversation::{Answer, Cause, Event, EventId, Frame, Limits, Refusal, Rerun, SinkId};
use proptest::prelude::*;
use protocol::{Message, Method, Notification, RequestId, Response};

use crate::world::{self, World};

/// One event of a client, a server, a log or a clock. A number selects one of the existing items.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Call,
    Batch(u8),
    Ping,
    Cancel(u8),
    Listen,
    HangUp(u8),
    Resume(u8),
    AnswerAsk(u8),
    AnswerNothing,
    Respond(u8),
    RespondAgain(u8),
    Progress(u8),
    Log(u8),
    ListChanged,
    Ask(u8, bool),
    CancelAsk(u8),
    LinkDown,
    LinkUp,
    Acknowledge,
    Wait(u16),
    /// The owner is lost; the store received this many of its last writes.
    Die(u8),
    HandOver(bool),
    /// The node claims the session from itself.
    Reclaim,
}

pub(crate) fn acts() -> impl Strategy<Value = Vec<Act>> {
    prop::collection::vec(act(), 1..120)
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => Just(Act::Call),
        1 => (0..4_u8).prop_map(Act::Batch),
        1 => Just(Act::Ping),
        1 => any::<u8>().prop_map(Act::Cancel),
        2 => Just(Act::Listen),
        3 => any::<u8>().prop_map(Act::HangUp),
        4 => any::<u8>().prop_map(Act::Resume),
        2 => any::<u8>().prop_map(Act::AnswerAsk),
        1 => Just(Act::AnswerNothing),
        5 => any::<u8>().prop_map(Act::Respond),
        1 => any::<u8>().prop_map(Act::RespondAgain),
        6 => any::<u8>().prop_map(Act::Progress),
        3 => any::<u8>().prop_map(Act::Log),
        1 => Just(Act::ListChanged),
        2 => any::<(u8, bool)>().prop_map(|(pick, about)| Act::Ask(pick, about)),
        1 => any::<u8>().prop_map(Act::CancelAsk),
        1 => Just(Act::LinkDown),
        2 => Just(Act::LinkUp),
        6 => Just(Act::Acknowledge),
        4 => any::<u16>().prop_map(Act::Wait),
    ]
}

/// Any event, including the loss of owners.
pub(crate) fn acts_and_deaths() -> impl Strategy<Value = Vec<Act>> {
    let fate = prop_oneof![
        4 => any::<u8>().prop_map(Act::Die),
        1 => any::<bool>().prop_map(Act::HandOver),
        1 => Just(Act::Reclaim),
        14 => act(),
        3 => Just(Act::LinkUp),
    ];
    prop::collection::vec(fate, 1..120)
}

/// A client that resumes its streams, and a server that answers its requests.
pub(crate) struct Scenario {
    pub(crate) world: World,
    limits: Limits,
    batches: bool,
    next_id: u64,
    next_mark: u64,
    /// Requests that the server received and has not answered.
    open: Vec<u64>,
    answered: Vec<u64>,
    pub(crate) cancelled: BTreeSet<u64>,
    pub(crate) posts: BTreeMap<SinkId, Vec<u64>>,
    seen_sent: usize,
    /// The progress that the server sent for each request, in order.
    pub(crate) progress: BTreeMap<u64, Vec<u64>>,
    /// The connections on which a POST's answer continued after its owner was lost.
    chains: BTreeMap<SinkId, Vec<SinkId>>,
    /// How often the server received each request.
    pub(crate) runs: BTreeMap<u64, u32>,
    /// Whether the server's annotations permit a second call of its tool.
    pub(crate) annotated: bool,
    pub(crate) deaths: u32,
    /// Approximate size of the largest answers and logs of the server, in bytes.
    pub(crate) large: Option<usize>,
}

impl Scenario {
    pub(crate) fn new(revision: &str, limits: Limits, prompt: bool) -> Self {
        Self::with(revision, limits, prompt, Rerun::Annotated)
    }

    pub(crate) fn with(revision: &str, limits: Limits, prompt: bool, rerun: Rerun) -> Self {
        let capabilities = r#"{"sampling":{},"elicitation":{},"roots":{}}"#;
        let mut world = World::with(limits.clone(), rerun, None).alive(revision, capabilities);
        world.prompt_log = prompt;
        let seen_sent = world.sent.len();
        Self {
            world,
            limits,
            batches: revision <= "2025-03-26",
            next_id: 1,
            next_mark: 1,
            open: Vec::new(),
            answered: Vec::new(),
            cancelled: BTreeSet::new(),
            posts: BTreeMap::new(),
            seen_sent,
            progress: BTreeMap::new(),
            chains: BTreeMap::new(),
            runs: BTreeMap::new(),
            annotated: false,
            deaths: 0,
            large: None,
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn mark(&mut self) -> u64 {
        self.next_mark += 1;
        self.next_mark
    }

    /// The text that makes some messages large.
    fn padding(&self, mark: u64) -> String {
        let most = self.large.map_or(0, |large| usize::try_from(mark).unwrap() * 997 % large);
        "x".repeat(most)
    }

    pub(crate) fn act(&mut self, act: Act) {
        self.perform(act);
        self.read_sent();
        self.follow();
        self.check_bounds();
    }

    /// Continues at another owner if the session has left this one.
    fn follow(&mut self) {
        if matches!(self.world.over, Some(Cause::Moved | Cause::Asleep)) {
            self.die(usize::MAX);
        }
    }

    fn perform(&mut self, act: Act) {
        match act {
            Act::Call => {
                let id = self.id();
                let sink = self.world.call(id);
                self.posts.insert(sink, vec![id]);
            }
            Act::Batch(size) => self.batch(size),
            Act::Ping => {
                let id = self.id();
                let sink =
                    self.world.post(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#));
                self.posts.insert(sink, vec![id]);
            }
            Act::Cancel(pick) => {
                if let Some(id) = choose(&self.open, pick) {
                    self.cancelled.insert(id);
                    self.world.post(&format!(
                        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
                    ));
                }
            }
            Act::Listen => {
                self.world.listen(None);
            }
            Act::HangUp(pick) => {
                let all: Vec<_> = self.world.connections.keys().copied().collect();
                if let Some(sink) = choose(&all, pick) {
                    self.world.hang_up(sink);
                }
            }
            Act::Resume(pick) => {
                let cursors: Vec<_> =
                    self.world.connections.values().filter_map(|c| c.cursor()).collect();
                if let Some(cursor) = choose(&cursors, pick) {
                    self.world.listen(Some(cursor));
                }
            }
            Act::AnswerAsk(pick) => {
                let asked: Vec<_> = self.asked().into_iter().collect();
                if let Some(id) = choose(&asked, pick) {
                    let sink = self.world.post(&format!(
                        r#"{{"jsonrpc":"2.0","id":"{id}","result":{{"action":"decline"}}}}"#
                    ));
                    // It is accepted when the log has it; every owner with this server request
                    // accepts it.
                    let is_fine = match &self.world.connections[&sink].answer {
                        None | Some(Answer::Accepted | Answer::Refused(Refusal::Moved)) => true,
                        Some(_) => self.world.former.len() > 16,
                    };
                    assert!(is_fine);
                }
            }
            Act::AnswerNothing => {
                self.world.post(r#"{"jsonrpc":"2.0","id":"000000000000feed-9999","result":{}}"#);
            }
            Act::Respond(pick) => {
                if let Some(id) = choose(&self.open, pick) {
                    self.open.retain(|open| *open != id);
                    self.answered.push(id);
                    let mark = self.mark();
                    let text = format!("answer {mark}{}", self.padding(mark));
                    self.world.answer(id, &text);
                }
            }
            Act::RespondAgain(pick) => {
                if let Some(id) = choose(&self.answered, pick) {
                    let mark = self.mark();
                    self.world.answer(id, &format!("again {mark}"));
                }
            }
            Act::Progress(pick) => {
                if let Some(id) = choose(&self.open, pick) {
                    let mark = self.mark();
                    if !self.cancelled.contains(&id) {
                        self.progress.entry(id).or_default().push(mark);
                    }
                    self.world.progress(id, mark);
                }
            }
            Act::Log(pick) => {
                let mark = self.mark();
                let padding = self.padding(mark);
                let params = format!(r#"{{"level":"info","data":"{mark}{padding}"}}"#);
                let log = Notification::new(Method::LogMessage, Some(params.as_bytes()));
                match choose(&self.open, pick) {
                    Some(id) => self.world.send_from_server_about(id, log),
                    None => self.world.send_from_server(log),
                }
            }
            Act::ListChanged => {
                let params = format!(r#"{{"_meta":{{"mark":{}}}}}"#, self.mark());
                self.world.send_from_server(Notification::new(
                    Method::PromptsListChanged,
                    Some(params.as_bytes()),
                ));
            }
            Act::Ask(pick, about) => {
                let about = choose(&self.open, pick).filter(|_| about);
                let mark = self.mark();
                if self.world.link_open {
                    self.world.ask(&format!("ask {mark}"), about);
                }
            }
            Act::CancelAsk(pick) => {
                let params = format!(r#"{{"requestId":"ask {pick}"}}"#);
                self.world.send_from_server(Notification::new(
                    Method::Cancelled,
                    Some(params.as_bytes()),
                ));
            }
            Act::LinkDown => {
                if self.world.link_open {
                    self.world.link_open = false;
                    self.open.clear();
                    self.world.step(Event::LinkDown { reason: "it crashed".to_owned() });
                }
            }
            Act::LinkUp => self.link_up(),
            Act::Acknowledge => self.world.acknowledge(),
            Act::Wait(millis) => self.world.wait(u64::from(millis)),
            Act::Die(taken) => self.die(usize::from(taken % 4)),
            Act::HandOver(at_once) => self.world.step(Event::HandOver { at_once }),
            Act::Reclaim => self.world.reclaim(),
        }
    }

    /// The owner is lost. The node that has the client's connections continues at the next owner:
    /// a stream after its last cursor, a request by posting it again.
    fn die(&mut self, taken: usize) {
        self.deaths += 1;
        let connections = self.world.connections.iter();
        let mut cut = Vec::new();
        for (sink, connection) in connections.filter(|(_, connection)| !connection.gone) {
            let refused = connection.answer == Some(Answer::Refused(Refusal::Moved));
            if connection.moved || refused || !connection.finished {
                let cursor = connection.cursor().or(connection.at).filter(|_| connection.open);
                cut.push((*sink, cursor, connection.body.clone(), refused));
            }
        }
        self.world.restore(taken);
        self.open.clear();
        self.read_sent();
        for (sink, cursor, body, refused) in cut {
            let connection = self.world.connections.get_mut(&sink).unwrap();
            (connection.moved, connection.gone) = (false, true);
            if connection.is_unlogged() {
                // A resume would repeat the messages that the client received without an id: it
                // gets an error.
                continue;
            }
            let next = match (cursor, body) {
                (Some(cursor), _) => self.world.listen(Some(cursor)),
                (None, Some(body)) if refused => self.world.post(&body),
                (None, Some(body)) => self.world.post_again(&body),
                (None, None) => self.world.listen(None),
            };
            let is_tail = |chain: &Vec<SinkId>| chain.last() == Some(&sink);
            let first = self.chains.iter().find(|(_, chain)| is_tail(chain)).map(|(post, _)| *post);
            if let Some(post) = first.or(self.posts.contains_key(&sink).then_some(sink)) {
                self.chains.entry(post).or_default().push(next);
            }
            self.read_sent();
        }
    }

    fn batch(&mut self, size: u8) {
        let ids: Vec<_> = (0..=size + 1).map(|_| self.id()).collect();
        let members = ids.iter().map(|id| {
            format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"t"}}}}"#
            )
        });
        let sink = self.world.post(&format!("[{}]", members.collect::<Vec<_>>().join(",")));
        if self.batches {
            self.posts.insert(sink, ids);
        }
    }

    fn link_up(&mut self) {
        if !self.world.link_open {
            return;
        }
        let before = self.world.sent.len();
        self.world.step(Event::LinkUp);
        if let Some(Message::Request(request)) = self.world.sent.get(before).cloned() {
            let result = br#"{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"2"}}"#;
            self.world.send_from_server(Response::result(request.id, result));
        }
    }

    /// Records what the server received.
    fn read_sent(&mut self) {
        while self.seen_sent < self.world.sent.len() {
            let message = self.world.sent[self.seen_sent].clone();
            self.seen_sent += 1;
            let Message::Request(request) = message else { continue };
            match request.id {
                RequestId::Number(id) => {
                    let id = u64::try_from(id).unwrap();
                    assert!(!self.open.contains(&id), "sent twice");
                    self.open.push(id);
                    *self.runs.entry(id).or_default() += 1;
                }
                RequestId::String(_) if request.method == Method::ToolsList => {
                    let tools = format!(
                        r#"{{"tools":[{{"name":"t","inputSchema":{{}},"annotations":{{"idempotentHint":{}}}}}]}}"#,
                        self.annotated
                    );
                    self.world.send_from_server(Response::result(request.id, tools.as_bytes()));
                }
                RequestId::String(_) => {}
            }
        }
    }

    /// The ids of all server requests that the client received.
    fn asked(&self) -> BTreeSet<String> {
        let messages = self.world.connections.values().flat_map(world::Connection::messages);
        messages
            .filter_map(|text| {
                let json: serde_json::Value = serde_json::from_str(&text).unwrap();
                json.get("method")?;
                Some(json.get("id")?.as_str()?.to_owned())
            })
            .collect()
    }

    fn check_bounds(&self) {
        let load = self.world.session.load();
        assert!(load.exchanges <= self.limits.exchanges_max);
        assert!(load.server_requests <= self.limits.server_requests_max);
        assert!(load.waiting <= self.limits.waiting_max);
        assert!(load.events <= self.limits.log_events_max);
        let streams = self.limits.log_events_max + self.limits.exchanges_max + 16;
        assert!(load.streams <= streams + self.limits.standalone_max);
    }

    /// Lets every open call and stream finish, and every client resume.
    pub(crate) fn settle(&mut self) {
        for _ in 0..3 {
            self.world.acknowledge();
            self.follow();
            self.link_up();
            self.read_sent();
            while !self.open.is_empty() {
                self.act(Act::Respond(0));
            }
            self.world.acknowledge();
            self.follow();
            self.world.wait(40_000);
            self.read_sent();
            self.follow();
        }
        assert_eq!(self.world.session.load().exchanges, 0);
    }

    /// Every message that the client of one POST received, over all its connections.
    pub(crate) fn received(&mut self, post: SinkId) -> Received {
        let mut chain = vec![post];
        chain.extend(self.chains.get(&post).into_iter().flatten());
        let mut received = Received::default();
        for sink in &chain {
            received.add(&self.world.connections[sink]);
        }
        let tail = &self.world.connections[chain.last().unwrap()];
        let answered = tail.answer.as_ref().is_some_and(|a| !matches!(a, Answer::Refused(_)));
        if answered || received.cursor.is_none() {
            received.complete = tail.finished || !tail.gone;
            return received;
        }
        // A connection may end before its stream does, so resume until no further message
        // arrives.
        let replay = self.limits.replay_secs * 1_000;
        received.complete = true;
        for _ in 0..8 {
            let words = final_responses(&received.messages);
            let wanted = |id: &u64| !self.cancelled.contains(id) && !words.contains(id);
            if !self.posts[&post].iter().any(wanted) {
                break;
            }
            let sink = self.world.listen(received.cursor);
            let connection = &self.world.connections[&sink];
            if connection.answer == Some(Answer::Refused(Refusal::UnknownEvent)) {
                // Its tombstone was dropped too, after the time for which events are kept.
                let old = self.world.connections[&post].since.plus(replay) <= self.world.now;
                assert!(old, "an event that was sent is not known any more");
                received.complete = false;
                break;
            }
            if connection.answer.is_some() {
                break;
            }
            received.add(connection);
        }
        received
    }

    /// The numbers of all events of an event's stream that the log ever had.
    pub(crate) fn events_beside(&self, id: EventId) -> Vec<u64> {
        let owner_tag = format!(r#""e":"{}""#, id.owner_tag);
        let history = &self.world.history;
        let is_it = |((_, number), entry): &(&(u32, u64), &Bytes)| {
            *number == id.number
                && entry.windows(owner_tag.len()).any(|w| w == owner_tag.as_bytes())
        };
        let Some(((era, _), _)) = history.iter().find(is_it) else { return Vec::new() };
        let head = format!(r#"{{"k":"event","s":{},"#, id.stream);
        let events = history.range((*era, 0)..(*era + 1, 0));
        let events = events.filter(|(_, entry)| entry.starts_with(head.as_bytes()));
        events.map(|((_, number), _)| *number).collect()
    }
}

/// What the client of a POST received.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) messages: Vec<String>,
    /// The events, in the order of their arrival.
    pub(crate) events: Vec<EventId>,
    pub(crate) cursor: Option<EventId>,
    /// Whether all messages of the stream were received.
    pub(crate) complete: bool,
    /// Whether it has messages without an event id. A later connection may repeat those.
    pub(crate) unlogged: bool,
}

impl Received {
    fn add(&mut self, connection: &world::Connection) {
        self.unlogged |= connection.is_unlogged();
        self.messages.extend(connection.messages());
        self.events.extend(connection.frames.iter().filter_map(|frame| match frame {
            Frame::Message { id, .. } => *id,
            _ => None,
        }));
        let cursors = self.cursor.into_iter().chain(connection.cursor());
        self.cursor = cursors.max_by_key(|id| id.number);
    }
}

pub(crate) fn choose<T: Clone>(among: &[T], pick: u8) -> Option<T> {
    (!among.is_empty()).then(|| among[usize::from(pick) % among.len()].clone())
}

pub(crate) fn final_responses(messages: &[String]) -> Vec<u64> {
    messages
        .iter()
        .filter_map(|text| {
            let json: serde_json::Value = serde_json::from_str(text).unwrap();
            let last = json.get("result").is_some() || json.get("error").is_some();
            last.then(|| json["id"].as_u64()).flatten()
        })
        .collect()
}

pub(crate) fn progress(messages: &[String]) -> Vec<u64> {
    let progress = |text: &String| {
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        json["params"]["progress"].as_u64()
    };
    messages.iter().filter_map(progress).collect()
}
