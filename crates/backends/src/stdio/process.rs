//! Runs one server process: starts it, transfers its messages, and ends it.

use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf as _;
use protocol::{Body, Line, Message};
use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdout;
use tokio::task::{JoinSet, consume_budget};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::child::Child;
use super::children::ChildPermit;
use super::junk::Junk;
use super::lines::{self, Lines, Read};
use super::program::Program;
use super::reason::Reason;
use super::start::{InUse, NO_ROOM, Starting, Unused, WhyUnused, Writing, too_long};
use super::start_turns::StartTurn;
use super::waiting::Attachment;
use crate::metrics::{ChildBound, ExitCause};
use crate::{EventSender, Link, LinkEvent, LinkLimits, ServerEnd};

/// How long the node reads the output of a process after its end. No process writes to the pipe
/// any more, so it has all remaining output already.
const READ_ON: Duration = Duration::from_secs(2);

/// How long sessions have to leave a child that they have not used for long.
const ROOM_ANSWER_MAX: Duration = Duration::from_millis(300);

/// The interval at which it is checked whether there is room.
const ROOM_RETRY: Duration = Duration::from_millis(20);

/// Connects a session to a child that waits for it, or starts one for it, and runs that until it
/// and its descendants have ended.
pub(super) async fn open_link(
    program: Arc<Program>,
    principal: Option<[u8; 32]>,
    mut session: Attachment,
) {
    if program.waiting.may_have(principal) {
        let sender = session.end.sender();
        let _ = sender.send(LinkEvent::Up).await;
        session.is_up = true;
        session.first = tokio::select! {
            first = session.end.receive() => first,
            () = sender.closed() => None,
        };
        if session.first.is_none() {
            return;
        }
        match program.waiting.hand_over(principal, session) {
            None => return program.spares_wanted.notify_one(),
            Some(back) => session = back,
        }
    }
    let sender = session.end.sender();
    let begun = Instant::now();
    let started = tokio::select! {
        started = start_child(&program) => started,
        () = sender.closed() => return,
    };
    let starting = started.and_then(|started| {
        let starting = Starting::new(&program, principal, started, Some(session), Instant::now());
        starting.map_err(|error| Reason::not_started(&error, &program.settings))
    });
    match starting {
        Ok(starting) => run_child(program, starting).await,
        Err(reason) => {
            report_failed_start(&program, &reason, begun);
            sender.down(reason.for_client(program.settings.explains(), &[]));
        }
    }
}

/// Starts a spare child, and runs it in a task of its own.
pub(super) async fn start_spare(program: &Arc<Program>) -> Result<(), ()> {
    let begun = Instant::now();
    // Never takes the place of a child that a client waits for.
    let permit = program.children.take_permit(&program.shares.children).await.map_err(|_| ())?;
    let settings = &program.settings;
    let started = program.children.start(permit, settings, &program.protections).await;
    // The offer exists before the task runs, so that no further spare child is started for it.
    let starting = started.and_then(|started| Starting::new(program, None, started, None, begun));
    match starting {
        Ok(starting) => {
            tokio::spawn(run_child(Arc::clone(program), starting));
            Ok(())
        }
        Err(error) => {
            report_failed_start(program, &Reason::not_started(&error, settings), begun);
            Err(())
        }
    }
}

async fn start_child(program: &Program) -> Result<(Child, StartTurn), Reason> {
    let permit = take_permit(program).await.map_err(|bound| {
        program.children.count_refused(program.tenant(), bound);
        Reason::new(bound.error())
    })?;
    let started = program.children.start(permit, &program.settings, &program.protections).await;
    started.map_err(|error| Reason::not_started(&error, &program.settings))
}

/// Takes a permit. Where there is none, a child ends that waits for a session, or else those whose
/// sessions have not used them for long.
async fn take_permit(program: &Program) -> Result<ChildPermit, ChildBound> {
    let take = || program.children.take_permit(&program.shares.children);
    let refusal = match take().await {
        Ok(permit) => return Ok(permit),
        Err(refusal) => refusal,
    };
    let (begun, in_use) = (Instant::now(), program.in_use.count());
    let grace = program.settings.stop_grace();
    let mut makes_room = program.waiting.end_oldest();
    if !makes_room {
        program.in_use.ask_for_room();
    }
    loop {
        sleep(ROOM_RETRY).await;
        if let Ok(permit) = take().await {
            return Ok(permit);
        }
        // A start whose client gave up may wait only now.
        makes_room = makes_room || program.in_use.count() < in_use || program.waiting.end_oldest();
        let wait_max = if makes_room { stop_max(grace) } else { ROOM_ANSWER_MAX };
        if begun.elapsed() >= wait_max {
            return Err(refusal);
        }
    }
}

