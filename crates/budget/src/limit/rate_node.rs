//! A rate at one node: the bucket of its share, and what becomes of it without one.

use std::time::Duration;

use super::bucket::Bucket;
use super::{Grant, IDLE, INTERVAL, Rate, Report, VALID};

/// The part of the burst with which a node may let something begin that is charged later.
const SOME_LEFT: f64 = 0.01;

/// How much of the use in the last second counts.
const SMOOTHED: f64 = 0.2;

/// A rate of the cluster at one of its nodes.
#[derive(Clone, Debug)]
pub struct RateOfNode {
    rate: Rate,
    nodes: f64,
    bucket: Bucket,
    state: State,
    /// Whether an owner has given a share since the demand began.
    had_share: bool,
    /// Tokens that the node began with, of which the owner does not know yet.
    advance: f64,
    /// Tokens that were asked for since the last report.
    asked: u64,
    asked_at: Duration,
    reported_at: Duration,
    /// When the node last had no share of this rate. Shares that were asked for before do not count.
    began: Duration,
    /// Whether the owner knows of the demand since it began.
    is_reported: bool,
    /// The number of the last share.
    applied: u64,
    /// Whether no share has come since the last report.
    is_unanswered: bool,
    /// Whether the owner had tokens left after the last share.
    has_more: bool,
    /// A request waits for tokens that the owner has.
    wants_more: bool,
    /// Tokens that were taken since the last time that the use was shown.
    taken: f64,
    /// The part of the rate that is used, smoothed.
    used: f64,
    shown_at: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// The node is a cluster of one.
    Alone,
    /// The node has had no share since the demand began at this time.
    Fresh(Duration),
    /// The node has a share until this time.
    Shared(Duration),
    /// The node had a share, or asked for one in vain. It has the rate divided by the number of nodes.
    Lapsed,
}

/// Why a node has no token for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The owner may have one: the request waits until the next share, for an interval at most.
    Wait,
    /// The limit is reached. There may be a token after this time.
    Over(Duration),
}

impl RateOfNode {
    /// The rate at a node that is a cluster of one.
    pub fn alone(rate: Rate, now: Duration) -> Self {
        let bucket = Bucket::new(rate.per_sec, rate.burst, rate.burst, now);
        Self::of(rate, 1, bucket, State::Alone, now)
    }

    /// The rate at one of so many nodes, without a share. The node begins with what its part of the rate
    /// is in one interval, so that few requests wait.
    pub fn new(rate: Rate, nodes: usize, now: Duration) -> Self {
        let mut node = Self::of(rate, nodes, Bucket::new(0.0, 0.0, 0.0, now), State::Lapsed, now);
        node.begin(now);
        node
    }

    fn of(rate: Rate, nodes: usize, bucket: Bucket, state: State, now: Duration) -> Self {
        let nodes = nodes.max(1) as f64;
        Self {
            rate,
            nodes,
            bucket,
            state,
            had_share: false,
            advance: 0.0,
            asked: 0,
            asked_at: now,
            reported_at: now,
            began: now,
            is_reported: false,
            applied: 0,
            is_unanswered: false,
            has_more: false,
            wants_more: false,
            taken: 0.0,
            used: 0.0,
            shown_at: now,
        }
    }

    fn begin(&mut self, now: Duration) {
        let advance = (self.equal_part() * INTERVAL.as_secs_f64()).min(self.rate.burst).floor();
        self.bucket = Bucket::new(0.0, advance, advance, now);
        (self.state, self.had_share, self.advance) = (State::Fresh(now), false, advance);
        self.reported_at = now;
        self.begin_anew(now);
    }

    /// Notes that shares which were asked for before do not count.
    fn begin_anew(&mut self, now: Duration) {
        (self.began, self.is_reported) = (now, false);
        (self.has_more, self.wants_more) = (false, false);
    }

