//! Runs one server process: starts it, transfers its messages, and ends it.

use std::io;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use budget::{Held, Share, in_granules};
use bytes::{Buf as _, Bytes};
use protocol::{Body, Limits, Line, LineSplitter, Message, SessionId};
use telemetry::LIMITED_BY_CALLER;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::task::consume_budget;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Program;
use super::child::{Child, Streams};
use crate::guard::{GUARD_FAILED, NOT_FOUND, NOT_RUNNABLE, SIGNALLED};
use crate::metrics::{self, ExitCause};
use crate::{EventSender, LinkEvent, ServerEnd};

/// How long the node reads the output of a process after its end. No process writes to the pipe
/// any more, so it has all remaining output already.
const READ_ON: Duration = Duration::from_secs(2);

/// How long nothing is read from a process while its tenant's share is exceeded. Then a little is
/// read, or the link ends if the process has written a long line in part.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(5);

/// The interval at which it is checked whether there is room.
const ROOM_RETRY: Duration = Duration::from_millis(50);

/// Maximum length of a logged line of stderr; the rest of the line is dropped.
const STDERR_LINE_BYTES_MAX: usize = 2 << 10;

/// The burst and the rate of logged lines of stderr. Further lines are counted and dropped.
const STDERR_BURST: f64 = 100.0;
const STDERR_LINES_PER_SEC: f64 = 20.0;

/// Maximum number of logged junk lines of one process; further ones are only counted.
const JUNK_LOGGED_MAX: u32 = 20;

/// Runs one process for one session, from its start until it and its descendants have ended.
pub(super) async fn host_process(program: Arc<Program>, session: SessionId, end: ServerEnd) {
    let sender = end.sender();
    let started = tokio::select! {
        started = start_child(&program) => started,
        () = sender.closed() => return,
    };
    let child = match started {
        Ok(child) => child,
        Err(reason) => {
            ExitCause::NotStarted.count();
            tracing::warn!(
                backend = program.name,
                ?session,
                reason,
                "stdio server was not started; check its command"
            );
            return sender.down(reason);
        }
    };
    let pid = child.id();
    tracing::debug!(backend = program.name, ?session, pid, "stdio server started");
    let (reason, cause) = transfer_messages(child, &program, end).await;
    cause.count();
    match cause {
        ExitCause::Closed | ExitCause::Terminated => {
            tracing::debug!(backend = program.name, ?session, pid, ?cause, "stdio server stopped");
        }
        _ => tracing::warn!(
            backend = program.name,
            ?session,
            pid,
            reason,
            ?cause,
            "stdio server ended unexpectedly"
        ),
    }
    sender.down(reason);
}

async fn start_child(program: &Program) -> Result<Child, String> {
    sleep(program.pause()).await;
    let permit = program.children.take_permit(&program.shares.children)?;
    program.children.start(permit, &program.settings, &program.protections).await.map_err(|error| {
        program.count_failure();
        not_started(&error)
    })
}

/// Why the transfer of messages ended.
enum TransferEnd {
    /// The session has ended.
    SessionEnded,
    /// The process has ended.
    Ended,
    /// A pipe of the process has failed.
    PipeFailed(PipeFailure),
}

