//! What `demo`, `vm` and `test` do when something goes wrong on the way: a guest that dies, a download cut off, a full disk, Ctrl-C.
//!
//! The command is the real one. Around it are an emulator that is a shell script, and an archive on 127.0.0.1 that the real apt-helper
//! downloads from.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

#[path = "../../agent/tests/notes/mod.rs"]
mod notes;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

/// Programs of the machine that a run may use.
const TOOLS: [&str; 14] = [
    "sh", "cat", "mkdir", "sleep", "setsid", "setpriv", "dpkg-deb", "dpkg", "tar", "gzip", "xz",
    "id", "cp", "mount",
];
const STEP: &str = "@@PLIMSOLL-STEP starting pod web@@";
/// Seconds that the emulator lives on when nobody ends it: longer than any test.
const HANG: &str = "sleep 100000";

/// A machine with the least that the command needs, all of it fake.
struct Machine {
    root: TempDir,
}

/// A command that runs.
struct Run {
    child: Child,
    lines: Receiver<String>,
}

impl Machine {
    /// Its emulator runs `script` in the machine's root folder.
    fn new(script: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let machine = Self { root };
        for folder in ["bin", "tmp", "cache", "programs"] {
            fs::create_dir(machine.path(folder)).unwrap();
        }
        for tool in TOOLS {
            let path = std::env::split_paths(&std::env::var_os("PATH").unwrap())
                .map(|folder| folder.join(tool))
                .find(|path| path.is_file());
            if let Some(path) = path {
                symlink(path, machine.path("bin").join(tool)).unwrap();
            }
        }
        let root = machine.root.path().display();
        machine.script(
            "qemu-system-x86_64",
            &format!("cd {root}\necho $$ > emulator.pid\n{script}"),
        );
        fs::write(machine.path("vmlinuz"), kernel_image()).unwrap();
        machine.static_program("bin/busybox");
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn static_program(&self, name: &str) {
        let path = self.path(name);
        fs::write(&path, elf_without_interpreter()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Its apt knows the archive at `address` for the release that this machine has. False on a machine that is not Debian.
    fn apt(&self, address: &str) -> bool {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        if !release.contains("\nID=debian") || !Path::new("/usr/lib/apt/apt-helper").exists() {
            notes::left_out("this machine is not Debian");
            return false;
        }
        self.script(
            "apt-get",
            &format!(
                "case $1 in\nindextargets) . /etc/os-release; echo {address} $VERSION_CODENAME main yes;;\n\
                 *) exec /usr/bin/apt-get \"$@\";;\nesac"
            ),
        );
        true
    }

    fn start(&self, arguments: &[&str]) -> Run {
        // `env` also where this test runs under `nohup`: a SIGHUP that is ignored stays so in children.
        let mut child = Command::new("/usr/bin/env")
            .arg("--default-signal")
            .arg(env!("CARGO_BIN_EXE_xtask"))
            .args(arguments)
            .env("PATH", self.path("bin"))
            .env("TMPDIR", self.path("tmp"))
            .env("PLIMSOLL_CACHE", self.path("cache"))
            .env("PLIMSOLL_NIGHTLY", "nightly-fake")
            // What the proxy of this machine says of 127.0.0.1 is not the question.
            .env_remove("http_proxy")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // As a shell does it: see `Run::interrupt`.
            .process_group(0)
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let streams: [Box<dyn std::io::Read + Send>; 2] = [
            Box::new(child.stdout.take().unwrap()),
            Box::new(child.stderr.take().unwrap()),
        ];
        for stream in streams {
            let sender = sender.clone();
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    sender.send(line).ok();
                }
            });
        }
        Run { child, lines }
    }

    fn demo(&self) -> Run {
        self.start(&[
            "demo",
            "--kernel",
            self.path("vmlinuz").to_str().unwrap(),
            "--programs",
            self.path("programs").to_str().unwrap(),
        ])
    }

    /// A guest of its kernel, without the project's programs.
    fn vm(&self) -> Run {
        let image = self.path("vmlinuz");
        let image = image.to_str().unwrap();
        self.start(&["vm", "--bare", "--kernel", image, "--cmd", "x"])
    }

