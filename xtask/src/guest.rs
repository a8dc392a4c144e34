//! Guests: a kernel under QEMU's software emulation with a throw-away root file system, in which one command runs.
//!
//! Problem: what Plimsoll does needs root, a kernel of a known version and memory that may run out. Approach: a
//! fresh virtual machine per run, no KVM, no network: kernel image, an initramfs made on the spot (busybox, the
//! agent, the guest programs), two empty disks, the console on a serial port.
//!
//! ```text
//! Guest::new(Kernel::V6_12).topology(Topology::Numa2).memory_mb(2048).command("plimsoll check").run(|line| println!("{line}"))
//! ```
//!
//! What experience put in here:
//! * `-cx16`: with it the guest double-faults after an emulated 16-byte compare-exchange, in up to 3 of 4 boots.
//! * `thread=single`: with more threads a vCPU now and then runs stale bytes while the kernel patches its own text.
//! * A guest that ends without a status (a panic) has failed. It is not started once more: with these settings the
//!   emulator has no known fault that would need it.
//! * How busy the host is must not show: with [`Clock::Instructions`] a guest's clock counts what it executes, and
//!   [`Guest::patience`] stops a guest that hangs, by the time in which it could have run.
//! * The exit status comes as a marker line; files come through a second serial port as `tar.gz`.

mod console;
mod cpio;
pub(crate) mod packages;
mod programs;
mod qemu;
mod topology;
mod uml;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::architecture::Architecture;
use crate::busybox;
use crate::interrupt::Folder;
use crate::kernel::{Boot, Kernel};
use crate::process::{in_path, output_of};
use crate::progress::say;
use crate::schedulable_time::SchedulableTime;
use crate::setup;

use self::console::{Lines, status_in};
use self::cpio::Archive;
pub(crate) use self::programs::{
    OF_BENCHMARKS, OF_DEMO, OF_NODE, OF_TESTS, build as build_programs, cluster_tests, released,
};
use self::qemu::Running;
pub(crate) use self::topology::Topology;
pub(crate) use self::uml::UmlGuest;

/// What comes through the second serial port, in the run's folder.
const FILES: &str = "files.tar.gz";

/// Kernel modules in the guest, under names that sort in the order in which they are loaded.
const MODULES: &str = "lib/modules";

/// A server's: atomic instructions (8.1), and none of what costs an emulator most (pointer authentication, long
/// vectors).
const ARM_CPU: &str = "neoverse-n1";

/// PID 1 of every guest.
const INIT: &str = include_str!("guest/init.sh");

/// How often a guest is looked at that may hang.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// The empty disks of every guest, `/dev/nvme0n1` for a file system and `/dev/nvme0n2` for swap: NVMe, the one block
/// driver that is built into all of Debian's kernels. Sparse files that go with the run.
const DISKS: [(&str, u64); 2] = [("disk.img", 1 << 30), ("swap.img", 512 << 20)];

/// Console lines kept for the caller, the first ones; all lines are streamed.
const LINES_KEPT_MAX: usize = 200_000;

/// Which cgroup hierarchies PID 1 mounts on `/sys/fs/cgroup`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CgroupLayout {
    /// The unified hierarchy with all controllers on.
    Cgroup2,
    /// A v1 hierarchy per controller. Debian's 6.12 and 7.2 have v1 only for cpu.
    Cgroup1,
    /// v1 hierarchies, and an empty v2 one on `unified`.
    Hybrid,
}

impl CgroupLayout {
    /// The name on the command line of xtask and of the guest's kernel.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cgroup2 => "cgroup2",
            Self::Cgroup1 => "cgroup1",
            Self::Hybrid => "hybrid",
        }
    }
}

impl FromStr for CgroupLayout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Cgroup2, Self::Cgroup1, Self::Hybrid]
            .into_iter()
            .find(|layout| layout.name() == text)
            .ok_or_else(|| format!("`{text}` is not cgroup2, cgroup1 or hybrid"))
    }
}

/// The agent and the guest programs that a guest has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Programs {
    /// None: nothing is built.
    None,
    /// All.
    All,
    /// These: what is left out need not be unpacked by an emulated CPU.
    Only(&'static [&'static str]),
}

