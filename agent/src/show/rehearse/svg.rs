//! A rehearsal as a picture: a row for each namespace, a column for each policy. In each field time goes to the right,
//! and the share of the cluster used upwards. The numbers below: how many pods were evicted, and how long 95 of 100
//! waited at most.

use plimsoll_core::arbitration::rehearsal::figures::{Figures, PARTS};

use super::{Shown, name, time};
use crate::show::svg::Svg;

const STYLE: &str = "\
text { font: 12px sans-serif; fill: #222 }
.h { font-weight: bold }
.all { fill: #f3f4f6 }
.used { fill: #77aadd }
.over { fill: #bb3311 }
";
const MARGIN: u64 = 24;
const NAME_WIDE: u64 = 160;
const FIELD_HIGH: u64 = 48;
const GAP: u64 = 24;
const ROW_HIGH: u64 = 84;
const HEAD_HIGH: u64 = 64;
/// Of one part of the time.
const PART_WIDE: u64 = 3;
const FIELD_WIDE: u64 = PARTS as u64 * PART_WIDE;

/// The file.
pub(crate) fn draw(shown: &Shown<'_>) -> String {
    let namespaces = shown.namespaces();
    let column = |at: usize| MARGIN + NAME_WIDE + at as u64 * (FIELD_WIDE + GAP);
    let (wide, high) = (
        column(shown.runs.len()) + MARGIN - GAP,
        HEAD_HIGH + namespaces.len() as u64 * ROW_HIGH + MARGIN,
    );
    let description = format!("Shares of namespaces over {} days, by policy", shown.days);
    let mut svg = Svg::new((wide, high), &description, STYLE, "");
    let title = format!(
        "share of the cluster used, over {} days, seed {}",
        shown.days, shown.seed
    );
    svg.text((MARGIN, MARGIN), "h", &title);
    for (at, run) in shown.runs.iter().enumerate() {
        svg.text((column(at), HEAD_HIGH - 8), "h", name(run.policy));
    }
    for (row, namespace) in namespaces.iter().enumerate() {
        let top = HEAD_HIGH + row as u64 * ROW_HIGH;
        svg.text(
            (MARGIN, top + FIELD_HIGH / 2),
            "",
            &shown.cluster.names[*namespace],
        );
        for (at, run) in shown.runs.iter().enumerate() {
            let figures = &run.outcome.figures[*namespace];
            let below = format!(
                "{} evicted, 95 % waited up to {}",
                figures.evicted,
                time(Figures::percentile(&figures.waits_s, 95))
            );
            let class = if figures.beyond_budget + figures.below_reserved > 0 {
                "over"
            } else {
                ""
            };
            svg.text((column(at), top + FIELD_HIGH + 16), class, &below);
        }
    }
    for (row, namespace) in namespaces.iter().enumerate() {
        let top = HEAD_HIGH + row as u64 * ROW_HIGH;
        for (at, run) in shown.runs.iter().enumerate() {
            area(
                &mut svg,
                &run.outcome.figures[*namespace],
                (column(at), top),
            );
        }
    }
    svg.end()
}

/// One namespace under one policy.
fn area(svg: &mut Svg, figures: &Figures, (left, top): (u64, u64)) {
    let bottom = top + FIELD_HIGH;
    svg.rect("all", (left, top), (FIELD_WIDE, FIELD_HIGH));
    svg.write(format_args!("<path class=\"used\" d=\"M{left} {bottom}"));
    for (part, share) in (0..).zip(&figures.parts) {
        let y = bottom - (*share).min(1000) * FIELD_HIGH / 1000;
        svg.write(format_args!("V{y}H{}", left + (part + 1) * PART_WIDE));
    }
    svg.write(format_args!("V{bottom}Z\"/>\n"));
}
