//! The faults of processes and of Redis with their times: they may excuse a loss.

use ownership::{Error, Expected, Incarnation, Owner, Token};
use protocol::SessionId;

use super::super::client::Call;
use super::super::process::{DOUBT_MS, ON_ITS_WAY};
use super::super::redis::Command;
use super::{Checker, RECOVERY, RedisAnswer, Strike, Superseded, Vulnerable, short};

impl Checker {
    /// The process is paused, cut off or has a faulty Redis until then, and recovers afterwards.
    pub(in super::super) fn impair(&mut self, process: Incarnation, now: u64, until: u64) {
        self.impaired.entry(process).or_default().push((now, until));
    }

    /// The process is stopped, or cut off from Redis, until then.
    pub(in super::super) fn blind(&mut self, process: Incarnation, now: u64, until: u64) {
        self.impair(process, now, until);
        self.blind.entry(process).or_default().push((now, until));
    }

    /// The process stays connected to a former primary.
    pub(in super::super) fn stays(&mut self, process: Incarnation) {
        self.split.insert(process, None);
    }

    /// Whether the process was connected to a former primary at that time.
    pub(in super::super) fn was_split(&self, process: Incarnation, at: u64) -> bool {
        self.split.get(&process).is_some_and(|healed| healed.is_none_or(|healed| at <= healed))
    }

    /// No process is connected to a former primary any more.
    pub(in super::super) fn healed(&mut self, now: u64) {
        for healed in self.split.values_mut() {
            healed.get_or_insert(now);
        }
    }

    /// A fault begins or ends now, or lasts until then.
    pub(in super::super) fn disturbed(&mut self, until: u64) {
        self.disturbed_until = self.disturbed_until.max(until);
    }

    /// Redis failed over to a replica whose clock is behind by this time.
    pub(in super::super) fn clock_is_behind(&mut self, now: u64, millis: u64) {
        self.clocks_behind.push((now, millis));
    }

    /// How much longer, in milliseconds, the leases of dead nodes lasted while the call ran,
    /// because the clock of the new primary was behind that of the former one. Their sessions wait
    /// for that time.
    pub(super) fn leases_stood_longer(&self, call: &Call) -> u64 {
        let ran = call.since..=call.until;
        let behind = self.clocks_behind.iter().filter(|(at, _)| ran.contains(at));
        behind.map(|(_, millis)| millis).sum()
    }

    /// A process starts.
    pub(in super::super) fn started(&mut self, process: Incarnation, now: u64) {
        self.started.insert(process, now);
    }

    /// The time, in milliseconds, in which the call ran and every running process was draining, or
    /// none was running. A process that drains claims nothing. Counted only for a call with a
    /// stream, which the client resumes: a request without a stream ends with the hold time.
    pub(super) fn without_claimant(&self, call: &Call) -> u64 {
        if call.last.is_none() {
            return 0;
        }
        let mut claimants: Vec<(u64, u64)> = self
            .started
            .iter()
            .map(|(process, started)| {
                let ends = [self.died.get(process), self.drained.get(process)];
                (*started, ends.into_iter().flatten().copied().min().unwrap_or(u64::MAX))
            })
            .collect();
        claimants.sort_unstable();
        let (mut covered, mut without) = (call.since, 0);
        for (from, until) in claimants {
            without += from.min(call.until).saturating_sub(covered);
            covered = covered.max(until);
        }
        without + call.until.saturating_sub(covered)
    }

    /// A node has received the answer that its claim under this token was done, or owned the
    /// session before it sent the claim.
    pub(in super::super) fn note_heard_claim(&mut self, token: Token) {
        self.heard_claims.insert(token.random);
    }

    /// Redis forgot the claim of a node that owns the session under this token, and the node did
    /// not receive the answer to that claim: it remains the owner as before.
    pub(in super::super) fn forgot_own_claim(&mut self, session: &SessionId, own: Token) {
        self.superseded.remove(&(session.clone(), own.random));
    }

    /// Whether the node with this token may have acted for the session.
    fn has_heard(&self, token: Token) -> bool {
        token.counter == 1 || self.heard_claims.contains(&token.random)
    }