/// A command that ends with this process: a guest must not outlive an xtask that was killed.
fn within_this_process(program: &Path) -> Command {
    let Some(setpriv) = in_path("setpriv") else {
        return Command::new(program);
    };
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// What a guest's clock follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The host's clock: a guest that the host keeps from running finds that time has passed.
    Host,
    /// What all CPUs of the guest execute together, 4 ns an instruction: half as fast as a machine of today can
    /// emulate. Idle time is skipped: a wait of ten seconds takes milliseconds. A busy host makes the guest slow and
    /// nothing else.
    Instructions,
    /// One CPU, 1 ns an instruction, idle time skipped: slow, and the same figures on any machine.
    OneCpuInstructions,
}

impl Clock {
    /// The value of QEMU's `-icount`, if instructions are counted.
    fn icount(self) -> Option<&'static str> {
        match self {
            Self::Host => None,
            Self::Instructions => Some("shift=2,sleep=off"),
            Self::OneCpuInstructions => Some("shift=0,sleep=off"),
        }
    }
}

impl FromStr for Clock {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "host" => Ok(Self::Host),
            "instructions" => Ok(Self::Instructions),
            "one-cpu" => Ok(Self::OneCpuInstructions),
            _ => Err(format!("`{text}` is not host, instructions or one-cpu")),
        }
    }
}

/// A guest to be run.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    architecture: Architecture,
    kernel: Kernel,
    topology: Topology,
    memory_mb: u64,
    cgroup: CgroupLayout,
    command: String,
    payload: Vec<PathBuf>,
    debian_packages: Vec<String>,
    programs: Programs,
    append: String,
    clock: Clock,
    timeout: Option<Duration>,
    patience: Option<Patience>,
    out: Option<PathBuf>,
}

/// When a guest hangs.
#[derive(Debug, Clone, Copy)]
struct Patience {
    time: Duration,
    /// What is progress: a kernel in trouble goes on writing lines.
    moves: fn(&str) -> bool,
}

/// How a guest ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GuestEnd {
    /// The command ended with this status.
    Status(u8),
    /// The time was up, or nothing moved any more; the guest was stopped.
    TimedOut,
    /// The guest ended without saying a status: a panic, or an OOM kill of PID 1's children and PID 1 itself.
    NoStatus,
}

/// A finished guest.
#[derive(Debug)]
pub(crate) struct GuestExit {
    /// How it ended.
    pub(crate) end: GuestEnd,
    /// Console lines, without the marker line.
    pub(crate) lines: Vec<String>,
    /// Wall-clock time.
    pub(crate) took: Duration,
}

impl GuestExit {
    /// As an exit status of this process: the command's, 124 for a time-out, 125 for no status.
    pub(crate) fn code(&self) -> u8 {
        match self.end {
            GuestEnd::Status(status) => status,
            GuestEnd::TimedOut => 124,
            GuestEnd::NoStatus => 125,
        }
    }
}

impl Guest {
    /// A guest of 4 CPUs and 1536 MB with cgroup v2, the agent and the guest programs, and three minutes of time.
    pub(crate) fn new(kernel: Kernel) -> Self {
        Self {
            architecture: Architecture::Amd64,
            kernel,
            topology: Topology::Flat(4),
            memory_mb: 1536,
            cgroup: CgroupLayout::Cgroup2,
            command: "true".to_owned(),
            payload: Vec::new(),
            debian_packages: Vec::new(),
            programs: Programs::All,
            append: String::new(),
            clock: Clock::Host,
            timeout: Some(Duration::from_secs(180)),
            patience: None,
            out: None,
        }
    }

    /// Its processor; x86-64 otherwise.
    pub(crate) fn architecture(mut self, architecture: Architecture) -> Self {
        self.architecture = architecture;
        self
    }

    /// CPUs and memory nodes.
    pub(crate) fn topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// Memory of the machine; the kernel and the root file system take some 100 MB of it.
    pub(crate) fn memory_mb(mut self, memory_mb: u64) -> Self {
        self.memory_mb = memory_mb;
        self
    }

    /// Which cgroup hierarchies are mounted.
    pub(crate) fn cgroup(mut self, cgroup: CgroupLayout) -> Self {
        self.cgroup = cgroup;
        self
    }

    /// What runs, as a line of shell; `/payload` is the working directory and in `PATH`.
    pub(crate) fn command(mut self, command: impl Into<String>) -> Self {
        self.command = command.into();
        self
    }

