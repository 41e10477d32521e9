//! What was promised, held against what every client saw and every tool did.

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

/// Something of a session that Redis forgot, and that its owner has not put back yet.
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
    /// When Redis forgot the claim of the owner, which is not in the record since.
    forgotten: Option<u64>,
}

/// Why something of a session may be lost, and since when it may be.
#[derive(Clone, Copy, Debug)]
struct Excuse {
    at: u64,
    why: &'static str,
}

/// A moment at which a session lost its owner.
#[derive(Clone, Copy, Debug)]
struct Strike {
    /// Calls that began later were not at the former owner.
    began_by: u64,
    /// Calls that ended earlier were not affected.
    at: u64,
}

/// How long, in milliseconds, a process may need after a fault until it knows of it and has
/// repeated what failed: one renewal, and the time that one command is waited for.
const RECOVERY: u64 = 1_300;

/// How long, in milliseconds, a healthy owner may need to write anew what a failover forgot:
/// one renewal (1 s, on a clock that may be slow), which tells it of the failover, and some
/// round trips.
const PUT_BACK: u64 = 1_300;

/// How long, in milliseconds, a call may take besides the hold, its own work and the waits of
/// its client: detecting the loss of its owner, starting the server, and round trips.
const OVERHEAD: u64 = 5_000;

/// How long, in milliseconds, calls are still sent to a node whose machine is gone: until the
/// silence of its links is noticed.
const NOTICED: u64 = 1_200;

/// How long, in milliseconds, a drained node goes on for those that still wait there.
const END_GRACE: u64 = 10_000;

/// How long, in milliseconds, after the newest fault everything works again: a lease is over and
/// its session is claimed, a command that was late has come, and a back-off has ended.
const SETTLED: u64 = 12_000;

#[derive(Debug, Default)]
pub(super) struct Checker {
    /// The first promise that was broken.
    pub(super) broken: Option<String>,
    /// Sessions of which something that began by then may be lost.
    excused: BTreeMap<SessionId, Excuse>,
    /// Sessions whose excuse was needed.
    forgiven: BTreeSet<SessionId>,
    vulnerable: BTreeMap<SessionId, Vulnerable>,
    /// When what nobody could put back in time was last put back.
    mended: BTreeMap<SessionId, u64>,
    pub(super) evicted: BTreeSet<SessionId>,
    /// When Redis last forgot something, or another took its place.
    changed_at: Option<u64>,
    /// From when until when processes are paused, cut off, or served badly by Redis.
    impaired: BTreeMap<Incarnation, Vec<(u64, u64)>>,
    /// Of these times, those in which nothing that Redis says reaches the process.
    blind: BTreeMap<Incarnation, Vec<(u64, u64)>>,
    /// Processes that stayed with a former primary, and when that was over.
    split: BTreeMap<Incarnation, Option<u64>>,
    /// The random parts of the tokens whose claims were answered: their nodes know of them.
    heard_claims: BTreeSet<u64>,
    /// The last known owner of each session, by what Redis has accepted.
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
    /// Sessions that were claimed at a primary that nobody else has any more.
    diverged: BTreeSet<SessionId>,
    /// Processes whose clock stood still, and until when.
    pub(super) frozen: BTreeMap<Incarnation, u64>,
    pub(super) machine_gone: BTreeSet<usize>,
    superseded: BTreeMap<(SessionId, u64), Superseded>,
    /// Processes that were marked dead while they lived, and when.
    marked: BTreeMap<Incarnation, u64>,
    /// When each call was run first.
    began: BTreeMap<u64, u64>,
    /// How often each call was run.
    ran: BTreeMap<u64, u64>,
    /// The nodes at which each call was run.
    ran_at: BTreeMap<u64, BTreeSet<Incarnation>>,
    /// Every event that an owner told to a connection, by stream: from then on it is not lost.
    sent: BTreeMap<(SessionId, u64), BTreeMap<u64, EventId>>,
    /// The number of the newest event that was told, by the random part of the token under which.
    sent_by: BTreeMap<(SessionId, u64), u64>,
    ended: BTreeMap<SessionId, u64>,
    /// Sessions whose end was written, whether or not their client knows it.
    pub(super) ends_written: BTreeSet<SessionId>,
    /// When the newest fault is over.
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
    /// How often an ingress could not reach an owner in time.
    pub(super) gave_up: u64,
    pub(super) tally: Tally,
}

