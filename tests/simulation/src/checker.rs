//! Compares what every client received, and what every tool did, with what was promised.

mod clients;
mod disturbances;
mod errors;
mod events;

use std::collections::{BTreeMap, BTreeSet};

use conversation::{Answer, EventId, Refusal};
use ownership::{Batch, Error, Expected, Incarnation, Owner, RecordStatus, Token};
use protocol::SessionId;

use super::client::{Client, ClientEvent};
use super::plan::Plan;
use super::process::Process;
use super::redis::{Answer as RedisAnswer, Command, short};
use super::tools::Job;

/// Data of a session that Redis forgot, and that its owner has not written again yet.
#[derive(Clone, Copy, Debug)]
struct Vulnerable {
    owner: Owner,
    since: u64,
}

/// How an owner was replaced.
#[derive(Clone, Copy, Debug)]
struct Superseded {
    at: u64,
    by: Token,
    /// When Redis forgot the claim of the owner, which the record does not name since then.
    forgotten: Option<u64>,
}

/// Why data of a session may be lost, and the time until which its loss is excused.
#[derive(Clone, Copy, Debug)]
struct Excuse {
    at: u64,
    why: &'static str,
}

/// A time at which a session lost its owner.
#[derive(Clone, Copy, Debug)]
struct Strike {
    /// Calls that began later were not at the former owner.
    began_by: u64,
    /// Calls that ended earlier were not affected.
    at: u64,
}

/// How long, in milliseconds, a process may need after a fault to notice it and to repeat what
/// failed: one renewal, and the timeout of one command.
const RECOVERY: u64 = 1_300;

/// How long, in milliseconds, a healthy owner may need to write again what a failover forgot: one
/// renewal (1 s, on a clock that may be slow), which shows the failover, and some round trips.
const PUT_BACK: u64 = 1_300;

/// How long, in milliseconds, a call may take besides the hold time, its own work and the waits of
/// its client: detecting the loss of its owner, starting the server, and round trips.
const OVERHEAD: u64 = 5_000;

/// How long, in milliseconds, calls are still sent to a node whose machine is gone, until the
/// timeout of its links.
const NOTICED: u64 = 1_200;

/// How long, in milliseconds, a drained node still serves the requests that wait there.
const END_GRACE: u64 = 10_000;

/// How long, in milliseconds, after the newest fault everything works again: a lease has expired
/// and its session is claimed, a late command has been executed, and a back-off has ended.
const SETTLED: u64 = 12_000;

#[derive(Debug, Default)]
pub(super) struct Checker {
    /// The first promise that was broken.
    pub(super) broken: Option<String>,
    /// Sessions of which data that was begun by this time may be lost.
    excused: BTreeMap<SessionId, Excuse>,
    /// Sessions with a loss that their excuse covers.
    forgiven: BTreeSet<SessionId>,
    vulnerable: BTreeMap<SessionId, Vulnerable>,
    /// When data that no node could write again in time was last written again.
    mended: BTreeMap<SessionId, u64>,
    pub(super) evicted: BTreeSet<SessionId>,
    /// When Redis last forgot data, or another Redis replaced it.
    changed_at: Option<u64>,
    /// The times in which processes are paused, cut off, or have a faulty Redis.
    impaired: BTreeMap<Incarnation, Vec<(u64, u64)>>,
    /// The subset of these times in which no answer of Redis reaches the process.
    blind: BTreeMap<Incarnation, Vec<(u64, u64)>>,
    /// Processes that stayed connected to a former primary, and when that ended.
    split: BTreeMap<Incarnation, Option<u64>>,
    /// The random parts of the tokens whose claims were answered: their nodes received the answer.
    heard_claims: BTreeSet<u64>,
    /// The last known owner of each session, according to the commands that Redis accepted.
    owners: BTreeMap<SessionId, Owner>,
    /// Every process that ever owned a session.
    owned_by: BTreeMap<SessionId, BTreeSet<Incarnation>>,
    /// When sessions lost their owners.
    strikes: BTreeMap<SessionId, Vec<Strike>>,
    /// When sessions were claimed that their owners had released.
    left: BTreeMap<SessionId, Vec<u64>>,
    /// When processes started, and when they died.
    started: BTreeMap<Incarnation, u64>,
    died: BTreeMap<Incarnation, u64>,
    /// When links between two processes broke.
    broken_links: Vec<(u64, Incarnation, Incarnation)>,
    /// When processes were told to drain.
    drained: BTreeMap<Incarnation, u64>,
    /// Sessions that were claimed at a primary that no other node uses any more.
    diverged: BTreeSet<SessionId>,
    /// Processes whose clock stopped, and until when.
    pub(super) frozen: BTreeMap<Incarnation, u64>,
    pub(super) machine_gone: BTreeSet<usize>,
    superseded: BTreeMap<(SessionId, u64), Superseded>,
    /// Processes that were marked dead while they were running, and when.
    marked: BTreeMap<Incarnation, u64>,
    /// When each call was first run.
    began: BTreeMap<u64, u64>,
    /// How often each call was run.
    ran: BTreeMap<u64, u64>,
    /// The nodes at which each call was run.
    ran_at: BTreeMap<u64, BTreeSet<Incarnation>>,
    /// Every event that an owner wrote to a connection, by stream: it must not be lost afterwards.
    sent: BTreeMap<(SessionId, u64), BTreeMap<u64, EventId>>,
    /// The number of the newest event that was sent, by the random part of its owner's token.
    sent_by: BTreeMap<(SessionId, u64), u64>,
    ended: BTreeMap<SessionId, u64>,
    /// Sessions whose end was written, whether or not their client has received the answer.
    pub(super) ends_written: BTreeSet<SessionId>,
    /// When the newest fault ends.
    disturbed_until: u64,
    /// When a node read that there is no record of a session whose record was evicted.
    found_evicted: BTreeMap<SessionId, Vec<u64>>,
    /// When Redis failed over to a replica whose clock was behind, and how far, in milliseconds.
    clocks_behind: Vec<(u64, u64)>,
    /// When a process last read, at a deposed primary, that there is no record of a
    /// session.
    missed_apart: BTreeMap<(Incarnation, SessionId), u64>,
    /// The owners that began to end sessions because their clients deleted them.
    ends_begun: BTreeMap<SessionId, Incarnation>,
    /// How often an ingress could not reach an owner within the hold time.
    pub(super) gave_up: u64,
    pub(super) tally: Tally,
}

