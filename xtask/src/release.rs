//! `cargo xtask release`: what is handed out, and shown to be what anyone gets from these sources.
//!
//! The programs are linked statically, as in the guests of the tests, and carry no folder of this machine
//! ([`crate::remap`]). Beside them: the BPF objects that they embed, a bill of materials ([`sbom`]), checksums, and an
//! archive of all without times and owners. `--verify` does it twice ([`again`]).

mod again;
mod sbom;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use self::sbom::{Embedded, Materials};
use crate::architecture::Architecture;
use crate::interrupt::Folder;
use crate::process::{self, output_of};
use crate::progress::{self, Step, say};
use crate::{ebpf, paths, remap, setup};

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Of the archive; images are of more ([`crate::image`]).
const ARCHITECTURE: Architecture = Architecture::Amd64;
pub(crate) const PROGRAMS: [&str; 5] = [
    "plimsoll",
    "plimsoll-agent",
    "plimsoll-cluster",
    "plimsoll-runtime",
    "plimsoll-trace",
];
const PACKAGES: [&str; 8] = [
    "--package",
    "plimsoll",
    "--package",
    "plimsoll-cluster",
    "--package",
    "plimsoll-runtime",
    "--package",
    "plimsoll-trace",
];
/// What belongs to every copy.
const TEXTS: [&str; 6] = [
    "README.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "LICENSE-GPL-2.0",
];
const SUMS: &str = "SHA256SUMS";

/// `cargo xtask release`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask release                       archive, bill of materials and checksums in target/dist
  cargo xtask release --out /srv/plimsoll   there instead
  cargo xtask release --verify              builds again in another folder; exit status 1 if a byte differs
  sha256sum --check SHA256SUMS              in that folder: what everybody can check")]
pub(crate) struct ReleaseArgs {
    /// Where the files go; what an earlier release left there is replaced [default: target/dist]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Build a second time, from a copy of the sources in another folder, and compare byte by byte; takes twice as long
    #[arg(long)]
    verify: bool,
}

/// Makes a release; 1 when the second build is another one.
pub(crate) fn run(args: &ReleaseArgs) -> Result<u8> {
    let out = out_folder(args.out.as_deref(), "dist")?;
    make(&out)?;
    if args.verify {
        return again::same(&out);
    }
    Ok(0)
}

/// Where `--out` says, else a folder of `target`.
pub(crate) fn out_folder(given: Option<&Path>, name: &str) -> Result<PathBuf> {
    match given {
        Some(out) => std::path::absolute(out).context("cannot resolve --out"),
        None => Ok(paths::target(name)),
    }
}

/// The programs for an architecture in the folder that `--programs` names, or in its folder of the architecture's name,
/// else they are built.
pub(crate) fn programs(folder: Option<&Path>, architecture: Architecture) -> Result<Vec<PathBuf>> {
    let Some(folder) = folder else {
        return build(architecture);
    };
    let specific = folder.join(architecture.name());
    let folder = if specific.is_dir() { &specific } else { folder };
    let programs = PROGRAMS.map(|name| folder.join(name));
    for program in &programs {
        architecture.check(program)?;
    }
    Ok(programs.into())
}

/// Builds the programs for everybody's machine of this architecture, with the BPF objects in them; their paths.
fn build(architecture: Architecture) -> Result<Vec<PathBuf>> {
    for folder in [".", "ebpf"] {
        let step = Step::begin("release", format_args!("dependencies of {folder}"));
        let mut fetch = process::cargo();
        fetch.args(["fetch", "--locked"]);
        fetch.current_dir(paths::root().join(folder));
        let next = "check the network; Cargo.lock must fit Cargo.toml";
        let ended = process::run_cargo(&mut fetch, &step)?;
        process::success(&fetch, &ended, next)?;
    }
    ebpf::build()?;
    build_programs(architecture)
}

/// Builds everything, and puts the files into `out`.
fn make(out: &Path) -> Result<()> {
    let programs = build(ARCHITECTURE)?;
    let objects = [paths::bpf_object(), paths::sampling_object()];

    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let staging = Folder::inside(out)?;
    let name = format!("plimsoll-{VERSION}-x86_64-linux");
    let folder = staging.path().join(&name);
    fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for program in &programs {
        put(program, &folder, 0o755)?;
    }
    for object in &objects {
        put(object, &folder, 0o644)?;
    }
    for text in TEXTS {
        put(&paths::root().join(text), &folder, 0o644)?;
    }
    let bill = format!("plimsoll-{VERSION}.cdx.json");
    fs::write(folder.join(&bill), bill_of_materials(&objects)?)
        .with_context(|| format!("cannot write {bill}"))?;
    put(&folder.join(&bill), out, 0o644)?;

    let tar = out.join(format!("{name}.tar"));
    archive(staging.path(), std::slice::from_ref(&name), &tar)?;
    compress(&[tar])?;
    let packed = format!("{name}.tar.gz");
    let sums = [
        sums_of(out, &[packed, bill])?,
        sums_of(staging.path(), &contents(&folder, &name)?)?,
    ];
    let sums_file = out.join(SUMS);
    fs::write(&sums_file, &sums[0])
        .with_context(|| format!("cannot write {}", sums_file.display()))?;
    say("release", format_args!("in {}", out.display()));
    progress::print(sums.concat().trim_end());
    Ok(())
}

