//! Ctrl-C and SIGTERM while a guest runs: no guest and no file of it stays behind. The emulator is a script that waits.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

/// What a guest needs of this machine, faked.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let machine = Self { folder };
        for name in ["bin", "tmp"] {
            fs::create_dir(machine.path(name)).unwrap();
        }
        // The second process is a child of the first, as a compiler is one of cargo.
        machine.program(
            "qemu-system-x86_64",
            b"#!/bin/sh\nsleep 1000 &\necho $! > $PIDS\necho $$ >> $PIDS\nwait\n",
        );
        // The least that is a static ELF file: a header without sections.
        let mut elf = vec![0_u8; 64];
        elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        for (at, value) in [(16, 2), (18, 62), (20, 1), (52, 64)] {
            elf[at] = value;
        }
        machine.program("busybox", &elf);
        // The least that is a boot image: its header and the release.
        let mut image = vec![0_u8; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        image[0x300..0x304].copy_from_slice(b"6.1 ");
        fs::write(machine.path("image"), image).unwrap();
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn program(&self, name: &str, content: &[u8]) {
        let path = self.path("bin").join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Starts a guest, in a process group of its own as a shell does, and waits until the emulator runs.
    fn start(&self) -> (Child, Vec<u32>) {
        let path = format!(
            "{}:{}",
            self.path("bin").display(),
            std::env::var("PATH").unwrap()
        );
        let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(["vm", "--bare", "--timeout", "1000000", "--cmd", "true"])
            .arg("--kernel")
            .arg(self.path("image"))
            .env("PATH", path)
            .env("PIDS", self.path("pids"))
            .env("TMPDIR", self.path("tmp"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(self.path("stderr")).unwrap())
            .process_group(0)
            .spawn()
            .unwrap();
        let pids = loop {
            let text = fs::read_to_string(self.path("pids")).unwrap_or_default();
            if text.ends_with('\n') && text.lines().count() == 2 {
                break text.lines().map(|pid| pid.parse().unwrap()).collect();
            }
            let ended = xtask.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        };
        (xtask, pids)
    }

    fn said(&self) -> String {
        fs::read_to_string(self.path("stderr")).unwrap()
    }

    /// Nothing is left. A process that was killed is there until somebody has waited for it.
    fn is_clean(&self, pids: &[u32]) {
        for pid in pids {
            while is_running(*pid) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let left: Vec<_> = fs::read_dir(self.path("tmp")).unwrap().flatten().collect();
        assert!(left.is_empty(), "{left:?}: {}", self.said());
    }
}

fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.starts_with(" Z"))
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().unwrap()).unwrap()
}

fn ended_after(send: impl FnOnce(&Child)) -> (Machine, ExitStatus, Vec<u32>) {
    let machine = Machine::new();
    let (mut xtask, pids) = machine.start();
    send(&xtask);
    let status = xtask.wait().unwrap();
    (machine, status, pids)
}

#[test]
fn ctrl_c_ends_the_guest_and_removes_its_files() {
    let (machine, status, pids) =
        ended_after(|xtask| kill_process_group(pid_of(xtask), Signal::INT).unwrap());
    assert_eq!(status.code(), Some(130), "{}", machine.said());
    machine.is_clean(&pids);
}

#[test]
fn sigterm_to_xtask_alone_does_the_same() {
    let (machine, status, pids) =
        ended_after(|xtask| kill_process(pid_of(xtask), Signal::TERM).unwrap());
    assert_eq!(status.code(), Some(143), "{}", machine.said());
    assert!(machine.said().contains("interrupted"), "{}", machine.said());
    machine.is_clean(&pids);
}

/// Files stay then, but no guest does.
#[test]
fn a_guest_does_not_outlive_an_xtask_that_was_killed() {
    let (machine, status, pids) =
        ended_after(|xtask| kill_process(pid_of(xtask), Signal::KILL).unwrap());
    assert_eq!(status.signal(), Some(9), "{}", machine.said());
    // The emulator itself, which has no children.
    while is_running(pids[1]) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let orphan = Pid::from_raw(pids[0].try_into().unwrap()).unwrap();
    kill_process(orphan, Signal::KILL).unwrap();
}