/// Why a pipe has failed.
enum PipeFailure {
    /// The process closed it, most likely because it exits.
    Closed(&'static str),
    /// The process violated the protocol.
    Broke(String),
}

async fn transfer_messages(
    mut child: Child,
    program: &Arc<Program>,
    end: ServerEnd,
) -> (String, ExitCause) {
    let sender = end.sender();
    let mut pipes = match Pipes::connect(&mut child, program, end) {
        Ok(pipes) => pipes,
        Err(error) => return (not_started(&error), ExitCause::NotStarted),
    };
    let _ = sender.send(LinkEvent::Up).await;
    let end_reason = loop {
        tokio::select! {
            biased;
            () = sender.closed() => break TransferEnd::SessionEnded,
            Some(Ok(failure)) = pipes.tasks.join_next() => if let Some(failure) = failure {
                break TransferEnd::PipeFailed(failure);
            },
            () = child.ended() => break TransferEnd::Ended,
        }
    };
    let grace = program.settings.stop_grace();
    match end_reason {
        TransferEnd::SessionEnded => {
            let how = stop_process(&child, grace).await;
            reap(child, pipes).await;
            ("the session has ended".to_owned(), how)
        }
        TransferEnd::PipeFailed(PipeFailure::Broke(reason)) => {
            sender.down(&*reason);
            drop(pipes);
            stop_process(&child, grace).await;
            reap(child, Pipes::default()).await;
            (reason, ExitCause::Broke)
        }
        // If the process exits soon, its status is a better reason than the closed pipe.
        TransferEnd::PipeFailed(PipeFailure::Closed(reason))
            if timeout(grace.min(READ_ON), child.ended()).await.is_err() =>
        {
            sender.down(reason);
            drop(pipes);
            stop_process(&child, grace).await;
            reap(child, Pipes::default()).await;
            (reason.to_owned(), ExitCause::Broke)
        }
        TransferEnd::Ended | TransferEnd::PipeFailed(PipeFailure::Closed(_)) => {
            program.count_failure();
            let status = reap(child, pipes).await;
            (describe_exit(status, program.children.is_guarded()), ExitCause::Exited)
        }
    }
}

/// The tasks that read and write a process's pipes. Dropping them closes the pipes.
#[derive(Default)]
struct Pipes {
    tasks: JoinSet<Option<PipeFailure>>,
    writing: Option<AbortHandle>,
}

impl Pipes {
    fn connect(child: &mut Child, program: &Arc<Program>, end: ServerEnd) -> io::Result<Self> {
        let Streams { stdin, stdout, stderr } =
            child.take_streams().ok_or_else(|| io::Error::other("no pipes"))?;
        let (stdin, stdout) = (ChildStdin::from_std(stdin)?, ChildStdout::from_std(stdout)?);
        let stderr = ChildStderr::from_std(stderr)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(read_messages(Arc::clone(program), stdout, end.sender()));
        tasks.spawn(log_stderr(Arc::clone(program), stderr, child.id()));
        let writing = Some(tasks.spawn(write_messages(stdin, end)));
        Ok(Self { tasks, writing })
    }
}

/// Waits for the process to exit, then sends `SIGTERM`, then kills it (STD-04). Its input is
/// closed once all queued messages are written.
async fn stop_process(child: &Child, grace: Duration) -> ExitCause {
    if timeout(grace, child.ended()).await.is_ok() {
        return ExitCause::Closed;
    }
    child.terminate();
    if timeout(grace, child.ended()).await.is_ok() {
        return ExitCause::Terminated;
    }
    child.hang_up();
    if timeout(READ_ON, child.ended()).await.is_err() {
        child.kill();
        let _ = timeout(READ_ON, child.ended()).await;
    }
    ExitCause::Killed
}

/// Reaps a process that has ended, kills its descendants, and reads its remaining output. A
/// process that has not ended is left to the thread of [`super::children`].
async fn reap(child: Child, mut pipes: Pipes) -> Option<ExitStatus> {
    if !child.has_ended() {
        return None;
    }
    let unreaped = child.into_unreaped()?;
    let status = tokio::task::spawn_blocking(move || unreaped.finish()).await.ok().flatten();
    if let Some(writing) = pipes.writing {
        writing.abort();
    }
    let deadline = Instant::now() + READ_ON;
    while let Ok(Some(_)) = timeout_at(deadline, pipes.tasks.join_next()).await {}
    status
}

fn not_started(error: &io::Error) -> String {
    format!("the server could not be started ({})", error.kind())
}

fn describe_exit(status: Option<ExitStatus>, is_guarded: bool) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    let Some(status) = status else { return "the server exited".to_owned() };
    match (status.code(), status.signal()) {
        (Some(NOT_FOUND), _) if is_guarded => {
            format!("the server exited with status {NOT_FOUND} (command not found)")
        }
        (Some(GUARD_FAILED), _) if is_guarded => {
            format!(
                "the server exited with status {GUARD_FAILED} (or its guard failed; see its log)"
            )
        }
        (Some(NOT_RUNNABLE), _) if is_guarded => {
            format!("the server exited with status {NOT_RUNNABLE} (command cannot be run)")
        }
        (Some(code), _) if is_guarded && code > SIGNALLED => {
            format!("the server exited with status {code} (signal {})", code - SIGNALLED)
        }
        (Some(code), _) => format!("the server exited with status {code}"),
        (None, signal) => format!("the server was killed by signal {}", signal.unwrap_or(0)),
    }
}