/// The counts of what happened, for the summary of many runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Calls that were made.
    pub calls: u64,
    /// The number of these that were answered with a result.
    pub results: u64,
    /// Answered with an error.
    pub errors: u64,
    /// Calls whose connection broke before the client had an event id to resume by.
    pub lost: u64,
    /// Sessions claimed.
    pub claims: u64,
    /// Sessions written again.
    pub reasserts: u64,
    /// Calls that were run again.
    pub reruns: u64,
    /// Sessions with a loss that is excused.
    pub excused: u64,
}

impl Checker {
    pub(super) fn breaks(&mut self, text: String) {
        self.broken.get_or_insert(text);
    }

    /// Data of the session that was begun by now may be lost.
    fn excuse(&mut self, session: &SessionId, now: u64, why: &'static str) {
        if self.excused.get(session).is_none_or(|excuse| excuse.at <= now) {
            self.excused.insert(session.clone(), Excuse { at: now, why });
        }
    }

    /// Whether data of the session that was begun at that time may be lost.
    fn is_excused(&self, session: &SessionId, since: u64) -> bool {
        // Two histories exist. The one that is dropped may continue for long.
        self.diverged.contains(session)
            || self.excused.get(session).is_some_and(|excuse| since <= excuse.at)
    }

    /// A client misses what it was promised. Some losses are excused.
    pub(super) fn forgotten(&mut self, now: u64, session: &SessionId, text: &str) {
        self.forgotten_since(now, session, 0, text);
    }

    /// As [`Checker::forgotten`], for data that was begun at a known time.
    pub(super) fn forgotten_since(
        &mut self,
        now: u64,
        session: &SessionId,
        since: u64,
        text: &str,
    ) {
        if self.is_excused(session, since) {
            self.forgiven.insert(session.clone());
            return;
        }
        if self.was_just_mended(session, now) {
            return;
        }
        let vulnerable = self.vulnerable.get(session).copied();
        if vulnerable.is_some_and(|vulnerable| self.could_not(session, vulnerable, now)) {
            self.forgiven.insert(session.clone());
            self.excuse(session, now, "no process could write it again in time");
            return;
        }
        let older = self.older_excuse(session);
        self.breaks(format!("{text} ({}{older})", session.as_str()));
    }

    /// Whether the session was written again while a node answered a client that it does not exist.
    fn was_just_mended(&self, session: &SessionId, now: u64) -> bool {
        let mended = self.mended.get(session);
        mended.is_some_and(|at| now < at + 200 || self.has_just_woken(*at, now))
    }

    /// Describes the excuse of a session for older losses, for the message of a broken promise.
    fn older_excuse(&self, session: &SessionId) -> String {
        let excuse = self.excused.get(session);
        let older = excuse.map(|Excuse { at, why }| format!("; {why}, but only until {at} ms"));
        older.unwrap_or_default()
    }

