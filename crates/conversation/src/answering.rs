//! The form of a POST's answer (one JSON message, an array, or a stream), and the final response
//! to each of its requests.

use bytes::Bytes;
use protocol::{RequestId, Response};

use crate::ended_requests::EndedRequests;
use crate::entry::{Mark, NewStreamRequest};
use crate::exchange::{FinalResponse, Form, Post, PostId};
use crate::handshake::Handshake;
use crate::kept_results::KeptResults;
use crate::persisted::Persisted;
use crate::posts::Posts;
use crate::step_context::StepContext;
use crate::streams::Streams;
use crate::tools::Tools;
use crate::write_barrier::{StorePosition, WriteBarrier};
use crate::{Answer, Effect, Ending, Frame, Millis, SinkId};

/// The parts of a session that answer POSTs.
pub(crate) struct Answering<'a> {
    pub(crate) handshake: &'a Handshake,
    pub(crate) tools: &'a Tools,
    pub(crate) posts: &'a mut Posts,
    pub(crate) ended: &'a mut EndedRequests,
    pub(crate) kept: &'a mut KeptResults,
    pub(crate) streams: &'a mut Streams,
    pub(crate) persisted: &'a mut Persisted,
    pub(crate) barrier: &'a mut WriteBarrier,
}

/// The target of a POST's messages.
pub(crate) enum Upgraded {
    Stream(u64),
    Sink(SinkId),
}

