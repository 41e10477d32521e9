//! What holds whatever happens in whatever order: no event lost, none doubled, none on
//! another stream, one last word for every request, and every bound.
//!
//! `World` checks each effect as it comes; here is what only the whole story can show.

mod world;

use std::collections::{BTreeMap, BTreeSet};

use conversation::{Answer, Event, EventId, Limits, Millis, Refusal, SinkId};
use proptest::prelude::*;
use protocol::{Message, Method, Notification, RequestId, Response};
use world::World;

/// One thing that a client, a server, a log or a clock may do. Numbers pick among what there is.
#[derive(Clone, Debug)]
enum Act {
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
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
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
    ];
    prop::collection::vec(act, 1..120)
}

/// A client that comes back to its streams, and a server that answers what it was asked.
struct Story {
    world: World,
    limits: Limits,
    batches: bool,
    next_id: u64,
    next_mark: u64,
    /// Requests that the server was sent and has not answered.
    open: Vec<u64>,
    answered: Vec<u64>,
    cancelled: BTreeSet<u64>,
    posts: BTreeMap<SinkId, Vec<u64>>,
    seen_sent: usize,
    /// The progress that the server told of each request, in order.
    progress: BTreeMap<u64, Vec<u64>>,
}

impl Story {
    fn new(revision: &str, limits: Limits, prompt: bool) -> Self {
        let mut world = World::live(revision, limits.clone());
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

    fn act(&mut self, act: Act) {
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
                    // Accepted when the log holds it, and never refused.
                    let waits = self.world.connections[&sink].answer.is_none();
                    assert!(waits || world::accepted(&self.world, sink));
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
                    self.world.answer(id, &format!("answer {mark}"));
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
                let params = format!(r#"{{"level":"info","data":{mark}}}"#);
                let log = Notification::new(Method::LogMessage, Some(params.as_bytes()));
                match choose(&self.open, pick) {
                    Some(id) => self.world.say_about(id, log),
                    None => self.world.say(log),
                }
            }
            Act::ListChanged => {
                let params = format!(r#"{{"_meta":{{"mark":{}}}}}"#, self.mark());
                self.world
                    .say(Notification::new(Method::PromptsListChanged, Some(params.as_bytes())));
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
                self.world.say(Notification::new(Method::Cancelled, Some(params.as_bytes())));
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
        }
        self.read_sent();
        self.check_bounds();
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
            self.world.say(Response::result(request.id, result));
        }
    }

    /// Takes note of what the server was sent.
    fn read_sent(&mut self) {
        for message in &self.world.sent[self.seen_sent..] {
            if let Message::Request(request) = message
                && let RequestId::Number(id) = request.id
            {
                let id = u64::try_from(id).unwrap();
                assert!(!self.open.contains(&id), "sent twice");
                self.open.push(id);
            }
        }
        self.seen_sent = self.world.sent.len();
    }

    /// The ids of everything the client was asked.
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
        assert!(load.asks <= self.limits.asks_max);
        assert!(load.waiting <= self.limits.waiting_max);
        assert!(load.events <= self.limits.log_events_max);
        let streams = self.limits.log_events_max + self.limits.exchanges_max + 16;
        assert!(load.streams <= streams + self.limits.standalone_max);
    }

    /// Lets everything that is open come to its end, and everybody come back for it.
    fn settle(&mut self) {
        for _ in 0..3 {
            self.world.acknowledge();
            self.link_up();
            self.read_sent();
            while !self.open.is_empty() {
                self.act(Act::Respond(0));
            }
            self.world.acknowledge();
            self.world.wait(40_000);
            self.read_sent();
        }
        assert_eq!(self.world.session.load().exchanges, 0);
    }

    /// Everything the client of one POST was told, over every connection it came back on.
    fn told(&mut self, post: SinkId) -> Told {
        let connection = &self.world.connections[&post];
        if connection.answer.is_some() || connection.cursor().is_none() {
            let settled = connection.finished || !connection.gone;
            return Told { messages: connection.messages(), complete: settled };
        }
        let mut messages = connection.messages();
        // A connection may end before its stream does, so come back until nothing more comes.
        let mut cursor = connection.cursor();
        let replay = self.limits.replay_secs * 1_000;
        for _ in 0..8 {
            let words = last_words(&messages);
            let wanted = |id: &u64| !self.cancelled.contains(id) && !words.contains(id);
            if !self.posts[&post].iter().any(wanted) {
                break;
            }
            let sink = self.world.listen(cursor);
            let connection = &self.world.connections[&sink];
            if connection.answer == Some(Answer::Refused(Refusal::UnknownEvent)) {
                // Its tombstone is gone, too; which takes as long as events are kept.
                let old = self.world.connections[&post].since.plus(replay) <= self.world.now;
                assert!(old, "an event that was told is not known any more");
                return Told { messages, complete: false };
            }
            if connection.answer.is_some() {
                break;
            }
            messages.extend(connection.messages());
            cursor = connection.cursor().max_by_number(cursor);
        }
        Told { messages, complete: true }
    }
}

