//! The tenant's server, with one instance for each link that a session opens: the messages that it
//! receives, the jobs that it runs, and the messages that it sends.

use std::collections::BTreeMap;

use protocol::{Message, Method, Notification, Request, RequestId, Response};
use serde_json::{Value, json};

/// The tools that a client may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Answers within milliseconds.
    Fast,
    /// Sends nothing for longer than a response stays JSON.
    Slow,
    /// Sends progress notifications.
    Steps,
    /// Asks the client a question, and returns the client's answer.
    Ask,
}

/// One call, with the parameters that the client chose.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) call: u64,
    pub(super) kind: Kind,
    /// Whether the tool may be run twice.
    pub(super) idempotent: bool,
    pub(super) millis: u64,
    pub(super) steps: u64,
}

impl Job {
    /// The request for the call.
    pub(super) fn request(&self) -> Request {
        let harm = if self.idempotent { "read" } else { "count" };
        let kind = match self.kind {
            Kind::Fast => "fast",
            Kind::Slow => "slow",
            Kind::Steps => "steps",
            Kind::Ask => "ask",
        };
        let params = json!({
            "name": format!("{harm}.{kind}"),
            "arguments": { "call": self.call, "millis": self.millis, "steps": self.steps },
            "_meta": { "progressToken": self.call },
        });
        let id = RequestId::from(self.call as i64);
        Request::new(id, Method::ToolsCall, Some(params.to_string().as_bytes()))
    }

    /// How long one run takes, in milliseconds, if its client answers within 2.5 s.
    pub(super) fn work(&self) -> u64 {
        match self.kind {
            Kind::Fast | Kind::Slow => self.millis,
            Kind::Steps => self.millis * (self.steps + 1),
            Kind::Ask => self.millis + 2_500,
        }
    }

    fn read(request: &Request) -> Option<Self> {
        let params: Value = serde_json::from_slice(&request.params()?).ok()?;
        let (harm, kind) = params["name"].as_str()?.split_once('.')?;
        let kind = match kind {
            "fast" => Kind::Fast,
            "slow" => Kind::Slow,
            "steps" => Kind::Steps,
            _ => Kind::Ask,
        };
        let arguments = &params["arguments"];
        Some(Self {
            call: arguments["call"].as_u64()?,
            kind,
            idempotent: harm == "read",
            millis: arguments["millis"].as_u64()?,
            steps: arguments["steps"].as_u64()?,
        })
    }
}

/// A job that runs.
#[derive(Debug)]
struct Running {
    id: RequestId,
    job: Job,
    /// The number of steps that were sent.
    sent: u64,
    /// The question whose answer the job waits for.
    question: Option<(RequestId, String)>,
}

/// The effects of an instance.
#[derive(Debug)]
pub(super) enum Did {
    /// Sends this message, about the request.
    Say(Message, Option<RequestId>),
    /// Continues with the request after so many milliseconds.
    Later(RequestId, u64),
    /// Begins to run a job.
    Ran(Job),
    /// Received an answer that belongs to another question.
    Misled(String),
}

/// One instance of the server.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) number: u64,
    /// The log level that it received.
    pub(super) level: Option<String>,
    running: BTreeMap<RequestId, Running>,
    next_question: u64,
    next_chat: u64,
}

impl Instance {
    pub(super) fn new(number: u64) -> Self {
        Self { number, level: None, running: BTreeMap::new(), next_question: 1, next_chat: 1 }
    }

    /// Processes a message of the session.
    pub(super) fn receive(&mut self, message: &Message, did: &mut Vec<Did>) {
        match message {
            Message::Request(request) => self.asked(request, did),
            Message::Notification(notification) if notification.method == Method::Cancelled => {
                let params = notification.params().unwrap_or_default();
                if let Some(id) = protocol::payload::cancelled_request_id(&params) {
                    self.running.remove(&id);
                }
            }
            Message::Notification(_) => {}
            Message::Response(response) => self.answered(response, did),
        }
    }

