//! What was promised, held against what every client saw and every tool did.

use std::collections::{BTreeMap, BTreeSet};

use conversation::{Answer, EventId, Refusal};
use protocol::SessionId;
use store::{Batch, Incarnation, Owner, Token};

use super::client::{Client, Fate, Phase, Told};
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
}

/// How long a process may need to make up for what it missed.
const RECOVERY: u64 = 3_000;

#[derive(Debug, Default)]
pub(super) struct Checker {
    /// The first promise that was broken.
    pub(super) broken: Option<String>,
    /// Sessions of which something may be lost, and why.
    pub(super) excused: BTreeMap<SessionId, &'static str>,
    vulnerable: BTreeMap<SessionId, Vulnerable>,
    /// When what nobody could put back in time was last put back.
    mended: BTreeMap<SessionId, u64>,
    pub(super) evicted: BTreeSet<SessionId>,
    /// When Redis last forgot something, or another took its place.
    changed_at: Option<u64>,
    /// Until when processes are paused, cut off, or served badly by Redis.
    impaired: BTreeMap<Incarnation, u64>,
    /// Processes that stayed with a former primary.
    pub(super) split: BTreeSet<Incarnation>,
    /// Sessions that were claimed at a primary that nobody else has any more.
    diverged: BTreeSet<SessionId>,
    /// Processes whose clock stood still.
    pub(super) frozen: BTreeSet<Incarnation>,
    pub(super) machine_gone: BTreeSet<usize>,
    superseded: BTreeMap<(SessionId, u64), Superseded>,
    /// Processes that were marked dead while they lived, and when.
    marked: BTreeMap<Incarnation, u64>,
    /// How often each call was run.
    ran: BTreeMap<u64, u64>,
    /// Every event that an owner told to a connection, by stream: from then on it is not lost.
    told: BTreeMap<(SessionId, u64), BTreeMap<u64, EventId>>,
    ended: BTreeMap<SessionId, u64>,
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

    /// A client misses what it was promised to find. Some of that may be.
    pub(super) fn forgotten(&mut self, now: u64, session: &SessionId, text: &str) {
        if self.excused.contains_key(session) {
            return;
        }
        // It was put back while somebody was being told that it is not there.
        if self.mended.get(session).is_some_and(|at| now < at + 200) {
            return;
        }
        let vulnerable = self.vulnerable.get(session).copied();
        if vulnerable.is_some_and(|vulnerable| self.could_not(session, vulnerable)) {
            self.excused.insert(session.clone(), "nobody could put it back in time");
            return;
        }
        self.breaks(format!("{text} ({})", session.as_str()));
    }

    /// The process is paused, cut off or served badly until then, and needs a moment more.
    pub(super) fn impair(&mut self, process: Incarnation, until: u64) {
        let known = self.impaired.entry(process).or_default();
        *known = until.saturating_add(RECOVERY).max(*known);
    }

    /// Redis may have forgotten something.
    pub(super) fn changed_at(&mut self, now: u64) {
        self.changed_at = Some(now);
    }

    /// Did nothing keep the process from telling Redis of itself, nor Redis from knowing it?
    pub(super) fn is_well(&self, now: u64, process: Incarnation) -> bool {
        let impaired = self.impaired.get(&process).is_some_and(|until| now <= *until);
        let changed = self.changed_at.is_some_and(|at| now <= at + RECOVERY);
        !impaired && !changed && !self.split.contains(&process)
    }

    pub(super) fn is_marked(&self, process: Incarnation) -> bool {
        self.marked.contains_key(&process)
    }

    /// Could nobody put back what Redis forgot?
    fn could_not(&self, session: &SessionId, vulnerable: Vulnerable) -> bool {
        let impaired = self.impaired.get(&vulnerable.owner.node);
        self.evicted.contains(session) || impaired.is_some_and(|until| *until >= vulnerable.since)
    }

    /// Redis has forgotten something of a session; its owner may put it back.
    pub(super) fn forgot(&mut self, session: &SessionId, owner: Owner, alive: bool, now: u64) {
        if !alive {
            self.excused.insert(session.clone(), "forgotten while it had no owner");
            return;
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
            self.excused.insert(session.clone(), "claimed at a primary that nobody else has");
            self.diverged.insert(session.clone());
            return;
        }
        self.forgot(session, owner, true, now);
    }

    /// A node that stays with a former primary tells a client something. While its lease
    /// `holds` it may say of a session that it is unknown, which was made since.
    pub(super) fn told_apart(&mut self, session: SessionId, told: &Told, holds: bool) {
        let Told::Answer(Answer::Refused(refusal)) = told else { return };
        if holds || *refusal != Refusal::UnknownSession {
            self.excused.insert(session, "asked for at a node that stayed with a former primary");
        }
    }

    /// A process is gone.
    pub(super) fn died(&mut self, process: &Process, _now: u64) {
        let mine: Vec<SessionId> = self
            .vulnerable
            .iter()
            .filter(|(_, vulnerable)| vulnerable.owner.node == process.incarnation)
            .map(|(session, _)| session.clone())
            .collect();
        for session in mine {
            self.vulnerable.remove(&session);
            self.excused.insert(session, "its owner died before it put it back");
        }
    }

