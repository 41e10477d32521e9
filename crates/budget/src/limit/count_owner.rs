//! The owner of a count: divides how many of something the nodes may hold together.
//!
//! A node may hold what it holds, and a part of what is free. It gets only what no other node may take at
//! that time. The owner keeps a part of what is free, and gives it to the first node that needs it.

use std::time::Duration;

use super::division::divide;
use super::{Grant, Member, Report, SILENT, VALID};

/// The part of what is free that the owner keeps; at least one.
const KEPT: f64 = 0.25;

/// The owner of one count.
#[derive(Clone, Debug)]
pub struct CountOwner {
    at: Duration,
    began: Duration,
    /// A former owner gave shares that this one does not know.
    takes_over: bool,
    reporters: Vec<Reporter>,
}

#[derive(Clone, Copy, Debug)]
struct Reporter {
    node: u64,
    held: f64,
    missed: f64,
    max: f64,
    reported_at: Duration,
    /// When the node last got what it asked for.
    served_at: Duration,
}

impl Reporter {
    fn is_valid(&self, now: Duration) -> bool {
        now <= self.reported_at + VALID
    }

    /// What the node would hold.
    fn wanted(&self) -> f64 {
        self.held + self.missed
    }
}

impl CountOwner {
    /// The owner of a count, which knows no node yet.
    pub fn new(now: Duration) -> Self {
        Self { at: now, began: now, takes_over: false, reporters: Vec::new() }
    }

    /// Whether nothing is lost when this is forgotten.
    pub fn is_forgettable(&self, now: Duration) -> bool {
        now.saturating_sub(self.at) >= SILENT
    }

    /// Takes a node's report, and returns the node's share. `members` are the live nodes, `max` the limit
    /// as the node knows it.
    pub fn report(
        &mut self,
        from: u64,
        report: Report,
        max: u64,
        members: &[Member],
        now: Duration,
    ) -> Grant {
        let known = self.reporters.iter().find(|reporter| reporter.node == from);
        let served_at = known.map_or(Duration::ZERO, |reporter| reporter.served_at);
        self.takes_over |= self.reporters.is_empty() && self.at == self.began && report.had_share;
        self.at = now;
        self.reporters.retain(|reporter| {
            let member = members.iter().find(|member| member.node == reporter.node);
            let is_silent = now.saturating_sub(reporter.reported_at) >= SILENT;
            reporter.node != from && member.is_some_and(|member| !(member.is_linked && is_silent))
        });
        if report.is_last {
            return Grant::default();
        }
        let max = max as f64;
        let equal = (max / members.len().max(1) as f64).floor().max(1.0);
        let settles = self.takes_over && now <= self.began + VALID;
        // What others may hold, and those of them that have not reported.
        let (mut absent, mut may_hold) = (0.0, 0.0);
        for member in members.iter().filter(|member| member.node != from) {
            match self.reporters.iter().find(|reporter| reporter.node == member.node) {
                Some(other) if other.is_valid(now) => may_hold += other.max.max(other.held),
                Some(other) => absent += other.held.max(equal),
                None if !member.is_linked || settles => absent += equal,
                None => {}
            }
        }
        let reporter = Reporter {
            node: from,
            held: report.level,
            missed: report.demand,
            max: 0.0,
            reported_at: now,
            served_at,
        };
        let others = self.reporters.iter().filter(|other| other.is_valid(now));
        let wanted: Vec<f64> = others.map(Reporter::wanted).chain([reporter.wanted()]).collect();
        let free = (max - absent - wanted.iter().sum::<f64>()).max(0.0);
        // The next ones are as likely at each node.
        let wanted: Vec<f64> = wanted.iter().map(|wanted| wanted + 1.0).collect();
        let kept = (free * KEPT).ceil();
        let part = divide(max - absent - kept, &wanted).last().copied().unwrap_or_default();
        // A part of one is of no use: who asks gets the whole, by turns.
        let is_before = |other: &Reporter| {
            other.is_valid(now) && other.missed > 0.0 && other.served_at < served_at
        };
        let has_turn = report.demand > 0.0 && !self.reporters.iter().any(is_before);
        let part = if has_turn { part.ceil() } else { part.floor() };
        let left = max - absent - may_hold;
        // What the owner keeps is for what nodes ask for.
        let share = part.min((left - kept).max(reporter.wanted().min(left))).max(0.0);
        let is_served = report.demand > 0.0 && share > report.level;
        let served_at = if is_served { now } else { served_at };
        self.reporters.push(Reporter { max: share, served_at, ..reporter });
        let has_more = left - share >= 1.0;
        Grant { max: share, has_more, ..Grant::default() }
    }
}
