//! `cargo xtask fuzz-parsers`: foreign bytes, guided by coverage, against everything that reads them, by cargo-fuzz and
//! libFuzzer.
//!
//! What it learns stays in `target/fuzz/corpus`; what it begins with is in the repository, in `tests/fuzz/seeds`: files
//! with names of their own are written by hand, those named by a digest are what `--keep` took from the corpus.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::process::output::ProcessOutput;
use crate::progress::{self, Progress, Step, minutes, say, show};
use crate::{paths, process, setup};

/// Longest input, bytes: more than any of the files has that are read.
const INPUT_BYTES_MAX: u32 = 64 << 10;
/// Longest input that is kept in the repository, bytes.
const KEPT_BYTES_MAX: u32 = 384;
/// All that is kept there, bytes: more is for `target/fuzz/corpus`.
const SEEDS_BYTES_MAX: u64 = 300_000;
/// An input that takes longer than this many seconds is a find: on a busy machine, too, for libFuzzer counts by the
/// clock on the wall.
const INPUT_SECONDS_MAX: u32 = 60;
/// So is one that makes a process of so many MB, or one allocation of so many.
const MEMORY_MB_MAX: u32 = 1024;
const ALLOCATION_MB_MAX: u32 = 256;
/// libFuzzer is started anew after so many seconds: it says something only when it learns something, and what says
/// nothing for long counts as hanging ([`crate::process::output`]).
const SLICE_SECONDS: u32 = 600;
const FUZZ_FOLDER: &str = "tests/fuzz";
/// The program, and how it knows which target it is (tests/fuzz/src/lib.rs).
const PROGRAM: &str = "parsers";
const TARGET: &str = "PLIMSOLL_FUZZ_TARGET";
const HOST: &str = "x86_64-unknown-linux-gnu";

/// Where a target has its files.
struct Target {
    name: String,
    program: PathBuf,
    seeds: PathBuf,
    corpus: PathBuf,
    finds: PathBuf,
}

/// What libFuzzer has said of one run.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Figures {
    executions: u64,
    /// Places in the code that some input reaches.
    edges: u64,
    /// These, with how often one input reaches them.
    features: u64,
    inputs: u64,
    peak_mb: u64,
    /// The file of the input that failed.
    find: Option<String>,
}

/// How long for each target, for `cargo xtask test --all`.
const WEEKLY_SECONDS: u32 = 60;

/// Runs each target for so long, and all of them whatever one finds; 1 when there is a find.
pub(crate) fn run(seconds: u32, keep: bool, wanted: &[String]) -> Result<u8> {
    let names = chosen(wanted)?;
    build()?;
    let (mut executions, mut finds) = (0, 0);
    for name in &names {
        let target = Target::prepare(name)?;
        if seconds > 0 {
            let figures = target.tell(seconds)?;
            executions += figures.executions;
            finds += u32::from(figures.find.is_some());
        }
        if keep {
            target.keep()?;
        }
    }
    if keep {
        seeds_are_small(&paths::root().join(FUZZ_FOLDER).join("seeds"))?;
    }
    let number = names.len();
    progress::print(&format!(
        "targets: {number}, with a find: {finds}; executions: {executions}"
    ));
    Ok(u8::from(finds > 0))
}

/// Refuses more seeds than belong into a repository.
fn seeds_are_small(seeds: &Path) -> Result<()> {
    let files = |folder: &Path| -> Result<Vec<fs::DirEntry>> {
        let entries =
            fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        Ok(entries.filter_map(Result::ok).collect())
    };
    let mut bytes = 0;
    for target in files(seeds)?.iter().filter(|entry| entry.path().is_dir()) {
        for seed in files(&target.path())? {
            bytes += seed.metadata().map_or(0, |metadata| metadata.len());
        }
    }
    ensure!(
        bytes <= SEEDS_BYTES_MAX,
        "{} has {bytes} bytes, at most {SEEDS_BYTES_MAX} are for the repository: lower KEPT_BYTES_MAX in xtask/src/fuzz_parsers.rs and keep anew",
        seeds.display()
    );
    Ok(())
}

/// A minute of each target.
pub(crate) fn a_minute_of_each() -> Result<()> {
    let names = chosen(&[])?;
    build()?;
    let mut finds = Vec::new();
    for name in &names {
        let figures = Target::prepare(name)?.tell(WEEKLY_SECONDS)?;
        finds.extend(figures.find);
    }
    ensure!(finds.is_empty(), "inputs that fail: {}", finds.join(", "));
    Ok(())
}

