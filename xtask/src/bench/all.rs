//! `cargo xtask bench all`: every measurement of the report, one after the other, compared with the report or put in
//! its place.
//!
//! A measurement is a row of [`MEASUREMENTS`]: the same command that a person types, so that the page can say it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Parser};

use super::figures::{
    Change, Report, Run, WORSE_PERCENT, committed, compare, is_made_alike, read_figures,
};
use super::measurements::{EACH, MEASUREMENTS, Measurement};
use super::page::{amount, page, picture};
use super::{BenchCommand, Built, Job, figures_of};
use crate::apt;
use crate::paths;
use crate::process::output_of;
use crate::progress::say;

/// What measures it.
fn job_of(measurement: &Measurement, kernel: &str) -> Result<Job> {
    #[derive(Parser)]
    struct Typed {
        #[command(subcommand)]
        command: BenchCommand,
    }
    let command = measurement.command(kernel);
    let words = ["bench"].into_iter().chain(command.split_whitespace());
    Ok(match Typed::try_parse_from(words)?.command {
        BenchCommand::Reaction(args) => args.job(),
        BenchCommand::Cost(args) => args.job(),
        BenchCommand::Signals(args) => args.job(),
        BenchCommand::Teardown(args) => args.job(),
        BenchCommand::Idle(args) => args.job(),
        BenchCommand::Burst(args) => args.job(),
        BenchCommand::All(_) => bail!("a measurement of the report cannot be the report"),
    })
}

/// Every measurement, against the report.
pub(crate) fn none_is_worse() -> Result<()> {
    let args = AllArgs {
        only: Vec::new(),
        kernels: Vec::new(),
        accept: false,
        built: Built { as_tested: true },
        page: false,
    };
    ensure!(
        run(&args)? == 0,
        "a figure is more than {WORSE_PERCENT} % worse than in docs/reference/figures.md, or was not measured; the lines above say which. \
         If the change is worth it, put the new figures into the report: `cargo xtask bench all --accept`"
    );
    Ok(())
}

/// The report.
#[derive(Debug, Args)]
pub(crate) struct AllArgs {
    /// Only these measurements, by name
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(MEASUREMENTS.iter().map(|it| it.name)))]
    only: Vec<String>,
    /// Only these kernels: 6.1, 6.12, 7.2
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(EACH))]
    kernels: Vec<String>,
    /// Update the report with what is measured instead of comparing with it
    #[arg(long)]
    accept: bool,
    #[command(flatten)]
    built: Built,
    /// Measure nothing: make the page and its pictures from the report's figures
    #[arg(long, conflicts_with_all = ["only", "kernels", "accept"])]
    page: bool,
}

/// Runs the measurements. The status is 1 if a judged figure is worse than in the report, or a measurement failed.
pub(super) fn run(args: &AllArgs) -> Result<u8> {
    let mut report = Report::read(&committed())?;
    if args.page {
        return write(&report).map(|()| 0);
    }
    let chosen: Vec<(&Measurement, &str)> = MEASUREMENTS
        .iter()
        .filter(|it| args.only.is_empty() || args.only.iter().any(|name| name == it.name))
        .flat_map(|it| it.kernels.iter().map(move |&kernel| (it, kernel)))
        .filter(|(_, kernel)| {
            args.kernels.is_empty() || args.kernels.iter().any(|chosen| chosen == kernel)
        })
        .collect();
    ensure!(
        !chosen.is_empty(),
        "no measurement of --only is made on a kernel of --kernels"
    );
    // Once: what is accepted changes files of the repository.
    let revision = revision()?;
    let mut is_good = true;
    let mut compared = 0;
    for (index, (measurement, kernel)) in chosen.iter().enumerate() {
        let key = measurement.key(kernel);
        say(
            "bench",
            format_args!("{key}: {} of {}", index + 1, chosen.len()),
        );
        match measure(measurement, kernel, args.built, &revision) {
            Ok(now) if args.accept => {
                report.runs.insert(key, now);
                // After each: what comes to its end later, or not at all, costs nothing that was measured.
                write(&report)?;
            }
            Ok(now) => match report.runs.get(&key) {
                Some(before) => {
                    compared += 1;
                    is_good &= tell(&key, before, &now);
                }
                None => say(
                    "bench",
                    format_args!("{key} is not in the report: --accept puts it there"),
                ),
            },
            Err(error) => {
                is_good = false;
                say("PROBLEM", format_args!("{key} was not measured: {error:#}"));
            }
        }
    }
    ensure!(
        args.accept || compared > 0 || !is_good,
        "the report has none of these measurements, so nothing was compared: --accept puts them there"
    );
    Ok(u8::from(!is_good))
}