/// What happened, for the summary of many runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Calls that were made.
    pub calls: u64,
    /// Of these: answered with a result.
    pub results: u64,
    /// Answered with an error.
    pub errors: u64,
    /// Broken off before there was anything to come back to.
    pub lost: u64,
    /// Sessions claimed.
    pub claims: u64,
    /// Sessions written anew.
    pub reasserts: u64,
    /// Calls that were run again.
    pub reruns: u64,
    /// Sessions of which something was lost that may be.
    pub excused: u64,
}

impl Checker {
    pub(super) fn breaks(&mut self, text: String) {
        self.broken.get_or_insert(text);
    }

    /// Something of the session may be lost that began by now.
    fn excuse(&mut self, session: &SessionId, now: u64, why: &'static str) {
        if self.excused.get(session).is_none_or(|excuse| excuse.at <= now) {
            self.excused.insert(session.clone(), Excuse { at: now, why });
        }
    }

    /// May something of the session be lost that began at that time?
    fn is_excused(&self, session: &SessionId, since: u64) -> bool {
        // Of two histories, the one that is dropped may go on for long.
        self.diverged.contains(session)
            || self.excused.get(session).is_some_and(|excuse| since <= excuse.at)
    }

    /// A client misses what it was promised to find. Some of that may be.
    pub(super) fn forgotten(&mut self, now: u64, session: &SessionId, text: &str) {
        self.forgotten_since(now, session, 0, text);
    }

