//! Checks golden vector files and prints a line per file: what `cargo xtask conformance` runs.
//!
//! A program of its own, so that xtask does not need the decision core to build.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use tests::conformance::{self, ConformanceError};

/// A vector failed, or a file could not be checked.
const FAILED: u8 = 1;
/// A file's name belongs to no rule, and nothing worse happened.
const UNKNOWN: u8 = 3;

fn main() -> ExitCode {
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    ExitCode::from(check(&files))
}

/// Checks each file and returns the exit status.
fn check(files: &[PathBuf]) -> u8 {
    let (mut failed, mut unknown) = (false, false);
    for file in files {
        match conformance::run(file) {
            Ok(report) => {
                println!("{report}");
                failed |= !report.is_success();
            }
            Err(error) => {
                eprintln!("{error}");
                match error {
                    ConformanceError::UnknownFile { .. } => unknown = true,
                    _ => failed = true,
                }
            }
        }
    }
    match (failed, unknown) {
        (true, _) => FAILED,
        (false, true) => UNKNOWN,
        (false, false) => 0,
    }
}

#[cfg(test)]
mod exit_status {
    use super::*;

    #[test]
    fn says_what_went_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let unknown = file("something_else.jsonl", "{}\n");
        let broken = file("qos_class.jsonl", "not json\n");
        assert_eq!(check(&[]), 0);
        assert_eq!(check(std::slice::from_ref(&unknown)), UNKNOWN);
        assert_eq!(check(std::slice::from_ref(&broken)), FAILED);
        assert_eq!(check(&[unknown, broken]), FAILED);
    }
}
