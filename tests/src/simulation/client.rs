//! A client of one session: what it asks for, where it comes back, and what it notices.
//!
//! It does what the clients of today do: it never repeats a request, and comes back with
//! the last event id where it has one.

use std::collections::{BTreeMap, BTreeSet};

use conversation::{Answer, EventId, Frame, Refusal};
use protocol::{Message, Method, Notification, Request, RequestId, Response, SessionId};
use serde_json::{Value, json};

use super::rng::Rng;
use super::tools::{Job, Kind};

/// A connection of a client's. Never used twice.
pub(super) type ConnId = u64;

/// What a client sends.
#[derive(Clone, Debug)]
pub(super) enum Errand {
    Begin(Request),
    Post(Message),
    Listen(Option<String>),
    Delete,
}

impl Errand {
    /// The request that it carries, where it carries one.
    pub(super) fn request(&self) -> Option<&Request> {
        match self {
            Self::Begin(request) | Self::Post(Message::Request(request)) => Some(request),
            _ => None,
        }
    }
}

/// What a connection of a client's is told.
#[derive(Clone, Debug)]
pub(super) enum Told {
    Welcome(SessionId, bytes::Bytes),
    Answer(Answer),
    Open,
    Frame(Frame),
    /// The stream ended in order.
    End,
    /// The connection broke.
    Cut,
}

/// What a connection is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Begin,
    Initialized,
    Call(u64),
    Level(u64),
    Cancel(u64),
    Reply(String),
    Listen,
    Delete,
    Stranger,
}

/// What the world does for a client.
#[derive(Debug)]
pub(super) enum Does {
    /// Connect to some node.
    Connect(ConnId, Errand, Option<usize>),
    /// Say `Client::wake` in so many milliseconds, with this.
    Wake(u64, Wake),
    /// Hang up.
    HangUp(ConnId),
    /// Somebody broke a promise.
    Complain(String),
    /// The session is not where it was promised to be.
    Forgotten(&'static str),
}

/// What a client is told to do in a directed case, at the node with this address.
#[derive(Clone, Debug)]
pub(super) enum Do {
    Call {
        kind: Kind,
        idempotent: bool,
        millis: u64,
        steps: u64,
    },
    Listen,
    Level,
    Cancel,
    /// Its connections for calls are cut.
    Cut,
    Delete,
}

/// Why a client is woken.
#[derive(Clone, Debug)]
pub(super) enum Wake {
    /// Do something.
    Act,
    /// Do this, at that node.
    Do(Do, usize),
    /// Come back to a call's stream.
    Return(u64),
    /// Listen, or come back to what was listened to.
    Listen,
    /// Answer a question.
    Reply(String),
    /// Say `initialized` again.
    Initialized,
    /// Begin again.
    Begin,
    /// Is everything well?
    Probe,
    /// Somebody uses the id of a session that ended.
    Stranger,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Open,
    Result,
    Error,
    /// Its connection broke before there was anything to come back to.
    Lost,
    /// The client took it back.
    Cancelled,
    /// The session went with it, as it may.
    Gone,
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) job: Job,
    pub(super) fate: Fate,
    pub(super) since: u64,
    pub(super) last: Option<EventId>,
    /// The last id that it was told, as it came.
    cursor: Option<String>,
    conn: Option<ConnId>,
    progress: u64,
    /// The cancellation was acknowledged.
    pub(super) cancelled_at: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    New,
    Live,
    /// It asked for the end, and was told yes.
    Ended,
    /// The session is forgotten, as it may be.
    Gone,
}

#[derive(Debug)]
struct Level {
    name: &'static str,
    acknowledged: bool,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) number: usize,
    pub(super) session: Option<SessionId>,
    pub(super) phase: Phase,
    pub(super) calls: BTreeMap<u64, Call>,
    /// It starts nothing new.
    pub(super) quiet: bool,
    /// It does only what it is told.
    directed: bool,
    /// Where its next connection goes.
    at_node: Option<usize>,
    /// The answer to its `DELETE` is still to come.
    ending: bool,
    /// It asked for the end once.
    asked_to_end: bool,
    primes: bool,
    rng: Rng,
    next_conn: ConnId,
    next_call: u64,
    conns: BTreeMap<ConnId, What>,
    /// Every event id it was told, with its payload.
    events: BTreeMap<String, bytes::Bytes>,
    listening: Listening,
    levels: Vec<Level>,
    questions: BTreeMap<String, Question>,
    /// The newest chat of each instance.
    chats: BTreeMap<u64, u64>,
    /// Every payload with an id, so that none comes under two.
    payloads: BTreeSet<bytes::Bytes>,
}