fn measure(measurement: &Measurement, kernel: &str, built: Built, revision: &str) -> Result<Run> {
    let job = Job {
        built,
        ..job_of(measurement, kernel)?
    };
    // Of an earlier run, it would be taken for this one's.
    match fs::remove_file(figures_of(measurement.name, &job.kernel)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).context("cannot remove the figures of an earlier run");
        }
        _ => {}
    }
    let status = job.measure(measurement.name)?;
    ensure!(
        status == 0,
        "the guest's program ended with status {status}"
    );
    let (release, figures) = read_figures(&figures_of(measurement.name, &job.kernel))?;
    let packages = job.peers.iter().filter_map(|peer| peer.debian_package());
    Ok(Run {
        kernel: release,
        revision: revision.to_owned(),
        rustc: output_of(Command::new("rustc").arg("-V"), "install rustup")?
            .trim()
            .to_owned(),
        as_tested: built.as_tested,
        packages: packages.map(package_version).collect(),
        figures,
    })
}

fn revision() -> Result<String> {
    let git = |arguments: &[&str]| {
        output_of(
            Command::new("git")
                .arg("-C")
                .arg(paths::root())
                .args(arguments),
            "measure in a clone of the repository: the report names the revision",
        )
    };
    let mut revision = git(&["rev-parse", "--short=12", "HEAD"])?.trim().to_owned();
    if !git(&["status", "--porcelain", "--untracked-files=no"])?
        .trim()
        .is_empty()
    {
        revision.push('+');
    }
    Ok(revision)
}

/// The pinned file's name has the version.
fn package_version(package: &str) -> String {
    apt::pinned(&format!("package-{package}"))
        .iter()
        .find(|pinned| pinned.package == package)
        .map_or_else(
            || format!("{package} (bookworm's newest)"),
            |pinned| pinned.file_stem().to_owned(),
        )
}

/// Says what changed; whether nothing is worse.
fn tell(key: &str, before: &Run, now: &Run) -> bool {
    let (changes, missing) = compare(before, now);
    let mut is_good = true;
    let (mut same, mut new) = (0, 0);
    if !is_made_alike(before, now) {
        let with = |run: &Run| {
            let build = if run.as_tested {
                "as tested"
            } else {
                "released"
            };
            format!("{}, {}, {build}", run.kernel, run.rustc)
        };
        say(
            "bench",
            format_args!(
                "{key}: measured with {}; the report has it with {}. Nothing is judged: --accept puts it into the report anew",
                with(now),
                with(before)
            ),
        );
    }
    for (figure, change) in changes {
        let line = |before, now| {
            format!(
                "{key}: {}: {}: {} -> {}",
                figure.case,
                figure.figure,
                amount(figure.unit, before),
                amount(figure.unit, now)
            )
        };
        match change {
            Change::Same => same += 1,
            Change::New => new += 1,
            Change::MadeOtherwise(before, now) => say("differs", line(before, now)),
            Change::Better(before, now) => say("better", line(before, now)),
            Change::Worse(before, now) => {
                is_good = false;
                say("WORSE", line(before, now));
            }
        }
    }
    for figure in missing {
        is_good = false;
        say(
            "PROBLEM",
            format_args!(
                "{key}: {}: {} is in the report, and was not measured",
                figure.case, figure.figure
            ),
        );
    }
    say(
        "bench",
        format_args!("{key}: {same} figures as in the report, {new} that it does not have"),
    );
    is_good
}

/// The page and its pictures, by path.
pub(super) fn files(report: &Report) -> BTreeMap<PathBuf, String> {
    let docs = paths::root().join("docs");
    let mut files = BTreeMap::from([(docs.join("reference/figures.md"), page(report))]);
    for measurement in MEASUREMENTS {
        if let Some(svg) = picture(report, measurement) {
            files.insert(docs.join(measurement.picture_path("images")), svg);
        }
    }
    files
}

fn write(report: &Report) -> Result<()> {
    report.write(&committed())?;
    for (path, text) in files(report) {
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_measurement_is_a_command_that_can_be_typed() {
        let mut names = BTreeSet::new();
        for measurement in MEASUREMENTS {
            assert!(names.insert(measurement.name), "{}", measurement.name);
            for kernel in measurement.kernels {
                let job = job_of(measurement, kernel).unwrap();
                assert_eq!(job.kernel.to_string(), *kernel);
            }
        }
    }

    #[test]
    fn a_peer_has_its_version() {
        assert!(package_version("earlyoom").starts_with("earlyoom_1."));
        assert_eq!(package_version("oomd"), "oomd (bookworm's newest)");
    }
}
