//! A rehearsal as a picture: a row for each namespace, a column for each policy. In each field time goes to the right, and the share of the cluster used upwards. The numbers below: how many pods were evicted,
//! and how long 95 of 100 waited at most.

use std::fmt::Write as _;

use plimsoll_core::arbitration::rehearsal::figures::{Figures, PARTS};

use super::{Shown, name, time};
use crate::show::topology::svg::escaped;

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
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" viewBox=\"0 0 {wide} {high}\" role=\"img\">\n\
         <title>Shares of namespaces over {} days, by policy</title>\n\
         <style>text{{font:12px sans-serif;fill:#222}}.h{{font-weight:bold}}.all{{fill:#f3f4f6}}.used{{fill:#77aadd}}.over{{fill:#bb3311}}</style>\n\
         <rect width=\"{wide}\" height=\"{high}\" fill=\"#ffffff\"/>\n",
        shown.days
    );
    let mut text = |x: u64, y: u64, class: &str, text: &str| {
        // Writing to a String cannot fail.
        writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{}</text>",
            escaped(text)
        )
        .ok();
    };
    let title = format!(
        "share of the cluster used, over {} days, seed {}",
        shown.days, shown.seed
    );
    text(MARGIN, MARGIN, "h", &title);
    for (at, run) in shown.runs.iter().enumerate() {
        text(column(at), HEAD_HIGH - 8, "h", name(run.policy));
    }
    for (row, namespace) in namespaces.iter().enumerate() {
        let top = HEAD_HIGH + row as u64 * ROW_HIGH;
        text(
            MARGIN,
            top + FIELD_HIGH / 2,
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
            text(column(at), top + FIELD_HIGH + 16, class, &below);
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
    svg + "</svg>\n"
}

/// One namespace under one policy.
fn area(svg: &mut String, figures: &Figures, (left, top): (u64, u64)) {
    let bottom = top + FIELD_HIGH;
    writeln!(svg, "<rect class=\"all\" x=\"{left}\" y=\"{top}\" width=\"{FIELD_WIDE}\" height=\"{FIELD_HIGH}\"/>").ok();
    write!(svg, "<path class=\"used\" d=\"M{left} {bottom}").ok();
    for (part, share) in (0..).zip(&figures.parts) {
        let y = bottom - (*share).min(1000) * FIELD_HIGH / 1000;
        write!(svg, "V{y}H{}", left + (part + 1) * PART_WIDE).ok();
    }
    writeln!(svg, "V{bottom}Z\"/>").ok();
}
