//! What the other commands need on this machine, put there by the project itself.
//!
//! Every function here does nothing when its part is there already, so the commands call the parts that they need each
//! time. Only QEMU and cross compilers need root; everything else goes into `target/` and the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::apt::Suite;
use crate::architecture::Architecture;
use crate::busybox;
use crate::interrupt::{self, Folder};
use crate::kernel::Kernel;
use crate::lock::Lock;
use crate::paths;
use crate::process::{self, in_path, output_of};
use crate::progress::{Step, say};

/// The last bpf-linker that builds with Rust 1.95.
const BPF_LINKER_VERSION: &str = "0.10.4";

const CARGO_DENY_VERSION: &str = "0.20.2";
const CARGO_FUZZ_VERSION: &str = "0.13.2";

/// Has the LLVM (22) that this bpf-linker can read; installed when no nightly is there at all.
pub(crate) const NIGHTLY_PINNED: &str = "nightly-2026-05-20";

/// Everything, for `cargo xtask setup`.
pub(crate) fn all(refresh: bool) -> Result<()> {
    // First: it is what may need the user.
    qemu(Architecture::Amd64)?;
    busybox::fetched(Architecture::Amd64)?;
    let nightly = nightly()?;
    bpf_linker()?;
    for kernel in Kernel::ALL {
        if refresh {
            for architecture in Architecture::ALL {
                kernel.refresh(architecture)?;
            }
        }
        kernel.boot(Architecture::Amd64)?;
    }
    say(
        "setup",
        format_args!(
            "complete: {nightly} with rust-src, bpf-linker {BPF_LINKER_VERSION}, QEMU, busybox, kernels 6.1, 6.12, 7.2"
        ),
    );
    Ok(())
}

/// The nightly toolchain that builds the BPF object, with `rust-src`: `$PLIMSOLL_NIGHTLY`, else the pinned one when
/// installed, else `nightly` when installed, else the pinned one is installed.
pub(crate) fn nightly() -> Result<String> {
    let toolchain = match std::env::var("PLIMSOLL_NIGHTLY") {
        Ok(name) if !name.is_empty() => name,
        _ => installed_nightly()?,
    };
    let sysroot = sysroot(Some(&toolchain))?;
    let library = sysroot.join("lib/rustlib/src/rust/library");
    if !library.join("core/src/lib.rs").is_file() {
        let _lock = Lock::take(&paths::target("tools"))?;
        rust_src(&toolchain, &library)?;
    }
    Ok(toolchain)
}

/// Where a toolchain is; without a name the one that builds this workspace.
pub(crate) fn sysroot(toolchain: Option<&str>) -> Result<PathBuf> {
    let mut rustc = match toolchain {
        Some(_) => Command::new("rustup"),
        None => Command::new("rustc"),
    };
    let next = match toolchain {
        Some(name) => {
            rustc.args(["run", name, "rustc"]);
            format!(
                "install it: `rustup toolchain install {name} --profile minimal`, or set PLIMSOLL_NIGHTLY to one that is installed"
            )
        }
        None => "Rust is missing: see https://rustup.rs".to_owned(),
    };
    rustc
        .args(["--print", "sysroot"])
        .current_dir(paths::root());
    let said = output_of(&mut rustc, &next)?;
    Ok(PathBuf::from(said.trim()))
}

fn installed_nightly() -> Result<String> {
    let listed = output_of(
        Command::new("rustup").args(["toolchain", "list"]),
        "the BPF programs need a nightly Rust, which rustup installs: see https://rustup.rs, or apt-get install rustup",
    )?;
    let has = |name: &str| {
        let host = format!("{name}-");
        listed
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .any(|known| {
                known == name
                    || known
                        .strip_prefix(&host)
                        .is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
            })
    };
    for name in [NIGHTLY_PINNED, "nightly"] {
        if has(name) {
            return Ok(name.to_owned());
        }
    }
    let step = Step::begin("nightly", format_args!("installing {NIGHTLY_PINNED}"));
    output_of(
        Command::new("rustup").args([
            "toolchain",
            "install",
            NIGHTLY_PINNED,
            "--profile",
            "minimal",
            "--no-self-update",
        ]),
        "check the network, or install any nightly yourself and name it in PLIMSOLL_NIGHTLY",
    )?;
    step.done();
    Ok(NIGHTLY_PINNED.to_owned())
}