#[derive(Debug)]
struct Question {
    text: String,
    answered: bool,
}

#[derive(Debug, Default)]
struct Listening {
    conn: Option<ConnId>,
    wanted: bool,
    last: Option<EventId>,
    cursor: Option<String>,
}

const LEVELS: [&str; 4] = ["debug", "info", "warning", "error"];

impl Client {
    pub(super) fn new(number: usize, directed: bool, mut rng: Rng) -> Self {
        Self {
            number,
            session: None,
            phase: Phase::New,
            calls: BTreeMap::new(),
            quiet: false,
            directed,
            at_node: None,
            ending: false,
            asked_to_end: false,
            primes: directed || rng.chance(80),
            rng,
            next_conn: (number as u64 + 1) << 32,
            next_call: 1 + number as u64 * 10_000,
            conns: BTreeMap::new(),
            events: BTreeMap::new(),
            listening: Listening::default(),
            levels: Vec::new(),
            questions: BTreeMap::new(),
            chats: BTreeMap::new(),
            payloads: BTreeSet::new(),
        }
    }

    /// A reason to act has come.
    pub(super) fn wake(&mut self, now: u64, wake: Wake, does: &mut Vec<Does>) {
        match wake {
            Wake::Begin => self.begin(does),
            Wake::Stranger => self.be_a_stranger(does),
            _ if self.phase != Phase::Live => {}
            Wake::Act if self.directed => {}
            Wake::Act => self.act(now, does),
            Wake::Do(what, node) => {
                self.at_node = Some(node);
                self.do_as_told(now, what, does);
                self.at_node = None;
            }
            Wake::Return(call) => self.come_back(call, does),
            Wake::Listen => self.listen(does),
            Wake::Reply(id) => self.reply(&id, does),
            Wake::Initialized => self.say_initialized(does),
            Wake::Probe => {
                let job = Job { kind: Kind::Fast, idempotent: false, millis: 1, ..self.job() };
                self.call(now, job, does);
            }
        }
    }

    fn begin(&mut self, does: &mut Vec<Does>) {
        let revision = if self.primes { "2025-11-25" } else { "2025-06-18" };
        let params = json!({
            "protocolVersion": revision,
            "capabilities": { "elicitation": {} },
            "clientInfo": { "name": "model", "version": "1" },
        });
        let request =
            Request::new("begin".into(), Method::Initialize, Some(params.to_string().as_bytes()));
        self.connect(What::Begin, Errand::Begin(request), does);
    }

    fn say_initialized(&mut self, does: &mut Vec<Does>) {
        let initialized = Notification::new(Method::Initialized, None);
        self.connect(What::Initialized, Errand::Post(initialized.into()), does);
    }

    fn connect(&mut self, what: What, errand: Errand, does: &mut Vec<Does>) -> ConnId {
        let conn = self.next_conn;
        self.next_conn += 1;
        self.conns.insert(conn, what);
        does.push(Does::Connect(conn, errand, self.at_node.take()));
        conn
    }

    fn act(&mut self, now: u64, does: &mut Vec<Does>) {
        if self.quiet || self.ending {
            return;
        }
        does.push(Does::Wake(self.rng.between(50, 1_200), Wake::Act));
        let open = self.calls.values().filter(|call| call.fate == Fate::Open).count();
        match self.rng.below(100) {
            0..=54 if open < 4 => {
                let job = self.job();
                self.call(now, job, does);
            }
            55..=64 if !self.listening.wanted => {
                self.listening.wanted = true;
                self.listen(does);
            }
            65..=74 => self.set_level(does),
            75..=80 => self.cancel(does),
            81..=92 => {
                let conns = self.streams();
                if let Some(conn) = self.rng.pick(&conns) {
                    self.cut(now, conn, does);
                }
            }
            93 if now > 15_000 => self.delete(does),
            _ => {}
        }
    }

    fn do_as_told(&mut self, now: u64, what: Do, does: &mut Vec<Does>) {
        match what {
            Do::Call { kind, idempotent, millis, steps } => {
                let job = Job { kind, idempotent, millis, steps, ..self.job() };
                self.call(now, job, does);
            }
            Do::Listen => {
                self.listening.wanted = true;
                self.listen(does);
            }
            Do::Level => self.set_level(does),
            Do::Cancel => self.cancel(does),
            Do::Cut => {
                for conn in self.streams() {
                    self.cut(now, conn, does);
                }
            }
            Do::Delete => self.delete(does),
        }
    }

