//! A guest whose kernel is a process: Debian's user-mode Linux (architecture `um`), which runs programs at nearly this
//! machine's speed.
//!
//! Problem: a node of a cluster with its runtime, kubelet and API server needs minutes under an emulator for what takes
//! a second. Approach: a kernel that is an ordinary process, with its root file system in one file. It has one CPU,
//! cgroup v2 without `cpuset`, no PSI, no BTF and no tracing: right for what happens one after the other, and wrong for
//! kernel signals, placement and figures. It needs no root.
//!
//! Debian sid's is taken: that of bookworm (6.1) ends on CPUs whose registers take more than 2.7 kB (AMX), as it gives
//! the host back fewer than the host asks for. It needs a newer C library than this machine may have. The one of sid
//! lies beside it, and its program names the loader by a path that is relative to its folder: started by the loader, it
//! would take the loader's heap for its own.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::cpio::Archive;
use super::{Guest, GuestExit, packages};
use crate::apt;
use crate::architecture::Architecture;
use crate::busybox;
use crate::interrupt::Folder;
use crate::kernel::Kernel;
use crate::lock::Lock;
use crate::paths;
use crate::process::{in_path, output_of};

/// PID 1.
const INIT: &str = include_str!("uml.sh");
const LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
/// In the folder that it is started in.
const LOADER_HERE: &[u8] = b"ld.so\0";
/// containerd stores images on top of each other.
const MODULE: &str = "overlay.ko";
/// A file with holes.
const DISK_BYTES: u64 = 6 << 30;

/// A guest to be run.
#[derive(Debug, Default)]
pub(crate) struct UmlGuest {
    /// Of bookworm, with the libraries that their programs need.
    pub(crate) packages: Vec<&'static str>,
    /// Files for `/payload`, by their name there.
    pub(crate) payload: Vec<(String, PathBuf)>,
    /// A line of shell.
    pub(crate) command: String,
    pub(crate) memory_mb: u64,
    /// `/out` in the guest: what is written there is here at once.
    pub(crate) out: PathBuf,
}

impl UmlGuest {
    /// Boots, runs the command, and gives each console line to `on_line` as it comes. It is ended when no line `moves`
    /// it on for `patience`, not counting time that the host had for others.
    pub(crate) fn run(
        &self,
        patience: Duration,
        moves: fn(&str) -> bool,
        on_line: &mut dyn FnMut(&str),
    ) -> Result<GuestExit> {
        let kernel = kernel()?;
        let folder = Folder::new()?;
        let work = folder.path();
        let disk = self.disk(&kernel, work)?;
        // The variable is for the kernel alone: other programs have this machine's C library.
        let mut command = super::within_this_process(Path::new("sh"));
        command.args(["-c", "LD_LIBRARY_PATH=. exec ./linux \"$@\"", "linux"]);
        // Its memory is a file that has no name any more once it is mapped.
        let shared = Path::new("/dev/shm");
        let memory = if shared.is_dir() { shared } else { work };
        command
            .current_dir(&kernel)
            .env("TMPDIR", memory)
            .arg(format!("mem={}M", self.memory_mb))
            .arg(format!("ubd0={}", disk.display()))
            .args(["root=/dev/ubda", "rw", "init=/init", "loglevel=3"])
            .args(["con0=null,fd:1", "con=null", "ssl=null", "seccomp=auto"])
            .arg(format!("plimsoll.out={}", self.out.display()));
        command.process_group(0);
        // Everything else about a guest of QEMU is not asked for here.
        let guest = Guest::new(Kernel::V7_2).timeout(None);
        guest
            .patience(patience, moves)
            .follow("user-mode Linux", command, work, on_line)
    }

    /// The root file system, as a file in `work`.
    fn disk(&self, kernel: &Path, work: &Path) -> Result<PathBuf> {
        let mut archive = Archive::default();
        for folder in [
            "bin", "dev", "etc", "out", "payload", "proc", "root", "run", "sbin", "sys", "tmp",
            "var/lib", "var/log", "var/run",
        ] {
            archive.folder(folder);
        }
        let mut text = |path: &str, text: &str, is_program| {
            archive.file(path, text.as_bytes().to_vec(), is_program);
        };
        text("init", INIT, true);
        text("cmd", &format!("{}\n", self.command), false);
        text("etc/passwd", "root:x:0:0:root:/tmp:/bin/sh\n", false);
        text("etc/group", "root:x:0:\n", false);
        // An API server reaches a kubelet by the node's name.
        text(
            "etc/hosts",
            "127.0.0.1 localhost\n10.0.2.15 node-1\n",
            false,
        );
        text("etc/resolv.conf", "nameserver 127.0.0.1\n", false);
        text(
            "etc/machine-id",
            "00000000000000000000000000000001\n",
            false,
        );
        archive.copy("bin/busybox", &busybox::fetched(Architecture::Amd64)?)?;
        archive.copy(&format!("lib/modules/{MODULE}"), &kernel.join(MODULE))?;
        packages::install(&self.packages, &mut archive)?;
        for (name, path) in &self.payload {
            archive.copy(&format!("payload/{name}"), path)?;
        }
        let root = work.join("root");
        archive.write_below(&root)?;
        let disk = work.join("disk");
        fs::File::create(&disk)
            .and_then(|file| file.set_len(DISK_BYTES))
            .with_context(|| format!("cannot make {}", disk.display()))?;
        let mke2fs = in_path("mke2fs").unwrap_or_else(|| PathBuf::from("/sbin/mke2fs"));
        let mut command = Command::new(mke2fs);
        command.args(["-q", "-F", "-t", "ext4", "-O", "^has_journal"]);
        command.args(["-E", "lazy_itable_init=0,root_owner=0:0", "-d"]);
        output_of(
            command.arg(&root).arg(&disk),
            "install the package e2fsprogs; the temporary folder (TMPDIR) needs 1 GB",
        )?;
        fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
        Ok(disk)
    }
}

