//! `cargo xtask conformance`: golden vector files, checked by package `tests`.

use std::path::PathBuf;

use ::tests::conformance::{self, ConformanceError};

use crate::progress::say;

/// A vector failed, or a file could not be checked.
const FAILED: u8 = 1;
/// A file's name belongs to no rule; nothing worse happened.
const UNKNOWN: u8 = 2;

/// Checks each file, prints a line per file and its first failures, and returns the exit status.
pub(crate) fn run(files: &[PathBuf]) -> u8 {
    let (mut failed, mut unknown) = (false, false);
    for file in files {
        match conformance::run(file) {
            Ok(report) => {
                println!("{report}");
                failed |= !report.is_success();
            }
            Err(error) => {
                say("error", &error);
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
mod tests {
    use super::*;

    #[test]
    fn status_says_what_went_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let unknown = file("something_else.jsonl", "{}\n");
        let broken = file("qos_class.jsonl", "not json\n");
        assert_eq!(run(&[]), 0);
        assert_eq!(run(std::slice::from_ref(&unknown)), UNKNOWN);
        assert_eq!(run(std::slice::from_ref(&broken)), FAILED);
        assert_eq!(run(&[unknown, broken]), FAILED);
    }
}
