//! Aligned tables for people, and amounts as they read them.

use std::fmt::Write as _;

use plimsoll_core::model::signal::Unit;

use crate::host::output::Style;
use crate::host::shown::Show as _;

/// How a row is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As it is.
    Plain,
    /// The one that matters.
    Marked,
    /// Beside the point.
    Faint,
}

/// Rows under a heading. The last column is not padded.
#[derive(Debug)]
pub struct Table {
    heading: Vec<&'static str>,
    /// Columns of figures, which stand to the right.
    figures: &'static [usize],
    rows: Vec<(Tone, Vec<String>)>,
}

impl Table {
    /// An empty table. `figures` are the indices of the columns that stand to the right.
    pub fn new(heading: &[&'static str], figures: &'static [usize]) -> Self {
        Self {
            heading: heading.to_vec(),
            figures,
            rows: Vec::new(),
        }
    }

    /// Adds a row with as many cells as the heading. Cells may be foreign.
    pub fn row(&mut self, tone: Tone, cells: Vec<String>) {
        // Of ours, whatever the cells say; `render` would end later, and name no row.
        assert_eq!(cells.len(), self.heading.len(), "a row of another table");
        let cells = cells.iter().map(|cell| cell.shown().to_string());
        self.rows.push((tone, cells.collect()));
    }

    /// The text, each line ended.
    pub fn render(&self, style: Style) -> String {
        let width = |column: usize| {
            let cells = self
                .rows
                .iter()
                .map(|(_, cells)| cells[column].chars().count());
            cells.max().unwrap_or(0).max(self.heading[column].len())
        };
        let widths: Vec<usize> = (0..self.heading.len()).map(width).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for (column, cell) in cells.enumerate() {
                let wide = widths[column];
                let gap = if column == 0 { "" } else { "  " };
                // Writing to a String cannot fail.
                if self.figures.contains(&column) {
                    write!(text, "{gap}{cell:>wide$}").ok();
                } else {
                    write!(text, "{gap}{cell:wide$}").ok();
                }
            }
            text.truncate(text.trim_end().len());
            text
        };
        let mut text = style.bold(&line(&mut self.heading.iter().copied()));
        text.push('\n');
        for (tone, cells) in &self.rows {
            let line = line(&mut cells.iter().map(String::as_str));
            text += &match tone {
                Tone::Plain => line,
                Tone::Marked => style.red(&line),
                Tone::Faint => style.dim(&line),
            };
            text.push('\n');
        }
        text
    }
}

/// Bytes with a binary unit and one decimal, which is left out where it is 0: `1.5Gi`, `-20Mi`, `17`.
pub fn bytes(amount: i128) -> String {
    let sign = if amount < 0 { "-" } else { "" };
    let size = amount.unsigned_abs();
    let units = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut unit = 0;
    while unit + 1 < units.len() && tenths(size, unit) >= 10_240 {
        unit += 1;
    }
    let tenths = tenths(size, unit);
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{sign}{whole}{}", units[unit]),
        (whole, tenth) => format!("{sign}{whole}.{tenth}{}", units[unit]),
    }
}

/// An amount in its unit.
pub fn amount(value: i128, unit: Unit) -> String {
    match unit {
        Unit::Bytes => bytes(value),
        Unit::Inodes | Unit::Processes => value.to_string(),
        Unit::Share => percent(value),
        Unit::BytesPerSecond => format!("{}/s", bytes(value)),
        Unit::MilliCpus => format!("{value}m"),
    }
}

/// Hundredths of a percent.
pub fn percent(share: i128) -> String {
    let sign = if share < 0 { "-" } else { "" };
    let share = share.unsigned_abs();
    format!("{sign}{}.{:02} %", share / 100, share % 100)
}

/// A part of a whole, to the nearest tenth of a percent.
pub(crate) fn percent_of(part: u128, whole: u128) -> String {
    let tenths = (part * 1000 + whole / 2).checked_div(whole).unwrap_or(0);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// A span of time.
pub fn span(ns: u64) -> String {
    let ms = ns / 1_000_000;
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..120_000 => match (ms / 1000, ms % 1000 / 100) {
            (s, 0) => format!("{s} s"),
            (s, tenth) => format!("{s}.{tenth} s"),
        },
        _ => format!("{} min", ms / 60_000),
    }
}

/// Tenths of the unit 1024^`unit`, rounded.
fn tenths(size: u128, unit: usize) -> u128 {
    let one = 1_u128 << (10 * unit);
    (size * 10 + one / 2) / one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short() {
        for (amount, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1Ki"),
            (-1536, "-1.5Ki"),
            (1 << 20, "1Mi"),
            ((1 << 20) - 1, "1Mi"),
            (300 << 20, "300Mi"),
            (5 << 29, "2.5Gi"),
            (i128::from(u64::MAX), "16Ei"),
        ] {
            assert_eq!(bytes(amount), text, "{amount}");
        }
    }

    #[test]
    fn columns_are_aligned_and_lines_end_clean() {
        let mut table = Table::new(&["NAME", "USED", "WHY"], &[1]);
        table.row(Tone::Plain, vec!["a".into(), "1".into(), String::new()]);
        table.row(
            Tone::Marked,
            vec!["long name".into(), "100".into(), "x".into()],
        );
        assert_eq!(
            table.render(Style { color: false }),
            "NAME       USED  WHY\na             1\nlong name   100  x\n"
        );
        let painted = table.render(Style { color: true });
        assert!(
            painted.contains("\x1b[31mlong name   100  x\x1b[0m"),
            "{painted:?}"
        );
    }
}
