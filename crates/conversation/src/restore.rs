//! A session that another owner left, from its record and its log.

use std::collections::BTreeMap;

use bytes::Bytes;
use protocol::{InitializeParams, Message, ProgressToken, RequestId, Revision, payload};

use crate::again::lost;
use crate::checkpoint::{Checkpoint, Known};
use crate::exchange::{Call, CallId, Exchange, Form, Pace};
use crate::log::{Asked, Log, Logged, Mark, What};
use crate::session::{Client, Session, Turn};
use crate::state::FORMER_MAX;
use crate::stream::{Owed, Stream, Tombstone};
use crate::{Birth, Effect, Emitter, Millis};

/// What former owners left of a session.
#[derive(Clone, Debug)]
pub struct Saved {
    /// The revision that was negotiated.
    pub revision: Revision,
    /// The params of its `initialize`.
    pub initialize: Bytes,
    /// The state that was saved last ([`Effect::Save`]); empty where none ever was.
    pub state: Bytes,
    /// Its version.
    pub version: u64,
    /// Who emitted before, newest first.
    pub former: Vec<Emitter>,
    /// The log, by number.
    pub log: Vec<(u64, Bytes)>,
}

/// What was left cannot be read: a later version wrote it, or something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what is left of the session cannot be read by this version")]
pub struct Unreadable;

/// The questions of former owners that have no answer, with the stream of each.
type Questions = BTreeMap<(Emitter, u64), u64>;

impl Session {
    /// Takes a session up where its former owner left it, and settles what that had begun:
    /// a request that may be run twice, and asked its client nothing, is run again; any
    /// other ends with an error.
    pub fn restore(
        birth: Birth,
        saved: Saved,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) -> Result<Self, Unreadable> {
        let Saved { revision, initialize, state, version, former, log } = saved;
        let mut session = Self::new(birth, now);
        let asked = InitializeParams::read(&initialize).map_err(|_| Unreadable)?;
        session.client = Some(Box::new(Client::of(asked, revision, &initialize)));
        session.former = former;
        session.former.truncate(FORMER_MAX);
        if !session.take_over_state(version, &state) {
            return Err(Unreadable);
        }
        session.log = Log::read(&log, now).ok_or(Unreadable)?;
        let questions = session.fold(now);
        let mut turn = Turn { now, effects };
        session.settle(&mut turn, questions);
        session.trim(&mut turn);
        turn.effects.extend(session.log.hand_out());
        Ok(session)
    }

    /// Everything that can be replayed, for a log that is written anew.
    pub fn ring(&self) -> crate::Ring {
        self.log.ring()
    }

    /// Finds out from the log which streams there are, and what was asked on them.
    fn fold(&mut self, now: Millis) -> Questions {
        let log = std::mem::replace(&mut self.log, Log::new());
        let checkpoint = log.iter().filter_map(|(number, logged)| match &logged.what {
            What::Checkpoint(checkpoint) => Some((number, &**checkpoint)),
            _ => None,
        });
        let (told_at, mut questions) = match checkpoint.last() {
            Some((number, checkpoint)) => (number, self.begin_at(checkpoint, now)),
            None => (0, Questions::new()),
        };
        for (number, logged) in log.iter() {
            self.fold_one(number, logged, number > told_at, &mut questions);
        }
        self.log = log;
        questions
    }

    /// What was trimmed before the checkpoint.
    fn begin_at(&mut self, checkpoint: &Checkpoint, now: Millis) -> Questions {
        for known in &checkpoint.streams {
            let Known { n, last, trimmed, closed, asked, .. } = *known;
            let (requests, Some(opener)) = (known.requests(), known.opener()) else { continue };
            let stream = Stream { opener, requests, call: None, last, trimmed, closed, asked };
            self.streams.insert(n, stream);
        }
        for known in &checkpoint.finished {
            let (stream, last, requests) = (known.n, known.last, known.requests());
            let Some(opener) = known.opener() else { continue };
            self.finished.push_back(Tombstone { stream, opener, last, requests, at: now });
        }
        let asks = checkpoint.asks.iter();
        asks.filter_map(|(stream, emitter, number)| {
            Some(((crate::entry::emitter(emitter)?, *number), *stream))
        })
        .collect()
    }