    /// As [`Checker::forgotten`], of something that began at a known time.
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
            self.excuse(session, now, "no process could write it anew in time");
            return;
        }
        let older = self.older_excuse(session);
        self.breaks(format!("{text} ({}{older})", session.as_str()));
    }

    /// Was the session put back while a client was being told that it is not there?
    fn was_just_mended(&self, session: &SessionId, now: u64) -> bool {
        let mended = self.mended.get(session);
        mended.is_some_and(|at| now < at + 200 || self.has_just_woken(*at, now))
    }

    /// Says what is excused of a session, where a broken promise is not.
    fn older_excuse(&self, session: &SessionId) -> String {
        let excuse = self.excused.get(session);
        let older = excuse.map(|Excuse { at, why }| format!("; {why}, but only until {at} ms"));
        older.unwrap_or_default()
    }

    /// A client was refused because its session or the store could not be reached for long.
    pub(super) fn timed_out(&mut self, now: u64, client: usize, text: &str) {
        if now > self.disturbed_until + SETTLED {
            let calm = now - self.disturbed_until;
            self.breaks(format!("client {client} was refused, {calm} ms after any fault: {text}"));
        }
    }

    /// A living node cut the GET stream of a client that had asked for the end of its session.
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

    /// Could nobody put back what Redis forgot?
    fn could_not(&self, session: &SessionId, vulnerable: Vulnerable, now: u64) -> bool {
        // An owner notices an eviction only when it writes next.
        self.evicted.contains(session)
            || self.was_impaired(vulnerable.owner.node, vulnerable.since, now)
    }

    /// Redis has forgotten something of a session; its owner may put it back.
    pub(super) fn forgot(&mut self, session: &SessionId, owner: Owner, alive: bool, now: u64) {
        if !alive {
            self.excuse(session, now, "forgotten while it had no owner");
            return;
        }
        let former = self.vulnerable.get(session).copied();
        if let Some(former) = former.filter(|former| former.owner.node != owner.node)
            && self.could_not(session, former, now)
        {
            // The newest owner could not reach Redis since it forgot the session; one that it had
            // replaced, and that could not know, wrote the session anew as it had been before.
            self.excuse(session, former.since, "written anew only by a former owner");
        }
        self.vulnerable.insert(session.clone(), Vulnerable { owner, since: now });
    }

    /// A primary did something that is none any more for everybody else: it will be forgotten.
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
            | (Command::Save(_, token, _), RedisAnswer::Saved(Ok(_)))
            | (Command::Release(_, token) | Command::End(_, token), RedisAnswer::Done(Ok(()))) => {
                Owner { token: *token, node: from }
            }
            _ => return,
        };
        let Some(session) = command.session() else { return };
        if matches!(command, Command::Claim(..)) {
            // From here on there are two histories, and one of them is dropped.
            self.excuse(session, now, "claimed at a primary that nobody else has");
            self.diverged.insert(session.clone());
            return;
        }
        // After a release no node is left that could put it back.
        let is_owned = !matches!(command, Command::Release(..));
        self.forgot(session, owner, is_owned, now);
    }

    /// A node that stays with a former primary tells a client something. While its lease
    /// `holds` it may say of a session that it is unknown, which was made since.
    pub(super) fn sent_while_apart(
        &mut self,
        now: u64,
        session: &SessionId,
        sent: &ClientEvent,
        holds: bool,
    ) {
        let ClientEvent::Answer(Answer::Refused(refusal)) = sent else { return };
        if holds || *refusal != Refusal::UnknownSession {
            self.excuse(session, now, "asked for at a node that stayed with a former primary");
        }
    }

    /// A node has found that a session is unknown. That is excused where its owner could not put
    /// back yet what Redis forgot, and at a node that stays with a former primary (`is_apart`).
    pub(super) fn found_no_record(&mut self, now: u64, session: &SessionId, is_apart: bool) {
        let vulnerable = self.vulnerable.get(session).copied();
        if vulnerable.is_some_and(|vulnerable| self.could_not(session, vulnerable, now)) {
            self.excuse(session, now, "no process could write it anew in time");
        } else if self.was_just_mended(session, now) {
            self.excuse(session, now, "written anew while it was looked for");
        } else if is_apart {
            self.excuse(session, now, "asked for at a node that stayed with a former primary");
        }
    }

    /// A process is gone. What Redis forgot shortly before, or while the process could not
    /// put it back, may be lost.
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
            // It may have claimed the session without learning of it.
            let had = process.sessions.contains_key(&session) || process.has_tombstone(&session);
            let late = now > vulnerable.since + PUT_BACK;
            if had && late && !self.could_not(&session, vulnerable, now) {
                self.breaks(format!(
                    "the owner of {} had not put back after {} ms what Redis forgot",
                    session.as_str(),
                    now - vulnerable.since,
                ));
            }
            self.excuse(&session, now, "its owner died before it put it back");
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

    /// A link broke: a node does not know what became of the calls that it had sent over it.
    pub(super) fn link_broke(&mut self, now: u64, one: Incarnation, other: Incarnation) {
        self.broken_links.push((now, one, other));
    }

    /// Has the process drained for so long that it ends, whoever still waits there?
    pub(super) fn is_leaving(&self, now: u64, process: Incarnation, plan: &Plan) -> bool {
        let drained = self.drained.get(&process);
        drained.is_some_and(|at| now >= at + plan.drain + END_GRACE)
    }

    /// Redis has done something.
    pub(super) fn executed(&mut self, now: u64, command: &Command, answer: &RedisAnswer) {
        self.may_be_deposed(now, command, answer);
        match (command, answer) {
            (Command::Read(session), RedisAnswer::Read(Ok(None)))
                if self.evicted.contains(session) && self.vulnerable.contains_key(session) =>
            {
                self.found_evicted.entry(session.clone()).or_default().push(now);
            }
            // Its record was evicted, and its owner lost its lease before it noticed: for all that
            // it can know, another node has ended the session.
            (Command::Claim(session, ..), RedisAnswer::Claimed(Err(Error::Missing)))
                if self.evicted.contains(session) =>
            {
                self.excuse(session, now, "evicted while the lease of its owner lapsed");
            }
            (Command::Claim(session, expected, new), RedisAnswer::Claimed(Ok(claimed))) => {
                self.tally.claims += 1;
                let is_other = self.owners.get(session).is_none_or(|owner| owner.node != new.node);
                if *expected == Expected::Released {
                    // Its owner left with nothing in hand.
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
                // One that comes late puts back what was there when it was sent.
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

    /// An owner tells a client something, or has a tool run, under this token. Is it still
    /// the owner, as far as anybody can know?
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
        // Marked dead while it lives, it learns so with its next renewal; or, where it cannot
        // renew, by its lease, which ends.
        let renews = plan.renew + 2 * plan.redis_patience;
        let unaware = marked.is_some_and(|at| {
            let cut_off = self.was_impaired(owner.node, *at, now);
            now <= at + if cut_off { plan.lease } else { renews }
        });
        // At most until the lease is over that the deposed primary still renewed.
        let apart = self.split.get(&owner.node);
        let apart = apart.is_some_and(|healed| healed.is_none_or(|at| now <= at + plan.lease));
        // Until its next renewal is answered, it does not know that its clock stood still; where
        // it cannot renew, until its lease is over by that clock.
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
            // What it tells its clients now, it cannot know better.
            self.forgiven.insert(session.clone());
            self.excuse(session, now, "an owner acted that could not know better");
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

    /// A client was told that its session has ended.
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
