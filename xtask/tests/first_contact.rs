//! What `demo`, `vm` and `test` do when something goes wrong on the way: a guest that dies, a download cut off, a full
//! disk, Ctrl-C.
//!
//! The command is the real one. Around it are an emulator that is a shell script, and an archive on 127.0.0.1 that the
//! real apt-helper downloads from.
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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

/// Programs of the machine that a run may use.
const TOOLS: [&str; 16] = [
    "sh", "cat", "ls", "mkdir", "touch", "sleep", "setsid", "setpriv", "dpkg-deb", "dpkg", "tar",
    "gzip", "xz", "id", "cp", "mount",
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
        // It may be a link to a program of this machine.
        fs::remove_file(&path).ok();
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn static_program(&self, name: &str) {
        let path = self.path(name);
        fs::write(&path, elf_without_interpreter()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Its apt knows the archive at `address` for the release that this machine has. False on a machine that is not
    /// Debian.
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

    /// Its compilers do nothing, and the call of one of them, or of the one program of tests, with this number, counted
    /// from 1, does not end: nor does what that has started. Everything else that is built fails, so that nothing of it
    /// is run or copied; tests and lints succeed. The tests leave files, and a mount if this is root.
    fn compilers(&self, hangs: usize) {
        let root = self.root.path().display();
        let library = self.path("sysroot/lib/rustlib/src/rust/library/core/src");
        fs::create_dir_all(&library).unwrap();
        fs::write(library.join("lib.rs"), "").unwrap();
        fs::create_dir(self.path("sysroot/bin")).unwrap();
        fs::write(self.path("sysroot/bin/clippy-driver"), "").unwrap();
        let call_that_leaves = |left: &str| {
            format!(
                "cd {root}\nn=1\nwhile ! mkdir call.$n 2> /dev/null; do n=$((n + 1)); done\n\
                 if [ $n = {hangs} ]; then\n{left}\n\
                 setsid sh -c 'echo $$ > orphan.pid; {HANG}' &\necho $$ > emulator.pid\n\
                 while ! [ -s orphan.pid ]; do sleep 0.01; done\nmkdir hangs\n{HANG}\nfi\n"
            )
        };
        let call = call_that_leaves("");
        let tests = call_that_leaves(
            "ls -ld $TMPDIR > mode\nmkdir $TMPDIR/left && mount -t tmpfs none $TMPDIR/left\ntouch $TMPDIR/left/file",
        );
        self.script("tests", &format!("{tests}echo 'test result: ok. 1 passed'"));
        let built = format!(
            r#"{{"executable":"{root}/bin/tests","manifest_path":"{root}/Cargo.toml","target":{{"src_path":"{root}/src/lib.rs"}},"profile":{{"test":true}}}}"#
        );
        self.script(
            "cargo",
            &format!(
                "{call}case $1 in\nfmt | build) ;;\ntest) echo '{built}';;\n*) exit 1;;\nesac"
            ),
        );
        self.script("rustc", &format!("{call}echo {root}/sysroot"));
        self.script(
            "rustup",
            &format!("{call}case \"$*\" in\n*sysroot) echo {root}/sysroot;;\n*--version) ;;\n*) exit 1;;\nesac"),
        );
    }

    /// A command, until what it has started hangs; `None` if it has ended.
    fn until_it_hangs(&self, arguments: &[&str]) -> Option<Run> {
        let mut run = self.start(arguments);
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

    /// A script in the place of a program of this machine, whose first call runs `half` and does not end.
    fn hangs_once(&self, name: &str, half: &str) {
        let whole = fs::read_link(self.path("bin").join(name)).unwrap();
        let (root, whole) = (self.root.path().display(), whole.display());
        self.script(
            name,
            &format!(
                "if mkdir {root}/once 2> /dev/null; then\n{half}\necho $$ > {root}/emulator.pid\nmkdir {root}/hangs\n{HANG}\nfi\nexec {whole} \"$@\""
            ),
        );
    }

    /// Takes busybox away; the package of it has these files as well. `None` where Debian's tools are missing.
    fn lacks_busybox(&self, more: &[(&str, &[u8])]) -> Option<Package> {
        fs::remove_file(self.path("bin/busybox")).unwrap();
        let busybox = elf_without_interpreter();
        let files = [&[("bin/busybox", &busybox[..])], more].concat();
        self.package("busybox-static", "bookworm", &files)
    }

    /// A package with these files, and a suite that has nothing else. `None` where Debian's tools are missing.
    fn package(&self, name: &str, suite: &str, files: &[(&str, &[u8])]) -> Option<Package> {
        let folder = self.path("package");
        fs::create_dir_all(folder.join("DEBIAN")).unwrap();
        fs::write(
            folder.join("DEBIAN/control"),
            format!("Package: {name}\nVersion: 9:9.9\nArchitecture: amd64\nMaintainer: a <a@b.example>\nDescription: x\n"),
        )
        .unwrap();
        for (file, content) in files {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let deb = self.path("new.deb");
        let built = Command::new("dpkg-deb")
            .args(["--build", "--root-owner-group"])
            .args([&folder, &deb])
            .output();
        let Ok(built) = built else {
            notes::left_out("dpkg-deb is not there");
            return None;
        };
        assert!(built.status.success(), "{built:?}");
        let bytes = fs::read(&deb).unwrap();
        let packages = format!(
            "Package: {name}\nVersion: 9:9.9\nArchitecture: amd64\nFilename: pool/main/new.deb\nSize: {}\nSHA256: {}\nDescription: x\n\n",
            bytes.len(),
            sha256(&deb)
        );
        let listed = self.path("Packages");
        fs::write(&listed, &packages).unwrap();
        let release = format!(
            "Suite: {suite}\nCodename: {suite}\nComponents: main\nArchitectures: amd64\nSHA256:\n {} {} main/binary-amd64/Packages\n",
            sha256(&listed),
            packages.len()
        );
        let lists = format!("/debian/dists/{suite}");
        Some(Package {
            files: vec![
                (format!("{lists}/Release"), release.into_bytes()),
                (
                    format!("{lists}/main/binary-amd64/Packages"),
                    packages.into_bytes(),
                ),
                ("/debian/pool/main/new.deb".to_owned(), bytes),
            ],
        })
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
        let root = self.root.path().as_os_str().as_encoded_bytes();
        for process in fs::read_dir("/proc").unwrap().flatten() {
            // That of a process that has ended is empty.
            let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let is_left = command.windows(root.len()).any(|part| part == root);
            assert!(!is_left, "{}", String::from_utf8_lossy(&command));
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

/// What an archive has of a package.
struct Package {
    /// By path.
    files: Vec<(String, Vec<u8>)>,
}

impl Package {
    fn file(&self, path: &str) -> Option<&[u8]> {
        let mut files = self.files.iter();
        let file = files.find(|(known, _)| known == path);
        file.map(|(_, content)| content.as_slice())
    }

    fn answer(&self, path: &str, stream: &mut TcpStream) {
        match self.file(path) {
            Some(file) => reply(stream, "200 OK", file.len(), file),
            None => reply(stream, "404 Not Found", 0, b""),
        }
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
    let to_one: fn(Pid, Signal) -> _ = kill_process;
    for (start, send, signal) in [
        (Machine::demo as fn(&Machine) -> Run, to_one, Signal::INT),
        (Machine::demo, to_one, Signal::TERM),
        (Machine::demo, to_one, Signal::HUP),
        // A terminal's Ctrl-C, and its end.
        (Machine::demo, kill_process_group, Signal::INT),
        (Machine::demo, kill_process_group, Signal::HUP),
        (Machine::vm, kill_process_group, Signal::INT),
        (Machine::vm, to_one, Signal::TERM),
    ] {
        let machine = Machine::new(&format!("echo '{STEP}'; echo up; {HANG}"));
        let run = start(&machine);
        run.wait_for("up");
        send(run.pid(), signal).unwrap();
        let (status, text) = run.end();
        assert_eq!(status.code(), Some(128 + signal.as_raw()), "{text}");
        machine.assert_clean();
    }
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
fn interrupted_in_each_call(arguments: &[&str], look: &mut dyn FnMut(&Machine)) -> usize {
    for call in 1.. {
        let machine = Machine::new("true");
        machine.compilers(call);
        let Some(run) = machine.until_it_hangs(arguments) else {
            machine.assert_clean();
            return call - 1;
        };
        run.interrupt();
        machine.assert_clean();
        look(&machine);
    }
    unreachable!("a command has an end");
}

#[test]
fn ctrl_c_leaves_nothing_of_the_tests_at_any_moment() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    if !workspace.join("target/tools/bin/bpf-linker").is_file() {
        notes::left_out("bpf-linker is not built, without which the tests do not begin");
        return;
    }
    let mut modes = Vec::new();
    let calls = interrupted_in_each_call(&["test", "--quick"], &mut |machine| {
        if let Ok(mode) = fs::read_to_string(machine.path("mode")) {
            modes.push(mode);
        }
    });
    // Once in a folder that other users can enter as well, as some tests do.
    assert!(
        modes.len() == 1 && modes[0].starts_with("drwxrwxrwt"),
        "{modes:?}"
    );
    // Formatting, the BPF object, lints, tests.
    assert!(calls > 9, "it has ended by itself after {calls} calls");
}

#[test]
fn ctrl_c_leaves_nothing_of_the_demo_before_its_guest() {
    let kernel = Machine::new("true");
    let image = kernel.path("vmlinuz");
    let demo = ["demo", "--kernel", image.to_str().unwrap()];
    let calls = interrupted_in_each_call(&demo, &mut |_| {});
    // The toolchain, and the build that fails.
    assert!(calls > 1, "it has ended by itself after {calls} calls");
}

/// What is tried next when apt fails must not be tried when apt was ended.
#[test]
fn ctrl_c_starts_nothing_more() {
    let machine = Machine::new("true");
    fs::remove_file(machine.path("bin/qemu-system-x86_64")).unwrap();
    machine.script("id", "echo 0");
    let root = machine.root.path().display();
    // It does not listen, and what it has started takes longer to end than itself.
    machine.script(
        "apt-get",
        &format!(
            "exec > /dev/null 2>&1\ntrap '' TERM\n\
             if [ $1 = install ]; then\n\
             for i in 0 1 2 3 4 5 6 7 8 9; do for j in 0 1 2 3 4 5 6 7 8 9; do sleep 100000 & done; done\n\
             mkdir {root}/hangs\nfi\nwhile :; do sleep 1; done"
        ),
    );
    let run = machine.until_it_hangs(&["vm", "--bare", "--cmd", "x"]);
    run.unwrap().interrupt();
    machine.assert_clean();
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

/// The first one is interrupted when half of a file is there: the second one has nothing of that, and begins again.
#[test]
fn a_download_that_was_interrupted_is_begun_again() {
    for stalls_in in ["pool/main/b/", "/Release", "/Packages", "/new.deb"] {
        let machine = Machine::new("echo up");
        let Some(package) = machine.lacks_busybox(&[]) else {
            return;
        };
        let (stalls, wait) = channel();
        let once = AtomicBool::new(false);
        let address = archive(move |path, stream| {
            if !path.contains(stalls_in) || once.swap(true, Ordering::Relaxed) {
                return package.answer(path, stream);
            }
            let whole = package.file(path).unwrap_or(&[0; 4096]);
            reply(stream, "200 OK", whole.len(), &whole[..whole.len() / 2]);
            stalls.send(()).ok();
            // It closes when the other side does.
            stream.read_to_end(&mut Vec::new()).ok();
        });
        if !machine.apt(&address) {
            return;
        }
        let run = machine.vm();
        wait.recv().unwrap();
        run.interrupt();
        machine.assert_clean();
        assert!(!machine.path("cache/busybox").exists(), "{stalls_in}");
        let run = machine.vm();
        run.wait_for("up");
        run.end();
        let kept = fs::read(machine.path("cache/busybox/bin/busybox")).unwrap();
        assert_eq!(kept, elf_without_interpreter(), "{stalls_in}");
        machine.assert_clean();
    }
}

#[test]
fn a_package_that_was_half_unpacked_is_unpacked_again() {
    let machine = Machine::new("echo up");
    let Some(package) = machine.lacks_busybox(&[("usr/share/doc/it", b"more")]) else {
        return;
    };
    if !machine.apt(&archive(move |path, stream| package.answer(path, stream))) {
        return;
    }
    let program = machine.path("package/bin/busybox");
    // `dpkg-deb -x FILE FOLDER`
    machine.hangs_once(
        "dpkg-deb",
        &format!("mkdir -p $3/bin; cp {} $3/bin/", program.display()),
    );
    let image = machine.path("vmlinuz");
    let vm = [
        "vm",
        "--bare",
        "--kernel",
        image.to_str().unwrap(),
        "--cmd",
        "x",
    ];
    machine.until_it_hangs(&vm).unwrap().interrupt();
    machine.assert_clean();
    assert!(!machine.path("cache/busybox").exists());
    let run = machine.vm();
    run.wait_for("up");
    run.end();
    assert!(machine.path("cache/busybox/usr/share/doc/it").is_file());
    machine.assert_clean();
}

#[test]
fn a_standard_library_that_was_half_copied_is_copied_again() {
    let machine = Machine::new("true");
    machine.compilers(0);
    let library = machine.path("sysroot/lib/rustlib/src/rust/library");
    fs::remove_dir_all(&library).unwrap();
    let files: [(&str, &[u8]); 2] = [
        ("usr/src/rustc-1/library/core/src/lib.rs", b""),
        ("usr/src/rustc-1/library/std/src/lib.rs", b""),
    ];
    let Some(package) = machine.package("rust-src", "sid", &files) else {
        return;
    };
    if !machine.apt(&archive(move |path, stream| package.answer(path, stream))) {
        return;
    }
    // `cp -RT FROM TO`
    machine.hangs_once("cp", "mkdir -p $3/core/src; touch $3/core/src/lib.rs");
    let run = machine.until_it_hangs(&["test", "--quick"]);
    run.unwrap().interrupt();
    machine.assert_clean();
    let left: Vec<_> = fs::read_dir(library.parent().unwrap())
        .unwrap()
        .flatten()
        .collect();
    assert!(left.is_empty(), "{left:?}");
    machine.start(&["test", "--quick"]).end();
    assert!(library.join("std/src/lib.rs").is_file());
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
    let Some(package) = machine.lacks_busybox(&[]) else {
        return;
    };
    let address = archive(move |path, stream| package.answer(path, stream));
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