    /// Its compilers do nothing, and the call of one of them with this number, counted from 1, does not end: nor does what that has started.
    /// Everything that is built fails, so that nothing of it is run or copied; tests and lints succeed.
    fn compilers(&self, hangs: usize) {
        let root = self.root.path().display();
        let library = self.path("sysroot/lib/rustlib/src/rust/library/core/src");
        fs::create_dir_all(&library).unwrap();
        fs::write(library.join("lib.rs"), "").unwrap();
        let call = format!(
            "cd {root}\nn=1\nwhile ! mkdir call.$n 2> /dev/null; do n=$((n + 1)); done\n\
             if [ $n = {hangs} ]; then\n\
             setsid sh -c 'echo $$ > orphan.pid; {HANG}' &\necho $$ > emulator.pid\n\
             while ! [ -s orphan.pid ]; do sleep 0.01; done\nmkdir hangs\n{HANG}\nfi\n"
        );
        self.script(
            "cargo",
            &format!("{call}case $1 in\nfmt | clippy | test) echo 'test result: ok. 1 passed';;\n*) exit 1;;\nesac"),
        );
        self.script(
            "rustup",
            &format!("{call}case \"$*\" in\n*sysroot) echo {root}/sysroot;;\n*--version) ;;\n*) exit 1;;\nesac"),
        );
    }

    /// The tests without guests, until a compiler hangs; `None` if they have ended.
    fn test(&self) -> Option<Run> {
        let mut run = self.start(&["test", "--quick"]);
        loop {
            if self.path("hangs").exists() {
                return Some(run);
            }
            if run.child.try_wait().unwrap().is_some() {
                return None;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Nothing runs any more, and nothing is left of it.
    fn assert_clean(&self) {
        let left: Vec<_> = fs::read_dir(self.path("tmp")).unwrap().flatten().collect();
        assert!(left.is_empty(), "temporary folders: {left:?}");
        let cached = fs::read_dir(self.path("cache")).unwrap().flatten();
        let partial: Vec<_> = cached
            .filter(|entry| {
                entry
                    .file_name()
                    .to_string_lossy()
                    .starts_with(".plimsoll-")
            })
            .collect();
        assert!(partial.is_empty(), "in the cache: {partial:?}");
        for name in ["emulator.pid", "orphan.pid"] {
            if let Ok(pid) = fs::read_to_string(self.path(name)) {
                let alive = Path::new("/proc").join(pid.trim()).join("exe").exists();
                assert!(!alive, "{name}: {pid} still runs");
            }
        }
        let lock = File::options()
            .create(true)
            .append(true)
            .open(self.path("cache/.lock"))
            .unwrap();
        lock.try_lock().unwrap();
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let root = self.root.path().display().to_string();
        assert!(!mounts.contains(&root), "{mounts}");
    }
}

impl Run {
    /// Waits for a line that has `text` in it. There is no limit in time: it fails when the command has ended.
    fn wait_for(&self, text: &str) {
        let mut seen = Vec::new();
        loop {
            match self.lines.recv() {
                Ok(line) if line.contains(text) => return,
                Ok(line) => seen.push(line),
                Err(_) => panic!("ended without `{text}`:\n{}", seen.join("\n")),
            }
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap()
    }

    /// To the command alone, as `kill` does it.
    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Its status and what it has said since it was last asked.
    fn end(mut self) -> (ExitStatus, String) {
        let lines: Vec<String> = self.lines.iter().collect();
        (self.child.wait().unwrap(), lines.join("\n"))
    }

    /// To the whole process group, as Ctrl-C on a terminal does it.
    fn interrupt(self) {
        kill_process_group(self.pid(), Signal::INT).unwrap();
        let (status, text) = self.end();
        assert_eq!(status.code(), Some(130), "{text}");
        assert!(text.contains("interrupted"), "{text}");
    }
}

/// The header by which a boot image says its version.
fn kernel_image() -> Vec<u8> {
    let mut image = vec![0_u8; 0x400];
    image[0x202..0x206].copy_from_slice(b"HdrS");
    image[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
    image[0x300..0x308].copy_from_slice(b"6.12.0 x");
    image
}

fn elf_without_interpreter() -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    file.resize(64, 0);
    file[52] = 64;
    file
}

/// An archive that answers each request with what `answer` writes; returns its address.
fn archive(answer: impl Fn(&str, &mut TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/debian/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).ok();
            let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
            answer(&path, &mut stream);
        }
    });
    address
}

fn reply(stream: &mut TcpStream, status: &str, length: usize, body: &[u8]) {
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).ok();
    stream.write_all(body).ok();
}

