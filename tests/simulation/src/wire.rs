//! Commands on their way to Redis, and answers on their way back, with their mishaps.

use ownership::{Incarnation, Marking, Presence, PrimaryId};

use super::plan::Trigger;
use super::redis::{Answer, Command};
use super::world::{Happening, Tag, World};

/// The faults of commands to Redis at present, in percent and in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    /// Lost on the way to Redis.
    pub(super) lost: u64,
    /// Executed, and the answer is lost.
    pub(super) unheard: u64,
    /// Executed up to `late_by` later.
    pub(super) late: u64,
    pub(super) late_by: u64,
    /// Executed twice.
    pub(super) twice: u64,
    /// The address of the node that cannot reach Redis.
    pub(super) cut_off: Option<usize>,
}

/// The mishap of one command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mishap {
    /// The command is never executed.
    Lost,
    /// The command is executed, and the answer is lost.
    Unheard,
    /// The command is executed so much later, after the timeout of its sender.
    Late(u64),
    /// The command is executed, and executed again so much later.
    Twice(u64),
    /// The command fails after a part of it is done.
    Half,
}

/// How long a link has been up when the lease of its node surely names it, without faults.
const TELLS: u64 = 3_000;

impl World {
    /// A process sends a command. The result is passed to `answered` or `gave_up`.
    pub(super) fn send(&mut self, from: Incarnation, command: Command) -> Tag {
        self.next_tag += 1;
        let tag = self.next_tag;
        let Some(process) = self.processes.get_mut(&from) else { return tag };
        let slot = process.slot;
        let current = self.redis.current();
        // A connection leads to the server that was the primary when the connection was made.
        let at = process.connected.filter(|_| process.split).unwrap_or(current);
        process.connected = Some(at);
        let sent = process.known_primary().is_none_or(|sent| sent == at);
        if self.rules.told_primary && command.is_for_a_told_primary() && !sent {
            let answer = command.unanswered("another primary");
            self.after(0, Happening::Answered { to: from, tag, answer });
            return tag;
        }
        let weather = self.weather;
        let cut_off = weather.cut_off == Some(slot);
        self.after(self.plan.redis_patience, Happening::GaveUp { to: from, tag });
        if cut_off || self.rng.chance(weather.lost) {
            return tag;
        }
        let brief = command.brief();
        let mishap = self.mishaps.iter().position(|(begins, _)| brief.starts_with(begins));
        let mishap = mishap.map(|index| self.mishaps.remove(index).1);
        let mut receive_event = !self.rng.chance(weather.unheard);
        let mut there = self.rng.between(0, 2);
        match mishap {
            Some(Mishap::Lost) => return tag,
            Some(Mishap::Unheard) => receive_event = false,
            Some(Mishap::Late(millis)) => there += millis,
            Some(Mishap::Twice(millis)) => {
                let command = command.clone();
                let again = self.now + millis;
                self.at(again, Happening::Execute { from, tag, at, command, receive_event: false });
            }
            Some(Mishap::Half) => {
                self.after(there, Happening::BreaksOff { from, tag, at, command });
                return tag;
            }
            None => {}
        }
        if self.rng.chance(weather.late) {
            there += self.rng.below(weather.late_by);
        }
        let there = (self.now + there).max(self.redis.away_until);
        if self.rng.chance(weather.twice) {
            let again = there + self.rng.below(weather.late_by.max(10));
            let command = command.clone();
            self.at(again, Happening::Execute { from, tag, at, command, receive_event: false });
        }
        self.at(there, Happening::Execute { from, tag, at, command, receive_event });
        tag
    }