/// The targets that are wanted, or all.
fn chosen(wanted: &[String]) -> Result<Vec<String>> {
    let folder = paths::root().join(FUZZ_FOLDER).join("seeds");
    let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut all: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().to_str().map(str::to_owned))
        .collect();
    all.sort();
    for name in wanted {
        ensure!(
            all.contains(name),
            "there is no target {name}: use {}",
            all.join(", ")
        );
    }
    Ok(if wanted.is_empty() {
        all
    } else {
        wanted.to_vec()
    })
}

/// Builds the program of all targets. What that needs is installed.
fn build() -> Result<()> {
    let (cargo_fuzz, nightly) = (setup::cargo_fuzz()?, setup::nightly()?);
    let step = Step::begin("fuzz", "building the targets, for coverage");
    let mut command = Command::new("rustup");
    process::without_own_environment(&mut command);
    command
        .args(["run", &nightly])
        .arg(&cargo_fuzz)
        .args(["fuzz", "build", "--fuzz-dir", FUZZ_FOLDER, "--target-dir"])
        .arg(built())
        // One unit, as in a release, would be one CPU for ten minutes, and gigabytes.
        .args(["--codegen-units", "16"])
        .arg(PROGRAM)
        .env_remove("RUSTUP_TOOLCHAIN")
        .current_dir(paths::root());
    let ended = process::run_cargo(&mut command, &step)?;
    process::success(
        &command,
        &ended,
        "a C++ compiler is needed (`apt-get install g++`); if code does not compile, mend tests/fuzz/src/lib.rs",
    )?;
    step.done();
    Ok(())
}

fn built() -> PathBuf {
    paths::target("fuzz-build")
}