/// Reads the lines of a pipe from the process.
struct Lines<R> {
    pipe: R,
    splitter: LineSplitter,
    /// The bytes of the unended line, as charged to the tenant's share.
    held: Held,
}

/// The result of waiting for a line.
enum Read {
    Line(Line),
    /// The pipe has ended or failed.
    Ended,
    /// The tenant's share has no room for the unended line.
    NoRoom,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(pipe: R, line_bytes_max: usize, share: &Share) -> Self {
        let held = Held::nothing(share);
        Self { pipe, splitter: LineSplitter::new(line_bytes_max), held }
    }

    /// Waits for the next line. Cancel safe.
    async fn next(&mut self) -> Read {
        loop {
            if let Some(line) = self.splitter.next_line() {
                return Read::Line(line);
            }
            if !self.charge().await {
                return Read::NoRoom;
            }
            if let Ok(0) | Err(_) = self.pipe.read_buf(self.splitter.room()).await {
                return Read::Ended;
            }
        }
    }

    /// Charges the unended line to the tenant's share. While the share is exceeded, also by what the
    /// tenant's sessions keep, nothing is read for up to [`ROOM_WAIT_MAX`]. Returns false if that is
    /// over and the line is long.
    async fn charge(&mut self) -> bool {
        let bytes = in_granules(self.splitter.buffered());
        if bytes != self.held.amount() {
            self.held.set(bytes);
        }
        let deadline = Instant::now() + ROOM_WAIT_MAX;
        while self.held.share().is_exceeded() {
            if Instant::now() >= deadline {
                return bytes == 0;
            }
            sleep(ROOM_RETRY).await;
        }
        true
    }

    /// The last line, if the pipe ended inside it.
    fn take_unended(&mut self) -> Option<Bytes> {
        self.splitter.take_unended()
    }
}

/// Sends the messages of the process to the session. Drops them once the session has ended: a
/// process that is stopping must not block in a write.
async fn read_messages(
    program: Arc<Program>,
    stdout: ChildStdout,
    sender: EventSender,
) -> Option<PipeFailure> {
    let line_bytes_max = program.settings.line_bytes_max;
    let mut lines = Lines::new(stdout, line_bytes_max, &program.shares.line_bytes);
    let mut junk = Junk::default();
    loop {
        // A pipe that is always readable must not keep the thread from its other tasks.
        consume_budget().await;
        let line = match lines.next().await {
            Read::Line(Line::Whole(line)) if line.iter().all(u8::is_ascii_whitespace) => continue,
            Read::Line(Line::Whole(line)) => line,
            Read::NoRoom => {
                return Some(PipeFailure::Broke(
                    "the tenant's sessions and servers keep as many bytes as they may; the server \
                     wrote a long line"
                        .to_owned(),
                ));
            }
            Read::Line(Line::TooLong(_)) => {
                return Some(PipeFailure::Broke(format!(
                    "the server wrote a line of more than {line_bytes_max} bytes"
                )));
            }
            Read::Ended => {
                if lines.take_unended().is_some() {
                    junk.count_line(&program, "the output ended inside a line");
                }
                return Some(PipeFailure::Closed("the server closed its output"));
            }
        };
        let body = match protocol::parse(line, &Limits::default()) {
            Ok(body) => body,
            Err(rejection) => {
                junk.count_line(&program, &rejection.message);
                continue;
            }
        };
        program.reset_failures();
        match body {
            Body::One(message) => send_message(&sender, message).await,
            Body::Batch(members) => {
                for member in members {
                    match member {
                        Ok(message) => send_message(&sender, message).await,
                        Err(rejection) => junk.count_line(&program, &rejection.message),
                    }
                }
            }
        }
    }
}

