//! Medians, spans and aligned tables.

use std::fmt::Write as _;

/// Median, least and greatest of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The middle value; of an even number the lower of the two.
    pub median: i64,
    /// Least.
    pub min: i64,
    /// Greatest.
    pub max: i64,
}

impl Spread {
    /// `None` of nothing.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = i64>) -> Option<Self> {
        let mut values: Vec<i64> = values.into_iter().collect();
        values.sort_unstable();
        let (&min, &max) = (values.first()?, values.last()?);
        Some(Self {
            median: values[(values.len() - 1) / 2],
            min,
            max,
        })
    }

    /// `median [min..max]` of nanoseconds, with units.
    #[must_use]
    pub fn times(self) -> String {
        format!(
            "{} [{}..{}]",
            duration(self.median),
            duration(self.min),
            duration(self.max)
        )
    }
}

/// `None` as a dash, otherwise `median [min..max]`.
#[must_use]
pub fn times(values: impl IntoIterator<Item = i64>) -> String {
    Spread::of(values).map_or_else(|| "-".to_owned(), Spread::times)
}

/// Nanoseconds for a reader: three significant figures and a unit.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "three figures are shown")]
pub fn duration(ns: i64) -> String {
    let (value, unit) = match ns.unsigned_abs() {
        0..=999 => return format!("{ns} ns"),
        1_000..=999_999 => (ns as f64 / 1e3, "µs"),
        1_000_000..=999_999_999 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = match value.abs() {
        0.0..9.995 => 2,
        9.995..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

/// Bytes for a reader, in MiB or GiB.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "two decimals are shown")]
pub fn bytes(bytes: u64) -> String {
    if bytes >= 1 << 30 {
        format!("{:.2} GiB", bytes as f64 / (1_u64 << 30) as f64)
    } else {
        format!("{:.1} MiB", bytes as f64 / (1_u64 << 20) as f64)
    }
}

/// Difference of two times, later minus earlier, when both are known.
#[must_use]
pub fn since(later: Option<u64>, earlier: Option<u64>) -> Option<i64> {
    Some(i64::try_from(later?).ok()? - i64::try_from(earlier?).ok()?)
}

/// Rows as text with aligned columns; the first row is the heading.
#[must_use]
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let line = row
            .iter()
            .zip(&widths)
            .fold(String::new(), |mut line, (cell, &width)| {
                let pad = width - cell.chars().count();
                // Writing to a String cannot fail.
                let _always_ok = write!(line, "{cell}{:pad$}  ", "");
                line
            });
        text.push_str(line.trim_end());
        text.push('\n');
        if index == 0 {
            let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
            text.push_str(&rule.join("  "));
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_units() {
        assert_eq!(
            Spread::of([3, 1, 2, 9]),
            Some(Spread {
                median: 2,
                min: 1,
                max: 9
            })
        );
        assert_eq!(Spread::of([]), None);
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(31_400), "31.4 µs");
        assert_eq!(duration(-2_340_000_000), "-2.34 s");
        assert_eq!(times([]), "-");
    }

    #[test]
    fn columns_line_up() {
        let text = aligned(&[
            vec!["a".into(), "bb".into()],
            vec!["µµµ".into(), "c".into()],
        ]);
        assert_eq!(text, "a    bb\n---  --\nµµµ  c\n");
    }
}