    /// A client was refused because its session or the store could not be reached within the bound.
    pub(super) fn timed_out(&mut self, now: u64, client: usize, text: &str) {
        if now > self.disturbed_until + SETTLED {
            let calm = now - self.disturbed_until;
            self.breaks(format!("client {client} was refused, {calm} ms after any fault: {text}"));
        }
    }

    /// A running node cut the GET stream of a client that had asked for the end of its session.
    pub(super) fn cut_at_the_end(&mut self, now: u64, client: usize) {
        if now > self.disturbed_until + SETTLED {
            self.breaks(format!(
                "the GET stream of client {client} was cut when its session ended"
            ));
        }
    }

    pub(super) fn is_marked(&self, process: Incarnation) -> bool {
        self.marked.contains_key(&process)
    }

    /// Whether no node was able to write again what Redis forgot.
    fn could_not(&self, session: &SessionId, vulnerable: Vulnerable, now: u64) -> bool {
        // An owner notices an eviction only when it writes next.
        self.evicted.contains(session)
            || self.was_impaired(vulnerable.owner.node, vulnerable.since, now)
    }

    /// Redis has forgotten data of a session; its owner may write them again.
    pub(super) fn forgot(&mut self, session: &SessionId, owner: Owner, alive: bool, now: u64) {
        if !alive {
            self.excuse(session, now, "forgotten while it had no owner");
            return;
        }
        let former = self.vulnerable.get(session).copied();
        if let Some(former) = former.filter(|former| former.owner.node != owner.node)
            && self.could_not(session, former, now)
        {
            // The newest owner could not reach Redis since Redis forgot the session. A former
            // owner, which could not notice its replacement, wrote the session again as it had been
            // before.
            self.excuse(session, former.since, "written again only by a former owner");
        }
        self.vulnerable.insert(session.clone(), Vulnerable { owner, since: now });
    }

    /// A former primary, which other nodes no longer use, executed a command: its effect will be
    /// lost.
    pub(super) fn executed_apart(
        &mut self,
        now: u64,
        from: Incarnation,
        command: &Command,
        answer: &RedisAnswer,
    ) {
        self.may_be_deposed(now, command, answer);
        self.finds_its_end_apart(now, from, command, answer);
        if let (Command::Read(session), RedisAnswer::Read(Ok(None))) = (command, answer) {
            self.missed_apart.insert((from, session.clone()), now);
        }
        let owner = match (command, answer) {
            (Command::Create(_, record), RedisAnswer::Done(Ok(())))
            | (Command::Reassert(record, _), RedisAnswer::Appended(Ok(_))) => record.owner,
            (Command::Claim(_, _, new), RedisAnswer::Claimed(Ok(_))) => *new,
            (Command::Append(Batch { token, .. }), RedisAnswer::Appended(Ok(_)))
            | (
                Command::Save(_, token, _) | Command::ExtendState(_, token, _),
                RedisAnswer::Saved(Ok(_)),
            )
            | (Command::Release(_, token) | Command::End(_, token), RedisAnswer::Done(Ok(()))) => {
                Owner { token: *token, node: from }
            }
            _ => return,
        };
        let Some(session) = command.session() else { return };
        if matches!(command, Command::Claim(..)) {
            // Two histories exist now, and one of them is dropped.
            self.excuse(session, now, "claimed at a primary that no other node uses");
            self.diverged.insert(session.clone());
            return;
        }
        // After a release, no node owns the session and could write it again.
        let is_owned = !matches!(command, Command::Release(..));
        self.forgot(session, owner, is_owned, now);
    }

    /// A node that stays connected to a former primary sends to a client. While its lease `holds`,
    /// it may answer that a session is unknown which was created since the failover.
    pub(super) fn sent_while_apart(
        &mut self,
        now: u64,
        session: &SessionId,
        sent: &ClientEvent,
        holds: bool,
    ) {
        let ClientEvent::Answer(Answer::Refused(refusal)) = sent else { return };
        if holds || *refusal != Refusal::UnknownSession {
            self.excuse(session, now, "requested at a node that used a former primary");
        }
    }

    /// A node has found that a session is unknown. That is excused if its owner could not yet write
    /// again what Redis forgot, or at a node that is connected to a former primary (`is_apart`).
    pub(super) fn found_no_record(&mut self, now: u64, session: &SessionId, is_apart: bool) {
        let vulnerable = self.vulnerable.get(session).copied();
        if vulnerable.is_some_and(|vulnerable| self.could_not(session, vulnerable, now)) {
            self.excuse(session, now, "no process could write it again in time");
        } else if self.was_just_mended(session, now) {
            self.excuse(session, now, "written again during a lookup");
        } else if is_apart {
            self.excuse(session, now, "requested at a node that used a former primary");
        }
    }

