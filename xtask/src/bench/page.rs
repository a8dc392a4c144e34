//! The report as a page of the book, and its pictures: `docs/reference/figures.md` and `docs/images/figures-*.svg`.
//!
//! Both are made of the figures alone, so a test can hold the files of the repository against them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::figures::{Figure, Report, Run, Unit};
use super::measurements::{MEASUREMENTS, Measurement};

const HEAD: &str = "\
# Figures

<!-- Made by `cargo xtask bench all --accept` from figures.json beside it; a test compares them. -->

Every figure of this page comes from one command, `cargo xtask bench all` (`--as-tested` where it says so below), on any machine of x86-64 with Debian: guests without KVM, with one CPU whose clock
counts instructions (one is a nanosecond). Such a CPU is some ten times slower than a current one, and the same run gives the same figures whatever else the machine does.
Without `--accept` the command compares instead: a figure of Plimsoll that is more than 5 % worse than here ends it with status 1. Figures of other systems are shown only.
Each is the median, with the least and the greatest of all runs behind it where they differ. [Measurements](measurements.md) says what the scenes are, and what was measured otherwise.
";

/// The page.
pub(super) fn page(report: &Report) -> String {
    let mut text = HEAD.to_owned();
    for measurement in MEASUREMENTS {
        let runs = runs_of(report, measurement);
        if runs.is_empty() {
            continue;
        }
        let _always_ok = write!(text, "\n## {}\n\n", measurement.title);
        let commands: Vec<String> = runs
            .keys()
            .map(|kernel| format!("`cargo xtask bench {}`", measurement.command(kernel)))
            .collect();
        text.push_str(&commands.join(", "));
        text.push_str(".\n");
        if let (Some(figure), Some(_)) = (measurement.picture, picture(report, measurement)) {
            let _always_ok = write!(
                text,
                "\n![{}: {figure}]({})\n",
                measurement.title,
                measurement.picture_path("../images")
            );
        }
        text.push_str(&table(&runs));
    }
    let missing: Vec<&str> = MEASUREMENTS
        .iter()
        .filter(|it| runs_of(report, it).len() < it.kernels.len())
        .map(|it| it.name)
        .collect();
    if !missing.is_empty() {
        let _always_ok = write!(
            text,
            "\nNot measured on each of its kernels yet, and so not compared there: {}.\n",
            missing.join(", ")
        );
    }
    text.push_str(&sources(report));
    text
}

/// Runs of a measurement by kernel, in the order of the measurement's kernels.
fn runs_of<'a>(report: &'a Report, measurement: &Measurement) -> BTreeMap<&'static str, &'a Run> {
    measurement
        .kernels
        .iter()
        .filter_map(|&kernel| Some((kernel, report.runs.get(&measurement.key(kernel))?)))
        .collect()
}