    /// Connections over which a stream may come.
    fn streams(&self) -> Vec<ConnId> {
        let streams = |what: &What| matches!(what, What::Call(_) | What::Listen);
        self.conns.iter().filter(|(_, what)| streams(what)).map(|(conn, _)| *conn).collect()
    }

    /// The way to the node is cut, whatever goes over it.
    fn cut(&mut self, now: u64, conn: ConnId, does: &mut Vec<Does>) {
        does.push(Does::HangUp(conn));
        self.heard(now, conn, Told::Cut, does);
    }

    fn delete(&mut self, does: &mut Vec<Does>) {
        self.ending = true;
        self.asked_to_end = true;
        self.connect(What::Delete, Errand::Delete, does);
    }

    fn set_level(&mut self, does: &mut Vec<Does>) {
        if self.conns.values().any(|what| matches!(what, What::Level(_))) {
            return;
        }
        let name = self.rng.pick(&LEVELS).unwrap_or("info");
        self.levels.push(Level { name, acknowledged: false });
        let index = self.levels.len() as u64 - 1;
        let id = RequestId::from((self.number as i64 + 1) * 1_000_000 + index as i64);
        let params = json!({ "level": name }).to_string();
        let request = Request::new(id, Method::SetLevel, Some(params.as_bytes()));
        self.connect(What::Level(index), Errand::Post(request.into()), does);
    }

    fn job(&mut self) -> Job {
        let call = self.next_call;
        self.next_call += 1;
        let kind = match self.rng.below(10) {
            0..=3 => Kind::Fast,
            4 | 5 => Kind::Slow,
            6..=8 => Kind::Steps,
            _ => Kind::Ask,
        };
        let millis = match kind {
            Kind::Fast => self.rng.between(1, 5),
            Kind::Slow => self.rng.between(300, 3_000),
            Kind::Steps => self.rng.between(20, 500),
            Kind::Ask => self.rng.between(5, 400),
        };
        Job { call, kind, idempotent: self.rng.chance(40), millis, steps: self.rng.between(1, 8) }
    }

    fn call(&mut self, now: u64, job: Job, does: &mut Vec<Does>) {
        let number = job.call;
        let conn = self.connect(What::Call(number), Errand::Post(job.request().into()), does);
        let call = Call {
            job,
            fate: Fate::Open,
            since: now,
            last: None,
            cursor: None,
            conn: Some(conn),
            progress: 0,
            cancelled_at: None,
        };
        self.calls.insert(number, call);
    }

    fn cancel(&mut self, does: &mut Vec<Does>) {
        let open: Vec<u64> =
            self.calls.iter().filter(|(_, c)| c.fate == Fate::Open).map(|(n, _)| *n).collect();
        let Some(number) = self.rng.pick(&open) else { return };
        if let Some(call) = self.calls.get_mut(&number) {
            call.fate = Fate::Cancelled;
        }
        let params = json!({ "requestId": number }).to_string();
        let cancelled = Notification::new(Method::Cancelled, Some(params.as_bytes()));
        self.connect(What::Cancel(number), Errand::Post(cancelled.into()), does);
    }

    fn be_a_stranger(&mut self, does: &mut Vec<Does>) {
        let ping = Request::new("stranger".into(), Method::Ping, None);
        self.connect(What::Stranger, Errand::Post(ping.into()), does);
    }

    fn come_back(&mut self, number: u64, does: &mut Vec<Does>) {
        let Some(call) = self.calls.get(&number) else { return };
        if call.fate != Fate::Open || call.conn.is_some() {
            return;
        }
        let conn = self.connect(What::Call(number), Errand::Listen(call.cursor.clone()), does);
        if let Some(call) = self.calls.get_mut(&number) {
            call.conn = Some(conn);
        }
    }

    fn listen(&mut self, does: &mut Vec<Does>) {
        if self.listening.conn.is_none() && self.listening.wanted {
            let after = self.listening.cursor.clone();
            let conn = self.connect(What::Listen, Errand::Listen(after), does);
            self.listening.conn = Some(conn);
        }
    }

