//! The owner of a rate: divides the rate, and the tokens that are kept for later, among the nodes.
//!
//! While the tokens suffice for what all nodes ask for, the owner keeps a part of them, and gives it to
//! the first node that needs it: a new one, or one with a sudden demand.
//!
//! The tokens of all nodes and of the owner's reserve are never more than the burst. What nodes report as
//! left, and what they get, is counted, so a node that used more than it had gets less later. A node gets
//! only what no other one holds at that time: its share may come an interval later than it could.

use std::time::Duration;

use super::division::divide;
use super::{Grant, INTERVAL, Member, Rate, Report, SILENT, VALID};

/// How much of a lower demand counts at once. A higher one counts for half.
const FALL: f64 = 0.2;

/// The part of the rate that is divided equally among nodes with little demand. Their next requests find
/// tokens then: while the limit is not used up, a node gets far more than it asked for last.
const RESERVED: f64 = 0.02;

/// The part of the tokens that the owner keeps while they suffice.
const KEPT: f64 = 0.25;

/// How long an owner that may follow a lost one waits for nodes that had a share. They report once in an
/// interval.
const DOUBT: Duration = Duration::from_millis(200);

/// The owner of one rate.
#[derive(Clone, Debug)]
pub struct RateOwner {
    rate: Rate,
    /// The tokens that no node has.
    reserve: f64,
    at: Duration,
    began: Duration,
    /// A former owner gave shares that this one does not know.
    takes_over: bool,
    /// Until then a node may report that it had a share of a former owner.
    in_doubt_until: Option<Duration>,
    /// The number of the last share.
    shares: u64,
    reporters: Vec<Reporter>,
}

#[derive(Clone, Copy, Debug)]
struct Reporter {
    node: u64,
    demand: f64,
    /// The tokens for each second that clients asked for since the report before.
    asked: f64,
    level: f64,
    per_sec: f64,
    reported_at: Duration,
    /// When the node last got a whole token.
    served_at: Duration,
    /// The number of the last share, and the tokens that the node gives back with it.
    share: (u64, f64),
}

impl Reporter {
    fn is_valid(&self, now: Duration) -> bool {
        now <= self.reported_at + VALID
    }

    /// The tokens that the node needs until its next report.
    fn needed(&self) -> f64 {
        match self.asked > 0.0 {
            true => (self.asked.max(self.demand) * INTERVAL.as_secs_f64()).ceil(),
            false => 0.0,
        }
    }
}

impl RateOwner {
    /// The owner of this rate, which knows no node yet. The first report tells whether tokens may be
    /// missing.
    pub fn new(rate: Rate, now: Duration) -> Self {
        let reporters = Vec::new();
        let (reserve, takes_over, shares) = (rate.burst, false, 0);
        let in_doubt_until = None;
        Self { rate, reserve, at: now, began: now, takes_over, in_doubt_until, shares, reporters }
    }

    /// The owner of this rate, perhaps in place of a node that was just lost. The first node that reports
    /// may be one that had no share, so the burst is kept until all have had the time to report.
    pub fn after_loss(rate: Rate, now: Duration) -> Self {
        let reserve = (rate.per_sec * INTERVAL.as_secs_f64()).max(1.0).min(rate.burst);
        Self { reserve, in_doubt_until: Some(now + DOUBT), ..Self::new(rate, now) }
    }

    /// Whether nothing is lost when this is forgotten: no node has reported until all tokens were there
    /// again.
    pub fn is_forgettable(&self, now: Duration) -> bool {
        let quiet = now.saturating_sub(self.at);
        match self.full_in(now) {
            Some(rest) => rest.is_zero() && quiet >= SILENT,
            None => quiet >= self.time_of(self.rate.burst).max(SILENT),
        }
    }

    /// The time until all tokens are there again, if no node has a share. `None`: a node may have one.
    pub fn full_in(&self, now: Duration) -> Option<Duration> {
        if !self.reporters.is_empty() {
            return None;
        }
        let missing = self.time_of(self.rate.burst - self.reserve);
        Some(missing.saturating_sub(now.saturating_sub(self.at)))
    }

    /// The time in which so many tokens are added.
    fn time_of(&self, tokens: f64) -> Duration {
        Duration::try_from_secs_f64(tokens.max(0.0) / self.rate.per_sec).unwrap_or(Duration::MAX)
    }

