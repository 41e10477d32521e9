//! The POSTs of the client that wait for final responses, and their requests.
//!
//! This part finds, adds and removes. Its callers decide the final response of a request and the
//! answer to its POST.

use bytes::Bytes;
use protocol::{Method, ProgressToken, RequestId};
use thin_vec::ThinVec;

use crate::earliest::Earliest;
use crate::exchange::{Exchange, Form, Post, PostId};
use crate::{Limits, Millis, SinkId};

/// The open POSTs and exchanges of a session; bounded by `exchanges_max`.
pub(crate) struct Posts {
    exchanges: ThinVec<Exchange>,
    posts: ThinVec<Post>,
    next_id: u64,
    /// When a request was last accepted, cancelled or settled.
    used_at: Millis,
}

impl Posts {
    pub(crate) fn new() -> Self {
        let (exchanges, posts) = (ThinVec::new(), ThinVec::new());
        Self { exchanges, posts, next_id: 1, used_at: Millis(0) }
    }

    /// Opens a POST with `open` requests.
    pub(crate) fn add_post(
        &mut self,
        sink: Option<SinkId>,
        open: usize,
        is_batch: bool,
        form: Form,
    ) -> PostId {
        let id = PostId(self.next_id);
        self.next_id += 1;
        let (changes_state, is_forwarded) = (false, false);
        self.posts.push(Post { id, sink, open, is_batch, changes_state, is_forwarded, form });
        id
    }

    pub(crate) fn add_exchange(&mut self, exchange: Exchange) {
        self.exchanges.push(exchange);
    }

    /// A request was accepted, cancelled or settled.
    pub(crate) fn note_use(&mut self, now: Millis) {
        self.used_at = now;
    }

    /// When a request was last accepted, cancelled or settled.
    pub(crate) fn used_at(&self) -> Millis {
        self.used_at
    }

    pub(crate) fn exchanges(&self) -> &[Exchange] {
        &self.exchanges
    }

    /// The bytes of requests and final responses that are kept.
    pub(crate) fn bytes(&self) -> usize {
        let requests = self.exchanges.iter().map(|exchange| {
            exchange.raw.as_ref().map_or(0, Bytes::len)
                + exchange.uri.as_ref().map_or(0, |uri| uri.len())
                + exchange.returned.as_ref().map_or(0, |request| request.raw().len())
        });
        let responses = self.posts.iter().map(|post| match &post.form {
            Form::Held { answers, .. } => answers.iter().map(|answer| answer.data.len()).sum(),
            Form::Stream(_) | Form::Unlogged | Form::Duplex => 0,
        });
        requests.sum::<usize>() + responses.sum::<usize>()
    }

    pub(crate) fn has_exchanges(&self) -> bool {
        !self.exchanges.is_empty()
    }

    /// Is there no POST and no request?
    pub(crate) fn is_empty(&self) -> bool {
        self.exchanges.is_empty() && self.posts.is_empty()
    }

    pub(crate) fn exchange(&self, id: &RequestId) -> Option<&Exchange> {
        self.exchanges.iter().find(|exchange| exchange.id == *id)
    }

    pub(crate) fn exchange_mut(&mut self, id: &RequestId) -> Option<&mut Exchange> {
        self.exchanges.iter_mut().find(|exchange| exchange.id == *id)
    }

    /// The request whose progress has this token.
    pub(crate) fn exchange_of_token(&mut self, token: &ProgressToken) -> Option<&mut Exchange> {
        let is_named =
            |e: &&mut Exchange| e.progress.as_ref().is_some_and(|pace| pace.token == *token);
        self.exchanges.iter_mut().find(is_named)
    }

    /// Removes the exchange that matches.
    pub(crate) fn take_exchange(
        &mut self,
        matches: impl Fn(&Exchange) -> bool,
    ) -> Option<Exchange> {
        let index = self.exchanges.iter().position(matches)?;
        Some(self.exchanges.swap_remove(index))
    }

    pub(crate) fn take_all_exchanges(&mut self) -> ThinVec<Exchange> {
        std::mem::take(&mut self.exchanges)
    }

    /// The requests of a POST do not time out before `silent_at`.
    pub(crate) fn hold_off_silence(&mut self, post: PostId, silent_at: Millis) {
        let ours = self.exchanges.iter_mut().filter(|exchange| exchange.post == post);
        ours.for_each(|exchange| exchange.silent_at = exchange.silent_at.max(silent_at));
    }

    /// The requests of a POST time out at `silent_at`, unless the server sends a message for them
    /// first.
    pub(crate) fn restart_silence(&mut self, post: PostId, silent_at: Millis) {
        let ours = self.exchanges.iter_mut().filter(|exchange| exchange.post == post);
        ours.for_each(|exchange| exchange.silent_at = silent_at);
    }

    /// The log holds the requests of a POST: drops the copies here.
    pub(crate) fn forget_raw_requests(&mut self, post: PostId) {
        self.exchanges.iter_mut().filter(|e| e.post == post).for_each(|e| e.raw = None);
    }