    fn reply(&mut self, id: &str, does: &mut Vec<Does>) {
        let Some(question) = self.questions.get(id).filter(|question| !question.answered) else {
            return;
        };
        let result = json!({ "action": "accept", "content": { "said": question.text } });
        let response = Response::result(id.into(), result.to_string().as_bytes());
        self.connect(What::Reply(id.to_owned()), Errand::Post(response.into()), does);
    }

    /// The level that its session may have now: what was acknowledged last, or asked for since.
    pub(super) fn may_have(&self, level: Option<&str>) -> bool {
        let acknowledged = self.levels.iter().rposition(|level| level.acknowledged);
        let Some(acknowledged) = acknowledged else {
            return level.is_none_or(|name| self.levels.iter().any(|asked| asked.name == name));
        };
        let open = self
            .levels
            .iter()
            .enumerate()
            .filter(|(index, level)| *index >= acknowledged || !level.acknowledged);
        level.is_some_and(|name| open.into_iter().any(|(_, level)| level.name == name))
    }

    /// A connection was told something.
    pub(super) fn heard(&mut self, now: u64, conn: ConnId, told: Told, does: &mut Vec<Does>) {
        let Some(what) = self.conns.get(&conn).cloned() else { return };
        let over = matches!(told, Told::Welcome(..) | Told::Answer(_) | Told::End | Told::Cut);
        if over {
            self.conns.remove(&conn);
            self.calls.values_mut().filter(|c| c.conn == Some(conn)).for_each(|c| c.conn = None);
            if self.listening.conn == Some(conn) {
                self.listening.conn = None;
            }
        }
        if let Told::Answer(Answer::Refused(Refusal::UnknownSession)) = &told {
            self.unknown(&what, does);
            return;
        }
        match what {
            What::Begin => self.heard_begin(told, does),
            What::Initialized => {
                if !matches!(told, Told::Answer(Answer::Accepted)) {
                    does.push(Does::Wake(300, Wake::Initialized));
                }
            }
            What::Call(number) => self.heard_call(now, number, told, does),
            What::Listen => self.heard_listen(told, does),
            What::Level(index) => {
                if let Told::Answer(Answer::Json(data)) = &told
                    && read(data).is_some_and(|value| value.get("result").is_some())
                    && let Some(level) = self.levels.get_mut(index as usize)
                {
                    level.acknowledged = true;
                }
            }
            What::Cancel(number) => {
                if let (Told::Answer(Answer::Accepted), Some(call)) =
                    (&told, self.calls.get_mut(&number))
                {
                    call.cancelled_at = Some(now);
                }
            }
            What::Reply(id) => self.heard_reply(&id, &told, does),
            What::Stranger => {
                let (Told::Answer(Answer::Json(data)) | Told::Frame(Frame::Message { data, .. })) =
                    &told
                else {
                    return;
                };
                if read(data).is_some_and(|value| value.get("result").is_some()) {
                    does.push(Does::Forgotten("a session that ended was used"));
                }
            }
            What::Delete => match told {
                Told::Answer(Answer::Ended) => {
                    self.phase = Phase::Ended;
                    for after in [200, 2_000, 8_000, 20_000] {
                        does.push(Does::Wake(after + self.rng.below(1_000), Wake::Stranger));
                    }
                }
                _ => self.ending = false,
            },
        }
    }

    fn unknown(&mut self, what: &What, does: &mut Vec<Does>) {
        match self.phase {
            Phase::New | Phase::Gone => {}
            // Its own `DELETE` may have been heard, though the answer to it was not.
            Phase::Live if self.asked_to_end => self.phase = Phase::Ended,
            Phase::Live => {
                does.push(Does::Forgotten("the session is unknown"));
                self.phase = Phase::Gone;
            }
            Phase::Ended => {}
        }
        if let What::Call(number) = what
            && let Some(call) = self.calls.get_mut(number)
        {
            call.fate = Fate::Gone;
        }
    }

    fn heard_begin(&mut self, told: Told, does: &mut Vec<Does>) {
        match told {
            Told::Welcome(session, _) => {
                self.session = Some(session);
                self.phase = Phase::Live;
                self.say_initialized(does);
                does.push(Does::Wake(self.rng.between(10, 500), Wake::Act));
            }
            Told::Answer(_) | Told::Cut | Told::End => {
                does.push(Does::Wake(self.rng.between(500, 1_500), Wake::Begin));
            }
            _ => {}
        }
    }