#[test]
fn a_guest_that_dies_names_its_step_its_last_lines_and_how_to_look_closer() {
    let steps = [
        "clearing the node",
        "starting pod web",
        "starting the agent",
        "starting pod leaky",
        "letting pod leaky leak",
        "counting who died",
        "waiting for what the agent says of the eviction",
        "stopping the agent",
        "ending pod leaky",
    ];
    for dies_in in 0..=steps.len() {
        let mut script = String::new();
        for step in &steps[..dies_in] {
            script += &format!("echo '@@PLIMSOLL-STEP {step}@@'\necho 'said in {step}'\n");
        }
        let machine = Machine::new(&format!("{script}echo 'Kernel panic - not syncing'"));
        let (status, text) = machine.demo().end();
        assert_eq!(status.code(), Some(1), "{text}");
        let step = match dies_in {
            0 => "booting the guest",
            _ => steps[dies_in - 1],
        };
        assert!(
            text.contains(&format!("the guest ended while {step}.")),
            "{text}"
        );
        assert!(text.contains("    Kernel panic - not syncing\n"), "{text}");
        assert!(
            text.contains("To look closer: cargo xtask vm --kernel"),
            "{text}"
        );
        machine.assert_clean();
    }
}

#[test]
fn an_emulator_that_does_not_start_says_why() {
    let machine = Machine::new("echo 'cannot allocate memory' >&2; exit 1");
    let (status, text) = machine.demo().end();
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("QEMU failed (exit status: 1):"), "{text}");
    assert!(text.contains("cannot allocate memory"), "{text}");
    machine.assert_clean();
}

#[test]
fn ctrl_c_leaves_nothing_of_a_guest() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let machine = Machine::new(&format!("echo '{STEP}'; echo up; {HANG}"));
        let run = machine.demo();
        run.wait_for("up");
        run.signal(signal);
        let (status, text) = run.end();
        assert_eq!(status.code(), Some(128 + signal.as_raw()), "{text}");
        machine.assert_clean();
    }
    let machine = Machine::new(&format!("echo up; {HANG}"));
    let run = machine.vm();
    run.wait_for("up");
    run.interrupt();
    machine.assert_clean();
}

#[test]
fn ctrl_c_ends_a_guest_that_does_not_listen() {
    let machine = Machine::new("trap '' INT TERM; echo up; while :; do sleep 1; done");
    let run = machine.demo();
    run.wait_for("up");
    run.interrupt();
    machine.assert_clean();
}

#[test]
fn ctrl_c_ends_what_has_lost_its_parent() {
    // In a session of its own, and its parent has ended.
    let orphan = format!("(setsid sh -c 'echo $$ > orphan.pid; echo up; {HANG}' &)");
    let machine = Machine::new(&format!("{orphan}; {HANG}"));
    let run = machine.demo();
    run.wait_for("up");
    run.interrupt();
    machine.assert_clean();
}

/// Each call of a compiler is one such moment. Guests and downloads are the others, and have tests of their own.
#[test]
fn ctrl_c_leaves_nothing_of_the_tests_at_any_moment() {
    for call in 1.. {
        let machine = Machine::new("true");
        machine.compilers(call);
        let Some(run) = machine.test() else {
            // Formatting, the BPF object, lints, tests.
            assert!(call > 10, "it has ended by itself after {} calls", call - 1);
            machine.assert_clean();
            break;
        };
        run.interrupt();
        machine.assert_clean();
    }
}

#[test]
fn ctrl_c_ends_the_wait_for_another() {
    let machine = Machine::new("true");
    let lock = File::create(machine.path("cache/.lock")).unwrap();
    lock.lock().unwrap();
    (&lock).write_all(b"cargo xtask setup, pid 4711").unwrap();
    let run = machine.start(&["vm", "--bare", "--cmd", "x"]);
    run.wait_for("for cargo xtask setup, pid 4711");
    run.interrupt();
    drop(lock);
    machine.assert_clean();
}

#[test]
fn ctrl_c_ends_a_download_and_leaves_no_part_of_it() {
    let machine = Machine::new("true");
    let (asked, wait) = channel();
    let address = archive(move |_, stream| {
        reply(stream, "200 OK", 33_925_512, &[0; 1 << 20]);
        asked.send(()).ok();
        // It closes when the other side does.
        stream.read_to_end(&mut Vec::new()).ok();
    });
    if !machine.apt(&address) {
        return;
    }
    let run = machine.start(&["vm", "--bare", "--cmd", "x"]);
    wait.recv().unwrap();
    run.interrupt();
    machine.assert_clean();
}

