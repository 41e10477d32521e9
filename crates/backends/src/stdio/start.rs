//! The first part of a child's life: from its start until a session sends it a second message.
//!
//! A session that leaves during the start does not end it: the child then waits for the client's next
//! session, or for its end. A spare child waits in the same way before it has received anything.

use std::future::pending;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Buf as _;
use protocol::{Body, Line, Message, SessionId};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::child::{Child, Streams};
use super::junk::Junk;
use super::lines::{self, Lines, Read};
use super::opening::Opening;
use super::program::Program;
use super::start_turns::StartTurn;
use super::stderr::{self, StderrTail};
use super::waiting::Attachment;
use crate::metrics;
use crate::{EventSender, LinkEvent, ServerEnd};

/// A child that starts.
pub(super) struct Starting {
    program: Arc<Program>,
    principal: Option<[u8; 32]>,
    child: Child,
    /// Until the child has written something, or for a while.
    turn: Option<StartTurn>,
    stdin: Input,
    stdout: Lines<ChildStdout>,
    junk: Junk,
    tasks: JoinSet<()>,
    tail: StderrTail,
    begun: Instant,
    opening: Opening,
    assignment: Assignment,
}

/// Whether a session has the child.
enum Assignment {
    Taken { session: SessionId, end: ServerEnd, sender: EventSender },
    Waiting { attached: oneshot::Receiver<Attachment>, since: Instant },
}

/// The input of the child.
enum Input {
    Idle(ChildStdin),
    Writing(Writing),
    Broken,
}

/// Writes the first message, and returns the input.
pub(super) type Writing = Pin<Box<dyn Future<Output = io::Result<ChildStdin>> + Send>>;

/// The child is in use: what the transfer of messages continues with.
pub(super) struct InUse {
    pub(super) child: Child,
    pub(super) session: SessionId,
    pub(super) end: ServerEnd,
    pub(super) stdin: Writing,
    /// The message to write next.
    pub(super) second: Message,
    pub(super) stdout: Lines<ChildStdout>,
    pub(super) junk: Junk,
    pub(super) tasks: JoinSet<()>,
}

/// The child is not used, and must be ended.
pub(super) struct Unused {
    pub(super) child: Child,
    pub(super) tasks: JoinSet<()>,
    pub(super) tail: StderrTail,
    pub(super) stdout: Lines<ChildStdout>,
    pub(super) junk: Junk,
    /// The session that has to learn of it, and its id.
    pub(super) session: Option<(SessionId, EventSender)>,
    pub(super) why: WhyUnused,
    pub(super) begun: Instant,
    /// Whether the child has received a message, and not answered it.
    pub(super) is_unanswered: bool,
}