    fn heard_reply(&mut self, id: &str, told: &Told, does: &mut Vec<Does>) {
        match told {
            Told::Answer(Answer::Accepted) => {
                if let Some(question) = self.questions.get_mut(id) {
                    question.answered = true;
                }
            }
            Told::Answer(Answer::Refused(Refusal::Rejected(_))) => {
                does.push(Does::Forgotten("the answer to a question was refused"));
            }
            _ => does.push(Does::Wake(self.rng.between(300, 1_000), Wake::Reply(id.to_owned()))),
        }
    }

    fn heard_call(&mut self, now: u64, number: u64, told: Told, does: &mut Vec<Does>) {
        match told {
            Told::Answer(Answer::Json(data)) => self.message(Some(number), None, &data, does),
            Told::Answer(Answer::Nothing) => {
                let fate = self.calls.get(&number).map(|call| call.fate);
                if fate != Some(Fate::Cancelled) {
                    does.push(Does::Complain(format!("call {number} was answered with nothing")));
                }
            }
            Told::Answer(Answer::Refused(Refusal::NothingMore)) => {
                let open = self.calls.get(&number).is_some_and(|call| call.fate == Fate::Open);
                if open {
                    does.push(Does::Forgotten("a stream is finished whose last word never came"));
                    self.settle(number, Fate::Gone);
                }
            }
            Told::Answer(Answer::Refused(Refusal::UnknownEvent)) => {
                does.push(Does::Forgotten("an event id is unknown"));
                self.settle(number, Fate::Gone);
            }
            Told::Answer(_) | Told::End | Told::Cut => self.left(now, number, does),
            Told::Frame(frame) => self.frame(Some(number), &frame, does),
            Told::Open | Told::Welcome(..) => {}
        }
    }

    /// A call's connection ended without its last word, perhaps.
    fn left(&mut self, _now: u64, number: u64, does: &mut Vec<Does>) {
        let wait = self.rng.between(300, 2_500);
        let Some(call) = self.calls.get_mut(&number) else { return };
        if call.fate != Fate::Open {
            return;
        }
        if call.cursor.is_some() {
            does.push(Does::Wake(wait, Wake::Return(number)));
        } else {
            call.fate = Fate::Lost;
        }
    }

    fn heard_listen(&mut self, told: Told, does: &mut Vec<Does>) {
        match told {
            Told::Frame(frame) => self.frame(None, &frame, does),
            Told::Answer(answer) => {
                if let Answer::Refused(Refusal::UnknownEvent) = answer {
                    does.push(Does::Forgotten("an event id of a GET stream is unknown"));
                }
                self.listening.cursor = None;
                self.listening.last = None;
                does.push(Does::Wake(self.rng.between(300, 2_500), Wake::Listen));
            }
            Told::End | Told::Cut => {
                does.push(Does::Wake(self.rng.between(300, 2_500), Wake::Listen));
            }
            Told::Open | Told::Welcome(..) => {}
        }
    }

    /// A frame came on a call's stream, or on a standalone one.
    fn frame(&mut self, call: Option<u64>, frame: &Frame, does: &mut Vec<Does>) {
        let (id, data) = match frame {
            Frame::Cursor { id, .. } => (Some(*id), None),
            Frame::Message { id, data } => (*id, Some(data)),
            Frame::Retry(_) | Frame::KeepAlive => return,
        };
        if let Some(id) = id {
            self.event(call, id, data, does);
        }
        if let Some(data) = data {
            self.message(call, id, data, does);
        }
    }

    fn event(
        &mut self,
        call: Option<u64>,
        id: EventId,
        data: Option<&bytes::Bytes>,
        does: &mut Vec<Does>,
    ) {
        let last = match call {
            Some(number) => self.calls.get(&number).and_then(|call| call.last),
            None => self.listening.last,
        };
        if let Some(last) = last {
            let again = data.is_some() && id.number <= last.number;
            let other = id.emitter != last.emitter;
            let back = id.number < last.number;
            // A standalone stream may begin anew; a call's never does.
            let same = id.stream == last.stream;
            if same && (again || back) && (other || data.is_none()) {
                // Where owners were lost one after another, a stream goes back to what is left.
                does.push(Does::Forgotten("a stream went back"));
            } else if (call.is_some() && !same) || (same && (again || back)) {
                does.push(Does::Complain(format!("event {id} came after {last} on {call:?}")));
            }
        }
        if let Some(data) = data {
            let known = self.events.insert(id.to_string(), data.clone());
            match known {
                Some(known) if known != *data => {
                    does.push(Does::Complain(format!("event id {id} has two payloads")));
                }
                None if !self.payloads.insert(data.clone()) => {
                    let text = String::from_utf8_lossy(data).into_owned();
                    if !text.contains("list_changed") {
                        does.push(Does::Complain(format!("{id} repeats a payload: {text}")));
                    }
                }
                _ => {}
            }
        }
        match call {
            Some(number) => {
                if let Some(call) = self.calls.get_mut(&number) {
                    call.last = Some(id);
                    call.cursor = Some(id.to_string());
                }
            }
            None => {
                self.listening.last = Some(id);
                self.listening.cursor = Some(id.to_string());
            }
        }
    }