impl Answering<'_> {
    /// Opens a POST with `open` requests.
    pub(crate) fn open_post(
        &mut self,
        context: &StepContext<'_>,
        sink: SinkId,
        open: usize,
        is_batch: bool,
    ) -> PostId {
        let limits = context.limits();
        let wait = if self.handshake.revision().has_priming() {
            limits.sse_after_ms
        } else {
            // A stream without priming cannot be resumed before its first message, so it is
            // opened only to keep the connection alive.
            limits.keepalive_secs * 1_000
        };
        let form = if context.is_duplex() {
            Form::Duplex
        } else {
            Form::Held { upgrade_at: context.now.plus(wait), answers: Vec::new() }
        };
        self.posts.add_post(Some(sink), open, is_batch, form)
    }

    /// The target of a POST's messages besides its final responses. Makes the answer a stream if
    /// it is none yet. `None` if the client disconnected before there was a stream to resume.
    pub(crate) fn upgrade_for_message(
        &mut self,
        context: &StepContext<'_>,
        id: PostId,
    ) -> Option<Upgraded> {
        let post = self.posts.post_mut(id)?;
        let sink = post.sink;
        match &mut post.form {
            Form::Stream(stream) => Some(Upgraded::Stream(*stream)),
            Form::Unlogged => sink.map(Upgraded::Sink),
            Form::Duplex => None,
            Form::Held { answers, .. } => {
                let sink = sink?;
                let answers = std::mem::take(answers);
                Some(Upgraded::Stream(self.upgrade(context, id, sink, answers)))
            }
        }
    }

    /// Makes a POST's answer a stream.
    fn upgrade(
        &mut self,
        context: &StepContext<'_>,
        id: PostId,
        sink: SinkId,
        answers: Vec<FinalResponse>,
    ) -> u64 {
        let settled = answers.iter().filter_map(|response| response.id.clone());
        let settled = settled.map(|id| NewStreamRequest { id, rerun: None, resumable: None });
        let open = self.posts.exchanges().iter().filter(|exchange| exchange.post == id);
        // Only a link that saves something can go on elsewhere.
        let is_resumable = self.handshake.saved_link().is_some();
        let new_request = |e| self.tools.new_stream_request(context, e, is_resumable);
        let open = open.map(new_request);
        let new_requests = settled.chain(open).collect();
        let revision = self.handshake.revision();
        let stream = self.streams.open_stream(context, revision, sink, new_requests, Some(id));
        self.posts.forget_raw_requests(id);
        if let Some(post) = self.posts.post_mut(id) {
            post.form = Form::Stream(stream);
        }
        for response in answers {
            self.write_final_response(context, stream, response);
        }
        stream
    }

    /// No message was sent for a POST for too long: its answer becomes a stream.
    pub(crate) fn upgrade_silent(&mut self, context: &mut StepContext<'_>, id: PostId) {
        let is_starting = !self.handshake.is_initialized();
        let Some(post) = self.posts.post_mut(id) else { return };
        let (Some(sink), Form::Held { upgrade_at, answers }) = (post.sink, &mut post.form) else {
            return;
        };
        if is_starting {
            // Before there is a session, no stream can be resumed.
            post.form = Form::Unlogged;
            context.effects.push(Effect::Open { sink, welcome: true, at: None });
            context.write_frame(sink, Frame::KeepAlive);
            return;
        }
        *upgrade_at = Millis(u64::MAX);
        let answers = std::mem::take(answers);
        self.upgrade(context, id, sink, answers);
    }

    /// Gives the final response to one request of a POST.
    pub(crate) fn final_response(
        &mut self,
        context: &mut StepContext<'_>,
        id: PostId,
        request: Option<&RequestId>,
        data: Bytes,
    ) {
        let Some(post) = self.posts.post_mut(id) else { return };
        post.open -= 1;
        let (is_done, sink, changes_state) = (post.open == 0, post.sink, post.changes_state);
        // If the answer is lost on its way, the client may post the request to another owner.
        // That owner must know of a cancellation that this one receives meanwhile.
        let arrives = sink.is_some() && !post.is_forwarded;
        match &mut post.form {
            Form::Held { .. } if is_done && !post.is_batch => {
                self.posts.take_post(id);
                // A connection to this node cannot lose its answer.
                match request {
                    Some(request) if arrives => self.ended.note_answered(request),
                    Some(request) => {
                        let is_awaited = sink.is_some();
                        self.kept.keep_result(context, request, &data, (is_awaited, changes_state));
                    }
                    None => {}
                }
                let waits = changes_state && !mutant!("answer_a_change_at_once");
                self.answer_post(context, sink, Answer::Json(data), waits);
            }
            Form::Held { answers, .. } => {
                if let Some(request) = request.filter(|_| arrives) {
                    self.ended.note_answered(request);
                }
                answers.push(FinalResponse { id: request.cloned(), data });
                if is_done {
                    let answer = array(std::mem::take(answers));
                    self.posts.take_post(id);
                    self.answer_post(context, sink, answer, changes_state);
                }
            }
            Form::Stream(stream) => {
                let stream = *stream;
                let response = FinalResponse { id: request.cloned(), data };
                self.write_final_response(context, stream, response);
                if changes_state {
                    self.hold_back_newest(context);
                }
                if is_done {
                    self.posts.take_post(id);
                    if mutant!("final_response_leaves_the_stream_open") {
                        return;
                    }
                    self.streams.close_stream(context, stream);
                }
            }
            Form::Unlogged => {
                self.posts.take_post(id);
                if let Some(sink) = sink {
                    context.write_message(sink, None, data);
                    context.finish_sink(sink, Ending::Proper);
                }
            }
            Form::Duplex => {
                if is_done {
                    self.posts.take_post(id);
                }
                context.write_duplex(data);
            }
        }
    }

    /// Gives an error as the final response to one request of a POST.
    pub(crate) fn final_error(
        &mut self,
        context: &mut StepContext<'_>,
        id: PostId,
        error: &Response,
    ) {
        self.final_response(context, id, error.id.as_ref(), error.raw().clone());
    }

    /// As [`Answering::final_response`], but not to the log: the session ends here and will not
    /// replay it.
    pub(crate) fn final_error_at_the_end(
        &mut self,
        context: &mut StepContext<'_>,
        id: PostId,
        error: &Response,
    ) {
        match self.posts.post(id).and_then(Post::stream) {
            Some(stream) => self.streams.write_past_the_log(context, stream, error.raw().clone()),
            None => self.final_response(context, id, None, error.raw().clone()),
        }
    }

    /// Ends one request of a POST without a final response: its client cancelled it (CAN-01).
    pub(crate) fn no_final_response(
        &mut self,
        context: &mut StepContext<'_>,
        id: PostId,
        request: &RequestId,
    ) {
        let Some(post) = self.posts.post_mut(id) else { return };
        post.open -= 1;
        if post.open > 0 {
            if let Some(stream) = post.stream() {
                self.streams.write_cancelled(context, stream, request);
            }
            return;
        }
        let Some(post) = self.posts.take_post(id) else { return };
        let Post { sink, is_batch, form, changes_state, .. } = post;
        match form {
            Form::Held { answers, .. } if is_batch && !answers.is_empty() => {
                self.answer_post(context, sink, array(answers), changes_state);
            }
            Form::Held { .. } => self.answer_post(context, sink, Answer::Nothing, false),
            Form::Stream(stream) => self.streams.close_stream(context, stream),
            Form::Unlogged => {
                sink.into_iter().for_each(|sink| context.finish_sink(sink, Ending::Proper));
            }
            Form::Duplex => {}
        }
    }

    /// Writes a final response; its stream then has one pending request less.
    fn write_final_response(
        &mut self,
        context: &StepContext<'_>,
        number: u64,
        response: FinalResponse,
    ) {
        let mark = response.id.map_or(Mark::Plain, Mark::FinalResponse);
        self.streams.write_event(context, number, response.data, mark);
    }

    /// Answers a POST whose connection may be lost. If its request changed the saved state
    /// (`waits`), the answer waits until the store has acknowledged the change.
    pub(crate) fn answer_post(
        &mut self,
        context: &mut StepContext<'_>,
        sink: Option<SinkId>,
        answer: Answer,
        waits: bool,
    ) {
        match sink {
            Some(sink) if waits => self.answer_when_held(context, sink, answer, 0),
            Some(sink) => context.answer_sink(sink, answer),
            None => {}
        }
    }

    /// Answers once the log holds everything up to `entry`, and the record the present state.
    pub(crate) fn answer_when_held(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        answer: Answer,
        entry: u64,
    ) {
        let version = self.persisted.version(context, self.handshake);
        let held = self.store_position();
        let needed = StorePosition { entry, version };
        self.barrier.answer_when_held(context, (sink, answer), needed, held);
    }

    /// What the store has acknowledged.
    pub(crate) fn store_position(&self) -> StorePosition {
        let entry = self.streams.log().acknowledged();
        StorePosition { entry, version: self.persisted.held_version() }
    }

    /// Holds the newest entry back until the record holds the present state.
    pub(crate) fn hold_back_newest(&mut self, context: &StepContext<'_>) {
        let version = self.persisted.version(context, self.handshake);
        if version > self.persisted.held_version() {
            self.barrier.hold_back(self.streams.log().newest(), version);
        }
    }
}

fn array(responses: Vec<FinalResponse>) -> Answer {
    Answer::Array(responses.into_iter().map(|response| response.data).collect())
}
