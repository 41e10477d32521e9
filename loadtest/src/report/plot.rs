//! Plots as SVG, without a library: bars, and latency by quantile.

use std::fmt::Write as _;

use super::number;
use crate::figures::Figures;

const WIDTH: f64 = 860.0;
const BAR: f64 = 22.0;
const NAMES: f64 = 210.0;
/// Colours that readers with colour blindness can distinguish.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666", "#b8a500"];

/// The style sheet inside each plot, so that it looks the same in every document.
const STYLE: &str = "<style>svg{font:13px system-ui,sans-serif;background:#fff;fill:#222}.t{font-weight:600;font-size:15px}.n{text-anchor:end}</style>";

/// A bar for each name, with its value as the length. If the greatest value is more than a
/// hundred times the least, the scale is logarithmic, and the caption contains this.
pub(super) fn bars(title: &str, unit: &str, values: &[(String, f64)]) -> Option<String> {
    let values: Vec<_> = values.iter().filter(|(_, value)| *value > 0.0).collect();
    let most = values.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let least = values.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
    if values.is_empty() {
        return None;
    }
    let logarithmic = most / least > 100.0;
    let part = |value: f64| {
        if logarithmic {
            (value / least * 2.0).ln() / (most / least * 2.0).ln()
        } else {
            value / most
        }
    };
    let height = values.len() as f64 * (BAR + 6.0) + 34.0;
    let scale = if logarithmic { ", logarithmic" } else { "" };
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"><title>{title}</title>{STYLE}<text x="0" y="16" class="t">{title} ({unit}{scale})</text>"#
    );
    for (index, (name, value)) in values.iter().enumerate() {
        let y = 28.0 + index as f64 * (BAR + 6.0);
        let length = part(*value) * (WIDTH - NAMES - 90.0);
        let _ = write!(
            svg,
            r#"<text x="{}" y="{}" class="n">{name}</text><rect x="{NAMES}" y="{y}" width="{length:.1}" height="{BAR}" fill="{}"/><text x="{:.1}" y="{}">{}</text>"#,
            NAMES - 8.0,
            y + 16.0,
            COLOURS[index % COLOURS.len()],
            NAMES + length + 6.0,
            y + 16.0,
            number(*value),
        );
    }
    Some(svg + "</svg>\n")
}

/// The latency of calls by quantile, from 0 to 99.99 %. Both axes are logarithmic.
pub(super) fn latencies(title: &str, runs: &[&Figures]) -> Option<String> {
    let curves: Vec<_> = runs
        .iter()
        .filter_map(|run| Some((run.target.as_str(), &run.latency.as_ref()?.curve)))
        .collect();
    let values =
        || curves.iter().flat_map(|(_, curve)| curve.iter().map(|(_, value)| *value as f64));
    let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(1.0, f64::max));
    if curves.is_empty() {
        return None;
    }
    let (left, top, width, height) = (70.0, 30.0, WIDTH - 240.0, 260.0);
    let nines = |quantile: f64| -(1.0 - quantile).max(1e-4).log10();
    let x = |quantile: f64| left + nines(quantile) / 4.0 * width;
    let decades = (least.log10().floor(), most.log10().ceil().max(least.log10().floor() + 1.0));
    let y =
        |value: f64| top + height - (value.log10() - decades.0) / (decades.1 - decades.0) * height;
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {}" role="img"><title>{title}</title>{STYLE}<text x="0" y="16" class="t">{title} (ms, by share of calls that were faster; both axes logarithmic)</text>"#,
        f64::max(height + 70.0, top + 20.0 * curves.len() as f64 + 10.0)
    );
    for decade in decades.0 as i32..=decades.1 as i32 {
        let at = y(10_f64.powi(decade));
        let _ = write!(
            svg,
            r##"<line x1="{left}" x2="{}" y1="{at:.1}" y2="{at:.1}" stroke="#ddd"/><text x="{}" y="{:.1}" class="n">{}</text>"##,
            left + width,
            left - 8.0,
            at + 4.0,
            10_f64.powi(decade - 3),
        );
    }
    for (quantile, name) in
        [(0.0, "0"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %")]
    {
        let at = x(quantile);
        let _ = write!(
            svg,
            r##"<line x1="{at:.1}" x2="{at:.1}" y1="{top}" y2="{}" stroke="#ddd"/><text x="{:.1}" y="{}">{name}</text>"##,
            top + height,
            at - 14.0,
            top + height + 18.0,
        );
    }
    for (index, (name, curve)) in curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        // The colours repeat after eight curves; the repeated ones are dashed.
        let dashed = index >= COLOURS.len();
        let dashes = if dashed { r#" stroke-dasharray="6 3""# } else { "" };
        let points: String = curve
            .iter()
            .map(|(q, value)| format!("{:.1},{:.1} ", x(*q), y((*value).max(1) as f64)))
            .collect();
        let legend = top + 14.0 + index as f64 * 20.0;
        let _ = write!(
            svg,
            r#"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/><path d="M{},{}h15" stroke="{colour}" stroke-width="4"{dashes}/><text x="{}" y="{legend}">{name}</text>"#,
            left + width + 14.0,
            legend - 4.5,
            left + width + 34.0,
        );
    }
    Some(svg + "</svg>\n")
}
