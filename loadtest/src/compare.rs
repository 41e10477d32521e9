//! Two servers in turns, so that whatever else the machine does, it does to both.

use std::fmt;

use serde::Serialize;

use crate::figures::Figures;
use crate::report::number;

/// How the second server compares with the first.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Compared {
    pub(crate) scenario: String,
    pub(crate) a: String,
    pub(crate) b: String,
    /// Server CPU for each, `b` to `a`.
    pub(crate) cpu: Option<Spread>,
    /// Done each second, `b` to `a`.
    pub(crate) rate: Option<Spread>,
}

/// A ratio, as it was found in several rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl Compared {
    /// Compares pairs of runs, of which each took its turn right after the other.
    pub(crate) fn of(pairs: &[(Figures, Figures)]) -> Option<Self> {
        let (a, b) = pairs.first()?;
        let ratio = |value: fn(&Figures) -> Option<f64>| {
            Spread::of(pairs.iter().filter_map(|(a, b)| Some(value(b)? / value(a)?)).collect())
        };
        Some(Self {
            scenario: a.scenario.clone(),
            a: a.target.clone(),
            b: b.target.clone(),
            cpu: ratio(|figures| figures.cpu_micros),
            rate: ratio(|figures| Some(figures.per_sec).filter(|rate| *rate > 0.0)),
        })
    }
}

impl Spread {
    fn of(mut ratios: Vec<f64>) -> Option<Self> {
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (*ratios.first()?, *ratios.last()?);
        Some(Self { least, median: ratios[ratios.len() / 2], most })
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} to {}:", self.scenario, self.b, self.a)?;
        for (what, spread) in [("server CPU", &self.cpu), ("done per s", &self.rate)] {
            if let Some(Spread { least, median, most }) = spread {
                let (median, least, most) = (number(*median), number(*least), number(*most));
                write!(f, " {what} {median} ({least} to {most});")?;
            }
        }
        Ok(())
    }
}