    /// A process has ended. What Redis forgot shortly before, or while the process could not write
    /// it again, may be lost.
    pub(super) fn died(&mut self, process: &Process, now: u64) {
        self.died.insert(process.incarnation, now);
        let mine: Vec<(SessionId, Vulnerable)> = self
            .vulnerable
            .iter()
            .filter(|(_, vulnerable)| vulnerable.owner.node == process.incarnation)
            .map(|(session, vulnerable)| (session.clone(), *vulnerable))
            .collect();
        for (session, vulnerable) in mine {
            self.vulnerable.remove(&session);
            // The process may have claimed the session without receiving the answer.
            let had = process.sessions.contains_key(&session) || process.has_tombstone(&session);
            let late = now > vulnerable.since + PUT_BACK;
            if had && late && !self.could_not(&session, vulnerable, now) {
                self.breaks(format!(
                    "the owner of {} had not written again after {} ms what Redis forgot",
                    session.as_str(),
                    now - vulnerable.since,
                ));
            }
            self.excuse(&session, now, "its owner died before it wrote it again");
        }
    }

    /// Redis has accepted this owner.
    fn owns(&mut self, now: u64, session: &SessionId, owner: Owner) {
        self.owned_by.entry(session.clone()).or_default().insert(owner.node);
        let former = self.owners.insert(session.clone(), owner);
        let Some(former) = former.filter(|former| former.node != owner.node) else { return };
        let began_by = self.died.get(&former.node).map_or(now, |died| died + NOTICED);
        let strike = Strike { began_by, at: now };
        self.strikes.entry(session.clone()).or_default().push(strike);
    }

    /// A link broke: a node does not know the result of the calls that it had sent over it.
    pub(super) fn link_broke(&mut self, now: u64, one: Incarnation, other: Incarnation) {
        self.broken_links.push((now, one, other));
    }

    /// Whether the process has drained for so long that it ends, even if requests still wait there.
    pub(super) fn is_leaving(&self, now: u64, process: Incarnation, plan: &Plan) -> bool {
        let drained = self.drained.get(&process);
        drained.is_some_and(|at| now >= at + plan.drain + END_GRACE)
    }

    /// Redis has executed a command.
    pub(super) fn executed(&mut self, now: u64, command: &Command, answer: &RedisAnswer) {
        self.may_be_deposed(now, command, answer);
        match (command, answer) {
            (Command::Read(session), RedisAnswer::Read(Ok(None)))
                if self.evicted.contains(session) && self.vulnerable.contains_key(session) =>
            {
                self.found_evicted.entry(session.clone()).or_default().push(now);
            }
            // The record was evicted, and the owner lost its lease before it noticed. The owner
            // cannot exclude that another node has ended the session.
            (Command::Claim(session, ..), RedisAnswer::Claimed(Err(Error::Missing)))
                if self.evicted.contains(session) =>
            {
                self.excuse(session, now, "evicted while the lease of its owner lapsed");
            }
            (Command::Claim(session, expected, new), RedisAnswer::Claimed(Ok(claimed))) => {
                self.tally.claims += 1;
                let is_other = self.owners.get(session).is_none_or(|owner| owner.node != new.node);
                if *expected == Expected::Released {
                    // The owner released the session without requests in flight.
                    self.owned_by.entry(session.clone()).or_default().insert(new.node);
                    self.owners.insert(session.clone(), *new);
                    self.left.entry(session.clone()).or_default().push(now);
                } else {
                    self.owns(now, session, *new);
                }
                for former in &claimed.record.former {
                    let superseded = Superseded { at: now, by: new.token, forgotten: None };
                    self.superseded.entry((session.clone(), former.random)).or_insert(superseded);
                }
                self.claimed_while_vulnerable(now, session, *new);
                if is_other {
                    let through = claimed.log.last().map_or(0, |(number, _)| *number);
                    self.log_ends(now, session, through);
                }
            }
            (Command::Reassert(record, ring), RedisAnswer::Appended(Ok(_))) => {
                self.tally.reasserts += 1;
                self.owns(now, &ring.session, record.owner);
                for former in &record.former {
                    let superseded =
                        Superseded { at: now, by: record.owner.token, forgotten: None };
                    self.superseded
                        .entry((ring.session.clone(), former.random))
                        .or_insert(superseded);
                }
                self.written_anew_after_a_partition(now, &ring.session, record.owner.node);
                let mine = self.vulnerable.get(&ring.session).copied();
                // A late command writes the data as they were when it was sent.
                let is_ended = record.status == RecordStatus::Ended;
                let through = ring.first + ring.entries.len() as u64;
                let is_whole = is_ended || self.sent_through(&ring.session, record) < through;
                let mine = mine.filter(|v| is_whole && v.owner.node == record.owner.node);
                if let Some(vulnerable) = mine {
                    self.vulnerable.remove(&ring.session);
                    if self.could_not(&ring.session, vulnerable, now) {
                        self.mended.insert(ring.session.clone(), now);
                    }
                }
            }
            (Command::End(session, _), RedisAnswer::Done(Ok(()))) => {
                self.ends_written.insert(session.clone());
            }
            (Command::Create(session, record), RedisAnswer::Done(Ok(()))) => {
                self.owns(now, session, record.owner);
            }
            (Command::MarkDead(of, ..), RedisAnswer::Marked(Ok(ownership::Marking::Dead))) => {
                self.marked.entry(*of).or_insert(now);
            }
            _ => {}
        }
    }

