//! How the client processes and checks what it receives.

use super::*;

impl Call {
    /// Whether a stream that ends now leaves the client no event id to resume by.
    fn is_cut_short(&self) -> bool {
        self.state == CallState::Open && self.cursor.is_none()
    }

    /// Whether a connection waits for the final response.
    pub(crate) fn is_connected(&self) -> bool {
        self.conn.is_some()
    }
}

impl Client {
    /// Whether a GET stream of this client is open.
    pub(crate) fn is_listening(&self) -> bool {
        self.listening.conn.is_some()
    }

    /// Whether this is the connection of its GET stream.
    pub(crate) fn listens_on(&self, conn: ConnId) -> bool {
        self.listening.conn == Some(conn)
    }

    /// The requests of this client besides calls that have no answer although their connection is
    /// up.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = String> {
        let others =
            self.conns.values().filter(|what| !matches!(what, What::Call(_) | What::Listen));
        others.map(|what| format!("{what:?}"))
    }

    /// Checks that the payload of a new event is new.
    fn note_payload(&mut self, id: EventId, data: &bytes::Bytes, does: &mut Vec<Does>) {
        let Some(first) = self.payloads.insert(data.clone(), self.now) else { return };
        let text = String::from_utf8_lossy(data);
        if text.contains("its sender was lost") {
            // By each owner that finds the question, if the first notification was forgotten.
            does.push(Does::Forgotten("a question was withdrawn twice", first));
        } else if !text.contains("list_changed") {
            does.push(Does::Complain(format!("{id} repeats a payload: {text}")));
        }
    }

    /// A connection received an event.
    pub(crate) fn receive_event(
        &mut self,
        now: u64,
        conn: ConnId,
        sent: ClientEvent,
        does: &mut Vec<Does>,
    ) {
        let Some(what) = self.conns.get(&conn).cloned() else { return };
        self.now = now;
        let over = matches!(
            sent,
            ClientEvent::Welcome(..) | ClientEvent::Answer(_) | ClientEvent::End | ClientEvent::Cut
        );
        if over {
            self.conns.remove(&conn);
            self.calls.values_mut().filter(|c| c.conn == Some(conn)).for_each(|c| c.conn = None);
            if self.listening.conn == Some(conn) {
                self.listening.conn = None;
            }
        }
        if let ClientEvent::Answer(Answer::Refused(refusal)) = &sent
            && matches!(refusal, Refusal::Moved | Refusal::Rejected(_))
            && !matches!(what, What::Reply(_))
        {
            does.push(Does::Complain(format!("{what:?} was refused: {refusal}")));
        }
        if let ClientEvent::Answer(Answer::Refused(Refusal::UnknownSession)) = &sent {
            self.unknown(&what, does);
            return;
        }
        match what {
            What::Begin => self.receive_begin_answer(sent, does),
            What::Initialized => {
                if !matches!(sent, ClientEvent::Answer(Answer::Accepted)) {
                    does.push(Does::Wake(300, Wake::Initialized));
                }
            }
            What::Call(number) => self.receive_call_answer(now, number, sent, does),
            What::Listen => self.receive_listen_answer(sent, does),
            What::Level(index) => {
                if let ClientEvent::Answer(Answer::Json(data)) = &sent
                    && read(data).is_some_and(|value| value.get("result").is_some())
                    && let Some(level) = self.levels.get_mut(index as usize)
                {
                    level.acknowledged = true;
                }
            }
            What::Cancel(number) => {
                if let (ClientEvent::Answer(Answer::Accepted), Some(call)) =
                    (&sent, self.calls.get_mut(&number))
                {
                    call.cancelled_at = Some(now);
                }
            }
            What::Reply(id) => self.receive_post_answer(&id, &sent, does),
            What::Stranger => {
                let (ClientEvent::Answer(Answer::Json(data))
                | ClientEvent::Frame(Frame::Message { data, .. })) = &sent
                else {
                    return;
                };
                if read(data).is_some_and(|value| value.get("result").is_some()) {
                    let ended = self.asked_to_end.unwrap_or(0);
                    does.push(Does::Forgotten("a session that ended was used", ended));
                }
            }
            What::Delete => match sent {
                ClientEvent::Answer(Answer::Ended) => {
                    self.phase = Phase::Ended;
                    self.end_was_told = true;
                    for after in [200, 2_000, 8_000, 20_000] {
                        does.push(Does::Wake(after + self.rng.below(1_000), Wake::Stranger));
                    }
                }
                ClientEvent::Cut | ClientEvent::Answer(Answer::Refused(Refusal::Unavailable)) => {
                    self.ending = false;
                }
                _ => {
                    does.push(Does::Complain(format!("DELETE was answered with {sent:?}")));
                    self.ending = false;
                }
            },
        }
    }

    pub(super) fn unknown(&mut self, what: &What, does: &mut Vec<Does>) {
        match self.phase {
            Phase::New | Phase::Gone => {}
            // A client that ends its session for the first time must not be told that it is
            // unknown.
            Phase::Live if matches!(what, What::Delete) && self.deletes == 1 => {
                does.push(Does::Forgotten("the session that a client ends is unknown", 0));
                self.phase = Phase::Ended;
            }
            // Its own `DELETE` may have been executed, although the client did not receive the
            // answer.
            Phase::Live if self.asked_to_end.is_some() => self.phase = Phase::Ended,
            Phase::Live => {
                does.push(Does::Forgotten("the session is unknown", 0));
                self.phase = Phase::Gone;
            }
            Phase::Ended => {}
        }
        if let What::Call(number) = what
            && let Some(call) = self.calls.get_mut(number)
        {
            call.state = CallState::Gone;
        }
    }

    pub(super) fn receive_begin_answer(&mut self, sent: ClientEvent, does: &mut Vec<Does>) {
        match sent {
            ClientEvent::Welcome(session) => {
                self.session = Some(session);
                self.phase = Phase::Live;
                self.send_initialized(does);
                does.push(Does::Wake(self.rng.between(10, 500), Wake::Act));
            }
            ClientEvent::Answer(_) | ClientEvent::Cut | ClientEvent::End => {
                does.push(Does::Wake(self.rng.between(500, 1_500), Wake::Begin));
            }
            _ => {}
        }
    }

    pub(super) fn receive_post_answer(
        &mut self,
        id: &str,
        sent: &ClientEvent,
        does: &mut Vec<Does>,
    ) {
        match sent {
            ClientEvent::Answer(Answer::Accepted) => {
                if let Some(question) = self.questions.get_mut(id) {
                    question.answered = true;
                }
            }
            ClientEvent::Answer(Answer::Refused(Refusal::Rejected(_))) => {
                does.push(Does::Forgotten("the answer to a question was refused", 0));
            }
            _ => does.push(Does::Wake(self.rng.between(300, 1_000), Wake::Reply(id.to_owned()))),
        }
    }

    pub(super) fn receive_call_answer(
        &mut self,
        now: u64,
        number: u64,
        sent: ClientEvent,
        does: &mut Vec<Does>,
    ) {
        match sent {
            ClientEvent::Answer(Answer::Json(data)) => {
                self.message(Some(number), None, &data, does)
            }
            ClientEvent::Answer(Answer::Nothing) => {
                let state = self.calls.get(&number).map(|call| call.state);
                if state != Some(CallState::Cancelled) {
                    does.push(Does::Complain(format!("call {number} was answered with nothing")));
                }
            }
            ClientEvent::Answer(Answer::Refused(Refusal::NothingMore)) => {
                let open =
                    self.calls.get(&number).is_some_and(|call| call.state == CallState::Open);
                if open {
                    let since = self.calls.get(&number).map_or(0, |call| call.since);
                    let text = "a stream is finished whose final response never came";
                    does.push(Does::Forgotten(text, since));
                    self.settle(number, CallState::Gone);
                }
            }
            ClientEvent::Answer(Answer::Refused(Refusal::UnknownEvent)) => {
                let since = self.calls.get(&number).map_or(0, |call| call.since);
                does.push(Does::Forgotten("an event id is unknown", since));
                self.settle(number, CallState::Gone);
            }
            ClientEvent::Answer(Answer::Refused(refusal))
                if self.calls.get(&number).is_some_and(|call| call.cursor.is_none()) =>
            {
                self.fails(number, refusal.to_string());
            }
            // The ingress of the model, unlike that of the product, also ends streams of revisions
            // without priming when its node drains: such a call is lost with its node.
            ClientEvent::End if self.calls.get(&number).is_some_and(Call::is_cut_short) => {
                does.push(Does::Complain(format!("call {number} ended without a final response")));
            }
            ClientEvent::Answer(_) | ClientEvent::End | ClientEvent::Cut => {
                self.left(now, number, does)
            }
            ClientEvent::Frame(frame) => self.frame(Some(number), &frame, does),
            ClientEvent::Open | ClientEvent::Welcome(..) => {}
        }
    }

    /// A call's connection ended, perhaps without its final response.
    pub(super) fn left(&mut self, _now: u64, number: u64, does: &mut Vec<Does>) {
        let wait = self.rng.between(300, 2_500);
        let Some(call) = self.calls.get_mut(&number) else { return };
        if call.state != CallState::Open {
            return;
        }
        if call.cursor.is_some() {
            call.waited += wait;
            does.push(Does::Wake(wait, Wake::Return(number)));
        } else {
            call.state = CallState::Lost;
        }
    }

    pub(super) fn receive_listen_answer(&mut self, sent: ClientEvent, does: &mut Vec<Does>) {
        match sent {
            ClientEvent::Frame(frame) => self.frame(None, &frame, does),
            ClientEvent::Answer(answer) => {
                if let Answer::Refused(Refusal::UnknownEvent) = answer {
                    let since = self.listening.since;
                    does.push(Does::Forgotten("an event id of a GET stream is unknown", since));
                }
                self.listening.cursor = None;
                self.listening.last = None;
                does.push(Does::Wake(self.rng.between(300, 2_500), Wake::Listen));
            }
            ClientEvent::End | ClientEvent::Cut => {
                does.push(Does::Wake(self.rng.between(300, 2_500), Wake::Listen));
            }
            ClientEvent::Open | ClientEvent::Welcome(..) => {}
        }
    }

    /// A frame arrived on a call's stream, or on a standalone one.
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
        let (last, since) = match call {
            Some(number) => {
                let call = self.calls.get(&number);
                (call.and_then(|call| call.last), call.map_or(0, |call| call.since))
            }
            None => (self.listening.last, self.listening.since),
        };
        if let Some(last) = last {
            let again = data.is_some() && id.number <= last.number;
            let other = id.owner_tag != last.owner_tag;
            let back = id.number < last.number;
            // A standalone stream may begin again; a call's stream never does.
            let same = id.stream == last.stream;
            if same && (again || back) && (other || data.is_none()) {
                // After a chain of lost owners, a stream returns to the last event that is left.
                does.push(Does::Forgotten("a stream went back", since));
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
                Some(_) => {}
                None => self.note_payload(id, data, does),
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
                // Before the stream was opened, steps may have been sent to a connection that
                // broke.
                if step != call.progress + 1 && id.is_some() && call.progress > 0 {
                    let (last, since) = (call.progress, call.since);
                    does.push(Does::Forgotten("a step of progress is missing", since));
                    if step <= last {
                        let text = format!("step {step} of {token} came after {last}");
                        does.push(Does::Complain(text));
                    }
                }
                call.progress = step;
            }
            Some("notifications/message") => self.chat(&value, id, does),
            Some("elicitation/create") => {
                let Some(id) = value["id"].as_str().map(str::to_owned) else { return };
                let text = value["params"]["message"].as_str().unwrap_or_default().to_owned();
                // Also on the GET stream, if the call's own connection is lost.
                let asker = text.split_once('?').and_then(|(call, _)| call.parse::<u64>().ok());
                if let Some(call) = asker.and_then(|asker| self.calls.get_mut(&asker)) {
                    call.asked = true;
                }
                let asked =
                    Question { text, on: call, replied: false, answered: false, withdrawn: false };
                if self.questions.insert(id.clone(), asked).is_some() {
                    does.push(Does::Complain(format!("question {id} was asked twice")));
                }
                does.push(Does::Wake(self.rng.between(20, 2_500), Wake::Reply(id)));
            }
            Some("notifications/cancelled") => {
                let question = value["params"]["requestId"].as_str();
                if let Some(question) = question.and_then(|id| self.questions.get_mut(id)) {
                    question.withdrawn = true;
                }
            }
            Some(_) => {}
            None => {
                if id.is_some() {
                    self.check_questions(call, does);
                }
                self.final_response(call, &value, does);
            }
        }
    }

    /// A call ends on its stream: its questions were answered or withdrawn before.
    fn check_questions(&mut self, call: Option<u64>, does: &mut Vec<Does>) {
        let Some(since) = call.and_then(|call| self.calls.get(&call)).map(|call| call.since) else {
            return;
        };
        let is_open = |question: &Question| !question.replied && !question.withdrawn;
        if self.questions.values().any(|question| question.on == call && is_open(question)) {
            does.push(Does::Forgotten("a question is open whose call has ended", since));
        }
    }

    /// A message of the server that belongs to no request. Each instance numbers its own messages.
    ///
    /// While the client follows a stream, resuming it with its last event id, no number of an
    /// instance may be missing after the first one: the session keeps the messages that it could
    /// not send. Three things cannot be known: which messages came before the first number that the
    /// client saw, which messages an instance sent last before its node was lost, and which
    /// messages were sent before the client opened a new stream without an id.
    pub(super) fn chat(&mut self, value: &Value, id: Option<EventId>, does: &mut Vec<Does>) {
        let text = value["params"]["data"].as_str().unwrap_or_default();
        let Some((instance, number)) = text.strip_prefix("chat ").and_then(|t| t.split_once(':'))
        else {
            return;
        };
        let (instance, number) = (instance.parse().unwrap_or(0), number.parse().unwrap_or(0));
        if id.is_none() {
            // A session that is being deleted sends messages that are not in the log without ids.
            // If its owner dies before the end is written, the same messages arrive with ids later.
            if self.asked_to_end.is_none() {
                does.push(Does::Complain(format!("chat {instance}:{number} has no event id")));
            }
            return;
        }
        let last = self.chats.insert(instance, number).unwrap_or(0);
        if number <= last {
            does.push(Does::Complain(format!("chat {instance}:{number} came after {last}")));
        }
        if !self.listening.followed.insert(instance) && number > last + 1 {
            let text = "a message is missing on a GET stream";
            does.push(Does::Forgotten(text, self.listening.since));
        }
    }

    pub(super) fn final_response(
        &mut self,
        call: Option<u64>,
        value: &Value,
        does: &mut Vec<Does>,
    ) {
        let Some(number) = value["id"].as_u64() else { return };
        if call != Some(number) {
            does.push(Does::Complain(format!("the final response of {number} came on {call:?}")));
        }
        let Some(call) = self.calls.get_mut(&number) else { return };
        let result = value.get("result").is_some();
        match call.state {
            CallState::Open => {}
            // The final response and the cancellation crossed.
            CallState::Cancelled => return,
            state => {
                let text = format!("call {number} has a second final response, after {state:?}");
                does.push(Does::Complain(text));
                return;
            }
        }
        let steps = call.job.steps;
        if result && call.job.kind == Kind::Steps && call.progress > 0 && call.progress != steps {
            does.push(Does::Forgotten("a result came before all of its progress", call.since));
        }
        let text = value["result"]["content"][0]["text"].as_str().unwrap_or_default();
        if result && !text.starts_with(&format!("{number} ")) {
            does.push(Does::Complain(format!("call {number} got the result {text:?}")));
        }
        if result {
            self.settle(number, CallState::Result);
        } else {
            let text = value["error"]["message"].as_str().unwrap_or_default();
            self.fails(number, text.to_owned());
        }
    }

    /// The final response of a call is an error.
    fn fails(&mut self, number: u64, text: String) {
        let Some(call) = self.calls.get_mut(&number).filter(|call| call.state == CallState::Open)
        else {
            return;
        };
        call.error = Some(text);
        self.settle(number, CallState::Error);
    }

    /// Whether the client has received this event.
    pub(crate) fn has_seen(&self, id: &EventId) -> bool {
        self.events.contains_key(&id.to_string())
    }

    pub(super) fn settle(&mut self, number: u64, state: CallState) {
        if let Some(call) = self.calls.get_mut(&number) {
            call.state = state;
            call.until = self.now;
        }
    }
}
