//! Shares as a picture: a row for each Consumer, groups above their members, and a bar for each resource.
//!
//! A bar is as wide as what there is of the resource. Filled: what is used, red where that is more than deserved.
//! Framed: what is deserved. A line below: what is reserved. A mark: `hard`.

use super::{Answer, amount};
use crate::show::svg::{Svg, escaped};

const STYLE: &str = "\
text { font: 12px sans-serif; fill: #222 }
.h { font-weight: bold }
.all { fill: #f3f4f6 }
.used { fill: #77aadd }
.over { fill: #ee8866 }
.deserved { fill: none; stroke: #222; stroke-width: 1.5 }
.reserved { fill: #44bb99 }
.hard { fill: #aa3377 }
";
const MARGIN: u64 = 24;
const NAME_WIDE: u64 = 240;
const INDENT: u64 = 16;
const BAR_WIDE: u64 = 220;
const BAR_HIGH: u64 = 16;
const GAP: u64 = 24;
const ROW_HIGH: u64 = 34;
const HEAD_HIGH: u64 = 64;

/// The file.
pub(crate) fn draw(answer: &Answer<'_>) -> String {
    let names = answer.names();
    let capacity = &answer.cycle.census.capacity;
    let counted: Vec<usize> = (0..names.len())
        .filter(|resource| capacity[*resource].is_some_and(|capacity| capacity > 0))
        .collect();
    let rows = answer.tree();
    let column = |at: usize| MARGIN + NAME_WIDE + at as u64 * (BAR_WIDE + GAP);
    let (wide, high) = (
        column(counted.len()) + MARGIN,
        HEAD_HIGH + rows.len() as u64 * ROW_HIGH + 2 * MARGIN,
    );
    let description = "Reserved, deserved, used and hard of each Consumer";
    let mut svg = Svg::new((wide, high), description, STYLE, "");
    svg.text(
        (MARGIN, MARGIN),
        "h",
        "frame: deserved · blue: used · red: used beyond deserved · green: reserved · purple: hard",
    );
    for (at, resource) in counted.iter().enumerate() {
        let heading = format!(
            "{} ({})",
            names[*resource],
            amount(names[*resource], capacity[*resource].unwrap_or(0))
        );
        svg.text((column(at), HEAD_HIGH - 8), "h", &heading);
    }
    for (row, (consumer, level)) in rows.iter().enumerate() {
        let top = HEAD_HIGH + row as u64 * ROW_HIGH;
        let class = if answer.is_group[*consumer] { "h" } else { "" };
        svg.text(
            (MARGIN + *level as u64 * INDENT, top + 13),
            class,
            &answer.cluster.names[*consumer],
        );
    }
    for (row, (consumer, _)) in rows.iter().enumerate() {
        let top = HEAD_HIGH + row as u64 * ROW_HIGH;
        for (at, resource) in counted.iter().enumerate() {
            bar(&mut svg, answer, *consumer, *resource, (column(at), top));
        }
    }
    svg.end()
}

fn bar(
    svg: &mut Svg,
    answer: &Answer<'_>,
    consumer: usize,
    resource: usize,
    (left, top): (u64, u64),
) {
    let name = answer.names()[resource];
    let whole = answer.cycle.census.capacity[resource].unwrap_or(1).max(1);
    let wide = |amount: u64| {
        u64::try_from(u128::from(amount.min(whole)) * u128::from(BAR_WIDE) / u128::from(whole))
            .unwrap_or(BAR_WIDE)
    };
    let bounds = &answer.cluster.consumers[consumer];
    let (deserved, used) = (
        answer.cycle.deserved.amounts[consumer][resource],
        answer.cycle.deserved.used[consumer][resource],
    );
    let reserved = bounds.reserved[resource];
    svg.rect("all", (left, top), (BAR_WIDE, BAR_HIGH));
    svg.rect("used", (left, top), (wide(used.min(deserved)), BAR_HIGH));
    if used > deserved {
        let beyond = wide(used) - wide(deserved);
        svg.rect("over", (left + wide(deserved), top), (beyond, BAR_HIGH));
    }
    svg.rect("deserved", (left, top), (wide(deserved), BAR_HIGH));
    if reserved > 0 {
        let below = top + BAR_HIGH + 2;
        svg.rect("reserved", (left, below), (wide(reserved).max(1), 3));
    }
    if let Some(hard) = bounds.hard[resource] {
        svg.rect("hard", (left + wide(hard), top - 2), (2, BAR_HIGH + 7));
    }
    let shown = |value: u64| amount(name, value);
    let hard = bounds.hard[resource].map_or_else(|| "none".to_owned(), shown);
    let tip = format!(
        "{} {name}: reserved {}, deserved {}, used {}, hard {hard}",
        answer.cluster.names[consumer],
        shown(reserved),
        shown(deserved),
        shown(used)
    );
    svg.write(format_args!(
        "<rect x=\"{left}\" y=\"{top}\" width=\"{BAR_WIDE}\" height=\"{BAR_HIGH}\" fill-opacity=\"0\"><title>{}</title></rect>\n",
        escaped(&tip)
    ));
}