    /// The limit.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Whether the node is a cluster of one.
    pub fn is_alone(&self) -> bool {
        self.state == State::Alone
    }

    /// The tokens for each second that the node may use now.
    pub fn per_sec(&mut self, now: Duration) -> f64 {
        self.settle(now);
        self.bucket.per_sec()
    }

    /// Replaces the limit; `nodes` is the number of live nodes.
    pub fn change(&mut self, rate: Rate, nodes: usize, now: Duration) {
        self.settle(now);
        self.nodes = nodes.max(1) as f64;
        let is_same = self.rate == rate;
        self.rate = rate;
        match self.state {
            State::Alone => self.bucket.change(rate.per_sec, rate.burst, now),
            State::Lapsed => self.lapse(now),
            State::Fresh(_) | State::Shared(_) if is_same => {}
            // Until there is a share of the new rate, requests without a token wait.
            State::Fresh(_) | State::Shared(_) => {
                self.lapse(now);
                self.state = State::Fresh(now);
                self.begin_anew(now);
            }
        }
    }

    /// Takes up to `most` tokens for as many requests, at least one. `asked` requests have asked since the
    /// last time.
    pub fn take(&mut self, most: u32, asked: u32, now: Duration) -> Result<u32, Refused> {
        self.wake(now);
        self.asked += u64::from(asked);
        match self.bucket.take(most, now) {
            0 => {
                let refused = self.refusal();
                self.wants_more |= self.has_more && refused == Refused::Wait;
                Err(refused)
            }
            taken => {
                self.taken += f64::from(taken);
                Ok(taken)
            }
        }
    }

    /// Takes tokens for what is done already, also those that are not there: the node owes the burst at
    /// most.
    pub fn charge(&mut self, tokens: f64, now: Duration) {
        self.wake(now);
        self.asked += tokens as u64;
        self.taken += tokens;
        self.bucket.owe(tokens, self.rate.burst, now);
    }

    /// Whether tokens are left for what is charged later. It depends on what the whole cluster has: this
    /// node may use none itself.
    pub fn allows(&mut self, now: Duration) -> Result<(), Refused> {
        self.wake(now);
        let least = self.rate.burst * SOME_LEFT;
        let level = self.bucket.level(now);
        match self.state {
            State::Shared(_) if self.has_more || level >= least => Ok(()),
            State::Alone | State::Fresh(_) | State::Lapsed if level >= 1.0 => Ok(()),
            State::Fresh(_) => Err(Refused::Wait),
            _ => Err(Refused::Over(self.retry_after().max(INTERVAL))),
        }
    }

    /// Notes that there is demand.
    fn wake(&mut self, now: Duration) {
        if self.is_idle(now) && matches!(self.state, State::Lapsed) {
            self.begin(now);
        }
        self.settle(now);
        self.asked_at = now;
    }

    /// The part of the rate that was taken at this node since the last call, smoothed. More than 1 if
    /// tokens of the burst were used. To be called once a second.
    pub fn used(&mut self, now: Duration) -> f64 {
        let passed = now.saturating_sub(self.shown_at).as_secs_f64().max(0.1);
        let part = std::mem::take(&mut self.taken) / (self.rate.per_sec * passed);
        self.used += (part - self.used) * SMOOTHED;
        self.shown_at = now;
        self.used
    }

    /// Gives tokens back that were not used.
    pub fn give_back(&mut self, tokens: u32, now: Duration) {
        self.taken -= f64::from(tokens);
        self.bucket.add(f64::from(tokens), now);
    }

    /// Notes requests that used or wanted tokens elsewhere.
    pub fn note(&mut self, asked: u32, now: Duration) {
        if asked > 0 {
            self.asked += u64::from(asked);
            self.asked_at = now;
        }
    }

