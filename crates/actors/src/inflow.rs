//! What one connection of a client's is told.

use std::sync::Arc;
use std::task::{Context, Poll};

use conversation::{Answer, EventId, Frame};

use crate::door::Door;
use crate::remote::Passage;
use crate::sink::Queue;

/// One thing a connection is told. Either a single `Answer`, or `Open`, any number of
/// `Frame`s and perhaps `Abort`. After the last one comes `None`. (A duplex connection is
/// open from the start and told only frames, and perhaps `Abort`.)
#[derive(Clone, Debug)]
pub enum Told {
    /// The whole answer.
    Answer(Answer),
    /// The answer is an SSE stream.
    Open {
        /// Does the head name the new session?
        welcome: bool,
        /// Where the stream can be gone on with if nothing more of it is told; none for
        /// one that is in no log.
        at: Option<EventId>,
    },
    /// The stream's next frame.
    Frame(Frame),
    /// End the stream so that the client sees a broken connection.
    Abort,
    /// The session has left this owner, and the stream with it.
    Moved,
}

/// The receiving half of a sink, wherever its session lives. Bounded: a reader that falls
/// behind finds the stream aborted. Dropping it tells the session that the client is gone.
#[derive(Debug)]
pub struct Inflow(Source);

#[derive(Debug)]
enum Source {
    /// To one session that ends with its node.
    Local(Local),
    /// To wherever the session is.
    Passage(Box<Passage>),
}

impl Inflow {
    /// The next thing; `None` after the last. Nothing is lost when the wait is given up.
    pub async fn next(&mut self) -> Option<Told> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// As `next`, for hand-written streams.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Told>> {
        match &mut self.0 {
            Source::Local(local) => local.poll_next(context),
            Source::Passage(passage) => passage.poll_next(context),
        }
    }
}

impl From<Local> for Inflow {
    fn from(local: Local) -> Self {
        Self(Source::Local(local))
    }
}

impl From<Passage> for Inflow {
    fn from(passage: Passage) -> Self {
        Self(Source::Passage(Box::new(passage)))
    }
}

/// The receiving half of a sink whose session lives on this node.
#[derive(Debug)]
pub(crate) struct Local {
    queue: Arc<Queue>,
    door: Arc<Door>,
}

impl Local {
    pub(crate) fn new(queue: Arc<Queue>, door: Arc<Door>) -> Self {
        Self { queue, door }
    }

    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Told>> {
        self.queue.poll_next(context)
    }

    /// Has the last thing been told?
    pub(crate) fn is_over(&self) -> bool {
        self.queue.is_over()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if self.queue.leave() {
            self.door.reader_left();
        }
    }
}