    /// A node claimed a session of which Redis had forgotten data.
    pub(super) fn claimed_while_vulnerable(&mut self, now: u64, session: &SessionId, new: Owner) {
        let Some(vulnerable) = self.vulnerable.get(session).copied() else { return };
        if vulnerable.owner.node == new.node {
            if self.has_heard(vulnerable.owner.token) {
                self.note_heard_claim(new.token);
            } else {
                // The node repeats its claim: it did not know that it could write the session
                // again.
                let why = "forgotten before its new owner knew of its claim";
                self.excuse(session, vulnerable.since, why);
            }
            self.vulnerable.insert(session.clone(), Vulnerable { owner: new, ..vulnerable });
            return;
        }
        if vulnerable.owner.token == new.token {
            return;
        }
        self.vulnerable.remove(session);
        if !self.has_heard(vulnerable.owner.token) {
            // The node did not learn that it was the owner: no node could write the session again.
            self.excuse(session, vulnerable.since, "forgotten before its owner knew of its claim");
            return;
        }
        if self.could_not(session, vulnerable, now) {
            self.excuse(session, now, "claimed before it was written again");
            let (node, since) = (vulnerable.owner.node, vulnerable.since);
            if self.was_split(node, since) || self.was_blind(node, since) {
                // The former owner continues to act: the record does not show that its token was
                // replaced.
                let superseded = Superseded { at: now, by: new.token, forgotten: Some(since) };
                let forgotten = (session.clone(), vulnerable.owner.token.random);
                self.superseded.entry(forgotten).or_insert(superseded);
            }
        } else if !self.is_excused(session, vulnerable.since) {
            self.breaks(format!(
                "{} was claimed by {} before {} could write again what Redis forgot",
                session.as_str(),
                short(new.token),
                short(vulnerable.owner.token)
            ));
        }
    }

    /// An owner has written a session again after a partition of Redis, or may not know yet that
    /// the partition is over. Another node had claimed the session in that time, and Redis has
    /// forgotten that claim. What only one of the two nodes wrote is lost.
    pub(super) fn written_anew_after_a_partition(
        &mut self,
        now: u64,
        session: &SessionId,
        owner: Incarnation,
    ) {
        let was_apart = self.split.get(&owner);
        let is_back = was_apart.is_some_and(|healed| healed.is_none_or(|at| now <= at + RECOVERY));
        let other = self.vulnerable.get(session).filter(|other| other.owner.node != owner);
        if is_back && other.is_some() {
            self.vulnerable.remove(session);
            self.excuse(session, now, "written again by a node that was apart with a primary");
        }
    }

    /// All faults have ended.
    pub(in super::super) fn calm(&mut self, now: u64) {
        let spans = self.impaired.values_mut().chain(self.blind.values_mut());
        for (_, until) in spans.flatten() {
            *until = now.min(*until);
        }
    }

    /// The process was told to drain.
    pub(in super::super) fn drains(&mut self, process: Incarnation, now: u64) {
        self.drained.insert(process, now);
    }

    /// Whether the process was impaired or recovering at any time between these two times.
    pub(super) fn was_impaired(&self, process: Incarnation, since: u64, now: u64) -> bool {
        let spans = self.impaired.get(&process).into_iter().flatten();
        spans.into_iter().any(|(from, until)| *from <= now && since <= *until + RECOVERY)
    }

    /// Whether the process was stopped, or cut off from Redis, before it could notice what Redis
    /// forgot at that time.
    pub(super) fn was_blind(&self, process: Incarnation, forgot: u64) -> bool {
        self.blind_at(process, forgot).next().is_some()
    }

    /// As [`Checker::was_blind`]; in addition, the process has not noticed it yet, and its lease
    /// may still hold: it renewed the lease when it could last reach Redis.
    pub(super) fn cannot_know_yet(
        &self,
        process: Incarnation,
        forgot: u64,
        now: u64,
        lease: u64,
    ) -> bool {
        let mut spans = self.blind_at(process, forgot);
        spans.any(|(from, until)| now <= (from + lease).min(until + RECOVERY))
    }

    fn blind_at(&self, process: Incarnation, at: u64) -> impl Iterator<Item = &(u64, u64)> {
        let spans = self.blind.get(&process).into_iter().flatten();
        spans.filter(move |(from, until)| *from <= at + RECOVERY && at <= *until)
    }

    /// Whether the process read at a former primary that the session does not exist, so recently
    /// that it may not have answered its client yet. It first waits for the next renewal, which the
    /// new primary may answer.
    pub(in super::super) fn has_missed_apart(
        &self,
        now: u64,
        process: Incarnation,
        session: &SessionId,
    ) -> bool {
        let missed = self.missed_apart.get(&(process, session.clone()));
        missed.is_some_and(|at| now <= at + DOUBT_MS + ON_ITS_WAY)
    }