/// Clippy for the nightly, which a minimal toolchain leaves out. Only the tests need it.
pub(crate) fn nightly_clippy(toolchain: &str) -> Result<()> {
    nightly_component(toolchain, "clippy", "cargo-clippy")
}

/// A component of the nightly that a minimal toolchain leaves out, and the program by which it is known.
pub(crate) fn nightly_component(toolchain: &str, component: &str, program: &str) -> Result<()> {
    let mut version = Command::new("rustup");
    version.args(["run", toolchain, program, "--version"]);
    if process::run(&mut version)?.success() {
        return Ok(());
    }
    let _step = Step::begin(component, format_args!("adding to {toolchain}"));
    output_of(
        Command::new("rustup").args(["component", "add", component, "--toolchain", toolchain]),
        &format!("check the network, or name a nightly that has {component} in PLIMSOLL_NIGHTLY"),
    )?;
    Ok(())
}

/// LLVM's objcopy as rustc ships it for itself, which knows BPF objects; the host's own need not.
pub(crate) fn nightly_objcopy(toolchain: &str) -> Result<Command> {
    let libraries = output_of(
        Command::new("rustup").args(["run", toolchain, "rustc", "--print", "target-libdir"]),
        &format!("install it: `rustup toolchain install {toolchain} --profile minimal`"),
    )?;
    let mut objcopy = Command::new("rustup");
    // By rustup, which says where its LLVM is.
    objcopy
        .args(["run", toolchain])
        .arg(Path::new(libraries.trim()).with_file_name("bin/rust-objcopy"));
    Ok(objcopy)
}

/// The standard library's source, which `-Z build-std` compiles for BPF.
fn rust_src(toolchain: &str, library: &Path) -> Result<()> {
    if library.join("core/src/lib.rs").is_file() {
        return Ok(());
    }
    let step = Step::begin("rust-src", format_args!("adding to {toolchain}"));
    let by_rustup = process::run(Command::new("rustup").args([
        "component",
        "add",
        "rust-src",
        "--toolchain",
        toolchain,
    ]))?;
    if by_rustup.success() {
        step.done();
        return Ok(());
    }
    say(
        "rust-src",
        "rustup cannot provide it; taking Debian sid's package",
    );
    let cache = paths::cache()?;
    let _lock = Lock::take(&cache)?;
    let suite = Suite::open(&cache, "sid", Architecture::Amd64)?;
    let unpacked = Folder::inside(&cache)?;
    suite.unpack(&[("rust-src", unpacked.path().to_owned())])?;
    let source = fs::read_dir(unpacked.path().join("usr/src"))?
        .flatten()
        .map(|entry| entry.path().join("library"))
        .find(|folder| folder.join("core/src/lib.rs").is_file())
        .context("Debian's rust-src holds no usr/src/*/library")?;
    let parent = library
        .parent()
        .context("the toolchain's folder has no parent")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let next = format!(
        "free some space or make {} writable; rustup said:\n{}",
        parent.display(),
        by_rustup.text()
    );
    // Whole or not there: renamed last.
    let copy = Folder::inside(parent)?;
    let whole = copy.path().join("library");
    output_of(
        Command::new("cp").arg("-RT").arg(&source).arg(&whole),
        &next,
    )?;
    let _none = fs::remove_dir_all(library);
    fs::rename(&whole, library).with_context(|| format!("cannot write {}", library.display()))
}

/// The project's own bpf-linker.
pub(crate) fn bpf_linker() -> Result<PathBuf> {
    installed_by_cargo("bpf-linker", BPF_LINKER_VERSION)
}

/// The project's own cargo-deny. Only `cargo xtask deny` needs it.
pub(crate) fn cargo_deny() -> Result<PathBuf> {
    installed_by_cargo("cargo-deny", CARGO_DENY_VERSION)
}