fn build_programs(architecture: Architecture) -> Result<Vec<PathBuf>> {
    setup::cross(architecture)?;
    let step = Step::begin(
        "release",
        format_args!("building the programs for {architecture} (10 minutes and more)"),
    );
    let mut flags = remap::flags(&setup::sysroot(None)?)?;
    flags.push("-Ctarget-feature=+crt-static".to_owned());
    let folder = paths::target("release-build");
    let mut command = process::cargo();
    command
        .args(["build", "--locked", "--release", "--bins"])
        .args(PACKAGES)
        .args(["--target", architecture.target(), "--target-dir"])
        .arg(&folder)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        // Names of functions stay, for backtraces; lines would be most of the file.
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo")
        .env("CARGO_INCREMENTAL", "0");
    architecture.prepare(&mut command);
    for (name, value) in std::env::vars() {
        if name.starts_with("CARGO_PROFILE_RELEASE_") {
            let what = format_args!("NOT FOR OTHERS: {name}={value} is set");
            say("release", what);
        }
    }
    let ended = process::run_cargo(&mut command, &step)?;
    let next = "mend what the compiler names; linking statically needs libc6-dev";
    process::success(&command, &ended, next)?;
    step.done();
    let built = folder.join(architecture.target()).join("release");
    Ok(PROGRAMS.map(|program| built.join(program)).into())
}

/// Copies a file that names no folder of this machine.
pub(crate) fn put(file: &Path, folder: &Path, mode: u32) -> Result<()> {
    let bytes = read(file)?;
    if let Some(found) = remap::found_in(&bytes)? {
        bail!(
            "{} contains the path {}: it would be another file in another folder; add the folder to xtask/src/remap.rs",
            file.display(),
            found.display()
        );
    }
    write(file, &bytes, folder, mode)
}

/// Copies a file that stays on this machine.
pub(crate) fn put_here(file: &Path, folder: &Path, mode: u32) -> Result<()> {
    write(file, &read(file)?, folder, mode)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

fn write(file: &Path, bytes: &[u8], folder: &Path, mode: u32) -> Result<()> {
    let name = file.file_name().context("a file without a name")?;
    let to = folder.join(name);
    fs::write(&to, bytes)
        .and_then(|()| fs::set_permissions(&to, fs::Permissions::from_mode(mode)))
        .with_context(|| format!("cannot write {}", to.display()))
}

/// The bill of materials of programs and objects.
fn bill_of_materials(objects: &[PathBuf]) -> Result<String> {
    let nightly = setup::nightly()?;
    let mut materials = Materials::default();
    for (edges, is_linked) in [("normal,build", false), ("normal,no-proc-macro", true)] {
        let mut programs = process::cargo();
        programs
            .arg("tree")
            .args(PACKAGES)
            .args(["--target", ARCHITECTURE.target()]);
        // What is built there is in its own configuration.
        let mut bpf = Command::new("rustup");
        process::without_own_environment(&mut bpf);
        bpf.args(["run", &nightly, "cargo", "tree"])
            .env_remove("RUSTUP_TOOLCHAIN")
            .current_dir(paths::root().join("ebpf"));
        for mut command in [programs, bpf] {
            command
                .args(["--locked", "--edges", edges, "--prefix", "depth"])
                .args(["--format", "|{p}|{l}"]);
            let tree = output_of(&mut command, "cargo could not say what takes part")?;
            materials.take_tree(&tree, is_linked)?;
        }
    }
    for lock in ["Cargo.lock", "ebpf/Cargo.lock"] {
        let path = paths::root().join(lock);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        materials.take_lock(&text);
    }
    let mut embedded = Vec::new();
    for object in objects {
        let name = object.file_name().and_then(|name| name.to_str());
        embedded.push(Embedded {
            name: name.context("an odd name")?.to_owned(),
            sha256: sha256(object)?,
        });
    }
    materials.document(VERSION, &embedded, &compilers(&nightly)?)
}

/// Who builds the same bytes needs the same of these.
fn compilers(nightly: &str) -> Result<Vec<(&'static str, String)>> {
    let says = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(paths::root());
        output_of(&mut command, "install it").map(|said| said.trim().to_owned())
    };
    let linker = setup::bpf_linker()?;
    let linker = linker
        .to_str()
        .context("the path of bpf-linker is no text")?;
    Ok(vec![
        ("rustc", says("rustc", &["--version"])?),
        (
            "rustc-bpf",
            says("rustup", &["run", nightly, "rustc", "--version"])?,
        ),
        ("bpf-linker", says(linker, &["--version"])?),
        ("libc", says("getconf", &["GNU_LIBC_VERSION"])?),
        (
            "linker",
            says("ld", &["--version"])?
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned(),
        ),
    ])
}