    fn refusal(&self) -> Refused {
        match self.state {
            State::Fresh(_) => Refused::Wait,
            State::Shared(_) if self.has_more || self.rate.is_of_whole_tokens() => Refused::Wait,
            // Others have had the demand so far: the next share follows what is asked for here.
            State::Shared(_) if self.bucket.wait().is_none_or(|wait| wait > INTERVAL) => {
                Refused::Wait
            }
            _ => Refused::Over(self.retry_after()),
        }
    }

    /// When there may be a token again.
    pub fn retry_after(&self) -> Duration {
        let whole = Duration::try_from_secs_f64(1.0 / self.rate.per_sec).unwrap_or(Duration::MAX);
        self.bucket.wait().unwrap_or(whole)
    }

    /// Whether nothing has asked for a token for a while.
    pub fn is_idle(&self, now: Duration) -> bool {
        now.saturating_sub(self.asked_at) >= IDLE
    }

    /// Whether the node has given its share back, and nothing is lost when this is forgotten.
    pub fn is_forgettable(&self, now: Duration) -> bool {
        match self.state {
            State::Alone => {
                let fill = Duration::try_from_secs_f64(self.rate.burst / self.rate.per_sec);
                now.saturating_sub(self.asked_at) >= fill.unwrap_or(Duration::MAX).max(IDLE)
            }
            State::Lapsed => self.is_idle(now),
            State::Fresh(_) | State::Shared(_) => false,
        }
    }

    /// Whether requests wait for a share that the owner can give at once, and the owner does not know.
    pub fn wants_share(&self) -> bool {
        match self.state {
            State::Fresh(_) => !self.is_reported,
            State::Shared(_) => self.wants_more && !self.is_unanswered,
            State::Alone | State::Lapsed => false,
        }
    }

    /// What is to be reported to the owner; `None` if the node has no demand and no share.
    pub fn report(&mut self, now: Duration) -> Option<Report> {
        self.settle(now);
        let is_idle = self.is_idle(now);
        if self.state == State::Alone || (is_idle && self.state == State::Lapsed) {
            return None;
        }
        let passed = now.saturating_sub(self.reported_at).max(INTERVAL / 2).as_secs_f64();
        // What the node began with comes out of what it gets.
        self.bucket.add(-std::mem::take(&mut self.advance), now);
        let report = Report {
            demand: self.asked as f64 / passed,
            level: self.bucket.level(now),
            had_share: self.had_share,
            is_last: is_idle,
            applied: self.applied,
        };
        (self.asked, self.reported_at) = (0, now);
        (self.is_reported, self.is_unanswered, self.wants_more) = (true, true, false);
        if is_idle {
            self.bucket = Bucket::new(0.0, 0.0, 0.0, now);
            self.state = State::Lapsed;
        }
        Some(report)
    }

    /// Applies the share that answers the report of that time.
    pub fn grant(&mut self, grant: Grant, reported_at: Duration, now: Duration) {
        self.settle(now);
        let until = reported_at + VALID;
        let is_old = until <= now || reported_at < self.began;
        if self.state == State::Alone || is_old || self.is_idle(now) {
            return;
        }
        self.bucket.change_and_add(grant.per_sec, grant.max, grant.tokens, now);
        (self.state, self.had_share) = (State::Shared(until), true);
        (self.has_more, self.applied, self.is_unanswered) = (grant.has_more, grant.number, false);
    }

    fn equal_part(&self) -> f64 {
        self.rate.per_sec / self.nodes
    }

    /// Applies the end of a share at the time of that end.
    fn settle(&mut self, now: Duration) {
        let until = match self.state {
            State::Fresh(since) => since + VALID,
            State::Shared(until) => until,
            State::Alone | State::Lapsed => return,
        };
        if until <= now {
            self.lapse(until);
        }
    }

    fn lapse(&mut self, at: Duration) {
        // A node that was frozen must not come back with a burst.
        let max = (self.equal_part() * VALID.as_secs_f64()).min(self.rate.burst).max(1.0);
        self.bucket.change(self.equal_part(), max, at);
        self.state = State::Lapsed;
    }
}
