//! The golden vectors: the committed samples always, the full files where they are at hand.

use std::path::Path;

use tests::conformance::{self, FILES, PARTIAL};

fn check_all(directory: &Path) {
    let mut failed = Vec::new();
    for (stem, check) in FILES.iter().chain(PARTIAL) {
        let report = conformance::run_with(&directory.join(format!("{stem}.jsonl")), *check)
            .unwrap_or_else(|error| panic!("{error}"));
        println!("{report}");
        if !report.is_success() {
            failed.push(stem);
        }
    }
    assert!(failed.is_empty(), "vectors failed in {failed:?}; see above");
}

#[test]
fn samples_agree_with_the_kubelet() {
    check_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors"));
}

#[test]
fn full_files_agree_with_the_kubelet() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/golden");
    if directory.is_dir() {
        println!("checking the full files of {}", directory.display());
        check_all(&directory);
    } else {
        println!("no {}: only the samples were checked", directory.display());
    }
}