    /// Takes a node's report, and returns the node's share. `members` are the live nodes, `rate` the limit
    /// as the node knows it.
    pub fn report(
        &mut self,
        from: u64,
        report: Report,
        rate: Rate,
        members: &[Member],
        now: Duration,
    ) -> Grant {
        if self.rate != rate {
            self.rate = rate;
            // The tokens of another rate are none of this one.
            self.reporters.iter_mut().for_each(|reporter| reporter.share.1 = 0.0);
        }
        let is_new = self.reporters.is_empty() && self.at == self.began;
        // Nodes had demand, and nothing was heard of any: this node was frozen, or owns the limit again.
        let was_away = !self.reporters.is_empty() && now.saturating_sub(self.at) > VALID;
        if (is_new && report.had_share) || was_away {
            (self.takes_over, self.began, self.at) = (true, now, now);
            self.reserve = 0.0;
            self.reporters.clear();
        }
        self.end_doubt(from, report, now);
        self.forget(members, now);
        self.undo(from, report.applied);
        self.fill(members, now);
        if report.is_last {
            self.reporters.retain(|reporter| reporter.node != from);
            self.reserve = (self.reserve + report.level).min(self.room());
            return Grant::default();
        }
        let at = self.note(from, report, now);
        let grant = self.grant(at, members, now);
        self.shares += 1;
        self.reporters[at].share = (self.shares, -grant.tokens);
        Grant { number: self.shares, ..grant }
    }

    /// Takes over if a node had a share of another owner, and has the whole burst if none had.
    fn end_doubt(&mut self, from: u64, report: Report, now: Duration) {
        let Some(until) = self.in_doubt_until else { return };
        let is_unknown = !self.reporters.iter().any(|reporter| reporter.node == from);
        if report.had_share && is_unknown {
            (self.takes_over, self.in_doubt_until) = (true, None);
            self.reserve = self.reserve.min(0.0);
        } else if now >= until {
            self.in_doubt_until = None;
            self.reserve += self.rate.burst;
        }
    }

    /// A node that did not get its last share has the tokens that it would have given back.
    fn undo(&mut self, from: u64, applied: u64) {
        let known = self.reporters.iter().find(|reporter| reporter.node == from);
        if let Some(Reporter { share: (number, given_back), .. }) = known
            && *number != applied
        {
            self.reserve -= given_back.max(0.0);
        }
    }

    /// The position of the node's report.
    fn note(&mut self, from: u64, report: Report, now: Duration) -> usize {
        let known = self.reporters.iter().position(|reporter| reporter.node == from);
        let Report { demand, level, .. } = report;
        match known {
            Some(at) => {
                let reporter = &mut self.reporters[at];
                let weight = if demand > reporter.demand { 0.5 } else { FALL };
                reporter.demand += weight * (demand - reporter.demand);
                reporter.asked = demand;
                (reporter.level, reporter.reported_at) = (level, now);
                at
            }
            None => {
                let (per_sec, served_at) = (0.0, Duration::ZERO);
                self.reporters.push(Reporter {
                    node: from,
                    demand,
                    asked: demand,
                    level,
                    per_sec,
                    reported_at: now,
                    served_at,
                    share: (0, 0.0),
                });
                self.reporters.len() - 1
            }
        }
    }

    fn grant(&mut self, at: usize, members: &[Member], now: Duration) -> Grant {
        let active = |reporter: &Reporter| reporter.is_valid(now);
        let nodes = self.reporters.iter().filter(|r| active(r)).count();
        let least = self.rate.per_sec * RESERVED / nodes as f64;
        let demand = |reporter: &Reporter| reporter.demand.max(least);
        let demands: Vec<f64> = self.reporters.iter().filter(|r| active(r)).map(demand).collect();
        let position = self.reporters[..at].iter().filter(|r| active(r)).count();
        let weight = demands[position] / demands.iter().sum::<f64>();
        self.reserve = self.reserve.min(self.room());
        if self.rate.is_of_whole_tokens() {
            return self.grant_whole(at, weight, now);
        }
        let free = self.rate.per_sec - self.held_by_absent(members, now);
        let others: f64 = self.reporters.iter().filter(|r| active(r)).map(|r| r.per_sec).sum();
        let others = others - self.reporters[at].per_sec;
        let per_sec = divide(free, &demands)[position].min(free - others).max(0.0);
        let all: f64 = self.reporters.iter().filter(|r| active(r)).map(|r| r.level).sum();
        let all = (self.reserve + all).max(0.0);
        let needed: f64 = self.reporters.iter().filter(|r| active(r)).map(Reporter::needed).sum();
        let level = self.reporters[at].level;
        let suffices = all * (1.0 - KEPT) > needed;
        let kept = if suffices { KEPT } else { 0.0 };
        let wanted = (all * (1.0 - kept) * weight - level).min(self.reserve - all * kept);
        let needed = if suffices { self.reporters[at].needed() - level } else { wanted };
        let tokens = wanted.max(needed).min(self.reserve.max(0.0));
        self.reserve -= tokens;
        let reporter = &mut self.reporters[at];
        reporter.level += tokens;
        reporter.per_sec = per_sec;
        let max = (self.rate.burst * (1.0 - kept) * weight).max(reporter.level).max(1.0);
        Grant { per_sec, max, tokens, has_more: self.reserve >= 1.0, number: 0 }
    }