/// The folder with the kernel, its C library and its module.
fn kernel() -> Result<PathBuf> {
    let cache = paths::cache()?;
    let folder = cache.join("user-mode-linux");
    let _lock = Lock::take(&cache)?;
    if folder.join("linux").is_file() {
        return Ok(folder);
    }
    let partial = Folder::inside(&cache)?;
    let unpacked = partial.path().join("unpacked");
    apt::unpack_pinned(
        &cache,
        ("sid", Architecture::Amd64),
        "user-mode-linux",
        &unpacked,
        |_| Ok(["user-mode-linux", "libc6"].map(str::to_owned).to_vec()),
    )?;
    let whole = partial.path().join("whole");
    fs::create_dir(&whole).with_context(|| format!("cannot create {}", whole.display()))?;
    let libraries = unpacked.join("usr/lib/x86_64-linux-gnu");
    copy(&libraries.join("libc.so.6"), &whole.join("libc.so.6"))?;
    copy(
        &libraries.join("ld-linux-x86-64.so.2"),
        &whole.join("ld.so"),
    )?;
    copy(
        &module(&unpacked.join("usr/lib/uml/modules"))?,
        &whole.join(MODULE),
    )?;
    let program = unpacked.join("usr/bin/linux.uml");
    let here = whole.join("linux");
    copy(&program, &here)?;
    let mut bytes = fs::read(&here).with_context(|| format!("cannot read {}", here.display()))?;
    name_the_loader_here(&mut bytes)?;
    hide_the_vdso(&mut bytes)?;
    fs::write(&here, bytes).with_context(|| format!("cannot write {}", here.display()))?;
    // What is there without its program is of a version that was cut off.
    let _none = fs::remove_dir_all(&folder);
    fs::rename(&whole, &folder).with_context(|| format!("cannot write {}", folder.display()))?;
    Ok(folder)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

fn module(modules: &Path) -> Result<PathBuf> {
    let versions =
        fs::read_dir(modules).with_context(|| format!("cannot read {}", modules.display()))?;
    let path = |version: PathBuf| version.join("kernel/fs/overlayfs").join(MODULE);
    let mut all = versions.flatten().map(|version| path(version.path()));
    all.find(|path| path.is_file())
        .with_context(|| format!("{} has no {MODULE}", modules.display()))
}

fn name_the_loader_here(program: &mut [u8]) -> Result<()> {
    let at = program
        .windows(LOADER.len())
        .position(|window| window == LOADER);
    let name = at.and_then(|at| program.get_mut(at..at + LOADER.len()));
    let name = name.context("user-mode Linux names no loader that is known")?;
    ensure!(
        name.len() >= LOADER_HERE.len(),
        "the loader's name is short"
    );
    name.fill(0);
    name[..LOADER_HERE.len()].copy_from_slice(LOADER_HERE);
    Ok(())
}

/// The object that this kernel gives each process has no `__vdso_getcpu`, and rustix panics where there is an object
/// without it. One of another ABI version is none to rustix, which then asks the kernel; the C library does not look at
/// the version.
fn hide_the_vdso(kernel: &mut [u8]) -> Result<()> {
    const MAGIC: &[u8] = b"\x7fELF\x02\x01\x01\x00\x00";
    let symbol = b"__vdso_clock_gettime";
    let symbol = kernel
        .windows(symbol.len())
        .position(|window| window == symbol);
    let before = symbol.and_then(|at| kernel.get(..at));
    let header = before.and_then(|before| {
        before
            .windows(MAGIC.len())
            .rposition(|window| window == MAGIC)
    });
    let version = header
        .filter(|at| *at > 0)
        .and_then(|at| kernel.get_mut(at + MAGIC.len() - 1));
    *version.context("user-mode Linux has no vDSO")? = 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_is_the_one_beside_it() {
        let mut program = [b"ELF\0", LOADER, b"more"].concat();
        let length = program.len();
        name_the_loader_here(&mut program).unwrap();
        assert_eq!(program.len(), length);
        assert!(program.starts_with(b"ELF\0ld.so\0\0\0") && program.ends_with(b"\0more"));
        assert!(name_the_loader_here(&mut program).is_err(), "once");
    }

    #[test]
    fn the_vdso_is_of_another_version() {
        let header = b"\x7fELF\x02\x01\x01\x00\x00";
        let mut kernel = [&header[..], b"text", header, b"...__vdso_clock_gettime\0"].concat();
        hide_the_vdso(&mut kernel).unwrap();
        assert_eq!((kernel[8], kernel[9 + 4 + 8]), (0, 1));
        assert!(hide_the_vdso(&mut [0; 64]).is_err());
    }

    #[test]
    fn the_kernel_is_pinned() {
        let names = apt::pinned("user-mode-linux");
        let names: Vec<&str> = names.iter().map(|pinned| pinned.package.as_str()).collect();
        assert_eq!(names, ["user-mode-linux", "libc6"]);
    }
}