struct Told {
    messages: Vec<String>,
    /// Was it told everything it could be?
    complete: bool,
}

trait Later {
    fn max_by_number(self, other: Option<EventId>) -> Option<EventId>;
}

impl Later for Option<EventId> {
    fn max_by_number(self, other: Option<EventId>) -> Option<EventId> {
        self.into_iter().chain(other).max_by_key(|id| id.number)
    }
}

fn choose<T: Clone>(among: &[T], pick: u8) -> Option<T> {
    (!among.is_empty()).then(|| among[usize::from(pick) % among.len()].clone())
}

fn last_words(messages: &[String]) -> Vec<u64> {
    messages
        .iter()
        .filter_map(|text| {
            let json: serde_json::Value = serde_json::from_str(text).unwrap();
            let last = json.get("result").is_some() || json.get("error").is_some();
            last.then(|| json["id"].as_u64()).flatten()
        })
        .collect()
}

fn progress(messages: &[String]) -> Vec<u64> {
    let progress = |text: &String| {
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        json["params"]["progress"].as_u64()
    };
    messages.iter().filter_map(progress).collect()
}

fn run(revision: &str, limits: Limits, prompt: bool, acts: Vec<Act>) {
    let nothing_dropped = limits == wide();
    let mut story = Story::new(revision, limits, prompt);
    for act in acts {
        story.act(act);
    }
    story.settle();
    let posts: Vec<_> = story.posts.keys().copied().collect();
    for post in posts {
        let ids = story.posts[&post].clone();
        let told = story.told(post);
        let words = last_words(&told.messages);
        let distinct: BTreeSet<_> = words.iter().copied().collect();
        assert_eq!(words.len(), distinct.len(), "two last words on {post:?}: {words:?}");
        let expected: BTreeSet<_> =
            ids.iter().copied().filter(|id| !story.cancelled.contains(id)).collect();
        assert!(distinct.iter().all(|id| ids.contains(id)), "a word on another's request");
        if told.complete {
            assert!(
                expected.is_subset(&distinct),
                "no last word: {expected:?} of {:?}",
                told.messages
            );
        }
        if nothing_dropped && told.complete && ids.len() == 1 && !expected.is_empty() {
            let said = story.progress.get(&ids[0]).cloned().unwrap_or_default();
            assert_eq!(progress(&told.messages), said, "progress lost or out of order");
        }
        let marks: Vec<_> = told.messages.iter().collect();
        let once: BTreeSet<_> = marks.iter().collect();
        assert_eq!(marks.len(), once.len(), "a message twice: {marks:?}");
    }
}

/// Bounds that are never met.
fn wide() -> Limits {
    Limits {
        request_secs: 600,
        replay_secs: 3_600,
        exchanges_max: 200,
        asks_max: 200,
        progress_burst: 1_000,
        ..Limits::default()
    }
}

/// Bounds that are met all the time.
fn narrow() -> Limits {
    Limits {
        exchanges_max: 3,
        asks_max: 2,
        standalone_max: 2,
        waiting_max: 2,
        log_events_max: 6,
        log_bytes_max: 900,
        replay_secs: 20,
        request_secs: 10,
        progress_burst: 2,
        progress_per_sec: 5,
        ping_secs: 7,
        stream_secs: 9,
        idle_secs: 100_000,
        ..Limits::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_client_that_comes_back_gets_everything_once(
        acts in acts(),
        revision in prop::sample::select(vec!["2025-03-26", "2025-06-18", "2025-11-25"]),
        prompt in any::<bool>(),
    ) {
        run(revision, wide(), prompt, acts);
    }

    #[test]
    fn every_bound_holds_and_nobody_is_left_without_a_last_word(
        acts in acts(),
        revision in prop::sample::select(vec!["2025-03-26", "2025-06-18", "2025-11-25"]),
        prompt in any::<bool>(),
    ) {
        run(revision, narrow(), prompt, acts);
    }

    #[test]
    fn any_text_as_an_event_id_is_refused_or_one_that_was_told(text in "[0-9a-f.\\-]{0,60}|.{0,80}") {
        let mut world = World::live("2025-11-25", wide());
        let sink = world.listen_text(Some(text));
        prop_assert!(matches!(world.connections[&sink].answer, Some(Answer::Refused(_))));
    }

    #[test]
    fn an_event_id_reads_back_as_it_was_written(stream: u64, emitter: u64, number: u64) {
        let id = EventId { stream, emitter: conversation::Emitter(emitter), number };
        prop_assert_eq!(EventId::parse(&id.to_string()), Some(id));
    }

    #[test]
    fn any_text_parses_as_an_event_id_only_if_it_is_one(text in "[0-9a-f.\\-+ ]{0,60}|.{0,80}") {
        if let Some(id) = EventId::parse(&text) {
            prop_assert_eq!(id.to_string(), text);
        }
    }
}

#[test]
fn time_never_goes_back_in_a_deadline() {
    let world = World::live("2025-11-25", wide());
    assert!(world.session.deadline() > Some(Millis(0)));
}