    /// An owner begins to end a session that its client deleted.
    pub(in super::super) fn begins_to_end(&mut self, session: &SessionId, owner: Incarnation) {
        self.ends_begun.insert(session.clone(), owner);
    }

    /// Whether an owner that had begun to end the session died so recently that its earlier
    /// messages may still be on their way to a client of this ingress.
    pub(in super::super) fn had_begun_to_end(
        &self,
        now: u64,
        session: &SessionId,
        ingress: Incarnation,
    ) -> bool {
        let owner = self.ends_begun.get(session);
        let Some(died) = owner.and_then(|owner| self.died.get(owner)) else { return false };
        let mut stood_still = self.impaired.get(&ingress).into_iter().flatten();
        now < died + ON_ITS_WAY || stood_still.any(|span| tells_late(span, *died, now))
    }

    /// A node may learn that it is deposed. In a partition of Redis, it may have accepted calls
    /// long after another node had claimed the session.
    pub(super) fn may_be_deposed(&mut self, now: u64, command: &Command, answer: &RedisAnswer) {
        let (RedisAnswer::Appended(Err(Error::Fenced(_)))
        | RedisAnswer::Saved(Err(Error::Fenced(_)))) = answer
        else {
            return;
        };
        let token = match command {
            Command::Append(batch) => batch.token,
            Command::Reassert(record, _) => record.owner.token,
            Command::Save(_, token, _) | Command::ExtendState(_, token, _) => *token,
            _ => return,
        };
        let Some(session) = command.session().cloned() else { return };
        let vulnerable = self.vulnerable.get(&session).copied();
        let vulnerable = vulnerable.filter(|vulnerable| vulnerable.owner.token == token);
        if vulnerable.is_some_and(|vulnerable| self.could_not(&session, vulnerable, now)) {
            // Another node had claimed the session before. If the primary needs no replica, the
            // deposed primary continued to accept events, and calls continued with them.
            self.vulnerable.remove(&session);
            self.excuse(&session, now, "written at a deposed primary");
        }
        let strike = Strike { began_by: now, at: now };
        self.strikes.entry(session).or_default().push(strike);
    }

    /// The owner of a session learns, at a primary of a partition, that its session has ended: its
    /// earlier command to end the session had no answer but was executed there. No other node sees
    /// this end.
    pub(super) fn finds_its_end_apart(
        &mut self,
        now: u64,
        from: Incarnation,
        command: &Command,
        answer: &RedisAnswer,
    ) {
        let token = match (command, answer) {
            (Command::End(_, token), RedisAnswer::Done(Err(Error::Ended))) => *token,
            (
                Command::Claim(_, Expected::Token(token), new),
                RedisAnswer::Claimed(Err(Error::Ended)),
            ) if new.node == from => *token,
            (Command::Reassert(record, _), RedisAnswer::Appended(Err(Error::Ended))) => {
                record.owner.token
            }
            _ => return,
        };
        let Some(session) = command.session() else { return };
        let others = self.vulnerable.get(session).is_some_and(|other| other.owner.node != from);
        if self.ends_begun.get(session) == Some(&from) && !others {
            self.forgot(session, Owner { token, node: from }, true, now);
        }
    }

    /// Whether a process that was stopped at that time has just resumed. It now sends what it
    /// learned before.
    pub(super) fn has_just_woken(&self, at: u64, now: u64) -> bool {
        let mut spans = self.impaired.values().flatten();
        spans.any(|span| tells_late(span, at, now))
    }

    /// Redis may have forgotten data.
    pub(in super::super) fn changed_at(&mut self, now: u64) {
        self.changed_at = Some(now);
    }

    /// Whether no fault prevents the process from renewing at Redis, and Redis from keeping its
    /// lease.
    pub(in super::super) fn is_well(&self, now: u64, process: Incarnation) -> bool {
        let impaired = self.was_impaired(process, now, now);
        let changed = self.changed_at.is_some_and(|at| now <= at + RECOVERY);
        !impaired && !changed && !self.split.contains_key(&process)
    }
}

/// Whether a process that was stopped in this span now processes what arrived at that time.
fn tells_late((from, until): &(u64, u64), at: u64, now: u64) -> bool {
    *from <= at + 200 && (*until..*until + 200).contains(&now)
}