    pub(super) fn execute(
        &mut self,
        from: Incarnation,
        tag: Tag,
        at: PrimaryId,
        command: Command,
        receive_event: bool,
    ) {
        if self.now < self.redis.away_until {
            let until = self.redis.away_until;
            self.at(until, Happening::Execute { from, tag, at, command, receive_event });
            return;
        }
        let Some(answer) = self.redis.execute(self.now, at, command.clone()) else {
            self.resend(from, tag, command);
            return;
        };
        if at == self.redis.current() {
            self.check_mark(&command, &answer);
            self.checker.executed(self.now, &command, &answer);
        } else {
            // No node relies on a command to a deposed primary whose answer does not reach its
            // process: for example, a copy that arrives late. But a claim begins a second history.
            let process = self.processes.get(&from);
            let learns = process.is_some_and(|process| receive_event && process.waits_for(tag));
            if learns || (process.is_some() && matches!(command, Command::Claim(..))) {
                self.checker.executed_apart(self.now, from, &command, &answer);
            }
        }
        if !matches!(command, Command::Renew(..) | Command::Nodes | Command::Primaries) {
            let (name, of) = (self.name(from), command.session().map(|s| s.as_str().to_owned()));
            self.note(|| {
                let of = of.unwrap_or_default();
                format!("{name} redis {of} {}: {}", command.brief(), answer.brief())
            });
        }
        if let Some(trigger) = self.plan.triggers.first()
            && command.brief().starts_with(trigger.command)
        {
            let Trigger { after, fault, .. } = self.plan.triggers.remove(0);
            self.after(after, Happening::Fault(fault));
        }
        // A known primary is also needed for the answer that a session is missing: see the store's
        // `read`.
        let answer = match (answer, self.processes.get(&from)) {
            (Answer::Read(Ok(None)), Some(process))
                if self.rules.told_primary
                    && process.known_primary().is_some_and(|sent| sent != at) =>
            {
                command.unanswered("another primary")
            }
            // The same holds for a lease that a primary may have forgotten: see the store's
            // `presence`.
            (Answer::Presence(Ok(Presence::Gone)), Some(process))
                if self.rules.told_primary
                    && process.known_primary().is_some_and(|sent| sent != at) =>
            {
                command.unanswered("another primary")
            }
            (answer, _) => answer,
        };
        if receive_event {
            let back = self.rng.between(0, 2);
            self.after(back, Happening::Answered { to: from, tag, answer });
        }
    }

    pub(super) fn break_off(
        &mut self,
        from: Incarnation,
        tag: Tag,
        at: PrimaryId,
        command: Command,
    ) {
        let name = self.name(from);
        self.note(|| format!("{name} redis {} breaks off", command.brief()));
        let answer = command.unanswered("it broke off");
        self.redis.break_off(self.now, at, command);
        let back = self.rng.between(0, 2);
        self.after(back, Happening::Answered { to: from, tag, answer });
    }

    /// A running node that can renew its lease must not be marked dead. The same holds for a node
    /// to which another node has had a link for long enough to name it in its lease, unless another
    /// fault prevented that.
    fn check_mark(&mut self, command: &Command, answer: &Answer) {
        let (Command::MarkDead(of, by, ..), Answer::Marked(Ok(Marking::Dead))) = (command, answer)
        else {
            return;
        };
        let lives = |at: &Incarnation| self.processes.get(at).is_some_and(|at| !at.paused);
        if !lives(of) || self.checker.is_marked(*of) {
            return;
        }
        if self.checker.is_well(self.now, *of) {
            let (of, by) = (self.name(*of), self.name(*by));
            return self.checker.breaks(format!("{by} marked {of} dead, which runs and renews"));
        }
        let linked = self.links.since(*of, self.now.saturating_sub(TELLS));
        let mut others = linked.into_iter().filter(|other| other != by && lives(other));
        let Some(other) = others.find(|other| self.checker.is_well(self.now, *other)) else {
            return;
        };
        let (of, by, other) = (self.name(*of), self.name(*by), self.name(other));
        self.checker.breaks(format!("{by} marked {of} dead, to which {other} had a link"));
    }

    /// The connection of a command is gone: the store's client sends the command again on a new
    /// connection, unless the command is only valid at the primary that its node knew.
    fn resend(&mut self, from: Incarnation, tag: Tag, command: Command) {
        let at = self.redis.current();
        let waits = self.processes.get(&from).is_some_and(|process| {
            let is_judged = self.rules.told_primary && command.is_for_a_told_primary();
            process.waits_for(tag) && (!is_judged || process.known_primary().is_none())
        });
        if waits {
            let after = self.rng.between(5, 60);
            self.after(after, Happening::Execute { from, tag, at, command, receive_event: true });
        }
    }
}