    /// Redis has done something.
    pub(super) fn executed(&mut self, now: u64, command: &Command, answer: &RedisAnswer) {
        match (command, answer) {
            (Command::Claim(session, _, new), RedisAnswer::Claimed(Ok(claimed))) => {
                self.tally.claims += 1;
                for former in &claimed.record.former {
                    let superseded = Superseded { at: now, by: new.token };
                    self.superseded.entry((session.clone(), former.random)).or_insert(superseded);
                }
                let Some(vulnerable) = self.vulnerable.get(session).copied() else { return };
                if vulnerable.owner.node == new.node {
                    self.vulnerable
                        .insert(session.clone(), Vulnerable { owner: *new, ..vulnerable });
                    return;
                }
                if vulnerable.owner.token == new.token {
                    return;
                }
                self.vulnerable.remove(session);
                if self.excused.contains_key(session) {
                    return;
                }
                if self.could_not(session, vulnerable) {
                    self.excused.insert(session.clone(), "claimed before it was put back");
                } else {
                    self.breaks(format!(
                        "{} was claimed by {} before {} could put back what Redis forgot",
                        session.as_str(),
                        short(new.token),
                        short(vulnerable.owner.token)
                    ));
                }
            }
            (Command::Reassert(record, ring), RedisAnswer::Appended(Ok(_))) => {
                self.tally.reasserts += 1;
                for former in &record.former {
                    let superseded = Superseded { at: now, by: record.owner.token };
                    self.superseded
                        .entry((ring.session.clone(), former.random))
                        .or_insert(superseded);
                }
                let mine = self.vulnerable.get(&ring.session).copied();
                if let Some(vulnerable) = mine.filter(|v| v.owner.node == record.owner.node) {
                    self.vulnerable.remove(&ring.session);
                    if self.could_not(&ring.session, vulnerable) {
                        self.mended.insert(ring.session.clone(), now);
                    }
                }
            }
            (Command::MarkDead(of, _), RedisAnswer::Marked(Ok(store::Marking::Dead))) => {
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
            let cut_off = self.impaired.get(&owner.node).is_some_and(|until| until >= at);
            now <= at + if cut_off { plan.lease } else { renews }
        });
        let apart = self.split.contains(&owner.node) || self.frozen.contains(&owner.node);
        let apart = apart || self.diverged.contains(session);
        if now == superseded.at {
            return true;
        }
        if unaware || apart {
            // What it tells its clients now, it cannot know better.
            self.excused.insert(session.clone(), "an owner acted that could not know better");
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

    /// An owner writes an event to a connection, so the log holds it.
    pub(super) fn told(&mut self, session: &SessionId, id: EventId) {
        let stream = self.told.entry((session.clone(), id.stream)).or_default();
        stream.insert(id.number, id);
    }

    /// A tool was run.
    pub(super) fn ran(
        &mut self,
        now: u64,
        session: &SessionId,
        job: &Job,
        client: Option<&Client>,
    ) {
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
    }

    /// A client was told that its session has ended.
    pub(super) fn ended(&mut self, now: u64, session: SessionId) {
        self.ended.entry(session).or_insert(now);
    }

    pub(super) fn known_ends(&self) -> Vec<SessionId> {
        self.ended.keys().cloned().collect()
    }

    /// Somebody has been given a session.
    pub(super) fn adopted(&mut self, now: u64, session: &SessionId, owner: Owner) {
        if self.ended.contains_key(session) {
            let text = format!("taken over as {} after it had ended", short(owner.token));
            self.forgotten(now, session, &text);
        }
    }

    /// A stream has come to its end: has its client got all that was told on it?
    fn check_told(&mut self, client: &Client, session: &SessionId, last: EventId) {
        let Some(told) = self.told.get(&(session.clone(), last.stream)) else { return };
        let missed = told.range(..=last.number).find(|(_, id)| !client.has_seen(id));
        if let Some((_, missed)) = missed {
            let text = format!(
                "client {} never got event {missed} of {}",
                client.number,
                session.as_str()
            );
            self.breaks(text);
        }
    }

    /// All is calm: has everybody got what was promised?
    pub(super) fn check_client(&mut self, client: &Client, plan: &Plan) {
        let session = client.session.clone();
        let excused = session.as_ref().is_some_and(|session| self.excused.contains_key(session));
        self.tally.excused += u64::from(excused);
        if client.phase == Phase::New {
            self.breaks(format!("client {} never got a session", client.number));
        }
        for (number, call) in &client.calls {
            self.tally.calls += 1;
            match call.fate {
                Fate::Result => self.tally.results += 1,
                Fate::Error => self.tally.errors += 1,
                Fate::Lost => self.tally.lost += 1,
                Fate::Open | Fate::Cancelled | Fate::Gone => {}
            }
            if excused || client.phase != Phase::Live {
                continue;
            }
            if let (Fate::Result | Fate::Error, Some(last), Some(session)) =
                (call.fate, call.last, &session)
            {
                self.check_told(client, session, last);
            }
            let took = call.until.saturating_sub(call.since);
            if matches!(call.fate, Fate::Result | Fate::Error) && took > plan.answers_within {
                self.breaks(format!("the last word on call {number} took {took} ms"));
            }
            if call.fate == Fate::Open {
                self.breaks(format!("call {number} of {session:?} never got its last word"));
            }
            if call.since >= plan.probe_at && call.fate != Fate::Result {
                let fate = call.fate;
                self.breaks(format!(
                    "{session:?} is not usable when all is calm: call {number} ended {fate:?}"
                ));
            }
        }
    }
}
