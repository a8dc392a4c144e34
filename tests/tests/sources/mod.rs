//! The Rust sources of the repository.

mod code;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub(crate) use code::code;

/// Folders with sources; what is built is beside them.
const FOLDERS: [&str; 5] = ["agent", "ebpf", "xtask", "tests", "benches"];

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every file that ends in `.rs`, sorted: its path from the root, and its text. Read once, for all tests.
pub(crate) fn rust() -> &'static [(String, String)] {
    static FOUND: OnceLock<Vec<(String, String)>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let mut found = Vec::new();
        for folder in FOLDERS {
            below(folder, &mut found);
        }
        assert!(found.len() > 500, "{} files: all are read", found.len());
        found.sort();
        found
    })
}

fn below(folder: &str, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = format!("{folder}/{name}");
        if entry.file_type().unwrap().is_dir() {
            if name != "target" {
                below(&path, found);
            }
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(root().join(&path)).unwrap();
            found.push((path, text));
        }
    }
}
