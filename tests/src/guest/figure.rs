//! Figures of a measurement, one a line in `/out/figures.jsonl`: `cargo xtask bench all` puts them into its report and
//! compares them with those before.
//!
//! A figure is less the better. Which ones are *judged* is decided where they are made: those of this project that
//! repeat where time is counted instructions. Others are shown.

use std::fs;

use anyhow::Context as _;
use serde::Serialize;

use super::table::Spread;

const OUT: &str = "/out/figures.jsonl";

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Nanoseconds.
    Ns,
    /// Bytes.
    Bytes,
    /// Things.
    Count,
    /// Millionths: a ratio, or a share of a CPU.
    Ppm,
    /// Millionths by which a ratio is above one: what something costs.
    ExcessPpm,
}

/// A figure, with its spread over the runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Figure {
    /// Of what: the system and the scene.
    case: String,
    /// What was measured.
    figure: &'static str,
    unit: Unit,
    median: i64,
    min: i64,
    max: i64,
    /// Values.
    n: usize,
    judged: bool,
}

/// The figures of one measurement, in the order in which they are shown.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    all: Vec<Figure>,
}

impl Figures {
    /// Adds a figure of these values; none if there are none. Values beyond 63 bits count as the largest.
    pub fn add(
        &mut self,
        case: &str,
        figure: &'static str,
        unit: Unit,
        judged: bool,
        values: impl IntoIterator<Item = i64>,
    ) {
        let values: Vec<i64> = values.into_iter().collect();
        let Some(spread) = Spread::of(values.iter().copied()) else {
            return;
        };
        self.all.push(Figure {
            case: case.to_owned(),
            figure,
            unit,
            median: spread.median,
            min: spread.min,
            max: spread.max,
            n: values.len(),
            judged,
        });
    }

    /// Writes them, after a line that says which kernel runs here.
    ///
    /// # Errors
    /// `/out` takes no file.
    pub fn write(&self) -> anyhow::Result<()> {
        let kernel = rustix::system::uname();
        let kernel = kernel.release().to_string_lossy();
        let mut text = format!("{}\n", serde_json::json!({ "kernel": kernel }));
        for figure in &self.all {
            text.push_str(&serde_json::to_string(figure)?);
            text.push('\n');
        }
        fs::write(OUT, text).with_context(|| format!("cannot write {OUT}"))
    }
}

/// A value that may be beyond 63 bits.
#[must_use]
pub fn whole(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Part of a whole in millionths; of nothing, none.
#[must_use]
pub fn ppm(part: u64, of: u64) -> Option<i64> {
    let millionths = u128::from(part) * 1_000_000;
    i64::try_from(millionths.checked_div(u128::from(of))?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_the_spread_of_its_values_and_none_is_made_of_nothing() {
        let mut figures = Figures::default();
        figures.add("plimsoll", "decision", Unit::Ns, true, [3, 1, 2]);
        figures.add("plimsoll", "absent", Unit::Ns, true, []);
        let line = serde_json::to_string(&figures.all).unwrap();
        assert_eq!(
            line,
            r#"[{"case":"plimsoll","figure":"decision","unit":"ns","median":2,"min":1,"max":3,"n":3,"judged":true}]"#
        );
    }

    #[test]
    fn shares_are_millionths() {
        assert_eq!(ppm(1, 4), Some(250_000));
        assert_eq!(ppm(1, 0), None);
        assert_eq!(ppm(u64::MAX, 1), None);
    }
}
