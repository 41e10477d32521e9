//! Trims a log that is over a limit: drops its oldest entries, and writes a checkpoint with what
//! is still needed of them.
//!
//! The log is trimmed in chunks, so that not every message leads to a checkpoint or a new floor.

use bytes::Bytes;

use super::Streams;
use crate::checkpoint::CheckpointBuilder;
use crate::entry::EntryKind;
use crate::posts::Posts;
use crate::resumable::Positions;
use crate::server_requests::ServerRequests;
use crate::step_context::StepContext;
use crate::stream::{Stream, Tombstone};
use crate::write_barrier::WriteBarrier;
use crate::{Limits, Millis};

/// Most tombstones that are kept; the oldest are dropped, and their streams' ids are then
/// unknown.
const TOMBSTONES_MAX: usize = 256;

/// How many are dropped at once, so that the others are not moved each time.
const TOMBSTONES_DROPPED: usize = 32;

/// Most standalone streams that are kept without a connection.
const DESERTED_MAX: usize = 8;

impl Streams {
    /// When entries expire. A single checkpoint never expires itself, but its content may.
    pub(super) fn trims_at(&self, limits: &Limits) -> Option<Millis> {
        if !self.log.is_lone_checkpoint() {
            return self.log.expires_at(limits);
        }
        let tombstone = self.tombstones.first()?;
        self.log.is_held().then(|| tombstone.ended_at.plus(limits.replay_secs * 1_000))
    }

    /// Drops the entries over a limit of the log, and keeps what is still needed of them.
    pub(crate) fn trim_log(
        &mut self,
        context: &mut StepContext<'_>,
        barrier: &WriteBarrier,
        posts: &Posts,
        server_requests: &ServerRequests,
    ) {
        let limits = context.limits();
        let is_old = self.trims_at(limits).is_some_and(|at| at <= context.now);
        if !is_old && !self.log.is_full(limits, context.now) {
            return;
        }
        self.drop_old_tombstones(context);
        let before = self.log.first();
        if is_old && self.log.is_lone_checkpoint() {
            self.log.take_oldest();
        }
        loop {
            let floor = self.log.floor(limits, context.now);
            if floor <= self.log.first() {
                break;
            }
            self.trim_below(context, barrier, floor);
        }
        self.write_checkpoint(context, before, posts, server_requests);
    }

    /// Drops every entry that was delivered or had the time to be, and keeps what is still needed
    /// of them.
    pub(crate) fn trim_settled(
        &mut self,
        context: &mut StepContext<'_>,
        barrier: &WriteBarrier,
        posts: &Posts,
        server_requests: &ServerRequests,
    ) {
        self.drop_old_tombstones(context);
        let (before, floor) =
            (self.log.first(), self.log.settled_floor(context.limits(), context.now));
        self.trim_below(context, barrier, floor);
        self.write_checkpoint(context, before, posts, server_requests);
    }

    fn drop_old_tombstones(&mut self, context: &StepContext<'_>) {
        let replay = context.limits().replay_secs * 1_000;
        self.tombstones.retain(|tombstone| tombstone.ended_at.plus(replay) > context.now);
    }

    fn trim_below(&mut self, context: &mut StepContext<'_>, barrier: &WriteBarrier, floor: u64) {
        while self.log.first() < floor {
            self.trim_entry(context, barrier);
        }
    }

    /// Writes what is still needed of the entries that were dropped since the floor was `before`.
    fn write_checkpoint(
        &mut self,
        context: &StepContext<'_>,
        before: u64,
        posts: &Posts,
        server_requests: &ServerRequests,
    ) {
        if self.log.first() > before
            && !mutant!("trim_without_a_checkpoint")
            && let Some(carried) = self.carried(posts, server_requests)
        {
            self.log.push(0, EntryKind::Checkpoint(carried), context.now);
        }
    }

    /// Drops the oldest entry.
    fn trim_entry(&mut self, context: &mut StepContext<'_>, barrier: &WriteBarrier) {
        let number = self.log.first();
        // A connection that waits for the entry gets it now: the log will not contain it.
        if let Some(stream) = self.log.get(number).map(|entry| entry.stream) {
            self.write_unlogged(context, barrier, stream, number);
        }
        let Some(entry) = self.log.take_oldest() else { return };
        let id = entry.stream;
        let Some(stream) = self.table.get_mut(id) else { return };
        if entry.what.is_sent_to_client() {
            stream.trimmed = number;
        }
        if entry.what == EntryKind::Closed {
            self.end_stream(context, id);
        }
    }

    /// The checkpoint for entries below the floor; `None` if nothing is needed.
    fn carried(&self, posts: &Posts, server_requests: &ServerRequests) -> Option<Bytes> {
        let floor = self.log.first();
        let mut carried = CheckpointBuilder::new(&self.tombstones);
        for (number, stream) in self.table.iter().take_while(|(number, _)| *number < floor) {
            carried.add_stream(number, stream);
            for exchange in posts.exchanges().iter().filter(|e| Some(e.post) == stream.post) {
                let progress = exchange.progress.as_ref().map(|pace| pace.last());
                progress.into_iter().for_each(|p| carried.note_progress(&exchange.id, p));
            }
        }
        let logged = server_requests.logged_requests().filter(|(_, _, number)| *number < floor);
        logged.for_each(|server_request| carried.add_server_request(server_request));
        carried.add_positions(self.positions.get().into_iter().flat_map(Positions::standalone));
        (!carried.is_empty()).then(|| carried.encode(self.log.owner_tags()))
    }

    /// Reduces a stream to its tombstone.
    fn end_stream(&mut self, context: &mut StepContext<'_>, number: u64) {
        let Some(stream) = self.table.remove(number) else { return };
        self.displace_listener(context, number);
        if self.tombstones.len() >= TOMBSTONES_MAX {
            self.tombstones.drain(..TOMBSTONES_DROPPED);
        }
        self.tombstones.push(Tombstone::of(number, stream, context.now));
    }

    /// A client disconnected from its standalone stream, and may resume it. Beyond the limit the
    /// oldest stream without a connection is closed; a client that resumes that one gets a new
    /// stream.
    pub(crate) fn close_deserted(&mut self, context: &StepContext<'_>) {
        self.close_deserted_beyond(context, DESERTED_MAX);
    }

    /// As [`Streams::close_deserted`], where the clients that listened have not resumed yet.
    pub(crate) fn close_deserted_for_long(&mut self, context: &StepContext<'_>) {
        self.close_deserted_beyond(context, DESERTED_MAX + context.limits().standalone_max);
    }

    fn close_deserted_beyond(&mut self, context: &StepContext<'_>, most: usize) {
        let is_deserted = |(number, stream): &(u64, &Stream)| {
            stream.is_standalone() && !stream.closed && self.attachments.of(*number).is_none()
        };
        let deserted = self.table.iter().filter(is_deserted).map(|(number, _)| number);
        let deserted: Vec<u64> = deserted.collect();
        let beyond = deserted.len().saturating_sub(most);
        deserted.into_iter().take(beyond).for_each(|oldest| self.close_stream(context, oldest));
    }
}