/// Why a child is not used.
pub(super) enum WhyUnused {
    /// It has exited.
    Exited,
    /// It closed a pipe, most likely because it exits.
    Closed(&'static str),
    /// It violated the protocol.
    Broke(String),
    /// It did not answer in time.
    TimedOut,
    /// Its session ended, and no other one may have it.
    SessionEnded,
    /// No session came for it, or it had to make room, or the node stops.
    NotNeeded,
}

/// One event of a child that starts.
enum Happened {
    Sent(Message),
    SessionGone,
    Attached(Box<Attachment>),
    Read(Read),
    Written,
    TurnOver,
    Over(WhyUnused),
}

impl Starting {
    /// Takes over a child that was just started, for a session or, without one, as a spare.
    pub(super) fn new(
        program: &Arc<Program>,
        principal: Option<[u8; 32]>,
        (mut child, turn): (Child, StartTurn),
        session: Option<Attachment>,
        begun: Instant,
    ) -> io::Result<Self> {
        let Streams { stdin, stdout, stderr } =
            child.take_streams().ok_or_else(|| io::Error::other("no pipes"))?;
        let (stdin, stdout) = (ChildStdin::from_std(stdin)?, ChildStdout::from_std(stdout)?);
        let (stderr, tail) = (ChildStderr::from_std(stderr)?, StderrTail::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(stderr::log(Arc::clone(program), stderr, child.id(), tail.clone()));
        let line_bytes_max = program.settings.line_bytes_max;
        let mut first = None;
        let assignment = match session {
            Some(session) => Assignment::taken(session, &mut first),
            None => Assignment::waiting(program.waiting.offer(None)),
        };
        let mut starting = Self {
            program: Arc::clone(program),
            principal,
            child,
            turn: Some(turn),
            stdin: Input::Idle(stdin),
            stdout: Lines::new(stdout, line_bytes_max, &program.tenant, &program.shares.line_bytes),
            junk: Junk::default(),
            tasks,
            tail,
            begun,
            opening: Opening::default(),
            assignment,
        };
        first.into_iter().for_each(|first| starting.write_first(first));
        Ok(starting)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs until the child is in use, or is to be ended.
    pub(super) async fn run(mut self) -> Result<InUse, Unused> {
        self.greet().await;
        loop {
            let why = match self.next().await {
                Happened::Sent(message) if self.opening.is_untouched() => {
                    self.write_first(message);
                    continue;
                }
                Happened::Sent(second) => return Ok(self.into_use(second)),
                Happened::SessionGone => match self.wait_for_session() {
                    true => continue,
                    false => WhyUnused::SessionEnded,
                },
                Happened::Attached(session) => {
                    metrics::HANDED_OVER.inc();
                    self.attach(*session);
                    self.greet().await;
                    continue;
                }
                Happened::Read(read) => {
                    self.turn = None;
                    match self.take_line(read).await {
                        None => continue,
                        Some(why) => why,
                    }
                }
                Happened::TurnOver => {
                    self.turn = None;
                    continue;
                }
                Happened::Written => continue,
                Happened::Over(why) => why,
            };
            return Err(self.into_unused(why));
        }
    }

    async fn next(&mut self) -> Happened {
        let limit = self.limit();
        let timed_out = async {
            match limit {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        let (turn, pid) = (self.turn.as_mut(), self.child.id());
        let turn_over = async {
            match turn {
                Some(turn) => turn.over(pid).await,
                None => pending().await,
            }
        };
        let (closing, is_waiting) = (self.program.children.closing(), self.assignment.is_waiting());
        let is_unanswered = self.opening.is_unanswered();
        tokio::select! {
            biased;
            // A message that was sent before the session ended is still written.
            written = self.stdin.written() => match written {
                Ok(()) => Happened::Written,
                Err(_) => Happened::Over(WhyUnused::Closed("the server closed its input")),
            },
            happened = self.assignment.next() => happened,
            read = self.stdout.next() => Happened::Read(read),
            () = self.child.ended() => Happened::Over(WhyUnused::Exited),
            () = turn_over => Happened::TurnOver,
            () = timed_out => Happened::Over(match is_unanswered {
                true => WhyUnused::TimedOut,
                false => WhyUnused::NotNeeded,
            }),
            () = closing.cancelled(), if is_waiting => Happened::Over(WhyUnused::NotNeeded),
        }
    }

    /// When the child is given up. A child without an answer has the time of a start; one that has
    /// answered to no session is kept for a while; a spare one has no limit.
    fn limit(&self) -> Option<Instant> {
        if self.opening.is_unanswered() {
            return Some(self.begun + self.program.settings.start());
        }
        match self.assignment {
            Assignment::Waiting { since, .. } if !self.opening.is_untouched() => {
                Some(since + self.program.settings.start_kept())
            }
            _ => None,
        }
    }

    /// A session takes the child that has waited.
    fn attach(&mut self, session: Attachment) {
        let mut first = None;
        self.assignment = Assignment::taken(session, &mut first);
        // A start that was handed over has received this message already.
        if let Some(first) = first.filter(|_| self.opening.is_untouched()) {
            self.begun = Instant::now();
            self.write_first(first);
        }
    }

    /// Sends the session what the child has sent before.
    async fn greet(&mut self) {
        let Assignment::Taken { sender, .. } = &self.assignment else { return };
        for message in self.opening.sent() {
            let message = message.clone();
            let _ = sender.send(LinkEvent::Message { message, about: None }).await;
        }
    }

    fn write_first(&mut self, message: Message) {
        self.opening.receive_first(&message);
        self.stdin = match std::mem::replace(&mut self.stdin, Input::Broken) {
            Input::Idle(mut stdin) => Input::Writing(Box::pin(async move {
                let line = message.line();
                stdin.write_all_buf(&mut line.chain(&b"\n"[..])).await?;
                Ok(stdin)
            })),
            other => other,
        };
    }

    /// The session has ended. Returns whether the child waits for another one.
    fn wait_for_session(&mut self) -> bool {
        let keeps =
            !self.program.settings.start_kept().is_zero() && !self.program.retired.is_cancelled();
        let claim = self.opening.claim(self.principal).filter(|_| keeps);
        let Some(claim) = claim else { return false };
        self.assignment = Assignment::waiting(self.program.waiting.offer(Some(claim)));
        tracing::info!(
            tenant = self.program.tenant(),
            backend = self.program.name,
            command = self.program.command,
            pid = self.child.id(),
            secs = self.begun.elapsed().as_secs_f32(),
            "client gave up while its stdio server started; the start continues"
        );
        true
    }

    /// Passes on what the child wrote. Returns why the child is over, if it is.
    async fn take_line(&mut self, read: Read) -> Option<WhyUnused> {
        let line = match read {
            Read::Line(Line::Whole(line)) => line,
            Read::Line(Line::TooLong(_)) => {
                return Some(WhyUnused::Broke(too_long(self.program.settings.line_bytes_max)));
            }
            Read::NoRoom => return Some(WhyUnused::Broke(NO_ROOM.to_owned())),
            Read::Ended => {
                if self.stdout.take_unended().is_some() {
                    self.junk.count_line(&self.program, "the output ended inside a line");
                }
                return Some(WhyUnused::Closed("the server closed its output"));
            }
        };
        match lines::parse(&self.program.tenant, line).await? {
            Ok(Body::One(message)) => self.take_message(message).await,
            Ok(Body::Batch(members)) => {
                for member in members {
                    match member {
                        Ok(message) => self.take_message(message).await,
                        Err(rejection) => self.junk.count_line(&self.program, &rejection.message),
                    }
                }
            }
            Err(rejection) => self.junk.count_line(&self.program, &rejection.message),
        }
        None
    }

    async fn take_message(&mut self, message: Message) {
        if self.opening.note_sent(&message) {
            tracing::info!(
                tenant = self.program.tenant(),
                backend = self.program.name,
                command = self.program.command,
                pid = self.child.id(),
                secs = self.begun.elapsed().as_secs_f32(),
                "stdio server started: it answered its first request"
            );
            self.assignment.restart_wait();
        }
        if let Assignment::Taken { sender, .. } = &self.assignment {
            let _ = sender.send(LinkEvent::Message { message, about: None }).await;
        }
    }

    fn into_use(self, second: Message) -> InUse {
        let Self { child, stdout, junk, tasks, .. } = self;
        let Assignment::Taken { session, end, .. } = self.assignment else {
            unreachable!("only a session sends messages");
        };
        let stdin: Writing = match self.stdin {
            Input::Idle(stdin) => Box::pin(std::future::ready(Ok(stdin))),
            Input::Writing(writing) => writing,
            Input::Broken => Box::pin(std::future::ready(Err(io::ErrorKind::BrokenPipe.into()))),
        };
        InUse { child, session, end, stdin, second, stdout, junk, tasks }
    }

    fn into_unused(self, why: WhyUnused) -> Unused {
        let Self {
            child, stdin, mut tasks, tail, stdout, junk, begun, opening, assignment, ..
        } = self;
        if let Input::Writing(writing) = stdin {
            // Closes the input when the message is written, or the process has ended.
            tasks.spawn(async { drop(writing.await) });
        }
        let session = match assignment {
            Assignment::Taken { session, sender, .. } => Some((session, sender)),
            // A session may have come in this moment.
            Assignment::Waiting { mut attached, .. } => {
                attached.close();
                attached.try_recv().ok().map(|session| (session.session, session.end.sender()))
            }
        };
        let is_unanswered = opening.is_unanswered();
        Unused { child, tasks, tail, stdout, junk, session, why, begun, is_unanswered }
    }
}

/// The reason for the end of a server whose unended line finds no room.
pub(super) const NO_ROOM: &str = "the tenant's sessions and servers keep as many bytes as they may; the server wrote a long line";

/// The reason for the end of a server whose line is too long.
pub(super) fn too_long(line_bytes_max: usize) -> String {
    format!("the server wrote a line of more than {line_bytes_max} bytes")
}

impl Assignment {
    /// The session has the child. Its first message, if there is one, goes to `first`.
    fn taken(session: Attachment, first: &mut Option<Message>) -> Self {
        let Attachment { session, first: received, is_up, end } = session;
        let sender = end.sender();
        if !is_up {
            // The queue of a new link has room.
            let _ = sender.try_send(LinkEvent::Up);
        }
        *first = received;
        Self::Taken { session, end, sender }
    }

    fn waiting(attached: oneshot::Receiver<Attachment>) -> Self {
        Self::Waiting { attached, since: Instant::now() }
    }

    fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting { .. })
    }

    fn restart_wait(&mut self) {
        if let Self::Waiting { since, .. } = self {
            *since = Instant::now();
        }
    }

    /// The next event of the session, or the next session. Cancel safe.
    async fn next(&mut self) -> Happened {
        match self {
            Self::Taken { end, sender, .. } => tokio::select! {
                // Messages that were sent before the session ended are still written.
                biased;
                message = end.receive() => message.map_or(Happened::SessionGone, Happened::Sent),
                () = sender.closed() => Happened::SessionGone,
            },
            Self::Waiting { attached, .. } => match attached.await {
                Ok(session) => Happened::Attached(Box::new(session)),
                Err(_) => Happened::Over(WhyUnused::NotNeeded),
            },
        }
    }
}

impl Input {
    /// Waits until the first message is written. Cancel safe.
    async fn written(&mut self) -> io::Result<()> {
        let Self::Writing(writing) = self else { return pending().await };
        let written = writing.await;
        let (input, outcome) = match written {
            Ok(stdin) => (Self::Idle(stdin), Ok(())),
            Err(error) => (Self::Broken, Err(error)),
        };
        *self = input;
        outcome
    }
}
