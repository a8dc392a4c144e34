//! Embeds the BPF objects that `cargo xtask build-ebpf` made, when there are any.
//!
//! Without them the agent still builds, with no BPF toolchain: `src/kernel/object.rs` finds empty objects and says
//! which command to run.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Where xtask leaves the objects, seen from this package.
const OBJECT_FOLDER: &str = "../target/bpf";
const OBJECT_NAMES: [&str; 2] = ["plimsoll.bpf.o", "sampling.bpf.o"];

fn main() {
    let manifest_dir =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let folder = manifest_dir.join(OBJECT_FOLDER);
    // The folder is watched, not the file: a watched file that does not exist makes cargo run this again at every
    // build.
    if fs::create_dir_all(&folder).is_ok() {
        println!("cargo::rerun-if-changed={}", folder.to_string_lossy());
    }
    println!("cargo::rerun-if-changed=build.rs");
    for name in OBJECT_NAMES {
        let object = folder.join(name);
        let bytes = if object.is_file() {
            read(&object)
        } else {
            Vec::new()
        };
        let embedded = out_dir.join(name);
        if let Err(error) = fs::write(&embedded, bytes) {
            panic!("cannot write {}: {error}", embedded.to_string_lossy());
        }
    }
    pack_relocations();
}

/// A static binary relocates itself, from a table that stays in its locked memory: 0.8 MB as it is, 7 KB packed. A
/// dynamic one would need glibc 2.36 for it.
fn pack_relocations() {
    let cfg = |name| env::var(format!("CARGO_CFG_{name}")).unwrap_or_default();
    let is_static = cfg("TARGET_FEATURE")
        .split(',')
        .any(|known| known == "crt-static");
    if is_static && cfg("TARGET_ENV") == "gnu" {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

fn read(object: &Path) -> Vec<u8> {
    match fs::read(object) {
        Ok(bytes) => bytes,
        Err(error) => panic!(
            "cannot read {}: {error}; run `cargo xtask build-ebpf` again",
            object.to_string_lossy()
        ),
    }
}