    /// A share of a rate that is too low to be divided: tokens of the reserve, by turns.
    fn grant_whole(&mut self, at: usize, weight: f64, now: Duration) -> Grant {
        let Reporter { node, asked, level, served_at, .. } = self.reporters[at];
        let needed = self.reporters[at].needed();
        let whole = (self.reserve + 1e-9).floor();
        let waits = |other: &&Reporter| {
            other.node != node && other.is_valid(now) && other.asked > 0.0 && other.level < 1.0
        };
        let waiting = self.reporters.iter().filter(waits);
        let earlier = waiting.clone().filter(|other| other.served_at < served_at).count() as f64;
        let needed_by_others: f64 = waiting.clone().map(Reporter::needed).sum();
        let tokens = if asked > 0.0 && level < 1.0 {
            // If the tokens do not suffice, those who were served longer ago come first. The owner keeps
            // what the node does not need.
            let part = match needed + needed_by_others <= whole {
                true => needed,
                false => needed.min((whole * weight).max(1.0).floor()),
            };
            part.min(whole - earlier).max(0.0)
        } else if asked == 0.0 && level > 0.0 && waiting.count() > 0 {
            -level
        } else {
            0.0
        };
        self.reserve -= tokens;
        let reporter = &mut self.reporters[at];
        reporter.level += tokens;
        reporter.per_sec = 0.0;
        if tokens > 0.0 {
            reporter.served_at = now;
        }
        let max = self.rate.burst.max(1.0);
        Grant { per_sec: 0.0, max, tokens, has_more: self.reserve >= 1.0, number: 0 }
    }

    /// Forgets nodes that are gone, and linked ones that have stopped to report.
    fn forget(&mut self, members: &[Member], now: Duration) {
        self.reporters.retain(|reporter| {
            let member = members.iter().find(|member| member.node == reporter.node);
            let is_silent = now.saturating_sub(reporter.reported_at) >= SILENT;
            member.is_some_and(|member| !(member.is_linked && is_silent))
        });
    }

    /// Adds what no node had of the rate.
    fn fill(&mut self, members: &[Member], now: Duration) {
        let valid = self.reporters.iter().filter(|reporter| reporter.is_valid(now));
        let held: f64 = valid.map(|reporter| reporter.per_sec).sum();
        let free = self.rate.per_sec - held - self.held_by_absent(members, now);
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.reserve = (self.reserve + free.max(0.0) * passed).min(self.room());
    }

    /// The most tokens that the reserve may have.
    fn room(&self) -> f64 {
        let held: f64 = self.reporters.iter().map(|reporter| reporter.level.max(0.0)).sum();
        // A whole token goes to the node whose turn it is, which may take an interval.
        let on_its_way = match self.rate.is_of_whole_tokens() {
            true => self.rate.per_sec * INTERVAL.as_secs_f64(),
            false => 0.0,
        };
        (self.rate.burst + on_its_way - held).max(0.0)
    }

    /// What nodes may use that have no share now and of which the owner does not know that they use
    /// nothing.
    fn held_by_absent(&self, members: &[Member], now: Duration) -> f64 {
        let settles = self.takes_over && now <= self.began + VALID;
        let may_use = |member: &&Member| match self
            .reporters
            .iter()
            .find(|reporter| reporter.node == member.node)
        {
            Some(reporter) => !reporter.is_valid(now),
            None => !member.is_linked || settles,
        };
        let absent = members.iter().filter(may_use).count();
        self.rate.per_sec * absent as f64 / members.len().max(1) as f64
    }
}