    /// An owner sends something to a client, or has a tool run, under this token. Returns whether
    /// it is still the owner, according to what its node can know.
    pub(super) fn acts(
        &mut self,
        now: u64,
        session: &SessionId,
        owner: Owner,
        plan: &Plan,
        what: &str,
    ) -> bool {
        let Some(superseded) = self.superseded.get(&(session.clone(), owner.token.random)) else {
            return true;
        };
        let marked = self.marked.get(&owner.node);
        // A node that was marked dead while it runs learns so with its next renewal. If it cannot
        // renew, it acts until its lease ends.
        let renews = plan.renew + 2 * plan.redis_patience;
        let unaware = marked.is_some_and(|at| {
            let cut_off = self.was_impaired(owner.node, *at, now);
            now <= at + if cut_off { plan.lease } else { renews }
        });
        // At most until the lease ends that the deposed primary still renewed.
        let apart = self.split.get(&owner.node);
        let apart = apart.is_some_and(|healed| healed.is_none_or(|at| now <= at + plan.lease));
        // Until its next renewal is answered, the node does not know that its clock stopped. If it
        // cannot renew, it acts until its lease ends by that clock.
        let apart = apart
            || self.frozen.get(&owner.node).is_some_and(|at| {
                let cut_off = self.was_impaired(owner.node, *at, now);
                now <= at + if cut_off { plan.lease } else { renews }
            });
        let apart = apart || self.diverged.contains(session);
        let forgotten = superseded.forgotten;
        let apart = apart
            || forgotten.is_some_and(|at| self.cannot_know_yet(owner.node, at, now, plan.lease));
        if now == superseded.at {
            return true;
        }
        if unaware || apart {
            // The node cannot know that it must not send this to its clients.
            self.forgiven.insert(session.clone());
            self.excuse(session, now, "an owner acted that could not know of its loss");
            return false;
        }
        self.breaks(format!(
            "{what} under {} of {}, {} ms after {} had claimed it",
            short(owner.token),
            session.as_str(),
            now - superseded.at,
            short(superseded.by),
        ));
        false
    }

    /// A tool was run.
    pub(super) fn ran(
        &mut self,
        now: u64,
        at: Incarnation,
        session: &SessionId,
        job: &Job,
        client: Option<&Client>,
    ) {
        self.began.entry(job.call).or_insert(now);
        self.ran_at.entry(job.call).or_default().insert(at);
        let ran = self.ran.entry(job.call).or_default();
        *ran += 1;
        if *ran == 1 {
            return;
        }
        self.tally.reruns += 1;
        if !job.idempotent {
            self.breaks(format!("call {} of {} was run twice", job.call, session.as_str()));
        }
        let call = client.and_then(|client| client.calls.get(&job.call));
        let cancelled = call.and_then(|call| call.cancelled_at);
        if cancelled.is_some() {
            let text = format!("call {} was run again after it was cancelled", job.call);
            self.forgotten(now, session, &text);
        }
        if call.is_some_and(|call| call.asked) {
            let text = format!("call {} was run again after it had asked its client", job.call);
            self.forgotten(now, session, &text);
        }
    }

    /// A client received the answer that its session has ended.
    pub(super) fn ended(&mut self, now: u64, session: SessionId) {
        self.ended.entry(session).or_insert(now);
    }

    /// A node has claimed a session.
    pub(super) fn adopted(&mut self, now: u64, session: &SessionId, owner: Owner) {
        if self.ended.contains_key(session) {
            let text = format!("taken over as {} after it had ended", short(owner.token));
            self.forgotten(now, session, &text);
        }
    }
}