/// The project's own cargo-fuzz. Only `cargo xtask fuzz-parsers` needs it.
pub(crate) fn cargo_fuzz() -> Result<PathBuf> {
    installed_by_cargo("cargo-fuzz", CARGO_FUZZ_VERSION)
}

/// A program from the registry, built once, with the dependencies that its authors have locked.
fn installed_by_cargo(name: &str, version: &str) -> Result<PathBuf> {
    let tools = paths::target("tools");
    let program = tools.join("bin").join(name);
    let installed = || -> bool {
        let said = interrupt::output(Command::new(&program).arg("--version"));
        said.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(version))
    };
    if installed() {
        return Ok(program);
    }
    let _lock = Lock::take(&tools)?;
    if installed() {
        return Ok(program);
    }
    let step = Step::begin(name, format_args!("building {version} (once)"));
    let mut install = process::cargo();
    install
        // What counts is how soon it is there.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .args(["install", name, "--version", version])
        .args(["--locked", "--force", "--root"])
        .arg(&tools)
        // Not in the machine's temporary folder: an interrupted build goes on from here.
        .arg("--target-dir")
        .arg(tools.join("build"));
    let output = process::run_cargo(&mut install, &step)?;
    process::success(
        &install,
        &output,
        "check the network and that a C compiler is there (`apt-get install gcc libc6-dev`), then run the command again",
    )?;
    step.done();
    ensure!(
        installed(),
        "{} does not run after its installation; delete {} and run the command again",
        program.display(),
        tools.display()
    );
    Ok(program)
}

/// QEMU for guests of this architecture. It and [`cross`] are what needs root.
pub(crate) fn qemu(architecture: Architecture) -> Result<PathBuf> {
    debian(
        "QEMU",
        &[architecture.qemu()],
        &[architecture.qemu_package()],
    )?;
    in_path(architecture.qemu()).with_context(|| {
        format!(
            "{} is not in PATH any more: run the command again",
            architecture.qemu()
        )
    })
}

/// What builds programs for this architecture here: Rust's standard library for it, and a C compiler, which links them.
pub(crate) fn cross(architecture: Architecture) -> Result<()> {
    if let Some(tools) = architecture.cross() {
        debian(
            &format!("a cross compiler for {architecture}"),
            &[tools.compiler, tools.archiver],
            &tools.packages,
        )?;
    }
    let target = architecture.target();
    let library = sysroot(None)?.join("lib/rustlib").join(target).join("lib");
    if library.is_dir() {
        return Ok(());
    }
    let step = Step::begin("rust-std", format_args!("adding {target}"));
    output_of(
        Command::new("rustup")
            .args(["target", "add", target])
            .current_dir(paths::root()),
        "check the network, or build with a toolchain that has this target",
    )?;
    step.done();
    Ok(())
}

/// Installs Debian's `packages` when one of their `programs` is missing, which people call `name`.
fn debian(name: &str, programs: &[&str], packages: &[&str]) -> Result<()> {
    let are_there = || programs.iter().all(|program| in_path(program).is_some());
    if are_there() {
        return Ok(());
    }
    let install = [&["install", "-y", "--no-install-recommends"], packages].concat();
    if !is_root()? {
        bail!(
            "{name} is missing and installing it needs root. Run:\n\n    sudo apt-get {}\n\nand then this command again",
            install.join(" ")
        );
    }
    let list = packages.join(" and ");
    let step = Step::begin("install", format_args!("Debian's {list}"));
    let apt_get = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .args(arguments)
            .args(["-qq"])
            .env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    if !process::run(&mut apt_get(&install))?.success() {
        // Most likely the lists are missing or old.
        output_of(
            &mut apt_get(&["update"]),
            "check the network and this machine's apt sources",
        )?;
        output_of(
            &mut apt_get(&install),
            &format!("install {list} yourself, then run this command again"),
        )?;
    }
    step.done();
    ensure!(
        are_there(),
        "{} is still not in PATH after installing {list}",
        programs.join(" or ")
    );
    Ok(())
}

fn is_root() -> Result<bool> {
    let uid = output_of(Command::new("id").arg("-u"), "coreutils are missing")?;
    Ok(uid.trim() == "0")
}
