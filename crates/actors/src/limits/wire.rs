//! Demand and shares as nodes send them to each other. A field number is never reused.

use budget::limit::{Grant, Report};
use prost::Message;

/// The demand of a node for limits whose owner is the receiver. The reply is [`LimitShares`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LimitReports {
    #[prost(message, repeated, tag = "1")]
    pub(crate) reports: Vec<LimitReport>,
    /// The incarnation of the sender.
    #[prost(fixed64, tag = "2")]
    pub(crate) from: u64,
}

/// The demand for one limit.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LimitReport {
    #[prost(fixed64, tag = "1")]
    pub(crate) id_high: u64,
    #[prost(fixed64, tag = "2")]
    pub(crate) id_low: u64,
    #[prost(double, tag = "3")]
    pub(crate) demand: f64,
    #[prost(double, tag = "4")]
    pub(crate) level: f64,
    #[prost(bool, tag = "5")]
    pub(crate) had_share: bool,
    #[prost(bool, tag = "6")]
    pub(crate) is_last: bool,
    /// Of a rate: the tokens for each second; 0 for a count.
    #[prost(double, tag = "7")]
    pub(crate) per_sec: f64,
    /// Of a rate: the burst. Of a count: the limit.
    #[prost(double, tag = "8")]
    pub(crate) max: f64,
    /// The number of the last share that the node has; 0 without one.
    #[prost(uint64, tag = "9")]
    pub(crate) applied: u64,
    /// The hash of the tenant. A program without this field sends 0.
    #[prost(fixed64, tag = "10")]
    pub(crate) tenant: u64,
}

/// The shares of a node, in the order of its reports.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LimitShares {
    #[prost(message, repeated, tag = "1")]
    pub(crate) shares: Vec<LimitShare>,
}

/// The share of one limit.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LimitShare {
    #[prost(double, tag = "1")]
    pub(crate) per_sec: f64,
    #[prost(double, tag = "2")]
    pub(crate) max: f64,
    #[prost(double, tag = "3")]
    pub(crate) tokens: f64,
    /// Whether there is a share: an owner of too many limits has none.
    #[prost(bool, tag = "4")]
    pub(crate) is_given: bool,
    /// Whether the owner has more for the node. A program without this field never has.
    #[prost(bool, tag = "5")]
    pub(crate) has_more: bool,
    #[prost(uint64, tag = "6")]
    pub(crate) number: u64,
}

impl LimitReport {
    pub(super) fn id(&self) -> u128 {
        u128::from(self.id_high) << 64 | u128::from(self.id_low)
    }

    pub(super) fn new((id, tenant): (u128, u64), report: Report, per_sec: f64, max: f64) -> Self {
        let Report { demand, level, had_share, is_last, applied } = report;
        let (id_high, id_low) = ((id >> 64) as u64, id as u64);
        let of_report = Self { demand, level, had_share, is_last, applied, ..Self::default() };
        Self { id_high, id_low, per_sec, max, tenant, ..of_report }
    }

    /// The report; `None` for values that no node sends.
    pub(super) fn report(&self) -> Option<Report> {
        let Self { demand, level, had_share, is_last, applied, .. } = *self;
        let is_sound = |value: f64| value.is_finite() && value.abs() <= VALUE_MAX;
        let all = [demand, level, self.per_sec, self.max];
        let is_known = all.into_iter().all(is_sound) && demand >= 0.0 && self.max > 0.0;
        let report = Report { demand, level, had_share, is_last, applied };
        (is_known && self.per_sec >= 0.0).then_some(report)
    }
}

/// No rate, burst or count of settings is above this.
const VALUE_MAX: f64 = 1e10;

impl LimitShare {
    pub(super) fn given(Grant { per_sec, max, tokens, has_more, number }: Grant) -> Self {
        Self { per_sec, max, tokens, is_given: true, has_more, number }
    }

    pub(super) fn none() -> Self {
        Self::default()
    }

    pub(super) fn grant(&self) -> Option<Grant> {
        let Self { per_sec, max, tokens, is_given, has_more, number } = *self;
        let is_sound = [per_sec, max, tokens].into_iter().all(|value| value.abs() <= VALUE_MAX);
        (is_given && is_sound).then_some(Grant { per_sec, max, tokens, has_more, number })
    }
}
