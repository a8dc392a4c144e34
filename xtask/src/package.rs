//! `cargo xtask package`: a Debian package for one machine without a cluster.
//!
//! The programs of [`release`], a unit with the agent's own watchdog and hardening, manual pages and completions as the
//! program makes them, and a configuration that belongs to the operator once it is changed. Built by `dpkg-deb`,
//! without root, and the same bytes each time. Not started when it is installed: an agent that evicts is an operator's
//! decision.

mod trial;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::architecture::Architecture;
use crate::interrupt::Folder;
use crate::paths;
use crate::process::output_of;
use crate::progress::{self, say};
use crate::release::{self, VERSION};

const ARCHITECTURE: Architecture = Architecture::Amd64;
/// Files of `deploy/package`, where they go, and their modes.
const FILES: [(&str, &str, u32); 6] = [
    (
        "plimsoll.service",
        "usr/lib/systemd/system/plimsoll.service",
        0o644,
    ),
    ("config.yaml", "etc/plimsoll/config.yaml", 0o644),
    ("copyright", "usr/share/doc/plimsoll/copyright", 0o644),
    ("postinst", "DEBIAN/postinst", 0o755),
    ("prerm", "DEBIAN/prerm", 0o755),
    ("postrm", "DEBIAN/postrm", 0o755),
];
/// What `plimsoll completions SHELL` writes.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/plimsoll"),
    ("zsh", "usr/share/zsh/vendor-completions/_plimsoll"),
    ("fish", "usr/share/fish/vendor_completions.d/plimsoll.fish"),
];

/// Copies a program into a folder, with its mode.
type Put = fn(&Path, &Path, u32) -> Result<()>;

/// `cargo xtask package`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask package                  target/package/plimsoll_VERSION_amd64.deb
  cargo xtask package --try            also installs, starts, upgrades, removes and purges it in a guest
  apt-get install ./target/package/plimsoll_VERSION_amd64.deb
  systemctl enable --now plimsoll      when there are manifests in /etc/plimsoll/pods")]
pub(crate) struct PackageArgs {
    /// Where the package goes [default: target/package]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Take the programs from this folder instead of building them (which takes 10 minutes and more)
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Then install, start, upgrade, remove and purge it in a Debian guest with systemd
    #[arg(long = "try")]
    tries: bool,
}

/// Makes the package.
pub(crate) fn run(args: &PackageArgs) -> Result<()> {
    let out = release::out_folder(args.out.as_deref(), "package")?;
    let programs = release::programs(args.programs.as_deref(), ARCHITECTURE)?;
    // Programs of a folder may be for a trial; what is built here is for everybody.
    let put = match args.programs {
        Some(_) => release::put_here,
        None => release::put,
    };
    let package = write(&programs, put, &out)?;
    say(
        "package",
        format_args!("install it with: apt-get install {}", package.display()),
    );
    let info = output_of(
        Command::new("dpkg-deb").arg("--info").arg(&package),
        "install dpkg",
    )?;
    progress::print(info.trim_end());
    if args.tries {
        trial::run(&package)?;
    }
    Ok(())
}

/// Builds the package as it is released, and tries it.
pub(crate) fn is_tried() -> Result<()> {
    let out = Folder::new()?;
    let programs = release::programs(None, ARCHITECTURE)?;
    trial::run(&write(&programs, release::put, out.path())?)
}

fn write(programs: &[PathBuf], put: Put, out: &Path) -> Result<PathBuf> {
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let staging = Folder::inside(out)?;
    let root = staging.path().join("root");
    let bin = root.join("usr/bin");
    for folder in [&bin, &root.join("etc/plimsoll/pods"), &root.join("DEBIAN")] {
        fs::create_dir_all(folder)?;
    }
    for program in programs {
        put(program, &bin, 0o755)?;
    }
    for (name, to, mode) in FILES {
        let from = paths::root().join("deploy/package").join(name);
        place(
            &fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?,
            &root.join(to),
            mode,
        )?;
    }
    place(
        b"/etc/plimsoll/config.yaml\n",
        &root.join("DEBIAN/conffiles"),
        0o644,
    )?;
    place(
        &fs::read(paths::root().join("LICENSE-MIT"))?,
        &root.join("usr/share/doc/plimsoll/LICENSE-MIT"),
        0o644,
    )?;
    documents(&bin.join("plimsoll"), &root)?;
    place(
        control(&root)?.as_bytes(),
        &root.join("DEBIAN/control"),
        0o644,
    )?;
    everyone_may_look(&root)?;
    let package = out.join(format!("plimsoll_{VERSION}_{ARCHITECTURE}.deb"));
    let mut build = Command::new("dpkg-deb");
    build
        .args(["--build", "--root-owner-group", "-Zxz"])
        .arg(&root)
        .arg(&package)
        // The same bytes at any time.
        .env("SOURCE_DATE_EPOCH", "0");
    output_of(&mut build, "install dpkg")?;
    Ok(package)
}

/// Manual pages and completions, by the program itself.
fn documents(program: &Path, root: &Path) -> Result<()> {
    let man = root.join("usr/share/man/man1");
    fs::create_dir_all(&man)?;
    output_of(
        Command::new(program).args(["man", "--dir"]).arg(&man),
        "the program cannot run here",
    )?;
    let pages = fs::read_dir(&man)?.flatten().map(|entry| entry.path());
    let mut texts: Vec<PathBuf> = pages.collect();
    for (shell, to) in COMPLETIONS {
        let text = output_of(
            Command::new(program).args(["completions", shell]),
            "the program cannot run here",
        )?;
        place(text.as_bytes(), &root.join(to), 0o644)?;
    }
    let changes = root.join("usr/share/doc/plimsoll/changelog");
    place(
        &fs::read(paths::root().join("CHANGELOG.md"))?,
        &changes,
        0o644,
    )?;
    texts.push(changes);
    release::compress(&texts)
}

fn control(root: &Path) -> Result<String> {
    let said = output_of(
        Command::new("du")
            .args(["-sk", "--apparent-size"])
            .arg(root),
        "coreutils are missing",
    )?;
    let kib = said.split_whitespace().next().unwrap_or("0");
    let mut text = String::new();
    for (field, value) in [
        ("Package", "plimsoll"),
        ("Version", VERSION),
        ("Architecture", ARCHITECTURE.name()),
        ("Maintainer", "the Plimsoll authors <plimsoll@localhost>"),
        ("Installed-Size", kib),
        ("Section", "admin"),
        ("Priority", "optional"),
    ] {
        writeln!(text, "{field}: {value}")?;
    }
    text.push_str(
        "Description: evicts pods before the kernel's OOM killer has to\n \
         A node agent that evicts by the kubelet's rules before a Linux machine runs out of\n \
         memory, disk space or process IDs. BPF programs in the kernel wake it. This package\n \
         is for one machine without a cluster.\n",
    );
    Ok(text)
}

fn place(bytes: &[u8], to: &Path, mode: u32) -> Result<()> {
    let parent = to.parent().context("a file without a folder")?;
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(to, bytes))
        .and_then(|()| fs::set_permissions(to, fs::Permissions::from_mode(mode)))
        .with_context(|| format!("cannot write {}", to.display()))
}

/// Folders have the mode of this process's umask otherwise.
fn everyone_may_look(folder: &Path) -> Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            everyone_may_look(&path)?;
        }
    }
    Ok(())
}
