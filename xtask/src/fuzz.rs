//! `cargo xtask fuzz`: random histories against the decision engine, by a program of package `tests`. `cargo xtask fuzz-parsers`: bytes against
//! everything that reads what others have written, by cargo-fuzz.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::paths;
use crate::process;
use crate::progress::say;
use crate::setup;

/// Longest input, bytes: more than any of the files has that are read.
const INPUT_BYTES_MAX: u32 = 64 << 10;
/// An input that takes longer than this many seconds is a find.
const INPUT_SECONDS_MAX: u32 = 20;
const FUZZ_FOLDER: &str = "tests/fuzz";

/// Builds the program, optimised and with all checks of arithmetic, and runs it; 1 when a rule was broken.
pub(crate) fn run(arguments: &[String]) -> Result<u8> {
    let mut cargo = process::cargo();
    cargo
        .args(["run", "--locked", "--quiet", "--profile", "fuzz"])
        .args(["--package", "tests", "--no-default-features"])
        .args(["--bin", "fuzz", "--"])
        .args(arguments);
    let status = cargo
        .status()
        .context("cannot start cargo: is it installed?")?;
    Ok(u8::from(!status.success()))
}

/// Runs each target for so long. What it learns stays in `target/fuzz`; what begins it is in the repository, in `tests/fuzz/seeds`.
pub(crate) fn parsers(seconds: u32, wanted: &[String]) -> Result<u8> {
    let all = targets()?;
    for target in wanted {
        ensure!(
            all.contains(target),
            "there is no target {target}: use {}",
            all.join(", ")
        );
    }
    let cargo_fuzz = setup::cargo_fuzz()?;
    let nightly = setup::nightly()?;
    let chosen = if wanted.is_empty() { &all } else { wanted };
    for target in chosen {
        say("fuzz", format_args!("{target}, {seconds} s"));
        let of_target = |name: &str| paths::target("fuzz").join(name).join(target);
        let (corpus, finds) = (of_target("corpus"), of_target("finds"));
        for folder in [&corpus, &finds] {
            fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        let mut fuzz = Command::new("rustup");
        fuzz.args(["run", &nightly])
            .arg(&cargo_fuzz)
            .args(["fuzz", "run", "--fuzz-dir", FUZZ_FOLDER, "--target-dir"])
            .arg(paths::target("fuzz-build"))
            .arg(target)
            .arg(&corpus);
        let seeds = Path::new(FUZZ_FOLDER).join("seeds").join(target);
        if paths::root().join(&seeds).is_dir() {
            fuzz.arg(seeds);
        }
        let status = fuzz
            .arg("--")
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-max_len={INPUT_BYTES_MAX}"))
            .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
            .arg(format!("-artifact_prefix={}/", finds.display()))
            .args(["-print_final_stats=1", "-verbosity=0"])
            .current_dir(paths::root())
            .status()
            .context("cannot start rustup: is it installed?")?;
        if !status.success() {
            say(
                "fuzz",
                format_args!("{target} failed; the input is in {}", finds.display()),
            );
            return Ok(1);
        }
    }
    Ok(0)
}

fn targets() -> Result<Vec<String>> {
    let folder = paths::root().join(FUZZ_FOLDER).join("fuzz_targets");
    let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut targets: Vec<String> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let path = entry.path();
            let is_target = path.extension().is_some_and(|extension| extension == "rs");
            is_target.then(|| path.file_stem()?.to_str().map(str::to_owned))?
        })
        .collect();
    targets.sort();
    Ok(targets)
}