/// A row for each case and figure, a column for each kernel.
fn table(runs: &BTreeMap<&'static str, &Run>) -> String {
    let mut order: Vec<(&str, &str)> = Vec::new();
    let mut cells: BTreeMap<(&str, &str, &str), String> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (&kernel, run) in runs {
        for figure in &run.figures {
            let row = (figure.case.as_str(), figure.figure.as_str());
            if seen.insert(row) {
                order.push(row);
            }
            cells.insert((row.0, row.1, kernel), spread(figure));
        }
    }
    let mut text = String::from("\n| | |");
    for kernel in runs.keys() {
        let _always_ok = write!(text, " {kernel} |");
    }
    text.push_str("\n|---|---|");
    text.push_str(&"---|".repeat(runs.len()));
    text.push('\n');
    let mut last = "";
    for (case, figure) in order {
        let shown = if case == last { "" } else { case };
        last = case;
        let _always_ok = write!(text, "| {} | {} |", escaped(shown), escaped(figure));
        for &kernel in runs.keys() {
            let cell = cells
                .get(&(case, figure, kernel))
                .map_or("–", String::as_str);
            let _always_ok = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    text
}

/// A `<` would begin an element, a `|` end a cell.
fn escaped(text: &str) -> String {
    text.replace('<', "&lt;").replace('|', "\\|")
}

fn spread(figure: &Figure) -> String {
    let one = |value| amount(figure.unit, value);
    let (median, min, max) = (one(figure.median), one(figure.min), one(figure.max));
    if min == max {
        median
    } else {
        format!("{median} [{min}..{max}]")
    }
}

/// A value for a reader: three significant figures and a unit.
#[allow(clippy::cast_precision_loss, reason = "three figures are shown")]
pub(super) fn amount(unit: Unit, value: i64) -> String {
    let scaled = |value: f64, unit: &str| {
        let digits = match value.abs() {
            0.0..9.995 => 2,
            9.995..99.95 => 1,
            _ => 0,
        };
        format!("{value:.digits$} {unit}")
    };
    let as_float = value as f64;
    match (unit, value.unsigned_abs()) {
        (Unit::Ns, 0..=999) => format!("{value} ns"),
        (Unit::Ns, 1_000..=999_999) => scaled(as_float / 1e3, "µs"),
        (Unit::Ns, 1_000_000..=999_999_999) => scaled(as_float / 1e6, "ms"),
        (Unit::Ns, _) => scaled(as_float / 1e9, "s"),
        (Unit::Bytes, 0..=1_048_575) => scaled(as_float / 1024.0, "KiB"),
        (Unit::Bytes, 1_048_576..=1_073_741_823) => scaled(as_float / 1_048_576.0, "MiB"),
        (Unit::Bytes, _) => scaled(as_float / 1_073_741_824.0, "GiB"),
        (Unit::Count, _) => value.to_string(),
        (Unit::ExcessPpm, _) => format!("{:.2} %", as_float / 1e4),
        (Unit::Ppm, 0..=99_999) => format!("{:.3} %", as_float / 1e4),
        (Unit::Ppm, _) => format!("{:.4}", as_float / 1e6),
    }
}

/// What was measured with what: without it no figure can be repeated.
fn sources(report: &Report) -> String {
    let mut text = String::from(
        "\n## Made with\n\n| measurement | kernel | revision | compiler | build | other systems |\n|---|---|---|---|---|---|\n",
    );
    for (key, run) in &report.runs {
        let packages = if run.packages.is_empty() {
            "–".to_owned()
        } else {
            run.packages.join(", ")
        };
        let _always_ok = writeln!(
            text,
            "| {key} | {} | {} | {} | {} | {packages} |",
            run.kernel,
            run.revision,
            run.rustc,
            if run.as_tested {
                "as tested"
            } else {
                "released"
            }
        );
    }
    text
}

/// One bar for each case that has the measurement's figure, by kernel; none where nothing has it.
pub(super) fn picture(report: &Report, measurement: &Measurement) -> Option<String> {
    const WIDTH: i64 = 900;
    const LABEL: i64 = 380;
    const BAR: i64 = 380;
    const ROW: i64 = 22;
    let name = measurement.picture?;
    let bars: Vec<(String, &Figure)> = runs_of(report, measurement)
        .into_iter()
        .flat_map(|(kernel, run)| {
            let figures = run.figures.iter().filter(|figure| figure.figure == name);
            figures.map(move |figure| (format!("{}, {kernel}", figure.case), figure))
        })
        .collect();
    let most = bars.iter().map(|(_, figure)| figure.median).max()?.max(1);
    let height = 40 + ROW * i64::try_from(bars.len()).ok()?;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"12\" y=\"20\" font-size=\"14\" fill=\"#1b1f24\">{}: {name}</text>\n",
        xml(measurement.title)
    );
    for (index, (label, figure)) in bars.iter().enumerate() {
        let y = 34 + ROW * i64::try_from(index).ok()?;
        let width = (i128::from(figure.median.max(0)) * i128::from(BAR) / i128::from(most)).max(1);
        let colour = if figure.judged { "#0b6e99" } else { "#9aa5b1" };
        let _always_ok = writeln!(
            text,
            "<text x=\"12\" y=\"{}\" fill=\"#1b1f24\">{}</text><rect x=\"{LABEL}\" y=\"{y}\" width=\"{width}\" height=\"{}\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{}\" fill=\"#1b1f24\">{}</text>",
            y + 13,
            xml(label),
            ROW - 6,
            i128::from(LABEL) + width + 6,
            y + 13,
            xml(&amount(figure.unit, figure.median)),
        );
    }
    text.push_str("</svg>\n");
    Some(text)
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let figure = |case: &str, median, judged| Figure {
            case: case.into(),
            figure: "hog gone".into(),
            unit: Unit::Ns,
            median,
            min: median - 1_000_000,
            max: median,
            n: 2,
            judged,
        };
        let run = Run {
            kernel: "6.1.0-50".into(),
            revision: "abc".into(),
            rustc: "rustc 1.95.0".into(),
            as_tested: true,
            packages: vec!["earlyoom_1.7-1".into()],
            figures: vec![
                figure("plimsoll, memory.available<1Gi", 50_000_000, true),
                figure("earlyoom, memory.available<1Gi", 100_000_000, false),
            ],
        };
        Report {
            runs: BTreeMap::from([("peers/6.1".to_owned(), run)]),
        }
    }

    #[test]
    fn the_page_has_a_table_for_each_measurement_its_command_and_its_sources() {
        let page = page(&report());
        assert!(page.contains(
            "| plimsoll, memory.available&lt;1Gi | hog gone | 50.0 ms [49.0 ms..50.0 ms] |"
        ));
        assert!(page.contains("`cargo xtask bench reaction --kernel 6.1 "));
        assert!(page.contains(
            "| peers/6.1 | 6.1.0-50 | abc | rustc 1.95.0 | as tested | earlyoom_1.7-1 |"
        ));
        assert!(!page.contains("bench cost --kernel"), "{page}");
    }

    #[test]
    fn bars_are_as_long_as_their_figures() {
        let peers = MEASUREMENTS.iter().find(|it| it.name == "peers").unwrap();
        let svg = picture(&report(), peers).unwrap();
        assert!(
            svg.contains("width=\"190\"") && svg.contains("width=\"380\""),
            "{svg}"
        );
        assert!(!svg.contains("memory.available<"));
        assert_eq!(picture(&Report::default(), peers), None);
    }

    #[test]
    fn amounts_have_three_figures() {
        assert_eq!(amount(Unit::Ns, 40_400), "40.4 µs");
        assert_eq!(amount(Unit::Bytes, 13 << 20), "13.0 MiB");
        assert_eq!(amount(Unit::Ppm, 1_002_300), "1.0023");
        assert_eq!(amount(Unit::Ppm, 3_050), "0.305 %");
        assert_eq!(amount(Unit::ExcessPpm, 2_300), "0.23 %");
        assert_eq!(amount(Unit::Count, 0), "0");
    }

    /// The files of the repository are those that their figures make: who edits one by hand, or the other alone, is
    /// told.
    #[test]
    fn the_report_in_the_repository_is_made_of_its_figures() {
        let report = Report::read(&super::super::figures::committed()).unwrap();
        for (path, text) in super::super::all::files(&report) {
            let there = std::fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(
                there,
                text,
                "{}: run `cargo xtask bench all --page`",
                path.display()
            );
        }
    }
}