fn report_failed_start(program: &Program, reason: &Reason, begun: Instant) {
    ExitCause::NotStarted.count();
    tracing::warn!(
        tenant = program.tenant(),
        backend = program.name,
        command = program.command,
        secs = begun.elapsed().as_secs_f32(),
        reason = reason.for_log(),
        "stdio server was not started"
    );
}

/// Runs a child until it and its descendants have ended.
async fn run_child(program: Arc<Program>, starting: Starting) {
    let pid = starting.pid();
    let in_use = match starting.run().await {
        Ok(in_use) => in_use,
        Err(unused) => return end_unused(&program, unused).await,
    };
    let (session, sender) = (in_use.session.clone(), in_use.end.sender());
    let (reason, cause) = transfer_messages(&program, in_use).await;
    cause.count();
    match cause {
        ExitCause::Closed | ExitCause::Terminated => {
            tracing::debug!(backend = program.name, ?session, pid, ?cause, "stdio server stopped");
        }
        _ => tracing::warn!(
            backend = program.name,
            ?session,
            pid,
            reason = reason.for_log(),
            ?cause,
            "stdio server ended unexpectedly"
        ),
    }
    sender.down(reason.for_client(false, &[]));
}

/// Ends a child that no session uses, and reports why.
async fn end_unused(program: &Arc<Program>, unused: Unused) {
    let Unused { child, tasks, tail, stdout, junk, session, why, begun, is_unanswered } = unused;
    let (pid, grace) = (child.id(), program.settings.stop_grace());
    let explains = program.settings.explains();
    let (session, sender) = session.unzip();
    let tell = |reason: &Reason| {
        let told = reason.for_client(explains, &tail.lines());
        sender.iter().for_each(|sender| sender.down(&*told));
    };
    let mut pipes = Pipes { tasks: JoinSet::new(), stderr: tasks };
    let reads_on = !matches!(why, WhyUnused::Broke(_));
    if reads_on {
        // A process that is stopping must not block in a write; one that has ended may have written
        // something for the session.
        let to = sender.clone().unwrap_or_else(|| Link::pair(LinkLimits::default()).1.sender());
        pipes.tasks.spawn(read_messages(Arc::clone(program), stdout, junk, to));
    }
    let (reason, cause) = match why {
        WhyUnused::Exited => (None, None),
        // If the process exits soon, its status is a better reason than the closed pipe.
        WhyUnused::Closed(_) if timeout(grace.min(READ_ON), child.ended()).await.is_ok() => {
            (None, None)
        }
        WhyUnused::Closed(reason) => (Some(Reason::new(reason)), Some(ExitCause::Broke)),
        WhyUnused::Broke(reason) => (Some(Reason::new(reason)), Some(ExitCause::Broke)),
        WhyUnused::TimedOut => {
            let secs = program.settings.start().as_secs();
            let reason = format!("the server did not answer `initialize` within {secs} s");
            (Some(Reason::new(reason)), Some(ExitCause::StartTimedOut))
        }
        WhyUnused::SessionEnded => (Some(Reason::new("its session ended first")), None),
        WhyUnused::NotNeeded => (Some(Reason::new("no session took it in time")), None),
    };
    let (reason, cause) = match reason {
        Some(reason) => {
            tell(&reason);
            let how = stop_process(&child, grace).await;
            reap(child, pipes).await;
            (reason, cause.unwrap_or(how))
        }
        None => {
            let status = reap(child, pipes).await;
            let is_guarded = program.children.is_guarded();
            let reason = Reason::exited(status, is_guarded, &program.settings);
            tell(&reason);
            (reason, ExitCause::Exited)
        }
    };
    cause.count();
    let is_orderly = matches!(cause, ExitCause::Closed | ExitCause::Terminated | ExitCause::Killed);
    if is_orderly && !is_unanswered {
        tracing::debug!(backend = program.name, ?session, pid, ?cause, "stdio server stopped");
        return;
    }
    tracing::warn!(
        tenant = program.tenant(),
        backend = program.name,
        command = program.command,
        ?session,
        pid,
        secs = begun.elapsed().as_secs_f32(),
        reason = reason.for_log(),
        ?cause,
        stderr = ?tail.lines(),
        "stdio server did not start"
    );
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

async fn transfer_messages(program: &Arc<Program>, in_use: InUse) -> (Reason, ExitCause) {
    let InUse { child, session: _, end, stdin, second, stdout, junk, tasks } = in_use;
    let sender = end.sender();
    let entry = program.add_in_use(end.sender());
    let mut pipes = Pipes { tasks: JoinSet::new(), stderr: tasks };
    pipes.tasks.spawn(read_messages(Arc::clone(program), stdout, junk, end.sender()));
    let writing = pipes.tasks.spawn(write_messages(stdin, second, end));
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
    drop(entry);
    let grace = program.settings.stop_grace();
    match end_reason {
        TransferEnd::SessionEnded => {
            let how = stop_process(&child, grace).await;
            writing.abort();
            reap(child, pipes).await;
            (Reason::new("the session has ended"), how)
        }
        TransferEnd::PipeFailed(PipeFailure::Broke(reason)) => {
            sender.down(&*reason);
            drop(pipes);
            stop_process(&child, grace).await;
            reap(child, Pipes::default()).await;
            (Reason::new(reason), ExitCause::Broke)
        }
        // If the process exits soon, its status is a better reason than the closed pipe.
        TransferEnd::PipeFailed(PipeFailure::Closed(reason))
            if timeout(grace.min(READ_ON), child.ended()).await.is_err() =>
        {
            sender.down(reason);
            drop(pipes);
            stop_process(&child, grace).await;
            reap(child, Pipes::default()).await;
            (Reason::new(reason), ExitCause::Broke)
        }
        TransferEnd::Ended | TransferEnd::PipeFailed(PipeFailure::Closed(_)) => {
            writing.abort();
            let status = reap(child, pipes).await;
            let is_guarded = program.children.is_guarded();
            (Reason::exited(status, is_guarded, &program.settings), ExitCause::Exited)
        }
    }
}

/// The tasks that read and write a process's pipes. Dropping them closes the pipes.
#[derive(Default)]
struct Pipes {
    tasks: JoinSet<Option<PipeFailure>>,
    stderr: JoinSet<()>,
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

/// The longest time that [`stop_process`] takes with this grace period.
fn stop_max(grace: Duration) -> Duration {
    2 * grace + 2 * READ_ON
}

/// Reaps a process that has ended, kills its descendants, and reads its remaining output. A
/// process that has not ended is left to the thread of [`super::children`].
async fn reap(child: Child, mut pipes: Pipes) -> Option<ExitStatus> {
    if !child.has_ended() {
        return None;
    }
    let unreaped = child.into_unreaped()?;
    let status = tokio::task::spawn_blocking(move || unreaped.finish()).await.ok().flatten();
    let deadline = Instant::now() + READ_ON;
    while let Ok(Some(_)) = timeout_at(deadline, pipes.tasks.join_next()).await {}
    while let Ok(Some(_)) = timeout_at(deadline, pipes.stderr.join_next()).await {}
    status
}

/// Sends the messages of the process to the session. Drops them once the session has ended: a
/// process that is stopping must not block in a write.
async fn read_messages(
    program: Arc<Program>,
    mut lines: Lines<ChildStdout>,
    mut junk: Junk,
    sender: EventSender,
) -> Option<PipeFailure> {
    loop {
        // A pipe that is always readable must not keep the thread from its other tasks.
        consume_budget().await;
        let line = match lines.next().await {
            Read::Line(Line::Whole(line)) => line,
            Read::NoRoom => return Some(PipeFailure::Broke(NO_ROOM.to_owned())),
            Read::Line(Line::TooLong(_)) => {
                let reason = too_long(program.settings.line_bytes_max);
                return Some(PipeFailure::Broke(reason));
            }
            Read::Ended => {
                if lines.take_unended().is_some() {
                    junk.count_line(&program, "the output ended inside a line");
                }
                return Some(PipeFailure::Closed("the server closed its output"));
            }
        };
        let Some(parsed) = lines::parse(&program.tenant, line).await else { continue };
        match parsed {
            Ok(Body::One(message)) => send_message(&sender, message).await,
            Ok(Body::Batch(members)) => {
                for member in members {
                    match member {
                        Ok(message) => send_message(&sender, message).await,
                        Err(rejection) => junk.count_line(&program, &rejection.message),
                    }
                }
            }
            Err(rejection) => junk.count_line(&program, &rejection.message),
        }
    }
}

async fn send_message(sender: &EventSender, message: Message) {
    let _ = sender.send(LinkEvent::Message { message, about: None }).await;
}

/// Writes the messages of the session to the process, `next` first. Returns when the session has
/// ended, which closes the process's input.
async fn write_messages(stdin: Writing, next: Message, mut end: ServerEnd) -> Option<PipeFailure> {
    const CLOSED: PipeFailure = PipeFailure::Closed("the server closed its input");
    let sender = end.sender();
    let Ok(mut stdin) = stdin.await else { return Some(CLOSED) };
    let mut next = Some(next);
    loop {
        let message = match next.take() {
            Some(message) => message,
            None => tokio::select! {
                // Messages that were sent before the session ended are still written.
                biased;
                message = end.receive() => message?,
                () = sender.closed() => return None,
            },
        };
        let line = message.line();
        if stdin.write_all_buf(&mut line.chain(&b"\n"[..])).await.is_err() {
            return Some(CLOSED);
        }
    }
}