    /// A file for `/payload/NAME`, or a folder whose content goes into `/payload`.
    pub(crate) fn payload(mut self, path: impl Into<PathBuf>) -> Self {
        self.payload.push(path.into());
        self
    }

    /// Debian bookworm packages to install, with the libraries that their programs need.
    pub(crate) fn debian_packages(mut self, names: &[&str]) -> Self {
        self.debian_packages
            .extend(names.iter().map(|name| (*name).to_owned()));
        self
    }

    /// Which of the agent and the guest programs are built and put into `/payload`; all by default.
    pub(crate) fn programs(mut self, programs: Programs) -> Self {
        self.programs = programs;
        self
    }

    /// More kernel parameters.
    pub(crate) fn append(mut self, parameters: &str) -> Self {
        self.append.push(' ');
        self.append.push_str(parameters);
        self
    }

    /// What the clock follows.
    pub(crate) fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The guest is stopped when none of its lines `moves` it on for so long, not counting time in which the host kept
    /// it from running.
    pub(crate) fn patience(mut self, time: Duration, moves: fn(&str) -> bool) -> Self {
        self.patience = Some(Patience { time, moves });
        self
    }

    /// Wall-clock time for the whole run; `None` for no limit.
    pub(crate) fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }

    /// Where the files arrive that the command leaves in `/out`.
    pub(crate) fn out(mut self, folder: impl Into<PathBuf>) -> Self {
        self.out = Some(folder.into());
        self
    }

    /// Boots, runs the command, gives each console line to `on_line` as it comes, and waits for the end.
    ///
    /// A guest that dies without a status is not started once more: see [`GuestEnd::NoStatus`].
    pub(crate) fn run(&self, mut on_line: impl FnMut(&str)) -> Result<GuestExit> {
        // First: it is what may need the user.
        setup::qemu(self.architecture)?;
        let folder = Folder::new()?;
        let work = folder.path();
        let boot = self.kernel.boot(self.architecture)?;
        let initramfs = self.initramfs(&boot, work)?;
        let mut qemu = self.qemu(&boot.image, &initramfs, work, false)?;
        // Ctrl-C on the terminal is for this process alone: see `interrupt`.
        qemu.process_group(0);
        let exit = self.follow("QEMU", qemu, work, &mut on_line)?;
        self.collect(&work.join(FILES))?;
        Ok(exit)
    }

    /// Starts the emulator and follows its console to the end.
    fn follow(
        &self,
        name: &'static str,
        command: Command,
        work: &Path,
        on_line: &mut dyn FnMut(&str),
    ) -> Result<GuestExit> {
        let started = Instant::now();
        let deadline = self.timeout.map(|timeout| started + timeout);
        let mut qemu = Running::start(name, command, Stdio::null(), work)?;
        let console = qemu.console()?;
        let mut quiet = SchedulableTime::of(qemu.pid());
        let mut looked = Instant::now();
        let mut lines = Lines::default();
        let mut kept = Vec::new();
        let mut status = None;
        let mut timed_out = false;
        // PID 1 puts an empty line before the marker, and the kernel says goodbye after it: neither is the command's.
        let mut empty_line_held = false;
        let mut take = |line: String| {
            if status.is_some() {
                return;
            }
            if let Some(seen) = status_in(&line) {
                status = Some(seen);
                return;
            }
            if std::mem::replace(&mut empty_line_held, line.is_empty()) {
                on_line("");
                kept.push(String::new());
            }
            if !line.is_empty() {
                on_line(&line);
                kept.push(line);
            }
            kept.truncate(LINES_KEPT_MAX);
        };
        loop {
            let left = deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            let look = self.patience.map_or(Duration::MAX, |_| BETWEEN_LOOKS);
            match console.recv_timeout(left.min(look)) {
                Ok(bytes) => {
                    let new = lines.push(&bytes);
                    if let Some(Patience { moves, .. }) = self.patience
                        && new.iter().any(|line| moves(line))
                    {
                        quiet.restart();
                    }
                    new.into_iter().for_each(&mut take);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            // Not only when nothing comes: half a line now and then is not progress.
            let hangs = self.patience.is_some_and(|patience| {
                if looked.elapsed() < BETWEEN_LOOKS {
                    return false;
                }
                looked = Instant::now();
                quiet.passed() >= patience.time
            });
            timed_out = hangs || deadline.is_some_and(|end| Instant::now() >= end);
            if timed_out {
                break;
            }
        }
        lines.rest().into_iter().for_each(&mut take);
        qemu.finish(timed_out)?;
        let end = match (status, timed_out) {
            (Some(status), _) => GuestEnd::Status(status),
            (None, true) => GuestEnd::TimedOut,
            (None, false) => GuestEnd::NoStatus,
        };
        Ok(GuestExit {
            end,
            lines: kept,
            took: started.elapsed(),
        })
    }

    /// Boots into a shell on this terminal and waits for its end. Ctrl-C goes to the guest; Ctrl-A X ends it at once.
    pub(crate) fn shell(&self) -> Result<u8> {
        // First: it is what may need the user.
        setup::qemu(self.architecture)?;
        let work = Folder::new()?;
        let boot = self.kernel.boot(self.architecture)?;
        let initramfs = self.initramfs(&boot, work.path())?;
        let files = work.path().join(FILES);
        say("guest", "a shell; `exit` ends it, Ctrl-A X kills it");
        let mut qemu = Running::start(
            "QEMU",
            self.qemu(&boot.image, &initramfs, work.path(), true)?,
            Stdio::inherit(),
            work.path(),
        )?;
        let console = qemu.console()?;
        let mut lines = Lines::default();
        let mut status = None;
        for bytes in console {
            let mut stdout = io::stdout();
            stdout
                .write_all(&bytes)
                .and_then(|()| stdout.flush())
                .context("cannot write to the terminal")?;
            status = lines
                .push(&bytes)
                .iter()
                .find_map(|line| status_in(line))
                .or(status);
        }
        qemu.finish(false)?;
        self.collect(&files)?;
        Ok(status.unwrap_or(125))
    }

    /// The root file system, as a file in `work`.
    fn initramfs(&self, boot: &Boot, work: &Path) -> Result<PathBuf> {
        let mut archive = Archive::default();
        for folder in [
            "bin", "dev", "etc", "out", "payload", "proc", "run", "sys", "tmp", "var/log",
            "var/run",
        ] {
            archive.folder(folder);
        }
        archive.file("init", INIT.as_bytes().to_vec(), true);
        archive.file("cmd", format!("{}\n", self.command).into_bytes(), false);
        archive.file(
            "etc/passwd",
            b"root:x:0:0:root:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n".to_vec(),
            false,
        );
        archive.file(
            "etc/group",
            b"root:x:0:\nnogroup:x:65534:\n".to_vec(),
            false,
        );
        archive.copy("bin/busybox", &busybox::fetched(self.architecture)?)?;
        for module in &boot.modules {
            let name = file_name(module)?;
            archive.copy(&format!("{MODULES}/{name}"), module)?;
        }
        let names: Vec<&str> = self.debian_packages.iter().map(String::as_str).collect();
        ensure!(
            names.is_empty() || self.architecture == Architecture::Amd64,
            "Debian packages are for guests of amd64: leave out {}",
            names.join(", ")
        );
        packages::install(&names, &mut archive)?;
        let built = match self.programs {
            Programs::All => programs::build(None, self.architecture)?,
            Programs::Only(names) => programs::build(Some(names), self.architecture)?,
            Programs::None => Vec::new(),
        };
        for path in built.iter().chain(&self.payload) {
            if path.is_dir() {
                archive.copy_tree("payload", path)?;
            } else {
                archive.copy(&format!("payload/{}", file_name(path)?), path)?;
            }
        }
        let initramfs = work.join("initramfs.cpio");
        fs::write(&initramfs, archive.into_bytes())
            .with_context(|| format!("cannot write {}", initramfs.display()))?;
        Ok(initramfs)
    }

    /// The command line that runs the same by hand.
    pub(crate) fn by_hand(&self) -> String {
        let Self {
            architecture,
            kernel,
            topology,
            memory_mb,
            cgroup,
            append,
            command,
            ..
        } = self;
        let clock = match self.clock {
            Clock::Host => "",
            Clock::Instructions => " --clock instructions",
            Clock::OneCpuInstructions => " --clock one-cpu",
        };
        let append = match append.trim() {
            "" => String::new(),
            parameters => format!(" --append '{parameters}'"),
        };
        let arch = match architecture {
            Architecture::Amd64 => String::new(),
            other => format!(" --arch {other}"),
        };
        format!(
            "cargo xtask vm{arch} --kernel {kernel} --cgroup {} --topology {topology} --memory {memory_mb}{clock}{append} --timeout 3600 --cmd '{command}'",
            cgroup.name()
        )
    }

    fn qemu(&self, image: &Path, initramfs: &Path, work: &Path, shell: bool) -> Result<Command> {
        let machine = self.fitting_topology()?.machine(self.memory_mb);
        let mut command = within_this_process(&setup::qemu(self.architecture)?);
        if let Some(icount) = self.clock.icount() {
            command.args(["-icount", icount]);
        }
        command
            .args(["-accel", "tcg,thread=single"])
            .args(["-cpu", &self.cpu(machine.cpu)])
            .args(["-m", &format!("{}M", machine.memory_mb)])
            .args(&machine.flags)
            .arg("-kernel")
            .arg(image)
            .arg("-initrd")
            .arg(initramfs)
            .args(["-append", &self.kernel_parameters(shell)])
            .args(["-display", "none", "-no-reboot", "-nodefaults"])
            .args(["-serial", if shell { "mon:stdio" } else { "stdio" }])
            .args(["-device", "nvme,id=nvme0,serial=plimsoll"]);
        let files = format!("file:{}", work.join(FILES).display());
        match self.architecture {
            Architecture::Amd64 => command.args(["-serial", &files]),
            Architecture::Arm64 => command
                .args(["-machine", "virt,gic-version=3"])
                .args(["-chardev", &files.replacen(':', ",id=files,path=", 1)])
                .args(["-device", "pci-serial,chardev=files"]),
        };
        for (name, bytes) in DISKS {
            let path = work.join(name);
            File::create(&path)
                .and_then(|file| file.set_len(bytes))
                .with_context(|| format!("cannot make {}", path.display()))?;
            let drive = format!(
                "file={},if=none,id={name},format=raw,cache=unsafe,discard=unmap",
                path.display()
            );
            let device = format!("nvme-ns,bus=nvme0,drive={name}");
            command.args(["-drive", &drive, "-device", &device]);
        }
        Ok(command)
    }

    /// The machine that clock and architecture allow.
    fn fitting_topology(&self) -> Result<Topology> {
        let one_cpu = self.clock == Clock::OneCpuInstructions;
        ensure!(
            !one_cpu || matches!(self.topology, Topology::Flat(_)),
            "instruction-counted time has one CPU: leave out the topology {}",
            self.topology
        );
        let topology = if one_cpu {
            Topology::Flat(1)
        } else {
            self.topology
        };
        ensure!(
            topology.fits(self.architecture),
            "a guest of {} cannot be {topology}: take flat:CPUS or numa2:CPUS",
            self.architecture
        );
        Ok(topology)
    }

    fn cpu(&self, of_machine: &str) -> String {
        match self.architecture {
            // One string instruction would count as one instruction per byte; without these the kernel copies words.
            Architecture::Amd64 if self.clock.icount().is_some() => {
                format!("{of_machine},-cx16,erms=off,fsrm=off")
            }
            Architecture::Amd64 => format!("{of_machine},-cx16"),
            Architecture::Arm64 => ARM_CPU.to_owned(),
        }
    }

    fn kernel_parameters(&self, shell: bool) -> String {
        let (console, files_port) = match self.architecture {
            Architecture::Amd64 => ("ttyS0", "ttyS1"),
            // Its machine has one serial port; the other one is a PCI card.
            Architecture::Arm64 => ("ttyAMA0", "ttyS0"),
        };
        let mut parameters = format!(
            // What ends a guest is on the console. What the OOM killer writes takes milliseconds a line and is in the
            // log. And the kernel's tests of its own ciphers go on for a second after it has booted.
            "console={console} panic=-1 psi=1 loglevel=3 cryptomgr.notests=1 plimsoll.cgroup={} plimsoll.console={console} plimsoll.files={files_port}",
            self.cgroup.name()
        );
        if shell {
            parameters.push_str(" plimsoll.shell=1");
        }
        if self.clock.icount().is_some() && self.architecture == Architecture::Amd64 {
            parameters.push_str(" tsc=reliable clocksource=tsc");
        }
        parameters + &self.append
    }

    /// Unpacks what came through the second serial port.
    fn collect(&self, files: &Path) -> Result<()> {
        let Some(out) = &self.out else { return Ok(()) };
        fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
        if fs::metadata(files).is_ok_and(|metadata| metadata.len() > 0) {
            output_of(
                Command::new("tar")
                    .arg("-xzf")
                    .arg(files)
                    .arg("-C")
                    .arg(out),
                "the guest's files arrived incomplete: give it more time with --timeout",
            )?;
        }
        Ok(())
    }
}

fn file_name(path: &Path) -> Result<String> {
    let name = path
        .file_name()
        .with_context(|| format!("{} has no name", path.display()))?;
    Ok(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Follows a shell script in the emulator's place.
    fn follow(guest: &Guest, script: &str) -> (Result<GuestExit>, Duration) {
        let work = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let started = Instant::now();
        let exit = guest.follow("QEMU", command, work.path(), &mut |_| {});
        (exit, started.elapsed())
    }

    fn guest() -> Guest {
        Guest::new(Kernel::V6_12)
            .timeout(None)
            .patience(Duration::from_secs(3), |line| !line.contains("stall"))
    }

    #[test]
    fn a_status_is_what_the_guest_says_and_not_what_follows() {
        let script = "echo up; echo; echo '@@PLIMSOLL-STATUS 7@@'; echo bye";
        let exit = follow(&guest(), script).0.unwrap();
        assert_eq!((exit.end, exit.code()), (GuestEnd::Status(7), 7));
        assert_eq!(exit.lines, ["up"]);
    }

    #[test]
    fn a_guest_that_dies_has_no_status_and_is_not_started_again() {
        let work = tempfile::tempdir().unwrap();
        let starts = work.path().join("starts");
        let script = format!("echo x >> {}; echo 'Kernel panic'", starts.display());
        let exit = follow(&guest(), &script).0.unwrap();
        assert_eq!((exit.end, exit.code()), (GuestEnd::NoStatus, 125));
        assert_eq!(exit.lines, ["Kernel panic"]);
        assert_eq!(fs::read_to_string(starts).unwrap(), "x\n");
    }

    #[test]
    fn an_emulator_that_fails_is_an_error_with_its_words() {
        let error = follow(&guest(), "echo 'no such machine' >&2; exit 1").0;
        let error = error.unwrap_err().to_string();
        assert!(
            error.starts_with("QEMU failed") && error.contains("no such machine"),
            "{error}"
        );
    }

    #[test]
    fn a_guest_that_says_nothing_is_stopped_asleep_or_busy() {
        for script in [
            "echo up; exec sleep 1000",
            "echo up; while :; do :; done",
            "echo up; while :; do echo 'rcu: INFO: stall'; sleep 0.1; done",
            // Half a line is no line.
            "echo up; while :; do printf .; sleep 0.1; done",
        ] {
            let exit = follow(&guest(), script).0.unwrap();
            assert_eq!((exit.end, exit.code()), (GuestEnd::TimedOut, 124));
            assert_eq!(exit.lines[0], "up");
        }
    }

    #[test]
    fn a_slow_guest_that_says_something_is_not_stopped() {
        // Between two lines the shell may have to wait for its CPU or its disk; not a hundred times as long as it
        // sleeps.
        let patience = Duration::from_secs(10);
        let guest = guest().patience(patience, |_| true);
        let script =
            "for i in $(seq 101); do sleep 0.1; echo $i; done; echo '@@PLIMSOLL-STATUS 0@@'";
        let (exit, took) = follow(&guest, script);
        assert_eq!(exit.unwrap().end, GuestEnd::Status(0));
        assert!(took > patience, "it is not slow");
    }

    #[test]
    fn a_guest_runs_by_hand_as_it_was_started() {
        let guest = Guest::new(Kernel::V6_1)
            .cgroup(CgroupLayout::Hybrid)
            .clock(Clock::Instructions)
            .append("psi=0")
            .command("guest_tests --on x");
        assert_eq!(
            guest.by_hand(),
            "cargo xtask vm --kernel 6.1 --cgroup hybrid --topology flat:4 --memory 1536 --clock instructions --append 'psi=0' \
             --timeout 3600 --cmd 'guest_tests --on x'"
        );
    }
}
