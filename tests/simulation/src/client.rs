//! A client of one session: its requests, its reconnections, and its checks.
//!
//! It behaves as current clients do: it never repeats a request, and resumes with the last event id
//! if it has one.

mod receiving;

use std::collections::{BTreeMap, BTreeSet};

use conversation::{Answer, EventId, Frame, Refusal};
use ownership::Incarnation;
use protocol::{Message, Method, Notification, Request, RequestId, Response, SessionId};
use serde_json::{Value, json};

use super::rng::Rng;
use super::tools::{Job, Kind};

/// The id of a connection of a client. Never used twice.
pub(super) type ConnId = u64;

/// The requests of a client.
#[derive(Clone, Debug)]
pub(super) enum ClientRequest {
    Begin(Request),
    Post(Message),
    Listen(Option<String>),
    Delete,
}

/// The events on a connection of a client.
#[derive(Clone, Debug)]
pub(super) enum ClientEvent {
    Welcome(SessionId),
    Answer(Answer),
    Open,
    Frame(Frame),
    /// The stream ended in order.
    End,
    /// The connection broke.
    Cut,
}

/// The purpose of a connection.
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

/// The actions that the world performs for a client.
#[derive(Debug)]
pub(super) enum Does {
    /// Connect to a node.
    Connect(ConnId, ClientRequest, Option<usize>),
    /// Call `Client::wake` in so many milliseconds, with this.
    Wake(u64, Wake),
    /// Close the connection.
    HangUp(ConnId),
    /// A promise was broken.
    Complain(String),
    /// Data that were promised to last are lost. They began at the given time, in milliseconds:
    /// faults after that time may explain the loss.
    Forgotten(&'static str, u64),
}

/// An action of a client in a scripted case, at the node with this address.
#[derive(Clone, Debug)]
pub(super) enum Do {
    Call {
        kind: Kind,
        idempotent: bool,
        millis: u64,
        steps: u64,
    },
    Level,
    Listen,
    Cancel,
    /// Its connections for calls are cut.
    Cut,
    Delete,
}

/// The reason why a client wakes up.
#[derive(Clone, Debug)]
pub(super) enum Wake {
    /// Choose an action.
    Act,
    /// Perform this action, at that node.
    Do(Do, usize),
    /// Resume a call's stream.
    Return(u64),
    /// Open a GET stream, or resume it.
    Listen,
    /// Answer a question.
    Reply(String),
    /// Send `initialized` again.
    Initialized,
    /// Send `initialize` again.
    Begin,
    /// Check that the session can be used.
    Probe,
    /// Another client uses the id of a session that ended.
    Stranger,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallState {
    Open,
    Result,
    Error,
    /// Its connection broke before the client had an event id to resume by.
    Lost,
    /// The client cancelled it.
    Cancelled,
    /// It was lost with its session, which is an excused loss.
    Gone,
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) job: Job,
    pub(super) state: CallState,
    pub(super) since: u64,
    /// When its final response arrived.
    pub(super) until: u64,
    /// The text of the error that was its final response.
    pub(super) error: Option<String>,
    /// How long, in milliseconds, the client itself waited before it resumed the stream.
    pub(super) waited: u64,
    /// The nodes that its connections went to.
    pub(super) nodes: Vec<Incarnation>,
    /// The client has seen a question of this call's tool.
    pub(super) asked: bool,
    pub(super) last: Option<EventId>,
    /// The last event id that the client received, as text.
    cursor: Option<String>,
    conn: Option<ConnId>,
    progress: u64,
    /// When the cancellation was acknowledged, if the client had seen an event of the call. The
    /// log has no entry of a call in its JSON window, not even its cancellation.
    pub(super) cancelled_at: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    New,
    Live,
    /// The client asked for the end, and it was acknowledged.
    Ended,
    /// The session is lost, which is an excused loss.
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
    /// The client starts nothing new.
    pub(super) quiet: bool,
    /// The client performs only the actions of its script.
    directed: bool,
    /// The node of its next connection.
    at_node: Option<usize>,
    /// A `DELETE` was answered with success.
    end_was_told: bool,
    /// The answer to its `DELETE` is still to come.
    ending: bool,
    /// How often the client asked to end the session.
    pub(super) deletes: u32,
    /// When the client first asked for the end.
    pub(super) asked_to_end: Option<u64>,
    primes: bool,
    /// The time of the last wake or frame, in milliseconds.
    now: u64,
    rng: Rng,
    next_conn: ConnId,
    next_call: u64,
    conns: BTreeMap<ConnId, What>,
    /// Every event id that the client received, with its payload.
    events: BTreeMap<String, bytes::Bytes>,
    listening: Listening,
    levels: Vec<Level>,
    questions: BTreeMap<String, Question>,
    /// The newest number of a message without a request, by instance.
    chats: BTreeMap<u64, u64>,
    /// Every payload with an id, so that a payload with two ids is found.
    payloads: BTreeMap<bytes::Bytes, u64>,
}

#[derive(Debug)]
struct Question {
    text: String,
    /// The call on whose stream the question arrived, if on one.
    on: Option<u64>,
    /// The client sent an answer.
    replied: bool,
    answered: bool,
    withdrawn: bool,
}

#[derive(Debug, Default)]
struct Listening {
    conn: Option<ConnId>,
    wanted: bool,
    /// When the client last listened without an event id.
    since: u64,
    /// Instances of which a numbered message has arrived since then: none of their later messages
    /// may be missing.
    followed: BTreeSet<u64>,
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
            end_was_told: false,
            ending: false,
            deletes: 0,
            asked_to_end: None,
            primes: directed || rng.chance(80),
            now: 0,
            rng,
            next_conn: (number as u64 + 1) << 32,
            next_call: 1 + number as u64 * 10_000,
            conns: BTreeMap::new(),
            events: BTreeMap::new(),
            listening: Listening::default(),
            levels: Vec::new(),
            questions: BTreeMap::new(),
            chats: BTreeMap::new(),
            payloads: BTreeMap::new(),
        }
    }

    /// The client has a reason to act.
    pub(super) fn wake(&mut self, now: u64, wake: Wake, does: &mut Vec<Does>) {
        self.now = now;
        match wake {
            Wake::Begin => self.begin(does),
            Wake::Stranger => self.be_a_stranger(does),
            // A deleted id is also tried at every node at the end of the run.
            Wake::Probe if self.phase == Phase::Ended && self.end_was_told => {
                self.be_a_stranger(does);
            }
            _ if self.phase != Phase::Live => {}
            Wake::Act if self.directed => {}
            Wake::Act => self.act(now, does),
            Wake::Do(what, node) => {
                self.at_node = Some(node);
                self.do_as_told(now, what, does);
                self.at_node = None;
            }
            Wake::Return(call) => self.resume(call, does),
            Wake::Listen => self.listen(does),
            Wake::Reply(id) => self.reply(&id, does),
            Wake::Initialized => self.send_initialized(does),
            Wake::Probe => {
                let job = Job { kind: Kind::Fast, idempotent: false, millis: 1, ..self.job() };
                self.call(now, job, does);
            }
        }
    }

    /// The balancer gives a connection to this node.
    pub(super) fn goes_to(&mut self, conn: ConnId, node: Incarnation) {
        if let Some(What::Call(number)) = self.conns.get(&conn)
            && let Some(call) = self.calls.get_mut(number)
        {
            call.nodes.push(node);
        }
    }

    /// How many calls were lost with a connection without an event id to resume by.
    pub(super) fn lost_calls(&self) -> usize {
        self.calls.values().filter(|call| call.state == CallState::Lost).count()
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
        self.connect(What::Begin, ClientRequest::Begin(request), does);
    }

    fn send_initialized(&mut self, does: &mut Vec<Does>) {
        let initialized = Notification::new(Method::Initialized, None);
        self.connect(What::Initialized, ClientRequest::Post(initialized.into()), does);
    }

    fn connect(&mut self, what: What, request: ClientRequest, does: &mut Vec<Does>) -> ConnId {
        let conn = self.next_conn;
        self.next_conn += 1;
        self.conns.insert(conn, what);
        does.push(Does::Connect(conn, request, self.at_node.take()));
        conn
    }

    fn act(&mut self, now: u64, does: &mut Vec<Does>) {
        if self.quiet || self.ending {
            return;
        }
        does.push(Does::Wake(self.rng.between(50, 1_200), Wake::Act));
        let open = self.calls.values().filter(|call| call.state == CallState::Open).count();
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
            Do::Level => self.set_level(does),
            Do::Listen => {
                self.listening.wanted = true;
                self.listen(does);
            }
            Do::Cancel => self.cancel(does),
            Do::Cut => {
                for conn in self.streams() {
                    self.cut(now, conn, does);
                }
            }
            Do::Delete => self.delete(does),
        }
    }

    /// Connections that may carry a stream.
    fn streams(&self) -> Vec<ConnId> {
        let streams = |what: &What| matches!(what, What::Call(_) | What::Listen);
        self.conns.iter().filter(|(_, what)| streams(what)).map(|(conn, _)| *conn).collect()
    }

    /// Cuts the connection to the node.
    fn cut(&mut self, now: u64, conn: ConnId, does: &mut Vec<Does>) {
        does.push(Does::HangUp(conn));
        self.receive_event(now, conn, ClientEvent::Cut, does);
    }

    fn delete(&mut self, does: &mut Vec<Does>) {
        self.ending = true;
        self.deletes += 1;
        self.asked_to_end.get_or_insert(self.now);
        self.connect(What::Delete, ClientRequest::Delete, does);
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
        self.connect(What::Level(index), ClientRequest::Post(request.into()), does);
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
        let conn =
            self.connect(What::Call(number), ClientRequest::Post(job.request().into()), does);
        let call = Call {
            job,
            state: CallState::Open,
            since: now,
            until: now,
            error: None,
            waited: 0,
            nodes: Vec::new(),
            asked: false,
            last: None,
            cursor: None,
            conn: Some(conn),
            progress: 0,
            cancelled_at: None,
        };
        self.calls.insert(number, call);
    }

    fn cancel(&mut self, does: &mut Vec<Does>) {
        let open: Vec<u64> = self
            .calls
            .iter()
            .filter(|(_, c)| c.state == CallState::Open)
            .map(|(n, _)| *n)
            .collect();
        let Some(number) = self.rng.pick(&open) else { return };
        if let Some(call) = self.calls.get_mut(&number) {
            call.state = CallState::Cancelled;
        }
        let params = json!({ "requestId": number }).to_string();
        let cancelled = Notification::new(Method::Cancelled, Some(params.as_bytes()));
        self.connect(What::Cancel(number), ClientRequest::Post(cancelled.into()), does);
    }

    fn be_a_stranger(&mut self, does: &mut Vec<Does>) {
        let ping = Request::new("stranger".into(), Method::Ping, None);
        self.connect(What::Stranger, ClientRequest::Post(ping.into()), does);
    }

    fn resume(&mut self, number: u64, does: &mut Vec<Does>) {
        let Some(call) = self.calls.get(&number) else { return };
        if call.state != CallState::Open || call.conn.is_some() {
            return;
        }
        let conn =
            self.connect(What::Call(number), ClientRequest::Listen(call.cursor.clone()), does);
        if let Some(call) = self.calls.get_mut(&number) {
            call.conn = Some(conn);
        }
    }

    fn listen(&mut self, does: &mut Vec<Does>) {
        if self.listening.conn.is_none() && self.listening.wanted {
            let after = self.listening.cursor.clone();
            if after.is_none() {
                // Messages that were sent while no stream was open are not promised.
                self.listening.since = self.now;
                self.listening.followed.clear();
            }
            let conn = self.connect(What::Listen, ClientRequest::Listen(after), does);
            self.listening.conn = Some(conn);
        }
    }

    fn reply(&mut self, id: &str, does: &mut Vec<Does>) {
        let question = self.questions.get_mut(id).filter(|question| !question.answered);
        let Some(question) = question else { return };
        question.replied = true;
        let result = json!({ "action": "accept", "content": { "said": question.text } });
        let response = Response::result(id.into(), result.to_string().as_bytes());
        self.connect(What::Reply(id.to_owned()), ClientRequest::Post(response.into()), does);
    }

    /// Whether the session may have this level: the one acknowledged last, or one requested since.
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
}

fn read(data: &[u8]) -> Option<Value> {
    serde_json::from_slice(data).ok()
}