    pub(crate) fn post(&self, id: PostId) -> Option<&Post> {
        self.posts.iter().find(|post| post.id == id)
    }

    pub(crate) fn post_mut(&mut self, id: PostId) -> Option<&mut Post> {
        self.posts.iter_mut().find(|post| post.id == id)
    }

    pub(crate) fn take_post(&mut self, id: PostId) -> Option<Post> {
        let index = self.posts.iter().position(|post| post.id == id)?;
        Some(self.posts.swap_remove(index))
    }

    /// Does a POST wait on this connection?
    pub(crate) fn has_sink(&self, sink: SinkId) -> bool {
        self.posts.iter().any(|post| post.sink == Some(sink))
    }

    /// Another node forwards the answer on this connection to the client.
    pub(crate) fn mark_forwarded(&mut self, sink: SinkId) {
        let posts = self.posts.iter_mut().filter(|post| post.sink == Some(sink));
        posts.for_each(|post| post.is_forwarded = true);
    }

    /// A connection is closed. That cancels nothing (POST-16): its requests stay in flight.
    pub(crate) fn disconnect(&mut self, sink: SinkId) {
        if mutant!("disconnect_drops_the_call") {
            self.posts.retain(|post| post.sink != Some(sink));
        }
        let posts = self.posts.iter_mut().filter(|post| post.sink == Some(sink));
        posts.for_each(|post| post.sink = None);
    }

    /// Can the client of a POST get a message before the final response?
    pub(crate) fn is_reachable(&self, id: PostId) -> bool {
        self.post(id).is_some_and(|post| {
            post.sink.is_some() || matches!(post.form, Form::Stream(_) | Form::Duplex)
        })
    }

    /// Can the client of a POST get a server request?
    pub(crate) fn takes_server_requests(&self, id: PostId) -> bool {
        self.post(id)
            .is_some_and(|post| post.sink.is_some() || matches!(post.form, Form::Stream(_)))
    }

    /// The POST without a stream that answers, or has answered, this request.
    pub(crate) fn held_post_of(&mut self, id: &RequestId) -> Option<&mut Post> {
        let is_running = |e: &&Exchange| e.id == *id && e.method != Method::Initialize;
        let running = self.exchanges.iter().find(is_running).map(|exchange| exchange.post);
        self.posts.iter_mut().find(|post| match &post.form {
            Form::Held { answers, .. } => {
                Some(post.id) == running
                    || answers.iter().any(|response| response.id.as_ref() == Some(id))
            }
            _ => false,
        })
    }

    /// The POSTs whose clients got no message for so long that they become streams.
    pub(crate) fn silent_posts(&self, now: Millis) -> Vec<PostId> {
        let is_silent = |post: &&Post| post.upgrade_at().is_some_and(|at| at <= now);
        self.posts.iter().filter(is_silent).map(|post| post.id).collect()
    }

    /// Progress that had to wait and may be forwarded now.
    pub(crate) fn take_due_progress(
        &mut self,
        limits: &Limits,
        now: Millis,
    ) -> Vec<(PostId, Bytes)> {
        let mut due = Vec::new();
        for exchange in &mut self.exchanges {
            let held = exchange.progress.as_mut().and_then(|pace| pace.take_due(limits, now));
            due.extend(held.map(|data| (exchange.post, data)));
        }
        due
    }

    pub(crate) fn note_deadlines(&self, limits: &Limits, earliest: &mut Earliest) {
        for post in &self.posts {
            earliest.add_deadline_if_any(post.upgrade_at());
        }
        for exchange in &self.exchanges {
            earliest.add_deadline(exchange.deadline());
            if let Some(pace) = &exchange.progress {
                earliest.add_deadline_if_any(pace.deadline(limits));
            }
        }
    }

    /// Frees unused memory. Most sessions are idle most of the time, and capacity for four
    /// exchanges and their POSTs is a quarter of a session's size.
    pub(crate) fn shrink(&mut self) {
        if self.exchanges.is_empty() {
            self.exchanges = ThinVec::new();
        }
        if self.posts.is_empty() {
            self.posts = ThinVec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held() -> Form {
        Form::Held { upgrade_at: Millis(250), answers: Vec::new() }
    }

    #[test]
    fn a_disconnect_removes_no_post_and_no_request() {
        let mut posts = Posts::new();
        let post = posts.add_post(Some(SinkId(7)), 1, false, held());
        posts.add_exchange(Exchange::initialize(1.into(), post, Millis(0)));
        posts.disconnect(SinkId(7));
        assert!(!posts.has_sink(SinkId(7)));
        assert!(posts.post(post).is_some_and(|post| post.sink.is_none()));
        assert_eq!(posts.exchanges().len(), 1);
        assert!(!posts.is_reachable(post));
    }

    #[test]
    fn a_post_without_a_connection_never_becomes_a_stream() {
        let mut posts = Posts::new();
        let post = posts.add_post(Some(SinkId(7)), 1, false, held());
        assert_eq!(posts.silent_posts(Millis(250)), [post]);
        posts.disconnect(SinkId(7));
        assert!(posts.silent_posts(Millis(250)).is_empty());
    }
}