    fn message(
        &mut self,
        call: Option<u64>,
        id: Option<EventId>,
        data: &bytes::Bytes,
        does: &mut Vec<Does>,
    ) {
        let Some(value) = read(data) else { return };
        let on = call.map_or("a GET stream".to_owned(), |call| format!("call {call}"));
        match value["method"].as_str() {
            Some("notifications/progress") => {
                let (token, step) = (
                    value["params"]["progressToken"].as_u64().unwrap_or(0),
                    value["params"]["progress"].as_u64().unwrap_or(0),
                );
                if call != Some(token) {
                    does.push(Does::Complain(format!("progress of {token} came on {on}")));
                }
                let Some(call) = self.calls.get_mut(&token) else { return };
                // Before its stream was opened, steps may have been told to a connection that broke.
                if step != call.progress + 1 && id.is_some() && call.progress > 0 {
                    let last = call.progress;
                    does.push(Does::Forgotten("a step of progress is missing"));
                    if step <= last {
                        let text = format!("step {step} of {token} came after {last}");
                        does.push(Does::Complain(text));
                    }
                }
                call.progress = step;
            }
            Some("notifications/message") => self.chat(&value, does),
            Some("elicitation/create") => {
                let Some(id) = value["id"].as_str().map(str::to_owned) else { return };
                let text = value["params"]["message"].as_str().unwrap_or_default().to_owned();
                let asked = Question { text, answered: false };
                if self.questions.insert(id.clone(), asked).is_some() {
                    does.push(Does::Complain(format!("question {id} was asked twice")));
                }
                does.push(Does::Wake(self.rng.between(20, 2_500), Wake::Reply(id)));
            }
            Some(_) => {}
            None => self.last_word(call, &value, does),
        }
    }

    fn chat(&mut self, value: &Value, does: &mut Vec<Does>) {
        let text = value["params"]["data"].as_str().unwrap_or_default();
        let Some((instance, number)) = text.strip_prefix("chat ").and_then(|t| t.split_once(':'))
        else {
            return;
        };
        let (instance, number) = (instance.parse().unwrap_or(0), number.parse().unwrap_or(0));
        let last = self.chats.insert(instance, number).unwrap_or(0);
        if number <= last {
            does.push(Does::Complain(format!("chat {instance}:{number} came after {last}")));
        }
    }

    fn last_word(&mut self, call: Option<u64>, value: &Value, does: &mut Vec<Does>) {
        let Some(number) = value["id"].as_u64() else { return };
        if call != Some(number) {
            does.push(Does::Complain(format!("the last word of {number} came on {call:?}")));
        }
        let Some(call) = self.calls.get_mut(&number) else { return };
        let result = value.get("result").is_some();
        match call.fate {
            Fate::Open => {}
            // The answer and the cancellation crossed.
            Fate::Cancelled => return,
            fate => {
                let text = format!("call {number} has a second last word, after {fate:?}");
                does.push(Does::Complain(text));
                return;
            }
        }
        let steps = call.job.steps;
        if result && call.job.kind == Kind::Steps && call.progress > 0 && call.progress != steps {
            does.push(Does::Forgotten("a result came before all of its progress"));
        }
        let text = value["result"]["content"][0]["text"].as_str().unwrap_or_default();
        if result && !text.starts_with(&format!("{number} ")) {
            does.push(Does::Complain(format!("call {number} got the result {text:?}")));
        }
        self.settle(number, if result { Fate::Result } else { Fate::Error });
    }

    /// Was it told this event?
    pub(super) fn has_seen(&self, id: &EventId) -> bool {
        self.events.contains_key(&id.to_string())
    }

    fn settle(&mut self, number: u64, fate: Fate) {
        if let Some(call) = self.calls.get_mut(&number) {
            call.fate = fate;
        }
    }
}

fn read(data: &[u8]) -> Option<Value> {
    serde_json::from_slice(data).ok()
}
