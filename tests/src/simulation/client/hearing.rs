//! What the client is told, and what it makes of it.

use super::*;

impl Client {
    /// A connection was told something.
    pub(in crate::simulation) fn heard(
        &mut self,
        now: u64,
        conn: ConnId,
        told: Told,
        does: &mut Vec<Does>,
    ) {
        let Some(what) = self.conns.get(&conn).cloned() else { return };
        self.heard_at = now;
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
                    && call.last.is_some()
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

    pub(super) fn unknown(&mut self, what: &What, does: &mut Vec<Does>) {
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

    pub(super) fn heard_begin(&mut self, told: Told, does: &mut Vec<Does>) {
        match told {
            Told::Welcome(session) => {
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

    pub(super) fn heard_reply(&mut self, id: &str, told: &Told, does: &mut Vec<Does>) {
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

    pub(super) fn heard_call(&mut self, now: u64, number: u64, told: Told, does: &mut Vec<Does>) {
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
    pub(super) fn left(&mut self, _now: u64, number: u64, does: &mut Vec<Does>) {
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

    pub(super) fn heard_listen(&mut self, told: Told, does: &mut Vec<Does>) {
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
    pub(super) fn frame(&mut self, call: Option<u64>, frame: &Frame, does: &mut Vec<Does>) {
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

    pub(super) fn event(
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
                    if text.contains("its asker was lost") {
                        // By each owner that finds the question, where one was forgotten.
                        does.push(Does::Forgotten("a question was taken back twice"));
                    } else if !text.contains("list_changed") {
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

    pub(super) fn message(
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

    pub(super) fn chat(&mut self, value: &Value, does: &mut Vec<Does>) {
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

    pub(super) fn last_word(&mut self, call: Option<u64>, value: &Value, does: &mut Vec<Does>) {
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
    pub(in crate::simulation) fn has_seen(&self, id: &EventId) -> bool {
        self.events.contains_key(&id.to_string())
    }

    pub(super) fn settle(&mut self, number: u64, fate: Fate) {
        if let Some(call) = self.calls.get_mut(&number) {
            call.fate = fate;
            call.until = self.heard_at;
        }
    }
}
