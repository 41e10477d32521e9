//! A count at one node: how many things of the cluster's limit the node may hold.

use std::time::Duration;

use super::{Grant, IDLE, INTERVAL, Refused, Report, VALID};

/// A limit of things that are held, as sessions, at one node.
#[derive(Clone, Debug)]
pub struct CountOfNode {
    max: u64,
    nodes: u64,
    held: u64,
    state: State,
    /// Whether an owner has given a share since the demand began.
    had_share: bool,
    /// How many were asked for in vain since the last report.
    missed: u64,
    /// The same before it, until it is answered.
    unanswered: u64,
    /// When the node last had no share of this limit. Shares that were asked for before do not count.
    began: Duration,
    /// Whether the owner knows of the demand since it began.
    is_reported: bool,
    /// Whether the owner had some left after the last share.
    has_more: bool,
    /// A request waits for what the owner has.
    wants_more: bool,
    used_at: Duration,
    missed_at: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// The node is a cluster of one.
    Alone,
    /// The node has had no share since this time.
    Fresh(Duration),
    /// The node may hold so many, until this time.
    Shared(u64, Duration),
    /// The node may hold the limit divided by the number of nodes.
    Lapsed,
}

impl CountOfNode {
    /// The limit at a node that is a cluster of one.
    pub fn alone(max: u64, now: Duration) -> Self {
        Self { state: State::Alone, ..Self::new(max, 1, now) }
    }

    /// The limit at one of so many nodes, without a share: the first request waits for one.
    pub fn new(max: u64, nodes: usize, now: Duration) -> Self {
        let nodes = nodes.max(1) as u64;
        let state = State::Fresh(now);
        Self {
            max,
            nodes,
            held: 0,
            state,
            had_share: false,
            missed: 0,
            unanswered: 0,
            began: now,
            is_reported: false,
            has_more: false,
            wants_more: false,
            used_at: now,
            missed_at: None,
        }
    }

    /// The limit.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// How many the node holds.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Replaces the limit; `nodes` is the number of live nodes.
    pub fn change(&mut self, max: u64, nodes: usize, now: Duration) {
        self.nodes = nodes.max(1) as u64;
        if self.max != max {
            self.max = max;
            if !matches!(self.state, State::Alone | State::Lapsed) {
                self.begin(now);
            }
        }
    }

    /// Waits for a share; those that were asked for before do not count.
    fn begin(&mut self, now: Duration) {
        (self.state, self.began, self.is_reported) = (State::Fresh(now), now, false);
        (self.has_more, self.wants_more, self.unanswered) = (false, false, 0);
    }

    /// Sets how many the node holds, where another part counts them.
    pub fn set_held(&mut self, held: u64, now: Duration) {
        if held != self.held {
            self.used_at = now;
        }
        self.held = held;
    }

    /// Whether one more may be held.
    pub fn allows(&mut self, now: Duration) -> Result<(), Refused> {
        if self.held == 0 && self.is_idle(now) && self.state == State::Lapsed {
            self.begin(now);
            self.had_share = false;
        }
        self.settle(now);
        self.used_at = now;
        let max = match self.state {
            State::Alone => self.max,
            State::Fresh(_) => 0,
            State::Shared(max, _) => max,
            State::Lapsed => self.equal_part(),
        };
        if self.held < max {
            return Ok(());
        }
        self.missed += 1;
        let is_first = self.missed_at.is_none_or(|at| now.saturating_sub(at) > VALID);
        self.missed_at = Some(now);
        match self.state {
            State::Fresh(_) => Err(Refused::Wait),
            State::Shared(max, _) if max < self.max && self.has_more => {
                self.wants_more = true;
                Err(Refused::Wait)
            }
            // The owner may have some that it would have given if it had known of the demand.
            State::Shared(max, _) if max < self.max && is_first => Err(Refused::Wait),
            _ => Err(Refused::Over(INTERVAL)),
        }
    }

    /// Takes one, if it may be held.
    pub fn take(&mut self, now: Duration) -> Result<(), Refused> {
        self.allows(now)?;
        self.held += 1;
        Ok(())
    }

    /// Gives one back.
    pub fn give_back(&mut self, now: Duration) {
        self.held = self.held.saturating_sub(1);
        self.used_at = now;
    }

    /// Whether nothing is held, and nothing was for a while.
    pub fn is_idle(&self, now: Duration) -> bool {
        self.held == 0 && now.saturating_sub(self.used_at) >= IDLE
    }

    /// Whether nothing is lost when this is forgotten.
    pub fn is_forgettable(&self, now: Duration) -> bool {
        self.is_idle(now) && matches!(self.state, State::Alone | State::Lapsed)
    }

    /// Whether requests wait for a share that the owner can give at once, and the owner does not know.
    pub fn wants_share(&self) -> bool {
        match self.state {
            State::Fresh(_) => !self.is_reported,
            State::Shared(..) => self.wants_more,
            State::Alone | State::Lapsed => false,
        }
    }

    /// What is to be reported to the owner; `None` if the node holds nothing and has no share.
    pub fn report(&mut self, now: Duration) -> Option<Report> {
        self.settle(now);
        let is_idle = self.is_idle(now);
        if self.state == State::Alone || (is_idle && self.state == State::Lapsed) {
            return None;
        }
        self.unanswered += std::mem::take(&mut self.missed);
        let report = Report {
            demand: self.unanswered as f64,
            level: self.held as f64,
            had_share: self.had_share,
            is_last: is_idle,
            applied: 0,
        };
        (self.is_reported, self.wants_more) = (true, false);
        if is_idle {
            self.state = State::Lapsed;
        }
        Some(report)
    }

    /// Applies the share that answers the report of that time.
    pub fn grant(&mut self, grant: Grant, reported_at: Duration, now: Duration) {
        self.settle(now);
        let until = reported_at + VALID;
        let is_old = until <= now || reported_at < self.began;
        if self.state != State::Alone && !is_old && !self.is_idle(now) {
            self.state = State::Shared(grant.max.max(0.0) as u64, until);
            (self.had_share, self.has_more, self.unanswered) = (true, grant.has_more, 0);
        }
    }

    fn equal_part(&self) -> u64 {
        (self.max / self.nodes).max(1)
    }

    fn settle(&mut self, now: Duration) {
        let until = match self.state {
            State::Fresh(since) => since + VALID,
            State::Shared(_, until) => until,
            State::Alone | State::Lapsed => return,
        };
        if until <= now {
            self.state = State::Lapsed;
        }
    }
}