impl Target {
    /// Makes its folders.
    fn prepare(name: &str) -> Result<Self> {
        let folder = |kind: &str| paths::target("fuzz").join(kind).join(name);
        let target = Self {
            name: name.to_owned(),
            program: built().join(HOST).join("release").join(PROGRAM),
            seeds: paths::root().join(FUZZ_FOLDER).join("seeds").join(name),
            corpus: folder("corpus"),
            finds: folder("finds"),
        };
        for folder in [&target.seeds, &target.corpus, &target.finds] {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        Ok(target)
    }

    fn program(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
            .arg(format!("-rss_limit_mb={MEMORY_MB_MAX}"))
            .arg(format!("-malloc_limit_mb={ALLOCATION_MB_MAX}"))
            .arg(format!("-artifact_prefix={}/", self.finds.display()))
            // As cargo-fuzz does: names that two crates have are no error.
            .env("ASAN_OPTIONS", "detect_odr_violation=0")
            .env(TARGET, &self.name)
            .current_dir(paths::root());
        command
    }

    /// Runs it for so long, and says how it went.
    fn tell(&self, seconds: u32) -> Result<Figures> {
        let started = Instant::now();
        let figures = self.run(seconds)?;
        let took = started.elapsed();
        let result = figures.find.as_ref().map_or("no find", |_| "A FIND");
        say(
            "fuzz",
            format_args!(
                "{}: {} executions in {} ({}/s), {} edges, {} features, {} inputs, {} MB; {result}",
                self.name,
                figures.executions,
                minutes(took),
                figures.executions / took.as_secs().max(1),
                figures.edges,
                figures.features,
                figures.inputs,
                figures.peak_mb,
            ),
        );
        if let Some(find) = &figures.find {
            self.explain(find);
        }
        Ok(figures)
    }

    /// Runs it for so long, or until it finds something.
    fn run(&self, seconds: u32) -> Result<Figures> {
        let step = Step::begin("fuzz", format_args!("{}, {seconds} s", self.name));
        let mut sum = Figures::default();
        let mut left = seconds;
        while left > 0 && sum.find.is_none() {
            let slice = left.min(SLICE_SECONDS);
            left -= slice;
            let mut figures = self.slice(slice, sum.executions, &step)?;
            figures.executions += sum.executions;
            figures.peak_mb = figures.peak_mb.max(sum.peak_mb);
            sum = figures;
        }
        Ok(sum)
    }

    fn slice(&self, seconds: u32, before: u64, step: &Step) -> Result<Figures> {
        let mut command = self.program();
        command
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-max_len={INPUT_BYTES_MAX}"))
            .arg("-print_final_stats=1")
            .args([&self.corpus, &self.seeds]);
        let mut figures = Figures::default();
        let ended = ProcessOutput::run(&mut command, |line| {
            figures.take(line);
            step.at(Progress {
                done: before + figures.executions,
                total: None,
                unit: "executions",
                now: format!("{} edges", figures.edges),
            });
        })?;
        if figures.find.is_some() {
            show(&process::last_lines(&ended.text()));
        } else {
            process::success(
                &command,
                &ended,
                "libFuzzer could not run: its words are above",
            )?;
        }
        Ok(figures)
    }

    /// What to do with a find.
    fn explain(&self, find: &str) {
        let program = format!("{TARGET}={} {}", self.name, self.program.display());
        say(
            "fuzz",
            format_args!(
                "again:   {program} {find}\n              smaller: {program} -minimize_crash=1 -max_total_time=60 {find}"
            ),
        );
    }

    /// Puts the smallest inputs that reach every edge into the repository, in place of those of the last time.
    fn keep(&self) -> Result<()> {
        let step = Step::begin("fuzz", format_args!("{}: smallest inputs", self.name));
        let cannot = |path: &Path| format!("cannot move or read {}", path.display());
        for entry in fs::read_dir(&self.seeds).with_context(|| cannot(&self.seeds))? {
            let path = entry.with_context(|| cannot(&self.seeds))?.path();
            if let Some(name) = path.file_name().filter(|name| is_digest(name)) {
                fs::rename(&path, self.corpus.join(name)).with_context(|| cannot(&path))?;
            }
        }
        let mut command = self.program();
        command
            .args(["-set_cover_merge=1", "-use_counters=0"])
            .arg(format!("-max_len={KEPT_BYTES_MAX}"))
            .args([&self.seeds, &self.corpus]);
        process::output_of(
            &mut command,
            "the corpus has an input that fails: run the target to see it",
        )?;
        step.done();
        Ok(())
    }
}

/// The names that libFuzzer gives: SHA-1.
fn is_digest(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.len() == 40 && name.iter().all(u8::is_ascii_hexdigit)
}

impl Figures {
    /// Takes in a line, such as `#2097152 pulse  cov: 512 ft: 1204 corp: 95/3kb lim: 4096 exec/s: 20238 rss: 60Mb`.
    fn take(&mut self, line: &str) {
        let number = |text: &str| -> Option<u64> {
            let end = text.find(|byte: char| !byte.is_ascii_digit());
            text[..end.unwrap_or(text.len())].parse().ok()
        };
        if let Some(counted) = line.strip_prefix('#').and_then(number) {
            self.executions = counted;
            let mut words = line.split_whitespace();
            while let Some(word) = words.next() {
                let figure = match word {
                    "cov:" => &mut self.edges,
                    "ft:" => &mut self.features,
                    "corp:" => &mut self.inputs,
                    "rss:" => &mut self.peak_mb,
                    _ => continue,
                };
                *figure = words.next().and_then(number).unwrap_or(*figure);
            }
        } else if let Some(counted) = line.strip_prefix("stat::number_of_executed_units:") {
            self.executions = number(counted.trim()).unwrap_or(self.executions);
        } else if let Some((_, path)) = line.split_once("Test unit written to ") {
            self.find = Some(path.trim().to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libfuzzer_says_is_read() {
        let mut figures = Figures::default();
        for line in [
            "INFO: Seed: 7",
            "#7	INITED cov: 43 ft: 44 corp: 1/1b exec/s: 0 rss: 41Mb",
            "#1042	NEW    cov: 51 ft: 66 corp: 9/63b lim: 14 exec/s: 0 rss: 43Mb L: 9/14 MS: 1 ChangeBit-",
            "#2048	DONE   cov: 51 ft: 67 corp: 10/70b lim: 17 exec/s: 1024 rss: 44Mb",
            "stat::number_of_executed_units: 2049",
            "stat::peak_rss_mb:              45",
        ] {
            figures.take(line);
        }
        let expected = Figures {
            executions: 2049,
            edges: 51,
            features: 67,
            inputs: 10,
            peak_mb: 44,
            find: None,
        };
        assert_eq!(figures, expected);
        figures.take("artifact_prefix='/f/'; Test unit written to /f/crash-da39a3ee");
        assert_eq!(figures.find.as_deref(), Some("/f/crash-da39a3ee"));
    }

    #[test]
    fn the_seeds_of_the_repository_are_small() {
        seeds_are_small(&paths::root().join(FUZZ_FOLDER).join("seeds")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("target")).unwrap();
        seeds_are_small(folder.path()).unwrap();
        let seed = fs::File::create(folder.path().join("target/seed")).unwrap();
        seed.set_len(SEEDS_BYTES_MAX + 1).unwrap();
        assert!(seeds_are_small(folder.path()).is_err());
    }

    #[test]
    fn seeds_that_were_written_by_hand_stay() {
        assert!(is_digest(OsStr::new(
            "da39a3ee5e6b4b0d3255bfef95601890afd80709"
        )));
        assert!(!is_digest(OsStr::new("web.yaml")));
    }
}