async fn send_message(sender: &EventSender, message: Message) {
    let _ = sender.send(LinkEvent::Message { message, about: None }).await;
}

/// Counts and logs lines that are not messages. Never quotes them (STD-02).
#[derive(Default)]
struct Junk(u32);

impl Junk {
    fn count_line(&mut self, program: &Program, why: &str) {
        metrics::JUNK_LINES.inc();
        if self.0 < JUNK_LOGGED_MAX {
            self.0 += 1;
            tracing::warn!(
                backend = program.name,
                why,
                "stdio server wrote a line that is not a message"
            );
        }
    }
}

/// Writes the messages of the session to the process. Returns when the session has ended, which
/// closes the process's input.
async fn write_messages(mut stdin: ChildStdin, mut end: ServerEnd) -> Option<PipeFailure> {
    let sender = end.sender();
    loop {
        let message = tokio::select! {
            // Messages that were sent before the session ended are still written.
            biased;
            message = end.receive() => message?,
            () = sender.closed() => return None,
        };
        let line = message.line();
        if stdin.write_all_buf(&mut line.chain(&b"\n"[..])).await.is_err() {
            return Some(PipeFailure::Closed("the server closed its input"));
        }
    }
}

/// Logs what the process writes to stderr, up to a rate limit (STD-03).
async fn log_stderr(program: Arc<Program>, stderr: ChildStderr, pid: u32) -> Option<PipeFailure> {
    let mut lines = Lines::new(stderr, STDERR_LINE_BYTES_MAX, &program.shares.line_bytes);
    let mut allowance = Allowance { lines: STDERR_BURST, counted: Instant::now(), dropped: 0 };
    loop {
        consume_budget().await;
        let line = match lines.next().await {
            Read::Line(Line::Whole(line) | Line::TooLong(line)) => Some(line),
            Read::Ended | Read::NoRoom => lines.take_unended(),
        };
        match line {
            None => return None,
            Some(line) if line.is_empty() => {}
            Some(line) => {
                if allowance.take_one() {
                    let dropped = std::mem::take(&mut allowance.dropped);
                    if dropped > 0 {
                        tracing::warn!(
                            name: LIMITED_BY_CALLER,
                            backend = program.name,
                            pid,
                            dropped,
                            "lines of stderr of a stdio server dropped: more than the log's limit"
                        );
                    }
                    let text = String::from_utf8_lossy(&line);
                    // As a debug value, so that it cannot inject lines into the log.
                    tracing::info!(name: LIMITED_BY_CALLER, backend = program.name, pid, stderr = ?text, "stdio server wrote to stderr");
                } else {
                    allowance.dropped += 1;
                    metrics::STDERR_DROPPED.inc();
                }
            }
        }
    }
}

/// A token bucket for logged lines.
struct Allowance {
    lines: f64,
    counted: Instant,
    dropped: u64,
}

impl Allowance {
    fn take_one(&mut self) -> bool {
        let now = Instant::now();
        let more = now.duration_since(self.counted).as_secs_f64() * STDERR_LINES_PER_SEC;
        self.counted = now;
        self.lines = (self.lines + more).min(STDERR_BURST);
        if self.lines < 1.0 {
            return false;
        }
        self.lines -= 1.0;
        true
    }
}