    fn asked(&mut self, request: &Request, did: &mut Vec<Did>) {
        let say = |result: Value| {
            let response = Response::result(request.id.clone(), result.to_string().as_bytes());
            Did::Say(response.into(), None)
        };
        match request.method {
            Method::Initialize => did.push(say(json!({
                "protocolVersion": "2025-06-18",
                "capabilities": { "tools": { "listChanged": true }, "logging": {} },
                "serverInfo": { "name": "model", "version": "1" },
            }))),
            Method::ToolsList => did.push(say(json!({ "tools": tools() }))),
            Method::SetLevel => {
                let params: Value = request
                    .params()
                    .and_then(|p| serde_json::from_slice(&p).ok())
                    .unwrap_or_default();
                self.level = params["level"].as_str().map(str::to_owned);
                did.push(say(json!({})));
            }
            Method::ToolsCall => {
                let Some(job) = Job::read(request) else { return };
                did.push(Did::Ran(job.clone()));
                let wait = if job.kind == Kind::Steps { job.millis / 2 } else { job.millis };
                did.push(Did::Later(request.id.clone(), wait));
                let id = request.id.clone();
                let running = Running { id: id.clone(), job, sent: 0, question: None };
                self.running.insert(id, running);
            }
            _ => did.push(say(json!({}))),
        }
    }

    /// The timer of a request has fired.
    pub(super) fn go_on(&mut self, id: &RequestId, did: &mut Vec<Did>) {
        let Some(running) = self.running.get_mut(id) else { return };
        let job = &running.job;
        if job.kind == Kind::Steps && running.sent < job.steps {
            running.sent += 1;
            let params = json!({
                "progressToken": job.call,
                "progress": running.sent,
                "message": format!("{}/{}", job.call, running.sent),
            });
            let progress = Notification::new(Method::Progress, Some(params.to_string().as_bytes()));
            did.push(Did::Say(progress.into(), Some(id.clone())));
            did.push(Did::Later(id.clone(), job.millis));
            return;
        }
        if job.kind == Kind::Ask && running.question.is_none() {
            let text = format!("{}?{}", job.call, self.number);
            let params = json!({
                "message": text,
                "requestedSchema": { "type": "object", "properties": { "said": { "type": "string" } } },
            });
            let question = RequestId::from(self.next_question as i64);
            self.next_question += 1;
            running.question = Some((question.clone(), text));
            let ask = Request::new(question, Method::Elicit, Some(params.to_string().as_bytes()));
            did.push(Did::Say(ask.into(), Some(id.clone())));
            return;
        }
        let text = format!("{} done by {}", job.call, self.number);
        self.finish(id, &text, did);
    }

    fn answered(&mut self, response: &Response, did: &mut Vec<Did>) {
        let asked = |running: &&Running| {
            running.question.as_ref().is_some_and(|(id, _)| Some(id) == response.id.as_ref())
        };
        let Some(running) = self.running.values().find(asked) else { return };
        let (id, call) = (running.id.clone(), running.job.call);
        let question = running.question.as_ref().map(|(_, text)| text.clone()).unwrap_or_default();
        let reply = match response.outcome() {
            Ok(result) => {
                let result: Value = serde_json::from_slice(&result).unwrap_or_default();
                let reply = result["content"]["said"].as_str().unwrap_or_default().to_owned();
                if reply != question {
                    did.push(Did::Misled(format!("asked {question}, got {reply}")));
                }
                "answered"
            }
            Err(_) => "unanswered",
        };
        self.finish(&id, &format!("{call} {reply} at {}", self.number), did);
    }

    fn finish(&mut self, id: &RequestId, text: &str, did: &mut Vec<Did>) {
        if self.running.remove(id).is_none() {
            return;
        }
        let result = json!({ "content": [{ "type": "text", "text": text }] });
        let response = Response::result(id.clone(), result.to_string().as_bytes());
        did.push(Did::Say(response.into(), Some(id.clone())));
    }

    /// Sends a message that belongs to no request.
    pub(super) fn chat(&mut self, did: &mut Vec<Did>) {
        let data = format!("chat {}:{}", self.number, self.next_chat);
        self.next_chat += 1;
        let params = json!({ "level": "emergency", "data": data });
        let log = Notification::new(Method::LogMessage, Some(params.to_string().as_bytes()));
        did.push(Did::Say(log.into(), Some("nothing".into())));
    }
}

fn tools() -> Vec<Value> {
    let mut tools = Vec::new();
    for kind in ["fast", "slow", "steps", "ask"] {
        for (harm, read_only) in [("read", true), ("count", false)] {
            tools.push(json!({
                "name": format!("{harm}.{kind}"),
                "inputSchema": { "type": "object" },
                "annotations": { "readOnlyHint": read_only },
            }));
        }
    }
    tools
}