    fn fold_one(&mut self, number: u64, logged: &Logged, is_news: bool, questions: &mut Questions) {
        if let What::Opened { requests } = &logged.what {
            let owed =
                |asked: &Asked| Owed { id: asked.id.clone(), again: asked.again.clone(), word: 0 };
            self.streams.entry(logged.stream).or_insert_with(|| Stream {
                opener: logged.emitter,
                requests: requests.iter().map(owed).collect(),
                call: None,
                last: number,
                trimmed: 0,
                closed: false,
                asked: false,
            });
            return;
        }
        match &logged.what {
            What::Event { mark: Mark::Ask(ask), .. } if is_news => {
                questions.insert((logged.emitter, *ask), logged.stream);
            }
            What::Answered { ask } => {
                questions.remove(&(logged.emitter, *ask));
            }
            _ => {}
        }
        let Some(stream) = self.streams.get_mut(&logged.stream) else { return };
        match &logged.what {
            What::Event { mark, .. } => {
                stream.last = stream.last.max(number);
                stream.asked |= matches!(mark, Mark::Ask(_));
                if let Mark::Word(id) = mark {
                    let owed = stream.requests.iter_mut().find(|owed| owed.id == *id);
                    owed.into_iter().for_each(|owed| owed.word = number);
                }
            }
            What::Closed => stream.closed = true,
            What::Opened { .. } | What::Answered { .. } | What::Checkpoint(_) => {}
        }
    }

    /// Ends what a lost owner had begun, or begins it anew.
    fn settle(&mut self, turn: &mut Turn<'_>, questions: Questions) {
        let open = |stream: &Stream| !stream.closed;
        for ((emitter, number), stream) in questions {
            if self.streams.get(&stream).is_some_and(open) {
                let id = RequestId::from(format!("{emitter}-{number}"));
                self.withdraw_lost(turn, stream, &id);
            }
        }
        let streams: Vec<u64> = self
            .streams
            .iter()
            .filter(|(_, stream)| open(stream) && !stream.is_standalone())
            .map(|(number, _)| *number)
            .collect();
        for number in streams {
            self.settle_stream(turn, number);
        }
    }

    fn settle_stream(&mut self, turn: &mut Turn<'_>, number: u64) {
        let Some(stream) = self.streams.get(&number) else { return };
        let asked = stream.asked;
        let owed: Vec<_> = stream.requests.iter().filter(|owed| owed.word == 0).cloned().collect();
        let mut again = Vec::new();
        for Owed { id, again: raw, .. } in owed {
            let raw = raw.filter(|_| !asked && self.exchanges.len() < self.limits.exchanges_max);
            match raw.and_then(|raw| Message::parse(raw).ok()) {
                Some(Message::Request(request)) => again.push(request),
                _ => self.say_lost(turn, number, id),
            }
        }
        if again.is_empty() {
            self.close_stream(turn, number);
            return;
        }
        let call = CallId(self.next_call);
        self.next_call += 1;
        let form = Form::Stream(number);
        let batch = again.len() > 1;
        self.calls.push(Call { id: call, sink: None, open: again.len(), batch, form });
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.call = Some(call);
        }
        for request in again {
            match self.admit(turn, call, &request) {
                Ok(mut exchange) => {
                    self.go_on_from(number, &mut exchange);
                    self.exchanges.push(exchange);
                    self.send(turn, request.into());
                }
                Err(_) => {
                    let error = lost(request.id);
                    self.last_word(turn, call, error.id.as_ref(), error.raw().clone());
                }
            }
        }
    }

    /// Says the last word on a request of a stream that no call is left for.
    fn say_lost(&mut self, turn: &Turn<'_>, number: u64, id: RequestId) {
        let error = lost(id.clone());
        self.emit_marked(turn, number, error.raw().clone(), Mark::Word(id.clone()));
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let last = stream.last;
        let owed = stream.requests.iter_mut().find(|owed| owed.id == id);
        owed.into_iter().for_each(|owed| owed.word = last);
    }

    /// Progress that was told goes on from where it was (PRG-02).
    fn go_on_from(&self, stream: u64, exchange: &mut Exchange) {
        let Some(pace) = exchange.progress.take() else { return };
        let told = self.log.iter().filter(|(_, logged)| logged.stream == stream);
        let of_it = |token: &ProgressToken| *token == pace.token;
        let last = told
            .filter_map(|(_, logged)| progress_in(&logged.what))
            .filter(|(token, _)| of_it(token))
            .map(|(_, progress)| progress)
            .fold(f64::NEG_INFINITY, f64::max);
        exchange.progress = Some(Box::new(Pace::above(*pace, last)));
    }
}

/// What a logged progress notification says.
fn progress_in(what: &What) -> Option<(ProgressToken, f64)> {
    let What::Event { data, mark: Mark::None } = what else { return None };
    match Message::parse(data.clone()).ok()? {
        Message::Notification(notification) => payload::progress_of(&notification.params()?),
        _ => None,
    }
}