/// An archive of these entries of a folder that depends on nothing but names, modes and bytes.
pub(crate) fn archive(folder: &Path, entries: &[String], archive: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=ustar", "--sort=name", "--mtime=@0"])
        .args(["--owner=0", "--group=0", "--numeric-owner", "--file"])
        .arg(archive)
        .arg("--directory")
        .arg(folder)
        .arg("--")
        .args(entries);
    output_of(&mut tar, "GNU tar is needed")?;
    Ok(())
}

/// Compresses files in place, as `FILE.gz`, without their names and times.
pub(crate) fn compress(files: &[PathBuf]) -> Result<()> {
    let mut gzip = Command::new("gzip");
    gzip.args(["--no-name", "--best", "--force", "--"])
        .args(files);
    output_of(&mut gzip, "install gzip")?;
    Ok(())
}

/// The files of the folder `name`, as they are called in the archive.
fn contents(folder: &Path, name: &str) -> Result<Vec<String>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<String> = entries
        .flatten()
        .map(|entry| format!("{name}/{}", entry.file_name().to_string_lossy()))
        .collect();
    files.sort();
    Ok(files)
}

/// The SHA-256 of one file, in hexadecimal digits.
pub(crate) fn sha256(file: &Path) -> Result<String> {
    let (folder, name) = (file.parent(), file.file_name());
    let name = name.and_then(|name| name.to_str()).context("an odd name")?;
    let sums = sums_of(folder.context("no folder")?, &[name.to_owned()])?;
    Ok(sums.split(' ').next().unwrap_or_default().to_owned())
}

/// Lines as `sha256sum --check` reads them.
fn sums_of(folder: &Path, files: &[String]) -> Result<String> {
    let mut command = Command::new("sha256sum");
    command.args(files).current_dir(folder);
    let lines = output_of(&mut command, "coreutils are missing")?;
    ensure!(
        lines.lines().count() == files.len(),
        "sha256sum says something else: {lines}"
    );
    Ok(lines + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(name: &str) -> Vec<u8> {
        let parent = tempfile::tempdir().unwrap();
        let from = parent.path().join(name);
        let folder = from.join("plimsoll-1");
        fs::create_dir_all(&folder).unwrap();
        for file in ["b", "a"] {
            fs::write(folder.join(file), file).unwrap();
        }
        let tar = parent.path().join("archive.tar");
        archive(&from, &["plimsoll-1".to_owned()], &tar).unwrap();
        compress(std::slice::from_ref(&tar)).unwrap();
        fs::read(tar.with_extension("tar.gz")).unwrap()
    }

    #[test]
    fn an_archive_does_not_know_where_and_when_it_was_made() {
        let first = packed("here");
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert_eq!(first, packed("elsewhere/far"));
    }

    #[test]
    fn a_file_with_a_path_of_this_machine_is_refused() {
        let from = tempfile::tempdir().unwrap();
        let to = tempfile::tempdir().unwrap();
        let file = from.path().join("program");
        fs::write(
            &file,
            paths::root().join("src").as_os_str().as_encoded_bytes(),
        )
        .unwrap();
        let error = put(&file, to.path(), 0o755).unwrap_err().to_string();
        assert!(error.contains("remap.rs"), "{error}");
        fs::write(&file, "/plimsoll/src").unwrap();
        put(&file, to.path(), 0o755).unwrap();
        let mode = fs::metadata(to.path().join("program"))
            .unwrap()
            .permissions();
        assert_eq!(mode.mode() & 0o777, 0o755);
    }

    #[test]
    fn checksums_can_be_checked() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("empty"), "").unwrap();
        let sums = sums_of(folder.path(), &["empty".to_owned()]).unwrap();
        let of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sums, format!("{of_nothing}  empty\n"));
    }
}