#[test]
fn a_download_that_is_cut_off_or_changed_says_so() {
    // Whole by its length, but not what is pinned.
    let machine = Machine::new("true");
    let address = archive(|_, stream| reply(stream, "200 OK", 5, b"wrong"));
    if !machine.apt(&address) {
        return;
    }
    let (status, text) = machine.start(&["vm", "--bare", "--cmd", "x"]).end();
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(
        text.contains("cannot download Debian's linux-image-6.12"),
        "{text}"
    );
    assert!(text.contains("cut off or changed on its way"), "{text}");
    machine.assert_clean();
    // Shorter than it said.
    let machine = Machine::new("true");
    machine.apt(&archive(|_, stream| {
        reply(stream, "200 OK", 1000, b"wrong")
    }));
    let (status, text) = machine.start(&["vm", "--bare", "--cmd", "x"]).end();
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("run the command again"), "{text}");
    machine.assert_clean();
}

#[test]
fn a_pinned_package_that_is_gone_gives_way_to_the_newest() {
    let machine = Machine::new("echo up");
    fs::remove_file(machine.path("bin/busybox")).unwrap();
    let package = machine.path("package");
    fs::create_dir_all(package.join("DEBIAN")).unwrap();
    fs::create_dir_all(package.join("bin")).unwrap();
    machine.static_program("package/bin/busybox");
    fs::write(
        package.join("DEBIAN/control"),
        "Package: busybox-static\nVersion: 9:9.9\nArchitecture: amd64\nMaintainer: a <a@b.example>\nDescription: x\n",
    )
    .unwrap();
    let deb = machine.path("new.deb");
    let built = Command::new("dpkg-deb")
        .args(["--build", "--root-owner-group"])
        .args([&package, &deb])
        .output();
    let Ok(built) = built else {
        notes::left_out("dpkg-deb is not there");
        return;
    };
    assert!(built.status.success(), "{built:?}");
    let bytes = fs::read(&deb).unwrap();
    let packages = format!(
        "Package: busybox-static\nVersion: 9:9.9\nArchitecture: amd64\nFilename: pool/main/new.deb\nSize: {}\nSHA256: {}\nDescription: x\n\n",
        bytes.len(),
        sha256(&deb)
    );
    let listed = machine.path("Packages");
    fs::write(&listed, &packages).unwrap();
    let release = format!(
        "Suite: bookworm\nCodename: bookworm\nComponents: main\nArchitectures: amd64\nSHA256:\n {} {} main/binary-amd64/Packages\n",
        sha256(&listed),
        packages.len()
    );
    let address = archive(move |path, stream| {
        let body: &[u8] = match path {
            "/debian/dists/bookworm/Release" => release.as_bytes(),
            "/debian/dists/bookworm/main/binary-amd64/Packages" => packages.as_bytes(),
            "/debian/pool/main/new.deb" => &bytes,
            _ => return reply(stream, "404 Not Found", 0, b""),
        };
        reply(stream, "200 OK", body.len(), body);
    });
    if !machine.apt(&address) {
        return;
    }
    let run = machine.vm();
    run.wait_for("no longer has the pinned pool/main/b/busybox/");
    run.wait_for("up");
    run.end();
    assert!(machine.path("cache/busybox/bin/busybox").is_file());
    machine.assert_clean();
}

fn sha256(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn a_full_cache_is_said_with_what_is_needed() {
    let machine = Machine::new("true");
    let address = archive(|_, stream| reply(stream, "404 Not Found", 0, b""));
    if !machine.apt(&address) {
        return;
    }
    let cache = machine.path("cache");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(&cache)
        .output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        notes::left_out("only root can mount a small file system");
        return;
    }
    let (status, text) = machine.start(&["vm", "--bare", "--cmd", "x"]).end();
    let unmounted = Command::new("umount").arg(&cache).status().unwrap();
    assert!(unmounted.success());
    assert_eq!(status.code(), Some(1), "{text}");
    let needed = format!("{} has 1 MB free, and 204 MB are needed", cache.display());
    assert!(text.contains(&needed), "{text}");
    assert!(text.contains("PLIMSOLL_CACHE"), "{text}");
    machine.assert_clean();
}

#[test]
fn who_uses_the_cache_is_named_to_the_next() {
    let machine = Machine::new("true");
    let address = archive(|_, stream| {
        reply(stream, "200 OK", 33_925_512, b"");
        stream.read_to_end(&mut Vec::new()).ok();
    });
    if !machine.apt(&address) {
        return;
    }
    let first = machine.start(&["vm", "--bare", "--cmd", "x"]);
    first.wait_for("Debian's linux-image-6.12");
    let second = machine.start(&["vm", "--bare", "--cmd", "y"]);
    second.wait_for(&format!(
        "for cargo xtask vm --bare --cmd x, pid {}",
        first.child.id()
    ));
    second.interrupt();
    first.interrupt();
    machine.assert_clean();
}
